"""How is a WFDB record read, a stretch of some signals at a time?

    record.hea (+ .dat, .mat, the headers of its segments) -> WfdbRecording

Samples are in the record's own physical unit, mV for most ECGs. A record of several segments is read segment
by segment: those that follow each other without a gap are one stretch of signal, and a null segment (``~``)
ends it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raxss.recordings.decoding import BLOCK_BYTES, decoder, decoding
from raxss.recordings.inspection.wfdb import read_header
from raxss.recordings.recording import Channel, Recording, Segment

KEPT_BYTES = 2**26  # of decoded samples: all of a file of 16 MB


@dataclass(frozen=True)
class _Part:
    """A record of one segment: where it begins within its stretch and how long it is, in frames."""

    record: str
    start: int
    frames: int


class WfdbRecording(Recording):
    """A WFDB record, given by its header."""

    def __init__(self, header: Path) -> None:
        self.name = header.stem
        self._wfdb = decoder("wfdb", self.name)
        self._lengths_told: dict[str, bool] = {}
        self._header = Path(os.path.abspath(header))
        self._kept: tuple[str, int, list[NDArray[np.float64]]] | None = None
        folder = self._header.parent
        with decoding(self.name):
            signals = self._wfdb.rdheader(str(folder / header.stem))
            if isinstance(signals, self._wfdb.MultiRecord):
                parts = list(zip(signals.seg_name, signals.seg_len, strict=True))
                # a null segment has no header; the layout of a record whose signals vary, no samples
                first = next(record for record, frames in parts if record != "~" and frames)
                signals = self._wfdb.rdheader(str(folder / first))
            else:
                parts = [(header.stem, signals.sig_len or self._measured(folder / header.stem))]
        self._per_frame = [int(one or 1) for one in signals.samps_per_frame]
        self.channels = tuple(
            Channel(_clean(name), float(signals.fs) * per_frame, _clean(unit))
            for name, per_frame, unit in zip(signals.sig_name, self._per_frame, signals.units, strict=True)
        )
        self._stretches: list[list[_Part]] = []
        starts, frame, after_gap = [], 0, True
        for record, frames in parts:
            if record == "~" and frames:
                after_gap = True
            elif frames:
                if after_gap:
                    self._stretches.append([])
                    starts.append(frame)
                self._stretches[-1].append(_Part(str(folder / record), frame - starts[-1], frames))
                after_gap = False
            frame += frames
        self.segments = tuple(
            Segment(start / signals.fs, (parts[-1].start + parts[-1].frames) / signals.fs)
            for start, parts in zip(starts, self._stretches, strict=True)
        )

    def _measured(self, record: Path) -> int:
        """How many frames a record has whose header leaves that to the size of the data."""
        return int(self._wfdb.rdrecord(str(record), channels=[0]).sig_len)

    def n_samples(self, channel: int, segment: int = 0) -> int:
        """How many samples a channel has in a segment."""
        last = self._stretches[segment][-1]
        return (last.start + last.frames) * self._per_frame[channel]

    def read(
        self, channels: Sequence[int], *, segment: int = 0, start: int = 0, stop: int | None = None
    ) -> NDArray[np.float64]:
        """Samples ``start`` to ``stop`` of a segment, in the record's unit."""
        start, stop = self.stretch(channels, segment, start, stop)
        samples = np.empty((len(channels), stop - start))
        if not samples.size:
            return samples
        per_frame = self._per_frame[channels[0]]
        at_once = max(1, BLOCK_BYTES // (8 * sum(self._per_frame)))
        for part in self._stretches[segment]:
            first = max(start // per_frame, part.start)
            last = min(-(-stop // per_frame), part.start + part.frames)
            if first >= last:
                continue
            step = at_once if self._tells_length(part) else part.frames
            for begin in range(first, last, step):
                end = min(begin + step, last)
                block = self._block(part, channels, begin - part.start, end - part.start)
                # frames are whole, and the stretch may begin and end within one
                inner = slice(
                    max(start - begin * per_frame, 0), min(stop, end * per_frame) - begin * per_frame
                )
                place = begin * per_frame + inner.start - start
                with decoding(self.name):  # the data may be shorter than it was
                    samples[:, place : place + inner.stop - inner.start] = block[:, inner]
        return samples

    def _tells_length(self, part: _Part) -> bool:
        """Whether the header of a part says how long it is, so that wfdb can read some of it."""
        if part.record not in self._lengths_told:  # wfdb takes long to read a header
            self._lengths_told[part.record] = read_header(Path(f"{part.record}.hea")).n_samples is not None
        return self._lengths_told[part.record]

    def _block(self, part: _Part, channels: Sequence[int], first: int, last: int) -> NDArray[np.float64]:
        """All samples of some frames. A short part is kept whole: wfdb takes long to read a header."""
        with decoding(self.name):
            if 8 * part.frames * sum(self._per_frame) <= KEPT_BYTES:
                if self._kept is None or self._kept[0] != part.record or self._kept[1] != part.frames:
                    every = range(len(self.channels))
                    self._kept = part.record, part.frames, self._decoded(part, every, 0, part.frames)
                rows = [self._kept[2][channel] for channel in channels]
                skipped = first * self._per_frame[channels[0]]
            else:
                wanted = sorted(set(channels))
                decoded = self._decoded(part, wanted, first, last)
                rows, skipped = [decoded[wanted.index(channel)] for channel in channels], 0
            n_samples = (last - first) * self._per_frame[channels[0]]
            return np.stack([row[skipped : skipped + n_samples] for row in rows])

    def _decoded(
        self, part: _Part, channels: Sequence[int], first: int, last: int
    ) -> list[NDArray[np.float64]]:
        """wfdb takes an end only from a header that tells the length."""
        end = last if self._tells_length(part) else None
        read = self._wfdb.rdrecord(
            part.record, sampfrom=first, sampto=end, channels=list(channels), smooth_frames=False
        )
        decoded: list[NDArray[np.float64]] = read.e_p_signal
        return decoded

    def wrong_checksums(self) -> list[str]:
        """Signals whose samples do not add up to the header's checksum.

        Only of a record of one segment whose signals have one sample a frame and do not lag. A checksum of 0 was
        not told. First values are not compared: in one of ten records of cinc2017 they are not the first.
        """
        header = read_header(self._header)
        is_simple = all(one.per_frame == 1 and not one.skew for one in header.signals)
        if not (is_simple and header.n_samples and any(one.checksum for one in header.signals)):
            return []
        record, totals = str(self._header.with_suffix("")), np.zeros(len(header.signals), np.int64)
        at_once = max(1, KEPT_BYTES // (8 * len(header.signals)))
        with decoding(self.name):
            for start in range(0, header.n_samples, at_once):
                stop = min(start + at_once, header.n_samples)
                block = self._wfdb.rdrecord(record, sampfrom=start, sampto=stop, physical=False).d_signal
                totals += block.sum(axis=0, dtype=np.int64)
        return [
            one.name
            for one, total in zip(header.signals, totals.tolist(), strict=True)
            if one.checksum and (total - one.checksum) % 2**16  # of 16 bits, with or without a sign
        ]


def _clean(text: str | None) -> str:
    return "".join(letter for letter in text or "" if letter.isprintable()).strip()
