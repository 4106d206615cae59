"""Calibration maps: the interface, and checks that all of them share.

    posteriors (n, C), the class of each (n,) -> Calibration: (n, C) -> (n, C), rows that sum to 1

Rows are windows or scores of whole series. A map is a frozen value made of arrays, so that a model folder can
hold it. The maps are in isotonic.py, temperature.py and venn_abers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import ConfigError, LabelError, SignalError

Points = NDArray[np.float64]  # (2, n_points): scores, which ascend, and what they are mapped to


class Calibration(Protocol):
    """A fitted map of posteriors."""

    method: ClassVar[str]

    @property
    def n_classes(self) -> int:
        """Number of classes C."""
        ...

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n, C)`` -> ``(n, C)``; NaN stays NaN."""
        ...

    @classmethod
    def fit(cls, posteriors: ArrayLike, targets: ArrayLike) -> Self:
        """From posteriors ``(n, C)`` and the class index of each row ``(n,)``."""
        ...

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """As a model folder keeps them."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back `arrays`; anything else is refused."""
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
    """Posteriors as an array, if they have so many classes."""
    values = np.asarray(posteriors, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != n_classes:
        raise ConfigError(
            f"posteriors of shape {values.shape} were given to a calibration of {n_classes} classes; "
            f"needed is (n_windows, {n_classes})."
        )
    return values


def one_against_rest(n_classes: int) -> range:
    """The classes that have a map: the second of two, or each of more."""
    return range(1, 2) if n_classes == 2 else range(n_classes)


def all_classes(mapped: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows ``(n, C)`` of probabilities from the maps of `one_against_rest`, ``(n, n_maps)``.

    One map is of the second of two classes. Rows of more are divided by their sum; 1 / C each where that is 0.
    """
    if mapped.shape[1] == 1:
        return np.hstack([1.0 - mapped, mapped])
    total = mapped.sum(axis=1, keepdims=True)
    even = np.full_like(mapped, 1.0 / mapped.shape[1])
    return np.divide(mapped, total, out=even, where=total != 0)


def checked_maps(name: str, points: str, maps: Iterable[Points]) -> tuple[Points, ...]:
    """Read-only copies of maps of probabilities, if they never fall; the names are for errors."""
    copies = tuple(map_.copy() for map_ in maps)
    for place, map_ in enumerate(copies):
        label = f"{name} {place} of a calibration"
        if map_.dtype != np.float64 or map_.ndim != 2 or len(map_) != 2 or map_.shape[1] < 1:
            raise ConfigError(
                f"{label} is {map_.dtype} of shape {map_.shape}; needed is float64 of shape (2, n_{points})."
            )
        scores, mapped = map_
        within = bool(((map_ >= 0) & (map_ <= 1)).all())  # which NaN is not
        if not within or (np.diff(scores) <= 0).any() or (np.diff(mapped) < 0).any():
            raise ConfigError(
                f"{label} is not one: its {map_.shape[1]} {points} must lie between 0 and 1, ascend, and never "
                "fall in what they are mapped to."
            )
        map_.setflags(write=False)
    return copies
