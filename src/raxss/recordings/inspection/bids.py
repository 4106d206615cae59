"""Does this BIDS dataset mean what its names and tables say?

    root -> one Inspection of the root, and one of each recording below sub-*/[ses-*/](ieeg|eeg)

A file's name says whose it is, and a table beside it says which channel is what. A name that contradicts its
folder, or a table that has other channels than the recording, would put a label on the wrong signal: these are
refused. What can be matched for certain is a warning. Sidecars are inherited from higher folders.
Next: recordings/bids.py plans series of what passed.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raxss.errors import listed, shown
from raxss.recordings.inspection import brainvision, edf
from raxss.recordings.inspection.confinement import DESCRIPTION, leads_outside
from raxss.recordings.inspection.fields import Refused, not_downloaded, number, quoted
from raxss.recordings.inspection.front import inspect_file
from raxss.recordings.inspection.tables import read_json, read_table
from raxss.recordings.names import canonical, match_channels
from raxss.recordings.problems import Inspection, Problem, refusals
from raxss.recordings.tables import MAX_KEPT_ROWS, Table

DATATYPES = ("ieeg", "eeg")
SIGNAL_SUFFIXES = (".edf", ".bdf", ".vhdr", ".set", ".nwb", ".mefd")
READ_SUFFIXES = (".edf", ".bdf", ".vhdr")
PARTS = (".eeg", ".vmrk", ".fdt")  # belong to a signal file of the same name
TABLES = ("channels.tsv", "events.tsv")
NAME = re.compile(
    r"(?P<entities>(?:[a-z]+-[A-Za-z0-9+]+_)+)(?P<suffix>[A-Za-z0-9]+)(?P<ending>\.\w[\w.]*)", re.ASCII
)
SUBJECT = re.compile(r"sub-[A-Za-z0-9+]+", re.ASCII)
SESSION = re.compile(r"ses-[A-Za-z0-9+]+", re.ASCII)
RATE_TOLERANCE = 1e-3  # relative: tables round 999.412...
N_NAMED = 5  # names that a message lists

Entities = dict[str, str]


@dataclass(frozen=True)
class _Name:
    entities: Entities
    suffix: str
    ending: str


def inspect_bids_root(root: Path) -> list[Inspection]:
    """Look at a BIDS dataset as a whole: the first entry is the root itself, then each recording in order.

    Examples
    --------
    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> _ = (root / "dataset_description.json").write_text("not JSON")
    >>> [problem.code for problem in inspect_bids_root(root)[0].problems]
    ['sidecar-damaged', 'no-data']
    """
    problems = _description_problems(root)
    recordings: list[Inspection] = []
    subjects: list[str] = []
    for folder in _folders(root, SUBJECT, "sub-", root, problems):
        subjects.append(folder.name)
        sessions = list(_folders(folder, SESSION, "ses-", root, problems))
        for above in (folder, *sessions):
            for datatype in DATATYPES:
                recordings += _recordings_of(above, datatype, root, problems)
    if subjects:
        problems += _participants_problems(root, subjects)
    problems += _absence_problems(recordings)
    return [Inspection(str(root), tuple(problems)), *recordings]


def inspect_bids_recording(path: Path, root: Path) -> list[Problem]:
    """What is wrong with one recording of a dataset: its name, the file, its sidecars."""
    return _recording_problems(path, root, n_alike=1)


def inspect_sidecars(
    path: Path,
    root: Path,
    channel_names: Sequence[str],
    rates: Sequence[float],
    *,
    seconds: float | None = None,
) -> list[Problem]:
    """What is wrong with the tables and JSON files that apply to a recording.

    Parameters
    ----------
    path
        The signal file; its name tells which sidecars apply.
    channel_names, rates
        Of the recording, one for each channel.
    seconds
        How long the recording is, where that is known; events after it are counted.
    """
    problems: list[Problem] = []
    suffix = path.stem.rpartition("_")[2]
    checks: tuple[tuple[str, Callable[[list[Path]], list[Problem]]], ...] = (
        (f"{suffix}.json", lambda found: _json_problems(found, root, rates)),
        ("channels.tsv", lambda found: _channels_problems(found[0], root, channel_names, rates)),
        ("events.tsv", lambda found: _events_problems(found[0], root, seconds)),
    )
    for ending, check in checks:
        try:
            found = sidecars_of(path, root, ending)
            if found:
                problems += check(found)
            elif ending != "events.tsv":
                told = f"there is no {quoted(ending)} for this recording, neither beside it nor higher up."
                problems.append(Problem("sidecar-missing", told))
        except Refused as refused:
            problems.append(refused.problem)
        except OSError as error:
            problems.append(Problem("not-readable", f"a sidecar cannot be read ({error.strerror or error})."))
    return problems


def sidecars_of(path: Path, root: Path, ending: str) -> list[Path]:
    """Files called ``*_<ending>`` that apply to a recording, the nearest and most special first.

    One applies if it lies in the recording's folder or above, and all its entities are the recording's own.
    """
    mine = _parsed(path.name)
    if mine is None:
        return []
    found: list[Path] = []
    folder, root = Path(os.path.abspath(path)).parent, Path(os.path.abspath(root))
    while True:
        here = []
        for name in sorted(_listed(folder, root)):
            other = _parsed(name) if name.endswith(f"_{ending}") else None
            if name == ending or (other is not None and other.entities.items() <= mine.entities.items()):
                here.append((-len(other.entities) if other is not None else 0, name))
        if len(here) > 1 and sorted(here)[0][0] == sorted(here)[1][0]:
            raise Refused(
                "not-bids", f"two files {quoted(ending)} of one folder apply to this recording alike."
            )
        found += [folder / name for _, name in sorted(here)]
        if folder == root or root not in folder.parents:
            return found
        folder = folder.parent


def _parsed(name: str) -> _Name | None:
    """Entities, suffix and ending of a file's name; None if it is no name by the rules of BIDS."""
    matched = NAME.fullmatch(name)
    if matched is None:
        return None
    pairs = [pair.split("-") for pair in matched["entities"].rstrip("_").split("_")]
    entities = {
        key: (value.lstrip("0") or "0") if key == "run" and value.isdigit() else value for key, value in pairs
    }
    if len(entities) < len(pairs):
        return None
    return _Name(entities, matched["suffix"], matched["ending"])


def _listed(folder: Path, root: Path) -> list[str]:
    """Names in a folder that is inside; hidden files, which other systems leave behind, do not count."""
    if leads_outside(folder, root) or not folder.is_dir():
        return []
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        return []


def _folders(
    above: Path, pattern: re.Pattern[str], prefix: str, root: Path, problems: list[Problem]
) -> Iterator[Path]:
    """Folders of subjects or sessions; what is not named or placed as it should be is said once."""
    for name in sorted(_listed(above, root)):
        folder = above / name
        if not name.startswith(prefix) or (not folder.is_dir() and not folder.is_symlink()):
            continue
        if leads_outside(folder, root):
            told = f"the folder {shown(folder)} is a link that leads out of the dataset; it was not opened."
            problems.append(Problem("outside", told))
        elif not pattern.fullmatch(name):
            told = f"the folder {shown(folder)} is not called {prefix} and letters or digits. Rename it."
            problems.append(Problem("not-bids", told))
        elif folder.is_dir():
            yield folder


def _description_problems(root: Path) -> list[Problem]:
    try:
        if not (root / DESCRIPTION).exists() and not (root / DESCRIPTION).is_symlink():
            told = f"there is no {DESCRIPTION}, which makes a folder a BIDS dataset. Add it."
            return [Problem("sidecar-missing", told)]
        description = read_json(root / DESCRIPTION, root)
    except Refused as refused:
        return [refused.problem]
    lacking = [field for field in ("Name", "BIDSVersion") if not isinstance(description.get(field), str)]
    if lacking:
        return [Problem("sidecar-incomplete", f"{DESCRIPTION} has no {' and no '.join(lacking)}. Add it.")]
    return []


def _participants_problems(root: Path, subjects: Sequence[str]) -> list[Problem]:
    path = root / "participants.tsv"
    if not path.exists() and not path.is_symlink():
        return [
            Problem("sidecar-missing", "there is no participants.tsv; nothing is known about the subjects.")
        ]
    try:
        listed = read_table(path, root, most_rows=MAX_KEPT_ROWS).values("participant_id")
    except Refused as refused:
        return [refused.problem]
    if listed is None:
        return [Problem("sidecar-damaged", "participants.tsv has no column 'participant_id'. Correct it.")]
    repeated = [name for name, count in Counter(listed).items() if count > 1]
    if repeated:
        told = f"{_names(repeated)}: more than one row; which one counts is not certain. Correct participants.tsv."
        return [Problem("sidecar-damaged", told)]
    problems = []
    for told, names in (
        ("have a folder and no row in participants.tsv", sorted(set(subjects) - set(listed))),
        ("have a row in participants.tsv and no folder", sorted(set(listed) - set(subjects))),
    ):
        if names:
            problems.append(
                Problem("participants-disagree", f"{len(names)} subjects {told}: {_names(names)}.")
            )
    return problems


def _absence_problems(recordings: Sequence[Inspection]) -> list[Problem]:
    """One statement about all signals that are not there."""
    absent = [one for one in recordings if any(problem.code == "not-found" for problem in one.problems)]
    if absent:
        told = f"{len(absent)} of {len(recordings)} recordings have no signals here; the first is "
        told += f"{shown(Path(absent[0].path))}. Fetch them from where the dataset comes from."
        return [Problem("not-found", told)]
    if not recordings:
        return [
            Problem(
                "no-data", "the dataset has no recordings in sub-*/[ses-*/]ieeg or eeg. Check the folder."
            )
        ]
    return []


def _recordings_of(above: Path, datatype: str, root: Path, problems: list[Problem]) -> list[Inspection]:
    """Every recording in one folder, and every one that must be there because its sidecars are."""
    folder = above / datatype
    if leads_outside(folder, root):
        told = (
            f"{shown(folder)} of {shown(above)} is a link that leads out of the dataset; it was not opened."
        )
        problems.append(Problem("outside", told))
        return []
    names = _listed(folder, root)
    signals = sorted(name for name in names if Path(name).suffix.lower() in SIGNAL_SUFFIXES)
    same = Counter(_key(name, datatype) for name in signals)
    inspections = [
        Inspection(
            str(folder / name), tuple(_recording_problems(folder / name, root, same[_key(name, datatype)]))
        )
        for name in signals
    ]
    for stem, lacking in sorted(_without_signal(names, signals, datatype).items()):
        inspections.append(Inspection(str(folder / stem), (Problem("not-found", lacking),)))
    return inspections


def _key(name: str, datatype: str) -> Any:
    """What two signal files must not share: all entities."""
    parsed = _parsed(name)
    return frozenset(parsed.entities.items()) if parsed is not None and parsed.suffix == datatype else name


def _without_signal(names: Sequence[str], signals: Sequence[str], datatype: str) -> dict[str, str]:
    """Recording -> what is missing, for data files without a header and sidecars that apply to nothing."""
    stems = {Path(name).stem for name in signals}
    missing = {
        Path(
            name
        ).stem: f"{shown(Path(name).stem)} has a data file and no header (.vhdr) beside it. Copy the header."
        for name in names
        if Path(name).suffix.lower() in PARTS and Path(name).stem not in stems
    }
    parsed_signals = [parsed for name in signals if (parsed := _parsed(name)) is not None]
    sidecars = defaultdict(list)
    for name in names:
        parsed = _parsed(name)
        if parsed is None or f"{parsed.suffix}{parsed.ending}" not in (*TABLES, f"{datatype}.json"):
            continue
        if not any(parsed.entities.items() <= signal.entities.items() for signal in parsed_signals):
            sidecars[f"{name.rpartition('_')[0]}_{datatype}"].append(name)
    for stem, files in sidecars.items():
        told = f"{shown(stem)} has {len(files)} sidecars and no signal file. Fetch it as the dataset says."
        missing.setdefault(stem, told)
    return missing


def _recording_problems(path: Path, root: Path, n_alike: int) -> list[Problem]:
    """Of the name, of the file and of its sidecars."""
    problems = _name_problems(path, root)
    if n_alike > 1:
        told = (
            f"{n_alike} signal files have the entities of {shown(path)}; which one is meant is not certain."
        )
        problems.append(Problem("not-bids", f"{told} Keep one."))
    if path.suffix.lower() not in READ_SUFFIXES:
        told = f"{shown(path)} is of a type that raxss does not read; {', '.join(READ_SUFFIXES)} are."
        return [*problems, Problem("not-a-recording", told)]
    if not_downloaded(path, root):
        told = f"{shown(path)} is not downloaded: there is only its git-annex pointer. Fetch it."
        return [*problems, Problem("not-found", told)]
    problems += inspect_file(path, root=root).problems
    if refusals(problems):
        return problems
    return problems + inspect_sidecars(path, root, *_channels_of(path, root), seconds=_seconds_of(path, root))


def _name_problems(path: Path, root: Path) -> list[Problem]:
    """Whether a file's name is one, and agrees with the folders around it."""
    parsed = _parsed(path.name)
    datatype = path.parent.name
    if parsed is None or parsed.suffix != datatype or "sub" not in parsed.entities:
        told = f"{shown(path)} is not called sub-<label>[_ses-<label>]..._{datatype}{path.suffix}. Rename it."
        return [Problem("not-bids", told)]
    problems = []
    for key in ("sub", "ses"):
        around = next(
            (part[4:] for part in path.relative_to(root).parts[:-1] if part.startswith(f"{key}-")), None
        )
        if parsed.entities.get(key) != around:
            told = f"{shown(path)} says {key}-{parsed.entities.get(key)}, and its folder {key}-{around}"
            told = told.replace(f"{key}-None", f"no {key}-")
            problems.append(
                Problem("not-bids", f"{told}; whose recording it is, is not certain. Rename or move it.")
            )
    return problems


def _channels_of(path: Path, root: Path) -> tuple[list[str], list[float]]:
    """Names and rates, from the header alone."""
    if path.suffix.lower() == ".vhdr":
        header = brainvision.read_header(path)
        return list(header.names), [header.rate] * header.n_channels
    edf_header = edf.read_header(path, root)
    signals = edf_header.data_signals
    return [signal.label for signal in signals], [edf_header.rate(signal) for signal in signals]


def _seconds_of(path: Path, root: Path) -> float | None:
    """How long a recording without gaps is."""
    if path.suffix.lower() == ".vhdr":
        header = brainvision.read_header(path)
        return header.n_samples / header.rate if len(header.segment_starts) == 1 else None
    edf_header = edf.read_header(path, root)
    return None if edf_header.kind.endswith("+D") else edf_header.n_records * edf_header.record_seconds


def _json_problems(found: Sequence[Path], root: Path, rates: Sequence[float]) -> list[Problem]:
    """Each is an object; the rate, which the nearest that has one tells, is the recording's."""
    contents = [read_json(path, root) for path in found]
    told = next((one["SamplingFrequency"] for one in contents if "SamplingFrequency" in one), None)
    if told is None:
        return [Problem("sidecar-incomplete", f"{shown(found[0])} has no SamplingFrequency. Add it.")]
    usual = Counter(rates).most_common(1)[0][0] if rates else math.nan
    if isinstance(told, bool) or not isinstance(told, int | float) or not _alike(told, usual):
        message = (
            f"SamplingFrequency is {quoted(str(told))}, and the recording has {usual:g} Hz, which counts."
        )
        return [Problem("rate-disagrees", message)]
    return []


def _alike(told: float, real: float) -> bool:
    try:
        return math.isclose(told, real, rel_tol=RATE_TOLERANCE)
    except OverflowError:  # JSON has whole numbers of any length
        return False


def _channels_problems(path: Path, root: Path, names: Sequence[str], rates: Sequence[float]) -> list[Problem]:
    table = read_table(path, root, most_rows=MAX_KEPT_ROWS)
    listed = table.values("name")
    if listed is None or not listed:
        lacks = "has no column 'name'" if listed is None else "has no row"
        raise Refused("sidecar-damaged", f"{shown(path)} {lacks}; one row a channel is needed. Correct it.")
    problems = []
    if table.values("type") is None:
        problems.append(Problem("sidecar-incomplete", f"{shown(path)} has no column 'type'. Add it."))
    positions, difference = _matched(listed, names)
    problems += difference
    if not refusals(problems):
        problems += _table_rate_problems(table, positions, rates)
    return problems


def _matched(listed: Sequence[str], names: Sequence[str]) -> tuple[list[int | None], list[Problem]]:
    """Position in the recording of each row, and how far the two differ."""
    if [_plain(name) for name in listed] == [
        _plain(name) for name in names
    ]:  # names that stand twice included
        return list(range(len(names))), []
    positions = match_channels(listed, names)
    left_rows = [name for name, position in zip(listed, positions, strict=True) if position is None]
    left_channels = [name for place, name in enumerate(names) if place not in positions]
    nameless_rows, nameless_channels = (
        [name for name in left if not canonical(name)] for left in (left_rows, left_channels)
    )
    sure_rows, sure_channels = (
        [name for name in left if canonical(name)] for left in (left_rows, left_channels)
    )
    if sure_rows or sure_channels or len(nameless_rows) != len(nameless_channels):
        told = f"channels.tsv has {len(listed)} channels and the recording {len(names)}"
        for what, left in (("only in the table", left_rows), ("only in the recording", left_channels)):
            told += f"; {what}, or not to be told apart: {_names(left)}" if left else ""
        return positions, [Problem("channels-disagree", f"{told}. Correct the table, or copy the right one.")]
    problems = []
    pairs = [
        (name, names[place])
        for name, place in zip(listed, positions, strict=True)
        if place is not None and _plain(name) != _plain(names[place])
    ]
    if pairs:
        told = f"{len(pairs)} of {len(names)} channels are spelt otherwise in channels.tsv, the first "
        told += f"{quoted(pairs[0][0])} for {quoted(pairs[0][1])}; each was matched for certain."
        problems.append(Problem("channels-renamed", told))
    in_order = [place for place in positions if place is not None]
    if in_order != sorted(in_order):
        told = "channels.tsv lists the channels in another order than the recording; labels attach by name."
        problems.append(Problem("channels-reordered", told))
    return positions, problems


def _plain(name: str) -> str:
    """A name as it is, but for the ways to write none."""
    return name.strip() if canonical(name) else ""


def _table_rate_problems(
    table: Table, positions: Sequence[int | None], rates: Sequence[float]
) -> list[Problem]:
    told = table.values("sampling_frequency") or ()
    wrong = [
        (text, rates[place])
        for text, place in zip(told, positions, strict=False)
        if place is not None and text
        if (value := number(text)) is None or not _alike(value, rates[place])
    ]
    if not wrong:
        return []
    message = (
        f"channels.tsv gives {len(wrong)} channels another sampling_frequency than the recording, the first "
    )
    return [
        Problem("rate-disagrees", f"{message}{quoted(wrong[0][0])} for {wrong[0][1]:g} Hz, which counts.")
    ]


def _events_problems(path: Path, root: Path, seconds: float | None) -> list[Problem]:
    """Onsets are numbers, and inside. What an event is called is never quoted."""
    table = read_table(path, root)
    onsets = table.values("onset")
    if onsets is None:
        raise Refused("sidecar-damaged", f"{shown(path)} has no column 'onset'. Correct it.")
    problems = []
    if table.values("duration") is None:
        problems.append(Problem("sidecar-incomplete", f"{shown(path)} has no column 'duration'. Add it."))
    values = [number(onset) for onset in onsets if onset]
    if None in values:
        row = next(place for place, onset in enumerate(onsets, start=2) if onset and number(onset) is None)
        raise Refused(
            "sidecar-damaged", f"{shown(path)} has an onset in row {row} that is no number. Correct it."
        )
    n_outside = sum(
        value is not None and (value < 0 or (seconds is not None and value > seconds + 1e-6))
        for value in values
    )
    if n_outside:
        told = f"{n_outside} of {len(values)} events of {shown(path)} lie before the start or after the end."
        problems.append(Problem("events-outside", told))
    return problems


def _names(names: Sequence[str]) -> str:
    """The first few, in quotes."""
    return listed(map(quoted, names), N_NAMED)
