"""Class weights: how much the loss of a series counts, by its class.

    class_weight (None, "balanced" or a mapping), class indices of the training series (n,) -> weights (C,)

training/step.py multiplies losses by them. They are for classes that are rare: with unweighted losses a network
that never names a class of one series in fifty is right in 98 of 100 cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight

from raxss._core.settings import is_number
from raxss.errors import ConfigError, LabelError, join_names

BALANCED = "balanced"
EXAMPLE = "Set None, 'balanced' or a mapping such as {'ill': 10, 'well': 1}."


def checked_class_weight(setting: object) -> dict[str, float] | str:
    """The setting as a settings file keeps it: ``"balanced"``, or a mapping whose labels are texts; {}: none.

    >>> checked_class_weight(None), checked_class_weight({0: 1, 1: 25})
    ({}, {'0': 1, '1': 25})
    """
    if setting is None:
        return {}
    if isinstance(setting, str) and setting == BALANCED:
        return BALANCED
    if not isinstance(setting, Mapping):
        raise ConfigError(f"training.class_weight is {setting!r}, which is no weight of classes. {EXAMPLE}")
    weights = {str(_plain(label)): _plain(weight) for label, weight in setting.items()}
    if len(weights) < len(setting):
        raise ConfigError(
            f"training.class_weight has the labels {join_names(map(repr, setting))}, of which two read the same as "
            "text; needed is one weight for each class. Leave one of them out."
        )
    for label, weight in weights.items():
        if not (is_number(weight) and weight >= 0):
            raise ConfigError(
                f"training.class_weight of {label!r} is {weight!r}; needed is a number of at least 0. {EXAMPLE}"
            )
    return weights


def class_weights(
    setting: Mapping[Any, float] | str | None, classes: NDArray[Any], targets: NDArray[np.int64]
) -> NDArray[np.float64]:  # (C,)
    """The weight of each class, scaled so that the training series have the mean weight 1.

    ``"balanced"``, with n_c of n training series in class c: w_c = n / (C n_c). A mapping v of labels to numbers:
    w_c = v_c / (sum over c of v_c n_c / n), so that only ratios of its numbers matter, and learning rate and weight
    decay keep their meaning. A class that it does not name has v_c = 1.

    Parameters
    ----------
    setting
        None or {}: all weights are 1. Labels are found by equality, or as the text of a label: settings files have
        text alone.
    classes
        The C labels ``(C,)``.
    targets
        Class indices ``(n,)`` of the training series, each class among them.

    Examples
    --------
    >>> targets = np.array([0, 0, 0, 1])
    >>> class_weights("balanced", np.array(["well", "ill"]), targets).round(3)
    array([0.667, 2.   ])
    >>> class_weights({"ill": 5}, np.array(["well", "ill"]), targets)
    array([0.5, 2.5])
    """
    given = checked_class_weight(setting)
    if not given:
        return np.ones(len(classes))
    chosen: dict[int, float] | str = given if isinstance(given, str) else _by_index(given, classes)
    weights = compute_class_weight(chosen, classes=np.arange(len(classes)), y=targets).astype(np.float64)
    mean = float(weights[targets].mean())
    if mean == 0:
        raise LabelError(
            f"class_weight is 0 for every class of the {len(targets)} training series, so that nothing would be "
            "learned; needed is a number above 0 for one of them."
        )
    found: NDArray[np.float64] = weights / mean
    return found


def _by_index(given: Mapping[str, float], classes: NDArray[Any]) -> dict[int, float]:
    """The mapping by class index; as in scikit-learn, labels of no class are refused unless all are named."""
    labels = [_plain(label) for label in classes]
    named = {place: given[key] for place, label in enumerate(labels) for key in given if _same(label, key)}
    unknown = [key for key in given if not any(_same(label, key) for label in labels)]
    if unknown and len(named) < len(labels):
        raise LabelError(
            f"class_weight names {join_names(map(repr, unknown))}, and the classes of the training series are "
            f"{join_names(map(repr, labels))}; needed are some of these. Correct the labels of class_weight."
        )
    return named


def with_labels(given: Mapping[str, float], classes: NDArray[Any]) -> dict[Any, float]:
    """The mapping with the labels that its texts name; texts that name no class stay.

    >>> with_labels({"0": 1, "1": 25}, np.array([0.0, 1.0]))
    {0.0: 1, 1.0: 25}
    """
    labels = [_plain(label) for label in classes]
    return {
        next((label for label in labels if _same(label, key)), key): weight for key, weight in given.items()
    }


def _same(label: Any, key: str) -> bool:
    """Whether a key of the mapping, which is text, names a label: 1 is named by 1, 1.0 and "1"."""
    if str(label) == key:
        return True
    if isinstance(label, str):
        return False
    try:
        return float(label) == ({"True": 1.0, "False": 0.0}[key] if key in ("True", "False") else float(key))
    except (TypeError, ValueError):
        return False


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
