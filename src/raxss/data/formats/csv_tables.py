"""CSV format: a table of numbers, one column per channel, with or without names and a time axis.

    its lines -> problems
    a file that was not refused -> samples (n_columns, n_lines), names, rate and start where a time axis states them

A time axis or a counter is known by its name (``time``, ``t (ms)``, ``index``) and is no channel. A first column
that rises evenly under another name, or none, could be either and is refused: a ramp would be scored as a signal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.array_files import RATE_UNKNOWN, ArrayContent, array_format, shape_problems
from raxss.data.formats.fields import Refused, channel_problems, problem, quoted, refuse_rate
from raxss.data.formats.registry import register_format
from raxss.data.problems import Problem
from raxss.data.recording import SMALL_BYTES, refuse_too_long
from raxss.data.tables import MalformedCsvError, cells_of

LINE_BYTES = 2**17  # of a table; a line of 128 channels has some three thousand
LINES_AT_ONCE = 256
SECONDS = {  # in one of a unit, by its spellings
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
}
TIMES = ("time", "times", "t", "timestamp", "timestamps", "time stamp", "elapsed", "elapsed time")
COUNTERS = (
    "index", "idx", "sample", "samples", "sample number", "sample no", "sample index", "frame", "row", "unnamed: 0",
)  # fmt: skip
BARE_UNITS = {name for name in SECONDS if len(name) > 1} - {"min", "us"}  # S and s are contacts
MIN_RAMP = 8  # rows; fewer rise evenly by chance
CLOCK_SECONDS = 1e7  # a first time beyond this is a date, not a time since the start of a recording
EVEN = 0.01  # of a step: how far times may be off
COARSEST = 0.3  # of a step: the last digit of times that were rounded


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
    # pandas and spreadsheets write 0, 1, 2 or 1, 2, 3 above columns without names, which looks like samples; of a
    # single column 0 or 1 may well be a sample, unless those below are written as decimals
    is_certain = len(cells) > 1 or re.search(r"[.eE]", "" if second is None else second[1])
    if not is_header and is_certain and _counts(cells):
        shown = ",".join(cell.strip() for cell in cells[:3]) + (",..." if len(cells) > 3 else "")
        found = f"the first line, {shown}, counts the columns; names or samples, it is not certain which"
        to_do = "Write names with letters, or remove the line; write samples as decimals"
        raise Refused("header-doubtful", f"{found}. {to_do} ({cells[0].strip()}.0).")
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
            raise Refused("header-damaged", f"{found}; every line needs one value per variate")
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


@dataclass(frozen=True)
class TimeAxis:
    """What the columns that are no channels state."""

    columns: tuple[int, ...] = ()  # their positions
    rate: float | None = None  # samples per second; None: not stated
    start_seconds: float = 0.0
    messages: tuple[str, ...] = ()  # a sentence for each column


def axis_candidates(names: Sequence[str], n_columns: int) -> list[int]:
    """Positions of the columns whose values `time_axis` needs: those named so, or else the first of several."""
    if n_columns < 2:  # a lone column is the signal, whatever it is called
        return []
    named = [place for place, name in enumerate(names) if _kind(name, place) is not None]
    return named or [0]


def time_axis(names: Sequence[str], columns: Mapping[int, NDArray[Any]]) -> TimeAxis:
    """The time axis of a table, given the columns at `axis_candidates`.

    Times without a unit are seconds; where they count 1, 2, 3 they count samples, and no rate is known.

    >>> axis = time_axis(["t (ms)", "C3"], {0: np.arange(0.0, 40.0, 4.0)})
    >>> axis.columns, axis.rate
    ((0,), 250.0)
    """
    dropped, messages = [], []
    timed: list[tuple[str, float, float]] = []
    for place, values in columns.items():
        name = names[place] if place < len(names) else ""
        kind = _kind(name, place) if names else None
        if kind is None:
            _refuse_ramp(values)
            continue
        if not name.strip() and not _is_even(values):  # a channel without a name, and no index
            continue
        dropped.append(place)
        # times without a unit that rise by 1 count samples
        if kind == "counter" or (not kind and len(values) > 1 and np.all(np.diff(values) == 1)):
            if not _is_even(values):
                found = f"the column {quoted(name)} counts samples and does not rise by one step: some are missing"
                to_do = "Store each stretch between gaps by itself; if it is a channel, rename it."
                raise Refused("time-doubtful", f"{found} or in another order. {to_do}")
            messages.append(f"the column {quoted(name)} counts samples; it is no channel")
            continue
        start, rate = _times_of(values, name, kind)
        timed.append((name, start, rate))
        messages.append(f"the column {quoted(name)} is the time axis, at {rate:g} Hz; it is no channel")
    if len(timed) > 1:
        found = f"{len(timed)} columns of times, {quoted(timed[0][0])} and {quoted(timed[1][0])}"
        raise Refused("time-doubtful", f"the table has {found}; one is needed. Remove the others.")
    if not timed:
        return TimeAxis(tuple(dropped), messages=tuple(messages))
    _, start, rate = timed[0]
    # a date would say when somebody was recorded, and is no time within a recording
    return TimeAxis(tuple(dropped), rate, start if abs(start) < CLOCK_SECONDS else 0.0, tuple(messages))


def regular_times(times: NDArray[Any], what: str, *, resolution: float = 0.0) -> tuple[float, float]:
    """When the first sample was taken, and the rate; Refused where times do not rise evenly.

    ``resolution``: the last digit that was written of rounded times. The rate is the shortest number that they
    allow, because 255.97 Hz from times of three digits means 256.
    """
    first, last = float(times[0]), float(times[-1])
    step = (last - first) / (len(times) - 1) if len(times) > 1 else np.nan
    off = max(EVEN * step, 1.001 * resolution if resolution <= COARSEST * step else 0.0)
    even = np.all(np.abs(times - np.linspace(first, last, len(times))) < off)
    # neither if they fall, nor if they are NaN
    if not (even and np.all(np.abs(np.diff(times) - step) < off)):
        found = f"{what} does not rise evenly; one step from each sample to the next is needed"
        to_do = (
            "Store each stretch between gaps by itself; of rounded times, write more digits, or give a rate."
        )
        raise Refused("time-doubtful", f"{found}. {to_do}")
    rate, known_to = 1 / step, max(5e-10, resolution / (last - first))
    shortest = (float(f"{rate:.{digits}g}") for digits in range(1, 10))
    rate = next((item for item in shortest if abs(item - rate) <= known_to * rate), rate)
    refuse_rate(rate, f"{what} at {rate:g} Hz")
    return first, rate


def _kind(name: str, place: int) -> str | None:
    """``counter``, the unit of a time, ``""`` for a time without one; None for a channel."""
    plain = " ".join(re.sub(r"[_\-]+", " ", name).lower().split())
    if plain in COUNTERS or (not plain and place == 0):  # pandas leaves the name of its index empty
        return "counter"
    if plain in TIMES or plain in BARE_UNITS:
        return "" if plain in TIMES else plain
    matched = re.fullmatch(r"(.+?)\s*(?:[(\[{/,]| (?:in )?)\s*([a-z\u00b5\u03bc]+)\s*[)\]}]?", plain)
    if matched and matched[1] in TIMES and matched[2] in SECONDS:
        return matched[2]
    return None


def _times_of(values: NDArray[Any], name: str, unit: str) -> tuple[float, float]:
    what = f"the column {quoted(name)}"
    if len(values) < 2:
        raise Refused("time-doubtful", f"{what} has one time; at least 2 are needed. Leave it out.")
    if not unit and abs(float(values[-1]) - float(values[0])) / (len(values) - 1) > 1:
        found = f"{what} rises by more than 1 from sample to sample and says no unit; are these seconds?"
        raise Refused("time-doubtful", f"{found} Write the unit behind the name, such as 'time (ms)'.")
    scale = SECONDS[unit] if unit else 1.0
    return regular_times(values * scale, what, resolution=_last_digit(values) * scale)


def _last_digit(values: NDArray[Any]) -> float:
    """The decimal place that all numbers end before; 0 where there is none."""
    for digits in range(10):
        scaled = values * 10.0**digits
        if np.all(np.abs(scaled - np.round(scaled)) <= 1e-6 + 1e-12 * np.abs(scaled)):
            return float(10.0**-digits)
    return 0.0


def _is_even(values: NDArray[Any]) -> bool:
    """Whether a counter rises by one and the same step."""
    steps = np.diff(values)
    return len(steps) == 0 or bool(np.all(steps == steps[0]) and steps[0] > 0)


def _refuse_ramp(values: NDArray[Any]) -> None:
    """A first column that is a time axis or a counter by its values, and not by its name."""
    if len(values) < MIN_RAMP:
        return
    try:
        regular_times(values, "", resolution=_last_digit(values))
    except Refused as refused:
        if refused.problem.code != "bad-rate":
            return
    found = "the first column rises evenly from the first line to the last, as times and counters do"
    to_do = "If it is one, name it in the first line: 'time (s)', 'time (ms)' or 'index'"
    raise Refused("time-doubtful", f"{found}. {to_do}; if it is a channel, put another column before it.")


# Most tables in a folder are something else, so none is taken for a recording unless it is named.
register_format(array_format("CSV", ".csv", _look_at_csv, _read_csv, self_describing=False, searched=False))
