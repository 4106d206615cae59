"""Recording: an opened file, whose channels and segments are known and whose samples are read on request.

    a file -> Recording: channels (name, rate, unit), segments (true times) -> read(channels, start, stop)

Samples are read lazily, a stretch of some channels at a time: a night of 128 channels is opened in
the memory of its header. A gap ends a segment; signal from both sides of it is never put together.
Next: formats/ has one kind of recording a file format; plan.py says which series to make of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from raxss._core.memory import refuse_too_large
from raxss.data.names import match_channels
from raxss.data.problems import Problem
from raxss.errors import DataError, RecordingError, did_you_mean

SMALL_BYTES = 2**26  # of samples, up to which it is not checked how much memory is free


class TooLongError(RecordingError):
    """A recording, or a stretch of it, that needs more memory than is free."""


def refuse_too_long(n_bytes: int, what: str) -> None:
    """Raise an error, in numbers, before more memory is taken than is free."""
    if n_bytes < SMALL_BYTES:
        return
    advice = "Read a shorter stretch or fewer channels, or cut the recording into several files."
    try:
        refuse_too_large(n_bytes, what, advice)
    except DataError as error:
        raise TooLongError(str(error)) from None


@dataclass(frozen=True)
class Channel:
    """One sequence of a recording.

    ``unit`` is ``"uV"`` for every voltage of an EDF, BDF or BrainVision file, to which samples are converted; as
    the file says it for all else (WFDB records stay in their own unit, mV for most ECGs); ``""`` where the file
    does not say, and then samples are as stored.
    """

    name: (
        str  # as the file spells it, without control characters; may be empty or shared with another channel
    )
    rate: float  # samples per second, of this channel alone
    unit: str = ""


@dataclass(frozen=True)
class Segment:
    """A stretch without a gap: when it begins, counted from the start of the recording, and how long it is."""

    start_seconds: float
    seconds: float


class Recording(ABC):
    """An opened file. Use as a context manager, so that the file is closed again.

    >>> with ArrayRecording("toy", np.arange(6.0).reshape(2, 3), rate=1.0, names=["C3", "C4"]) as recording:
    ...     recording.read([recording.position("C4")], start=1)
    array([[4., 5.]])
    """

    name: str
    channels: tuple[Channel, ...]
    segments: tuple[Segment, ...]
    stated_units: Sequence[str] = ()  # as the header writes them, where samples are converted to other units
    problems: tuple[Problem, ...] = ()  # warnings of the inspection before it was opened; never refusals

    @abstractmethod
    def read(
        self, channels: Sequence[int], *, segment: int = 0, start: int = 0, stop: int | None = None
    ) -> NDArray[np.float64]:  # (len(channels), stop - start)
        """Samples ``start`` to ``stop`` of a segment, of channels that have one rate."""

    def stretch(
        self, channels: Sequence[int], segment: int = 0, start: int = 0, stop: int | None = None
    ) -> tuple[int, int]:
        """Where a stretch begins and ends, as slicing counts; channels of several rates have no common one."""
        rates = sorted({self.channels[channel].rate for channel in channels})
        if len(rates) > 1:
            raise RecordingError(
                f"recording {self.name!r} has the requested channels at {', '.join(map('{:g}'.format, rates))} Hz; "
                "samples side by side need one rate. Read channels of each rate by themselves."
            )
        length = self.n_samples(channels[0], segment) if channels else 0
        first, last, _ = slice(start, stop).indices(length)
        last = max(first, last)
        refuse_too_long(8 * len(channels) * (last - first), f"recording {self.name!r}")
        return first, last

    def n_samples(self, channel: int, segment: int = 0) -> int:
        """How many samples a channel has in a segment."""
        return round(self.segments[segment].seconds * self.channels[channel].rate)

    def position(self, channel: str | int) -> int:
        """Where the channel of that name is, ``G1`` for ``POL G1`` too; a name that several share has no place."""
        if isinstance(channel, int):
            if 0 <= channel < len(self.channels):
                return channel
            raise RecordingError(
                f"recording {self.name!r} has {len(self.channels)} channels, so there is none at position "
                f"{channel}; positions go from 0 to {len(self.channels) - 1}."
            )
        names = [item.name for item in self.channels]
        if names.count(channel) > 1:
            raise RecordingError(
                f"recording {self.name!r} has {names.count(channel)} channels named {channel!r}; give the "
                f"position instead, 0 to {len(names) - 1}."
            )
        (place,) = match_channels([channel], names)
        if place is None:
            raise RecordingError(
                f"recording {self.name!r} has no channel {channel!r}{did_you_mean(channel, filter(None, names))} A "
                f"position from 0 to {len(names) - 1} will do as well."
            )
        return place

    def limits(self) -> Sequence[tuple[float, float]] | None:
        """Smallest and largest value that each channel's converter can give; None where the file does not say."""
        return None

    def disagreements(self) -> list[Problem]:
        """What the header states about all samples and is not so, such as checksums. Reads all samples."""
        return []

    def close(self) -> None:
        """Let go of the file."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ArrayRecording(Recording):
    """A recording whose samples are in memory, or mapped there: ``samples (n_channels, n_samples)``."""

    def __init__(
        self,
        name: str,
        samples: NDArray[np.floating | np.integer],
        *,
        rate: float,
        names: Sequence[str] = (),
        unit: str = "",
        start_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.samples = samples
        names = names or [str(place) for place in range(len(samples))]
        self.channels = tuple(Channel(item, rate, unit) for item in names)
        self.segments = (Segment(start_seconds, samples.shape[1] / rate),)

    def n_samples(self, channel: int, segment: int = 0) -> int:
        """How many samples a channel has."""
        return int(self.samples.shape[1])

    def read(
        self, channels: Sequence[int], *, segment: int = 0, start: int = 0, stop: int | None = None
    ) -> NDArray[np.float64]:
        """Samples ``start`` to ``stop``."""
        self.stretch(channels, segment, start, stop)  # whether there is memory for them
        return np.asarray(self.samples[list(channels), start:stop], dtype=np.float64)
