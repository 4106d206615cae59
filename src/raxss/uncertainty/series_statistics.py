"""Statistics of a whole series: level, spread, quantiles, differences, crossings, band powers, quarters.

    samples (n_variates, n_samples) -> statistics (d,), whatever the length

What can be said of a series without windows and without training. Of a long series, stretches of equal length that
are spread evenly are read. Its length is not among the statistics, since a window does not show it either.
Next: reference_forest.py grows a forest on them.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_VARIATES = 16  # of many variates so many, spread evenly, have statistics
MOST_PAIRS = 45  # of variates whose correlation is a statistic
MOST_STRETCHES = 16  # of a long series
SHORTEST_STRETCH = 64  # samples, where a series is not read completely
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
N_QUARTERS = 4
BAND_EDGES = np.geomspace(2**-9, 1.0, 10)  # shares of the highest frequency; the first band begins at 0
POINTS = (6, 14)  # of a Fourier transform, as powers of 2
LARGEST = 1e30  # statistics are clipped to it: float32 has room for it
TINY = 1e-12
FLAT = 1e-9  # of the largest value: a deviation up to this is rounding
PER_VARIATE = 4 + len(QUANTILES) + 5 + len(BAND_EDGES) + 2 + 2 * N_QUARTERS + 3


def n_series_statistics(n_variates: int) -> int:
    """Number of statistics of a series.

    >>> n_series_statistics(1), n_series_statistics(3)
    (39, 120)
    """
    n_chosen = len(_spread(n_variates, MOST_VARIATES))
    return n_chosen * PER_VARIATE + len(_pairs(n_chosen))


def series_statistics(samples: NDArray[np.generic], *, most_samples: int) -> NDArray[np.float32]:
    """Statistics ``(d,)`` of samples ``(n_variates, n_samples)``, of which at most ``most_samples`` are read.

    Of each variate: mean, logarithm of the deviation, skewness, kurtosis; quantiles; mean absolute difference,
    Hjorth's mobility and complexity, crossings of the mean, turns; share of the power in ten bands, its centre and
    entropy; mean and deviation of each quarter; correlation with time, places of the largest and smallest value.
    Then correlations of pairs of variates. Missing samples count as the mean. All are finite.

    Examples
    --------
    >>> wave = 3.0 + np.sin(0.1 * np.arange(2000))[None]
    >>> series_statistics(wave, most_samples=4096)[:2].round(2)  # mean, and logarithm of the deviation
    array([ 3.  , -0.35], dtype=float32)
    """
    chosen = _spread(len(samples), MOST_VARIATES)
    x = _stretches(samples, chosen, most_samples)  # (n_variates, n_stretches, length)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        flat, (mean, deviation, standard) = x.reshape(len(x), -1), _standardised(x)
        columns = [mean, np.log(deviation + TINY), *_moments(standard)]
        columns += [*np.quantile(flat, QUANTILES, axis=1)]
        columns += [*_differences(x, standard, deviation), *_spectral(standard), *_over_time(flat, standard)]
        found = np.concatenate([np.stack(columns, axis=1).ravel(), _correlations(standard)])
    found = np.nan_to_num(found, nan=0.0, posinf=LARGEST, neginf=-LARGEST).clip(-LARGEST, LARGEST)
    return found.astype(np.float32)


def _stretches(samples: NDArray[np.generic], chosen: NDArray[np.int64], most: int) -> Floats:
    """The samples that are read, ``(n_variates, n_stretches, length)``; gaps are filled with the mean."""
    n = samples.shape[1]
    if n <= most:
        cut = samples[chosen][:, None]
    else:
        n_stretches = int(np.clip(most // SHORTEST_STRETCH, 1, MOST_STRETCHES))
        length = max(most // n_stretches, 1)
        first = (n - length) / 2 if n_stretches == 1 else 0  # a single one is in the middle
        starts = np.linspace(first, n - length, n_stretches).astype(np.int64)
        cut = np.stack([samples[:, start : start + length][chosen] for start in starts], axis=1)
    x = cut.astype(np.float64).clip(-LARGEST, LARGEST)  # NaN stays
    finite = np.isfinite(x)
    if not finite.all():
        n_finite = np.maximum(finite.sum(axis=(1, 2), keepdims=True), 1)
        x = np.where(finite, x, np.where(finite, x, 0.0).sum(axis=(1, 2), keepdims=True) / n_finite)
    return x


def _standardised(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean and deviation ``(n_variates,)``, and the samples as multiples of it; zeros where a variate is flat."""
    mean = x.mean(axis=(1, 2))
    centred = x - mean[:, None, None]
    deviation = np.sqrt(np.square(centred).mean(axis=(1, 2)))
    deviation = np.where(deviation <= FLAT * np.abs(x).max(axis=(1, 2)), 0.0, deviation)
    standard = np.where(
        deviation[:, None, None] > 0, centred / np.maximum(deviation, TINY)[:, None, None], 0.0
    )
    return mean, deviation, standard


def _moments(standard: Floats) -> list[Floats]:
    """Skewness and kurtosis."""
    squares = np.square(standard)
    return [(squares * standard).mean(axis=(1, 2)), np.square(squares).mean(axis=(1, 2))]


def _differences(x: Floats, standard: Floats, deviation: Floats) -> list[Floats]:
    """Mean absolute difference, mobility, complexity, share of crossings and of turns, within the stretches."""
    none = np.zeros(len(x))
    if x.shape[2] < 3:
        return [none] * 5
    first = np.diff(standard, axis=2)
    second = np.diff(first, axis=2)
    mobility = np.sqrt(np.square(first).mean(axis=(1, 2)))
    return [
        np.abs(first).mean(axis=(1, 2)) * deviation,
        mobility,
        np.sqrt(np.square(second).mean(axis=(1, 2))) / (mobility + TINY),
        np.diff(standard > 0, axis=2).mean(axis=(1, 2)),
        np.diff(first > 0, axis=2).mean(axis=(1, 2)),
    ]


def _spectral(standard: Floats) -> list[Floats]:
    """Logarithm of the share of power in each band; centre and entropy of the power. Stretches are averaged."""
    length = standard.shape[2]
    n_points = 2 ** int(np.clip(np.ceil(np.log2(length)), *POINTS))
    if length > n_points:  # averaged over pieces
        standard = standard[:, :, : length // n_points * n_points]
        standard = standard.reshape(len(standard), -1, n_points)
    taper = np.hanning(standard.shape[2] + 2)[1:-1]
    power = np.square(np.abs(np.fft.rfft(standard * taper, n=n_points, axis=2))).mean(axis=1)[:, 1:]
    share = power / (power.sum(axis=1, keepdims=True) + TINY)
    frequency = np.arange(1, share.shape[1] + 1) / share.shape[1]
    ends = np.searchsorted(frequency, BAND_EDGES, side="right")
    below = np.concatenate([np.zeros((len(share), 1)), np.cumsum(share, axis=1)], axis=1)[:, ends]
    bands = np.diff(below, axis=1, prepend=0.0)
    entropy = -(share * np.log(share + TINY)).sum(axis=1) / np.log(share.shape[1])
    return [*np.log(bands.clip(min=0) + 1e-6).T, share @ frequency, entropy]


def _over_time(flat: Floats, standard: Floats) -> list[Floats]:
    """Mean and logarithm of the deviation of each quarter, correlation with time, places of the extremes."""
    n = flat.shape[1]
    edges = np.arange(N_QUARTERS + 1) * n // N_QUARTERS
    pairs = [(min(begin, n - 1), max(end, min(begin, n - 1) + 1)) for begin, end in itertools.pairwise(edges)]
    quarters = [flat[:, begin:end] for begin, end in pairs]
    time = np.linspace(-np.sqrt(3), np.sqrt(3), n) if n > 1 else np.zeros(1)  # deviation 1
    return [
        *(quarter.mean(axis=1) for quarter in quarters),
        *(np.log(quarter.std(axis=1) + TINY) for quarter in quarters),
        standard.reshape(len(flat), -1) @ time / n,
        flat.argmax(axis=1) / n,
        flat.argmin(axis=1) / n,
    ]


def _correlations(standard: Floats) -> Floats:
    """Correlation of each pair of variates, ``(n_pairs,)``."""
    pairs = _pairs(len(standard))
    rows = standard.reshape(len(standard), -1)
    products = rows @ rows.T / rows.shape[1]
    return np.array([products[pair] for pair in pairs], dtype=np.float64)


def _spread(n: int, most: int) -> NDArray[np.int64]:
    """Up to ``most`` of the places 0 to n - 1, spread evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))


def _pairs(n_variates: int) -> list[tuple[int, int]]:
    every = list(itertools.combinations(range(n_variates), 2))
    return [every[place] for place in _spread(len(every), MOST_PAIRS)] if every else []
