"""BrainVision: a text header (.vhdr), a file of samples (.eeg) and a marker file (.vmrk).

    .vhdr (+ .eeg, .vmrk) -> BrainVisionRecording: channels at one rate, segments where "New Segment" markers stand

A stored number times the resolution of its channel is in the channel's unit; voltages become microvolts.
Read header.py (what the header states), markers.py (where recording was interrupted), then this (samples).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raxss.data.formats.brainvision.header import SAMPLE_TYPES, BrainVisionHeader, examine
from raxss.data.formats.decoding import BLOCK_BYTES, BlockRecording
from raxss.data.formats.fields import microvolts_per, printable_text
from raxss.data.formats.registry import header_format, register_format
from raxss.data.recording import Channel, Segment


class BrainVisionRecording(BlockRecording):
    """A BrainVision recording that was not refused."""

    def __init__(self, path: Path, header: BrainVisionHeader) -> None:
        self.name, self._header, self.stated_units = path.name, header, header.units
        rate = float(f"{header.rate:.12g}")
        units = [unit.strip() or "uV" for unit in header.units]  # blank is microvolts, says the format
        self._resolutions = np.array(header.resolutions)[:, None]
        self._factors = np.array([microvolts_per(unit) or 1.0 for unit in units])[:, None]
        self.channels = tuple(
            Channel(printable_text(name), rate, "uV" if microvolts_per(unit) else unit)
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

    def _block_samples(self, channel: int) -> int:
        return BLOCK_BYTES // (8 * len(self.channels))

    def _decoded(self, channels: Sequence[int], segment: int, start: int, stop: int) -> NDArray[np.float64]:
        header, rows = self._header, list(channels)
        stored = np.memmap(
            header.data_file,
            SAMPLE_TYPES[header.binary_format],
            "r",
            shape=(len(header.names), header.n_samples),
            order="F" if header.orientation == "MULTIPLEXED" else "C",  # sample after sample, or channels
        )
        part = slice(self._edges[segment] + start, self._edges[segment] + stop)
        return stored[:, part][rows] * self._resolutions[rows] * self._factors[rows]


register_format(
    header_format(
        examine,
        BrainVisionRecording,
        files=lambda path, header: filter(None, (header.data_file, header.marker_file)),
        name="BrainVision",
        suffixes=(".vhdr",),
        companions=(".eeg", ".vmrk"),
        data_suffixes=(".eeg", ".dat", ".seg"),
        by_channel=True,
        datatypes=("ieeg", "eeg"),
    )
)
