"""Inspection of files and folders: the problems of every recording among and below some paths.

    paths -> every recording among and below them, once -> its format -> Inspection

A recording of several files is known by its header (``.vhdr``, ``.hea``); a BIDS dataset is looked at as a whole.
Headers need nothing but numpy; only a look at the signals runs a decoder. Next: cli/check.py prints what comes out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from raxss.data.confinement import DESCRIPTION, leads_outside, root_of
from raxss.data.formats.opening import inspect_recording, unexpected
from raxss.data.formats.registry import all_suffixes, bids_suffixes, format_of, header_of, searched_suffixes
from raxss.data.inspection.bids import inspect_bids_recording, inspect_bids_root
from raxss.data.inspection.sidecars import DATATYPES, facts_of, inspect_sidecars, tree_of
from raxss.data.inspection.signals import inspect_signals
from raxss.data.problems import Inspection, Problem
from raxss.data.recording import TooLongError
from raxss.errors import MissingExtraError, RecordingError, display_name


def inspect_file(path: Path | str, *, root: Path | None = None, signals: bool = False) -> Inspection:
    """Look at one recording before anything decodes it, given by any of its files or a WFDB record's bare name.

    Nothing may lead out of ``root``: the BIDS root around the file, or else its own folder. With ``signals``, what
    was not refused is decoded, a stretch at a time, in search of channels that are flat, railed, not numbers or
    mostly mains hum.

    >>> inspect_file("no-such.edf").as_json()
    {'path': 'no-such.edf', 'verdict': 'refused', 'problems': [{'code': 'not-found', 'message': ...}]}
    """
    path = Path(path)
    inspection = Inspection(str(path), tuple(inspect_recording(path, root=root)))
    return with_signals(inspection, root=root) if signals else inspection


def inspect_paths(paths: Iterable[Path | str], *, signals: bool = False) -> list[Inspection]:
    """Look at files and at all recordings below folders, each once.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("a.edf", "notes.txt"):
    ...     _ = (folder / name).write_bytes(b"hello")
    >>> [(Path(found.path).name, found.verdict) for found in inspect_paths([folder])]
    [('a.edf', 'refused')]
    """
    return list(iter_paths(paths, signals=signals))


def iter_paths(paths: Iterable[Path | str], *, signals: bool = False) -> Iterator[Inspection]:
    """`inspect_paths`, one at a time."""
    seen: set[str] = set()
    for path in map(Path, paths):
        is_folder = path.is_dir() and path.suffix.lower() not in all_suffixes()
        for inspection in _inspections_below(path) if is_folder else [_inspection_of(path)]:
            known_by = os.path.abspath(header_of(Path(inspection.path)))
            if known_by not in seen:
                seen.add(known_by)
                yield with_signals(inspection) if signals else inspection


def _inspection_of(path: Path) -> Inspection:
    """One recording with the sidecars that apply to it; inside a dataset, by its name too."""
    whole = Path(os.path.abspath(header_of(path)))
    root = root_of(whole)
    if whole.suffix.lower() not in bids_suffixes():
        return inspect_file(path)
    in_dataset = (root / DESCRIPTION).exists() and whole.relative_to(root).parts[0].startswith("sub-")
    try:
        if in_dataset and whole.parent.name in DATATYPES:
            return Inspection(str(path), tuple(inspect_bids_recording(whole, root)))
        inspection = inspect_file(path)
        if inspection.verdict == "refused":
            return inspection
        found = inspect_sidecars(whole, tree_of(whole), facts_of(whole, root))
        # outside of a dataset no sidecar is required
        beside = tuple(item for item in found if item.code != "sidecar-missing")
        return replace(inspection, problems=(*inspection.problems, *beside))
    except Exception as error:
        return Inspection(str(path), (unexpected(path, error),))


def with_signals(inspection: Inspection, *, root: Path | None = None) -> Inspection:
    """Add what is wrong with the signals of a recording that was not refused, or that nothing could read them."""
    path = header_of(Path(inspection.path))
    if inspection.verdict == "refused" or format_of(path) is None or not path.is_file():
        return inspection
    notes: list[str] = []
    try:
        found, notes = inspect_signals(path, root or root_of(path))
    except MissingExtraError as error:
        message = f"only header and sizes of {display_name(path)} were looked at, not its signals: {error}"
        found = [Problem("signals-not-read", message)]
    except TooLongError as error:
        found = [Problem("too-large", str(error))]
    except RecordingError as error:
        found = [Problem("header-damaged", str(error))]
    except Exception as error:
        found = [unexpected(path, error)]
    return replace(inspection, problems=(*inspection.problems, *found), notes=(*inspection.notes, *notes))


def _inspections_below(folder: Path) -> Iterator[Inspection]:
    """Every recording below a folder; datasets in it as a whole; links are not followed."""
    if (folder / DESCRIPTION).exists():
        yield from _inspections_of_dataset(folder)
        return
    types = ", ".join(searched_suffixes())
    message = f"the folder {display_name(folder)} has no recording in it ({types}). Check its name."
    nothing = Inspection(str(folder), (Problem("not-a-recording", message),))
    found = _search(folder)
    yield next(found, nothing)
    yield from found


def _search(folder: Path) -> Iterator[Inspection]:
    closed: list[OSError] = []
    searched = searched_suffixes()
    for place, folders, files in os.walk(folder, onerror=closed.append):
        here = Path(place)
        datasets = [name for name in folders if (here / name / DESCRIPTION).exists()]
        recordings = [name for name in folders if Path(name).suffix.lower() in searched]  # folders named so
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(set(folders) - {*datasets, *recordings, *links})
        for name in sorted({*links, *datasets, *recordings}):
            if name in links and leads_outside(here / name, folder):  # others lead to what is found anyway
                link, root = display_name(here / name), display_name(folder)
                message = f"{link} is a link to a folder outside of {root}; not followed."
                yield Inspection(str(here / name), (Problem("outside", message),))
            elif name in links:
                continue
            elif name in recordings:
                yield _inspection_of(here / name)
            else:
                yield from _inspections_of_dataset(here / name)
        for name in sorted(files):
            if Path(name).suffix.lower() in searched:
                yield _inspection_of(here / name)
    for error in closed:
        path = Path(error.filename)
        reason = (error.strerror or type(error).__name__).lower()
        message = f"the folder {display_name(path)} cannot be searched ({reason}). Check its permissions."
        yield Inspection(str(path), (Problem("not-readable", message),))


def _inspections_of_dataset(root: Path) -> list[Inspection]:
    try:
        return inspect_bids_root(root)
    except Exception as error:
        return [Inspection(str(root), (unexpected(root, error),))]
