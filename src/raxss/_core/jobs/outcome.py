"""Outcome of one item in a worker: its result, or a `Failure` with the reason."""

from __future__ import annotations

import platform
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from raxss._core.version import __version__
from raxss.errors import display_name, without_folders

Item = TypeVar("Item")
Result = TypeVar("Result")

DIED = "WorkerDied"
LIBRARIES = ("OMP", "MKL", "OPENBLAS", "NUMBA", "VECLIB", "NUMEXPR")


@dataclass(frozen=True)
class Failure:
    """Why an item has no result. It is kept on disk and shown to others: no folders, no source lines."""

    kind: str  # name of the exception; DIED where the worker ended without one
    message: str
    details: str = ""  # the traceback, a line a call: ``module:line in function``

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


def attempt(
    function: Callable[[Item], Result], item: Item, *, version: str = __version__, mark: Path | None = None
) -> Result | Failure:
    """Run the function on one item; what it raises becomes a `Failure`, so that the others go on.

    So does another ``version`` of raxss here, and a shared folder without the file ``mark``.
    """
    where = f"on {platform.node() or 'another machine'}"
    if version != __version__:
        message = (
            f"a worker has raxss {__version__}, and {version} started the work; install the same version on every "
            "node."
        )
        return Failure("OtherVersion", message, where)
    if mark is not None and not mark.exists():
        message = (
            f"a worker does not see the folder {display_name(mark.parent)} that results go to; on a cluster it "
            "must be on a file system that all nodes share, under the same path. Choose another."
        )
        return Failure("FolderNotShared", message, where)
    try:
        return function(item)
    except (Exception, SystemExit) as error:
        return failure_of(error)


def failure_of(error: BaseException) -> Failure:
    """An exception as text, because not every exception can be sent to another process."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Failure(type(error).__name__, without_folders(str(message)), "\n".join(_frames(error)))


def _frames(error: BaseException) -> list[str]:
    """The traceback of an exception, after those of its causes."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    lines = []
    for link in reversed(chain):
        for frame, line in traceback.walk_tb(link.__traceback__):
            lines.append(f"{frame.f_globals.get('__name__', '?')}:{line} in {frame.f_code.co_name}")
        # of a message of many lines the last: it may be the whole traceback of another process
        message = without_folders(str(link).strip(' \n"').rpartition("\n")[2])
        lines.append(f"{type(link).__name__}: {message}")
    return lines


def died(times: int, how: str) -> Failure:
    """The failure of an item whose worker died too often."""
    often = f"{times} times" if times > 1 else "once"
    return Failure(
        DIED,
        f"its worker died {often} ({how}). The system ends a process that asks for more memory than there is, and "
        "a fault in native code ends one too. Use fewer workers, or leave this item out.",
    )


def thread_settings(n_threads: int | None) -> dict[str, str]:
    """Environment variables that fix how many threads each numerical library starts; read when it is loaded."""
    if n_threads is None:
        return {}
    names = [f"{name}_{'MAXIMUM' if name == 'VECLIB' else 'NUM'}_THREADS" for name in LIBRARIES]
    return dict.fromkeys(names, str(n_threads))
