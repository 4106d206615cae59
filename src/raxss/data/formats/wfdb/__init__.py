"""WFDB, PhysioNet's format: a text header (.hea) and files of samples (.dat, .mat), perhaps in several segments.

    record.hea (+ .dat, .mat, the headers of its segments) -> WfdbRecording

Samples are in the record's own physical unit, mV for most ECGs. Segments that follow each other without a gap are
one stretch of signal; a null segment (``~``) ends it. Read header.py (what the header states), checking.py (whether
the data files agree with it), then this (samples).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.decoding import BLOCK_BYTES, BlockRecording, decoding
from raxss.data.formats.fields import printable_text
from raxss.data.formats.registry import header_format, register_format
from raxss.data.formats.wfdb.checking import compare_first_values, examine
from raxss.data.formats.wfdb.header import COMPRESSED, WfdbHeader, WfdbSignal
from raxss.data.problems import Problem
from raxss.data.recording import Channel, Segment, refuse_too_long
from raxss.errors import display_name, join_names

KEPT_BYTES = 2**26  # of decoded samples: all of a file of 16 MB


@dataclass(frozen=True)
class _Part:
    """A record of one segment: where it begins within its stretch and how long it is, in frames."""

    record: str
    header: WfdbHeader  # without a number of samples, wfdb reads the record whole
    start: int
    frames: int


class WfdbRecording(BlockRecording):
    """A WFDB record that was not refused, given by its header file and what that states."""

    def __init__(self, path: Path, header: WfdbHeader) -> None:
        self.name = path.stem
        with decoding(self.name):
            self._wfdb = import_module("wfdb")
        self._kept: tuple[str, int, list[NDArray[np.float64]]] | None = None
        folder = Path(os.path.abspath(path)).parent
        self._stretches: list[list[_Part]] = []
        starts, frame, after_gap = [], 0, True
        for name, frames in header.segments or ((path.stem, header.frames),):
            if name == "~" and frames:
                after_gap = True
            elif frames:  # none: the layout of a record whose signals vary
                if after_gap:
                    self._stretches.append([])
                    starts.append(frame)
                part = _Part(str(folder / name), header.parts.get(name, header), frame - starts[-1], frames)
                self._stretches[-1].append(part)
                after_gap = False
            frame += frames
        signals = self._stretches[0][0].header.signals
        self._per_frame = [signal.per_frame for signal in signals]
        self.channels = tuple(
            Channel(printable_text(signal.name), header.rate * signal.per_frame, signal.unit or "mV")
            for signal in signals
        )
        self.segments = tuple(
            Segment(start / header.rate, (parts[-1].start + parts[-1].frames) / header.rate)
            for start, parts in zip(starts, self._stretches, strict=True)
        )

    def n_samples(self, channel: int, segment: int = 0) -> int:
        """How many samples a channel has in a segment."""
        last = self._stretches[segment][-1]
        return (last.start + last.frames) * self._per_frame[channel]

    def _block_samples(self, channel: int) -> int:
        parts = (part for stretch in self._stretches for part in stretch)
        if any(part.header.n_samples is None for part in parts):
            return max(self.n_samples(channel, segment) for segment in range(len(self.segments)))
        return max(1, BLOCK_BYTES // (8 * sum(self._per_frame))) * self._per_frame[channel]

    def _decoded(self, channels: Sequence[int], segment: int, start: int, stop: int) -> NDArray[np.float64]:
        per_frame = self._per_frame[channels[0]]
        samples = np.empty((len(channels), stop - start))
        for part in self._stretches[segment]:
            first = max(start // per_frame, part.start)
            last = min(-(-stop // per_frame), part.start + part.frames)
            if first < last:  # frames are whole, and the stretch may begin and end within one
                block = self._frames(part, channels, first - part.start, last - part.start)
                at, until = max(start, first * per_frame), min(stop, last * per_frame)
                skipped = at - first * per_frame
                samples[:, at - start : until - start] = block[:, skipped : skipped + until - at]
        return samples

    def _frames(self, part: _Part, channels: Sequence[int], first: int, last: int) -> NDArray[np.float64]:
        """All samples of some frames. A short part is kept whole: wfdb takes long to read a header."""
        if 8 * part.frames * sum(self._per_frame) <= KEPT_BYTES:
            if self._kept is None or self._kept[:2] != (part.record, part.frames):
                every = range(len(self.channels))
                self._kept = part.record, part.frames, self._physical(part, every, 0, part.frames)
            rows = [self._kept[2][channel] for channel in channels]
            skipped = first * self._per_frame[channels[0]]
        else:
            wanted = sorted(set(channels))
            decoded = self._physical(part, wanted, first, last)
            rows, skipped = [decoded[wanted.index(channel)] for channel in channels], 0
        n_samples = (last - first) * self._per_frame[channels[0]]
        return np.stack([row[skipped : skipped + n_samples] for row in rows])

    def _physical(
        self, part: _Part, channels: Sequence[int], first: int, last: int
    ) -> list[NDArray[np.float64]]:
        """wfdb takes an end only if the header states the length; without, it reads all signals to the end."""
        end = None if part.header.n_samples is None else last
        if end is None:  # as integers and as floats
            refuse_too_long(16 * part.frames * sum(self._per_frame), f"recording {self.name!r}")
        read = self._wfdb.rdrecord(
            part.record, sampfrom=first, sampto=end, channels=list(channels), smooth_frames=False
        )
        return list(read.e_p_signal)

    def disagreements(self) -> list[Problem]:
        """Signals whose samples do not add up to the checksum in the header, and FLAC that begins otherwise.

        Of segments that are read whole. Of signals that lag it is not specified what is part of the sum; 0 is none.
        """
        wrong: dict[str, None] = {}
        problems: list[Problem] = []
        for part in {part.record: part for parts in self._stretches for part in parts}.values():
            header = part.header
            is_even = all(signal.per_frame == 1 for signal in header.signals)
            # wfdb stumbles over integers of format 61 where it leaves frames as they are
            signals = [
                signal for signal in header.signals if not signal.skew and (is_even or signal.format != "61")
            ]
            if header.n_samples == part.frames and any(signal.checksum for signal in signals):
                wrong |= dict.fromkeys(self._wrong_sums(part, signals))
            compressed = [
                signal for signal in signals if signal.format in COMPRESSED and signal.first_value is not None
            ]
            if compressed:
                first = self._stored(part.record, 0, 1, [signal.position - 1 for signal in compressed])
                problems += compare_first_values(compressed, [int(row[0]) for row in first])
        if wrong:
            message = f"{display_name(self.name)} states a checksum that its samples do not have"
            to_do = "Its data file belongs to another record or was changed; copy it again."
            problems.append(Problem("checksum", f"{message}: {join_names(map(repr, wrong))}. {to_do}"))
        return list(dict.fromkeys(problems))

    def _wrong_sums(self, part: _Part, signals: Sequence[WfdbSignal]) -> list[str]:
        """Names of the signals whose samples do not add up to their checksum."""
        places = [signal.position - 1 for signal in signals]
        totals = np.zeros(len(signals), np.int64)
        at_once = max(1, KEPT_BYTES // (8 * sum(signal.per_frame for signal in part.header.signals)))
        for start in range(0, part.frames, at_once):
            rows = self._stored(part.record, start, min(start + at_once, part.frames), places)
            totals += np.array([row.sum(dtype=np.int64) for row in rows])
        return [
            signal.name
            for signal, total in zip(signals, totals.tolist(), strict=True)
            if signal.checksum and (total - signal.checksum) % 2**16  # of 16 bits, with or without a sign
        ]

    def _stored(self, record: str, start: int, stop: int, places: list[int]) -> list[NDArray[np.int64]]:
        """Samples as the integers that are stored, all of a frame."""
        is_even = max(self._per_frame) == 1
        with decoding(self.name):
            read = self._wfdb.rdrecord(
                record, sampfrom=start, sampto=stop, channels=places, physical=False, smooth_frames=is_even
            )
            return list(read.d_signal.T if is_even else read.e_d_signal)


def _files(path: Path, header: WfdbHeader) -> Iterator[Path]:
    """The files that the header points to, and those of its segments."""
    yield from (path.with_name(f"{name}.hea") for name in header.parts)
    for part in (header, *header.parts.values()):
        yield from (path.parent / signal.file for signal in part.signals if part.frames)


register_format(
    header_format(
        examine,
        WfdbRecording,
        files=_files,
        name="WFDB",
        suffixes=(".hea",),
        companions=(".dat", ".mat"),
        data_suffixes=(".dat", ".mat"),
        bare_names=True,
    )
)
