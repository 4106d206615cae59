"""The marker file of a BrainVision recording, read strictly.

    .vmrk -> Marker(position, begins_segment, date) for each line; problems

Pauses of a recording are marked in this file and nowhere else ("New Segment"). A file that is not understood in
every line may have lost one, and the signal before and after the pause would be joined; so it is refused.
Next: header.py makes segments of the markers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PureWindowsPath

from raxss.data.confinement import open_confined
from raxss.data.formats.fields import Refused, signed
from raxss.data.problems import Problem

MARKER_BYTES = 2**23  # that a marker file may have
# The first lines that MNE accepts.
MAGIC = re.compile(r"Brain ?Vision( Core| V-Amp)? Data( Exchange)? Marker File,? Version \d+\.\d+")
LINE_ENDS = re.compile(r"\r\n|\r|\n")
SECTION = re.compile(r"\[(.*)\]")
MARKER = re.compile(r"Mk(\d{1,9})=(.*)", re.IGNORECASE | re.ASCII)
TO_DO = "Copy or export it again; without a .vmrk file it is read, with a warning that gaps are not known."


@dataclass(frozen=True)
class Marker:
    """One marker: its sample, counted from 1; whether a segment begins there; when, if it says so."""

    position: int
    begins_segment: bool
    date: datetime | None


def read_markers(
    marker_file: Path, root: Path, data_file: Path, n_samples: int, problems: list[Problem]
) -> list[Marker]:
    """Every marker of a file, none left out; a file that may be damaged is refused."""
    text = _text_of(marker_file, root)
    lines = LINE_ENDS.split(text)
    if MAGIC.search(lines[0][:200]) is None:
        needed = "'Brain Vision Data Exchange Marker File, Version 1.0'"
        raise _damaged(f"the first line of the marker file is not that of one ({needed})")
    markers: list[Marker] = []
    numbers: list[int] = []
    names: list[str] = []
    n_dated_others = n_bad_dates = 0
    section, sections = "", []
    for place, line in enumerate(map(str.strip, lines[1:]), start=2):
        if not line or line.startswith(";"):
            continue
        if found := SECTION.fullmatch(line):
            section = found[1].strip().casefold()
            sections.append(section)
        elif section == "common infos":
            field, _, value = line.partition("=")
            if field.strip().casefold() == "datafile":
                names.append(value.strip())
        elif section == "marker infos":
            found = MARKER.fullmatch(line)
            if found is None:
                raise _damaged(f"line {place} of the marker file is not a marker (Mk1=..., Mk2=...)")
            numbers.append(int(found[1]))
            fields = found[2].strip().split(",")  # type, description, position, size, channel, date
            marker, is_date_bad = _marker_of(place, fields)
            markers.append(marker)
            n_bad_dates += is_date_bad
            n_dated_others += not marker.begins_segment and _date_of("".join(fields[5:6])) is not None
    if sections.count("marker infos") != 1:
        count = f"{sections.count('marker infos')} sections [Marker Infos]"
        raise _damaged(f"the marker file has {count}; 1 is needed, so it is cut off or damaged")
    problems += _problems_of_markers(numbers, n_dated_others, n_bad_dates, ends=text.endswith(("\n", "\r")))
    named = {PureWindowsPath(name.replace("$b", marker_file.stem)).name.casefold() for name in names if name}
    if named and named != {data_file.name.casefold()}:
        message = "the marker file names another data file than the header (not shown here), and is used"
        to_do = "If files were only renamed, correct DataFile in it."
        problems.append(Problem("markers-doubtful", f"{message}. {to_do}"))
    if n_outside := sum(not 1 <= marker.position <= n_samples for marker in markers):
        outside = f"{n_outside} of {len(markers)} markers lie outside of the {n_samples:,} samples"
        problems.append(Problem("events-outside", f"{outside}; they are not used."))
    return markers


def _text_of(marker_file: Path, root: Path) -> str:
    """Latin-1 suits every encoding here: what is looked at is ASCII in all of them."""
    with open_confined(marker_file, root) as file:
        content = file.read(MARKER_BYTES + 1)
    if len(content) > MARKER_BYTES:
        raise Refused("too-large", f"the marker file is longer than {MARKER_BYTES:,} bytes. Export it again.")
    if not content.strip():
        raise _damaged(f"the marker file is empty ({len(content):,} bytes)")
    if b"\0" in content:
        raise _damaged("the marker file has NUL bytes; text in UTF-8 or Latin-1 is needed")
    return content.decode("latin-1")


def _damaged(what: str) -> Refused:
    return Refused("sidecar-damaged", f"{what}. {TO_DO}")


def _marker_of(place: int, fields: Sequence[str]) -> tuple[Marker, bool]:
    """A marker, and whether it has a date that cannot be understood."""
    position = signed(fields[2]) if len(fields) >= 4 else None
    if position is None:
        found = f"the marker in line {place} of the marker file cannot be understood"
        raise _damaged(f"{found}; type, description, position and length, separated by commas, are needed")
    begins = fields[0].strip().casefold() == "new segment"
    text = fields[-1].strip() if begins and len(fields) > 4 else ""
    date = _date_of(text)
    is_bad = len(fields) > 5 and date is None and bool(text.strip("0"))
    return Marker(position, begins, date), is_bad


def _date_of(text: str) -> datetime | None:
    text = text.strip()
    try:
        return datetime.strptime(text, "%Y%m%d%H%M%S%f") if len(text) == 20 and int(text) else None
    except ValueError:
        return None


def _problems_of_markers(
    numbers: Sequence[int], n_dated_others: int, n_bad_dates: int, *, ends: bool
) -> Iterator[Problem]:
    """Signs that lines were lost or damaged, and pauses with them."""
    signs = {
        "it has no marker at all": not numbers,
        f"its {len(numbers)} markers are not numbered in order, each once": (
            list(numbers) != list(range(1, len(numbers) + 1))
        ),
        "its last line does not end": not ends,
        f"{n_bad_dates} markers of new segments have a date that cannot be understood": n_bad_dates,
        f"{n_dated_others} markers of other types have a date, as only new segments do": n_dated_others,
    }
    if faults := [fault for fault, is_so in signs.items() if is_so]:
        message = f"the marker file may be incomplete: {'; '.join(faults)}. Gaps may be missing"
        yield Problem("markers-doubtful", f"{message}; compare it with the original.")
