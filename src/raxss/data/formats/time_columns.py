"""Columns of a table that are a time axis or count samples, and so are no channels.

    names of the columns, their values -> TimeAxis: which columns, rate, start; or Refused

A column is known by its name (``time``, ``t (ms)``, ``index``). A first column that rises evenly under another
name, or under none, could be either: it is refused, because a ramp as a channel would be scored like a signal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.fields import Refused, quoted, refuse_rate

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
