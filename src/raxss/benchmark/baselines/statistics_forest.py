"""Random forest on plain statistics and band powers of whole series, amplitude included.

    samples (n_variates, n_samples) -> 22 numbers a variate -> random forest -> series probabilities (n_series, C)

The least that a method must beat. forest.py has more features, none of which depends on the scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.benchmark.baselines.forest import ForestClassifier
from raxss.data.series import Series


@dataclass(eq=False, repr=False)
class StatisticsForestClassifier(ForestClassifier):
    """Statistics of whole series, and a random forest; parameters and attributes are those of its base class."""

    n_trees: int = 300

    def _table(self, series: Sequence[Series]) -> NDArray[np.float64]:
        return np.stack([whole_series_features(item.samples) for item in series])


def whole_series_features(samples: NDArray[Any]) -> NDArray[np.float64]:
    """Mean, deviation, extremes, quantiles, differences, crossings, moments, eight band powers; by variate.

    Samples that are not finite count as the mean of the others.

    >>> whole_series_features(np.array([[1.0, 3.0, 1.0, 3.0]])).shape
    (22,)
    """
    x = _without_gaps(samples.astype(np.float64))
    centred = x - x.mean(axis=1, keepdims=True)
    deviation = x.std(axis=1) + 1e-9
    steps = np.diff(x, axis=1) if x.shape[1] > 1 else np.zeros_like(x)
    signs = centred > 0
    crossings = (signs[:, 1:] != signs[:, :-1]).mean(axis=1) if x.shape[1] > 1 else 0 * deviation
    standard = centred / deviation[:, None]
    power = np.abs(np.fft.rfft(standard, n=max(x.shape[1], 32)))[:, 1:] ** 2
    edges = [0.0, *(2.0**-k for k in range(7, -1, -1))]
    n, bands = power.shape[1], []
    for low, high in itertools.pairwise(edges):
        begin = int(n * low)
        bands.append(power[:, begin : max(int(n * high), begin + 1)].sum(axis=1) / (power.sum(axis=1) + 1e-9))
    plain = [x.mean(axis=1), x.std(axis=1), x.min(axis=1), x.max(axis=1)]
    plain += list(np.quantile(x, (0.05, 0.25, 0.5, 0.75, 0.95), axis=1))
    plain += [np.abs(steps).mean(axis=1), steps.std(axis=1), crossings]
    plain += [(standard**3).mean(axis=1), (standard**4).mean(axis=1)]
    return np.concatenate([*plain, *bands])


def _without_gaps(x: NDArray[np.float64]) -> NDArray[np.float64]:
    real = np.isfinite(x)
    if real.all():
        return x
    count = np.maximum(real.sum(axis=1, keepdims=True), 1)
    mean = np.where(real, x, 0.0).sum(axis=1, keepdims=True) / count
    return np.where(real, x, mean)
