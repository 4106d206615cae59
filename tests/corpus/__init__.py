"""Files that are broken on purpose, each with the verdict that ``raxss check`` must give.

One module a format has ``cases()``. Nothing is stored: the corpus is written by code, from fixed seeds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FORMATS = ("edf", "places", "brainvision", "wfdb", "arrays", "bids")


@dataclass(frozen=True)
class Case:
    """One file, or one small tree, and what must be found.

    ``write(folder)`` fills an empty folder and returns what to pass to ``raxss check``. Of a tree, ``verdict`` is
    the worst of its files' and ``codes`` are looked for in all of them; ``codes`` must all be among the problems
    found. What an accepted file must decode to, where that is known: ``samples``, channel position -> samples
    of all segments one after the other; ``names``, ``rates`` and ``units`` of all channels; ``starts``, seconds, of
    segments.
    """

    name: str
    write: Callable[[Path], Path]
    verdict: str
    codes: tuple[str, ...] = ()
    tags: frozenset[str] = field(default_factory=frozenset)  # "bomb", "escape"
    samples: Mapping[int, NDArray[np.float64]] | None = None
    names: tuple[str, ...] | None = None
    rates: tuple[float, ...] | None = None
    starts: tuple[float, ...] | None = None
    units: tuple[str, ...] | None = None


def all_cases() -> list[Case]:
    """Every format's."""
    modules = [importlib.import_module(f".{name}", __name__) for name in FORMATS]
    return [case for module in modules for case in module.cases()]
