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
from raxss.recordings.recording import Channel, Recording, Segment


@dataclass(frozen=True)
class _Part:
    """A record of one segment: where it begins within its stretch and how long it is, in frames."""

    record: str
    start: int
    frames: int
    tells_length: bool


class WfdbRecording(Recording):
    """A WFDB record, given by its header."""

    def __init__(self, header: Path) -> None:
        self.name = header.stem
        self._wfdb = decoder("wfdb", self.name)
        folder = Path(os.path.abspath(header)).parent
        with decoding(self.name):
            declared = self._wfdb.rdheader(str(folder / header.stem), rd_segments=True)
            if isinstance(declared, self._wfdb.MultiRecord):
                parts = list(zip(declared.seg_name, declared.segments, declared.seg_len, strict=True))
            else:
                parts = [(header.stem, declared, declared.sig_len or self._measured(folder / header.stem))]
            # a null segment has no header; the layout of a record whose signals vary, no samples
            signals = next(one for _, one, frames in parts if one is not None and frames)
        self._per_frame = [int(one or 1) for one in signals.samps_per_frame]
        self.channels = tuple(
            Channel(_clean(name), float(signals.fs) * per_frame, _clean(unit))
            for name, per_frame, unit in zip(signals.sig_name, self._per_frame, signals.units, strict=True)
        )
        self._stretches: list[list[_Part]] = []
        starts, frame, after_gap = [], 0, True
        for record, one, frames in parts:
            if one is None and frames:
                after_gap = True
            elif frames:
                if after_gap:
                    self._stretches.append([])
                    starts.append(frame)
                part = _Part(str(folder / record), frame - starts[-1], frames, one.sig_len is not None)
                self._stretches[-1].append(part)
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
            for begin in range(first, last, at_once if part.tells_length else part.frames):
                end = min(begin + at_once, last) if part.tells_length else last
                block = self._block(part, channels, begin - part.start, end - part.start)
                # frames are whole, and the stretch may begin and end within one
                inner = slice(
                    max(start - begin * per_frame, 0), min(stop, end * per_frame) - begin * per_frame
                )
                place = begin * per_frame + inner.start - start
                samples[:, place : place + inner.stop - inner.start] = block[:, inner]
        return samples

    def _block(self, part: _Part, channels: Sequence[int], first: int, last: int) -> NDArray[np.float64]:
        """All samples of some frames; wfdb takes an end only from a header that tells the length."""
        with decoding(self.name):
            wanted = sorted(set(channels))
            read = self._wfdb.rdrecord(
                part.record,
                sampfrom=first,
                sampto=last if part.tells_length else None,
                channels=wanted,
                smooth_frames=False,
            )
            n_samples = (last - first) * self._per_frame[channels[0]]
            return np.stack([read.e_p_signal[wanted.index(channel)][:n_samples] for channel in channels])


def _clean(text: str | None) -> str:
    return "".join(letter for letter in text or "" if letter.isprintable()).strip()
