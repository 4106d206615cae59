"""Strict parsing of header fields: numbers, rates, units, names of files, and limits on what a header may declare.

    text -> a number, a rate, a file that may be opened, or a Problem

Python's own ``float`` and ``int`` are too kind to headers: they take ``1_0``, ``٣`` and ``infinity``.
Next: the formats read their headers with these.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PureWindowsPath

from raxss.data.confinement import leads_outside, open_confined, problem_of_opening
from raxss.data.problems import Problem
from raxss.errors import display_name

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
CHANGED = "it changed while it was looked at"  # an error without a reason of the system
# Bytes of all samples as float64 over those of a packed file: recordings reach 2 to 20, flat lines thousands, and a
# file of 10 MB stays below 256 MB.
MAX_EXPANSION = 24
ALWAYS_ALLOWED = 2**26  # bytes of samples as float64 that any file may have, however well it is packed
ANNEX_POINTERS = (b"/annex/objects/", b"../.git/annex/", b".git/annex/")


class Refused(Exception):
    """Leaves an inspection at once: what comes later would rest on something that is not certain."""

    def __init__(self, code: str, message: str) -> None:
        self.problem = Problem(code, message)
        super().__init__(message)


def is_bomb(n_samples: int, n_bytes: int) -> bool:
    """Whether so many samples, in memory, are far more than a recording packs into a file of so many bytes.

    >>> is_bomb(10**6, 1000), is_bomb(10**8, 10**6)
    (False, True)
    """
    return n_samples * 8 > max(ALWAYS_ALLOWED, MAX_EXPANSION * n_bytes)


def number(text: str) -> float | None:
    """A finite number in digits, or None.

    Examples
    --------
    >>> number(" 0.5 "), number("1e3"), number("nan"), number("1e999"), number("1_0")
    (0.5, 1000.0, None, None, None)
    """
    text = text.strip()
    if len(text) > 100 or not NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole(text: str) -> int | None:
    """A whole number of at least 0 in digits, or None.

    Examples
    --------
    >>> whole("12"), whole("-1"), whole("1.0"), whole("")
    (12, None, None, None)
    """
    text = text.strip()
    return int(text) if WHOLE.fullmatch(text) else None


def signed(text: str) -> int | None:
    """A whole number in digits, with or without a sign, or None.

    Examples
    --------
    >>> signed("-12"), signed("1e3")
    (-12, None)
    """
    text = text.strip()
    return int(text) if SIGNED.fullmatch(text) else None


def rate_problem(rate: float | None, told: str) -> Problem | None:
    """Whether a rate is one that a recording can have; ``told`` is how the header puts it.

    Examples
    --------
    >>> rate_problem(250.0, "a rate of 250") is None
    True
    """
    if rate is not None and MIN_RATE <= rate <= MAX_RATE:
        return None
    return Problem(
        "bad-rate",
        f"the header has {told}; a rate from {MIN_RATE:g} to {MAX_RATE:g} Hz is needed. Correct the header, or "
        "export the recording again.",
    )


def described(text: str) -> str:
    """What a message says about the content of a field: the number in it, or what else it is.

    Text is never repeated: a header that is damaged or was filled in by hand may hold a person's name in any field.
    Of numbers only three digits are shown, so that none is a birth date or a hospital's number of a patient.

    Examples
    --------
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

    Examples
    --------
    >>> known_units(["%", "degreeC", "Jane Doe"])
    "'%', 'degreeC' and 1 that is not shown"
    """
    every = sorted({unit.strip() for unit in units})
    known = [unit for unit in every if unit.lower() in UNITS]
    n_others = len(every) - len(known)
    others = f"{n_others} that {'is' if n_others == 1 else 'are'} not shown" if n_others else ""
    return " and ".join(filter(None, [", ".join(map(repr, known[:10])), others]))


def quoted(text: str) -> str:
    """A short text that is not a person's as a message shows it: in quotes, clipped.

    Examples
    --------
    >>> quoted("12.5"), quoted("9" * 60)
    ("'12.5'", "'999999999999999999999999999999...'")
    """
    return repr(text if len(text) <= 40 else f"{text[:30]}...")


def follow(name: str, folder: Path, root: Path, field: str) -> Path | Problem:
    """The file that a header's field names, if it is there and may be opened. Opens nothing.

    Examples
    --------
    >>> follow("../../secret.bin", Path("data/sub"), Path("data"), "DataFile").code
    'outside'
    """
    if not name or not name.isprintable():
        found = "nothing" if not name else "a name with control characters"
        return Problem(
            "header-damaged", f"{field} holds {found}; the name of a file is needed. Copy it again."
        )
    windows = PureWindowsPath(name)
    foreign = bool(windows.drive or windows.root) or ("\\" in name and ".." in windows.parts)
    if foreign or "://" in name or leads_outside(folder / name, root):
        return Problem(
            "outside",
            f"{field} leads out of the folder that the recording belongs to; nothing was opened. Copy the file "
            "beside the header and write its bare name into the header.",
        )
    path = folder / name
    problem = problem_of_opening(path, root, called=f"the file that {field} names")
    if problem is None and not_downloaded(path, root):
        return Problem("not-found", _annexed(field, "pointer"))
    if problem is None:
        return path
    return missing(path, root, field) if problem.code == "not-found" else problem


def missing(path: Path, root: Path, field: str) -> Problem:
    """What to say about a file that is named and not there."""
    if not_downloaded(path, root):
        return Problem("not-found", _annexed(field, "link"))
    return Problem(
        "not-found",
        f"{field} names a file that is not there (the name is not shown here). Copy it; if the files were renamed, "
        "write the new name into the header.",
    )


def _annexed(field: str, what: str) -> str:
    return f"the file that {field} names is not downloaded: there is only a git-annex {what}. Fetch it."


def not_downloaded(path: Path, root: Path) -> bool:
    """Whether git-annex keeps the place of this file without its content: a dangling link, or a pointer."""
    if path.is_symlink() and not path.exists():
        return ".git/annex/" in os.readlink(path).replace(os.sep, "/")
    if problem_of_opening(path, root) is not None or path.stat().st_size > 32768:
        return False
    with open_confined(path, root) as file:
        return file.read(16).startswith(ANNEX_POINTERS)


def name_problems(names: Sequence[str]) -> list[Problem]:
    """Channels without a name, and names that several channels have."""
    problems = []
    n_nameless = sum(not name.strip() for name in names)
    if n_nameless:
        problems.append(
            Problem(
                "nameless-channel",
                f"{n_nameless} of {len(names)} channels have no name; use their positions.",
            )
        )
    repeated = [name for name, count in Counter(names).items() if count > 1 and name.strip()]
    if repeated:
        problems.append(
            Problem(
                "duplicate-channel",
                f"{len(repeated)} names stand for more than one channel, the first is {quoted(repeated[0])}; such "
                "channels are told apart by position.",
            )
        )
    return problems


def problem_of_rates(n_rates: int) -> Problem | None:
    """Whether a recording has more rates than can be read in any reasonable time."""
    if n_rates <= MOST_RATES:
        return None
    told = f"the recording has channels of {n_rates:,} different rates; at most {MOST_RATES} are read."
    return Problem("too-many-pieces", f"{told} Export parts of it to files of their own.")


def problem_of_segments(n_segments: int) -> Problem | None:
    """Whether a recording is in more pieces than can be read in any reasonable time."""
    if n_segments <= MOST_SEGMENTS:
        return None
    told = (
        f"the recording is in {n_segments:,} pieces with gaps in between; at most {MOST_SEGMENTS:,} are read."
    )
    return Problem("too-many-pieces", f"{told} Export parts of it to files of their own.")


def microvolts_per(unit: str) -> float | None:
    """How many microvolts one of a voltage unit is; None for a unit of something else.

    Examples
    --------
    >>> microvolts_per("mV"), microvolts_per("\\u00b5V"), microvolts_per("%")
    (1000.0, 1.0, None)
    """
    return MICROVOLTS.get(unit.strip())


def header_bytes(path: Path, root: Path, most: int) -> bytes:
    """The first ``most`` bytes of a header and one more, if there is one, of a file that may be opened."""
    problem = problem_of_opening(path, root)
    if problem is not None:
        raise Refused(problem.code, problem.message)
    if not_downloaded(path, root):
        raise Refused(
            "not-found", f"{display_name(path)} is not downloaded: it is a git-annex pointer. Fetch it."
        )
    with open_confined(path, root) as file:
        return file.read(most + 1)
