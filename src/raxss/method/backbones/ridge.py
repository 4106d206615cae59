"""Ridge classifier on features of windows: least squares on class indicators, with a softmax.

    standardised features (n, d) -> B: min |Y - X B|² + alpha |B|² -> softmax(s (X B + mean Y)) -> posteriors (n, C)

alpha and the scale s are chosen by the likelihood of whole series, each scored by the exact solution without it:
for ridge regression that solution follows from one decomposition. PPV features with this classifier are
MiniROCKET (Dempster, Schmidt and Webb, KDD 2021), here for windows and with posteriors.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor

from raxss.method.backbones.protocol import register_classifier
from raxss.method.backbones.window_classifiers import Floats, TrainingWindows, WindowClassifier

PENALTIES = tuple(10.0 ** (k / 2) for k in range(-6, 7))  # alpha, in units of the mean eigenvalue
SCALES = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0)  # s


@register_classifier("ridge")
class Ridge(WindowClassifier):
    """Ridge regression on class indicators; by default of PPV features, which is MiniROCKET with posteriors.

    Fitted at once: 0 parameters that are trained.

    Parameters
    ----------
    view, normalise
        See `WindowClassifier`.
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
    ) -> None:
        super().__init__(n_variates, window_length, n_outputs, view=view, normalise=normalise)
        self.register_buffer("coefficients", torch.zeros(self.view.d, self.n_classes, dtype=torch.float64))
        self.register_buffer(
            "intercept", torch.full((self.n_classes,), 1 / self.n_classes, dtype=torch.float64)
        )
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self._without: list[tuple[Tensor, Tensor]] = []  # coefficients and intercept without each fold

    def _fit(self, standard: Tensor, training: TrainingWindows) -> None:
        x = standard.double().cpu().numpy()
        y = np.eye(training.n_classes)[training.targets]
        root = np.sqrt(training.weights)[:, None]
        penalty, scale = chosen_penalty(x, y, training)
        self.scale.fill_(scale)
        gram = (root * x) @ (root * x).T  # windows are fewer than features as a rule; at most some thousand
        everything = np.ones(len(x), dtype=bool)
        self._without = [
            _solution(x, y, root, gram, training.folds != fold, penalty) for fold in range(training.n_folds)
        ]
        coefficients, intercept = _solution(x, y, root, gram, everything, penalty)
        self.coefficients.copy_(coefficients)
        self.intercept.copy_(intercept)

    def _posteriors(self, standard: Tensor) -> Tensor:
        return self._softmax(standard, self.coefficients, self.intercept)

    def _held_out_posteriors(self, standard: Tensor, fold: int) -> Tensor:
        return self._softmax(standard, *(item.to(standard.device) for item in self._without[fold]))

    def _softmax(self, standard: Tensor, coefficients: Tensor, intercept: Tensor) -> Tensor:
        return torch.softmax(self.scale * (standard.double() @ coefficients + intercept), dim=1)


def chosen_penalty(x: Floats, y: Floats, training: TrainingWindows) -> tuple[float, float]:
    """Penalty and scale with the largest likelihood of series, each scored without its own windows.

    With the eigenvalues e and eigenvectors Q of X X', the fit is H Y with H = Q diag(e / (e + alpha)) Q', and the
    residuals of a series B that is left out are (I - H_BB)^-1 (Y - H Y)_B.
    """
    root = np.sqrt(training.weights)[:, None]
    centred = root * (y - y.mean(axis=0))
    values, vectors = np.linalg.eigh((root * x) @ (root * x).T)
    values = np.clip(values, 0.0, None)
    spectral = vectors.T @ centred
    order = np.argsort(training.series, kind="stable")
    blocks = np.split(order, np.flatnonzero(np.diff(training.series[order])) + 1)
    targets = training.targets[[block[0] for block in blocks]]
    unit = max(values.mean(), 1e-12)
    best = (np.inf, unit, 1.0)
    for penalty in (unit * factor for factor in PENALTIES):
        shrinkage = values / (values + penalty)
        residuals = centred - vectors @ (shrinkage[:, None] * spectral)
        left_out = np.empty_like(residuals)
        for block in blocks:
            some = vectors[block]
            hat = (some * shrinkage) @ some.T + 1 / len(x)  # with the mean
            left_out[block] = np.linalg.solve((1 + 1e-6) * np.eye(len(block)) - hat, residuals[block])
        outputs = y - left_out / root
        for scale in SCALES:
            exponent = scale * outputs
            exponent -= exponent.max(axis=1, keepdims=True)
            posteriors = np.exp(exponent)
            posteriors /= posteriors.sum(axis=1, keepdims=True)
            means = np.stack([posteriors[block].mean(axis=0) for block in blocks])
            loss = -np.log(np.clip(means[np.arange(len(means)), targets], 1e-9, None)).mean()
            if loss < best[0]:
                best = (float(loss), penalty, scale)
    return best[1], best[2]


def _solution(
    x: Floats, y: Floats, root: Floats, gram: Floats, used: np.ndarray, penalty: float
) -> tuple[Tensor, Tensor]:
    """Coefficients ``(d, C)`` and intercept ``(C,)`` from some of the windows."""
    if not used.any():
        return torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64), torch.full(
            (y.shape[1],), 1 / y.shape[1]
        ).double()
    mean = y[used].mean(axis=0)
    factor = cho_factor(gram[np.ix_(used, used)] + penalty * np.eye(int(used.sum())))
    dual = cho_solve(factor, (root * (y - mean))[used])
    return torch.from_numpy((root * x)[used].T @ dual), torch.from_numpy(mean)
