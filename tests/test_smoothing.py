"""Smoothing over neighbours in the estimator: posteriors are calibrated, then smoothed, then aggregated."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import naive
from raxss import RAxSSClassifier, Series
from raxss.method.training.loop import fit_temperature
from toys import SMALL, waves


@pytest.fixture(scope="module")
def fitted():
    series = waves(np.random.default_rng(2), 24)
    settings = SMALL | {"calibration": "isotonic", "exclusion": 16, "n_neighbors": 3}
    return RAxSSClassifier(**settings).fit(series[:12], validation=series[12:18]), series[18:]


@pytest.fixture
def model(fitted):
    return fitted[0].set_params(smoothing=0.0, weighting="support", calibration="isotonic", space="signal")


@pytest.fixture
def series(fitted):
    return fitted[1]


@pytest.mark.parametrize("weighting", ["support", "uniform"])
@pytest.mark.parametrize("space", ["signal", "features"])
def test_predictions_are_smoothed_after_calibration_and_evidence_shows_all_three(
    model, series, weighting, space
):
    plain = model.set_params(weighting=weighting, space=space).explain(series)
    smoothed = model.set_params(smoothing=0.4).explain(series)
    proba = model.predict_proba(series)
    for item, other, probability in zip(plain, smoothed, proba, strict=True):
        before, after = item.windows, other.windows
        assert_array_equal(before["weight"], after["weight"])
        assert_array_equal(before["posterior_slow"], after["posterior_slow"])
        assert_array_equal(before["uncalibrated_slow"], after["uncalibrated_slow"])
        lists = [other.leaderboard(k)["neighbor"].tolist() for k in range(len(after))]
        own = after[["posterior_fast", "posterior_slow"]].to_numpy()
        expected = np.array(naive.smoothed(own, lists, 0.4, [False] * len(own)))
        assert_allclose(after["smoothed_slow"], expected[:, 1], atol=1e-14)
        assert_allclose(probability, after["weight"] @ expected, atol=1e-12)
        assert_allclose(other.series_probability, probability, atol=1e-12)


def test_window_probabilities_are_not_smoothed(model, series):
    own = list(model.window_probabilities(series))
    for item, other in zip(own, model.set_params(smoothing=1.0).window_probabilities(series), strict=True):
        assert_array_equal(item, other)


@pytest.mark.parametrize("space", ["signal", "features"])
def test_a_dead_stretch_is_left_out_of_smoothing(model, series, space):
    """Its windows are alike to nothing, so their lists are the first windows of the series."""
    samples = np.concatenate([series[0].samples, np.full((1, 120), 0.5)], axis=1)
    dead = Series(samples, rate=series[0].rate)
    table = model.set_params(space=space, calibration="none", smoothing=1.0).explain(dead).windows
    flat = table["flat"].to_numpy()
    assert 0 < flat.sum() < len(flat)
    assert_array_equal(table["smoothed_slow"][flat], table["posterior_slow"][flat])
    alive = table.loc[~flat, "posterior_slow"]
    assert table.loc[~flat, "smoothed_slow"].between(alive.min() - 1e-12, alive.max() + 1e-12).all()


def test_a_temperature_is_fitted_on_smoothed_posteriors(rng):
    series = waves(rng, 24)
    settings = SMALL | {"temperature": "learned", "space": "features", "n_neighbors": 2}
    model = RAxSSClassifier(**settings, smoothing=0.9).fit(series[:8], validation=series[8:])
    tables = [item.windows for item in model.explain(series[8:])]
    targets = np.array([model.classes_.tolist().index(item.label) for item in series[8:]])
    supports = [table["support"].to_numpy() for table in tables]
    found = {}
    for kind in ("smoothed", "posterior"):
        columns = [f"{kind}_{name}" for name in model.classes_]
        posteriors = [torch.from_numpy(table[columns].to_numpy(copy=True)) for table in tables]
        found[kind] = fit_temperature(posteriors, supports, targets)
    assert model.temperature_ == pytest.approx(found["smoothed"], rel=1e-3)
    assert model.temperature_ != pytest.approx(found["posterior"], rel=1e-2)


def test_smoothing_is_kept_with_the_model_and_enters_its_hash(model, series, tmp_path):
    before = model.current_config.hash
    folder = model.set_params(smoothing=0.7).save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(folder, device="cpu")
    assert again.smoothing == 0.7
    assert again.current_config.hash != before
    assert_array_equal(again.predict_proba(series), model.predict_proba(series))
