"""Diagnosis of a fit that has not learned: what is wrong, the likely cause and the remedy.

    LearningReport -> Diagnosis or None -> NotLearnedWarning

A warning is given in three cases: the model does not fit its own training series, the reference forest is clearly
better, or the model is at chance on series that it was not trained on. Few series are no evidence: the latter two
need intervals that leave no doubt. estimator/classifier.py warns at the end of `fit`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

from raxss.errors import NotLearnedWarning
from raxss.uncertainty.learning import Comparison, Figures, LearningReport

Cause = Literal[
    "too few steps",
    "windows too long",
    "classes that cannot be told",
    "forest better",
    "training series not fitted",
]

LEARNED = 0.25  # of the way from chance to a perfect balanced accuracy: training series are fitted above it
AT_CHANCE = 0.5  # of that way: an interval that ends below it and holds chance is evidence for chance
FEWEST_GROUPS = 10  # that a model is at chance on
CERTAIN = 0.995  # posterior probability at which the forest counts as better
LIKELY = 0.9  # on the same series, where the forest's out-of-fold figures give the certainty
BETTER = 0.05  # least difference of balanced accuracies on the same series
FEW_STEPS = 200
LOW_LOSS = 0.3  # of the first loss: few steps have been enough
STILL_FALLING = 0.05  # of the first loss, over the last quarter of the epochs
HARDLY_CHANGED = 0.05  # of the first loss, in all
LONG_WINDOW = 2000  # samples


@dataclass(frozen=True)
class Diagnosis:
    """Likely cause of a failure to learn, and the message of the warning: finding, need, cause, remedy."""

    cause: Cause
    message: str


def diagnose(report: LearningReport) -> Diagnosis | None:
    """The likely cause where a model has not learned, else None.

    The model has not learned where

    - training: its balanced accuracy on its training series is below chance + (1 - chance) / 4, and it is not
      clearly above chance on others;
    - forest: the balanced accuracy of the forest is larger by more than .05 with a probability of .995, on the same
      series, or by the forest's out-of-fold figures if it is also better on the same series;
    - chance: on ten groups or more that it was not trained on, the interval of its balanced accuracy holds chance
      and ends below half of the way from chance to 1.

    Examples
    --------
    >>> from raxss.uncertainty.learning import TrainingSummary
    >>> training = TrainingSummary(window_length=64, median_length=500, n_windows=14, share_padded=0.0, n_steps=5)
    >>> report = LearningReport(n_train=40, chance=0.5, training_accuracy=0.55, forest_training_accuracy=1.0,
    ...                         forest_out_of_fold=None, evaluation=None, is_out_of_fold=False, training=training)
    >>> diagnose(report).cause
    'too few steps'
    """
    finding = _finding(report)
    if finding is None:
        return None
    cause = _cause(report)
    return Diagnosis(cause, f"{finding} {_advice(cause, report)}")


def warn_if_not_learned(report: LearningReport, *, stacklevel: int = 3) -> None:
    """Give a `NotLearnedWarning` where `diagnose` finds a cause; by default at the line that calls the caller."""
    found = diagnose(report)
    if found is not None:
        warnings.warn(found.message, NotLearnedWarning, stacklevel=stacklevel)


def _needed(report: LearningReport) -> float:
    return report.chance + LEARNED * (1 - report.chance)


def _not_fitted(report: LearningReport) -> bool:
    """Training series are not fitted, and the model is not above chance on others, as in a hard task."""
    if report.training_accuracy >= _needed(report):
        return False
    found = report.evaluation
    excused = found is not None and found.chance < 1 and found.model.low > found.chance
    return not (excused and not _too_few_steps(report))


def _forest_wins(found: Comparison | None) -> bool:
    if found is None or found.chance == 1 or -found.difference < BETTER:
        return False
    elsewhere = found.forest_better_unpaired >= CERTAIN and found.forest_better >= LIKELY
    return found.forest_better >= CERTAIN or elsewhere


def _at_chance(figures: Figures | None, chance: float) -> bool:
    if figures is None:
        return False
    return figures.low <= chance and figures.high <= chance + AT_CHANCE * (1 - chance)


def _no_better_than_chance(found: Comparison | None) -> bool:
    """The model is at chance on series that it was not trained on, and they are enough to say so."""
    if found is None or found.n_groups < FEWEST_GROUPS or found.chance == 1:
        return False
    return _at_chance(found.model, found.chance)


def _too_few_steps(report: LearningReport) -> bool:
    training = report.training
    if training.n_steps is None:
        return False
    first, last = training.first_loss, training.last_loss
    low_loss = first is not None and last is not None and last < LOW_LOSS * first
    few = training.n_steps < FEW_STEPS and not low_loss
    return few or (training.falling or 0.0) > STILL_FALLING


def _finding(report: LearningReport) -> str | None:
    """What is wrong, with the figures."""
    found = report.evaluation
    if _not_fitted(report):
        return (
            f"the model does not fit the {report.n_train} series that it was trained on: its balanced accuracy on "
            f"them is {report.training_accuracy:.2f} (chance is {report.chance:.2f}, at least "
            f"{_needed(report):.2f} is needed), so its scores are not reliable."
        )
    if found is None:
        return None
    where = (
        f"{found.n_series} {'training series out of fold' if report.is_out_of_fold else 'validation series'}"
    )
    if _forest_wins(found):
        return (
            f"the model is less accurate than a small forest on statistics of whole series: on {where} its "
            f"balanced accuracy is {found.model.balanced_accuracy:.2f}, that of the forest "
            f"{found.forest.balanced_accuracy:.2f} (95 % interval of the difference {found.low:+.2f} to "
            f"{found.high:+.2f}). It should not be clearly less."
        )
    if _no_better_than_chance(found):
        return (
            f"the model does not tell the classes apart: on {where} its balanced accuracy is "
            f"{found.model.balanced_accuracy:.2f} [{found.model.low:.2f}, {found.model.high:.2f}], that of a small "
            f"forest on statistics of whole series {found.forest.balanced_accuracy:.2f}; above chance, "
            f"{found.chance:.2f}, is needed."
        )
    return None


def _cause(report: LearningReport) -> Cause:
    """The likely cause of what `_finding` has found."""
    training, fits = report.training, not _not_fitted(report)
    forest_wins = _forest_wins(report.evaluation)
    if fits and not forest_wins:  # at chance on other series
        found = report.evaluation
        known = found is not None and found.forest.low > found.chance and found.forest_better >= LIKELY
        return "forest better" if known else "classes that cannot be told"
    if report.forest_training_accuracy < _needed(report):
        return "classes that cannot be told"  # not even trees can separate them
    if training.share_padded > 0.5:
        return "windows too long"
    if _too_few_steps(report) and (not fits or (training.n_steps or 0) < FEW_STEPS):
        return "too few steps"
    if training.n_windows == 1 and training.window_length >= LONG_WINDOW:
        return "windows too long"
    if not fits and _at_chance(report.forest_out_of_fold, report.chance):
        return "classes that cannot be told"
    first, last = training.first_loss, training.last_loss
    if not fits and first is not None and last is not None and last > (1 - HARDLY_CHANGED) * first:
        return "too few steps"
    return "forest better" if forest_wins else "training series not fitted"


def _advice(cause: Cause, report: LearningReport) -> str:
    training = report.training
    if cause == "too few steps":
        n_steps, first, last = training.n_steps, training.first_loss, training.last_loss
        loss = (
            ""
            if first is None or last == first
            else f"; the training loss went from {first:.3g} to {last:.3g}"
        )
        return (
            f"Likely cause: too few steps, or too small ones (it took {n_steps} step{'' if n_steps == 1 else 's'}"
            f"{loss}). Leave batch_size, max_epochs and lr at their defaults, or raise max_epochs."
        )
    if cause == "windows too long":
        padded = f"{100 * training.share_padded:.0f} of 100 training series fill less than half of one"
        which = padded if training.share_padded > 0.5 else "most training series are one window"
        return (
            f"Likely cause: windows too long ({training.window_length} samples; the median series has "
            f"{training.median_length}, and {which}). Set window_length to a part of most series, in which the "
            "difference between the classes can be seen."
        )
    if cause == "classes that cannot be told":
        return (
            "Likely cause: classes that cannot be told apart by these series. Check that labels belong to their "
            "series and signals are not flat; give more series, or more groups, if the difference is small."
        )
    if cause == "forest better":
        longer = "" if training.window_length >= training.median_length else ", or a larger window_length"
        return (
            "Likely cause: the classes differ in something that windows do not show after scaling, such as level, "
            f"amplitude or trend over the series (windows have {training.window_length} samples, the median series "
            f"{training.median_length}). Set scaling='train' if it is not{longer}, or try another backbone."
        )
    return (
        f"Likely cause: windows of {training.window_length} samples do not show the difference between the "
        "classes, or the model is too simple for it. Change window_length, or try another backbone."
    )
