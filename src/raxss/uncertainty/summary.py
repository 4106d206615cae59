"""Uncertainty summary: probability, interval, prediction set and notes of each scored series.

    Prediction -> ScoredSeries: probability, the sum it comes from, interval, prediction set, notes

It combines the validation report, the out-of-distribution detector and the calibration of series of a fitted
model. estimator/classifier.py makes one for each series; explain/ shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raxss.data.prepare.rates import notes_about_rate
from raxss.data.series import Series
from raxss.data.training_overlap import TrainingRecord
from raxss.errors import ConfigError
from raxss.method.inference import Prediction
from raxss.uncertainty.bootstrap import VENN_ABERS, Interval, bootstrap_interval
from raxss.uncertainty.calibration.maps import Calibration, VennAbersCalibration
from raxss.uncertainty.conformal import prediction_sets
from raxss.uncertainty.decision import DecisionThreshold
from raxss.uncertainty.gaps import GapFinding
from raxss.uncertainty.ood import OODDetector
from raxss.uncertainty.validation import ValidationReport


@dataclass(frozen=True, eq=False)
class ScoredSeries:
    """The score of one series and its uncertainty."""

    series: Series
    probability: NDArray[np.float64]  # (C,) as `predict_proba` gives it
    series_probability: NDArray[
        np.float64
    ]  # (C,) sum of the contributions; the same unless series are calibrated
    interval: Interval | None  # of the probability; None for a series that is too short
    prediction_set: NDArray[np.bool_] | None  # (C,) classes not ruled out; None where the model has no sets
    notes: tuple[str, ...]  # warnings about this series or the model, in plain words
    seen_in_training: str  # whether the model was fitted on this series: one of `training_overlap.STATES`
    predicted: int  # index of the predicted class: of the largest probability, or by a tuned threshold

    @property
    def abstains(self) -> bool | None:
        """Whether the set has several classes, or none; None without a set."""
        return None if self.prediction_set is None else int(self.prediction_set.sum()) != 1


@dataclass(frozen=True, eq=False, kw_only=True)
class UncertaintySummary:
    """What a fitted model, under its current settings, needs to state the uncertainty of a score."""

    validation_report: ValidationReport | None
    ood_detector: OODDetector | None
    alpha: float  # share of the prediction sets that may miss the true class; 0: no sets
    calibrated: bool  # whether a calibration of windows or of series is in use
    series_calibration: Calibration | None  # the one of series, where it is in use
    changed: bool  # whether settings of windows, retrieval or weights differ from those of the report
    rates: Sequence[float]  # of the training series
    seen: TrainingRecord  # digests of the training data
    decision: DecisionThreshold | None = None  # the tuned threshold, where it is in use
    decision_changed: bool = (
        False  # whether settings that scores depend on differ from those it was tuned under
    )
    gap_finding: GapFinding | None = None  # whether the model has learned from missing samples

    @property
    def has_sets(self) -> bool:
        """Whether prediction sets are wanted, and can leave a class out."""
        return self.alpha > 0 and not self.why_no_sets(self.alpha)

    def why_no_sets(self, alpha: float) -> str:
        """Why prediction sets can leave no class out; empty where they can."""
        if not 0 < alpha < 1:
            raise ConfigError(f"alpha is {alpha!r}; prediction sets need a number above 0 and below 1.")
        if self.validation_report is None:
            return "the model was fitted with no validation set"
        if self.changed:
            return "settings of windows, retrieval or weights were changed since the model was validated"
        return self.validation_report.why_no_sets(alpha, calibrated=self.calibrated)

    def threshold(self, alpha: float) -> float:
        """A class stays in the set where 1 - p is not above this; infinite where none can be left out."""
        report = self.validation_report
        found = None if report is None else report.threshold(alpha, calibrated=self.calibrated)
        return np.inf if found is None or self.changed else found

    def sets(self, probabilities: NDArray[np.float64], alpha: float) -> NDArray[np.bool_]:
        """Prediction sets ``(..., C)``; every class where none can be left out."""
        return prediction_sets(probabilities, self.threshold(alpha))

    def score(self, prediction: Prediction, *, seen_in_training: str | None = None) -> ScoredSeries:
        """The scored series; ``seen_in_training`` where `TrainingRecord.states` has found it already."""
        return ScoredSeries(
            prediction.series,
            prediction.probability,
            prediction.aggregation.series_probability,
            self._interval(prediction),
            self.sets(prediction.probability, self.alpha) if self.has_sets else None,
            tuple(self.notes(prediction)),
            self.seen.state(prediction.series) if seen_in_training is None else seen_in_training,
            int(
                prediction.probability.argmax()
                if self.decision is None
                else self.decision.decide(prediction.probability)
            ),
        )

    def notes(self, prediction: Prediction) -> list[str]:
        """Warnings about this series, or about the model."""
        notes = notes_about_rate(prediction.series, self.rates)
        if self.ood_detector is not None:
            retrieval = prediction.retrieval
            with_support = retrieval is not None and retrieval.has_neighbors and not self.changed
            support = float(np.nanmean(prediction.aggregation.support)) if with_support else None
            notes += self.ood_detector.notes(prediction.series, support)
        if self.gap_finding is not None:
            notes += self.gap_finding.notes
        if self.series_calibration is not None and self.changed:
            notes.append(
                "the score is calibrated by a map that was fitted under other settings of windows, retrieval or "
                "weights. Fit again, or set calibration = 'none'."
            )
        if self.decision_changed:
            notes.append(
                "the predicted class is by a threshold that was tuned under other settings of windows, retrieval, "
                "weights or calibration. Fit again, or set decision_threshold = 'argmax'."
            )
        return notes

    def _interval(self, prediction: Prediction) -> Interval | None:
        """Venn-Abers has its own interval; any other calibration is applied to the draws of a block bootstrap."""
        aggregation, calibration = prediction.aggregation, self.series_calibration
        if isinstance(calibration, VennAbersCalibration):
            low, high = calibration.interval(aggregation.series_probability[None])
            return Interval(low[0], high[0], VENN_ABERS, None)
        return bootstrap_interval(
            aggregation.weights,
            aggregation.contributions,
            prediction.windows.starts,
            window_length=prediction.windows.length,
            after=calibration,
        )
