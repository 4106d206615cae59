"""Plan of a collection: series to make of recordings, and what is absent or did not match.

    a BIDS root, a manifest, a named dataset -> CollectionPlan -> SeriesCollection, or a prepared folder

A plan is made from headers and tables alone; it says what will be read, with which label, and lists by name
what is absent or did not match. Next: bids.py and datasets/ make plans; prepare/ carries them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from raxss.data.recording import Recording
from raxss.data.series import Series, SeriesCollection
from raxss.errors import EmptyDataError, join_names

NOTED = ("time-column",)  # problems of a recording that change what its samples mean


@dataclass(frozen=True)
class SeriesPlan:
    """One series: some channels (usually one) of one segment of a recording."""

    name: str  # unique in its plan
    channels: tuple[int, ...]  # positions in the recording
    segment: int = 0
    label: str | None = None
    origin: Mapping[str, str] = field(default_factory=dict)
    crop: tuple[float, float] | None = (
        None  # first and last second, from the start of the recording; None: all
    )


@dataclass(frozen=True)
class RecordingPlan:
    """The series of one recording.

    ``open_recording`` can be sent to another process: a function of a module, or a ``functools.partial`` of one.
    """

    name: str  # unique in its plan; relative, never a path of this machine
    files: tuple[Path, ...]  # all that samples and labels come from; their hashes go into the result
    open_recording: Callable[[], Recording]
    series: tuple[SeriesPlan, ...]


@dataclass(frozen=True)
class CollectionPlan:
    """All of a dataset.

    ``unmatched`` and ``refused`` are whole sentences: contacts without a channel, channels without a label,
    subjects without a row; and recordings that are there and cannot be read.
    """

    source: str  # a dataset's name, or the last part of a path
    root: Path  # where ``files`` are relative to
    recordings: tuple[RecordingPlan, ...]
    absent: tuple[str, ...] = ()  # files, relative to ``root``, that should be there and are not
    where_to_get: str = ""  # what to do about these
    unmatched: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    group_by: str | None = None  # the widest known level of `Series.origin`; not on both sides of a split
    settings: Mapping[str, object] = field(default_factory=dict)  # of the planning, such as a crop

    def __iter__(self) -> Iterator[tuple[RecordingPlan, SeriesPlan]]:
        """Every series with its recording, in order."""
        return ((recording, item) for recording in self.recordings for item in recording.series)

    def __len__(self) -> int:
        return sum(len(recording.series) for recording in self.recordings)

    def absence(self, most: int = 5) -> str:
        """Sentence on the files that are absent, the first of them by name; empty where none is."""
        if not self.absent:
            return ""
        count = "1 file is" if len(self.absent) == 1 else f"{len(self.absent)} files are"
        return f"{count} absent: {join_names(self.absent, most)}."

    def only(self, keep: Callable[[SeriesPlan], bool]) -> CollectionPlan:
        """The plan of some series; recordings without any of them are left out."""
        recordings = (replace(item, series=tuple(filter(keep, item.series))) for item in self.recordings)
        return replace(self, recordings=tuple(item for item in recordings if item.series))


def sample_range(recording: Recording, plan: SeriesPlan) -> tuple[int, int]:
    """First sample of the segment that a plan keeps, and the one after the last."""
    length = recording.n_samples(plan.channels[0], plan.segment)
    if plan.crop is None:
        return 0, length
    rate, begin = recording.channels[plan.channels[0]].rate, recording.segments[plan.segment].start_seconds
    first, last = (round((second - begin) * rate) for second in plan.crop)
    return min(max(first, 0), length), min(max(last, 0), length)


def read_planned(recording: Recording, plan: SeriesPlan, *, group_by: str | None = None) -> Series:
    """One series with all its samples, float64, so that preparation gives the bits that it gives on disk."""
    start, stop = sample_range(recording, plan)
    if stop <= start:
        raise EmptyDataError(
            f"series {plan.name!r} has no samples between {plan.crop} s; its segment lasts "
            f"{recording.segments[plan.segment].seconds:g} s. Choose another crop."
        )
    rate = recording.channels[plan.channels[0]].rate
    samples = recording.read(plan.channels, segment=plan.segment, start=start, stop=stop)
    return Series(
        samples,
        rate,
        label=plan.label,
        group=plan.origin.get(group_by) if group_by else None,
        name=plan.name,
        start_seconds=recording.segments[plan.segment].start_seconds + start / rate,
        origin=plan.origin,
        notes=[
            f"series {plan.name!r}: {problem.message}"
            for problem in recording.problems
            if problem.code in NOTED
        ],
    )


def read_plan(plan: CollectionPlan) -> SeriesCollection:
    """Every series of a plan, in memory; for more than fits, prepare it first."""
    series = []
    for item in plan.recordings:
        with item.open_recording() as recording:
            series += [read_planned(recording, wanted, group_by=plan.group_by) for wanted in item.series]
    return SeriesCollection(series)
