"""What does a comparison say, in tables that a reader can check and a page that says no more than they do?

    CellResults, facts, errors -> results.csv      a row for each cell
                               -> summary.csv      mean, deviation and interval of each system
                               -> pooled.csv       all test predictions of a system together
                               -> comparisons.csv  differences from the references
    these alone                -> plots/*.png, README.md

The same results give the same bytes. README and plots are made from the text of the tables, read back.
Next: page.py has the words of the page.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raxss._core.atomic import without_formula, write_bytes
from raxss._core.bounded import decoded, read_bytes
from raxss._core.renames import current_columns
from raxss.benchmark.dataset import HEADLINES
from raxss.benchmark.pages.markdown import TITLES
from raxss.benchmark.pages.page import SHOWN, in_words, make_page, plot_name
from raxss.benchmark.result import CellResult
from raxss.benchmark.statistics import (
    CHANCE,
    COMPARED,
    FAINT,
    INK,
    N_RESAMPLES,
    REFERENCES,
    STEP,
    CriticalDifference,
    Resampled,
    critical_difference,
    differences,
    differences_from_chance,
    intervals,
    plot_critical_difference,
    resampled,
)
from raxss.benchmark.systems import System
from raxss.data.tables import MalformedCsvError, records
from raxss.errors import DataError, shown, without_folders
from raxss.metrics import METRICS, weighted_scores

MAX_CSV_BYTES, MAX_CSV_ROWS, MAX_CSV_VALUES = 2**24, 200_000, 2_000_000
CELL = ("dataset", "system", "seed")
FACTS = ("seconds", "seconds_of_choice", "n_threads", "device")
FIGURES = ("f1", "auc", "accuracy", "window_accuracy", *METRICS[3:])
RANKED = "auc"
DRAWS_AGAINST_CHANCE = 5  # times as many: 1 % over all systems is a small share of the draws
NUMBERS = re.compile(
    r"(seed|n_.*|seconds|seconds_of_choice|each_once|difference|low|high|p|p_holm|leaky|shuffled)|.*_(mean|sd|low|high)"
)

Frame = pd.DataFrame


def write_report(
    results: Sequence[CellResult],
    *,
    facts: Mapping[Any, Mapping[str, Any]],
    errors: Sequence[Mapping[str, Any]],
    out: Path | str,
    study_name: str,
    references: Sequence[str] = REFERENCES,
    headlines: Mapping[str, str] | None = None,
    variants: Mapping[str, System] | None = None,
    n_resamples: int = N_RESAMPLES,
) -> list[Path]:
    """Write the tables, plots and page of a study; each file appears whole.

    Parameters
    ----------
    facts
        What was noted beside a result (``seconds``, ``device``, ``n_threads``, ``warnings``; ``seconds_of_choice``
        where a choice was made), by ``(dataset, system, seed)`` or ``(dataset, system, seed, fold)``.
    errors
        One for each cell that failed: ``dataset``, ``system``, ``seed``, ``fold``, ``type``, ``message``.
    references
        Systems that all others are compared with, as far as they are there.
    headlines
        Dataset -> the figure by which its systems are put in order; AUC where it is not told.
    variants
        Systems that differ from another one in some settings; each is compared with its base.

    Returns
    -------
    What was written, the page last. Systems are listed in the order in which results and errors name them first.

    Examples
    --------
    >>> import tempfile
    >>> result = CellResult(dataset="toy", system="sss", seed=1, config_hash="ab12", classes=("a", "b"),
    ...                     positive="b", names=("s1", "s2"), labels=("a", "b"), groups=("g1", "g2"),
    ...                     probabilities=np.array([[0.9, 0.1], [0.2, 0.8]]))
    >>> files = write_report([result], facts={}, errors=[], out=tempfile.mkdtemp(), study_name="toy")
    >>> [file.name for file in files]
    ['results.csv', 'summary.csv', 'pooled.csv', 'comparisons.csv', 'auc-toy.png', 'README.md']
    """
    texts = {
        name: csv_text(table)
        for name, table in tables_of(
            results,
            facts=facts,
            errors=errors,
            references=references,
            headlines=headlines,
            variants=variants,
            n_resamples=n_resamples,
        ).items()
    }
    tables = {name: read_table(text) for name, text in texts.items()}
    ranks, unranked = _ranks(tables["results"])
    plots = _plots(tables, ranks)
    page = make_page(study_name, tables, plots=list(plots), ranks=ranks, unranked=unranked)
    contents = {f"{name}.csv": text.encode() for name, text in texts.items()} | plots
    contents |= {"README.md": page.encode()}
    for name, content in contents.items():
        write_bytes(Path(out) / name, content)
    return [Path(out) / name for name in contents]


# Tables -------------------------------------------------------------------------------------------------------


def tables_of(
    results: Sequence[CellResult],
    *,
    facts: Mapping[Any, Mapping[str, Any]],
    errors: Sequence[Mapping[str, Any]],
    references: Sequence[str] = REFERENCES,
    headlines: Mapping[str, str] | None = None,
    variants: Mapping[str, System] | None = None,
    n_resamples: int = N_RESAMPLES,
) -> dict[str, Frame]:
    """``results``, ``summary``, ``pooled`` and ``comparisons``, as `write_report` writes them."""
    rows, usable, variants = [], [], variants or {}
    for one in results:
        try:
            rows.append(_row(one, _facts_of(one, facts)))
            usable.append(one)
        except DataError as error:  # a table with a hole is better than none
            rows.append(failed_row({**_key(one), "type": type(error).__name__, "message": str(error)}))
    cells = pd.DataFrame([*rows, *map(failed_row, errors)], columns=_row_columns())
    cells = _in_order(cells, cells)
    draws = resampled(usable, n_resamples=n_resamples)
    compared, bases = _compared(draws, references, variants)
    shuffled = {one.dataset for one in usable if one.changes.get("shuffled")}
    if shuffled:
        told = [one for one in usable if one.dataset in shuffled]
        many = resampled(told, n_resamples=DRAWS_AGAINST_CHANCE * n_resamples, metrics=(RANKED,))
        by_chance = differences_from_chance(many)
        compared = by_chance if compared.empty else pd.concat([compared, by_chance], ignore_index=True)
    compared["metric"] = pd.Categorical(compared["metric"], COMPARED)
    compared["reference"] = pd.Categorical(compared["reference"], [*references, *bases, CHANCE])
    return {
        "results": cells,
        "summary": _summary(cells, intervals(draws), headlines or {}, variants),
        "pooled": _in_order(_pooled(usable, n_resamples), cells),
        "comparisons": _in_order(compared, cells, between=["metric", "reference"]),
    }


def _compared(
    draws: Sequence[Resampled], references: Sequence[str], variants: Mapping[str, System]
) -> tuple[Frame, list[str]]:
    """Differences from the references, and of variants from bases that are none; and these bases."""
    tables = [differences(draws, references)]
    bases = [one.base for one in variants.values() if one.base is not None and one.base not in references]
    bases = list(dict.fromkeys(bases))
    for base in bases:
        family = {base, *(name for name, one in variants.items() if one.base == base)}
        tables.append(differences([one for one in draws if one.system in family], [base]))
    found = [one for one in tables if not one.empty]
    return pd.concat(found, ignore_index=True) if found else tables[0], bases


def _row_columns() -> list[str]:
    tested = ("n_test", "n_groups", "test_classes", "positive", "f1_classes")
    told = (*tested, "shuffled", "data", "split", "leaky", "balance", "choice")
    about = ("n_parameters", *FACTS, "n_warnings", "config_hash", "error")
    return [*CELL, *SHOWN, "fold", *FIGURES[3:], *told, *about]


def _key(result: CellResult) -> dict[str, Any]:
    return {"dataset": result.dataset, "system": result.system, "seed": result.seed, "fold": result.fold}


def _row(result: CellResult, facts: Mapping[str, Any]) -> dict[str, Any]:
    figures = weighted_scores(
        result.labels,
        result.probabilities,
        classes=result.classes,
        positive=result.positive,
        f1_classes=result.f1_classes,
    )
    counts = {str(one): sum(label == one for label in result.labels) for one in result.classes}
    positive = (
        result.positive if result.positive is not None or len(result.classes) > 2 else result.classes[-1]
    )
    return {
        **_key(result),
        **{name: float(values[0]) for name, values in figures.items()},
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
        "n_parameters": result.n_parameters,
        **{name: facts.get(name) for name in FACTS},
        "n_warnings": len(facts.get("warnings", ())),
        "config_hash": result.config_hash,
    }


def _facts_of(result: CellResult, facts: Mapping[Any, Mapping[str, Any]]) -> Mapping[str, Any]:
    key = (result.dataset, result.system, result.seed)
    return facts.get((*key, result.fold), facts.get(key, {}))


def failed_row(error: Mapping[str, Any]) -> dict[str, Any]:
    """An error as a row of ``results``, its message in one line and without folders."""
    told = f"{error.get('type', 'Error')}: {error.get('message') or 'no message was kept'}"
    told = " ".join(without_folders(told).split())
    return {name: error.get(name) for name in (*CELL, "fold", "config_hash")} | {"error": told[:600]}


def _in_order(table: Frame, cells: Frame, between: Iterable[str] = ()) -> Frame:
    """Datasets and systems as the cells name them first, seeds ascending."""
    table = table.copy()
    for name in ("dataset", "system"):
        table[name] = pd.Categorical(table[name].fillna(""), cells[name].fillna("").unique())
    keys = [one for one in ("dataset", *between, "system", "seed", "fold") if one in table]
    return table.sort_values(keys, kind="stable").reset_index(drop=True)


def _summary(
    cells: Frame, means: Frame, headlines: Mapping[str, str], variants: Mapping[str, System]
) -> Frame:
    """Mean over a seed's folds, then mean and deviation (n - 1) over seeds."""
    done = cells[cells["error"].isna()]
    rows = []
    for (dataset, system), own in done.groupby(["dataset", "system"], observed=True, sort=True):
        by_seed = own.groupby("seed")[[*FIGURES, "seconds"]].mean()
        row = {"dataset": dataset, "system": system, "n_seeds": len(by_seed)}
        known = means[(means["dataset"] == dataset) & (means["system"] == system)].set_index("metric")
        for name in FIGURES:
            row |= {f"{name}_mean": by_seed[name].mean(), f"{name}_sd": by_seed[name].std(ddof=1)}
            if name in known.index:
                row |= {f"{name}_{side}": known.loc[name, side] for side in ("low", "high")}
        row |= {"seconds_mean": by_seed["seconds"].mean(), "n_parameters": own["n_parameters"].max()}
        row |= {"seconds_of_choice": own["seconds_of_choice"].max()}  # made once, told of each seed
        row |= {"choice": "; ".join(dict.fromkeys(one for one in own["choice"] if one))}
        row |= {"headline": headlines.get(str(dataset), HEADLINES[0])}
        variant = variants.get(str(system))
        rows.append(row | ({"base": variant.base, "about": variant.description} if variant else {}))
    figures = [f"{name}_{side}" for name in FIGURES for side in ("mean", "sd", "low", "high")
               if side in ("mean", "sd") or name in COMPARED]  # fmt: skip
    about = ["n_parameters", "seconds_mean", "seconds_of_choice", "choice", "headline", "base", "about"]
    return pd.DataFrame(rows, columns=["dataset", "system", "n_seeds", *figures, *about])


def _pooled(results: Sequence[CellResult], n_resamples: int) -> Frame:
    """All predictions of a system in one heap; ``each_once`` tells whether no series is in it twice."""
    rows = []
    for dataset, system in dict.fromkeys((one.dataset, one.system) for one in results):
        own = [one for one in results if (one.dataset, one.system) == (dataset, system)]
        names = [name for one in own for name in one.names]
        heap = CellResult(
            dataset=dataset,
            system=system,
            seed=0,
            config_hash="",
            classes=own[0].classes,
            positive=own[0].positive,
            f1_classes=own[0].f1_classes,
            names=tuple(names),
            labels=tuple(label for one in own for label in one.labels),
            groups=tuple(group for one in own for group in one.groups),
            probabilities=np.concatenate([one.probabilities for one in own]),
        )
        (draws,) = resampled([heap], n_resamples=n_resamples)
        found = intervals([draws]).set_index("metric")
        row: dict[str, Any] = {"dataset": dataset, "system": system}
        for name in METRICS:
            row[name] = draws.figures[0, ""][name][0]
            if name in found.index:
                row |= {f"{name}_{side}": found.loc[name, side] for side in ("low", "high")}
        row |= {"n_predictions": len(names), "n_series": len(set(names)), "n_groups": len(set(heap.groups))}
        rows.append(row | {"each_once": int(len(set(names)) == len(names))})
    columns = [one for name in METRICS for one in (name, f"{name}_low", f"{name}_high")
               if one == name or name in COMPARED]  # fmt: skip
    counts = ["n_predictions", "n_series", "n_groups", "each_once"]
    return pd.DataFrame(rows, columns=["dataset", "system", *columns, *counts])


def csv_text(table: Frame) -> str:
    """A table as its file has it: no cell that a spreadsheet would run.

    >>> csv_text(pd.DataFrame({"system": ["=1+1"], "auc": [1 / 3]}))
    "system,auc\\n'=1+1,0.3333333333\\n"
    """
    return table.map(without_formula).to_csv(index=False, float_format="%.10g", lineterminator="\n")


def csv_of(path: Path) -> str:
    """The text of a table that raxss wrote, if it has no more rows and values than such a table can have.

    Raises
    ------
    OSError
        As the system has it.
    """
    what = f"table {shown(path)}"
    content = read_bytes(path, what, MAX_CSV_BYTES, why="no table of results is longer")
    text = decoded(content, what)
    n_values = 0
    try:
        for line, cells in records(content, what, MAX_CSV_ROWS):
            n_values += len(cells)
            if n_values > MAX_CSV_VALUES:
                raise DataError(
                    f"{what} has more than {MAX_CSV_VALUES:,} values up to line {line}; no table of results has."
                )
    except MalformedCsvError as error:
        raise DataError(f"{what} is not a CSV file ({error}). Run its study again.") from error
    return text


def read_table(text: str) -> Frame:
    """A table as its file has it; a system called ``nan``, ``007`` or ``-x`` keeps its name.

    Examples
    --------
    >>> read_table("dataset,system,seed,auc\\n007,nan,1,0.5\\n007,'-x,1,0.5\\n").values.tolist()
    [['007', 'nan', 1, 0.5], ['007', '-x', 1, 0.5]]
    """
    table = current_columns(pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False), warn=False)
    for name in table:
        if name in FIGURES or NUMBERS.fullmatch(str(name)):
            table[name] = pd.to_numeric(table[name])
        else:
            table[name] = [one[1:] if without_formula(one[1:]) == one else one for one in table[name]]
    return table


# Plots --------------------------------------------------------------------------------------------------------


def plot_systems(cells: Frame, summary: Frame, metric: str = "auc", *, ax: Axes | None = None) -> Axes:
    """One dataset: each system's seeds as points, their mean, and its interval as a line.

    Parameters
    ----------
    cells, summary
        Rows of ``results`` and ``summary`` of `tables_of`, of this dataset.
    """
    if ax is None:
        ax = Figure(figsize=(7.5, 1.1 + 0.27 * len(summary)), layout="constrained").subplots()
    reference = summary.loc[summary["system"] == REFERENCES[0], f"{metric}_mean"]
    if len(reference):
        ax.axvline(reference.iloc[0], color=FAINT, lw=0.8, ls=":")
    for row, one in enumerate(summary.to_dict("records")):
        seeds = cells.loc[cells["system"] == one["system"], metric].dropna()
        ax.plot(seeds, np.full(len(seeds), row), "o", ms=4.5, mfc="none", mec=FAINT, mew=0.9, zorder=2)
        if f"{metric}_low" in one:
            ax.plot([one[f"{metric}_low"], one[f"{metric}_high"]], [row, row], color=STEP, lw=2, zorder=1)
        ax.plot(one[f"{metric}_mean"], row, "D", ms=5, color=INK, zorder=3)
    ax.set_yticks(range(len(summary)), [" ".join(name.split()) for name in summary["system"]])
    for label in ax.get_yticklabels():
        label.set_parse_math(False)  # names are not formulas
    ax.set(ylim=(len(summary) - 0.5, -0.5), xlabel=TITLES[metric].removesuffix(" %"))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#eeeeee", lw=0.8)
    ax.set_axisbelow(True)
    return ax


def _plots(tables: Mapping[str, Frame], ranks: CriticalDifference | None) -> dict[str, bytes]:
    """File name -> PNG."""
    found = {}
    with matplotlib.style.context("default"):  # not the reader's style: same results, same bytes
        for dataset, summary in tables["summary"].groupby("dataset", sort=False):
            if summary["auc_mean"].notna().any():
                cells = tables["results"][tables["results"]["dataset"] == dataset]
                found[plot_name(str(dataset))] = png(plot_systems(cells, summary))
        if ranks is not None:
            found["plots/critical-difference.png"] = png(plot_critical_difference(ranks))
    return found


def png(ax: Axes) -> bytes:
    """The figure that a plot is in, as a file's content; the same plot gives the same bytes."""
    buffer = io.BytesIO()
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font lacks
        figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def _ranks(cells: Frame) -> tuple[CriticalDifference | None, list[str]]:
    """Ranks over (dataset, seed), of the systems that are in every block; and those that are not.

    Shuffled labels rank nobody.
    """
    done = cells[cells[RANKED].notna() & (cells["shuffled"] != 1)]
    if done.empty:
        return None, []
    scores = done.pivot_table(index=["dataset", "seed"], columns="system", values=RANKED, sort=False)
    complete = scores.dropna(axis="columns")
    missing = [str(one) for one in scores if one not in complete]
    if len(complete) < 2 or complete.shape[1] < 2:
        return None, missing
    return critical_difference(complete), missing
