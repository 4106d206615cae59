"""The estimator: inputs, settings and presets, fit, classifier, model folders."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raxss.estimator.auto import AutoRAxSS
    from raxss.estimator.classifier import RAxSSClassifier

__all__ = ["RAxSSClassifier", "AutoRAxSS"]

_HOMES = {"RAxSSClassifier": "raxss.estimator.classifier", "AutoRAxSS": "raxss.estimator.auto"}


def __getattr__(name: str) -> Any:
    # Imported when first used, so that the settings can be read without waiting for torch.
    if name not in _HOMES:
        raise AttributeError(
            f"module 'raxss.estimator' has no attribute {name!r}. Public names: {', '.join(__all__)}."
        )
    return getattr(import_module(_HOMES[name]), name)
