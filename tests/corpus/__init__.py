"""Files that are broken on purpose, each with the verdict that ``raxss check`` must give.

    python -m tests.corpus FOLDER      writes them all, and corpus.json with what is expected

One module a format has ``cases()``. Nothing is stored: the corpus is written by code, from fixed seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One file, or one small tree, and what must be said about it.

    ``write(folder)`` fills an empty folder and returns what to pass to ``raxss check``. ``codes`` must all be
    among the problems found. ``samples`` is what an accepted file must decode to, if that can be said: channel
    position -> samples.
    """

    name: str
    write: Callable[[Path], Path]
    verdict: str
    codes: tuple[str, ...] = ()
    tags: frozenset[str] = field(default_factory=frozenset)  # "bomb", "escape"
