"""Out-of-fold tuning of the decision threshold: on validation series, or by refits in a grouped cross-validation.

    class indices, groups, series not trained on -> folds: none where these are enough
    model, folds -> out-of-fold probabilities (n_series, C) -> DecisionThreshold

A threshold that was tuned on training series would be that of probabilities which the network has learned by heart.
classifier.py plans the folds before training, so that data that do not allow it are refused early, and tunes after.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import StratifiedGroupKFold

from raxss.data.series import Series
from raxss.errors import DataError
from raxss.estimator.at_once import AnyPredictor, FoldPredictor
from raxss.estimator.fit import quiet
from raxss.uncertainty.decision import ARGMAX, DecisionThreshold

if TYPE_CHECKING:
    from raxss.estimator.classifier import RAxSSClassifier

N_FOLDS = 3
ENOUGH = 10  # validation series of each class, on which a threshold is tuned without refits

#: Series, labels, groups and validation series as `fit` was given them; None: it sets a part aside itself.
Given = tuple[list[Series], NDArray[Any], NDArray[Any] | None, list[Series] | None]
Fold = tuple[NDArray[np.int64], NDArray[np.int64]]
logger = logging.getLogger("raxss")


def plan_folds(
    targets: NDArray[np.int64],
    groups: NDArray[Any] | None,
    validation_targets: NDArray[np.int64],
    *,
    n_classes: int,
    seed: int,
) -> list[Fold]:
    """Pairs of training and test indices for refits; empty where there are 10 validation series of each class.

    Validation series are those of the validation set, or the training series that are scored out of fold.
    Up to three folds, stratified by class, whole groups at a time.

    Examples
    --------
    >>> targets = np.array([0, 0, 0, 0, 1, 1])
    >>> [test.tolist() for _, test in plan_folds(targets, None, targets[:0], n_classes=2, seed=0)]
    [[0, 1, 5], [2, 3, 4]]
    """
    if np.bincount(validation_targets, minlength=n_classes).min() >= ENOUGH:
        return []
    keys = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1]
    fewest = min(len(np.unique(keys[targets == class_])) for class_ in range(n_classes))
    n_folds = min(N_FOLDS, fewest)
    folds: list[Fold] = []
    if n_folds >= 2:
        splitter = StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed % 2**32)
        folds = list(splitter.split(targets, targets, keys))
    if not folds or any(len(np.unique(targets[train])) < n_classes for train, _ in folds):
        raise DataError(
            f"decision_threshold = 'tuned' needs series that were not trained on, but a class has {fewest} groups "
            "(series, where no groups are given); needed are two groups of each class, for a cross-validation, or "
            f"{ENOUGH} validation series of each. Give more series, or set decision_threshold = 'argmax'."
        )
    return folds


@dataclass(frozen=True, eq=False)
class ThresholdTuning:
    """What a threshold will be tuned on: validation series, or with ``folds`` the series given to `fit`."""

    given: Given
    targets: NDArray[np.int64]  # (n_given,)
    validation: tuple[list[Series], NDArray[np.int64]]  # the validation set, or series scored out of fold
    folds: list[Fold]

    def run(
        self,
        model: RAxSSClassifier,
        predictor: AnyPredictor,
        *,
        settings: str,
        parameters: Mapping[str, Any],
    ) -> DecisionThreshold:
        """The threshold with the largest balanced accuracy out of fold.

        Parameters
        ----------
        predictor
            That of the fitted model, or of the model without each fold.
        settings
            Hash of the settings that the scores depend on.
        parameters
            What `fit` chose from the data (`raxss.estimator.fit.chosen_settings`), for refits.
        """
        targets, found = self.targets, None
        if not self.folds:
            series, targets = self.validation
            found = np.stack([item.probability for item in predictor.predictions(series, with_lists=False)])
        elif not model.interrupted_:
            found = self.refitted_probabilities(model, parameters)
        if found is None:
            return DecisionThreshold.of_interrupted(len(model.classes_))
        tuned = DecisionThreshold.tuned(
            targets,
            found,
            source=self._source(predictor),
            n_folds=len(self.folds),
            settings=settings,
        )
        logger.info(
            "decision threshold tuned on %s: balanced accuracy %.3f, by argmax %.3f",
            tuned.origin,
            tuned.figures["tuned"]["balanced_accuracy"],
            tuned.figures["argmax"]["balanced_accuracy"],
        )
        return tuned

    def _source(self, predictor: AnyPredictor) -> str:
        """One of `raxss.uncertainty.decision.SOURCES`."""
        if self.folds:
            return "cross-validation"
        return "out-of-fold" if isinstance(predictor, FoldPredictor) else "validation"

    def refitted_probabilities(
        self, model: RAxSSClassifier, parameters: Mapping[str, Any]
    ) -> NDArray[np.float64] | None:
        """Probabilities ``(n_given, C)``, each from a refit without the series and its group; None if interrupted.

        A refit has the settings of the model, its seed and, where one was given to `fit`, its validation set.
        Members of a mixture, windows and augmentation are those of the model (``parameters``), not chosen anew for
        two thirds of the series.
        """
        series, labels, groups, validation = self.given
        found = np.full((len(series), len(model.classes_)), np.nan)
        for place, (train, test) in enumerate(self.folds):
            logger.info("refit %d of %d, to tune the decision threshold", place + 1, len(self.folds))
            refit = clone(model).set_params(
                **parameters,
                decision_threshold=ARGMAX,
                random_state=model.seed_,
                callbacks=None,
                conformal_alpha=0.0,
            )
            with quiet():
                refit.fit(
                    [series[index] for index in train],
                    labels[train],
                    groups=None if groups is None else groups[train],
                    validation=validation,
                )
                if refit.interrupted_:
                    return None
                found[test] = refit.predict_proba([series[index] for index in test])
        return found


def plan_tuning(
    decision: str,
    given: Given,
    validation: tuple[list[Series], NDArray[np.int64]],
    classes: NDArray[Any],
    *,
    seed: int,
) -> ThresholdTuning | None:
    """What ``decision_threshold="tuned"`` will be tuned on, or a DataError; None for ``"argmax"``."""
    if decision == ARGMAX:
        return None
    targets = np.searchsorted(classes, given[1])
    folds = plan_folds(targets, given[2], validation[1], n_classes=len(classes), seed=seed)
    return ThresholdTuning(given, targets, validation, folds)
