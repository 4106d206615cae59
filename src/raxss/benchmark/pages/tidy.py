"""The tidy results table of a study: one row a number, in long format.

    evaluated runs -> rows: study, analysis, dataset, system, seed, fold, series, reference, metric, value, sd, low,
                      high, p, p_holm, n_seeds, n_groups, n_series, and the settings of an evaluation

Every study page is computed from such rows; the CSV tables are views of them (`wide`). Rows with a seed are of one
fit; rows without are means over seeds, with a bootstrap interval over test groups. Rows with a reference are
differences from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from raxss.benchmark.analyses.evaluation import EvaluatedRun
from raxss.benchmark.result import RunResult
from raxss.benchmark.statistics import Resampled, difference, intervals, resampled
from raxss.metrics import METRICS, weighted_scores

FIT = ("study", "analysis", "dataset", "system", "seed", "fold")
NUMBERS = ("value", "sd", "low", "high", "p", "p_holm", "n_seeds", "n_groups", "n_series")
COLUMNS = (*FIT, "series", "reference", "metric", *NUMBERS)
VALIDATION = "validation_"  # begins the name of a metric of the validation set

Frame = pd.DataFrame
Row = dict[str, Any]


def tidy(rows: Iterable[Mapping[str, Any]] | Frame, *, study: str = "", analysis: str = "") -> Frame:
    """Rows as one table: `COLUMNS` first, then settings; what a row lacks is missing.

    >>> table = tidy([{"dataset": "toy", "system": "sss", "seed": 1, "level": 0.1, "metric": "auc", "value": 0.5}])
    >>> list(table.dropna(axis="columns"))
    ['study', 'analysis', 'dataset', 'system', 'seed', 'reference', 'metric', 'value', 'level']
    """
    table = rows if isinstance(rows, Frame) else pd.DataFrame(list(rows))
    table = table.reindex(columns=[*COLUMNS, *settings_in(table)])
    numbers = {name: pd.to_numeric(table[name]) for name in ("seed", *NUMBERS)}
    reference = table["reference"].astype(object).where(table["reference"].notna(), "")
    return table.assign(**numbers, study=study, analysis=analysis, reference=reference)


def settings_in(table: Frame) -> list[str]:
    """Columns that are settings of evaluations."""
    return [str(name) for name in table.columns if name not in COLUMNS]


def headline(result: RunResult) -> str:
    """The main metric: AUC of two classes; of more the F1 of those that the study names, else accuracy."""
    if len(result.classes) == 2:
        return "auc"
    return "f1" if result.f1_classes else "accuracy"


def settings_of(settings: Mapping[str, Any]) -> Row:
    """Settings as tables have them; exclusion as text, since 1 sample and 1.0 windows are not the same.

    >>> settings_of({"space": "signal", "exclusion": 1.0})
    {'space': 'signal', 'exclusion': '1.0'}
    """
    return {name: str(value) if name == "exclusion" else value for name, value in settings.items()}


def fit_of(result: RunResult) -> Row:
    """The columns that identify a fit."""
    return {name: getattr(result, name) for name in ("dataset", "system", "seed", "fold")}


def runs_by(name: str, runs: Iterable[EvaluatedRun]) -> Iterable[tuple[str, list[EvaluatedRun]]]:
    """Runs by dataset or system, in the order of first occurrence."""
    found: dict[str, list[EvaluatedRun]] = {}
    for run in runs:
        found.setdefault(getattr(run.result, name), []).append(run)
    return found.items()


def figures_of(result: RunResult) -> dict[str, float]:
    """Every metric of the test series."""
    found = weighted_scores(result.labels, result.probabilities, **result.scoring)
    return {name: float(found[name][0]) for name in METRICS}


def evaluation_rows(runs: Iterable[EvaluatedRun]) -> list[Row]:
    """A row for each run, evaluation and metric; those of the validation series are metrics of their own."""
    rows = []
    for run in runs:
        for place, evaluation in enumerate(run.evaluations):
            figures = figures_of(run.as_result(place, run.result.system))
            figures |= {f"{VALIDATION}{name}": value for name, value in evaluation.validation.items()}
            about = fit_of(run.result) | settings_of(evaluation.settings)
            rows += [about | {"metric": name, "value": value} for name, value in figures.items()]
    return rows


def draws_of(
    results: Mapping[Any, Sequence[RunResult]], metric: str, n_resamples: int
) -> dict[Any, Resampled]:
    """A metric of every entry in the same bootstrap draws, so that any two of them can be compared."""
    keys = {f"{place:09d}": key for place, key in enumerate(results)}
    named = [replace(item, system=name) for name, key in keys.items() for item in results[key]]
    found = resampled(named, n_resamples=n_resamples, metrics=[metric])
    return {keys[entry.system]: entry for entry in found}


def mean_row(draws: Resampled, metric: str) -> Row:
    """The mean over seeds with its interval, as numbers of a row."""
    (found,) = intervals([draws], [metric]).to_dict("records")
    kept = {str(name): found[name] for name in ("metric", "value", "low", "high", "n_groups")}
    return kept | {"n_seeds": len({seed for seed, _ in draws.figures})}


def difference_row(own: Resampled, reference: Resampled, metric: str) -> Row:
    """The paired difference of two entries with its interval and p-value, as numbers of a row."""
    found = difference(own, reference, metric)
    kept = {name: found[name] for name in ("metric", "low", "high", "p", "n_seeds", "n_groups")}
    return {"value": found["difference"], **kept}


def part(table: Frame, **wanted: Any) -> Frame:
    """The rows with these values.

    >>> part(pd.DataFrame({"metric": ["auc", "f1"], "value": [0.5, 0.7]}), metric="f1")["value"].tolist()
    [0.7]
    """
    for name, value in wanted.items():
        table = table[table[name] == value]
    return table


def of_fits(table: Frame) -> Frame:
    """The rows of single fits."""
    return table[table["seed"].notna()]


def over_seeds(table: Frame, *, differences: bool) -> Frame:
    """The rows that are means over seeds: figures, or differences from a reference."""
    return table[table["seed"].isna() & ((table["reference"] != "") == differences)]


def as_written(table: Frame) -> Frame:
    """The rows with numbers of ten digits, as CSV files have them."""
    rounded = {name: [float(f"{item:.10g}") for item in table[name]] for name in NUMBERS}
    return table.assign(**rounded)


def wide(table: Frame, index: Sequence[str], *, columns: str = "metric", values: Sequence[str] = ()) -> Frame:
    """One row for each combination of ``index``, a column for each metric, all in the order of the rows.

    With ``values`` other than the value, columns are named after both: metric, then value.

    >>> rows = pd.DataFrame({"seed": [2, 2, 1], "metric": ["auc", "f1", "auc"], "value": [0.5, 0.7, 0.6]})
    >>> wide(rows, ["seed"]).to_csv(index=False).split()
    ['seed,auc,f1', '2,0.5,0.7', '1,0.6,']
    """
    rows: dict[tuple[Any, ...], Row] = {}
    taken = list(values) or ["value"]
    for *key, name, found in zip(
        *(table[item] for item in (*index, columns)), table[taken].to_numpy(), strict=True
    ):
        known = tuple(None if item != item else item for item in key)  # NaN is not equal to itself
        names = [f"{name}{value}" for value in values] or [name]
        rows.setdefault(known, {}).update(zip(names, found, strict=True))
    made = [dict(zip(index, key, strict=True)) | row for key, row in rows.items()]
    every = dict.fromkeys([*index, *(name for row in rows.values() for name in row)])
    return pd.DataFrame(made, columns=list(every))


def narrow(table: Frame, index: Sequence[str], parts: Mapping[str, str]) -> Frame:
    """The inverse of `wide` with values: a row for each row of the table and each metric that it has columns of.

    ``parts``: ending of a column's name -> the number of a row that it is.

    >>> summary = pd.DataFrame({"system": ["sss"], "auc_mean": [0.8], "auc_low": [0.7], "f1_mean": [0.6]})
    >>> narrow(summary, ["system"], {"_mean": "value", "_low": "low"}).to_csv(index=False).split()
    ['system,metric,value,low', 'sss,auc,0.8,0.7', 'sss,f1,0.6,']
    """
    first = next(iter(parts))
    metrics = [str(name).removesuffix(first) for name in table if str(name).endswith(first)]
    views = [pd.DataFrame()]
    for metric in metrics:
        found = {f"{metric}{ending}": name for ending, name in parts.items() if f"{metric}{ending}" in table}
        views.append(table[[*index, *found]].rename(columns=found).assign(metric=metric))
    return pd.concat(views, ignore_index=True).reindex(columns=[*index, "metric", *parts.values()])


def compared(table: Frame) -> Frame:
    """Differences over seeds, each beside the figure that it belongs to: ``value, difference, low, high...``."""
    at = ["dataset", "system", "metric", *settings_in(table)]
    means = over_seeds(table, differences=False)[[*at, "value"]]
    found = over_seeds(table, differences=True).rename(columns={"value": "difference"})
    return found.merge(means, how="left", on=at)
