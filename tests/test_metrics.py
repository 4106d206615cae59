"""Figures against sklearn; intervals that keep groups together."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from raxss.errors import LabelError
from raxss.metrics import score, score_with_intervals


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
    truth, guess = labels == (positive or "yes"), probabilities.argmax(axis=1) == which
    assert len(np.unique(probabilities[:, which])) < len(labels)
    assert found["auc"] == pytest.approx(roc_auc_score(truth, probabilities[:, which]))
    assert found["f1"] == pytest.approx(f1_score(truth, guess))
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, guess))


def test_several_classes_match_sklearn(rng):
    labels = rng.permutation(np.arange(90) % 3)
    probabilities = rng.dirichlet(np.ones(3), size=90) + 0.4 * np.eye(3)[labels]
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    found = score(labels, probabilities, classes=[0, 1, 2])
    guess = probabilities.argmax(axis=1)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, probabilities, multi_class="ovr"))
    assert found["f1"] == pytest.approx(f1_score(labels, guess, average="macro"))
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, guess))


def test_a_class_that_no_series_has_is_left_out_of_the_auc(rng):
    labels, probabilities = rng.permutation(np.arange(40) % 2), rng.dirichlet(np.ones(3), size=40)
    found = score(labels, probabilities, classes=[0, 1, 2])
    expected = np.mean([roc_auc_score(labels == k, probabilities[:, k]) for k in (0, 1)])
    assert found["auc"] == pytest.approx(expected)
    guess = probabilities.argmax(axis=1)
    assert 2 in guess
    assert found["f1"] == pytest.approx(f1_score(labels, guess, average="macro"))


def test_a_model_that_never_says_yes_has_an_f1_of_0_without_a_warning():
    assert score([0, 1], [[0.9, 0.1], [0.8, 0.2]], classes=[0, 1])["f1"] == 0.0


def test_intervals_hold_the_value_and_are_the_same_every_time(rng):
    labels, probabilities = two_classes(rng)
    first, again = (
        score_with_intervals(labels, probabilities, classes=["no", "yes"], n_resamples=500) for _ in range(2)
    )
    assert first == again
    values = score(labels, probabilities, classes=["no", "yes"])
    assert set(first) == {"auc", "f1", "accuracy"}
    for name, figure in first.items():
        assert figure["value"] == values[name]
        assert 0 <= figure["low"] < figure["value"] < figure["high"] <= 1
    other = score_with_intervals(labels, probabilities, classes=["no", "yes"], n_resamples=500, seed=1)
    assert other != first


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


def test_a_rare_class_is_in_every_draw(rng):
    labels = np.array([1, 1] + [0] * 30)
    p = rng.random(32)
    figures = score_with_intervals(labels, np.stack([1 - p, p], axis=1), classes=[0, 1], n_resamples=100)
    assert all(np.isfinite(list(figure.values())).all() for figure in figures.values())


@pytest.mark.parametrize("scored", [score, score_with_intervals])
def test_labels_of_one_class_are_refused_with_their_number_and_name(scored):
    with pytest.raises(LabelError, match=r"the 3 labels are of 1 class \('AF'\)"):
        scored(["AF"] * 3, np.full((3, 2), 0.5), classes=["AF", "N"])
    with pytest.raises(LabelError, match=r"the 0 labels are of 0 class \(none\)"):
        scored([], np.zeros((0, 2)), classes=["AF", "N"])


@pytest.mark.parametrize("scored", [score, score_with_intervals])
def test_a_positive_class_that_is_none_is_refused_by_name(scored):
    with pytest.raises(LabelError, match=r"'af' is not among the classes: \['AF', 'N'\]"):
        scored(["AF", "N"], np.full((2, 2), 0.5), classes=["AF", "N"], positive="af")
