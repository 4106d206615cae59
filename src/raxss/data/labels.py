"""Which channels does the clinic say are in the seizure onset zone (SOZ)?

    a cell of a clinical sheet ("AD1-4, ATT1,2")   -> contacts
    a sheet, a label table, a column of a sidecar  -> label of each channel, and what did not match
    events.tsv                                     -> second of the seizure's onset

A label is attached where its meaning is certain; elsewhere it is None, and not "other". Nothing is dropped in
silence: what is not understood or has no channel comes back. Only the columns that are needed are kept; names,
birth dates and event texts stay in their files.
Next: bids.py attaches these labels to the recordings of a BIDS tree.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raxss.data.formats.registry import UNREAD, UNREAD_COMPANIONS, all_suffixes
from raxss.data.names import (
    LEADING_ZEROS,
    PRIMES,
    canonical,
    loosest,
    match_channels,
    possible_channels,
)
from raxss.data.tables import Table, read_table
from raxss.data.workbooks import read_workbook
from raxss.errors import LabelError, RecordingError, display_name, join_names

OTHER = "other"  # the label of a channel that was looked at and not named
WHOLE_SHAFT = "*"  # "PD*": every contact of PD
SEPARATORS = ("", *",;:|/\r\n")  # around a shaft alone; beside another word it may be anything
MAX_CONTACTS = 512  # in one range; no electrode has as many, but a typing error may
MAX_LABELS = 400_000  # rows of a label table: a hundred channels of 4,000 recordings
MAX_CELL_LETTERS, MAX_CELL_CONTACTS = 20_000, 20_000
MAX_SHEET_LETTERS, MAX_SHEET_CONTACTS = 2_000_000, 500_000  # in the contacts of all patients of a sheet
NOTHING = frozenset({"", "n/a", "na", "nan", "none", "null", "-", "unknown", "not available"})
YES = frozenset({"1", "1.0", "true", "yes", "y", "t"})
NO = frozenset({"0", "0.0", "false", "no", "n", "f"})
# by the name of the label: columns of a clinical sheet that list its contacts
CONTACT_COLUMNS = {
    "soz": ("soz_contacts", "soz_channels", "soz", "seizure_onset_zone", "seizure_onset_contacts"),
    "resect": ("resected_contacts", "ablated_contacts", "resect_contacts", "resection_contacts", "resected"),
}
TOGETHER = ("resected_contacts", "ablated_contacts")  # surgery did one or the other; else one column counts
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

    Spelling stays as written; matching loosens it. A shaft alone, between commas or the like, is ``"PD*"``: all of
    its contacts, whichever the recording has. A piece that is no contact comes back as it was written.

    Examples
    --------
    >>> parse_contacts("AD1-4, ATT1,2")
    ['AD1', 'AD2', 'AD3', 'AD4', 'ATT1', 'ATT2']
    >>> parse_contacts("a'1-2; G 3 and PD")
    ["a'1", "a'2", 'G3', 'PD*']
    >>> parse_contacts("TT1 (spreads to PST1)"), parse_contacts("not PD"), parse_contacts("n/a")
    (['TT1', '(spreads to PST1)'], ['not', 'PD'], [])
    """
    if _nothing(text):
        return []
    if len(text) > MAX_CELL_LETTERS:
        raise LabelError(
            f"a cell of contacts has {len(text):,} letters; at most {MAX_CELL_LETTERS:,} are read, because no list "
            "of one patient's contacts is longer. Put the contacts there alone."
        )
    found: list[str] = []
    shaft = ""  # that a number alone belongs to
    for piece, is_alone in _pieces(text):
        contacts, shaft = _contacts_of(piece, shaft, is_alone=is_alone)
        found += contacts or [piece]
        if len(found) > MAX_CELL_CONTACTS:  # a range is short to write and long to list
            raise LabelError(
                f"a cell names more than {MAX_CELL_CONTACTS:,} contacts; no patient has as many. Correct it."
            )
    return list(dict.fromkeys(found))


def is_contact(piece: str) -> bool:
    """Whether a piece from `parse_contacts` is a contact or a shaft, rather than text that was not understood."""
    return re.fullmatch(r"[A-Za-z]+'*(?:[0-9]+'*|\*)", piece) is not None


def looks_like_contacts(piece: str) -> bool:
    """Whether text, understood or not, can be no more than contacts (``XY9``, ``AD1?``), and so may be quoted."""
    name = r"(?![Gg][Rr][Ii][Dd])[A-Za-z]{1,4}'*"  # a grid's channels are G1, G2
    return re.fullmatch(rf"{name}-?[0-9]{{1,3}}'*(?:[-.:]+(?:{name})?[0-9]{{0,3}})*\??", piece) is not None


def _is_free_text(piece: str) -> bool:
    """Whether a piece that was not understood may change what the pieces beside it mean (``not``, ``->``)."""
    is_number = any(map(str.isdigit, piece)) and not any(map(str.isalpha, piece)) and ">" not in piece
    return not is_number and not looks_like_contacts(piece)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Text cut where contacts are separated, and whether each piece stands alone between commas or the like.

    What is in brackets of its own stays one piece.
    """
    text = unicodedata.normalize("NFKC", text.translate(PRIMES))
    text = re.sub(
        r"(\s{8})\s+|(\.{8})\.+", r"\1\2", text
    )  # patterns below look through each run again and again
    text = re.sub(r"(?<=[0-9])\s*(?:\.{2,}|~)\s*(?=[A-Za-z]*'*\s*[0-9])", "-", text)
    text = re.sub(r"\.+(?=\s|[,;]|$)", "", text)  # the end of a sentence
    text = re.sub(r"[‐‑‒–—−]", "-", text)
    text = re.sub(r"([A-Za-z]'*)\s*[\[(]\s*(\d[\d\s,;-]*)[\])]", r"\1\2 ", text)  # AD[1-4] is AD1-4
    text = re.sub(r"(?<=\d)\s+(?:to|through|thru)\s+(?=[A-Za-z]*'*\s*\d)", "-", text, flags=re.IGNORECASE)
    text = re.sub(r"\s*-\s*", "-", text.strip())
    text = re.sub(r"\b(?:and|n/a)\b|&|\+", ",", text, flags=re.IGNORECASE)
    text = re.sub(r"([A-Za-z]'*)[ \t]+(?=\d)", r"\1", text)  # G 1 is G1
    # a colon between digits may mean a range or a pair, so it does not separate
    cut = r"\([^()]*\)?|\[[^][]*\]?|(?:[^\s,;:|/()[\]]|(?<=[0-9]):(?=[0-9]))+|[)\]]"
    for match in re.finditer(cut, text):
        start, end = match.span()
        while text[start - 1 : start] in (" ", "\t"):
            start -= 1
        while text[end : end + 1] in (" ", "\t"):
            end += 1
        before, after = text[max(start - 1, 0) : start], text[end : end + 1]
        yield match.group(), before in SEPARATORS and after in SEPARATORS


def _contacts_of(piece: str, shaft: str, *, is_alone: bool) -> tuple[list[str], str]:
    """The contacts of one piece, none if it is not understood, and the shaft that numbers after it belong to."""
    if re.fullmatch(r"[A-Za-z]+[0-9]+'+", piece):  # A1' for A'1
        return [piece], ""
    match = re.fullmatch(r"([A-Za-z]+'*)?-?([0-9]{1,6})(?:-([A-Za-z]+'*)?([0-9]{1,6}))?", piece)
    if not match:
        is_shaft = is_alone and re.fullmatch(r"[A-Za-z]+'*", piece)
        return ([piece + WHOLE_SHAFT] if is_shaft else []), ""
    own, first, again, last = match.groups()
    name = own or shaft
    is_pair = again and again.upper() != name.upper()  # AD1-PD2 is no range
    if not name or is_pair or piece.startswith("-"):
        return [], ""
    low, high = sorted((int(first), int(last or first)))
    if high - low >= MAX_CONTACTS:
        return [], ""
    width = max(len(item) if item.startswith("0") else 0 for item in (first, last or ""))
    return [f"{name}{number:0{width}d}" for number in range(low, high + 1)], name


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
) -> tuple[list[str | None], list[str]]:
    """``label`` for each channel that the contacts name, ``"other"`` or None for the rest; and what did not match.

    A channel is None where it is not certain that nobody meant it: a contact could be it or another one, or is
    one of its two poles (``AD1-AD2``). All but the named channels are None where a piece was not understood
    (``AD1?``); all are where there is free text (``not AD1``, a shaft that is none) or no contact has a channel.

    Examples
    --------
    >>> label_channels(["POL AD1", "POL AD2", "POL PD1"], ["AD2", "PD*", "XY9"])
    (['other', 'soz', 'soz'], ['XY9'])
    >>> label_channels(["AD1", "AD2", "PD1"], ["AD1", "AD2?"]), label_channels(["AD1", "PD1"], ["AD1", "no", "PD*"])
    ((['soz', None, None], ['AD2?']), ([None, None], ['no']))
    """
    pieces = list(dict.fromkeys(contacts))
    named, unmatched, has_free_text = set(), [], False
    poles = [poles_of(channel) for channel in channels]
    single = [item for item in pieces if is_contact(item) and not item.endswith(WHOLE_SHAFT)]
    keys = {loosest(entry) for entry in single}
    doubted = {place for place, some in enumerate(poles) if keys & {loosest(pole) for pole in some}}
    possible = dict(zip(single, possible_channels(single, channels), strict=True))
    for piece in pieces:
        if piece in possible:
            place, places = possible[piece]
            sure = set() if place is None else {place}
            is_text = not places and not looks_like_contacts(piece)
        elif is_contact(piece):
            shaft = canonical(piece.removesuffix(WHOLE_SHAFT))
            places = [
                position
                for position, channel in enumerate(channels)
                if shaft in map(electrode_of, poles[position] or [channel])
            ]
            spelt = [loosest(channels[place]) for place in places]  # a1 and A1 may be of two shafts
            sure = {place for place in places if not poles[place]} if len(set(spelt)) == len(spelt) else set()
            is_text = not places
        else:
            sure, places, is_text = set(), [], _is_free_text(piece)
        named |= sure
        doubted.update(places)
        has_free_text |= is_text
        if not sure:
            unmatched.append(piece)
    if has_free_text or not named:
        return [None] * len(channels), unmatched
    rest = OTHER if all(map(is_contact, pieces)) else None
    return [
        label if place in named else None if place in doubted or not canonical(channel) else rest
        for place, channel in enumerate(channels)
    ], unmatched


def poles_of(channel: str) -> list[str]:
    """Both contacts of a bipolar channel: ``AD1-AD2``, ``AD1-2``; none of one that is a single contact.

    Examples
    --------
    >>> poles_of("AHR3-4"), poles_of("AHR3-AHR4"), poles_of("POL G1-Ref")
    (['AHR3', 'AHR4'], ['AHR3', 'AHR4'], [])
    """
    first, *others = canonical(channel).split("-")
    if not first or not others:
        return []
    return [first, *(electrode_of(first) + other if other.isdigit() else other for other in others)]


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
        ``hospital_id``); the one that knows most of these is used, the first of them where none is given. Two that
        know as many and name other rows are refused.
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
            if any(not _nothing(cells[name]) for name in columns):
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
            engel=plain_score(cells.get(table.column(ENGEL_COLUMNS) or "", "")),
        )
        if rows.setdefault(patient, row) != row:
            raise LabelError(
                f"{what} has several rows of patient {display_name(patient)}, and line {line} contradicts the one "
                "before; one row a patient is needed."
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
    if any(_MENTIONS[label].search(item) and not _WORDS.keys() >= set(item.split()) for item in items):
        return None  # "not soz", "soz?"
    words = {word for item in items if _WORDS.keys() >= set(item.split()) for word in item.split()}
    return label if label in {_WORDS[word] for word in words} else None


# HUP writes "soz" and "resect"; in a longer text ("not soz") a word proves nothing
_WORDS = {"soz": "soz", "resect": "resect", "resected": "resect"}
_MENTIONS = {"soz": re.compile(r"soz|onset"), "resect": re.compile(r"resect|ablat|remov")}


def labels_of_run(rows: Sequence[Mapping[str, str]], *, label: LabelName = "soz") -> list[str | None]:
    """The labels that the rows of one ``channels.tsv`` carry themselves; all None where none is marked.

    Beside a marked channel, one whose ``status_description`` does not speak of the label is ``"other"``. A
    column of the label's own name speaks for itself.

    Examples
    --------
    >>> labels_of_run([{"status_description": text} for text in ("soz", "", "soz?")])
    ['soz', 'other', None]
    >>> labels_of_run([{"soz": text} for text in ("1", "", "0")]), labels_of_run([{"soz": "0"}])
    (['soz', None, 'other'], [None])
    """
    said = [labels_of_status(cells, label=label) for cells in rows]
    if label not in said:
        return [None] * len(said)
    return [
        item
        if item or label in cells or _MENTIONS[label].search(cells.get("status_description", "").lower())
        else OTHER
        for item, cells in zip(said, rows, strict=True)
    ]


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
        """Whether the table says anything about a recording."""
        return any(
            not name or _fits(name, recording) or name == _subject_of(recording) for name in self.labels
        )

    def origin_of(self, recording: str) -> dict[str, str]:
        """Patient and centre of a recording, as far as the table has columns for them."""
        told: dict[str, str] = {}
        for name in self.origins:
            if not name or _fits(name, recording) or name == _subject_of(recording):
                told |= self.origins[name]
        return told

    def of(self, recording: str, channels: Sequence[str]) -> tuple[list[str | None], list[str]]:
        """Label of each channel, None where the table is silent; and channels of the table that there are not.

        ``recording`` is its path below the data's folder, or its name. What is said of it counts before what is
        said of its subject, and that before what holds for all.
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

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.tsv"
    >>> _ = path.write_text("name\\tsoz\\nG1\\t0\\nAD1\\t1\\n")
    >>> read_label_table(path).of("sub-01_run-1", ["POL AD1", "POL G1", "POL G2"])
    (['soz', 'other', None], [])
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
                f"{what} labels channel {display_name(channel)} twice and differently, in lines {before[2]} and "
                f"{line}; once is needed."
            )
    origins = _origins_of(table, what)
    labels: dict[str, dict[str, str]] = {}
    spelt: dict[str, str] = {}
    for (recording, _), (channel, value, line) in said.items():
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
        told = origins.setdefault(recording_name(cells.get("recording", "")), {})
        for level, column in columns.items():
            value = cells[column] if column else ""
            if value and told.setdefault(level, value) != value:
                raise LabelError(
                    f"{what} gives one recording two values of {column!r}, in line {line} and before."
                )
    return {name: told for name, told in origins.items() if told}


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
    """When the seizure begins by its electrographic mark, in each centre's words; None where no mark says so.

    The first kind of mark that a recording has counts, and of several of that kind the first: an electrographic
    onset, often cut off (``Z ELELCTROGRAPHIC ON``); ``SZ EVENT # (EEG SZ)`` and ``SZ EVENT # (PB SZ)``, a push
    button, which come 1 to 23 s before it in the five recordings that have both; anything with ``onset`` (``sz
    onset``, ``AD1-3 onset``, ``sz #12 onset``); ``eeg sz start`` or ``start`` alone. Clinical onsets, the onset of
    a movement, onsets that their writer doubts (``?``, ``poss``) and a bare ``sz`` do not count: where one
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
