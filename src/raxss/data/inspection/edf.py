"""What does the header of an EDF or BDF file say, and can it be true?

    a file -> its header bytes and its size -> EdfHeader, problems
    EdfHeader -> the annotation bytes of each record -> when each record began

Rules are those of the EDF and EDF+ specifications. Only headers and annotations are read here, never samples;
a header is read only as far as its own numbers are possible for a file of that size.
Next: front.py chooses between formats; opening.py decodes what was not refused.
"""

from __future__ import annotations

import datetime
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from raxss.data.inspection.confinement import open_confined, problem_of_opening, root_of
from raxss.data.inspection.fields import (
    MAX_RATE,
    MIN_RATE,
    described,
    known_units,
    microvolts_per,
    problem_of_rates,
    problem_of_segments,
)
from raxss.data.problems import Problem, refusals
from raxss.errors import RecordingError, listed, shown

FIXED_BYTES = 256  # of the header, and as many again for each signal
# name, width: first of the whole file, then of each signal, all signals' labels before the first transducer
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
EDF_VERSION, BDF_VERSION = b"0       ", b"\xffBIOSEMI"
MAX_PHYSICAL = 1e20  # in any unit; times gain and 1e6 (volts to microvolts) it still is a float32
# A reader that brings all signals to the highest rate takes this many bytes per byte of the file. Polysomnographies
# with one fast and many slow signals reach about 100; hostile headers thousands.
MAX_EXPANSION = 200
ALWAYS_ALLOWED = 2**28  # bytes; anything that small may expand as it likes
N_NAMED = 10  # channels that a message names one by one
# Onsets are decimal text, often of milliseconds: records nearer than this follow each other.
ONSET_TOLERANCE = 1e-3  # seconds
BYTES_AT_ONCE = 2**20  # of annotations, while onsets are read

_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_ONSET = re.compile(rb"([+-][0-9]+(?:\.[0-9]*)?)\x14\x14")
_PRINTABLE = re.compile(rb"[ -~]*")
_DATE = re.compile(rb"([0-9]{2})\.([0-9]{2})\.([0-9]{2})")


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


@dataclass(frozen=True)
class EdfHeader:
    """What a reader needs to know; nothing of the patient, the recording or the date is kept.

    Attributes
    ----------
    kind
        Continuous files are ``EDF``, ``BDF``, ``EDF+C``, ``BDF+C``; those that may have gaps end in ``+D``.
    n_records
        Whole records that can be read: declared and really there.
    n_records_declared
        As the header says; -1 where it says that it does not know.
    """

    kind: str
    n_records: int
    n_records_declared: int
    record_seconds: float
    sample_bytes: Literal[2, 3]
    data_offset: int
    signals: tuple[EdfSignal, ...]

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


def inspect_edf(path: Path, root: Path) -> list[Problem]:
    """Everything that is wrong with an EDF or BDF file, by its header, size and record times.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "night.edf"
    >>> _ = path.write_bytes(b"0       " + b" " * 100)
    >>> print(inspect_edf(path, path.parent)[0].message)
    'night.edf' has 108 bytes, and the header alone of an EDF file has 256; it was cut off. Copy it again.
    """
    header, problems = examine(path, root)
    if header is not None and not refusals(problems):
        problems += _problems_of_time(path, root, header)
    return problems


def read_header(path: Path, root: Path | None = None) -> EdfHeader:
    """The header of a file that can be read, or a RecordingError that says why it cannot.

    Examples
    --------
    >>> read_header(Path("no-such.edf"))
    Traceback (most recent call last):
    raxss.errors.RecordingError: 'no-such.edf' was not found. Check its name and whether it was copied.
    """
    header, problems = examine(path, root or root_of(path))
    if refused := refusals(problems):
        raise RecordingError(refused[0].message)
    assert header is not None
    return header


def examine(path: Path, root: Path) -> tuple[EdfHeader | None, list[Problem]]:
    """The header, if it makes enough sense to have one, and what is wrong with it."""
    if problem := problem_of_opening(path, root):
        return None, [problem]
    try:
        with open_confined(path, root) as file:
            return _examine_open(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        reason = error.strerror or "input/output error"
        return None, [
            Problem("not-readable", f"{shown(path)} cannot be read ({reason.lower()}). Check the disk.")
        ]


def _examine_open(path: Path, file: BinaryIO, size: int) -> tuple[EdfHeader | None, list[Problem]]:
    fixed = file.read(FIXED_BYTES)
    if problem := _problem_of_format(path, fixed, size):
        return None, [problem]
    fields = _cut(fixed, FILE_FIELDS, 1)
    whole = {name: values[0] for name, values in fields.items()}
    n_signals = _integer(whole["number of signals"])
    problems = _problems_of_frame(path, whole, n_signals, size)
    if refusals(problems) or n_signals is None:
        return None, problems
    per_signal = _cut(file.read(FIXED_BYTES * n_signals), SIGNAL_FIELDS, n_signals)
    family = "BDF" if whole["version"] == BDF_VERSION else "EDF"
    signals = _Signals(path, family, per_signal)
    problems += signals.problems()
    problems += _problems_of_text(path, {**fields, **per_signal})
    if refusals(problems):
        return None, problems
    header, problems_of_size = _sized(path, whole, signals, size)
    problems += problems_of_size
    if header is not None:
        problems += _problems_of_rates(path, header) + _problems_of_memory(path, header, size)
    return header, problems


def _problem_of_format(path: Path, fixed: bytes, size: int) -> Problem | None:
    """Whether this is EDF or BDF at all, and of the kind that its name says."""
    if size == 0:
        return Problem("no-data", f"{shown(path)} is empty. Copy or export it again.")
    version, suffix = fixed[:8], path.suffix.lower()
    family = {EDF_VERSION: "EDF", BDF_VERSION: "BDF"}.get(version)
    if family is None and len(version) == 8:
        return Problem(
            "not-this-format",
            f"{shown(path)} does not begin as EDF ('0' and seven spaces) or BDF (255 and 'BIOSEMI') does, so it is "
            "something else or damaged. Copy or export it again.",
        )
    if len(fixed) < FIXED_BYTES:
        return Problem(
            "header-damaged",
            f"{shown(path)} has {size} bytes, and the header alone of an EDF file has {FIXED_BYTES}; it was cut "
            "off. Copy it again.",
        )
    if family is not None and suffix in (".edf", ".bdf") and suffix != f".{family.lower()}":
        return Problem(
            "not-this-format",
            f"{shown(path)} is named {suffix} and its content is {family}. Rename it to .{family.lower()}.",
        )
    return None


def _problems_of_frame(
    path: Path, whole: dict[str, bytes], n_signals: int | None, size: int
) -> list[Problem]:
    """The fields that say how long the header is, before more of it is read."""
    if n_signals is None or n_signals < 0:
        return [_damaged(path, "number of signals", whole["number of signals"], "a whole number from 1 on")]
    if n_signals == 0:
        return [Problem("no-data", f"{shown(path)} declares 0 signals, so there is nothing to read.")]
    header_bytes = _integer(whole["size of the header"])
    needed = FIXED_BYTES * (n_signals + 1)
    if header_bytes != needed:
        wanted = f"{needed}, that is 256 and 256 for each of {n_signals} signals"
        return [_damaged(path, "size of the header", whole["size of the header"], wanted)]
    if size < needed:
        return [
            Problem(
                "header-damaged",
                f"{shown(path)} declares {n_signals} signals, whose header has {needed} bytes, and the file has "
                f"{size}; it was cut off or the number is wrong. Copy or export it again.",
            )
        ]
    problems = []
    if not (_is_date(whole["start date"]) and _is_time(whole["start time"])):
        problems.append(
            Problem(
                "header-inconsistent",
                f"{shown(path)} has a date or time of start that cannot be (not shown here). Times are counted "
                "from the start of the recording, so nothing depends on it.",
            )
        )
    return problems


class _Signals:
    """The headers of all signals, decoded where they can be."""

    def __init__(self, path: Path, family: str, fields: dict[str, list[bytes]]) -> None:
        self.path, self.fields, self.family = path, fields, family
        self.labels = [text_of(field) for field in fields["label"]]
        self.units = [text_of(field) for field in fields["unit"]]
        self.is_annotations = [
            field.rstrip() == f"{family} Annotations".encode() for field in fields["label"]
        ]
        self.n_samples = [_integer(field) for field in fields["samples in a record"]]
        self.digital = [
            (_integer(low), _integer(high))
            for low, high in zip(fields["digital minimum"], fields["digital maximum"], strict=True)
        ]
        self.physical = [
            (_decimal(low), _decimal(high))
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
                f"{shown(self.path)} has a signal labelled {self.labels[odd[0]]!r}; annotations of this format are "
                f"labelled '{self.family} Annotations', so whether this is text or signal is not certain. Correct "
                "the label.",
            )
        if not self._data():
            yield Problem(
                "no-data",
                f"{shown(self.path)} holds annotations only and no signal. Name the file that has the signals.",
            )
        if nameless := [place for place in self._data() if not self.labels[place].strip()]:
            yield Problem(
                "nameless-channel",
                f"{shown(self.path)} has {_count(nameless)} without a label: {self._named(nameless)}. Ask for "
                "them by position.",
            )
        counts = Counter(self.labels[place] for place in self._data())
        if repeated := [
            place for place in self._data() if self.labels[place].strip() and counts[self.labels[place]] > 1
        ]:
            yield Problem(
                "duplicate-channel",
                f"{shown(self.path)} has {_count(repeated)} whose label is not theirs alone: "
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
            yield _damaged(
                self.path,
                f"samples in a record of {self._named(wrong)}",
                field,
                "a whole number from 1 on",
            )
        if empty := [place for place in self._data() if self.n_samples[place] == 0]:
            yield Problem(
                "bad-rate",
                f"{shown(self.path)} declares 0 samples in a record for {self._named(empty)}, a rate of 0 Hz; at "
                "least 1 is needed. Export it without them.",
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
                f"{shown(self.path)}: {self._named(places)}: {fault}. Samples cannot be turned into physical "
                "values; export the recording again.",
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
                f"{shown(self.path)} has {_count(blank)} without a unit: {self._named(blank)}. Their samples are "
                "taken as stored, not as volts.",
            )
        if other:
            yield Problem(
                "unknown-unit",
                f"{shown(self.path)} has {_count(other)} in units other than volts "
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


def _problems_of_text(path: Path, fields: dict[str, list[bytes]]) -> list[Problem]:
    """Fields with bytes that are not printable ASCII, by name alone: some of them hold people."""
    names = [
        name
        for name, values in fields.items()
        if name != "version" and not _PRINTABLE.fullmatch(b"".join(values))
    ]
    if not names:
        return []
    return [
        Problem(
            "non-ascii",
            f"{shown(path)} has characters that are not printable ASCII in: {', '.join(names)}. They are read as "
            "UTF-8 or Latin-1; a name may look odd.",
        )
    ]


def _sized(
    path: Path, whole: dict[str, bytes], signals: _Signals, size: int
) -> tuple[EdfHeader | None, list[Problem]]:
    """Compare the number and duration of records with the file's size."""
    declared = _integer(whole["number of records"])
    seconds = _decimal(whole["duration of a record"])
    if declared is None or declared < -1:
        wanted = "a whole number from 1 on, or -1"
        return None, [_damaged(path, "number of records", whole["number of records"], wanted)]
    if seconds is None:
        return None, [
            _damaged(path, "duration of a record", whole["duration of a record"], "a number of seconds")
        ]
    kind, problems = _kind_of(path, whole, signals)
    if not (math.isfinite(seconds) and seconds > 0):
        problems.append(
            Problem(
                "bad-rate",
                f"{shown(path)} says that a record lasts {seconds:g} s; a finite time above 0 is needed to know "
                "the rate. Export it again.",
            )
        )
        return None, problems
    sample_bytes: Literal[2, 3] = 3 if signals.family == "BDF" else 2
    built = signals.build(sample_bytes)
    header_bytes = FIXED_BYTES * (len(built) + 1)
    record_bytes = sample_bytes * sum(signal.n_samples for signal in built)
    present, rest = divmod(size - header_bytes, record_bytes)
    readable = present if declared == -1 else min(declared, present)
    header = EdfHeader(kind, readable, declared, seconds, sample_bytes, header_bytes, built)
    return header, problems + _problems_of_length(path, header, present, rest)


def _problems_of_length(path: Path, header: EdfHeader, present: int, rest: int) -> list[Problem]:
    declared, size = header.n_records_declared, header.record_bytes
    if header.n_records == 0:
        found = "declares 0 records" if declared == 0 else f"has {rest} bytes of data and a record has {size}"
        return [
            Problem("no-data", f"{shown(path)} {found}, so no record can be read. Copy or export it again.")
        ]
    problems = []
    if declared == -1:
        problems.append(
            Problem(
                "header-inconsistent",
                f"{shown(path)} does not say how many records it has (-1), as a recorder leaves it that was "
                f"stopped early; by its size there are {present}, which are read.",
            )
        )
    if declared > present:
        problems.append(
            Problem(
                "data-truncated",
                f"{shown(path)} declares {declared} records and has {present} whole ones; those are read. Copy it "
                "again if the rest should be there.",
            )
        )
    elif rest or 0 <= declared < present:
        extra = (present - header.n_records) * size + rest
        problems.append(
            Problem(
                "data-longer",
                f"{shown(path)} has {extra} bytes after the {header.n_records} records that "
                f"{'fit' if declared == -1 else 'it declares'}; they are not read.",
            )
        )
    return problems


def _kind_of(path: Path, whole: dict[str, bytes], signals: _Signals) -> tuple[str, list[Problem]]:
    """Whether the file is plain, continuous or discontinuous, and whether annotations fit to that."""
    family, has_annotations = signals.family, any(signals.is_annotations)
    reserved = whole["reserved"].decode("latin-1").strip(" \0")
    said = reserved[:5].upper()
    is_plus = said.startswith((f"{family}+", "EDF+"))
    kind = f"{family}+D" if is_plus and said.endswith("+D") else f"{family}+C" if is_plus else family
    faults = []
    if is_plus and said not in (f"{family}+C", f"{family}+D"):
        faults.append(
            f"is marked as EDF+ or BDF+, neither continuous ({family}+C) nor discontinuous ({family}+D)"
        )
    elif is_plus and not reserved.startswith(said):
        faults.append(f"does not spell its kind {said!r}")
    if kind == family and has_annotations:
        kind = f"{family}+C"
        faults.append(f"has annotations and is not marked as {kind}; it is read as such")
    if is_plus and not has_annotations:
        if kind.endswith("+D"):
            problem = Problem(
                "header-damaged",
                f"{shown(path)} is marked as {kind} and has no signal '{family} Annotations', so when its records "
                "began is not known. Export it again.",
            )
            return kind, [problem]
        faults.append(f"is marked as {kind} and has no signal '{family} Annotations'; it is read without")
    return kind, [Problem("header-inconsistent", f"{shown(path)} {fault}.") for fault in faults]


def _problems_of_rates(path: Path, header: EdfHeader) -> list[Problem]:
    rates = {signal: header.rate(signal) for signal in header.data_signals}
    wrong = [place for place, signal in enumerate(header.data_signals) if not _is_rate(rates[signal])]
    if wrong:
        labels = [signal.label for signal in header.data_signals]
        first = header.data_signals[wrong[0]]
        return [
            Problem(
                "bad-rate",
                f"{shown(path)} has {first.n_samples} samples in {header.record_seconds:g} s, that is "
                f"{rates[first]:g} Hz, in {named_channels(labels, wrong)}; rates from {MIN_RATE:g} to {MAX_RATE:g} "
                "Hz are possible. Export it again.",
            )
        ]
    distinct = sorted(set(rates.values()))
    if len(distinct) == 1:
        return []
    if problem := problem_of_rates(len(distinct)):
        return [problem]
    told = listed((f"{rate:g}" for rate in distinct), N_NAMED)
    return [Problem("mixed-rates", f"{shown(path)} has channels of {told} Hz; each is read at its own rate.")]


def _is_rate(rate: float) -> bool:
    return MIN_RATE <= rate <= MAX_RATE


def _problems_of_memory(path: Path, header: EdfHeader, size: int) -> list[Problem]:
    """Whether all signals at the highest rate, as many readers make them, are out of proportion to the file."""
    if not header.data_signals:
        return []
    fastest = max(signal.n_samples for signal in header.data_signals)
    needed = 8 * fastest * len(header.data_signals) * header.n_records
    if needed <= max(ALWAYS_ALLOWED, MAX_EXPANSION * size):
        return []
    return [
        Problem(
            "too-large",
            f"{shown(path)} has {size} bytes, and its {len(header.data_signals)} signals at the rate of the "
            f"fastest would take {needed}, more than {MAX_EXPANSION} times as much. Export fast and slow "
            "signals to files of their own.",
        )
    ]


def _problems_of_time(path: Path, root: Path, header: EdfHeader) -> list[Problem]:
    """When the records began, where the file says so."""
    if not header.kind.endswith(("+C", "+D")):
        return []
    try:
        with open_confined(path, root) as file:
            onsets, n_blank = _onsets(path, file, header)
    except RecordingError as error:
        return [Problem("header-damaged", str(error))]
    problems = []
    if n_blank and any(signal.is_annotations for signal in header.signals):
        problems.append(
            Problem(
                "header-inconsistent",
                f"{shown(path)} does not say when {n_blank} of its {header.n_records} records began; they are "
                "taken to follow the one before.",
            )
        )
    runs = contiguous_runs(onsets, header)
    if problem := problem_of_segments(len(runs)):
        return [*problems, problem]
    if len(runs) > 1:
        if header.kind.endswith("+C"):
            problems.append(
                Problem(
                    "header-inconsistent",
                    f"{shown(path)} is marked as continuous ({header.kind}), and the times of its records have "
                    "gaps; the times count.",
                )
            )
        problems.append(
            Problem(
                "gaps",
                f"{shown(path)} has {len(runs) - 1} gaps between its {header.n_records} records; the {len(runs)} "
                "stretches become segments with their true times.",
            )
        )
    drift = max(
        abs(onsets[last - 1] - onsets[first] - (last - 1 - first) * header.record_seconds)
        for first, last in runs
    )
    if drift > max(10 * ONSET_TOLERANCE, header.record_seconds):
        problems.append(
            Problem(
                "header-inconsistent",
                f"{shown(path)} has record times that drift away from the records' duration by {drift:.3g} s in "
                "all; the duration counts.",
            )
        )
    return problems


def record_onsets(path: Path, header: EdfHeader, root: Path | None = None) -> NDArray[np.float64]:
    """When each record began, in seconds after the first one: ``(n_records,)``.

    From the time-keeping annotation at the head of each record; in a continuous file that has none, records
    follow each other. Only annotation bytes are read. Times that are not times, run backwards or make
    records overlap raise a RecordingError.
    """
    if not header.kind.endswith(("+C", "+D")):
        return _evenly(header)
    with open_confined(path, root or root_of(path)) as file:
        return _onsets(path, file, header)[0]


def contiguous_runs(onsets: NDArray[np.float64], header: EdfHeader) -> list[tuple[int, int]]:
    """First record, and the one after the last, of each stretch without a gap.

    Examples
    --------
    >>> header = EdfHeader("EDF+D", 4, 4, 1.0, 2, 512, ())
    >>> contiguous_runs(np.array([0.0, 1.0, 3600.0, 3601.0]), header)
    [(0, 2), (2, 4)]
    """
    starts = np.flatnonzero(np.diff(onsets) - header.record_seconds > _tolerance(header, onsets)) + 1
    edges = [0, *starts.tolist(), len(onsets)]
    return list(pairwise(edges))


def _tolerance(header: EdfHeader, onsets: NDArray[np.float64]) -> float:
    """Seconds by which a record may begin early or late and still follow the one before."""
    fastest = max((signal.n_samples for signal in header.data_signals), default=0)
    sample = header.record_seconds / fastest if fastest else 0.0
    if header.record_seconds <= 2 * ONSET_TOLERANCE:
        return sample / 2
    if sample and header.kind.endswith("+D"):  # a millisecond is many samples of a fast signal
        return max(min(ONSET_TOLERANCE, max(1.5 * sample, 1.001 * _last_digit(onsets))), sample / 2)
    return max(ONSET_TOLERANCE, sample / 2)


def _last_digit(onsets: NDArray[np.float64]) -> float:
    """What one more in the last decimal of times is worth: neighbours differ by as much from rounding alone.

    >>> _last_digit(np.array([0.0, 0.5, 1.0003]))
    0.0001
    """
    for decimals in range(3, 7):
        if np.abs(onsets - np.round(onsets, decimals)).max(initial=0.0) < 1e-8:
            return float(10.0**-decimals)
    return 0.0


def _onsets(path: Path, file: BinaryIO, header: EdfHeader) -> tuple[NDArray[np.float64], int]:
    """Onsets after the first record's, and how many records did not tell theirs."""
    annotations = next((signal for signal in header.signals if signal.is_annotations), None)
    if annotations is None:
        return _evenly(header), header.n_records
    may_be_blank = not header.kind.endswith("+D")
    texts = _annotation_bytes(file, header, annotations)
    told = np.fromiter(
        (_onset_of(path, number, text, may_be_blank) for number, text in enumerate(texts)), np.float64
    )
    if len(told) < header.n_records:
        raise RecordingError(f"recording {shown(path)} became shorter while it was read. Check it again.")
    blank = np.isnan(told)
    if blank.any():
        told = _filled(told, header.record_seconds)
    early = np.flatnonzero(np.diff(told) - header.record_seconds < -_tolerance(header, told - told[0]))
    if len(early):
        number = int(early[0]) + 1
        raise RecordingError(
            f"recording {shown(path)} says that record {number} began at {told[number]:g} s, before record "
            f"{number - 1}, from {told[number - 1]:g} s, was over; a record lasts {header.record_seconds:g} s. "
            "Export it again."
        )
    return told - told[0], int(blank.sum())


def _evenly(header: EdfHeader) -> NDArray[np.float64]:
    """One record after the other."""
    return np.arange(header.n_records, dtype=np.float64) * header.record_seconds


def _annotation_bytes(file: BinaryIO, header: EdfHeader, annotations: EdfSignal) -> Iterator[bytes]:
    """The bytes of the first annotation signal, record by record, in bounded memory."""
    width = min(annotations.n_samples * header.sample_bytes, 64)  # time-keeping comes first and is short
    if header.record_bytes > 4096:  # seeking is faster than reading samples
        first = header.data_offset + annotations.offset
        for start in range(first, first + header.n_records * header.record_bytes, header.record_bytes):
            file.seek(start)
            yield file.read(width)
        return
    at_once = BYTES_AT_ONCE // header.record_bytes
    file.seek(header.data_offset)
    for first in range(0, header.n_records, at_once):
        count = min(at_once, header.n_records - first)
        block = file.read(count * header.record_bytes)
        for start in range(annotations.offset, len(block), header.record_bytes):
            yield block[start : start + width]


def _onset_of(path: Path, number: int, text: bytes, may_be_blank: bool) -> float:
    """Seconds that a record's first annotation tells; NaN where there is no annotation at all."""
    if found := _ONSET.match(text):
        return float(found[1])
    if text.strip(b"\0"):
        raise RecordingError(
            f"recording {shown(path)} has annotations in record {number} that do not begin with the time of the "
            "record. Export it again."
        )
    if not may_be_blank:
        raise RecordingError(
            f"recording {shown(path)} may have gaps and does not say when record {number} began, so its time is "
            "not known. Export it again."
        )
    return math.nan


def _filled(told: NDArray[np.float64], record_seconds: float) -> NDArray[np.float64]:
    """Records that do not tell when they began follow the last one that did."""
    numbers = np.arange(len(told))
    known = ~np.isnan(told)
    last = np.maximum.accumulate(np.where(known, numbers, -1))
    base = np.where(last >= 0, told[np.maximum(last, 0)], 0.0)
    first = int(np.argmax(known)) if known.any() else 0
    origin = told[first] - first * record_seconds if known.any() else 0.0
    return np.where(last >= 0, base + (numbers - last) * record_seconds, origin + numbers * record_seconds)


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
    return listed((f"{labels[place]!r} ({place})" for place in places), N_NAMED)


def _cut(raw: bytes, fields: Sequence[tuple[str, int]], count: int) -> dict[str, list[bytes]]:
    """Cut a header into its fields, each ``count`` times in a row."""
    cut, start = {}, 0
    for name, width in fields:
        cut[name] = [raw[start + width * place : start + width * (place + 1)] for place in range(count)]
        start += width * count
    return cut


def _integer(field: bytes) -> int | None:
    text = field.strip(b" ")
    return int(text) if _INTEGER.fullmatch(text) else None


def _decimal(field: bytes) -> float | None:
    text = field.strip(b" ")
    return float(text) if _DECIMAL.fullmatch(text) else None


def _number_or_nan(number: float | None) -> float:
    return math.nan if number is None else number


def _is_date(field: bytes) -> bool:
    found = _DATE.fullmatch(field)
    if not found:
        return False
    day, month, year = map(int, found.groups())
    try:
        datetime.date(year + (1900 if year >= 85 else 2000), month, day)
    except ValueError:
        return False
    return True


def _is_time(field: bytes) -> bool:
    found = _DATE.fullmatch(field)
    if not found:
        return False
    hour, minute, second = map(int, found.groups())
    return hour < 24 and minute < 60 and second < 60


def _count(places: Sequence[int]) -> str:
    return "1 channel" if len(places) == 1 else f"{len(places)} channels"


def _damaged(path: Path, name: str, field: bytes, wanted: str) -> Problem:
    """About a numeric field. Where bytes before it were lost it may hold the patient, so text is not repeated."""
    return Problem(
        "header-damaged",
        f"{shown(path)} has {described(text_of(field))} as {name}; {wanted} is needed. Copy or export it again.",
    )
