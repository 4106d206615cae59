"""Isotonic calibration: the map against scikit-learn and a slow twin, and calibrated models."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression

from raxss import RAxSSClassifier, Series
from raxss.errors import (
    ConfigError,
    DataError,
    LabelError,
    ModelError,
    ModelWarning,
    RateMismatchError,
    SignalError,
    SignalWarning,
)
from raxss.estimator.fit import validation_split
from raxss.uncertainty.calibration import CALIBRATIONS, METHODS, IsotonicCalibration, calibration_named
from resealed import facts_of, reseal, unseal
from toys import NETWORK, waves

SETTINGS = {**NETWORK, "batch_size": 32, "lr": 1e-2}


def overconfident(rng, n_windows=600, n_classes=2):
    """Posteriors that are three times as sure as they should be, and what the windows really are."""
    logits = rng.normal(size=(n_windows, n_classes))
    honest, bold = (np.exp(factor * logits) for factor in (1, 3))
    honest, bold = (item / item.sum(axis=1, keepdims=True) for item in (honest, bold))
    targets = (honest.cumsum(axis=1) < rng.uniform(size=(n_windows, 1))).sum(axis=1)
    return bold, targets


# The map ----------------------------------------------------------------------------------------------------


def slow_isotonic(scores, hits):
    """The isotonic fit at each of some distinct scores, by its max-min formula."""
    order = np.argsort(scores)
    ordered, n = np.asarray(hits, dtype=float)[order], len(scores)
    fitted = np.empty(n)
    for i in range(n):
        fitted[order[i]] = max(
            min(ordered[first : last + 1].mean() for last in range(i, n)) for first in range(i + 1)
        )
    return fitted


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=12, unique=True).flatmap(
        lambda scores: st.tuples(
            st.just(scores), st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))
        ).filter(lambda both: len(set(both[1])) == 2)
    )
)
def test_the_map_of_two_classes_is_the_isotonic_fit_of_the_slow_twin(drawn):
    scores, hits = np.array(drawn[0]) / 1000, np.array(drawn[1])
    posteriors = np.stack([1 - scores, scores], axis=1)
    mapped = IsotonicCalibration.fit(posteriors, hits.astype(int))(posteriors)
    assert_allclose(mapped[:, 1], slow_isotonic(scores, hits), atol=1e-12)
    assert_array_equal(mapped[:, 0], 1 - mapped[:, 1])


class Echo(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose probabilities are what it is given."""

    def __init__(self, n_classes=2):
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return np.asarray(X)

    def predict(self, X):
        return np.argmax(X, axis=1)

    def __sklearn_is_fitted__(self):
        return True


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_the_map_is_that_of_scikit_learns_calibrated_classifier(rng, n_classes):
    posteriors, targets = overconfident(rng, n_classes=n_classes)
    others, _ = overconfident(rng, n_classes=n_classes)
    theirs = CalibratedClassifierCV(FrozenEstimator(Echo(n_classes)), method="isotonic", ensemble=False)
    theirs.fit(posteriors, targets)
    ours = IsotonicCalibration.fit(posteriors, targets)
    assert ours.n_classes == n_classes
    assert len(ours.knots) == (1 if n_classes == 2 else n_classes)
    assert_allclose(ours(others), theirs.predict_proba(others), atol=1e-12)


def test_where_every_class_is_mapped_to_nothing_all_are_as_likely():
    nothing_below_half = np.array([[0.5, 0.6], [0.0, 1.0]])
    calibration = IsotonicCalibration((nothing_below_half,) * 3)
    assert_allclose(
        calibration([[0.4, 0.3, 0.3], [0.55, 0.4, 0.05], [0.58, 0.0, 0.42], [1.0, 0.0, 0.0]]),
        [[1 / 3, 1 / 3, 1 / 3], [1, 0, 0], [1, 0, 0], [1, 0, 0]],
    )
    assert_allclose(calibration([[0.55, 0.575, 0.2]]), [[0.4, 0.6, 0.0]])
    with pytest.raises(ConfigError, match=r"shape \(1, 2\) .* calibration of 3 classes"):
        calibration([[0.5, 0.5]])
    with pytest.raises(ValueError, match="read-only"):
        calibration.knots[0][0, 0] = 0.5
    nothing_below_half[:] = 0
    assert calibration.knots[0][0, 0] == 0.5  # a copy


@pytest.mark.parametrize(
    ("posteriors", "targets", "error", "message"),
    [
        ([[0.5, 0.5]] * 3, [0, 0, 0], LabelError, "no window is of class 1"),
        (np.full((4, 3), 1 / 3), [2, 2, 2, 2], LabelError, "no window is of class 0, 1"),
        ([[0.5, 0.5]] * 3, [0, 1], ConfigError, r"\(3, 2\) and targets of shape \(2,\)"),
        ([[1.0], [1.0]], [0, 0], ConfigError, r"shape \(2, 1\)"),
        (
            [[0.5, 0.5], [0.5, np.nan]],
            [0, 1],
            SignalError,
            "1 of 2 windows are not finite, the first of window 1",
        ),
    ],
)
def test_windows_that_no_map_can_be_fitted_on_are_refused(posteriors, targets, error, message):
    with pytest.raises(error, match=message):
        IsotonicCalibration.fit(posteriors, targets)


def test_every_method_but_none_has_a_class_of_that_name():
    assert set(METHODS) == {"none", *CALIBRATIONS}
    assert all(kind.method == name for name, kind in CALIBRATIONS.items())
    with pytest.raises(ConfigError, match="no calibration 'isotonc'; did you mean 'isotonic'"):
        calibration_named("isotonc")


# In a model -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def series():
    return waves(np.random.default_rng(69421), n_series=24)


@pytest.fixture(scope="module")
def fitted(series):
    return RAxSSClassifier(**SETTINGS, calibration="isotonic").fit(series[:12], validation=series[12:])


@pytest.fixture(scope="module")
def plain(series):
    """The same without calibration."""
    return RAxSSClassifier(**SETTINGS).fit(series[:12], validation=series[12:])


@pytest.fixture
def model(fitted):
    """One that a test may change."""
    return copy.deepcopy(fitted)


def test_calibration_changes_nothing_about_training(fitted, plain):
    columns = ["epoch", "train_loss", "validation_accuracy", "validation_loss", "best"]
    pd.testing.assert_frame_equal(fitted.history_[columns], plain.history_[columns], check_exact=True)
    assert (plain.calibration_, fitted.calibration_.method) == (None, "isotonic")


def test_switched_off_it_predicts_as_a_model_without(model, plain, series):
    calibrated = model.predict_proba(series)
    off = model.set_params(calibration="none").predict_proba(series)
    assert_array_equal(off, plain.predict_proba(series))
    assert np.abs(off - calibrated).max() > 0.01
    assert_array_equal(model.set_params(calibration="isotonic").predict_proba(series), calibrated)


def fitted_by_hand(plain, validation):
    """scikit-learn's map, from every window of these series with the label of its series."""
    posteriors = list(plain.window_probabilities(validation))
    hits = np.repeat(validation.labels == plain.classes_[1], [len(item) for item in posteriors])
    return IsotonicRegression(out_of_bounds="clip").fit(np.concatenate(posteriors)[:, 1], hits)


@pytest.mark.parametrize("given", [True, False])
def test_it_is_fitted_on_all_windows_of_the_validation_part_alike(fitted, plain, series, given):
    validation = series[12:]
    if not given:  # the one that was held out
        options = {**SETTINGS, "validation_fraction": 0.25}
        fitted = RAxSSClassifier(**options, calibration="isotonic").fit(series)
        plain = RAxSSClassifier(**options).fit(series)
        validation = series[validation_split(series.labels, series.groups, fraction=0.25, seed=0)[1]]
    by_hand = fitted_by_hand(plain, validation)
    both = zip(fitted.window_probabilities(series), plain.window_probabilities(series), strict=True)
    for calibrated, uncalibrated in both:
        assert_allclose(calibrated[:, 1], by_hand.predict(uncalibrated[:, 1]), atol=1e-12)


def test_evidence_shows_both_posteriors_and_sums_to_the_prediction(fitted, plain, series):
    calibrated, without = fitted.explain(series[3]), plain.explain(series[3])
    classes = list(fitted.classes_)
    uncalibrated = calibrated.windows[[f"uncalibrated_{name}" for name in classes]].to_numpy()
    assert_array_equal(uncalibrated, without.windows[[f"posterior_{name}" for name in classes]])
    posteriors = calibrated.windows[[f"posterior_{name}" for name in classes]].to_numpy()
    assert_array_equal(posteriors, fitted.calibration_(uncalibrated))
    contributions = calibrated.windows[[f"contribution_{name}" for name in classes]]
    assert_allclose(contributions.sum(), fitted.predict_proba([series[3]])[0], atol=1e-12)
    assert_array_equal(calibrated.windows["weight"], without.windows["weight"])
    assert calibrated.settings["calibration"] == "isotonic"
    assert calibrated.settings["config_hash"] != without.settings["config_hash"]


def test_what_was_not_fitted_cannot_be_switched_on(plain, series, tmp_path):
    model = copy.deepcopy(plain).set_params(calibration="isotonic")
    message = r"calibration is 'isotonic', but the model was fitted with calibration = 'none'.*Fit again"
    for call in (
        lambda: model.predict_proba(series),
        lambda: model.explain(series[0]),
        lambda: next(model.window_probabilities(series)),
        lambda: model.save_pretrained(tmp_path / "m"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    assert not (tmp_path / "m").exists()


def test_the_temperature_is_learned_from_calibrated_posteriors(rng):
    series = waves(rng, n_series=24)
    learned = {**SETTINGS, "temperature": "learned", "space": "features"}
    model = RAxSSClassifier(**learned, calibration="isotonic").fit(series[:12], validation=series[12:])
    plain = RAxSSClassifier(**learned).fit(series[:12], validation=series[12:])
    right = (series[12:].labels[:, None] == model.classes_).argmax(axis=1)

    def loss(temperature):
        probability = model.set_params(temperature=temperature).predict_proba(series[12:])
        return -np.log(np.clip(probability[np.arange(12), right], 1e-6, 1)).mean()

    assert loss(model.temperature_) <= min(map(loss, np.geomspace(2e-3, 9, 12))) + 1e-4
    assert abs(np.log(model.temperature_ / plain.temperature_)) > 1e-3


# Validation sets that are refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"calibration": "isotonic"}, {"temperature": "learned"}])
def test_without_a_validation_set_fitting_is_refused_unless_one_is_given(series, setting):
    model = RAxSSClassifier(**{**SETTINGS, "max_epochs": 1, **setting}, validation_fraction=0.0)
    with pytest.raises(ConfigError, match=r"'(isotonic|learned)' is fitted on the validation set.*is 0"):
        model.fit(series)
    fitted = model.fit(series[:12], validation=series[12:])
    assert fitted.calibration_ is not None or fitted.temperature_ != pytest.approx(0.1, rel=1e-3)


def test_a_class_that_is_missing_from_the_validation_part_is_named_before_training(series):
    slow = [item for item in series[12:] if item.label == "slow"]
    model = RAxSSClassifier(**SETTINGS, calibration="isotonic")
    with pytest.raises(DataError, match=r"of its 6 series with usable windows none is of class 'fast'"):
        model.fit(series[:12], validation=slow)
    assert not hasattr(model, "history_")


def test_too_few_groups_to_hold_one_out_are_refused_with_what_to_do(rng):
    series = waves(rng, n_series=6)  # one group
    with pytest.raises(DataError, match=r"of its 0 series .*'fast', 'slow'.*Give fit more groups"):
        RAxSSClassifier(**SETTINGS, calibration="isotonic").fit(series)


def test_validation_series_without_a_usable_window_are_left_out_of_the_fit(series):
    samples = np.sin(np.arange(100.0))
    samples[np.arange(100) % 16 < 9] = np.nan  # more than half of every window
    gaps = Series(samples, rate=10.0, label="slow", name="gaps", gaps_marked=True)
    model = RAxSSClassifier(**SETTINGS, calibration="isotonic").fit(
        series[:12], validation=[*series[12:], gaps]
    )
    by_hand = fitted_by_hand(copy.deepcopy(model).set_params(calibration="none"), series[12:])
    assert_array_equal(model.calibration_.knots[0], [by_hand.X_thresholds_, by_hand.y_thresholds_])
    only_gaps = [item for item in series[12:] if item.label == "fast"] + [gaps]
    with pytest.raises(DataError, match="of its 6 series with usable windows none is of class 'slow'"):
        RAxSSClassifier(**SETTINGS, calibration="isotonic").fit(series[:12], validation=only_gaps)


# Window probabilities ---------------------------------------------------------------------------------------


def test_window_probabilities_are_the_posteriors_of_the_evidence_in_order(fitted, series):
    both = zip(fitted.window_probabilities(series[:4]), fitted.explain(series[:4]), strict=True)
    for posteriors, evidence in both:
        assert_array_equal(posteriors, evidence.windows[["posterior_fast", "posterior_slow"]])


def test_windows_that_are_mostly_missing_are_left_out(fitted, series):
    samples = series[0].samples.copy()
    samples[0, :17] = np.nan  # 17 of 32 samples of window 0, 9 of window 1, 1 of window 2
    gap = replace(series[0], samples=samples, gaps_marked=True)
    (whole,), (posteriors,) = (list(fitted.window_probabilities([item])) for item in (series[0], gap))
    assert len(posteriors) == len(whole) - 1
    assert_allclose(posteriors[2:], whole[3:], atol=1e-6)


@pytest.mark.parametrize("space", ["signal", "features"])
def test_window_probabilities_need_no_retrieval(model, series, monkeypatch, space):
    expected = list(model.window_probabilities(series[:3]))

    def refuse(*_, **__):
        raise AssertionError("retrieval was called")

    monkeypatch.setattr("raxss.method.inference.cached_retrieve_many", refuse)
    model.set_params(space=space)
    for found, item in zip(model.window_probabilities(series[:3]), expected, strict=True):
        assert_array_equal(found, item)


def test_window_probabilities_are_computed_one_series_after_the_other(fitted, series, monkeypatch):
    scored = []
    apply = type(fitted.scaling_).apply
    monkeypatch.setattr(
        type(fitted.scaling_), "apply", lambda self, item: (scored.append(item.name), apply(self, item))[1]
    )
    list(itertools.islice(fitted.window_probabilities(series), 2))
    assert scored == series.names[:2]


def test_window_probabilities_warn_and_refuse_as_predictions_do(fitted, series, rng):
    with pytest.raises(NotFittedError):
        RAxSSClassifier().window_probabilities(series)
    with pytest.raises(DataError, match="a single series, 'wave 0'"):
        fitted.window_probabilities(series[0])
    with pytest.raises(RateMismatchError, match="rate of 50 Hz, but the model was fitted at 10 Hz"):
        fitted.window_probabilities([replace(series[0], rate=50.0)])
    with pytest.warns(SignalWarning, match=r"rate of 10\.5 Hz, but the model was fitted at 10 Hz"):
        fitted.window_probabilities([replace(series[0], rate=10.5)])


# Kept with the model ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(fitted, tmp_path):
    return fitted.save_pretrained(tmp_path / "model")


def test_a_calibration_that_is_switched_off_is_kept_and_can_be_switched_on(model, series, tmp_path):
    calibrated = model.predict_proba(series)
    off = model.set_params(calibration="none").predict_proba(series)
    place = model.save_pretrained(tmp_path / "off")
    loaded = RAxSSClassifier.from_pretrained(place, device="cpu")
    assert_array_equal(loaded.predict_proba(series), off)
    assert_array_equal(loaded.set_params(calibration="isotonic").predict_proba(series), calibrated)
    assert "Disabled in these settings." in (place / "README.md").read_text()


def test_the_model_card_says_what_was_calibrated_and_on_what(folder, plain, tmp_path):
    card = " ".join((folder / "README.md").read_text().split())
    assert "## Calibration Isotonic, of each window's posterior before the windows are added up" in card
    assert "windows of the 12 validation series" in card
    assert "Switched off" not in card
    without = (plain.save_pretrained(tmp_path / "plain") / "README.md").read_text()
    assert "## Calibration\nNone. Probabilities are averages of window probabilities" in without


def test_a_folder_from_before_there_was_calibration_still_loads_and_keeps_its_hash(plain, series, tmp_path):
    place = plain.save_pretrained(tmp_path / "old")
    reseal(place, without_calibration, keep_hash=True)
    with pytest.warns(ModelWarning, match="'old' was written by raxss 0.1 and is not sealed"):
        loaded = RAxSSClassifier.from_pretrained(unseal(place), device="cpu")
    assert_array_equal(loaded.predict_proba(series), plain.predict_proba(series))
    assert loaded.calibration_ is None
    assert loaded.config_.hash == facts_of(place)["config_hash"]


def without_calibration(facts):
    facts.pop("calibration")
    facts["settings"].pop("calibration")


NONE = "ask for calibration 'isotonic', but it has none"


@pytest.mark.parametrize(
    ("facts", "tensors", "message"),
    [
        (lambda facts: facts.update(calibration="pickle"), None, "no calibration 'pickle'"),
        (lambda facts: facts.update(calibration=["isotonic"]), None, r"its calibration is \['isotonic'\]"),
        (lambda facts: facts.update(calibration=None), None, NONE),
        (lambda facts: facts.pop("calibration"), None, NONE),
        (lambda facts: facts["settings"]["calibration"].update(calibration="magic"), None, "'magic'"),
        (without_calibration, None, "tensors of a calibration, but no calibration"),
        (None, lambda tensors: tensors.pop("calibration/0"), "has 0 maps"),
        (None, lambda tensors: tensors.update({"calibration/0": np.array([[0, 1.0], [1, 0]])}), "never fall"),
        (None, lambda tensors: tensors.update({"calibration/0": np.zeros((2, 1), np.int64)}), "int64"),
        (
            None,
            lambda tensors: tensors.update({f"calibration/{at}": np.full((2, 1), 0.5) for at in range(3)}),
            "of 3 classes, but it has 2",
        ),
    ],
)
def test_a_calibration_that_does_not_go_with_the_rest_of_its_folder_is_refused(
    folder, facts, tensors, message
):
    reseal(folder, facts, tensors=tensors)
    with pytest.raises(ModelError, match=f"'model' cannot be read.*{message}"):
        RAxSSClassifier.from_pretrained(folder)
