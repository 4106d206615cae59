"""Samples of a WFDB record, a stretch of some signals at a time.

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

from raxss.data.formats.decoding import BLOCK_BYTES, decoder, decoding
from raxss.data.formats.wfdb.checking import measured, read_header, stored_signals
from raxss.data.formats.wfdb.header import COMPRESSED, WfdbHeader, WfdbSignal
from raxss.data.formats.wfdb.values import first_value_problem
from raxss.data.problems import Problem
from raxss.data.recording import Channel, Recording, Segment, refuse_too_long
from raxss.errors import display_name, join_names

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
                parts = [(header.stem, signals.sig_len or measured(read_header(header), folder))]
        self._per_frame = [int(item or 1) for item in signals.samps_per_frame]
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
        """wfdb takes an end only from a header that tells the length; without, it reads all signals to the end."""
        end = last if self._tells_length(part) else None
        if end is None:  # as integers and as floats
            refuse_too_long(16 * part.frames * sum(self._per_frame), f"recording {self.name!r}")
        read = self._wfdb.rdrecord(
            part.record, sampfrom=first, sampto=end, channels=list(channels), smooth_frames=False
        )
        decoded: list[NDArray[np.float64]] = read.e_p_signal
        return decoded

    def disagreements(self) -> list[Problem]:
        """Signals whose samples do not add up to the checksum in the header, and FLAC that begins otherwise.

        Of every segment that is read whole. Signals that lag are left out: whether the samples that they lack are
        part of the sum is not laid down. A checksum of 0 is what writers leave that know none.
        """
        records = {part.record: part.frames for parts in self._stretches for part in parts}
        wrong: dict[str, None] = {}
        problems: list[Problem] = []
        for record, frames in records.items():
            header = read_header(Path(f"{record}.hea"))
            is_even = all(signal.per_frame == 1 for signal in header.signals)
            # wfdb stumbles over integers of format 61 where it leaves frames as they are
            signals = [
                signal for signal in header.signals if not signal.skew and (is_even or signal.format != "61")
            ]
            is_whole = header.n_samples == frames
            if is_whole and any(signal.checksum for signal in signals):
                totals = self._totals(record, header, signals)
                wrong |= {name: None for name, is_right in totals.items() if not is_right}
            compressed = [
                signal for signal in signals if signal.format in COMPRESSED and signal.first_value is not None
            ]
            if compressed:
                first = self._stored(record, 0, 1, [item.position - 1 for item in compressed])
                found = {item.position: int(row[0]) for item, row in zip(compressed, first, strict=True)}
                problems += first_value_problem(stored_signals(compressed), found)
        if wrong:
            told = f"{display_name(self.name)} tells a checksum that its samples do not have"
            to_do = "Its data file belongs to another record or was changed; copy it again."
            problems.append(Problem("checksum", f"{told}: {join_names(map(repr, wrong))}. {to_do}"))
        return list(dict.fromkeys(problems))

    def _totals(self, record: str, header: WfdbHeader, signals: Sequence[WfdbSignal]) -> dict[str, bool]:
        """Name of each signal with a checksum -> whether its samples add up to it."""
        places = [signal.position - 1 for signal in signals]
        totals = np.zeros(len(signals), np.int64)
        at_once = max(1, KEPT_BYTES // (8 * sum(signal.per_frame for signal in header.signals)))
        for start in range(0, header.n_samples or 0, at_once):
            stop = min(start + at_once, header.n_samples or 0)
            rows = self._stored(record, start, stop, places)
            totals += np.array([row.sum(dtype=np.int64) for row in rows])
        return {
            signal.name: (total - signal.checksum) % 2**16 == 0  # of 16 bits, with or without a sign
            for signal, total in zip(signals, totals.tolist(), strict=True)
            if signal.checksum
        }

    def _stored(self, record: str, start: int, stop: int, places: list[int]) -> list[NDArray[np.int64]]:
        """Samples as the integers that are stored, all of a frame."""
        is_even = max(self._per_frame) == 1
        with decoding(self.name):
            read = self._wfdb.rdrecord(
                record, sampfrom=start, sampto=stop, channels=places, physical=False, smooth_frames=is_even
            )
            return list(read.d_signal.T if is_even else read.e_d_signal)


def _clean(text: str | None) -> str:
    return "".join(letter for letter in text or "" if letter.isprintable()).strip()
