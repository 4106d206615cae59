"""Uncertainty of a fitted model: intervals, prediction sets, the validation report."""

import copy
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from raxss import RAxSSClassifier
from raxss.benchmark.analyses.reweighting import weighed
from raxss.errors import ConfigError, ModelError, ModelWarning, SignalWarning
from raxss.explain import SeriesEvidence
from raxss.uncertainty.bootstrap import N_DRAWS, SEED, bootstrap_interval
from raxss.uncertainty.calibration import TemperatureCalibration
from raxss.uncertainty.conformal import conformal_threshold, fewest_series, nonconformity, prediction_sets
from raxss.uncertainty.reliability import calibration_figures, reliability_table
from raxss.uncertainty.validation import ValidationReport, cross_fitted, folds_of
from resealed import reseal, unseal
from test_calibration import Echo, overconfident
from toys import SMALL, waves

SETTINGS = {**SMALL, "batch_size": 32, "lr": 1e-2}


@pytest.fixture(scope="module")
def series():
    return waves(np.random.default_rng(69421), n_series=36)


def fitted_with(series, **settings):
    return RAxSSClassifier(**SETTINGS, **settings).fit(series[:12], validation=series[12:])


@pytest.fixture(scope="module")
def by_series(series):
    return fitted_with(series, calibration="venn-abers", calibration_level="series")


@pytest.fixture(scope="module")
def plain(series):
    return fitted_with(series)


# Calibration of series --------------------------------------------------------------------------------------


def test_contributions_add_up_to_the_uncalibrated_number_and_predict_gives_the_calibrated(
    by_series, plain, series
):
    evidence = by_series.explain(series[3])
    sums = evidence.windows[[f"contribution_{name}" for name in by_series.classes_]].sum().to_numpy()
    assert_allclose(sums, evidence.series_probability, atol=1e-12)
    assert_allclose(evidence.series_probability, plain.predict_proba([series[3]])[0], atol=1e-12)
    assert_array_equal(evidence.probability, by_series.predict_proba([series[3]])[0])
    assert_array_equal(evidence.probability, by_series.calibration_(evidence.series_probability[None])[0])
    assert np.abs(evidence.probability - evidence.series_probability).max() > 0.01
    assert evidence.predicted == by_series.predict([series[3]])[0]
    assert evidence.settings["calibration_level"] == "series"
    assert "uncalibrated_slow" not in evidence.windows
    assert "calibrated (venn-abers); the windows add up to" in repr(evidence)


def test_the_map_of_series_is_fitted_on_the_scores_of_the_validation_part(by_series, plain, series):
    validation = series[12:]
    targets = np.searchsorted(plain.classes_, validation.labels)
    by_hand = type(by_series.calibration_).fit(plain.predict_proba(validation), targets)
    for name, array in by_hand.arrays().items():
        assert_allclose(by_series.calibration_.arrays()[name], array, atol=1e-12)


def test_a_model_calibrated_by_series_comes_back_from_its_folder(by_series, series, tmp_path):
    by_series.save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(tmp_path / "model", device="cpu")
    assert_array_equal(again.predict_proba(series), by_series.predict_proba(series))
    assert_array_equal(again.predict_set(series), by_series.predict_set(series))
    evidence = by_series.explain(series[0])
    assert again.explain(series[0]).to_json() == evidence.to_json()
    assert SeriesEvidence.load(evidence.save(tmp_path, figures=False)).to_json() == evidence.to_json()
    assert "applied to the score of a series" in (tmp_path / "model" / "README.md").read_text()


def test_evidence_from_before_there_was_uncertainty_can_be_read(plain, series, tmp_path):
    folder = plain.explain(series[0]).save(tmp_path, figures=False)
    head = json.loads((folder / "evidence.json").read_text())
    for name in ("interval", "prediction_set", "abstains", "notes"):
        head.pop(name, None)
    (folder / "evidence.json").write_text(json.dumps(head))
    loaded = SeriesEvidence.load(folder)
    assert (loaded.interval, loaded.prediction_set, loaded.abstains, loaded.notes) == (None,) * 4
    assert_array_equal(loaded.probability, loaded.series_probability)


def test_evidence_keeps_which_of_its_warnings_are_notes_about_the_series(plain, series, tmp_path):
    samples = np.tile(series[0].samples, 9)
    samples[:, :100] = 0.0
    longer = replace(series[0], samples=samples)
    (scored,), evidence = plain.score_series([longer]), plain.explain(longer)
    assert "the recording is longer than any" in evidence.notes[0]
    assert evidence.notes == scored.notes == tuple(evidence.warnings[: len(scored.notes)])
    assert len(evidence.warnings) > len(evidence.notes)  # of flat windows, too
    assert SeriesEvidence.load(evidence.save(tmp_path, figures=False)).notes == evidence.notes
    assert plain.explain(series[0]).notes == ()


def test_other_weights_are_calibrated_by_series_too_with_a_warning(by_series, series):
    own, uniform = weighed(by_series, series[:4], ["support", "uniform"])
    assert_allclose(own, by_series.predict_proba(series[:4]), atol=1e-12)
    other = copy.deepcopy(by_series).set_params(weighting="uniform")
    assert_allclose(uniform, other.predict_proba(series[:4]), atol=1e-12)
    for model, is_warned in ((other, True), (by_series, False)):
        evidence = model.explain(series[0])
        assert any("fitted under other settings" in note for note in evidence.warnings) == is_warned
        assert (evidence.prediction_set is None) == is_warned


def test_the_level_cannot_be_changed_after_fitting(by_series, series):
    model = copy.deepcopy(by_series).set_params(calibration_level="window")
    with pytest.raises(
        ConfigError, match=r"calibration_level is 'window', but the map was fitted on .* 'series'"
    ):
        model.predict_proba(series)


# Intervals --------------------------------------------------------------------------------------------------


def slow_bootstrap(weights, posteriors, blocks):
    """Draw blocks, take their windows, weigh them anew, one draw after the other."""
    names = np.unique(blocks)
    drawn = np.random.default_rng(SEED).integers(len(names), size=(N_DRAWS, len(names)))
    scores = []
    for draw in drawn:
        rows = np.concatenate([np.flatnonzero(blocks == names[item]) for item in draw])
        scores.append(weights[rows] @ posteriors[rows] / weights[rows].sum())
    return np.quantile(scores, [0.025, 0.975], axis=0)


def test_the_interval_is_that_of_drawing_blocks_one_by_one(rng):
    starts = np.arange(0, 700, 7)
    weights = rng.dirichlet(np.ones(100))
    posteriors = rng.dirichlet(np.ones(3), size=100)
    contributions = weights[:, None] * posteriors
    found = bootstrap_interval(weights, contributions, starts, window_length=64)
    low, high = slow_bootstrap(weights, posteriors, starts // 64)
    assert_allclose([found.low, found.high], [low, high], atol=1e-12)
    assert (found.method, found.level) == ("block bootstrap over windows", 0.95)
    without_weight = np.append(weights, 0.0), np.vstack([contributions, np.zeros(3)]), np.append(starts, 9000)
    assert bootstrap_interval(*without_weight, window_length=64).to_json() == found.to_json()
    assert bootstrap_interval(weights, contributions, starts, window_length=174) is None  # 4 blocks
    assert bootstrap_interval(weights, contributions, starts, window_length=173) is not None


def test_an_interval_covers_the_mean_of_the_process_about_as_often_as_it_says(rng):
    hits, n_trials = 0, 300
    for _ in range(n_trials):
        levels = np.repeat(rng.uniform(size=40), 10)  # stretches of ten windows that say the same
        contributions = np.stack([1 - levels, levels], axis=1) / 400
        found = bootstrap_interval(
            np.full(400, 1 / 400), contributions, np.arange(400) * 10, window_length=100
        )
        hits += found.low[1] <= 0.5 <= found.high[1]
    assert 0.89 <= hits / n_trials <= 0.98


def test_a_day_of_windows_takes_no_more_than_a_second(rng):
    import time

    starts = np.arange(2_000_000) * 40
    weights = np.full(len(starts), 1 / len(starts))
    contributions = weights[:, None] * np.array([0.4, 0.6])
    begin = time.perf_counter()
    found = bootstrap_interval(weights, contributions, starts, window_length=1024)
    assert time.perf_counter() - begin < 5  # a second on a quiet machine
    assert_allclose([found.low, found.high], [[0.4, 0.6]] * 2)


def test_evidence_of_a_plain_model_has_the_bootstrap_and_of_venn_abers_its_pair(plain, by_series, series):
    longest = max(series, key=lambda item: item.n_samples)
    evidence = plain.explain(longest)
    assert evidence.interval.method == "block bootstrap over windows"
    assert (evidence.interval.low <= evidence.probability).all()
    assert (evidence.probability <= evidence.interval.high).all()
    pair = by_series.explain(longest)
    assert (pair.interval.method, pair.interval.level) == ("Venn-Abers", None)
    low, high = by_series.calibration_.interval(pair.series_probability[None])
    assert_array_equal([pair.interval.low, pair.interval.high], [low[0], high[0]])


def test_the_interval_of_a_score_calibrated_otherwise_is_of_the_calibrated_score(series):
    model = fitted_with(series, calibration="temperature", calibration_level="series")
    longest = max(series, key=lambda item: item.n_samples)
    evidence = model.explain(longest)
    raw = copy.deepcopy(model).set_params(calibration="none").explain(longest)
    for found, uncalibrated in (
        (evidence.interval.low, raw.interval.low),
        (evidence.interval.high, raw.interval.high),
    ):
        expected = model.calibration_([[1 - uncalibrated[1], uncalibrated[1]]])[0, 1]
        assert found[1] == pytest.approx(expected, abs=1e-3)  # a monotonous map of quantiles, between draws


# Prediction sets --------------------------------------------------------------------------------------------


def test_thresholds_and_sets_are_those_of_mapie(rng):
    classification = pytest.importorskip("mapie.classification")
    probabilities, targets = overconfident(rng, 203, 3)
    others, _ = overconfident(rng, 100, 3)
    for alpha in (0.05, 0.1, 0.3):
        theirs = classification.SplitConformalClassifier(
            Echo(3), confidence_level=1 - alpha, conformity_score="lac", prefit=True
        ).conformalize(probabilities, targets)
        _, sets = theirs.predict_set(others)
        ours = prediction_sets(others, conformal_threshold(nonconformity(probabilities, targets), alpha))
        assert_array_equal(ours, sets[:, :, 0])


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_sets_hold_the_truth_as_often_as_they_should_whatever_the_network(rng, alpha):
    covered = []
    for _ in range(400):
        probabilities, targets = overconfident(rng, 100, 3)
        threshold = conformal_threshold(nonconformity(probabilities[:60], targets[:60]), alpha)
        sets = prediction_sets(probabilities[60:], threshold)
        covered.append(sets[np.arange(40), targets[60:]].mean())
    assert 1 - alpha - 0.01 <= np.mean(covered) <= 1 - alpha + 1 / 61 + 0.01


def test_too_few_series_rule_nothing_out():
    scores = np.full(8, 0.2)
    assert conformal_threshold(scores, 0.1) == np.inf
    assert conformal_threshold(np.append(scores, 0.3), 0.1) == 0.3
    assert [fewest_series(item) for item in (0.1, 0.05, 0.01, 0.5, 0.3)] == [9, 19, 99, 1, 3]
    for alpha in (0.3, 0.1, 0.05, 0.01):
        assert np.isfinite(conformal_threshold(np.zeros(fewest_series(alpha)), alpha))
        assert conformal_threshold(np.zeros(fewest_series(alpha) - 1), alpha) == np.inf


def test_a_model_predicts_sets_and_evidence_says_when_to_abstain(plain, series):
    sets = plain.predict_set(series)
    scores = nonconformity(
        plain.predict_proba(series[12:]), np.searchsorted(plain.classes_, series[12:].labels)
    )
    assert_allclose(plain.validation_report_.scores["uncalibrated"], scores, atol=1e-12)
    assert_array_equal(sets, prediction_sets(plain.predict_proba(series), conformal_threshold(scores, 0.1)))
    for place in (0, 13):
        evidence = plain.explain(series[place])
        assert evidence.prediction_set == tuple(plain.classes_[sets[place]])
        assert evidence.abstains == (sets[place].sum() != 1)
        assert evidence.settings["conformal_alpha"] == 0.1
    assert plain.predict_set(series, alpha=0.5).sum() <= sets.sum()


def test_a_level_that_the_validation_set_is_too_small_for_is_warned_of(plain, series):
    with pytest.warns(SignalWarning, match="24 validation series are too few .* in 99 of 100; 99 are needed"):
        assert plain.predict_set(series[:3], alpha=0.01).all()
    model = copy.deepcopy(plain).set_params(conformal_alpha=0.01)
    assert (model.explain(series[0]).prediction_set, model.explain(series[0]).abstains) == (None, None)
    model = RAxSSClassifier(**SETTINGS, validation_fraction=0).fit(series[:12])
    with pytest.warns(SignalWarning, match="no validation set"):
        assert model.predict_set(series[:2]).all()
    assert (model.validation_report_, model.explain(series[0]).prediction_set) == (None, None)


def test_sets_can_be_left_out(plain, series):
    model = copy.deepcopy(plain).set_params(conformal_alpha=0.0)
    assert "prediction_set" not in model.explain(series[0]).to_json()
    with pytest.raises(ConfigError, match=r"alpha is 0\.0"):
        model.predict_set(series[:2])


@pytest.mark.parametrize("value", [-0.1, 1.0, "a tenth", np.nan])
def test_an_alpha_that_is_no_share_is_refused_with_its_value(value):
    with pytest.raises(ConfigError, match="conformal_alpha must be at least 0"):
        RAxSSClassifier(conformal_alpha=value).fit(waves(np.random.default_rng(0)))


# The validation report----------------------------------------------------------------------------------------


def test_folds_keep_groups_whole_and_classes_apart(rng):
    targets, groups = rng.integers(0, 3, size=60), rng.integers(0, 20, size=60)
    folds = folds_of(targets, groups, seed=1)
    assert all(len(set(folds[groups == group])) == 1 for group in groups)
    assert set(folds) == set(range(5))
    alone = folds_of(np.array([0, 0, 1, 1]), None, seed=0)
    assert all(set(np.array([0, 0, 1, 1])[alone != fold]) == {0, 1} for fold in alone)

    def fit_and_apply(train, test):
        assert not set(groups[train]) & set(groups[test])
        return np.full((len(test), 3), len(train))

    found = cross_fitted(targets, groups, fit_and_apply, n_classes=3, seed=1)
    assert_array_equal(found[:, 0], [(folds != fold).sum() for fold in folds])


def test_a_class_in_one_group_alone_cannot_be_cross_fitted(rng):
    targets, groups = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 3, 3])
    nothing = cross_fitted(targets, groups, lambda _, test: np.zeros((len(test), 2)), n_classes=2, seed=0)
    assert nothing is None
    report = ValidationReport.of(targets, {"uncalibrated": np.full((5, 2), 0.5)}, n_groups=4, settings="")
    assert "a class is in one group alone" in report.why_no_sets(0.2, calibrated=True)
    assert report.why_no_sets(0.2, calibrated=False) == ""


@pytest.mark.parametrize("level", ["window", "series"])
def test_the_validation_report_of_a_calibrated_model_is_cross_fitted(series, plain, level):
    model = fitted_with(series, calibration="temperature", calibration_level=level)
    validation = series[12:]
    targets = np.searchsorted(plain.classes_, validation.labels)
    folds = folds_of(targets, np.unique(validation.groups, return_inverse=True)[1], seed=model.seed_)
    probabilities = np.empty((len(validation), 2))
    for fold in np.unique(folds):
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        by_hand = copy.deepcopy(model)
        if level == "series":
            scores = plain.predict_proba(validation[train])
            by_hand.calibration_ = TemperatureCalibration.fit(scores, targets[train])
        else:
            posteriors = list(plain.window_probabilities(validation[train]))
            of_windows = np.repeat(targets[train], [len(item) for item in posteriors])
            by_hand.calibration_ = TemperatureCalibration.fit(np.concatenate(posteriors), of_windows)
        probabilities[test] = by_hand.predict_proba(validation[test])
    assert_allclose(
        model.validation_report_.scores["calibrated"], nonconformity(probabilities, targets), atol=1e-9
    )
    assert_allclose(
        model.validation_report_.scores["uncalibrated"],
        plain.validation_report_.scores["uncalibrated"],
        atol=1e-12,
    )


def test_figures_are_those_of_scikit_learn(rng):
    from sklearn.metrics import brier_score_loss, log_loss

    probabilities, targets = overconfident(rng, 200)
    figures = calibration_figures(targets, probabilities)
    assert figures["brier"] == pytest.approx(brier_score_loss(targets, probabilities[:, 1]))
    assert figures["log_loss"] == pytest.approx(
        log_loss(targets, np.clip(probabilities, 1e-6, 1 - 1e-6)), rel=1e-6
    )
    rows = reliability_table(targets, probabilities)
    for row in rows:
        inside = (probabilities[:, 1] > row["from"]) & (probabilities[:, 1] <= row["to"])
        assert (row["n"], row["found"]) == (inside.sum(), pytest.approx(targets[inside].mean()))
        assert row["low"] <= row["found"] <= row["high"]
    assert figures["ece"] == pytest.approx(
        sum(row["n"] * abs(row["said"] - row["found"]) for row in rows) / 200
    )


def changed_folder(model, folder, facts=None, arrays=None):
    """A model folder with other facts or arrays, its hash put right."""
    given = {name: torch.from_numpy(array) for name, array in (arrays or {}).items()}
    return reseal(
        model.save_pretrained(folder),
        lambda found: found.update(facts or {}),
        tensors=lambda tensors: tensors.update(given),
    )


@pytest.mark.parametrize(
    ("facts", "arrays"),
    [
        ({"trial": {"n_series": 24}}, {}),
        ({"trial": []}, {}),
        ({"calibration_level": "recording"}, {}),
        ({}, {"trial/uncalibrated": np.full(24, np.nan)}),
        ({}, {"trial/uncalibrated": np.linspace(0, 1, 23)}),
        ({}, {"trial/other": np.linspace(0, 1, 24)}),
    ],
)
def test_a_folder_whose_validation_report_does_not_fit_together_is_refused(plain, tmp_path, facts, arrays):
    with pytest.raises(ModelError, match="'model' cannot be read"):
        RAxSSClassifier.from_pretrained(changed_folder(plain, tmp_path / "model", facts, arrays))


def test_a_folder_from_before_there_were_validation_reports_works_as_before(plain, series, tmp_path):
    folder = changed_folder(plain, tmp_path / "model")

    def as_before(facts):
        for name in ("trial", "calibration_level"):
            del facts[name]
        for name in ("calibration_level", "conformal_alpha"):
            del facts["settings"]["calibration"][name]

    def without_report(tensors):
        for name in [name for name in tensors if "trial" in name]:
            del tensors[name]

    unseal(reseal(folder, as_before, tensors=without_report, keep_hash=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.warns(ModelWarning, match="'model' was written by raxss 0.1 and is not sealed"):
            old = RAxSSClassifier.from_pretrained(folder, device="cpu")
        assert_array_equal(old.predict_proba(series), plain.predict_proba(series))
        evidence = old.explain(series[0])
    assert (old.validation_report_, evidence.prediction_set) == (None, None)
    assert evidence.warnings == plain.explain(series[0]).warnings
