"""Runs of a BIDS tree, with the sidecars that apply to each and the labels of their channels.

    root -> Tree -> runs: name, patient, signal or what is absent of it -> sidecars, the nearest first
    tree, runs, label file -> BidsLabels: label of each channel of a run, and contacts that are no channel

Names decide: of files, of folders, and in ``scans.tsv``. Nothing that a link or a name leads out of the root is
entered or opened. Next: bids.py plans series of the runs with these labels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from raxss.data.confinement import leads_outside, problem_of_opening
from raxss.data.contacts import WHOLE_SHAFT, is_contact, label_channels
from raxss.data.formats.fields import Refused, not_downloaded
from raxss.data.formats.registry import UNREAD, bids_suffixes, format_of
from raxss.data.inspection.sidecars import DATATYPES, names_in, parsed, read_json, sidecars_of
from raxss.data.labels import (
    CENTRE_COLUMNS,
    CONTACT_COLUMNS,
    ClinicalRow,
    LabelName,
    LabelTable,
    labels_of_run,
    match_subjects,
    read_clinical_sheet,
    read_label_table,
)
from raxss.data.names import canonical
from raxss.data.selection import ChannelRow, rows_of_channels
from raxss.data.tables import MAX_KEPT_ROWS, Table, read_table
from raxss.errors import RecordingError, display_name, join_names

CLINICAL_SHEET = Path("sourcedata", "clinical_data_summary.xlsx")
N_LISTED = 2000  # names in one sentence: all, unless a file is hostile
ENTITIES = {"sub", "ses", "task", "acq", "tracksys", "run", "proc", "recording", "space", "split", "desc"}


@dataclass(frozen=True)
class BidsRun:
    """One recording of the tree; ``absent`` names the files, relative to the root, that its signal lacks."""

    name: str
    patient: str
    datatype: str
    folder: Path
    signal: Path | None
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tree:
    """A BIDS root, and in whole sentences what was not read of it."""

    root: Path
    remarks: list[str] = field(default_factory=list)

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, in order; nothing where it is none or lies outside the root."""
        return sorted(names_in(folder, self.root))

    def relative(self, path: Path) -> str:
        """As the dataset names it."""
        return path.relative_to(self.root).as_posix()

    def table(self, path: Path) -> Table:
        """A table inside the root."""
        self.refuse_outside(path)
        return read_table(path, most_rows=MAX_KEPT_ROWS)

    def json(self, path: Path) -> dict[str, Any]:
        """A JSON object inside the root."""
        try:
            return read_json(path, self.root)
        except Refused as refused:
            raise RecordingError(f"[{refused.problem.code}] {refused.problem.message}") from refused

    def refuse_outside(self, path: Path) -> None:
        """An error unless this is a regular file inside the root that can be read."""
        if problem := problem_of_opening(path, self.root):
            raise RecordingError(f"[{problem.code}] {problem.message}")


def open_tree(root: Path | str) -> Tree:
    """The tree at a root that has subjects."""
    root = Path(os.path.abspath(root))
    if not root.is_dir():
        raise RecordingError(f"BIDS root {display_name(root)} is not a folder; check the path.")
    if not is_bids_root(root):
        raise RecordingError(
            f"BIDS root {display_name(root)} has no folder 'sub-…'; the folder with dataset_description.json is "
            "needed."
        )
    return Tree(root)


def is_bids_root(path: Path | str) -> bool:
    """Whether this is a folder with subjects in it."""
    return any(item.is_dir() for item in Path(path).glob("sub-*"))


def runs_of(tree: Tree) -> list[BidsRun]:
    """The runs of all subjects, in order; what was not read goes into the tree's remarks."""
    runs: list[BidsRun] = []
    for subject in tree.names(tree.root):
        folder = tree.root / subject
        if not subject.startswith("sub-") or not folder.is_dir():
            continue
        if not re.fullmatch(r"sub-[A-Za-z0-9]+", subject):
            why = "BIDS allows letters and digits after 'sub-'"
        else:
            why = "a link leads out of the dataset" if leads_outside(folder, tree.root) else ""
        if why:
            tree.remarks.append(f"folder {display_name(subject)} was not read: {why}.")
            continue
        sessions = [folder / name for name in tree.names(folder) if re.fullmatch(r"ses-[A-Za-z0-9]+", name)]
        for above in [folder, *sessions]:
            for datatype in DATATYPES:
                runs += _runs_of_folder(tree, above, subject, datatype)
    return runs


def _runs_of_folder(tree: Tree, above: Path, subject: str, datatype: str) -> list[BidsRun]:
    """The runs of one ``ieeg`` or ``eeg`` folder, in order of their names."""
    folder = above / datatype
    if folder.is_dir() and leads_outside(folder, tree.root):
        tree.remarks.append(
            f"folder {display_name(tree.relative(folder))} was not read: a link leads out of the dataset."
        )
        return []
    names = tree.names(folder)
    if not names:
        return []
    allowed = (*bids_suffixes(datatype), *UNREAD[datatype])
    files: dict[str, str] = {}  # run -> suffix of its signal, "" where nothing says which
    for name in [*names, *_scans(tree, above, datatype)]:
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in allowed and stem.endswith(f"_{datatype}"):
            files.setdefault(stem.removesuffix(f"_{datatype}"), suffix)
    for name in names:  # a sidecar of a run whose signal nothing names; not one that several runs share
        if name.endswith((f"_{datatype}.json", "_channels.tsv")):
            stem = name.rpartition("_")[0]
            entities = _entities(stem)
            is_shared = entities and any(entities.items() <= _entities(file).items() for file in files)
            if stem not in files and not is_shared:
                files[stem] = ""
    runs = []
    for stem, suffix in sorted(files.items()):
        if f"sub-{_entities(stem).get('sub')}" != subject:
            tree.remarks.append(
                f"file {display_name(f'{stem}_{datatype}{suffix}')} was not read: its name breaks the rules of "
                "BIDS or is not its subject's."
            )
            continue
        signal, absent = _signal_of(tree, folder, names, f"{stem}_{datatype}", suffix)
        runs.append(BidsRun(stem, subject.removeprefix("sub-"), datatype, folder, signal, absent))
    return runs


@cache
def _entities(stem: str) -> dict[str, str]:
    """``{"sub": "pt01", "run": "1"}``; none where the name breaks the rules."""
    found = parsed(f"{stem}_x.x")
    return found.entities if found is not None and found.entities.keys() <= ENTITIES else {}


def _scans(tree: Tree, above: Path, datatype: str) -> list[str]:
    """Names of the files in a datatype's folder that ``scans.tsv`` lists."""
    listed = []
    for name in tree.names(above):
        if name.endswith("_scans.tsv"):
            try:
                table = tree.table(above / name)
            except RecordingError as error:
                tree.remarks.append(f"{display_name(name)} was not used: {error}")
                continue
            listed += [cells.get("filename", "") for _, cells in table.rows]
    return [
        name.removeprefix(f"{datatype}/") for name in listed if re.fullmatch(rf"{datatype}/[^/\\]+", name)
    ]


def _signal_of(
    tree: Tree, folder: Path, names: list[str], stem: str, suffix: str
) -> tuple[Path | None, tuple[str, ...]]:
    """The file that opens a run, if all of it is there, and what is not; ``names``: what is in the folder."""
    if not suffix:
        return None, (tree.relative(folder / f"{stem}.*"),)
    wanted = [f"{stem}{suffix}"]
    known = format_of(Path(wanted[0]))
    if known is not None and known.companions:
        header_is_there = is_fetched(tree, folder / wanted[0])
        has_data = any(f"{stem}{data}" in names for data in known.data_suffixes)
        wanted += [
            f"{stem}{beside}"
            for beside in known.companions
            # a header may name its files as it likes; what there is by the usual name must have been fetched
            if not header_is_there
            or f"{stem}{beside}" in names
            or (beside in known.data_suffixes and not has_data)
        ]
    absent = [name for name in wanted if not is_fetched(tree, folder / name)]
    return (None if absent else folder / wanted[0]), tuple(tree.relative(folder / name) for name in absent)


def is_fetched(tree: Tree, path: Path) -> bool:
    """Whether there is content, and not a broken link or a pointer that git-annex left."""
    return os.path.exists(path) and not not_downloaded(path, tree.root)


def sidecar(tree: Tree, run: BidsRun, suffix: str) -> Path | None:
    """The nearest file that holds for a run by BIDS's inheritance: in its folder, then above it, up to the root."""
    return next(iter(sidecars(tree, run, suffix)), None)


def sidecars(tree: Tree, run: BidsRun, suffix: str) -> list[Path]:
    """All that hold for a run, the nearest first."""
    try:
        return sidecars_of(run.folder / f"{run.name}_{run.datatype}.json", tree.root, suffix)
    except Refused as refused:
        raise RecordingError(f"[{refused.problem.code}] {refused.problem.message}") from refused


# Labels --------------------------------------------------------------------------------------------------------


def channel_rows(tree: Tree, run: BidsRun) -> tuple[Path | None, list[ChannelRow]]:
    """Path of the ``channels.tsv`` of a run, and its rows."""
    path = sidecar(tree, run, "channels.tsv")
    return path, [] if path is None else rows_of_channels(tree.table(path))


def read_participants(tree: Tree) -> tuple[Path | None, dict[str, Mapping[str, str]]]:
    """Path of ``participants.tsv``, and its rows by patient."""
    path = tree.root / "participants.tsv"
    if path.name not in tree.names(tree.root):
        return None, {}
    rows: dict[str, Mapping[str, str]] = {}
    for line, cells in tree.table(path).rows:
        patient = cells.get("participant_id", "").removeprefix("sub-")
        if rows.setdefault(patient, cells) != cells:
            raise RecordingError(
                f"table {display_name(path)} has a second, different row of a participant in line {line}."
            )
    return path, rows


def first_cell(cells: Mapping[str, str], names: Iterable[str]) -> str:
    """The first of these columns that has a value."""
    return next((cells[name] for name in names if cells.get(name)), "")


@dataclass(frozen=True)
class BidsLabels:
    """Where labels come from: a clinical sheet, a table, or ``channels.tsv`` itself."""

    label: LabelName
    path: Path | None = None
    rows: Mapping[str, ClinicalRow] | None = None  # by patient of the tree
    table: LabelTable | None = None
    marked: frozenset[str] = frozenset()  # patients of whom some channels.tsv names a channel
    remarks: tuple[str, ...] = ()

    @property
    def are_there(self) -> bool:
        """Whether there are any."""
        return self.rows is not None or self.table is not None or bool(self.marked)

    def has(self, patient: str) -> bool:
        """Whether this patient was annotated."""
        if self.rows is not None:
            return patient in self.rows and bool(self.rows[patient].contacts)
        return self.table is not None or patient in self.marked

    def whole_shafts(self, patient: str) -> list[str]:
        """Shafts that a clinical sheet names without numbers of contacts."""
        contacts = self.rows[patient].contacts if self.rows is not None and patient in self.rows else ()
        return [
            canonical(contact.removesuffix(WHOLE_SHAFT))
            for contact in contacts
            if is_contact(contact) and contact.endswith(WHOLE_SHAFT)
        ]

    def of(
        self, tree: Tree, run: BidsRun, channels: Sequence[ChannelRow]
    ) -> tuple[list[str | None], list[str]]:
        """Label of each channel, None where it is unknown; and contacts that are no channel."""
        names = [channel.name for channel in channels]
        if not self.has(run.patient):
            return [None] * len(channels), []
        if self.rows is not None:
            return label_channels(names, self.rows[run.patient].contacts, label=self.label)
        if self.table is not None:
            return self.table.of(_place(tree, run), names)
        return labels_of_run([channel.cells for channel in channels], label=self.label), []


def _place(tree: Tree, run: BidsRun) -> str:
    """What a label table may name the end of: ``ds003029/sub-01/ieeg/sub-01_run-1_ieeg``."""
    return f"{tree.root.name}/{tree.relative(run.folder)}/{run.name}_{run.datatype}"


def find_labels(
    tree: Tree, runs: Sequence[BidsRun], labels: Path | str | None, label: LabelName
) -> BidsLabels:
    """Labels from the file that was given; else from the sheet in ``sourcedata``; else from ``channels.tsv``."""
    patients = list(dict.fromkeys(run.patient for run in runs))
    if labels is None and is_fetched(tree, tree.root / CLINICAL_SHEET):
        tree.refuse_outside(tree.root / CLINICAL_SHEET)
        labels = tree.root / CLINICAL_SHEET
    if labels is None:
        return BidsLabels(label, marked=_marked_patients(tree, runs, label))
    path = Path(os.path.abspath(labels))
    if path.suffix.lower() in (".csv", ".tsv"):
        table = read_table(path)
        if table.column(("channel", "name", "channel_name")) or not table.column(CONTACT_COLUMNS[label]):
            read = read_label_table(path, label=label)
            unknown = read.unknown_recordings(_place(tree, run) for run in runs)
            lacking = f"label table {display_name(path)} names recordings that the tree does not have: "
            return BidsLabels(
                label, path, None, read, remarks=(f"{lacking}{list_names(unknown)}.",) * bool(unknown)
            )
    sheet = read_clinical_sheet(path, patients, label=label)
    match = match_subjects(sheet, patients)
    named = f"the clinical sheet {display_name(path)}"
    remarks = (
        (f"subjects without a row in {named}", match.only_in_tree),
        (f"rows of {named} without a subject in the tree", match.only_in_sheet),
    )
    return BidsLabels(
        label,
        path,
        rows={patient: sheet[row] for patient, row in match.pairs.items()},
        remarks=tuple(f"{remark}: {list_names(names)}." for remark, names in remarks if names),
    )


def _marked_patients(tree: Tree, runs: Sequence[BidsRun], label: LabelName) -> frozenset[str]:
    marked = set()
    for run in runs:
        try:
            _, channels = channel_rows(tree, run)
        except RecordingError:
            continue  # reported when the run is planned
        if label in labels_of_run([channel.cells for channel in channels], label=label):
            marked.add(run.patient)
    return frozenset(marked)


def centre_of(patient: str, participants: Mapping[str, Mapping[str, str]], labels: BidsLabels) -> str:
    """Centre of a patient by ``participants.tsv``, else by the clinical sheet."""
    centre = first_cell(participants.get(patient, {}), ("site", *CENTRE_COLUMNS))
    if not centre and labels.rows is not None and patient in labels.rows:
        centre = labels.rows[patient].centre.upper()
    return centre


def list_names(names: Iterable[str]) -> str:
    """Names in a sentence, each shortened to 200 letters."""
    return join_names((name if len(name) <= 200 else f"{name[:197]}..." for name in names), N_LISTED)
