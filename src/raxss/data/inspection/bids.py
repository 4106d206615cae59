"""Inspection of a BIDS dataset: names of files and folders, participants, and the sidecars of each recording.

    root -> one Inspection of the root, and one of each recording below sub-*/[ses-*/](ieeg|eeg)

A name that contradicts its folder, or a table that has other channels than the recording, would put a label on the
wrong signal: these are refused. What can be matched for certain is a warning.
Next: data/bids.py plans series of what passed.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from raxss.data.confinement import DESCRIPTION, leads_outside
from raxss.data.formats.fields import Refused
from raxss.data.formats.opening import inspect_recording
from raxss.data.formats.registry import FORMATS, UNREAD, UNREAD_COMPANIONS, bids_suffixes
from raxss.data.inspection.sidecars import (
    DATATYPES,
    facts_of,
    inspect_sidecars,
    names_in,
    parsed,
    read_json,
    read_table,
    shown_names,
)
from raxss.data.problems import Inspection, Problem, refusals
from raxss.data.tables import MAX_KEPT_ROWS
from raxss.errors import display_name

TABLES = ("channels.tsv", "events.tsv")
LABEL = re.compile(r"[A-Za-z0-9+]+", re.ASCII)


def inspect_bids_root(root: Path) -> list[Inspection]:
    """Look at a BIDS dataset as a whole: the first entry is the root itself, then each recording in order.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> _ = (root / "dataset_description.json").write_text("not JSON")
    >>> [problem.code for problem in inspect_bids_root(root)[0].problems]
    ['sidecar-damaged', 'no-data']
    """
    problems = list(_refusal_as_problem(_description_problems(root)))
    recordings: list[Inspection] = []
    subjects: list[str] = []
    for folder in _folders(root, "sub-", root, problems):
        subjects.append(folder.name)
        sessions = list(_folders(folder, "ses-", root, problems))
        for above in (folder, *sessions):
            for datatype in DATATYPES:
                recordings += _recordings_of(above, datatype, root, problems)
    if subjects:
        problems += _refusal_as_problem(_participants_problems(root, subjects))
    absent = [item for item in recordings if any(found.code == "not-found" for found in item.problems)]
    if absent:
        message = f"{len(absent)} of {len(recordings)} recordings have no signals here; the first is "
        message += f"{display_name(Path(absent[0].path))}. Fetch them from where the dataset comes from."
        problems.append(Problem("not-found", message))
    if not recordings:
        message = "the dataset has no recordings in sub-*/[ses-*/]ieeg or eeg. Check the folder."
        problems.append(Problem("no-data", message))
    return [Inspection(str(root), tuple(problems)), *recordings]


def _refusal_as_problem(check: Iterator[Problem]) -> Iterator[Problem]:
    try:
        yield from check
    except Refused as refused:
        yield refused.problem


def _folders(above: Path, prefix: str, root: Path, problems: list[Problem]) -> Iterator[Path]:
    """Folders of subjects or sessions; each that is not named or placed as it should be is one problem."""
    for name in sorted(names_in(above, root)):
        folder = above / name
        if not name.startswith(prefix) or (not folder.is_dir() and not folder.is_symlink()):
            continue
        if leads_outside(folder, root):
            message = f"the folder {display_name(folder)} is a link out of the dataset; it was not opened."
            problems.append(Problem("outside", message))
        elif not LABEL.fullmatch(name.removeprefix(prefix)):
            message = f"the folder {display_name(folder)} is not called {prefix} and letters or digits"
            problems.append(Problem("not-bids", f"{message}. Rename it."))
        elif folder.is_dir():
            yield folder


def _description_problems(root: Path) -> Iterator[Problem]:
    if not os.path.lexists(root / DESCRIPTION):
        message = f"there is no {DESCRIPTION}, which makes a folder a BIDS dataset. Add it."
        yield Problem("sidecar-missing", message)
        return
    description = read_json(root / DESCRIPTION, root)
    lacking = [field for field in ("Name", "BIDSVersion") if not isinstance(description.get(field), str)]
    if lacking:
        yield Problem("sidecar-incomplete", f"{DESCRIPTION} has no {' and no '.join(lacking)}. Add it.")


def _participants_problems(root: Path, subjects: Sequence[str]) -> Iterator[Problem]:
    path = root / "participants.tsv"
    if not os.path.lexists(path):
        message = "there is no participants.tsv; nothing is known about the subjects."
        yield Problem("sidecar-missing", message)
        return
    listed = read_table(path, root, most_rows=MAX_KEPT_ROWS).values("participant_id")
    if listed is None:
        raise Refused("sidecar-damaged", "participants.tsv has no column 'participant_id'. Correct it.")
    if repeated := [name for name, count in Counter(listed).items() if count > 1]:
        message = f"{shown_names(repeated)}: more than one row; which counts is not certain"
        raise Refused("sidecar-damaged", f"{message}. Correct participants.tsv.")
    for what, names in (
        ("have a folder and no row in participants.tsv", sorted(set(subjects) - set(listed))),
        ("have a row in participants.tsv and no folder", sorted(set(listed) - set(subjects))),
    ):
        if names:
            yield Problem("participants-disagree", f"{len(names)} subjects {what}: {shown_names(names)}.")


def _recordings_of(above: Path, datatype: str, root: Path, problems: list[Problem]) -> list[Inspection]:
    """Every recording in one folder, and every one that must be there because its sidecars are."""
    folder = above / datatype
    if leads_outside(folder, root):
        message = f"{display_name(folder)} of {display_name(above)} is a link out of the dataset; not opened."
        problems.append(Problem("outside", message))
        return []
    names = names_in(folder, root)
    allowed = {*bids_suffixes(), *(suffix for some in UNREAD.values() for suffix in some)}
    signals = sorted(name for name in names if Path(name).suffix.lower() in allowed)
    keys = {name: _key(name, datatype) for name in signals}
    alike = Counter(keys.values())
    found = {name: inspect_bids_recording(folder / name, root, alike[keys[name]]) for name in signals}
    for stem, lacking in sorted(_without_signal(names, signals, datatype).items()):
        found[stem] = [Problem("not-found", lacking)]
    return [Inspection(str(folder / name), tuple(problems)) for name, problems in found.items()]


def _key(name: str, datatype: str) -> Any:
    """What two signal files must not share: all entities."""
    own = parsed(name)
    return frozenset(own.entities.items()) if own is not None and own.suffix == datatype else name


def _without_signal(names: Sequence[str], signals: Sequence[str], datatype: str) -> dict[str, str]:
    """Recording -> what is missing, for data files without a header and sidecars that apply to nothing."""
    stems = {Path(name).stem for name in signals}
    # these belong to a signal file of the same name
    parts = {
        *UNREAD_COMPANIONS,
        *(part for known in FORMATS.values() if known.datatypes for part in known.companions),
    }
    missing = {
        file.stem: f"{display_name(file.stem)} has a data file and no header (.vhdr) beside it. Copy the header."
        for file in map(Path, names)
        if file.suffix.lower() in parts and file.stem not in stems
    }
    of_signals = [own for name in signals if (own := parsed(name)) is not None]
    sidecars = defaultdict(list)
    for name in names:
        own = parsed(name)
        if own is None or f"{own.suffix}{own.ending}" not in (*TABLES, f"{datatype}.json"):
            continue
        if not any(own.entities.items() <= signal.entities.items() for signal in of_signals):
            sidecars[f"{name.rpartition('_')[0]}_{datatype}"].append(name)
    for stem, files in sidecars.items():
        message = f"{display_name(stem)} has {len(files)} sidecars and no signal file. Fetch it."
        missing.setdefault(stem, message)
    return missing


def inspect_bids_recording(path: Path, root: Path, n_alike: int = 1) -> list[Problem]:
    """What is wrong with a recording of a dataset: its name, which ``n_alike`` files have, file and sidecars."""
    problems = _name_problems(path, root)
    if n_alike > 1:
        message = f"{n_alike} signal files have the entities of {display_name(path)}"
        problems.append(Problem("not-bids", f"{message}; which is meant is not certain. Keep one."))
    if path.suffix.lower() not in bids_suffixes():
        message = f"{display_name(path)} is of a type that raxss does not read"
        return [*problems, Problem("not-a-recording", f"{message}; {', '.join(bids_suffixes())} are.")]
    problems += inspect_recording(path, root=root)
    if refusals(problems):
        return problems
    return problems + inspect_sidecars(path, root, facts_of(path, root))


def _name_problems(path: Path, root: Path) -> list[Problem]:
    """Whether a file's name is one, and agrees with the folders around it."""
    own = parsed(path.name)
    datatype = path.parent.name
    if own is None or own.suffix != datatype or "sub" not in own.entities:
        message = f"{display_name(path)} is not called sub-<label>[_ses-<label>]..._{datatype}{path.suffix}"
        return [Problem("not-bids", f"{message}. Rename it.")]
    problems = []
    for key in ("sub", "ses"):
        folders = (part for part in path.relative_to(root).parts[:-1] if part.startswith(f"{key}-"))
        around = next(folders, f"no {key}-")
        named = f"{key}-{own.entities[key]}" if key in own.entities else f"no {key}-"
        if named != around:
            message = f"{display_name(path)} says {named}, and its folder {around}"
            problems.append(
                Problem("not-bids", f"{message}; whose it is, is not certain. Rename or move it.")
            )
    return problems
