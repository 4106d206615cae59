"""Logistic regression on features of windows, with an L2 penalty.

    standardised features x (n, d), class indices y (n,), class weights w (n,)
        -> B, b: min C * sum of -w_i log softmax(x_i B + b)[y_i] + |B|² / 2
        -> softmax(X B + b): posteriors (n, C)

scikit-learn solves it; here the solution is two arrays, so that a model folder needs no pickle. C is chosen by the
likelihood of whole series that were held out: the folds of the training series, or three where none are given.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from raxss.method.backbones.protocol import register_classifier
from raxss.method.backbones.window_classifiers import (
    Floats,
    TrainingWindows,
    WindowClassifier,
    series_log_loss,
)

STRENGTHS = tuple(10.0**k for k in range(-4, 2))  # C
N_INNER_FOLDS = 3
MOST_ITERATIONS = 500
NEVER = -1e6  # logit of a class that is not in the training windows: its posterior is 0

Solution = tuple[Tensor, Tensor]  # coefficients (d, C) and intercept (C,)


@register_classifier("logistic")
class Logistic(WindowClassifier):
    """Multinomial logistic regression with an L2 penalty; by default on statistics of windows.

    Fitted at once: 0 parameters that are trained.

    Parameters
    ----------
    view, normalise, share_missing, context, rate
        See `WindowClassifier`.

    Examples
    --------
    >>> Logistic(n_variates=1, window_length=64, n_outputs=1)(torch.zeros(2, 1, 64)).sigmoid()  # not fitted yet
    tensor([[0.5000],
            [0.5000]], dtype=torch.float64)
    """

    coefficients: Tensor
    intercept: Tensor

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        view: str = "statistics",
        normalise: bool = False,
        share_missing: bool = False,
        context: bool = False,
        rate: float | None = None,
    ) -> None:
        options: dict[str, Any] = {"normalise": normalise, "share_missing": share_missing}
        options |= {"context": context, "rate": rate}
        super().__init__(n_variates, window_length, n_outputs, view=view, **options)
        self.register_buffer("coefficients", torch.zeros(self.d, self.n_classes, dtype=torch.float64))
        self.register_buffer("intercept", torch.zeros(self.n_classes, dtype=torch.float64))
        self._without: list[Solution] = []  # for each fold

    def _fit(self, standard: Tensor, training: TrainingWindows) -> None:
        x = standard.double().cpu().numpy()
        folds = training.folds if training.n_folds else inner_folds(training)
        strength, without = chosen_strength(x, folds, training)
        self._without = without if training.n_folds else []
        solution = logistic_path(x, training, np.ones(len(x), dtype=bool), [strength])[0]
        for kept, found in zip((self.coefficients, self.intercept), solution, strict=True):
            kept.copy_(found)

    def _posteriors(self, standard: Tensor) -> Tensor:
        return logistic_posteriors(standard, self.coefficients, self.intercept)

    def _held_out_posteriors(self, standard: Tensor, fold: int) -> Tensor:
        return logistic_posteriors(standard, *(item.to(standard.device) for item in self._without[fold]))


def logistic_posteriors(standard: Tensor, coefficients: Tensor, intercept: Tensor) -> Tensor:
    """Standardised features ``(n, d)`` -> ``softmax(X B + b)``, ``(n, C)`` in float64."""
    return torch.softmax(standard.double() @ coefficients + intercept, dim=1)


def inner_folds(training: TrainingWindows) -> NDArray[np.int64]:  # (n,)
    """Three folds of whole series, in which each class is spread evenly; -1 where there is one series only."""
    _, first, place = np.unique(training.series, return_index=True, return_inverse=True)
    if len(first) < 2:
        return np.full(len(place), -1)
    drawn = np.random.default_rng(training.seed).permutation(len(first))
    order = drawn[np.argsort(training.targets[first][drawn], kind="stable")]
    folds = np.empty(len(first), dtype=np.int64)
    folds[order] = np.arange(len(first)) % N_INNER_FOLDS
    return folds[place]


def chosen_strength(
    x: Floats,  # (n, d)
    folds: NDArray[np.int64],  # (n,)
    training: TrainingWindows,
) -> tuple[float, list[Solution]]:
    """C with the largest likelihood of held-out series, and the solutions without each fold; 0.01 without folds."""
    paths = [logistic_path(x, training, folds != fold, STRENGTHS) for fold in range(folds.max() + 1)]
    if not paths:
        return 0.01, []
    held_out, features = folds >= 0, torch.from_numpy(x)
    targets, series, weights = (
        training.targets[held_out],
        training.series[held_out],
        training.weights[held_out],
    )
    losses = []
    for k in range(len(STRENGTHS)):
        posteriors = np.empty((len(x), training.n_classes))
        for fold, path in enumerate(paths):
            rows = np.flatnonzero(folds == fold)
            posteriors[rows] = logistic_posteriors(features[torch.from_numpy(rows)], *path[k]).numpy()
        losses.append(series_log_loss(posteriors[held_out], targets, series, weights))
    best = int(np.argmin(losses))
    return STRENGTHS[best], [path[best] for path in paths]


def logistic_path(
    x: Floats,  # (n, d)
    training: TrainingWindows,
    used: NDArray[np.bool_],  # (n,)
    strengths: Sequence[float],
) -> list[Solution]:
    """Solutions from some of the windows for each C, of which each starts from the one before."""
    x, targets, weights = x[used], training.targets[used], training.weights[used]
    classes = np.unique(targets)
    model = LogisticRegression(max_iter=MOST_ITERATIONS, warm_start=True)
    path = []
    for strength in strengths:
        coefficients = np.zeros((x.shape[1], training.n_classes))
        intercept = np.full(training.n_classes, NEVER)
        intercept[classes] = 0.0
        if len(classes) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # what it has found by then will do
                model.set_params(C=strength).fit(x, targets, sample_weight=weights)
            present = classes[1:] if len(classes) == 2 else classes  # of two, scikit-learn gives the second
            coefficients[:, present], intercept[present] = model.coef_.T, model.intercept_
        path.append((torch.from_numpy(coefficients), torch.from_numpy(intercept)))
    return path
