"""Collect the results of all studies: tidy rows, facts of the fits, fits without a result, pages of analyses.

    DIR/*/ as `raxss table` wrote them       -> Folder: blocks (a dataset each), facts of the fits, missing fits
    DIR/*/README.md and DIR/*/*/README.md    -> the summaries of other pages

The tidy table of a study is read back from its CSV tables; nothing is computed again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from raxss.benchmark.evaluation_set import is_view_of
from raxss.benchmark.packed import facts_of, trials_in
from raxss.benchmark.pages.files import FIGURES, csv_of, read_table
from raxss.benchmark.pages.markdown import Markdown
from raxss.benchmark.pages.tidy import Row, narrow, over_seeds, part, tidy
from raxss.benchmark.result import NOT_RUN
from raxss.benchmark.runs import place_of
from raxss.benchmark.study import ALL, Study
from raxss.benchmark.systems import SYSTEMS
from raxss.benchmark.table import STUDY_FILE
from raxss.errors import ConfigError, DataError

logger = logging.getLogger("raxss")
Kind = Literal["main", "changed", "shuffled", "variants"]
Frame = pd.DataFrame
#: Columns that the page needs and that tables of earlier versions lack.
NEEDED = {
    "results": ("shuffled", "data"),
    "summary": ("headline", "base", "about"),
    "comparisons": ("p_holm",),
}
SUMMARY = re.compile(r"## +(summary|in short)\s*$", re.IGNORECASE)


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """One dataset of one study.

    Its kind is ``shuffled``: shuffled labels, ``variants``: most of its systems are variants of others,
    ``changed``: the data was joined or cut, or ``main``: anything else.
    """

    folder: str
    dataset: str
    kind: Kind
    headline: str  # the metric that its systems are ordered by
    data: str  # description of what was done to the data
    rows: Frame  # of the tidy table
    fits: Frame  # rows of ``results.csv`` without failed fits
    systems: Mapping[str, tuple[str, str]]  # system -> base and description of a variant, empty for others
    failed: frozenset[str]  # systems with failed fits
    expected: tuple[tuple[str, ...], int]  # systems of the study, in its order, and its number of seeds

    def means(self) -> Frame:
        """Rows of the headline: means over seeds of every system."""
        return part(over_seeds(self.rows, differences=False), metric=self.headline)

    def figure(self, system: str) -> Row | None:
        """The row of the headline of a system; None without a result."""
        return _only(part(self.means(), system=system))

    def mean(self, system: str) -> float:
        """The headline's mean over seeds, NaN without a result."""
        row = self.figure(system)
        return float("nan") if row is None else float(row["value"])

    def difference(self, system: str, reference: str) -> Row | None:
        """The row that compares the headline of two systems; None without one."""
        rows = part(self.rows, system=system, reference=reference, metric=self.headline)
        return _only(rows.rename(columns={"value": "difference"}))


def _only(rows: Frame) -> Row | None:
    found = rows.to_dict("records")
    return {str(name): value for name, value in found[0].items()} if found else None


@dataclass(frozen=True, eq=False, kw_only=True)
class Folder:
    """Results of one call of `raxss table`; ``facts`` are of every fit, ``seeds`` those with results."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    facts: tuple[Mapping[str, Any], ...]
    missing: tuple[tuple[str, int], ...]  # fits without a result: a sentence about them, and their number
    n_expected: int
    seeds: tuple[int, ...]
    all_seeds: bool
    has_study: bool


def gather(results: Path) -> tuple[list[Folder], list[dict[str, str]]]:
    """Read every folder of a results folder, by name: studies, and the summaries of pages of other commands.

    Folders without results and page are left out.
    """
    if not results.is_dir():
        raise DataError(
            f"there is no folder {results.name!r}; needed is one with folders that raxss table wrote."
        )
    folders: list[Folder] = []
    quotes: list[dict[str, str]] = []
    for place in sorted(path for path in results.iterdir() if path.is_dir()):
        if (place / "results.csv").is_file():
            folders.append(read_folder(place))
            quotes += [_quote(page.parent, within=results) for page in sorted(place.glob("*/README.md"))]
        elif (place / "README.md").is_file():
            quotes.append(_quote(place, within=results))
    return folders, quotes


def read_folder(place: Path) -> Folder:
    """Read the results of `raxss table`."""
    tables = {name: _table(place, name) for name in NEEDED}
    study = _study(place)
    runs = tables["results"]
    done = runs[runs["error"] == ""]
    rows = _rows(done, tables["summary"], tables["comparisons"])
    systems = _systems(study, runs)
    seeds = study.seeds if study is not None else tuple(sorted(int(seed) for seed in runs["seed"].unique()))
    names = [str(name) for name in runs["dataset"].unique() if name]
    blocks = tuple(_block(place.name, name, tables, rows, (systems, len(seeds))) for name in names)
    required = [dataset.name for dataset in study.datasets] if study else []
    without = [dataset for dataset in required if not any(is_view_of(name, dataset) for name in names)]
    missing = [
        (f"{place.name}, {name}: {text}", count)
        for name in (*names, *without)
        for text, count in _missing(part(runs, dataset=name), systems, seeds)
    ]
    run = tuple(seed for seed in seeds if (done["seed"] == seed).any())
    return Folder(
        name=place.name,
        title=_title(place),
        blocks=blocks,
        facts=tuple(_facts(place, done)),
        missing=tuple(missing),
        n_expected=len(systems) * len(seeds) * (len(names) + len(without)),
        seeds=run,
        all_seeds=run == tuple(seeds),
        has_study=study is not None,
    )


def _table(place: Path, name: str) -> Frame:
    try:
        table = read_table(csv_of(place / f"{name}.csv"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{name}.csv of {place.name!r} cannot be read ({error}). Run its study again: raxss table."
        ) from error
    lacking = [column for column in NEEDED[name] if column not in table]
    if lacking:
        raise DataError(
            f"{name}.csv of {place.name!r} has no column {lacking[0]!r}: it is of an earlier raxss. Run its study "
            "again: raxss table writes its tables anew and keeps what is done."
        )
    return table


def _rows(done: Frame, summary: Frame, comparisons: Frame) -> Frame:
    """The tidy table of a study, from the tables that are views of it."""
    figures = [name for name in FIGURES if name in done]
    fits = done.melt(["dataset", "system", "seed", "fold"], figures, var_name="metric")
    parts = {"_mean": "value", "_sd": "sd", "_low": "low", "_high": "high"}
    metrics = {f"{name}{ending}" for name in FIGURES for ending in parts}
    at = ["dataset", "system", "n_seeds"]
    means = narrow(summary[[name for name in summary if name in (*at, *metrics)]], at, parts)
    differences = comparisons.rename(columns={"difference": "value"})
    found = [table for table in (fits, means, differences) if len(table)]
    return tidy(pd.concat(found, ignore_index=True) if found else [], analysis="table")


def _study(place: Path) -> Study | None:
    """The copy of the study; None without one, or if it names files that are not beside it."""
    try:
        return Study.read(place / STUDY_FILE)
    except ConfigError as error:
        if (place / STUDY_FILE).is_file():
            logger.warning("%s What %r lacks is therefore not known.", error, place.name)
        return None


def _systems(study: Study | None, runs: Frame) -> tuple[str, ...]:
    """Systems that the study requires; without the study, systems with results."""
    if study is None:
        return tuple(dict.fromkeys(str(name) for name in runs["system"]))
    return study.systems if study.systems != (ALL,) else tuple(dict.fromkeys([*SYSTEMS, *study.settings]))


def _block(
    folder: str,
    name: str,
    tables: Mapping[str, Frame],
    rows: Frame,
    expected: tuple[tuple[str, ...], int],
) -> Block:
    runs, summary = (part(tables[table], dataset=name) for table in ("results", "summary"))
    done = runs[runs["error"] == ""]
    data = "; ".join(text for text in done["data"].unique() if text)
    kind: Kind = "main"
    if (done["shuffled"] == 1).any():
        kind = "shuffled"
    elif (summary["base"] != "").sum() > len(summary) / 2:
        kind = "variants"
    elif data:
        kind = "changed"
    return Block(
        folder=folder,
        dataset=name,
        kind=kind,
        headline=str(summary["headline"].iloc[0]) if len(summary) else "auc",
        data=data,
        rows=part(rows, dataset=name),
        fits=done,
        systems={str(row["system"]): (row["base"], row["about"]) for row in summary.to_dict("records")},
        failed=frozenset(runs.loc[(runs["error"] != "") & ~runs["error"].str.startswith(NOT_RUN), "system"]),
        expected=expected,
    )


def _missing(runs: Frame, systems: Sequence[str], seeds: Sequence[int]) -> Iterable[tuple[str, int]]:
    """Fits of a dataset without a result, grouped by missing seeds and reason: a sentence and their number."""
    by_error = sorted(
        runs.to_dict("records"), key=lambda row: row["error"] == ""
    )  # a result wins over an error
    states = {(row["system"], row["seed"]): row["error"] for row in by_error}
    found: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for system in systems:
        reasons: dict[str, list[int]] = {}
        for seed in seeds:
            error = states.get((system, seed))
            if error != "":
                reasons.setdefault(_reason(error), []).append(seed)
        for reason, lacking in reasons.items():
            found.setdefault((reason, tuple(lacking)), []).append(system)
    for (reason, without), names in found.items():
        who = "every system" if len(names) == len(systems) else ", ".join(names)
        which = f"seed{'' if len(without) == 1 else 's'} {', '.join(map(str, without))}"
        count = len(names) * len(without)
        yield f"{who}, {which}: {reason} ({count})", count


def _reason(error: str | None) -> str:
    """Why a fit has no result."""
    if not error:
        return "not run"
    if error.startswith(NOT_RUN):
        return f"not run: {error.removeprefix(NOT_RUN).lstrip(': ')}"
    return f"failed: {error}"


def _facts(place: Path, done: Frame) -> Iterable[Mapping[str, Any]]:
    """Of the fits in the table, and of all validation fits."""
    keys = ("dataset", "system", "seed", "config_hash")
    runs = [place_of(place / "cells", *(str(row[key]) for key in keys)) for row in done.to_dict("records")]
    found = map(facts_of, [*runs, *trials_in(place)])
    return [facts for facts in found if facts]


# Pages of other commands --------------------------------------------------------------------------------------


def _title(place: Path) -> str:
    """The first heading of its page."""
    try:
        lines = (place / "README.md").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), place.name)


def _quote(place: Path, *, within: Path) -> dict[str, str]:
    """The section ``## Summary`` (or ``In short``) if the page begins with it, else the text before sections."""
    body = (place / "README.md").read_text("utf-8").split("\n")
    first = next((k for k, line in enumerate(body) if line.startswith("# ")), -1) + 1
    sections = [k for k, line in enumerate(body) if line.startswith("## ") and k >= first] + [len(body)]
    start, end = first, sections[0]
    if end < len(body) and SUMMARY.match(body[end]):
        start, end = sections[0] + 1, sections[1]
    text = "\n".join(body[start:end]).strip()
    # links are relative to the page that has them
    name = place.relative_to(within).as_posix()
    text = re.sub(r"\]\((?!https?:|/|#)", f"]({name}/", text)
    return {"name": name, "title": _title(place), "text": Markdown(text)}
