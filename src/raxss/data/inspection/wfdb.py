"""Is this WFDB record what its header says?

    .hea + .dat/.mat (+ the headers of its segments) -> problems, or WfdbHeader

The package wfdb matches the beginning of each line and passes over the rest, drops letters that are not ASCII (so
``µV`` is read as ``V``), and takes memory for as many samples as a header declares. So every line is read here
first, whole and strictly, and held against the real sizes.
Next: wfdb_files.py reads samples of what passed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path

from raxss.data.formats.known import WFDB_SAMPLE_BYTES, WFDB_SUFFIXES, is_bomb
from raxss.data.inspection.confinement import open_confined, root_of
from raxss.data.inspection.fields import (
    CHANGED,
    Refused,
    described,
    follow,
    header_bytes,
    name_problems,
    number,
    problem_of_rates,
    problem_of_segments,
    rate_problem,
    whole,
)
from raxss.data.inspection.wfdb_values import (
    StoredSignal,
    first_value_problems,
    matlab_problems,
)
from raxss.data.problems import Problem, refusals
from raxss.errors import RecordingError, shown

HEADER_BYTES = 2**20
MOST_SIGNALS = 512
MOST_SECONDS = 366 * 86400  # from the first sample to the last, gaps included
# wfdb takes a millisecond for each signal line, which it reads again for every segment, block and rate
MOST_LINES = 1500
NOT_DATA = (".hea", ".vhdr", ".vmrk", ".edf", ".bdf", ".npy", ".npz", ".csv", ".tsv", ".json", ".txt")
COMPRESSED = ("508", "516", "524")
RECORD_NAME = re.compile(r"([-\w]+)(?:/(\d{1,6}))?", re.ASCII)
RATE = re.compile(r"(\d+\.?\d*|\.\d+)(?:/(-?\d+\.?\d*)(?:\(-?\d+\.?\d*\))?)?", re.ASCII)
FILE_NAME = re.compile(r"[-\w]+\.?\w*", re.ASCII)
FORMAT = re.compile(r"(\d{1,4})(?:x(\d{1,9}))?(?::(\d{1,12}))?(?:\+(\d{1,12}))?", re.ASCII)
GAIN = re.compile(r"(-?[\d.]+(?:e[+-]?\d+)?)(?:\((-?\d{1,12})\))?(?:/([\w^\-?%/]*))?", re.ASCII)
# resolution, zero, first value, checksum, block size; only those between may have a sign
NUMBERS = [re.compile(sign + r"\d{1,12}", re.ASCII) for sign in ("", "-?", "-?", "-?", "")]
SEGMENT_NAME = re.compile(r"[-\w]+", re.ASCII)


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
    checksum: int = 0  # 0: not told
    first_value: int | None = None  # None: not told
    position: int = 1


@dataclass(frozen=True)
class WfdbHeader:
    """What the header of a WFDB record says.

    Attributes
    ----------
    rate
        Frames per second; a signal with several samples a frame has as many times that rate.
    n_samples
        Frames; None where the header leaves it to the size of the data.
    signals
        Of a record with segments: none.
    n_signals
        As the first line has it.
    segments
        Name and frames of each; ``~`` is a gap.
    """

    name: str
    rate: float
    n_samples: int | None
    signals: tuple[WfdbSignal, ...] = ()
    segments: tuple[tuple[str, int], ...] = ()
    n_signals: int = 0


def inspect_wfdb(path: Path, root: Path) -> list[Problem]:
    """What is wrong with a WFDB record, given by its header, by another of its files or by its bare name.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.hea").write_text("a 1 250 1000\\na.dat 16 200/mV\\n")
    >>> [problem.code for problem in inspect_wfdb(folder / "a.hea", folder)]
    ['not-found']
    """
    problems: list[Problem] = []
    try:
        header_path = _header_of(path)
        header = _parsed(header_path, root, problems)
        if header.segments:
            _check_segments(header, header_path, root, problems)
        else:
            _check_data(header, header_path.parent, root, problems)
    except Refused as refused:
        problems.append(refused.problem)
    except OSError as error:
        problems.append(
            Problem("not-readable", f"{shown(path)} cannot be read ({error.strerror or CHANGED}). Try again.")
        )
    return list(dict.fromkeys(problems))  # segments have the same ones


def read_header(path: Path) -> WfdbHeader:
    """The header of a WFDB record that is not refused. For checks only: the package wfdb decodes."""
    refused = refusals(inspect_wfdb(path, root_of(path)))
    if refused:
        raise RecordingError(f"recording {shown(path)} is refused: {refused[0].message}")
    return _parsed(_header_of(path), root_of(path), [])


def _header_of(path: Path) -> Path:
    if "::" in os.path.abspath(path) or "://" in str(path):  # to wfdb these are addresses of other machines
        raise Refused(
            "outside", "the path has '::' or '://' in it, which wfdb takes for an address. Rename it."
        )
    if path.suffix != ".hea" and path.suffix.lower() == ".hea" and path.exists():
        raise Refused(
            "not-supported", f"{shown(path)} is named {path.suffix}, and wfdb asks for .hea. Rename it."
        )
    if path.suffix.lower() in WFDB_SUFFIXES:
        return path.with_suffix(".hea")
    return path.with_name(path.name + ".hea")


def _parsed(path: Path, root: Path, problems: list[Problem]) -> WfdbHeader:
    lines = _lines_of(path, root, problems)
    if not lines:
        raise Refused("header-damaged", "the header has no line but comments. Copy it again.")
    name, n_segments, n_signals, rate, n_samples = _record_line(lines[0])
    if name != path.stem:
        told = "the header calls its record by another name than the file has (not shown here); the file's counts."
        problems.append(Problem("header-inconsistent", told))
    n_described, kind = len(lines) - 1, "signals" if n_segments is None else "segments"
    declared = n_signals if n_segments is None else n_segments
    if n_described != declared:
        raise Refused(
            "header-damaged",
            f"the header declares {declared:,} {kind} and describes {n_described:,}; one line for each is needed. "
            "Copy it again.",
        )
    if n_segments is None:
        signals = tuple(map(_signal_line, range(1, declared + 1), lines[1:]))
        return WfdbHeader(name, rate, n_samples, signals=signals, n_signals=n_signals)
    segments = tuple(map(_segment_line, range(1, declared + 1), lines[1:]))
    return WfdbHeader(name, rate, n_samples, segments=segments, n_signals=n_signals)


def _lines_of(path: Path, root: Path, problems: list[Problem]) -> list[str]:
    """Lines as the package wfdb sees them; comments, in which patients are described, are left out."""
    content = header_bytes(path, root, HEADER_BYTES)
    if len(content) > HEADER_BYTES:
        raise Refused(
            "header-damaged", f"the header is longer than {HEADER_BYTES:,} bytes, which no real one is."
        )
    if b"\0" in content:
        raise Refused("header-damaged", "the header has NUL bytes; text is needed. Copy it again.")
    for line in content.splitlines():
        if line.isascii() or line.strip().startswith(b"#"):
            continue
        if not b" ".join(line.split()[:3]).isascii():
            raise Refused(
                "header-damaged",
                "the header has letters that are not ASCII in a file name, gain or unit, which wfdb would drop: µV "
                "would become V. Write uV.",
            )
        problems.append(
            Problem("non-ascii", "a signal's name has letters that are not ASCII; they are left out.")
        )
    last = content[content.rfind(b"\n") + 1 :].strip()
    if last and not last.startswith(b"#") and not content.endswith((b"\r", b"\n")):
        told = "the last line of the header does not end, so a name or number in it may be cut off"
        problems.append(Problem("may-be-cut", f"{told}; it is read as it is. Compare it with the original."))
    every = (line.strip() for line in content.decode("ascii", "ignore").splitlines())
    lines = [line for line in every if line and not line.startswith("#")]
    if not all(line.replace("\t", " ").isprintable() for line in lines):
        raise Refused("header-damaged", "the header has control characters; text is needed. Copy it again.")
    return lines


def _record_line(line: str) -> tuple[str, int | None, int, float, int | None]:
    """Name, number of segments, of signals, rate, number of samples."""
    tokens = line.split()
    name = RECORD_NAME.fullmatch(tokens[0])
    n_signals = whole(tokens[1]) if len(tokens) > 1 else None
    if name is None or n_signals is None or len(tokens) > 6:
        raise Refused(
            "header-damaged",
            "the first line is not that of a WFDB record: name, signals, rate, samples, time and date are needed. "
            "Copy the header again.",
        )
    if name[2] is not None and int(name[2]) == 0:
        raise Refused("header-damaged", "the record has 0 segments; at least 1 is needed. Copy it again.")
    if problem := problem_of_segments(int(name[2] or 1)):
        raise Refused(problem.code, problem.message)
    if not 1 <= n_signals <= MOST_SIGNALS:
        code = "no-data" if n_signals == 0 else "header-damaged"
        raise Refused(code, f"the record has {n_signals:,} signals; 1 to {MOST_SIGNALS:,} are needed.")
    rate_text = tokens[2] if len(tokens) > 2 else ""
    matched = RATE.fullmatch(rate_text)
    rate = number(matched[1]) if matched else None
    told = f"{described(rate_text)} as its rate" if rate_text else "no rate (the format would assume 250 Hz)"
    problem = rate_problem(rate, told)
    if problem is not None or rate is None:
        raise Refused("bad-rate", problem.message if problem else told)
    n_samples = whole(tokens[3]) if len(tokens) > 3 else None
    if len(tokens) > 3 and n_samples is None:
        raise Refused(
            "header-damaged",
            f"the record has {described(tokens[3])} as its number of samples; a whole number is needed.",
        )
    if n_samples == 0:
        raise Refused(
            "not-supported",
            "the header declares 0 samples, which stands for a length that is not known; wfdb would read none. "
            "Write the number of samples, or leave it out.",
        )
    if not _is_time(tokens[4:]):  # never quoted
        raise Refused(
            "header-damaged", "the time or date in the first line cannot be understood. Remove them."
        )
    return name[1], int(name[2]) if name[2] else None, n_signals, rate, n_samples


def _is_time(tokens: Sequence[str]) -> bool:
    """Whether a base time, and a base date after it, are what wfdb can read."""
    try:
        if tokens:
            form = ("%S", "%M:%S", "%H:%M:%S")[tokens[0].count(":")] + (".%f" if "." in tokens[0] else "")
            datetime.strptime(tokens[0], form)
        if len(tokens) > 1:
            datetime.strptime(tokens[1], "%d/%m/%Y")
    except (ValueError, IndexError):
        return False
    return True


def _signal_line(position: int, line: str) -> WfdbSignal:
    tokens = line.split(None, 3)
    stored = FORMAT.fullmatch(tokens[1]) if len(tokens) > 1 else None
    if stored is None:
        raise Refused(
            "header-damaged", f"signal {position} has no file name and format. Copy the header again."
        )
    if stored[1] not in WFDB_SAMPLE_BYTES and stored[1] not in COMPRESSED:
        raise Refused(
            "not-supported", f"signal {position} is stored in format {stored[1]}, which wfdb does not know."
        )
    if stored[1] == "8":
        raise Refused(
            "not-supported",
            f"signal {position} is stored in format 8, as differences, of which no part can be read without all "
            "before it. Convert the record to format 16.",
        )
    gain, unit = _gain(position, tokens[2]) if len(tokens) > 2 else (0.0, "")
    per_frame = int(stored[2] or 1)
    if per_frame < 1:
        raise Refused(
            "header-damaged", f"signal {position} has {per_frame} samples a frame; at least 1 is needed."
        )
    name, numbers = _description(position, tokens[3] if len(tokens) > 3 else "")
    checksum = numbers[3] if len(numbers) > 3 else 0
    first_value = numbers[2] if len(numbers) > 2 else 0
    return WfdbSignal(
        tokens[0],
        stored[1],
        per_frame,
        int(stored[3] or 0),
        int(stored[4] or 0),
        gain,
        unit,
        name,
        checksum,
        first_value if first_value or checksum else None,  # zeros are what writers leave that know neither
        position,
    )


def _gain(position: int, token: str) -> tuple[float, str]:
    """Gain and unit; a gain of 0 is none."""
    matched = GAIN.fullmatch(token)
    if matched is None:
        raise Refused(
            "bad-range" if token[:1].isalpha() else "header-damaged",
            f"signal {position} has {described(token)} where its gain and unit should be, as in 200(0)/mV. Correct "
            "the header.",
        )
    gain = number(matched[1])
    if gain is None or (gain and not 1e-15 <= abs(gain) <= 1e15):
        raise Refused(
            "bad-range", f"signal {position} has a gain of {described(matched[1])}. Correct the header."
        )
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
    else:
        return _up_to_tab(rest), numbers
    if re.match(r"[-+.]?\d", rest):
        raise Refused(
            "header-damaged", f"signal {position} has a damaged number after its gain. Copy the header again."
        )
    return _up_to_tab(rest), numbers


def _up_to_tab(text: str) -> str:
    """wfdb ends a description at the first tab or other break that is no space."""
    return re.split(r"[\t\n\r\f\v]", text, maxsplit=1)[0]


def _segment_line(position: int, line: str) -> tuple[str, int]:
    tokens = line.split()
    length = whole(tokens[1]) if len(tokens) == 2 else None
    if length is None:
        raise Refused("header-damaged", f"segment {position} has no name and length. Copy the header again.")
    return tokens[0], length


def _check_data(header: WfdbHeader, folder: Path, root: Path, problems: list[Problem]) -> int:
    """The data files are there, may be opened and are as long as declared; how many bytes they have in all."""
    sizes = []
    for file, signals in _by_file(header.signals):
        called = _called(signals)
        found = follow(file, folder, root, f"the line of signal {signals[0].position}")
        if isinstance(found, Problem):
            raise Refused(found.code, found.message)
        if not FILE_NAME.fullmatch(file):
            raise Refused(
                "header-damaged", f"{called} has a name that wfdb does not take: letters, digits, - and _."
            )
        if found.suffix.lower() in NOT_DATA:
            raise Refused(
                "header-damaged",
                f"{called} is a header or a file of another format, by its ending {found.suffix}, not one of "
                "samples. Write the name of the .dat or .mat file into the header.",
            )
        sizes.append(found.stat().st_size)
        frames = _check_size(header, signals, sizes[-1], problems)
        if signals[0].format in COMPRESSED:
            _check_flac(found, root, called)
            continue
        storage, offset, width = signals[0].format, signals[0].offset, sum(one.per_frame for one in signals)
        if found.suffix.lower() == ".mat":
            problems += matlab_problems(found, root, storage, offset, width, frames)
        problems += first_value_problems(found, root, storage, offset, stored_signals(signals))
    _check_meaning(header, problems)
    return sum(sizes)


def stored_signals(signals: Sequence[WfdbSignal]) -> list[StoredSignal]:
    """What wfdb_values.py needs to know of signals."""
    return [StoredSignal(one.position, one.per_frame, one.skew, one.first_value) for one in signals]


def _called(signals: Sequence[WfdbSignal]) -> str:
    """How messages call a data file: by its signals, because its name in the header may be that of a person."""
    first, last = signals[0].position, signals[-1].position
    return (
        f"the data file of signal {first}" if first == last else f"the data file of signals {first} to {last}"
    )


def _check_flac(path: Path, root: Path, called: str) -> None:
    with open_confined(path, root) as file:
        if file.read(4) != b"fLaC":
            raise Refused("not-this-format", f"{called} is declared as compressed, and is no FLAC stream.")


def _by_file(signals: Sequence[WfdbSignal]) -> Iterator[tuple[str, list[WfdbSignal]]]:
    """Signals of one file must stand together, in one format: wfdb takes both from the first."""
    groups = [(file, list(group)) for file, group in groupby(signals, key=lambda signal: signal.file)]
    if len({file for file, _ in groups}) < len(groups):
        raise Refused(
            "not-supported", "signals of one file stand apart in the header, which wfdb reads wrongly."
        )
    for file, group in groups:
        if len({(signal.format, signal.offset) for signal in group}) > 1:
            raise Refused(
                "header-damaged",
                f"{_called(group)} is declared in several formats or offsets; one is needed.",
            )
        yield file, group


def _check_size(header: WfdbHeader, signals: Sequence[WfdbSignal], size: int, problems: list[Problem]) -> int:
    """How many bytes the signals of one file need, and how many there are; the number of frames that are read."""
    called = _called(signals)
    stored, per_frame = signals[0], sum(signal.per_frame for signal in signals)
    sample_bytes = WFDB_SAMPLE_BYTES.get(stored.format, 0.0)  # compressed: not known, see is_bomb below
    present = size - (stored.offset if stored.format not in COMPRESSED else 0)
    frames = header.n_samples
    if frames is None:
        if stored.format in COMPRESSED:
            raise Refused(
                "not-supported",
                f"{called} is compressed, and the header does not tell how many samples it has. Write "
                "their number into the first line.",
            )
        frames = math.floor(max(present, 0) / (per_frame * sample_bytes))
        if rest := math.floor(max(present, 0) - frames * per_frame * sample_bytes):
            told = f"{called} ends {rest} bytes after its last whole frame; what is whole is read"
            problems.append(Problem("data-truncated", f"{told}. Copy it again."))
    needed = frames * per_frame * sample_bytes
    if frames == 0 or present <= 0:
        raise Refused("no-data", f"{called} has {size:,} bytes, too few for one sample. Copy it again.")
    bomb = is_bomb(frames * per_frame, size)
    if stored.format in COMPRESSED and bomb:
        raise Refused(
            "too-large",
            f"the header declares {frames:,} samples in {called}, which has {size:,} bytes; no "
            "recording can be compressed so far. Copy it again, or convert the record to format 16.",
        )
    if present < math.floor(needed):
        raise Refused(
            "too-large" if bomb else "data-missing",
            f"the header declares {frames:,} samples, {math.floor(needed):,} bytes in {called}, which "
            f"has {max(present, 0):,} for them; it is cut off or damaged. Copy it again.",
        )
    if max(signal.skew for signal in signals) > frames:  # wfdb would append as many samples
        raise Refused(
            "header-damaged", "a signal lags by more samples than the record has. Copy the header again."
        )
    if len({signal.skew for signal in signals}) > 2:
        raise Refused(
            "not-supported",
            f"{called} has signals that lag by several different times, which wfdb cannot read.",
        )
    if stored.format not in COMPRESSED and present >= needed + per_frame * sample_bytes:
        told = f"{called} has {present:,} bytes, and {math.ceil(needed):,} are declared and read."
        problems.append(Problem("data-longer", told))
    return frames


def _check_meaning(header: WfdbHeader, problems: list[Problem]) -> None:
    """Gains, units, names and rates."""
    signals = header.signals
    fastest = max(signal.per_frame for signal in signals) * header.rate
    problem = rate_problem(fastest, f"a rate of {fastest:g} Hz, several samples a frame,")
    if problem is not None:
        raise Refused(problem.code, problem.message)
    n_uncalibrated = sum(signal.gain == 0 for signal in signals)
    if n_uncalibrated:
        told = (
            f"{n_uncalibrated} of {len(signals)} signals have no gain; 200 is assumed, as the format has it."
        )
        problems.append(Problem("uncalibrated", told))
    n_blank = sum(not signal.unit for signal in signals)
    if n_blank:
        told = f"{n_blank} of {len(signals)} signals have no unit; mV is assumed, as the format has it."
        problems.append(Problem("blank-unit", told))
    problems += name_problems([signal.name for signal in signals])
    n_rates = len({signal.per_frame for signal in signals})
    problem = problem_of_rates(n_rates) or _problem_of_lines(_lines_read(header))
    if problem is not None:
        raise Refused(problem.code, problem.message)
    if len({signal.per_frame for signal in signals}) > 1:
        rates = ", ".join(f"{rate:g}" for rate in sorted({one.per_frame * header.rate for one in signals}))
        problems.append(Problem("mixed-rates", f"signals have rates of {rates} Hz; each is read at its own."))


def _lines_read(header: WfdbHeader) -> int:
    """How many lines wfdb reads for one look at all signals: all of them, for every rate."""
    return (2 + len(header.signals)) * len({signal.per_frame for signal in header.signals})


def _problem_of_lines(n_lines: int) -> Problem | None:
    if n_lines <= MOST_LINES:
        return None
    told = f"wfdb would have to read more than {MOST_LINES:,} lines, one a signal for every segment and rate."
    return Problem("too-many-pieces", f"{told} Write parts of it to records of their own.")


def _check_segments(header: WfdbHeader, path: Path, root: Path, problems: list[Problem]) -> None:
    """Each segment is a record of its own beside the header, with the same signals; ``~`` is a gap."""
    lengths = [length for _, length in header.segments]
    if header.n_samples is not None and sum(lengths) != header.n_samples:
        told = f"the header declares {header.n_samples:,} samples, and its segments {sum(lengths):,}; these count."
        problems.append(Problem("header-inconsistent", told))
    parts: dict[str, WfdbHeader] = {}
    n_bytes = n_lines = 0
    for place, (name, length) in enumerate(header.segments, start=1):
        if name == "~":
            continue
        if name not in parts:
            parts[name], size = _segment(place, name, header, path, root, problems)
            n_bytes += size
        present = parts[name].n_samples
        if present is not None and present < length:
            raise Refused("data-missing", f"segment {place} has {present:,} samples, not {length:,}.")
        if present is not None and present > length > 0:
            told = f"segment {place} has {present:,} samples, and {length:,} of them are declared and read."
            problems.append(Problem("data-longer", told))
        n_lines += _lines_read(parts[name])
        if problem := _problem_of_lines(n_lines):
            raise Refused(problem.code, problem.message)
    records = [parts[name] for name, length in header.segments if name != "~" and length]
    if not records:
        raise Refused("no-data", "the record has gaps and no segment with samples. Leave it out.")
    like = {tuple((one.name, one.per_frame, one.unit) for one in record.signals) for record in records}
    if len(like) > 1:
        raise Refused(
            "not-supported", "segments have different signals or units. Read them one by one, as records."
        )
    problems += _problems_of_layout(header, parts, records[0])
    per_frame = sum(signal.per_frame for signal in records[0].signals)
    n_read = sum(length for name, length in header.segments if name != "~")  # gaps take no memory
    if is_bomb(n_read * per_frame, n_bytes) or sum(lengths) > MOST_SECONDS * header.rate:
        raise Refused(
            "too-large",
            f"the segments declare {sum(lengths):,} samples in all, and their files have {n_bytes:,} bytes. Copy "
            "the record again.",
        )
    if any(name == "~" for name, length in header.segments):
        problems.append(Problem("gaps", "the record has gaps; each stretch in between is a segment."))


def _problems_of_layout(
    header: WfdbHeader, parts: Mapping[str, WfdbHeader], record: WfdbHeader
) -> list[Problem]:
    """Whether the record's first line, its layout and its segments have the same signals."""
    first, length = header.segments[0]
    layout = parts[first] if length == 0 and first != "~" and parts[first].signals else None
    described_by = record if layout is None else layout
    problems = []
    if header.n_signals != len(described_by.signals):
        count = len(described_by.signals)
        told = f"the header declares {header.n_signals:,} signals, and its segments have {count:,}"
        problems.append(Problem("header-inconsistent", f"{told}; these count. Copy the record again."))
    if layout is not None and not {one.name for one in record.signals} <= {
        one.name for one in layout.signals
    }:
        told = (
            "segments have signals that the layout of the record does not have; those of the segments count"
        )
        problems.append(Problem("header-inconsistent", f"{told}. Copy the record again."))
    return problems


def _segment(
    place: int, name: str, whole_record: WfdbHeader, path: Path, root: Path, problems: list[Problem]
) -> tuple[WfdbHeader, int]:
    """One segment's header, and the bytes of its data files; a layout has none."""
    found = follow(f"{name}.hea", path.parent, root, f"the line of segment {place}")
    if isinstance(found, Problem):
        raise Refused(found.code, found.message)
    if not SEGMENT_NAME.fullmatch(name):
        raise Refused("header-damaged", f"segment {place} has a name that wfdb does not take.")
    is_layout = (name, 0) == whole_record.segments[0]
    try:
        part = _parsed(found, root, problems)
    except Refused as refused:
        if is_layout and refused.problem.code in ("no-data", "not-supported"):
            return WfdbHeader(name, whole_record.rate, None), 0
        raise
    if part.segments:
        raise Refused("not-supported", f"segment {place} has segments itself, which the format forbids.")
    if part.rate != whole_record.rate:
        told = f"segment {place} has a rate of {part.rate:g} Hz, and the record {whole_record.rate:g}"
        raise Refused("not-supported", f"{told}; one rate is needed. Read the segments as records.")
    if is_layout:
        return part, 0
    n_bytes = _check_data(part, found.parent, root, problems)
    return (
        replace(part, n_samples=measured(part, found.parent)) if part.n_samples is None else part
    ), n_bytes


def measured(header: WfdbHeader, folder: Path) -> int | None:
    """How many frames the data files have, by their sizes; None if they are compressed."""
    frames = []
    for file, signals in _by_file(header.signals):
        if signals[0].format in COMPRESSED:
            return None
        frame_bytes = sum(one.per_frame for one in signals) * WFDB_SAMPLE_BYTES[signals[0].format]
        frames.append(math.floor(((folder / file).stat().st_size - signals[0].offset) / frame_bytes))
    return min(frames)
