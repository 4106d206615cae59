"""Folder of a dataset on this disk, and how much of it is there.

    name, root -> its folder -> complete, partly (n of m files) or absent

The root holds one folder a dataset, named like it: ROOT/bonn, ROOT/ds003029. Where there is no such folder, but
the dataset's files lie in the root itself, the root is taken as its folder. The root is given, or is what
the variable RAXSS_DATA says. Only names and sizes are looked at.
Next: plans.py says which series are in the folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raxss.data.datasets.dataset import Dataset
from raxss.errors import DataError

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
