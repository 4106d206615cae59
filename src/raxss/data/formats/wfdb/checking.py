"""Check of a WFDB record: its header against the sizes and first bytes of its data files, and its segments.

    .hea + .dat/.mat (+ the headers of its segments) -> problems, or WfdbHeader

The package wfdb takes memory for as many samples as a header declares, so what is declared is compared with the
real sizes first. First values of signals are in the header, so that a data file of another record is recognised;
a .mat file states type, channels and samples once more.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raxss.data.confinement import open_confined
from raxss.data.formats.fields import Refused, channel_problems, follow, is_bomb, problem, rate_problems
from raxss.data.formats.wfdb.header import COMPRESSED, SAMPLE_BYTES, WfdbHeader, WfdbSignal, parse_header
from raxss.data.problems import Problem
from raxss.errors import join_names

MOST_SECONDS = 366 * 86400  # from the first sample to the last, gaps included
# wfdb takes a millisecond for each signal line, which it reads again for every segment, block and rate
MOST_LINES = 1500
NOT_DATA = (".hea", ".vhdr", ".vmrk", ".edf", ".bdf", ".npy", ".npz", ".csv", ".tsv", ".json", ".txt")
FILE_NAME = re.compile(r"[-\w]+\.?\w*", re.ASCII)
SEGMENT_NAME = re.compile(r"[-\w]+", re.ASCII)
MAT_BYTES = 20  # of a MATLAB 4 header: type, rows, columns, whether complex, length of the name
MAT_WIDTHS = {2: 4, 3: 2, 4: 2, 5: 1}  # bytes of a sample, by the type's third digit; others are no integers
FORMAT_WIDTHS = {"16": 2, "61": 2, "160": 2, "32": 4, "80": 1}  # that a matrix of MATLAB can have


def examine(path: Path, root: Path, problems: list[Problem]) -> WfdbHeader:
    """The header of a record with those of its segments; what is wrong is added to ``problems``."""
    if "::" in os.path.abspath(path) or "://" in str(path):  # to wfdb these are addresses of other machines
        raise Refused("outside", "wfdb takes a path with '::' or '://' for an address. Rename it.")
    if path.suffix != ".hea":
        raise Refused("not-supported", f"wfdb needs .hea, and this is named {path.suffix}. Rename it.")
    header = parse_header(path, root, problems)
    if header.segments:
        return _checked_segments(header, path, root, problems)
    return _checked_data(header, path.parent, root, problems)[0]


def _checked_data(
    header: WfdbHeader, folder: Path, root: Path, problems: list[Problem]
) -> tuple[WfdbHeader, int]:
    """The header with the frames of its data files, if these may be opened and suffice; and their bytes in all."""
    n_bytes, frames = 0, []
    for file, signals in _by_file(header.signals):
        called = _called(signals)
        found = follow(file, folder, root, f"the line of signal {signals[0].position}")
        if not FILE_NAME.fullmatch(file):
            needed = "letters, digits, - and _ are needed. Rename it."
            raise Refused("header-damaged", f"{called} has a name that wfdb does not take; {needed}")
        if found.suffix.lower() in NOT_DATA:
            what = f"{called} is by its ending {found.suffix} a header or a file of another format"
            raise Refused("header-damaged", f"{what}. Write the name of the data file into the header.")
        size = found.stat().st_size
        n_bytes += size
        frames.append(_check_size(header, signals, size, problems))
        if signals[0].format in COMPRESSED:
            with open_confined(found, root) as opened:
                if opened.read(4) != b"fLaC":
                    raise Refused("not-this-format", f"{called} is declared as FLAC, and is none")
            continue
        if found.suffix.lower() == ".mat":
            problems += matlab_problems(found, root, signals, frames[-1])
        problems += first_value_problems(found, root, signals)
    if n_uncalibrated := sum(signal.gain == 0 for signal in header.signals):
        message = f"{n_uncalibrated} of {len(header.signals)} signals have no gain"
        problems.append(Problem("uncalibrated", f"{message}; 200 is assumed, as the format has it."))
    names, units = [signal.name for signal in header.signals], [signal.unit for signal in header.signals]
    blank = "mV is assumed, as the format has it."
    problems += channel_problems(names, units, blank=blank, voltages=False)
    problems += rate_problems(signal.per_frame * header.rate for signal in header.signals)
    _refuse_many_lines(_lines_read(header))
    return replace(header, frames=min(frames)), n_bytes


def _called(signals: Sequence[WfdbSignal]) -> str:
    """How messages call a data file: by its signals, because its name in the header may be that of a person."""
    first, last = signals[0].position, signals[-1].position
    return f"the data file of signal{f' {first}' if first == last else f's {first} to {last}'}"


def _by_file(signals: Sequence[WfdbSignal]) -> Iterator[tuple[str, list[WfdbSignal]]]:
    """Signals of one file must stand together, in one format: wfdb takes both from the first."""
    groups = [(file, list(group)) for file, group in groupby(signals, key=lambda signal: signal.file)]
    if len({file for file, _ in groups}) < len(groups):
        raise Refused("not-supported", "signals of one file stand apart, which wfdb reads wrongly")
    for file, group in groups:
        if len({(signal.format, signal.offset) for signal in group}) > 1:
            found = f"{_called(group)} is declared in several formats or offsets"
            raise Refused("header-damaged", f"{found}; one is needed")
        yield file, group


def _check_size(header: WfdbHeader, signals: Sequence[WfdbSignal], size: int, problems: list[Problem]) -> int:
    """How many bytes the signals of one file need, and how many there are; the number of frames that are read."""
    called, stored = _called(signals), signals[0]
    is_compressed = stored.format in COMPRESSED
    per_frame = sum(signal.per_frame for signal in signals)
    frame_bytes = per_frame * SAMPLE_BYTES.get(stored.format, 0.0)  # compressed: not known, see is_bomb below
    present = size if is_compressed else size - stored.offset
    frames = header.n_samples
    if frames is None:
        if is_compressed:
            found = f"{called} is compressed, and the header does not say how many samples it has"
            raise Refused("not-supported", f"{found}. Write their number into the first line.")
        frames = math.floor(max(present, 0) / frame_bytes)
        if rest := math.floor(max(present, 0) - frames * frame_bytes):
            message = f"{called} ends {rest} bytes after its last whole frame; what is whole is read"
            problems.append(problem("data-truncated", message))
    needed = frames * frame_bytes
    if frames == 0 or present <= 0:
        raise Refused("no-data", f"{called} has {size:,} bytes, too few for one sample")
    bomb = is_bomb(frames * per_frame, size)
    if is_compressed and bomb:
        found = f"the header declares {frames:,} samples in {called}, which has {size:,} bytes"
        raise Refused("too-large", f"{found}; no recording can be compressed so far")
    if present < math.floor(needed):
        found = f"the header declares {frames:,} samples, {math.floor(needed):,} bytes in {called}, which has"
        code = "too-large" if bomb else "data-missing"
        raise Refused(code, f"{found} {max(present, 0):,} for them; it is cut off or damaged")
    if max(signal.skew for signal in signals) > frames:  # wfdb would append as many samples
        raise Refused("header-damaged", "a signal lags by more samples than the record has")
    if len({signal.skew for signal in signals}) > 2:
        raise Refused("not-supported", f"{called} has signals of several lags, which wfdb cannot read")
    if not is_compressed and present >= needed + frame_bytes:
        message = f"{called} has {present:,} bytes, and {math.ceil(needed):,} are declared and read."
        problems.append(Problem("data-longer", message))
    return frames


def _lines_read(header: WfdbHeader) -> int:
    """How many lines wfdb reads for one look at all signals: all of them, for every rate."""
    return (2 + len(header.signals)) * len({signal.per_frame for signal in header.signals})


def _refuse_many_lines(n_lines: int) -> None:
    if n_lines > MOST_LINES:
        found = f"wfdb would read more than {MOST_LINES:,} lines, one a signal for every segment and rate"
        raise Refused("too-many-pieces", f"{found}. Write parts of it to records of their own.")


def _checked_segments(header: WfdbHeader, path: Path, root: Path, problems: list[Problem]) -> WfdbHeader:
    """The header with those of its segments: records beside it, with the same signals; ``~`` is a gap."""
    lengths = [length for _, length in header.segments]
    if header.n_samples is not None and sum(lengths) != header.n_samples:
        message = f"the header declares {header.n_samples:,} samples, and its segments {sum(lengths):,}"
        problems.append(Problem("header-inconsistent", f"{message}; these count."))
    parts: dict[str, WfdbHeader] = {}
    n_bytes = n_lines = 0
    for place, (name, length) in enumerate(header.segments, start=1):
        if name == "~":
            continue
        if name not in parts:
            parts[name], size = _segment(place, name, header, path, root, problems)
            n_bytes += size
        present = parts[name].frames
        if present < length:
            raise Refused("data-missing", f"segment {place} has {present:,} samples, not {length:,}")
        if present > length > 0:
            message = f"segment {place} has {present:,} samples; {length:,} of them are declared and read."
            problems.append(Problem("data-longer", message))
        n_lines += _lines_read(parts[name])
        _refuse_many_lines(n_lines)
    records = [parts[name] for name, length in header.segments if name != "~" and length]
    if not records:
        raise Refused("no-data", "the record has gaps and no segment with samples. Leave it out.")
    like = {tuple((item.name, item.per_frame, item.unit) for item in record.signals) for record in records}
    if len(like) > 1:
        raise Refused("not-supported", "segments have different signals or units. Read them as records.")
    first, length = header.segments[0]
    layout = parts[first] if length == 0 and first != "~" and parts[first].signals else records[0]
    if header.n_signals != len(layout.signals):
        message = f"the header has {header.n_signals:,} signals, its segments {len(layout.signals):,}"
        problems.append(problem("header-inconsistent", f"{message}, which count"))
    if not {signal.name for signal in records[0].signals} <= {signal.name for signal in layout.signals}:
        message = "segments have signals that the layout of the record does not have, which count"
        problems.append(problem("header-inconsistent", message))
    per_frame = sum(signal.per_frame for signal in records[0].signals)
    n_read = sum(length for name, length in header.segments if name != "~")  # gaps take no memory
    if is_bomb(n_read * per_frame, n_bytes) or sum(lengths) > MOST_SECONDS * header.rate:
        found = f"the segments declare {sum(lengths):,} samples in all"
        raise Refused("too-large", f"{found}, and their files have {n_bytes:,} bytes")
    if any(name == "~" for name, _ in header.segments):
        problems.append(Problem("gaps", "the record has gaps; each stretch in between is a segment."))
    return replace(header, parts=parts)


def _segment(
    place: int, name: str, whole_record: WfdbHeader, path: Path, root: Path, problems: list[Problem]
) -> tuple[WfdbHeader, int]:
    """One segment's header, and the bytes of its data files; a layout has none."""
    found = follow(f"{name}.hea", path.parent, root, f"the line of segment {place}")
    if not SEGMENT_NAME.fullmatch(name):
        raise Refused("header-damaged", f"segment {place} has a name that wfdb does not take. Rename it.")
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
        message = f"segment {place} has a rate of {part.rate:g} Hz, and the record {whole_record.rate:g}"
        raise Refused("not-supported", f"{message}; one rate is needed. Read the segments as records.")
    return (part, 0) if is_layout else _checked_data(part, found.parent, root, problems)


def first_value_problems(path: Path, root: Path, signals: Sequence[WfdbSignal]) -> list[Problem]:
    """Signals of one file that do not begin with the header's first value. Only plain formats are compared here."""
    width = sum(signal.per_frame for signal in signals)
    with open_confined(path, root) as file:
        file.seek(signals[0].offset)
        values = first_samples(file.read(4 * width + 8), signals[0].format, width)
    if values is None or len(values) < width:
        return []
    starts = accumulate((signal.per_frame for signal in signals), initial=0)
    return compare_first_values(signals, values[list(starts)[:-1]].tolist())


def compare_first_values(signals: Sequence[WfdbSignal], found: Sequence[int]) -> list[Problem]:
    """Signals that begin with another value than the header's; of one that lags it is not specified which."""
    wrong = [
        f"signal {signal.position}"
        for signal, value in zip(signals, found, strict=True)
        if signal.first_value not in (None, value) and not signal.skew
    ]
    message = f"{len(wrong)} of {len(signals)} signals do not begin with the first value in the header"
    to_do = "One of the files was exchanged or changed; samples are read as they are. Compare it with the original."
    return [Problem("first-value", f"{message}: {join_names(wrong)}. {to_do}")] if wrong else []


def first_samples(raw: bytes, storage: str, count: int) -> NDArray[np.int64] | None:
    """The first ``count`` samples of a plain format, as the integers that are stored; None of other formats."""
    plain = {"16": "<i2", "32": "<i4", "61": ">i2", "80": "u1", "160": "<u2"}
    if storage in plain:
        usable = len(raw) // np.dtype(plain[storage]).itemsize * np.dtype(plain[storage]).itemsize
        zero = {"80": 128, "160": 32768}.get(storage, 0)
        return np.frombuffer(raw[:usable], plain[storage]).astype(np.int64)[:count] - zero
    padded = np.frombuffer(raw + bytes(-len(raw) % 12), np.uint8).astype(np.int64)
    if storage == "24":
        low, middle, high = padded.reshape(-1, 3).T
        return _signed(low | middle << 8 | high << 16, 24)[:count]
    if storage == "212":
        low, shared, high = padded.reshape(-1, 3).T
        pairs = np.stack([low | (shared & 0x0F) << 8, high | (shared & 0xF0) << 4], axis=1)
        return _signed(pairs.ravel(), 12)[:count]
    if storage == "310":
        first, second = (padded[::2] | padded[1::2] << 8).reshape(-1, 2).T
        third = first >> 11 | second >> 11 << 5
        return _signed(np.stack([first >> 1 & 0x3FF, second >> 1 & 0x3FF, third], axis=1).ravel(), 10)[:count]
    if storage == "311":
        words = padded.reshape(-1, 4) @ (1 << 8 * np.arange(4))
        thirds = np.stack([words >> 10 * place & 0x3FF for place in range(3)], axis=1)
        return _signed(thirds.ravel(), 10)[:count]
    return None


def _signed(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    return values - ((values >> (bits - 1)) << bits)


def matlab_problems(path: Path, root: Path, signals: Sequence[WfdbSignal], frames: int) -> list[Problem]:
    """Whether the header that a .mat file begins with says the same as the record's: type, channels, samples."""
    storage, offset, width = signals[0].format, signals[0].offset, sum(item.per_frame for item in signals)
    with open_confined(path, root) as file:
        raw = file.read(MAT_BYTES + 64)
    matrix = _matlab_header(raw)
    if matrix is None:
        return []
    kind, rows, columns, begin = matrix
    if offset < begin:
        found = f"the header says that samples begin at byte {offset} of the .mat file"
        raise Refused("header-damaged", f"{found}, whose own header has {begin} bytes")
    if offset > begin:  # samples are those of a later matrix
        return []
    if storage in FORMAT_WIDTHS and MAT_WIDTHS.get(kind) != FORMAT_WIDTHS[storage]:
        found = f"the header says that samples are stored in format {storage}"
        raise Refused("header-damaged", f"{found}, and the .mat file that they are of another type ({kind})")
    is_vector = width == 1 and 1 in (rows, columns)
    if rows != width and not is_vector:
        found = f"the header has {width} samples in a frame of the .mat file, which has {rows:,} rows"
        raise Refused("header-damaged", f"{found}; samples of all signals would be mixed up")
    length = rows * columns if is_vector else columns
    if length == frames:
        return []
    message = f"the header declares {frames:,} samples, and the .mat file {length:,}; the header counts"
    return [problem("header-inconsistent", message)]


def _matlab_header(raw: bytes) -> tuple[int, int, int, int] | None:
    """Type of number, rows, columns and length of the header of a MATLAB 4 file; None of anything else."""
    if len(raw) < MAT_BYTES:
        return None
    for order in ("<i4", ">i4"):
        kind, rows, columns, is_complex, n_letters = np.frombuffer(raw[:MAT_BYTES], order).tolist()
        name = raw[MAT_BYTES : MAT_BYTES + max(n_letters, 0)]
        is_kind = 0 <= kind < 5000 and kind // 100 % 10 == 0 and kind // 10 % 10 <= 5 and kind % 10 <= 2
        is_name = 2 <= n_letters <= 64 and name[-1:] == b"\0" and name[:-1].isalnum()
        if is_kind and is_name and rows > 0 and columns > 0 and is_complex == 0:
            return kind // 10 % 10, rows, columns, MAT_BYTES + n_letters
    return None
