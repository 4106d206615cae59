"""What is there of all studies, what is missing, and where was it computed?

    DIR/*/ as `raxss table` wrote them -> Folder: blocks (a dataset each), facts beside the cells, what was not run
    DIR/*/README.md of other commands  -> Quote: what that page says of itself

Tables are read as their files have them; nothing is computed anew.
Next: pages/overview.py makes one page of it.
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
from raxss.benchmark.pages.files import csv_of, read_table
from raxss.benchmark.runs import place_of
from raxss.benchmark.study import ALL, Study
from raxss.benchmark.systems import SYSTEMS
from raxss.benchmark.table import STUDY_FILE
from raxss.errors import ConfigError, DataError

logger = logging.getLogger("raxss")
Kind = Literal["main", "changed", "shuffled", "variants"]
Frame = pd.DataFrame
#: Columns that this page needs and that tables have not always had.
NEEDED = {
    "results": ("shuffled", "data"),
    "summary": ("headline", "base", "about"),
    "comparisons": ("p_holm",),
}
PROBES = (
    "reweighting",
    "robustness",
)  # in the folder of a study: pages of raxss reweigh and raxss robustness
SUMMARY = re.compile(r"## +(summary|in short)\s*$", re.IGNORECASE)


@dataclass(frozen=True, eq=False, kw_only=True)
class Missing:
    """Fits of one dataset that a study asks for and that have no result, for one reason.

    Attributes
    ----------
    systems
        Names; empty stands for every system of the study.
    """

    dataset: str
    systems: tuple[str, ...]
    seeds: tuple[int, ...]
    reason: str
    count: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """One dataset of one study.

    Attributes
    ----------
    kind
        ``shuffled``: labels mean nothing. ``variants``: most of its systems are variants of others. ``changed``:
        the data was joined or cut. ``main``: anything else.
    headline
        The metric that its systems are judged by.
    data
        What was done to the data, in words.
    cells, summary, compared
        Its rows of ``results.csv``, ``summary.csv`` and ``comparisons.csv``; cells that failed are left out.
    failed
        System -> how many of its fits failed.
    expected
        Systems of the study, in its order, and its number of seeds.
    """

    folder: str
    dataset: str
    kind: Kind
    headline: str
    data: str
    cells: Frame
    summary: Frame
    compared: Frame
    failed: Mapping[str, int]
    expected: tuple[tuple[str, ...], int]

    def mean(self, system: str) -> float:
        """Of the headline over seeds, NaN where there is none."""
        own = self.summary.loc[self.summary["system"] == system, f"{self.headline}_mean"]
        return float(own.iloc[0]) if len(own) else float("nan")

    def difference(self, system: str, reference: str, metric: str | None = None) -> Mapping[Any, Any] | None:
        """The row that compares the two; None where there is none."""
        rows = self.compared
        found = rows[
            (rows["system"] == system)
            & (rows["reference"] == reference)
            & (rows["metric"] == (metric or self.headline))
        ]
        return found.to_dict("records")[0] if len(found) else None


@dataclass(frozen=True, eq=False, kw_only=True)
class Folder:
    """What one run of `raxss table` left.

    Attributes
    ----------
    name, title
        Of the folder, and of its page.
    facts
        What was noted beside every fit, trials included.
    seeds
        Of which there are results; ``all_seeds``: whether these are the study's.
    """

    name: str
    title: str
    blocks: tuple[Block, ...]
    facts: tuple[Mapping[str, Any], ...]
    missing: tuple[Missing, ...]
    n_expected: int
    seeds: tuple[int, ...]
    all_seeds: bool
    has_study: bool


@dataclass(frozen=True, kw_only=True)
class Quote:
    """What a page of another command says of itself first."""

    name: str
    title: str
    text: str


def gather(results: Path) -> tuple[list[Folder], list[Quote]]:
    """Every folder of a results folder, by name; those without results and page are no part of it."""
    if not results.is_dir():
        raise DataError(
            f"there is no folder {results.name!r}; needed is one with folders that raxss table wrote."
        )
    folders: list[Folder] = []
    quotes: list[Quote] = []
    for place in sorted(one for one in results.iterdir() if one.is_dir()):
        if (place / "results.csv").is_file():
            folders.append(read_folder(place))
            inside = [place / name for name in PROBES if (place / name / "README.md").is_file()]
            quotes += [_quote(one, within=results) for one in inside]
        elif (place / "README.md").is_file():
            quotes.append(_quote(place, within=results))
    return folders, quotes


def read_folder(place: Path) -> Folder:
    """Read what `raxss table` wrote."""
    tables = {name: _table(place, name) for name in NEEDED}
    study = _study(place)
    cells = tables["results"]
    done = cells[cells["error"] == ""]
    systems = _systems(study, cells)
    seeds = study.seeds if study is not None else tuple(sorted(int(one) for one in cells["seed"].unique()))
    names = [str(one) for one in cells["dataset"].unique() if one]
    blocks = tuple(_block(place.name, name, tables, (systems, len(seeds))) for name in names)
    missing = [
        one for name in names for one in _missing(name, cells[cells["dataset"] == name], systems, seeds)
    ]
    asked = [one.name for one in study.datasets] if study else []
    without = [one for one in asked if not any(is_view_of(name, one) for name in names)]
    n_each = len(systems) * len(seeds)
    missing += [
        Missing(dataset=one, systems=(), seeds=seeds, reason="not run", count=n_each) for one in without
    ]
    run = tuple(one for one in seeds if (done["seed"] == one).any())
    return Folder(
        name=place.name,
        title=_title(place),
        blocks=blocks,
        facts=tuple(_facts(place, done)),
        missing=tuple(missing),
        n_expected=n_each * (len(names) + len(without)),
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
    lacking = [one for one in NEEDED[name] if one not in table]
    if lacking:
        raise DataError(
            f"{name}.csv of {place.name!r} has no column {lacking[0]!r}: it is of an earlier raxss. Run its study "
            "again: raxss table writes its tables anew and keeps what is done."
        )
    return table


def _study(place: Path) -> Study | None:
    """The copy of the study; None where there is none, or where it names files that do not lie beside it."""
    try:
        return Study.read(place / STUDY_FILE)
    except ConfigError as error:
        if (place / STUDY_FILE).is_file():
            logger.warning("%s What %r lacks is therefore not known.", error, place.name)
        return None


def _systems(study: Study | None, cells: Frame) -> tuple[str, ...]:
    """Those that the study asks for; of a study that lies elsewhere, those that there are."""
    if study is None:
        return tuple(dict.fromkeys(str(one) for one in cells["system"]))
    return study.systems if study.systems != (ALL,) else tuple(dict.fromkeys([*SYSTEMS, *study.settings]))


def _block(
    folder: str, name: str, tables: Mapping[str, Frame], expected: tuple[tuple[str, ...], int]
) -> Block:
    cells, summary, compared = (
        one[one["dataset"] == name] for one in (tables["results"], tables["summary"], tables["comparisons"])
    )
    failed = cells[cells["error"] != ""]
    done = cells[cells["error"] == ""]
    data = "; ".join(one for one in done["data"].unique() if one)
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
        cells=done,
        summary=summary,
        compared=compared,
        failed={str(system): len(own) for system, own in failed.groupby("system", sort=False)},
        expected=expected,
    )


def _missing(dataset: str, cells: Frame, systems: Sequence[str], seeds: Sequence[int]) -> Iterable[Missing]:
    """Fits without a result, those together that lack the same seeds for the same reason."""
    done = cells[cells["error"] == ""]
    there = set(zip(done["system"], done["seed"], strict=True))
    errors = {(one["system"], one["seed"]): one["error"] for one in cells.to_dict("records") if one["error"]}
    found: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for system in systems:
        reasons: dict[str, list[int]] = {}
        for seed in seeds:
            if (system, seed) not in there:
                reason = errors.get((system, seed))
                reasons.setdefault(f"failed: {reason}" if reason else "not run", []).append(seed)
        for reason, lacking in reasons.items():
            found.setdefault((reason, tuple(lacking)), []).append(system)
    for (reason, without), names in found.items():
        every = len(names) == len(systems)
        yield Missing(
            dataset=dataset,
            systems=() if every else tuple(names),
            seeds=without,
            reason=reason,
            count=len(names) * len(without),
        )


def _facts(place: Path, done: Frame) -> Iterable[Mapping[str, Any]]:
    """Of the cells that the table has, and of all trials."""
    keys = ("dataset", "system", "seed", "config_hash")
    cells = [place_of(place / "cells", *(str(one[key]) for key in keys)) for one in done.to_dict("records")]
    found = map(facts_of, [*cells, *trials_in(place)])
    return [facts for facts in found if facts]


# Pages of other commands --------------------------------------------------------------------------------------


def _title(place: Path) -> str:
    """The first heading of its page."""
    try:
        lines = (place / "README.md").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), place.name)


def _quote(place: Path, *, within: Path) -> Quote:
    """The section ``## Summary`` (or ``In short``) where the page begins with one, else what stands before any."""
    body = (place / "README.md").read_text("utf-8").split("\n")
    first = next((k for k, line in enumerate(body) if line.startswith("# ")), -1) + 1
    sections = [k for k, line in enumerate(body) if line.startswith("## ") and k >= first] + [len(body)]
    start, end = first, sections[0]
    if end < len(body) and SUMMARY.match(body[end]):
        start, end = sections[0] + 1, sections[1]
    text = "\n".join(body[start:end]).strip()
    # links count from the page that they stand in
    name = place.relative_to(within).as_posix()
    text = re.sub(r"\]\((?!https?:|/|#)", f"]({name}/", text)
    return Quote(name=name, title=_title(place), text=text)
