"""Which samples does this .npy, .npz or .csv file hold?

    a file that inspection/arrays.py did not refuse -> ArrayRecording, whose samples are in memory as stored

Nothing is unpickled. Next: opening.py opens these and all else; files.py makes series of them.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from raxss.data.inspection.arrays import check_member, table_blocks
from raxss.data.inspection.confinement import open_confined, root_of
from raxss.data.inspection.fields import Refused
from raxss.data.inspection.time_columns import axis_candidates, regular_times, time_axis
from raxss.data.recording import SMALL_BYTES, ArrayRecording, TooLongError, refuse_too_long
from raxss.errors import RecordingError, shown

TIMES_TOLERANCE = (
    1e-3  # of a rate that is given: times in a file are rounded, and then the given one is exact
)


@dataclass(frozen=True, eq=False)
class _Content:
    """``samples (n_variates, n_samples)``; rate, channel names and start where the file tells them."""

    samples: NDArray[Any]
    rate: float | None = None
    channels: tuple[str, ...] = ()
    start_seconds: float = 0.0


def open_array(path: Path, root: Path | None = None, *, rate: float | None = None) -> ArrayRecording:
    """Read a recording that is kept as arrays and was not refused. ``rate``: for a file that tells none.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two.csv"
    >>> _ = path.write_text("left,right\\n1,10\\n2,20\\n3,30\\n")
    >>> open_array(path, rate=4.0).channels[1]
    Channel(name='right', rate=4.0, unit='')
    """
    content = _content(path, root or root_of(path))
    if content.rate is not None and (rate is None or abs(content.rate - rate) > TIMES_TOLERANCE * rate):
        rate = content.rate  # opening.py's callers refuse another one than they were given
    rate = 1.0 if rate is None else rate
    if not (math.isfinite(rate) and rate > 0):
        raise RecordingError(
            f"recording {shown(path)} has a rate of {rate} Hz; a finite number above 0 is needed."
        )
    return ArrayRecording(
        path.name, content.samples, rate=rate, names=content.channels, start_seconds=content.start_seconds
    )


def load_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str) -> NDArray[Any]:
    """One array of a zip archive, unless it would unpack to far more than recordings do."""
    try:
        check_member(archive, member, what)
    except Refused as refused:
        raise RecordingError(refused.problem.message) from None
    with archive.open(member) as file:
        return _load(file, member.file_size, what)


def _content(path: Path, root: Path) -> _Content:
    """What the file holds; whatever a decoder stumbles over, in our words."""
    readers: dict[str, Callable[[BinaryIO], _Content]] = {
        ".npz": _read_npz,
        ".npy": lambda file: _Content(_by_variate(_load(file, os.fstat(file.fileno()).st_size, "it"))),
        ".csv": _read_csv,
    }
    try:
        with open_confined(path, root) as file:
            return readers[path.suffix.lower()](file)
    except TooLongError as error:
        raise TooLongError(f"recording {shown(path)} cannot be read: {error}") from None
    except (RecordingError, Refused) as error:
        raise RecordingError(f"recording {shown(path)} cannot be read: {error}") from None
    except MemoryError:
        raise RecordingError(
            f"recording {shown(path)} needs more memory than there is. If it is really that long, cut it into "
            "several; if not, it is damaged: copy or write it again."
        ) from None
    except Exception as error:  # a parser quotes the file, so only what it stumbled over is told
        raise RecordingError(
            f"recording {shown(path)} is damaged ({type(error).__name__}). Copy or write it again."
        ) from None


def _load(file: IO[bytes], n_bytes: int, what: str) -> NDArray[Any]:
    """An array, of which ``n_bytes`` are there, if they are not more than the memory that is free."""
    refuse_too_long(n_bytes, what)
    array = np.asarray(np.lib.format.read_array(file, allow_pickle=False))  # type: ignore[no-untyped-call]
    if file.read(1):  # and so to the end, where a zip archive has its checksum compared
        raise RecordingError(f"{what} has more bytes than its shape accounts for. Write it again.")
    return array


def _by_variate(samples: NDArray[Any]) -> NDArray[Any]:
    return samples.reshape(-1, samples.shape[-1])


def _read_npz(file: BinaryIO) -> _Content:
    with zipfile.ZipFile(file) as archive:
        members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        values = "samples" if "samples" in members else "data"
        arrays = {
            key: load_member(archive, members[key], f"array {key!r}")
            for key in (values, "rate", "channels", "times_s")
            if key in members
        }
    samples = _by_variate(arrays[values])
    told = float(arrays["rate"].reshape(())) if "rate" in arrays else None
    channels = tuple(str(one) for one in arrays["channels"].reshape(-1)) if "channels" in arrays else ()
    if "times_s" not in arrays:
        return _Content(samples, told, channels)
    start, timed = regular_times(arrays["times_s"], "array 'times_s'")
    if told is not None and not math.isclose(told, timed, rel_tol=1e-6):
        raise RecordingError(
            f"it has a rate of {told:g} Hz and times at {timed:g} Hz; one of them is needed."
        )
    return _Content(samples, timed if told is None else told, channels, start)


def _read_csv(file: BinaryIO) -> _Content:
    """One column a variate; a first line without any number names them; a time axis is none of them."""
    names: list[str] = []
    blocks: list[NDArray[np.float64]] = []
    n_bytes, asked_at = 0, SMALL_BYTES
    for names, values in table_blocks(file):  # noqa: B007
        blocks.append(values)
        n_bytes += values.nbytes
        if n_bytes > asked_at:  # lines are taken in already, and are needed once more in another order
            refuse_too_long(n_bytes, "the table")
            asked_at = n_bytes + SMALL_BYTES
    columns = np.empty((blocks[0].shape[1], sum(map(len, blocks))))
    np.concatenate([values.T for values in blocks], axis=1, out=columns)
    axis = time_axis(names, {place: columns[place] for place in axis_candidates(names, len(columns))})
    kept = [place for place in range(len(columns)) if place not in axis.columns]
    channels = tuple(names[place] for place in kept) if names else ()
    samples = columns if len(kept) == len(columns) else columns[kept]
    return _Content(samples, axis.rate, channels, axis.start_seconds)
