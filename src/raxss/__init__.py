"""RAxSS: classify medical time series of any length, and show why.

Follow the data through the modules: recordings -> preparation -> windows -> sampling -> retrieval, backbones
-> aggregation -> evidence; training and estimator drive the chain. ``docs/tour.md`` walks one series through.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raxss.aggregation import aggregate, window_weights
    from raxss.config import Config
    from raxss.estimator import RAxSSClassifier
    from raxss.evidence import SeriesEvidence, trace
    from raxss.recordings.series import Series, SeriesCollection
    from raxss.retrieval import Retrieval, retrieve
    from raxss.windows import windows_of

__version__ = "0.1.0"

# Imported when first asked for, so that `raxss --help` does not wait for torch.
_HOMES = {
    "Series": "raxss.recordings.series",
    "SeriesCollection": "raxss.recordings.series",
    "windows_of": "raxss.windows",
    "retrieve": "raxss.retrieval",
    "Retrieval": "raxss.retrieval",
    "aggregate": "raxss.aggregation",
    "window_weights": "raxss.aggregation",
    "trace": "raxss.evidence",
    "SeriesEvidence": "raxss.evidence",
    "Config": "raxss.config",
    "RAxSSClassifier": "raxss.estimator",
}

__all__ = [
    "Series",
    "SeriesCollection",
    "windows_of",
    "retrieve",
    "Retrieval",
    "aggregate",
    "window_weights",
    "trace",
    "SeriesEvidence",
    "Config",
    "RAxSSClassifier",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'raxss' has no attribute {name!r}. Public names: {', '.join(__all__)}.")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
