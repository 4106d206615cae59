"""The file of one patient: the cases of a group in a safetensors file, with equal bytes for equal content.

    Patient: facts, recordings, keys (n, d), times, quality <-> bytes of patients/PSEUDONYM/cases.safetensors

The header has the facts of the group as JSON, and the SHA-256 of the file with zeros in place of that digest. A
reader can stop after the header (`read_header`), or map the arrays into memory (`read_patient`); then every byte is
compared with the digest first. Limits, links and sizes are checked before anything is decoded (_core/sealing.py).
Rows are in the order of the recordings, which is that of their pseudonyms, and then of time.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss._core.bounded import json_of
from raxss._core.sealing import TensorHeader, digest_around, open_plain, read_tensor_header
from raxss.errors import LibraryError, ModelError
from raxss.library.cases import Cases
from raxss.library.pseudonyms import PSEUDONYM, UNITS

FORMAT = "raxss-cases-1"
CASES = "cases.safetensors"
MOST_BYTES = 2**33  # of one patient: 8 million windows of 256 features
MOST_SITE_LETTERS = 100
DIGEST = re.compile(r"[0-9a-f]{16}")
_NO_DIGEST = "0" * 64
_DTYPES = {
    "start_s": "<f8",
    "end_s": "<f8",
    "keys": "<f4",
    "quality": "<f4",
}  # the wider first: all are aligned
_NAMES = {"<f8": "F64", "<f4": "F32"}
_AGAIN = "Copy the library again, or withdraw this group and add its recordings anew."


@dataclass(frozen=True, kw_only=True)
class CaseFacts:
    """Facts of one labelled recording of a group."""

    name: str  # pseudonym
    content: str  # `Series.digest`
    label: int  # into the classes of the library
    n_windows: int


@dataclass(frozen=True, kw_only=True)
class PatientHeader:
    """Facts of one group, without its keys."""

    group: str  # pseudonym, the name of its folder
    unit: str  # what the group is: "patient", "pair" or "recording"
    site: str
    encoder: str  # fingerprint
    recordings: tuple[CaseFacts, ...]
    digest: str = ""  # SHA-256 of the file; empty before it is written

    @property
    def n_windows(self) -> int:
        """Of all recordings."""
        return sum(item.n_windows for item in self.recordings)

    def find(self, name: str) -> CaseFacts | None:
        """The recording of this pseudonym, or None."""
        return next((item for item in self.recordings if item.name == name), None)

    def to_json(self) -> str:
        """The facts as one line of JSON, always the same for the same facts."""
        facts = {
            "encoder": self.encoder,
            "group": self.group,
            "recordings": [[item.name, item.content, item.label, item.n_windows] for item in self.recordings],
            "site": self.site,
            "unit": self.unit,
        }
        return json.dumps(facts, ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """The windows of one recording, or of several, one behind the other."""

    keys: NDArray[np.float32]  # (n, d)
    start_s: NDArray[np.float64]  # (n,)
    end_s: NDArray[np.float64]  # (n,)
    quality: NDArray[np.float32]  # (n,)

    def part(self, rows: slice) -> Rows:
        """Some of the rows, as views."""
        return Rows(**{name: getattr(self, name)[rows] for name in _DTYPES})

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Several, one behind the other."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _DTYPES})


@dataclass(frozen=True, eq=False)
class Patient:
    """One group with its keys."""

    header: PatientHeader
    rows: Rows

    def recordings(self) -> Iterator[tuple[CaseFacts, Rows]]:
        """Each recording with its rows."""
        first = 0
        for item in self.header.recordings:
            yield item, self.rows.part(slice(first, first + item.n_windows))
            first += item.n_windows

    def cases(self, classes: tuple[Any, ...]) -> Cases:
        """The same as arrays, of one group and one site."""
        header, n = self.header, self.header.n_windows
        counts = [item.n_windows for item in header.recordings]
        case = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        labels = np.array([item.label for item in header.recordings], dtype=np.int64)
        return Cases(
            keys=self.rows.keys,
            label=labels[case],
            case=case,
            group=np.zeros(n, dtype=np.int64),
            site=np.zeros(n, dtype=np.int64),
            start_s=self.rows.start_s,
            end_s=self.rows.end_s,
            quality=self.rows.quality,
            classes=classes,
            case_names=tuple(item.name for item in header.recordings),
            group_names=(header.group,),
            group_units=(header.unit,),
            site_names=(header.site,),
            digests=tuple(item.content for item in header.recordings),
        )


# Writing ----------------------------------------------------------------------------------------------------


def patient_bytes(patient: Patient) -> bytes:
    """The file of a patient; equal bytes for equal content."""
    arrays = {
        name: np.ascontiguousarray(getattr(patient.rows, name), dtype) for name, dtype in _DTYPES.items()
    }
    entries: dict[str, Any] = {
        "__metadata__": {"sha256": _NO_DIGEST, "format": FORMAT, "facts": patient.header.to_json()}
    }
    place = 0
    for name, array in arrays.items():
        entries[name] = {
            "dtype": _NAMES[_DTYPES[name]],
            "shape": list(array.shape),
            "data_offsets": [place, place + array.nbytes],
        }
        place += array.nbytes
    text = json.dumps(entries, ensure_ascii=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that arrays are aligned in a mapped file
    content = b"".join(
        [len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays.values())]
    )
    digest = hashlib.sha256(content).hexdigest()
    return content.replace(f'"sha256":"{_NO_DIGEST}"'.encode(), f'"sha256":"{digest}"'.encode(), 1)


# Reading ----------------------------------------------------------------------------------------------------


def read_header(path: Path, library: str, *, n_classes: int, width: int) -> PatientHeader:
    """The facts of a patient's file; arrays are neither read nor compared with the digest."""
    label = _label(path, library)
    with _opened(path, label) as file:
        header = _tensor_header(file, label)
    return _facts(header, path, label, n_classes=n_classes, width=width)


def read_patient(path: Path, library: str, *, n_classes: int, width: int) -> Patient:
    """A patient with its arrays as read-only views of the file, after every byte was compared with the digest."""
    label = _label(path, library)
    with _opened(path, label) as file:
        tensors = _tensor_header(file, label)
        facts = _facts(tensors, path, label, n_classes=n_classes, width=width)
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise LibraryError(f"{label} cannot be mapped into memory ({error}). {_AGAIN}") from error
    if digest_around(content, facts.digest, tensors.start) != facts.digest:  # type: ignore[arg-type]
        raise LibraryError(
            f"{label} was damaged or changed since it was written: its SHA-256 differs from the one in it. {_AGAIN}"
        )
    arrays = {
        name: np.frombuffer(
            content,
            np.dtype(dtype),
            math.prod(tensors.shapes[name]),
            tensors.start + tensors.places[name][0],
        ).reshape(tensors.shapes[name])
        for name, dtype in _DTYPES.items()
    }
    rows = Rows(**arrays)
    for name in _DTYPES:
        if not np.isfinite(arrays[name]).all():
            raise LibraryError(f"{label} has values in {name!r} that are not finite. {_AGAIN}")
    if (rows.start_s > rows.end_s).any() or (np.abs(rows.quality - 0.5) > 0.5).any():
        raise LibraryError(
            f"{label} has windows that end before they begin, or whose quality is not from 0 to 1. {_AGAIN}"
        )
    return Patient(facts, rows)


@contextmanager
def as_library_errors() -> Iterator[None]:
    """The checks of sealed files speak of models; here the same is an error of a library."""
    try:
        yield
    except ModelError as error:
        raise LibraryError(str(error)) from error


@contextmanager
def _opened(path: Path, label: str) -> Iterator[BufferedReader]:
    if path.parent.is_symlink():
        raise LibraryError(
            f"{label} lies behind a link, which may lead to any folder; it was not opened. Put a copy of the "
            "folder itself in its place."
        )
    if not os.path.lexists(path):
        raise LibraryError(
            f"{label} is missing: the group was withdrawn since the library was opened, or its folder was damaged. "
            "Open the library again."
        )
    with as_library_errors(), open_plain(path, label, most=MOST_BYTES, advice=_AGAIN) as file:
        yield file


def _tensor_header(file: BufferedReader, label: str) -> TensorHeader:
    with as_library_errors():
        header = read_tensor_header(file, label, advice=_AGAIN)
    if (stated := header.metadata.get("format")) != FORMAT:
        raise LibraryError(
            f"{label} is not a file of cases of this version: its format is {str(stated)[:40]!r}, needed is "
            f"{FORMAT!r}. It may belong to another program or to a newer raxss."
        )
    return header


def _facts(tensors: TensorHeader, path: Path, label: str, *, n_classes: int, width: int) -> PatientHeader:
    """The facts in a header, if they fit one another, the arrays, the folder and the library."""
    digest = tensors.metadata.get("sha256", "")
    found = json_of(tensors.metadata.get("facts", "").encode(), f"the header of {label}", error=LibraryError)
    try:
        header = _header_of(found, n_classes, digest)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise LibraryError(f"the header of {label} is wrong: {reason[:200]}. {_AGAIN}") from error
    if header.group != path.parent.name:
        raise LibraryError(
            f"{label} is of another group, {header.group!r}: files were swapped or renamed. {_AGAIN}"
        )
    n = header.n_windows
    needed = {
        name: ("F32", (n, width)) if name == "keys" else (_NAMES[_DTYPES[name]], (n,)) for name in _DTYPES
    }
    there = {name: (tensors.dtypes[name], tensors.shapes[name]) for name in tensors.dtypes}
    if there != needed:
        wrong = sorted(name for name in {*needed, *there} if needed.get(name) != there.get(name))[:3]
        differences = "; ".join(
            f"{name[:40]!r} is {there.get(name, 'missing')}, needed is {needed.get(name, 'no such array')}"
            for name in wrong
        )
        raise LibraryError(f"{label} has other arrays than its header says: {differences}. {_AGAIN}")
    return header


def _header_of(facts: Any, n_classes: int, digest: str) -> PatientHeader:
    """Facts out of JSON; ValueError, KeyError or TypeError where they are wrong."""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError("it has no SHA-256 of the file")
    if not isinstance(facts, dict) or set(facts) != {"encoder", "group", "recordings", "site", "unit"}:
        raise ValueError("its facts are not encoder, group, recordings, site and unit")
    for name in ("encoder", "group", "site", "unit"):
        if not isinstance(facts[name], str):
            raise ValueError(f"its {name} is no text")
    if not PSEUDONYM.fullmatch(facts["group"]):
        raise ValueError("its group is no pseudonym")
    if facts["unit"] not in UNITS:
        raise ValueError(f"its unit is {facts['unit'][:40]!r}, needed is one of {', '.join(UNITS)}")
    if not 0 < len(facts["site"]) <= MOST_SITE_LETTERS:
        raise ValueError(f"its site has {len(facts['site'])} letters, needed are 1 to {MOST_SITE_LETTERS}")
    entries = facts["recordings"]
    if not isinstance(entries, list) or not entries:
        raise ValueError("it has no list of recordings")
    recordings = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, list) or [type(item) for item in entry] != [str, str, int, int]:
            raise ValueError(
                f"recording {number} is not a pseudonym, a digest, a label and a number of windows"
            )
        name, content, label, n_windows = entry
        if not PSEUDONYM.fullmatch(name) or not DIGEST.fullmatch(content):
            raise ValueError(f"recording {number} has no pseudonym or no digest")
        if not 0 <= label < n_classes or not 0 < n_windows < 2**40:
            raise ValueError(
                f"recording {number} has the label {label} of {n_classes} and {n_windows} windows, of which one at "
                "least is needed"
            )
        recordings.append(CaseFacts(name=name, content=content, label=label, n_windows=n_windows))
    names = [item.name for item in recordings]
    if names != sorted(set(names)):
        raise ValueError("its recordings are not in the order of their pseudonyms, or one comes twice")
    return PatientHeader(
        group=facts["group"],
        unit=facts["unit"],
        site=facts["site"],
        encoder=facts["encoder"],
        recordings=tuple(recordings),
        digest=digest,
    )


def _label(path: Path, library: str) -> str:
    return f"{CASES} of group {path.parent.name[:40]!r} in library {library!r}"
