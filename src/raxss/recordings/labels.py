"""Which channels does the clinic say are in the seizure onset zone (SOZ)?

    a cell of a clinical sheet ("AD1-4, ATT1,2")   -> contacts
    a sheet, a label table, a column of a sidecar  -> label of each channel, and what did not match
    events.tsv                                     -> second of the seizure's onset

Nothing is dropped in silence: what is not understood or has no channel comes back by name. Only the columns that
are needed are kept; names, birth dates and event texts stay in their files.
Next: bids.py attaches these labels to the recordings of a BIDS tree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raxss.errors import LabelError, RecordingError, shown
from raxss.recordings.names import LEADING_ZEROS, PRIMES, canonical, match_channels
from raxss.recordings.tables import Table, read_table, read_workbook

OTHER = "other"  # the label of a channel that was looked at and not named
WHOLE_SHAFT = "*"  # "PD*": every contact of PD
MAX_CONTACTS = 512  # in one range; no electrode has as many, but a typing error may
NOTHING = frozenset({"", "n/a", "na", "nan", "none", "null", "-", "unknown", "not available"})
YES = frozenset({"1", "1.0", "true", "yes", "y", "t"})
NO = frozenset({"0", "0.0", "false", "no", "n", "f"})
# by the name of the label: columns of a clinical sheet that list its contacts
CONTACT_COLUMNS = {
    "soz": ("soz_contacts", "soz_channels", "soz", "seizure_onset_zone", "seizure_onset_contacts"),
    "resect": ("resected_contacts", "ablated_contacts", "resect_contacts", "resection_contacts", "resected"),
}
# columns that may say whose row it is; which of them does is decided by the subjects that are there
ID_COLUMNS = (
    "dataset_id",
    "participant_id",
    "patient_id",
    "subject_id",
    "subject",
    "patient",
    "participant",
    "bids_id",
    "id",
    "hospital_id",
)
CENTRE_COLUMNS = ("clinical_center", "clinical_centre", "center", "centre", "site")
OUTCOME_COLUMNS = ("outcome", "surgery_outcome", "surgical_outcome")
ENGEL_COLUMNS = ("engel_score", "engel", "engel_class")
ALL_CONTACTS = frozenset(name for names in CONTACT_COLUMNS.values() for name in names)
NEEDED_COLUMNS = frozenset(ID_COLUMNS) | ALL_CONTACTS

LabelName = Literal["soz", "resect"]


# --- contacts in shorthand


def parse_contacts(text: str) -> list[str]:
    """The contacts that a clinical sheet means, each once, in order.

    A shaft alone is ``"PD*"``: all of its contacts, whichever the recording has. A piece that is no
    contact comes back as it was written, so that matching can report it.

    Examples
    --------
    >>> parse_contacts("AD1-4, ATT1,2")
    ['AD1', 'AD2', 'AD3', 'AD4', 'ATT1', 'ATT2']
    >>> parse_contacts("a'1-2; G 3 and PD")
    ["A'1", "A'2", 'G3', 'PD*']
    >>> parse_contacts("TT1 (spreads to PST1)"), parse_contacts("n/a")
    (['TT1', '(spreads to PST1)'], [])
    """
    if _nothing(text):
        return []
    found: list[str] = []
    shaft = ""  # that a number alone belongs to
    for piece in _pieces(text):
        contacts, shaft = _contacts_of(piece, shaft)
        found += contacts or [piece]
    return list(dict.fromkeys(found))


def is_contact(piece: str) -> bool:
    """Whether a piece from `parse_contacts` is a contact or a shaft, rather than text that was not understood."""
    return re.fullmatch(r"[A-Z]+'*(?:\d+|\*)", piece) is not None


def _pieces(text: str) -> Iterator[str]:
    """Text cut where contacts are separated; what stands in brackets of its own stays one piece."""
    text = re.sub(r"[‐‑‒–—−]", "-", text.translate(PRIMES))
    text = re.sub(r"([A-Za-z]'*)\s*[\[(]\s*(\d[\d\s,;-]*)[\])]", r"\1\2 ", text)  # AD[1-4] is AD1-4
    text = re.sub(r"(?<=\d)\s+(?:to|through|thru)\s+(?=[A-Za-z]*'*\s*\d)", "-", text, flags=re.IGNORECASE)
    text = re.sub(r"\s*-\s*", "-", text)
    text = re.sub(r"\b(?:and|n/a)\b|&|\+", ",", text, flags=re.IGNORECASE)
    text = re.sub(r"([A-Za-z]'*)[ \t]+(?=\d)", r"\1", text)  # G 1 is G1
    for match in re.finditer(r"\([^()]*\)?|\[[^][]*\]?|[^\s,;:/()[\]]+|[)\]]", text):
        yield match.group()


def _contacts_of(piece: str, shaft: str) -> tuple[list[str], str]:
    """The contacts of one piece, none if it is not understood, and the shaft that numbers after it belong to."""
    match = re.fullmatch(r"([A-Z]+'*)?-?(\d{1,6})(?:-([A-Z]+'*)?(\d{1,6}))?", piece.upper())
    if not match:
        is_shaft = re.fullmatch(r"[A-Z]+'*", piece.upper())
        return ([piece.upper() + WHOLE_SHAFT] if is_shaft else []), ""
    own, first, again, last = match.groups()
    name = own or shaft
    if not name or (again and again != name) or (piece.startswith("-")):  # AD1-PD2 is no range but a pair
        return [], ""
    low, high = sorted((int(first), int(last or first)))
    if high - low >= MAX_CONTACTS:
        return [], ""
    return [f"{name}{number}" for number in range(low, high + 1)], name


def _nothing(text: str) -> bool:
    return text.strip().lower() in NOTHING


def electrode_of(channel: str) -> str:
    """The shaft, strip or grid of a channel: its name without the contact's number.

    Examples
    --------
    >>> electrode_of("ATT1"), electrode_of("POL A'12"), electrode_of("AHR3-AHR4"), electrode_of("Cz")
    ('ATT', "A'", 'AHR', 'CZ')
    """
    name = canonical(channel)
    shaft = re.sub(r"\d+('*)$", r"\1", name.partition("-")[0])
    return shaft if any(map(str.isalpha, shaft)) else name


def label_channels(
    channels: Sequence[str], contacts: Iterable[str], *, label: str = "soz"
) -> tuple[list[str], list[str]]:
    """``label`` for each channel that the contacts name, ``"other"`` for the rest; and the contacts without one.

    Examples
    --------
    >>> label_channels(["POL AD1", "POL AD2", "POL PD1"], ["AD2", "PD*", "XY9"])
    (['other', 'soz', 'soz'], ['XY9'])
    """
    wanted = list(dict.fromkeys(contacts))
    names = [contact.removesuffix(WHOLE_SHAFT) for contact in wanted]
    shafts = [electrode_of(channel) for channel in channels]
    labels, unmatched = [OTHER] * len(channels), []
    for contact, name, place in zip(wanted, names, match_channels(names, channels), strict=True):
        places = [] if place is None else [place]
        if contact.endswith(WHOLE_SHAFT):
            places += [position for position, shaft in enumerate(shafts) if shaft == canonical(name)]
        for position in places:
            labels[position] = label
        if not places:
            unmatched.append(contact)
    return labels, unmatched


# --- the clinical sheet


@dataclass(frozen=True)
class ClinicalRow:
    """What a clinical sheet says of one patient, and no more of it than is needed."""

    patient: str  # as the sheet spells it
    contacts: tuple[str, ...]  # none: not annotated
    centre: str = ""
    outcome: str = ""
    engel: str = ""


def read_clinical_sheet(
    path: Path | str, subjects: Iterable[str] = (), *, label: LabelName = "soz"
) -> dict[str, ClinicalRow]:
    """Contacts of each patient from a ``.xlsx``, ``.csv`` or ``.tsv`` sheet with a column such as ``soz_contacts``.

    Parameters
    ----------
    subjects
        Ids of the patients that are there. A sheet may have several columns of ids (``dataset_id``,
        ``hospital_id``); the one that knows most of these is used, the first of them where none is given.
    label
        Which contacts: ``"soz"``, or ``"resect"`` for those that surgery took out.

    Returns
    -------
    Rows by the patient's id as the sheet spells it.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "sheet.csv"
    >>> _ = path.write_text('Patient ID,SOZ Contacts,Engel Score\\npt1,"AD1-2, PD",1\\n')
    >>> read_clinical_sheet(path)
    {'pt1': ClinicalRow(patient='pt1', contacts=('AD1', 'AD2', 'PD*'), centre='', outcome='', engel='1')}
    """
    path = Path(path)
    is_text = path.suffix.lower() in (".csv", ".tsv")
    tables = [read_table(path)] if is_text else read_workbook(path, marks=ALL_CONTACTS, needed=NEEDED_COLUMNS)
    what = f"clinical sheet {shown(path)}"
    table = next((one for one in tables if one.column(CONTACT_COLUMNS[label])), None)
    if table is None:
        raise LabelError(
            f"{what} has no column {CONTACT_COLUMNS[label][0]!r}; it lists the contacts of each patient. Name the "
            "column so, or give a label table with the columns recording, channel, label."
        )
    id_column = _id_column(table, list(subjects), what)
    listed = [name for name in CONTACT_COLUMNS[label] if name in table.columns]
    rows: dict[str, ClinicalRow] = {}
    for line, cells in table.rows:
        patient = cells[id_column]
        if not patient:
            if any(not _nothing(cells[name]) for name in listed):
                raise LabelError(
                    f"{what} has contacts and no {id_column!r} in line {line}; say whose they are."
                )
            continue
        contacts = [contact for name in listed for contact in parse_contacts(cells[name])]
        row = ClinicalRow(
            patient,
            tuple(dict.fromkeys(contacts)),
            centre=cells.get(table.column(CENTRE_COLUMNS) or "", ""),
            outcome=cells.get(table.column(OUTCOME_COLUMNS) or "", ""),
            engel=plain_score(cells.get(table.column(ENGEL_COLUMNS) or "", "")),
        )
        if rows.setdefault(patient, row) != row:
            raise LabelError(
                f"{what} has several rows of patient {shown(patient)}, and line {line} contradicts the one before; "
                "one row a patient is needed."
            )
    return rows


def plain_score(text: str) -> str:
    """``1.0`` as ``1``; what a score is not (``-1``: no surgery) as nothing."""
    text = re.sub(r"\.0+$", "", text)
    return "" if text.startswith("-") else text


def _id_column(table: Table, subjects: list[str], what: str) -> str:
    present = [name for name in ID_COLUMNS if name in table.columns]
    if not present:
        raise LabelError(
            f"{what} has no column that says whose row it is; one of {', '.join(ID_COLUMNS)} is needed."
        )
    wanted = {_id_key(subject) for subject in subjects}
    return max(present, key=lambda name: len(wanted & {_id_key(cells[name]) for _, cells in table.rows}))


# --- whose row is it


@dataclass(frozen=True)
class SubjectMatch:
    """Subjects of the tree with their id in the sheet, and those on either side that have no partner."""

    pairs: Mapping[str, str]
    only_in_tree: tuple[str, ...]
    only_in_sheet: tuple[str, ...]


def match_subjects(sheet_ids: Iterable[str], tree_ids: Iterable[str]) -> SubjectMatch:
    """Which row is which subject's: the same spelling first, then without ``sub-``, case, ``_`` and leading zeros.

    Examples
    --------
    >>> match_subjects(["pt1", "ummc_001", "la03"], ["pt01", "ummc001", "jh101"])
    SubjectMatch(pairs={'pt01': 'pt1', 'ummc001': 'ummc_001'}, only_in_tree=('jh101',), only_in_sheet=('la03',))
    """
    sheet, tree = list(dict.fromkeys(sheet_ids)), list(dict.fromkeys(tree_ids))
    by_key: dict[tuple[Any, ...], tuple[list[str], list[str]]] = {}
    for side, ids in enumerate((sheet, tree)):
        for one in ids:
            by_key.setdefault(_id_key(one), ([], []))[side].append(one)
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
                f"rows {', '.join(map(shown, rows))} of the sheet and subjects {', '.join(map(shown, subjects))} "
                "of the tree differ by zeros or signs alone, so it is not certain which is which. Spell the ids in "
                "the sheet as in the tree, and remove the subjects that are not meant."
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


def labels_of_status(cells: Mapping[str, str], *, label: LabelName = "soz") -> str | None:
    """The label that a row of ``channels.tsv`` carries itself, as HUP's trees do; None where it says nothing.

    A column of the label's own name holds yes or no; ``status_description`` lists words (``soz,resect``).

    Examples
    --------
    >>> labels_of_status({"status_description": "resect, soz"}), labels_of_status({"soz": "0"})
    ('soz', 'other')
    """
    if cells.get(label, "") != "":
        said = _yes_or_no(cells[label])
        return None if said is None else label if said else OTHER
    items = re.split(r"[,;/|+&]", cells.get("status_description", "").lower())
    words = {word for item in items if _WORDS.keys() >= set(item.split()) for word in item.split()}
    return label if label in {_WORDS[word] for word in words} else None


# HUP writes "soz" and "resect"; in a longer text ("not soz") a word proves nothing
_WORDS = {"soz": "soz", "resect": "resect", "resected": "resect"}


def _yes_or_no(text: str) -> bool | None:
    text = text.strip().lower()
    return True if text in YES else False if text in NO else None


@dataclass(frozen=True)
class LabelTable:
    """Labels by recording (``""``: all of them) and channel."""

    path: Path
    labels: Mapping[str, Mapping[str, str]]

    def of(self, recording: str, channels: Sequence[str]) -> tuple[list[str | None], list[str]]:
        """Label of each channel, None where the table is silent; and channels of the table that there are not.

        What is said of the recording counts before what is said of its subject, and that before what holds for all.
        """
        held: dict[str, tuple[str, str]] = {}
        for name in ("", *reversed(_names_of(recording))):
            held |= {canonical(one): (one, label) for one, label in self.labels.get(name, {}).items()}
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
        """Recordings of the table that are none of these."""
        known = {"", *(name for recording in recordings for name in _names_of(recording))}
        return [name for name in self.labels if name not in known]


def _names_of(recording: str) -> tuple[str, str]:
    """What a table may call a recording: its own name, or its subject, which means every run of it."""
    return recording, recording.split("_")[0]


def read_label_table(path: Path | str, *, label: LabelName = "soz") -> LabelTable:
    """A table ``recording,channel,label`` as ``.csv`` or ``.tsv``.

    ``name`` will do for ``channel``; a column ``soz`` (or ``resect``) of yes and no for ``label``; without
    ``recording`` a row holds for every recording. A recording may be written with folders, suffix and type.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.tsv"
    >>> _ = path.write_text("name\\tsoz\\nG1\\t0\\nAD1\\t1\\n")
    >>> read_label_table(path).of("sub-01_run-1", ["POL AD1", "POL G1", "POL G2"])
    (['soz', 'other', None], [])
    """
    path = Path(path)
    what, table = f"label table {shown(path)}", read_table(path)
    channel_column = table.column(("channel", "name", "channel_name"))
    label_column = table.column(("label", label))
    if channel_column is None or label_column is None:
        missing = "channel" if channel_column is None else "label"
        raise LabelError(
            f"{what} has no column {missing!r} in its first line; needed are recording, channel and label, or "
            f"name and {label}."
        )
    said: dict[tuple[str, str], tuple[str, str, int]] = {}
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
            continue  # a channel that nobody decided on, or one without a name
        before = said.setdefault((recording, canonical(channel)), (channel, value, line))
        if before[1] != value:
            raise LabelError(
                f"{what} labels channel {shown(channel)} twice and differently, in lines {before[2]} and {line}; "
                "once is needed."
            )
    labels: dict[str, dict[str, str]] = {}
    for (recording, _), (channel, value, _) in said.items():
        labels.setdefault(recording, {})[channel] = value
    return LabelTable(path, labels)


def recording_name(text: str) -> str:
    """``sub-01/ieeg/sub-01_run-1_ieeg.edf`` as ``sub-01_run-1``."""
    last = re.split(r"[/\\]", text)[-1]
    return re.sub(r"_(?:ieeg|eeg)$", "", re.sub(r"\.[A-Za-z]\w*(?:\.gz)?$", "", last))


# --- the seizure's onset


def seizure_onset(events: Iterable[tuple[float, str]]) -> float | None:
    """When the seizure begins by its electrographic mark, in each centre's words; None where no mark says so.

    The first kind of mark that a recording has counts, and of several of that kind the first:
    ``SZ EVENT # (PB SZ)`` and ``SZ EVENT # (EEG SZ)``; anything with ``onset`` (``sz onset``, ``EEG onset``,
    ``AD1-3 onset``, ``sz #12 onset``); ``eeg sz start`` or ``start`` alone. Clinical onsets, the onset of a
    movement, onsets that their writer doubts (``?``, ``poss``) and a bare ``sz`` do not count: where one
    recording has both, the bare ``sz`` comes 14 s after the onset.

    Examples
    --------
    >>> seizure_onset([(0.0, "Segment: REC START"), (61.2, "EEG onset"), (65.0, "clinical onset")])
    61.2
    >>> seizure_onset([(0.0, "Segment: REC START"), (65.0, "clinical onset")]) is None
    True
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
    re.compile(r"^(?:sz|seizure) event\b"),
    re.compile(r"\bonset\b"),
    re.compile(r"^(?:(?:eeg|ictal|electrographic|sz|seizure)\s*)*(?:start|begin)s?(?:\s*#?\s*\d+)?$"),
)
_NO_ONSET = re.compile(r"\?|\bclin|\bposs|\blikely|\bprob|\bmaybe|\bonset of\b|\bno onset\b")


def read_events(path: Path) -> list[tuple[float, str]]:
    """(second, text) of each row of an ``events.tsv`` that has a time."""
    table = read_table(path)
    column = table.column(("trial_type", "event_type", "eventtype", "description", "value"))
    if "onset" not in table.columns or column is None:
        raise RecordingError(
            f"table {shown(path)} lacks the columns 'onset' and 'trial_type' of an events.tsv."
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
                f"table {shown(path)} has no number in line {line}, column 'onset'."
            ) from None
        events.append((second, cells[column]))
    return events
