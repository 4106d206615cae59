"""A class of one in fifty: found with class weights and a tuned threshold, and figures that show when it is not."""

import logging

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, recall_score
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from raxss import RAxSSClassifier, Series, SeriesCollection
from raxss.estimator import at_once, learning
from raxss.estimator.at_once import draw_weights, drawn_windows, rare_series, some_series, spread_windows
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


@pytest.mark.parametrize(
    "options",
    [
        {"members": [{"backbone": "ridge", "view": "ppv"}, {"backbone": "extra-trees", "n_trees": 50}]},
        pytest.param(None, marks=pytest.mark.slow),
    ],
    ids=["two members", "default"],
)
def test_with_the_default_class_weights_or_a_tuned_threshold_find_it(options):
    train_series, test = one_in_fifty(1, 150, 3), one_in_fifty(2, 300, 60)
    recalls = {}
    for setting in ({}, {"class_weight": "balanced"}, {"decision_threshold": "tuned"}):
        model = RAxSSClassifier(backbone_options=options, random_state=0, device="cpu", **setting)
        model.fit(train_series)
        recalls[next(iter(setting), "")] = recall_score(test.labels, model.predict(test), pos_label="rare")
    assert recalls["class_weight"] >= recalls[""] + 0.2
    assert recalls["decision_threshold"] >= recalls[""] + 0.2


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


# Draws of many series -------------------------------------------------------------------------------------------


class Pool:
    """Windows of 5000 series, two of each; three series are of class 1, and thirty of class 2."""

    targets = torch.from_numpy(np.repeat([1, 2, 0], [3, 30, 4967]))
    series = torch.arange(5000).repeat_interleave(2)
    strip, window_length = np.zeros((1, 1)), 20

    def __len__(self):
        return len(self.series)


@pytest.mark.parametrize(
    "drawn", [drawn_windows(Pool(), seed=0), spread_windows(Pool(), 1024, seed=0)], ids=["fit", "report"]
)
def test_a_draw_of_windows_keeps_rare_classes(drawn):
    series = np.unique(Pool.series[drawn])
    assert len(series) < 3050
    assert (np.diff(drawn) > 0).all()
    assert np.bincount(Pool.targets[series])[1:].tolist() == [3, 20]


def test_windows_are_spread_evenly_where_no_series_is_left_out():
    pool = Pool()
    pool.series = torch.arange(500).repeat_interleave(20)
    pool.targets = pool.targets[:500]
    np.testing.assert_array_equal(spread_windows(pool, 1000, seed=0), np.arange(0, 10_000, 10))


def test_weights_of_a_draw_give_the_class_shares_of_the_data():
    targets = Pool.targets.numpy()
    drawn = targets[np.unique(Pool.series[drawn_windows(Pool(), seed=0)])]
    weights = draw_weights(targets, drawn, n_classes=3)[drawn]
    found = np.bincount(drawn, weights=weights) / weights.sum()
    np.testing.assert_allclose(found, np.bincount(targets) / len(targets))


def test_further_rare_series_are_scored_out_of_fold_and_the_others_stay_a_random_draw():
    folds, usable, targets = np.arange(5000) % 5, np.arange(5000) != 2, Pool.targets.numpy()
    chosen = some_series(folds, usable, seed=0)
    further = rare_series(folds, usable, targets, chosen, seed=0)
    assert not set(chosen) & set(further)
    assert np.bincount(targets[np.concatenate([chosen, further])]).tolist()[1:] == [2, 20]
    assert (
        len(rare_series(folds[:300], usable[:300], targets[:300], np.flatnonzero(usable[:300]), seed=0)) == 0
    )


@pytest.fixture
def few_are_drawn(monkeypatch):
    monkeypatch.setattr(at_once, "MOST_WINDOWS", 200)
    monkeypatch.setattr(at_once, "MOST_SERIES", 50)
    monkeypatch.setattr(learning, "MOST_WINDOWS_AT_ONCE", 100)


@pytest.mark.parametrize("backbone", ["ridge", KNeighborsClassifier(9)], ids=["ridge", "without weights"])
def test_a_fit_on_some_series_has_the_rare_class_and_says_how_many_it_used(few_are_drawn, caplog, backbone):
    rng, targets = np.random.default_rng(0), np.repeat([1, 0], [6, 594])
    series = rng.normal(size=(600, 20))
    series[targets == 1] += 3
    model = RAxSSClassifier(backbone, backbone_options={"view": "statistics"}, random_state=0)
    with caplog.at_level(logging.INFO, logger="raxss"):
        model.fit(series, targets)
    n_used = int(model.history_["windows"][0])
    assert 200 <= n_used <= 206
    assert f"on {n_used} of 600 windows of {n_used} of 600 series" in caplog.text
    report = model.learning_report_
    assert report.evaluation.chance == report.chance == 0.5
    assert report.evaluation.n_series > model.validation_report_.n_series == 50
    assert report.evaluation.model.balanced_accuracy > 0.9


def test_more_of_a_rare_class_in_the_draw_does_not_raise_its_probability(few_are_drawn):
    rng, targets = np.random.default_rng(0), np.repeat([1, 0], [12, 588])
    series = rng.normal(size=(600, 20))  # noise: the share of the class is all there is to know
    model = RAxSSClassifier("forest", backbone_options={"view": "statistics"}, random_state=0)
    model.fit(series, targets)
    fresh = rng.normal(size=(200, 20))
    assert model.predict_proba(fresh)[:, 1].mean() == pytest.approx(0.02, abs=0.012)  # .06 in the draw
