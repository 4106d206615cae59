"""Readers of marked events: which samples of which channel lie in one.

    table of events (.tsv) -> Mark: onset, duration, channel, kind
    marks, series          -> truth by name of series (n_samples,)

Two forms are read: a column with the channel (``channels``, ``channel``, ``name``; BIDS derivatives), or the
channel behind the kind of event in ``trial_type`` or ``label`` (``ripple_AHR3-4``, as in OpenNeuro ds003498).
Marks are often about differences of contacts; `as_marked` makes these from single contacts.
Next: localisation_baselines.py compares evidence with them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raxss.data.contacts import poles_of
from raxss.data.montage import bipolar, channel_of
from raxss.data.names import canonical
from raxss.data.series import Series
from raxss.data.tables import read_table
from raxss.errors import DataError, RecordingError, display_name, join_names
from raxss.explain.faithfulness.localisation import truth_of

CHANNEL = ("channels", "channel", "name")
KIND = ("trial_type", "label")


@dataclass(frozen=True, slots=True)
class Mark:
    """One event: seconds of the recording, the channel as it is written, and what kind of event it is."""

    onset: float
    duration: float
    channel: str
    kind: str = ""


def read_events(path: Path | str, *, kinds: Collection[str] = ()) -> list[Mark]:
    """The marked events of a tab-separated table, in its order; rows without a time or a channel are left out.

    Parameters
    ----------
    kinds
        Only events of these kinds; all where it is empty.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "events.tsv"
    >>> _ = place.write_text("onset\\tduration\\ttrial_type\\n0.2\\t0.1\\tripple_AHR3-4\\n")
    >>> read_events(place)
    [Mark(onset=0.2, duration=0.1, channel='AHR3-4', kind='ripple')]
    """
    try:
        table = read_table(Path(path))
    except RecordingError as error:
        raise DataError(f"the marks {display_name(path)} cannot be read: {error}") from error
    channel, kind = table.column(CHANNEL), table.column(KIND)
    if not {"onset", "duration"} <= set(table.columns) or (channel is None and kind is None):
        raise DataError(
            f"the marks {display_name(path)} have the columns {join_names(table.columns)}; needed are 'onset', "
            "'duration', and one of 'channels', 'channel', 'name', or 'trial_type' with texts such as "
            "'ripple_AHR3-4'."
        )
    found = []
    for line, cells in table.rows:
        text = cells[kind] if kind else ""
        what, _, where = (text, "", cells[channel]) if channel else text.partition("_")
        if cells["onset"] and cells["duration"] and where:
            onset, duration = (_seconds(cells, name, table.path, line) for name in ("onset", "duration"))
            found.append(Mark(onset, duration, where.strip(), what))
    if not found:
        raise DataError(
            f"the marks {display_name(path)} have {len(table.rows)} rows, none of which tells onset, duration and "
            "channel. Give events of single channels."
        )
    known = dict.fromkeys(item.kind for item in found)
    if unknown := [entry for entry in kinds if entry not in known]:
        raise DataError(
            f"the marks {display_name(path)} have no events of the kind {unknown[0]!r}; there are "
            f"{join_names(known)}."
        )
    return [item for item in found if not kinds or item.kind in kinds]


def _seconds(cells: Mapping[str, str], column: str, path: Path, line: int) -> float:
    text = cells[column]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (column == "duration" and value < 0):
        raise DataError(
            f"the marks {display_name(path)} have {text[:40]!r} in line {line}, column {column!r}; seconds are "
            "needed, or 'n/a'."
        )
    return value


def truth_from(marks: Sequence[Mark], series: Sequence[Series]) -> dict[str, NDArray[np.bool_]]:
    """Which samples lie in a mark, by name of series, for those series that have any.

    A series is meant by its channel, or by its whole name. ``AHR3-4`` and ``AHR3-AHR4`` are one channel. An event
    shorter than a sample marks one.

    Examples
    --------
    >>> night = Series(np.zeros(5), rate=10.0, name="night:C3", origin={"channel": "C3"})
    >>> truth_from([Mark(0.2, 0.1, "C3")], [night])
    {'night:C3': array([False, False,  True, False, False])}
    """
    found = {}
    for item in series:
        events = [
            (
                round((mark.onset - item.start_seconds) * item.rate),
                max(round(mark.duration * item.rate), 1),
            )
            for mark in marks
            if mark.channel == item.name or _same(mark.channel) == _same(channel_of(item))
        ]
        truth = truth_of(events, item.n_samples)
        if truth.any():
            found[item.name] = truth
    return found


def _same(channel: str) -> str:
    """One spelling of a channel."""
    return "-".join(poles_of(channel)) or canonical(channel) or channel


def read_marks(path: Path | str, series: Sequence[Series]) -> dict[str, NDArray[np.bool_]]:
    """Marked events of a table (see `read_events`) -> truth by name of series, for those series that have any.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "marks.tsv"
    >>> _ = place.write_text("onset\\tduration\\tlabel\\tchannels\\n0.2\\t0.1\\thfo\\tC3\\n")
    >>> read_marks(place, [Series(np.zeros(5), rate=10.0, name="night:C3", origin={"channel": "C3"})])
    {'night:C3': array([False, False,  True, False, False])}
    """
    return _some_truth(read_events(path), series, path)


def read_marked(
    path: Path | str, series: Sequence[Series]
) -> tuple[list[Series], dict[str, NDArray[np.bool_]]]:
    """The series that the marks of a table are about (see `as_marked`), and which of their samples lie in one.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "marks.tsv"
    >>> _ = place.write_text("onset\\tduration\\tchannel\\n1\\t1\\tAD1-2\\n")
    >>> contacts = [Series([5.0, 7.0], name=f"night:AD{k}", origin={"channel": f"AD{k}"}) for k in (1, 2, 3)]
    >>> meant, truth = read_marked(place, contacts)
    >>> [one.name for one in meant], truth
    (['night:AD1-2'], {'night:AD1-2': array([False,  True])})
    """
    marks = read_events(path)
    meant = as_marked(series, marks)
    return meant, _some_truth(marks, meant, path)


def _some_truth(
    marks: Sequence[Mark], series: Sequence[Series], path: Path | str
) -> dict[str, NDArray[np.bool_]]:
    found = truth_from(marks, series)
    if not found:
        raise DataError(
            f"none of the {len(series)} series ({join_names(item.name for item in series)}) has a mark in "
            f"{display_name(path)}, which is about {join_names(dict.fromkeys(mark.channel for mark in marks))}. "
            "Give marks of these recordings."
        )
    return found


def as_marked(series: Sequence[Series], marks: Sequence[Mark]) -> list[Series]:
    """The series that marks are about: differences of contacts where all marks name pairs, else what was given.

    Series that have these pairs already come back as they are.

    Examples
    --------
    >>> contacts = [Series([5.0, 7.0], name=f"night:AD{k}", origin={"channel": f"AD{k}"}) for k in (1, 2, 3)]
    >>> [one.name for one in as_marked(contacts, [Mark(0.0, 1.0, "AD1-2")])]
    ['night:AD1-2']
    """
    pairs = list(dict.fromkeys(mark.channel for mark in marks))
    are_pairs = all(len(poles_of(name)) == 2 for name in pairs)
    if not are_pairs or any(poles_of(channel_of(item)) for item in series):
        return list(series)
    return list(bipolar(series, pairs))
