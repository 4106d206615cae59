"""Ridge classifier on features of windows: least squares on class indicators, with a softmax.

    standardised features X (n, d), class indicators Y (n, C), class weights w (n,)
        -> B, b: min sum of w_i |y_i - b - x_i B|² + alpha |B|²
        -> softmax(s (X B + b)): posteriors (n, C)

alpha and the scale s are chosen by the likelihood of whole series, each scored by the exact solution without it:
for ridge regression that solution follows from one decomposition. PPV features with this classifier are
MiniROCKET (Dempster, Schmidt and Webb, KDD 2021), here for windows and with posteriors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import softmax
from torch import Tensor

from raxss.method.backbones.protocol import register_classifier
from raxss.method.backbones.window_classifiers import (
    Floats,
    TrainingWindows,
    WindowClassifier,
    series_log_loss,
)

PENALTIES = tuple(10.0 ** (k / 2) for k in range(-6, 7))  # alpha, in units of the mean eigenvalue
SCALES = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0)  # s
LEAST_WEIGHT = 1e-9  # of a window, so that its residual can be divided by the root of it
JITTER = 1e-9  # for a series that alone decides the solution


@register_classifier("ridge")
class Ridge(WindowClassifier):
    """Ridge regression on class indicators; by default of PPV features, which is MiniROCKET with posteriors.

    Fitted at once: 0 parameters that are trained.

    Parameters
    ----------
    view, normalise, share_missing, context, rate
        See `WindowClassifier`.

    Examples
    --------
    >>> ridge = Ridge(n_variates=1, window_length=64, n_outputs=3)
    >>> ridge(torch.zeros(2, 1, 64)).softmax(dim=1)  # not fitted yet
    tensor([[0.3333, 0.3333, 0.3333],
            [0.3333, 0.3333, 0.3333]], dtype=torch.float64)
    """

    coefficients: Tensor
    intercept: Tensor
    scale: Tensor

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        view: str = "ppv",
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
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self._without: list[tuple[Tensor, Tensor]] = []  # coefficients and intercept without each fold

    def _fit(self, standard: Tensor, training: TrainingWindows) -> None:
        x = standard.double().cpu().numpy()
        y = np.eye(training.n_classes)[training.targets]
        weights = np.maximum(training.weights, LEAST_WEIGHT)
        products = x @ x.T  # windows are fewer than features as a rule
        penalty, scale = chosen_penalty(products, y, weights, training)

        def solution(used: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
            some = products[np.ix_(used, used)]
            return ridge_solution(x[used], y[used], weights[used], some, penalty)

        coefficients, intercept = solution(np.ones(len(x), dtype=bool))
        self.coefficients.copy_(coefficients)
        self.intercept.copy_(intercept)
        self.scale.fill_(scale)
        self._without = [solution(training.folds != fold) for fold in range(training.n_folds)]

    def _posteriors(self, standard: Tensor) -> Tensor:
        return self._softmax(standard, self.coefficients, self.intercept)

    def _held_out_posteriors(self, standard: Tensor, fold: int) -> Tensor:
        return self._softmax(standard, *(item.to(standard.device) for item in self._without[fold]))

    def _softmax(self, standard: Tensor, coefficients: Tensor, intercept: Tensor) -> Tensor:
        return torch.softmax(self.scale * (standard.double() @ coefficients + intercept), dim=1)


def chosen_penalty(
    products: Floats, y: Floats, weights: Floats, training: TrainingWindows
) -> tuple[float, float]:
    """Penalty alpha and scale s with the largest likelihood of series, each scored without its group."""
    centred = weighted_products(products, weights)
    unit = max(np.trace(centred) / len(centred), 1e-12)
    penalties = [unit * factor for factor in PENALTIES]
    best = (np.inf, unit, 1.0)
    groups = training.series if training.groups is None else training.groups
    for penalty, outputs in left_out_outputs(centred, y, weights, groups, penalties):
        for scale in SCALES:
            posteriors = softmax(scale * outputs, axis=1)
            loss = series_log_loss(posteriors, training.targets, training.series, weights)
            best = min(best, (loss, penalty, scale))
    return best[1], best[2]


def left_out_outputs(
    centred: Floats,  # (n, n) `weighted_products`
    y: Floats,  # (n, C)
    weights: Floats,  # (n,)
    groups: NDArray[np.int64],  # (n,)
    penalties: Sequence[float],
) -> Iterator[tuple[float, Floats]]:
    """For each penalty, the outputs ``(n, C)`` of windows by the solution without their group.

    With the eigenvalues e and eigenvectors Q of the products, the weighted outputs are H Y with
    H = Q diag(e / (e + alpha)) Q' + u u', where u is along the roots of the weights (the intercept). The weighted
    residuals of a group B that is left out are (I - H_BB)^-1 (Y - H Y)_B.
    """
    root = np.sqrt(weights)[:, None]
    unit = root / np.linalg.norm(root)
    target = root * (y - np.average(y, axis=0, weights=weights))
    values, vectors = np.linalg.eigh(centred)
    values = np.clip(values, 0.0, None)
    spectral = vectors.T @ target
    order = np.argsort(groups, kind="stable")
    blocks = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    for penalty in penalties:
        shrinkage = values / (values + penalty)
        residuals = target - vectors @ (shrinkage[:, None] * spectral)
        for block in blocks:
            hat = (vectors[block] * shrinkage) @ vectors[block].T + unit[block] @ unit[block].T
            residuals[block] = np.linalg.solve((1 + JITTER) * np.eye(len(block)) - hat, residuals[block])
        yield penalty, y - residuals / root


def weighted_products(products: Floats, weights: Floats) -> Floats:
    """Products of rows sqrt(w) (x - weighted mean of x), from those of x: ``(n, n)`` -> ``(n, n)``."""
    root = np.sqrt(weights)
    mean = weights / weights.sum()
    to_mean = products @ mean
    centred = products - to_mean - to_mean[:, None] + mean @ to_mean
    return root * centred * root[:, None]


def ridge_solution(
    x: Floats, y: Floats, weights: Floats, products: Floats, penalty: float
) -> tuple[Tensor, Tensor]:
    """Coefficients B ``(d, C)`` and intercept b ``(C,)``: min sum of w_i |y_i - b - x_i B|² + alpha |B|².

    >>> x, y = np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [3.0], [5.0]])
    >>> ridge_solution(x, y, np.ones(3), x @ x.T, penalty=1e-9)
    (tensor([[2.0000]], dtype=torch.float64), tensor([1.0000], dtype=torch.float64))
    """
    root = np.sqrt(weights)[:, None]
    x_mean, y_mean = (np.average(item, axis=0, weights=weights) for item in (x, y))
    regular = weighted_products(products, weights) + penalty * np.eye(len(x))
    dual = cho_solve(cho_factor(regular), root * (y - y_mean))
    coefficients = (root * (x - x_mean)).T @ dual
    return torch.from_numpy(coefficients), torch.from_numpy(y_mean - x_mean @ coefficients)
