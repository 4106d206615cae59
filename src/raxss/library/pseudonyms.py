"""Pseudonyms: names of groups and recordings, as a library holds them.

    key file (outside the library), site, unit, name -> HMAC-SHA256 -> 32 hexadecimal digits

Without the key nobody can compute a name from a pseudonym, or the pseudonym of a name; with it everybody can. So
the key file never lies inside the library, and a copy of the library goes without it. Each kind of thing has a
domain of its own: a group and a recording of the same name have nothing in common.

That is all that is promised. Whoever has a recording itself can find it in a library without the key, and with it
the pseudonyms of recording and group: by its digest, `Series.digest`, which stands in the files as it is, or by the
keys of its windows. Digests under the key come with governance.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import warnings
from collections.abc import Hashable
from pathlib import Path

from raxss._core.atomic import whole_file
from raxss._core.bounded import read_text
from raxss._core.outputs import absolute
from raxss.data.series import Series
from raxss.data.splits import group_of
from raxss.errors import LibraryError, LibraryWarning, display_name

UNITS = (
    "patient",
    "pair",
    "recording",
)  # what a group is, widest first: the widest that is known of a series
PSEUDONYM = re.compile(r"[0-9a-f]{32}")
KEY_BYTES = 32
MOST_KEY_FILE_BYTES = 4096
_FORMAT = "raxss-library-key-1"
_DOMAIN = "raxss case library, pseudonyms, 1"


class Pseudonyms:
    """Names to pseudonyms under one key.

    Examples
    --------
    >>> names = Pseudonyms(b"0" * 32)
    >>> names.of("group", "bern", "patient", "ann")
    '05516a2cfe2d46c53c2ca779391cf34f'
    >>> names.of("group", "bonn", "patient", "ann") == names.of("group", "bern", "patient", "ann")
    False
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, kind: str, *parts: str) -> str:
        """The pseudonym of a thing of this kind: 32 hexadecimal digits."""
        text = json.dumps([_DOMAIN, kind, *parts], ensure_ascii=True, separators=(",", ":"))
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()[:32]

    def of_group(self, site: str, unit: str, group: Hashable) -> str:
        """The pseudonym of a group of a site; people of two sites are two, even if they are called alike."""
        return self.of("group", site, unit, *_texts(group))

    def of_recording(self, site: str, unit: str, group: Hashable, series: Series) -> str:
        """The pseudonym of a recording: by its group, its name and where it comes from, not by its content."""
        origin = [f"{level}={_text(value)}" for level, value in series.origin.items() if level != "centre"]
        within = json.dumps(_texts(group))
        return self.of("recording", site, unit, within, series.name, *origin)


def unit_and_group(series: Series) -> tuple[str, Hashable]:
    """What keeps a series apart from its own kind: its patient where that is known, else pair, else recording.

    >>> unit_and_group(Series([0.0], name="C3", origin={"patient": "ann", "channel": "C3"}))
    ('patient', 'ann')
    >>> unit_and_group(Series([0.0], name="night"))
    ('recording', 'night')
    >>> unit_and_group(Series([0.0], group=7.0))
    ('patient', '7')
    """
    for unit in UNITS:
        group = group_of(series, unit)
        if group is not None:
            return unit, tuple(_texts(group)) if isinstance(group, tuple) else _text(group)
    return UNITS[-1], series.name


def possible_groups(series: Series) -> set[Hashable]:
    """All that a group of this series may have been called, whatever was known of it when it was added.

    Who is known by patient and recording now may have been added by the recording alone.

    >>> C4 = Series([0.0], name="C4", origin={"patient": "ann", "recording": "rec0"})
    >>> possible_groups(C4) >= {"ann", ("ann", "rec0"), "rec0", "C4"}
    True
    """
    named = {series.origin.get(unit) for unit in UNITS} | {series.group}
    qualified = {(within, value) for within in named for value in named}
    of_units = {group_of(series, unit) for unit in UNITS}
    return {
        group
        for group in {series.name, *named, *qualified, *of_units}
        if group is not None and not (isinstance(group, tuple) and None in group)
    }


def _texts(group: Hashable) -> list[str]:
    """A group as texts: a recording within a patient stays two."""
    return [_text(part) for part in group] if isinstance(group, tuple) else [_text(group)]


def _text(name: Hashable) -> str:
    """A whole number is the same as an integer, a float or a scalar of numpy, or as what one of these was read as.

    pandas makes 1.0 of 1 as soon as another one of the column is missing.

    >>> {_text(1), _text(1.0), _text("1"), _text("1.0")}, _text(1.5), _text("v1.0")
    ({'1'}, '1.5', 'v1.0')
    """
    text = str(name)
    return text[:-2] if re.fullmatch(r"-?[0-9]+\.0", text) else text


# Key files --------------------------------------------------------------------------------------------------


def key_beside(library: Path) -> Path:
    """Where the key file of a library is looked for unless another is given: ``NAME.key`` beside the folder."""
    library = absolute(library)
    return library.with_name(f"{library.name}.key")


def new_key() -> bytes:
    """A key that nobody has."""
    return secrets.token_bytes(KEY_BYTES)


def make_key_file(path: Path, library: Path, key: bytes) -> None:
    """Write a new key, readable by its owner alone; a file that is there stays, and is an error."""
    refuse_key_inside(path, library)
    text = f"{_FORMAT}\n{key.hex()}\n"
    with (
        whole_file(path, overwrite=False) as place,
        open(place, "x", encoding="ascii", opener=_private) as file,
    ):
        file.write(text)


def _private(path: str, flags: int) -> int:
    """Open a new file that nobody else may read from the moment it is there."""
    return os.open(path, flags, 0o600)


def read_key_file(path: Path, library: Path) -> Pseudonyms:
    """The pseudonyms of a key file; warns where others may read it."""
    refuse_key_inside(path, library)
    label = f"key file {display_name(path)}"
    try:
        text = read_text(path, label, MOST_KEY_FILE_BYTES, error=LibraryError)
        mode = os.stat(path).st_mode
    except OSError as error:
        raise LibraryError(
            f"{label} cannot be read ({error.strerror or type(error).__name__}). It holds the key of all "
            "pseudonyms of the library: give the path of the file that the library was built with, or restore it "
            "from a backup."
        ) from error
    found = re.fullmatch(rf"{_FORMAT}\n([0-9a-f]{{{2 * KEY_BYTES}}})\n?", text)
    if found is None:
        raise LibraryError(
            f"{label} is no key of a case library: needed are the line {_FORMAT!r} and a line of {2 * KEY_BYTES} "
            "hexadecimal digits. Give the path of the file that the library was built with."
        )
    if os.name == "posix" and mode & 0o077:
        warnings.warn(
            f"{label} can be read or changed by other users of this machine (mode {mode & 0o777:o}); who reads it "
            f"can find the pseudonym of any name. Run: chmod 600 {path.name}",
            LibraryWarning,
            stacklevel=4,
        )
    return Pseudonyms(bytes.fromhex(found[1]))


def refuse_key_inside(path: Path, library: Path) -> None:
    """A key inside the library would go wherever the library is copied."""
    inside = Path(os.path.realpath(library))
    for place in (absolute(path), Path(os.path.realpath(path))):
        if place == inside or inside in place.parents or absolute(library) in place.parents:
            raise LibraryError(
                f"the key file {display_name(path)} would lie inside the library {library.name!r}; who gets a copy "
                "of the library would get the key of its pseudonyms with it. Put it elsewhere, beside the folder "
                f"for instance: {key_beside(library).name!r}."
            )
