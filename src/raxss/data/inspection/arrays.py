"""Is this .npy, .npz or .csv file a recording, and as large as it says?

    .npy, .npz: headers and the directory of the archive -> problems; .csv: its lines -> problems

A header of a hundred bytes can declare terabytes, and a small archive can unpack to them. Nothing is unpickled,
and of .npy and .npz no sample is looked at.
Next: array_files.py reads what passed.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import zipfile
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.known import is_bomb
from raxss.data.inspection.confinement import open_confined, problem_of_opening
from raxss.data.inspection.fields import (
    CHANGED,
    Refused,
    name_problems,
    not_downloaded,
    quoted,
    rate_problem,
)
from raxss.data.inspection.time_columns import axis_candidates, time_axis
from raxss.data.problems import Problem
from raxss.errors import shown

ARRAYS = ("samples", "data", "rate", "channels", "times_s")
MOST_MEMBERS = 10_000
MOST_CHANNELS = 2**14
LINE_BYTES = 2**17  # of a table; a line of 128 channels has some three thousand
LINES_AT_ONCE = 256
HEADER_BYTES = 2**14  # of an array; numpy reads at most 10,000
SMALL_BYTES = 2**20  # of the arrays that are not samples
# What numpy writes. Others take memory as their own headers say, LZMA up to 4 GB, before the first byte comes out.
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Header(NamedTuple):
    """Shape and type of an array, and how many bytes there are beyond it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    surplus: int


def inspect_array(path: Path, root: Path) -> list[Problem]:
    """What is wrong with a recording kept as a NumPy array, an archive of them or a table.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("5,2\\n3\\n")
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
            Problem("not-readable", f"{shown(path)} cannot be read ({error.strerror or CHANGED}). Try again.")
        ]


def _look_at_npy(file: BinaryIO, size: int) -> list[Problem]:
    header = _array_header(file, size, "the array")
    _refuse_surplus(header, "the array")
    _check_samples(header, "the array")
    return [*_shape_problems(header.shape), _rate_unknown()]


def _array_header(packed: IO[bytes], n_bytes: int, what: str) -> Header:
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
        bomb = is_bomb(math.prod(shape), n_bytes)
        shown_bytes = f"{declared:,}" if abs(declared) < 10**30 else "far too many"
        raise Refused(
            "too-large" if bomb else "data-missing",
            f"{what} declares {shown_bytes} bytes of samples and has {present:,}; it is cut off or damaged. Copy "
            "or write it again.",
        )
    return Header(shape, dtype, present - declared)


def _refuse_surplus(header: Header, what: str) -> None:
    """A shape that leaves bytes over may be wrong, and samples of one channel would be read as another's."""
    if header.surplus:
        raise Refused(
            "header-damaged",
            f"{what} has {header.surplus:,} bytes more than its shape {header.shape} and type "
            f"{quoted(str(header.dtype))} account for, so which samples belong to which channel is not certain. "
            "Write it again, one array a file.",
        )


def _check_samples(header: Header, what: str) -> None:
    shape, dtype, _ = header
    if dtype.kind not in "iufb":
        raise Refused(
            "not-supported", f"{what} holds values of type {quoted(str(dtype))}; real numbers are needed."
        )
    if len(shape) not in (1, 2):
        raise Refused(
            "not-supported",
            f"{what} has {len(shape)} dimensions, shape {shape}; (n_samples,) or (n_variates, n_samples) is "
            "needed. Store one series a file.",
        )
    if math.prod(shape) == 0:
        raise Refused("no-data", f"{what} has no samples, shape {shape}. Leave the file out.")


def _shape_problems(shape: tuple[int, ...]) -> list[Problem]:
    if len(shape) == 1 or shape[0] <= min(shape[1], MOST_CHANNELS):
        return []
    told = f"there are {shape[0]:,} channels of {shape[1]:,} samples each; channels × time is needed"
    todo = "Transpose it if time came first."
    if shape[0] > MOST_CHANNELS:  # each takes memory and time of its own
        raise Refused("too-large", f"{told}, with at most {MOST_CHANNELS:,} channels. {todo}")
    return [Problem("shape-doubtful", f"{told}. {todo}")]


def _rate_unknown() -> Problem:
    return Problem(
        "rate-unknown",
        "the file tells no sampling rate: seconds count samples, here and in the look at signals, unless a rate is "
        "given with it. A .npz can hold one: numpy.savez(path, samples=..., rate=...).",
    )


def _look_at_npz(file: BinaryIO, size: int) -> list[Problem]:
    """The directory and the headers inside; of the small arrays 'rate' and 'channels', the content too."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive)
            headers = {key: _member_header(archive, one, f"array {key!r}") for key, one in members.items()}
            _refuse_bomb(sum(map(_n_unpacked, members.values(), headers.values())), size, "the archive")
            values = "samples" if "samples" in headers else "data"
            for key, header in headers.items():
                _refuse_surplus(header, f"array {key!r}")
            shape = headers[values].shape
            has_both = "samples" in headers and "data" in headers
            _check_samples(headers[values], f"the array {values!r}")
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
    is_timed = "rate" in members or "times_s" in members
    return [
        *_channel_problems(small.get("channels"), 1 if len(shape) == 1 else shape[0]),
        *_shape_problems(shape),
        *([] if is_timed else [_rate_unknown()]),
        *([_two_arrays()] if has_both else []),
    ]


def _two_arrays() -> Problem:
    told = "the archive has both an array 'samples' and an array 'data'; 'samples' is read"
    return Problem("header-inconsistent", f"{told}. Write it with one of them.")


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
            f"the archive has no array 'samples' among its {len(names)} members. Write it with "
            "numpy.savez(path, samples=..., rate=...), samples being variates × time.",
        )
    if any(names.count(name) > 1 for name in members):
        raise Refused("header-damaged", "the archive has an array twice; which one counts is not certain.")
    return members


def check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str) -> None:
    """Refuse an array in an archive that is damaged, holds objects or would unpack to far more than it should."""
    header = _member_header(archive, member, what)
    _refuse_bomb(_n_unpacked(member, header), member.compress_size, what)
    _refuse_surplus(header, what)


def _member_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str) -> Header:
    if member.flag_bits & 1:
        raise Refused("not-supported", f"{what} is encrypted. Write it again with numpy.savez.")
    if member.compress_type not in PACKINGS:
        way = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA", 93: "Zstandard"}.get(
            member.compress_type, f"method {member.compress_type}"
        )
        raise Refused(
            "not-supported",
            f"{what} is packed with {way}; stored or deflated is needed, as numpy.savez and numpy.savez_compressed "
            "write it. Write it again with one of these.",
        )
    with archive.open(member) as file:
        return _array_header(file, member.file_size, what)


def _n_unpacked(member: zipfile.ZipInfo, header: Header) -> int:
    """Values of eight bytes that an array takes, by its header or by the archive's directory."""
    return max(math.prod(header.shape), member.file_size // 8)


def _refuse_bomb(n_samples: int, n_bytes: int, what: str) -> None:
    if is_bomb(n_samples, n_bytes):
        raise Refused(
            "too-large",
            f"{what} takes {n_bytes:,} bytes and would unpack to {8 * n_samples:,}, which no recording does. If it "
            "is meant so, write it unpacked with numpy.savez.",
        )


def _small_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, key: str) -> np.ndarray[Any, Any]:
    if member.file_size > SMALL_BYTES:
        raise Refused("too-large", f"array {key!r} has {member.file_size:,} bytes; a few are needed.")
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))  # type: ignore[no-untyped-call]


def _check_times(header: Header | None, n_samples: int) -> None:
    if header is None:
        return
    shape, dtype, _ = header
    if shape != (n_samples,) or dtype.kind not in "iuf" or n_samples < 2:
        raise Refused(
            "header-damaged",
            f"'times_s' has shape {shape} and type {quoted(str(dtype))}; one number for each of {n_samples:,} "
            "samples, and at least 2, are needed.",
        )


def _check_rate(rate: np.ndarray[Any, Any] | None) -> None:
    if rate is None:
        return
    if rate.size != 1 or rate.dtype.kind not in "iuf":
        raise Refused(
            "bad-rate",
            f"'rate' has {rate.size} values of type {quoted(str(rate.dtype))}; one number is needed.",
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
    """Every line: is it a row of as many numbers as the first? And is a column no channel?"""
    n_rows, n_missing, problems = 0, 0, []
    names: list[str] = []
    candidates: list[int] = []
    columns = []  # of the candidates for a time axis alone
    for names, values in table_blocks(file):
        if n_rows == 0:
            candidates = axis_candidates(names, values.shape[1])
        n_rows += len(values)
        n_missing += int(np.count_nonzero(~np.isfinite(values)))
        columns.append(values[:, candidates])
    found = np.concatenate(columns)
    axis = time_axis(names, {place: found[:, rank] for rank, place in enumerate(candidates)})
    n_channels = values.shape[1] - len(axis.columns)
    if not n_channels:
        raise Refused("no-data", "the table has times and no channel beside them. Leave it out.")
    problems += name_problems([name for place, name in enumerate(names) if place not in axis.columns])
    problems += _shape_problems((n_channels, n_rows))
    if n_missing:
        message = f"{n_missing:,} of {n_rows * values.shape[1]:,} values are not finite numbers."
        problems.append(Problem("nan-run", message))
    if axis.messages:
        problems.append(Problem("time-column", f"{'; '.join(axis.messages)}."))
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        message = "the last line of the table does not end, so its last number may be cut off"
        problems.append(
            Problem("may-be-cut", f"{message}; it is read as it is. Compare it with the original.")
        )
    return [*problems, *([] if axis.rate is not None else [_rate_unknown()])]


def table_blocks(file: BinaryIO) -> Iterator[tuple[list[str], NDArray[np.float64]]]:
    """Names of the columns, if the first line has no number, and values ``(lines, columns)``, some lines a time."""
    lines = _lines(file)
    first = next(lines, None)
    if first is None:
        raise Refused("no-data", "the table has no samples. Leave it out.")
    cells = _cells(first[1])
    second = next(lines, None)
    lines = lines if second is None else chain([second], lines)
    is_header = not any(map(_is_number, cells)) or _is_indexed_header(cells)
    if not is_header:
        _refuse_counting(cells, "" if second is None else second[1])
    names = [cell.strip() for cell in cells] if is_header else []
    rows = lines if is_header else chain([first], lines)
    n_rows = 0
    while block := list(islice(rows, LINES_AT_ONCE)):
        n_rows += len(block)
        yield names, _numbers(block, len(cells))
    if n_rows == 0:
        raise Refused("no-data", "the table has no samples, only names. Leave it out.")


def _is_indexed_header(cells: list[str]) -> bool:
    """``,0,1,2``, as pandas writes above an index and columns without names."""
    return len(cells) > 1 and not cells[0].strip() and _counts(cells[1:])


def _counts(cells: list[str]) -> bool:
    """Whether cells are written as whole numbers that count the columns, from 0 or from 1."""
    plain = [cell.strip() for cell in cells]
    return any(plain == [str(place) for place in range(begin, begin + len(cells))] for begin in (0, 1))


def _refuse_counting(cells: list[str], second: str) -> None:
    """pandas and spreadsheets write 0, 1, 2 or 1, 2, 3 above columns without names, which looks like samples.

    Of a single column 0 or 1 may well be a sample, unless those below are written as decimals.
    """
    if not _counts(cells) or (len(cells) == 1 and not re.search(r"[.eE]", second)):
        return
    shown_cells = ",".join(cell.strip() for cell in cells[:3]) + (",..." if len(cells) > 3 else "")
    raise Refused(
        "header-doubtful",
        f"the first line, {shown_cells}, counts the columns: names of them or samples, it is not certain which. If "
        "these are names, give names with letters or remove the line; if samples, write them as decimals "
        f"({cells[0].strip()}.0).",
    )


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        raise Refused("not-this-format", "the first line is not that of a table. Write it again.") from None


def _numbers(block: list[tuple[int, str]], width: int) -> NDArray[np.float64]:
    """``(lines, width)``; a refusal names the first line that is no row of ``width`` numbers."""
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
        wrong = next((cell.strip() for cell in cells if not _is_number(cell)), None)
        if wrong is not None:  # a wrong number or sign may be quoted, a word may be somebody's name
            told = f"line {place} has {'a word' if any(map(str.isalpha, wrong)) else quoted(wrong)}"
            needed = "numbers separated by commas are needed. Write nan where a sample is missing"
            raise Refused("header-damaged", f"{told}; {needed}.")
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
