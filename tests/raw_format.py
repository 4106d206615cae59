"""A format from outside of raxss, whole in one file: ``.raw``, a line of JSON and float32 samples behind it.

    {"rate": 10.0, "channels": ["C3", "C4"], "unit": "uV", "n_samples": 400}
    samples (n_samples, n_channels), little-endian

`register_format(RAW)` makes raxss open, inspect, search and predict it; tests/test_formats.py does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corpus import Case
from raxss._core.bounded import json_of
from raxss.data.confinement import open_confined
from raxss.data.formats.decoding import decoding
from raxss.data.formats.fields import Refused, channel_problems, refuse_rate
from raxss.data.formats.registry import header_format
from raxss.data.problems import Problem
from raxss.data.recording import Channel, Recording, Segment
from raxss.errors import DataError

HEADER_BYTES = 2**16


class RawHeader:
    """What the first line states, compared with the file's size."""

    def __init__(self, path: Path, root: Path) -> None:
        with open_confined(path, root) as file:
            line, size = file.readline(HEADER_BYTES), os.fstat(file.fileno()).st_size
        try:
            stated = json_of(line, "the header")
            self.rate, self.unit = float(stated["rate"]), str(stated["unit"])
            self.names = [str(name) for name in stated["channels"]]
            self.n_samples = int(stated["n_samples"])
        except (DataError, KeyError, TypeError, ValueError):
            needed = "JSON with rate, channels, unit and n_samples is needed"
            raise Refused("not-this-format", f"the first line is damaged; {needed}") from None
        refuse_rate(self.rate, f"a rate of {self.rate:g}")
        if not self.names or self.n_samples < 1:
            raise Refused("no-data", "the header declares no channel or no sample; one is needed")
        self.offset = len(line)
        if size - self.offset != 4 * len(self.names) * self.n_samples:
            raise Refused(
                "data-missing", f"the file has {size - self.offset:,} bytes of samples, not as declared"
            )


def examine(path: Path, root: Path, problems: list[Problem]) -> RawHeader:
    """Header and size; nothing is decoded."""
    header = RawHeader(path, root)
    problems += channel_problems(header.names)
    return header


class RawRecording(Recording):
    """Samples are mapped, and read when asked for."""

    def __init__(self, path: Path, header: RawHeader) -> None:
        self.name = path.name
        shape = header.n_samples, len(header.names)
        self._samples = np.memmap(path, "<f4", "r", header.offset, shape)
        self.channels = tuple(Channel(name, header.rate, header.unit) for name in header.names)
        self.segments = (Segment(0.0, header.n_samples / header.rate),)

    def read(
        self, channels: Sequence[int], *, segment: int = 0, start: int = 0, stop: int | None = None
    ) -> NDArray[np.float64]:
        """Samples ``start`` to ``stop``."""
        start, stop = self.stretch(channels, segment, start, stop)
        with decoding(self.name):
            return self._samples[start:stop, list(channels)].T.astype(np.float64)


RAW = header_format(
    examine, RawRecording, name="RAW", suffixes=(".raw",), by_channel=True, datatypes=("eeg",)
)

SAMPLES = np.random.default_rng(5).normal(size=(2, 400)).astype("<f4")


def write_raw(folder: Path) -> Path:
    """The example of this format."""
    header = {"rate": 10.0, "channels": ["C3", "C4"], "unit": "uV", "n_samples": 400}
    path = folder / "night.raw"
    path.write_bytes(json.dumps(header).encode() + b"\n" + np.ascontiguousarray(SAMPLES.T).tobytes())
    return path


EXAMPLE = Case(
    "raw",
    write_raw,
    "ok",
    samples=dict(enumerate(SAMPLES.astype(np.float64))),
    names=("C3", "C4"),
    rates=(10.0, 10.0),
    units=("uV", "uV"),
)
