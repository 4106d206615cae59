"""Dataset: base class of named datasets, with their facts and the plan of their series.

    Dataset: facts (licence, citation, classes, files, ...), plan(folder) -> CollectionPlan

Each dataset is one object in one module of collections/; all that raxss knows of it is there. One of your own is a
subclass with a method ``plan``, made known by `raxss.data.datasets.register_dataset`.
Next: registry.py holds the objects; plans.py finds a dataset on the disk, plans and loads it by name.
"""

from __future__ import annotations

import csv
import fnmatch
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan, read_plan, sample_range
from raxss.data.recording import ArrayRecording, Recording
from raxss.data.series import Series, SeriesCollection
from raxss.errors import DataError, RecordingError, did_you_mean

Where = Literal["package", "made", "disk"]
ALWAYS = ("sourcedata",)  # comes along with every choice of subjects: the labels are there


def summarise_plan(name: str, plan: CollectionPlan) -> tuple[str, dict[str, Any]]:
    """Series, classes, rates, lengths and groups of a plan; opens every recording, reads no samples."""
    lengths: list[int] = []
    rates: set[float] = set()
    for planned in plan.recordings:
        with planned.open_recording() as recording:
            for series in planned.series:
                start, stop = sample_range(recording, series)
                lengths.append(stop - start)
                rates.add(recording.channels[series.channels[0]].rate)
    facts: dict[str, Any] = {
        "name": name,
        "series": len(plan),
        "classes": dict(sorted(Counter(str(series.label) for _, series in plan).items())),
        "variates": sorted({len(series.channels) for _, series in plan}),
        "rates": sorted(rates),
        "shortest": min(lengths),
        "median": float(np.median(lengths)),
        "longest": max(lengths),
        "group_by": plan.group_by,
        "groups": len({series.origin.get(plan.group_by or "") for _, series in plan} - {None}),
        "absent": len(plan.absent),
    }
    variates = f"{', '.join(map(str, facts['variates']))} variate{'s' * (facts['variates'] != [1])}"
    lines = [
        f"{name}: {facts['series']} series of {variates}",
        f"classes  {', '.join(f'{label} {n}' for label, n in facts['classes'].items())}",
        f"rate     {', '.join(f'{rate:g}' for rate in facts['rates'])} Hz",
        f"length   {facts['shortest']} to {facts['longest']} samples, median {facts['median']:g}",
        f"groups   {facts['groups']}, by {facts['group_by']}",
    ]
    if plan.absent:
        lines.append(f"absent   {len(plan.absent)} files, the first is {plan.absent[0]}. {plan.where_to_get}")
    return "\n".join(lines), facts


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A named dataset: facts and plan."""

    name: str
    about: str  # one line: what the series are
    licence: str
    size: int  # bytes of the whole, as published or as the parts that raxss needs
    citation: str
    doi: str
    source: str  # where to get it
    labels: tuple[str, ...]  # the classes, as series carry them
    rate: float | None  # samples per second; None where recordings differ
    group_by: str  # what must not sit on both sides of a split: a level of `raxss.data.series.ORIGINS`
    where: Where = "disk"  # below a root; "package": comes with raxss; "made": computed on the spot
    folder: str = ""  # below the root; its name where nothing is given
    # What must be there: for each part the names that will do, relative to the folder, the published one first;
    # ``*`` matches anything. Or tables of all files with sizes and checksums (`listed_files`).
    files: tuple[tuple[str, ...], ...] = ()
    tables: tuple[Path, ...] = ()
    base: str = ""  # address below which the files of ``tables`` lie, for ``raxss datasets download``
    label_file: str = ""  # without which its series have no labels, relative to the folder
    options: tuple[str, ...] = ()  # names of further options of ``plan``

    def __post_init__(self) -> None:
        if self.where == "disk" and not self.folder:
            object.__setattr__(self, "folder", self.name)

    @abstractmethod
    def plan(self, folder: Path, **options: Any) -> CollectionPlan:
        """Plan the series in a folder that exists, from names, tables and headers alone; ends with `planned`."""

    def official_parts(self, folder: Path) -> dict[str, str]:
        """Name of every series -> ``train`` or ``test`` of the published split; empty without one."""
        return {}

    def planned(
        self, folder: Path, recordings: Iterable[RecordingPlan] = (), unmatched: Sequence[str] = ()
    ) -> CollectionPlan:
        """The plan of these recordings, with the files that are absent and where to get them."""
        _, absent = self.needed(folder)
        return CollectionPlan(
            self.name,
            folder,
            tuple(recordings),
            tuple(absent),
            self.where_to_get if absent else "",
            tuple(unmatched),
            group_by=self.group_by,
        )

    def classes(self, **options: Any) -> tuple[str, ...]:
        """The labels of series that are planned with these options."""
        return self.labels

    def read(self, plan: CollectionPlan) -> SeriesCollection:
        """The series of a plan, in memory."""
        return read_plan(plan)

    def summary(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """What is in a folder, in a few numbers: the text and the JSON of ``raxss datasets summary``."""
        plan = self.plan(folder) if folder.is_dir() else self.planned(folder)
        if not len(plan):
            raise self.nothing_there()
        return summarise_plan(self.name, plan)

    # Files

    def listed(self) -> tuple[ListedFile, ...]:
        """Every file of the dataset with its checksum; empty where no table of them comes with it."""
        return listed_files(self.tables)

    def needed(self, folder: Path) -> tuple[int, list[str]]:
        """How many files are needed, and the names of those that are not in a folder, relative to it."""
        if listed := self.listed():
            return len(listed), [item.path for item in listed if not is_whole(folder, item)]
        absent = [names[0] for names in self.files if not _any_of(folder, names)]
        return len(self.files), absent

    def needed_for(self, classes: Sequence[str], absent: Sequence[str]) -> tuple[str, ...]:
        """Those of the absent files that series of some classes would come from."""
        return tuple(absent)

    def lies_in(self, folder: Path) -> bool:
        """Whether files that only this dataset has are right in a folder."""
        subjects = [item for item in self.listed() if item.path.startswith("sub-")]
        if subjects:
            return any(local_path(folder, subject).exists() for subject in subjects)
        return any(_any_of(folder, names) for names in self.files)

    @property
    def where_to_get(self) -> str:
        """Sentence on how to get absent files."""
        if self.base:
            return (
                f"Fetch it with: raxss datasets download {self.name} --root ROOT (no more than is missing is "
                f"fetched), or take it from {self.source.split()[0]}."
            )
        return (
            f"Get it from {self.source} (licence: {self.licence}) and put it into the folder {self.folder!r} "
            "below the root."
        )

    @property
    def defined_in(self) -> str:
        """Module and name of its class; the same again when a notebook cell runs twice."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def nothing_there(self) -> DataError:
        """The error where nothing of the dataset can be read."""
        return DataError(f"nothing of dataset {self.name!r} is there. {self.where_to_get}")


@dataclass(frozen=True, kw_only=True)
class SeriesDataset(Dataset):
    """A dataset whose series a function returns: they come with a package, or are made on the spot."""

    load: Callable[[], SeriesCollection]  # a function of a module, because other processes call it too
    inputs: tuple[Path, ...] = ()  # files that ``load`` reads; their hashes go into what is prepared
    where: Where = "made"

    def plan(self, folder: Path, **options: Any) -> CollectionPlan:
        """See `Dataset`."""
        recordings = (
            RecordingPlan(
                item.name,
                self.inputs,
                partial(_open_loaded, self.load, place),
                (
                    SeriesPlan(
                        item.name, tuple(range(item.n_variates)), 0, item.label, {"recording": item.name}
                    ),
                ),
            )
            for place, item in enumerate(_loaded(self.load))
        )
        return self.planned(folder, recordings)

    def read(self, plan: CollectionPlan) -> SeriesCollection:
        """See `Dataset`; samples keep the type that ``load`` gives them."""
        names = {series.name for _, series in plan}
        return SeriesCollection(
            replace(item, origin={"recording": item.name}) for item in self.load() if item.name in names
        )

    @property
    def defined_in(self) -> str:
        """Module and name of ``load``."""
        return f"{self.load.__module__}.{self.load.__qualname__}"


@lru_cache(maxsize=2)
def _loaded(load: Callable[[], SeriesCollection]) -> SeriesCollection:
    """Loaded once a process: every series is opened on its own."""
    return load()


def _open_loaded(load: Callable[[], SeriesCollection], place: int) -> Recording:
    series: Series = _loaded(load)[place]
    return ArrayRecording(series.name, series.samples, rate=series.rate)


def _any_of(folder: Path, names: Sequence[str]) -> bool:
    return any(True for name in names for _ in folder.glob(name))


# Listed files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListedFile:
    """One file: its path below the dataset's folder, its length in bytes and a checksum."""

    path: str
    size: int
    algorithm: str
    digest: str


@cache
def listed_files(tables: tuple[Path, ...]) -> tuple[ListedFile, ...]:
    """Files of tables with the columns ``path``, ``size_bytes`` and ``md5`` or ``sha256``, by their paths."""
    listed = []
    for table in tables:
        rows = csv.DictReader(table.read_text("utf-8").splitlines(), delimiter="\t")
        algorithm = "md5" if "md5" in (rows.fieldnames or ()) else "sha256"
        listed += [
            ListedFile(safe_path(row["path"]), int(row["size_bytes"]), algorithm, row[algorithm])
            for row in rows
        ]
    return tuple(sorted(listed, key=lambda item: item.path))


def safe_path(path: str) -> str:
    """A path of a list, if it surely stays below the folder that it is put into."""
    pure = PurePosixPath(path)
    odd = not path.isprintable() or any(letter in path for letter in '\\:*?"<>|')
    if odd or pure.is_absolute() or ".." in pure.parts or not pure.parts or str(pure) != path:
        raise RecordingError(
            f"the list of files names {path!r}, which is no plain path below the dataset's folder; nothing was "
            "written there. Parts separated by '/', without '..', are needed."
        )
    return path


def choose(listed: Sequence[ListedFile], only: Iterable[str]) -> tuple[ListedFile, ...]:
    """The files of some subjects (``sub-pt01`` or ``pt01``), or those whose path matches a pattern (``*.tsv``).

    What concerns all subjects, the files of the top folder and ``sourcedata``, always comes along.
    """
    only = list(only)
    if not only:
        return tuple(listed)
    tops = {item.path: item.path.split("/")[0] for item in listed}
    chosen = {path for path, top in tops.items() if "/" not in path or top in ALWAYS}
    for wanted in only:
        named = (wanted.rstrip("/"), f"sub-{wanted}")
        paths = {path for path, top in tops.items() if top in named or fnmatch.fnmatchcase(path, wanted)}
        if not paths:
            subjects = sorted({top for top in tops.values() if top.startswith("sub-")})
            raise DataError(f"no file of the dataset matches {wanted!r}{did_you_mean(wanted, subjects)}")
        chosen |= paths
    return tuple(item for item in listed if item.path in chosen)


def local_path(folder: Path, listed: ListedFile) -> Path:
    """Where a listed file lies on this disk."""
    return folder.joinpath(*PurePosixPath(listed.path).parts)


def is_whole(folder: Path, listed: ListedFile) -> bool:
    """Whether a listed file is there with its listed length."""
    try:
        return local_path(folder, listed).stat().st_size == listed.size
    except OSError:
        return False
