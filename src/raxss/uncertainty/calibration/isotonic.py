"""How often is a window right that says so, if saying more never means less?

    posteriors (n, C), the class of each (n,) -> IsotonicCalibration: (n, C) -> (n, C)

Next: venn_abers.py asks the same twice, and says how far the answers lie apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import IsotonicRegression

from raxss.errors import ConfigError
from raxss.uncertainty.calibration.maps import check_rising, checked_rows, checked_sample, shared_out


@dataclass(frozen=True, eq=False)
class IsotonicCalibration:
    """The best map that never falls: a higher posterior never becomes a lower one.

    Two classes have one map, of the second class; the first gets the rest. C > 2 classes have one map each, of the
    class against all others, and the mapped posteriors of a window are divided by their sum. Where all of them
    are 0, nothing is known about such windows, and each class gets 1 / C.

    Attributes
    ----------
    knots
        A ``(2, n_knots)`` array for each map: posteriors, which ascend, and what becomes of them. Between two
        knots the map is a straight line, beyond the outer ones it is flat.

    Notes
    -----
    All windows count alike in the fit, as in SSS and as in an epoch of training, so a long series counts more
    than a short one. SSS's public code fits on training and validation windows together; here it is the
    validation part alone, because windows that were learned from look surer than they are. Maps have flat ends,
    often at 0 and 1 exactly, and windows that differ may come out the same.

    Examples
    --------
    A network that is too bold: of the windows to which it gives .9, half are right.

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
    knots: tuple[NDArray[np.float64], ...]

    def __post_init__(self) -> None:
        if len(self.knots) in (0, 2):
            raise ConfigError(
                f"an isotonic calibration has {len(self.knots)} maps; needed is one for two classes, or one a "
                "class for three and more."
            )
        kept = tuple(knot.copy() for knot in self.knots)
        for place, item in enumerate(kept):
            check_rising(f"map {place} of an isotonic calibration", "knots", item)
            item.setflags(write=False)
        object.__setattr__(self, "knots", kept)

    @property
    def n_classes(self) -> int:
        """C."""
        return 2 if len(self.knots) == 1 else len(self.knots)

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n_windows, C)`` -> ``(n_windows, C)``; NaN stays NaN."""
        values = checked_rows(posteriors, self.n_classes)
        if self.n_classes == 2:
            second = np.interp(values[:, 1], *self.knots[0])
            return np.stack([1.0 - second, second], axis=1)
        mapped = np.stack([np.interp(values[:, c], *knot) for c, knot in enumerate(self.knots)], axis=1)
        return shared_out(mapped)

    @classmethod
    def fit(cls, posteriors: ArrayLike, targets: ArrayLike) -> Self:
        """From posteriors ``(n_windows, C)`` and the class index of each window's series ``(n_windows,)``."""
        values, classes = checked_sample(posteriors, targets)
        n_classes = values.shape[1]
        of_interest = [1] if n_classes == 2 else range(n_classes)
        return cls(tuple(_fitted_knots(values[:, c], classes == c) for c in of_interest))

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """One array a map, ``(2, n_knots)``, named by its place."""
        return {str(place): knot for place, knot in enumerate(self.knots)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back what `arrays` gave; whatever else is refused."""
        names = [str(place) for place in range(len(arrays))]
        if set(arrays) != set(names):
            raise ConfigError(
                f"an isotonic calibration has arrays named {', '.join(sorted(map(repr, arrays)))}; needed are "
                f"{', '.join(map(repr, names))}."
            )
        return cls(tuple(arrays[name] for name in names))


def _fitted_knots(scores: NDArray[np.float64], hits: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Where the isotonic regression of ``hits`` on ``scores`` bends, ``(2, n_knots)``."""
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(
        scores, hits.astype(np.float64)
    )
    return np.stack([fitted.X_thresholds_, fitted.y_thresholds_])
