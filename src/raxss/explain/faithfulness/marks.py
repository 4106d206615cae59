"""Readers of marked events: which samples of which channel lie in one.

Two forms are read: a column with the channel (``channels``, ``channel``, ``name``; BIDS derivatives), or the
channel behind the kind of event in ``trial_type`` or ``label`` (``ripple_AHR3-4``, as in OpenNeuro ds003498).
Marks are often about differences of contacts; `as_marked` makes these from single contacts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def read_events(path: Path | str) -> list[Mark]:
    """The marked events of a tab-separated table, in its order; rows without a time or a channel are left out."""
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
    return found


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


def read_marked(
    path: Path | str, series: Sequence[Series]
) -> tuple[list[Series], dict[str, NDArray[np.bool_]]]:
    """The series that the marks of a table are about (see `as_marked`), and which of their samples lie in one."""
    marks = read_events(path)
    meant = as_marked(series, marks)
    found = truth_from(marks, meant)
    if not found:
        raise DataError(
            f"none of the {len(meant)} series ({join_names(item.name for item in meant)}) has a mark in "
            f"{display_name(path)}, which is about {join_names(dict.fromkeys(mark.channel for mark in marks))}. "
            "Give marks of these recordings."
        )
    return meant, found


def as_marked(series: Sequence[Series], marks: Sequence[Mark]) -> list[Series]:
    """The series that marks are about: differences of contacts where all marks name pairs, else what was given.

    Series that have these pairs already come back as they are.
    """
    pairs = list(dict.fromkeys(mark.channel for mark in marks))
    are_pairs = all(len(poles_of(name)) == 2 for name in pairs)
    if not are_pairs or any(poles_of(channel_of(item)) for item in series):
        return list(series)
    return list(bipolar(series, pairs))
