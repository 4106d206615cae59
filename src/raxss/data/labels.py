"""Channel labels (seizure onset zone, resection) from clinical sheets, label tables and BIDS sidecars.

    a clinical sheet, a label table, columns of channels.tsv  -> label of each channel, and what did not match
    events.tsv                                                -> second of the seizure's onset

A label is attached where its meaning is certain; elsewhere it is None, and not "other". What is not understood or
has no channel is returned. Only the columns that are needed are kept; names, birth dates and event texts stay in
their files. Next: bids.py attaches these labels to the recordings of a BIDS tree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raxss.data.contacts import OTHER, is_missing, parse_contacts
from raxss.data.formats.registry import UNREAD, UNREAD_COMPANIONS, all_suffixes
from raxss.data.names import LEADING_ZEROS, canonical, loosest, match_channels
from raxss.data.tables import Table, read_table
from raxss.data.workbooks import read_workbook
from raxss.errors import LabelError, RecordingError, display_name, join_names

MAX_LABELS = 400_000  # rows of a label table: a hundred channels of 4,000 recordings
MAX_SHEET_LETTERS, MAX_SHEET_CONTACTS = 2_000_000, 500_000  # in the contacts of all patients of a sheet
YES = frozenset({"1", "1.0", "true", "yes", "y", "t"})
NO = frozenset({"0", "0.0", "false", "no", "n", "f"})
# by the name of the label: columns of a clinical sheet that list its contacts
CONTACT_COLUMNS = {
    "soz": ("soz_contacts", "soz_channels", "soz", "seizure_onset_zone", "seizure_onset_contacts"),
    "resect": ("resected_contacts", "ablated_contacts", "resect_contacts", "resection_contacts", "resected"),
}
TOGETHER = ("resected_contacts", "ablated_contacts")  # surgery did one or the other; else one column counts
# candidates for the column of patient ids; the one that knows most of the subjects is used
ID_COLUMNS = (
    *("dataset_id", "participant_id", "patient_id", "subject_id", "subject", "patient", "participant"),
    *("bids_id", "id", "hospital_id"),
)
CENTRE_COLUMNS = ("clinical_center", "clinical_centre", "center", "centre", "site")
OUTCOME_COLUMNS = ("outcome", "surgery_outcome", "surgical_outcome")
ALL_CONTACTS = frozenset(name for names in CONTACT_COLUMNS.values() for name in names)
NEEDED_COLUMNS = frozenset(ID_COLUMNS) | ALL_CONTACTS

LabelName = Literal["soz", "resect"]


# --- the clinical sheet


@dataclass(frozen=True)
class ClinicalRow:
    """One patient's row of a clinical sheet, reduced to the columns that are needed."""

    patient: str  # as the sheet spells it
    contacts: tuple[str, ...]  # none: not annotated
    centre: str = ""
    outcome: str = ""


def read_clinical_sheet(
    path: Path | str, subjects: Iterable[str] = (), *, label: LabelName = "soz"
) -> dict[str, ClinicalRow]:
    """Rows by patient of a ``.xlsx``, ``.csv`` or ``.tsv`` sheet with a column such as ``soz_contacts``.

    A sheet may have several columns of ids (``dataset_id``, ``hospital_id``); the one that knows most of the
    ``subjects`` is used, the first where none is given. Two that know as many and name other rows are refused.
    ``label`` says which contacts are wanted: ``"resect"`` for those that surgery took out.
    """
    path = Path(path)
    is_text = path.suffix.lower() in (".csv", ".tsv")
    tables = [read_table(path)] if is_text else read_workbook(path, marks=ALL_CONTACTS, needed=NEEDED_COLUMNS)
    what = f"clinical sheet {display_name(path)}"
    tables = [table for table in tables if table.column(CONTACT_COLUMNS[label])]
    if not tables:
        raise LabelError(
            f"{what} has no column {CONTACT_COLUMNS[label][0]!r}; it lists the contacts of each patient. Name the "
            "column so, or give a label table with the columns recording, channel, label."
        )
    first, *others = tables
    rows = _clinical_rows(first, list(subjects), label, what)
    by_key = {_id_key(patient): row for patient, row in rows.items()}
    for other in others:
        if other.column(ID_COLUMNS) is None:
            continue
        for patient, row in _clinical_rows(other, list(subjects), label, what).items():
            before = by_key.get(_id_key(patient), row)
            if set(map(loosest, before.contacts)) != set(map(loosest, row.contacts)):
                raise LabelError(
                    f"{what} has other {label} contacts of patient {display_name(patient)} in its worksheets "
                    f"{display_name(first.title)} and {display_name(other.title)}; remove the one that is not "
                    "meant."
                )
    return rows


def _clinical_rows(table: Table, subjects: list[str], label: LabelName, what: str) -> dict[str, ClinicalRow]:
    """The patients of one worksheet."""
    id_column = _id_column(table, subjects, what)
    present = [name for name in CONTACT_COLUMNS[label] if name in table.columns]
    columns = [name for name in present if name in TOGETHER] or present[:1]
    rows: dict[str, ClinicalRow] = {}
    n_letters = n_contacts = 0
    for line, cells in table.rows:
        patient = cells[id_column]
        if not patient:
            if any(not is_missing(cells[name]) for name in columns):
                raise LabelError(
                    f"{what} has contacts and no {id_column!r} in line {line}; say whose they are."
                )
            continue
        n_letters += sum(len(cells[name]) for name in columns)
        try:
            contacts = [contact for name in columns for contact in parse_contacts(cells[name])]
        except LabelError as error:
            raise LabelError(f"{what}, line {line}: {error}") from None
        n_contacts += len(contacts)
        if n_letters > MAX_SHEET_LETTERS or n_contacts > MAX_SHEET_CONTACTS:
            raise LabelError(
                f"{what} names more than {MAX_SHEET_CONTACTS:,} contacts, or has more than {MAX_SHEET_LETTERS:,} "
                f"letters in its cells of contacts, up to line {line}; no more are read, because a thousand "
                "patients have fewer. Split the sheet."
            )
        row = ClinicalRow(
            patient,
            tuple(dict.fromkeys(contacts)),
            centre=cells.get(table.column(CENTRE_COLUMNS) or "", ""),
            outcome=cells.get(table.column(OUTCOME_COLUMNS) or "", ""),
        )
        if rows.setdefault(patient, row) != row:
            raise LabelError(
                f"{what} has several rows of patient {display_name(patient)}, and line {line} contradicts the one "
                "before; one row per patient is needed."
            )
    return rows


def _id_column(table: Table, subjects: list[str], what: str) -> str:
    present = [name for name in ID_COLUMNS if name in table.columns]
    if not present:
        raise LabelError(
            f"{what} has no column that says whose row it is; one of {', '.join(ID_COLUMNS)} is needed."
        )
    wanted = {_id_key(subject) for subject in subjects}
    lines: dict[str, dict[tuple[str, ...], list[int]]] = {name: {} for name in present}
    for name in present:
        for line, cells in table.rows:
            if (key := _id_key(cells[name])) in wanted:
                lines[name].setdefault(key, []).append(line)
    best = max(present, key=lambda name: len(lines[name]))
    for name in present:
        if len(lines[name]) == len(lines[best]) and lines[name] != lines[best]:
            raise LabelError(
                f"{what} has the columns {best!r} and {name!r}, which both know the subjects but disagree on whose "
                "row is whose. Remove the one that is not meant."
            )
    return best


# --- matching of patients


@dataclass(frozen=True)
class SubjectMatch:
    """Subjects of the tree with their id in the sheet, and those on either side that have no partner."""

    pairs: Mapping[str, str]
    only_in_tree: tuple[str, ...]
    only_in_sheet: tuple[str, ...]


def match_subjects(sheet_ids: Iterable[str], tree_ids: Iterable[str]) -> SubjectMatch:
    """Which row is which subject's: the same spelling first, then without ``sub-``, case, ``_``, leading zeros."""
    sheet, tree = list(dict.fromkeys(sheet_ids)), list(dict.fromkeys(tree_ids))
    by_key: dict[tuple[Any, ...], tuple[list[str], list[str]]] = {}
    for side, ids in enumerate((sheet, tree)):
        for item in ids:
            by_key.setdefault(_id_key(item), ([], []))[side].append(item)
    pairs: dict[str, str] = {}
    for rows, subjects in by_key.values():
        if not rows or not subjects:
            continue
        alike = {subject: row for subject in subjects for row in rows if row == subject.removeprefix("sub-")}
        if len(alike) == len(subjects) == len(rows):
            pairs.update(alike)
        elif len(rows) == len(subjects) == 1:
            pairs[subjects[0]] = rows[0]
        else:
            raise LabelError(
                f"rows {', '.join(map(display_name, rows))} of the sheet and subjects "
                f"{', '.join(map(display_name, subjects))} of the tree differ by zeros or signs alone, so it is "
                "not certain which is which. Spell the ids in the sheet as in the tree, and remove the subjects "
                "that are not meant."
            )
    taken = set(pairs.values())
    return SubjectMatch(
        {subject: pairs[subject] for subject in tree if subject in pairs},
        tuple(subject for subject in tree if subject not in pairs),
        tuple(row for row in sheet if row not in taken),
    )


def _id_key(text: str) -> tuple[str, ...]:
    """Words and numbers of an id: ``sub-pt01`` and ``PT_1`` are both ("pt", "1")."""
    text = text.strip().lower().removeprefix("sub-")
    return tuple(LEADING_ZEROS.sub("", part) for part in re.findall(r"[a-z]+|\d+", text)) or (text,)


# --- labels in columns of their own


# HUP writes "soz" and "resect"; in a longer text ("not soz") a word proves nothing
_WORDS = {"soz": "soz", "resect": "resect", "resected": "resect"}
_MENTIONS = {"soz": re.compile(r"soz|onset"), "resect": re.compile(r"resect|ablat|remov")}


def labels_of_run(rows: Sequence[Mapping[str, str]], *, label: LabelName = "soz") -> list[str | None]:
    """Labels in the rows of one ``channels.tsv``, as in the trees of HUP; all None where no channel is marked.

    A column of the label's own name holds yes or no; else ``status_description`` lists words (``soz,resect``), and
    beside a marked channel, one whose words do not mention the label is ``"other"``.
    """
    labels = [_label_of_row(cells, label) for cells in rows]
    if label not in labels:
        return [None] * len(labels)
    return [
        item
        if item or label in cells or _MENTIONS[label].search(cells.get("status_description", "").lower())
        else OTHER
        for item, cells in zip(labels, rows, strict=True)
    ]


def _label_of_row(cells: Mapping[str, str], label: LabelName) -> str | None:
    if cells.get(label, "") != "":
        return {True: label, False: OTHER, None: None}[_yes_or_no(cells[label])]
    items = re.split(r"[,;/|+&]", cells.get("status_description", "").lower())
    plain = [item.split() for item in items if _WORDS.keys() >= set(item.split())]
    if any(_MENTIONS[label].search(item) for item in items if item.split() not in plain):
        return None  # "not soz", "soz?"
    return label if label in {_WORDS[word] for words in plain for word in words} else None


def _yes_or_no(text: str) -> bool | None:
    text = text.strip().lower()
    return True if text in YES else False if text in NO else None


@dataclass(frozen=True)
class LabelTable:
    """Labels by recording as the table names it (``""``: all of them) and channel."""

    path: Path
    labels: Mapping[str, Mapping[str, str]]
    origins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # recording -> patient, centre

    def names(self, recording: str) -> bool:
        """Whether the table has a row for a recording."""
        return any(_applies(name, recording) for name in self.labels)

    def origin_of(self, recording: str) -> dict[str, str]:
        """Patient and centre of a recording, as far as the table has columns for them."""
        origin: dict[str, str] = {}
        for name in self.origins:
            if _applies(name, recording):
                origin |= self.origins[name]
        return origin

    def of(self, recording: str, channels: Sequence[str]) -> tuple[list[str | None], list[str]]:
        """Label of each channel, None where the table has none; and channels of the table that the recording lacks.

        ``recording`` is its path below the data's folder, or its name. Rows of the recording take precedence over
        those of its subject, and these over those of all recordings.
        """
        held: dict[str, tuple[str, str]] = {}
        for name in ("", _subject_of(recording)):
            held |= {canonical(entry): (entry, label) for entry, label in self.labels.get(name, {}).items()}
        own: dict[str, tuple[str, str]] = {}
        for name in self.labels:
            for item, label in self.labels[name].items() if name and _fits(name, recording) else ():
                if own.setdefault(canonical(item), (item, label))[1] != label:
                    raise LabelError(
                        f"label table {display_name(self.path)} labels channel {display_name(item)} of recording "
                        f"{display_name(recording)} twice and differently; once is needed."
                    )
        held |= own
        labels: list[str | None] = [None] * len(channels)
        unknown = []
        places = match_channels([channel for channel, _ in held.values()], channels)
        for (channel, label), place in zip(held.values(), places, strict=True):
            if place is None:
                unknown.append(channel)
            else:
                labels[place] = label
        return labels, unknown

    def unknown_recordings(self, recordings: Iterable[str]) -> list[str]:
        """Recordings of the table that are none of these; an error where a name could be several of them."""
        known = list(recordings)
        unknown = []
        for name in filter(None, self.labels):
            fitting = [item for item in known if _fits(name, item)]
            if any(_subject_of(item) == name for item in known):
                continue
            if len(fitting) > 1:
                raise LabelError(
                    f"label table {display_name(self.path)} names recording {display_name(name)}, which could be "
                    f"{join_names(map(display_name, fitting))}. Write its folder, or its whole name."
                )
            if not fitting:
                unknown.append(name)
        return unknown


def _applies(name: str, recording: str) -> bool:
    """Whether rows under a table's name of a recording hold for a recording: its own, its subject's or all."""
    return not name or _fits(name, recording) or name == _subject_of(recording)


def _subject_of(recording: str) -> str:
    """``sub-01`` of ``a/sub-01_run-1``, by which a table may mean every run of it; else nothing."""
    first = recording.split("/")[-1].split("_")[0]
    return first if re.fullmatch(r"sub-[A-Za-z0-9]+", first) else ""


def _fits(name: str, recording: str) -> bool:
    """Whether a table's name of a recording is the end of its path, with or without its type (``_ieeg``)."""
    *folders, last = recording.split("/")
    return any(f"/{'/'.join([*folders, item])}".endswith(f"/{name}") for item in (last, _TYPE.sub("", last)))


def read_label_table(path: Path | str, *, label: LabelName = "soz") -> LabelTable:
    """A table ``recording,channel,label`` as ``.csv`` or ``.tsv``.

    ``name`` will do for ``channel``; a column ``soz`` (or ``resect``) of yes and no for ``label``; without
    ``recording`` a row holds for every recording. Columns ``patient`` and ``centre`` are kept. A recording may be
    written with folders, suffix and type, and then means no other; ``sub-01`` means all runs of a subject.
    """
    path = Path(path)
    what, table = f"label table {display_name(path)}", read_table(path, most_rows=MAX_LABELS)
    channel_column = table.column(("channel", "name", "channel_name"))
    label_column = table.column(("label", label))
    if channel_column is None or label_column is None:
        missing = "channel" if channel_column is None else "label"
        raise LabelError(
            f"{what} has no column {missing!r} in its first line; needed are recording, channel and label, or "
            f"name and {label}."
        )
    decisions: dict[tuple[str, str], tuple[str, str, int]] = {}
    for line, cells in table.rows:
        recording = recording_name(cells.get("recording", ""))
        channel, value = cells[channel_column], cells[label_column]
        if label_column != "label" and value:
            decided = _yes_or_no(value)
            if decided is None:
                raise LabelError(
                    f"{what} has neither yes nor no in line {line}, column {label_column!r}; 0 or 1 is needed."
                )
            value = label if decided else OTHER
        if "recording" in table.columns and not recording:
            raise LabelError(
                f"{what} has no recording in line {line}; leave the column out if rows hold for all."
            )
        if not value or not channel:
            continue  # an undecided channel, or one without a name
        before = decisions.setdefault((recording, canonical(channel)), (channel, value, line))
        if before[1] != value:
            raise LabelError(
                f"{what} labels channel {display_name(channel)} twice and differently, in lines {before[2]} and "
                f"{line}; once is needed."
            )
    origins = _origins_of(table, what)
    labels: dict[str, dict[str, str]] = {}
    spelt: dict[str, str] = {}
    for (recording, _), (channel, value, line) in decisions.items():
        labels.setdefault(recording, {})[channel] = value
        if spelt.setdefault(value.lower(), value) != value:
            raise LabelError(
                f"{what} has a label in line {line} that differs from another by capital letters alone: "
                f"{display_name(spelt[value.lower()])} and {display_name(value)}. Spell it in one way."
            )
    return LabelTable(path, labels, origins)


def _origins_of(table: Table, what: str) -> dict[str, dict[str, str]]:
    """Patient and centre by recording; a recording has one of each."""
    columns = {
        "patient": table.column(("patient", "subject", "participant_id")),
        "centre": table.column(("centre", "center", "site")),
    }
    origins: dict[str, dict[str, str]] = {}
    for line, cells in table.rows:
        origin = origins.setdefault(recording_name(cells.get("recording", "")), {})
        for level, column in columns.items():
            value = cells[column] if column else ""
            if value and origin.setdefault(level, value) != value:
                raise LabelError(
                    f"{what} gives one recording two values of {column!r}, in line {line} and before."
                )
    return {name: origin for name, origin in origins.items() if origin}


def recording_name(text: str) -> str:
    """A recording as a table writes it, without suffix: ``sub-01/ieeg/sub-01_run-1_ieeg.edf`` loses ``.edf``."""
    name = "/".join(part for part in re.split(r"[/\\]", text) if part not in ("", "."))
    unread = (suffix for some in UNREAD.values() for suffix in some)
    # known ones only: night.v2 is not night
    known = (*all_suffixes(), *UNREAD_COMPANIONS, *unread)
    return next((name[: -len(suffix)] for suffix in known if name.lower().endswith(suffix)), name)


_TYPE = re.compile(r"_(?:ieeg|eeg)$")


# --- the seizure's onset


def seizure_onset(events: Iterable[tuple[float, str]]) -> float | None:
    """Second of the seizure's electrographic onset, by the words of each centre; None where no event marks it.

    The first kind of mark that a recording has counts, and of several of that kind the first: an electrographic
    onset, often cut off (``Z ELELCTROGRAPHIC ON``); ``SZ EVENT # (EEG SZ)`` and ``SZ EVENT # (PB SZ)``, a push
    button, which come 1 to 23 s before it in the five recordings that have both; anything with ``onset`` (``sz
    onset``, ``AD1-3 onset``, ``sz #12 onset``); ``eeg sz start`` or ``start`` alone. Clinical onsets, the onset of
    a movement, onsets that their writer doubts (``?``, ``poss``) and a bare ``sz`` do not count: where one
    recording has both, the bare ``sz`` comes 14 s after the onset.
    """
    marks = sorted(
        (second, " ".join(text.lower().split())) for second, text in events if math.isfinite(second)
    )
    for kind in _ONSETS:
        seconds = [second for second, text in marks if kind.search(text) and not _NO_ONSET.search(text)]
        if seconds:
            return seconds[0]
    return None


_ONSETS = (
    re.compile(r"\bele\w*graphic on(?:s|se|set)?\b"),  # texts are cut after 20 letters
    re.compile(r"^(?:sz|seizure) event\b"),
    re.compile(r"\bonset\b"),
    re.compile(r"^(?:(?:eeg|ictal|electrographic|sz|seizure)\s*)*(?:start|begin)s?(?:\s*#?\s*\d+)?$"),
)
_NO_ONSET = re.compile(
    r"\?|\bclin|\bposs|\blikely|\bprob|\bmaybe|\bonset of\b|\bno (?:\w+ )?on(?:s|se|set)?\b"
)


def read_events(path: Path) -> list[tuple[float, str]]:
    """(second, text) of each row of an ``events.tsv`` that has a time."""
    table = read_table(path)
    column = table.column(("trial_type", "event_type", "eventtype", "description", "value"))
    if "onset" not in table.columns or column is None:
        raise RecordingError(
            f"table {display_name(path)} lacks the columns 'onset' and 'trial_type' of an events.tsv."
        )
    events = []
    for line, cells in table.rows:
        if not cells["onset"]:
            continue
        try:
            second = float(cells["onset"])
        except ValueError:
            second = math.nan
        if not math.isfinite(second):
            raise RecordingError(
                f"table {display_name(path)} has no number in line {line}, column 'onset'."
            ) from None
        events.append((second, cells[column]))
    return events
