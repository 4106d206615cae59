"""Channel names of a table matched with those of a recording.

    names of a table, names of a recording -> position in the recording of each name, or None

Tables and files spell one contact differently: ``POL G1`` and ``G1``, ``lad 3`` and ``LAD3``, ``DC01`` and ``DC1``.
The same spelling comes first; a looser one counts only where it leaves no choice. A label that
cannot be attached for certain is not attached.
Next: inspection/bids.py compares channels.tsv with a recording; labels attach by these matches.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

NAMELESS = ("", "N/A")  # BIDS writes n/a where there is nothing
# A1' is another contact than A1, whichever stroke it is written with
PRIMES = str.maketrans("’‘′`´", "'''''")
# a word of its own: POL1 may be a contact
MONTAGE_PREFIX = re.compile(r"^(?:POL|EEG|SEEG|ECOG|IEEG)(?:\s+|$)")
# begun at the first sign of a run alone, or a long run would be looked through again from each of its signs
REFERENCE_SUFFIX = re.compile(r"(?:(?<=[^-_\s])|(?<=^[-_]))[-_\s]+REF$")
PRIME_BEHIND = re.compile(r"(?<!\d)(\d+)('+)$")
LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")

NO_ELECTRODE = re.compile(
    r"(?:EKG|ECG|EOG|EMG|TRIG|STIM|ANNOT).*|(?:EDF|BDF)ANNOTATIONS|STI\d*|STATUS|(?:EVENT|EVT|MARKER|MKR|MARK)S?\d*"
    r"|DC\d{1,2}|REF\d*|GND|GROUND|PHOTIC|RESP(?:IRATION)?\d*|SPO2|SAO2|OSAT|ETCO2|PULSE|PLETH|TEMP(?:ERATURE)?"
)


def canonical(name: str) -> str:
    """A channel's name without what amplifiers and exports add: montage prefix, ``-Ref``, spaces, case.

    Digits stay as they are, because G1 and G01 may both exist, and so do marks such as ``'`` and ``$``.
    A channel without a name is "".

    >>> canonical("POL G1"), canonical("eeg fp1-ref"), canonical(" A 1′"), canonical("$G11"), canonical("n/a")
    ('G1', 'FP1', "A1'", '$G11', '')
    """
    text = " ".join(name.translate(PRIMES).upper().split())
    text = REFERENCE_SUFFIX.sub("", MONTAGE_PREFIX.sub("", text))
    return "" if text in NAMELESS else text.replace(" ", "")


def loosest(name: str) -> str:
    """`canonical` without leading zeros, and with a prime before the number."""
    return LEADING_ZEROS.sub("", PRIME_BEHIND.sub(r"\2\1", canonical(name)))


def is_no_electrode(name: str) -> bool:
    """Whether a channel by its name is a trigger, a reference or a signal of another part of the body.

    Names that could be a contact's are not counted: ``HR1`` may be the right hippocampus.

    >>> [is_no_electrode(name) for name in ("POL EKG1", "Status", "DC01", "ECG II", "REF")]
    [True, True, True, True, True]
    >>> [is_no_electrode(name) for name in ("G1", "HR1", "EEG Fp1-Ref", "DCA1", "STG3", "")]
    [False, False, False, False, False, False]
    """
    return NO_ELECTRODE.fullmatch(canonical(name)) is not None


SPELLINGS: tuple[Callable[[str], str], ...] = (lambda name: name, canonical, loosest)


def possible_channels(wanted: Sequence[str], found: Sequence[str]) -> list[tuple[int | None, list[int]]]:
    """For each name the position in ``found`` that it means for certain, or None; and all that it could mean.

    Other than in `match_channels`, several names may mean one position.
    """
    places: list[dict[str, list[int]]] = [defaultdict(list) for _ in SPELLINGS]
    for position, name in enumerate(found):
        for by_name, spell in zip(places, SPELLINGS, strict=True):
            by_name[spell(name)].append(position)
    answers: list[tuple[int | None, list[int]]] = []
    for name in wanted:
        tiers = [by_name.get(spell(name), []) for by_name, spell in zip(places, SPELLINGS, strict=True)]
        closest = next(filter(None, tiers), [])
        answers.append((closest[0] if len(closest) == 1 else None, tiers[-1]))
    return answers


def match_channels(wanted: Sequence[str], found: Sequence[str]) -> list[int | None]:
    """Position in ``found`` of each name in ``wanted``; None where there is none, or more than one.

    Three spellings are tried in turn: as written, `canonical`, and `loosest`. A spelling
    counts only if no other name on either side has it too, and no position is given twice.

    >>> match_channels(["G1", "G2", "X1"], ["POL G2", "POL G1", "POL $G1"])
    [1, 0, None]
    >>> match_channels(["DC1", "G1"], ["G01", "G1", "DC01"])
    [2, 1]
    >>> match_channels(["G1"], ["G01", "G001"])  # either may be meant
    [None]
    """
    positions: list[int | None] = [None] * len(wanted)
    taken: set[int] = set()
    for spell in SPELLINGS:
        of_wanted, of_found = [spell(name) for name in wanted], [spell(name) for name in found]
        n_wanted, n_found = Counter(of_wanted), Counter(of_found)
        place = {name: position for position, name in enumerate(of_found)}
        for row, name in enumerate(of_wanted):
            sure = n_wanted[name] == 1 and n_found[name] == 1
            if positions[row] is None and sure and place[name] not in taken:
                positions[row] = place[name]
                taken.add(place[name])
    return positions
