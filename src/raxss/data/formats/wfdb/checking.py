"""Check of a WFDB record: its header against the sizes and first bytes of its data files, and its segments.

    .hea + .dat/.mat (+ the headers of its segments) -> problems, or WfdbHeader

The package wfdb takes memory for as many samples as a header declares, so what is declared is compared with the
real sizes first. Next: reading.py reads samples of what passed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from raxss.data.confinement import open_confined, root_of
from raxss.data.formats.fields import (
    CHANGED,
    Refused,
    follow,
    is_bomb,
    name_problems,
    problem_of_rates,
    rate_problem,
)
from raxss.data.formats.wfdb.header import (
    COMPRESSED,
    SAMPLE_BYTES,
    WfdbHeader,
    WfdbSignal,
    header_file,
    parse_header,
)
from raxss.data.formats.wfdb.values import StoredSignal, first_value_problems, matlab_problems
from raxss.data.problems import Problem, refusals
from raxss.errors import RecordingError, display_name

MOST_SECONDS = 366 * 86400  # from the first sample to the last, gaps included
# wfdb takes a millisecond for each signal line, which it reads again for every segment, block and rate
MOST_LINES = 1500
NOT_DATA = (".hea", ".vhdr", ".vmrk", ".edf", ".bdf", ".npy", ".npz", ".csv", ".tsv", ".json", ".txt")
FILE_NAME = re.compile(r"[-\w]+\.?\w*", re.ASCII)
SEGMENT_NAME = re.compile(r"[-\w]+", re.ASCII)


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
        header_path = header_file(path)
        header = parse_header(header_path, root, problems)
        if header.segments:
            _check_segments(header, header_path, root, problems)
        else:
            _check_data(header, header_path.parent, root, problems)
    except Refused as refused:
        problems.append(refused.problem)
    except OSError as error:
        problems.append(
            Problem(
                "not-readable",
                f"{display_name(path)} cannot be read ({error.strerror or CHANGED}). Try again.",
            )
        )
    return list(dict.fromkeys(problems))  # segments have the same ones


def read_header(path: Path) -> WfdbHeader:
    """The header of a WFDB record that is not refused. For checks only: the package wfdb decodes."""
    refused = refusals(inspect_wfdb(path, root_of(path)))
    if refused:
        raise RecordingError(f"recording {display_name(path)} is refused: {refused[0].message}")
    return parse_header(header_file(path), root_of(path), [])


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
        storage, offset, width = (
            signals[0].format,
            signals[0].offset,
            sum(signal.per_frame for signal in signals),
        )
        if found.suffix.lower() == ".mat":
            problems += matlab_problems(found, root, storage, offset, width, frames)
        problems += first_value_problems(found, root, storage, offset, stored_signals(signals))
    _check_meaning(header, problems)
    return sum(sizes)


def stored_signals(signals: Sequence[WfdbSignal]) -> list[StoredSignal]:
    """What values.py needs to know of signals."""
    return [
        StoredSignal(signal.position, signal.per_frame, signal.skew, signal.first_value) for signal in signals
    ]


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
    sample_bytes = SAMPLE_BYTES.get(stored.format, 0.0)  # compressed: not known, see is_bomb below
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
        rates = ", ".join(f"{rate:g}" for rate in sorted({item.per_frame * header.rate for item in signals}))
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
    like = {tuple((item.name, item.per_frame, item.unit) for item in record.signals) for record in records}
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
    if layout is not None and not {signal.name for signal in record.signals} <= {
        signal.name for signal in layout.signals
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
        part = parse_header(found, root, problems)
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
        frame_bytes = sum(signal.per_frame for signal in signals) * SAMPLE_BYTES[signals[0].format]
        frames.append(math.floor(((folder / file).stat().st_size - signals[0].offset) / frame_bytes))
    return min(frames)
