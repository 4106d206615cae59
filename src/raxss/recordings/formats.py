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
    try:
        return _reader_of(path)(path)
    except (RecordingError, MissingExtraError):
        raise
    except OSError as error:
        raise RecordingError(
            f"recording {shown(path)} cannot be read: {_reason(error)}. Check the path, the file and its "
            "permissions."
        ) from error
    except MemoryError as error:
        raise RecordingError(
            f"recording {shown(path)} needs more memory than there is. If it is really that long, cut it into "
            "several; if not, it is damaged: copy or write it again."
        ) from error
    except Exception as error:  # decoders raise whatever they stumble over
        raise RecordingError(
            f"recording {shown(path)} is damaged ({_reason(error)}). Copy or write it again."
        ) from error


def shown(path: Path | str) -> str:
    """How errors name a file: in quotes, without this machine's folders, shortened where it is very long.

    Examples
    --------
    >>> print(shown(Path("data/night.npz")), shown("n" * 300))
    'night.npz' 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...nnnnnnnnnn'
    """
    name = path if isinstance(path, str) else path.name or str(path)
    return repr(name if len(name) <= 100 else f"{name[:40]}...{name[-10:]}")


def file_of(path: Path) -> Path:
    """The one file that a recording is known by: itself or, of a WFDB record, the header."""
    return _header_of(path) if _is_record(path) else path


def _is_record(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix in WFDB_SUFFIXES:
        return True
    return suffix not in SUFFIXES and path.name != "" and _header_of(path).is_file()


def _reader_of(path: Path) -> Callable[[Path], Content]:
    """What reads this file, if it is there and of a known type."""
    readers: dict[str, Callable[[Path], Content]] = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv}
    suffix = path.suffix.lower()
    is_record = _is_record(path)
    if is_record and _header_of(path).is_file():
        return _read_wfdb
    if not path.exists():
        raise RecordingError(
            f"recording {shown(path)} was not found; check the path, which is taken as relative to the "
            "manifest or to the current folder."
        )
    if path.is_dir() or not (is_record or suffix in readers):
        found = "a folder" if path.is_dir() else f"of type {shown(suffix)}" if suffix else "of unknown type"
        raise RecordingError(
            f"recording {shown(path)} is {found}; a file of type {', '.join(SUFFIXES)} or the name of a WFDB "
            "record is needed. For many recordings, write a manifest: a CSV with a column 'path'."
        )
    return _read_wfdb if is_record else readers[suffix]


def _reason(error: BaseException) -> str:
    """An exception's own words in one line, without paths; a parser may quote the whole file."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return _clipped(" ".join(said.split()) or type(error).__name__)


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
        ) from error
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
        ) from error


def _read_npy(path: Path) -> Content:
    what = f"recording {shown(path)}"
    with open(path, "rb") as file:
        return Content(_checked(_load_array(file, path.stat().st_size, what), what))


def _read_npz(path: Path) -> Content:
    what = f"recording {shown(path)}"
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
    except (RecordingError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever zip and its four ways to pack stumble over
        raise RecordingError(
            f"{what} is not a whole .npz file ({_reason(error)}). Copy or write it again."
        ) from error
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
    header_path, what = _header_of(path), f"WFDB record {shown(path)}"
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
        raise RecordingError(
            f"{what} has a header that cannot be read ({_reason(error)}). Copy it again."
        ) from error
    if not isinstance(header, wfdb.Record) or not header.n_sig:
        raise RecordingError(f"{what} has several segments or no signals; a record of one segment is needed.")
    _check_wfdb_sizes(header, header_path.parent, what)
    try:
        read = wfdb.rdrecord(record)
        samples, rate = np.ascontiguousarray(read.p_signal.T), float(read.fs)
    except Exception as error:
        raise RecordingError(f"{what} cannot be read ({_reason(error)}). Copy its files again.") from error
    return Content(_checked(samples, what), rate, tuple(name or "" for name in read.sig_name))


def _check_wfdb_sizes(header: Any, folder: Path, what: str) -> None:
    """The data files are there and as long as the header says. (wfdb refuses names with a folder in them.)"""
    described = len(header.file_name or ())
    if described != header.n_sig:
        raise RecordingError(
            f"{what} declares {header.n_sig} signals in its header and describes {described}; one line a "
            "signal is needed. Copy the header again."
        )
    needed: dict[str, float] = {}
    for name, fmt, per_frame, offset in zip(
        header.file_name, header.fmt, header.samps_per_frame, header.byte_offset, strict=True
    ):
        sample_bytes = WFDB_SAMPLE_BYTES.get(fmt, 2 / MAX_EXPANSION)  # compressed: a bound, not a size
        needed[name] = needed.get(name, offset or 0) + (header.sig_len or 0) * (per_frame or 1) * sample_bytes
    for name, n_bytes in needed.items():
        file = folder / name
        if not file.is_file():
            raise RecordingError(f"{what} lacks its data file {shown(name)}. Copy it beside the header.")
        size = file.stat().st_size
        if size < math.floor(n_bytes):
            raise RecordingError(
                f"{what} declares {header.sig_len:,} samples, {math.floor(n_bytes):,} bytes in {shown(name)}, "
                f"which has {size:,}; it is cut off or damaged. Copy it again."
            )
        skew = max(one or 0 for one in header.skew)
        if skew > (header.sig_len or size):  # wfdb would append as many samples
            raise RecordingError(
                f"{what} declares a signal that lags by {skew:,} samples, which is longer than the record; the "
                "header is damaged. Copy it again."
            )
