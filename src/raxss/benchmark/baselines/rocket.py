"""ROCKET and MiniROCKET: random convolution kernels and logistic regression.

    first L samples (n_series, n_variates, L) -> ROCKET, or aeon's MiniROCKET -> features (n_series, p)
        -> standardised -> logistic regression -> series probabilities (n_series, C)

There are many more features than series, so the classifier works on the span of the training series: a rotation,
under which a ridge penalty and so the fit stay exactly as they are, at a hundredth of the width.
rocket_features.py draws ROCKET's kernels and applies them. Next: forest.py, whose features are made by hand.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from raxss.benchmark.baselines.common import Baseline, Given, first_samples, needs_aeon
from raxss.benchmark.baselines.rocket_features import draw_kernels, kernel_features, normalised
from raxss.data.prepare.preprocessing import Scaling
from raxss.data.series import Series
from raxss.errors import one_of
from raxss.method.window_scorer import pick_device
from raxss.method.windows import WindowConfig

TRANSFORMS = ("rocket", "minirocket")
SHORTEST = 16  # samples; kernels of 11 samples must fit
STRENGTHS = (0.1, 1.0, 1e1, 1e2, 1e3, 1e4, 1e5)  # C, for features divided by the root of their number
LARGEST_SEED = 2**31 - 1  # of aeon


@dataclass(eq=False, repr=False)
class RocketClassifier(Baseline):
    """Random convolution kernels and a linear classifier with probabilities. MiniROCKET needs aeon.

    Parameters
    ----------
    transform
        ``"rocket"`` or ``"minirocket"``.
    n_kernels
        ROCKET makes two features of each, MiniROCKET one.
    window_length
        L: the first so many samples of each series count, shorter ones are padded with zeros; no more than the
        longest training series has.
    scaling
        As of `RAxSSClassifier`, before; ROCKET then normalises what it is given once more.
    strengths
        Inverse penalties C, of which the one with the least log loss on validation is taken; the middle one
        where there is no validation set.
    validation_fraction
        Share of the series that C is chosen on, where `fit` is given no validation set.
    device
        Where ROCKET's kernels run; features differ between devices by rounding. MiniROCKET's run on the CPU.
    random_state
        Draws the kernels.

    Attributes
    ----------
    classes_, classifier_, strength_, window_length_; kernels_ of ROCKET, transform_ of MiniROCKET
    """

    transform: Literal["rocket", "minirocket"] = "rocket"
    _: KW_ONLY
    n_kernels: int = 10_000
    window_length: int = 10_000
    scaling: Literal["train", "series", "none"] = "series"
    strengths: Sequence[float] = STRENGTHS
    validation_fraction: float = 0.125

    def _check_parameters(self) -> None:
        one_of("transform", self.transform, TRANSFORMS)
        WindowConfig(window_length=self.window_length)

    def _learn(self, given: Given) -> None:
        longest = max(item.n_samples for item in given.series)
        self.window_length_ = max(min(self.window_length, longest), SHORTEST)
        self.scaling_ = Scaling.fit(given.series, self.scaling)
        if self.transform == "rocket":
            self.kernels_ = draw_kernels(
                self.window_length_, n_kernels=self.n_kernels, n_variates=self.n_variates_, seed=self.seed_
            )
        else:
            self.transform_ = aeon_minirocket(n_kernels=self.n_kernels, seed=self.seed_)
            with left_no_trace():
                self.transform_.fit(self._cut(given.series))
        self.classifier_ = SpanClassifier(self._features(given.series), given.targets)
        self.strength_ = self.strengths[len(self.strengths) // 2]
        if given.validation:
            features, classes = self._features(given.validation), np.arange(len(self.classes_))
            fitted = (self.classifier_.fit(strength).predict_proba(features) for strength in self.strengths)
            losses = [log_loss(given.validation_targets, found, labels=classes) for found in fitted]
            self.strength_ = self.strengths[int(np.argmin(losses))]
        self.classifier_.fit(self.strength_)

    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        return self.classifier_.predict_proba(self._features(series))

    def _cut(self, series: list[Series]) -> NDArray[np.float32]:
        return first_samples([self.scaling_.apply(item) for item in series], self.window_length_)

    def _features(self, series: list[Series]) -> NDArray[np.float64]:
        """``(n_series, p)``"""
        if self.transform == "rocket":
            device = pick_device(self.device)
            return kernel_features(normalised(self._cut(series)), self.kernels_, device=device).astype(float)
        with left_no_trace():
            self.transform_.n_jobs = self.transform_._n_jobs = numba.get_num_threads()
            return np.asarray(self.transform_.transform(self._cut(series)), dtype=np.float64)


def aeon_minirocket(*, n_kernels: int, seed: int) -> Any:
    """aeon's MiniROCKET, unfitted; an error with the install command where aeon is absent."""
    with needs_aeon("minirocket"), left_no_trace():
        from aeon.transformations.collection.convolution_based import MiniRocket

        return MiniRocket(
            n_kernels=n_kernels, random_state=seed % LARGEST_SEED, n_jobs=numba.get_num_threads()
        )


@contextmanager
def left_no_trace() -> Iterator[None]:
    """Let aeon work, and put back what it changes for the whole process.

    It seeds numpy's global generator; numba sets OpenMP's number of threads when first used, which is torch's as
    well, so that networks trained later would differ in their last bits; and its warnings are nothing that a user
    can act on.
    """
    n_threads = torch.get_num_threads()
    generator = np.random.get_state()  # noqa: NPY002 - the one that aeon seeds
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(generator)  # noqa: NPY002
        torch.set_num_threads(n_threads)


class SpanClassifier:
    """Logistic regression with a ridge penalty, for many more features than series.

    The solution lies in the span of the training series. With the standardised features X = U S V', rotated ones
    X V have as many columns as there are series, and the same penalty: the fit on them is the fit on X. Features
    are ``(n_series, p)``, targets class indices.
    """

    def __init__(self, features: NDArray[np.float64], targets: NDArray[np.int64]) -> None:
        self._mean, deviation = features.mean(axis=0), features.std(axis=0)
        # A feature that is the same for all training series is left out.
        varies = deviation > 1e-12 * np.abs(self._mean)
        self._scale = np.where(varies, 1 / np.where(varies, deviation, 1.0), 0.0)
        self._scale /= np.sqrt(
            max(int(varies.sum()), 1)
        )  # so that C does not depend on the number of kernels
        self._targets = targets
        standard = (features - self._mean) * self._scale
        _, _, self._span = np.linalg.svd(standard, full_matrices=False)
        self._rotated = standard @ self._span.T

    def fit(self, strength: float) -> Self:
        """With the inverse penalty C."""
        self._model = LogisticRegression(C=strength, max_iter=10_000).fit(self._rotated, self._targets)
        return self

    def predict_proba(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """``(n_series, C)``"""
        rotated = (features - self._mean) * self._scale @ self._span.T
        return np.asarray(self._model.predict_proba(rotated), dtype=np.float64)
