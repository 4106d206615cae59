"""Record onsets of EDF+ and BDF+ files: when each record began, and where the gaps are.

    EdfHeader -> the annotation bytes of each record -> onsets (n_records,), stretches without a gap, problems

Only annotation bytes are read, never samples. Next: reading.py makes a segment of each stretch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.edf.header import EdfHeader, EdfSignal
from raxss.data.formats.fields import Refused, refuse_many_segments
from raxss.data.problems import Problem

# Onsets are decimal text, often of milliseconds: records nearer than this follow each other.
ONSET_TOLERANCE = 1e-3  # seconds
BYTES_AT_ONCE = 2**20  # of annotations, while onsets are read
_ONSET = re.compile(rb"([+-][0-9]+(?:\.[0-9]*)?)\x14\x14")


def with_times(file: BinaryIO, header: EdfHeader, problems: list[Problem]) -> EdfHeader:
    """The header with the stretches without a gap; what is wrong with the times of records joins ``problems``.

    Times that are not times, run backwards or make records overlap raise `Refused`.
    """
    onsets, n_blank = record_onsets(file, header)
    if n_blank and any(signal.is_annotations for signal in header.signals):
        message = f"the file does not say when {n_blank} of its {header.n_records} records began"
        problems.append(
            Problem("header-inconsistent", f"{message}; they are taken to follow the one before.")
        )
    runs = contiguous_runs(onsets, header)
    refuse_many_segments(len(runs))
    problems += _gap_problems(onsets, runs, header)
    return replace(header, runs=tuple((first, last, float(onsets[first])) for first, last in runs))


def _gap_problems(
    onsets: NDArray[np.float64], runs: list[tuple[int, int]], header: EdfHeader
) -> Iterator[Problem]:
    if len(runs) > 1:
        if header.kind.endswith("+C"):
            message = (
                f"the file is marked as continuous ({header.kind}), and the times of its records have gaps"
            )
            yield Problem("header-inconsistent", f"{message}; the times count.")
        message = f"the file has {len(runs) - 1} gaps between its {header.n_records} records"
        yield Problem("gaps", f"{message}; the {len(runs)} stretches become segments with their true times.")
    drift = max(
        abs(onsets[last - 1] - onsets[first] - (last - 1 - first) * header.record_seconds)
        for first, last in runs
    )
    if drift > max(10 * ONSET_TOLERANCE, header.record_seconds):
        message = f"the record times drift away from the records' duration by {drift:.3g} s in all"
        yield Problem("header-inconsistent", f"{message}; the duration counts.")


def contiguous_runs(onsets: NDArray[np.float64], header: EdfHeader) -> list[tuple[int, int]]:
    """First record, and the one after the last, of each stretch without a gap."""
    starts = np.flatnonzero(np.diff(onsets) - header.record_seconds > _tolerance(header, onsets)) + 1
    return list(pairwise([0, *starts.tolist(), len(onsets)]))


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


def record_onsets(file: BinaryIO, header: EdfHeader) -> tuple[NDArray[np.float64], int]:
    """When each record began, in seconds after the first one ``(n_records,)``, and how many did not state it.

    From the time-keeping annotation at the head of each record; in a continuous file that has none, records
    follow each other.
    """
    annotations = next((signal for signal in header.signals if signal.is_annotations), None)
    if annotations is None or not header.kind.endswith(("+C", "+D")):
        return np.arange(header.n_records, dtype=np.float64) * header.record_seconds, header.n_records
    may_be_blank = not header.kind.endswith("+D")
    texts = _annotation_bytes(file, header, annotations)
    onsets = np.fromiter(
        (_onset_of(number, text, may_be_blank) for number, text in enumerate(texts)), np.float64
    )
    if len(onsets) < header.n_records:
        raise Refused("header-damaged", "the file became shorter while it was read")
    blank = np.isnan(onsets)
    if blank.any():
        onsets = _filled(onsets, header.record_seconds)
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


def _onset_of(number: int, text: bytes, may_be_blank: bool) -> float:
    """Seconds that a record's first annotation states; NaN where there is no annotation at all."""
    if found := _ONSET.match(text):
        return float(found[1])
    if text.strip(b"\0"):
        message = f"the file has annotations in record {number} that do not begin with the time of the record"
        raise Refused("header-damaged", message)
    if not may_be_blank:
        message = f"the file may have gaps and does not say when record {number} began"
        raise Refused("header-damaged", f"{message}, so its time is not known")
    return math.nan


def _filled(onsets: NDArray[np.float64], record_seconds: float) -> NDArray[np.float64]:
    """Records that do not state when they began follow the last one that did."""
    numbers = np.arange(len(onsets))
    known = ~np.isnan(onsets)
    last = np.maximum.accumulate(np.where(known, numbers, -1))
    base = np.where(last >= 0, onsets[np.maximum(last, 0)], 0.0)
    first = int(np.argmax(known)) if known.any() else 0
    origin = onsets[first] - first * record_seconds if known.any() else 0.0
    return np.where(last >= 0, base + (numbers - last) * record_seconds, origin + numbers * record_seconds)
