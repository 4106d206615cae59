"""Writer of BIDS derivative datasets: channels.tsv, events.tsv and their sidecars for each recording.

    RecordingFindings, the tree they are from -> ROOT/sub-…/…_desc-raxss_channels.tsv, …_events.tsv, their sidecars

Sidecars describe every column and name model, settings and files by their hashes. The files of a recording appear
together or not at all, and a folder that raxss did not make is left as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from raxss._core.atomic import PARTIAL, finish_files, json_ready, sha256_of, whole_files
from raxss._core.bounded import read_json
from raxss._core.outputs import LOCK, output_lock
from raxss._core.version import __version__
from raxss.data.bids_tree import BidsRun, Tree, is_bids_root, open_tree, runs_of, sidecar
from raxss.data.formats.opening import files_of
from raxss.errors import ConfigError, OutputError, RecordingError, display_name, join_names
from raxss.explain.evidence import NOTE
from raxss.explain.export.derivative_tables import (
    about_channels,
    about_events,
    channel_rows,
    event_rows,
    json_text,
    tsv_text,
)
from raxss.explain.findings import RecordingFindings, class_of

BIDS_VERSION = "1.10.0"
DESCRIPTION, README, IGNORE = "dataset_description.json", "README.md", ".bidsignore"
IGNORED = ("*.html", "*.parquet", "*.pdf")
LINK = "source"  # how URIs name the tree that recordings are from
TABLES = ("channels", "events")

ABOUT_README = f"""# What raxss says about these recordings

{NOTE}

For each recording of the source dataset:

- `*_desc-raxss_channels.tsv`: the probability of each class for every channel that was scored, and the channels'
  rank by one of them; whether the model was fitted on the channel itself; how far the score may be trusted: what it
  was before calibration, an interval with its method, the classes that cannot be ruled out, and how a channel is
  unlike what the model has learned from;
- `*_desc-raxss_events.tsv`: for each of these channels the windows that add most to its predicted class and do not
  overlap, with their weight and what they contribute. Onsets count from the start of the recording.

The JSON file beside each table describes its columns and tells, by hashes, the model, the settings and the files
that the numbers were made from. `{LINK}` in BIDS URIs stands for the source dataset, as `DatasetLinks` in
`{DESCRIPTION}` says; where it says `sourcedata/raw`, put the source dataset, or a link to it, there. Recordings
whose names have no task are called `task-unnamed` here.
"""


def find_source(inputs: Sequence[Path]) -> tuple[Path, list[str] | None]:
    """The BIDS root that all inputs are of, and the recordings that are meant, or None: all.

    Each input is a BIDS root, or a recording's file inside one.
    """
    roots: dict[Path, list[str] | None] = {}
    for path in (Path(os.path.abspath(entry)) for entry in inputs):
        if path.is_dir() and is_bids_root(path):
            roots[path] = None
            continue
        above = next((item for item in path.parents if re.fullmatch(r"sub-[A-Za-z0-9]+", item.name)), None)
        name = re.fullmatch(r"(sub-.+)_i?eeg", path.stem)
        if above is None or name is None or path.is_dir():
            raise RecordingError(
                f"{display_name(path)} is not a recording of a BIDS tree, and BIDS derivatives are of such alone; "
                "needed is a BIDS root, or a file such as ROOT/sub-01/ieeg/sub-01_task-rest_ieeg.edf. Leave "
                "--bids-derivatives out, or arrange the recording by BIDS first (mne-bids does so)."
            )
        names = roots.setdefault(above.parent, [])
        if names is not None and name[1] not in names:
            names.append(name[1])
    if len(roots) != 1:
        raise RecordingError(
            f"recordings of {len(roots)} BIDS trees were given "
            f"({join_names(display_name(root) for root in roots)}); one derivative dataset is of one tree. Run the "
            "command once for each, with a ROOT of its own."
        )
    return next(iter(roots.items()))


def run_in_tree(path: Path, name: Any) -> Path | None:
    """The BIDS root that a path is, or lies in, if one of its recordings has this name; else None."""
    try:
        root, names = find_source([path])
    except RecordingError:
        return None
    known = [run.name for run in runs_of(open_tree(root)) if run.signal is not None]
    return root if name in (known if names is None else {*known} & {*names}) else None


@dataclass(frozen=True)
class Derivatives:
    """A derivative dataset that is being written; made by `open_derivatives`."""

    root: Path
    tree: Tree
    runs: Mapping[str, BidsRun]  # to be there in the end, by name
    model: Mapping[str, Any]  # facts about it: hashes, classes, training data
    class_: Any  # that channels are ranked by
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)  # of a run's files, each file read once

    def is_there(self, name: str) -> bool:
        """Whether this recording has all its files already."""
        return all((self.root / place).is_file() for place in self._places(name))

    def is_same(self, name: str) -> bool:
        """Whether they were made by this model and version from the very files that the recording has now."""
        try:
            found = read_json(self.root / self._places(name)[1])["RAxSS"]
            expected = (__version__, json_ready(dict(self.model)), self._hashes(name), str(self.class_))
            return bool(
                (found["Version"], found["Model"], found["SourceSHA256"], found["RankedBy"]) == expected
            )
        except (OSError, ValueError, KeyError, TypeError):  # RecordingError is a ValueError
            return False

    def missing(self) -> list[str]:
        """Names of the recordings that are still to be made."""
        return [name for name in self.runs if not (self.is_there(name) and self.is_same(name))]

    @contextmanager
    def locked(self, names: Iterable[str]) -> Iterator[None]:
        """Hold the files of these recordings; other processes may write those of others at the same time."""
        is_new = not self.root.exists()
        try:
            with ExitStack() as held:
                for name in names:
                    held.enter_context(output_lock(self.root / self._bundle(name)))
                yield
        finally:
            if is_new:
                with suppress(OSError):
                    self.root.rmdir()  # made for the locks alone, if it is empty

    def write(self, findings: RecordingFindings) -> None:
        """The four files of one recording, and those of the dataset where they are not there yet."""
        run = self.runs[findings.name]
        path = sidecar(self.tree, run, "channels.tsv")
        source = None if path is None else [cells for _, cells in self.tree.table(path).rows]
        kind = {"ieeg": "ECOG", "eeg": "EEG"}[run.datatype]  # as they are read where no table says more
        about = {
            "Sources": [f"bids:{LINK}:{quote(name)}" for name in self._hashes(run.name)],
            "RAxSS": {
                "Note": NOTE,
                "Version": __version__,
                "RankedBy": str(findings.class_),
                "Model": dict(self.model),
                "Settings": findings.settings,
                "SourceSHA256": self._hashes(run.name),
            },
        }
        contents = [
            tsv_text(channel_rows(source, findings, kind)),
            json_text(about | about_channels(findings)),
            tsv_text(event_rows(findings)),
            json_text(about | about_events(findings)),
        ]
        with whole_files(self.root, self._bundle(run.name)) as place:
            for name, text in zip(self._places(run.name), contents, strict=True):
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_text(text, encoding="utf-8")
            for name, text in self._dataset_files().items():
                (place / name).write_text(text, encoding="utf-8")

    def _bundle(self, name: str) -> str:
        """Name of the lock and of the temporary folder of a recording's files."""
        return f"{name}_desc-raxss"

    def _places(self, name: str) -> list[str]:
        """channels.tsv, its sidecar, events.tsv, its sidecar; relative to the root."""
        folder, full = self.tree.relative(self.runs[name].folder), name
        if "_task-" not in name:  # which BIDS requires and some trees leave out
            full = re.sub(r"^(sub-[^_]+(?:_ses-[^_]+)?)", r"\1_task-unnamed", name)
        base = f"{folder}/{full}_desc-raxss"
        return [f"{base}_{table}.{suffix}" for table in TABLES for suffix in ("tsv", "json")]

    def _hashes(self, name: str) -> dict[str, str]:
        """Each file that the numbers are from, as the dataset names it, with its SHA-256."""
        if name not in self.hashes:
            run = self.runs[name]
            files = [*files_of(run.signal)] if run.signal is not None else []
            channels = sidecar(self.tree, run, "channels.tsv")
            files += [channels] if channels is not None else []
            for file in files:
                self.tree.refuse_outside(file)
            self.hashes[name] = {self.tree.relative(file): sha256_of(file) for file in files}
        return self.hashes[name]

    def _dataset_files(self) -> dict[str, str]:
        """Files of the dataset itself that are missing or out of date: name -> text."""
        files = {DESCRIPTION: json_text(self._description)}
        if not (self.root / README).exists():
            files[README] = ABOUT_README
        there = self.root / IGNORE
        ignored = there.read_text("utf-8").splitlines() if there.is_file() else []
        files[IGNORE] = "".join(f"{pattern}\n" for pattern in dict.fromkeys([*ignored, *IGNORED]))
        return {
            name: text
            for name, text in files.items()
            if not (self.root / name).exists() or (self.root / name).read_text("utf-8") != text
        }

    @cached_property
    def _description(self) -> dict[str, Any]:
        """dataset_description.json: the one that is there, with this version and this source added."""
        found = _read_description(self.root) or {}
        doi = _doi(self.tree)
        generated = found.get("GeneratedBy", [])
        mine = {"Name": "raxss", "Version": __version__}
        link = link_to(self.tree.root, self.root, doi)
        return {
            "Name": "Evidence by raxss",
            "BIDSVersion": BIDS_VERSION,
            "DatasetType": "derivative",
            **found,
            "GeneratedBy": generated if mine in generated else [*generated, mine],
            "SourceDatasets": found.get("SourceDatasets", [{"DOI": doi} if doi else {"URL": link}]),
            "DatasetLinks": {**found.get("DatasetLinks", {}), LINK: link},
        }


def open_derivatives(
    root: Path | str,
    source: Path | str,
    *,
    model: Mapping[str, Any],
    classes: Sequence[Any],
    recordings: Collection[str] | None = None,  # names of those to write; None: all whose signals are there
    class_: Any = None,
    overwrite: bool = False,
) -> Derivatives:
    """Open a derivative dataset to write into, new or begun earlier.

    What another model made is replaced only with ``overwrite``.
    """
    root, tree = Path(os.path.abspath(root)), open_tree(source)
    if os.path.realpath(root) == os.path.realpath(tree.root):
        raise OutputError(
            17,
            f"{display_name(root)} is the dataset itself; derivatives go beside it. Choose ROOT/derivatives/raxss.",
        )
    if root.is_dir():
        finish_files(root)
    _refuse_foreign(root, link_to(tree.root, root, _doi(tree)))
    known = {run.name: run for run in runs_of(tree)}
    wanted = [name for name, run in known.items() if run.signal] if recordings is None else list(recordings)
    for name in wanted:
        if name not in known:
            raise RecordingError(
                f"BIDS root {display_name(tree.root)} has no recording {display_name(name)}; it has "
                f"{join_names(known, 5)}."
            )
        if "_desc-" in name:
            raise RecordingError(
                f"recording {display_name(name)} has a 'desc-' in its name: it is a derivative itself. Give the "
                "raw one."
            )
    ranked_by = class_of(classes, class_, model)
    opened = Derivatives(root, tree, {name: known[name] for name in wanted}, model, ranked_by)
    other = [name for name in wanted if opened.is_there(name) and not opened.is_same(name)]
    if other and not overwrite:
        raise OutputError(
            17,
            f"{display_name(root)} has {len(other)} of the recordings already, made by another model, version or "
            f"ranking, or from other files: {join_names(other, 5)}. They were left as they are; choose another "
            "ROOT, or overwrite them (--overwrite on the command line, overwrite=True in Python)",
        )
    return opened


def link_to(source: Path, root: Path, doi: str = "") -> str:
    """Link from the derivative dataset to its source: a relative path, a DOI, or where to put it.

    A path through other folders would reveal the layout of a disk, so it is given only from inside the source and
    from beside it.

    Examples
    --------
    >>> raw = Path("/data/raw")
    >>> link_to(raw, raw / "derivatives" / "raxss"), link_to(raw, Path("/data/why"))
    ('../..', '../raw')
    >>> link_to(Path("/mnt/Jones/raw"), Path("/data/why"), "10.18112/openneuro.ds003029.v1.0.5")
    'https://doi.org/10.18112/openneuro.ds003029.v1.0.5'
    """
    path = Path(os.path.relpath(source, root))
    if len([part for part in path.parts if part != ".."]) <= 1 and source.parent in root.parents:
        return quote(path.as_posix())
    return f"https://doi.org/{doi}" if doi else "sourcedata/raw"


def _refuse_foreign(root: Path, link: str) -> None:
    """Only a folder that is empty, or that raxss made from this source, may be written into."""
    if root.exists() and not root.is_dir():
        raise OutputError(20, f"{display_name(root)} is a file; a folder is needed for a derivative dataset")
    if not root.is_dir() or all(item.name.endswith((PARTIAL, LOCK)) for item in root.iterdir()):
        return  # nothing, or what a run left that was killed at its first recording
    found = _read_description(root)
    generated = [] if found is None else found.get("GeneratedBy", [])
    if not any(isinstance(item, dict) and item.get("Name") == "raxss" for item in generated):
        raise OutputError(
            17,
            f"{display_name(root)} is a folder with content that is not a derivative dataset by raxss, and was "
            "left as it is. Choose a new or empty folder, such as derivatives/raxss in the BIDS root",
        )
    links = (found or {}).get("DatasetLinks", {})
    if links.get(LINK, link) != link:
        raise OutputError(
            17,
            f"{display_name(root)} has derivatives of another dataset ({links[LINK]!r}, and this is {link!r}), and "
            "was left as it is. Choose another folder; or, if it was moved, mend DatasetLinks in its "
            f"{DESCRIPTION}",
        )


def _read_description(root: Path) -> dict[str, Any] | None:
    """dataset_description.json, None where there is none; what cannot be read is no reason to write over it."""
    path = root / DESCRIPTION
    if not path.is_file():
        return None
    try:
        found = read_json(path)
        lists = isinstance(found["GeneratedBy"], list) and isinstance(found.get("DatasetLinks", {}), dict)
        if not lists:
            raise ValueError("GeneratedBy must be a list, and DatasetLinks an object")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{DESCRIPTION} in {display_name(root)} cannot be read as that of a derivative dataset "
            f"({type(error).__name__}: {error}). Mend it, or choose another folder."
        ) from error
    return dict(found)


def _doi(tree: Tree) -> str:
    """``10.…/…`` if the source has one."""
    if DESCRIPTION not in tree.names(tree.root):
        return ""
    try:
        text = str(tree.json(tree.root / DESCRIPTION).get("DatasetDOI", ""))
    except RecordingError:
        return ""
    found = re.search(r"10\.\d{4,9}/[A-Za-z0-9._;()/:-]{1,100}", text)
    return found.group() if found else ""
