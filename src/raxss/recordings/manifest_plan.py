"""Which series do a manifest, or recordings beside a label table, ask for?

    a CSV manifest (path, label, group …)                -> CollectionPlan
    a recording or a folder, a table of channel labels   -> CollectionPlan

Names and labels are those that files.py gives when it reads the same manifest into memory; here only headers are
read. Next: prepared/ carries the plan out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from raxss.errors import EmptyDataError, RecordingError, shown
from raxss.recordings.files import (
    Line,
    asked_for,
    distinct_names,
    lines_of,
    plans_of,
    printable,
    refuse_other_rate,
)
from raxss.recordings.formats import SUFFIXES, read_content
from raxss.recordings.inspection.front import header_of
from raxss.recordings.labels import LabelTable, electrode_of, read_label_table, recording_name
from raxss.recordings.opening import files_of, open_recording
from raxss.recordings.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.recordings.recording import ArrayRecording, Recording
from raxss.recordings.series import ORIGINS

TABLES = (".csv", ".npy")  # beside a label table these are no recordings, but may be anything


def plan_manifest(path: Path | str, *, labels_required: bool = True) -> CollectionPlan:
    """What a manifest asks for, as `raxss.recordings.files.read_manifest` would read it.

    The manifest's ``group`` is taken for the patient, unless another of its columns says the same; without it the
    patient is the group, and without that the recording.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.savez(folder / "a.npz", samples=np.zeros((2, 600)), rate=100.0)
    >>> _ = (folder / "all.csv").write_text("path,label,group,channel\\na.npz,ill,p1,0\\na.npz,well,p1,1\\n")
    >>> plan = plan_manifest(folder / "all.csv")
    >>> [(one.name, one.label, one.origin["patient"]) for _, one in plan]
    [('a:0', 'ill', 'p1'), ('a:1', 'well', 'p1')]
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
            f"manifest {shown(path)} has the columns 'group' and 'patient', which differ; what must not sit on "
            "both sides of a split is one of centre, patient, recording, electrode and pair. Remove 'group'."
        )
    return same[0] if same else "patient"


def _planned(lines: Sequence[Line], name: str, manifest: Path, group_by: str) -> RecordingPlan:
    """The series of the lines that name one file."""
    first, rates = lines[0], {line.rate for line in lines}
    if len(rates) > 1:
        raise RecordingError(
            f"recording {shown(first.path)} is listed with different rates; it has one. Correct the column 'rate'."
        )
    opener = partial(open_at_rate, first.path, first.rate)
    with opener() as recording:
        plans = [
            SeriesPlan(
                one.name,
                one.channels,
                one.segment,
                line.label,
                {**one.origin, **({group_by: line.group} if line.group else {}), **line.origin},
            )
            for line in lines
            for one in asked_for(line, printable(name), recording)
        ]
    return RecordingPlan(printable(name), (*files_of(first.path), manifest), opener, tuple(plans))


def open_at_rate(path: Path, rate: float | None) -> Recording:
    """Open a recording, and tell the rate of one that does not say it itself."""
    recording = open_recording(path)
    if rate is None:
        return recording
    if not isinstance(recording, ArrayRecording):
        refuse_other_rate(path, rate, recording.channels[0].rate)
        return recording
    refuse_other_rate(path, rate, read_content(path).rate)
    names = [one.name for one in recording.channels]
    told = ArrayRecording(recording.name, recording.samples, rate=rate, names=names)
    told.problems = recording.problems
    return told


# Recordings beside a table of labels --------------------------------------------------------------------------


def plan_labelled(source: Path | str, labels: Path | str) -> CollectionPlan:
    """One series for each channel, and stretch between gaps, of the recordings that a label table names.

    Parameters
    ----------
    source
        A recording, or a folder with recordings in it or below.
    labels
        A table ``recording,channel,label``; a recording is named by its file, with or without suffix.
    """
    source, labels = Path(source), Path(labels)
    table = read_label_table(labels)
    if not source.exists() and not header_of(source).exists():
        raise RecordingError(f"{shown(source)} was not found; a recording or a folder of them is needed.")
    root = source if source.is_dir() else source.parent
    found = _recordings_below(source, labels) if source.is_dir() else [header_of(source)]
    if not found:
        raise EmptyDataError(
            f"the folder {shown(source)} has no recordings in it or below; raxss reads {', '.join(SUFFIXES)}."
        )
    recordings, unmatched, known = [], [], []
    for path in found:
        known.append(recording_name(path.name))
        plan, sentences = _plan_of_labelled(path, root, labels, table)
        unmatched += sentences
        if plan.series:
            recordings.append(plan)
    unmatched += [
        f"recording {shown(name)} of the label table was not found."
        for name in table.unknown_recordings(known)
    ]
    return CollectionPlan(
        source.name, root, tuple(recordings), unmatched=tuple(unmatched), group_by="recording"
    )


def _recordings_below(folder: Path, labels: Path) -> list[Path]:
    files = (one for one in sorted(folder.rglob("*")) if one.is_file() and one != labels)
    kept = (one for one in files if one.suffix.lower() in SUFFIXES and one.suffix.lower() not in TABLES)
    return list(dict.fromkeys(header_of(one) for one in kept))


def _plan_of_labelled(
    path: Path, root: Path, labels: Path, table: LabelTable
) -> tuple[RecordingPlan, list[str]]:
    """The labelled channels of one recording, and what did not match."""
    name = printable(path.relative_to(root).with_suffix("").as_posix())
    opener = partial(open_recording, path)
    with opener() as recording:
        channels = [one.name for one in recording.channels]
        labelled, unknown = table.of(recording_name(path.name), channels)
        series = [
            SeriesPlan(
                one.name,
                one.channels,
                one.segment,
                label,
                {**one.origin, "electrode": f"{name}/{electrode_of(channels[position])}"},
            )
            for position, label in enumerate(labelled)
            for one in plans_of(recording, position, name)
        ]
    sentences = [
        f"channel {shown(one)} of the label table is not in recording {shown(name)}." for one in unknown
    ]
    silent = [channels[place] or f"#{place}" for place, label in enumerate(labelled) if label is None]
    if silent:
        sentences.append(f"recording {shown(name)} has channels without a label: {', '.join(silent)}.")
    return RecordingPlan(name, (*files_of(path), labels), opener, tuple(series)), sentences
