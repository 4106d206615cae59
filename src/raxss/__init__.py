"""RAxSS: classify medical time series of any length, and show why.

Follow the data through the packages: data -> method (windows, sampling, retrieval, backbones, aggregation,
training) -> uncertainty -> explain; library keeps cases of other recordings, estimator drives the chain, benchmark
compares it with others, cli has the commands.
``docs/tour.md`` walks one series through.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from raxss._core import old_paths
from raxss._core.version import __version__

if TYPE_CHECKING:
    from raxss.data.series import Series as Series
    from raxss.data.series import SeriesCollection as SeriesCollection
    from raxss.estimator.auto import AutoRAxSS as AutoRAxSS
    from raxss.estimator.classifier import RAxSSClassifier as RAxSSClassifier
    from raxss.estimator.config import Config as Config
    from raxss.explain.series_evidence import SeriesEvidence as SeriesEvidence
    from raxss.explain.tracing import trace as trace
    from raxss.method.aggregation import aggregate as aggregate
    from raxss.method.retrieval.front import retrieve as retrieve
    from raxss.method.retrieval.search import Retrieval as Retrieval
    from raxss.method.weighting.protocol import window_weights as window_weights
    from raxss.method.windows import windows_of as windows_of

# Imported on first use, so that `raxss --help` does not wait for torch.
_HOMES = {
    "Series": "raxss.data.series",
    "SeriesCollection": "raxss.data.series",
    "windows_of": "raxss.method.windows",
    "retrieve": "raxss.method.retrieval",
    "Retrieval": "raxss.method.retrieval",
    "aggregate": "raxss.method.aggregation",
    "window_weights": "raxss.method.weighting",
    "trace": "raxss.explain",
    "SeriesEvidence": "raxss.explain",
    "Config": "raxss.estimator.config",
    "RAxSSClassifier": "raxss.estimator.classifier",
    "AutoRAxSS": "raxss.estimator.auto",
}
__all__ = [*_HOMES, "__version__"]

old_paths.install()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'raxss' has no attribute {name!r}. Public names: {', '.join(__all__)}.")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
