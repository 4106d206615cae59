"""Outcome of one item: its result, or a `Failure`.

    function, item -> attempt -> its result, or a Failure with the reason

A worker runs this, in whichever process or machine it is. Next: local.py and on_ray.py start workers.
"""

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
    """Why an item has no result.

    Attributes
    ----------
    kind
        The name of the exception; ``WorkerDied`` where the worker ended without one, more often than was allowed.
    message
        Of the exception.
    details
        The traceback, a line a call, ``module:line in function``. No folders and no source lines: failures are kept
        on disk, and shown to others.

    Examples
    --------
    >>> attempt(float, "two").kind
    'ValueError'
    """

    kind: str
    message: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True)
class Surroundings:
    """What a worker needs where it runs: the version of raxss, and the folder that all write to."""

    version: str
    mark: Path | None = None  # a file in the folder

    def problem(self) -> Failure | None:
        """What is missing here.

        >>> Surroundings(version="0.0.0").problem().kind
        'OtherVersion'
        """
        if self.version != __version__:
            kind = "OtherVersion"
            message = (
                f"a worker has raxss {__version__}, and {self.version} started the work; install the same "
                "version on every node."
            )
        elif self.mark is not None and not self.mark.exists():
            kind = "FolderNotShared"
            message = (
                f"a worker does not see the folder {display_name(self.mark.parent)} that results go to; on a "
                "cluster it must be on a file system that all nodes share, under the same path. Choose another."
            )
        else:
            return None
        return Failure(kind, message, details=f"on {platform.node() or 'another machine'}")


def attempt(
    function: Callable[[Item], Result], item: Item, surroundings: Surroundings | None = None
) -> Result | Failure:
    """Run the function on one item; what it raises becomes a `Failure`, so that the others go on."""
    if surroundings is not None and (problem := surroundings.problem()) is not None:
        return problem
    try:
        return function(item)
    except (Exception, SystemExit) as error:
        return failure_of(error)


def failure_of(error: BaseException) -> Failure:
    """An exception as text, because not every exception can be sent to another process."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Failure(type(error).__name__, without_folders(str(message)), "\n".join(_frames(error)))


def _frames(error: BaseException) -> list[str]:
    """The calls that led to an exception, and before them those that led to what caused it."""
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
    """The worker of an item ended again and again."""
    often = f"{times} times" if times > 1 else "once"
    return Failure(
        DIED,
        f"its worker died {often} ({how}). The system ends a process that asks for more memory than there is, and "
        "a fault in native code ends one too. Use fewer workers, or leave this item out.",
    )


def thread_settings(n_threads: int | None) -> dict[str, str]:
    """Environment variables that fix how many threads each numerical library starts; read when it is loaded.

    >>> thread_settings(2)["OMP_NUM_THREADS"], thread_settings(None)
    ('2', {})
    """
    if n_threads is None:
        return {}
    names = [f"{name}_{'MAXIMUM' if name == 'VECLIB' else 'NUM'}_THREADS" for name in LIBRARIES]
    return dict.fromkeys(names, str(n_threads))
