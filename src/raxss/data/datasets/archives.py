"""Text files in zip archives and folders of a dataset, and the numbers in them.

    folder, pattern -> {stem: TextFile} -> bytes -> (n_columns, n_rows)

A zip is never unpacked to the disk, and what its directory states is not trusted: the number of members,
their sizes and how far they would expand are limited before anything is read, and names that lead elsewhere
are refused.
Next: plans.py makes recordings of these.
"""

from __future__ import annotations

import io
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from raxss.data.confinement import open_confined
from raxss.errors import RecordingError, display_name

MAX_MEMBERS = 10_000  # the largest official zip has 750
MAX_MEMBER_BYTES = 2**23  # a text of the largest kind has 266,240
MAX_TOTAL_BYTES = 2**31
MAX_EXPANSION = 50  # unpacked over packed bytes; these texts reach 2 to 5
ALWAYS_ALLOWED = 2**16  # bytes that a member may unpack to, however well it is packed
MAX_FILES = 50_000  # looked at in one folder
APPLE_DOUBLE = "__MACOSX"


@dataclass(frozen=True)
class TextFile:
    """A text file: ``member`` of the zip ``file``, or ``file`` itself where ``member`` is empty."""

    file: Path
    member: str = ""


def find_texts(folder: Path, pattern: re.Pattern[str]) -> tuple[dict[str, TextFile], list[str]]:
    """Texts whose name matches, by their name in upper case without suffix; and sentences on those that come twice.

    Zips come first, then unpacked texts; of two with one name the first counts.
    """
    found: dict[str, TextFile] = {}
    again: Counter[str] = Counter()
    files = sorted(_below(folder))
    zips = [file for file in files if file.suffix.lower() == ".zip"]
    packed = [TextFile(file, member) for file in zips for member in _members(file, folder)]
    loose = [TextFile(file) for file in files if file.suffix.lower() == ".txt"]
    for text in packed + loose:
        name = PurePosixPath(text.member).name if text.member else text.file.name
        if not pattern.fullmatch(name):
            continue
        place = text.file.name if text.member else text.file.parent.name
        if found.setdefault(name.rpartition(".")[0].upper(), text) is not text:
            again[place] += 1
    sentences = [
        f"{place}: texts with the name of one found before, not taken: {n}."
        for place, n in sorted(again.items())
    ]
    return dict(sorted(found.items())), sentences


def read_text(text: TextFile, folder: Path) -> bytes:
    """All of a text."""
    what = _what(text)
    if not text.member:
        with readable(what), open_confined(text.file, folder) as file:
            content = file.read(MAX_MEMBER_BYTES + 1)
    else:
        with _opened(text.file, folder) as archive, readable(what):
            member = archive.getinfo(text.member)
            if member.flag_bits & 1:
                raise RecordingError(f"{what} is encrypted; the published one is not. Download it again.")
            allowed = max(ALWAYS_ALLOWED, MAX_EXPANSION * member.compress_size)
            if member.file_size > min(allowed, MAX_MEMBER_BYTES):
                raise RecordingError(
                    f"{what} would unpack from {member.compress_size:,} to {member.file_size:,} bytes, which no "
                    "text of this dataset does; it is not the published one."
                )
            with archive.open(member) as packed:
                content = packed.read(MAX_MEMBER_BYTES + 1)
    if len(content) > MAX_MEMBER_BYTES:
        raise RecordingError(
            f"{what} has more than {MAX_MEMBER_BYTES:,} bytes; no text of this dataset has. Copy it again."
        )
    return content


def read_numbers(text: TextFile, folder: Path, *, n_columns: int, n_rows: int) -> NDArray[np.float64]:
    """The numbers of a text, one column per channel: ``(n_columns, n_rows)``, neither more nor fewer."""
    what, content = _what(text), read_text(text, folder)
    try:
        lines = io.StringIO(content.decode("ascii"))
        table = np.loadtxt(lines, delimiter="," if n_columns > 1 else None, ndmin=2, comments=None)
    except ValueError as error:
        reason = " ".join(str(error).partition(";")[0].split())[:120]
        raise RecordingError(f"{what} is no table of numbers ({reason}). Copy it again.") from error
    if table.shape != (n_rows, n_columns) or not np.isfinite(table).all():
        found = f"{table.shape[0]} rows of {table.shape[1]}" if table.size else "no rows"
        raise RecordingError(
            f"{what} has {found}{'' if np.isfinite(table).all() else ', some not finite'}; {n_rows} rows of "
            f"{n_columns} finite number{'s' if n_columns > 1 else ''} are needed. Copy it again."
        )
    return np.ascontiguousarray(table.T)


def _below(folder: Path) -> Iterator[Path]:
    """Files up to two folders down, which is as deep as the published zips are."""
    n_seen = 0
    for pattern in ("*", "*/*", "*/*/*"):
        for file in folder.glob(pattern):
            n_seen += 1
            if n_seen > MAX_FILES:
                raise RecordingError(
                    f"the folder {display_name(folder)} holds more than {MAX_FILES:,} files; a folder with this "
                    "dataset alone is needed."
                )
            if APPLE_DOUBLE not in file.parts and not file.name.startswith("._") and file.is_file():
                yield file


def _members(path: Path, folder: Path) -> list[str]:
    """Names of the files in a zip that are not a Mac's shadows of others."""
    with _opened(path, folder) as archive:
        return [
            item.filename
            for item in archive.infolist()
            if not item.is_dir()
            and APPLE_DOUBLE not in PurePosixPath(item.filename).parts
            and not PurePosixPath(item.filename).name.startswith("._")
        ]


@contextmanager
def _opened(path: Path, folder: Path) -> Iterator[zipfile.ZipFile]:
    """A zip whose directory was checked."""
    what = f"the zip {display_name(path)}"
    with readable(what), open_confined(path, folder) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise RecordingError(
                f"{what} has {len(members):,} members; at most {MAX_MEMBERS:,} are read. It is not the "
                "published one."
            )
        total = sum(item.file_size for item in members)
        if total > MAX_TOTAL_BYTES:
            raise RecordingError(
                f"{what} would unpack to {total:,} bytes; at most {MAX_TOTAL_BYTES:,} are read. It is not the "
                "published one."
            )
        names = [item.filename for item in members]
        if len(set(names)) != len(names):
            raise RecordingError(f"{what} has two members of one name; which one counts is not certain.")
        for member in members:
            pure, kind = PurePosixPath(member.filename), stat.S_IFMT(member.external_attr >> 16)
            if pure.is_absolute() or ".." in pure.parts or "\\" in member.filename or kind == stat.S_IFLNK:
                raise RecordingError(
                    f"{what} has the member {display_name(member.filename)}, which leads out of its folder; it is "
                    "not the published one, and nothing of it was read."
                )
        yield archive


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turn errors of zipfile and the system into a RecordingError without paths."""
    try:
        yield
    except RecordingError:
        raise
    except (OSError, KeyError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise RecordingError(f"{what} cannot be read ({reason[:120]}). Copy it again.") from error
    except Exception as error:  # zlib, lzma, struct and unicode errors of damaged zips
        raise RecordingError(f"{what} is damaged ({type(error).__name__}). Copy it again.") from error


def _what(text: TextFile) -> str:
    if text.member:
        return f"{display_name(PurePosixPath(text.member).name)} in {display_name(text.file)}"
    return f"the text {display_name(text.file)}"
