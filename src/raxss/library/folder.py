"""The folder of a library: library.json, policy.toml, and one folder a patient, each whole or not there.

    library/
      library.json                                 LibraryFacts, deterministic
      policy.toml                                  Policy
      patients/PSEUDONYM/cases.safetensors         patient_file.py

Writers hold the library's lock. What a killed one leaves ends in ``.partial``; readers pass over it, and the next
writer removes it. Nothing here knows names, only pseudonyms. Further files have their names already, and nothing
writes them yet: ``consent.json`` and ``snippets.*`` in the folder of a patient, ``log.jsonl``,
``checkpoints.jsonl`` and ``withdrawn.jsonl`` beside library.json.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raxss._core.atomic import PARTIAL, flush, write_bytes
from raxss._core.bounded import MAX_TOML_BYTES, decoded, json_of
from raxss._core.outputs import LOCK, absolute, make_folder, named_output
from raxss._core.sealing import open_plain, read_all
from raxss.errors import ConfigError, LibraryError, display_name
from raxss.library.encoder import FACTS
from raxss.library.patient_file import CASES, MOST_SITE_LETTERS, as_library_errors
from raxss.library.policy import Policy
from raxss.library.pseudonyms import PSEUDONYM, UNITS
from raxss.library.selection import Selection

FORMAT = "raxss-library-1"
LIBRARY, POLICY, PATIENTS = "library.json", "policy.toml", "patients"
OF_A_PATIENT = re.compile(r"cases\.safetensors|consent\.json|snippets\.[a-z0-9.]+")
MOST_JSON_BYTES = 2**22  # of library.json: thousands of classes and sites
MOST_CLASSES = 10_000
MOST_FEATURES = 2**24
_AGAIN = "Copy the library again, or build it anew."


@dataclass(frozen=True, kw_only=True)
class LibraryFacts:
    """What library.json says. Sites and units are those of the groups that are there."""

    id: str  # 32 hexadecimal digits, the same as long as the library exists
    name: str  # tells libraries under one key and encoder apart
    encoder: str  # fingerprint
    width: int  # of keys
    classes: tuple[Any, ...]  # that the encoder knows
    model: Mapping[str, Any]  # `FACTS` of the encoder, for messages
    selection: Selection
    sites: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The text of library.json: the same for the same facts."""
        facts = {"format": FORMAT, **asdict(self)}
        return json.dumps(facts, indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, found: Any) -> LibraryFacts:
        """Facts out of JSON; ValueError, KeyError or TypeError where they are wrong."""
        if not isinstance(found, dict):
            raise ValueError(f"it is {type(found).__name__}, needed is an object")
        facts = dict(found)
        if facts.pop("format") != FORMAT:
            raise ValueError(f"its format is {str(found['format'])[:40]!r}, needed is {FORMAT!r}")
        if set(facts) != set(cls.__dataclass_fields__):
            wrong = sorted(set(facts) ^ set(cls.__dataclass_fields__))
            raise ValueError(
                f"it lacks, or has besides what is needed, {', '.join(map(display_name, wrong[:5]))}"
            )
        for name, pattern in {"id": PSEUDONYM, "encoder": re.compile("[0-9a-f]{64}")}.items():
            if not isinstance(facts[name], str) or not pattern.fullmatch(facts[name]):
                raise ValueError(f"its {name} is not what raxss writes: hexadecimal digits")
        if not isinstance(facts["name"], str) or not isinstance(facts["model"], dict):
            raise ValueError("its name is no text, or its facts of the model are no object")
        if type(facts["width"]) is not int or not 0 < facts["width"] <= MOST_FEATURES:
            raise ValueError(f"its width is {str(facts['width'])[:40]}, needed is a whole number from 1")
        if not isinstance(facts["selection"], dict) or set(facts["selection"]) != set(Selection().settings):
            raise ValueError(f"its selection is not {', '.join(Selection().settings)}")
        return cls(
            **{name: facts[name] for name in ("id", "name", "encoder", "width")},
            classes=_checked_classes(facts["classes"]),
            model={name: facts["model"][name] for name in FACTS if name in facts["model"]},
            selection=Selection(**facts["selection"]),
            sites=_texts(facts["sites"], "sites"),
            units=_texts(facts["units"], "units", UNITS),
        )


def plain_class(label: Any) -> Any:
    """A label as JSON has it: numpy's numbers as plain ones."""
    return label.item() if hasattr(label, "item") else label


def _checked_classes(found: Any) -> tuple[Any, ...]:
    if not isinstance(found, list) or not 0 < len(found) <= MOST_CLASSES:
        raise ValueError(f"its classes are no list of 1 to {MOST_CLASSES:,} labels")
    for label in found:
        if not isinstance(label, str | bool | int | float) or (
            isinstance(label, float) and not math.isfinite(label)
        ):
            raise ValueError("one of its classes is neither text nor a number")
    if len(set(found)) != len(found):
        raise ValueError("two of its classes are equal")
    return tuple(found)


def _texts(found: Any, name: str, allowed: tuple[str, ...] | None = None) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError(f"its {name} are no list of texts")
    if found != sorted(set(found)) or (allowed is not None and not set(found) <= set(allowed)):
        raise ValueError(f"its {name} are not in order, or one is unknown")
    return tuple(found)


def check_site(site: Any) -> str:
    """A site as a name: some printable letters, which stand in the library as they are."""
    if (
        not isinstance(site, str)
        or not site.strip()
        or not site.isprintable()
        or len(site) > MOST_SITE_LETTERS
    ):
        raise LibraryError(
            f"the site is {str(site)[:60]!r}; needed is the name of a place, 1 to {MOST_SITE_LETTERS} printable "
            "letters, such as 'bern'. It stands in the library as it is, so it must not name a patient."
        )
    return site


class LibraryFolder:
    """Reads and writes the files of one library; writers hold its lock (`raxss._core.outputs.output_lock`)."""

    def __init__(self, path: Path | str) -> None:
        self.path = absolute(path)
        self.name = self.path.name

    # Reading ------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether a library was made here; library.json is written last."""
        return os.path.lexists(self.path / LIBRARY)

    def facts(self) -> LibraryFacts:
        """What library.json says."""
        if not self.exists:
            found = (
                "a folder without it" if self.path.is_dir() else "a file" if self.path.exists() else "nothing"
            )
            raise LibraryError(
                f"there is no case library {self.name!r}: {LIBRARY} is needed, {found} was found. Give the folder "
                "that CaseLibrary.build wrote; if that was interrupted, run it again."
            )
        label = self._label(LIBRARY)
        content = self._read(LIBRARY, MOST_JSON_BYTES)
        value = json_of(content, label, error=LibraryError)
        try:
            return LibraryFacts.from_json(value)
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise LibraryError(f"{label} is wrong: {reason[:300]}. {_AGAIN}") from error

    def policy(self) -> Policy:
        """What policy.toml says."""
        label = self._label(POLICY)
        text = decoded(self._read(POLICY, MAX_TOML_BYTES), label, error=LibraryError)
        return Policy.from_toml(text, label)

    def groups(self) -> tuple[str, ...]:
        """Pseudonyms of the groups, in order; a file of something else is refused."""
        found = []
        for entry in self._entries(self.path / PATIENTS):
            if PSEUDONYM.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
            elif not _is_partial(entry.name):
                kind = "a link" if entry.is_symlink() else "a folder" if entry.is_dir() else "a file"
                raise LibraryError(
                    f"{PATIENTS}/ of library {self.name!r} holds {kind} that is none of its groups, "
                    f"{display_name(entry.name)}. Every entry there is the folder of a pseudonym, 32 hexadecimal "
                    "digits: find out who put it there, and remove it."
                )
        return tuple(sorted(found))

    def cases(self, group: str) -> Path:
        """The file of a group, in a folder that holds nothing foreign."""
        place = self.path / PATIENTS / group
        if place.is_dir() and not place.is_symlink():
            for entry in self._entries(place):
                if not OF_A_PATIENT.fullmatch(entry.name) and not _is_partial(entry.name):
                    raise LibraryError(
                        f"the folder of group {group!r} in library {self.name!r} holds {display_name(entry.name)}, "
                        f"which is no part of it. Needed is {CASES}: find out who put it there, and remove it."
                    )
        return place / CASES

    # Writing ------------------------------------------------------------------------------------------------

    def create(self, facts: LibraryFacts, policy: Policy) -> None:
        """An empty library; library.json comes last, so that a folder that has it has the rest."""
        make_folder(self.path / PATIENTS)
        write_bytes(self.path / POLICY, policy.to_toml().encode())
        write_bytes(self.path / LIBRARY, facts.to_json().encode())

    def refuse_other_content(self) -> None:
        """Raise if the folder holds anything but what an interrupted `create` leaves."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise LibraryError(
                f"{self.name!r} is a link or a file; a library is a folder. Choose another place."
            )
        if not self.path.exists():
            return
        for entry in self._entries(self.path):
            # The lock lies inside where the folder around cannot be written.
            is_ours = entry.name in (POLICY, LOCK) or _is_partial(entry.name)
            if entry.name == PATIENTS and entry.is_dir(follow_symlinks=False):
                is_ours = not list(self._entries(self.path / PATIENTS))
            if not is_ours:
                raise LibraryError(
                    f"the folder {self.name!r} holds {display_name(entry.name)} and is no case library; nothing "
                    "was written. Choose a folder that is empty or does not exist."
                )

    def write_facts(self, facts: LibraryFacts) -> None:
        """Replace library.json, unless it says the same already."""
        content = facts.to_json().encode()
        if content != self._read(LIBRARY, MOST_JSON_BYTES):
            write_bytes(self.path / LIBRARY, content)

    def put(self, group: str, content: bytes) -> None:
        """Write the cases of a group; a new folder appears with its file in it, or not at all."""
        place = self.path / PATIENTS / group
        if place.is_dir():
            write_bytes(place / CASES, content)
            return
        temporary = self._partial(group)
        with named_output(place):
            temporary.mkdir()
            write_bytes(temporary / CASES, content)
            flush(temporary)
            os.rename(temporary, place)
            flush(place.parent)

    def take_away(self, group: str) -> None:
        """Remove the folder of a group; it is gone for readers at once."""
        place, temporary = self.path / PATIENTS / group, self._partial(group)
        with named_output(place, "Run the withdrawal again when the folder can be written"):
            os.rename(place, temporary)
            flush(place.parent)
            shutil.rmtree(temporary)
            flush(place.parent)

    def left_groups(self) -> set[str]:
        """Groups that a killed writer left half-written, or half-removed."""
        entries = self._entries(self.path / PATIENTS)
        names = {entry.name[1:].removesuffix(PARTIAL) for entry in entries if _is_partial(entry.name)}
        return {name for name in names if PSEUDONYM.fullmatch(name)}

    def clean(self) -> None:
        """Remove what killed writers left."""
        patients = self.path / PATIENTS
        for place in (self.path, patients, *(patients / group for group in self.groups())):
            for path in [Path(entry.path) for entry in self._entries(place) if _is_partial(entry.name)]:
                with named_output(path, "Run the command again when the folder can be written"):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink()

    def _partial(self, group: str) -> Path:
        return self.path / PATIENTS / f".{group}{PARTIAL}"

    def _read(self, file: str, most: int) -> bytes:
        label = self._label(file)
        with as_library_errors(), open_plain(self.path / file, label, most=most, advice=_AGAIN) as opened:
            return read_all(opened, label, advice=_AGAIN)

    def _entries(self, place: Path) -> list[os.DirEntry[str]]:
        label = f"the folder {place.name!r} of library {self.name!r}"
        if place != self.path and place.is_symlink():
            raise LibraryError(
                f"{label} is a link, which may lead anywhere; it was not opened. Put a copy of the folder itself "
                "in its place."
            )
        try:
            with os.scandir(place) as entries:
                return list(entries)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise LibraryError(f"{label} cannot be read ({reason}). {_AGAIN}") from error

    def _label(self, file: str) -> str:
        return f"{file} of library {self.name!r}"


def _is_partial(name: str) -> bool:
    return name.startswith(".") and name.endswith(PARTIAL)
