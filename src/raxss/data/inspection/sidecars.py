"""Sidecars of a BIDS recording, compared with the recording itself.

    signal file, root -> the sidecars that apply (inherited from higher folders) -> problems

What a sidecar and the recording both state must agree: names, number, units, types and rates of channels, the
length, the electrodes, the times of events. Where signal or scale would be uncertain the recording is refused;
where the recording's own value is used anyway it is a warning that says both values.
Sizes are bounded, nothing outside the root is opened, and no cell is quoted: events are about people.
"""

from __future__ import annotations

import math
import os
import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raxss._core.bounded import json_of, read_open
from raxss.data import tables
from raxss.data.confinement import leads_outside, root_of
from raxss.data.formats.fields import Refused, microvolts_per, number, open_unrefused, quoted
from raxss.data.formats.opening import open_recording
from raxss.data.names import canonical, is_no_electrode, match_channels
from raxss.data.problems import Problem, refusals
from raxss.data.tables import MAX_KEPT_ROWS, Table
from raxss.errors import DataError, RecordingError, display_name, join_names

NAME = re.compile(
    r"(?P<entities>(?:[a-z]+-[A-Za-z0-9+]+_)+)(?P<suffix>[A-Za-z0-9]+)(?P<ending>\.\w[\w.]*)", re.ASCII
)
DATATYPES = ("ieeg", "eeg")
BRAIN_TYPES = ("ECOG", "SEEG", "DBS", "EEG")
TYPE_OF_COUNT = {  # fields of *_ieeg.json and *_eeg.json, and the type of channels.tsv that each counts
    **{f"{kind}ChannelCount": kind for kind in ("ECOG", "SEEG", "EEG", "EOG", "ECG", "EMG", "MISC")},
    **{"MiscChannelCount": "MISC", "TriggerChannelCount": "TRIG"},
}
RATE_TOLERANCE = 1e-3  # relative: tables round 999.412...
SECONDS_TOLERANCE, SECONDS_SHARE = 1.0, 0.01  # whole seconds are often all that is written down
N_NAMED = 5  # names that a message lists
JSON_BYTES = 2**22


@dataclass(frozen=True)
class BidsName:
    """The parts of a file's name by the rules of BIDS."""

    entities: dict[str, str]
    suffix: str
    ending: str


def read_table(path: Path, root: Path, *, most_rows: int = tables.MAX_TABLE_ROWS) -> Table:
    """A tab-separated table, as `raxss.data.tables` reads it; what that refuses is a problem with a code."""
    open_unrefused(path, root).close()
    try:
        return tables.read_table(path, most_rows=most_rows)
    except RecordingError as error:
        raise Refused("sidecar-damaged", str(error)) from None


def read_json(path: Path, root: Path) -> dict[str, Any]:
    """A JSON object."""
    why = "no JSON file beside a recording is longer"
    try:
        with open_unrefused(path, root) as file:
            content = read_open(file, display_name(path), JSON_BYTES, why=why)
        value = json_of(content, display_name(path), finite=False)
    except DataError as error:
        raise Refused("sidecar-damaged", str(error)) from None
    if not isinstance(value, dict):
        raise Refused("sidecar-damaged", f"{display_name(path)} holds no JSON object ({{...}}). Correct it.")
    return value


@dataclass(frozen=True)
class RecordingFacts:
    """What a recording's own header states, one entry per channel."""

    names: Sequence[str]
    rates: Sequence[float]
    units: Sequence[str]  # as written; "" where there is none
    seconds: float | None = None  # None where it has gaps

    @property
    def usual_rate(self) -> float:
        """The rate of most channels."""
        return Counter(self.rates).most_common(1)[0][0] if self.rates else math.nan


def facts_of(path: Path, root: Path) -> RecordingFacts:
    """What the header of a recording that was not refused states."""
    with open_recording(path, root=root, inspect=False) as recording:
        channels, segments = recording.channels, recording.segments
        return RecordingFacts(
            [channel.name for channel in channels],
            [channel.rate for channel in channels],
            recording.stated_units or [channel.unit for channel in channels],
            segments[0].seconds if len(segments) == 1 else None,
        )


def inspect_sidecars(path: Path, root: Path, facts: RecordingFacts, *, events: bool = True) -> list[Problem]:
    """What is wrong with the tables and JSON files that apply to a signal file, or missing of them.

    ``events``: also of ``events.tsv`` and ``electrodes.tsv``, which do not bear on how samples are read.
    """
    problems: list[Problem] = []
    about = "ieeg.json" if path.stem.endswith("_ieeg") else "eeg.json"
    kinds = Counter[str]()  # of the rows of channels.tsv, which the counts in the JSON are of
    checks: dict[str, Callable[[list[Path]], Iterator[Problem]]] = {
        "channels.tsv": lambda found: _channels_problems(found[0], root, facts, kinds),
        about: lambda found: _json_problems(found, root, facts, kinds),
    }
    if events:
        checks["events.tsv"] = lambda found: _events_problems(found[0], root, facts)
        checks["electrodes.tsv"] = lambda found: _electrodes_problems(found[0], path, root, facts)
    for ending, check in checks.items():
        try:
            if found := sidecars_of(path, root, ending):
                problems += check(found)
            elif ending in ("channels.tsv", about):
                message = f"there is no {quoted(ending)} for this recording, neither beside it nor higher up."
                problems.append(Problem("sidecar-missing", message))
        except Refused as refused:
            problems.append(refused.problem)
        except OSError as error:
            problems.append(Problem("not-readable", f"a sidecar cannot be read ({error.strerror or error})."))
    return problems


def sidecars_of(path: Path, root: Path, ending: str) -> list[Path]:
    """Files called ``*_<ending>`` that apply to a recording, the nearest and most special first.

    One applies if it lies in the recording's folder or above, and all its entities are the recording's own; of
    ``electrodes.tsv`` the coordinate space does not count, which no recording has.
    """
    mine = parsed(path.name)
    if mine is None:
        return _beside(path, root, ending)
    spaced = ending == "electrodes.tsv"
    found: list[Path] = []
    folder, root = Path(os.path.abspath(path)).parent, Path(os.path.abspath(root))
    while True:
        here = []
        for name in sorted(names_in(folder, root)):
            other = parsed(name) if name.endswith(f"_{ending}") else None
            entities = {} if other is None else other.entities
            if spaced:
                entities = {key: value for key, value in entities.items() if key != "space"}
            if name == ending or (other is not None and entities.items() <= mine.entities.items()):
                here.append((-len(entities), name))
        if not spaced and len(here) > 1 and sorted(here)[0][0] == sorted(here)[1][0]:
            raise Refused("not-bids", f"two files {quoted(ending)} of one folder apply to it alike.")
        found += [folder / name for _, name in sorted(here)]
        if folder == root or root not in folder.parents:
            return found
        folder = folder.parent


def _beside(path: Path, root: Path, ending: str) -> list[Path]:
    """``night_channels.tsv`` beside ``night_ieeg.edf`` or ``night.edf``, whose names are none by BIDS's rules."""
    stem = re.sub("_i?eeg$", "", path.stem)
    if ending.endswith(".json") and stem == path.stem:  # a night.json beside night.edf may be anything
        return []
    name = f"{stem}_{ending}"
    return [path.with_name(name)] if name in names_in(path.parent, root) else []


def tree_of(path: Path) -> Path:
    """The folder that sidecars of a file are inherited from: above ``sub-*``, or `root_of` the file.

    >>> tree_of(Path("/data/sub-01/ses-1/ieeg/sub-01_ses-1_ieeg.edf")).as_posix()
    '/data'
    """
    folders = Path(os.path.abspath(path)).parents
    if folders[0].name in DATATYPES and len(folders) > 2:
        above = folders[2] if folders[1].name.startswith("ses-") and len(folders) > 3 else folders[1]
        if above.name.startswith("sub-"):
            return above.parent
    return root_of(path)


def parsed(name: str) -> BidsName | None:
    """Entities, suffix and ending of a file's name; None if it is no name by the rules of BIDS.

    >>> parsed("sub-01_run-01_ieeg.edf").entities
    {'sub': '01', 'run': '1'}
    """
    matched = NAME.fullmatch(name)
    if matched is None:
        return None
    pairs = [pair.split("-") for pair in matched["entities"].rstrip("_").split("_")]
    entities = {
        key: (value.lstrip("0") or "0") if key == "run" and value.isdigit() else value for key, value in pairs
    }
    if len(entities) < len(pairs):
        return None
    return BidsName(entities, matched["suffix"], matched["ending"])


def names_in(folder: Path, root: Path) -> list[str]:
    """Names in a folder that is inside; hidden files, which other systems leave behind, do not count."""
    if leads_outside(folder, root) or not folder.is_dir():
        return []
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        return []


def shown_names(names: Sequence[str]) -> str:
    """The first few, in quotes."""
    return join_names(map(quoted, names), N_NAMED)


def _json_problems(
    found: Sequence[Path], root: Path, facts: RecordingFacts, kinds: Counter[str]
) -> Iterator[Problem]:
    """Each is an object; of every field, the nearest file that has it counts."""
    stated = dict(ChainMap(*(read_json(path, root) for path in found)))
    rate = _float_of(stated.get("SamplingFrequency"))
    if stated.get("SamplingFrequency") is None:
        yield Problem("sidecar-incomplete", f"{display_name(found[0])} has no SamplingFrequency. Add it.")
    elif not _alike(rate, facts.usual_rate):
        shown = "no number that a rate can be" if math.isnan(rate) else f"{rate:g}"
        message = f"SamplingFrequency is {shown}, and the recording has {facts.usual_rate:g} Hz, which counts"
        to_do = "Correct the sidecar; if the header is wrong, export again."
        yield Problem("rate-disagrees", f"{message}. {to_do}")
    if facts.seconds is None and stated.get("RecordingType") == "continuous":
        message = "RecordingType is 'continuous', and the recording has gaps, which count"
        yield Problem("sidecar-disagrees", f"{message}. Correct the sidecar.")
    seconds, real = _float_of(stated.get("RecordingDuration")), facts.seconds or math.nan
    if abs(seconds - real) > max(SECONDS_TOLERANCE, SECONDS_SHARE * real):  # never true of NaN
        message = f"RecordingDuration is {seconds:g} s, and the recording lasts {real:g} s, which counts"
        yield Problem("sidecar-disagrees", f"{message}. Is it cut off, or is this another run's sidecar?")
    yield from _count_problems(stated, facts, kinds)


def _count_problems(stated: dict[str, Any], facts: RecordingFacts, kinds: Counter[str]) -> Iterator[Problem]:
    """Channels of each type by the JSON against the rows of channels.tsv, or else against all channels."""
    every = {field: _float_of(stated.get(field)) for field in TYPE_OF_COUNT}
    counts = {field: int(count) for field, count in every.items() if 0 <= count < 2**31}
    total, n_channels = sum(counts.values()), len(facts.names)
    if not kinds and total > n_channels:
        message = f"the sidecar counts {total} channels, and the recording has {n_channels}, which count"
        yield Problem("sidecar-disagrees", f"{message}. Is it another run's sidecar?")
    wrong = [
        f"{field} is {count}, and channels.tsv has {kinds[TYPE_OF_COUNT[field]]} of type {TYPE_OF_COUNT[field]}"
        for field, count in counts.items()
        if kinds and count != kinds[TYPE_OF_COUNT[field]]
    ]
    if wrong:
        yield Problem("sidecar-disagrees", f"{'; '.join(wrong)}. The table counts; correct one of them.")


def _float_of(value: Any) -> float:
    """A number of a JSON file; NaN where it is none, or one beyond what any field can mean."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else math.nan


def _alike(stated: float, real: float) -> bool:
    return math.isclose(stated, real, rel_tol=RATE_TOLERANCE)


def _channels_problems(
    path: Path, root: Path, facts: RecordingFacts, kinds: Counter[str]
) -> Iterator[Problem]:
    table = read_table(path, root, most_rows=MAX_KEPT_ROWS)
    rows = table.values("name")
    if not rows:
        found = f"{display_name(path)} has no {'column' if rows is None else 'row below'} 'name'"
        raise Refused("sidecar-damaged", f"{found}; one row per channel is needed. Correct it.")
    types = table.values("type")
    if types is None:
        yield Problem("sidecar-incomplete", f"{display_name(path)} has no column 'type'. Add it.")
    else:
        kinds.update(kind.upper() for kind in types)
        # a trigger or an ECG that is called an electrode would be scored as one
        pairs = zip(rows, types, strict=True)
        if wrong := [name for name, kind in pairs if kind.upper() in BRAIN_TYPES and is_no_electrode(name)]:
            message = f"channels.tsv gives {len(wrong)} channels a type of electrodes, by their names none"
            to_do = "The table counts; correct it if it is wrong."
            yield Problem("sidecar-disagrees", f"{message}: {shown_names(wrong)}. {to_do}")
    if other := sum(status.lower() not in ("", "good", "bad") for status in table.values("status") or ()):
        message = f"channels.tsv has a status neither good nor bad in {other} of {len(table.rows)} rows"
        to_do = "Write 'bad' where that is meant."
        yield Problem("sidecar-incomplete", f"{message}; these count as good. {to_do}")
    positions, differences = _matched(rows, facts.names)
    yield from differences
    if not refusals(differences):
        wrong_rates = [
            (value, facts.rates[place])
            for text, place in zip(table.values("sampling_frequency") or (), positions, strict=False)
            if place is not None and text
            if (value := number(text)) is None or not _alike(value, facts.rates[place])
        ]
        if wrong_rates:
            stated, real = wrong_rates[0]
            message = f"channels.tsv gives {len(wrong_rates)} channels another sampling_frequency than it has"
            first = f"the first {'no number' if stated is None else f'{stated:g}'} for {real:g} Hz"
            yield Problem("rate-disagrees", f"{message}, {first}, which counts.")
        yield from _unit_problems(table, positions, facts)


def _matched(rows: Sequence[str], names: Sequence[str]) -> tuple[list[int | None], list[Problem]]:
    """Position in the recording of each row, and how far the two differ."""
    if [_plain(name) for name in rows] == [_plain(name) for name in names]:  # names that stand twice included
        return list(range(len(names))), []
    positions = match_channels(rows, names)
    left_rows = [name for name, position in zip(rows, positions, strict=True) if position is None]
    left_channels = [name for place, name in enumerate(names) if place not in positions]
    if any(map(canonical, (*left_rows, *left_channels))) or len(left_rows) != len(left_channels):
        message = f"channels.tsv has {len(rows)} channels and the recording {len(names)}"
        for what, left in (("only in the table", left_rows), ("only in the recording", left_channels)):
            message += f"; {what}, or ambiguous: {shown_names(left)}" if left else ""
        message += ". Correct the table, or copy the right one."
        return positions, [Problem("channels-disagree", message)]
    problems = []
    pairs = [
        (name, names[place])
        for name, place in zip(rows, positions, strict=True)
        if place is not None and _plain(name) != _plain(names[place])
    ]
    if pairs:
        message = f"{len(pairs)} of {len(names)} channels are spelt otherwise in channels.tsv, the first "
        message += f"{quoted(pairs[0][0])} for {quoted(pairs[0][1])}; each was matched for certain."
        problems.append(Problem("channels-renamed", message))
    in_order = [place for place in positions if place is not None]
    if in_order != sorted(in_order):
        message = "channels.tsv lists the channels in another order than the recording"
        problems.append(Problem("channels-reordered", f"{message}; labels attach by name."))
    return positions, problems


def _plain(name: str) -> str:
    """A name as it is, but for the ways to write none."""
    return name.strip() if canonical(name) else ""


def _unit_problems(table: Table, positions: Sequence[int | None], facts: RecordingFacts) -> Iterator[Problem]:
    """Voltages of which the table and the header state different units; what is no voltage is left alone.

    Converters that work in volts write V into the table and microvolts into the file, so that alone is a habit;
    any other factor leaves the scale uncertain.
    """
    wrong: list[tuple[str, str, str, float]] = []
    for text, place in zip(table.values("units") or (), positions, strict=False):
        stated = microvolts_per(text)
        if place is None or stated is None:
            continue
        real = microvolts_per(facts.units[place])
        if real is not None and real != stated:
            wrong.append((facts.names[place], text, facts.units[place].strip(), stated / real))
    scaled = [item for item in wrong if item[1].strip() != "V"]
    if scaled:
        name, text, unit, factor = scaled[0]
        message = f"channels.tsv and the header give {len(scaled)} of {len(positions)} channels other units"
        first = f"{quoted(name)} {text.strip()} in the table, {unit} in the header, a factor of {factor:g}"
        to_do = "Correct the one that is wrong; n/a in the table leaves it to the header."
        yield Problem("units-disagree", f"{message}, the first {first}. {to_do}")
    if len(wrong) > len(scaled):
        message = f"channels.tsv gives {len(wrong) - len(scaled)} channels the unit V, as some converters do"
        yield Problem("units-in-volts", f"{message}; the header has another, which counts.")


def _electrodes_problems(path: Path, signal: Path, root: Path, facts: RecordingFacts) -> Iterator[Problem]:
    """Every electrode that was recorded has a row; rows of contacts that were not recorded are usual."""
    rows = read_table(path, root, most_rows=MAX_KEPT_ROWS).values("name")
    if rows is None:
        raise Refused("sidecar-damaged", f"{display_name(path)} has no column 'name'. Correct it.")
    names = list(facts.names)
    tables = sidecars_of(signal, root, "channels.tsv")
    if tables:
        table = read_table(tables[0], root, most_rows=MAX_KEPT_ROWS)
        kinds = table.values("type") or [""] * len(table.rows)
        pairs = zip(table.values("name") or (), kinds, strict=True)
        names = [name for name, kind in pairs if kind.upper() in BRAIN_TYPES]
    known = {canonical(row) for row in rows}
    unknown = [name for name in names if canonical(name) not in known and not is_no_electrode(name)]
    # a bipolar channel has two
    lost = [name for name in unknown if not all(canonical(pole) in known for pole in name.split("-"))]
    if lost:
        message = f"{len(lost)} of {len(names)} channels have no row in {display_name(path)}"
        question = "Is it another subject's or session's table?"
        yield Problem("sidecar-disagrees", f"{message}: {shown_names(lost)}. {question}")


def _events_problems(path: Path, root: Path, facts: RecordingFacts) -> Iterator[Problem]:
    """Onsets are numbers, and inside. What an event is called is never quoted."""
    table, name = read_table(path, root), display_name(path)
    onsets, durations = table.values("onset"), table.values("duration")
    if onsets is None:
        raise Refused("sidecar-damaged", f"{name} has no column 'onset'. Correct it.")
    if durations is None:
        yield Problem("sidecar-incomplete", f"{name} has no column 'duration'. Add it.")
    starts = [number(onset) for onset in onsets]
    for row, (onset, start) in enumerate(zip(onsets, starts, strict=True), start=2):
        if onset and start is None:
            raise Refused("sidecar-damaged", f"{name} has no number as onset in row {row}. Correct it.")
    n_events = len(starts) - starts.count(None)
    end = math.inf if facts.seconds is None else facts.seconds + 1e-6
    if n_outside := sum(start is not None and not 0 <= start <= end for start in starts):
        of = "" if facts.seconds is None else f" of the {facts.seconds:g} s that were recorded"
        message = f"{n_outside} of {n_events} events of {name} lie before the start or after the end{of}."
        yield Problem("events-outside", message)
    n_longer = sum(
        start is not None and length is not None and 0 <= start <= end < start + length - 1 / facts.usual_rate
        for start, length in zip(starts, map(number, durations or ()), strict=False)
    )
    if n_longer:
        message = f"{n_longer} of {n_events} events of {name} begin inside and last beyond the end."
        yield Problem("events-outside", message)
    # The column ``sample`` states the onset again, counted from 0 or from 1; onsets are rounded.
    wrong = [
        (sample, expected)
        for start, sample in zip(starts, map(number, table.values("sample") or ()), strict=False)
        if start is not None and sample is not None
        if abs(sample - (expected := start * facts.usual_rate))
        > 2 + 1e-3 * facts.usual_rate + 1e-6 * abs(expected)
    ]
    if wrong:
        message = f"{len(wrong)} events of {name} have a 'sample' that is not their 'onset'"
        first = f"at {facts.usual_rate:g} Hz, the first {wrong[0][0]:g} for {wrong[0][1]:g}"
        yield Problem("sidecar-disagrees", f"{message} {first}; the onset counts.")
