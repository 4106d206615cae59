"""What is wrong with these files and folders?

    paths -> every recording among and below them, once -> the module of its format -> Inspection

A BrainVision recording is known by its ``.vhdr``, a WFDB record by its ``.hea``; a BIDS dataset is looked at as
a whole. Headers need nothing but numpy; only a look at the signals runs a decoder.
Next: cli/check.py prints what comes out; opening.py decodes what was not refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from raxss.data.inspection.confinement import DESCRIPTION, leads_outside, problem_of_opening, root_of
from raxss.data.problems import Inspection, Problem
from raxss.data.recording import TooLongError
from raxss.errors import MissingExtraError, RecordingError, shown

Inspector = Callable[[Path, Path], list[Problem]]

HEADER_OF = {
    ".eeg": ".vhdr",
    ".vmrk": ".vhdr",
    ".dat": ".hea",
    ".mat": ".hea",
}  # by which a recording is known
# What a folder is searched for. Tables (.csv) are not: most of them are something else; name them one by one.
SEARCHED = (".edf", ".bdf", ".vhdr", ".hea", ".npz", ".npy")
DATATYPES, IN_DATASETS = ("eeg", "ieeg"), (".edf", ".bdf", ".vhdr")  # of recordings below sub-* of a dataset
SUFFIXES = (*SEARCHED, ".csv", *HEADER_OF)
UNEXPECTED = (
    "raxss did not expect this"  # in the message of the safety net; tests see that it is never needed
)


def inspect_file(path: Path | str, *, root: Path | None = None, signals: bool = False) -> Inspection:
    """Look at one recording before anything decodes it.

    Parameters
    ----------
    path
        Any file of the recording, or a WFDB record's bare name.
    root
        Folder that nothing may lead out of; the BIDS root around the file, or else its own folder.
    signals
        Decode what was not refused, a stretch at a time, and look for channels that are flat, railed, not
        numbers or mostly mains hum.

    Examples
    --------
    >>> inspect_file("no-such.edf").as_json()
    {'path': 'no-such.edf', 'verdict': 'refused', 'problems': [{'code': 'not-found', 'message': ...}]}
    """
    path = Path(path)
    inspection = Inspection(str(path), tuple(_problems_of_file(path, root)))
    return with_signals(inspection, root=root) if signals else inspection


def inspect_paths(paths: Iterable[Path | str], *, signals: bool = False) -> list[Inspection]:
    """Look at files and at all recordings below folders, each once.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("a.edf", "notes.txt"):
    ...     _ = (folder / name).write_bytes(b"hello")
    >>> [(Path(one.path).name, one.verdict) for one in inspect_paths([folder])]
    [('a.edf', 'refused')]
    """
    return list(iter_paths(paths, signals=signals))


def iter_paths(paths: Iterable[Path | str], *, signals: bool = False) -> Iterator[Inspection]:
    """`inspect_paths`, one at a time."""
    seen: set[str] = set()
    for path in map(Path, paths):
        is_folder = path.is_dir() and path.suffix.lower() not in SUFFIXES
        for inspection in _inspections_below(path) if is_folder else [_inspection_of(path)]:
            known_by = os.path.abspath(header_of(Path(inspection.path)))
            if known_by not in seen:
                seen.add(known_by)
                yield with_signals(inspection) if signals else inspection


def _inspection_of(path: Path) -> Inspection:
    """One recording with the sidecars that apply to it; inside a dataset, by its name too."""
    whole = Path(os.path.abspath(header_of(path)))
    root = root_of(whole)
    if whole.suffix.lower() not in IN_DATASETS:
        return inspect_file(path)
    in_dataset = (root / DESCRIPTION).exists() and whole.relative_to(root).parts[0].startswith("sub-")
    try:
        if in_dataset and whole.parent.name in DATATYPES:
            from raxss.data.inspection.bids import inspect_bids_recording

            return Inspection(str(path), tuple(inspect_bids_recording(whole, root)))
        inspection = inspect_file(path)
        if inspection.verdict == "refused":
            return inspection
        from raxss.data.inspection.sidecars import facts_of, inspect_sidecars, tree_of

        found = inspect_sidecars(whole, tree_of(whole), facts_of(whole, root))
        # outside of a dataset nothing asks for sidecars
        beside = tuple(one for one in found if one.code != "sidecar-missing")
        return replace(inspection, problems=(*inspection.problems, *beside))
    except Exception as error:
        return Inspection(str(path), (_unexpected(path, error),))


def header_of(path: Path) -> Path:
    """The one file that a recording is known by, whichever of its files was named.

    Examples
    --------
    >>> print(header_of(Path("a.eeg")), header_of(Path("a.edf")))
    a.vhdr a.edf
    """
    suffix = path.suffix.lower()
    if suffix == ".dat" and not _sibling(path, ".hea").exists() and _sibling(path, ".vhdr").exists():
        return _sibling(path, ".vhdr")
    if suffix in HEADER_OF:
        return _sibling(path, HEADER_OF[suffix])
    bare = path.with_name(f"{path.name}.hea") if path.name else path
    return bare if suffix not in SUFFIXES and bare.is_file() and not path.is_dir() else path


def _sibling(path: Path, suffix: str) -> Path:
    """The file of another suffix; upper-case if that is what there is."""
    lower, upper = path.with_suffix(suffix), path.with_suffix(suffix.upper())
    return upper if upper.exists() and not lower.exists() else lower


def with_signals(inspection: Inspection, *, root: Path | None = None) -> Inspection:
    """Add what is wrong with the signals of a recording that was not refused, or that nothing could read them."""
    path = header_of(Path(inspection.path))
    if inspection.verdict == "refused" or path.suffix.lower() not in SUFFIXES or not path.is_file():
        return inspection
    from raxss.data.inspection.signals import inspect_signals

    try:
        found, notes = inspect_signals(path, root or root_of(path))
    except MissingExtraError as error:
        told = f"only the header and sizes of {shown(path)} were looked at, not its signals: {error}"
        found, notes = [Problem("signals-not-read", told)], []
    except TooLongError as error:
        found, notes = [Problem("too-large", str(error))], []
    except RecordingError as error:
        found, notes = [Problem("header-damaged", str(error))], []
    except Exception as error:
        found, notes = [_unexpected(path, error)], []
    return replace(inspection, problems=(*inspection.problems, *found), notes=(*inspection.notes, *notes))


def _problems_of_file(path: Path, root: Path | None) -> list[Problem]:
    try:
        header = header_of(path)
        root = root or root_of(header)
        inspect = _inspector_of(header)
        if inspect is None:
            return [problem_of_opening(path, root) or _unknown(path)]
        if problem := problem_of_opening(header, root):
            return [problem]
        return inspect(header, root)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return [Problem("not-readable", f"{shown(path)} cannot be read ({reason.lower()}). Check the disk.")]
    except Exception as error:  # a fault of ours must not stop the look at other files
        return [_unexpected(path, error)]


def _inspector_of(path: Path) -> Inspector | None:
    """What knows this type of file. Imported when needed, so that one refusal does not wait for all formats."""
    suffix = path.suffix.lower()
    if suffix in (".edf", ".bdf"):
        from raxss.data.inspection.edf import inspect_edf

        return inspect_edf
    if suffix == ".vhdr":
        from raxss.data.inspection.brainvision import inspect_brainvision

        return inspect_brainvision
    if suffix == ".hea":
        from raxss.data.inspection.wfdb import inspect_wfdb

        return inspect_wfdb
    if suffix in (".npz", ".npy", ".csv"):
        from raxss.data.inspection.arrays import inspect_array

        return inspect_array
    return None


def _unknown(path: Path) -> Problem:
    kind = f"of type {shown(path.suffix)}" if path.suffix else "of unknown type"
    return Problem(
        "not-a-recording",
        f"{shown(path)} is {kind}; recordings are of type {', '.join(SUFFIXES)}, or a WFDB record's name.",
    )


def _unexpected(path: Path, error: Exception) -> Problem:
    return Problem(
        "header-damaged",
        f"{shown(path)} cannot be understood ({type(error).__name__}; {UNEXPECTED}). Please report it, without the "
        "file.",
    )


def _inspections_below(folder: Path) -> Iterator[Inspection]:
    """Every recording below a folder; datasets in it as a whole; links are not followed."""
    if (folder / DESCRIPTION).exists():
        yield from _inspections_of_dataset(folder)
        return
    count = 0
    for inspection in _search(folder):
        count += 1
        yield inspection
    if not count:
        message = (
            f"the folder {shown(folder)} has no recording in it ({', '.join(SEARCHED)}). Check its name."
        )
        yield Inspection(str(folder), (Problem("not-a-recording", message),))


def _search(folder: Path) -> Iterator[Inspection]:
    closed: list[OSError] = []
    for place, folders, files in os.walk(folder, onerror=closed.append):
        here = Path(place)
        datasets = [name for name in folders if (here / name / DESCRIPTION).exists()]
        recordings = [name for name in folders if Path(name).suffix.lower() in SEARCHED]  # folders named so
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(set(folders) - {*datasets, *recordings, *links})
        for name in sorted({*links, *datasets, *recordings}):
            if name in links:
                yield from _refused_link(here / name, folder)
            elif name in recordings:
                yield _inspection_of(here / name)
            else:
                yield from _inspections_of_dataset(here / name)
        for name in sorted(files):
            if Path(name).suffix.lower() in SEARCHED:
                yield _inspection_of(here / name)
    for error in closed:
        path = Path(error.filename)
        reason = (error.strerror or type(error).__name__).lower()
        message = f"the folder {shown(path)} cannot be searched ({reason}). Check its permissions."
        yield Inspection(str(path), (Problem("not-readable", message),))


def _refused_link(link: Path, root: Path) -> Iterator[Inspection]:
    """A link to a folder elsewhere; one that stays inside leads to files that are found anyway."""
    if leads_outside(link, root):
        message = f"{shown(link)} is a link to a folder outside of {shown(root)}; it was not followed."
        yield Inspection(str(link), (Problem("outside", message),))


def _inspections_of_dataset(root: Path) -> list[Inspection]:
    from raxss.data.inspection.bids import inspect_bids_root

    try:
        return inspect_bids_root(root)
    except Exception as error:
        return [Inspection(str(root), (_unexpected(root, error),))]
