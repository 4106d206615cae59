"""Path confinement: only regular files below a root folder are opened, with all links followed.

    path, root -> leads outside? -> a Problem, or an open regular file

Nothing is opened before both questions are answered: does the name, with all links followed, stay below
the root, and is there a regular file at its end? A named pipe would wait for ever; a device may do anything.
Next: formats/ looks into what was opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from raxss.data.problems import Problem
from raxss.errors import display_name

DESCRIPTION = "dataset_description.json"  # in the root of every BIDS dataset


def root_of(path: Path) -> Path:
    """The folder that nothing a recording points to may leave: the BIDS root around it, or else its own folder."""
    folder = Path(os.path.abspath(path)).parent
    return next((item for item in (folder, *folder.parents) if (item / DESCRIPTION).is_file()), folder)


def leads_outside(path: Path, root: Path) -> bool:
    """Whether a path, with ``..`` and every link followed, ends outside ``root``.

    How ``root`` itself is reached does not matter: it may be a link.

    >>> leads_outside(Path("data/a/../b.edf"), Path("data")), leads_outside(Path("data/../b.edf"), Path("data"))
    (False, True)
    """
    try:
        inside, target = os.path.realpath(root), os.path.realpath(path)
        return os.path.commonpath([inside, target]) != inside
    except ValueError:  # a NUL in the name, or another drive
        return True


def problem_of_opening(path: Path, root: Path, called: str | None = None) -> Problem | None:
    """Why a file must not or cannot be opened; None if it can be. Opens nothing.

    ``called``: how messages call a file whose name was read from a header and may be that of a person.

    >>> problem_of_opening(Path("data/../secret.edf"), Path("data")).code
    'outside'
    """
    called = called or display_name(path)
    if leads_outside(path, root):
        return Problem(
            "outside",
            f"{called} leads out of the folder that it belongs to, by a link or by '..'; it was not opened. "
            "Copy the file itself into that folder.",
        )
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return Problem("not-found", f"{called} was not found. Check its name and whether it was copied.")
    except (OSError, ValueError) as error:
        return _not_readable(called, error)
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        return Problem("not-readable", f"{called} is {kind}, where a regular file is needed. Remove it.")
    if not os.access(path, os.R_OK):
        return _not_readable(called, PermissionError("permission denied"))
    return None


def open_confined(path: Path, root: Path) -> BinaryIO:
    """Open a regular file below ``root`` for reading; an OSError without any path if that cannot be.

    The kind of file is checked again once it is open, in case it was exchanged in between.
    """
    if problem := problem_of_opening(path, root):
        raise OSError(problem.message)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{display_name(path)} is not a regular file any more. Check it again.")
    return open(descriptor, "rb")


def _not_readable(called: str, error: Exception) -> Problem:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Problem(
        "not-readable", f"{called} cannot be read ({reason.lower()}). Check its permissions and the disk."
    )
