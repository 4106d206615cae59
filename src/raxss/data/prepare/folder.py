"""Prepared folder: its files, and reading of its series, memory-mapped.

    FOLDER/                 written whole by `raxss.data.prepare.preparing.prepare`
      prepared.json         format, source, preparation, hashes of all that went in and came out
      series.parquet        one row per series: name, label, origin, rate, length, where its samples are
      samples/*.npy         float32, one file per recording: its series one after the other, variates × time
      problems.json         what was absent, unmatched, left out or doubtful, by name

    FOLDER -> PreparedCollection: series whose samples are mapped from the disk when they are needed

Nothing is unpickled. What does not match its hash is refused; samples are hashed with ``verify=True``, as the
commands do. Next: ../splits.py, method/windows.py.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from raxss._core.atomic import MARK, read_parquet, sha256_of
from raxss._core.bounded import read_json
from raxss._core.store import seal_of
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.series import ORIGINS, Series, SeriesCollection
from raxss.errors import RAxSSError, RecordingError, display_name

if TYPE_CHECKING:
    import pandas as pd

FORMAT: Final = "raxss-prepared-1"
FACTS: Final = "prepared.json"
TABLE: Final = "series.parquet"
PROBLEMS: Final = "problems.json"
COLUMNS: Final = {
    **dict.fromkeys(("name", "label", *ORIGINS, "group"), "str"),
    "rate": "float",
    "n_variates": "int",
    "n_samples": "int",
    "start_seconds": "float",
    "original_rate": "float",
    "unit": "str",
    "finite_share": "float",
    "file": "str",
    "offset": "int",  # in samples from the first of the file
    "sha256": "str",
}
KINDS: Final = {  # of the facts that are used besides
    "source": str,
    "group_by": str | None,
    "n_recordings": int,
    "n_series": int,
    "labels": dict,
    "collection_hash": str,
}
SAMPLE_BYTES: Final = 4  # float32
MAX_SERIES: Final = 150_000
ROWS_AT_ONCE: Final = 4_096
N_OPEN: Final = 32  # files mapped at once; each map holds a descriptor


class MappedSeries(Series):
    """A series whose samples are memory-mapped at each access."""

    _file: str
    _file_sha256: str  # differs for a folder that took the place of another
    _offset: int  # in samples from the first of the file
    _shape: tuple[int, int]

    @classmethod
    def at(cls, **known: Any) -> MappedSeries:
        """The series with these fields."""
        series = cls.__new__(cls)
        series.__dict__.update(known)
        return series

    @property
    def samples(self) -> NDArray[Any]:  # a field there, looked up here
        """Mapped, read-only, float32."""
        if (held := self.__dict__.get("_held")) is not None:
            return held
        n_samples = self.n_variates * self.n_samples
        stretch = _mapped(self._file, self._file_sha256)[self._offset : self._offset + n_samples]
        if stretch.size != n_samples:
            raise _damaged(Path(self._file).parents[1], f"{Path(self._file).name!r} is too short")
        return stretch.reshape(self._shape)

    @samples.setter  # for dataclasses.replace
    def samples(self, samples: NDArray[Any]) -> None:
        self.__dict__.update(_held=samples, _shape=samples.shape)

    @property
    def n_variates(self) -> int:
        """How many sequences run side by side."""
        return self._shape[0]

    @property
    def n_samples(self) -> int:
        """T_i, the number of time points."""
        return self._shape[1]


@lru_cache(maxsize=N_OPEN)
def _mapped(file: str, file_sha256: str) -> NDArray[np.float32]:
    """All samples of a file, mapped."""
    try:
        samples = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, SyntaxError, TokenError) as error:  # numpy parses the header as Python
        raise _damaged(Path(file).parents[1], f"{Path(file).name!r} cannot be read") from error
    if samples.ndim != 1 or samples.dtype != np.dtype("<f4"):
        raise _damaged(
            Path(file).parents[1],
            f"{Path(file).name!r} has {samples.ndim} dimensions of {samples.dtype}, not one of float32",
        )
    return np.asarray(samples)


class PreparedCollection(SeriesCollection):
    """The series of a prepared folder, with its ``prepared.json`` (facts) and ``series.parquet`` (table)."""

    def __init__(self, folder: Path, facts: dict[str, Any], table: pd.DataFrame) -> None:
        self.folder, self.facts, self.table = folder, facts, table
        self.preparation = Preparation.parse(facts["preparation"])
        super().__init__(_series(folder, row, facts) for row in _rows(table))

    @property
    def collection_hash(self) -> str:
        """Of the content alone: the same for the same series, wherever and however they were prepared."""
        return str(self.facts["collection_hash"])


def _series(folder: Path, row: dict[Any, Any], facts: dict[str, Any]) -> MappedSeries:
    known = {column: value for column, value in row.items() if not (value is None or value != value)}
    return MappedSeries.at(
        _file=str(folder / row["file"]),
        _file_sha256=facts["outputs"][row["file"]]["sha256"],
        _offset=int(row["offset"]),
        _shape=(int(row["n_variates"]), int(row["n_samples"])),
        rate=float(row["rate"]),
        label=known.get("label"),
        group=known.get("group"),
        name=row["name"],
        start_seconds=float(row["start_seconds"]),
        gaps_marked=row["finite_share"] < 1,
        origin={level: known[level] for level in ORIGINS if level in known},
        preparation=facts["preparation"],
    )


def is_prepared(folder: Path | str) -> bool:
    """Whether `raxss prepare` made this folder."""
    return os.path.isfile(Path(folder) / FACTS)


def read_prepared(folder: Path | str, *, verify: bool = False) -> PreparedCollection:
    """Open a prepared folder; samples are mapped when they are needed.

    Facts and table are checked against their hashes, sample files by their size; with ``verify`` these too are read
    and hashed.
    """
    folder = Path(os.path.abspath(folder))
    facts = _read_facts(folder)
    for name, expected in facts["outputs"].items():
        _check_file(folder, name, expected, hashed=verify or not name.startswith("samples/"))
    return PreparedCollection(folder, facts, _read_table(folder, facts))


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts = read_json(folder / FACTS)
    except FileNotFoundError as error:
        raise RecordingError(
            f"the folder {display_name(folder)} is no prepared collection: it has no {FACTS}. "
            "Make one with: raxss prepare SOURCE --out FOLDER."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(folder, f"{FACTS} cannot be read{_reason(error)}") from error
    found = facts.get("format") if isinstance(facts, dict) else None
    if found != FORMAT:
        raise RecordingError(
            f"the folder {display_name(folder)} is no prepared collection that this version reads: its format is "
            f"{found!r}, not {FORMAT!r}. Prepare it again."
        )
    if not (folder / MARK).is_file():
        raise _damaged(folder, f"the file {MARK} that marks it is missing")
    try:
        unchanged = facts["seal"] == seal_of(facts)
        Preparation.parse(facts["preparation"])
        outputs = {
            name: (re.fullmatch("[0-9a-f]{64}", output["sha256"]), output["n_bytes"] >= 0)
            for name, output in facts["outputs"].items()
        }
        complete = {TABLE, PROBLEMS} <= set(outputs) and all(map(all, outputs.values()))
        complete &= all(isinstance(facts[name], kind) for name, kind in KINDS.items())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(folder, f"{FACTS} lacks something") from error
    if not (unchanged and complete):
        raise _damaged(folder, f"{FACTS} was changed after it was written")
    return facts


def _check_file(folder: Path, name: str, expected: dict[str, Any], *, hashed: bool) -> None:
    """Raise unless a file is inside the folder, of the listed size and, with ``hashed``, of the listed hash."""
    if name not in (TABLE, PROBLEMS) and not re.fullmatch(r"samples/[A-Za-z0-9_][A-Za-z0-9._-]*\.npy", name):
        raise _damaged(folder, f"{display_name(name)} is no name of a sample file")
    file = folder / name
    try:
        inside = file.resolve(strict=True).is_relative_to(folder.resolve())
        size = file.stat().st_size
        if not inside:
            raise _damaged(folder, f"{display_name(file)} leads out of it")
        if size != expected["n_bytes"]:
            raise _damaged(folder, f"{display_name(file)} has {size:,} bytes, not {expected['n_bytes']:,}")
        if hashed and sha256_of(file) != expected["sha256"]:
            raise _damaged(folder, f"{display_name(file)} was changed after it was written")
    except OSError as error:
        raise _damaged(
            folder, f"{display_name(file)} cannot be read: {error.strerror or 'no such file'}"
        ) from error


def _read_table(folder: Path, facts: dict[str, Any]) -> pd.DataFrame:
    try:
        table = read_parquet(folder / TABLE)
    except Exception as error:  # pyarrow raises whatever its parser stumbles over
        raise _damaged(folder, f"{TABLE} cannot be read{_reason(error)}") from error
    if len(table) > MAX_SERIES:
        raise RecordingError(
            f"the prepared folder {display_name(folder)} lists {len(table):,} series; at most {MAX_SERIES:,} are "
            "read, because each is kept in memory. Prepare parts of the data into folders of their own."
        )
    if list(table.columns) != list(COLUMNS) or len(table) == 0 or not table["name"].is_unique:
        raise _damaged(folder, f"{TABLE} does not have the columns or rows that it should")
    try:
        for row in _rows(table):
            n_samples = row["n_variates"] * row["n_samples"]
            n_bytes = facts["outputs"][row["file"]]["n_bytes"]
            fits = row["offset"] >= 0 and (row["offset"] + n_samples) * SAMPLE_BYTES < n_bytes
            sound = math.isfinite(row["rate"]) and row["rate"] > 0 and math.isfinite(row["start_seconds"])
            if not (fits and sound and row["n_variates"] > 0 and row["n_samples"] > 0):
                raise _damaged(folder, f"{TABLE} has impossible figures for series {row['name']!r}")
    except (KeyError, TypeError) as error:
        raise _damaged(folder, f"{TABLE} names a file that is not there, or has text for a number") from error
    return table


def _rows(table: pd.DataFrame) -> Iterator[dict[Any, Any]]:
    """The rows of a table, some at a time: all of them as dictionaries would take far more than the table."""
    for first in range(0, len(table), ROWS_AT_ONCE):
        yield from table.iloc[first : first + ROWS_AT_ONCE].to_dict("records")


def _reason(error: Exception) -> str:
    """Message of an error of raxss, in brackets."""
    return f" ({str(error).removesuffix('.')})" if isinstance(error, RAxSSError) else ""


def _damaged(folder: Path, what: str) -> RecordingError:
    return RecordingError(
        f"the prepared folder {display_name(folder)} is damaged: {what}. Remove it, and prepare it again."
    )
