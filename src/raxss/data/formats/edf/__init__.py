"""EDF and BDF: the European Data Format, its 24-bit sibling, and their plus variants with annotations.

    .edf, .bdf (plain, +C, +D) -> EdfRecording: every signal at its own rate, segments where records are apart

A stored integer d becomes (d + o) * g with the gain g = (p_max - p_min) / (d_max - d_min) and the offset
o = p_max / g - d_max, from the physical (p) and digital (d) limits of its signal. Annotation signals, which hold
what people wrote, are not read. Read header.py (what a header states, when records began), then this.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.decoding import BLOCK_BYTES, BlockRecording
from raxss.data.formats.edf.header import EdfHeader, parse_header, with_times
from raxss.data.formats.fields import microvolts_per, open_unrefused
from raxss.data.formats.registry import header_format, register_format
from raxss.data.problems import Problem, refusals
from raxss.data.recording import Channel, Segment


def examine(path: Path, root: Path, problems: list[Problem]) -> EdfHeader | None:
    """The header with the times of records, if it can be used; what is wrong is added to ``problems``."""
    with open_unrefused(path, root) as file:
        header = parse_header(file, os.fstat(file.fileno()).st_size, path.suffix.lower(), problems)
        return None if header is None or refusals(problems) else with_times(file, header, problems)


class EdfRecording(BlockRecording):
    """An EDF or BDF file that was not refused."""

    def __init__(self, path: Path, header: EdfHeader) -> None:
        self.name = path.name
        self._path, self._header, self._signals = path.absolute(), header, header.data_signals
        self.stated_units = tuple(signal.unit for signal in self._signals)
        self._microvolts = [microvolts_per(signal.unit) for signal in self._signals]
        self.channels = tuple(
            Channel(signal.label, header.rate(signal), signal.unit if factor is None else "uV")
            for signal, factor in zip(self._signals, self._microvolts, strict=True)
        )
        self.segments = tuple(
            Segment(start, (last - first) * header.record_seconds) for first, last, start in header.runs
        )

    def limits(self) -> list[tuple[float, float]]:
        """The converter's limits of each channel, in the unit that its samples are read in."""
        limits = []
        for signal, factor in zip(self._signals, self._microvolts, strict=True):
            ends = signal.physical_min * (factor or 1.0), signal.physical_max * (factor or 1.0)
            limits.append((min(ends), max(ends)))  # inverted polarity is legal
        return limits

    def n_samples(self, channel: int, segment: int = 0) -> int:
        """How many samples a channel has in a segment."""
        first, last, _ = self._header.runs[segment]
        return (last - first) * self._signals[channel].n_samples

    def _block_samples(self, channel: int) -> int:
        return BLOCK_BYTES * self._signals[channel].n_samples // self._header.record_bytes

    def _decoded(self, channels: Sequence[int], segment: int, start: int, stop: int) -> NDArray[np.float64]:
        header, per_record = self._header, self._signals[channels[0]].n_samples
        first, rest = divmod(header.runs[segment][0] * per_record + start, per_record)
        n_records = -(-(rest + stop - start) // per_record)
        size, width = header.record_bytes, header.sample_bytes
        # mapped for one block: pages of a mapped file that were touched count as memory of this process
        records = np.memmap(self._path, np.uint8, "r", header.data_offset + first * size, (n_records, size))
        rows = []
        for channel in channels:
            signal = self._signals[channel]
            stored = records[:, signal.offset : signal.offset + width * per_record].reshape(-1, width)
            digital = _integers(stored[rest : rest + stop - start])
            rows.append((digital + signal.shift) * signal.gain * (self._microvolts[channel] or 1.0))
        return np.stack(rows)


def _integers(stored: NDArray[np.uint8]) -> NDArray[np.integer]:
    """Little-endian integers with a sign, of the bytes ``(n, 2)`` or ``(n, 3)`` of each."""
    if stored.shape[1] == 2:
        return np.ascontiguousarray(stored).view("<i2")[:, 0]
    low, middle = stored[:, 0].astype(np.int32), stored[:, 1].astype(np.int32)
    return low | middle << 8 | stored[:, 2].view(np.int8).astype(np.int32) << 16


# BIDS allows BDF for scalp recordings alone
for _name, _datatypes in {"EDF": ("ieeg", "eeg"), "BDF": ("eeg",)}.items():
    _suffixes = (f".{_name.lower()}",)
    register_format(
        header_format(
            examine, EdfRecording, name=_name, suffixes=_suffixes, by_channel=True, datatypes=_datatypes
        )
    )
