"""Header of an EDF or BDF file, compared with the file's size.

    a file -> its header bytes and its size -> EdfHeader, problems

Rules are those of the EDF and EDF+ specifications. Samples are never read here, and a header is read only as far as
its own numbers are possible for a file of that size.
Next: onsets.py reads when each record began; reading.py decodes what was not refused.
"""

from __future__ import annotations

import datetime
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from raxss.data.confinement import open_confined, problem_of_opening, root_of
from raxss.data.formats.edf.signals import (
    N_NAMED,
    SIGNAL_FIELDS,
    EdfSignal,
    SignalHeaders,
    damaged_field,
    decimal_of,
    integer_of,
    named_channels,
)
from raxss.data.formats.fields import MAX_RATE, MIN_RATE, problem_of_rates
from raxss.data.problems import Problem, refusals
from raxss.errors import RecordingError, display_name, join_names

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
EDF_VERSION, BDF_VERSION = b"0       ", b"\xffBIOSEMI"
# A reader that brings all signals to the highest rate takes this many bytes per byte of the file. Polysomnographies
# with one fast and many slow signals reach about 100; hostile headers thousands.
MAX_EXPANSION = 200
ALWAYS_ALLOWED = 2**28  # bytes; anything that small may expand as it likes
_PRINTABLE = re.compile(rb"[ -~]*")
_DATE = re.compile(rb"([0-9]{2})\.([0-9]{2})\.([0-9]{2})")


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
            Problem(
                "not-readable", f"{display_name(path)} cannot be read ({reason.lower()}). Check the disk."
            )
        ]


def _examine_open(path: Path, file: BinaryIO, size: int) -> tuple[EdfHeader | None, list[Problem]]:
    fixed = file.read(FIXED_BYTES)
    if problem := _problem_of_format(path, fixed, size):
        return None, [problem]
    fields = _cut(fixed, FILE_FIELDS, 1)
    whole = {name: values[0] for name, values in fields.items()}
    n_signals = integer_of(whole["number of signals"])
    problems = _problems_of_frame(path, whole, n_signals, size)
    if refusals(problems) or n_signals is None:
        return None, problems
    per_signal = _cut(file.read(FIXED_BYTES * n_signals), SIGNAL_FIELDS, n_signals)
    family = "BDF" if whole["version"] == BDF_VERSION else "EDF"
    signals = SignalHeaders(path, family, per_signal)
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
        return Problem("no-data", f"{display_name(path)} is empty. Copy or export it again.")
    version, suffix = fixed[:8], path.suffix.lower()
    family = {EDF_VERSION: "EDF", BDF_VERSION: "BDF"}.get(version)
    if family is None and len(version) == 8:
        return Problem(
            "not-this-format",
            f"{display_name(path)} does not begin as EDF ('0' and seven spaces) or BDF (255 and 'BIOSEMI') does, "
            "so it is something else or damaged. Copy or export it again.",
        )
    if len(fixed) < FIXED_BYTES:
        return Problem(
            "header-damaged",
            f"{display_name(path)} has {size} bytes, and the header alone of an EDF file has {FIXED_BYTES}; it was "
            "cut off. Copy it again.",
        )
    if family is not None and suffix in (".edf", ".bdf") and suffix != f".{family.lower()}":
        return Problem(
            "not-this-format",
            f"{display_name(path)} is named {suffix} and its content is {family}. Rename it to .{family.lower()}.",
        )
    return None


def _problems_of_frame(
    path: Path, whole: dict[str, bytes], n_signals: int | None, size: int
) -> list[Problem]:
    """The fields that say how long the header is, before more of it is read."""
    if n_signals is None or n_signals < 0:
        return [
            damaged_field(path, "number of signals", whole["number of signals"], "a whole number from 1 on")
        ]
    if n_signals == 0:
        return [Problem("no-data", f"{display_name(path)} declares 0 signals, so there is nothing to read.")]
    header_bytes = integer_of(whole["size of the header"])
    needed = FIXED_BYTES * (n_signals + 1)
    if header_bytes != needed:
        wanted = f"{needed}, that is 256 and 256 for each of {n_signals} signals"
        return [damaged_field(path, "size of the header", whole["size of the header"], wanted)]
    if size < needed:
        return [
            Problem(
                "header-damaged",
                f"{display_name(path)} declares {n_signals} signals, whose header has {needed} bytes, and the file "
                f"has {size}; it was cut off or the number is wrong. Copy or export it again.",
            )
        ]
    problems = []
    if not (_is_date(whole["start date"]) and _is_time(whole["start time"])):
        problems.append(
            Problem(
                "header-inconsistent",
                f"{display_name(path)} has a date or time of start that cannot be (not shown here). Times are "
                "counted from the start of the recording, so nothing depends on it.",
            )
        )
    return problems


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
            f"{display_name(path)} has characters that are not printable ASCII in: {', '.join(names)}. They are "
            "read as UTF-8 or Latin-1; a name may look odd.",
        )
    ]


def _sized(
    path: Path, whole: dict[str, bytes], signals: SignalHeaders, size: int
) -> tuple[EdfHeader | None, list[Problem]]:
    """Compare the number and duration of records with the file's size."""
    declared = integer_of(whole["number of records"])
    seconds = decimal_of(whole["duration of a record"])
    if declared is None or declared < -1:
        wanted = "a whole number from 1 on, or -1"
        return None, [damaged_field(path, "number of records", whole["number of records"], wanted)]
    if seconds is None:
        return None, [
            damaged_field(path, "duration of a record", whole["duration of a record"], "a number of seconds")
        ]
    kind, problems = _kind_of(path, whole, signals)
    if not (math.isfinite(seconds) and seconds > 0):
        problems.append(
            Problem(
                "bad-rate",
                f"{display_name(path)} says that a record lasts {seconds:g} s; a finite time above 0 is needed to "
                "know the rate. Export it again.",
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
            Problem(
                "no-data", f"{display_name(path)} {found}, so no record can be read. Copy or export it again."
            )
        ]
    problems = []
    if declared == -1:
        problems.append(
            Problem(
                "header-inconsistent",
                f"{display_name(path)} does not say how many records it has (-1), as a recorder leaves it that was "
                f"stopped early; by its size there are {present}, which are read.",
            )
        )
    if declared > present:
        problems.append(
            Problem(
                "data-truncated",
                f"{display_name(path)} declares {declared} records and has {present} whole ones; those are read. "
                "Copy it again if the rest should be there.",
            )
        )
    elif rest or 0 <= declared < present:
        extra = (present - header.n_records) * size + rest
        problems.append(
            Problem(
                "data-longer",
                f"{display_name(path)} has {extra} bytes after the {header.n_records} records that "
                f"{'fit' if declared == -1 else 'it declares'}; they are not read.",
            )
        )
    return problems


def _kind_of(path: Path, whole: dict[str, bytes], signals: SignalHeaders) -> tuple[str, list[Problem]]:
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
                f"{display_name(path)} is marked as {kind} and has no signal '{family} Annotations', so when its "
                "records began is not known. Export it again.",
            )
            return kind, [problem]
        faults.append(f"is marked as {kind} and has no signal '{family} Annotations'; it is read without")
    return kind, [Problem("header-inconsistent", f"{display_name(path)} {fault}.") for fault in faults]


def _problems_of_rates(path: Path, header: EdfHeader) -> list[Problem]:
    rates = {signal: header.rate(signal) for signal in header.data_signals}
    wrong = [place for place, signal in enumerate(header.data_signals) if not _is_rate(rates[signal])]
    if wrong:
        labels = [signal.label for signal in header.data_signals]
        first = header.data_signals[wrong[0]]
        return [
            Problem(
                "bad-rate",
                f"{display_name(path)} has {first.n_samples} samples in {header.record_seconds:g} s, that is "
                f"{rates[first]:g} Hz, in {named_channels(labels, wrong)}; rates from {MIN_RATE:g} to {MAX_RATE:g} "
                "Hz are possible. Export it again.",
            )
        ]
    distinct = sorted(set(rates.values()))
    if len(distinct) == 1:
        return []
    if problem := problem_of_rates(len(distinct)):
        return [problem]
    told = join_names((f"{rate:g}" for rate in distinct), N_NAMED)
    return [
        Problem(
            "mixed-rates", f"{display_name(path)} has channels of {told} Hz; each is read at its own rate."
        )
    ]


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
            f"{display_name(path)} has {size} bytes, and its {len(header.data_signals)} signals at the rate of the "
            f"fastest would take {needed}, more than {MAX_EXPANSION} times as much. Export fast and slow "
            "signals to files of their own.",
        )
    ]


def _cut(raw: bytes, fields: Sequence[tuple[str, int]], count: int) -> dict[str, list[bytes]]:
    """Cut a header into its fields, each ``count`` times in a row."""
    cut, start = {}, 0
    for name, width in fields:
        cut[name] = [raw[start + width * place : start + width * (place + 1)] for place in range(count)]
        start += width * count
    return cut


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
