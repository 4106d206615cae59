"""Header of an EDF or BDF file, compared with the file's size, and the times at which its records began.

    an open file, its size -> EdfHeader with one EdfSignal a signal and the stretches without a gap; problems

Rules are those of the EDF and EDF+ specifications. Samples are never read here, and a header is read only as far as
its own numbers are possible for a file of that size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.fields import (
    Refused,
    channel_problems,
    described,
    named_channels,
    problem,
    rate_problems,
    refuse_many_segments,
    signed,
)
from raxss.data.problems import Problem, refusals

FIXED_BYTES = 256  # of the header, and as many again for each signal
# name -> width
FILE_FIELDS = {
    "version": 8, "patient": 80, "recording": 80, "start date": 8, "start time": 8, "size of the header": 8,
    "reserved": 44, "number of records": 8, "duration of a record": 8, "number of signals": 4,
}  # fmt: skip
# all signals' labels come before the first transducer
SIGNAL_FIELDS = {
    "label": 16, "transducer": 80, "unit": 8, "physical minimum": 8, "physical maximum": 8, "digital minimum": 8,
    "digital maximum": 8, "prefilter": 80, "samples in a record": 8, "reserved of a signal": 32,
}  # fmt: skip
FAMILIES = {b"0       ": "EDF", b"\xffBIOSEMI": "BDF"}
SAMPLE_BYTES: dict[str, Literal[2, 3]] = {"EDF": 2, "BDF": 3}
START = "%d.%m.%y%H.%M.%S"  # date and time

Fields = dict[str, list[bytes]]  # name -> one entry, or one a signal
# A reader that brings all signals to the highest rate takes this many bytes per byte of the file. Polysomnographies
# with one fast and many slow signals reach about 100; hostile headers thousands.
MAX_EXPANSION = 200
ALWAYS_ALLOWED = 2**28  # bytes; anything that small may expand as it likes
MAX_PHYSICAL = 1e20  # in any unit; times gain and 1e6 (volts to microvolts) it still is a float32
# Onsets are decimal text, often of milliseconds: records nearer than this follow each other.
ONSET_TOLERANCE = 1e-3  # seconds
BYTES_AT_ONCE = 2**20  # of annotations, while onsets are read
_ONSET = re.compile(rb"([+-][0-9]+(?:\.[0-9]*)?)\x14\x14")
_PRINTABLE = re.compile(rb"[ -~]*")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class EdfSignal:
    """One signal of a file, as its header describes it; texts as of `text_of`, without padding."""

    label: str
    unit: str
    physical_min: float
    physical_max: float
    digital_min: int
    digital_max: int
    n_samples: int  # in one record
    offset: int  # bytes from the start of a record to its first sample of this signal
    is_annotations: bool  # times and texts rather than samples

    @property
    def gain(self) -> float:
        """Physical units a step of the converter."""
        return (self.physical_max - self.physical_min) / (self.digital_max - self.digital_min)

    @property
    def shift(self) -> float:
        """What is added to a stored integer before it is multiplied by the gain."""
        return self.physical_max / self.gain - self.digital_max


@dataclass(frozen=True)
class EdfHeader:
    """What a reader needs to know; nothing of the patient, the recording or the date is kept."""

    kind: str  # EDF, BDF, EDF+C, BDF+C: continuous; EDF+D, BDF+D: may have gaps
    n_records: int  # whole ones that can be read: declared and really there
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
        """Samples per second; 7 samples in 0.07 s are 100 Hz, not 99.99999999999999."""
        return float(f"{signal.n_samples / self.record_seconds:.12g}")


def parse_header(file: BinaryIO, size: int, suffix: str, problems: list[Problem]) -> EdfHeader | None:
    """The header, or None if ``problems``, to which what is wrong is added, has a refusal; raises `Refused`."""
    fixed = file.read(FIXED_BYTES)
    family = _family_of(fixed, size, suffix)
    fields = _cut(fixed, FILE_FIELDS, 1)
    n_signals = _n_signals(fields, size)
    try:
        datetime.strptime((fields["start date"][0] + fields["start time"][0]).decode("ascii"), START)
    except ValueError:
        message = "the header has a date or time of start that cannot be (not shown here); it is not used."
        problems.append(Problem("header-inconsistent", message))
    per_signal = _cut(file.read(FIXED_BYTES * n_signals), SIGNAL_FIELDS, n_signals)
    signals = _signals(per_signal, family, problems)
    texts = {name: b"".join(values) for name, values in (fields | per_signal).items() if name != "version"}
    if odd := [name for name, text in texts.items() if not _PRINTABLE.fullmatch(text)]:
        # named alone, because some of them hold people
        message = f"the header has text that is no printable ASCII in: {', '.join(odd)}"
        problems.append(Problem("non-ascii", f"{message}. It is read as UTF-8 or Latin-1."))
    if refusals(problems):
        return None
    header = _sized(fields, signals, family, size, problems)
    problems += rate_problems(header.rate(signal) for signal in header.data_signals)
    data = header.data_signals  # all of them at the highest rate, as many readers make them
    needed = 8 * max(signal.n_samples for signal in data) * len(data) * header.n_records
    if needed > max(ALWAYS_ALLOWED, MAX_EXPANSION * size):
        found = f"the file has {size} bytes, and its {len(data)} signals at the highest rate would take"
        limit = f"{needed}, more than {MAX_EXPANSION} times as much"
        raise Refused("too-large", f"{found} {limit}. Export fast and slow signals to two files.")
    return header


def _family_of(fixed: bytes, size: int, suffix: str) -> str:
    """EDF or BDF, by the first bytes, which must agree with the suffix of the name."""
    if size == 0:
        raise Refused("no-data", "the file is empty")
    family = FAMILIES.get(fixed[:8])
    if family is None and len(fixed) >= 8:
        begins = "the file does not begin as EDF ('0' and seven spaces) or BDF (255 and 'BIOSEMI') does"
        raise Refused("not-this-format", f"{begins}: it is something else or damaged")
    if family is None or len(fixed) < FIXED_BYTES:
        found = f"the file has {size} bytes, and the header alone of an EDF file {FIXED_BYTES}"
        raise Refused("header-damaged", f"{found}; it was cut off")
    if suffix in (".edf", ".bdf") and suffix != f".{family.lower()}":
        found = f"the file is named {suffix} and its content is {family}"
        raise Refused("not-this-format", f"{found}. Rename it to .{family.lower()}.")
    return family


def _n_signals(fields: Fields, size: int) -> int:
    """The number of signals, which says how long the header is, before more of it is read."""
    n_signals = integer_of(fields["number of signals"][0])
    if n_signals is None or n_signals < 0:
        raise _damaged("number of signals", fields, "a whole number from 1 on")
    if n_signals == 0:
        raise Refused("no-data", "the header declares 0 signals, so there is nothing to read")
    needed = FIXED_BYTES * (n_signals + 1)
    if integer_of(fields["size of the header"][0]) != needed:
        raise _damaged("size of the header", fields, f"{needed}, 256 and 256 for each signal,")
    if size < needed:
        found = f"the header declares {n_signals} signals, which take {needed} bytes, and the file has {size}"
        raise Refused("header-damaged", f"{found}; it was cut off or the number is wrong")
    return n_signals


def _sized(
    fields: Fields, signals: tuple[EdfSignal, ...], family: str, size: int, problems: list[Problem]
) -> EdfHeader:
    """Compare the number and duration of records with the file's size."""
    declared = integer_of(fields["number of records"][0])
    seconds = decimal_of(fields["duration of a record"][0])
    if declared is None or declared < -1:
        raise _damaged("number of records", fields, "a whole number from 1 on, or -1")
    if seconds is None:
        raise _damaged("duration of a record", fields, "a number of seconds")
    kind = _kind_of(fields["reserved"][0], family, signals, problems)
    if not (math.isfinite(seconds) and seconds > 0):
        found = f"the header says that a record lasts {seconds:g} s"
        raise Refused("bad-rate", f"{found}; a finite time above 0 is needed to know the rate")
    data_offset = FIXED_BYTES * (len(signals) + 1)
    record_bytes = SAMPLE_BYTES[family] * sum(signal.n_samples for signal in signals)
    present, rest = divmod(size - data_offset, record_bytes)
    readable = present if declared == -1 else min(declared, present)
    if readable == 0:
        found = (
            f"has {rest} bytes of data and a record has {record_bytes}" if declared else "declares 0 records"
        )
        raise Refused("no-data", f"the file {found}, so no record can be read")
    if declared == -1:
        message = f"the header does not say how many records it has (-1): {present}, which are read."
        problems.append(Problem("header-inconsistent", message))
    if declared > present:
        message = f"the header declares {declared} records; the file has {present} whole ones, which are read"
        problems.append(problem("data-truncated", message))
    elif rest or 0 <= declared < present:
        extra = (present - readable) * record_bytes + rest
        which = "fit" if declared == -1 else "the header declares"
        message = f"the file has {extra} bytes after the {readable} records that {which}."
        problems.append(Problem("data-longer", message))
    return EdfHeader(kind, readable, seconds, SAMPLE_BYTES[family], data_offset, signals)


def _kind_of(field: bytes, family: str, signals: Sequence[EdfSignal], problems: list[Problem]) -> str:
    """Whether the file is plain, continuous or discontinuous, and whether annotations fit to that."""
    has_annotations = any(signal.is_annotations for signal in signals)
    reserved = field.decode("latin-1").strip(" \0")
    mark = reserved[:5].upper()
    is_plus = mark.startswith((f"{family}+", "EDF+"))
    kind = f"{family}+D" if is_plus and mark.endswith("+D") else f"{family}+C" if is_plus else family
    faults = []
    if is_plus and mark not in (f"{family}+C", f"{family}+D"):
        faults.append(f"is marked neither as continuous ({family}+C) nor as discontinuous ({family}+D)")
    elif is_plus and not reserved.startswith(mark):
        faults.append(f"does not spell its kind {mark!r}")
    if kind == family and has_annotations:
        kind = f"{family}+C"
        faults.append(f"has annotations and is not marked as {kind}; it is read as such")
    if is_plus and not has_annotations:
        found = f"is marked as {kind} and has no signal '{family} Annotations'"
        if kind.endswith("+D"):
            raise Refused("header-damaged", f"the file {found}, so when its records began is not known")
        faults.append(f"{found}; it is read without")
    problems += [Problem("header-inconsistent", f"the file {fault}.") for fault in faults]
    return kind


def _cut(raw: bytes, widths: Mapping[str, int], count: int) -> Fields:
    """Cut a header into its fields, each ``count`` times in a row."""
    cut, start = {}, 0
    for name, width in widths.items():
        cut[name] = [raw[start + width * place : start + width * (place + 1)] for place in range(count)]
        start += width * count
    return cut


def _signals(fields: Fields, family: str, problems: list[Problem]) -> tuple[EdfSignal, ...]:
    """All signals; what is wrong with them is added to ``problems``."""
    signals: list[EdfSignal] = []
    faults: dict[tuple[str, str], list[int]] = {}
    offset = 0
    for place, values in enumerate(zip(*fields.values(), strict=True)):
        row = dict(zip(fields, values, strict=True))
        digital = integer_of(row["digital minimum"]), integer_of(row["digital maximum"])
        physical = decimal_of(row["physical minimum"]), decimal_of(row["physical maximum"])
        n_samples = integer_of(row["samples in a record"])
        signal = EdfSignal(
            label=text_of(row["label"]).strip(),
            unit=text_of(row["unit"]).strip(),
            physical_min=math.nan if physical[0] is None else physical[0],
            physical_max=math.nan if physical[1] is None else physical[1],
            digital_min=digital[0] or 0,
            digital_max=digital[1] or 0,
            n_samples=n_samples or 0,
            offset=offset,
            is_annotations=row["label"].rstrip() == f"{family} Annotations".encode(),
        )
        if n_samples is None or n_samples < 0 or (n_samples == 0 and signal.is_annotations):
            held = described(text_of(row["samples in a record"]))
            fault = f"the header has {held} as samples in a record; a whole number from 1 on is needed"
            faults.setdefault(("header-damaged", fault), []).append(place)
        if not signal.is_annotations:
            for found in _signal_faults(signal.label, n_samples, digital, physical, family):
                faults.setdefault(found, []).append(place)
        signals.append(signal)
        offset += signal.n_samples * SAMPLE_BYTES[family]
    labels = [signal.label for signal in signals]
    problems += [
        problem(code, f"{named_channels(labels, places)}: {fault}")
        for (code, fault), places in faults.items()
    ]
    data = [signal for signal in signals if not signal.is_annotations]
    if not data:
        message = "the file holds annotations only and no signal. Name the file that has the signals."
        problems.append(Problem("no-data", message))
    # Status is the trigger channel that every BioSemi recorder writes
    units = ["V" if (item.label, item.unit) == ("Status", "Boolean") else item.unit for item in data]
    blank = "Their samples are taken as stored, not as volts."
    problems += channel_problems([item.label for item in data], units, blank=blank)
    return tuple(signals)


def _signal_faults(
    label: str,
    n_samples: int | None,
    digital: tuple[int | None, int | None],
    physical: tuple[float | None, float | None],
    family: str,
) -> Iterator[tuple[str, str]]:
    """Code and text of what keeps the samples of a signal from being read."""
    if label.strip(" ?").casefold() in ("edf annotations", "bdf annotations"):
        uncertain = "so whether this is text or signal is uncertain. Correct the label."
        yield "header-damaged", f"annotations of this format are labelled '{family} Annotations', {uncertain}"
    if n_samples == 0:
        yield (
            "bad-rate",
            "0 samples in a record are a rate of 0 Hz; 1 or more are needed. Export it without them.",
        )
    # a physical maximum below the minimum is legal (inverted polarity)
    (digital_min, digital_max), (physical_min, physical_max) = digital, physical
    limit, fault = 2 ** (8 * SAMPLE_BYTES[family] - 1), ""
    if digital_min is None or digital_max is None:
        fault = "a digital limit is not a whole number"
    elif physical_min is None or physical_max is None:
        fault = "a physical limit is not a number"
    elif not -limit <= digital_min < digital_max < limit:
        most = f"from {-limit} to {limit - 1} at most"
        fault = f"the digital limits {digital_min} and {digital_max} do not rise {most}"
    elif not max(abs(physical_min), abs(physical_max)) <= MAX_PHYSICAL:
        fault = f"the physical limits are beyond {MAX_PHYSICAL:g} or not finite"
    elif physical_min == physical_max:
        fault = f"the physical minimum and maximum are both {physical_min:g}"
    else:
        gain = (physical_max - physical_min) / (digital_max - digital_min)
        if abs(gain) < np.finfo(np.float32).tiny or not math.isfinite(physical_max / gain):
            fault = f"the physical limits {physical_min:g} and {physical_max:g} are too close to each other"
    if fault:
        yield "bad-range", f"{fault}; samples cannot be turned into physical values"


def text_of(field: bytes) -> str:
    """A text field without its padding: UTF-8 or else Latin-1; control characters read as ``?``."""
    field = field.rstrip(b" \0")
    try:
        text = field.decode("utf-8")
    except UnicodeDecodeError:
        text = field.decode("latin-1")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def integer_of(field: bytes) -> int | None:
    """A whole number in a field, or None."""
    return signed(field.decode("latin-1"))


def decimal_of(field: bytes) -> float | None:
    """A decimal number in a field, or None."""
    text = field.strip(b" ")
    return float(text) if _DECIMAL.fullmatch(text) else None


def _damaged(name: str, fields: Fields, wanted: str) -> Refused:
    """About a numeric field. Where bytes before it were lost it may hold the patient, so text is not repeated."""
    found = described(text_of(fields[name][0]))
    return Refused("header-damaged", f"the header has {found} as {name}; {wanted} is needed")


def with_times(file: BinaryIO, header: EdfHeader, problems: list[Problem]) -> EdfHeader:
    """The header with the stretches without a gap; what is wrong with the times of records joins ``problems``."""
    onsets, n_blank = _record_onsets(file, header)
    if n_blank and any(signal.is_annotations for signal in header.signals):
        message = f"the file does not say when {n_blank} of {header.n_records} records began"
        problems.append(Problem("header-inconsistent", f"{message}; they follow the one before."))
    starts = np.flatnonzero(np.diff(onsets) - header.record_seconds > _tolerance(header, onsets)) + 1
    runs = list(pairwise([0, *starts.tolist(), len(onsets)]))
    refuse_many_segments(len(runs))
    if len(runs) > 1 and header.kind.endswith("+C"):
        message = f"the file is marked as continuous ({header.kind}) and has gaps; the times count."
        problems.append(Problem("header-inconsistent", message))
    if len(runs) > 1:
        message = f"the file has {len(runs) - 1} gaps between its {header.n_records} records"
        become = f"the {len(runs)} stretches become segments with their true times"
        problems.append(Problem("gaps", f"{message}; {become}."))
    drift = max(
        abs(onsets[last - 1] - onsets[first] - (last - 1 - first) * header.record_seconds)
        for first, last in runs
    )
    if drift > max(10 * ONSET_TOLERANCE, header.record_seconds):
        message = f"the record times drift away from the records' duration by {drift:.3g} s in all"
        problems.append(Problem("header-inconsistent", f"{message}; the duration counts."))
    return replace(header, runs=tuple((first, last, float(onsets[first])) for first, last in runs))


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
    """What one more in the last decimal of times is worth: neighbours differ by as much from rounding alone."""
    for decimals in range(3, 7):
        if np.abs(onsets - np.round(onsets, decimals)).max(initial=0.0) < 1e-8:
            return float(10.0**-decimals)
    return 0.0


def _record_onsets(file: BinaryIO, header: EdfHeader) -> tuple[NDArray[np.float64], int]:
    """When each record began, in seconds after the first one ``(n_records,)``, and how many did not state it."""
    annotations = next((signal for signal in header.signals if signal.is_annotations), None)
    if annotations is None:  # a plain file with annotations is read as continuous
        return np.arange(header.n_records, dtype=np.float64) * header.record_seconds, header.n_records
    texts = _annotation_bytes(file, header, annotations)
    onsets = np.array([_onset_of(number, text, header.kind) for number, text in enumerate(texts)])
    if len(onsets) < header.n_records:
        raise Refused("header-damaged", "the file became shorter while it was read")
    blank = np.isnan(onsets)
    if blank.any():  # these follow the last one that states its time, or precede the first
        numbers, known = np.arange(len(onsets)), np.flatnonzero(~blank)
        known, onsets = (known, onsets) if len(known) else (np.array([0]), np.zeros(len(onsets)))
        source = known[np.maximum(np.searchsorted(known, numbers, side="right") - 1, 0)]
        onsets = onsets[source] + (numbers - source) * header.record_seconds
    early = np.flatnonzero(np.diff(onsets) - header.record_seconds < -_tolerance(header, onsets - onsets[0]))
    if len(early):
        number = int(early[0]) + 1
        raise Refused(
            "header-damaged",
            f"the file says that record {number} began at {onsets[number]:g} s, before record {number - 1}, from "
            f"{onsets[number - 1]:g} s, was over; a record lasts {header.record_seconds:g} s",
        )
    return onsets - onsets[0], int(blank.sum())


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


def _onset_of(number: int, text: bytes, kind: str) -> float:
    """Seconds that a record's first annotation states; NaN where there is no annotation at all."""
    if found := _ONSET.match(text):
        return float(found[1])
    if text.strip(b"\0"):
        message = f"the file has annotations in record {number} that do not begin with the time of the record"
        raise Refused("header-damaged", message)
    if kind.endswith("+D"):
        message = f"the file may have gaps and does not say when record {number} began"
        raise Refused("header-damaged", f"{message}, so its time is not known")
    return math.nan
