"""What does every baseline do with the series it is given, before and after its own work?

    X, y, groups, validation -> Given: checked series, class indices, which to learn from, which to choose by

The same checks and errors as of RAxSSClassifier. Next: loop.py trains networks; the other files are the baselines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from raxss.errors import DataError, LabelError, SignalError
from raxss.inputs import as_groups, as_labels, as_series, check_preparation, check_rates, common_preparation
from raxss.preparation import check_series
from raxss.recordings.series import Series
from raxss.splits import hold_out


@dataclass(frozen=True, eq=False)
class Given:
    """Series to learn from and series to choose by, with their class indices."""

    series: list[Series]
    targets: NDArray[np.int64]
    validation: list[Series]
    validation_targets: NDArray[np.int64]


class Baseline(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What the estimators here share: the form of their input, their errors, their seed.

    A subclass has the parameters ``random_state`` and ``device``, a method ``fit`` that begins with `_receive`
    and ends with ``is_fitted_ = True``, and `_probabilities`.
    """

    classes_: NDArray[Any]
    seed_: int
    n_variates_: int
    preparation_: str
    is_fitted_: bool  # set last, so that a fit that failed is none
    random_state: Any

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Series probabilities ``(n_series, C)``, columns as in ``classes_``."""
        return self._probabilities(self._asked(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each series, from ``classes_``."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        """``(n_series, C)`` of series that were checked."""
        raise NotImplementedError

    def _receive(
        self,
        X: Any,
        y: ArrayLike | None,
        groups: ArrayLike | None,
        validation: Any,
        *,
        validation_fraction: float = 0.0,
    ) -> Given:
        """Check what `fit` is given, and set what is known before anything is learned."""
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)  # a fit that fails must not leave a mixture of two
        series = as_series(X, estimator=self, reset=True)
        labels, groups = as_labels(y, series), as_groups(groups, series)
        others = [] if validation is None else as_series(validation, estimator=self, reset=False)
        check_series(series + others)
        preparation = common_preparation(series + others)
        check_rates(series + others)
        classes, targets = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise LabelError(
                f"all {len(labels)} labels are {classes.tolist()[0]!r}, which is one class; at least two "
                "classes are needed to fit a classifier. Add series of another class."
            )
        self.classes_, self.preparation_, self.n_variates_ = classes, preparation, series[0].n_variates
        self.seed_ = _seed(self.random_state)
        if validation is not None and not others:
            validation_fraction = 0.0  # a split without a validation part: nothing is chosen
        if others:
            return Given(series, targets, others, self._validation_targets(others, series))
        if validation_fraction == 0:
            return Given(series, targets, [], targets[:0])
        kept, held = hold_out(labels, groups=groups, fraction=validation_fraction, seed=self.seed_)
        if len(np.unique(targets[kept])) < len(classes):  # too few groups: learn from all of them
            kept, held = np.arange(len(series)), np.arange(0)
        parts = [[series[index] for index in part] for part in (kept, held)]
        return Given(parts[0], targets[kept], parts[1], targets[held])

    def _validation_targets(self, others: list[Series], series: list[Series]) -> NDArray[np.int64]:
        labels = as_labels(None, others)
        missing = set(labels.tolist()) - set(self.classes_.tolist())
        if missing:
            raise LabelError(
                f"the validation series have labels that no training series has: {sorted(missing, key=str)}; each "
                "needs one to learn from. Move a group of that label into the training part."
            )
        seen = {one.digest: one.name for one in series}
        for one in others:
            if one.digest in seen:
                raise DataError(
                    f"validation series {one.name!r} has the samples of training series {seen[one.digest]!r}; the "
                    "choice would look at what was learned. Leave it out of one of them."
                )
        return np.asarray(np.searchsorted(self.classes_, labels), dtype=np.int64)

    def _asked(self, X: Any) -> list[Series]:
        """Check what a fitted estimator is asked about."""
        check_is_fitted(self, "is_fitted_")
        series = as_series(X, estimator=self, reset=False)
        check_series(series, n_variates=self.n_variates_)
        check_preparation(series, self.preparation_)
        return series


def first_samples(series: list[Series], length: int) -> NDArray[np.float32]:
    """`pad_trunc`: the first ``length`` samples of each series, zeros behind a shorter one and in gaps.

    Returns
    -------
    ``(n_series, n_variates, length)``

    Examples
    --------
    >>> first_samples([Series([1.0, 2.0, 3.0]), Series([4.0])], 2)[:, 0]
    array([[1., 2.],
           [4., 0.]], dtype=float32)
    """
    padded = np.zeros((len(series), series[0].n_variates, length), dtype=np.float32)
    for row, one in zip(padded, series, strict=True):
        row[:, : one.n_samples] = one.samples[:, :length]
    return np.nan_to_num(padded, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


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


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
