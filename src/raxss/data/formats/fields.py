"""Strict parsing of header fields: numbers, rates, units, names of files, and limits on what a header may declare.

    text -> a number, a rate, a file that may be opened, or Refused

Python's own ``float`` and ``int`` are too kind to headers: they take ``1_0``, ``٣`` and ``infinity``.
Next: the formats read their headers with these.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import BinaryIO, TypeVar

from raxss.data.confinement import leads_outside, open_confined, problem_of_opening
from raxss.data.problems import Problem
from raxss.errors import display_name, join_names

H = TypeVar("H")  # a header
SIGNED = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
WHOLE = re.compile(r"\d{1,18}", re.ASCII)
MIN_RATE, MAX_RATE = 1e-5, 1e5  # Hz; a sample a day, and more than any converter of biosignals gives
MICROVOLTS = {"V": 1e6, "mV": 1e3, "uV": 1.0, "\u00b5V": 1.0, "\u03bcV": 1.0, "nV": 1e-3}  # micro sign, mu
# Every segment and every rate is decoded by itself, and readers take a millisecond and more for each.
MOST_SEGMENTS = 2000
MOST_RATES = 32
# Not voltages; a message may repeat them.
UNITS = {
    "uv", "mv", "nv", "kv", "v", "a", "ma", "ua", "\u00b5a", "na", "s", "ms", "us", "\u00b5s", "\u03bcs",
    "%", "c", "\u00b0c", "degc", "degreec", "k", "f", "deg", "rad", "deg/s", "bpm", "1/min", "rpm", "hz",
    "mmhg", "cmh2o", "mbar", "bar", "pa", "kpa", "l", "ml", "l/min", "l/s", "ml/min", "m", "cm", "mm", "um",
    "g", "mg", "n", "m/s", "m/s^2", "w", "mw", "ohm", "kohm", "mohm", "siemens", "t", "ut", "db", "lux",
    "au", "a.u.", "n/a", "none", "boolean", "bool",
}  # fmt: skip
HEADER_BYTES = 2**20  # that a header of text may have; real ones have some thousand
TO_DO = "Copy or export the recording again."
# Bytes of all samples as float64 over those of a packed file: recordings reach 2 to 20, flat lines thousands, and a
# file of 10 MB stays below 256 MB.
MAX_EXPANSION = 24
ALWAYS_ALLOWED = 2**26  # bytes of samples as float64 that any file may have, however well it is packed
ANNEX_POINTERS = (b"/annex/objects/", b"../.git/annex/", b".git/annex/")


class Refused(Exception):
    """Ends an inspection at once; a message without a full stop at its end gets `TO_DO`."""

    def __init__(self, code: str, message: str) -> None:
        self.problem = problem(code, message)
        super().__init__(self.problem.message)


def problem(code: str, message: str) -> Problem:
    """A problem; a message without a full stop at its end gets `TO_DO`."""
    return Problem(code, message if message.endswith(".") else f"{message}. {TO_DO}")


def inspected(path: Path, look: Callable[[list[Problem]], H]) -> tuple[H | None, list[Problem]]:
    """Run an inspection: what ``look(problems)`` returns, None where it is refused, and the problems it found."""
    problems: list[Problem] = []
    try:
        return look(problems), problems
    except Refused as refused:
        problems.append(refused.problem)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        message = f"{display_name(path)} cannot be read ({reason}). Check the disk."
        problems.append(Problem("not-readable", message))
    return None, problems


def open_unrefused(path: Path, root: Path) -> BinaryIO:
    """Open a file of a recording; `Refused` where it may not be opened or git-annex has only its place."""
    if not_downloaded(path, root):
        raise Refused("not-found", f"{display_name(path)} is only a git-annex pointer. Fetch it.")
    if found := problem_of_opening(path, root):
        raise Refused(found.code, found.message)
    return open_confined(path, root)


def header_bytes(path: Path, root: Path) -> bytes:
    """A header, up to a byte more than it may have."""
    with open_unrefused(path, root) as file:
        return file.read(HEADER_BYTES + 1)


def refuse_no_text(content: bytes) -> None:
    """Refuse a header that is too long or has NUL bytes."""
    if len(content) > HEADER_BYTES:
        raise Refused(
            "header-damaged", f"the header is longer than {HEADER_BYTES:,} bytes, as no real one is"
        )
    if b"\0" in content:
        raise Refused("header-damaged", "the header has NUL bytes; text is needed")


def is_bomb(n_samples: int, n_bytes: int) -> bool:
    """Whether so many samples, in memory, are far more than a recording packs into a file of so many bytes."""
    return n_samples * 8 > max(ALWAYS_ALLOWED, MAX_EXPANSION * n_bytes)


def number(text: str) -> float | None:
    """A finite number in digits, or None.

    >>> number(" 0.5 "), number("1e3"), number("nan"), number("1e999"), number("1_0")
    (0.5, 1000.0, None, None, None)
    """
    text = text.strip(" ")
    if len(text) > 100 or not NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole(text: str) -> int | None:
    """A whole number of at least 0 in digits, or None."""
    return int(text) if WHOLE.fullmatch(text.strip(" ")) else None


def signed(text: str) -> int | None:
    """A whole number in digits, with or without a sign, or None."""
    return int(text) if SIGNED.fullmatch(text.strip(" ")) else None


def refuse_rate(rate: float | None, stated: str) -> None:
    """Refuse a rate that no recording has; ``stated`` is how the header puts it.

    >>> refuse_rate(1e9, "a rate of 1e9")
    Traceback (most recent call last):
    raxss.data.formats.fields.Refused: the header has a rate of 1e9; a rate from 1e-05 to 100000 Hz is needed. ...
    """
    if rate is None or not MIN_RATE <= rate <= MAX_RATE:
        needed = f"a rate from {MIN_RATE:g} to {MAX_RATE:g} Hz is needed"
        raise Refused("bad-rate", f"the header has {stated}; {needed}")


def described(text: str) -> str:
    """What a message says about the content of a field: the number in it, or what else it is.

    Text is never repeated, because any field may hold a person's name; of numbers three digits are, so that none is
    a birth date or a hospital's number of a patient.

    >>> described("12.5"), described(" "), described("Jane Doe"), described("19510502"), described("1e999")
    ('12.5', 'nothing', 'text of 8 characters', '1.95e+07', 'a number without end')
    """
    text = text.strip()
    if not text:
        return "nothing"
    if re.fullmatch(r"[+-]?(nan|inf|infinity)", text, re.IGNORECASE):
        return "a number without end" if "inf" in text.lower() else "NaN"
    if len(text) <= 100 and NUMBER.fullmatch(text):
        return f"{float(text):.3g}" if math.isfinite(float(text)) else "a number without end"
    return "text of 1 character" if len(text) == 1 else f"text of {len(text)} characters"


def known_units(units: Iterable[str]) -> str:
    """Units as a message shows them: those that physicists use, and how many others there are.

    >>> known_units(["%", "degreeC", "Jane Doe"])
    "'%', 'degreeC' and 1 that is not shown"
    """
    every = sorted({unit.strip() for unit in units})
    known = [unit for unit in every if unit.lower() in UNITS]
    n_others = len(every) - len(known)
    others = f"{n_others} that {'is' if n_others == 1 else 'are'} not shown" if n_others else ""
    return " and ".join(filter(None, [", ".join(map(repr, known[:10])), others]))


def quoted(text: str) -> str:
    """A text that is no person's, in quotes and clipped."""
    return repr(text if len(text) <= 40 else f"{text[:30]}...")


def follow(name: str, folder: Path, root: Path, field: str) -> Path:
    """The file that a header's field names; `Refused` if it is not there or may not be opened. Opens nothing.

    >>> follow("../../secret.bin", Path("data/sub"), Path("data"), "DataFile")
    Traceback (most recent call last):
    raxss.data.formats.fields.Refused: DataFile leads out of the folder that the recording belongs to; ...
    """
    if not name or not name.isprintable():
        held = "a name with control characters" if name else "nothing"
        raise Refused("header-damaged", f"{field} holds {held}; the name of a file is needed")
    windows, path = PureWindowsPath(name), folder / name
    foreign = bool(windows.drive or windows.root) or ("\\" in name and ".." in windows.parts)
    if foreign or "://" in name or leads_outside(path, root):
        message = f"{field} leads out of the folder that the recording belongs to; nothing was opened"
        to_do = "Copy the file beside the header and write its bare name into the header."
        raise Refused("outside", f"{message}. {to_do}")
    if not_downloaded(path, root):
        raise Refused("not-found", f"the file that {field} names is only a git-annex pointer. Fetch it.")
    found = problem_of_opening(path, root, called=f"the file that {field} names")
    if found is not None and found.code == "not-found":
        to_do = "Copy it; if the files were renamed, write the new name into the header"
        raise Refused("not-found", f"{field} names a file that is not there (not shown here). {to_do}.")
    if found is not None:
        raise Refused(found.code, found.message)
    return path


def not_downloaded(path: Path, root: Path) -> bool:
    """Whether git-annex keeps the place of this file without its content: a dangling link, or a pointer."""
    if os.path.islink(path) and not os.path.exists(path):
        return ".git/annex/" in os.readlink(path).replace(os.sep, "/")
    if problem_of_opening(path, root) is not None or path.stat().st_size > 32768:
        return False
    with open_confined(path, root) as file:
        return file.read(16).startswith(ANNEX_POINTERS)


def named_channels(names: Sequence[str], places: Sequence[int]) -> str:
    """Channels as messages name them: name and position, ten at most."""
    return join_names(f"{quoted(names[place])} ({place})" for place in places)


def channel_problems(
    names: Sequence[str], units: Sequence[str] | None = None, *, blank: str = "", voltages: bool = True
) -> Iterator[Problem]:
    """Channels without a name or with another's, a unit (``blank``: what that means), or, if asked, a voltage."""
    units = ["V"] * len(names) if units is None else units
    places, counts = range(len(names)), Counter(names)
    nameless = [place for place in places if not names[place].strip()]
    alike = [place for place in places if names[place].strip() and counts[names[place]] > 1]
    unitless = [place for place in places if not units[place].strip()]
    others = [place for place in places if units[place].strip() and microvolts_per(units[place]) is None]
    shown_units = known_units(units[place] for place in others)
    groups = [
        ("nameless-channel", "without a name", nameless, "Use their positions."),
        ("duplicate-channel", "whose name is not theirs alone", alike, "Use their positions."),
        ("blank-unit", "without a unit", unitless, blank),
        ("unknown-unit", f"in units other than volts ({shown_units})", others, "They are taken as stored."),
    ]
    for code, what, found, to_do in groups if voltages else groups[:3]:
        if found:
            count = "1 channel" if len(found) == 1 else f"{len(found)} channels"
            yield Problem(code, f"the file has {count} {what}: {named_channels(names, found)}. {to_do}")


def rate_problems(rates: Iterable[float]) -> Iterator[Problem]:
    """Whether channels have different rates; rates that are impossible or too many raise `Refused`."""
    distinct = sorted(set(rates))
    for rate in (distinct[0], distinct[-1]):
        refuse_rate(rate, f"a rate of {rate:g} Hz")
    if len(distinct) > MOST_RATES:
        found = f"has channels of {len(distinct):,} different rates; at most {MOST_RATES:,} are read"
        raise Refused("too-many-pieces", f"the recording {found}. Export parts of it to files of their own.")
    if len(distinct) > 1:
        shown = join_names(f"{rate:g}" for rate in distinct)
        yield Problem("mixed-rates", f"the file has channels of {shown} Hz; each is read at its own rate.")


def refuse_many_segments(n_segments: int) -> None:
    """Refuse more segments than can be read in any reasonable time."""
    if n_segments > MOST_SEGMENTS:
        found = f"is in {n_segments:,} pieces with gaps in between; at most {MOST_SEGMENTS:,} are read"
        raise Refused("too-many-pieces", f"the recording {found}. Export parts of it to files of their own.")


def printable_text(text: str) -> str:
    """A text without control characters, and blanks around it."""
    return "".join(letter for letter in text if letter.isprintable()).strip()


def microvolts_per(unit: str) -> float | None:
    """How many microvolts one of a voltage unit is; None for a unit of something else.

    >>> microvolts_per("mV"), microvolts_per("\\u00b5V"), microvolts_per("%")
    (1000.0, 1.0, None)
    """
    return MICROVOLTS.get(unit.strip())
