"""The estimator: scikit-learn's contract, ragged series, evidence that sums to the prediction, bad input."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, cross_validate
from sklearn.utils.estimator_checks import (
    check_classifiers_train,
    check_estimator,
    estimator_checks_generator,
    parametrize_with_checks,
)
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
from toys import SMALL, Tiny, waves

IN_SIGNAL = {**SMALL, "space": "signal", "temperature": 0.1}
NETWORK = {**IN_SIGNAL, "backbone": "convnet"}


#: A mixture as by default, with fewer trees, for speed.
FEW_TREES = {"members": [{"backbone": "ridge", "view": "ppv"}, {"backbone": "extra-trees", "n_trees": 10}]}


@parametrize_with_checks([RAxSSClassifier(device="cpu", backbone_options=FEW_TREES)])
def test_every_check_of_scikit_learn_passes(estimator, check):
    """With few trees, for speed; tests/test_slow.py has the defaults for all checks."""
    check(estimator)


def test_the_defaults_learn_the_blobs_of_scikit_learn():
    check_classifiers_train("RAxSSClassifier", RAxSSClassifier(device="cpu"))


def test_no_check_is_excused():
    """No tag leaves a check out or makes it easier, and all checks of a classifier with class weights are run."""
    tags = RAxSSClassifier().__sklearn_tags__()
    excuses = {"non_deterministic", "no_validation", "_skip_test"}
    assert not [name for name in excuses if getattr(tags, name)]
    assert not [name for name in ("allow_nan", "positive_only", "pairwise") if getattr(tags.input_tags, name)]
    assert not tags.classifier_tags.poor_score
    assert tags.requires_fit
    assert tags.target_tags.required
    assert tags.input_tags.two_d_array
    assert tags.classifier_tags.multi_class
    assert not hasattr(RAxSSClassifier, "_more_tags")
    names = {
        getattr(check, "func", check).__name__ for _, check in estimator_checks_generator(RAxSSClassifier())
    }
    assert {
        "check_class_weight_classifiers",
        "check_methods_subset_invariance",
        "check_n_features_in",
    } <= names


def test_class_weights_and_a_tuned_threshold_pass_all_checks_but_those_of_what_was_learned():
    """With few trees, for speed."""
    settings = {"backbone_options": {"n_trees": 5}, "class_weight": "balanced", "decision_threshold": "tuned"}
    model = RAxSSClassifier("extra-trees", device="cpu", **settings)
    checks = check_estimator(model, on_fail=None, on_skip=None)
    learned = {"check_classifiers_train", "check_class_weight_classifiers"}
    assert {check["check_name"] for check in checks if check["status"] != "passed"} <= learned
    assert len(checks) >= 50


@pytest.fixture(scope="module")
def _network_of_waves():
    series = waves(np.random.default_rng(69421), n_series=24)
    settings = {"backbone": "convnet-fine", "max_epochs": 8, "batch_size": 32}
    return RAxSSClassifier(**NETWORK | settings).fit(series), series


@pytest.fixture
def network_model(_network_of_waves):
    """As `waves_model`, with a network that was trained in epochs."""
    model, series = _network_of_waves
    return copy.copy(model), series


@pytest.fixture(params=["mixture", "network"])
def either_model(request, waves_model, network_model):
    """Each of the two."""
    return {"mixture": waves_model, "network": network_model}[request.param]


def test_it_learns_two_classes_of_waves_with_probabilities_that_sum_to_one(either_model):
    model, series = either_model
    assert model.score(series, series.labels) >= 0.9
    assert list(model.classes_) == ["fast", "slow"]
    probability = model.predict_proba(series)
    assert probability.shape == (24, 2)
    assert (probability >= 0).all()
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-12)
    alone = np.concatenate([model.predict_proba([item]) for item in series])  # whatever else is predicted
    np.testing.assert_array_equal(probability, alone)


def test_the_history_of_a_network_has_a_row_for_each_epoch(network_model):
    model, _ = network_model
    columns = {"epoch", "train_loss", "validation_loss", "validation_accuracy", "lr"}
    assert columns <= set(model.history_)
    assert len(model.history_) == 8


def test_evidence_sums_to_the_prediction(either_model):
    model, series = either_model
    for weighting in ("support", "uniform", "inverse", "shuffled", "random"):
        model.set_params(weighting=weighting)
        evidence = model.explain(series[3])
        columns = [f"contribution_{name}" for name in model.classes_]
        np.testing.assert_allclose(
            evidence.windows[columns].sum(), model.predict_proba([series[3]])[0], atol=1e-12
        )
        if weighting == "uniform":
            posteriors = evidence.windows[["posterior_fast", "posterior_slow"]]
            np.testing.assert_allclose(evidence.series_probability, posteriors.mean(), atol=1e-14)


def test_explaining_several_gives_a_list(waves_model):
    model, series = waves_model
    assert [item.name for item in model.explain(series[:2])] == ["wave 0", "wave 1"]
    assert [item.name for item in model.explain([series[4].samples[0], series[5].samples[0]])] == [
        "series 0",
        "series 1",
    ]


CHANGES = {
    "temperature": 0.01,
    "n_neighbors": 1,
    "measure": "cosine",
    "exclusion": 64,
    "weighting": "uniform",
}


@pytest.mark.parametrize(("name", "value"), [*CHANGES.items(), ("space", "features")])
def test_the_method_can_be_changed_after_fitting(network_model, name, value):
    model, series = network_model
    before, original = model.predict_proba(series), getattr(model, name)
    changed = model.set_params(**{name: value}).predict_proba(series)
    assert not np.array_equal(before, changed)
    np.testing.assert_array_equal(model.set_params(**{name: original}).predict_proba(series), before)


@pytest.mark.parametrize("space", ["signal", "features"])
def test_several_variates_and_classes(rng, space):
    series = waves(rng, n_series=21, n_classes=3, n_variates=2)
    model = RAxSSClassifier(**SMALL, space=space).fit(series)
    assert model.predict_proba(series).shape == (21, 3)
    assert model.explain(series[0]).settings["space"] == space


def test_collections_and_lists_of_lists_arrays_pandas_series_and_tensors_mean_the_same(rng):
    series = waves(rng)
    rows = [item.samples[0] for item in series]
    lists = [[kind(row) for row in rows] for kind in (list, np.atleast_2d, pd.Series, torch.from_numpy)]
    expected, *others = (
        RAxSSClassifier(**SMALL).fit(X, series.labels, groups=series.groups).predict_proba(X)
        for X in (series, *lists)
    )
    for found in others:
        np.testing.assert_array_equal(found, expected)


def test_a_three_dimensional_array_is_series_of_several_variates(rng):
    cube = rng.normal(size=(10, 2, 50))
    model = RAxSSClassifier(**SMALL).fit(cube, [0, 1] * 5)
    assert (model.n_variates_, model.predict_proba(cube).shape) == (2, (10, 2))


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
    search.fit([item.samples[0] for item in series], series.labels)
    assert search.best_params_["temperature"] in (0.05, 0.5)


def test_validation_never_shares_a_group_with_training(rng):
    series = waves(rng, n_series=48)
    train, validation = validation_split(series.labels, series.groups, fraction=0.125, seed=0)
    assert len(validation)
    assert not set(series.groups[train]) & set(series.groups[validation])


def test_a_validation_part_given_by_a_split_is_the_one_that_early_stopping_sees(rng):
    series = waves(rng, n_series=24)
    model = RAxSSClassifier(**NETWORK).fit(series[:18], validation=series[18:])
    assert model.training_data_["n_validation"] == 6
    assert model.scaling_.mean == pytest.approx(
        np.concatenate([item.samples[0] for item in series[:18]]).mean()
    )
    truth = np.array([item.label for item in series[18:]])
    best = model.history_.iloc[model.best_epoch_ - 1]
    assert best["validation_accuracy"] == pytest.approx((model.predict(series[18:]) == truth).mean())


def test_an_empty_validation_set_sets_nothing_aside(rng):
    model = RAxSSClassifier(**SMALL).fit(waves(rng, n_series=12), validation=[])
    assert (model.training_data_["n_validation"], model.training_data_["n_series"]) == (0, 12)
    assert "validation_accuracy" not in model.history_


def test_groups_in_training_and_validation_set_are_warned_of(rng, caplog):
    series = [replace(wave, group=f"p{place % 4}") for place, wave in enumerate(waves(rng, n_series=12))]
    RAxSSClassifier(**SMALL).fit(series[:10], validation=series[10:])
    assert "2 of 4 groups of the training series are in the validation set too" in caplog.text
    caplog.clear()
    apart = [replace(item, group="another") for item in series[10:]]
    RAxSSClassifier(**SMALL).fit(series[:10], validation=apart)
    assert "validation set too" not in caplog.text


def test_validation_series_that_training_cannot_learn_from_or_has_already_are_named(rng):
    series = waves(rng, n_series=12, n_classes=3)
    known = [item for item in series if item.label != "faster"]
    with pytest.raises(LabelError, match="'faster'"):
        RAxSSClassifier(**SMALL).fit(known, validation=series[2:3])
    again = replace(series[4], name="another name")
    with pytest.raises(DataError, match=r"'another name' has the samples of training series 'wave 4'"):
        RAxSSClassifier(**SMALL).fit(known, validation=[again])


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


def test_window_length_is_at_most_the_longest_series_and_shorter_ones_are_padded(rng):
    series = [rng.normal(size=20 + index) for index in range(10)]
    model = RAxSSClassifier(**{**SMALL, "window_length": 1000}).fit(series, [0, 1] * 5)
    assert model.window_length_ == 29
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
        backbone="convnet",
        space="signal",
        temperature=0.1,
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


def test_a_network_of_ones_own_needs_no_features_until_they_are_needed(rng):
    series = waves(rng)
    model = RAxSSClassifier(Tiny, **IN_SIGNAL).fit(series)
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
        RAxSSClassifier(Fixed, **IN_SIGNAL).fit(waves(rng))


def test_the_paper_preset_trains_with_the_series_loss(rng):
    series = waves(rng)
    model = RAxSSClassifier.from_preset("paper", **SMALL).fit(series)
    assert model.backbone_.__class__.__name__ == "PatchTST"
    assert np.isfinite(model.history_["train_loss"]).all()


@pytest.mark.parametrize("weighting", ["support", "inverse", "uniform"])
def test_the_bank_may_be_the_batch(rng, weighting):
    series = waves(rng)
    settings = {
        **NETWORK,
        "series_loss_weight": 1.0,
        "batch_size": 64,
        "exclusion": 0,
        "weighting": weighting,
    }
    model = RAxSSClassifier(**settings, bank="batch").fit(series)
    by_batch = model.predict_proba(series)
    by_series = RAxSSClassifier(**settings, bank="series").fit(series).predict_proba(series)
    assert np.array_equal(by_batch, by_series) == (weighting == "uniform")
    for change in ({"space": "features"}, {"weighting": "random"}, {"spread": 5}):  # allowed after fitting
        assert np.isfinite(model.set_params(**change).predict_proba(series)).all()


def test_the_temperature_can_be_learned_under_both_losses_and_for_feature_space(rng):
    series = waves(rng, n_series=24)
    by_series = {"window_loss_weight": 0.0, "series_loss_weight": 1.0}
    for settings in ({"window_loss_weight": 1.0}, by_series, {"space": "features"}):
        model = RAxSSClassifier(**NETWORK | {"temperature": "learned", "lr": 1e-2} | settings).fit(series)
        assert model.temperature_ > 0
        assert abs(model.temperature_ - 0.1) > 1e-4
        assert model.explain(series[0]).settings["temperature"] == model.temperature_


def test_a_fit_that_fails_leaves_no_mixture(rng):
    series = waves(rng)
    model = RAxSSClassifier(**NETWORK).fit(series)
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


def test_training_series_of_several_rates_are_warned_about(rng):
    series = list(waves(rng))
    series[0] = Series(series[0].samples, rate=20.0, label=series[0].label, group=series[0].group)
    with pytest.warns(SignalWarning, match="rates from 10 to 20 Hz"):
        RAxSSClassifier(**SMALL).fit(series)


def test_a_series_without_a_group_among_others_is_refused_by_name(rng):
    series = list(waves(rng))
    series[4] = Series(series[4].samples, rate=10.0, label="slow", name="nobody's")
    with pytest.raises(DataError, match='1 of 18 series have no group, the first is "nobody\'s"'):
        RAxSSClassifier(**SMALL).fit(series)
    with pytest.raises(DataError, match="5 groups were given for 18 series"):
        RAxSSClassifier(**SMALL, validation_fraction=0.0).fit(series, groups=[1] * 5)


def test_windows_that_are_mostly_missing_get_no_weight_and_others_keep_theirs(rng):
    series = list(waves(rng))
    samples = series[0].samples.copy()
    samples[0, 20:40] = np.nan
    gap = Series(samples, label=series[0].label, group=series[0].group, name="with gap", gaps_marked=True)
    model = RAxSSClassifier(**SMALL).fit([gap, *series[1:]])
    for weighting in ("support", "uniform", "inverse", "shuffled", "random"):
        windows = model.set_params(weighting=weighting).explain(gap).windows
        assert windows["nonfinite"].any()
        assert (windows["missing_share"][~windows["nonfinite"]] > 0).any()
        assert (windows.loc[~windows["nonfinite"], "weight"] > 0).all()
        assert (windows.loc[windows["nonfinite"], "weight"] == 0).all()
        assert windows["weight"].sum() == pytest.approx(1)


# Bad input -------------------------------------------------------------------------------------------------


NINE = np.random.default_rng(0).normal(size=9)


@pytest.mark.parametrize(
    ("series", "labels", "error", "message"),
    [
        ([], [], EmptyDataError, "no series were given"),
        (np.zeros((4, 1, 2, 9)), [0, 1] * 2, DataError, r"X has 4 dimensions.*2-D array.*3-D array"),
        ([NINE] * 3, ["x"] * 3, LabelError, "all 3 labels are 'x'"),
        ([NINE] * 3, [0, 1], LabelError, "2 labels were given for 3 series"),
        ([Series([1.0, 2.0])], None, LabelError, "requires y to be passed"),
        ([NINE, np.zeros(0)], [0, 1], EmptyDataError, r"series 1.*no samples"),
        ([Series(NINE, label=label) for label in (0.5, 1.5, 0.25)], None, ValueError, "continuous"),
    ],
)
def test_series_or_labels_that_cannot_be_learned_from_are_refused(series, labels, error, message):
    with pytest.raises(error, match=message):
        RAxSSClassifier().fit(series, labels)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_refused_by_series_and_place(rng, bad, waves_model):
    samples = rng.normal(size=90)
    samples[[7, 8]] = bad
    message = "series 'broken' has 2 of 90 samples .* first at sample 7"
    with pytest.raises(SignalError, match=message):
        RAxSSClassifier().fit([Series(rng.normal(size=9)), Series(samples, name="broken")], [0, 1])
    with pytest.raises(SignalError, match=message):
        waves_model[0].predict_proba([Series(samples, name="broken")])
    with pytest.raises(SignalError, match=message):
        waves_model[0].explain(Series(samples, name="broken"))


def test_mixed_numbers_of_variates_are_refused_by_name(rng, waves_model):
    item, two = Series(rng.normal(size=50), name="one"), Series(rng.normal(size=(2, 50)), name="two")
    with pytest.raises(
        VariateMismatchError, match="series 'two' has 2 variates, but the first series, 'one', has 1"
    ):
        RAxSSClassifier().fit([item, two], [0, 1])
    with pytest.raises(
        VariateMismatchError, match="series 'two' has 2 variates, but the model was fitted on 1"
    ):
        waves_model[0].predict([two])


def test_a_single_series_is_refused(waves_model):
    with pytest.raises(DataError, match="a single series, 'wave 0'"):
        waves_model[0].predict(waves_model[1][0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": "convnett"}, "convnet"),
        ({"backbone_options": {"widht": 3}}, "widht"),
        ({"device": "cudda"}, "unknown device 'cudda'"),
        ({"n_neighbors": 10**10}, "n_neighbors is 10000000000; at most"),
        ({"random_state": -1}, "random_state is -1"),
        ({"device": "meta"}, "device 'meta' is not supported"),
        (
            {"backbone": "convnet-fine", "backbone_options": {"dropout": 5.0}},
            "'convnet-fine' cannot be built .*dropout",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(rng, settings, message):
    with pytest.raises(ConfigError, match=message):
        RAxSSClassifier(**settings).fit([rng.normal(size=9)] * 4, [0, 1, 0, 1])


def test_cuda_without_a_gpu_is_refused(rng):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ConfigError, match=r"sees no CUDA device\. Use device='auto'"):
        RAxSSClassifier(device="cuda").fit([rng.normal(size=9)] * 4, [0, 1, 0, 1])
