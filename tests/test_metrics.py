"""Figures against sklearn; intervals that keep groups together."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    mean_squared_error,
    roc_auc_score,
)

from raxss import metrics
from raxss.errors import DataError, LabelError
from raxss.metrics import METRICS, draw_counts, score, score_with_intervals, weighted_scores


def two_classes(rng, n=60, names=("no", "yes")):
    truth = rng.permutation(np.arange(n) % 2)
    p = np.round(
        np.clip(0.25 + 0.3 * truth + 0.3 * rng.uniform(-1, 1, n), 0, 1), 2
    )  # rounded, so there are ties
    return np.array(names)[truth], np.stack([1 - p, p], axis=1)


@pytest.mark.parametrize("positive", [None, "yes", "no"])
def test_two_classes_match_sklearn(rng, positive):
    labels, probabilities = two_classes(rng)
    found = score(labels, probabilities, classes=["no", "yes"], positive=positive)
    which = 0 if positive == "no" else 1
    truth, guess, p = (
        labels == (positive or "yes"),
        probabilities.argmax(axis=1) == which,
        probabilities[:, which],
    )
    assert len(np.unique(p)) < len(labels)
    assert found == pytest.approx(
        {
            "auc": roc_auc_score(truth, p),
            "f1": f1_score(truth, guess),
            "accuracy": accuracy_score(truth, guess),
            "average_precision": average_precision_score(truth, p),
            "balanced_accuracy": balanced_accuracy_score(truth, guess),
            "brier": brier_score_loss(truth, p),
            "ece": gap_of_the_calibration_curve(truth, p),
        }
    )


def gap_of_the_calibration_curve(outcome, confidence):
    """Expected calibration error from sklearn's curve, which has the same bins."""
    observed, mean = calibration_curve(outcome, confidence, n_bins=10, strategy="uniform")
    edges = np.linspace(0, 1, 11)
    n = [((confidence > low) & (confidence <= high)).sum() for low, high in pairwise(edges)]
    n[0] += (confidence == 0).sum()
    return np.abs(observed - mean) @ [count for count in n if count] / len(confidence)


def test_several_classes_match_sklearn(rng):
    labels = rng.permutation(np.arange(90) % 3)
    probabilities = rng.dirichlet(np.ones(3), size=90) + 0.4 * np.eye(3)[labels]
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    found = score(labels, probabilities, classes=[0, 1, 2])
    guess = probabilities.argmax(axis=1)
    one_hot = np.eye(3)[labels]
    assert found == pytest.approx(
        {
            "auc": roc_auc_score(labels, probabilities, multi_class="ovr"),
            "f1": f1_score(labels, guess, average="macro"),
            "accuracy": accuracy_score(labels, guess),
            "average_precision": average_precision_score(one_hot, probabilities),
            "balanced_accuracy": balanced_accuracy_score(labels, guess),
            "brier": 3 * mean_squared_error(one_hot, probabilities),
            "ece": gap_of_the_calibration_curve(labels == guess, probabilities.max(axis=1)),
        }
    )


@pytest.mark.parametrize(
    ("labels", "positives", "positive", "expected"),
    [
        ([0, 1], [0.1, 0.2], 1, {"f1": 0.0}),  # never called positive, and no warning
        ([0, 1], [0.5, 0.5], 1, {"f1": 0.0}),  # of two equally probable classes the first is predicted
        ([0, 1], [0.5, 0.5], 0, {"f1": 2 / 3}),
        # .2 in (.1, .2] with .15: gap |.35 - 1| / 2; in (.2, .3] it would be (|.15 - 1| + |.2 - 0|) / 2
        ([1, 0], [0.15, 0.2], 1, {"ece": 0.325}),
        (  # the same for all is worth what guessing is
            [1] * 3 + [0] * 7,
            [0.7] * 10,
            1,
            {"auc": 0.5, "average_precision": 0.3, "accuracy": 0.3, "balanced_accuracy": 0.5, "ece": 0.4}
            | {"f1": 0.6 / 1.3, "brier": 0.3 * 0.3**2 + 0.7 * 0.7**2},
        ),
    ],
)
def test_figures_worked_out_by_hand(labels, positives, positive, expected):
    p = np.array(positives)
    found = score(labels, np.stack([1 - p, p], axis=1), classes=[0, 1], positive=positive)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_the_challenges_f1_leaves_noisy_out_of_the_mean_but_counts_what_it_took():
    # The example of a confusion matrix as the CinC 2017 challenge scores it: truth by row, prediction by column.
    classes = ["AF", "noisy", "normal", "other"]
    confusion = np.array([[30, 2, 5, 13], [1, 8, 3, 2], [4, 6, 180, 20], [10, 5, 25, 60]])
    labels = np.repeat(classes, confusion.sum(axis=1))
    guess = np.concatenate([np.repeat(np.arange(4), row) for row in confusion])
    probabilities = np.eye(4)[guess]
    by_hand = [2 * confusion[k, k] / (confusion[k].sum() + confusion[:, k].sum()) for k in range(4)]
    figures = {"classes": classes, "f1_classes": ["normal", "AF", "other"]}
    found = score(labels, probabilities, **figures)
    assert found["f1"] == pytest.approx((by_hand[0] + by_hand[2] + by_hand[3]) / 3)
    plain = score(labels, probabilities, classes=classes)
    assert plain["f1"] == pytest.approx(np.mean(by_hand)) != found["f1"]
    assert plain | {"f1": found["f1"]} == found
    twice = weighted_scores(labels, probabilities, weights=np.full((1, len(labels)), 2), **figures)
    assert twice["f1"][0] == pytest.approx(found["f1"])


def test_a_class_that_no_series_has_is_left_out_of_the_auc(rng):
    labels, probabilities = rng.permutation(np.arange(40) % 2), rng.dirichlet(np.ones(3), size=40)
    found = score(labels, probabilities, classes=[0, 1, 2])
    expected = np.mean([roc_auc_score(labels == k, probabilities[:, k]) for k in (0, 1)])
    assert found["auc"] == pytest.approx(expected)
    guess = probabilities.argmax(axis=1)
    assert 2 in guess
    assert found["f1"] == pytest.approx(f1_score(labels, guess, average="macro"))
    recalls = [(guess[labels == k] == k).mean() for k in (0, 1)]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    precisions = [average_precision_score(labels == k, probabilities[:, k]) for k in (0, 1)]
    assert found["average_precision"] == pytest.approx(np.mean(precisions))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_weighted_score_is_that_of_the_series_repeated_so_often(rng, n_classes, monkeypatch):
    labels = rng.integers(n_classes, size=50)
    probabilities = np.round(rng.dirichlet(np.ones(n_classes), size=50), 1)
    weights = draw_counts(50, 40, rng)
    settings = {"classes": list(range(n_classes))}
    at_once = weighted_scores(labels, probabilities, weights=weights, **settings)
    monkeypatch.setattr(metrics, "N_AT_ONCE", 150)  # three draws at a time
    in_blocks = weighted_scores(labels, probabilities, weights=weights, **settings)
    assert set(at_once) == set(METRICS)
    for draw, counts in enumerate(weights):
        rows = np.repeat(np.arange(50), counts)
        repeated = score(labels[rows], probabilities[rows], **settings)
        for name in METRICS:
            assert at_once[name][draw] == pytest.approx(repeated[name], abs=1e-12), name
            assert in_blocks[name][draw] == pytest.approx(at_once[name][draw], abs=1e-12), name


def test_a_draw_without_a_class_has_only_the_figures_that_exist():
    probabilities = [[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]]
    draws = [[1, 1, 0], [1, 0, 0], [0, 0, 2], [0, 0, 0]]  # no positive; none called so; no negative; nothing
    found = weighted_scores([0, 0, 1], probabilities, classes=[0, 1], weights=draws)
    assert np.isnan(found["auc"]).all()
    for name, expected in {
        "f1": [0, np.nan, 1, np.nan],
        "average_precision": [np.nan, np.nan, 1, np.nan],
        "accuracy": [0.5, 1, 1, np.nan],
        "balanced_accuracy": [0.5, 1, 1, np.nan],
        "brier": [(0.01 + 0.36) / 2, 0.01, 0.04, np.nan],
    }.items():
        np.testing.assert_allclose(found[name], expected, err_msg=name)


def test_a_draw_has_as_many_groups_as_there_are_each_as_likely():
    counts = draw_counts(5, 20_000, np.random.default_rng(1))
    assert (counts.sum(axis=1) == 5).all()
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.03)
    np.testing.assert_allclose(counts.var(axis=0), 0.8, atol=0.03)  # binomial: n p (1 - p)


def test_intervals_hold_the_value_and_are_the_same_every_time(rng):
    labels, probabilities = two_classes(rng)
    settings = {"classes": ["no", "yes"], "n_resamples": 500}
    first, again = (score_with_intervals(labels, probabilities, **settings) for _ in range(2))
    assert first == again
    values = score(labels, probabilities, classes=["no", "yes"])
    assert set(first) == set(METRICS)
    for name, figure in first.items():
        assert figure["value"] == values[name]
        if name != "ece":  # which a bootstrap makes look worse
            assert 0 <= figure["low"] < figure["value"] < figure["high"] <= 1
    assert score_with_intervals(labels, probabilities, **settings, seed=1) != first
    rare = np.append(["yes"] * 2, ["no"] * 58)  # in every draw all the same
    figures = score_with_intervals(rare, probabilities, **settings)
    assert all(np.isfinite(list(figure.values())).all() for figure in figures.values())


def test_the_interval_of_the_accuracy_is_that_of_the_binomial(rng):
    right = np.arange(100) < 80
    labels = np.arange(100) % 2
    p = np.where(right == (labels == 1), 0.9, 0.1)
    figure = score_with_intervals(labels, np.stack([1 - p, p], axis=1), classes=[0, 1], n_resamples=2000)[
        "accuracy"
    ]
    assert figure["value"] == 0.8
    assert figure["low"] == pytest.approx(0.8 - 1.96 * 0.04, abs=0.02)
    assert figure["high"] == pytest.approx(0.8 + 1.96 * 0.04, abs=0.02)


def test_groups_stay_together_so_copies_of_a_series_bring_no_certainty(rng):
    labels, probabilities = two_classes(rng, n=30)
    settings = {"classes": ["no", "yes"], "n_resamples": 500}
    once = score_with_intervals(labels, probabilities, **settings)
    copies = np.tile(labels, 4), np.tile(probabilities, (4, 1))
    together = score_with_intervals(*copies, groups=np.tile(np.arange(30), 4), **settings)
    apart = score_with_intervals(*copies, **settings)
    for name in once:
        assert together[name] == pytest.approx(once[name])
        assert apart[name]["high"] - apart[name]["low"] < 0.75 * (once[name]["high"] - once[name]["low"])


@pytest.mark.parametrize("scored", [score, score_with_intervals])
@pytest.mark.parametrize(
    ("labels", "probabilities", "positive", "error", "message"),
    [
        (["AF"] * 3, np.full((3, 2), 0.5), None, LabelError, r"the 3 labels are of 1 class \('AF'\)"),
        ([], np.zeros((0, 2)), None, LabelError, r"the 0 labels are of 0 class \(none\)"),
        (["AF", "N"], np.eye(2), "af", LabelError, r"'af' is not among the classes: \['AF', 'N'\]"),
        (
            ["AF", "af", "n"],
            np.full((3, 2), 0.5),
            None,
            LabelError,
            r"labels 'af', 'n' are none of the classes \['AF', 'N'\]",
        ),
        (["AF", "N"], np.full((2, 3), 0.5), None, DataError, r"shape \(2, 3\); needed is \(2, 2\)"),
        (
            ["AF", "N"],
            [[0.5, 0.5], [np.nan, 0.5]],
            None,
            DataError,
            "probabilities of 1 of 2 series are not finite, first those of number 1",
        ),
    ],
)
def test_bad_input_is_refused_by_name(scored, labels, probabilities, positive, error, message):
    with pytest.raises(error, match=message):
        scored(labels, probabilities, classes=["AF", "N"], positive=positive)


def test_classes_and_weights_that_do_not_go_together_are_refused():
    labels = np.arange(14)  # a draw holds all 14 about once in a hundred thousand times
    with pytest.raises(LabelError, match=r"draws of 14 groups, fewer than 10 held all 14 classes"):
        score_with_intervals(labels, np.eye(14), classes=labels, n_resamples=10)
    with pytest.raises(DataError, match=r"shape \(4, 3\); needed is \(n_draws, 2\)"):
        weighted_scores([0, 1], np.full((2, 2), 0.5), classes=[0, 1], weights=np.ones((4, 3)))
    with pytest.raises(LabelError, match=r"f1_classes has 'd', and the classes are \['a', 'b', 'c'\]"):
        score(["a", "b", "c"], np.eye(3), classes=["a", "b", "c"], f1_classes=["a", "d"])
    with pytest.raises(LabelError, match="name the one that F1 is about as positive"):
        score(["a", "b"], np.eye(2), classes=["a", "b"], f1_classes=["a"])
