"""Signal headers of an EDF or BDF file: labels, units, ranges and numbers of samples.

    the fields of all signals, as bytes -> SignalHeaders: problems, or one EdfSignal a signal

Next: header.py reads the file's own fields and compares them with its size.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np

from raxss.data.formats.fields import described, known_units, microvolts_per
from raxss.data.problems import Problem
from raxss.errors import display_name, join_names

# name, width; all signals' labels come before the first transducer
SIGNAL_FIELDS = (
    ("label", 16),
    ("transducer", 80),
    ("unit", 8),
    ("physical minimum", 8),
    ("physical maximum", 8),
    ("digital minimum", 8),
    ("digital maximum", 8),
    ("prefilter", 80),
    ("samples in a record", 8),
    ("reserved of a signal", 32),
)
MAX_PHYSICAL = 1e20  # in any unit; times gain and 1e6 (volts to microvolts) it still is a float32
N_NAMED = 10  # channels that a message names one by one
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class EdfSignal:
    """One signal of a file, as its header describes it.

    Attributes
    ----------
    label, unit
        Without padding; bytes that are not ASCII read as UTF-8 or Latin-1; control characters as ``?``.
    n_samples
        In one record.
    offset
        Bytes from the start of a record to its first sample of this signal.
    is_annotations
        Times and texts rather than samples.
    """

    label: str
    unit: str
    physical_min: float
    physical_max: float
    digital_min: int
    digital_max: int
    n_samples: int
    offset: int
    is_annotations: bool


class SignalHeaders:
    """The headers of all signals, decoded where they can be."""

    def __init__(self, path: Path, family: str, fields: dict[str, list[bytes]]) -> None:
        self.path, self.fields, self.family = path, fields, family
        self.labels = [text_of(field) for field in fields["label"]]
        self.units = [text_of(field) for field in fields["unit"]]
        self.is_annotations = [
            field.rstrip() == f"{family} Annotations".encode() for field in fields["label"]
        ]
        self.n_samples = [integer_of(field) for field in fields["samples in a record"]]
        self.digital = [
            (integer_of(low), integer_of(high))
            for low, high in zip(fields["digital minimum"], fields["digital maximum"], strict=True)
        ]
        self.physical = [
            (decimal_of(low), decimal_of(high))
            for low, high in zip(fields["physical minimum"], fields["physical maximum"], strict=True)
        ]

    def problems(self) -> list[Problem]:
        """Of labels, units, ranges and numbers of samples."""
        return [
            *self._of_labels(),
            *self._of_numbers(),
            *self._of_ranges(),
            *self._of_units(),
        ]

    def _named(self, places: Iterable[int]) -> str:
        return named_channels(self.labels, list(places))

    def _data(self) -> list[int]:
        return [place for place, is_text in enumerate(self.is_annotations) if not is_text]

    def _of_labels(self) -> Iterator[Problem]:
        odd = [
            place
            for place in self._data()
            if self.labels[place].strip(" ?").casefold() in ("edf annotations", "bdf annotations")
        ]
        if odd:
            yield Problem(
                "header-damaged",
                f"{display_name(self.path)} has a signal labelled {self.labels[odd[0]]!r}; annotations of this "
                f"format are labelled '{self.family} Annotations', so whether this is text or signal is not "
                "certain. Correct the label.",
            )
        if not self._data():
            yield Problem(
                "no-data",
                f"{display_name(self.path)} holds annotations only and no signal. Name the file that has the "
                "signals.",
            )
        if nameless := [place for place in self._data() if not self.labels[place].strip()]:
            yield Problem(
                "nameless-channel",
                f"{display_name(self.path)} has {_count(nameless)} without a label: {self._named(nameless)}. Ask "
                "for them by position.",
            )
        counts = Counter(self.labels[place] for place in self._data())
        if repeated := [
            place for place in self._data() if self.labels[place].strip() and counts[self.labels[place]] > 1
        ]:
            yield Problem(
                "duplicate-channel",
                f"{display_name(self.path)} has {_count(repeated)} whose label is not theirs alone: "
                f"{self._named(repeated)}. Ask for them by position.",
            )

    def _of_numbers(self) -> Iterator[Problem]:
        wrong = [
            place
            for place, count in enumerate(self.n_samples)
            if count is None or count < 0 or (count == 0 and self.is_annotations[place])
        ]
        if wrong:
            field = self.fields["samples in a record"][wrong[0]]
            yield damaged_field(
                self.path,
                f"samples in a record of {self._named(wrong)}",
                field,
                "a whole number from 1 on",
            )
        if empty := [place for place in self._data() if self.n_samples[place] == 0]:
            yield Problem(
                "bad-rate",
                f"{display_name(self.path)} declares 0 samples in a record for {self._named(empty)}, a rate of 0 "
                "Hz; at least 1 is needed. Export it without them.",
            )

    def _of_ranges(self) -> Iterator[Problem]:
        if self.family == "BDF":
            lowest, highest = -(2**23), 2**23 - 1
        else:
            lowest, highest = -(2**15), 2**15 - 1
        faults: dict[str, list[int]] = {}
        for place in self._data():
            if fault := _range_fault(self.digital[place], self.physical[place], lowest, highest):
                faults.setdefault(fault, []).append(place)
        for fault, places in faults.items():
            yield Problem(
                "bad-range",
                f"{display_name(self.path)}: {self._named(places)}: {fault}. Samples cannot be turned into "
                "physical values; export the recording again.",
            )

    def _of_units(self) -> Iterator[Problem]:
        blank = [place for place in self._data() if not self.units[place].strip()]
        other = [
            place
            for place in self._data()
            if self.units[place].strip()
            and microvolts_per(self.units[place]) is None
            # the trigger channel that every BioSemi recorder writes
            and not (self.units[place].strip() == "Boolean" and self.labels[place].strip() == "Status")
        ]
        if blank:
            yield Problem(
                "blank-unit",
                f"{display_name(self.path)} has {_count(blank)} without a unit: {self._named(blank)}. Their "
                "samples are taken as stored, not as volts.",
            )
        if other:
            yield Problem(
                "unknown-unit",
                f"{display_name(self.path)} has {_count(other)} in units other than volts "
                f"({known_units(self.units[place] for place in other)}): {self._named(other)}. Their samples are "
                "taken as stored.",
            )

    def build(self, sample_bytes: Literal[2, 3]) -> tuple[EdfSignal, ...]:
        """All signals; only after `problems` refused none of them."""
        counts = [count or 0 for count in self.n_samples]
        offsets = accumulate((count * sample_bytes for count in counts), initial=0)
        return tuple(
            EdfSignal(
                label=self.labels[place].strip(),
                unit=self.units[place].strip(),
                physical_min=_number_or_nan(self.physical[place][0]),
                physical_max=_number_or_nan(self.physical[place][1]),
                digital_min=self.digital[place][0] or 0,
                digital_max=self.digital[place][1] or 0,
                n_samples=counts[place],
                offset=offset,
                is_annotations=self.is_annotations[place],
            )
            for place, offset in zip(range(len(counts)), offsets, strict=False)
        )


def _range_fault(
    digital: tuple[int | None, int | None],
    physical: tuple[float | None, float | None],
    lowest: int,
    highest: int,
) -> str | None:
    """What keeps samples from being scaled; a physical maximum below the minimum is legal (inverted polarity)."""
    digital_min, digital_max = digital
    physical_min, physical_max = physical
    if digital_min is None or digital_max is None:
        return "a digital limit is not a whole number"
    if physical_min is None or physical_max is None:
        return "a physical limit is not a number"
    if not lowest <= digital_min < digital_max <= highest:
        return (
            f"the digital limits are {digital_min} and {digital_max}; the first must be the smaller, both between "
            f"{lowest} and {highest}"
        )
    if not max(abs(physical_min), abs(physical_max)) <= MAX_PHYSICAL:
        return f"the physical limits are beyond {MAX_PHYSICAL:g} or not finite"
    if physical_min == physical_max:
        return f"the physical minimum and maximum are both {physical_min:g}"
    gain = (physical_max - physical_min) / (digital_max - digital_min)
    if abs(gain) < np.finfo(np.float32).tiny or not math.isfinite(physical_max / gain):
        return f"the physical limits {physical_min:g} and {physical_max:g} are too close to each other"
    return None


def text_of(field: bytes) -> str:
    """A text field without its padding and without control characters."""
    field = field.rstrip(b" \0")
    try:
        text = field.decode("utf-8")
    except UnicodeDecodeError:
        text = field.decode("latin-1")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def named_channels(labels: Sequence[str], places: Sequence[int]) -> str:
    """Channels as messages name them: label and position, ten at most.

    >>> named_channels(["C3", ""], [0, 1])
    "'C3' (0), '' (1)"
    """
    return join_names((f"{labels[place]!r} ({place})" for place in places), N_NAMED)


def integer_of(field: bytes) -> int | None:
    """A whole number in a field, or None."""
    text = field.strip(b" ")
    return int(text) if _INTEGER.fullmatch(text) else None


def decimal_of(field: bytes) -> float | None:
    """A decimal number in a field, or None."""
    text = field.strip(b" ")
    return float(text) if _DECIMAL.fullmatch(text) else None


def _number_or_nan(number: float | None) -> float:
    return math.nan if number is None else number


def _count(places: Sequence[int]) -> str:
    return "1 channel" if len(places) == 1 else f"{len(places)} channels"


def damaged_field(path: Path, name: str, field: bytes, wanted: str) -> Problem:
    """About a numeric field. Where bytes before it were lost it may hold the patient, so text is not repeated."""
    return Problem(
        "header-damaged",
        f"{display_name(path)} has {described(text_of(field))} as {name}; {wanted} is needed. Copy or export it "
        "again.",
    )
