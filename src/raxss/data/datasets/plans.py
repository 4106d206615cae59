"""Named datasets on this disk: where one lies, how much of it is there, its plan and its series.

    name, root -> its folder -> complete, partly (n of m files) or absent
    name, root, classes -> CollectionPlan: one RecordingPlan per file (or member of a zip) -> SeriesCollection

The root holds one folder per dataset, named like it: ROOT/bonn, ROOT/ds003029. Where there is no such folder, but
the dataset's files lie in the root itself, the root is taken as its folder. Only names, tables and headers are
read for a plan. Next: raxss.data.plan reads what was planned; raxss.data.prepare writes it to a disk.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from raxss.data.datasets.dataset import Dataset
from raxss.data.datasets.registry import find_dataset
from raxss.data.plan import CollectionPlan
from raxss.data.series import SeriesCollection
from raxss.errors import ConfigError, DataError, RAxSSWarning, did_you_mean

ROOT_VARIABLE = "RAXSS_DATA"
PACKAGE = Path(__file__).parent  # the folder of datasets that need no root

State = Literal["complete", "partly", "absent", "inside", "unknown"]


@dataclass(frozen=True)
class OnDisk:
    """How much of a dataset is there; ``inside`` needs no disk, ``unknown`` where no root was given."""

    state: State
    n_present: int = 0
    n_wanted: int = 0
    absent: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.state == "partly":
            return f"partly ({self.n_present} of {self.n_wanted} files)"
        return self.state


def data_root(root: Path | str | None = None) -> Path | None:
    """The folder that holds the datasets: the one given, or that of ``RAXSS_DATA``, or None."""
    given = root if root is not None else os.environ.get(ROOT_VARIABLE) or None
    return None if given is None else Path(given).expanduser()


def folder_of(dataset: Dataset, root: Path | str | None = None) -> Path:
    """Where a dataset lies, or would lie, below the root; one that needs no root lies in the package."""
    if dataset.where != "disk":
        return PACKAGE
    found = data_root(root)
    if found is None:
        raise DataError(
            f"dataset {dataset.name!r} is not part of the package, and where it lies is not known. Say it with "
            f"root=... (--root on the command line) or in the variable {ROOT_VARIABLE}: the folder that holds "
            f"{dataset.folder!r}. It comes from {dataset.source}."
        )
    below = found / dataset.folder
    return found if not below.is_dir() and dataset.lies_in(found) else below


def on_disk(dataset: Dataset, root: Path | str | None = None) -> OnDisk:
    """How much of a dataset is below the root."""
    if dataset.where != "disk":
        return OnDisk("inside")
    if data_root(root) is None:
        return OnDisk("unknown")
    wanted, absent = dataset.needed(folder_of(dataset, root))
    n_present = wanted - len(absent)
    state: State = "complete" if not absent else "partly" if n_present else "absent"
    return OnDisk(state, n_present, wanted, tuple(absent))


def plan_dataset(
    name: str, *, root: Path | str | None = None, classes: Sequence[str] | None = None, **options: Any
) -> CollectionPlan:
    """What a named dataset holds, and how to read it.

    Parameters
    ----------
    root
        The folder that holds the dataset's folder, or that folder itself; ``RAXSS_DATA`` otherwise.
        ``"sample"`` and ``"synthetic"`` need none.
    classes
        Labels to keep, ``("F", "N")`` for Bonn's channel task; all of them otherwise.
    options
        What the dataset has in ``options``: of ds003029 what `raxss.data.bids.plan_bids` takes, such as a crop
        around seizure onset.

    Examples
    --------
    >>> plan = plan_dataset("sample", classes=["AF"])
    >>> len(plan), plan.group_by
    (200, 'recording')
    """
    dataset = find_dataset(name)
    known = dataset.classes(**options)
    for label in classes or ():
        if label not in known:
            raise DataError(f"dataset {name!r} has no class {label!r}{did_you_mean(label, known)}")
    for option in options:
        if option not in dataset.options:
            known = dataset.options
            what = did_you_mean(option, known) if known else "; only root and classes are needed."
            raise ConfigError(f"dataset {name!r} takes no option {option!r}{what}")
    folder = folder_of(dataset, root)
    plan = dataset.plan(folder, **options) if folder.is_dir() else dataset.planned(folder)
    if classes is None:
        return plan
    chosen = plan.only(lambda series: series.label in classes)
    return replace(chosen, absent=dataset.needed_for(classes, plan.absent))


def load_dataset(
    name: str, *, root: Path | str | None = None, classes: Sequence[str] | None = None
) -> SeriesCollection:
    """The collection of that name, all of it in memory.

    Parameters
    ----------
    root, classes
        See `plan_dataset`.

    Examples
    --------
    >>> load_dataset("synthetic")
    SeriesCollection(40 series of ... samples, labels: motif 20, noise 20)
    >>> load_dataset("sample", classes=["AF"])
    SeriesCollection(200 series of ... samples, labels: AF 200)
    """
    plan = plan_dataset(name, root=root, classes=classes)
    missing = f"{plan.absence() or 'no series were found.'} {plan.where_to_get}".rstrip()
    if not len(plan):
        raise DataError(f"nothing of dataset {name!r} can be read; {missing}")
    if plan.absent:
        message = f"dataset {name!r} is not complete and is used as far as it is there; {missing}"
        warnings.warn(message, RAxSSWarning, stacklevel=2)
    return find_dataset(name).read(plan)
