"""Tests of every registered window classifier: a new one needs one line in OPTIONS of classifier_claims.py."""

import inspect

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from classifier_claims import (
    LENGTH,
    N_FOLDS,
    OPTIONS,
    SKLEARN,
    build,
    posteriors_by,
    rhythms,
    training_on,
)
from network_claims import seeded_on_one_thread
from raxss.errors import ConfigError
from raxss.method.backbones import logistic, mixture_weights, ridge
from raxss.method.backbones.protocol import WINDOW_CLASSIFIERS, n_features
from raxss.method.backbones.views import VIEWS
from raxss.method.backbones.window_classifiers import series_log_loss

NAMES = sorted(WINDOW_CLASSIFIERS)
ALL = [*NAMES, SKLEARN]

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def fix_choices(monkeypatch):
    """What is chosen by the labels of all windows, of every fold, is given instead."""
    monkeypatch.setattr(ridge, "PENALTIES", (0.1,))
    monkeypatch.setattr(ridge, "SCALES", (5.0,))
    monkeypatch.setattr(logistic, "STRENGTHS", (0.01,))
    monkeypatch.setattr(mixture_weights, "PRIOR", 1e15)


def test_every_registered_classifier_has_its_line():
    assert set(OPTIONS) == set(WINDOW_CLASSIFIERS)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("n_variates", "length", "n_classes"),
    [(1, 1, 2), (3, 1, 4), (2, 2, 2), (1, 2, 4), (3, 7, 2), (1, 7, 4), (2, 64, 4), (3, 64, 2)],
)
def test_windows_become_finite_posteriors_of_every_shape(rng, name, n_variates, length, n_classes):
    windows, targets = rhythms(rng, 24, n_variates, length, n_classes)
    classifier = build(name, n_variates, length, n_classes)
    assert classifier.eval()(windows).shape == (24, classifier.n_outputs)  # also before it is fitted
    out_of_fold = classifier.fit_windows(training_on(windows, targets))
    for found in (out_of_fold, posteriors_by(classifier, windows)):
        assert found.shape == (24, n_classes)
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        assert_allclose(found.sum(axis=1), 1.0, rtol=1e-9)
    assert classifier(windows[:0]).shape == (0, classifier.n_outputs)
    features = classifier.features(windows)
    assert features.shape == (24, n_features(classifier, n_variates, length))
    assert features.isfinite().all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_planted_rhythm_is_learned(rng, name, n_classes):
    windows, targets = rhythms(rng, n_classes=n_classes)
    classifier = build(name, n_classes=n_classes)
    out_of_fold = classifier.fit_windows(training_on(windows, targets))
    assert (out_of_fold.argmax(axis=1) == targets).mean() > 0.9
    fresh, of_fresh = rhythms(rng, n_classes=n_classes)
    assert (posteriors_by(classifier, fresh).argmax(axis=1) == of_fresh).mean() > 0.9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("n_variates", "n_classes"), [(1, 2), (3, 4)])
def test_a_state_dict_brings_back_the_same_classifier(rng, name, n_variates, n_classes):
    windows, targets = rhythms(rng, n_variates=n_variates, n_classes=n_classes)
    classifier = build(name, n_variates, n_classes=n_classes)
    classifier.fit_windows(training_on(windows, targets))
    again = build(name, n_variates, n_classes=n_classes)
    assert not np.array_equal(posteriors_by(again, windows), posteriors_by(classifier, windows))
    again.load_state_dict(classifier.state_dict())
    assert_allclose(posteriors_by(again, windows), posteriors_by(classifier, windows), rtol=1e-12)
    assert torch.equal(again.features(windows), classifier.features(windows))


@pytest.mark.parametrize("name", ALL)
def test_two_fits_with_one_seed_are_equal(rng, name):
    windows, targets = rhythms(rng, n_variates=3, noise=2.0)
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        classifier = build(name, 3)
        out_of_fold = classifier.fit_windows(training_on(windows, targets))
        found.append((out_of_fold, posteriors_by(classifier, windows)))
    assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("name", ALL)
def test_out_of_fold_posteriors_ignore_the_labels_of_their_fold(rng, name, monkeypatch):
    fix_choices(monkeypatch)
    windows, targets = rhythms(rng, noise=2.0)
    training = training_on(windows, targets)
    first = training.folds == 0
    others = np.where(first, 1 - targets, targets)
    before = build(name).fit_windows(training)
    after = build(name).fit_windows(training_on(windows, others))
    assert_allclose(after[first], before[first], rtol=1e-9)
    assert abs(after[~first] - before[~first]).max() > 1e-3


@pytest.mark.parametrize("name", ALL)
def test_out_of_fold_posteriors_are_those_of_the_classifier_without_the_fold(rng, name):
    windows, targets = rhythms(rng, noise=2.0)
    training = training_on(windows, targets)
    classifier = build(name)
    out_of_fold = classifier.fit_windows(training)
    for fold in range(N_FOLDS):
        own = training.folds == fold
        held_out = classifier.held_out(fold)
        assert_allclose(posteriors_by(held_out, windows[own]), out_of_fold[own], atol=2e-6)
        assert torch.equal(held_out.features(windows), classifier.features(windows))
    assert abs(posteriors_by(classifier, windows) - out_of_fold).max() > 1e-3


@pytest.mark.parametrize("name", ALL)
def test_without_folds_nothing_is_held_out(rng, name):
    windows, targets = rhythms(rng)
    classifier = build(name)
    training = training_on(windows, targets, folds=np.full(len(targets), -1))
    assert np.isnan(classifier.fit_windows(training)).all()
    assert (posteriors_by(classifier, windows).argmax(axis=1) == targets).mean() > 0.9


@pytest.mark.parametrize("name", ALL)
def test_a_fold_may_hold_all_windows_of_a_class(rng, name):
    windows, targets = rhythms(rng, n_classes=2)
    folds = np.where(targets == 1, 0, 1 + np.arange(len(targets)) // 4 % 2)
    out_of_fold = build(name).fit_windows(training_on(windows, targets, folds=folds))
    assert (out_of_fold[folds == 0, 1] < 0.1).all()  # no window of this class was seen
    assert np.isfinite(out_of_fold).all()


@pytest.mark.parametrize("name", ALL)
def test_a_class_of_larger_weight_gets_larger_posteriors(rng, name, monkeypatch):
    fix_choices(monkeypatch)
    windows, targets = rhythms(rng, n=96, noise=3.0)
    means = []
    for weight in (0.05, 1.0, 20.0):
        weights = np.where(targets == 1, weight, 1.0)
        training = training_on(windows, targets, weights=weights / weights.mean())
        means.append(build(name).fit_windows(training)[:, 1].mean())
    assert means[0] < means[1] < means[2]


@pytest.mark.parametrize("name", ALL)
def test_a_window_is_scored_alone_as_among_others(rng, name):
    windows, targets = rhythms(rng, n_variates=2)
    classifier = build(name, 2)
    classifier.fit_windows(training_on(windows, targets))
    together = posteriors_by(classifier, windows)
    alone = np.concatenate([posteriors_by(classifier, window[None]) for window in windows])
    assert_allclose(alone, together, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_values_of_missing_samples_do_not_matter(rng, name):
    windows, targets = rhythms(rng)
    present = torch.from_numpy(rng.random((len(windows), 1, LENGTH)) > 0.2).float()
    present[::3, :, 40:] = 0  # padding
    classifier = build(name)
    masked = torch.cat([windows * present, present], dim=1)
    classifier.fit_windows(training_on(masked, targets))
    other = torch.cat([windows * present + 9 * (1 - present), present], dim=1)
    assert_array_equal(posteriors_by(classifier, other), posteriors_by(classifier, masked))
    whole = torch.cat([windows, torch.ones_like(present)], dim=1)
    assert_array_equal(posteriors_by(classifier, whole), posteriors_by(classifier, windows))


@pytest.mark.parametrize("name", ALL)
def test_flat_and_empty_windows_have_finite_posteriors(rng, name):
    windows, targets = rhythms(rng)
    windows[::5] = 0.0
    present = torch.ones_like(windows)
    present[1::5] = 0
    classifier = build(name)
    out_of_fold = classifier.fit_windows(training_on(torch.cat([windows, present], dim=1), targets))
    assert np.isfinite(out_of_fold).all()
    assert classifier(torch.zeros(2, 1, LENGTH)).isfinite().all()


def takes(name, view):
    """Whether a classifier has views, and the sampling rate where this one needs it."""
    options = {"view", "rate"} if VIEWS[view].needs_rate else {"view"}
    return name == SKLEARN or options <= set(inspect.signature(WINDOW_CLASSIFIERS[name]).parameters)


@pytest.mark.parametrize(
    ("name", "view"), [(name, view) for name in ALL for view in sorted(VIEWS) if takes(name, view)]
)
@pytest.mark.parametrize("normalise", [False, True])
def test_every_view_serves_and_normalised_windows_have_no_scale(rng, name, view, normalise):
    windows, targets = rhythms(rng)
    rate = {"rate": 100.0} if VIEWS[view].needs_rate else {}
    classifier = build(name, view=view, normalise=normalise, **rate)
    classifier.fit_windows(training_on(windows, targets))
    found, moved = posteriors_by(classifier, windows), posteriors_by(classifier, 5 * windows + 3)
    assert (found.argmax(axis=1) == targets).all()
    assert abs(found - moved).max() < 1e-3 or not normalise
    found, moved = classifier.features(windows), classifier.features(5 * windows + 3)
    assert (abs(found - moved).max() < 0.01 * abs(found).max()) == (normalise or view == "beats")


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_refused_by_name(name):
    with pytest.raises(ConfigError, match="has no option 'n_tres'"):
        build(name, n_tres=3)


# Training windows


def test_arrays_of_different_numbers_of_windows_are_refused(rng):
    windows, targets = rhythms(rng)
    with pytest.raises(ValueError, match=r"arrays of \[47, 48\] windows"):
        training_on(windows[:47], targets)


def test_one_fold_of_all_windows_is_refused(rng):
    windows, targets = rhythms(rng)
    with pytest.raises(ValueError, match="one fold holds every window"):
        training_on(windows, targets, folds=np.zeros(48, dtype=int))


def test_series_count_by_their_class_weight():
    posteriors = np.array([[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]])
    found = series_log_loss(posteriors, np.array([0, 0, 1]), np.array([5, 5, 2]), np.array([1.0, 1.0, 3.0]))
    assert found == pytest.approx(-(np.log(0.9) + 3 * np.log(0.5)) / 4)
