"""Selection of the channels of a recording that are electrodes, by its sidecars or by their names.

    path, opened recording -> positions of channels, and what a reader should know

A file that is named by itself is read by the sidecars that a tree would be read by: bad channels, triggers, ECG and
all else that is no electrode are left out. Without a ``channels.tsv`` the names decide.
Next: files.py reads single files by this, bids.py trees.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raxss.data.formats.fields import Refused
from raxss.data.formats.registry import header_of
from raxss.data.inspection.sidecars import (
    facts_of,
    inspect_sidecars,
    parsed,
    read_table,
    shown_names,
    sidecars_of,
    tree_of,
)
from raxss.data.names import is_no_electrode, match_channels
from raxss.data.problems import Problem, refusals
from raxss.data.recording import Recording
from raxss.data.tables import Table
from raxss.errors import RecordingError, display_name, join_names

CHANNEL_TYPES = {"ieeg": ("ECOG", "SEEG"), "eeg": ("EEG",)}
ANY_TYPE = ("ECOG", "SEEG", "EEG")  # where nothing says which of the two a recording is
# rows and channels are matched by name, and what has no partner is left out
MATCHED_BY_NAME = "channels-disagree"
REPORTED = ("rate-disagrees", "sidecar-disagrees")


@dataclass(frozen=True)
class ChannelRow:
    """A row of channels.tsv."""

    name: str
    kind: str
    is_good: bool
    cells: Mapping[str, str]

    def is_wanted(self, types: Sequence[str]) -> bool:
        """Whether this is a good electrode."""
        return self.kind in types and self.is_good


def rows_of_channels(table: Table) -> list[ChannelRow]:
    """The channels that a ``channels.tsv`` lists."""
    if "name" not in table.columns:
        raise RecordingError(
            f"table {display_name(table.path)} has no column 'name'; it is needed to know the channels."
        )
    every = (cells for _, cells in table.rows)
    return [
        ChannelRow(row["name"], row.get("type", "").upper(), row.get("status", "").lower() != "bad", row)
        for row in every
    ]


def select_channels(path: Path, recording: Recording) -> tuple[list[int], list[str]]:
    """The channels of an EDF, BDF or BrainVision file that a tree would have as series, by position.

    And in whole sentences what was left out or disagrees. An error where the sidecars make the signals uncertain,
    or say that no channel is one of an electrode.
    """
    file = Path(os.path.abspath(header_of(path)))
    root, names = tree_of(file), [channel.name for channel in recording.channels]
    disagreements = checked_sidecars(file, root)
    try:
        found = sidecars_of(file, root, "channels.tsv")
        rows = rows_of_channels(read_table(found[0], root)) if found else None
    except Refused as refused:
        raise _refusal(path, [refused.problem]) from None
    what = f"recording {display_name(path)}"
    sentences = [f"{what} and its sidecars disagree: {item}" for item in disagreements]
    if rows is None:
        kept, sentence = by_name(names)
        todo = "To have them read, name them (a manifest with a column 'channel'), or add a channels.tsv."
        left_out = [f"{what} has no channels.tsv, and {sentence}. {todo}"] if sentence else []
        return kept, [*sentences, *left_out]
    types = types_of(file)
    places = match_channels([row.name for row in rows], names)
    pairs = [(row, place) for row, place in zip(rows, places, strict=True) if row.is_wanted(types)]
    if not pairs:
        raise RecordingError(f"{what} has no channel to read: {why_none(types, rows)}.")
    lost = [row.name or "n/a" for row, place in pairs if place is None]
    unlisted = [name or "n/a" for place, name in enumerate(names) if place not in places]
    if lost:
        sentences.append(f"{what} lacks channels of its channels.tsv: {shown_names(lost)}.")
    if unlisted:
        sentences.append(f"channels.tsv of {what} lacks channels of it, left out: {shown_names(unlisted)}.")
    positions = sorted(place for _, place in pairs if place is not None)
    if not positions:
        raise RecordingError(
            f"{what} has no channel to read: none is in its channels.tsv. Copy the right one."
        )
    return positions, sentences


def checked_sidecars(file: Path, root: Path) -> list[str]:
    """Messages on how channels.tsv and the JSON sidecar differ from the recording; an error where it matters."""
    problems = inspect_sidecars(file, root, facts_of(file, root), events=False)
    if refused := [refusal for refusal in refusals(problems) if refusal.code != MATCHED_BY_NAME]:
        raise _refusal(file, refused)
    return [problem.message for problem in problems if problem.code in REPORTED]


def by_name(names: Sequence[str]) -> tuple[list[int], str]:
    """Positions of the channels that may be electrodes, all if none may; and which were left out.

    >>> by_name(["G1", "EKG", "G2"])
    ([0, 2], "1 of 3 channels are by their names no electrodes and left out: 'EKG'")
    >>> by_name(["ECG"])
    ([0], '')
    """
    kept = [place for place, name in enumerate(names) if not is_no_electrode(name)]
    if not kept or len(kept) == len(names):
        return list(range(len(names))), ""
    left = [name for name in names if is_no_electrode(name)]
    sentence = f"{len(left)} of {len(names)} channels are by their names no electrodes and left out: "
    return kept, f"{sentence}{shown_names(left)}"


def sidecar_files(path: Path) -> tuple[Path, ...]:
    """The sidecars that decide which channels of a single file are read; none of a file that has no channels."""
    file = Path(os.path.abspath(header_of(path)))
    suffix = "ieeg" if file.stem.endswith("_ieeg") else "eeg"
    try:
        root = tree_of(file)
        return (*sidecars_of(file, root, "channels.tsv"), *sidecars_of(file, root, f"{suffix}.json"))
    except Refused:  # reported when the file is read
        return ()


def types_of(file: Path) -> tuple[str, ...]:
    """The types of channels.tsv that are signal, by the file's name or its folder's."""
    own = parsed(file.name)
    for datatype in (own.suffix if own else "", file.stem.rpartition("_")[2], file.parent.name):
        if datatype in CHANNEL_TYPES:
            return CHANNEL_TYPES[datatype]
    return ANY_TYPE


def why_none(types: Sequence[str], rows: Iterable[ChannelRow]) -> str:
    """Why a recording has no channel to read."""
    rows, wanted = list(rows), " or ".join(types)
    if rows and all("type" not in row.cells for row in rows):
        return f"its channels.tsv has no column 'type', and {wanted} is needed"
    if any(row.kind in types for row in rows):
        return f"all of its {wanted} channels are bad"
    found = sorted({row.kind or "n/a" for row in rows})
    return f"none of its channels is {wanted}; channels.tsv has {join_names(found) or 'no rows'}"


def _refusal(path: Path, problems: Sequence[Problem]) -> RecordingError:
    codes = " ".join(f"[{problem.code}] {problem.message}" for problem in problems)
    return RecordingError(f"recording {display_name(path)} was not opened: {codes}")
