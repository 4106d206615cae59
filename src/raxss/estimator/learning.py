"""Learning report of a fit: posteriors of training and validation series, compared with a reference forest.

    trained network, WindowPool, validation predictions -> LearningReport, ReferenceForest

classifier.py calls this at the end of `fit`; uncertainty/learning.py computes the figures, and
uncertainty/not_learned.py warns where a model has not learned.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from raxss.data.series import Series
from raxss.estimator.at_once import spread_windows
from raxss.method.backbones.window_classifiers import is_fitted_at_once
from raxss.method.inference import Prediction
from raxss.method.training.loop import pool_posteriors
from raxss.method.training.settings import TrainingPlan
from raxss.method.training.step import steps_an_epoch
from raxss.method.training.window_pool import WindowPool
from raxss.uncertainty.learning import LearningReport, Posteriors, learning_report
from raxss.uncertainty.reference_forest import ReferenceForest

logger = logging.getLogger("raxss")

MOST_WINDOWS = 65_536  # training windows that the posteriors of training series are computed from
MOST_WINDOWS_AT_ONCE = 1024  # of a model that is fitted at once, whose prediction takes as long as its fit


def training_posteriors(
    backbone: nn.Module, pool: WindowPool, places: NDArray[np.int64], *, seed: int
) -> Posteriors:
    """Posterior of each training series: the mean over its windows, of many windows over some (`spread_windows`).

    Series of which no window is used are left out: all lie in gaps, or there are many series, of which some are
    drawn by class.

    Parameters
    ----------
    places
        Of the series of the pool, among all series ``(n_series,)``.
    """
    most = MOST_WINDOWS_AT_ONCE if is_fitted_at_once(backbone) else MOST_WINDOWS
    windows = spread_windows(pool, most, seed=seed)
    posteriors = pool_posteriors(backbone, pool, places=windows).cpu().double().numpy()
    series = pool.series.cpu().numpy()[windows]
    sums = np.zeros((pool.n_series, posteriors.shape[1]))
    np.add.at(sums, series, posteriors)
    scored, counts = np.unique(series, return_counts=True)
    return Posteriors(places[scored], sums[scored] / counts[:, None])


def validation_posteriors(predictions: Sequence[Prediction], places: NDArray[np.int64]) -> Posteriors | None:
    """Uncalibrated scores of the validation series at ``places``; None where there are none."""
    if len(predictions) == 0:
        return None
    return Posteriors(places, np.stack([item.aggregation.series_probability for item in predictions]))


def groups_of_all(
    groups: NDArray[Any] | None, validation_groups: NDArray[Any] | None, n_series: int
) -> NDArray[np.int64] | None:
    """Group of each series ``(n_series,)`` as a number; None where there are no groups.

    Validation series are among those that ``groups`` is about, or follow them. Series without a group are groups of
    their own.

    >>> groups_of_all(np.array(["ann", "ann", "bob"]), np.array([7, 7]), 5)
    array([0, 0, 1, 2, 2])
    >>> groups_of_all(None, np.array([7, 7]), 4)
    array([0, 1, 2, 2])
    """
    before = None if groups is None else np.unique(groups, return_inverse=True)[1]
    if validation_groups is None or (before is not None and len(before) == n_series):
        return before
    after = np.unique(validation_groups, return_inverse=True)[1]
    before = np.arange(n_series - len(after)) if before is None else before
    return np.concatenate([before, after + before.max() + 1])


def logged_report(
    model: Any,
    series: Sequence[Series],
    targets: NDArray[np.int64],
    *,
    train: NDArray[np.int64],
    pool: WindowPool,
    evaluation: Posteriors | None,
    groups: NDArray[np.int64] | None,
    weights: NDArray[np.float64] | None,
    plan: TrainingPlan | None,
) -> tuple[LearningReport, ReferenceForest]:
    """`learning_report` of a model at the end of its fit, with its lines in the log.

    ``model`` is the `RAxSSClassifier`, ``plan`` that of its network, None for window classifiers.
    """
    report, forest = learning_report(
        series,
        targets,
        n_classes=len(model.classes_),
        train=train,
        training=training_posteriors(model.backbone_, pool, train, seed=model.seed_),
        evaluation=evaluation,
        groups=groups,
        weights=weights,
        window_length=model.window_length_,
        stride=model.stride_,
        losses=model.history_["train_loss"].to_list(),
        n_steps=None if plan is None else len(model.history_) * steps_an_epoch(plan, len(pool)),
        seed=model.seed_,
    )
    for line in report.describe():
        logger.info(line)
    return report, forest
