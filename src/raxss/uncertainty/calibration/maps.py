"""Calibration maps of posteriors: isotonic, temperature scaling, Venn-Abers.

    posteriors (n, C), the class of each (n,) -> Calibration: (n, C) -> (n, C), rows that sum to 1

Rows are windows or scores of whole series. A map is a frozen value made of arrays: a model folder can hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.isotonic import IsotonicRegression

from raxss.errors import ConfigError, LabelError, SignalError

Points = NDArray[np.float64]  # (2, n_points): scores, which ascend, and what they are mapped to
Point = tuple[float, float]

LEAST, MOST = 0.05, 20.0  # of the temperature T: rows that are all right would ask for 0
SMALLEST = 1e-300  # the logarithm of 0 is kept finite, so that 0 stays next to 0


class Calibration(Protocol):
    """A fitted map of posteriors."""

    method: ClassVar[str]

    @property
    def n_classes(self) -> int:
        """Number of classes C."""

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n, C)`` -> ``(n, C)``; NaN stays NaN."""

    @classmethod
    def fit(cls, posteriors: ArrayLike, targets: ArrayLike) -> Self:
        """From posteriors ``(n, C)`` and the class index of each row ``(n,)``."""

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """As a model folder keeps them."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back `arrays`; anything else is refused."""


@dataclass(frozen=True, eq=False)
class IsotonicCalibration:
    """The best map that never falls: a higher posterior never becomes a lower one.

    Two classes have one map, of the second class; the first gets the rest. C > 2 classes have one map each, of the
    class against all others, and the mapped posteriors of a window are divided by their sum; where all of them
    are 0, each class gets 1 / C. Fitted by scikit-learn's isotonic regression.

    A map has knots ``(2, n_knots)``: posteriors, which ascend, and what they are mapped to. Between two knots it is
    a straight line, beyond the outer ones it is flat.

    Notes
    -----
    All windows count alike in the fit, as in SSS and as in an epoch of training, so a long series counts more
    than a short one. SSS's public code fits on training and validation windows together; here it is the
    validation set alone, because a network is overconfident on its training windows. Maps have flat ends, often
    at 0 and 1 exactly, and windows that differ may come out the same.

    Examples
    --------
    An overconfident network: of the windows to which it gives .9, half are right.

    >>> posteriors = [[0.9, 0.1], [0.9, 0.1], [0.5, 0.5], [0.5, 0.5], [0.1, 0.9], [0.1, 0.9]]
    >>> calibration = IsotonicCalibration.fit(posteriors, [0, 0, 0, 1, 0, 1])
    >>> calibration.knots[0]
    array([[0.1, 0.5, 0.9],
           [0. , 0.5, 0.5]])
    >>> calibration([[0.2, 0.8], [0.7, 0.3]])
    array([[0.5 , 0.5 ],
           [0.75, 0.25]])
    """

    method: ClassVar[str] = "isotonic"
    knots: tuple[Points, ...]

    def __post_init__(self) -> None:
        if len(self.knots) in (0, 2):
            raise ConfigError(
                f"an isotonic calibration has {len(self.knots)} maps; needed is one for two classes, or one a "
                "class for three and more."
            )
        object.__setattr__(self, "knots", checked_maps("isotonic map", "knots", self.knots))

    @property
    def n_classes(self) -> int:
        """Number of classes C."""
        return max(len(self.knots), 2)

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n, C)`` -> ``(n, C)``; NaN stays NaN."""
        values = checked_rows(posteriors, self.n_classes)
        pairs = zip(one_against_rest(self.n_classes), self.knots, strict=True)
        return all_classes(np.stack([np.interp(values[:, c], *knots) for c, knots in pairs], axis=1))

    @classmethod
    def fit(cls, posteriors: ArrayLike, targets: ArrayLike) -> Self:
        """From posteriors ``(n, C)`` and the class index of each row ``(n,)``."""
        values, classes = checked_sample(posteriors, targets)
        knots = []
        for c in one_against_rest(values.shape[1]):
            regression = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
            regression.fit(values[:, c], (classes == c).astype(np.float64))
            knots.append(np.stack([regression.X_thresholds_, regression.y_thresholds_]))
        return cls(tuple(knots))

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """One array a map, ``(2, n_knots)``, named by its place."""
        return {str(place): knots for place, knots in enumerate(self.knots)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back `arrays`; anything else is refused."""
        names = [str(place) for place in range(len(arrays))]
        if set(arrays) != set(names):
            raise ConfigError(
                f"an isotonic calibration has arrays named {', '.join(sorted(map(repr, arrays)))}; needed are "
                f"{', '.join(map(repr, names))}."
            )
        return cls(tuple(arrays[name] for name in names))


@dataclass(frozen=True, eq=False)
class TemperatureCalibration:
    r"""Temperature scaling (Guo et al., 2017), softmax of log p / T: above 1 less confident, below 1 more.

    T minimises the mean of -log p_y over the rows it is fitted on, between 0.05 and 20. For two classes this is the
    log-odds divided by T. One number, so it can be fitted on few rows, and the most likely class stays the same.

    Examples
    --------
    Nine of ten are right at a posterior of .99.

    >>> posteriors = [[0.01, 0.99]] * 10 + [[0.99, 0.01]] * 10
    >>> calibration = TemperatureCalibration.fit(posteriors, [0] + [1] * 9 + [1] + [0] * 9)
    >>> round(calibration.temperature, 3), calibration([[0.01, 0.99], [0.5, 0.5]]).round(3).tolist()
    (2.091, [[0.1, 0.9], [0.5, 0.5]])
    """

    method: ClassVar[str] = "temperature"
    temperature: float  # T; not the tau that makes weights of supports
    n_classes: int

    def __post_init__(self) -> None:
        if not LEAST <= self.temperature <= MOST:
            raise ConfigError(
                f"the temperature of a calibration is {self.temperature}; needed is one from {LEAST} to {MOST}."
            )
        if not (float(self.n_classes).is_integer() and self.n_classes >= 2):
            raise ConfigError(f"a calibration of {self.n_classes} classes; needed are two at least.")

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n, C)`` -> ``(n, C)``; NaN stays NaN."""
        values = checked_rows(posteriors, self.n_classes)
        scaled: NDArray[np.float64] = softmax(_logarithms(values) / self.temperature, axis=1)
        return scaled

    @classmethod
    def fit(cls, posteriors: ArrayLike, targets: ArrayLike) -> Self:
        """From posteriors ``(n, C)`` and the class index of each row ``(n,)``."""
        values, classes = checked_sample(posteriors, targets)
        logarithms, rows = _logarithms(values), np.arange(len(values))

        def loss(log_temperature: float) -> float:
            scaled = log_softmax(logarithms / np.exp(log_temperature), axis=1)
            return -float(scaled[rows, classes].mean())

        bounds = (np.log(LEAST), np.log(MOST))
        found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-10})
        return cls(float(np.clip(np.exp(found.x), LEAST, MOST)), values.shape[1])

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """``temperature (1,)`` and ``n_classes (1,)``."""
        return {"temperature": np.array([self.temperature]), "n_classes": np.array([float(self.n_classes)])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back `arrays`; anything else is refused."""
        kinds = {name: f"{array.dtype} {array.shape}" for name, array in sorted(arrays.items())}
        if kinds != dict.fromkeys(("n_classes", "temperature"), "float64 (1,)"):
            found = ", ".join(f"{name!r} {kind}" for name, kind in kinds.items())
            raise ConfigError(
                f"a temperature calibration has the arrays {found or 'none'}; needed are 'n_classes' and "
                "'temperature', each one float64."
            )
        n_classes = float(arrays["n_classes"][0])
        whole = int(n_classes) if n_classes.is_integer() else n_classes  # the other is refused
        return cls(float(arrays["temperature"][0]), whole)  # type: ignore[arg-type]


def _logarithms(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(values, SMALLEST))


@dataclass(frozen=True, eq=False)
class VennAbersCalibration:
    r"""Inductive Venn-Abers calibration (Vovk, Petej and Fedorova, 2015): p1 / (1 - p0 + p1), never 0 or 1.

    A new score is put among those that the map is fitted on, once as a miss and once as a hit; the two isotonic
    fits give two probabilities of a hit, p0 and p1. One of them is calibrated, provided that the scores are
    exchangeable with the new one. They lie close together where many scores were like it.

    Two classes have one pair of maps, of the second class. C > 2 classes have a pair each, of the class against
    all others; the single probabilities of a row are divided by their sum, the intervals are left as they are.

    The pairs are kept as steps ``(2, n_steps)``, those of all scores that the map was fitted on, repeated ones left
    out. p0 is 0 below the first score of ``lower``, and from each on what stands below it; p1 is up to each score
    of ``upper`` what stands below it, and 1 above the last.

    Examples
    --------
    Of the four with a score of .8 three are hits. One more would make it 4 of 5, one less 3 of 5.

    >>> posteriors = [[0.8, 0.2], [0.7, 0.3], [0.2, 0.8], [0.2, 0.8], [0.2, 0.8], [0.2, 0.8]]
    >>> calibration = VennAbersCalibration.fit(posteriors, [0, 0, 1, 1, 0, 1])
    >>> low, high = calibration.interval([[0.2, 0.8]])
    >>> low.round(3).tolist(), high.round(3).tolist(), calibration([[0.2, 0.8]]).round(3).tolist()
    ([[0.2, 0.6]], [[0.4, 0.8]], [[0.333, 0.667]])
    """

    method: ClassVar[str] = "venn-abers"
    lower: tuple[Points, ...]
    upper: tuple[Points, ...]

    def __post_init__(self) -> None:
        if len(self.lower) != len(self.upper) or len(self.lower) in (0, 2):
            raise ConfigError(
                f"a Venn-Abers calibration has {len(self.lower)} maps of p0 and {len(self.upper)} of p1; needed is "
                "one pair for two classes, or one a class for three and more."
            )
        for name in ("lower", "upper"):
            maps = checked_maps(f"{name} map", "steps", getattr(self, name))
            object.__setattr__(self, name, maps)

    @property
    def n_classes(self) -> int:
        """Number of classes C."""
        return max(len(self.lower), 2)

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n, C)`` -> ``(n, C)``; NaN stays NaN."""
        low, high = self._pairs(checked_rows(posteriors, self.n_classes))
        return all_classes(high / (1.0 - low + high))

    def interval(self, posteriors: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The lower and the upper probability of each class, ``(n, C)`` each."""
        low, high = self._pairs(checked_rows(posteriors, self.n_classes))
        if self.n_classes > 2:
            return low, high
        return np.hstack([1.0 - high, low]), np.hstack([1.0 - low, high])

    def _pairs(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """p0 and p1 of each map: ``(n, n_maps)`` each."""
        scores = values[:, one_against_rest(self.n_classes)]
        low, high = np.full_like(scores, np.nan), np.full_like(scores, np.nan)
        for place, (lower, upper) in enumerate(zip(self.lower, self.upper, strict=True)):
            below = np.searchsorted(lower[0], scores[:, place], side="right")
            above = np.searchsorted(upper[0], scores[:, place], side="left")
            low[:, place] = np.append(0.0, lower[1])[below]
            high[:, place] = np.append(upper[1], 1.0)[above]
        low[np.isnan(scores)] = high[np.isnan(scores)] = np.nan
        return low, high

    @classmethod
    def fit(cls, posteriors: ArrayLike, targets: ArrayLike) -> Self:
        """From posteriors ``(n, C)`` and the class index of each row ``(n,)``."""
        values, classes = checked_sample(posteriors, targets)
        pairs = [_fitted_steps(values[:, c], classes == c) for c in one_against_rest(values.shape[1])]
        return cls(tuple(low for low, _ in pairs), tuple(high for _, high in pairs))

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Two arrays a pair, ``(2, n_steps)``, named by its place."""
        maps = (("p0", self.lower), ("p1", self.upper))
        return {f"{place}/{name}": steps for name, pair in maps for place, steps in enumerate(pair)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back `arrays`; anything else is refused."""
        names = [(f"{place}/p0", f"{place}/p1") for place in range(len(arrays) // 2)]
        if set(arrays) != {name for pair in names for name in pair}:
            raise ConfigError(
                f"a Venn-Abers calibration has arrays named {', '.join(sorted(map(repr, arrays)))}; needed are "
                "'0/p0', '0/p1' and so on."
            )
        return cls(tuple(arrays[low] for low, _ in names), tuple(arrays[high] for _, high in names))


def _fitted_steps(scores: NDArray[np.float64], hits: NDArray[np.bool_]) -> tuple[Points, Points]:
    """p0 and p1 as functions of a new score.

    What one more miss does at one end, one more hit does at the other: p0 is 1 - p1 of the misses, from above.
    """
    distinct, place = np.unique(scores, return_inverse=True)
    n_all = np.bincount(place).astype(np.float64)
    n_hits = np.bincount(place, weights=hits.astype(np.float64)).astype(np.float64)
    upper = np.stack([distinct, _with_one_more_hit(n_all, n_hits)])
    lower = np.stack([distinct, 1.0 - _with_one_more_hit(n_all[::-1], (n_all - n_hits)[::-1])[::-1]])
    # A new score between two of these is pooled with the next above as a hit, with the next below as a miss: so
    # of steps of one height the last, or the first, is enough.
    for steps in (lower, upper):
        np.maximum.accumulate(steps[1], out=steps[1])  # equal slopes may differ in their last digit
    last = np.append(np.diff(upper[1]) != 0, True)
    first = np.append(True, np.diff(lower[1]) != 0)
    return lower[:, first], upper[:, last]


def _with_one_more_hit(n_all: NDArray[np.float64], n_hits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The isotonic fit at each distinct score if one more hit had that score.

    An isotonic fit is the slope of the greatest convex curve below the points (rows so far, hits so far). With
    one more hit at place i, the points before i move down and left by one. Going up from the lowest score one
    point moves at a time, so the corners of the curve to the right are kept as a stack whose end is the
    leftmost, and each point is put on it and taken off at most once (Algorithms 1 and 2 of the paper).
    """
    rows, sums = np.cumsum(n_all).tolist(), np.cumsum(n_hits).tolist()
    points: list[Point] = [(0.0, 0.0), *zip(rows, sums, strict=True)]
    corners: list[Point] = []
    for point in [*reversed(points), (-1.0, -1.0)]:
        _put_on(corners, point)
    found = []
    for point in points[1:]:
        left, right = corners[-1], corners[-2]
        slope = (right[1] - left[1]) / (right[0] - left[0])
        found.append(min(slope, 1.0))
        moved = (point[0] - 1.0, point[1] - 1.0)
        if moved[1] < left[1] + slope * (moved[0] - left[0]):
            corners.pop()
            _put_on(corners, moved)
    return np.array(found, dtype=np.float64)


def _put_on(corners: list[Point], point: Point) -> None:
    """Add a point on the left; corners that the curve does not touch any more are taken off."""
    x, y = point
    while len(corners) > 1:
        (x1, y1), (x2, y2) = corners[-1], corners[-2]
        if (y1 - y) * (x2 - x) < (y2 - y) * (x1 - x):  # the curve turns upwards at the corner: it stays
            break
        corners.pop()
    corners.append(point)


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
