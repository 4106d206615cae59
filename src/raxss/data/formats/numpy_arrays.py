"""NumPy formats: ``.npy``, one array, and ``.npz``, an archive of arrays.

    headers and the directory of the archive -> problems
    a file that was not refused -> samples (n_variates, n_samples), rate, names of channels

A header of a hundred bytes can declare terabytes, and a small archive can unpack to them, so both are compared with
the file's size first. Nothing is unpickled, and an inspection looks at no sample.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.array_files import RATE_UNKNOWN, ArrayContent, array_format, shape_problems
from raxss.data.formats.csv_tables import regular_times
from raxss.data.formats.fields import Refused, channel_problems, is_bomb, quoted, refuse_rate
from raxss.data.formats.registry import register_format
from raxss.data.problems import Problem
from raxss.data.recording import refuse_too_long
from raxss.errors import RecordingError

ARRAYS = ("samples", "data", "rate", "channels", "times_s")
MOST_MEMBERS = 10_000
HEADER_BYTES = 2**14  # of an array; numpy reads at most 10,000
SMALL_BYTES = 2**20  # of the arrays that are not samples
# What numpy writes. Others take memory as their own headers say, LZMA up to 4 GB, before the first byte comes out.
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ArrayHeader(NamedTuple):
    """Shape and type of an array, and how many bytes there are beyond it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    surplus: int


def _look_at_npy(file: BinaryIO, size: int) -> list[Problem]:
    header = _array_header(file, size, "the array")
    _refuse_surplus(header, "the array")
    _check_samples(header, "the array")
    return [*shape_problems(header.shape), RATE_UNKNOWN]


def _array_header(packed: IO[bytes], n_bytes: int, what: str) -> ArrayHeader:
    """Shape and type of an array in NumPy's format, of which ``n_bytes`` are there."""
    formats = np.lib.format
    file = io.BytesIO(packed.read(HEADER_BYTES))  # a header may declare gigabytes for itself
    try:
        version = formats.read_magic(file)  # type: ignore[no-untyped-call]
        if version not in ((1, 0), (2, 0)):  # (3, 0) is for named fields alone
            raise ValueError
        read_header = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
        shape, _, dtype = read_header(file)  # type: ignore[no-untyped-call]
    except (OSError, zipfile.BadZipFile, Refused):
        raise
    except Exception:  # the header is parsed as Python: bad syntax, types, depth, whatever
        found = f"{what} is not an array in NumPy's format"
        raise Refused("not-this-format", f"{found}. Write it again with numpy.save.") from None
    if dtype.hasobject:
        found = f"{what} holds Python objects, which only pickle can read, and pickle can run code"
        raise Refused("not-supported", f"{found}; numbers are needed. Write it again as an array of floats.")
    declared, present = math.prod(shape) * dtype.itemsize, n_bytes - file.tell()
    if any(size < 0 for size in shape) or dtype.itemsize == 0 or declared > present:
        code = "too-large" if is_bomb(math.prod(shape), n_bytes) else "data-missing"
        shown_bytes = f"{declared:,}" if abs(declared) < 10**30 else "far too many"
        found = f"{what} declares {shown_bytes} bytes of samples and has {present:,}"
        raise Refused(code, f"{found}; it is cut off or damaged")
    return ArrayHeader(shape, dtype, present - declared)


def _refuse_surplus(header: ArrayHeader, what: str) -> None:
    """A shape that leaves bytes over may be wrong, and samples of one channel would be read as another's."""
    if header.surplus:
        found = f"{what} has {header.surplus:,} bytes more than its shape {header.shape} and type "
        found += f"{quoted(str(header.dtype))} account for"
        raise Refused("header-damaged", f"{found}; which samples belong to which channel is not certain")


def _check_samples(header: ArrayHeader, what: str) -> None:
    shape, dtype, _ = header
    if dtype.kind not in "iufb":
        found = f"{what} holds values of type {quoted(str(dtype))}"
        raise Refused("not-supported", f"{found}; real numbers are needed. Write them as floats.")
    if len(shape) not in (1, 2):
        found = f"{what} has {len(shape)} dimensions, shape {shape}"
        needed = "(n_samples,) or (n_variates, n_samples) is needed. Store one series per file."
        raise Refused("not-supported", f"{found}; {needed}")
    if math.prod(shape) == 0:
        raise Refused("no-data", f"{what} has no samples, shape {shape}. Leave the file out.")


def _look_at_npz(file: BinaryIO, size: int) -> list[Problem]:
    """The directory and the headers inside; of the small arrays 'rate' and 'channels', the content too."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive)
            headers = {key: _member_header(archive, item, f"array {key!r}") for key, item in members.items()}
            _refuse_bomb(sum(map(_n_unpacked, members.values(), headers.values())), size, "the archive")
            for key, header in headers.items():
                _refuse_surplus(header, f"array {key!r}")
            values = "samples" if "samples" in headers else "data"
            shape = headers[values].shape
            _check_samples(headers[values], f"the array {values!r}")
            if "times_s" in headers:
                times, kind, _ = headers["times_s"]
                if times != shape[-1:] or kind.kind not in "iuf" or shape[-1] < 2:
                    found = f"'times_s' has shape {times} and type {quoted(str(kind))}"
                    needed = f"one number for each of {shape[-1]:,} samples, and at least 2, are needed"
                    raise Refused("header-damaged", f"{found}; {needed}")
            small = {}
            for key in sorted({"rate", "channels"} & members.keys()):
                if (n_bytes := members[key].file_size) > SMALL_BYTES:
                    raise Refused("too-large", f"array {key!r} has {n_bytes:,} bytes; a few are needed.")
                small[key] = load_member(archive, members[key], f"array {key!r}")
    except (Refused, OSError, MemoryError):
        raise
    except Exception:  # whatever zip and its four ways to pack stumble over
        raise Refused("not-this-format", "it is not a whole .npz archive. Copy or write it again.") from None
    if "rate" in small:
        rate = small["rate"]
        if rate.size != 1 or rate.dtype.kind not in "iuf":
            found = f"'rate' has {rate.size} values of type {quoted(str(rate.dtype))}"
            raise Refused("bad-rate", f"{found}; one number is needed")
        refuse_rate(float(rate.reshape(())), f"a 'rate' of {float(rate.reshape(())):g}")
    names = [str(name) for name in small["channels"].reshape(-1)] if "channels" in small else []
    n_variates = 1 if len(shape) == 1 else shape[0]
    if names and len(names) != n_variates:
        found = f"'channels' has {len(names)} names, and 'samples' {n_variates} variates"
        raise Refused("header-damaged", f"{found}; one name for each is needed")
    problems = [*channel_problems(names), *shape_problems(shape)]
    if "rate" not in members and "times_s" not in members:
        problems.append(RATE_UNKNOWN)
    if {"samples", "data"} <= members.keys():
        message = "the archive has arrays 'samples' and 'data'; 'samples' is read. Write it with one of them."
        problems.append(Problem("header-inconsistent", message))
    return problems


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    if len(archive.infolist()) > MOST_MEMBERS:
        found = f"the archive has {len(archive.infolist()):,} members"
        raise Refused("too-large", f"{found}; one recording is needed. Write one a file.")
    names = [item.filename.removesuffix(".npy") for item in archive.infolist()]
    members = {name: item for name, item in zip(names, archive.infolist(), strict=True) if name in ARRAYS}
    if "samples" not in members and "data" not in members:
        found = f"the archive has no array 'samples' among its {len(names)} members"
        to_do = "Write it with numpy.savez(path, samples=..., rate=...), samples being variates × time."
        raise Refused("not-this-format", f"{found}. {to_do}")
    if any(names.count(name) > 1 for name in members):
        raise Refused("header-damaged", "the archive has an array twice; which one counts is not certain.")
    return members


def _member_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str) -> ArrayHeader:
    if member.flag_bits & 1:
        raise Refused("not-supported", f"{what} is encrypted. Write it again with numpy.savez.")
    if member.compress_type not in PACKINGS:
        ways = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA", 93: "Zstandard"}
        found = f"{what} is packed with {ways.get(member.compress_type, f'method {member.compress_type}')}"
        raise Refused("not-supported", f"{found}; stored or deflated is needed. Write it with numpy.savez.")
    with archive.open(member) as file:
        return _array_header(file, member.file_size, what)


def _n_unpacked(member: zipfile.ZipInfo, header: ArrayHeader) -> int:
    """Values of eight bytes that an array takes, by its header or by the archive's directory."""
    return max(math.prod(header.shape), member.file_size // 8)


def _refuse_bomb(n_samples: int, n_bytes: int, what: str) -> None:
    if is_bomb(n_samples, n_bytes):
        found = f"{what} would unpack from {n_bytes:,} bytes to {8 * n_samples:,}, which no recording does"
        raise Refused("too-large", f"{found}. If it is meant so, write it unpacked with numpy.savez.")


def load_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str) -> NDArray[Any]:
    """One array of a zip archive, unless it would unpack to far more than recordings do."""
    try:
        header = _member_header(archive, member, what)
        _refuse_bomb(_n_unpacked(member, header), member.compress_size, what)
        _refuse_surplus(header, what)
    except Refused as refused:
        raise RecordingError(refused.problem.message) from None
    with archive.open(member) as file:
        return _load(file, member.file_size, what)


def _load(file: IO[bytes], n_bytes: int, what: str) -> NDArray[Any]:
    """An array, of which ``n_bytes`` are there, if they are not more than the memory that is free."""
    refuse_too_long(n_bytes, what)
    array = np.asarray(np.lib.format.read_array(file, allow_pickle=False))  # type: ignore[no-untyped-call]
    if file.read(1):  # and so to the end, where a zip archive has its checksum compared
        raise RecordingError(f"{what} has more bytes than its shape accounts for. Write it again.")
    return array


def _read_npz(file: BinaryIO) -> ArrayContent:
    with zipfile.ZipFile(file) as archive:
        members = {item.filename.removesuffix(".npy"): item for item in archive.infolist()}
        values = "samples" if "samples" in members else "data"
        arrays = {
            key: load_member(archive, members[key], f"array {key!r}")
            for key in (values, "rate", "channels", "times_s")
            if key in members
        }
    samples = arrays[values].reshape(-1, arrays[values].shape[-1])
    rate = float(arrays["rate"].reshape(())) if "rate" in arrays else None
    channels = tuple(str(item) for item in arrays["channels"].reshape(-1)) if "channels" in arrays else ()
    if "times_s" not in arrays:
        return ArrayContent(samples, rate, channels)
    start, timed = regular_times(arrays["times_s"], "array 'times_s'")
    if rate is not None and not math.isclose(rate, timed, rel_tol=1e-6):
        raise RecordingError(f"it has a rate of {rate:g} Hz and times at {timed:g} Hz; one is needed.")
    return ArrayContent(samples, timed if rate is None else rate, channels, start)


def _read_npy(file: BinaryIO) -> ArrayContent:
    samples = _load(file, os.fstat(file.fileno()).st_size, "it")
    return ArrayContent(samples.reshape(-1, samples.shape[-1]))


register_format(array_format("NPZ", ".npz", _look_at_npz, _read_npz))
register_format(array_format("NPY", ".npy", _look_at_npy, _read_npy, self_describing=False))
