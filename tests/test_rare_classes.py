"""A class of one in fifty: found with class weights and a tuned threshold, and figures that show when it is not."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, recall_score
from torch import nn

from raxss import RAxSSClassifier, Series, SeriesCollection
from raxss.method.augmentation import LIGHT
from raxss.uncertainty.reliability import classification_figures


class Energy(nn.Module):
    """A small network that can see an oscillation of any phase."""

    def __init__(self, n_variates, window_length, n_outputs):
        super().__init__()
        self.filters, self.head = nn.Conv1d(n_variates, 8, 15, padding=7), nn.Linear(8, n_outputs)

    def forward(self, windows):
        return self.head(torch.log1p(self.filters(windows).square().mean(dim=2)))


def one_in_fifty(seed, n_series, n_rare):
    """Noise; the rare series have an oscillation that is weaker than the noise."""
    rng, series = np.random.default_rng(seed), []
    for index in range(n_series):
        samples = rng.normal(size=rng.integers(150, 300))
        label = "rare" if index < n_rare else "common"
        if label == "rare":
            samples += 0.6 * np.sin(0.6 * np.arange(len(samples)) + rng.uniform(0, 6))
        series.append(Series(samples, rate=10.0, label=label, name=f"series {index}"))
    return SeriesCollection(series)


def test_a_class_of_one_in_fifty_is_found_with_weights_and_a_tuned_threshold():
    train_series, test = one_in_fifty(1, 500, 10), one_in_fifty(2, 1000, 100)
    settings = {
        "window_length": 64,
        "stride": 64,
        "max_epochs": 20,
        "lr": 1e-2,
        "random_state": 0,
        "device": "cpu",
        "space": "signal",
        "temperature": 0.1,
        "augmentation": dict(
            LIGHT
        ),  # "auto" changes gains more for so many series, and this network sees energy
    }
    figures = {}
    for weight, threshold in ((None, "argmax"), ("balanced", "argmax"), ("balanced", "tuned")):
        model = RAxSSClassifier(Energy, **settings, class_weight=weight, decision_threshold=threshold)
        predicted = model.fit(train_series).predict(test)
        recall = recall_score(test.labels, predicted, pos_label="rare")
        figures[weight, threshold] = recall, balanced_accuracy_score(test.labels, predicted)
        report = model.validation_report_.classification["uncalibrated"]
        assert report["largest_share"] == pytest.approx(0.98, abs=0.01)
        if weight is None:  # 98 % accuracy at 98 % prevalence is nothing, and the report shows it
            assert report["accuracy"] >= 0.95
            assert (
                report["balanced_accuracy"] == report["sensitivity"] / 2 + report["specificity"] / 2 <= 0.75
            )
    assert figures[None, "argmax"][0] <= 0.3
    assert figures["balanced", "argmax"][0] >= 0.7
    assert figures["balanced", "tuned"][0] >= 0.7
    assert min(figures["balanced", "tuned"][1], figures["balanced", "argmax"][1]) >= 0.8
    assert figures[None, "argmax"][1] <= 0.65
    assert {"validation_accuracy", "validation_balanced_accuracy", "validation_weighted_accuracy"} <= set(
        model.history_
    )


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
