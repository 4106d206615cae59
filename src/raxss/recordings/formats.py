"""What is in this file, and can it be true?

    .npy, .npz, .csv -> Content: samples (n_variates, n_samples), rate, channel names, time of start

A file's own words about its size are compared with its real size before memory is taken: a damaged or hostile
header of a hundred bytes can declare terabytes. Nothing is unpickled.
Next: opening.py opens these and all else lazily; files.py makes series of them.
"""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from raxss.errors import RecordingError, shown

WFDB_SUFFIXES = (".hea", ".dat", ".mat")
BRAINVISION_SUFFIXES = (".vhdr", ".eeg", ".vmrk")
SUFFIXES = (".npz", ".npy", ".csv", ".edf", ".bdf", *BRAINVISION_SUFFIXES, *WFDB_SUFFIXES)
MAX_EXPANSION = 200  # unpacked over packed bytes; recordings reach 2 to 20, flat lines 1000
ALWAYS_ALLOWED = 2**28  # bytes that any file may unpack to, however well it is packed
# bytes of one sample in the file, by WFDB's number of the storage format; compressed formats (5xx) vary
WFDB_SAMPLE_BYTES = {
    "8": 1,
    "16": 2,
    "24": 3,
    "32": 4,
    "61": 2,
    "80": 1,
    "160": 2,
    "212": 1.5,
    "310": 4 / 3,
    "311": 4 / 3,
}


@dataclass(frozen=True, eq=False)
class Content:
    """What a file holds: ``samples (n_variates, n_samples)``; rate, channel names and start where it tells them."""

    samples: NDArray[Any]
    rate: float | None = None
    channels: tuple[str, ...] = ()
    start_seconds: float = 0.0


def read_content(path: Path) -> Content:
    """Read a recording that is kept as arrays.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two.csv"
    >>> _ = path.write_text("left,right\\n1,10\\n2,20\\n3,30\\n")
    >>> read_content(path)
    Content(samples=array([[ 1.,  2.,  3.],
           [10., 20., 30.]]), rate=None, channels=('left', 'right'), start_seconds=0.0)
    """
    try:
        return _reader_of(path)(path)
    except RecordingError:
        raise
    except OSError as error:
        raise RecordingError(
            f"recording {shown(path)} cannot be read: {_reason(error)}. Check the path, the file and its "
            "permissions."
        ) from None
    except MemoryError:
        raise RecordingError(
            f"recording {shown(path)} needs more memory than there is. If it is really that long, cut it into "
            "several; if not, it is damaged: copy or write it again."
        ) from None
    except Exception as error:  # decoders raise whatever they stumble over
        raise RecordingError(
            f"recording {shown(path)} is damaged ({_reason(error)}). Copy or write it again."
        ) from None


def _reader_of(path: Path) -> Callable[[Path], Content]:
    """What reads this file, if it is there and of a known type."""
    readers: dict[str, Callable[[Path], Content]] = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv}
    suffix = path.suffix.lower()
    if not path.exists():
        raise RecordingError(
            f"recording {shown(path)} was not found; check the path, which is taken as relative to the "
            "manifest or to the current folder."
        )
    if path.is_dir() or suffix not in readers:
        found = "a folder" if path.is_dir() else f"of type {shown(suffix)}" if suffix else "of unknown type"
        raise RecordingError(
            f"recording {shown(path)} is {found}; a file of type {', '.join(SUFFIXES)} or the name of a WFDB "
            "record is needed. For many recordings, write a manifest: a CSV with a column 'path'."
        )
    return readers[suffix]


def _reason(error: BaseException) -> str:
    """What the system says, without paths; of a parser only what it stumbled over, because it quotes the file."""
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__


def _clipped(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _checked(samples: NDArray[Any], what: str) -> NDArray[Any]:
    """``(n_variates, n_samples)`` of numbers, at least one of them, or an error that says what was found."""
    if samples.dtype.kind not in "iufb":
        raise RecordingError(f"{what} holds values of type {samples.dtype}; real numbers are needed.")
    if samples.ndim not in (1, 2):
        raise RecordingError(
            f"{what} has {samples.ndim} dimensions, shape {samples.shape}; (n_samples,) or (n_variates, "
            "n_samples) is needed. Store one series per file."
        )
    if samples.size == 0:
        raise RecordingError(
            f"{what} has no samples, shape {samples.shape}; at least one is needed. Leave it out."
        )
    return samples.reshape(-1, samples.shape[-1])


def _load_array(file: IO[bytes], n_bytes: int, what: str) -> NDArray[Any]:
    """An array in NumPy's format, of which ``n_bytes`` are there, after a look at its header."""
    formats = np.lib.format
    try:
        version = formats.read_magic(file)  # type: ignore[no-untyped-call]
        if version not in ((1, 0), (2, 0)):  # (3, 0) is for named fields alone
            raise ValueError(f"version {version} of the format")
        read_header = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
        shape, _, dtype = read_header(file)  # type: ignore[no-untyped-call]
    except (OSError, zipfile.BadZipFile):
        raise
    except Exception as error:  # the header is parsed as Python: bad syntax, types, depth, whatever
        raise RecordingError(
            f"{what} is not an array in NumPy's format ({_reason(error)}). Write it again with numpy.save."
        ) from None
    if dtype.hasobject:
        raise RecordingError(
            f"{what} holds Python objects, which only pickle can read, and pickle can run code; numbers are "
            "needed. Write it again as an array of floats."
        )
    declared, present = math.prod(shape) * dtype.itemsize, n_bytes - file.tell()
    # values of no bytes would let any number of them through
    if any(size < 0 for size in shape) or dtype.itemsize == 0 or declared > present:
        declares = _clipped(f"declares shape {shape} of {dtype}, {declared:,} bytes")
        raise RecordingError(
            f"{what} {declares}, and has {present:,}; the file is cut off or damaged. Copy or write it again."
        )
    file.seek(0)
    try:
        return np.asarray(formats.read_array(file, allow_pickle=False))  # type: ignore[no-untyped-call]
    except (TypeError, ValueError) as error:
        raise RecordingError(
            f"{what} is cut off or damaged ({_reason(error)}). Copy or write it again."
        ) from None


def _read_npy(path: Path) -> Content:
    what = f"recording {shown(path)}"
    with open(path, "rb") as file:
        return Content(_checked(_load_array(file, path.stat().st_size, what), what))


def _read_npz(path: Path) -> Content:
    what = f"recording {shown(path)}"
    try:
        with zipfile.ZipFile(path) as archive:
            members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            values = next((key for key in ("samples", "data") if key in members), None)
            if values is None:
                raise RecordingError(
                    f"{what} has no array 'samples'; found are {', '.join(map(repr, members)) or 'none'}. "
                    "Write it with numpy.savez(path, samples=..., rate=...), samples being variates × time."
                )
            arrays = {
                key: load_member(archive, members[key], f"{what}, array {key!r},")
                for key in (values, "rate", "channels", "times_s")
                if key in members
            }
    except (RecordingError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever zip and its four ways to pack stumble over
        raise RecordingError(
            f"{what} is not a whole .npz file ({_reason(error)}). Copy or write it again."
        ) from None
    samples = _checked(arrays[values], f"{what}, array {values!r},")
    rate = arrays.get("rate")
    if rate is not None and (rate.size != 1 or rate.dtype.kind not in "iuf"):
        raise RecordingError(
            f"{what} has a 'rate' of shape {rate.shape} and type {rate.dtype}; one number is needed."
        )
    channels = tuple(str(one) for one in arrays["channels"].reshape(-1)) if "channels" in arrays else ()
    if channels and len(channels) != len(samples):
        raise RecordingError(
            f"{what} names {len(channels)} channels and has {len(samples)} variates; one name a variate is needed."
        )
    told = None if rate is None else float(rate.reshape(()))
    if "times_s" not in arrays:
        return Content(samples, told, channels)
    start, timed = _regular_times(arrays["times_s"], samples.shape[1], f"{what}, array 'times_s',")
    if told is not None and not math.isclose(told, timed, rel_tol=1e-6):
        raise RecordingError(
            f"{what} has a rate of {told:g} Hz and times at {timed:g} Hz; one of them is needed."
        )
    return Content(samples, timed if told is None else told, channels, start)


def _regular_times(times: NDArray[Any], n_samples: int, what: str) -> tuple[float, float]:
    """When the first sample was taken, and how many follow each second."""
    if times.shape != (n_samples,) or times.dtype.kind not in "iuf" or n_samples < 2:
        raise RecordingError(
            f"{what} has shape {times.shape} and type {times.dtype}; one number a sample, for {n_samples} of "
            "them and at least 2, is needed."
        )
    first, last = float(times[0]), float(times[-1])
    step = (last - first) / (n_samples - 1)
    if not np.all(
        np.abs(times - np.linspace(first, last, n_samples)) < 0.01 * step
    ):  # nor if they fall or are NaN
        raise RecordingError(
            f"{what} does not rise evenly; one step from each sample to the next is needed. Store each stretch "
            "between gaps by itself."
        )
    return first, float(f"{1 / step:.9g}")  # times are rounded, so a rate of 999.9999999999 means 1000


def load_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str) -> NDArray[Any]:
    """One array of a zip archive, unless it would unpack to far more than recordings do."""
    if member.file_size > max(ALWAYS_ALLOWED, MAX_EXPANSION * member.compress_size):
        raise RecordingError(
            f"{what} would unpack from {member.compress_size:,} to {member.file_size:,} bytes; at most "
            f"{MAX_EXPANSION} times as much is read. If it is meant so, write it unpacked with numpy.savez."
        )
    with archive.open(member) as file:
        return _load_array(file, member.file_size, what)


def _read_csv(path: Path) -> Content:
    """One column a variate; a first line without any number names the channels."""
    what = f"recording {shown(path)}"
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [line for line in file if line.strip()]
        first = next(csv.reader(lines[:1]), [])
        channels = () if any(map(_is_number, first)) else tuple(cell.strip() for cell in first)
        del lines[: bool(channels)]
        columns = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None) if lines else np.empty((0, 0))
    except (ValueError, csv.Error) as error:
        raise RecordingError(
            f"{what} {_first_fault(path) or f'is no table of numbers ({_reason(error)}).'}"
        ) from None
    samples = _checked(np.ascontiguousarray(columns.T), what)
    if channels and len(channels) != len(samples):
        raise RecordingError(
            f"{what} names {len(channels)} channels in line 1 and has {len(samples)} columns; one name a "
            "column is needed."
        )
    return Content(samples, None, channels)


def _first_fault(path: Path) -> str:
    """Which line of a CSV recording is the first that is no row of numbers."""
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        width = 0
        for row in reader:
            if not row or (reader.line_num == 1 and not any(map(_is_number, row))):
                continue
            width = width or len(row)
            if len(row) != width:
                return (
                    f"has {len(row)} values in line {reader.line_num} and {width} in the lines before; every "
                    "line needs one value a variate."
                )
            for cell in row:
                if not _is_number(cell):
                    return (
                        f"has {_shown_cell(cell)} in line {reader.line_num}; numbers separated by commas "
                        "are needed. Write nan where a sample is missing."
                    )
    return ""


def _shown_cell(cell: str) -> str:
    """A wrong number or sign may be quoted, a word may be somebody's name."""
    cell = cell.strip()
    return "a word" if any(map(str.isalpha, cell)) else repr(cell[:40])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
