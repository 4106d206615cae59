"""How did a model do on the series that it was tried on, but did not learn from?

    class indices (n,), probabilities (n, C) -> ValidationReport: scores for prediction sets, reliability, figures

They are those of the validation part. Early stopping has looked at these series, too, so what is found here is
slightly better than what new series will show. Where probabilities are calibrated, the map is fitted on the same
part; then each series is judged by a map that was fitted without its group (cross-fitting), and only the map that
new series get is fitted on all. Next: estimator/fit.py makes one, estimator/persistence.py keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from raxss.uncertainty.conformal import conformal_threshold, fewest_series, nonconformity
from raxss.uncertainty.reliability import calibration_figures, reliability_table

N_FOLDS = 5
CALIBRATED, UNCALIBRATED = "calibrated", "uncalibrated"
ROUNDING = 1e-9  # by which a sum of probabilities may be beyond 0 or 1


@dataclass(frozen=True, eq=False)
class ValidationReport:
    """What a model folder keeps of it: no series, no names.

    Attributes
    ----------
    n_series, n_groups
        How many were tried, in how many groups (patients, pairs).
    settings
        Which settings the scores came about under: a hash.
    scores
        1 - p of the true class, ascending, ``(n_series,)``: ``"uncalibrated"``, and ``"calibrated"`` where a map
        was fitted and could be cross-fitted.
    reliability, figures
        Under the same names: the table of `raxss.uncertainty.reliability.reliability_table`, and Brier score,
        calibration error and log loss.
    """

    n_series: int
    n_groups: int
    settings: str
    scores: Mapping[str, NDArray[np.float64]]
    reliability: Mapping[str, list[dict[str, Any]]]
    figures: Mapping[str, dict[str, float]]

    @classmethod
    def of(
        cls,
        targets: NDArray[np.int64],
        said: Mapping[str, NDArray[np.float64]],
        *,
        n_groups: int,
        settings: str,
    ) -> Self:
        """From the class index of each series and what was said of it, ``(n_series, C)`` by name.

        Examples
        --------
        >>> posteriors = {"uncalibrated": np.array([[0.9, 0.1], [0.4, 0.6]])}
        >>> report = ValidationReport.of(np.array([0, 1]), posteriors, n_groups=2, settings="")
        >>> report.scores["uncalibrated"].round(3), len(report.reliability["uncalibrated"])
        (array([0.1, 0.4]), 2)
        """
        return cls(
            n_series=len(targets),
            n_groups=n_groups,
            settings=settings,
            scores={name: nonconformity(item, targets) for name, item in said.items()},
            reliability={name: reliability_table(targets, item) for name, item in said.items()},
            figures={name: calibration_figures(targets, item) for name, item in said.items()},
        )

    def threshold(self, alpha: float, *, calibrated: bool) -> float | None:
        """What prediction sets are made with; infinite where too few series were tried, None where none can be."""
        scores = self.scores.get(CALIBRATED if calibrated else UNCALIBRATED)
        return None if scores is None else conformal_threshold(scores, alpha)

    def why_no_sets(self, alpha: float, *, calibrated: bool) -> str:
        """Why sets of this level can leave no class out; empty where they can."""
        found = self.threshold(alpha, calibrated=calibrated)
        if found is None:
            return (
                "the calibration could not be fitted without each validation group in turn, because a class is in "
                "one group alone"
            )
        if np.isinf(found):
            return (
                f"{self.n_series} validation series are too few for sets that hold the true class in "
                f"{100 * (1 - alpha):.4g} of 100; {fewest_series(alpha)} are needed"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        """What config.json has of it; the scores are among the arrays."""
        told = {"n_series": self.n_series, "n_groups": self.n_groups, "settings": self.settings}
        return told | {"reliability": dict(self.reliability), "figures": dict(self.figures)}

    @classmethod
    def from_json(cls, value: Any, scores: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back what `to_json` gave, with the scores; whatever else is refused with a ValueError."""
        names = set(scores)
        if UNCALIBRATED not in names or names - {UNCALIBRATED, CALIBRATED}:
            raise ValueError(f"its trial has scores named {sorted(names)}")
        if (
            not isinstance(value, dict)
            or set(value["reliability"]) != names
            or set(value["figures"]) != names
        ):
            raise ValueError("the parts of its trial do not go together")
        trial = cls(
            n_series=int(value["n_series"]),
            n_groups=int(value["n_groups"]),
            settings=str(value["settings"]),
            scores=dict(scores),
            reliability={name: [_row(item) for item in rows] for name, rows in value["reliability"].items()},
            figures={
                name: {figure: float(entry[figure]) for figure in ("brier", "ece", "log_loss")}
                for name, entry in value["figures"].items()
            },
        )
        rows = [*trial.figures.values(), *chain.from_iterable(trial.reliability.values())]
        finite = np.isfinite([number for row in rows for number in row.values()]).all()
        if trial.n_series < 1 or trial.n_groups < 1 or not finite:
            raise ValueError(
                "the counts and figures of its trial are not finite numbers, of one series at least"
            )
        for score in scores.values():
            # 1 - p, where p is a sum of products and may be above 1 by the rounding of its last digits
            within = (
                score.dtype == np.float64
                and score.shape == (trial.n_series,)
                and ((score >= -ROUNDING) & (score <= 1 + ROUNDING)).all()
            )
            if not (within and (np.diff(score) >= 0).all()):
                raise ValueError("the scores of its trial are not one number from 0 to 1 a series, ascending")
        return trial


def _row(value: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"from": 0.0, "to": 0.0, "n": 0, "said": 0.0, "found": 0.0, "low": 0.0, "high": 0.0}
    return {name: type(item)(value[name]) for name, item in row.items()}


def folds_of(targets: NDArray[np.int64], groups: NDArray[Any] | None, *, seed: int) -> NDArray[np.int64]:
    """Which of up to five folds each series is in: whole groups, dealt out label by label.

    Examples
    --------
    >>> folds_of(np.array([0, 0, 1, 1]), np.array(["a", "a", "b", "c"]), seed=0)
    array([0, 0, 2, 1])
    """
    keys = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1]
    n_groups = int(keys.max()) + 1
    most_frequent = np.array([np.bincount(targets[keys == index]).argmax() for index in range(n_groups)])
    drawn = np.random.default_rng(seed).permutation(n_groups)
    dealt = drawn[np.argsort(most_frequent[drawn], kind="stable")]
    fold = np.empty(n_groups, dtype=np.int64)
    fold[dealt] = np.arange(n_groups) % N_FOLDS
    return fold[keys]


def cross_fitted(
    targets: NDArray[np.int64],
    groups: NDArray[Any] | None,
    fit_and_apply: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]],
    *,
    n_classes: int,
    seed: int,
) -> NDArray[np.float64] | None:
    """What maps say of each series that were fitted without its group; None where no such map can be fitted.

    Parameters
    ----------
    fit_and_apply
        Fits a map on the series of the first indices, and gives what it makes of those of the second, ``(n, C)``.
    """
    folds = folds_of(targets, groups, seed=seed)
    told = np.empty((len(targets), n_classes))
    for fold in np.unique(folds):
        held, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        if len(np.unique(targets[others])) < n_classes:
            return None
        told[held] = fit_and_apply(others, held)
    return told
