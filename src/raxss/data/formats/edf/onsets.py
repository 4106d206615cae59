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
    """When each record began, in seconds after the first one ``(n_records,)``, and how many did not state it.

    Times stand at the head of each record; in a continuous file without them, records follow each other.
    """
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
