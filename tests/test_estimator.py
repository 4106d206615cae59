"""The estimator: scikit-learn's contract, ragged series, evidence that equals the prediction, bad input."""

import copy
import gc
import logging
import weakref
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, cross_validate
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from raxss import RAxSSClassifier, Series
from raxss.data.synthetic import make_motif_series
from raxss.errors import (
    BackboneError,
    ConfigError,
    DataError,
    EmptyDataError,
    LabelError,
    SignalError,
    SignalWarning,
    TrainingError,
    VariateMismatchError,
)
from raxss.estimator.fit import validation_split
from raxss.method.window_scorer import Scorer, score_windows
from raxss.method.windows import windows_of
from toys import SMALL, Tiny, waves


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(69421)
    series = waves(rng, n_series=24)
    return RAxSSClassifier(**{**SMALL, "max_epochs": 8, "batch_size": 32}).fit(series), series


@parametrize_with_checks([RAxSSClassifier(device="cpu")])
def test_every_check_of_scikit_learn_passes(estimator, check):
    check(estimator)


def test_no_check_is_excused():
    assert not RAxSSClassifier().__sklearn_tags__().classifier_tags.poor_score
    assert not hasattr(RAxSSClassifier, "_more_tags")


def test_it_learns_to_tell_waves_apart(fitted):
    model, series = fitted
    assert model.score(series, series.labels) >= 0.9
    assert list(model.classes_) == ["fast", "slow"]
    assert set(model.predict(series)) <= {"fast", "slow"}


def test_probabilities_are_convex_and_sum_to_one(fitted):
    model, series = fitted
    probability = model.predict_proba(series)
    assert probability.shape == (24, 2)
    assert (probability >= 0).all()
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-12)


def test_a_series_scores_the_same_whatever_else_is_predicted(fitted):
    model, series = fitted
    together = model.predict_proba(series)
    alone = np.concatenate([model.predict_proba([item]) for item in series])
    np.testing.assert_array_equal(together, alone)


def test_evidence_sums_to_the_prediction(fitted):
    model, series = fitted
    for weighting in ("support", "uniform", "inverse", "shuffled", "random"):
        model.set_params(weighting=weighting)
        evidence = model.explain(series[3])
        columns = [f"contribution_{name}" for name in model.classes_]
        np.testing.assert_allclose(
            evidence.windows[columns].sum(), model.predict_proba([series[3]])[0], atol=1e-12
        )
    model.set_params(weighting="support")


def test_explaining_several_gives_a_list(fitted):
    model, series = fitted
    assert [item.name for item in model.explain(series[:2])] == ["wave 0", "wave 1"]
    assert [item.name for item in model.explain([series[4].samples[0], series[5].samples[0]])] == [
        "series 0",
        "series 1",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.01},
        {"n_neighbors": 1},
        {"measure": "cosine"},
        {"exclusion": 64},
        {"weighting": "uniform"},
        {"space": "features"},
    ],
)
def test_the_method_can_be_changed_after_fitting(fitted, change):
    model, series = fitted
    before = model.predict_proba(series)
    original = {name: getattr(model, name) for name in change}
    model.set_params(**change)
    changed = model.predict_proba(series)
    model.set_params(**original)
    assert not np.array_equal(before, changed)
    np.testing.assert_array_equal(model.predict_proba(series), before)


def test_uniform_weights_are_the_mean_of_the_window_posteriors(fitted):
    model, series = fitted
    model.set_params(weighting="uniform")
    evidence = model.explain(series[0])
    model.set_params(weighting="support")
    mean = evidence.windows[["posterior_fast", "posterior_slow"]].mean()
    np.testing.assert_allclose(evidence.series_probability, mean, atol=1e-14)


@pytest.mark.parametrize("space", ["signal", "features"])
def test_several_variates_and_classes(rng, space):
    series = waves(rng, n_series=21, n_classes=3, n_variates=2)
    model = RAxSSClassifier(**SMALL, space=space).fit(series)
    assert model.predict_proba(series).shape == (21, 3)
    assert model.explain(series[0]).settings["space"] == space


def test_arrays_lists_and_collections_mean_the_same(rng):
    series = waves(rng)
    as_lists = [item.samples[0].tolist() for item in series]
    as_arrays = [item.samples for item in series]
    results = [
        RAxSSClassifier(**SMALL).fit(X, series.labels, groups=series.groups).predict_proba(X)
        for X in (series, as_lists, as_arrays)
    ]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_three_dimensional_array_is_series_of_several_variates(rng):
    cube = rng.normal(size=(10, 2, 50))
    model = RAxSSClassifier(**SMALL).fit(cube, [0, 1] * 5)
    assert (model.n_variates_, model.predict_proba(cube).shape) == (2, (10, 2))


def test_labels_keep_their_type(rng):
    series = waves(rng)
    for labels in ([3, 7] * 9, [True, False] * 9, np.array(["a", "b"] * 9, dtype=object), [0.0, 1.0] * 9):
        model = RAxSSClassifier(**SMALL).fit([item.samples for item in series], labels)
        assert model.predict([series[0]])[0] in labels


def test_cross_validation_with_groups_works_on_ragged_lists(rng):
    series = waves(rng, n_series=24)
    scores = cross_validate(
        RAxSSClassifier(**SMALL),
        list(series),
        series.labels,
        groups=series.groups,
        cv=StratifiedGroupKFold(2),
        error_score="raise",
    )
    assert np.isfinite(scores["test_score"]).all()


def test_a_grid_search_can_vary_the_temperature(rng):
    series = waves(rng, n_series=16)
    search = GridSearchCV(
        RAxSSClassifier(**SMALL), {"temperature": np.array([0.05, 0.5])}, cv=2, error_score="raise"
    )
    assert search.fit([item.samples[0] for item in series], series.labels).best_params_["temperature"] in (
        0.05,
        0.5,
    )


def test_validation_never_shares_a_group_with_training(rng):
    series = waves(rng, n_series=48)
    kept, held = validation_split(series.labels, series.groups, fraction=0.125, seed=0)
    assert len(held)
    assert not set(series.groups[kept]) & set(series.groups[held])


def test_a_validation_part_given_by_a_split_is_the_one_that_early_stopping_sees(rng):
    series = waves(rng, n_series=24)
    model = RAxSSClassifier(**SMALL).fit(series[:18], validation=series[18:])
    assert model.training_data_["n_validation"] == 6
    assert model.scaling_.mean == pytest.approx(
        np.concatenate([item.samples[0] for item in series[:18]]).mean()
    )
    truth = np.array([item.label for item in series[18:]])
    best = model.history_.iloc[model.best_epoch_ - 1]
    assert best["validation_accuracy"] == pytest.approx((model.predict(series[18:]) == truth).mean())


def test_an_empty_validation_part_sets_nothing_aside(rng):
    series = waves(rng, n_series=12)
    model = RAxSSClassifier(**SMALL).fit(series, validation=[])
    assert (model.training_data_["n_validation"], model.training_data_["n_series"]) == (0, 12)
    assert "validation_accuracy" not in model.history_


def test_groups_on_both_sides_of_a_validation_part_are_told(rng, caplog):
    series = [replace(wave, group=f"p{place % 4}") for place, wave in enumerate(waves(rng, n_series=12))]
    RAxSSClassifier(**SMALL).fit(series[:10], validation=series[10:])
    assert "2 of 4 groups of the training series are in the validation part too" in caplog.text
    caplog.clear()
    apart = [replace(item, group="another") for item in series[10:]]
    RAxSSClassifier(**SMALL).fit(series[:10], validation=apart)
    assert "validation part too" not in caplog.text


def test_validation_labels_that_training_lacks_are_named(rng):
    series = waves(rng, n_series=12, n_classes=3)
    with pytest.raises(LabelError, match="'faster'"):
        RAxSSClassifier(**SMALL).fit(
            [item for item in series if item.label != "faster"], validation=series[2:3]
        )


def test_a_validation_series_that_is_also_a_training_series_is_named(rng):
    series = waves(rng, n_series=12)
    copy_of_one = replace(series[4], name="another name")
    with pytest.raises(DataError, match=r"'another name' has the samples of training series 'wave 4'"):
        RAxSSClassifier(**SMALL).fit(series[:10], validation=[*series[10:], copy_of_one])


def test_series_prepared_in_another_way_than_the_training_data_are_refused(rng):
    series = [replace(wave, preparation="pool 2/1") for wave in waves(rng)]
    model = RAxSSClassifier(**SMALL).fit(series)
    assert model.preparation_ == "pool 2/1"
    other = replace(series[3], preparation="")
    for call in (model.predict_proba, model.explain):
        with pytest.raises(DataError, match=r"'wave 3' was prepared by nothing.*'pool 2/1'"):
            call([other])
    with pytest.raises(
        DataError, match=r"'wave 3' was prepared by nothing and series 'wave 0' by 'pool 2/1'"
    ):
        RAxSSClassifier(**SMALL).fit([*series[:3], other])


def test_the_same_seed_fits_the_same_model_and_another_fits_another(rng):
    series = waves(rng)
    first, again, other = (
        RAxSSClassifier(**{**SMALL, "random_state": seed}).fit(series).predict_proba(series)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_window_length_is_at_most_the_longest_series_and_shorter_ones_are_padded(rng, caplog):
    series = [rng.normal(size=20 + index) for index in range(10)]
    model = RAxSSClassifier(**{**SMALL, "window_length": 1000})
    with caplog.at_level(logging.INFO, logger="raxss"):
        model.fit(series, [0, 1] * 5)
    assert model.window_length_ == 29
    assert "window_length=1000 is longer than every series: windows have 29 samples" in caplog.text
    evidence = model.explain(series[0])
    assert evidence.windows["padded"].all()
    assert evidence.windows["end_s"].tolist() == [20.0]
    assert any("padded" in warning for warning in evidence.warnings)


def test_the_planted_motif_outweighs_the_rest_with_an_exclusion_zone():
    motifs = make_motif_series(12, seed=69421)
    length = motifs.motif_length
    model = RAxSSClassifier(
        window_length=length,
        stride=length // 8,
        exclusion=1.0,
        n_neighbors=4,
        max_epochs=1,
        random_state=0,
        device="cpu",
    ).fit(motifs.series)
    shares = []
    for series, starts in zip(motifs.series, motifs.motif_starts, strict=True):
        if len(starts) == 0:
            continue
        windows = model.explain(series).windows
        begins = (windows["start_s"] * series.rate).to_numpy()
        at_motif = (np.abs(begins[:, None] - np.asarray(starts)[None, :]) <= length / 8).any(axis=1)
        weights = windows["weight"].to_numpy()
        shares.append(weights[at_motif].mean() / weights[~at_motif].mean())
    assert min(shares) > 1
    assert np.median(shares) > 3


def test_a_network_of_ones_own_needs_no_features_until_they_are_asked_for(rng):
    series = waves(rng)
    model = RAxSSClassifier(Tiny, **SMALL).fit(series)
    assert model.predict_proba(series).shape == (18, 2)
    model.set_params(space="features")
    with pytest.raises(BackboneError, match=r"Tiny has no method features\(windows\)"):
        model.predict_proba(series)


def test_a_network_with_nothing_to_train_is_refused(rng):
    class Fixed(nn.Module):
        def __init__(self, n_variates, window_length, n_outputs):
            super().__init__()

        def forward(self, windows):
            return windows.mean(dim=(1, 2))[:, None]

    with pytest.raises(BackboneError, match="Fixed has no parameters"):
        RAxSSClassifier(Fixed, **SMALL).fit(waves(rng))


def test_the_paper_preset_trains_with_the_series_loss(rng):
    series = waves(rng)
    model = RAxSSClassifier.from_preset("paper", **SMALL).fit(series)
    assert model.backbone_.__class__.__name__ == "PatchTST"
    assert np.isfinite(model.history_["train_loss"]).all()


@pytest.mark.parametrize("weighting", ["support", "inverse", "uniform"])
def test_the_bank_may_be_the_batch(rng, weighting):
    series = waves(rng)
    settings = {**SMALL, "series_loss_weight": 1.0, "batch_size": 64, "exclusion": 0, "weighting": weighting}
    by_batch = RAxSSClassifier(**settings, bank="batch").fit(series).predict_proba(series)
    by_series = RAxSSClassifier(**settings, bank="series").fit(series).predict_proba(series)
    assert np.array_equal(by_batch, by_series) == (weighting == "uniform")


def test_the_temperature_can_be_learned_under_both_losses(rng):
    series = waves(rng, n_series=24)
    for losses in ({"window_loss_weight": 1.0}, {"window_loss_weight": 0.0, "series_loss_weight": 1.0}):
        model = RAxSSClassifier(**SMALL, temperature="learned", lr=1e-2, **losses).fit(series)
        assert model.temperature_ > 0
        assert abs(model.temperature_ - 0.1) > 1e-4
        assert model.explain(series[0]).settings["temperature"] == model.temperature_


def test_the_temperature_can_be_learned_for_feature_space(rng):
    series = waves(rng, n_series=24)
    model = RAxSSClassifier(
        **{**SMALL, "max_epochs": 6, "batch_size": 32}, temperature="learned", space="features"
    )
    model.fit(series)
    _, held = validation_split(series.labels, series.groups, fraction=0.125, seed=model.seed_)

    def loss(temperature):
        probability = clone_with(model, temperature).predict_proba(series[held])
        right = (series.labels[held][:, None] == model.classes_).argmax(axis=1)
        return -np.log(probability[np.arange(len(held)), right]).mean()

    assert loss(model.temperature_) <= min(map(loss, np.geomspace(2e-3, 9, 12))) + 1e-4


def clone_with(model, temperature):
    other = copy.copy(model)
    other.temperature = float(temperature)
    return other


def test_a_model_of_a_batch_bank_can_be_changed_after_fitting(rng):
    series = waves(rng)
    model = RAxSSClassifier(**SMALL, bank="batch", series_loss_weight=1.0).fit(series)
    for change in ({"space": "features"}, {"weighting": "random"}, {"spread": 5}):
        assert np.isfinite(model.set_params(**change).predict_proba(series)).all()


def test_a_fit_that_fails_leaves_no_mixture(rng):
    series = waves(rng)
    model = RAxSSClassifier(**SMALL).fit(series)
    model.set_params(backbone_options={"dropout": 5.0})
    with pytest.raises(ConfigError, match="dropout"):
        model.fit([item.samples for item in series], ["x", "y"] * 9)
    with pytest.raises(NotFittedError):
        model.predict(series)
    with pytest.raises(TrainingError, match="diverged"):
        model.set_params(backbone_options=None, lr=1e30, warmup_steps=0).fit(series)
    with pytest.raises(NotFittedError):
        model.predict(series)


def test_a_refit_on_ragged_series_forgets_the_number_of_features(rng):
    model = RAxSSClassifier(**SMALL).fit(rng.normal(size=(10, 40)), [0, 1] * 5)
    assert model.n_features_in_ == 40
    assert not hasattr(model.fit(waves(rng)), "n_features_in_")


def test_feature_statistics_are_those_of_all_training_windows(rng):
    series = waves(rng)
    model = RAxSSClassifier(**SMALL, validation_fraction=0.0).fit(series)
    parts = []
    for item in series:
        windows = windows_of(model.scaling_.apply(item), window_length=32, stride=8)
        parts.append(
            score_windows(model.backbone_, windows, device=torch.device("cpu"), with_features=True)[1]
        )
    features = np.concatenate(parts)
    np.testing.assert_allclose(model.feature_mean_, features.mean(axis=0), atol=1e-6)
    spread = features.std(axis=0)
    np.testing.assert_allclose(model.feature_scale_, np.where(spread > 0, spread, 1.0), rtol=1e-4, atol=1e-6)


def test_a_slightly_other_rate_is_a_warning_in_prediction_and_evidence(fitted):
    model, series = fitted
    fast = Series(series[0].samples, rate=10.8, name="fast one")
    with pytest.warns(
        SignalWarning, match=r"'fast one' has a rate of 10\.8 Hz, but the model was fitted at 10 Hz"
    ):
        model.predict_proba([fast])
    assert "10.8 Hz" in model.explain(fast).warnings[0]
    model.predict_proba([series[0].samples])  # no rate is known: nothing to say


def test_training_series_of_several_rates_are_warned_about(rng):
    series = list(waves(rng))
    series[0] = Series(series[0].samples, rate=20.0, label=series[0].label, group=series[0].group)
    with pytest.warns(SignalWarning, match="rates from 10 to 20 Hz"):
        RAxSSClassifier(**SMALL).fit(series)


def test_lists_of_pandas_series_and_tensors_are_series(rng):
    arrays = [wave.samples[0] for wave in waves(rng)]
    expected = RAxSSClassifier(**SMALL).fit(arrays, [0, 1] * 9).predict_proba(arrays)
    for kind in (pd.Series, torch.from_numpy):
        given = [kind(array) for array in arrays]
        np.testing.assert_array_equal(
            RAxSSClassifier(**SMALL).fit(given, [0, 1] * 9).predict_proba(given), expected
        )


def test_labels_in_the_series_are_checked_like_any_others(rng):
    series = [Series(rng.normal(size=50), label=label) for label in (0.5, 1.5, 0.25, 3.5)]
    with pytest.raises(ValueError, match="continuous"):
        RAxSSClassifier().fit(series)


def test_a_series_without_a_group_among_others_is_refused_by_name(rng):
    series = list(waves(rng))
    series[4] = Series(series[4].samples, rate=10.0, label="slow", name="nobody's")
    with pytest.raises(DataError, match='1 of 18 series have no group, the first is "nobody\'s"'):
        RAxSSClassifier(**SMALL).fit(series)
    with pytest.raises(DataError, match="5 groups were given for 18 series"):
        RAxSSClassifier(**SMALL, validation_fraction=0.0).fit(series, groups=[1] * 5)


def test_a_clone_is_unfitted_and_equal(fitted):
    model, _ = fitted
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "backbone_")


def test_history_has_one_row_an_epoch(fitted):
    model, _ = fitted
    assert isinstance(model.history_, pd.DataFrame)
    assert {"epoch", "train_loss", "validation_loss", "validation_accuracy", "lr"} <= set(model.history_)


def test_marked_gaps_are_worked_around_and_get_no_weight(rng):
    series = list(waves(rng))
    samples = series[0].samples.copy()
    samples[0, 20] = np.nan
    gap = Series(samples, label=series[0].label, group=series[0].group, name="with gap", gaps_marked=True)
    model = RAxSSClassifier(**SMALL).fit([gap, *series[1:]])
    for weighting in ("support", "uniform", "inverse", "shuffled", "random"):
        windows = model.set_params(weighting=weighting).explain(gap).windows
        assert windows["nonfinite"].any()
        assert (windows.loc[windows["nonfinite"], "weight"] == 0).all()
        assert windows["weight"].sum() == pytest.approx(1)


# Many series, long series ------------------------------------------------------------------------------------


def test_explaining_each_gives_what_explaining_all_gives_and_lets_go_of_it(fitted):
    model, series = fitted
    expected = model.explain(series[:5])
    before = None
    for item, other in zip(model.explain_each(series[:5]), expected, strict=True):
        gc.collect()
        assert before is None or before() is None  # only one is held at a time
        pd.testing.assert_frame_equal(item.windows, other.windows, check_exact=True)
        pd.testing.assert_frame_equal(item.neighbors, other.neighbors, check_exact=True)
        before = weakref.ref(item)
        del item


def test_wrong_series_are_refused_before_the_first_is_explained(fitted):
    model, series = fitted
    with pytest.raises(VariateMismatchError, match="series 'two' has 2 variates"):
        model.explain_each([*series[:2], Series(np.zeros((2, 50)), name="two")])


def test_progress_moves_within_a_series_and_ends_at_one(fitted, rng):
    model, series = fitted
    long = Series(rng.normal(size=20_000), rate=10.0, name="long")  # 2497 windows, five passes
    told: list[float] = []
    list(model.explain_each([long, series[0]], on_progress=told.append))
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)
    assert len(set(told)) >= 6


def test_a_terminal_sees_a_bar_that_moves_in_windows(fitted, rng, monkeypatch, capsys):
    model, _ = fitted
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    long = [rng.normal(size=20_000)]
    quiet = model.predict_proba(long)
    assert capsys.readouterr().err == ""
    model.set_params(verbose=1)
    np.testing.assert_array_equal(model.predict_proba(long), quiet)
    model.set_params(verbose=0)
    drawn = capsys.readouterr().err
    assert "2497/2497" in drawn
    assert "windows" in drawn


def test_uniform_weights_are_predicted_without_any_retrieval(fitted, rng, monkeypatch):
    model, series = fitted
    samples = series[0].samples.copy()
    samples[0, 20] = np.nan
    gap = replace(series[0], samples=samples, gaps_marked=True)
    model.set_params(weighting="uniform")
    expected = [item.series_probability for item in model.explain([gap, *series[1:4]])]

    def refuse(*_, **__):
        raise AssertionError("nobody asked who is near")

    monkeypatch.setattr("raxss.method.inference.cached_retrieve_many", refuse)
    monkeypatch.setattr("raxss.method.inference.cached_retrieve", refuse)
    np.testing.assert_array_equal(model.predict_proba([gap, *series[1:4]]), expected)
    model.set_params(weighting="support")
    assert RAxSSClassifier(**SMALL, weighting="uniform").fit(series).predict_proba(series).shape == (24, 2)


def test_half_precision_samples_are_computed_in_more(fitted):
    model, series = fitted
    half = [replace(item, samples=item.samples.astype(np.float16)) for item in series]
    single = [replace(item, samples=item.samples.astype(np.float32)) for item in half]
    np.testing.assert_array_equal(model.predict_proba(half), model.predict_proba(single))
    assert (
        np.abs(model.explain(half[0]).windows["support"] - model.explain(series[0]).windows["support"]).max()
        < 0.01
    )
    assert RAxSSClassifier(**SMALL).fit(half).predict_proba(half).shape == (24, 2)


def test_passes_cut_from_one_strip_score_as_windows_copied_one_by_one(fitted, rng):
    network = fitted[0].backbone_
    samples = rng.normal(size=(1, 9_000))
    samples[0, [50, 51, 4000]] = [np.nan, np.inf, -np.inf]
    windows = windows_of(Series(samples), window_length=32, stride=8)
    assert len(windows) > 2 * 512
    found, features = score_windows(network, windows, device=torch.device("cpu"), with_features=True)
    logits, vectors = [], []
    with torch.inference_mode():
        for first in range(0, len(windows), 512):
            plain = np.nan_to_num(windows.samples[first : first + 512], nan=0.0, posinf=0.0, neginf=0.0)
            batch = torch.from_numpy(plain.astype(np.float32))
            logits.append(network(batch))
            vectors.append(network.features(batch))
    assert torch.equal(found, torch.cat(logits))
    np.testing.assert_array_equal(features, torch.cat(vectors).double().numpy())


class Cramped(nn.Module):
    """A network that no device has room for beyond some windows."""

    def __init__(self, most):
        super().__init__()
        self.most, self.seen = most, []
        self.head = nn.Linear(32, 1)

    def forward(self, windows):
        if len(windows) > self.most:
            raise torch.OutOfMemoryError(f"no room for {len(windows)}")
        self.seen.append(len(windows))
        return self.head(windows[:, 0])


def test_a_device_without_room_gets_smaller_passes_and_says_so_once(rng, caplog):
    windows = windows_of(Series(rng.normal(size=9_000)), window_length=32, stride=8)
    network = Cramped(150)
    scorer = Scorer(network, torch.device("cpu"))
    with caplog.at_level(logging.WARNING, logger="raxss"):
        both = [scorer.launch(windows).logits() for _ in range(2)]
    assert max(network.seen) == 128
    assert network.seen.count(128) == 2 * (len(windows) // 128)
    assert caplog.text.count("no room for 512 windows at once") == len(caplog.records) == 1
    with torch.inference_mode():
        plain = network.head(torch.from_numpy(windows.samples[:, 0].astype(np.float32)))
    assert torch.equal(both[0], both[1])
    torch.testing.assert_close(both[0], plain)


def test_a_device_without_any_room_ends_in_an_error_where_there_is_no_other(rng):
    windows = windows_of(Series(rng.normal(size=900)), window_length=32, stride=8)
    with pytest.raises(torch.OutOfMemoryError, match="no room for 32"):
        Scorer(Cramped(31), torch.device("cpu")).launch(windows)


def test_features_that_do_not_fit_are_refused_with_their_size(fitted, monkeypatch):
    model, series = fitted
    monkeypatch.setattr("raxss._core.memory.available_memory", lambda: 1000)
    model.set_params(space="features")
    try:
        with pytest.raises(DataError, match=r"windows by 256 features each needs .* Set space='signal'"):
            model.predict_proba(series[:1])
    finally:
        model.set_params(space="signal")


@pytest.mark.parametrize("space", ["signal", "features"])
def test_working_ahead_on_groups_of_series_changes_no_score(fitted, monkeypatch, space):
    model, series = fitted
    model.set_params(space=space)
    told: list[float] = []
    try:
        one_by_one = [item.windows for item in model.explain_each(series)]
        monkeypatch.setattr("raxss.method.inference.SERIES_AHEAD", {"cpu": 1})
        monkeypatch.setattr("raxss.method.inference.LISTED_AT_ONCE", 300)
        together = [item.windows for item in model.explain_each(series, on_progress=told.append)]
    finally:
        model.set_params(space="signal")
    for item, other in zip(one_by_one, together, strict=True):
        pd.testing.assert_frame_equal(item, other, check_exact=True)
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(("windows_of_a_long_series", "n_ahead"), [(1, 1), (10**6, 3)])
def test_a_gpu_is_a_few_short_series_ahead_but_one_long_one(
    fitted, monkeypatch, windows_of_a_long_series, n_ahead
):
    model, series = fitted
    launched: list[int] = []

    class Counting(Scorer):
        def launch(self, windows, **more):
            launched.append(len(windows))
            return super().launch(windows, **more)

    monkeypatch.setattr("raxss.method.inference.Scorer", Counting)
    monkeypatch.setattr("raxss.method.inference.SERIES_AHEAD", {"cpu": 3})
    monkeypatch.setattr("raxss.method.inference.WINDOWS_OF_A_LONG_SERIES", windows_of_a_long_series)
    ahead = [len(launched) - n_before - 1 for n_before, _ in enumerate(model.explain_each(series[:8]))]
    assert ahead == [n_ahead] * (8 - n_ahead) + [*range(n_ahead)][::-1]


def test_short_series_of_a_gpu_are_retrieved_together_up_to_a_bound(fitted, monkeypatch):
    model, series = fitted
    monkeypatch.setattr("raxss.method.inference.LISTED_AT_ONCE", 300)
    predictor = model._predictor(None)
    on_gpu = replace(predictor, device=torch.device("cuda"))
    groups = list(on_gpu.groups(list(series)))
    assert [item.name for group in groups for item in group] == series.names
    assert max(map(len, groups)) > 1
    for group in groups:
        assert len(group) == 1 or 10 * sum(map(predictor.n_windows, group)) <= 300
    alone = list(predictor.groups(list(series)))
    assert [len(group) for group in alone] == [1] * 24


# Bad input -------------------------------------------------------------------------------------------------


def test_an_empty_list_is_refused():
    with pytest.raises(EmptyDataError, match="no series were given"):
        RAxSSClassifier().fit([], [])


def test_one_class_only_is_refused_by_its_name(rng):
    with pytest.raises(LabelError, match="all 3 labels are 'x'"):
        RAxSSClassifier().fit([rng.normal(size=9)] * 3, ["x"] * 3)


def test_labels_of_another_length_are_refused_with_both_numbers(rng):
    with pytest.raises(LabelError, match="2 labels were given for 3 series"):
        RAxSSClassifier().fit([rng.normal(size=9)] * 3, [0, 1])


def test_series_without_labels_need_y():
    with pytest.raises(LabelError, match="requires y to be passed"):
        RAxSSClassifier().fit([Series([1.0, 2.0])])


def test_a_series_with_no_samples_is_named(rng):
    with pytest.raises(EmptyDataError, match=r"series 1.*no samples"):
        RAxSSClassifier().fit([rng.normal(size=9), np.zeros(0)], [0, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_refused_by_series_and_place(rng, bad, fitted):
    samples = rng.normal(size=90)
    samples[[7, 8]] = bad
    message = "series 'broken' has 2 of 90 samples .* first at sample 7"
    with pytest.raises(SignalError, match=message):
        RAxSSClassifier().fit([Series(rng.normal(size=9)), Series(samples, name="broken")], [0, 1])
    with pytest.raises(SignalError, match=message):
        fitted[0].predict_proba([Series(samples, name="broken")])
    with pytest.raises(SignalError, match=message):
        fitted[0].explain(Series(samples, name="broken"))


def test_a_constant_series_is_a_warning_with_its_name(fitted):
    with pytest.warns(SignalWarning, match="series 'dead' is constant over all its 100 samples"):
        probability = fitted[0].predict_proba([Series(np.full(100, 3.0), name="dead")])
    assert np.isfinite(probability).all()


def test_mixed_numbers_of_variates_are_refused_by_name(rng, fitted):
    item, two = Series(rng.normal(size=50), name="one"), Series(rng.normal(size=(2, 50)), name="two")
    with pytest.raises(
        VariateMismatchError, match="series 'two' has 2 variates, but the first series, 'one', has 1"
    ):
        RAxSSClassifier().fit([item, two], [0, 1])
    with pytest.raises(
        VariateMismatchError, match="series 'two' has 2 variates, but the model was fitted on 1"
    ):
        fitted[0].predict([two])


def test_a_single_series_is_told_to_go_into_a_list(fitted):
    with pytest.raises(DataError, match="a single series, 'wave 0'"):
        fitted[0].predict(fitted[1][0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "suport"}, "'suport'; did you mean 'support'"),
        ({"temperature": 0}, "temperature must be a number > 0 or 'learned', got 0"),
        ({"stride": 0}, "windows.stride must be a whole number of at least 1, got 0"),
        ({"backbone": "convnett"}, "convnet"),
        ({"backbone_options": {"widht": 3}}, "widht"),
        ({"device": "cudda"}, "unknown device 'cudda'"),
        ({"bank": "batch", "spread": 5}, "spread = 5"),
        ({"bank": "batch", "weighting": "random"}, "weighting = 'random'"),
        (
            {"temperature": "learned", "weighting": "uniform"},
            "'learned' does not go with weighting = 'uniform'",
        ),
        ({"temperature": "learned", "validation_fraction": 0.0}, "validation_fraction is 0"),
        ({"n_neighbors": 10**10}, "n_neighbors is 10000000000; at most"),
        ({"random_state": -1}, "random_state is -1"),
        ({"device": "meta"}, "device 'meta' is not supported"),
        ({"backbone_options": {"dropout": 5.0}}, "'convnet-fine' cannot be built .*dropout"),
        ({"window_loss_weight": 0.0}, "both 0"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(rng, settings, message):
    with pytest.raises(ConfigError, match=message):
        RAxSSClassifier(**settings).fit([rng.normal(size=9)] * 4, [0, 1, 0, 1])


def test_cuda_without_a_gpu_says_what_to_do(rng):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ConfigError, match=r"sees no CUDA device\. Use device='auto'"):
        RAxSSClassifier(device="cuda").fit([rng.normal(size=9)] * 4, [0, 1, 0, 1])
