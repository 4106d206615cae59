"""The estimator: inputs, settings and presets, fit, classifier, model folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raxss.estimator.classifier import RAxSSClassifier

__all__ = ["RAxSSClassifier"]


def __getattr__(name: str) -> Any:
    # Imported when first used, so that the settings can be read without waiting for torch.
    if name != "RAxSSClassifier":
        raise AttributeError(
            f"module 'raxss.estimator' has no attribute {name!r}. Public names: RAxSSClassifier."
        )
    from raxss.estimator.classifier import RAxSSClassifier

    return RAxSSClassifier
