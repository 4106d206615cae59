"""Samples of an EDF or BDF file, a stretch of some channels at a time.

    .edf, .bdf (plain, +C, +D) -> EdfRecording: every signal at its own rate, segments where records are apart

edfio decodes. Two things are arranged around it: it maps an EDF file into memory, so that all pages that were ever
touched count as ours, and it loads a BDF file whole. So a long stretch is read in blocks: an EDF file is mapped
anew once enough of it was touched, and of a BDF file edfio is given the samples of one block as one record, with
the headers of their signals. Annotation signals, which hold what people wrote, are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.decoding import BLOCK_BYTES, decoder, decoding
from raxss.data.formats.edf.header import FIXED_BYTES, SIGNAL_FIELDS, EdfHeader
from raxss.data.formats.fields import microvolts_per
from raxss.data.recording import Channel, Recording, Segment

BDF_SHARE = 4  # edfio takes about ten times the bytes of a BDF file to decode them: blocks are smaller


class EdfRecording(Recording):
    """An EDF or BDF file that was not refused."""

    def __init__(self, path: Path, header: EdfHeader) -> None:
        self.name = path.name
        self._path = path.absolute()  # edfio takes a folder called ~ for somebody's home
        self._edfio = decoder("edfio", self.name)
        self._header = header
        self._per_record = [signal.n_samples for signal in header.data_signals]
        self._microvolts = [microvolts_per(signal.unit) for signal in header.data_signals]
        self.channels = tuple(
            # 7 samples in 0.07 s are 100 Hz, not 99.99999999999999
            Channel(
                signal.label, float(f"{header.rate(signal):.12g}"), signal.unit if factor is None else "uV"
            )
            for signal, factor in zip(header.data_signals, self._microvolts, strict=True)
        )
        self.segments = tuple(
            Segment(start, (last - first) * header.record_seconds) for first, last, start in header.runs
        )
        self._is_bdf = self._header.sample_bytes == 3
        self._places = [place for place, item in enumerate(self._header.signals) if not item.is_annotations]
        self._mapped: Any = None
        self._touched = 0  # bytes of the mapped file

    def limits(self) -> list[tuple[float, float]]:
        """The converter's limits of each channel, in the unit that its samples are read in."""
        limits = []
        for signal, factor in zip(self._header.data_signals, self._microvolts, strict=True):
            ends = signal.physical_min * (factor or 1.0), signal.physical_max * (factor or 1.0)
            limits.append((min(ends), max(ends)))  # inverted polarity is legal
        return limits

    def n_samples(self, channel: int, segment: int = 0) -> int:
        """How many samples a channel has in a segment."""
        first, last, _ = self._header.runs[segment]
        return (last - first) * self._per_record[channel]

    def read(
        self, channels: Sequence[int], *, segment: int = 0, start: int = 0, stop: int | None = None
    ) -> NDArray[np.float64]:
        """Samples ``start`` to ``stop`` of a segment, voltages in microvolts."""
        start, stop = self.stretch(channels, segment, start, stop)
        samples = np.empty((len(channels), stop - start))
        if not samples.size:
            return samples
        per_record = self._per_record[channels[0]]
        begin = self._header.runs[segment][0] * per_record + start  # samples since the start of the file
        end = begin + stop - start
        block_bytes = BLOCK_BYTES // (BDF_SHARE if self._is_bdf else 1)
        # less than a record if that is long
        at_once = max(1, block_bytes * per_record // self._header.record_bytes)
        for first in range(begin, end, at_once):
            last = min(first + at_once, end)
            self._read_block(channels, per_record, first, last, into=samples[:, first - begin : last - begin])
        return samples

    def _read_block(
        self, channels: Sequence[int], per_record: int, first: int, last: int, *, into: NDArray[np.float64]
    ) -> None:
        """Samples of a few records; ``first`` and ``last`` count from the start of the file."""
        with decoding(self.name):
            if self._is_bdf:
                decoded = [
                    signal.data for signal in self._some_samples(channels, per_record, first, last).signals
                ]
            else:
                signals = self._whole_file(-(-last // per_record) - first // per_record).signals
                rate = signals[channels[0]].sampling_frequency
                decoded = [signals[channel].get_data_slice(first / rate, last / rate) for channel in channels]
            for row, channel, values in zip(into, channels, decoded, strict=True):
                np.multiply(values, self._microvolts[channel] or 1.0, out=row)

    def _whole_file(self, n_records: int) -> Any:
        """The EDF file, mapped and not read; mapped anew, so that old pages are let go, now and then."""
        if self._mapped is None or self._touched > BLOCK_BYTES:
            self._mapped = None
            self._mapped = self._edfio.read_edf(self._path, lazy_load_data=True, header_encoding="latin-1")
            self._touched = 0
        self._touched += n_records * self._header.record_bytes
        return self._mapped

    def _some_samples(self, channels: Sequence[int], per_record: int, first: int, last: int) -> Any:
        """Some samples of some signals of a BDF file, as a file of one record."""
        before, after = first // per_record, -(-last // per_record)
        size = self._header.record_bytes
        records = np.memmap(
            self._path, np.uint8, "r", self._header.data_offset + before * size, (after - before, size)
        )
        skipped, width = 3 * (first - before * per_record), 3 * (last - first)
        parts = [self._small_header(channels, last - first)]
        for channel in channels:
            offset = self._header.data_signals[channel].offset
            of_signal = records[:, offset : offset + 3 * per_record].reshape(-1)
            parts.append(of_signal[skipped : skipped + width].tobytes())
        return self._edfio.read_bdf(b"".join(parts), header_encoding="latin-1")

    def _small_header(self, channels: Sequence[int], n_samples: int) -> bytes:
        """The header of a file with these signals only, and ``n_samples`` of each in one record of a second."""
        with open(self._path, "rb") as file:
            header = file.read(self._header.data_offset)
        n_signals, start = len(self._header.signals), FIXED_BYTES
        numbers = f"{FIXED_BYTES * (len(channels) + 1):<8}{'24BIT':<44}{1:<8}{1:<8}{len(channels):<4}"
        parts = [header[:184], numbers.encode()]
        for name, width in SIGNAL_FIELDS:
            for channel in channels:
                place = start + width * self._places[channel]
                is_count = name == "samples in a record"
                parts.append(f"{n_samples:<8}".encode() if is_count else header[place : place + width])
            start += width * n_signals
        return b"".join(parts)

    def close(self) -> None:
        """Let go of the file."""
        self._mapped = None
