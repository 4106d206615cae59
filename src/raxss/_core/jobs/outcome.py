"""What became of one item?

    function, item -> its result, or a Failure that says why there is none

This is what a worker runs, in whichever process or machine it is. Next: local.py and on_ray.py have workers do it.
"""

from __future__ import annotations

import os
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
        What the exception said, for people.
    details
        Where it was raised, for whoever looks for the fault: a line a call, ``module:line in function``. No folders
        and no source lines: failures are kept on disk, and shown to others.

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
    """What a worker must find where it runs, so that it does the work it was meant to do.

    Attributes
    ----------
    version
        Of raxss.
    mark
        A file in the folder that everybody writes to; None where nobody does.
    """

    version: str
    mark: Path | None = None

    def problem(self) -> Failure | None:
        """What is not as it should be here.

        >>> Surroundings(version="0.0.0").problem().kind
        'OtherVersion'
        """
        if self.version != __version__:
            return Failure(
                "OtherVersion",
                f"a worker has raxss {__version__}, and {self.version} was asked to do the work; install the same "
                "version on every node.",
                details=f"on {_host()}",
            )
        if self.mark is not None and not self.mark.exists():
            return Failure(
                "FolderNotShared",
                f"a worker does not see the folder {display_name(self.mark.parent)} that results go to; on a "
                "cluster it must be on a file system that all nodes share, under the same path. Choose another.",
                details=f"on {_host()}",
            )
        return None


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
    told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Failure(type(error).__name__, without_folders(str(told)), "\n".join(_frames(error)))


def _frames(error: BaseException) -> list[str]:
    """The calls that led to an exception, and before them those that led to what caused it."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    told = []
    for item in reversed(chain):
        for frame, line in traceback.walk_tb(item.__traceback__):
            told.append(f"{frame.f_globals.get('__name__', '?')}:{line} in {frame.f_code.co_name}")
        # of a message of many lines the last: it may be the whole traceback of another process
        said = without_folders(str(item).strip(' \n"').rpartition("\n")[2])
        told.append(f"{type(item).__name__}: {said}")
    return told


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


def _host() -> str:
    return os.uname().nodename if hasattr(os, "uname") else "another machine"
