"""Plans of the series in a CSV manifest, or in recordings beside a label table.

    a CSV manifest (path, label, group …)                -> CollectionPlan
    a recording or a folder, a table of channel labels   -> CollectionPlan

Names and labels are those that files.py gives when it reads the same manifest into memory; here only headers are
read. Next: prepare/ carries the plan out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from raxss.data.contacts import electrode_of
from raxss.data.files import (
    Line,
    distinct_names,
    lines_of,
    plans_of,
    printable,
    requested_plans,
)
from raxss.data.formats.opening import files_of, open_recording
from raxss.data.formats.registry import all_suffixes, format_of, header_of
from raxss.data.labels import LabelTable, read_label_table
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.data.series import ORIGINS
from raxss.errors import EmptyDataError, RecordingError, display_name


def plan_manifest(path: Path | str, *, labels_required: bool = True) -> CollectionPlan:
    """Plan the series of a manifest, as `raxss.data.files.read_manifest` would read it.

    The manifest's ``group`` is taken for the patient, unless another of its columns says the same; without it the
    patient is the group, and without that the recording.
    """
    path = Path(path)
    lines = lines_of(path, labels_required=labels_required)
    group_by = _group_level(lines, path)
    names = distinct_names(lines)
    by_file: dict[str, list[Line]] = {}
    for line in lines:
        by_file.setdefault(os.path.abspath(header_of(line.path)), []).append(line)
    recordings = []
    for some in by_file.values():
        name = names[os.path.abspath(some[0].path)]
        try:
            recordings.append(_planned(some, name, path, group_by))
        except RecordingError as error:
            raise RecordingError(f"{some[0].where}: {error}") from error
    return CollectionPlan(path.name, path.parent, tuple(recordings), group_by=group_by)


def _group_level(lines: Sequence[Line], path: Path) -> str:
    """The level of origin that the manifest's groups are."""
    if all(line.group is None for line in lines):
        return "recording"
    same = [level for level in ORIGINS if all(line.origin.get(level) == line.group for line in lines)]
    if not same and any("patient" in line.origin for line in lines):
        raise RecordingError(
            f"manifest {display_name(path)} has the columns 'group' and 'patient', which differ; what must not sit "
            "on both sides of a split is one of centre, patient, recording, electrode and pair. Remove 'group'."
        )
    return same[0] if same else "patient"


def _planned(lines: Sequence[Line], name: str, manifest: Path, group_by: str) -> RecordingPlan:
    """The series of the lines that name one file."""
    first, rates = lines[0], {line.rate for line in lines}
    if len(rates) > 1:
        raise RecordingError(
            f"recording {display_name(first.path)} is listed with different rates; it has one. Correct the column "
            "'rate'."
        )
    opener = partial(open_recording, first.path, rate=first.rate)
    with opener() as recording:
        plans = [
            SeriesPlan(
                item.name,
                item.channels,
                item.segment,
                line.label,
                {**item.origin, **({group_by: line.group} if line.group else {}), **line.origin},
            )
            for line in lines
            for item in requested_plans(line, printable(name), recording)
        ]
    return RecordingPlan(printable(name), (*files_of(first.path), manifest), opener, tuple(plans))


# Recordings beside a table of labels --------------------------------------------------------------------------


def plan_labelled(source: Path | str, labels: Path | str) -> CollectionPlan:
    """One series for each channel, and stretch between gaps, of the recordings that a label table names.

    The table has the columns ``recording,channel,label``; a recording is named by its file, with or without suffix,
    and with folders where its name alone could be several.
    """
    source, labels = Path(source), Path(labels)
    table = read_label_table(labels)
    if not source.exists() and not header_of(source).exists():
        raise RecordingError(
            f"{display_name(source)} was not found; a recording or a folder of them is needed."
        )
    root = source if source.is_dir() else source.parent
    found = _recordings_below(source, labels) if source.is_dir() else [header_of(source)]
    if not found:
        raise EmptyDataError(
            f"the folder {display_name(source)} has no recordings in it or below; raxss reads "
            f"{', '.join(all_suffixes())}."
        )
    recordings = []
    unmatched = [
        f"recording {display_name(name)} of the label table was not found."
        for name in table.unknown_recordings(_place(path, root) for path in found)
    ]
    refused = []
    for path in found:
        if not table.names(_place(path, root)):
            unmatched.append(f"recording {display_name(_name(path, root))} is not in the label table.")
            continue
        try:
            plan, sentences = _plan_of_labelled(path, root, labels, table)
        except RecordingError as error:
            refused.append(f"recording {display_name(_name(path, root))} is left out: {error}")
            continue
        unmatched += sentences
        if plan.series:
            recordings.append(plan)
    patients_known = all("patient" in item.origin for plan in recordings for item in plan.series)
    return CollectionPlan(
        source.name,
        root,
        tuple(recordings),
        unmatched=tuple(unmatched),
        refused=tuple(refused),
        group_by="patient" if patients_known and recordings else "recording",
    )


def _recordings_below(folder: Path, labels: Path) -> list[Path]:
    """Files that are recordings for certain: a bare array or table beside a label table may be anything."""
    found: dict[Path, None] = {}
    for file in sorted(folder.rglob("*")):
        known = format_of(file) if file.suffix.lower() in all_suffixes() else None
        if known is not None and known.self_describing and file.is_file() and file != labels:
            found[header_of(file)] = None
    parts = {segment for header in found for segment in _segments_of(header)}
    return [item for item in found if item.is_file() and item not in parts]


def _segments_of(header: Path) -> list[Path]:
    """Records that are segments of another; none of a damaged one, which is reported when it is opened."""
    known = format_of(header)
    if known is None:
        return []
    try:
        return [file for file in files_of(header) if file.suffix.lower() in known.suffixes and file != header]
    except (RecordingError, OSError):
        return []


def _name(path: Path, root: Path) -> str:
    return printable(path.relative_to(root).with_suffix("").as_posix())


def _place(path: Path, root: Path) -> str:
    """What a label table may name the end of: ``data/p1/rec``."""
    return "/".join((root.resolve().name, *path.relative_to(root).with_suffix("").parts))


def _plan_of_labelled(
    path: Path, root: Path, labels: Path, table: LabelTable
) -> tuple[RecordingPlan, list[str]]:
    """The labelled channels of one recording, and what did not match."""
    name, origin = _name(path, root), table.origin_of(_place(path, root))
    opener = partial(open_recording, path)
    with opener() as recording:
        channels = [channel.name for channel in recording.channels]
        labelled, unknown = table.of(_place(path, root), channels)
        series = [
            SeriesPlan(
                entry.name,
                entry.channels,
                entry.segment,
                label,
                {
                    **entry.origin,
                    "electrode": f"{origin.get('patient', name)}/{electrode_of(channels[position])}",
                    **origin,
                },
            )
            for position, label in enumerate(labelled)
            for entry in plans_of(recording, position, name)
        ]
    sentences = [
        f"channel {display_name(item)} of the label table is not in recording {display_name(name)}."
        for item in unknown
    ]
    silent = [channels[place] or f"#{place}" for place, label in enumerate(labelled) if label is None]
    if silent:
        sentences.append(f"recording {display_name(name)} has channels without a label: {', '.join(silent)}.")
    return RecordingPlan(name, (*files_of(path), labels), opener, tuple(series)), sentences
