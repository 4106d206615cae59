"""CSV format: a table of numbers, one column a channel, with or without names and a time axis.

its lines -> problems
a file that was not refused -> samples (n_columns, n_lines), names, rate and start where a time axis states them
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.array_files import RATE_UNKNOWN, ArrayContent, array_format, shape_problems
from raxss.data.formats.fields import Refused, channel_problems, problem, quoted
from raxss.data.formats.registry import register_format
from raxss.data.formats.time_columns import axis_candidates, time_axis
from raxss.data.problems import Problem
from raxss.data.recording import SMALL_BYTES, refuse_too_long
from raxss.data.tables import MalformedCsvError, cells_of

LINE_BYTES = 2**17  # of a table; a line of 128 channels has some three thousand
LINES_AT_ONCE = 256


def _look_at_csv(file: BinaryIO, size: int) -> list[Problem]:
    """Every line: is it a row of as many numbers as the first? And is a column no channel?"""
    n_rows = n_missing = 0
    problems: list[Problem] = []
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
    problems += channel_problems([name for place, name in enumerate(names) if place not in axis.columns])
    problems += shape_problems((n_channels, n_rows))
    if n_missing:
        message = f"{n_missing:,} of {n_rows * values.shape[1]:,} values are not finite numbers."
        problems.append(Problem("nan-run", message))
    if axis.messages:
        problems.append(Problem("time-column", f"{'; '.join(axis.messages)}."))
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        message = "the last line of the table does not end, so its last number may be cut off"
        problems.append(problem("may-be-cut", f"{message}; it is read as it is"))
    return [*problems, *([] if axis.rate is not None else [RATE_UNKNOWN])]


def table_blocks(file: BinaryIO) -> Iterator[tuple[list[str], NDArray[np.float64]]]:
    """Names of the columns, if the first line has no number, and values ``(lines, columns)``, some lines a time."""
    lines = _lines(file)
    first = next(lines, None)
    if first is None:
        raise Refused("no-data", "the table has no samples. Leave it out.")
    try:
        cells = cells_of(first[1])
    except MalformedCsvError:
        raise Refused("not-this-format", "the first line is not that of a table. Write it again.") from None
    second = next(lines, None)
    lines = lines if second is None else chain([second], lines)
    # ,0,1,2 is what pandas writes above an index and columns without names
    is_indexed = len(cells) > 1 and not cells[0].strip() and _counts(cells[1:])
    is_header = is_indexed or not any(map(_is_number, cells))
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


def _counts(cells: list[str]) -> bool:
    """Whether cells are written as whole numbers that count the columns, from 0 or from 1."""
    plain = [cell.strip() for cell in cells]
    return any(plain == [str(place) for place in range(begin, begin + len(cells))] for begin in (0, 1))


def _refuse_counting(cells: list[str], second: str) -> None:
    """pandas and spreadsheets write 0, 1, 2 or 1, 2, 3 above columns without names, which looks like samples."""
    # of a single column 0 or 1 may well be a sample, unless those below are written as decimals
    if _counts(cells) and (len(cells) > 1 or re.search(r"[.eE]", second)):
        shown = ",".join(cell.strip() for cell in cells[:3]) + (",..." if len(cells) > 3 else "")
        found = f"the first line, {shown}, counts the columns; names or samples, it is not certain which"
        to_do = "Write names with letters, or remove the line; write samples as decimals"
        raise Refused("header-doubtful", f"{found}. {to_do} ({cells[0].strip()}.0).")


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
            found = f"line {place} has {len(cells)} values, and the lines before {width}"
            raise Refused("header-damaged", f"{found}; every line needs one value a variate")
        wrong = next((cell.strip() for cell in cells if not _is_number(cell)), None)
        if wrong is not None:  # a wrong number or sign may be quoted, a word may be somebody's name
            found = f"line {place} has {'a word' if any(map(str.isalpha, wrong)) else quoted(wrong)}"
            needed = "numbers separated by commas are needed. Write nan where a sample is missing"
            raise Refused("header-damaged", f"{found}; {needed}.")
    raise Refused("header-damaged", "the table is not one of numbers. Write it again.")


def _lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Lines with something in them, and their numbers; a line that does not end is not read to its end."""
    place = 0
    while line := file.readline(LINE_BYTES + 1):
        place += 1
        if len(line) > LINE_BYTES:
            raise Refused("too-large", f"a line has more than {LINE_BYTES:,} bytes. Write the table again.")
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


def _read_csv(file: BinaryIO) -> ArrayContent:
    """One column a variate; a first line without any number names them; a time axis is none of them."""
    names: list[str] = []
    blocks: list[NDArray[np.float64]] = []
    n_bytes, next_check = 0, SMALL_BYTES
    for names, values in table_blocks(file):  # noqa: B007
        blocks.append(values)
        n_bytes += values.nbytes
        if n_bytes > next_check:  # lines are in memory already, and are needed once more in another order
            refuse_too_long(n_bytes, "the table")
            next_check = n_bytes + SMALL_BYTES
    columns = np.empty((blocks[0].shape[1], sum(map(len, blocks))))
    np.concatenate([values.T for values in blocks], axis=1, out=columns)
    axis = time_axis(names, {place: columns[place] for place in axis_candidates(names, len(columns))})
    kept = [place for place in range(len(columns)) if place not in axis.columns]
    channels = tuple(names[place] for place in kept) if names else ()
    samples = columns if len(kept) == len(columns) else columns[kept]
    return ArrayContent(samples, axis.rate, channels, axis.start_seconds)


# Most tables in a folder are something else, so none is taken for a recording unless it is named.
register_format(array_format("CSV", ".csv", _look_at_csv, _read_csv, self_describing=False, searched=False))
