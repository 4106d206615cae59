"""Statistics of comparisons: paired bootstrap over groups, Holm's correction, critical differences.

    RunResults -> resampled -> differences: system against reference, with interval and p-value
                            -> intervals: mean over seeds of each system, with interval
    scores (blocks, systems) -> critical_difference -> plot_critical_difference

Whole groups (patients, pairs) are drawn, since series of one patient are not independent. All systems see the same
draws, so that what makes a draw hard for both cancels in their difference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from raxss.benchmark.pages.figures import FAINT, INK, STEP
from raxss.benchmark.result import RunResult
from raxss.errors import DataError, join_names
from raxss.metrics import FEWEST_GROUPS, METRICS, draw_counts, weighted_scores

REFERENCES = ("sss", "raxss-pearson", "tuned", "recommended")
CHANCE = "chance"  # as a reference: an AUC of .5
COMPARED = ("f1", "auc", "accuracy", "average_precision", "balanced_accuracy", "brier")
DIFFERENCES = ["dataset", "metric", "reference", "system", "difference", "low", "high", "p", "p_holm", "n_seeds",
               "n_groups"]  # fmt: skip
N_RESAMPLES = 2000
SEED = 69421
ROUNDING = 1e-12  # differences below this are none

Floats = NDArray[np.float64]
Row = dict[str, Any]
RunKey = tuple[int, str]  # seed, fold


@dataclass(frozen=True, kw_only=True)
class Resampled:
    """Metrics of one system on one dataset, in every draw.

    Figures are NaN where a draw lacks a class of the test series, or the metric does not exist.
    """

    dataset: str
    system: str
    figures: Mapping[RunKey, Mapping[str, Floats]]  # metric -> (1 + n_resamples,); the first is not resampled
    groups: Mapping[RunKey, frozenset[str]]  # groups of those test series


# Bootstrap ----------------------------------------------------------------------------------------------------


def resampled(
    results: Sequence[RunResult],
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = SEED,
    metrics: Sequence[str] = METRICS,
) -> list[Resampled]:
    """Metrics of every system in the same draws of groups, for `differences` and `intervals`.

    The draws depend on the groups and the seed alone. ``metrics`` are those that are kept: of hundreds of settings
    all would take a gigabyte.
    """
    found = []
    for dataset in sorted({item.dataset for item in results}):
        runs = [item for item in results if item.dataset == dataset]
        _refuse_different_tests(runs)
        places = {group: k for k, group in enumerate(sorted({group for run in runs for group in run.groups}))}
        drawn = draw_counts(len(places), n_resamples, np.random.default_rng(seed))
        counts = np.concatenate([np.ones((1, len(places)), dtype=np.int32), drawn])  # the first as it is
        for system in sorted({run.system for run in runs}):
            own = {_key(run): run for run in runs if run.system == system}
            figures = {key: _figures_in_draws(own[key], counts, places, metrics) for key in sorted(own)}
            groups = {key: frozenset(entry.groups) for key, entry in own.items()}
            found.append(Resampled(dataset=dataset, system=system, figures=figures, groups=groups))
    return found


def differences(
    draws: Sequence[Resampled], references: Sequence[str] = REFERENCES, metrics: Sequence[str] = COMPARED
) -> pd.DataFrame:
    r"""Paired bootstrap: the difference of every system from each reference, with a 95 % interval and a p-value.

    The groups of a dataset's test series are drawn with replacement, as many as there are; c_g is how often group g
    was drawn. Every series of that group then counts c_g times, under both systems and in every seed that tests it.
    Differences are taken seed by seed and averaged:

        D(c) = 1/S sum_s [ M_s(system; c) - M_s(reference; c) ]

    with the mean over its folds as M_s where a seed has several. A seed whose test series lose a class in a draw is
    left out of that draw. The difference is D(1); its interval is from the 2.5th to the 97.5th percentile of D(c),
    and

        p = (1 + #{ |D(c) - D(1)| >= |D(1)| }) / (1 + n_resamples),

    (Hall and Wilson, 1991). `holm` corrects over the systems that one reference is compared with in one metric on
    one dataset. Models are not trained again: the interval is about other groups, the deviation over seeds about
    training. Fewer than 6 groups have no interval. The expected calibration error is not compared, since a drawn
    sample always looks less calibrated than it is. The reference `CHANCE` is an AUC of .5: with shuffled labels, a
    corrected p below .01 is a leak.

    Returns
    -------
    The columns `DIFFERENCES`. Only seeds of both systems count; references without results are left out.

    Examples
    --------
    >>> def run(system, p):
    ...     return RunResult(dataset="toy", system=system, seed=1, config_hash="", classes=(0, 1), positive=1,
    ...                       names=tuple("abcdefgh"), labels=(0, 1) * 4, groups=tuple("abcdefgh"),
    ...                       probabilities=np.stack([1 - np.array(p), p], axis=1))
    >>> sure, unsure = [0.1, 0.9] * 4, [0.1, 0.9] * 3 + [0.8, 0.4]
    >>> draws = resampled([run("sss", unsure), run("gru", sure)])
    >>> differences(draws, metrics=["accuracy"])[["metric", "reference", "system", "difference"]]
         metric reference system  difference
    0  accuracy       sss    gru        0.25
    """
    rows: list[Row] = []
    for dataset in sorted({draw.dataset for draw in draws}):
        systems = {draw.system: draw for draw in draws if draw.dataset == dataset}
        for metric in metrics:
            for reference in (name for name in references if name in systems or name == CHANCE):
                others = [systems[name] for name in sorted(systems) if name != reference]
                rows += corrected([difference(other, systems.get(reference), metric) for other in others])
    return pd.DataFrame(rows, columns=DIFFERENCES)


def intervals(draws: Sequence[Resampled], metrics: Sequence[str] = COMPARED) -> pd.DataFrame:
    """Means over seeds with 95 % intervals: dataset, system, metric, value, low, high, n_groups."""
    rows = []
    for draw in draws:
        n_groups = len(frozenset[str]().union(*draw.groups.values()))
        for metric in metrics:
            values = _mean_over_seeds({run: figures[metric] for run, figures in draw.figures.items()})
            low, high, _ = _tested(values, n_groups)
            facts = {"dataset": draw.dataset, "system": draw.system, "metric": metric, "value": values[0]}
            rows.append(facts | {"low": low, "high": high, "n_groups": n_groups})
    return pd.DataFrame(rows, columns=["dataset", "system", "metric", "value", "low", "high", "n_groups"])


def holm(p_values: ArrayLike) -> Floats:
    """Holm's step-down correction: the smallest of n p-values times n, the next times n - 1, never decreasing.

    NaN stays NaN and does not count.

    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    corrected = np.full(p.shape, np.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return corrected


def corrected(rows: Sequence[Row], family: Callable[[Row], Hashable] = lambda _: None) -> list[Row]:
    """The rows with ``p_holm``: p-values corrected (Holm) within each family.

    >>> [row["p_holm"] for row in corrected([{"p": 0.01}, {"p": 0.04}])]
    [0.02, 0.04]
    """
    members: dict[Hashable, list[int]] = {}
    for place, row in enumerate(rows):
        members.setdefault(family(row), []).append(place)
    p_holm = np.full(len(rows), np.nan)
    for places in members.values():
        p_holm[places] = holm([rows[place]["p"] for place in places])
    return [row | {"p_holm": float(p)} for row, p in zip(rows, p_holm, strict=True)]


def _key(result: RunResult) -> RunKey:
    return result.seed, result.fold or ""


def _figures_in_draws(
    result: RunResult, counts: NDArray[np.int32], places: Mapping[str, int], metrics: Sequence[str]
) -> dict[str, Floats]:
    """NaN where a draw lacks a class of the test series."""
    weights = counts[:, [places[group] for group in result.groups]]
    figures = weighted_scores(result.labels, result.probabilities, weights=weights, **result.scoring)
    kinds, codes = np.unique(np.asarray(result.labels), return_inverse=True)
    lacking = (weights @ np.eye(len(kinds), dtype=np.int32)[codes] == 0).any(axis=1)
    return {name: np.where(lacking, np.nan, figures[name]) for name in metrics}


def _refuse_different_tests(runs: Sequence[RunResult]) -> None:
    """Refuse systems tested on different series, and two results of one run."""
    tested: dict[RunKey, tuple[str, dict[str, Any]]] = {}
    seen = set()
    for run in runs:
        what = f"{run.system!r} on {run.dataset!r}, seed {run.seed}{f', fold {run.fold}' if run.fold else ''}"
        if (run.system, _key(run)) in seen:
            raise DataError(
                f"there are two results of {what}; a table has one. Keep those of one configuration."
            )
        seen.add((run.system, _key(run)))
        members = {name: facts for name, *facts in zip(run.names, run.labels, run.groups, strict=True)}
        first, expected = tested.setdefault(_key(run), (run.system, members))
        if members != expected:
            odd = [name for name in members | expected if members.get(name) != expected.get(name)]
            raise DataError(
                f"{what}, was tested on other series than {first!r}: {join_names(map(repr, sorted(odd)), 3)} "
                "differ. Only results of the same split can be compared; run the study again."
            )


def difference(system: Resampled, reference: Resampled | None, metric: str) -> dict[str, Any]:
    """One row of `differences` without its correction; the reference None is `CHANCE`, a value of .5."""
    both = [run for run in system.figures if reference is None or run in reference.figures]
    n_groups = len(frozenset[str]().union(*(system.groups[run] for run in both)))
    facts = {
        "dataset": system.dataset,
        "metric": metric,
        "reference": CHANCE if reference is None else reference.system,
        "system": system.system,
        "n_seeds": len({seed for seed, _ in both}),
        "n_groups": n_groups,
    }
    if not both:
        return facts | dict.fromkeys(("difference", "low", "high", "p"), np.nan)
    others = {run: 0.5 if reference is None else reference.figures[run][metric] for run in both}
    values = _mean_over_seeds({run: system.figures[run][metric] - others[run] for run in both})
    low, high, p = _tested(values, n_groups)
    return facts | {"difference": values[0], "low": low, "high": high, "p": p}


def mean_over_systems(draws: Sequence[Resampled], name: str) -> Resampled:
    """Mean over systems in every draw, in the runs that all of them have; as one system, so it has an interval."""
    runs = [item for item in draws[0].figures if all(item in other.figures for other in draws)]
    figures = {
        run: {
            metric: np.mean([draw.figures[run][metric] for draw in draws], axis=0)
            for metric in draws[0].figures[run]
        }
        for run in runs
    }
    groups = {run: draws[0].groups[run] for run in runs}
    return Resampled(dataset=draws[0].dataset, system=name, figures=figures, groups=groups)


def _mean_over_seeds(values: Mapping[RunKey, Floats]) -> Floats:
    """Mean over the folds of a seed, then over seeds, without NaN."""
    seeds = dict.fromkeys(seed for seed, _ in values)
    return _mean_of_known(
        [_mean_of_known([values[run] for run in values if run[0] == seed]) for seed in seeds]
    )


def _mean_of_known(rows: Sequence[Floats]) -> Floats:
    stacked = np.stack(rows)
    known = ~np.isnan(stacked)
    with np.errstate(invalid="ignore"):  # 0/0: known nowhere
        return np.where(known, stacked, 0.0).sum(axis=0) / known.sum(axis=0)


def _tested(values: Floats, n_groups: int) -> tuple[float, float, float]:
    """Interval and p-value, from resampled values without NaN; NaN of too few groups."""
    drawn = values[1:][~np.isnan(values[1:])]
    if n_groups < FEWEST_GROUPS or np.isnan(values[0]) or not len(drawn):
        return np.nan, np.nan, np.nan
    low, high = np.percentile(drawn, [2.5, 97.5])
    n_as_far = int((np.abs(drawn - values[0]) >= np.abs(values[0]) - ROUNDING).sum())
    return float(low), float(high), (1 + n_as_far) / (1 + len(drawn))


# Critical difference ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CriticalDifference:
    """Mean ranks of systems (1 is best, the best first) and Nemenyi's critical difference.

    ``p_friedman`` is NaN for two systems. ``cliques`` are the largest sets of neighbours that do not differ.
    """

    ranks: pd.Series
    difference: float
    p_friedman: float
    n_blocks: int
    cliques: tuple[tuple[str, ...], ...]


def critical_difference(scores: pd.DataFrame) -> CriticalDifference:
    r"""Friedman's test and Nemenyi's critical difference of mean ranks (Demšar, 2006).

        CD = q / sqrt(2) * sqrt(k (k + 1) / (6 N))

    with k systems, N blocks, and q the upper 5 % quantile of the studentised range of k groups. Scores have blocks
    as rows, such as (dataset, seed), and systems as columns; the higher the better. Equal ones share a rank.

    >>> scores = pd.DataFrame({"a": [0.9, 0.8, 0.9, 0.8], "b": [0.7, 0.7, 0.8, 0.7], "c": [0.5, 0.6, 0.7, 0.6]})
    >>> found = critical_difference(scores)
    >>> found.ranks.to_dict(), round(found.difference, 3), found.cliques
    ({'a': 1.0, 'b': 2.0, 'c': 3.0}, 1.657, (('a', 'b'), ('b', 'c')))
    """
    n_blocks, n_systems = scores.shape
    if n_blocks < 2 or n_systems < 2:
        raise DataError(
            f"there are {n_systems} systems and {n_blocks} blocks (a dataset and a seed) to rank; needed are at "
            "least two of both. Add results."
        )
    values = scores.to_numpy(dtype=np.float64)
    if np.isnan(values).any():
        block, system = np.argwhere(np.isnan(values))[0]
        raise DataError(
            f"system {scores.columns[system]!r} has no score in block {scores.index[block]!r}; ranks need every "
            "system in every block. Leave out one of them."
        )
    ranks = pd.Series(rankdata(-values, axis=1).mean(axis=0), index=scores.columns.map(str))
    ranks = ranks.sort_values(kind="stable")
    quantile = studentized_range.ppf(0.95, n_systems, np.inf)
    difference = float(quantile / np.sqrt(2) * np.sqrt(n_systems * (n_systems + 1) / (6 * n_blocks)))
    return CriticalDifference(
        ranks=ranks,
        difference=difference,
        p_friedman=_friedman(values),
        n_blocks=n_blocks,
        cliques=_cliques(ranks, difference),
    )


def ranked(scores: pd.DataFrame) -> tuple[CriticalDifference | None, list[str]]:
    """Ranks of the systems that have a score in every block, None of fewer than two; and the other systems."""
    complete = scores.dropna(axis="columns")
    left_out = [str(system) for system in scores if system not in complete]
    enough = min(complete.shape) >= 2
    return critical_difference(complete) if enough else None, left_out


def _friedman(values: Floats) -> float:
    if values.shape[1] < 3:
        return float("nan")
    if (values == values[:, :1]).all():
        return 1.0  # nothing but ties: the statistic would be 0/0
    return float(friedmanchisquare(*values.T).pvalue)


def _cliques(ranks: pd.Series, difference: float) -> tuple[tuple[str, ...], ...]:
    names, values = list(ranks.index), ranks.to_numpy()
    found: list[tuple[str, ...]] = []
    reached = 0
    for first in range(len(names)):
        end = int(np.searchsorted(values, values[first] + difference + ROUNDING, side="right"))
        if end - first > 1 and end > reached:  # else it lies within the one before
            found.append(tuple(names[first:end]))
            reached = end
    return tuple(found)


def plot_critical_difference(found: CriticalDifference) -> Axes:
    """Mean ranks on a line, the best at the left; bars join systems that do not differ."""
    names, ranks, k = list(found.ranks.index), found.ranks.to_numpy(), len(found.ranks)
    n_left = (k + 1) // 2
    first_row = -0.6 - 0.35 * len(found.cliques)
    depth = first_row - (n_left - 1)
    ax: Axes = Figure(figsize=(8, 0.9 + 0.26 * (1.8 - depth)), layout="constrained").subplots()
    margin = 0.32 * (k - 1)
    ax.set(xlim=(1 - margin, k + margin), ylim=(depth - 0.5, 1.8))
    ax.set_axis_off()
    ax.plot([1, k], [0, 0], color=INK, lw=1)
    for tick in range(1, k + 1):
        ax.plot([tick, tick], [0, 0.15], color=INK, lw=1)
        ax.text(tick, 0.25, str(tick), ha="center", va="bottom", fontsize=8, color=FAINT)
    width = min(found.difference, k - 1)
    ax.plot([1, 1 + width], [1.2, 1.2], color=INK, lw=2)
    ax.text(1, 1.35, f"critical difference {found.difference:.2f}", va="bottom", fontsize=8.5, color=INK)
    for index, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        left = index < n_left
        y = first_row - (index if left else k - 1 - index)
        end = 1 - 0.03 * (k - 1) if left else k + 0.03 * (k - 1)
        ax.plot([rank, rank, end], [0, y, y], color=FAINT, lw=0.8)
        text = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
        gap, side = (-0.01 * (k - 1), "right") if left else (0.01 * (k - 1), "left")
        label = ax.text(end + gap, y, text, ha=side, va="center", fontsize=9, color=INK)
        label.set_parse_math(False)  # names are not formulas
    for row, clique in enumerate(found.cliques):
        reach = found.ranks[clique[0]] - 0.01 * (k - 1), found.ranks[clique[-1]] + 0.01 * (k - 1)
        ax.plot(reach, [-0.35 * (row + 1)] * 2, color=STEP, lw=3.5, solid_capstyle="round")
    return ax
