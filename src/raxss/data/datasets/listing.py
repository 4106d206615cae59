"""List of a dataset's files, with sizes and checksums.

    tables/*.tsv -> one ListedFile a line

The tables come with the package, so that what was fetched from anywhere can be checked: signals by MD5, as
the archive publishes it, sidecars by SHA-256.
Next: plans.py compares a disk with them; download.py fetches what is missing.
"""

from __future__ import annotations

import csv
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from raxss.errors import DataError, RecordingError, did_you_mean

ALWAYS = ("sourcedata",)  # comes along with every choice of subjects: the labels are there


@dataclass(frozen=True)
class ListedFile:
    """One file: its path below the dataset's folder, its length in bytes and a checksum."""

    path: str
    size: int
    algorithm: str
    digest: str


@cache
def listed_files(tables: tuple[Path, ...]) -> tuple[ListedFile, ...]:
    """Files of tables with the columns ``path``, ``size_bytes`` and ``md5`` or ``sha256``, by their paths."""
    listed = []
    for table in tables:
        rows = csv.DictReader(table.read_text("utf-8").splitlines(), delimiter="\t")
        algorithm = "md5" if "md5" in (rows.fieldnames or ()) else "sha256"
        listed += [
            ListedFile(safe_path(row["path"]), int(row["size_bytes"]), algorithm, row[algorithm])
            for row in rows
        ]
    return tuple(sorted(listed, key=lambda item: item.path))


def safe_path(path: str) -> str:
    """A path of a list, if it surely stays below the folder that it is put into."""
    pure = PurePosixPath(path)
    odd = not path.isprintable() or any(letter in path for letter in '\\:*?"<>|')
    if odd or pure.is_absolute() or ".." in pure.parts or not pure.parts or str(pure) != path:
        raise RecordingError(
            f"the list of files names {path!r}, which is no plain path below the dataset's folder; nothing was "
            "written there. Parts separated by '/', without '..', are needed."
        )
    return path


def choose(listed: Sequence[ListedFile], only: Iterable[str]) -> tuple[ListedFile, ...]:
    """The files of some subjects (``sub-pt01`` or ``pt01``), or those whose path matches a pattern (``*.tsv``).

    What concerns all subjects, the files of the top folder and ``sourcedata``, always comes along.
    """
    only = list(only)
    if not only:
        return tuple(listed)
    tops = {item.path: item.path.split("/")[0] for item in listed}
    chosen = {path for path, top in tops.items() if "/" not in path or top in ALWAYS}
    for wanted in only:
        named = (wanted.rstrip("/"), f"sub-{wanted}")
        paths = {path for path, top in tops.items() if top in named or fnmatch.fnmatchcase(path, wanted)}
        if not paths:
            subjects = sorted({top for top in tops.values() if top.startswith("sub-")})
            raise DataError(f"no file of the dataset matches {wanted!r}{did_you_mean(wanted, subjects)}")
        chosen |= paths
    return tuple(item for item in listed if item.path in chosen)


def local_path(folder: Path, listed: ListedFile) -> Path:
    """Where a listed file lies on this disk."""
    return folder.joinpath(*PurePosixPath(listed.path).parts)


def is_whole(folder: Path, listed: ListedFile) -> bool:
    """Whether a listed file is there with its listed length."""
    try:
        return local_path(folder, listed).stat().st_size == listed.size
    except OSError:
        return False
