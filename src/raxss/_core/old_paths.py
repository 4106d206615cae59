"""Old import paths: a finder that serves modules under the names they had before they moved.

    import raxss.recordings.series  ->  raxss.data.series, with a DeprecationWarning that names it

What lies below a package moves with it. The old name is bound to the same module object, so classes and
registries exist once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Old path -> new path; the longest one that fits decides.
MOVED = {
    "raxss.aggregation": "raxss.method.aggregation",
    "raxss.augmentation": "raxss.method.augmentation",
    "raxss.backbones": "raxss.method.backbones",
    "raxss.calibration": "raxss.uncertainty.calibration",
    "raxss.config": "raxss.estimator.config",
    "raxss.datasets": "raxss.data.datasets",
    "raxss.evidence": "raxss.explain",
    "raxss.evidence.report": "raxss.explain.export.report",
    "raxss.explain.reliability_figure": "raxss.explain.figures",
    "raxss.faithfulness": "raxss.explain.faithfulness",
    "raxss.prediction": "raxss.method.window_scorer",
    "raxss.preparation": "raxss.data.prepare.preprocessing",
    "raxss.prepared": "raxss.data.prepare",
    "raxss.recordings": "raxss.data",
    "raxss.recordings.opening": "raxss.data.formats.opening",
    "raxss.retrieval": "raxss.method.retrieval",
    "raxss.sampling": "raxss.method.sampling",
    "raxss.splits": "raxss.data.splits",
    "raxss.stepping": "raxss.method.training.step",
    "raxss.study": "raxss.benchmark",
    "raxss.study.reweighting": "raxss.benchmark.analyses.reweighting",
    "raxss.training": "raxss.method.training.loop",
    "raxss.windows": "raxss.method.windows",
}


def new_path(old: str) -> str | None:
    """The current path of a module; None if the name is not an old one.

    >>> new_path("raxss.recordings.series"), new_path("raxss.method.windows")
    ('raxss.data.series', None)
    """
    if not old.startswith("raxss."):
        return None  # called for every import of a process
    head, tail = old, ""
    while head not in MOVED:
        head, dot, name = head.rpartition(".")
        if not dot:
            return None
        tail = f".{name}{tail}"
    return MOVED[head] + tail


class OldPaths(MetaPathFinder, Loader):
    """Finds modules under their old names, and loads those of the new names in their place."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old name; None for any other."""
        return None if new_path(fullname) is None else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module of the new name."""
        new = new_path(spec.name)
        assert new is not None, "find_spec makes specs of old names alone"
        module = import_module(new)
        warnings.warn(
            f"{spec.name} is {new} now; the old name will be removed in 1.0. Import {new}.",
            DeprecationWarning,
            stacklevel=2,  # frames of the import system are not counted
        )
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run; the import system has put the old name's spec in place of the module's own."""
        assert module.__spec__ is not None, "the import system sets it"
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Let old import paths be found, once."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldPaths())
