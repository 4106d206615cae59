"""Base class of the baselines: input checks, validation split, seed.

    X, y, groups, validation -> Given: checked series and class indices of the training and the validation set

The same checks and errors as of RAxSSClassifier. Next: loop.py trains networks; the other files are the baselines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from raxss.data.prepare.preprocessing import check_series
from raxss.data.series import Series
from raxss.errors import MissingExtraError, SignalError
from raxss.estimator.fit import drawn_seed, validation_split
from raxss.estimator.inputs import (
    as_classes,
    as_groups,
    as_labels,
    as_series,
    check_preparation,
    check_rates,
    check_validation,
    common_preparation,
    forget_fit,
)


@dataclass(frozen=True, eq=False)
class Given:
    """Training and validation set, with class indices."""

    series: list[Series]
    targets: NDArray[np.int64]
    validation: list[Series]
    validation_targets: NDArray[np.int64]


@dataclass(eq=False, repr=False, kw_only=True)
class Baseline(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator whose dataclass fields are its parameters in scikit-learn's sense.

    A subclass has `_learn`, `_probabilities` and, where parameters can be wrong, `_check_parameters`.
    """

    device: str = "auto"
    random_state: Any = None

    def fit(
        self, X: Any, y: ArrayLike | None = None, groups: ArrayLike | None = None, *, validation: Any = None
    ) -> Self:
        """Learn from labelled series, as `RAxSSClassifier.fit` does.

        The epoch or another setting is chosen on ``validation``, or else on ``validation_fraction`` of X.
        """
        self._check_parameters()
        fraction = getattr(self, "validation_fraction", 0.0)
        self._learn(self._receive(X, y, groups, validation, validation_fraction=fraction))
        self.is_fitted_ = True  # set last, so that a fit that failed is none
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Series probabilities ``(n_series, C)``, columns as in ``classes_``."""
        return self._probabilities(self._checked(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each series, from ``classes_``."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def _check_parameters(self) -> None:
        """Refuse parameters that are out of range, before any series is looked at."""

    @abstractmethod
    def _learn(self, given: Given) -> None:
        """Fit to series that were checked."""

    @abstractmethod
    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        """``(n_series, C)`` of series that were checked."""

    def _receive(
        self,
        X: Any,
        y: ArrayLike | None,
        groups: ArrayLike | None,
        validation: Any,
        *,
        validation_fraction: float,
    ) -> Given:
        """Check the arguments of `fit`; set classes, seed and number of variates."""
        forget_fit(self)
        series = as_series(X, estimator=self, reset=True)
        labels, groups = as_labels(y, series), as_groups(groups, series)
        others = [] if validation is None else as_series(validation, estimator=self, reset=False)
        check_series(series + others)
        preparation = common_preparation(series + others)
        check_rates(series + others)
        self.classes_, targets = as_classes(labels)
        self.preparation_, self.n_variates_ = preparation, series[0].n_variates
        self.seed_ = drawn_seed(self.random_state)
        if others:
            other_labels = as_labels(None, others)
            check_validation(series + others, np.concatenate([labels, other_labels]), len(series))
            return Given(series, targets, others, np.searchsorted(self.classes_, other_labels))
        fraction = validation_fraction if validation is None else 0.0  # an empty part: nothing is chosen
        kept, held = validation_split(labels, groups, fraction=fraction, seed=self.seed_)
        parts = [[series[index] for index in part] for part in (kept, held)]
        return Given(parts[0], targets[kept], parts[1], targets[held])

    def _checked(self, X: Any) -> list[Series]:
        """Series for a fitted estimator."""
        check_is_fitted(self, "is_fitted_")
        series = as_series(X, estimator=self, reset=False)
        check_series(series, n_variates=self.n_variates_)
        check_preparation(series, self.preparation_)
        return series


def first_samples(series: list[Series], length: int) -> NDArray[np.float32]:
    """`pad_trunc`: the first ``length`` samples of each series, padded with zeros, which also fill gaps.

    >>> first_samples([Series([1.0, 2.0, 3.0]), Series([4.0])], 2)[:, 0]
    array([[1., 2.],
           [4., 0.]], dtype=float32)
    """
    padded = np.zeros((len(series), series[0].n_variates, length), dtype=np.float32)
    for row, item in zip(padded, series, strict=True):
        row[:, : item.n_samples] = item.samples[:, :length]
    return np.nan_to_num(padded, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def longest_of(series: list[Series]) -> int:
    """Samples of the longest series."""
    return max(item.n_samples for item in series)


@contextmanager
def needs_aeon(system: str) -> Iterator[None]:
    """Turn an import that fails into an error with the install command."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"the system {system!r} needs the package aeon, which cannot be imported ({error}). Install it: "
            "pip install 'raxss[bench]'"
        ) from error


def require_finite(probabilities: NDArray[np.float64], series: list[Series]) -> NDArray[np.float64]:
    """The probabilities, unless one of them is not a number; the error names its series."""
    bad = ~np.isfinite(probabilities).all(axis=1)
    if bad.any():
        first = series[int(np.flatnonzero(bad)[0])]
        raise SignalError(
            f"the probabilities of {int(bad.sum())} series are not finite, the first of {first.name!r}; the "
            "network has diverged. Check the scaling, or lower lr."
        )
    return probabilities
