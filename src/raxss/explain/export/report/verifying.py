"""Verification of a report against a new computation from its model and recording.

    contents of a report, contents computed anew -> every number, text and array that differs, by name

Script and style are compared byte by byte when a report is read, and its data with their hash (page.py). Who
changes data on purpose can write another hash; so the data are compared here with a new computation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raxss.errors import display_name
from raxss.explain.export.report.page import Report
from raxss.explain.export.report.signals import GAP, NO_WINDOW, decoded

Path = tuple[str | int, ...]  # from the whole to one value

TOLERANCE = 1e-6  # of numbers; of the largest beside them where all are small
# Between -1 and 1 whatever the signal: of a probability of 1e-20 no digit counts, and other threads have others.
OF_ONE = {"probability", "uniform", "inverse", "posterior", "smoothed", "similarity", "support"}
PACKED: dict[Path, tuple[str, int]] = {  # arrays kept as text, and the value that means: nothing here
    ("heat",): ("uint8", NO_WINDOW),
    ("weights",): ("uint8", NO_WINDOW),
    ("envelope", "low"): ("int16", GAP),
    ("envelope", "high"): ("int16", GAP),
    ("full", "samples"): ("int16", GAP),
}


@dataclass(frozen=True)
class Verification:
    """Result of a comparison."""

    n_values: int  # numbers, texts and packed arrays that were compared
    differences: tuple[str, ...]  # a sentence about each that differs, in the order of the report

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def verify_report(report: Report, again: Report) -> Verification:
    """Compare a report with a new one of the same model and recording.

    Whole numbers and texts must be the same, packed arrays within one step. Other numbers within 1e-6, or where
    they are small by nature (weights, what windows contribute, the steps of a signal) within 1e-6 of the largest.
    """
    expected = json.loads(json.dumps(again.contents))  # as a file has it
    for table in (expected, *expected["channels"]):
        for name in report.lacking:  # an earlier version could not say it
            table.pop(name, None)
    differences = [
        f"{_named(path, expected['channels'])}: {what}"
        for path, what in _differences(report.contents, expected, ())
    ]
    return Verification(_n_values(expected), tuple(differences))


def _n_values(value: Any) -> int:
    """Number of values that are neither list nor table."""
    if isinstance(value, dict | list):
        return sum(map(_n_values, value.values() if isinstance(value, dict) else value))
    return 1


def _differences(found: Any, expected: Any, path: Path, measure: float = 0.0) -> Iterator[tuple[Path, str]]:
    """Each place that differs, and how. ``measure``: what numbers here are to be compared by, if it is not 1."""
    if isinstance(expected, dict | list) and type(found) is not type(expected):
        kind = "table" if isinstance(expected, dict) else "list"
        yield path, f"the report says {_shown(found)}, computed anew it is a {kind}"
    elif isinstance(expected, dict):
        for key, item in expected.items():
            if key in found:
                yield from _differences(found[key], item, (*path, key), _measure(key, expected, measure))
            else:
                yield (*path, key), "is not in the report"
        for key in sorted(found.keys() - expected.keys()):
            yield (*path, key), "is in the report, and nothing computed anew is called so"
    elif isinstance(expected, list) and len(found) != len(expected):
        yield path, f"the report has {len(found)} of them, computed anew there are {len(expected)}"
    elif isinstance(expected, list):
        measure = max(measure, min(1.0, _largest(expected)))
        for place, (item, other) in enumerate(zip(found, expected, strict=True)):
            yield from _differences(item, other, (*path, place), measure)
    elif path[:1] == ("channels",) and path[2:] in PACKED and isinstance(expected, str):
        if what := _of_arrays(found, expected, *PACKED[path[2:]]):
            yield path, what
    elif not _same(found, expected, measure):
        yield path, f"the report says {_shown(found)}, computed anew it is {_shown(expected)}"


def _measure(key: str, table: Mapping[str, Any], above: float) -> float:
    """Scale that numbers of this name are compared by; 0: their own size."""
    if key in OF_ONE:
        return 1.0
    if key == "effective_windows":
        return float(table[key])
    if key == "neighbors":  # what they change is a small part of a weight
        return _largest(table["windows"]["weight"])
    return above if key == "weight_change" else 0.0


def _largest(value: Any) -> float:
    """Largest absolute value of the floats in nested lists."""
    if isinstance(value, list):
        return max(map(_largest, value), default=0.0)
    return abs(value) if isinstance(value, float) else 0.0


def _same(found: Any, expected: Any, measure: float) -> bool:
    if type(found) is not type(expected) or not isinstance(expected, float):
        return type(found) is type(expected) and bool(found == expected)
    return math.isfinite(found) and abs(found - expected) <= TOLERANCE * (measure or min(1.0, abs(expected)))


def _of_arrays(found: Any, expected: str, dtype: str, nothing: int) -> str:
    """How packed arrays differ by more than a step; empty where they do not."""
    if found == expected:
        return ""
    try:
        given, array = decoded(found, dtype).astype(np.int64), decoded(expected, dtype).astype(np.int64)
    except (TypeError, ValueError):
        return "what the report has cannot be read as an array"
    if len(given) != len(array):
        return f"the report has {len(given)} values, computed anew there are {len(array)}"
    apart = (np.abs(given - array) > 1) | ((given == nothing) != (array == nothing))
    if not apart.any():
        return ""
    first = int(apart.argmax())
    return (
        f"{int(apart.sum())} of {len(array)} values are more than a step off; the first, at {first}, is "
        f"{given[first]}, computed anew it is {array[first]}"
    )


def _named(path: Path, channels: Sequence[Mapping[str, Any]]) -> str:
    """Path as a reader finds it: ``channel 'C3', windows.weight[4]``."""
    parts = []
    if path[:1] == ("channels",) and len(path) > 1:
        parts, path = [f"channel {display_name(channels[int(path[1])]['name'])}"], path[2:]
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{display_name(step)[1:-1]}" for step in path)
    return ", ".join([*parts, *([steps.removeprefix(".")] if steps else [])])


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else f"a list of {len(value)}"
    return display_name(value) if isinstance(value, str) else display_name(repr(value))[1:-1]
