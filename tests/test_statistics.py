"""Intervals that hold a known truth, corrections and ranks worked out by hand."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import friedmanchisquare

from raxss.benchmark.statistics import (
    COMPARED,
    critical_difference,
    difference,
    differences,
    holm,
    intervals,
    mean_over_systems,
    plot_critical_difference,
    resampled,
)
from raxss.errors import DataError
from raxss.metrics import score
from unpacked import made_result, paired_bootstrap


def cell(system, labels, p, groups, *, seed=1, fold=None, names=None, dataset="toy"):
    p = np.asarray(p, dtype=float)
    about = {"seed": seed, "fold": fold, "dataset": dataset, "classes": (0, 1), "positive": 1}
    labels, names = np.asarray(labels).tolist(), range(len(p)) if names is None else names
    return made_result(
        labels, np.stack([1 - p, p], axis=1), names=names, groups=groups, system=system, **about
    )


def noisy(rng, system, strength, n=40, *, seed=1):
    labels = np.arange(n) % 2
    return cell(system, labels, np.clip(0.5 + strength * (labels - 0.5) + 0.3 * rng.normal(size=n), 0, 1),
                np.arange(n) // 2, seed=seed)  # fmt: skip


# Bootstrap ----------------------------------------------------------------------------------------------------


def correlated_cells(rng, right, n_groups=60, n_tested=40, same=0.9):
    """Two systems, right with the probability asked for in each seed; series of a group share their luck.

    Of the groups, each seed tests its own random part, so that some are in several seeds' parts.
    """
    labels = np.arange(3 * n_groups) % 2
    groups = np.repeat(np.arange(n_groups), 3)
    cells = []
    luck = {system: np.repeat(rng.random(n_groups), 3) for system in ("sss", "gru")}
    for seed, pair in enumerate(right):
        tested = np.isin(groups, rng.choice(n_groups, n_tested, replace=False))
        for system, share in zip(("sss", "gru"), pair, strict=True):
            own = np.where(rng.random(len(groups)) < same, luck[system], rng.random(len(groups)))
            p = np.where((own < share) == (labels == 1), 0.9, 0.1)[tested]
            cells.append(
                cell(system, labels[tested], p, groups[tested], seed=seed, names=np.flatnonzero(tested))
            )
    return cells


def apart(cells):
    """The same results, as if every series were a group of its own."""
    return [dataclasses.replace(item, groups=item.names) for item in cells]


def test_the_interval_holds_the_true_difference_19_times_in_20_and_only_with_whole_groups(rng):
    right = [(0.70, 0.80), (0.75, 0.75), (0.72, 0.84)]
    truth = np.mean([gru - sss for sss, gru in right])
    held = {"groups": 0, "series": 0}
    n_worlds = 120
    for _ in range(n_worlds):
        cells = correlated_cells(rng, right)
        for kind, these in (("groups", cells), ("series", apart(cells))):
            row = paired_bootstrap(these, metrics=["accuracy"], n_resamples=300).iloc[0]
            held[kind] += row["low"] <= truth <= row["high"]
    assert 0.90 <= held["groups"] / n_worlds <= 0.99
    assert held["series"] / n_worlds < 0.87


def test_systems_that_are_alike_are_told_apart_once_in_20_times(rng):
    n_worlds = 200
    tables = [
        paired_bootstrap(correlated_cells(rng, [(0.75, 0.75)] * 2), metrics=["accuracy"], n_resamples=300)
        for _ in range(n_worlds)
    ]
    p = np.array([table["p"].iloc[0] for table in tables])
    assert 0.01 <= (p < 0.05).mean() <= 0.09
    assert 0.40 <= (p < 0.5).mean() <= 0.60


def test_the_difference_is_the_mean_over_seeds_and_folds_of_what_score_says(rng):
    cells = []
    for seed, fold in itertools.product((1, 2), ("a", "b")):
        both = [noisy(rng, "sss", 0.3, seed=seed), noisy(rng, "gru", 0.5, seed=seed)]
        cells += [cell(item.system, item.labels, item.probabilities[:, 1], item.groups, seed=seed, fold=fold)
                  for item in both[: 1 if (seed, fold) == (2, "b") else 2]]  # fmt: skip
    found = paired_bootstrap(cells, n_resamples=50).set_index(["metric", "reference", "system"])
    figures = {
        (entry.system, entry.seed, entry.fold): score(entry.labels, entry.probabilities, classes=(0, 1))
        for entry in cells
    }
    for metric in COMPARED:
        gap = {
            key: figures["gru", *key][metric] - figures["sss", *key][metric]
            for key in ((1, "a"), (1, "b"), (2, "a"))
        }
        expected = np.mean(
            [(gap[1, "a"] + gap[1, "b"]) / 2, gap[2, "a"]]
        )  # the fold that failed is in neither
        row = found.loc[metric, "sss", "gru"]
        assert row["difference"] == pytest.approx(expected, abs=1e-12)
        assert row["low"] < row["difference"] < row["high"]
        assert (row["n_seeds"], row["n_groups"]) == (2, 20)


def test_a_group_in_two_seeds_is_drawn_for_both_at_once(rng):
    """Two seeds with the same results are as uncertain as one."""
    once = [noisy(rng, "sss", 0.3), noisy(rng, "gru", 0.5)]
    again = [cell(item.system, item.labels, item.probabilities[:, 1], item.groups, seed=2) for item in once]
    columns = ["difference", "low", "high", "p"]
    pd.testing.assert_frame_equal(paired_bootstrap(once)[columns], paired_bootstrap(once + again)[columns])


def test_the_draws_are_the_same_for_every_order_and_every_set_of_systems(rng):
    cells = [noisy(rng, name, strength, seed=s) for s in (1, 2) for name, strength in
             (("sss", 0.3), ("gru", 0.5), ("raxss-pearson", 0.4))]  # fmt: skip
    whole = paired_bootstrap(cells, n_resamples=200)
    pd.testing.assert_frame_equal(whole, paired_bootstrap(cells[::-1], n_resamples=200))
    two = paired_bootstrap([item for item in cells if item.system != "raxss-pearson"], n_resamples=200)
    same = whole[(whole["reference"] == "sss") & (whole["system"] == "gru")].reset_index(drop=True)
    pd.testing.assert_frame_equal(two.drop(columns="p_holm"), same.drop(columns="p_holm"))
    assert list(whole["reference"].unique()) == ["sss", "raxss-pearson"]
    assert len(whole) == len(COMPARED) * 2 * 2


def test_a_system_does_not_differ_from_its_copy_and_p_is_never_0(rng):
    first = noisy(rng, "sss", 0.1)
    copy = cell("copy", first.labels, first.probabilities[:, 1], first.groups)
    best = cell("best", first.labels, 0.05 + 0.9 * np.array(first.labels), first.groups)
    found = paired_bootstrap([first, copy, best], metrics=["auc"], n_resamples=300).set_index("system")
    assert found.loc["copy", ["difference", "low", "high", "p", "p_holm"]].tolist() == [0, 0, 0, 1, 1]
    assert found.loc["best", "p"] == pytest.approx(1 / 301)
    assert found.loc["best", "p_holm"] == pytest.approx(2 / 301)


def test_of_few_groups_there_is_a_difference_but_no_interval(rng):
    labels, groups = np.arange(20) % 2, np.arange(20) % 5
    row = paired_bootstrap(
        [cell("sss", labels, rng.random(20), groups), cell("gru", labels, labels, groups)]
    ).iloc[0]
    assert row["difference"] > 0
    assert row["n_groups"] == 5
    assert row[["low", "high", "p", "p_holm"]].isna().all()


def test_a_test_part_of_one_class_has_an_accuracy_but_no_auc(rng):
    labels = np.zeros(20, dtype=int)
    cells = [cell(name, labels, rng.random(20), range(20)) for name in ("sss", "gru")]
    found = paired_bootstrap(cells, n_resamples=100).set_index("metric")
    assert found.loc["auc", ["difference", "low", "high", "p", "p_holm"]].isna().all()
    assert (
        found.loc[["accuracy", "brier"], ["difference", "low", "high", "p", "p_holm"]].notna().all(axis=None)
    )


def test_a_seed_without_a_class_in_a_draw_is_left_out_of_that_draw():
    """One positive group of ten: it is missing in a third of the draws, where the other seed speaks alone."""
    labels = np.array([1] + [0] * 9)
    rich = np.arange(10) % 2
    cells = []
    for name, p in (("sss", 0.4), ("gru", 0.6)):
        cells.append(cell(name, labels, np.where(labels == 1, p, 0.5), range(10), seed=1))
        cells.append(cell(name, rich, np.full(10, 0.5), range(10, 20), seed=2))
    (draws,) = (item for item in resampled(cells, n_resamples=500) if item.system == "gru")
    missing = np.isnan(draws.figures[1, ""]["auc"])
    assert 0.2 < missing.mean() < 0.5
    np.testing.assert_array_equal(np.isnan(draws.figures[1, ""]["accuracy"]), missing)
    row = differences(resampled(cells, n_resamples=500), metrics=["auc"]).iloc[0]
    assert row["difference"] == 0.5  # 1 in the first seed, 0 in the second
    assert (row["low"], row["high"]) == (0, 0.5)  # 0 where the first seed has no AUC


def test_the_interval_of_a_mean_over_seeds_is_that_of_its_draws(rng):
    cells = [noisy(rng, "sss", 0.4, seed=s) for s in (1, 2, 3)]
    draws = resampled(cells, n_resamples=300)
    found = intervals(draws).set_index("metric")
    for metric in COMPARED:
        values = np.mean([score(item.labels, item.probabilities, classes=(0, 1))[metric] for item in cells])
        assert found.loc[metric, "value"] == pytest.approx(values)
        stacked = np.stack([figures[metric][1:] for figures in draws[0].figures.values()]).mean(axis=0)
        assert found.loc[metric, ["low", "high"]].tolist() == pytest.approx(
            list(np.percentile(stacked, [2.5, 97.5]))
        )


def test_a_mean_over_systems_differs_by_the_mean_of_their_differences_in_every_draw(rng):
    cells = [noisy(rng, name, strength, seed=seed) for seed in (1, 2) for name, strength in
             (("sss", 0.5), ("a", 0.7), ("b", 1.0))]  # fmt: skip
    cells.append(noisy(rng, "a", 0.7, seed=3))  # which the others have not
    draws = {item.system: item for item in resampled(cells, n_resamples=200, metrics=["auc"])}
    assert set(draws["a"].figures[1, ""]) == {"auc"}
    both = mean_over_systems([draws["a"], draws["b"]], "mean")
    assert set(both.figures) == {(1, ""), (2, "")}
    apart = [
        differences(list(draws.values()), ["sss"], ["auc"]).set_index("system").loc[name] for name in "ab"
    ]
    found = difference(both, draws["sss"], "auc")
    assert found["difference"] == pytest.approx(np.mean([item["difference"] for item in apart]))
    by_hand = np.mean([[draws[name].figures[seed, ""]["auc"] - draws["sss"].figures[seed, ""]["auc"]
                        for name in "ab"] for seed in (1, 2)], axis=(0, 1))  # fmt: skip
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.percentile(by_hand[1:], [2.5, 97.5])))


def test_results_of_other_series_are_refused_by_name():
    first = cell("sss", [0, 1, 0], [0.1, 0.9, 0.2], "abc", names=["x", "y", "z"])
    other = cell("gru", [0, 1, 0], [0.1, 0.9, 0.2], "abc", names=["x", "y", "w"])
    with pytest.raises(
        DataError, match=r"'gru' on 'toy', seed 1, was tested on other series than 'sss': 'w', 'z'"
    ):
        paired_bootstrap([first, other])
    relabelled = cell("gru", [0, 1, 1], [0.1, 0.9, 0.2], "abc", names=["x", "y", "z"])
    with pytest.raises(DataError, match=r"tested on other series than 'sss': 'z' differ"):
        paired_bootstrap([first, relabelled])
    with pytest.raises(DataError, match=r"two results of 'sss' on 'toy', seed 1, fold b"):
        paired_bootstrap([cell("sss", [0], [0.1], "a", fold="b")] * 2)


def test_series_in_another_order_are_paired_by_their_group(rng):
    first, second = noisy(rng, "sss", 0.3), noisy(rng, "gru", 0.5)
    turned = cell(
        "gru",
        second.labels[::-1],
        second.probabilities[::-1, 1],
        second.groups[::-1],
        names=second.names[::-1],
    )
    pd.testing.assert_frame_equal(paired_bootstrap([first, second]), paired_bootstrap([first, turned]))


def test_nothing_to_compare_is_an_empty_table(rng):
    assert paired_bootstrap([]).empty
    assert paired_bootstrap([noisy(rng, "gru", 0.3), noisy(rng, "lstm", 0.3)]).empty


def test_the_difference_from_chance_is_that_from_a_system_that_always_says_the_same(rng):
    results = [noisy(rng, name, strength, seed=seed) for seed in (1, 2) for name, strength in
               (("gru", 0.4), ("lstm", 0.1))]  # fmt: skip
    same = [
        cell("same", np.arange(40) % 2, np.full(40, 0.3), np.arange(40) // 2, seed=seed) for seed in (1, 2)
    ]
    draws = resampled([*results, *same], n_resamples=500)
    columns = ["system", "difference", "low", "high", "p", "p_holm", "n_seeds", "n_groups"]
    expected = differences(draws, ["same"], ["auc"])[columns]
    found = differences([draw for draw in draws if draw.system != "same"], ["chance"], ["auc"])
    assert found["reference"].unique().tolist() == ["chance"]
    pd.testing.assert_frame_equal(found[columns], expected)


# Holm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # .005x4, .01x3, .03x2, max(.06, .04)
        ([0.2, 0.6, 0.9], [0.6, 1, 1]),
        ([0.02, np.nan, 0.02], [0.04, np.nan, 0.04]),
        ([], []),
    ],
)
def test_holm_matches_the_calculation_by_hand(p, expected):
    np.testing.assert_allclose(holm(p), expected)


# Critical difference ------------------------------------------------------------------------------------------


def test_the_critical_values_are_those_of_the_published_table():
    """Demšar (2006), table 5 a, alpha .05."""
    for k, q in {2: 1.960, 3: 2.343, 5: 2.728, 7: 2.949, 10: 3.164}.items():
        scores = pd.DataFrame(np.arange(4.0 * k).reshape(4, k))
        expected = q * np.sqrt(k * (k + 1) / (6 * 4))
        assert critical_difference(scores).difference == pytest.approx(expected, rel=3e-4)


def test_ranks_and_friedman_match_scipy_with_ties(rng):
    scores = pd.DataFrame(np.round(rng.random((12, 5)) + 0.2 * np.arange(5), 1), columns=list("abcde"))
    found = critical_difference(scores)
    assert found.ranks.to_dict() == pytest.approx(scores.rank(axis=1, ascending=False).mean().to_dict())
    assert found.ranks.is_monotonic_increasing
    assert found.p_friedman == pytest.approx(friedmanchisquare(*scores.to_numpy().T).pvalue)
    assert found.n_blocks == 12


def test_a_clique_is_the_largest_set_within_the_critical_difference(rng):
    scores = pd.DataFrame(rng.random((30, 8)) + 0.25 * np.arange(8), columns=list("abcdefgh"))
    found = critical_difference(scores)
    names = list(found.ranks.index)
    alike = {
        tuple(names[i:j])
        for i, j in itertools.combinations(range(len(names) + 1), 2)
        if j - i > 1 and found.ranks.iloc[j - 1] - found.ranks.iloc[i] <= found.difference
    }
    largest = {item for item in alike if not any(set(item) < set(other) for other in alike)}
    assert set(found.cliques) == largest
    assert len(largest) > 1


def test_systems_that_always_tie_are_one_clique():
    found = critical_difference(pd.DataFrame(np.full((3, 3), 0.5), columns=list("abc")))
    assert found.ranks.tolist() == [2, 2, 2]
    assert found.p_friedman == 1.0
    assert found.cliques == (("a", "b", "c"),)
    assert np.isnan(critical_difference(pd.DataFrame({"a": [0.1, 0.2], "b": [0.2, 0.3]})).p_friedman)


def test_too_little_for_ranks_is_refused_with_its_numbers():
    with pytest.raises(DataError, match="3 systems and 1 blocks"):
        critical_difference(pd.DataFrame(np.ones((1, 3))))
    with pytest.raises(DataError, match="1 systems and 4 blocks"):
        critical_difference(pd.DataFrame(np.ones((4, 1))))
    gap = pd.DataFrame({"a": [0.1, 0.2], "b": [0.2, np.nan]}, index=[("toy", 1), ("toy", 2)])
    with pytest.raises(DataError, match=r"'b' has no score in block \('toy', 2\)"):
        critical_difference(gap)


def test_the_plot_draws_every_name_as_it_is(rng):
    scores = pd.DataFrame(rng.random((4, 3)), columns=["a$b$", "b_c^d", "sss"])
    ax = plot_critical_difference(critical_difference(scores))
    ax.figure.canvas.draw()
    for name in scores:
        assert any(name in text.get_text() and not text.get_parse_math() for text in ax.texts)
