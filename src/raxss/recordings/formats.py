"""What is in this file, and can it be true?

    .npy, .npz, .csv, WFDB record -> Content: samples (n_variates, n_samples), rate, channel names

A file's own words about its size are compared with its real size before memory is taken: a damaged or hostile
header of a hundred bytes can declare terabytes. Nothing is unpickled.
Next: files.py makes series of these.
"""

from __future__ import annotations

import csv
import math
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from raxss.errors import MissingExtraError, RecordingError

WFDB_SUFFIXES = (".hea", ".dat", ".mat")
SUFFIXES = (".npz", ".npy", ".csv", *WFDB_SUFFIXES)
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
    """What a file holds: ``samples (n_variates, n_samples)``; rate and channel names where it tells them."""

    samples: NDArray[Any]
    rate: float | None = None
    channels: tuple[str, ...] = ()


def read_content(path: Path) -> Content:
    """Read a recording of any known format.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two.csv"
    >>> _ = path.write_text("left,right\\n1,10\\n2,20\\n3,30\\n")
    >>> read_content(path)
    Content(samples=array([[ 1.,  2.,  3.],
           [10., 20., 30.]]), rate=None, channels=('left', 'right'))
    """
    readers: dict[str, Callable[[Path], Content]] = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv}
    suffix = path.suffix.lower()
    has_header = suffix not in readers and _header_of(path).is_file()
    is_record = suffix in WFDB_SUFFIXES or has_header
    if not has_header and not path.exists():
        raise RecordingError(
            f"recording {path.name!r} was not found; check the path, which is taken as relative to the "
            "manifest or to the current folder."
        )
    if not is_record and (path.is_dir() or suffix not in readers):
        found = "a folder" if path.is_dir() else f"of type {suffix or 'unknown'}"
        raise RecordingError(
            f"recording {path.name!r} is {found}; a file of type {', '.join(SUFFIXES)} or the name of a WFDB "
            "record is needed."
        )
    try:
        return _read_wfdb(path) if is_record else readers[suffix](path)
    except OSError as error:
        raise RecordingError(
            f"recording {path.name!r} cannot be read: {error.strerror or error}. Check the file and its "
            "permissions."
        ) from error


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
    except ValueError as error:
        raise RecordingError(
            f"{what} is not an array in NumPy's format ({error}). Write it again with numpy.save."
        ) from error
    if dtype.hasobject:
        raise RecordingError(
            f"{what} holds Python objects, which only pickle can read, and pickle can run code; numbers are "
            "needed. Write it again as an array of floats."
        )
    declared, present = math.prod(shape) * dtype.itemsize, n_bytes - file.tell()
    if any(size < 0 for size in shape) or declared > present:
        raise RecordingError(
            f"{what} declares shape {shape} of {dtype}, {declared:,} bytes, and has {present:,}; the file is "
            "cut off or damaged. Copy or write it again."
        )
    file.seek(0)
    try:
        return np.asarray(formats.read_array(file, allow_pickle=False))  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise RecordingError(f"{what} is cut off or damaged ({error}). Copy or write it again.") from error


def _read_npy(path: Path) -> Content:
    what = f"recording {path.name!r}"
    with open(path, "rb") as file:
        return Content(_checked(_load_array(file, path.stat().st_size, what), what))


def _read_npz(path: Path) -> Content:
    what = f"recording {path.name!r}"
    try:
        with zipfile.ZipFile(path) as archive:
            members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            if "samples" not in members:
                raise RecordingError(
                    f"{what} has no array 'samples'; found are {', '.join(map(repr, members)) or 'none'}. "
                    "Write it with numpy.savez(path, samples=..., rate=...), samples being variates × time."
                )
            arrays = {
                key: _load_member(archive, members[key], f"{what}, array {key!r},")
                for key in ("samples", "rate", "channels")
                if key in members
            }
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise RecordingError(f"{what} is not a whole .npz file ({error}). Copy or write it again.") from error
    samples = _checked(arrays["samples"], f"{what}, array 'samples',")
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
    return Content(samples, None if rate is None else float(rate.reshape(())), channels)


def _load_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str) -> NDArray[Any]:
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
    what = f"recording {path.name!r}"
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [line for line in file if line.strip()]
        first = next(csv.reader(lines[:1]), [])
        channels = () if any(map(_is_number, first)) else tuple(cell.strip() for cell in first)
        del lines[: bool(channels)]
        columns = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None) if lines else np.empty((0, 0))
    except (ValueError, csv.Error) as error:
        raise RecordingError(
            f"{what} {_first_fault(path) or f'is no table of numbers ({error}).'}"
        ) from error
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
                        f"has {cell.strip()[:40]!r} in line {reader.line_num}; numbers separated by commas "
                        "are needed. Write nan where a sample is missing."
                    )
    return ""


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _header_of(path: Path) -> Path:
    """The .hea file of a WFDB record, given by any of its files or by its bare name."""
    return (
        path.with_suffix(".hea")
        if path.suffix.lower() in WFDB_SUFFIXES
        else path.with_name(path.name + ".hea")
    )


def _read_wfdb(path: Path) -> Content:
    """A WFDB record in physical units."""
    header_path, what = _header_of(path), f"WFDB record {path.name!r}"
    if not header_path.is_file():
        raise RecordingError(
            f"{what} has no header {header_path.name!r} beside it, which says how to read it. Add the .hea "
            "file, or write the samples as .npz."
        )
    try:
        import wfdb
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs the package wfdb, which is not installed. Install it with: pip install 'raxss[bids]'"
        ) from error
    record = str(header_path.with_suffix(""))
    try:
        header = wfdb.rdheader(record)
    except Exception as error:  # wfdb raises whatever its parser stumbles over
        raise RecordingError(f"{what} has a header that cannot be read ({error}). Copy it again.") from error
    if not isinstance(header, wfdb.Record) or not header.n_sig:
        raise RecordingError(f"{what} has several segments or no signals; a record of one segment is needed.")
    _check_wfdb_sizes(header, header_path.parent, what)
    try:
        read = wfdb.rdrecord(record)
    except Exception as error:
        raise RecordingError(f"{what} cannot be read ({error}). Copy its files again.") from error
    return Content(
        _checked(np.ascontiguousarray(read.p_signal.T), what), float(read.fs), tuple(read.sig_name)
    )


def _check_wfdb_sizes(header: Any, folder: Path, what: str) -> None:
    """The data files are there and as long as the header says. (wfdb refuses names with a folder in them.)"""
    needed: dict[str, float] = {}
    for name, fmt, per_frame, offset in zip(
        header.file_name, header.fmt, header.samps_per_frame, header.byte_offset, strict=True
    ):
        sample_bytes = WFDB_SAMPLE_BYTES.get(fmt, 2 / MAX_EXPANSION)  # compressed: a bound, not a size
        needed[name] = needed.get(name, offset or 0) + (header.sig_len or 0) * (per_frame or 1) * sample_bytes
    for name, n_bytes in needed.items():
        file = folder / name
        if not file.is_file():
            raise RecordingError(f"{what} lacks its data file {name!r}. Copy it beside the header.")
        if file.stat().st_size < math.floor(n_bytes):
            raise RecordingError(
                f"{what} declares {header.sig_len:,} samples, {math.floor(n_bytes):,} bytes in {name!r}, "
                f"which has {file.stat().st_size:,}; it is cut off or damaged. Copy it again."
            )
