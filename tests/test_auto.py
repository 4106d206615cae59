"""`AutoRAxSS`: folds, halving, budget, resuming, the table of what was tried, the command."""

import copy
import dataclasses
import json
import re

import numpy as np
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

from raxss import AutoRAxSS, RAxSSClassifier, Series
from raxss._core.store import sealed
from raxss.cli import app
from raxss.errors import ConfigError, DataError, OutputError, RAxSSError, SearchWarning
from raxss.estimator.auto import _Evaluation
from raxss.estimator.candidates import CANDIDATES, Candidate, Facts, candidates_for
from raxss.estimator.search import (
    CLEARLY,
    REFIT,
    STEPS_TO_MEASURE,
    Budget,
    Deadline,
    FoldFit,
    Halving,
    HeldOutLosses,
    OutOfTimeError,
    Trial,
    inner_folds,
    seconds_of,
)
from raxss.estimator.search_report import HEADER
from raxss.method.augmentation import STRONG
from raxss.method.backbones.mixture import BEATS, members_for, resolved
from raxss.method.windows import LONGEST_WHOLE


def candidate(name, cost=1.0, reason="it is quick", **params):
    return Candidate(name=name, params=params, reason=reason, cost_hint=cost)


#: Fitted in less than a second; on these data the first is worse than "ridge".
QUICK = (
    candidate(
        "default", backbone="ridge", backbone_options={"view": "statistics"}, window_length=4, stride=4
    ),
    candidate("ridge", 0.9, backbone="ridge", backbone_options={"view": "statistics"}),
    candidate("few-trees", 0.5, "it is quick", backbone="extra-trees", backbone_options={"n_trees": 10}),
)


@pytest.fixture(scope="module")
def data():
    """Rows of 16 numbers, in pairs of one group; the class is in their last quarter."""
    rng = np.random.default_rng(3)
    targets = np.repeat(np.arange(12) % 2, 2)
    rows = rng.normal(size=(24, 16))
    rows[:, 12:] += 1.5 * targets[:, None]
    return rows, np.array(["ill", "well"])[targets], np.arange(24) // 2


@pytest.fixture(scope="module")
def searched(data):
    return AutoRAxSS(n_trials=3, candidates=QUICK, random_state=0).fit(*data)


def made_up_unit(evaluation, trial, fold, limit):
    """In place of a fit: probabilities that depend on name, fold and place alone, and seconds."""
    test = evaluation.folds[fold][1]
    right = evaluation.labels[test] == evaluation.auto.classes_[1]
    own = {"default": 0.6, "ridge": 0.8, "few-trees": 0.5}[trial.name] + 0.01 * fold + 0.001 * test
    second = np.where(right, own, 1 - own)
    return FoldFit(np.stack([1 - second, second], axis=1), 1.0, 0.5)


@pytest.fixture
def made_up(monkeypatch):
    """Nothing is fitted, neither in the search nor at its end."""
    monkeypatch.setattr(_Evaluation, "_fit", made_up_unit)
    monkeypatch.setattr(AutoRAxSS, "_refitted", lambda *_: "a model")


# Budget, folds, candidates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [("10min", 600), ("10m", 600), (" 2 H", 7200), ("1.5 hours", 5400), (30, 30), (0.5, 0.5)],
)
def test_budgets_are_read(budget, seconds):
    assert seconds_of(budget) == seconds


@pytest.mark.parametrize("budget", ["10 x", "", "90", "-3m", "m", 0, -1, float("nan"), True, "0s", "1e3s"])
def test_other_budgets_are_refused(budget, data):
    with pytest.raises(ConfigError, match=re.escape(f"budget is {budget!r}; needed is a time above 0")):
        AutoRAxSS(budget, n_trials=1).fit(*data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_trials": 0}, "n_trials must be a whole number of at least 1 or None, got 0"),
        ({"n_folds": 1}, "n_folds must be a whole number of at least 2, got 1"),
        ({"candidates": []}, r"candidates are \[\]"),
        ({"candidates": [*QUICK, QUICK[0]]}, "'default', 'ridge', 'few-trees', 'default'"),
        ({"candidates": ["ridge"]}, r"candidates are \['ridge'\]"),
        ({"candidates": [candidate("typo", scalling="none")]}, "scalling"),
        ({"candidates": [candidate("wrong", n_neighbors=-1)]}, "n_neighbors"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_fitted(settings, message, data, monkeypatch):
    monkeypatch.setattr(RAxSSClassifier, "fit", None)
    with pytest.raises((ConfigError, TypeError), match=message):
        AutoRAxSS(**settings).fit(*data)


def test_names_of_candidates_can_be_names_of_files():
    with pytest.raises(ConfigError, match=r"'\.\./a' cannot be used"):
        candidate("../a")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_groups", [False, True])
def test_inner_folds_test_each_series_once_and_divide_no_group(seed, with_groups):
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.integers(0, 12, size=40)) if with_groups else None
    targets = rng.integers(0, 3, size=40)
    folds = inner_folds(targets, groups, n_folds=3, seed=seed, n_classes=3)
    assert len(folds) in ((2, 3) if with_groups else (3,))
    assert sorted(np.concatenate([test for _, test in folds])) == list(range(40))
    for train, test in folds:
        assert not set(train) & set(test)
        assert set(targets[train]) == {0, 1, 2}
        assert groups is None or not set(groups[train]) & set(groups[test])


def test_folds_are_fewer_where_a_class_has_fewer_groups_and_none_with_one():
    targets, groups = np.array([0] * 6 + [1] * 4), np.array([0, 1, 2, 3, 4, 5, 6, 6, 7, 7])
    sizes = {"n_folds": 5, "seed": 0, "n_classes": 2}
    assert len(inner_folds(targets, groups, **sizes)) == 2
    assert inner_folds(targets, np.array([0, 1, 2, 3, 4, 5, 6, 6, 6, 6]), **sizes) == []


@pytest.mark.parametrize(
    ("lengths", "n_series", "there", "absent"),
    [
        ([300], 40, {"default", "ridge", "quick"}, {"short-windows", "context", "network", "no-network"}),
        ([9000], 150, {"short-windows", "long-windows", "context", "network"}, {"no-network"}),
        ([300], 500, {"no-network", "light-augmentation", "ensemble"}, {"network", "strong-augmentation"}),
        ([LONGEST_WHOLE + 1], 20, {"short-windows", "long-windows"}, {"network"}),
    ],
)
def test_candidates_suit_the_series_and_their_settings_are_valid(lengths, n_series, there, absent):
    facts = Facts.of([Series(np.zeros(lengths[0]))] * n_series)
    found = candidates_for(facts)
    names = {item.name for item in found}
    assert there <= names
    assert not absent & names
    assert found[0].name == "default"
    assert found[0].settings(facts) == {}
    for item in found:
        RAxSSClassifier(**item.settings(facts)).check_settings()
        assert item.reason
    assert min(found, key=lambda item: item.cost_hint).name == "quick"
    assert len(found) <= 13  # the list is short


@pytest.mark.parametrize(
    ("rate", "n_samples", "there"),
    [
        (300.0, 9000, True),
        (125.0, 1250, True),
        (300.0, 1000, False),
        (5000.0, 90_000, False),
        (1.0, 9000, False),
    ],
)
def test_beats_are_a_candidate_where_windows_of_an_ecg_could_have_several(rate, n_samples, there):
    series = [Series(np.zeros(n_samples), rate=rate)] * 20
    found = {item.name: item.settings(Facts.of(series)) for item in candidates_for(Facts.of(series))}
    assert ("beats" in found) == there
    if there:
        members = found["beats"]["backbone_options"]["members"]
        assert members == [*members_for([n_samples] * 20), *BEATS]  # fit adds the rate


def test_names_of_candidates_are_their_own():
    assert len({item.name for item in CANDIDATES}) == len(CANDIDATES)


# Halving, with losses and times that are made up --------------------------------------------------------------


class Clock:
    """Seconds that pass only when something is fitted."""

    now = 0.0

    def __call__(self):
        return self.now


def search_of(probabilities, *, costs=None, budget=None, factors=None, seconds=10.0, n_folds=3, fails=()):
    """A search over candidates with these probabilities of the true class; ``factors``: true costs beside hints."""
    clock = Clock()
    costs = costs or [1.0] * len(probabilities)
    trials = [Trial(candidate(f"c{place}", cost), {}) for place, cost in enumerate(costs)]
    targets = np.arange(12) % 2
    folds = inner_folds(targets, None, n_folds=n_folds, seed=0, n_classes=2)
    fitted = []

    def evaluate(trial, fold, limit):
        place = trials.index(trial)
        fitted.append((place, fold))
        if place in fails or (place, fold) in fails:
            raise RAxSSError("it cannot be fitted")
        clock.now += seconds * costs[place] * (1.0 if factors is None else factors[place])
        own = np.broadcast_to(probabilities[place], n_folds)[fold]
        rows = np.full((len(folds[fold][1]), 2), 1 - own)
        rows[np.arange(len(rows)), targets[folds[fold][1]]] = own
        return FoldFit(rows, seconds * costs[place] * (1.0 if factors is None else factors[place]), 0.0)

    scores = HeldOutLosses(folds, targets, np.ones(12), np.arange(12))
    search = Halving(trials, scores, evaluate, Budget(budget, clock), refit_factors=(1.5, 3.0))
    return search, fitted, clock


def test_the_better_half_goes_on_and_the_first_always_does():
    search, fitted, _ = search_of([0.5, 0.9, 0.6, 0.7, 0.8, 0.55])
    search.run()
    assert [place for place, fold in fitted if fold == 0] == [0, 1, 2, 3, 4, 5]
    assert sorted(place for place, fold in fitted if fold == 1) == [0, 1, 3, 4]  # three, and the first
    assert sorted(place for place, fold in fitted if fold == 2) == [0, 1, 4]
    assert [trial.name for trial in search.preferred()][:3] == ["c1", "c4", "c0"]
    assert search.trials[2].outcome == "among the worse half after fold 1"


def test_where_none_is_better_the_first_is_chosen_and_the_search_ends_early():
    search, fitted, _ = search_of([0.9, 0.8])
    search.run()
    assert fitted == [(0, 0), (1, 0)]
    assert search.preferred()[0].name == "c0"


def test_one_that_wins_a_fold_but_not_all_together_is_not_chosen():
    search, _, _ = search_of([0.8, [0.9, 0.5, 0.8], 0.3], n_folds=3)
    search.run()
    assert [len(trial.units) for trial in search.trials] == [
        2,
        2,
        1,
    ]  # after two folds it is not better any more
    assert search.preferred()[0].name == "c0"


def test_of_equal_ones_the_cheaper_is_chosen():
    search, _, _ = search_of([0.5, 0.9, 0.9], costs=[1.0, 0.9, 0.4])
    search.run()
    assert search.preferred()[0].name == "c2"


def test_one_that_fails_is_left_out():
    search, _, _ = search_of([0.5, 0.9, 0.8], fails=[1])
    search.run()
    assert search.preferred()[0].name == "c2"
    assert search.trials[1].outcome == "failed: it cannot be fitted"


def test_where_the_first_fails_the_others_go_on():
    search, fitted, _ = search_of([0.5, 0.9, 0.8], fails=[0], costs=[1.0, 0.9, 0.4])
    search.run()
    assert {place for place, _ in fitted} == {0, 1, 2}
    assert search.trials[0].failure == "it cannot be fitted"
    assert search.reference.name == "c2"  # the cheapest
    assert search.preferred()[0].name == "c1"


def test_where_the_best_fails_on_a_further_fold_the_next_goes_on():
    search, fitted, _ = search_of([0.5, 0.9, 0.8, 0.4], fails=[(1, 1)])
    search.run()
    assert (2, 1) in fitted
    assert search.trials[1].failure
    assert search.preferred()[0].name == "c2"
    assert search.preferred()[-1].name == "c1"


def test_where_the_reference_fails_on_a_further_fold_the_search_ends():
    search, fitted, _ = search_of([0.5, 0.9, 0.8, 0.4], fails=[(0, 1)])
    search.run()
    assert [item for item in fitted if item[1]] == [(0, 1)]
    assert search.trials[1].outcome == "not compared on fold 2, where c0 failed"


def test_a_rung_is_begun_only_if_challenger_and_reference_both_have_time():
    search, fitted, _ = search_of([[0.5] * 3, [0.9, 0.2, 0.2], [0.6] * 3], costs=[4, 1, 1], budget=150)
    search.run()
    assert [(place, fold) for place, fold in fitted if fold] == []
    assert search.trials[0].outcome == search.trials[1].outcome == "no time for fold 2"


@pytest.mark.parametrize("seed", range(40))
def test_every_fold_of_a_candidate_is_one_of_the_reference(seed):
    rng = np.random.default_rng(seed)
    costs, factors = rng.uniform(0.2, 4, size=5), rng.uniform(0.6, 1.6, size=5)
    search, _, _ = search_of(
        rng.uniform(0.3, 0.9, size=(5, 3)), costs=list(costs), factors=factors, budget=rng.uniform(50, 400)
    )
    search.run()
    for trial in search.trials:
        assert set(trial.units) <= set(search.reference.units)


@pytest.mark.parametrize(("gap", "chosen"), [(0.02, "c0"), (0.2, "c1")])
def test_a_difference_within_half_a_standard_error_is_no_reason_for_a_switch(gap, chosen):
    search, _, _ = search_of([0.5, 0.5], n_folds=2)
    rng = np.random.default_rng(0)
    for fold, (_, test) in enumerate(search.scores.folds):
        for trial, better in zip(search.trials, (0.0, gap), strict=True):
            own = np.exp(-1.0 + better + (rng.normal(0, 0.3, len(test)) if better else 0))
            rows = np.repeat(1 - own, 2) if np.ndim(own) else np.full(2 * len(test), 1 - own)
            rows = rows.reshape(len(test), 2)
            rows[np.arange(len(test)), search.scores.targets[test]] = own
            trial.units[fold] = FoldFit(rows, 1.0, 0.0)
    mean, error, n_folds = search.scores.paired(search.trials[1], search.reference)
    assert (mean < 0, n_folds) == (True, 2)
    assert (-mean > CLEARLY * error) == (chosen == "c1")
    assert search.preferred()[0].name == chosen


def test_paired_differences_and_their_errors_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    targets, keys = rng.integers(0, 2, 30), np.arange(30) // 3
    weights = np.where(targets == 1, 2.0, 0.5)
    folds = [(np.arange(15, 30), np.arange(15)), (np.arange(15), np.arange(15, 30))]
    first, second = (Trial(candidate(name), {}) for name in ("a", "b"))
    for trial in (first, second):
        for fold, (_, test) in enumerate(folds):
            trial.units[fold] = FoldFit(rng.dirichlet([1, 1], size=len(test)), 1.0, 0.0)
    mean, error, n_folds = HeldOutLosses(folds, targets, weights, keys).paired(first, second)
    losses = [
        -np.log(np.concatenate([trial.units[k].probabilities for k in (0, 1)])[np.arange(30), targets])
        for trial in (first, second)
    ]
    gaps, share = losses[0] - losses[1], weights / weights.sum()
    expected = sum(share[i] * gaps[i] for i in range(30))
    sums = [sum(share[i] * (gaps[i] - expected) for i in range(30) if keys[i] == key) for key in range(10)]
    assert (mean, n_folds) == (pytest.approx(expected), 2)
    assert error == pytest.approx(np.sqrt(10 / 9 * sum(value**2 for value in sums)))
    del second.units[1]
    assert HeldOutLosses(folds, targets, weights, keys).paired(first, second)[2] == 1


# The budget ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_search_and_final_fit_keep_within_a_tenth_of_the_budget(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    costs = [1.0, *rng.uniform(0.15, 1.5, size=n - 1), 0.1]
    factors = rng.uniform(0.8, 1.25, size=n + 1)  # hints are not exact
    budget = float(rng.uniform(5, 300))
    search, _, clock = search_of(
        rng.uniform(0.3, 0.9, size=n + 1), costs=costs, factors=factors, budget=budget
    )
    search.run()
    chosen = next((trial for trial in search.preferred() if search.has_time_for(trial)), None)
    place = search.trials.index(chosen or search.cheapest)
    final = 10.0 * costs[place] * factors[place] * 1.5
    quickest = (10.0 * costs[-1] * factors[-1]) * 2.5  # is fitted even if it takes longer
    assert clock.now + final <= max(1.1 * budget, quickest)
    if budget > 100:
        assert chosen is not None


def test_much_time_is_used_for_all_candidates_and_little_for_the_quickest():
    probabilities, costs = [0.5, 0.9, 0.8, 0.4], [1.0, 1.0, 0.5, 0.1]
    search, fitted, _ = search_of(probabilities, costs=costs, budget=1000)
    search.run()
    assert {place for place, _ in fitted} == {0, 1, 2, 3}
    assert fitted[0] == (3, 0)  # the cheapest, which says how long others will take
    search, fitted, _ = search_of(probabilities, costs=costs, budget=20)
    search.run()
    assert {place for place, _ in fitted} == {3, 2}
    assert search.reference.name == "c3"
    assert search.preferred()[0].name == "c2"
    assert search.trials[0].outcome == "no time for fold 1"


def test_the_first_is_tried_again_when_it_turns_out_to_be_quicker_than_guessed():
    # by the quickest it would take 40 s, by the next 10 s
    search, fitted, _ = search_of([0.5, 0.6, 0.6], costs=[1.0, 0.5, 0.1], factors=[1, 1, 4], budget=70)
    search.run()
    assert fitted[:3] == [(2, 0), (1, 0), (0, 0)]
    assert search.reference is search.trials[0]
    assert search.trials[0].outcome != "no time for fold 1"


def test_a_unit_is_begun_only_if_the_leader_can_be_fitted_after_it():
    search, fitted, clock = search_of([0.9, 0.5, 0.5], costs=[1.0, 1.0, 0.1], budget=40)
    search.run()
    assert fitted == [(2, 0), (0, 0)]  # 11 s used, 19 s for the first on all series: 10 s are left
    assert clock.now + search.refit_seconds(search.preferred()[0]) <= 40


def test_time_of_an_earlier_run_counts():
    clock = Clock()
    budget = Budget(60.0, clock)
    clock.now, budget.before = 10.0, 25.0
    assert (budget.elapsed, budget.left) == (35.0, 25.0)
    assert Budget(None, clock).left == np.inf


@pytest.mark.parametrize("each", [0.5, 2.0])
def test_training_that_would_take_too_long_is_ended_after_a_few_steps(each):
    clock = Clock()
    deadline = Deadline(100.0, clock)
    deadline.on_train_begin(n_epochs=5, n_steps=20)
    clock.now = 5.0  # the first step compiles
    steps = 0
    try:
        for step in range(1, 101):
            deadline.on_step(0, step)
            steps += 1
            clock.now += each
    except OutOfTimeError:
        pass
    assert deadline.trained
    assert steps == (100 if each == 0.5 else STEPS_TO_MEASURE)


def test_a_network_is_left_out_in_time(data):
    endless = {"max_epochs": 10**6, "batch_size": 1}
    slow = candidate("slow", 0.6, backbone="convnet", backbone_options={"width": 4}, **endless)
    auto = AutoRAxSS("2min", candidates=(*QUICK, slow), n_folds=2, random_state=0).fit(*data)
    outcomes = dict(zip(auto.cv_results_["candidate"], auto.cv_results_["outcome"], strict=True))
    assert outcomes["slow"] == "no time for fold 1: training was projected to take too long"
    assert auto.search_seconds_ < 120


def test_without_time_for_the_first_the_quickest_is_fitted_and_that_is_said(data):
    auto = AutoRAxSS("0.001s", candidates=QUICK, random_state=0)
    with pytest.warns(
        SearchWarning, match="no time to fit the default within the budget of 0.0 s.*'few-trees'"
    ):
        auto.fit(*data)
    assert auto.best_params_ == QUICK[2].params
    assert "no time to fit the default" in auto.search_report_.notes[0]
    assert "no time to fit the default" in auto.search_report_.html()


# The estimator ------------------------------------------------------------------------------------------------


def test_the_choice_is_what_scikit_learn_calls_it(searched, data):
    rows, labels, groups = data
    results = searched.cv_results_
    assert len({len(column) for column in results.values()}) == 1
    assert list(results["candidate"]) == ["default", "ridge", "few-trees"]
    assert (
        searched.best_params_ == results["params"][searched.best_index_] == QUICK[searched.best_index_].params
    )
    assert searched.best_index_ > 0
    assert results["rank_test_score"][searched.best_index_] == 1
    assert sorted(results["rank_test_score"]) == [1, 2, 3]
    assert searched.best_score_ == results["mean_test_score"][searched.best_index_]
    assert searched.n_splits_ == 3
    splits = np.array([results[f"split{k}_test_score"] for k in range(3)])
    assert list((~np.isnan(splits)).sum(axis=0)) == list(results["rung"])
    np.testing.assert_allclose(np.nanstd(splits, axis=0), results["std_test_score"])
    assert results["difference"][searched.best_index_] < 0
    assert np.isnan(results["difference"][0])
    assert (results["std_difference"][1:] > 0).all()
    assert searched.refit_time_ < searched.search_seconds_
    assert searched.n_features_in_ == 16
    alone = RAxSSClassifier(**searched.best_params_, random_state=0).fit(rows, labels, groups)
    np.testing.assert_array_equal(searched.predict_proba(rows), alone.predict_proba(rows))
    np.testing.assert_array_equal(searched.predict(rows), alone.predict(rows))
    np.testing.assert_array_equal(searched.classes_, ["ill", "well"])


def test_scores_are_log_losses_of_fits_without_the_fold(searched, data):
    rows, labels, groups = data
    targets = (labels == "well").astype(int)
    folds = inner_folds(targets, groups, n_folds=3, seed=0, n_classes=2)
    losses, place = [], searched.best_index_
    for fold, (train, test) in enumerate(folds):
        model = RAxSSClassifier(**QUICK[place].params, random_state=0)
        model.fit(list(rows[train]), labels[train], groups[train])
        own = model.predict_proba(list(rows[test]))[np.arange(len(test)), targets[test]]
        losses.extend(-np.log(own))
        assert searched.cv_results_[f"split{fold}_test_score"][place] == pytest.approx(np.log(own).mean())
    assert searched.best_score_ == pytest.approx(-np.mean(losses))


def test_predictions_explanations_and_reports_are_those_of_the_choice(searched, data):
    rows, best = data[0], searched.best_estimator_
    assert searched.explain(rows[0]).probability.tolist() == best.explain(rows[0]).probability.tolist()
    assert searched.report(rows[0]).contents == best.report(rows[0]).contents
    np.testing.assert_array_equal(searched.predict_set(rows), best.predict_set(rows))
    scored = [item.probability.tolist() for item in searched.score_series(rows[:2])]
    assert scored == searched.predict_proba(rows[:2]).tolist()
    shares = []
    each = [item.probability.tolist() for item in searched.explain_each(rows[:2], on_progress=shares.append)]
    assert each == [item.probability.tolist() for item in best.explain(list(rows[:2]))]
    assert shares[-1] == 1
    for own, known in zip(searched.window_probabilities(rows), best.window_probabilities(rows), strict=True):
        np.testing.assert_array_equal(own, known)
    assert repr(searched.faithfulness(rows[0], seed=3)) == repr(best.faithfulness(rows[0], seed=3))


def test_the_same_seed_and_trials_give_the_same_table_and_predictions(searched, data):
    again = clone(searched).fit(*data)
    for name in ("mean_test_score", "difference", "std_difference", "rank_test_score"):
        np.testing.assert_array_equal(again.cv_results_[name], searched.cv_results_[name])
    np.testing.assert_array_equal(again.predict_proba(data[0]), searched.predict_proba(data[0]))


def test_another_seed_draws_other_folds(made_up, data):
    first, second = (AutoRAxSS(n_trials=2, candidates=QUICK, random_state=seed).fit(*data) for seed in (0, 1))
    assert first.cv_results_["split0_test_score"].tolist() != second.cv_results_["split0_test_score"].tolist()


def test_parameters_for_all_reach_every_fit(data, monkeypatch):
    seen = []
    fit = RAxSSClassifier.fit

    def spy(self, *given, **options):
        seen.append(self.get_params(deep=False))
        return fit(self, *given, **options)

    monkeypatch.setattr(RAxSSClassifier, "fit", spy)
    shared = {"class_weight": {"ill": 1, "well": 3}, "missing": "nan", "calibration": "temperature"}
    auto = AutoRAxSS(
        n_trials=2, n_folds=2, candidates=QUICK, random_state=7, decision_threshold="tuned", **shared
    ).fit(*data)
    assert len(seen) >= 4
    assert all({name: given[name] for name in shared} == shared for given in seen)
    assert {given["random_state"] for given in seen} == {7}
    assert [given["decision_threshold"] for given in seen].index("tuned") == auto.cv_results_["rung"].sum()
    assert auto.search_report_.is_weighted


def test_losses_are_weighted_as_classes_are(made_up, data):
    plain = AutoRAxSS(n_trials=2, candidates=QUICK, random_state=0)
    weighted = clone(plain).set_params(class_weight={"ill": 0, "well": 1}).fit(*data)
    plain.fit(*data)
    wells = data[1] == "well"
    own = []
    for fold, (_, test) in enumerate(inner_folds(wells.astype(int), data[2], n_folds=3, seed=0, n_classes=2)):
        own.extend(np.log(0.8 + 0.01 * fold + 0.001 * test[wells[test]]))
    assert weighted.best_score_ == pytest.approx(np.mean(own))
    assert plain.best_score_ != weighted.best_score_


@pytest.mark.parametrize("settings", [{}, {"backbone": "extra-trees", "backbone_options": {"n_trees": 5}}])
def test_fits_without_a_fold_leave_out_only_what_probabilities_do_not_depend_on(data, settings):
    rows, labels, groups = data
    auto = AutoRAxSS(candidates=[candidate("any", **settings)], conformal_alpha=0.2)
    auto.seed_, auto.classes_ = 0, np.unique(labels)
    series = [Series(row) for row in rows]
    folds = inner_folds((labels == "well").astype(int), groups, n_folds=2, seed=0, n_classes=2)
    evaluation = _Evaluation(auto, None, "", Budget(None), series, labels, groups, folds)
    unit = evaluation._fit(Trial(auto.candidates[0], settings), 0, np.inf)
    train, test = folds[0]
    model = RAxSSClassifier(**settings, conformal_alpha=0.2, random_state=0)
    model.fit([series[place] for place in train], labels[train], groups[train])
    np.testing.assert_array_equal(unit.probabilities, model.predict_proba([series[place] for place in test]))


def test_no_series_or_group_is_fitted_and_scored_in_one_fold(data, monkeypatch):
    rows, labels, groups = data
    place = {row.tobytes(): index for index, row in enumerate(rows)}
    fitted, scored = [], []
    fit, predict = RAxSSClassifier.fit, RAxSSClassifier.predict_proba

    def places(series):
        return [place[np.ravel(getattr(item, "samples", item)).tobytes()] for item in series]

    def spy_fit(self, X, *given, **options):
        fitted.append(places(X))
        return fit(self, X, *given, **options)

    def spy_predict(self, X):
        scored.append(places(X))
        return predict(self, X)

    monkeypatch.setattr(RAxSSClassifier, "fit", spy_fit)
    monkeypatch.setattr(RAxSSClassifier, "predict_proba", spy_predict)
    AutoRAxSS(n_trials=2, candidates=QUICK[1:], random_state=0).fit(rows, labels, groups)
    assert len(fitted) == len(scored) + 1
    assert fitted[-1] == list(range(24))
    for train, test in zip(fitted, scored, strict=False):
        assert not set(groups[train]) & set(groups[test])
        assert len(train) + len(test) == 24


def test_one_trial_is_the_default_and_nothing_is_compared(made_up, data, monkeypatch):
    monkeypatch.setattr(_Evaluation, "_fit", None)
    auto = AutoRAxSS(n_trials=1, candidates=QUICK, random_state=0).fit(*data)
    assert auto.best_params_ == QUICK[0].params
    assert np.isnan(auto.best_score_)
    assert auto.n_splits_ == 0
    assert "without a comparison" in auto.search_report_.summary


def test_with_one_group_of_a_class_the_default_is_fitted_and_that_is_said(made_up, data):
    rows, labels, _ = data
    auto = AutoRAxSS(n_trials=3, candidates=QUICK, random_state=0)
    with pytest.warns(SearchWarning, match="a class is in one group of series alone"):
        auto.fit(rows, labels, np.where(labels == "ill", 0, np.arange(24)))
    assert auto.best_params_ == QUICK[0].params


def failing(monkeypatch, *failures):
    """`_Evaluation._fit` that raises a KeyError for candidates of these names."""

    def fit(evaluation, trial, fold, limit):
        if trial.name in failures:
            raise KeyError(f"/home/me/{trial.name}")
        return made_up_unit(evaluation, trial, fold, limit)

    monkeypatch.setattr(_Evaluation, "_fit", fit)


def test_where_the_default_fails_without_a_fold_it_is_fitted_on_all_and_that_is_said(
    made_up, data, monkeypatch
):
    failing(monkeypatch, "default")
    auto = AutoRAxSS(n_trials=3, candidates=QUICK, random_state=0)
    with pytest.warns(
        SearchWarning, match=r"the default could not be fitted without a fold \(KeyError.*, so that"
    ):
        auto.fit(*data)
    assert auto.best_params_ == QUICK[0].params
    assert auto.cv_results_["outcome"][0] == "chosen; failed: KeyError: 'default'"
    assert (auto.cv_results_["rung"][1:] > 0).all()
    assert "without a comparison" in auto.search_report_.summary
    assert auto.search_report_.chosen.name == "default"


def test_where_all_fail_nothing_was_compared(made_up, data, monkeypatch):
    failing(monkeypatch, "default", "ridge", "few-trees")
    auto = AutoRAxSS(n_trials=3, candidates=QUICK, random_state=0)
    with pytest.warns(SearchWarning, match="nothing could be compared: the default could not be fitted"):
        auto.fit(*data)
    assert auto.best_params_ == QUICK[0].params


def test_where_the_default_fails_on_all_series_too_the_best_of_the_others_is_fitted(
    made_up, data, monkeypatch
):
    def refit(self, chosen, *_):
        if chosen.name == "default":
            raise MemoryError
        return f"a model of {chosen.name}"

    monkeypatch.setattr(AutoRAxSS, "_refitted", refit)
    auto = AutoRAxSS(n_trials=3, candidates=QUICK, random_state=0)
    failing(monkeypatch, "default")
    with pytest.warns(SearchWarning, match=r"nor on all series \(MemoryError\); 'ridge'"):
        auto.fit(*data)
    assert auto.best_estimator_ == "a model of ridge"
    assert auto.best_params_ == QUICK[1].params
    failing(monkeypatch, "default", "ridge", "few-trees")
    with pytest.raises(MemoryError):
        auto.fit(*data)


def test_a_fold_without_a_class_for_calibration_does_not_end_the_search(data):
    rows, _, groups = data
    labels = np.array(["ill"] * 4 + ["well"] * 20)  # in two groups: without a fold in one
    network = {"backbone": "convnet", "backbone_options": {"width": 4}, "max_epochs": 1}
    options = {"calibration": "isotonic", "random_state": 0}
    auto = AutoRAxSS(n_trials=2, candidates=[candidate("default", **network), *QUICK[1:]], **options)
    with pytest.warns(SearchWarning, match="the default could not be fitted without a fold .calibration"):
        auto.fit(rows, labels, groups)
    alone = RAxSSClassifier(**network, **options).fit(rows, labels, groups)
    np.testing.assert_array_equal(auto.predict_proba(rows), alone.predict_proba(rows))


def test_without_groups_a_class_of_one_series_is_called_so(made_up, data):
    labels = np.array(["ill"] + ["well"] * 23)
    with pytest.warns(SearchWarning, match="a class has one series alone, and needed are two series"):
        auto = AutoRAxSS(n_trials=3, candidates=QUICK, random_state=0).fit(data[0], labels)
    assert set(auto.cv_results_["outcome"]) == {"chosen", "not tried: nothing could be compared"}


def test_a_budget_of_none_goes_with_a_number_of_trials(made_up, data):
    auto = AutoRAxSS(None, n_trials=2, candidates=QUICK, random_state=0).fit(*data)
    assert auto.search_report_.budget == "n_trials = 2"
    with pytest.raises(ConfigError, match="budget is None and n_trials is None; needed is one of them"):
        AutoRAxSS(None).fit(*data)


def test_the_summary_counts_candidates_and_folds_that_there_were(searched):
    report = searched.search_report_
    row = dataclasses.replace(report.chosen, losses=[0.5, None, None])
    other = dataclasses.replace(row, name="other", losses=[None] * 3, loss=None, outcome="no time for fold 1")
    alone = dataclasses.replace(report, rows=[row, other], reference=row.name).summary
    assert alone.startswith("1 candidate was scored on 24 training series")
    assert "over 1 of 3 inner folds" in alone
    assert alone.endswith("was chosen: no other candidate could be compared with it.")
    assert "over 3 inner folds" in report.summary


def test_within_a_fold_what_is_chosen_from_the_data_is_what_it_is_on_all_series():
    auto = AutoRAxSS()
    auto.seed_ = 0
    series = [Series(np.zeros(4000))] * 450
    evaluation = _Evaluation(auto, None, "", Budget(None), series, np.zeros(450), None, [])
    trees = next(item for item in CANDIDATES if item.name == "trees")
    first, other = Trial(CANDIDATES[0], {}), Trial(trees, dict(trees.params))
    assert evaluation._settings(first, 0)["backbone_options"] == resolved({}, [4000] * 450, 1)
    assert len(members_for([4000] * 450)) == 1 + len(members_for([4000] * 300))
    assert evaluation._settings(first, -1) == {}
    windows = {name: evaluation._settings(first, 0)[name] for name in ("window_length", "stride")}
    assert windows == {"window_length": 2000, "stride": 250}  # a quarter of the length for 300 series
    assert evaluation._settings(first, 0)["augmentation"]["flip"] == STRONG["flip"]
    assert evaluation._settings(other, 0)["augmentation"]["flip"] == 0  # trees are not trained by gradients
    assert evaluation._settings(other, 0)["backbone_options"] == dict(
        other.params.get("backbone_options", {})
    )


# Resuming -----------------------------------------------------------------------------------------------------


class Counted:
    """Counts fits without a fold, and stops before the n-th."""

    def __init__(self, monkeypatch, stop=None):
        self.n, fit = 0, _Evaluation._fit

        def counted(this, *given):
            if self.n == stop:
                raise KeyboardInterrupt
            self.n += 1
            return fit(this, *given)

        monkeypatch.setattr(_Evaluation, "_fit", counted)


@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_search_that_was_stopped_goes_on_and_ends_with_the_same_choice(
    made_up, data, tmp_path, monkeypatch, stop
):
    auto = AutoRAxSS(n_trials=3, candidates=QUICK, folder=tmp_path / "kept", random_state=0)
    whole = clone(auto).set_params(folder=None).fit(*data)
    with monkeypatch.context() as patch:
        Counted(patch, stop)
        with pytest.raises(KeyboardInterrupt):
            auto.fit(*data)
    counted = Counted(monkeypatch)
    auto.fit(*data)
    assert counted.n == whole.cv_results_["rung"].sum() - stop
    for name in ("mean_test_score", "difference", "rank_test_score"):
        np.testing.assert_array_equal(auto.cv_results_[name], whole.cv_results_[name])
    assert auto.best_params_ == whole.best_params_ == QUICK[1].params


def test_what_is_kept_is_used_also_for_more_trials_and_counts_as_time_used(
    made_up, data, tmp_path, monkeypatch
):
    auto = AutoRAxSS(n_trials=2, candidates=QUICK, folder=tmp_path / "kept", random_state=0).fit(*data)
    assert auto.search_seconds_ < 9
    assert auto.cv_results_["rung"].tolist() == [3, 3]
    counted = Counted(monkeypatch)
    again = clone(auto).fit(*data)
    assert counted.n == 0
    assert again.search_seconds_ >= 6 * 1.5  # six units of 1.5 s
    more = clone(auto).set_params(n_trials=3).fit(*data)
    assert more.cv_results_["rung"].tolist() == [3, 3, 1]
    assert counted.n == 1
    weighted = clone(auto).set_params(class_weight="balanced").fit(*data)
    assert counted.n == 1 + weighted.cv_results_["rung"].sum()  # other settings, other fits


def test_time_of_kept_fits_leaves_less_of_a_budget(made_up, data, tmp_path):
    alike = [dataclasses.replace(item, cost_hint=1.0) for item in QUICK]
    auto = AutoRAxSS("100s", candidates=alike, folder=tmp_path / "kept", random_state=0).fit(*data)
    assert auto.cv_results_["rung"].tolist() == [3, 3, 1]
    less = clone(auto).set_params(budget="10.6s").fit(*data)  # units of 1.5 s, and 3.75 s for the final fit
    assert less.cv_results_["rung"].tolist() == [1, 1, 1]
    assert less.cv_results_["outcome"][0] == "no time for fold 2"
    assert less.best_params_ == QUICK[1].params


def test_without_a_seed_that_of_the_folder_is_used(made_up, data, tmp_path):
    auto = AutoRAxSS(n_trials=2, n_folds=2, candidates=QUICK, folder=tmp_path / "kept").fit(*data)
    assert clone(auto).fit(*data).seed_ == auto.seed_


@pytest.mark.parametrize("damage", ["cut", "changed", "other"])
def test_a_damaged_part_is_computed_again(made_up, data, tmp_path, monkeypatch, caplog, damage):
    auto = AutoRAxSS(n_trials=2, candidates=QUICK, folder=tmp_path / "kept", random_state=0).fit(*data)
    before = auto.cv_results_["mean_test_score"].tolist()
    part = next((tmp_path / "kept").glob("ridge-1-*.json"))
    text = part.read_text()
    if damage == "other":  # whole, but not what belongs there
        content = json.loads(text)
        content["content"]["probabilities"] = [[0.5, 0.5]]
        content.pop("seal")
        part.write_text(json.dumps(sealed(content)))
    else:
        part.write_text(text[:90] if damage == "cut" else text.replace("0.", "0.1", 1))
    counted = Counted(monkeypatch)
    auto.fit(*data)
    assert counted.n == 1
    assert "is damaged" in caplog.text
    assert auto.cv_results_["mean_test_score"].tolist() == before


@pytest.mark.parametrize("change", ["samples", "labels", "groups", "seed", "folds", "damage"])
def test_a_folder_of_another_search_is_refused(made_up, data, tmp_path, change):
    rows, labels, groups = copy.deepcopy(data)
    auto = AutoRAxSS(n_trials=2, n_folds=2, candidates=QUICK, folder=tmp_path / "kept", random_state=0)
    auto.fit(rows, labels, groups)
    if change == "samples":
        rows[0, 0] += 1e-9
    elif change == "labels":
        labels[:2] = "well"
    elif change == "groups":
        groups[0] = 1
    elif change == "damage":
        place = tmp_path / "kept" / "search.json"
        place.write_text(place.read_text().replace('"seed":0', '"seed":1'))
        assert '"seed":1' in place.read_text()
    else:
        auto.set_params(**{"random_state": 1} if change == "seed" else {"n_folds": 3})
    with pytest.raises(DataError, match=r"'kept' holds a search of other series.*or delete this one"):
        auto.fit(rows, labels, groups)


# The table ----------------------------------------------------------------------------------------------------


def test_the_table_is_in_the_model_card_and_on_a_page_and_the_choice_in_the_settings(data, tmp_path):
    rows, labels, groups = data
    hostile = (*QUICK[:1], dataclasses.replace(QUICK[1], reason="<script>alert(1)</script> [red]|"))
    auto = AutoRAxSS(n_trials=2, candidates=hostile, random_state=0).fit(rows, labels, groups)
    folder = auto.save_pretrained(tmp_path / "model")
    card, page = (folder / "README.md").read_text("utf-8"), (folder / "search.html").read_text("utf-8")
    table = json.loads((folder / "search.json").read_text("utf-8"))
    for row in auto.search_report_.rows:
        assert f"| {row.name} | {row.n_folds} | {row.loss:.4f} |" in card
        assert f'<td class="number">{row.loss:.4f}</td>' in page
    assert "was chosen: its log loss" in " ".join(card.split()) or "none compared with it" in card
    assert "| paired folds |" in card
    assert "&lt;script&gt;" in page
    assert not re.search(r"<script|\son\w+=|https?://|javascript:", page)
    assert [row["name"] for row in table["rows"]] == [row.name for row in auto.search_report_.rows]
    assert table["summary"] == auto.search_report_.summary
    model = RAxSSClassifier.from_pretrained(folder)
    assert (model.backbone, model.backbone_options["view"]) == ("ridge", "statistics")
    np.testing.assert_array_equal(model.predict_proba(rows), auto.predict_proba(rows))


def test_the_table_says_on_how_many_folds_a_difference_is_and_what_is_not_comparable(searched):
    report = searched.search_report_
    chosen, *others = report.rows
    row = next(row for row in report.rows if row.difference is not None)
    alike = dataclasses.replace(report, rows=[chosen])
    apart = dataclasses.replace(
        report, rows=[chosen, dataclasses.replace(others[0], losses=[0.5, None, None])]
    )
    assert row.cells[HEADER.index("paired folds")] == str(row.n_paired)
    assert searched.cv_results_["n_paired"].max() == 3
    assert not alike.has_different_folds
    assert "not comparable" not in alike.html()
    assert alike.table().caption is None
    assert "not comparable" in apart.html()
    assert "not comparable" in apart.table().caption


def test_the_terminal_shows_every_candidate_and_no_markup(searched, capsys):
    from rich.console import Console

    row = searched.search_report_.rows[0]
    report = dataclasses.replace(
        searched.search_report_,
        rows=[row, dataclasses.replace(row, name="failed-one", outcome="failed: [red]")],
    )
    Console(width=140).print(report.table())
    shown = capsys.readouterr().out
    assert "failed-one" in shown
    assert "[red]" in shown
    assert row.name in shown


def test_progress_is_a_line_a_fit_where_there_is_no_terminal(made_up, data, capsys):
    AutoRAxSS(n_trials=2, n_folds=2, candidates=QUICK, random_state=0, verbose=1).fit(*data)
    lines = capsys.readouterr().err.splitlines()
    assert (
        sum(bool(re.match(r"fold 1 of 2, (default|ridge): log loss \d\.\d{4}, ", line)) for line in lines)
        == 2
    )


# The command --------------------------------------------------------------------------------------------------


def raxss(*arguments, code=0):
    result = CliRunner().invoke(app, [str(item) for item in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output + result.stderr).split())


@pytest.fixture
def manifest(tmp_path, data):
    rows, labels, groups = data
    lines = ["path,label,group"]
    for place in range(12):
        np.save(tmp_path / f"s{place}.npy", rows[2 * place][None])
        lines.append(f"s{place}.npy,{labels[2 * place]},{groups[2 * place]}")
    path = tmp_path / "recordings.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "10m"], "--budget goes with --preset auto, got --preset recommended"),
        (["--preset", "sss", "--trials", "2"], "--trials goes with --preset auto, got --preset sss"),
        (["--preset", "auto", "--stride", "8"], "--stride does not go with --preset auto"),
        (["--preset", "auto", "--max-epochs", "8"], "--max-epochs does not go with --preset auto"),
    ],
)
def test_options_that_do_not_go_together_are_refused_by_name(manifest, tmp_path, options, message):
    assert message in raxss("fit", manifest, "--out", tmp_path / "m", *options, code=2)


def test_an_unknown_budget_is_refused_and_nothing_is_left(manifest, tmp_path):
    result = CliRunner().invoke(
        app, ["fit", str(manifest), "--out", str(tmp_path / "m"), "--preset", "auto", "--budget", "10q"]
    )
    assert isinstance(result.exception, ConfigError)
    assert not list(tmp_path.glob("m*"))


def test_the_preset_auto_ends_with_the_table_and_a_model(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr("raxss.estimator.candidates.CANDIDATES", QUICK)
    options = ["--preset", "auto", "--trials", "2", "--device", "cpu", "--class-weight", "balanced"]
    shown = raxss("fit", manifest, "--out", tmp_path / "m", *options)
    assert "2 candidates, the choice first" in shown
    assert "candidates were compared on 12 training series" in shown
    assert sorted(item.name for item in tmp_path.iterdir() if item.name.startswith(("m", ".m"))) == ["m"]
    model = RAxSSClassifier.from_pretrained(tmp_path / "m")
    assert model.class_weight == "balanced"
    assert model.seed_ == 69421
    assert (tmp_path / "m" / "search.html").exists()


def test_of_a_split_the_test_set_is_not_looked_at(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr("raxss.estimator.candidates.CANDIDATES", QUICK)
    split, names = tmp_path / "split.json", []
    raxss("split", manifest, "--seed", "1", "--out", split)
    fit = AutoRAxSS.fit

    def spy(self, series):
        names.extend(series.names)
        return fit(self, series)

    monkeypatch.setattr(AutoRAxSS, "fit", spy)
    options = ["--split", split, "--preset", "auto", "--trials", "1", "--device", "cpu"]
    raxss("fit", manifest, "--out", tmp_path / "m", *options)
    parts = json.loads(split.read_text())
    assert parts["test"]
    assert parts["validation"]
    assert sorted(names) == sorted([*parts["train"], *parts["validation"]])
    assert RAxSSClassifier.from_pretrained(tmp_path / "m").training_data_["split"]


def test_after_ctrl_c_the_finished_fits_are_kept_and_resume_goes_on(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr("raxss.estimator.candidates.CANDIDATES", QUICK)
    options = ["fit", manifest, "--preset", "auto", "--trials", "3", "--device", "cpu"]
    with monkeypatch.context() as patch:
        Counted(patch, stop=2)
        shown = raxss(*options, "--out", tmp_path / "m", code=130)
    assert "the finished fits are kept in m.search" in shown
    assert not (tmp_path / "m").exists()
    counted = Counted(monkeypatch)
    raxss(*options, "--out", tmp_path / "m", "--resume")
    n_resumed = counted.n
    raxss(*options, "--out", tmp_path / "whole")
    assert counted.n - n_resumed == n_resumed + 2
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("m", "whole")]
    assert weights[0] == weights[1]
    assert not (tmp_path / "m.search").exists()


@pytest.mark.parametrize("options", [[], ["--resume"]])
@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_of_somebody_else_is_not_removed(manifest, tmp_path, options, is_file):
    place = tmp_path / "m.search"
    mine = place if is_file else place / "notes.txt"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    arguments = ["fit", manifest, "--out", tmp_path / "m", "--preset", "auto", "--trials", "1", *options]
    result = CliRunner().invoke(app, [str(item) for item in arguments])
    assert isinstance(result.exception, OutputError)
    assert "'m.search', where the fits of a search would be kept" in str(result.exception)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("names", [["notes.txt"], [".raxss", "config.json"], [".hidden"]])
def test_a_folder_with_other_files_is_refused_and_not_marked(made_up, data, tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match="holds other files than those of a search"):
        AutoRAxSS(n_trials=2, candidates=QUICK, folder=tmp_path).fit(*data)
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted(names)


def test_a_search_that_was_killed_before_its_first_part_goes_on(made_up, data, tmp_path):
    for name in (".raxss", ".search.json.host-1-ab.partial"):
        (tmp_path / name).write_text("")
    AutoRAxSS(n_trials=2, candidates=QUICK, folder=tmp_path).fit(*data)
    assert (tmp_path / "search.json").exists()


def test_a_budget_leaves_room_for_the_final_fit():
    search, _, _ = search_of([0.5, 0.9])
    search.run()
    assert search.refit_seconds(search.trials[1]) == pytest.approx(10.0 * 1.5 * REFIT)
