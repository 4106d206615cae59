"""Runs of a BIDS tree, with the sidecars that apply to each.

    root -> Tree -> runs: name, patient, signal or what is absent of it -> sidecars, the nearest first

Names decide: of files, of folders, and in ``scans.tsv``. Nothing that a link or a name leads out of the root is
entered or opened. Next: bids.py plans series of the runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from raxss.data.confinement import leads_outside, problem_of_opening
from raxss.data.formats.fields import Refused, not_downloaded
from raxss.data.formats.registry import UNREAD, bids_suffixes, format_of
from raxss.data.inspection.sidecars import read_json
from raxss.data.tables import MAX_KEPT_ROWS, Table, read_table
from raxss.errors import MissingExtraError, RecordingError, display_name

DATATYPES = ("ieeg", "eeg")


@dataclass(frozen=True)
class BidsRun:
    """One recording of the tree; ``absent`` names the files, relative to the root, that its signal lacks."""

    name: str
    patient: str
    datatype: str
    folder: Path
    entities: Mapping[str, str]
    signal: Path | None
    absent: tuple[str, ...] = ()


@dataclass
class Tree:
    """A BIDS root, and the names in each of its folders, each listed once."""

    root: Path
    listed: dict[Path, list[str]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)  # what was not read, in whole sentences

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, in order; nothing where it is none or lies outside the root."""
        if folder not in self.listed:
            is_there = folder.is_dir() and not leads_outside(folder, self.root)
            self.listed[folder] = sorted(os.listdir(folder)) if is_there else []
        return self.listed[folder]

    def relative(self, path: Path) -> str:
        """As the dataset names it."""
        return path.relative_to(self.root).as_posix()

    def table(self, path: Path) -> Table:
        """A table inside the root."""
        self.refuse_outside(path)
        return read_table(path, most_rows=MAX_KEPT_ROWS)

    def json(self, path: Path) -> dict[str, Any]:
        """A JSON object inside the root."""
        try:
            return read_json(path, self.root)
        except Refused as refused:
            raise RecordingError(f"[{refused.problem.code}] {refused.problem.message}") from refused

    def refuse_outside(self, path: Path) -> None:
        """An error unless this is a regular file inside the root that can be read."""
        if problem := problem_of_opening(path, self.root):
            raise RecordingError(f"[{problem.code}] {problem.message}")


def find_runs(root: Path | str) -> list[BidsRun]:
    """Every recording that the tree has or should have, by the names of its files and its ``scans.tsv``."""
    return runs_of(open_tree(root))


def open_tree(root: Path | str) -> Tree:
    """The tree at a root that has subjects."""
    root = Path(os.path.abspath(root))
    if not root.is_dir():
        raise RecordingError(f"BIDS root {display_name(root)} is not a folder; check the path.")
    if not is_bids_root(root):
        raise RecordingError(
            f"BIDS root {display_name(root)} has no folder 'sub-…'; the folder with dataset_description.json is "
            "needed."
        )
    return Tree(root)


def is_bids_root(path: Path | str) -> bool:
    """Whether this is a folder with subjects in it."""
    return any(item.is_dir() for item in Path(path).glob("sub-*"))


def runs_of(tree: Tree) -> list[BidsRun]:
    """The runs of all subjects, in order; what was not read goes into the tree's remarks."""
    runs: list[BidsRun] = []
    for subject in tree.names(tree.root):
        folder = tree.root / subject
        if not subject.startswith("sub-") or not folder.is_dir():
            continue
        if not re.fullmatch(r"sub-[A-Za-z0-9]+", subject):
            tree.remarks.append(
                f"folder {display_name(subject)} was not read: BIDS allows letters and digits after 'sub-'."
            )
            continue
        if leads_outside(folder, tree.root):
            tree.remarks.append(
                f"folder {display_name(subject)} was not read: a link leads out of the dataset."
            )
            continue
        sessions = [folder / name for name in tree.names(folder) if re.fullmatch(r"ses-[A-Za-z0-9]+", name)]
        for above in [folder, *sessions]:
            for datatype in DATATYPES:
                runs += _runs_of_folder(tree, above, subject, datatype)
    return runs


def _runs_of_folder(tree: Tree, above: Path, subject: str, datatype: str) -> list[BidsRun]:
    """The runs of one ``ieeg`` or ``eeg`` folder, in order of their names."""
    folder = above / datatype
    if folder.is_dir() and leads_outside(folder, tree.root):
        tree.remarks.append(
            f"folder {display_name(tree.relative(folder))} was not read: a link leads out of the dataset."
        )
        return []
    names = tree.names(folder)
    if not names:
        return []
    allowed = (*bids_suffixes(datatype), *UNREAD[datatype])
    files: dict[str, str] = {}  # run -> suffix of its signal, "" where nothing says which
    for name in [*names, *_scans(tree, above, datatype)]:
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in allowed and stem.endswith(f"_{datatype}"):
            files.setdefault(stem.removesuffix(f"_{datatype}"), suffix)
    for name in names:  # a sidecar of a run whose signal nothing names; not one that several runs share
        if name.endswith((f"_{datatype}.json", "_channels.tsv")):
            stem = name.rpartition("_")[0]
            entities = _entities(stem)
            if stem in files:
                continue
            if entities is None or not any(
                entities.items() <= (_entities(file) or {}).items() for file in files
            ):
                files.setdefault(stem, "")
    runs = []
    for stem, suffix in sorted(files.items()):
        entities = _entities(stem)
        if entities is None or f"sub-{entities.get('subject')}" != subject:
            tree.remarks.append(
                f"file {display_name(f'{stem}_{datatype}{suffix}')} was not read: its name breaks the rules of "
                "BIDS or is not its subject's."
            )
            continue
        signal, absent = _signal_of(tree, folder, f"{stem}_{datatype}", suffix)
        runs.append(BidsRun(stem, subject.removeprefix("sub-"), datatype, folder, entities, signal, absent))
    return runs


@cache
def _entities(stem: str) -> Mapping[str, str] | None:
    """``{"subject": "pt01", "run": "01"}``; None where the name breaks the rules."""
    try:
        from mne_bids import get_entities_from_fname
    except ImportError as error:
        raise MissingExtraError(
            "reading a BIDS tree needs the package mne-bids, which is not installed. Install it with: pip install "
            "'raxss[bids]'"
        ) from error
    parts = stem.split("_")
    keys = [part.partition("-")[0] for part in parts]
    if len(set(keys)) != len(keys) or not all(re.fullmatch(r"[a-z]+-[A-Za-z0-9+]+", part) for part in parts):
        return None
    try:
        found = get_entities_from_fname(f"{stem}_x.x", verbose="ERROR")
    except KeyError:
        return None
    return {key: value for key, value in found.items() if value is not None}


def _scans(tree: Tree, above: Path, datatype: str) -> list[str]:
    """Names of the files in a datatype's folder that ``scans.tsv`` lists."""
    listed = []
    for name in tree.names(above):
        if name.endswith("_scans.tsv"):
            try:
                table = tree.table(above / name)
            except RecordingError as error:
                tree.remarks.append(f"{display_name(name)} was not used: {error}")
                continue
            listed += [cells.get("filename", "") for _, cells in table.rows]
    return [
        name.removeprefix(f"{datatype}/") for name in listed if re.fullmatch(rf"{datatype}/[^/\\]+", name)
    ]


def _signal_of(tree: Tree, folder: Path, stem: str, suffix: str) -> tuple[Path | None, tuple[str, ...]]:
    """The file that opens a run, if all of it is there, and what is not."""
    if not suffix:
        return None, (tree.relative(folder / f"{stem}.*"),)
    wanted = [f"{stem}{suffix}"]
    known = format_of(Path(wanted[0]))
    if known is not None and known.companions:
        header_is_there = is_fetched(tree, folder / wanted[0])
        has_data = any(f"{stem}{data}" in tree.names(folder) for data in known.data_suffixes)
        wanted += [
            f"{stem}{beside}"
            for beside in known.companions
            # a header may name its files as it likes; what there is by the usual name must have been fetched
            if not header_is_there
            or f"{stem}{beside}" in tree.names(folder)
            or (beside in known.data_suffixes and not has_data)
        ]
    absent = [name for name in wanted if not is_fetched(tree, folder / name)]
    return (None if absent else folder / wanted[0]), tuple(tree.relative(folder / name) for name in absent)


def is_fetched(tree: Tree, path: Path) -> bool:
    """Whether there is content, and not a broken link or a pointer that git-annex left."""
    return os.path.exists(path) and not not_downloaded(path, tree.root)


def sidecar(tree: Tree, run: BidsRun, suffix: str) -> Path | None:
    """The nearest file that holds for a run by BIDS's inheritance: in its folder, then above it, up to the root."""
    return next(iter(sidecars(tree, run, suffix)), None)


def sidecars(tree: Tree, run: BidsRun, suffix: str) -> list[Path]:
    """All that hold for a run, the nearest first."""
    held: list[Path] = []
    folder = run.folder
    while True:
        matching = []
        for name in tree.names(folder):
            if name == suffix:
                matching.append((0, name))
            elif name.endswith(f"_{suffix}"):
                entities = _entities(name.removesuffix(f"_{suffix}"))
                if entities is not None and entities.items() <= run.entities.items():
                    matching.append((len(entities), name))
        held += [folder / name for _, name in sorted(matching, reverse=True)]
        if folder == tree.root:
            return held
        folder = folder.parent
