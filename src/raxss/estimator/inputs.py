"""Inputs of the estimator: conversion and validation of series, labels and groups.

    arrays, ragged lists, Series, tables -> list of Series;  y, groups -> one value per series

scikit-learn's own validation is used where it applies.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from raxss.data.prepare.preprocessing import SAME_RATE, is_rate_known, with_marked_gaps
from raxss.data.series import Series, SeriesCollection
from raxss.errors import DataError, LabelError, SignalWarning

logger = logging.getLogger("raxss")


def as_series(X: Any, *, estimator: BaseEstimator, reset: bool) -> list[Series]:
    """Series from a collection, a list of series or arrays, an array of two or three dimensions, or a table.

    Where the estimator has ``missing="nan"``, NaN is marked as missing.
    """
    found = _as_series(X, estimator=estimator, reset=reset)
    return list(map(with_marked_gaps, found)) if getattr(estimator, "missing", "refuse") == "nan" else found


def _as_series(X: Any, *, estimator: BaseEstimator, reset: bool) -> list[Series]:
    if isinstance(X, Series):
        raise DataError(
            f"a single series, {X.name!r}, was given where several are expected. Put it into a list: [series]."
        )
    if isinstance(X, SeriesCollection):
        return list(X)
    if isinstance(X, np.ndarray) and X.ndim > 3:
        raise DataError(
            f"X has {X.ndim} dimensions. Give a list of series, a 2-D array (n_series, n_samples) or a 3-D array "
            "(n_series, n_variates, n_samples)."
        )
    if isinstance(X, np.ndarray) and (X.ndim == 3 or (X.ndim == 1 and X.dtype == object)):
        X = list(X)
    if isinstance(X, list | tuple) and _is_ragged(X):
        return [
            item if isinstance(item, Series) else Series(item, name=f"series {i}") for i, item in enumerate(X)
        ]
    rows = validate_data(estimator, X, reset=reset, ensure_all_finite=False)
    return [Series(row, name=f"row {index}") for index, row in enumerate(rows)]


def as_labels(y: ArrayLike | None, series: list[Series]) -> NDArray[Any]:
    """One label a series, from ``y`` or from the series."""
    if y is None:
        if not series or any(item.label is None for item in series):
            raise LabelError(
                "this RAxSSClassifier estimator requires y to be passed, but the target y is None. Pass one "
                "label a series, or series that carry labels: Series(..., label=...)."
            )
        y = SeriesCollection(series).labels
    labels: NDArray[Any] = column_or_1d(y, warn=True)
    if len(labels) != len(series):
        raise LabelError(
            f"{len(labels)} labels were given for {len(series)} series; one label per series is needed, in the "
            "same order."
        )
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    return labels


def as_classes(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, sorted, and the index of each label among them; at least two are needed."""
    classes, targets = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise LabelError(
            f"all {len(labels)} labels are {classes.tolist()[0]!r}, which is one class; at least two "
            "classes are needed to fit a classifier. Add series of another class."
        )
    return classes, targets


def as_groups(groups: ArrayLike | None, series: list[Series]) -> NDArray[Any] | None:
    """One group a series, from ``groups`` or from the series; None where there are none."""
    if groups is None:
        return SeriesCollection(series).groups
    array = np.asarray(groups)
    if len(array) != len(series):
        raise DataError(
            f"{len(array)} groups were given for {len(series)} series; one group per series is needed, in the "
            "same order."
        )
    return array


def groups_or_own(series: Sequence[Series]) -> NDArray[Any]:
    """One group a series; one that has none is a group by itself.

    >>> groups_or_own([Series([0.0], group="ann"), Series([0.0]), Series([0.0], group="ann")])
    array([0, 1, 0])
    """
    keys = [
        (place, None) if item.group is None else ("group", item.group) for place, item in enumerate(series)
    ]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([places[key] for key in keys], dtype=np.int64)


def check_rates(series: list[Series]) -> None:
    """Warn of differing sampling rates."""
    rates = [item.rate for item in series if is_rate_known(item.rate, item.preparation)]
    if rates and max(rates) > (1 + SAME_RATE) * min(rates):
        warnings.warn(
            f"the series have rates from {min(rates):g} to {max(rates):g} Hz, so windows of one length last "
            "different times. Resample to a common rate first.",
            SignalWarning,
            stacklevel=3,
        )


def common_preparation(series: list[Series]) -> str:
    """The preparation of these series; they must have the same."""
    first = series[0]
    for item in series:
        if item.preparation != first.preparation:
            raise DataError(
                f"series {item.name!r} was prepared by {_text(item.preparation)} and series {first.name!r} by "
                f"{_text(first.preparation)}; all need the same. Prepare them together, with `raxss prepare`."
            )
    return first.preparation


def check_preparation(series: list[Series], fitted: str) -> None:
    """Refuse series with another preparation than the training data."""
    for item in series:
        if item.preparation != fitted:
            raise DataError(
                f"series {item.name!r} was prepared by {_text(item.preparation)}, but the model was fitted on "
                f"series prepared by {_text(fitted)}. Start from the recording: `raxss predict` prepares it "
                "likewise, as does Preparation.parse(model.preparation_).apply(series)."
            )


def check_validation(series: list[Series], labels: NDArray[Any], n_training: int) -> None:
    """Refuse validation series, those behind the first ``n_training``, that are training series too."""
    seen = {item.digest: item.name for item in series[:n_training]}
    for item in series[n_training:]:
        if item.digest in seen:
            raise DataError(
                f"validation series {item.name!r} has the samples of training series {seen[item.digest]!r}; "
                "early stopping would look at what was learned. Leave it out of one of them."
            )
    missing = set(labels[n_training:].tolist()) - set(labels[:n_training].tolist())
    if missing:
        raise LabelError(
            f"the validation series have labels that no training series has: {sorted(missing, key=str)}; each "
            "needs one to learn from. Move a group of that label into the training set."
        )


def forget_fit(estimator: BaseEstimator) -> None:
    """Remove fitted attributes, so that a fit that fails does not leave a mixture of two."""
    for name in [name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")]:
        delattr(estimator, name)


def warn_of_shared_groups(groups: NDArray[Any] | None, validation: Sequence[Series]) -> None:
    """Log a warning about groups in both training and validation set (group leakage)."""
    known = set() if groups is None else set(groups.tolist())
    shared = known & {item.group for item in validation if item.group is not None}
    if shared:
        logger.warning(
            "%d of %d groups of the training series are in the validation set too: what is chosen or calibrated "
            "there looks better than it is",
            len(shared),
            len(known),
        )


def _text(preparation: str) -> str:
    return repr(preparation) if preparation else "nothing"


def _is_ragged(X: Sequence[Any]) -> bool:
    """A list of series, as opposed to a table given as a list of rows."""
    if not X or any(isinstance(item, Series) or getattr(item, "ndim", 0) for item in X):
        return True
    if not all(isinstance(item, list | tuple) for item in X):
        return False
    nested = any(isinstance(value, list | tuple | np.ndarray) for item in X for value in item[:1])
    return nested or len({len(item) for item in X}) > 1


def known_rate(series: Sequence[Series]) -> float | None:
    """The median rate of series whose rate is known; None where it is of none."""
    rates = [item.rate for item in series if is_rate_known(item.rate, item.preparation)]
    return float(np.median(rates)) if rates else None
