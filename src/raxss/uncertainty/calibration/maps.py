"""What is a calibration, and what can one be fitted on?

    posteriors (n, C), the class of each (n,) -> Calibration: (n, C) -> (n, C), rows that sum to 1

The rows are windows, or the scores of whole series; a map does not know which. It is a frozen value that is made of
arrays, so that a model folder can hold it. Next: isotonic.py, temperature.py and venn_abers.py are the maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import ConfigError, LabelError, SignalError


class Calibration(Protocol):
    """A fitted map of window posteriors."""

    method: ClassVar[str]

    @property
    def n_classes(self) -> int:
        """C."""
        ...

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n_windows, C)`` -> ``(n_windows, C)``."""
        ...

    @classmethod
    def fit(cls, posteriors: ArrayLike, targets: ArrayLike) -> Self:
        """From posteriors ``(n_windows, C)`` and the class index of each window's series ``(n_windows,)``."""
        ...

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """What `from_arrays` makes the same map from."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back what `arrays` gave; whatever else is refused."""
        ...


def checked_sample(
    posteriors: ArrayLike, targets: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Posteriors and targets as arrays, if a calibration can be fitted on them."""
    values, classes = np.asarray(posteriors, dtype=np.float64), np.asarray(targets, dtype=np.int64)
    if values.ndim != 2 or values.shape[1] < 2 or classes.shape != values.shape[:1]:
        raise ConfigError(
            f"posteriors of shape {values.shape} and targets of shape {classes.shape} do not go together; needed "
            "are (n_windows, n_classes) with two classes at least, and (n_windows,)."
        )
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise SignalError(
            f"the posteriors of {int((~finite).sum())} of {len(values)} windows are not finite, the first of "
            f"window {int(np.flatnonzero(~finite)[0])}; nothing can be calibrated on them. Leave them out."
        )
    missing = sorted(set(range(values.shape[1])) - set(classes.tolist()))
    if missing:
        raise LabelError(
            f"no window is of class {', '.join(map(str, missing))}, so a calibration would never predict it. Give "
            "windows of every class."
        )
    return values, classes


def checked_rows(posteriors: ArrayLike, n_classes: int) -> NDArray[np.float64]:
    """Posteriors as an array, if they are of so many classes."""
    values = np.asarray(posteriors, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != n_classes:
        raise ConfigError(
            f"posteriors of shape {values.shape} were given to a calibration of {n_classes} classes; "
            f"needed is (n_windows, {n_classes})."
        )
    return values


def shared_out(mapped: NDArray[np.float64]) -> NDArray[np.float64]:
    """What one map a class says of each row, ``(n, C)``, divided by its sum; 1 / C each where that is 0."""
    total = mapped.sum(axis=1, keepdims=True)
    even = np.full_like(mapped, 1.0 / mapped.shape[1])
    return np.divide(mapped, total, out=even, where=total != 0)


def check_rising(name: str, points: str, map_: NDArray[np.float64]) -> None:
    """Refuse what is no map from probabilities to probabilities that never falls.

    Parameters
    ----------
    name, points
        Of the map and of what it consists of, for the errors.
    map_
        ``(2, n_points)``: scores, which ascend, and what they are mapped to.

    Examples
    --------
    >>> check_rising("the map", "knots", np.array([[0.1, 0.9], [0.2, 0.7]]))
    >>> check_rising("the map", "knots", np.array([[0.1, 0.9], [0.7, 0.2]]))
    Traceback (most recent call last):
    raxss.errors.ConfigError: the map is not one: its 2 knots must lie between 0 and 1, ascend, and never ...
    """
    if map_.dtype != np.float64 or map_.ndim != 2 or len(map_) != 2 or map_.shape[1] < 1:
        raise ConfigError(
            f"{name} is {map_.dtype} of shape {map_.shape}; needed is float64 of shape (2, n_{points})."
        )
    scores, mapped = map_
    within = bool(((map_ >= 0) & (map_ <= 1)).all())  # which NaN is not
    if not within or (np.diff(scores) <= 0).any() or (np.diff(mapped) < 0).any():
        raise ConfigError(
            f"{name} is not one: its {map_.shape[1]} {points} must lie between 0 and 1, ascend, and never fall in "
            "what they are mapped to."
        )
