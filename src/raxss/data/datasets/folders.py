"""Where does a dataset lie, and how much of it is there?

    name, root -> its folder -> complete, partly (n of m files) or absent

The root holds one folder a dataset, named like it: ROOT/bonn, ROOT/ds003029. Where there is no such folder, but
the dataset's files lie in the root itself, the root is taken as its folder. The root is given, or is what
the variable RAXSS_DATA says. Only names and sizes are looked at.
Next: plans.py says which series are in the folder.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raxss.data.confinement import open_confined
from raxss.data.datasets.listing import ListedFile, listed_files, local_path
from raxss.data.datasets.registry import Dataset
from raxss.data.tables import MAX_TABLE_ROWS, MalformedCsvError, records
from raxss.errors import DataError, RecordingError, shown

ROOT_VARIABLE = "RAXSS_DATA"
MAX_REFERENCE_BYTES = 2**24
CINC_LETTERS = {"N": "normal", "A": "AF", "O": "other", "~": "noisy"}

State = Literal["complete", "partly", "absent", "inside", "unknown"]


@dataclass(frozen=True)
class OnDisk:
    """How much of a dataset is there.

    Attributes
    ----------
    state
        ``"inside"`` needs no disk; ``"unknown"``: no root was given.
    absent
        Names of the files that are not there, relative to the dataset's folder.
    """

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
    """Where a dataset lies, or would lie, below the root.

    Examples
    --------
    >>> from raxss.data.datasets.registry import DATASETS
    >>> folder_of(DATASETS["bonn"], "data").as_posix()
    'data/bonn'
    """
    found = data_root(root)
    if found is None:
        raise DataError(
            f"dataset {dataset.name!r} is not part of the package, and where it lies is not known. Say it with "
            f"root=... (--root on the command line) or in the variable {ROOT_VARIABLE}: the folder that holds "
            f"{dataset.folder!r}. It comes from {dataset.source}."
        )
    below = found / dataset.folder
    return found if not below.is_dir() and _lies_in(dataset, found) else below


def on_disk(dataset: Dataset, root: Path | str | None = None) -> OnDisk:
    """How much of a dataset is below the root.

    Examples
    --------
    >>> from raxss.data.datasets.registry import DATASETS
    >>> print(on_disk(DATASETS["sample"]), on_disk(DATASETS["bonn"], "/nowhere"))
    inside absent
    """
    if dataset.where != "disk":
        return OnDisk("inside")
    if data_root(root) is None:
        return OnDisk("unknown")
    return in_folder(dataset, folder_of(dataset, root))


def in_folder(dataset: Dataset, folder: Path) -> OnDisk:
    """How much of a dataset is in its folder."""
    wanted, absent = _files(dataset, folder)
    n_present = wanted - len(absent)
    state: State = "complete" if not absent else "partly" if n_present else "absent"
    return OnDisk(state, n_present, wanted, tuple(absent))


def read_reference(folder: Path) -> tuple[Path, dict[str, str]]:
    """CinC 2017's ``REFERENCE.csv``: its path, and the label of each record by name."""
    path = next(
        (
            one
            for one in (folder / "training2017" / "REFERENCE.csv", folder / "REFERENCE.csv")
            if one.is_file()
        ),
        folder / "training2017" / "REFERENCE.csv",
    )
    try:
        with open_confined(path, folder) as file:
            text = file.read(MAX_REFERENCE_BYTES).decode("utf-8-sig")
        rows = list(records(text.encode(), f"the labels {shown(path)} of cinc2017", MAX_TABLE_ROWS))
    except (OSError, UnicodeDecodeError, MalformedCsvError) as error:
        raise RecordingError(
            f"the labels {shown(path)} of cinc2017 cannot be read ({_reason(error)}). Copy the file again."
        ) from error
    labels: dict[str, str] = {}
    for number, row in rows:
        cells = [cell.strip() for cell in row]
        if len(cells) != 2 or not re.fullmatch(r"[A-Za-z0-9_-]+", cells[0]) or cells[1] not in CINC_LETTERS:
            raise RecordingError(
                f"the labels {shown(path)} of cinc2017 have {','.join(cells)[:40]!r} in line {number}; a record's "
                f"name and one of {', '.join(CINC_LETTERS)} are needed. Copy the file again."
            )
        if labels.setdefault(cells[0], CINC_LETTERS[cells[1]]) != CINC_LETTERS[cells[1]]:
            raise RecordingError(
                f"the labels {shown(path)} of cinc2017 name record {cells[0]!r} twice, with different labels; "
                f"line {number} is the second. Copy the file again."
            )
    return path, labels


def record_folder(reference: Path, folder: Path) -> Path:
    """Where CinC 2017's records lie: beside the table, or in ``training2017`` below it."""
    inner = folder / "training2017"
    return inner if inner.is_dir() else reference.parent


def _files(dataset: Dataset, folder: Path) -> tuple[int, list[str]]:
    """How many files are wanted, and the names of those that are not there."""
    if listed := listed_files(dataset.name):
        return len(listed), [one.path for one in listed if not _is_whole(folder, one)]
    absent = [names[0] for names in dataset.files if not _any_of(folder, names)]
    n_wanted = len(dataset.files)
    if dataset.name == "cinc2017" and not absent:
        reference, labels = read_reference(folder)
        home = record_folder(reference, folder)
        there = {one.name for one in os.scandir(home)}
        records = [f"{name}{suffix}" for name in labels for suffix in (".hea", ".mat")]
        prefix = home.relative_to(folder).as_posix()
        absent = [name if prefix == "." else f"{prefix}/{name}" for name in records if name not in there]
        n_wanted += len(records)
    return n_wanted, absent


def _is_whole(folder: Path, listed: ListedFile) -> bool:
    try:
        return local_path(folder, listed).stat().st_size == listed.size
    except OSError:
        return False


def _any_of(folder: Path, names: tuple[str, ...]) -> bool:
    return any(True for name in names for _ in folder.glob(name))


def _lies_in(dataset: Dataset, folder: Path) -> bool:
    """Whether files that only this dataset has are right in that folder."""
    listed = [one for one in listed_files(dataset.name) if one.path.startswith("sub-")]
    if listed:
        return any(local_path(folder, one).exists() for one in listed)
    return any(_any_of(folder, names) for names in dataset.files)


def _reason(error: Exception) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)
