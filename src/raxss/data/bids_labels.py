"""Tables of a BIDS tree that decide labels: channels.tsv, participants.tsv, clinical sheet, label table.

    tree, runs, label file -> BidsLabels: label of each channel of a run, and contacts that are no channel

Next: bids.py plans series with these labels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raxss.data.bids_tree import BidsRun, Tree, is_fetched, sidecar
from raxss.data.contacts import WHOLE_SHAFT, is_contact, label_channels
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
from raxss.data.tables import read_table
from raxss.errors import RecordingError, display_name, join_names

CLINICAL_SHEET = Path("sourcedata", "clinical_data_summary.xlsx")
N_LISTED = 2000  # names in one sentence: all, unless a file is hostile


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
    remarks = []
    if match.only_in_tree:
        remarks.append(
            f"subjects without a row in the clinical sheet {display_name(path)}: {list_names(match.only_in_tree)}."
        )
    if match.only_in_sheet:
        remarks.append(
            f"rows of the clinical sheet {display_name(path)} without a subject in the tree: "
            f"{list_names(match.only_in_sheet)}."
        )
    rows = {patient: sheet[row] for patient, row in match.pairs.items()}
    return BidsLabels(label, path, rows=rows, remarks=tuple(remarks))


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
