"""Report of a comparison: tables, plots and page of a study.

    RunResults, facts, errors -> results.csv      a row for each run
                              -> summary.csv      mean, deviation and interval of each system
                              -> pooled.csv       all test predictions of a system together
                              -> comparisons.csv  differences from the references
    these alone               -> plots/*.png, README.md (page.py)

Deterministic: the same results give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raxss.benchmark.dataset import HEADLINES
from raxss.benchmark.pages.figures import FAINT, INK, STEP, open_axes, png
from raxss.benchmark.pages.files import FIGURES, csv_text, read_table, write_all
from raxss.benchmark.pages.markdown import TITLES
from raxss.benchmark.pages.page import SHOWN, in_words, make_page, plot_name
from raxss.benchmark.pages.tidy import Row, figures_of, fit_of, over_seeds, tidy, wide
from raxss.benchmark.result import RunResult
from raxss.benchmark.statistics import (
    CHANCE,
    COMPARED,
    DIFFERENCES,
    N_RESAMPLES,
    REFERENCES,
    CriticalDifference,
    differences,
    intervals,
    plot_critical_difference,
    ranked,
    resampled,
)
from raxss.benchmark.systems import System
from raxss.errors import DataError, without_folders
from raxss.metrics import METRICS

RUN = ("dataset", "system", "seed")
FACTS = ("seconds", "seconds_of_choice", "n_threads", "device")
COUNTS = ("n_predictions", "n_series", "n_groups", "each_once")
POOLED = "pooled"  # part of rows about all predictions of a system
RANKED = "auc"
CANDIDATE = "candidate"  # column of ``results``, where a search chose one
DRAWS_AGAINST_CHANCE = 5  # times as many, for a corrected p of 1 %

Frame = pd.DataFrame


def write_report(
    results: Sequence[RunResult],
    *,
    facts: Mapping[Any, Mapping[str, Any]],
    errors: Sequence[Mapping[str, Any]],
    out: Path | str,
    study_name: str,
    **settings: Any,
) -> list[Path]:
    """Write the tables, plots and page of a study; returns the files, the page last.

    ``facts`` were recorded with a result (``seconds``, ``device``, ``n_threads``, ``warnings``,
    ``seconds_of_choice``, ``search``), by ``(dataset, system, seed)``; ``errors`` are of the runs that failed
    (``dataset``, ``system``, ``seed``, ``fold``, ``type``, ``message``); settings are those of `tables_of`.

    >>> import tempfile
    >>> result = RunResult(dataset="toy", system="sss", seed=1, config_hash="ab12", classes=("a", "b"),
    ...                     positive="b", names=("s1", "s2"), labels=("a", "b"), groups=("g1", "g2"),
    ...                     probabilities=np.array([[0.9, 0.1], [0.2, 0.8]]))
    >>> files = write_report([result], facts={}, errors=[], out=tempfile.mkdtemp(), study_name="toy")
    >>> [file.name for file in files]
    ['results.csv', 'summary.csv', 'pooled.csv', 'comparisons.csv', 'auc-toy.png', 'README.md']
    """
    tables = tables_of(results, facts=facts, errors=errors, **settings)
    shown = {name: read_table(csv_text(table)) for name, table in tables.items()}
    runs = shown["results"]
    ranked_runs = runs[runs[RANKED].notna() & (runs["shuffled"] != 1)]  # without shuffled labels
    ranks, unranked = ranked(
        ranked_runs.pivot_table(index=["dataset", "seed"], columns="system", values=RANKED, sort=False)
    )
    plots = _plots(shown, ranks)
    page = make_page(study_name, shown, plots=list(plots), ranks=ranks, unranked=unranked)
    return write_all(out, tables, plots, page)


# Tables -------------------------------------------------------------------------------------------------------


def tables_of(
    results: Sequence[RunResult],
    *,
    facts: Mapping[Any, Mapping[str, Any]],
    errors: Sequence[Mapping[str, Any]],
    headlines: Mapping[str, str] | None = None,
    variants: Mapping[str, System] | None = None,
    n_resamples: int = N_RESAMPLES,
) -> dict[str, Frame]:
    """``results``, ``summary``, ``pooled`` and ``comparisons``: views of the tidy rows.

    ``headlines`` are the metrics that systems of a dataset are ordered by, AUC by default; ``variants`` are
    variants of other systems, each of which is compared with its base.
    """
    found, usable, variants = [], [], variants or {}
    for item in results:
        try:
            found.append(_fit(item, facts.get((item.dataset, item.system, item.seed), {})))
            usable.append(item)
        except DataError as error:  # a table with a hole is better than none
            found.append(failed_row({**fit_of(item), "type": type(error).__name__, "message": str(error)}))
    columns = [name for name in _fit_columns() if name != CANDIDATE or any(row.get(name) for row in found)]
    runs = pd.DataFrame([*found, *map(failed_row, errors)], columns=columns)
    runs = _in_order(runs, runs)
    rows = rows_of(runs, usable, variants, n_resamples)
    means, compared = (over_seeds(rows, differences=entry) for entry in (False, True))
    compared = compared.rename(columns={"value": "difference"}).assign(
        metric=pd.Categorical(compared["metric"], COMPARED),
        reference=pd.Categorical(compared["reference"], [*REFERENCES, *_bases(variants), CHANCE]),
    )
    return {
        "results": runs,
        "summary": _summary(means[means["part"].isna()], runs, headlines or {}, variants),
        "pooled": _in_order(
            _beside(means[means["part"] == POOLED], ("", "_low", "_high"), METRICS, COUNTS), runs
        ),
        "comparisons": _in_order(compared[DIFFERENCES], runs, between=["metric", "reference"]),
    }


def rows_of(
    runs: Frame, results: Sequence[RunResult], variants: Mapping[str, System], n_resamples: int
) -> Frame:
    """The tidy table: fits; means over seeds (over folds first); pooled predictions, whose ``part`` is `POOLED`;
    differences from references, bases and chance.
    """
    fits = (
        runs[runs["error"].isna()]
        .melt(["dataset", "system", "seed", "fold"], list(FIGURES), var_name="metric")
        .astype({"value": np.float64})
    )
    at = ["dataset", "system", "metric"]
    by_seed = fits.groupby([*at, "seed"], observed=True, sort=True)["value"].mean()
    means = (
        by_seed.groupby(level=at, observed=True)
        .agg(value=lambda own: own.mean(), sd=lambda own: own.std(ddof=1), n_seeds="size")
        .reset_index()
    )
    draws = resampled(results, n_resamples=n_resamples)
    means = means.merge(intervals(draws)[[*at, "low", "high"]], how="left", on=at)
    compared = [differences(draws)]
    for base in _bases(variants):
        family = {base, *(name for name, variant in variants.items() if variant.base == base)}
        compared.append(differences([draw for draw in draws if draw.system in family], [base]))
    shuffled = [entry for entry in results if entry.changes.get("shuffled")]
    if shuffled:
        many = resampled(shuffled, n_resamples=DRAWS_AGAINST_CHANCE * n_resamples, metrics=(RANKED,))
        compared.append(differences(many, [CHANCE], [RANKED]))
    compared = [item.rename(columns={"difference": "value"}) for item in compared]
    pooled = pd.DataFrame(_pooled_rows(results, n_resamples), columns=[*at, "value", "low", "high", "part"])
    parts = [item.astype({"dataset": object, "system": object}) for item in (fits, means, pooled, *compared)]
    table = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return tidy(table.reindex(columns=[*dict.fromkeys([*table.columns, "part"])]), analysis="table")


def _bases(variants: Mapping[str, System]) -> list[str]:
    """Bases of variants that are no references: only their variants are compared with them."""
    bases = dict.fromkeys(variant.base for variant in variants.values() if variant.base is not None)
    return [base for base in bases if base not in REFERENCES]


def _fit_columns() -> list[str]:
    tested = ("n_test", "n_groups", "test_classes", "positive", "f1_classes")
    setup = ("shuffled", "data", "split", "leaky", "balance", "choice", CANDIDATE, "n_parameters")
    return [*RUN, *SHOWN, "fold", *FIGURES[3:], *tested, *setup, *FACTS, "n_warnings", "config_hash", "error"]


def _fit(result: RunResult, facts: Mapping[str, Any]) -> dict[str, Any]:
    """One row of ``results``."""
    counts = {str(name): result.labels.count(name) for name in result.classes}
    positive = (
        result.positive if result.positive is not None or len(result.classes) > 2 else result.classes[-1]
    )
    return {
        **fit_of(result),
        **figures_of(result),
        "window_accuracy": result.window_accuracy,
        "n_test": len(result.names),
        "n_groups": len(set(result.groups)),
        "test_classes": json.dumps(counts, ensure_ascii=False),
        "positive": None if positive is None else str(positive),
        "f1_classes": ", ".join(map(str, result.f1_classes)),
        "shuffled": int(bool(result.changes.get("shuffled"))),
        "data": in_words(result.changes),
        "split": result.split.get("description"),
        "leaky": int(bool(result.split.get("leaky"))),
        "balance": result.split.get("balance"),
        "choice": ", ".join(f"{name} {value}" for name, value in result.settings.get("choice", {}).items()),
        CANDIDATE: (facts.get("search") or {}).get("chosen"),
        "n_parameters": result.n_parameters,
        **{name: facts.get(name) for name in FACTS},
        "n_warnings": len(facts.get("warnings", ())),
        "config_hash": result.config_hash,
    }


def failed_row(error: Mapping[str, Any]) -> dict[str, Any]:
    """An error as a row of ``results``, its message in one line and without folders."""
    message = f"{error.get('type', 'Error')}: {error.get('message') or 'no message was kept'}"
    message = " ".join(without_folders(message).split())
    return {name: error.get(name) for name in (*RUN, "fold", "config_hash")} | {"error": message[:600]}


def _in_order(table: Frame, runs: Frame, between: Iterable[str] = ()) -> Frame:
    """Datasets and systems as the runs name them first, seeds ascending."""
    table = table.copy()
    for name in ("dataset", "system"):
        table[name] = pd.Categorical(table[name].fillna(""), runs[name].fillna("").unique())
    keys = [item for item in ("dataset", *between, "system", "seed", "fold") if item in table]
    return table.sort_values(keys, kind="stable").reset_index(drop=True)


def _beside(means: Frame, parts: Sequence[str], metrics: Sequence[str], others: Sequence[str] = ()) -> Frame:
    """A row for each system: of each metric its value and what belongs to it, intervals where there are any."""
    named = means.rename(columns={"value": parts[0], "sd": "_sd", "low": "_low", "high": "_high"})
    table = wide(named, ["dataset", "system"], values=parts)
    bounds = ("_low", "_high")
    columns = [
        f"{name}{part}" for name in metrics for part in parts if part not in bounds or name in COMPARED
    ]
    return table.reindex(columns=["dataset", "system", *columns, *others])


def _summary(
    means: Frame, runs: Frame, headlines: Mapping[str, str], variants: Mapping[str, System]
) -> Frame:
    """Mean, deviation and interval of every metric, and what is known of each system."""
    figures = _beside(means, ("_mean", "_sd", "_low", "_high"), FIGURES)
    counts = dict(zip(zip(means["dataset"], means["system"], strict=True), means["n_seeds"], strict=True))
    done = runs[runs["error"].isna()]
    rows = []
    for (dataset, system), own in done.groupby(["dataset", "system"], observed=True, sort=True):
        variant = variants.get(str(system))
        known = {
            "dataset": dataset,
            "system": system,
            "n_seeds": counts[dataset, system],
            "n_parameters": own["n_parameters"].max(),
            "seconds_mean": own.groupby("seed")["seconds"].mean().mean(),
            "seconds_of_choice": own["seconds_of_choice"].max(),  # made once for all seeds
            "choice": "; ".join(dict.fromkeys(item for item in own["choice"] if item)),
            "headline": headlines.get(str(dataset), HEADLINES[0]),
            "base": variant.base if variant else None,
            "about": variant.description if variant else None,
        }
        rows.append(known)
    about = ["dataset", "system", "n_seeds", "n_parameters", "seconds_mean", "seconds_of_choice", "choice",
             "headline", "base", "about"]  # fmt: skip
    table = pd.DataFrame(rows, columns=about).merge(figures, how="left", on=["dataset", "system"])
    return table[[*about[:3], *figures.columns[2:], *about[3:]]]


def _pooled_rows(results: Sequence[RunResult], n_resamples: int) -> list[Row]:
    """Figures of all predictions of a system in one heap; ``each_once`` tells whether no series is in it twice."""
    rows: list[Row] = []
    for dataset, system in dict.fromkeys((entry.dataset, entry.system) for entry in results):
        own = [entry for entry in results if (entry.dataset, entry.system) == (dataset, system)]
        joined: dict[str, Any] = {part: tuple(value for item in own for value in getattr(item, part))
                  for part in ("names", "labels", "groups")}  # fmt: skip
        probabilities = np.concatenate([item.probabilities for item in own])
        heap = replace(own[0], seed=0, fold=None, probabilities=probabilities, **joined)
        (draws,) = resampled([heap], n_resamples=n_resamples)
        at = {"dataset": dataset, "system": system, "part": POOLED}
        bounds = {row["metric"]: {"low": row["low"], "high": row["high"]}
                  for row in intervals([draws]).to_dict("records")}  # fmt: skip
        values = {name: draws.figures[0, ""][name][0] for name in METRICS}
        rows += [at | {"metric": name, "value": values[name]} | bounds.get(name, {}) for name in METRICS]
        n_series = len(set(heap.names))
        counts = (len(heap.names), n_series, len(set(heap.groups)), int(n_series == len(heap.names)))
        rows += [at | {"metric": name, "value": value} for name, value in zip(COUNTS, counts, strict=True)]
    return rows


# Plots --------------------------------------------------------------------------------------------------------


def plot_systems(runs: Frame, summary: Frame, metric: str = "auc", *, ax: Axes | None = None) -> Axes:
    """Seeds of each system as points, their mean, and its interval as a line, of one dataset.

    ``runs`` and ``summary`` are rows of ``results`` and ``summary`` of `tables_of`.
    """
    if ax is None:
        ax = Figure(figsize=(7.5, 1.1 + 0.27 * len(summary)), layout="constrained").subplots()
    reference = summary.loc[summary["system"] == REFERENCES[0], f"{metric}_mean"]
    if len(reference):
        ax.axvline(reference.iloc[0], color=FAINT, lw=0.8, ls=":")
    for row, item in enumerate(summary.to_dict("records")):
        seeds = runs.loc[runs["system"] == item["system"], metric].dropna()
        ax.plot(seeds, np.full(len(seeds), row), "o", ms=4.5, mfc="none", mec=FAINT, mew=0.9, zorder=2)
        if f"{metric}_low" in item:
            ax.plot([item[f"{metric}_low"], item[f"{metric}_high"]], [row, row], color=STEP, lw=2, zorder=1)
        ax.plot(item[f"{metric}_mean"], row, "D", ms=5, color=INK, zorder=3)
    ax.set_yticks(range(len(summary)), [" ".join(name.split()) for name in summary["system"]])
    for label in ax.get_yticklabels():
        label.set_parse_math(False)  # names are not formulas
    ax.set(ylim=(len(summary) - 0.5, -0.5), xlabel=TITLES[metric].removesuffix(" %"))
    open_axes(ax, grid=True).set_axisbelow(True)
    return ax


def _plots(tables: Mapping[str, Frame], ranks: CriticalDifference | None) -> dict[str, bytes]:
    """File name -> PNG."""
    found = {}
    for dataset, summary in tables["summary"].groupby("dataset", sort=False):
        if summary["auc_mean"].notna().any():
            runs = tables["results"][tables["results"]["dataset"] == dataset]
            found[plot_name(str(dataset))] = png(plot_systems, runs, summary)
    if ranks is not None:
        found["plots/critical-difference.png"] = png(plot_critical_difference, ranks)
    return found
