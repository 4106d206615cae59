"""Perturbation of signals: stretches replaced by a baseline, a phase-randomised surrogate or the mean.

No model has seen zeros or missing samples. A surrogate has the spectrum of the series but none of its shapes; the
mean is silence. Both are used, because neither is neutral: a model that reads spectra does not notice the first,
and the second is itself an event.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from raxss.data.series import Series

Floats = NDArray[np.float64]
FADE = 8  # a baseline is faded in and out over this part of a stretch: a step would be an event of its own


def surrogate(samples: NDArray[np.floating], seed: int) -> Floats:
    """The same spectrum with random phases; all variates get the same, which keeps how they go together.

    Samples that are not finite count as the mean, and are finite here.
    """
    whole = np.asarray(samples, dtype=np.float64)
    whole = np.where(np.isfinite(whole), whole, mean_of(whole))
    n = whole.shape[1]
    turn = np.exp(2j * np.pi * np.random.default_rng(seed).uniform(size=n // 2 + 1))
    turn[0] = 1.0  # the mean stays
    if n % 2 == 0:
        turn[-1] = 1.0  # this one has no phase to turn: it would lose power
    return np.asarray(np.fft.irfft(np.fft.rfft(whole, axis=1) * turn, n=n, axis=1))


def mean_of(samples: NDArray[np.floating], seed: int = 0) -> Floats:
    """The mean of each variate at every place; nothing is drawn."""
    whole = np.asarray(samples, dtype=np.float64)
    finite = np.isfinite(whole)
    total = np.where(finite, whole, 0.0).sum(axis=1, keepdims=True)
    return np.broadcast_to(total / np.maximum(finite.sum(axis=1, keepdims=True), 1), whole.shape)


#: What can replace a stretch.
BASELINES: dict[str, Callable[[NDArray[np.floating], int], Floats]] = {
    "surrogate": surrogate,
    "mean": mean_of,
}


def replaced(
    series: Series,
    baseline: Floats,  # (n_variates, n_samples)
    taken: NDArray[np.bool_],  # (n_samples,)
    *,
    fade: int = 0,  # samples, at both ends of what is replaced, over which one turns into the other
) -> Series:
    """Replace samples of a series by a baseline; samples that are not finite stay so.

    Examples
    --------
    >>> series = Series(np.ones(8), name="toy")
    >>> taken = np.array([0, 0, 1, 1, 1, 1, 1, 0], dtype=bool)
    >>> replaced(series, np.zeros((1, 8)), taken).samples[0]
    array([1., 1., 0., 0., 0., 0., 0., 1.], dtype=float32)
    >>> replaced(series, np.zeros((1, 8)), taken, fade=1).samples[0]
    array([1. , 1. , 0.5, 0. , 0. , 0. , 0.5, 1. ], dtype=float32)
    """
    part = taken.astype(np.float64)
    if fade > 0 and not taken.all() and taken.any():
        part = np.minimum(distance_transform_edt(taken) / (fade + 1), 1.0)
    samples = np.asarray(series.samples, dtype=np.float64)
    mixed = np.where(np.isfinite(samples), (1 - part) * samples + part * baseline, samples)
    return series.with_samples(mixed.astype(np.float32))


def taken_stretches(chosen: NDArray[np.bool_], edges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """``(n_stretches,)`` -> the samples of those that are chosen ``(n_samples,)``."""
    return np.repeat(chosen, np.diff(edges))
