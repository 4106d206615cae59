"""What is their own of ridge, logistic regression, mixture and classifiers of scikit-learn, against plain twins."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import naive_classifiers
from classifier_claims import LENGTH, N_FOLDS, SKLEARN, build, posteriors_by, rhythms, training_on
from network_claims import seeded_on_one_thread
from raxss.errors import BackboneError, ConfigError
from raxss.method.backbones import any_classifier, build_backbone, logistic, mixture_weights, ridge
from raxss.method.backbones.statistics import window_statistics
from raxss.method.backbones.views import PPVView
from raxss.method.backbones.window_classifiers import TrainingWindows, series_log_loss

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


# Ridge


@pytest.mark.parametrize("weighted", [False, True])
def test_left_out_outputs_are_those_of_a_ridge_fitted_without_the_series(rng, weighted):
    x, y = 2 * rng.normal(size=(40, 15)) + 1, np.eye(3)[rng.integers(3, size=40)]
    weights = rng.choice([0.2, 1.0, 4.0], 40) if weighted else np.ones(40)
    series = rng.integers(9, size=40)
    centred = ridge.weighted_products(x @ x.T, weights)
    for penalty, found in ridge.left_out_outputs(centred, y, weights, series, [0.5, 20.0, 1000.0]):
        for index in range(9):
            used = series != index
            expected = naive_classifiers.ridge_outputs(x[used], y[used], weights[used], penalty, x[~used])
            assert_allclose(found[~used], expected, rtol=1e-5, atol=1e-6)


def test_the_ridge_is_that_of_its_normal_equations(rng):
    x, y = 2 * rng.normal(size=(30, 50)) + 1, rng.normal(size=(30, 2))
    weights = rng.choice([1e-9, 1.0, 4.0], 30)
    coefficients, intercept = ridge.ridge_solution(x, y, weights, x @ x.T, 3.0)
    expected = naive_classifiers.ridge_outputs(x, y, weights, 3.0, x)
    assert_allclose(x @ coefficients.numpy() + intercept.numpy(), expected, atol=1e-9)


def test_penalty_and_scale_follow_the_noise(rng):
    """Labels that features do not explain: a large penalty, or posteriors near the class shares."""
    x, series = rng.normal(size=(80, 30)), np.arange(80)
    chosen = []
    for targets in ((x[:, 0] > 0).astype(int), rng.integers(2, size=80)):
        training = training_on(torch.zeros(80, 1, 1), targets)
        training = TrainingWindows(**(vars(training) | {"series": series}))
        chosen.append(ridge.chosen_penalty(x @ x.T, np.eye(2)[targets], np.ones(80), training))
    (penalty, scale), (penalty_of_noise, scale_of_noise) = chosen
    assert penalty < penalty_of_noise
    assert scale > scale_of_noise


# Logistic regression


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logistic_regression_is_that_of_scikit_learn(rng, n_classes, monkeypatch):
    monkeypatch.setattr(logistic, "STRENGTHS", (0.01,))
    windows, targets = rhythms(rng, n_classes=n_classes, noise=2.0)
    weights = rng.choice([0.5, 2.0], len(targets))
    classifier = build("logistic", n_classes=n_classes)
    classifier.fit_windows(training_on(windows, targets, weights=weights))
    standard = classifier._standardise(classifier.view(windows)).double()
    expected = LogisticRegression(C=0.01, max_iter=500).fit(standard.numpy(), targets, sample_weight=weights)
    assert_allclose(
        classifier._posteriors(standard).numpy(), expected.predict_proba(standard.numpy()), rtol=1e-9
    )


def test_the_strength_is_that_with_the_least_loss_of_held_out_series(rng):
    windows, targets = rhythms(rng, noise=2.0)
    training = training_on(windows, targets)
    x = window_statistics(windows).double().numpy()[:, :20]
    found, without = logistic.chosen_strength(x, training.folds, training)
    losses = []
    for strength in logistic.STRENGTHS:
        posteriors = np.empty((48, 2))
        for fold in range(N_FOLDS):
            used = training.folds != fold
            model = LogisticRegression(C=strength, max_iter=5000).fit(x[used], targets[used])
            posteriors[~used] = model.predict_proba(x[~used])
        losses.append(series_log_loss(posteriors, targets, training.series, training.weights))
    assert found == logistic.STRENGTHS[int(np.argmin(losses))]
    assert len(without) == N_FOLDS


@pytest.mark.parametrize(("n_series", "n_folds"), [(1, 0), (2, 2), (12, 3)])
def test_inner_folds_hold_whole_series_of_every_class(n_series, n_folds):
    targets = np.repeat(np.arange(n_series) % 2, 2)
    training = training_on(torch.zeros(2 * n_series, 1, 1), targets, folds=np.full(2 * n_series, -1))
    folds = logistic.inner_folds(training)
    assert folds.max() + 1 == n_folds
    assert (folds[::2] == folds[1::2]).all()
    if n_series == 12:
        assert all(set(targets[folds == fold]) == {0, 1} for fold in range(3))


# Mixture


def test_mixture_weights_have_the_largest_likelihood(rng):
    posteriors = rng.dirichlet([1, 1, 1], size=(3, 40))
    targets, series = np.repeat(rng.integers(3, size=20), 2), np.repeat(np.arange(20), 2)
    weights = np.repeat(rng.choice([0.5, 2.0], 20), 2)
    own = posteriors[:, np.arange(40), targets]
    likelihood = np.clip(own.reshape(3, 20, 2).mean(axis=2), mixture_weights.LEAST_LIKELIHOOD, None)

    def score(found):
        return naive_classifiers.mixture_likelihood(found, likelihood, weights[::2], mixture_weights.PRIOR)

    rounds = [
        score(mixture_weights.mixture_weights(posteriors, targets, series, weights, n_rounds=n))
        for n in (0, 1, 2, 5, 20, 200)
    ]
    assert rounds == sorted(rounds)
    assert rounds[0] < rounds[-1]
    assert rounds[-1] >= max(score(item) for item in rng.dirichlet([1, 1, 1], size=2000)) - 1e-9


def test_a_mixture_is_the_weighted_mean_of_its_members(rng):
    windows, targets = rhythms(rng, noise=2.0)
    classifier = build("mixture")
    classifier.fit_windows(training_on(windows, targets))
    weights = classifier.weights.numpy()
    assert weights.sum() == pytest.approx(1.0)
    expected = sum(
        w * posteriors_by(member, windows) for w, member in zip(weights, classifier.members, strict=True)
    )
    assert_allclose(posteriors_by(classifier, windows), expected, atol=1e-5)


def test_a_member_that_knows_nothing_gets_little_weight(rng):
    _, targets = rhythms(rng, n=96)
    noise = torch.randn(96, 1, LENGTH) * torch.from_numpy(np.where(targets, 1.0, 4.0)).float()[:, None, None]
    members = [
        {"backbone": "logistic"},
        {"backbone": "logistic", "normalise": True},
    ]  # scale is all that differs
    classifier = build("mixture", members=members)
    classifier.fit_windows(training_on(noise, targets))
    assert classifier.weights[0] > 0.8


def test_a_mixture_with_a_network_is_weighed_by_validation_windows(rng):
    windows, targets = rhythms(rng)
    classifier = build("mixture", members=[{"backbone": "convnet", "width": 4}, {"backbone": "ridge"}])
    out_of_fold = classifier.fit_windows(training_on(windows, targets))
    assert_allclose(out_of_fold.sum(axis=1), 1.0)  # of the ridge alone
    assert classifier.weights.tolist() == [0.5, 0.5]
    assert classifier.network is classifier.members[0]
    classifier.weigh_by_validation(windows.split(20), targets, np.arange(48) // 2)
    assert classifier.weights[1] > 0.8  # the network is not trained


def test_class_weights_count_in_the_weights_by_validation_windows(rng):
    """The ridge has learned that every window is of class 0; with weight on class 1 it is worth less."""
    windows, targets = rhythms(rng)
    members = [{"backbone": "convnet", "width": 4}, {"backbone": "ridge"}]
    classifier = build("mixture", members=members, disturbed=[{"backbone": "ridge"}, {"backbone": "forest"}])
    classifier.fit_windows(training_on(windows, np.where(np.arange(48) < 46, 0, 1)))
    found = []
    for weights in (None, np.ones(48), np.where(targets == 1, 1.9, 0.1)):
        classifier.weigh_by_validation(windows.split(20), targets, np.arange(48), weights)
        found.append((classifier.weights.numpy().copy(), classifier.disturbed.weights.numpy().copy()))
    (plain, of_disturbed), even, (weighted, weighted_disturbed) = found
    assert_allclose(np.concatenate(even), np.concatenate([plain, of_disturbed]))
    assert weighted[1] < plain[1] - 0.05
    assert abs(weighted_disturbed - of_disturbed).max() > 0.01


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ("all", "members is 'all'"),
        ([], r"members is \[\]"),
        ([{"view": "ppv"}], "needed is a table for each member with its backbone"),
        ([{"backbone": "convnet"}], r"a mixture of \['convnet'\]"),
        (
            [{"backbone": "convnet"}, {"backbone": "gru"}, {"backbone": "ridge"}],
            r"\['convnet', 'gru', 'ridge'\]",
        ),
        ([{"backbone": "ridge"}, {"backbone": "mixture"}], r"\['ridge', 'mixture'\]"),
        ([{"backbone": "ridge"}] * 65, "members must be at most 64, got 65"),
    ],
)
def test_members_that_make_no_mixture_are_refused(members, message):
    with pytest.raises(ConfigError, match=message):
        build("mixture", members=members)


# Classifiers of scikit-learn


@pytest.mark.parametrize(
    "estimator",
    [
        CalibratedClassifierCV(SVC()),
        make_pipeline(StandardScaler(), RandomForestClassifier(20)),
        KNeighborsClassifier(3),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_classifiers_and_pipelines_of_scikit_learn_serve(rng, estimator):
    windows, targets = rhythms(rng, n_classes=3)
    found = []
    for _ in range(2):
        classifier = build_backbone(estimator, n_variates=1, window_length=LENGTH, n_outputs=3)
        found.append(classifier.fit_windows(training_on(windows, targets)))
    assert_array_equal(found[0], found[1])  # also where the classifier draws at random
    assert (found[0].argmax(axis=1) == targets).mean() > 0.9
    assert not hasattr(estimator, "classes_")  # clones of it are fitted
    assert type(estimator).__name__ in classifier.cannot_be_saved
    assert classifier.describe_as == f"{type(estimator).__name__} on statistics"


@pytest.mark.parametrize("estimator", [LinearSVC(), LinearRegression(), SVC()], ids=repr)
def test_a_classifier_without_posteriors_is_refused_with_the_remedy(estimator):
    name = type(estimator).__name__
    with pytest.raises(
        BackboneError, match=rf"{name}\(\) has no predict_proba.*CalibratedClassifierCV\({name}"
    ):
        build_backbone(estimator, n_variates=1, window_length=LENGTH, n_outputs=1)
    assert not any_classifier.is_sklearn_classifier(estimator)


def test_options_of_the_view_go_with_a_classifier_of_scikit_learn():
    classifier = build(SKLEARN, view="ppv", normalise=True)
    assert isinstance(classifier.view, PPVView)
    with pytest.raises(ConfigError, match="backbone LogisticRegression has no option 'C'"):
        build(SKLEARN, C=3.0)


def test_class_weights_reach_the_last_step_of_a_pipeline(rng):
    windows, targets = rhythms(rng, noise=3.0)
    means = []
    for weight in (1.0, 20.0):
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.01))
        classifier = build_backbone(pipeline, n_variates=1, window_length=LENGTH, n_outputs=1)
        weights = np.where(targets == 1, weight, 1.0)
        means.append(classifier.fit_windows(training_on(windows, targets, weights=weights))[:, 1].mean())
    assert means[0] < means[1]


def test_class_weights_that_a_classifier_cannot_take_are_refused(rng):
    windows, targets = rhythms(rng)
    classifier = build_backbone(KNeighborsClassifier(), n_variates=1, window_length=LENGTH, n_outputs=1)
    with pytest.raises(ConfigError, match=r"KNeighborsClassifier.fit takes no sample_weight"):
        classifier.fit_windows(training_on(windows, targets, weights=1.0 + targets))


def test_what_scikit_learn_refuses_names_the_classifier(rng):
    windows, targets = rhythms(rng, n=8)
    classifier = build_backbone(
        CalibratedClassifierCV(SVC()), n_variates=1, window_length=LENGTH, n_outputs=1
    )
    message = r"the classifier CalibratedClassifierCV\(estimator=SVC\(\)\) could not be fitted on 8 windows"
    with pytest.raises(BackboneError, match=message):
        classifier.fit_windows(training_on(windows, targets))
