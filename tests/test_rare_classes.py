"""Rare classes: figures that show what an accuracy is worth."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, recall_score

from raxss.uncertainty.reliability import classification_figures


def test_figures_are_those_of_scikit_learn_and_of_the_classes_that_there_are(rng):
    rows = rng.dirichlet(np.ones(2), size=40)
    truth = rng.integers(0, 2, size=40)
    figures, guess = classification_figures(truth, rows), rows.argmax(axis=1)
    assert figures["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, guess))
    assert figures["sensitivity"] == pytest.approx(recall_score(truth, guess))
    assert figures["specificity"] == pytest.approx(recall_score(truth, guess, pos_label=0))
    assert figures["largest_share"] == max(np.mean(truth), np.mean(1 - truth))
    assert classification_figures(truth, rows, predicted=truth)["accuracy"] == 1
    alone = classification_figures(np.zeros(40, dtype=int), rows)
    assert set(alone) == {"largest_share", "accuracy", "balanced_accuracy", "specificity"}
    three = classification_figures([0, 1, 2], np.eye(3))
    assert three == {"largest_share": pytest.approx(1 / 3), "accuracy": 1.0, "balanced_accuracy": 1.0}
