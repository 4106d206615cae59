"""How often is a window right that says so?

    posteriors (n_windows, C) -> calibrated posteriors (n_windows, C), rows that sum to 1

A network may be too bold or too timid. A calibration is a map of window posteriors that was fitted on series the
network has not learned from; it is applied to each window, before the windows are added up, as in SSS. A map is a
frozen value that is made of arrays. Next: aggregation.py adds the windows up; fitting.py fits the map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import IsotonicRegression

from raxss.errors import ConfigError, LabelError, SignalError, nearest

Method = Literal["none", "isotonic"]
METHODS: tuple[str, ...] = get_args(Method)


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
        kept = tuple(one.copy() for one in self.knots)
        for place, one in enumerate(kept):
            _check_knots(place, one)
            one.setflags(write=False)
        object.__setattr__(self, "knots", kept)

    @property
    def n_classes(self) -> int:
        """C."""
        return 2 if len(self.knots) == 1 else len(self.knots)

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n_windows, C)`` -> ``(n_windows, C)``; NaN stays NaN."""
        values = np.asarray(posteriors, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.n_classes:
            raise ConfigError(
                f"posteriors of shape {values.shape} were given to a calibration of {self.n_classes} classes; "
                f"needed is (n_windows, {self.n_classes})."
            )
        if self.n_classes == 2:
            second = np.interp(values[:, 1], *self.knots[0])
            return np.stack([1.0 - second, second], axis=1)
        mapped = np.stack([np.interp(values[:, c], *one) for c, one in enumerate(self.knots)], axis=1)
        total = mapped.sum(axis=1, keepdims=True)
        even = np.full_like(mapped, 1.0 / self.n_classes)
        return np.divide(mapped, total, out=even, where=total != 0)

    @classmethod
    def fit(cls, posteriors: ArrayLike, targets: ArrayLike) -> Self:
        """From posteriors ``(n_windows, C)`` and the class index of each window's series ``(n_windows,)``."""
        values, classes = _checked(posteriors, targets)
        n_classes = values.shape[1]
        of_interest = [1] if n_classes == 2 else range(n_classes)
        return cls(tuple(_fitted_knots(values[:, c], classes == c) for c in of_interest))

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """One array a map, ``(2, n_knots)``, named by its place."""
        return {str(place): one for place, one in enumerate(self.knots)}

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


CALIBRATIONS: dict[str, type[Calibration]] = {"isotonic": IsotonicCalibration}
"""Name -> class of the map; every method but ``"none"`` is here."""


def calibration_named(method: str) -> type[Calibration]:
    """The class of a calibration.

    >>> calibration_named("isotonic").__name__
    'IsotonicCalibration'
    """
    if method not in CALIBRATIONS:
        raise ConfigError(f"there is no calibration {method!r}{nearest(method, CALIBRATIONS)}")
    return CALIBRATIONS[method]


def calibration_in_use(fitted: Calibration | None, asked: str) -> Calibration | None:
    """The map that a model was fitted with, or None where it is switched off; no other can be switched on.

    >>> calibration_in_use(None, "none") is None
    True
    """
    if asked == "none":
        return None
    if fitted is None or fitted.method != asked:
        had = "none" if fitted is None else fitted.method
        raise ConfigError(
            f"calibration is {asked!r}, but the model was fitted with calibration = {had!r}, so there is no map to "
            f"apply. Fit again with calibration={asked!r}, or set_params(calibration={had!r})."
        )
    return fitted


def _fitted_knots(scores: NDArray[np.float64], hits: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Where the isotonic regression of ``hits`` on ``scores`` bends, ``(2, n_knots)``."""
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(
        scores, hits.astype(np.float64)
    )
    return np.stack([fitted.X_thresholds_, fitted.y_thresholds_])


def _checked(posteriors: ArrayLike, targets: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
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


def _check_knots(place: int, knots: NDArray[np.float64]) -> None:
    """Refuse what is no map from probabilities to probabilities that never falls."""
    if knots.dtype != np.float64 or knots.ndim != 2 or len(knots) != 2 or knots.shape[1] < 1:
        raise ConfigError(
            f"map {place} of an isotonic calibration is {knots.dtype} of shape {knots.shape}; needed is float64 of "
            "shape (2, n_knots)."
        )
    scores, mapped = knots
    within = bool(((knots >= 0) & (knots <= 1)).all())  # which NaN is not
    if not within or (np.diff(scores) <= 0).any() or (np.diff(mapped) < 0).any():
        raise ConfigError(
            f"map {place} of an isotonic calibration is not one: its {knots.shape[1]} knots must lie between 0 and "
            "1, ascend, and never fall in what they are mapped to."
        )
