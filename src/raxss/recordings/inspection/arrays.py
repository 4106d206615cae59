"""Is this .npy, .npz or .csv file a recording, and as large as it says?

    .npy, .npz: headers and the directory of the archive -> problems; .csv: its lines -> problems

A header of a hundred bytes can declare terabytes, and a small archive can unpack to them. Nothing is unpickled,
and of .npy and .npz no sample is looked at.
Next: formats.py reads what passed.
"""

from __future__ import annotations

import csv
import math
import os
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from raxss.errors import shown
from raxss.recordings.formats import ALWAYS_ALLOWED, MAX_EXPANSION
from raxss.recordings.inspection.confinement import open_confined, problem_of_opening
from raxss.recordings.inspection.fields import Refused, name_problems, not_downloaded, quoted, rate_problem
from raxss.recordings.problems import Problem

ARRAYS = ("samples", "data", "rate", "channels", "times_s")
MOST_MEMBERS = 10_000
LINE_BYTES = 2**17  # of a table; a line of 128 channels has some three thousand
LINES_AT_ONCE = 256
SMALL_BYTES = 2**20  # of the arrays that are not samples
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def inspect_array(path: Path, root: Path) -> list[Problem]:
    """What is wrong with a recording kept as a NumPy array, an archive of them or a table.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("1,2\\n3\\n")
    >>> [problem.code for problem in inspect_array(path, path.parent)]
    ['header-damaged']
    """
    looks = {".npy": _look_at_npy, ".npz": _look_at_npz, ".csv": _look_at_csv}
    problem = problem_of_opening(path, root)
    if problem is not None:
        return [problem]
    if not_downloaded(path, root):
        return [
            Problem("not-found", f"{shown(path)} is not downloaded: it is a git-annex pointer. Fetch it.")
        ]
    try:
        with open_confined(path, root) as file:
            return looks[path.suffix.lower()](file, os.fstat(file.fileno()).st_size)
    except Refused as refused:
        return [refused.problem]
    except OSError as error:
        return [
            Problem("not-readable", f"{shown(path)} cannot be read ({error.strerror or error}). Try again.")
        ]


def _look_at_npy(file: BinaryIO, size: int) -> list[Problem]:
    shape, dtype = _array_header(file, size, "the file")
    _check_samples(shape, dtype, "the array")
    return []


def _array_header(file: IO[bytes], n_bytes: int, what: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array in NumPy's format, of which ``n_bytes`` are there."""
    formats = np.lib.format
    try:
        version = formats.read_magic(file)  # type: ignore[no-untyped-call]
        if version not in ((1, 0), (2, 0)):  # (3, 0) is for named fields alone
            raise ValueError
        read_header = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
        shape, _, dtype = read_header(file)  # type: ignore[no-untyped-call]
    except (OSError, zipfile.BadZipFile, Refused):
        raise
    except Exception:  # the header is parsed as Python: bad syntax, types, depth, whatever
        raise Refused(
            "not-this-format", f"{what} is not an array in NumPy's format. Write it again with numpy.save."
        ) from None
    if dtype.hasobject:
        raise Refused(
            "not-supported",
            f"{what} holds Python objects, which only pickle can read, and pickle can run code; numbers are "
            "needed. Write it again as an array of floats.",
        )
    declared, present = math.prod(shape) * dtype.itemsize, n_bytes - file.tell()
    if any(size < 0 for size in shape) or dtype.itemsize == 0 or declared > present:
        bomb = declared > max(ALWAYS_ALLOWED, MAX_EXPANSION * n_bytes)
        raise Refused(
            "too-large" if bomb else "data-missing",
            f"{what} declares {declared:,} bytes of samples and has {present:,}; it is cut off or damaged. Copy or "
            "write it again.",
        )
    return shape, dtype


def _check_samples(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    if dtype.kind not in "iufb":
        raise Refused(
            "not-supported", f"{what} holds values of type {quoted(str(dtype))}; real numbers are needed."
        )
    if len(shape) not in (1, 2):
        raise Refused(
            "not-supported",
            f"{what} has {len(shape)} dimensions; (n_samples,) or (n_variates, n_samples) is needed. Store one "
            "series a file.",
        )
    if math.prod(shape) == 0:
        raise Refused("no-data", f"{what} has no samples. Leave the file out.")


def _look_at_npz(file: BinaryIO, size: int) -> list[Problem]:
    """The directory and the headers inside; of the small arrays 'rate' and 'channels', the content too."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive)
            headers = {key: _member_header(archive, member, key) for key, member in members.items()}
            values = "samples" if "samples" in headers else "data"
            shape, dtype = headers[values]
            _check_samples(shape, dtype, f"the array {values!r}")
            _check_times(headers.get("times_s"), shape[-1])
            small = {
                key: _small_array(archive, members[key], key)
                for key in ("rate", "channels")
                if key in members
            }
    except (Refused, OSError, MemoryError):
        raise
    except Exception:  # whatever zip and its four ways to pack stumble over
        raise Refused("not-this-format", "it is not a whole .npz archive. Copy or write it again.") from None
    _check_rate(small.get("rate"))
    return _channel_problems(small.get("channels"), 1 if len(shape) == 1 else shape[0])


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    if len(archive.infolist()) > MOST_MEMBERS:
        raise Refused(
            "too-large", f"the archive has {len(archive.infolist()):,} members; one recording is needed."
        )
    names = [one.filename.removesuffix(".npy") for one in archive.infolist()]
    members = {name: one for name, one in zip(names, archive.infolist(), strict=True) if name in ARRAYS}
    if "samples" not in members and "data" not in members:
        raise Refused(
            "not-this-format",
            f"the archive has {len(names)} arrays and none is called 'samples'. Write it with numpy.savez(path, "
            "samples=..., rate=...), samples being variates × time.",
        )
    if any(names.count(name) > 1 for name in members):
        raise Refused("header-damaged", "the archive has an array twice; which one counts is not certain.")
    return members


def _member_header(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, key: str
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if member.file_size > max(ALWAYS_ALLOWED, MAX_EXPANSION * member.compress_size):
        raise Refused(
            "too-large",
            f"array {key!r} takes {member.compress_size:,} bytes and would unpack to {member.file_size:,}, which "
            "no recording does. If it is meant so, write it unpacked with numpy.savez.",
        )
    if member.compress_type not in PACKINGS or member.flag_bits & 1:
        raise Refused(
            "not-supported", f"array {key!r} is encrypted or packed in an unknown way. Write it again."
        )
    with archive.open(member) as file:
        return _array_header(file, member.file_size, f"array {key!r}")


def _small_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, key: str) -> np.ndarray[Any, Any]:
    if member.file_size > SMALL_BYTES:
        raise Refused("too-large", f"array {key!r} has {member.file_size:,} bytes; a few are needed.")
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))  # type: ignore[no-untyped-call]


def _check_times(header: tuple[tuple[int, ...], np.dtype[Any]] | None, n_samples: int) -> None:
    if header is not None and (header[0] != (n_samples,) or header[1].kind not in "iuf"):
        raise Refused("header-damaged", f"'times_s' is not one number for each of {n_samples:,} samples.")


def _check_rate(rate: np.ndarray[Any, Any] | None) -> None:
    if rate is None:
        return
    if rate.size != 1 or rate.dtype.kind not in "iuf":
        raise Refused(
            "bad-rate", f"'rate' has {rate.size} values of type {rate.dtype}; one number is needed."
        )
    value = float(rate.reshape(()))
    problem = rate_problem(value if math.isfinite(value) else None, f"a 'rate' of {value:g}")
    if problem is not None:
        raise Refused(problem.code, problem.message)


def _channel_problems(channels: np.ndarray[Any, Any] | None, n_variates: int) -> list[Problem]:
    if channels is None:
        return []
    names = [str(one) for one in channels.reshape(-1)]
    if names and len(names) != n_variates:
        raise Refused(
            "header-damaged",
            f"'channels' has {len(names)} names, and 'samples' {n_variates} variates; one name for each is needed.",
        )
    return name_problems(names)


def _look_at_csv(file: BinaryIO, size: int) -> list[Problem]:
    """Every line, a thousand at a time: is it a row of as many numbers as the first?"""
    lines = _lines(file)
    names: list[str] = []
    width, n_rows, n_missing = 0, 0, 0
    while block := list(islice(lines, LINES_AT_ONCE)):
        if n_rows == width == 0:
            first = _cells(block[0][1])
            if not any(map(_is_number, first)):
                names, width = [cell.strip() for cell in first], len(first)
                block = block[1:]
            else:
                width = len(first)
        values = _numbers(block, width)
        n_rows += len(values)
        n_missing += int(np.count_nonzero(~np.isfinite(values)))
    if n_rows == 0:
        raise Refused("no-data", "the table has no line of numbers. Leave it out.")
    problems = name_problems(names)
    if n_missing:
        problems.append(
            Problem("nan-run", f"{n_missing:,} of {n_rows * width:,} values are not finite numbers.")
        )
    return problems


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        raise Refused("not-this-format", "the first line is not that of a table. Write it again.") from None


def _numbers(block: list[tuple[int, str]], width: int) -> NDArray[np.float64]:
    """``(lines, width)``; a refusal names the first line that is no row of ``width`` numbers."""
    if not block:
        return np.empty((0, width))
    try:
        values = np.loadtxt([line for _, line in block], delimiter=",", ndmin=2, comments=None)
    except ValueError:
        values = np.empty((0, 0))
    if values.shape[1] == width:
        return values
    for place, line in block:
        cells = line.split(",")
        if len(cells) != width:
            told = f"line {place} has {len(cells)} values, and the lines before {width}"
            raise Refused(
                "header-damaged", f"{told}; every line needs one value a variate. Write the table again."
            )
        if not all(map(_is_number, cells)):
            told = f"line {place} has a value that is no number; numbers separated by commas are needed"
            raise Refused("header-damaged", f"{told}. Write nan where a sample is missing.")
    raise Refused("header-damaged", "the table is not one of numbers. Write it again.")


def _lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Lines with something in them, and their numbers; a line that does not end is not read to its end."""
    place = 0
    while line := file.readline(LINE_BYTES + 1):
        place += 1
        if len(line) > LINE_BYTES:
            raise Refused(
                "too-large", f"the table has a line of more than {LINE_BYTES:,} bytes. Write it again."
            )
        try:
            text = line.decode("utf-8-sig" if place == 1 else "utf-8")
        except UnicodeDecodeError:
            raise Refused("not-this-format", "the table is not text in UTF-8. Write it again.") from None
        if "\0" in text:
            raise Refused("not-this-format", "the table has NUL bytes; text is needed. Write it again.")
        if text.strip():
            yield place, text.strip("\r\n")


def _is_number(cell: str) -> bool:
    if "_" in cell or not cell.isascii():  # float takes 1_0 and digits of other scripts
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True
