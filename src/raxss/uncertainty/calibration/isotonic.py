"""Isotonic calibration of posteriors, by scikit-learn's isotonic regression.

posteriors (n, C), the class of each (n,) -> IsotonicCalibration: (n, C) -> (n, C)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import IsotonicRegression

from raxss.errors import ConfigError
from raxss.uncertainty.calibration.maps import (
    Points,
    all_classes,
    checked_maps,
    checked_rows,
    checked_sample,
    one_against_rest,
)


@dataclass(frozen=True, eq=False)
class IsotonicCalibration:
    """The best map that never falls: a higher posterior never becomes a lower one.

    Two classes have one map, of the second class; the first gets the rest. C > 2 classes have one map each, of the
    class against all others, and the mapped posteriors of a window are divided by their sum; where all of them
    are 0, each class gets 1 / C.

    Attributes
    ----------
    knots
        A ``(2, n_knots)`` array for each map: posteriors, which ascend, and what they are mapped to. Between two
        knots the map is a straight line, beyond the outer ones it is flat.

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
