"""CinC 2017: single-lead ECGs, one WFDB record a series, and a table of their labels."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from raxss.data.confinement import open_confined
from raxss.data.datasets.dataset import Dataset
from raxss.data.datasets.registry import register_dataset
from raxss.data.formats.opening import open_recording
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.data.tables import MAX_TABLE_ROWS, MalformedCsvError, records
from raxss.errors import RecordingError, display_name

RECORDS, REFERENCE = "training2017", "REFERENCE.csv"
MAX_REFERENCE_BYTES = 2**24
LETTERS = {"N": "normal", "A": "AF", "O": "other", "~": "noisy"}


class CinC2017(Dataset):
    """See the facts below."""

    def plan(self, folder: Path, **options: Any) -> CollectionPlan:
        """One series a record that the table of labels names and whose two files are there."""
        if not _reference(folder).is_file():
            return self.planned(folder)
        reference, labels = read_reference(folder)
        home = _record_folder(reference, folder)
        missing = {Path(name).stem for name in self.needed(folder)[1]}
        recordings = [
            RecordingPlan(
                name,
                (home / f"{name}.hea", home / f"{name}.mat", reference),
                partial(open_recording, home / f"{name}.hea", root=folder),
                (SeriesPlan(name, (0,), label=label, origin={"recording": name}),),
            )
            for name, label in sorted(labels.items())
            if name not in missing
        ]
        return self.planned(folder, recordings)

    def needed(self, folder: Path) -> tuple[int, list[str]]:
        """The table of labels, and both files of every record that it names."""
        n_needed, absent = super().needed(folder)
        if absent:
            return n_needed, absent
        reference, labels = read_reference(folder)
        home = _record_folder(reference, folder)
        there = {item.name for item in os.scandir(home)}
        files = [f"{name}{suffix}" for name in labels for suffix in (".hea", ".mat")]
        prefix = home.relative_to(folder).as_posix()
        absent = [name if prefix == "." else f"{prefix}/{name}" for name in files if name not in there]
        return n_needed + len(files), absent


def read_reference(folder: Path) -> tuple[Path, dict[str, str]]:
    """The table of labels: its path, and the label of each record by name."""
    path = _reference(folder)
    what = f"the labels {display_name(path)} of cinc2017"
    try:
        with open_confined(path, folder) as file:
            text = file.read(MAX_REFERENCE_BYTES).decode("utf-8-sig")
        rows = list(records(text.encode(), what, MAX_TABLE_ROWS))
    except (OSError, UnicodeDecodeError, MalformedCsvError) as error:
        reason = str(error.strerror or error) if isinstance(error, OSError) else str(error)
        raise RecordingError(f"{what} cannot be read ({reason}). Copy the file again.") from error
    labels: dict[str, str] = {}
    for number, row in rows:
        cells = [cell.strip() for cell in row]
        if len(cells) != 2 or not re.fullmatch(r"[A-Za-z0-9_-]+", cells[0]) or cells[1] not in LETTERS:
            raise RecordingError(
                f"{what} have {','.join(cells)[:40]!r} in line {number}; a record's name and one of "
                f"{', '.join(LETTERS)} are needed. Copy the file again."
            )
        if labels.setdefault(cells[0], LETTERS[cells[1]]) != LETTERS[cells[1]]:
            raise RecordingError(
                f"{what} name record {cells[0]!r} twice, with different labels; line {number} is the second. "
                "Copy the file again."
            )
    return path, labels


def _reference(folder: Path) -> Path:
    """Where the table lies, or should lie: among the records, or in the dataset's own folder."""
    inner, outer = folder / RECORDS / REFERENCE, folder / REFERENCE
    return outer if outer.is_file() and not inner.is_file() else inner


def _record_folder(reference: Path, folder: Path) -> Path:
    """Where the records lie: beside the table, or in ``training2017`` below it."""
    inner = folder / RECORDS
    return inner if inner.is_dir() else reference.parent


register_dataset(
    CinC2017(
        name="cinc2017",
        about="single-lead ECGs of 9 to 61 s from a hand-held recorder: normal rhythm, AF, other rhythm, too noisy",
        licence="ODC-By 1.0",
        size=165_000_000,  # of all 8528 records, about
        citation="Clifford GD et al. (2017). AF Classification from a Short Single Lead ECG Recording. CinC 44.",
        doi="10.22489/CinC.2017.065-469",
        source="https://physionet.org/content/challenge-2017/1.0.0/",
        files=((f"{RECORDS}/{REFERENCE}", REFERENCE),),  # and every record that it names
        labels=tuple(LETTERS.values()),
        rate=300.0,
        group_by="recording",
    )
)
