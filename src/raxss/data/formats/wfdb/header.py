"""Header of a WFDB record, read strictly.

    .hea -> WfdbHeader: rate, samples, one WfdbSignal a signal line or the names of the segments; problems

The package wfdb matches the beginning of each line and passes over the rest, and drops letters that are not ASCII
(so ``µV`` is read as ``V``). So every line is read here first, whole. Next: checking.py compares it with the data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from raxss.data.formats.fields import (
    Refused,
    described,
    header_bytes,
    number,
    problem,
    refuse_many_segments,
    refuse_no_text,
    refuse_rate,
    whole,
)
from raxss.data.problems import Problem

MOST_SIGNALS = 512
COMPRESSED = ("508", "516", "524")
RECORD_NAME = re.compile(r"([-\w]+)(?:/(\d{1,6}))?", re.ASCII)
RATE = re.compile(r"(\d+\.?\d*|\.\d+)(?:/(-?\d+\.?\d*)(?:\(-?\d+\.?\d*\))?)?", re.ASCII)
FORMAT = re.compile(r"(\d{1,4})(?:x(\d{1,9}))?(?::(\d{1,12}))?(?:\+(\d{1,12}))?", re.ASCII)
GAIN = re.compile(r"(-?[\d.]+(?:e[+-]?\d+)?)(?:\((-?\d{1,12})\))?(?:/([\w^\-?%/]*))?", re.ASCII)
# resolution, zero, first value, checksum, block size; only those between may have a sign
NUMBERS = [re.compile(sign + r"\d{1,12}", re.ASCII) for sign in ("", "-?", "-?", "-?", "")]
# bytes of one sample in the file, by WFDB's number of the storage format; compressed formats (5xx) vary
SAMPLE_BYTES = {
    "8": 1, "16": 2, "24": 3, "32": 4, "61": 2, "80": 1, "160": 2, "212": 1.5, "310": 4 / 3, "311": 4 / 3,
}  # fmt: skip


@dataclass(frozen=True)
class WfdbSignal:
    """One signal line: where the samples are and what they mean. Gain 0: not calibrated."""

    file: str
    format: str
    per_frame: int
    skew: int
    offset: int
    gain: float
    unit: str
    name: str
    checksum: int = 0  # 0: not stated
    first_value: int | None = None  # None: not stated
    position: int = 1


@dataclass(frozen=True)
class WfdbHeader:
    """What the header of a WFDB record states; of one with segments, their headers are ``parts``."""

    name: str
    rate: float  # frames per second; a signal with several samples a frame has as many times that rate
    n_samples: int | None  # frames; None where the header leaves it to the size of the data
    signals: tuple[WfdbSignal, ...] = ()  # none of a record with segments
    segments: tuple[tuple[str, int], ...] = ()  # name and frames of each; ~ is a gap
    n_signals: int = 0  # as the first line has it
    frames: int = 0  # that are read: declared, or by the sizes of the data files; 0 before these were checked
    parts: Mapping[str, WfdbHeader] = field(default_factory=dict)  # by name of the segment


def parse_header(path: Path, root: Path, problems: list[Problem]) -> WfdbHeader:
    """The header as it stands, not yet compared with its data files; warnings are added to ``problems``."""
    lines = _lines_of(path, root, problems)
    if not lines:
        raise Refused("header-damaged", "the header has no line but comments")
    name, n_segments, n_signals, rate, n_samples = _record_line(lines[0])
    if name != path.stem:
        message = "the header calls its record by another name than the file has (not shown here)"
        problems.append(Problem("header-inconsistent", f"{message}; the file's counts."))
    kind, declared = ("signals", n_signals) if n_segments is None else ("segments", n_segments)
    if len(lines) - 1 != declared:
        found = f"the header declares {declared:,} {kind} and describes {len(lines) - 1:,}"
        raise Refused("header-damaged", f"{found}; one line for each is needed")
    if n_segments is None:
        signals = tuple(map(_signal_line, range(1, declared + 1), lines[1:]))
        return WfdbHeader(name, rate, n_samples, signals=signals, n_signals=n_signals)
    segments = tuple(map(_segment_line, range(1, declared + 1), lines[1:]))
    return WfdbHeader(name, rate, n_samples, segments=segments, n_signals=n_signals)


def _lines_of(path: Path, root: Path, problems: list[Problem]) -> list[str]:
    """Lines as the package wfdb sees them; comments, in which patients are described, are left out."""
    content = header_bytes(path, root)
    refuse_no_text(content)
    for line in content.splitlines():
        if line.isascii() or line.strip().startswith(b"#"):
            continue
        if not b" ".join(line.split()[:3]).isascii():
            found = "the header has letters that are not ASCII in a file name, gain or unit"
            raise Refused("header-damaged", f"{found}, which wfdb would drop: µV would become V. Write uV.")
        message = "a signal's name has letters that are not ASCII; they are left out."
        problems.append(Problem("non-ascii", message))
    last = content[content.rfind(b"\n") + 1 :].strip()
    if last and not last.startswith(b"#") and not content.endswith((b"\r", b"\n")):
        message = "the last line of the header does not end, so a name or number in it may be cut off"
        problems.append(problem("may-be-cut", f"{message}; it is read as it is"))
    every = (line.strip() for line in content.decode("ascii", "ignore").splitlines())
    lines = [line for line in every if line and not line.startswith("#")]
    if not all(line.replace("\t", " ").isprintable() for line in lines):
        raise Refused("header-damaged", "the header has control characters; text is needed")
    return lines


def _record_line(line: str) -> tuple[str, int | None, int, float, int | None]:
    """Name, number of segments, of signals, rate, number of samples."""
    tokens = line.split()
    name = RECORD_NAME.fullmatch(tokens[0])
    n_signals = whole(tokens[1]) if len(tokens) > 1 else None
    if name is None or n_signals is None or len(tokens) > 6:
        needed = "name, signals, rate, samples, time and date are needed"
        raise Refused("header-damaged", f"the first line is not that of a WFDB record; {needed}")
    if name[2] is not None and int(name[2]) == 0:
        raise Refused("header-damaged", "the record has 0 segments; at least 1 is needed")
    refuse_many_segments(int(name[2] or 1))
    if not 1 <= n_signals <= MOST_SIGNALS:
        code = "no-data" if n_signals == 0 else "header-damaged"
        raise Refused(code, f"the record has {n_signals:,} signals; 1 to {MOST_SIGNALS:,} are needed")
    rate_text = tokens[2] if len(tokens) > 2 else ""
    matched = RATE.fullmatch(rate_text)
    rate = number(matched[1]) if matched else None
    refuse_rate(rate, f"{described(rate_text)} as its rate")
    assert rate is not None
    n_samples = whole(tokens[3]) if len(tokens) > 3 else None
    if len(tokens) > 3 and n_samples is None:
        found = f"the record has {described(tokens[3])} as its number of samples"
        raise Refused("header-damaged", f"{found}; a whole number is needed")
    if n_samples == 0:
        found = "the header declares 0 samples, a length that is not known, of which wfdb would read none"
        raise Refused("not-supported", f"{found}. Write the number of samples, or leave it out.")
    try:
        for time in tokens[4:5]:
            form = ("%S", "%M:%S", "%H:%M:%S")[time.count(":")] + (".%f" if "." in time else "")
            datetime.strptime(time, form)
        for date in tokens[5:]:
            datetime.strptime(date, "%d/%m/%Y")
    except (ValueError, IndexError):  # never quoted
        found = "the time or date in the first line cannot be understood"
        raise Refused("header-damaged", f"{found}. Remove them.") from None
    return name[1], int(name[2]) if name[2] else None, n_signals, rate, n_samples


def _signal_line(position: int, line: str) -> WfdbSignal:
    tokens = line.split(None, 3)
    stored = FORMAT.fullmatch(tokens[1]) if len(tokens) > 1 else None
    if stored is None:
        raise Refused("header-damaged", f"signal {position} has no file name and format")
    if stored[1] not in SAMPLE_BYTES and stored[1] not in COMPRESSED:
        raise Refused("not-supported", f"signal {position} is stored in the unknown format {stored[1]}")
    if stored[1] == "8":
        found = f"signal {position} is stored in format 8, of which no part can be read by itself"
        raise Refused("not-supported", f"{found}. Convert the record to format 16.")
    gain, unit = _gain(position, tokens[2]) if len(tokens) > 2 else (0.0, "")
    per_frame = int(stored[2] or 1)
    if per_frame < 1:
        raise Refused("header-damaged", f"signal {position} has 0 samples a frame; at least 1 is needed")
    name, numbers = _description(position, tokens[3] if len(tokens) > 3 else "")
    checksum = numbers[3] if len(numbers) > 3 else 0
    first_value = numbers[2] if len(numbers) > 2 else 0
    return WfdbSignal(
        file=tokens[0],
        format=stored[1],
        per_frame=per_frame,
        skew=int(stored[3] or 0),
        offset=int(stored[4] or 0),
        gain=gain,
        unit=unit,
        name=name,
        checksum=checksum,
        first_value=first_value if first_value or checksum else None,  # writers that know neither leave zeros
        position=position,
    )


def _gain(position: int, token: str) -> tuple[float, str]:
    """Gain and unit; a gain of 0 is none."""
    matched = GAIN.fullmatch(token)
    if matched is None:
        code = "bad-range" if token[:1].isalpha() else "header-damaged"
        found = f"signal {position} has {described(token)} as gain and unit"
        raise Refused(code, f"{found}; 200(0)/mV or so is needed")
    gain = number(matched[1])
    if gain is None or (gain and not 1e-15 <= abs(gain) <= 1e15):
        found = f"signal {position} has a gain of {described(matched[1])}"
        raise Refused("bad-range", f"{found}; a number from 1e-15 to 1e15 is needed")
    return gain, matched[3] or ""


def _description(position: int, rest: str) -> tuple[str, list[int]]:
    """What is left of a line after up to five numbers: resolution, zero, first value, checksum, block size."""
    numbers = []
    for number_of in NUMBERS:
        token, *after = rest.split(None, 1)[:2] or [""]
        if not number_of.fullmatch(token):
            break
        numbers.append(int(token))
        rest = "".join(after)
    # wfdb takes a lone sign for a number where one may have a sign
    if len(numbers) < len(NUMBERS) and re.match(r"[-+.]?\d" if len(numbers) == 4 else r"[+.]?\d|-", rest):
        raise Refused("header-damaged", f"signal {position} has a damaged number after its gain")
    # wfdb ends a description at the first tab or other break that is no space
    return re.split(r"[\t\n\r\f\v]", rest, maxsplit=1)[0], numbers


def _segment_line(position: int, line: str) -> tuple[str, int]:
    tokens = line.split()
    length = whole(tokens[1]) if len(tokens) == 2 else None
    if length is None:
        raise Refused("header-damaged", f"segment {position} has no name and length")
    return tokens[0], length
