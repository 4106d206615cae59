"""The uncertainty measured from one fit is that of models fitted with each calibration."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scripts.measure_doubt import held_out_predictions

from raxss import Config, RAxSSClassifier
from raxss.benchmark.analyses.coverage import (
    WAYS,
    calibrated_otherwise,
    coverage_of,
    figures_of,
)
from raxss.data.splits import folds
from raxss.errors import ConfigError
from raxss.uncertainty.reliability import calibration_figures
from toys import SMALL, waves

SETTINGS = {name: value for name, value in SMALL.items() if name not in ("random_state", "device")}


@pytest.fixture(scope="module")
def series():
    return waves(np.random.default_rng(69421), n_series=60)


@pytest.fixture(scope="module")
def predictions(series):
    config = Config.from_parameters(SETTINGS)
    return pd.concat(
        held_out_predictions(series, config, n_folds=3, validation=0.3, device="cpu", alphas=(0.1, 0.3))
    )


def test_every_series_is_predicted_once_with_every_calibration(predictions, series):
    counts = predictions.groupby(["calibration", "level"]).size()
    assert counts.to_dict() == {way: len(series) for way in WAYS}
    assert sorted(predictions.loc[predictions["calibration"] == "none", "series"]) == sorted(series.names)


@pytest.mark.parametrize(
    ("method", "level"), [("none", "window"), ("isotonic", "window"), ("venn-abers", "series")]
)
def test_predictions_are_those_of_a_model_fitted_with_the_calibration(predictions, series, method, level):
    split = folds(series, n_folds=3, validation=0.3, seed=69421)[0]
    train, held, test = split.parts(series)
    settings = {
        **SETTINGS,
        "calibration": method,
        "calibration_level": level,
        "conformal_alpha": 0.3,
        "augmentation": None,
    }
    model = RAxSSClassifier(**settings, random_state=69421, device="cpu").fit(train, validation=held)
    some = predictions[
        (predictions["fold"] == 0) & (predictions["calibration"] == method) & (predictions["level"] == level)
    ]
    assert_allclose(some[["probability_0", "probability_1"]], model.predict_proba(test), atol=1e-9)
    assert (some[["set_0.3_0", "set_0.3_1"]].to_numpy() == model.predict_set(test)).all()
    scored = list(model.score_series(test))
    best = model.predict_proba(test).argmax(axis=1)
    low = [
        np.nan if item.interval is None else item.interval.low[c]
        for item, c in zip(scored, best, strict=True)
    ]
    assert_allclose(some["low"], low, atol=1e-9)
    assert some["warned"].tolist() == [bool(item.notes) for item in scored]


def test_figures_and_coverage_are_those_of_the_rows(predictions):
    figures = figures_of(predictions).set_index(["calibration", "level"])
    some = predictions[predictions["calibration"] == "none"]
    by_hand = calibration_figures(some["target"], some[["probability_0", "probability_1"]].to_numpy())
    assert figures.loc[("none", ""), "brier"] == pytest.approx(by_hand["brier"])
    table = coverage_of(predictions)
    row = table[(table["calibration"] == "none") & np.isclose(table["nominal"], 0.7)].iloc[0]
    sets = some[["set_0.3_0", "set_0.3_1"]].to_numpy()
    assert row["coverage"] == pytest.approx(
        np.mean([item[c] for item, c in zip(sets, some["target"], strict=True)])
    )
    assert row["abstains"] == pytest.approx(np.mean(sets.sum(axis=1) != 1))


def test_smoothed_predictions_are_not_calibrated_otherwise(series):
    model = RAxSSClassifier(**SMALL, smoothing=0.5).fit(series[:20])
    (item,) = model.predictor().predictions([series[30]])
    with pytest.raises(ConfigError, match=r"smoothing is 0\.5"):
        calibrated_otherwise(item, None, "window")
