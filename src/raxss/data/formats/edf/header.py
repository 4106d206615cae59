"""Header of an EDF or BDF file, compared with the file's size.

    an open file, its size -> EdfHeader with one EdfSignal a signal; problems

Rules are those of the EDF and EDF+ specifications. Samples are never read here, and a header is read only as far as
its own numbers are possible for a file of that size.
Next: onsets.py reads when each record began; reading.py decodes what was not refused.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import BinaryIO, Literal

import numpy as np

from raxss.data.formats.fields import (
    MAX_RATE,
    MIN_RATE,
    Refused,
    described,
    known_units,
    microvolts_per,
    refuse_many_rates,
)
from raxss.data.problems import Problem, refusals
from raxss.errors import join_names

FIXED_BYTES = 256  # of the header, and as many again for each signal
# name, width
FILE_FIELDS = (
    ("version", 8),
    ("patient", 80),
    ("recording", 80),
    ("start date", 8),
    ("start time", 8),
    ("size of the header", 8),
    ("reserved", 44),
    ("number of records", 8),
    ("duration of a record", 8),
    ("number of signals", 4),
)
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
FAMILIES = {b"0       ": "EDF", b"\xffBIOSEMI": "BDF"}
# A reader that brings all signals to the highest rate takes this many bytes per byte of the file. Polysomnographies
# with one fast and many slow signals reach about 100; hostile headers thousands.
MAX_EXPANSION = 200
ALWAYS_ALLOWED = 2**28  # bytes; anything that small may expand as it likes
MAX_PHYSICAL = 1e20  # in any unit; times gain and 1e6 (volts to microvolts) it still is a float32
N_NAMED = 10  # channels that a message names one by one
_PRINTABLE = re.compile(rb"[ -~]*")
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class EdfSignal:
    """One signal of a file, as its header describes it; texts as of `text_of`, without padding."""

    label: str
    unit: str
    physical_min: float
    physical_max: float
    n_samples: int  # in one record
    offset: int  # bytes from the start of a record to its first sample of this signal
    is_annotations: bool  # times and texts rather than samples


@dataclass(frozen=True)
class EdfHeader:
    """What a reader needs to know; nothing of the patient, the recording or the date is kept."""

    kind: str  # EDF, BDF, EDF+C, BDF+C: continuous; EDF+D, BDF+D: may have gaps
    n_records: int  # whole ones that can be read: declared and really there
    n_records_declared: int  # -1: the header says that it does not know
    record_seconds: float
    sample_bytes: Literal[2, 3]
    data_offset: int
    signals: tuple[EdfSignal, ...]
    # of each stretch without a gap: its first record, the one after the last, and when it starts in seconds
    runs: tuple[tuple[int, int, float], ...] = ()

    @property
    def record_bytes(self) -> int:
        """Size of one record."""
        return self.sample_bytes * sum(signal.n_samples for signal in self.signals)

    @property
    def data_signals(self) -> tuple[EdfSignal, ...]:
        """Signals with samples, in the order of the file."""
        return tuple(signal for signal in self.signals if not signal.is_annotations)

    def rate(self, signal: EdfSignal) -> float:
        """Samples per second."""
        return signal.n_samples / self.record_seconds


def parse_header(file: BinaryIO, size: int, suffix: str, problems: list[Problem]) -> EdfHeader | None:
    """The header, or None if ``problems``, to which what is wrong is added, has a refusal; raises `Refused`."""
    fixed = file.read(FIXED_BYTES)
    family = _family_of(fixed, size, suffix)
    fields = _cut(fixed, FILE_FIELDS, 1)
    n_signals = _n_signals(fields, size)
    if not _is_start(fields["start date"][0] + fields["start time"][0]):
        problems.append(
            Problem(
                "header-inconsistent",
                "the header has a date or time of start that cannot be (not shown here). Times are counted from "
                "the start of the recording, so nothing depends on it.",
            )
        )
    per_signal = _cut(file.read(FIXED_BYTES * n_signals), SIGNAL_FIELDS, n_signals)
    signals = SignalHeaders(family, per_signal)
    problems += signals.problems()
    problems += _text_problems({**fields, **per_signal})
    if refusals(problems):
        return None
    header = _sized(fields, signals, size, problems)
    problems += _rate_problems(header)
    _refuse_expansion(header, size)
    return header


def _family_of(fixed: bytes, size: int, suffix: str) -> str:
    """EDF or BDF, by the first bytes, which must agree with the suffix of the name."""
    if size == 0:
        raise Refused("no-data", "the file is empty. Copy or export it again.")
    family = FAMILIES.get(fixed[:8])
    if family is None and len(fixed) >= 8:
        raise Refused(
            "not-this-format",
            "the file does not begin as EDF ('0' and seven spaces) or BDF (255 and 'BIOSEMI') does, so it is "
            "something else or damaged. Copy or export it again.",
        )
    if family is None or len(fixed) < FIXED_BYTES:
        raise Refused(
            "header-damaged",
            f"the file has {size} bytes, and the header alone of an EDF file has {FIXED_BYTES}; it was cut off. "
            "Copy it again.",
        )
    if suffix in (".edf", ".bdf") and suffix != f".{family.lower()}":
        raise Refused(
            "not-this-format",
            f"the file is named {suffix} and its content is {family}. Rename it to .{family.lower()}.",
        )
    return family


def _n_signals(fields: dict[str, list[bytes]], size: int) -> int:
    """The number of signals, which says how long the header is, before more of it is read."""
    n_signals = integer_of(fields["number of signals"][0])
    if n_signals is None or n_signals < 0:
        raise _damaged("number of signals", fields, "a whole number from 1 on")
    if n_signals == 0:
        raise Refused("no-data", "the header declares 0 signals, so there is nothing to read.")
    needed = FIXED_BYTES * (n_signals + 1)
    if integer_of(fields["size of the header"][0]) != needed:
        wanted = f"{needed}, that is 256 and 256 for each of {n_signals} signals"
        raise _damaged("size of the header", fields, wanted)
    if size < needed:
        raise Refused(
            "header-damaged",
            f"the header declares {n_signals} signals, for which it has {needed} bytes, and the file has {size}; "
            "it was cut off or the number is wrong. Copy or export it again.",
        )
    return n_signals


def _text_problems(fields: dict[str, list[bytes]]) -> Iterator[Problem]:
    """Fields with bytes that are not printable ASCII, by name alone: some of them hold people."""
    names = [
        name
        for name, values in fields.items()
        if name != "version" and not _PRINTABLE.fullmatch(b"".join(values))
    ]
    if names:
        yield Problem(
            "non-ascii",
            f"the header has characters that are not printable ASCII in: {', '.join(names)}. They are read as "
            "UTF-8 or Latin-1; a name may look odd.",
        )


def _sized(
    fields: dict[str, list[bytes]], signals: SignalHeaders, size: int, problems: list[Problem]
) -> EdfHeader:
    """Compare the number and duration of records with the file's size."""
    declared = integer_of(fields["number of records"][0])
    seconds = decimal_of(fields["duration of a record"][0])
    if declared is None or declared < -1:
        raise _damaged("number of records", fields, "a whole number from 1 on, or -1")
    if seconds is None:
        raise _damaged("duration of a record", fields, "a number of seconds")
    kind = _kind_of(fields["reserved"][0], signals, problems)
    if not (math.isfinite(seconds) and seconds > 0):
        raise Refused(
            "bad-rate",
            f"the header says that a record lasts {seconds:g} s; a finite time above 0 is needed to know the rate. "
            "Export it again.",
        )
    sample_bytes: Literal[2, 3] = 3 if signals.family == "BDF" else 2
    built = signals.build(sample_bytes)
    header_bytes = FIXED_BYTES * (len(built) + 1)
    record_bytes = sample_bytes * sum(signal.n_samples for signal in built)
    present, rest = divmod(size - header_bytes, record_bytes)
    readable = present if declared == -1 else min(declared, present)
    header = EdfHeader(kind, readable, declared, seconds, sample_bytes, header_bytes, built)
    problems += _length_problems(header, present, rest)
    return header


def _length_problems(header: EdfHeader, present: int, rest: int) -> Iterator[Problem]:
    declared, size = header.n_records_declared, header.record_bytes
    if header.n_records == 0:
        found = "declares 0 records" if declared == 0 else f"has {rest} bytes of data and a record has {size}"
        raise Refused("no-data", f"the file {found}, so no record can be read. Copy or export it again.")
    if declared == -1:
        yield Problem(
            "header-inconsistent",
            "the header does not say how many records there are (-1), as a recorder leaves it that was stopped "
            f"early; by the file's size there are {present}, which are read.",
        )
    if declared > present:
        yield Problem(
            "data-truncated",
            f"the header declares {declared} records and the file has {present} whole ones; those are read. Copy "
            "it again if the rest should be there.",
        )
    elif rest or 0 <= declared < present:
        extra = (present - header.n_records) * size + rest
        which = "fit" if declared == -1 else "the header declares"
        message = f"the file has {extra} bytes after the {header.n_records} records that {which}; not read."
        yield Problem("data-longer", message)


def _kind_of(field: bytes, signals: SignalHeaders, problems: list[Problem]) -> str:
    """Whether the file is plain, continuous or discontinuous, and whether annotations fit to that."""
    family, has_annotations = signals.family, any(signals.is_annotations)
    reserved = field.decode("latin-1").strip(" \0")
    mark = reserved[:5].upper()
    is_plus = mark.startswith((f"{family}+", "EDF+"))
    kind = f"{family}+D" if is_plus and mark.endswith("+D") else f"{family}+C" if is_plus else family
    faults = []
    if is_plus and mark not in (f"{family}+C", f"{family}+D"):
        faults.append(
            f"is marked as EDF+ or BDF+, neither continuous ({family}+C) nor discontinuous ({family}+D)"
        )
    elif is_plus and not reserved.startswith(mark):
        faults.append(f"does not spell its kind {mark!r}")
    if kind == family and has_annotations:
        kind = f"{family}+C"
        faults.append(f"has annotations and is not marked as {kind}; it is read as such")
    if is_plus and not has_annotations:
        if kind.endswith("+D"):
            raise Refused(
                "header-damaged",
                f"the file is marked as {kind} and has no signal '{family} Annotations', so when its records began "
                "is not known. Export it again.",
            )
        faults.append(f"is marked as {kind} and has no signal '{family} Annotations'; it is read without")
    problems += [Problem("header-inconsistent", f"the file {fault}.") for fault in faults]
    return kind


def _rate_problems(header: EdfHeader) -> Iterator[Problem]:
    rates = [header.rate(signal) for signal in header.data_signals]
    if wrong := [place for place, rate in enumerate(rates) if not MIN_RATE <= rate <= MAX_RATE]:
        labels = [signal.label for signal in header.data_signals]
        raise Refused(
            "bad-rate",
            f"the file has {header.data_signals[wrong[0]].n_samples} samples in {header.record_seconds:g} s, that "
            f"is {rates[wrong[0]]:g} Hz, in {named_channels(labels, wrong)}; rates from {MIN_RATE:g} to "
            f"{MAX_RATE:g} Hz are possible. Export it again.",
        )
    distinct = sorted(set(rates))
    refuse_many_rates(len(distinct))
    if len(distinct) > 1:
        shown = join_names((f"{rate:g}" for rate in distinct), N_NAMED)
        yield Problem("mixed-rates", f"the file has channels of {shown} Hz; each is read at its own rate.")


def _refuse_expansion(header: EdfHeader, size: int) -> None:
    """Refuse if all signals at the highest rate, as many readers make them, are out of proportion to the file."""
    signals = header.data_signals
    needed = 8 * max(signal.n_samples for signal in signals) * len(signals) * header.n_records
    if needed > max(ALWAYS_ALLOWED, MAX_EXPANSION * size):
        raise Refused(
            "too-large",
            f"the file has {size} bytes, and its {len(signals)} signals at the rate of the fastest would take "
            f"{needed}, more than {MAX_EXPANSION} times as much. Export fast and slow signals to two files.",
        )


def _cut(raw: bytes, fields: Sequence[tuple[str, int]], count: int) -> dict[str, list[bytes]]:
    """Cut a header into its fields, each ``count`` times in a row."""
    cut, start = {}, 0
    for name, width in fields:
        cut[name] = [raw[start + width * place : start + width * (place + 1)] for place in range(count)]
        start += width * count
    return cut


def _is_start(moment: bytes) -> bool:
    """Whether the 16 bytes of date and time of start are both."""
    try:
        datetime.strptime(moment.decode("ascii"), "%d.%m.%y%H.%M.%S")
    except ValueError:
        return False
    return True


class SignalHeaders:
    """The headers of all signals, decoded where they can be."""

    def __init__(self, family: str, fields: dict[str, list[bytes]]) -> None:
        self.family, self.fields = family, fields
        self.labels = [text_of(field) for field in fields["label"]]
        self.units = [text_of(field).strip() for field in fields["unit"]]
        mark = f"{family} Annotations".encode()
        self.is_annotations = [field.rstrip() == mark for field in fields["label"]]
        self.data = [place for place, is_text in enumerate(self.is_annotations) if not is_text]
        self.n_samples = [integer_of(field) for field in fields["samples in a record"]]
        self.digital = [
            (integer_of(low), integer_of(high))
            for low, high in zip(fields["digital minimum"], fields["digital maximum"], strict=True)
        ]
        self.physical = [
            (decimal_of(low), decimal_of(high))
            for low, high in zip(fields["physical minimum"], fields["physical maximum"], strict=True)
        ]

    def problems(self) -> Iterator[Problem]:
        """Of labels, units, ranges and numbers of samples."""
        yield from self._label_problems()
        yield from self._number_problems()
        yield from self._range_problems()
        yield from self._unit_problems()

    def _named(self, places: Iterable[int]) -> str:
        return named_channels(self.labels, list(places))

    def _label_problems(self) -> Iterator[Problem]:
        plain = {place: self.labels[place].strip(" ?").casefold() for place in self.data}
        if odd := [place for place in plain if plain[place] in ("edf annotations", "bdf annotations")]:
            yield Problem(
                "header-damaged",
                f"the file has a signal labelled {self.labels[odd[0]]!r}; annotations of this format are labelled "
                f"'{self.family} Annotations', so whether this is text or signal is uncertain. Correct the label.",
            )
        if not self.data:
            yield Problem(
                "no-data",
                "the file holds annotations only and no signal. Name the file that has the signals.",
            )
        if nameless := [place for place in self.data if not self.labels[place].strip()]:
            message = f"the file has {_count(nameless)} without a label: {self._named(nameless)}"
            yield Problem("nameless-channel", f"{message}. Use their positions.")
        counts = Counter(self.labels[place] for place in self.data if self.labels[place].strip())
        if repeated := [place for place in self.data if counts[self.labels[place]] > 1]:
            message = (
                f"the file has {_count(repeated)} whose label is not theirs alone: {self._named(repeated)}"
            )
            yield Problem("duplicate-channel", f"{message}. Use their positions.")

    def _number_problems(self) -> Iterator[Problem]:
        wrong = [
            place
            for place, count in enumerate(self.n_samples)
            if count is None or count < 0 or (count == 0 and self.is_annotations[place])
        ]
        if wrong:
            yield _damaged(
                "samples in a record", self.fields, "a whole number from 1 on", wrong[0], self._named(wrong)
            ).problem
        if empty := [place for place in self.data if self.n_samples[place] == 0]:
            yield Problem(
                "bad-rate",
                f"the header declares 0 samples in a record for {self._named(empty)}, a rate of 0 Hz; at least 1 "
                "is needed. Export it without them.",
            )

    def _range_problems(self) -> Iterator[Problem]:
        limit = 2**23 if self.family == "BDF" else 2**15
        faults: dict[str, list[int]] = {}
        for place in self.data:
            if fault := _range_fault(self.digital[place], self.physical[place], -limit, limit - 1):
                faults.setdefault(fault, []).append(place)
        for fault, places in faults.items():
            yield Problem(
                "bad-range",
                f"{self._named(places)}: {fault}. Samples cannot be turned into physical values; export the "
                "recording again.",
            )

    def _unit_problems(self) -> Iterator[Problem]:
        if blank := [place for place in self.data if not self.units[place]]:
            message = f"the file has {_count(blank)} without a unit: {self._named(blank)}"
            yield Problem("blank-unit", f"{message}. Their samples are taken as stored, not as volts.")
        other = [
            place
            for place in self.data
            if self.units[place]
            and microvolts_per(self.units[place]) is None
            # the trigger channel that every BioSemi recorder writes
            and not (self.units[place] == "Boolean" and self.labels[place].strip() == "Status")
        ]
        if other:
            units = known_units(self.units[place] for place in other)
            message = (
                f"the file has {_count(other)} in units other than volts ({units}): {self._named(other)}"
            )
            yield Problem("unknown-unit", f"{message}. Their samples are taken as stored.")

    def build(self, sample_bytes: Literal[2, 3]) -> tuple[EdfSignal, ...]:
        """All signals; only after `problems` refused none of them."""
        counts = [count or 0 for count in self.n_samples]
        offsets = accumulate((count * sample_bytes for count in counts), initial=0)
        return tuple(
            EdfSignal(
                label=self.labels[place].strip(),
                unit=self.units[place],
                physical_min=math.nan if low is None else low,
                physical_max=math.nan if high is None else high,
                n_samples=counts[place],
                offset=offset,
                is_annotations=self.is_annotations[place],
            )
            for place, ((low, high), offset) in enumerate(zip(self.physical, offsets, strict=False))
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
    """A text field without its padding: UTF-8 or else Latin-1; control characters read as ``?``."""
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


def _count(places: Sequence[int]) -> str:
    return "1 channel" if len(places) == 1 else f"{len(places)} channels"


def _damaged(
    name: str, fields: dict[str, list[bytes]], wanted: str, place: int = 0, channels: str = ""
) -> Refused:
    """About a numeric field. Where bytes before it were lost it may hold the patient, so text is not repeated."""
    found, of = described(text_of(fields[name][place])), f" of {channels}" if channels else ""
    return Refused(
        "header-damaged",
        f"the header has {found} as {name}{of}; {wanted} is needed. Copy or export it again.",
    )
