"""How far may the score of a series be trusted?

    Prediction -> ScoredSeries: probability, the sum it comes from, interval, prediction set, notes

What was fitted says it together: the trial on the validation part, what is usual among the training data, and the
calibration of series. Next: estimator/classifier.py asks for each series; explain/ shows it.
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
from raxss.uncertainty.calibration.maps import Calibration
from raxss.uncertainty.calibration.venn_abers import VennAbersCalibration
from raxss.uncertainty.conformal import prediction_sets
from raxss.uncertainty.ood import OODDetector
from raxss.uncertainty.validation import ValidationReport


@dataclass(frozen=True, eq=False)
class ScoredSeries:
    """What a model says of one series, and how sure that is.

    Attributes
    ----------
    probability
        ``(C,)`` what `predict_proba` says.
    series_probability
        ``(C,)`` what the contributions of the windows add up to; the same unless series are calibrated.
    interval
        Where the probability may lie; None where the series is too short for one.
    prediction_set
        ``(C,)`` the classes that cannot be ruled out; None where the model has no sets.
    notes
        What a reader should know before trusting this, in plain words.
    seen_in_training
        Whether the model was fitted on this series, by content: one of `raxss.data.training_overlap.STATES`.
    """

    series: Series
    probability: NDArray[np.float64]
    series_probability: NDArray[np.float64]
    interval: Interval | None
    prediction_set: NDArray[np.bool_] | None
    notes: tuple[str, ...]
    seen_in_training: str

    @property
    def abstains(self) -> bool | None:
        """Whether the set is no answer: several classes, or none. None where there is no set."""
        return None if self.prediction_set is None else int(self.prediction_set.sum()) != 1


@dataclass(frozen=True, eq=False, kw_only=True)
class UncertaintySummary:
    """What a fitted model knows of its own limits, with the settings as they stand.

    Attributes
    ----------
    alpha
        Share of the sets that may miss the truth; 0: no sets.
    calibrated
        Whether a calibration is in use, of windows or of series.
    series_calibration
        That of series, where it is in use.
    changed
        Whether windows, retrieval or weights are other ones than those that the model was tried with.
    rates
        Of the training series.
    seen
        What the model keeps of the content of its training data.
    """

    trial: ValidationReport | None
    familiar: OODDetector | None
    alpha: float
    calibrated: bool
    series_calibration: Calibration | None
    changed: bool
    rates: Sequence[float]
    seen: TrainingRecord

    @property
    def has_sets(self) -> bool:
        """Whether prediction sets are wanted, and can leave a class out."""
        return self.alpha > 0 and not self.why_no_sets(self.alpha)

    def why_no_sets(self, alpha: float) -> str:
        """Why prediction sets can leave no class out; empty where they can."""
        if not 0 < alpha < 1:
            raise ConfigError(f"alpha is {alpha!r}; prediction sets need a number above 0 and below 1.")
        if self.trial is None:
            return "the model has no validation part to have been tried on"
        if self.changed:
            return "settings of windows, retrieval or weights were changed since the model was tried"
        return self.trial.why_no_sets(alpha, calibrated=self.calibrated)

    def threshold(self, alpha: float) -> float:
        """A class stays in the set where 1 - p is not above this; infinite where none can be left out."""
        found = None if self.trial is None else self.trial.threshold(alpha, calibrated=self.calibrated)
        return np.inf if found is None or self.changed else found

    def sets(self, probabilities: NDArray[np.float64], alpha: float) -> NDArray[np.bool_]:
        """Prediction sets ``(..., C)``; every class where none can be left out."""
        return prediction_sets(probabilities, self.threshold(alpha))

    def answer(self, prediction: Prediction, *, seen_in_training: str | None = None) -> ScoredSeries:
        """All of it for one series.

        Parameters
        ----------
        seen_in_training
            Where it is known already; see `TrainingRecord.states`.
        """
        return ScoredSeries(
            prediction.series,
            prediction.probability,
            prediction.aggregation.series_probability,
            interval_of(prediction, self.series_calibration),
            self.sets(prediction.probability, self.alpha) if self.has_sets else None,
            tuple(self.notes(prediction)),
            self.seen.state(prediction.series) if seen_in_training is None else seen_in_training,
        )

    def notes(self, prediction: Prediction) -> list[str]:
        """What a reader should know of this series, or of the model, before trusting the score."""
        notes = notes_about_rate(prediction.series, self.rates)
        if self.familiar is not None:
            with_support = prediction.retrieval is not None and not self.changed
            support = float(np.nanmean(prediction.aggregation.support)) if with_support else None
            notes += self.familiar.notes(prediction.series, support)
        if self.series_calibration is not None and self.changed:
            notes.append(
                "the score is calibrated by a map that was fitted under other settings of windows, retrieval or "
                "weights. Fit again, or set calibration = 'none'."
            )
        return notes


def interval_of(prediction: Prediction, calibration: Calibration | None = None) -> Interval | None:
    """Where the probability of a series may lie; ``calibration`` is that of series.

    Venn-Abers has an interval of its own; any other calibration is applied to the draws of a block bootstrap.
    """
    aggregation = prediction.aggregation
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
