"""Contacts of intracranial electrodes: clinical shorthand parsed, and channels labelled by it.

    "AD1-4, ATT1,2"            -> contacts: AD1, AD2, AD3, AD4, ATT1, ATT2
    channels, contacts         -> label of each channel, and contacts without a channel
    channel                    -> its electrode; both poles of a bipolar channel

Text that is not understood comes back as it was written. Next: labels.py reads contacts from clinical sheets.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from raxss.data.names import PRIMES, canonical, loosest, possible_channels
from raxss.errors import LabelError

OTHER = "other"  # the label of a channel that was looked at and not named
WHOLE_SHAFT = "*"  # "PD*": every contact of PD
SEPARATORS = ("", *",;:|/\r\n")  # around a shaft alone; beside another word it may be anything
MAX_CONTACTS = 512  # in one range; no electrode has as many, but a typing error may
MAX_CELL_LETTERS, MAX_CELL_CONTACTS = 20_000, 20_000
NOTHING = frozenset({"", "n/a", "na", "nan", "none", "null", "-", "unknown", "not available"})


def parse_contacts(text: str) -> list[str]:
    """Contacts in a cell of a clinical sheet, each once, in order, spelt as written.

    A shaft alone, between commas or the like, is ``"PD*"``: all contacts of it that the recording has. A piece that
    is no contact comes back as it was written.

    Examples
    --------
    >>> parse_contacts("AD1-4, ATT1,2")
    ['AD1', 'AD2', 'AD3', 'AD4', 'ATT1', 'ATT2']
    >>> parse_contacts("a'1-2; G 3 and PD")
    ["a'1", "a'2", 'G3', 'PD*']
    >>> parse_contacts("TT1 (spreads to PST1)"), parse_contacts("not PD"), parse_contacts("n/a")
    (['TT1', '(spreads to PST1)'], ['not', 'PD'], [])
    """
    if is_missing(text):
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
    """Text cut where contacts are separated (not within brackets), and whether each piece stands between commas."""
    text = unicodedata.normalize("NFKC", text.translate(PRIMES))
    # short runs only: the patterns below are quadratic in the length of a run
    text = re.sub(r"(\s{8})\s+|(\.{8})\.+", r"\1\2", text)
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


def is_missing(text: str) -> bool:
    """Whether a cell holds no value (``n/a``, ``unknown``)."""
    return text.strip().lower() in NOTHING


def electrode_of(channel: str) -> str:
    """The shaft, strip or grid of a channel: its name without the contact's number, ``AHR`` of ``AHR3-AHR4``."""
    name = canonical(channel)
    shaft = re.sub(r"\d+('*)$", r"\1", name.partition("-")[0])
    return shaft if any(map(str.isalpha, shaft)) else name


def label_channels(
    channels: Sequence[str], contacts: Iterable[str], *, label: str = "soz"
) -> tuple[list[str | None], list[str]]:
    """``label`` for each channel that the contacts name, ``"other"`` or None for the rest; and what did not match.

    A channel is None where a contact may mean it or another channel, or is one of its two poles (``AD1-AD2``). All
    but the named channels are None where a piece was not understood (``AD1?``); all are where there is free text
    (``not AD1``, a shaft that is none) or no contact has a channel.
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
    """Both contacts of a bipolar channel: ``AD1-AD2``, ``AD1-2``; none of one that is a single contact."""
    first, *others = canonical(channel).split("-")
    if not first or not others:
        return []
    return [first, *(electrode_of(first) + other if other.isdigit() else other for other in others)]
