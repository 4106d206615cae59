"""MiniROCKET, and MultiROCKET with Hydra, on whole series padded with zeros: aeon's, with their ridge regression.

    series of any length -> (n_series, n_variates, L), L the longest of training -> features of random kernels
        -> ridge regression, its penalty by leave-one-out errors -> a score for each class (n_series, C)

What is usually meant by these names. A ridge regression has no probabilities: what is returned is the softmax of
its scores, whose order is theirs. AUC, accuracy and F1 are those of the scores; Brier score and calibration error
mean nothing. rocket.py has MiniROCKET with probabilities, on the first samples of a chosen number.
Next: neighbour.py.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.linear_model import RidgeClassifierCV
from sklearn.preprocessing import StandardScaler

from raxss.benchmark.baselines.common import Baseline, Given, first_samples, longest_of, needs_aeon
from raxss.benchmark.baselines.rocket import LARGEST_SEED, SHORTEST, left_no_trace
from raxss.data.series import Series
from raxss.errors import one_of

TRANSFORMS = ("minirocket", "multirocket-hydra")
SAMPLES_AT_ONCE = 2**17  # of a variate
PENALTIES = tuple(np.logspace(-3, 3, 10).tolist())  # aeon's


@dataclass(eq=False, repr=False)
class PaddedClassifier(Baseline):
    """Random convolution kernels over whole series, and ridge regression. Needs aeon.

    Parameters
    ----------
    transform
        ``"minirocket"`` or ``"multirocket-hydra"``, with aeon's numbers of kernels.
    device
        As of the other estimators; all is done on the CPU.
    random_state
        Draws the kernels.

    Attributes
    ----------
    classes_, transforms_, ridge_, window_length_
    """

    transform: Literal["minirocket", "multirocket-hydra"] = "minirocket"
    _: KW_ONLY

    def _check_parameters(self) -> None:
        one_of("transform", self.transform, TRANSFORMS)

    def _learn(self, given: Given) -> None:
        self.window_length_ = max(longest_of(given.series), SHORTEST)
        self.transforms_ = aeon_transforms(self.transform, seed=self.seed_)
        padded = first_samples(given.series, self.window_length_)
        parts = []
        with left_no_trace(), torch.random.fork_rng(devices=[]):  # Hydra seeds torch
            for transform, scaler in self.transforms_:
                transform.fit(padded)
                parts.append(np.asarray(scaler.fit_transform(_transformed(transform, padded))))
        self.ridge_ = RidgeClassifierCV(alphas=PENALTIES).fit(np.concatenate(parts, axis=1), given.targets)

    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        padded = first_samples(series, self.window_length_)
        with left_no_trace():
            parts = [
                np.asarray(scaler.transform(_transformed(transform, padded)))
                for transform, scaler in self.transforms_
            ]
        return scores_as_probabilities(self.ridge_.decision_function(np.concatenate(parts, axis=1)))


def _transformed(transform: Any, padded: NDArray[np.float32]) -> Any:
    """Features of a fitted transform, a few series at a time: Hydra has 512 outputs a sample in memory."""
    at_once = max(SAMPLES_AT_ONCE // padded.shape[2], 1)
    parts = [transform.transform(padded[first : first + at_once]) for first in range(0, len(padded), at_once)]
    return torch.cat(parts) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts)


def aeon_transforms(name: str, *, seed: int) -> list[tuple[Any, Any]]:
    """The transforms of aeon's classifier of this name, each with its scaler, unfitted."""
    common = {"random_state": seed % LARGEST_SEED, "n_jobs": numba.get_num_threads()}
    with needs_aeon(name), left_no_trace():
        from aeon.classification.convolution_based._hydra import _SparseScaler
        from aeon.transformations.collection.convolution_based import (
            HydraTransformer,
            MiniRocket,
            MultiRocket,
        )

        if name == "minirocket":
            return [(MiniRocket(**common), StandardScaler(with_mean=False))]
        return [(HydraTransformer(**common), _SparseScaler()), (MultiRocket(**common), StandardScaler())]


def scores_as_probabilities(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Softmax of ridge scores ``(n, C)``; those of two classes are ``(n,)``, positive for the second.

    >>> scores_as_probabilities(np.array([0.0, 1.0])).round(2)
    array([[0.5 , 0.5 ],
           [0.12, 0.88]])
    """
    both = np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores
    return np.asarray(softmax(both.astype(np.float64), axis=1))
