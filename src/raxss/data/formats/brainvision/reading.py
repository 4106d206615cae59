"""Samples of a BrainVision recording, a stretch of some channels at a time.

    .vhdr (+ .eeg, .vmrk) -> BrainVisionRecording: channels at one rate, segments where "New Segment" markers stand

mne decodes. It is not given the recording's own header but one with nothing in it but the layout of the data file:
names that two channels share, comments that mention people and markers in any encoding cannot trouble it, and it
opens the data file that was inspected and no other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.brainvision.header import BrainVisionHeader
from raxss.data.formats.decoding import BLOCK_BYTES, decoder, decoding
from raxss.data.formats.fields import microvolts_per
from raxss.data.recording import Channel, Recording, Segment


class BrainVisionRecording(Recording):
    """A BrainVision recording that was not refused."""

    def __init__(self, path: Path, header: BrainVisionHeader) -> None:
        self.name = path.name
        mne = decoder("mne", self.name)
        with decoding(self.name):
            self._raw = _opened(mne, header)
        rate = float(f"{header.rate:.12g}")
        units = [unit.strip() or "uV" for unit in header.units]  # blank is microvolts, says the format
        self._factors = [microvolts_per(unit) or 1.0 for unit in units]
        self.channels = tuple(
            Channel(_clean(name), rate, "uV" if microvolts_per(unit) else unit)
            for name, unit in zip(header.names, units, strict=True)
        )
        self._edges = [*header.segment_starts, header.n_samples]
        self.segments = tuple(
            Segment(begun, (last - first) / rate)
            for (first, last), begun in zip(pairwise(self._edges), header.segment_seconds, strict=True)
        )

    def n_samples(self, channel: int, segment: int = 0) -> int:
        """How many samples a channel has in a segment."""
        return self._edges[segment + 1] - self._edges[segment]

    def read(
        self, channels: Sequence[int], *, segment: int = 0, start: int = 0, stop: int | None = None
    ) -> NDArray[np.float64]:
        """Samples ``start`` to ``stop`` of a segment, voltages in microvolts."""
        start, stop = self.stretch(channels, segment, start, stop)
        samples = np.empty((len(channels), stop - start))
        begin = self._edges[segment]
        at_once = max(1, BLOCK_BYTES // (8 * len(self.channels)))
        wanted = sorted(set(channels))
        rows = [wanted.index(channel) for channel in channels]
        with decoding(self.name):
            for first in range(start, stop, at_once):
                last = min(first + at_once, stop)
                block = self._raw.get_data(wanted, begin + first, begin + last, verbose="ERROR")
                samples[:, first - start : last - start] = block[rows]
        samples *= np.array([[self._factors[channel]] for channel in channels]).reshape(-1, 1)
        return samples

    def close(self) -> None:
        """Let go of the file."""
        self._raw.close()


def _opened(mne: Any, header: BrainVisionHeader) -> Any:
    """mne's view of the data file: channels 1, 2, ... without a unit, so that samples are stored × resolution."""
    lines = [
        "Brain Vision Data Exchange Header File Version 1.0",
        "[Common Infos]",
        f"DataFile={header.data_file.resolve()}",
        "DataFormat=BINARY",
        f"DataOrientation={header.orientation}",
        f"NumberOfChannels={header.n_channels}",
        f"SamplingInterval={1e6 / header.rate!r}",
        f"DataPoints={header.n_samples}",
        "[Binary Infos]",
        f"BinaryFormat={header.binary_format}",
        "[Channel Infos]",
        *(f"Ch{place}={place},,{size!r},n/a" for place, size in enumerate(header.resolutions, start=1)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.vhdr"
        plain.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return mne.io.read_raw_brainvision(plain, preload=False, verbose="ERROR")


def _clean(name: str) -> str:
    return "".join(letter for letter in name if letter.isprintable()).strip()
