"""Record onsets of EDF+ and BDF+ files: when each record began, and where the gaps are.

    EdfHeader -> the annotation bytes of each record -> onsets (n_records,), stretches without a gap, problems

Only annotation bytes are read, never samples. Next: reading.py makes a segment of each stretch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from raxss.data.confinement import open_confined, root_of
from raxss.data.formats.edf.header import EdfHeader
from raxss.data.formats.edf.signals import EdfSignal
from raxss.data.formats.fields import problem_of_segments
from raxss.data.problems import Problem
from raxss.errors import RecordingError, display_name

# Onsets are decimal text, often of milliseconds: records nearer than this follow each other.
ONSET_TOLERANCE = 1e-3  # seconds
BYTES_AT_ONCE = 2**20  # of annotations, while onsets are read
_ONSET = re.compile(rb"([+-][0-9]+(?:\.[0-9]*)?)\x14\x14")


def time_problems(path: Path, root: Path, header: EdfHeader) -> list[Problem]:
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
                f"{display_name(path)} does not say when {n_blank} of its {header.n_records} records began; they "
                "are taken to follow the one before.",
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
                    f"{display_name(path)} is marked as continuous ({header.kind}), and the times of its records "
                    "have gaps; the times count.",
                )
            )
        problems.append(
            Problem(
                "gaps",
                f"{display_name(path)} has {len(runs) - 1} gaps between its {header.n_records} records; the "
                f"{len(runs)} stretches become segments with their true times.",
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
                f"{display_name(path)} has record times that drift away from the records' duration by {drift:.3g} "
                "s in all; the duration counts.",
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
        raise RecordingError(
            f"recording {display_name(path)} became shorter while it was read. Check it again."
        )
    blank = np.isnan(told)
    if blank.any():
        told = _filled(told, header.record_seconds)
    early = np.flatnonzero(np.diff(told) - header.record_seconds < -_tolerance(header, told - told[0]))
    if len(early):
        number = int(early[0]) + 1
        raise RecordingError(
            f"recording {display_name(path)} says that record {number} began at {told[number]:g} s, before record "
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
            f"recording {display_name(path)} has annotations in record {number} that do not begin with the time of "
            "the record. Export it again."
        )
    if not may_be_blank:
        raise RecordingError(
            f"recording {display_name(path)} may have gaps and does not say when record {number} began, so its "
            "time is not known. Export it again."
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
