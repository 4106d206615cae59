"""Validation report: reliability and conformal scores of a model on its validation set.

    class indices (n,), probabilities (n, C) -> ValidationReport: scores for prediction sets, reliability, figures

Early stopping has seen these series, so figures are slightly better than those of new series will be. A
calibration is fitted on the same series; its figures are cross-fitted: each series gets its probabilities from
a map that was fitted without its group. estimator/fit.py makes the report, estimator/persistence.py keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from raxss.uncertainty.conformal import conformal_threshold, fewest_series, nonconformity
from raxss.uncertainty.reliability import calibration_figures, classification_figures, reliability_table

N_FOLDS = 5
CALIBRATED, UNCALIBRATED = "calibrated", "uncalibrated"
ROUNDING = 1e-9  # by which a sum of probabilities may be beyond 0 or 1
CLASSIFICATION = (
    "largest_share", "accuracy", "balanced_accuracy", "sensitivity", "specificity", "average_precision"
)  # fmt: skip
ROW = {"from": float, "to": float, "n": int, "said": float, "found": float, "low": float, "high": float}


@dataclass(frozen=True, eq=False)
class ValidationReport:
    """Figures of the validation set; no series, no names.

    Scores, reliability and figures are ``"uncalibrated"``, and ``"calibrated"`` where a map was fitted and could be
    cross-fitted.
    """

    n_series: int
    n_groups: int  # patients, pairs
    settings: str  # hash of the settings that the scores depend on
    scores: Mapping[str, NDArray[np.float64]]  # (n_series,) 1 - p of the true class, ascending
    reliability: Mapping[
        str, list[dict[str, Any]]
    ]  # rows of `raxss.uncertainty.reliability.reliability_table`
    figures: Mapping[str, dict[str, float]]  # Brier score, calibration error and log loss
    #: Accuracy, share of the largest class, balanced accuracy, ...; empty in reports of earlier versions.
    classification: Mapping[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        targets: NDArray[np.int64],
        probabilities: Mapping[str, NDArray[np.float64]],
        *,
        n_groups: int,
        settings: str,
    ) -> Self:
        """From the class index of each series, and its probabilities ``(n_series, C)``, calibrated or not."""
        return cls(
            n_series=len(targets),
            n_groups=n_groups,
            settings=settings,
            scores={name: nonconformity(rows, targets) for name, rows in probabilities.items()},
            reliability={name: reliability_table(targets, rows) for name, rows in probabilities.items()},
            figures={name: calibration_figures(targets, rows) for name, rows in probabilities.items()},
            classification={
                name: classification_figures(targets, rows) for name, rows in probabilities.items()
            },
        )

    def threshold(self, alpha: float, *, calibrated: bool) -> float | None:
        """Threshold of prediction sets; infinite for too few series, None without scores of this kind."""
        scores = self.scores.get(CALIBRATED if calibrated else UNCALIBRATED)
        return None if scores is None else conformal_threshold(scores, alpha)

    def why_no_sets(self, alpha: float, *, calibrated: bool) -> str:
        """Why sets of this level can leave no class out; empty where they can."""
        threshold = self.threshold(alpha, calibrated=calibrated)
        if threshold is None:
            return (
                "the calibration could not be fitted without each validation group in turn, because a class is in "
                "one group alone"
            )
        if np.isinf(threshold):
            return (
                f"{self.n_series} validation series are too few for sets that hold the true class in "
                f"{100 * (1 - alpha):.4g} of 100; {fewest_series(alpha)} are needed"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        """The entry of config.json; the scores are among the arrays."""
        counts = {"n_series": self.n_series, "n_groups": self.n_groups, "settings": self.settings}
        parts = {"reliability": dict(self.reliability), "figures": dict(self.figures)}
        parts |= {"classification": dict(self.classification)} if self.classification else {}
        return counts | parts

    @classmethod
    def from_json(cls, value: Any, scores: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back what `to_json` gave, with the scores; anything else is refused with a ValueError."""
        names = set(scores)
        if UNCALIBRATED not in names or names - {UNCALIBRATED, CALIBRATED}:
            raise ValueError(f"its validation report has scores named {sorted(names)}")
        if not isinstance(value, dict) or not names == set(value["reliability"]) == set(value["figures"]):
            raise ValueError("the parts of its validation report do not go together")
        if (classified := value.get("classification", {})) and set(classified) != names:
            raise ValueError("the parts of its validation report do not go together")
        report = cls(
            n_series=int(value["n_series"]),
            n_groups=int(value["n_groups"]),
            settings=str(value["settings"]),
            scores=dict(scores),
            reliability={
                name: [{key: kind(row[key]) for key, kind in ROW.items()} for row in rows]
                for name, rows in value["reliability"].items()
            },
            figures={
                name: {figure: float(entry[figure]) for figure in ("brier", "ece", "log_loss")}
                for name, entry in value["figures"].items()
            },
            classification={
                name: {figure: float(entry[figure]) for figure in CLASSIFICATION if figure in entry}
                for name, entry in classified.items()
            },
        )
        rows = [*report.figures.values(), *report.classification.values()]
        rows += [*chain.from_iterable(report.reliability.values())]
        finite = np.isfinite([number for row in rows for number in row.values()]).all()
        if report.n_series < 1 or report.n_groups < 1 or not finite:
            raise ValueError("its validation report has counts below 1, or figures that are not finite")
        for score in scores.values():
            # 1 - p, where p is a sum of products and may be above 1 by the rounding of its last digits
            sound = score.dtype == np.float64 and score.shape == (report.n_series,)
            sound = sound and bool(((score >= -ROUNDING) & (score <= 1 + ROUNDING)).all())
            if not (sound and (np.diff(score) >= 0).all()):
                raise ValueError("the scores of its validation report are not ascending numbers from 0 to 1")
        return report


def folds_of(targets: NDArray[np.int64], groups: NDArray[Any] | None, *, seed: int) -> NDArray[np.int64]:
    """The fold of each series, up to five: whole groups, stratified by their most frequent label."""
    keys = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1]
    n_groups = int(keys.max()) + 1
    # Pairs of group and class, those with the largest count first, of equal counts the lowest class.
    n_classes = int(targets.max()) + 1
    pairs, counts = np.unique(keys * n_classes + targets, return_counts=True)
    pairs = pairs[np.lexsort((pairs % n_classes, -counts, pairs // n_classes))]
    most_frequent = pairs[np.unique(pairs // n_classes, return_index=True)[1]] % n_classes
    drawn = np.random.default_rng(seed).permutation(n_groups)
    dealt = drawn[np.argsort(most_frequent[drawn], kind="stable")]
    fold = np.empty(n_groups, dtype=np.int64)
    fold[dealt] = np.arange(n_groups) % N_FOLDS
    return fold[keys]


def cross_fitted(
    targets: NDArray[np.int64],
    groups: NDArray[Any] | None,
    fit_and_apply: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]],  # on rows, of rows
    *,
    n_classes: int,
    seed: int,
) -> NDArray[np.float64] | None:
    """Probabilities ``(n, C)`` from maps fitted without each series' group; None where a class is in one group."""
    folds = folds_of(targets, groups, seed=seed)
    probabilities = np.empty((len(targets), n_classes))
    for fold in np.unique(folds):
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if len(np.unique(targets[train])) < n_classes:
            return None
        probabilities[test] = fit_and_apply(train, test)
    return probabilities
