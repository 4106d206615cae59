"""Reproduce committed results: fit a run again and compare.

    a folder of `raxss table`, system, seed -> the same fit -> Rerun: both values of each metric

Data, split and seed are those of the study, a copy of which is in the folder; settings and choices are those of the
committed run, whatever presets are today. The folder is only read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raxss._core.atomic import json_ready
from raxss._core.bounded import read_json
from raxss._core.renames import SETTING, current_names, current_settings
from raxss.benchmark.dataset import HEADLINES
from raxss.benchmark.evaluation_set import View, is_view_of, views_of
from raxss.benchmark.packed import facts_of, read_run
from raxss.benchmark.pages.files import csv_of, read_table
from raxss.benchmark.result import RunResult
from raxss.benchmark.runs import execute, place_of, plan_run
from raxss.benchmark.study import Study, load_extensions
from raxss.benchmark.table import STUDY_FILE
from raxss.errors import ConfigError, DataError, RAxSSError, did_you_mean
from raxss.estimator.config import ADDED_LATER
from raxss.method.window_scorer import pick_device
from raxss.metrics import score

#: Facts of a run that may explain other numbers.
PLACES = [
    "device",
    "machine",
    "n_threads",
    "python",
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "raxss",
    "source",
]
WRITTEN = 1e-9  # tables have ten digits


@dataclass(frozen=True, eq=False, kw_only=True)
class Rerun:
    """A committed run and its repetition; what differs is a pair: committed, and now."""

    dataset: str
    system: str
    seed: int
    figures: Mapping[str, tuple[float, float]]  # by metric, the dataset's headline first
    deviation: float  # of the headline over the committed seeds of this system; NaN of one seed
    farthest: float  # the largest difference of a probability
    elsewhere: Mapping[str, tuple[str, str]]  # devices and versions that differ
    settings: Mapping[str, tuple[Any, Any]]  # settings whose current values differ

    @property
    def same(self) -> bool:
        """Whether all metrics are the same to the ten digits of tables."""
        return all(
            np.isclose(old, new, rtol=WRITTEN, atol=0, equal_nan=True) for old, new in self.figures.values()
        )

    @property
    def difference(self) -> float:
        """Of the headline, now minus committed."""
        old, new = next(iter(self.figures.values()))
        return new - old

    @property
    def holds(self) -> bool:
        """Whether it was reproduced: the same, or within the deviation over seeds."""
        return self.same or bool(abs(self.difference) <= self.deviation)

    def verdict(self) -> str:
        """The comparison as a sentence.

        >>> again = Rerun(dataset="bonn", system="sss", seed=1, figures={"auc": (0.95, 0.953)}, deviation=0.012,
        ...               farthest=0.02, elsewhere={}, settings={})
        >>> again.verdict(), again.holds
        ('differs by +0.0030, seed deviation 0.0120', True)
        """
        if self.same:
            equal = "equal bit for bit" if self.farthest == 0 else f"at most {self.farthest:.1g} apart"
            return f"the same to the last digit; probabilities are {equal}"
        text = f"differs by {self.difference:+.4f}"
        if np.isnan(self.deviation):
            return f"{text}; of one seed there is no deviation to judge that by"
        more = "" if self.holds else " only"
        return f"{text}, seed deviation{more} {self.deviation:.4f}"


def rerun(
    folder: Path | str,
    system: str,
    seed: int,
    *,
    dataset: str | None = None,
    study: Path | str | None = None,
    root: Path | str | None = None,
    device: str = "auto",
) -> list[Rerun]:
    """Fit one system with one seed again, and compare with the committed result.

    ``folder`` is that of `raxss table`; ``dataset`` one of its datasets, by default all with this system and seed;
    ``study`` the file of the study, by default the copy in the folder, needed if it names data or extensions by a
    path; ``root`` the folder with the registered datasets, ``RAXSS_DATA`` otherwise.
    """
    folder = Path(folder)
    table = committed_table(folder)
    rows = _rows(table, system, seed, dataset)
    read = _study(folder, study)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows:
            old, facts = committed_run(folder, row)
            view, read_now = _view(read, str(row["dataset"]), system, Path(scratch), root)
            found.append(_again(old, facts, table, view, read_now, Path(scratch), device))
    return found


def committed_table(folder: Path) -> pd.DataFrame:
    """``results.csv``, a row for each run."""
    try:
        return read_table(csv_of(folder / "results.csv"))
    except OSError as error:
        raise DataError(
            f"{folder.name!r} has no results.csv that can be read ({error.strerror}); needed is a folder that "
            "raxss table wrote."
        ) from error


def committed_run(folder: Path, row: Mapping[Any, Any]) -> tuple[RunResult, dict[str, Any]]:
    """The result and facts of a row; refuse a row with other numbers."""
    dataset, system, seed = str(row["dataset"]), str(row["system"]), int(row["seed"])
    place = place_of(folder / "cells", dataset, system, seed, str(row["config_hash"]))
    result = read_run(place, RunResult)
    for name, value in _figures(result).items():
        if not np.isclose(value, row[name], rtol=WRITTEN, atol=0, equal_nan=True):
            raise DataError(
                f"the table of {folder.name!r} says {name} = {row[name]:.10g} of {dataset}, {system}, seed {seed}, "
                f"but predictions in {place.name!r} give {value:.10g}. One of them was changed; run the study "
                "again."
            )
    return result, facts_of(place)


def _rows(table: pd.DataFrame, system: str, seed: int, dataset: str | None) -> list[dict[Any, Any]]:
    done = table[table["error"] == ""]
    wanted = (("system", system), ("seed", seed), *((("dataset", dataset),) if dataset is not None else ()))
    for name, value in wanted:
        if not (done[name] == value).any():
            known = [str(item) for item in done[name].unique()]
            raise ConfigError(f"there is no result of the {name} {value!r}{did_you_mean(str(value), known)}")
        done = done[done[name] == value]
    return done.to_dict("records")


def _study(folder: Path, given: Path | str | None) -> Study:
    copy = folder / STUDY_FILE
    if given is None and not copy.is_file():
        raise ConfigError(
            f"{folder.name!r} has no copy of its study, {STUDY_FILE}. Give the file: --study STUDY.toml."
        )
    try:
        study = Study.read(given or copy)
        load_extensions(study.extensions)
    except RAxSSError as error:
        if given is not None:
            raise
        raise ConfigError(
            f"{error} This is a copy; where a study names files, give the original: --study STUDY.toml."
        ) from error
    return study


def _view(study: Study, name: str, system: str, scratch: Path, root: Path | str | None) -> tuple[View, Study]:
    """The view of one block of the table, and the study narrowed to it."""
    datasets = tuple(item for item in study.datasets if is_view_of(name, item.name))
    narrowed = replace(study, datasets=datasets, systems=(system,))
    views = {view.name: view for view in views_of(narrowed, scratch / "data", root=root)}
    if name not in views:
        known = list(views) or [item.name for item in study.datasets]
        raise ConfigError(f"the study has no dataset for {name!r}{did_you_mean(name, known)}")
    return views[name], narrowed


def _again(
    old: RunResult,
    facts: Mapping[str, Any],
    table: pd.DataFrame,
    view: View,
    study: Study,
    scratch: Path,
    device: str,
) -> Rerun:
    if old.seed not in view.splits:
        known = [str(split) for split in view.splits]
        raise ConfigError(f"the study has no seed {old.seed}{did_you_mean(str(old.seed), known)}")
    system = study.compared()[old.system]
    committed = current_settings(old.settings, warn=False)
    choice = current_names(committed.get("choice", {}), SETTING, warn=False)
    today = system.parameters(
        view.windows, training=study.training, choice=choice, longest=view.longest, positive=view.positive
    )
    neutral = {name: value for name, value in ADDED_LATER.items() if name in today}  # where the run is older
    kept = neutral | {name: committed[name] for name in today if name in committed}
    pinned = replace(system, settings={**system.settings, **kept})
    run = plan_run(study, view, pinned, old.seed, scratch, device=str(pick_device(device)), choice=choice)
    new = execute(run)
    assert isinstance(new, RunResult), "a run without a probe has a RunResult"
    if (new.names, new.labels, new.classes) != (old.names, old.labels, old.classes):
        raise DataError(
            f"{old.dataset}, {old.system}, seed {old.seed} was tested on {len(old.names)} series, and now on "
            f"{len(new.names)}, not the same ones: the data or its split is another. Give the study that the "
            "folder was made with, and the same data."
        )
    before, now = _figures(old), _figures(new)
    own = table[(table["dataset"] == old.dataset) & (table["system"] == old.system) & (table["error"] == "")]
    metrics = dict.fromkeys([view.headline, *HEADLINES])
    noted = read_json(run.facts_place)
    return Rerun(
        dataset=old.dataset,
        system=old.system,
        seed=old.seed,
        figures={name: (before[name], now[name]) for name in metrics},
        deviation=float(own.groupby("seed")[view.headline].mean().std(ddof=1)),
        farthest=float(np.abs(new.probabilities - old.probabilities).max()),
        elsewhere={
            name: (str(facts.get(name, "not noted")), str(noted[name]))
            for name in PLACES
            if facts.get(name) != noted[name]
        },
        settings={
            name: (kept[name], json_ready(today[name]))
            for name in kept
            if kept[name] != json_ready(today[name])
        },
    )


def _figures(result: RunResult) -> dict[str, float]:
    found = score(result.labels, result.probabilities, **result.scoring)
    return {name: found.get(name, np.nan) for name in HEADLINES}
