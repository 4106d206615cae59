"""Inductive Venn-Abers calibration of posteriors (Vovk, Petej and Fedorova, 2015).

    posteriors (n, C), the class of each (n,) -> VennAbersCalibration: (n, C) -> (n, C), with an interval each

A new score is put among those that the map is fitted on, once as a miss and once as a hit; the two isotonic
fits give two probabilities of a hit, p0 and p1. One of them is calibrated, provided that the scores are
exchangeable with the new one. They lie close together where many scores were like it, and far apart where few
were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import ConfigError
from raxss.uncertainty.calibration.maps import (
    Points,
    all_classes,
    checked_maps,
    checked_rows,
    checked_sample,
    one_against_rest,
)

Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class VennAbersCalibration:
    r"""One probability of two: p1 / (1 - p0 + p1), which is never 0 or 1.

    Two classes have one pair of maps, of the second class. C > 2 classes have a pair each, of the class against
    all others; the single probabilities of a row are divided by their sum, the intervals are left as they are.

    Attributes
    ----------
    lower, upper
        p0 and p1 of each pair as steps ``(2, n_steps)``. p0 is 0 below the first score of ``lower``, and from
        each on what stands below it; p1 is up to each score of ``upper`` what stands below it, and 1 above the
        last.

    Notes
    -----
    The steps are those of all scores that the map was fitted on, repeated ones left out, so prediction needs
    neither these nor another fit.

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
