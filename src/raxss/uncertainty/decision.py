"""Decision threshold: from probabilities to a predicted class, by argmax or by a threshold tuned out of fold.

    class indices (n,), out-of-fold probabilities (n, C) -> DecisionThreshold: a factor for each class
    probabilities (n, C) -> class indices: the largest product of factor and probability

The most probable class is the best guess where every error costs the same. A class of one series in fifty is then
hardly ever named. A tuned threshold weighs classes alike: it has the largest balanced accuracy on series that the
model was not trained on, unless that is no better than argmax by more than its standard error: of few series a
threshold can be tuned to chance. Probabilities are left as they are. estimator/out_of_fold.py finds the series,
estimator/persistence.py keeps the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import ConfigError, DataError
from raxss.uncertainty.calibration import DECISIONS
from raxss.uncertainty.reliability import classification_figures

ARGMAX, TUNED = DECISIONS
FLOOR = 1e-6  # of a probability, whose logarithm is compared; calibrated ones may be 0
MOST_ROUNDS = 20  # over the classes
EQUAL = 1e-12  # balanced accuracies that differ by less are the same

INTERRUPTED = "none"

#: Where the series came from that the threshold was tuned on, and its words in a sentence.
SOURCES = {
    "validation": "{n} validation series, which choice of the epoch and calibration, if any, have used too",
    "out-of-fold": "{n} training series, each scored out of fold, by the model without its group; calibration, if "
    "any, has used such scores too",
    "cross-validation": "{n} series, each scored by the one of {folds} refits that did without it and its group",
    INTERRUPTED: "no series, because training was interrupted: it is the most probable class",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class DecisionThreshold:
    """A tuned decision: class argmax over c of f_c p_c.

    For two classes this is a threshold t on the probability of the second: f = (t, 1 - t).

    Examples
    --------
    >>> second = np.array([0.05, 0.1, 0.2, 0.1, 0.3, 0.4])
    >>> probabilities = np.stack([1 - second, second], axis=1)
    >>> tuned = DecisionThreshold.tuned([0, 0, 0, 0, 1, 1], probabilities)
    >>> probabilities.argmax(axis=1), tuned.decide(probabilities), round(tuned.threshold, 2)
    (array([0, 0, 0, 0, 0, 0]), array([0, 0, 0, 0, 1, 1]), 0.25)
    """

    factors: NDArray[np.float64]  # (C,) above 0, with the sum 1
    source: str = "validation"  # one of `SOURCES`
    n_series: int = 0
    n_folds: int = 0  # of a cross-validation
    settings: str = ""  # hash of the settings that the scores depend on
    figures: Mapping[str, Mapping[str, float]]  # of "argmax" and "tuned" on the series it was tuned on

    @classmethod
    def tuned(
        cls,
        targets: ArrayLike,
        probabilities: ArrayLike,
        *,
        source: str = "validation",
        n_folds: int = 0,
        settings: str = "",
    ) -> Self:
        """Tune on class indices ``(n,)`` and probabilities ``(n, C)`` of series that were not trained on."""
        truth, rows = np.asarray(targets), np.asarray(probabilities, dtype=np.float64)
        factors, guess = tuned_factors(truth, rows), rows.argmax(axis=1)
        best, error = balanced_accuracy(truth, (rows * factors).argmax(axis=1), rows.shape[1])
        if best - balanced_accuracy(truth, guess, rows.shape[1])[0] <= error:
            factors = np.full(rows.shape[1], 1 / rows.shape[1])
        decided = {ARGMAX: guess, TUNED: (rows * factors).argmax(axis=1)}
        figures = {
            name: classification_figures(truth, rows, predicted=guess) for name, guess in decided.items()
        }
        return cls(
            factors=factors,
            source=source,
            n_series=len(truth),
            n_folds=n_folds,
            settings=settings,
            figures=figures,
        )

    @classmethod
    def of_interrupted(cls, n_classes: int) -> Self:
        """The most probable class, where training was interrupted before a threshold could be tuned."""
        return cls(factors=np.full(n_classes, 1 / n_classes), source=INTERRUPTED, figures={})

    @property
    def threshold(self) -> float | None:
        """Of two classes, the probability of the second above which it is predicted; None for more classes."""
        return float(self.factors[0]) if len(self.factors) == 2 else None

    def decide(self, probabilities: NDArray[np.float64]) -> NDArray[np.intp]:
        """Class indices ``(...)`` of probabilities ``(..., C)``."""
        decided: NDArray[np.intp] = (probabilities * self.factors).argmax(axis=-1)
        return decided

    def describe(self, classes: Sequence[Any] | NDArray[Any]) -> str:
        """The rule in words.

        >>> DecisionThreshold(factors=np.array([0.07, 0.93]), figures={}).describe(["well", "ill"])
        "'ill' from a probability of 0.07 on, else 'well'"
        """
        return describe_factors(self.factors, classes)

    @property
    def origin(self) -> str:
        """What it was tuned on, in words."""
        return SOURCES[self.source].format(n=self.n_series, folds=self.n_folds)

    def to_json(self) -> dict[str, Any]:
        """The entry of config.json."""
        return {
            "factors": self.factors.tolist(),
            "source": self.source,
            "n_series": self.n_series,
            "n_folds": self.n_folds,
            "settings": self.settings,
            "figures": {name: dict(entry) for name, entry in self.figures.items()},
        }

    @classmethod
    def from_json(cls, value: Any, n_classes: int) -> Self:
        """Read back what `to_json` gave; anything else is refused with a ValueError."""
        if not isinstance(value, dict) or value["source"] not in tuple(SOURCES):
            raise ValueError("its decision threshold is not an object with a known source")
        factors = np.array(value["factors"], dtype=np.float64)
        sound = factors.shape == (n_classes,) and bool((np.isfinite(factors) & (factors > 0)).all())
        if not sound or abs(factors.sum() - 1) > 1e-9:
            raise ValueError(f"its decision threshold has no {n_classes} factors above 0 with the sum 1")
        figures = {
            str(name): {str(figure): float(number) for figure, number in entry.items()}
            for name, entry in value["figures"].items()
        }
        numbers = [number for entry in figures.values() for number in entry.values()]
        if set(figures) not in (set(), set(DECISIONS)) or not np.isfinite(numbers).all():
            raise ValueError("the figures of its decision threshold are not those of argmax and tuned")
        return cls(
            factors=factors,
            source=value["source"],
            n_series=int(value["n_series"]),
            n_folds=int(value["n_folds"]),
            settings=str(value["settings"]),
            figures=figures,
        )


def describe_factors(factors: ArrayLike, classes: Sequence[Any] | NDArray[Any]) -> str:
    """A decision by factors ``(C,)`` in words.

    >>> describe_factors([0.2, 0.2, 0.6], "abc")
    "the largest of 0.2 P('a'), 0.2 P('b'), 0.6 P('c')"
    """
    names = [repr(item.item() if isinstance(item, np.generic) else item) for item in classes]
    values = np.asarray(factors, dtype=np.float64)
    if len(values) == 2:
        return f"{names[1]} from a probability of {values[0]:.3g} on, else {names[0]}"
    return "the largest of " + ", ".join(
        f"{value:.3g} P({name})" for value, name in zip(values, names, strict=True)
    )


def balanced_accuracy(
    targets: NDArray[np.int64], predicted: NDArray[np.intp], n_classes: int
) -> tuple[float, float]:
    """Mean recall over the classes, and its standard error.

    With h_c of the n_c series of class c named so: q_c = (h_c + 1) / (n_c + 2), which is not 1 where all of few are
    right, and the error is sqrt(sum over c of q_c (1 - q_c) / n_c) / C.

    Examples
    --------
    >>> value, error = balanced_accuracy(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]), 2)
    >>> round(value, 3), round(error, 3)
    (0.833, 0.275)
    """
    counts = np.bincount(targets, minlength=n_classes)
    hits = np.bincount(targets[targets == predicted], minlength=n_classes)
    smoothed = (hits + 1) / (counts + 2)
    error = np.sqrt((smoothed * (1 - smoothed) / counts).sum()) / n_classes
    return float((hits / counts).mean()), float(error)


def tuned_factors(targets: NDArray[np.int64], probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factors ``(C,)`` whose decision argmax_c f_c p_c has the largest balanced accuracy.

    Two classes: found exactly, among all thresholds. More: a coordinate search in log f, one class after the other,
    exact in each, until none improves. Of equally good values it takes the present one where it is among them, else
    the middle of the widest interval.

    Examples
    --------
    >>> rows = np.array([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.6, 0.1, 0.3], [0.3, 0.6, 0.1]])
    >>> factors = tuned_factors(np.array([0, 1, 2, 1]), rows)
    >>> (rows * factors).argmax(axis=1)
    array([0, 1, 2, 1])
    """
    n_classes = probabilities.shape[1]
    if not np.array_equal(np.unique(targets), np.arange(n_classes)):
        raise DataError(
            f"a decision threshold is tuned on series of every class, but of {n_classes} classes {len(targets)} "
            f"series have {len(np.unique(targets))}. Give more series, or set decision_threshold = 'argmax'."
        )
    logs = np.log(np.clip(probabilities, FLOOR, None))
    share = 1 / (n_classes * np.bincount(targets, minlength=n_classes)[targets])  # of a hit, (n,)
    shift, best = np.zeros(n_classes), -1.0
    coordinates = [1] if n_classes == 2 else range(n_classes)
    for _ in range(MOST_ROUNDS):
        before = best
        for class_ in coordinates:
            shift[class_], best = _best_shift(logs, shift, targets, share, class_)
        if best <= before + EQUAL:
            break
    factors = np.exp(shift - shift.max())
    return factors / factors.sum()


def _best_shift(
    logs: NDArray[np.float64],
    shift: NDArray[np.float64],
    targets: NDArray[np.int64],
    share: NDArray[np.float64],
    class_: int,
) -> tuple[float, float]:
    """The best log-factor of one class while the others are kept, and the balanced accuracy with it."""
    others = logs + shift
    others[:, class_] = -np.inf
    rival = others.argmax(axis=1)
    edges = others.max(axis=1) - logs[:, class_]  # above its edge a series is given to the class
    gain = share * ((targets == class_).astype(float) - (rival == targets))
    order = np.argsort(edges, kind="stable")
    edges, gain = edges[order], gain[order]
    last = np.flatnonzero(np.append(np.diff(edges) > EQUAL, True))  # of equal edges
    reached = float((share * (rival == targets)).sum()) + np.concatenate([[0.0], np.cumsum(gain)[last]])
    bounds = np.concatenate([[edges[0] - 1.0], edges[last], [edges[-1] + 1.0]])  # of the intervals, one more
    best = np.flatnonzero(reached >= reached.max() - EQUAL)
    low, high = bounds[best], bounds[best + 1]
    inside = (low < shift[class_]) & (shift[class_] <= high)
    if inside.any():
        return float(shift[class_]), float(reached.max())
    widest = int((high - low).argmax())
    return float((low[widest] + high[widest]) / 2), float(reached.max())


def threshold_in_use(fitted: DecisionThreshold | None, requested: str) -> DecisionThreshold | None:
    """The tuned threshold, or None where it is switched off; one that was not tuned cannot be switched on."""
    if requested == ARGMAX:
        return None
    if fitted is None:
        raise ConfigError(
            f"decision_threshold is {requested!r}, but the model was fitted with decision_threshold = 'argmax', so "
            "there is no threshold to apply. Fit again with decision_threshold='tuned', or "
            "set_params(decision_threshold='argmax')."
        )
    return fitted
