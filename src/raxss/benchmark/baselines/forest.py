"""Random forest on hand-made features that do not depend on amplitude.

    samples (n_variates, n_samples) -> features (n_features,), whatever the scale and offset of the samples
        -> random forest -> series probabilities (n_series, C)

What a signal analyst would write down first: where the power lies, how rough the signal is, how its values are
distributed, how it repeats, how steady it is, how its variates go together. Amplitude is left out on purpose: it
may separate centres and amplifiers instead of classes. Next: trivial.py, which ignores the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from raxss.benchmark.baselines.common import Baseline, Given
from raxss.data.series import Series

Features = dict[str, NDArray[np.float64]]  # name -> (n_variates,)

SHORTEST = 32  # samples; a shorter series is padded with zeros, its mean
FLAT_SHARE = 1e-12  # of the largest value: a deviation up to this is rounding
BAND_EDGES = tuple(2.0**-power for power in range(9, -1, -1))  # of the highest frequency: 1/512, 1/256, ... 1
EDGES = (0.25, 0.5, 0.75, 0.9, 0.95)  # shares of the power below an edge frequency
LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
QUANTILES = (0.01, 0.05, 0.25, 0.75, 0.95, 0.99)
SEGMENTS = (8, 32, 128)  # a series is cut into so many, to see how steady it is
N_SMOOTHED = 512  # frequencies at which the spectrum is averaged before its shape is described


@dataclass(eq=False, repr=False)
class ForestClassifier(Baseline):
    """Features without scale, and a random forest.

    Parameters
    ----------
    n_trees
        In the forest.
    device
        As of the other estimators; all is done on the CPU.
    random_state
        Draws the trees.

    Attributes
    ----------
    classes_, forest_
    """

    n_trees: int = 500

    def _learn(self, given: Given) -> None:
        forest = RandomForestClassifier(self.n_trees, random_state=self.seed_ % 2**32)
        self.forest_ = forest.fit(self._table(given.series), given.targets)

    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        return np.asarray(self.forest_.predict_proba(self._table(series)))

    def _table(self, series: Sequence[Series]) -> NDArray[np.float64]:
        return feature_table(series)


def feature_table(series: Sequence[Series]) -> NDArray[np.float64]:
    """The `scale_free_features` of each series, side by side: ``(n_series, n_features)``.

    >>> feature_table([Series(np.sin(np.arange(99.0))), Series(np.cos(np.arange(50.0)))]).shape
    (2, 93)
    """
    return np.stack([np.concatenate(list(scale_free_features(item.samples).values())) for item in series])


def scale_free_features(samples: NDArray[Any]) -> Features:
    """Ninety numbers a variate that stay the same when the samples are shifted, or multiplied by more than 0.

    Samples are ``(n_variates, n_samples)``; those that are not finite count as the mean of the others. Returns
    name -> ``(n_variates,)``; the last entry, ``correlations``, has one value a pair of variates. All are finite.

    >>> wave = np.sin(np.arange(2000) * 0.1)[None]
    >>> features = scale_free_features(wave)
    >>> features["zero crossings"].round(3), features["edge 0.5"].round(3)  # 0.1 / pi of the highest frequency
    (array([0.032]), array([0.032]))
    """
    signal = _standardised(np.asarray(samples, dtype=np.float64))
    return {
        **_spectral(signal),
        **_roughness(signal),
        **_distribution(signal),
        **_repetition(signal),
        **_steadiness(signal),
        "correlations": _correlations(signal),
    }


def _standardised(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean 0 and deviation 1 in each variate; zeros where it is flat, in gaps, and as padding."""
    real = np.isfinite(samples)
    count = np.maximum(real.sum(axis=1, keepdims=True), 1)
    filled = np.where(real, samples, 0.0)
    mean = filled.sum(axis=1, keepdims=True) / count
    centred = np.where(real, samples - mean, 0.0)
    deviation = np.sqrt(np.square(centred).sum(axis=1, keepdims=True) / count)
    flat = deviation <= FLAT_SHARE * np.abs(filled).max(axis=1, keepdims=True)
    standard = np.where(flat, 0.0, centred / np.where(flat, 1.0, deviation))
    n_missing = max(SHORTEST - samples.shape[1], 0)
    return np.pad(standard, ((0, 0), (0, n_missing)))


def _spectral(signal: NDArray[np.float64]) -> Features:
    """Where the power lies, in shares of the highest frequency."""
    n_samples = signal.shape[1]
    power = np.square(np.abs(np.fft.rfft(signal * np.hanning(n_samples))))[:, 1:]
    frequency = np.arange(1, power.shape[1] + 1) / power.shape[1]
    total = power.sum(axis=1)
    cumulated = np.cumsum(power, axis=1)
    features: Features = {}
    below = 0
    for edge in BAND_EDGES:
        upto = int(np.searchsorted(frequency, edge, side="right"))
        features[f"power to {edge:g}"] = _ratio(power[:, below:upto].sum(axis=1), total)
        below = upto
    for share in EDGES:
        # A little less than the share: where it is met exactly, rounding must not decide.
        reached = (cumulated < share * (1 - 1e-9) * total[:, None]).sum(axis=1).clip(max=len(frequency) - 1)
        features[f"edge {share:g}"] = frequency[reached]
    # A raw periodogram is ragged: its shape is described after averaging over neighbours.
    n_bins = min(N_SMOOTHED, power.shape[1])
    bins = np.arange(power.shape[1]) * n_bins // power.shape[1]
    first = np.searchsorted(bins, np.arange(n_bins))
    smooth = np.add.reduceat(power, first, axis=1) / np.diff([*first, power.shape[1]])
    shares = _ratio(smooth, smooth.sum(axis=1, keepdims=True))
    centres = (np.arange(n_bins) + 0.5) / n_bins
    centroid = shares @ centres
    features["spectral entropy"] = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1) / np.log(n_bins)
    features["spectral centroid"] = centroid
    features["spectral spread"] = np.sqrt((shares * np.square(centres - centroid[:, None])).sum(axis=1))
    features["spectral peak"] = centres[shares.argmax(axis=1)]
    features["spectral peak share"] = shares.max(axis=1)
    features["spectral slope"] = _slope(np.log(centres), np.log(np.maximum(shares, 1e-12)))
    return features


def _roughness(signal: NDArray[np.float64]) -> Features:
    """Hjorth's mobility and complexity, line length, crossings and turns."""
    first, second, third = (np.diff(signal, n=order, axis=1) for order in (1, 2, 3))
    deviations = [item.std(axis=1) for item in (signal, first, second, third)]
    mobilities = [_ratio(after, before) for before, after in pairwise(deviations)]
    crossings = (signal[:, 1:] > 0) != (signal[:, :-1] > 0)
    turns = (first[:, 1:] > 0) != (first[:, :-1] > 0)
    inflections = (second[:, 1:] > 0) != (second[:, :-1] > 0)
    return {
        "mobility": mobilities[0],
        "complexity": _ratio(mobilities[1], mobilities[0]),
        "complexity of the slope": _ratio(mobilities[2], mobilities[1]),
        "line length": np.abs(first).mean(axis=1),
        "line length of the slope": _ratio(np.abs(second).mean(axis=1), np.abs(first).mean(axis=1)),
        "zero crossings": crossings.mean(axis=1),
        "turns": turns.mean(axis=1),
        "inflections": inflections.mean(axis=1),
        "standstill": (first == 0).mean(axis=1),
        **{f"slope {name}": value for name, value in _moments(first).items()},
    }


def _distribution(signal: NDArray[np.float64]) -> Features:
    """How the values lie around their mean."""
    low1, low5, low25, high75, high95, high99 = np.quantile(signal, QUANTILES, axis=1)
    middle = np.median(signal, axis=1)
    typical = 1.4826 * np.median(np.abs(signal - middle[:, None]), axis=1)  # deviation, were it normal
    outlying = np.abs(signal - middle[:, None])
    return {
        **_moments(signal),
        "median": middle,
        "typical deviation": typical,
        "quartiles": high75 - low25,
        "wide range": high95 - low5,
        "tails": _ratio(high99 - low1, high75 - low25),
        "asymmetry": _ratio(high95 + low5 - 2 * middle, high95 - low5),
        "asymmetry of tails": _ratio(high99 + low1 - 2 * middle, high99 - low1),
        "largest": np.abs(signal).max(axis=1),
        "outliers": (outlying > 3 * typical[:, None]).mean(axis=1),
        "far outliers": (outlying > 6 * typical[:, None]).mean(axis=1),
    }


def _repetition(signal: NDArray[np.float64]) -> Features:
    """Autocorrelation, at fixed lags and where it comes back."""
    n_samples = signal.shape[1]
    power = np.square(np.abs(np.fft.rfft(signal, n=2 * n_samples)))
    correlation = np.fft.irfft(power)[:, :n_samples]
    correlation = _ratio(correlation, correlation[:, :1])
    features = {
        f"autocorrelation {lag}": correlation[:, lag] if lag < n_samples else np.zeros(len(signal))
        for lag in LAGS
    }
    # After the first fall below 0 the highest return is at a period, and as high as it is regular.
    fallen = np.cumsum(correlation < 0, axis=1) > 0
    returns = np.where(fallen[:, : n_samples // 2], correlation[:, : n_samples // 2], -1.0)
    features["first fall"] = (~fallen).sum(axis=1) / n_samples
    features["return"] = returns.max(axis=1)
    features["return lag"] = returns.argmax(axis=1) / n_samples
    return features


def _steadiness(signal: NDArray[np.float64]) -> Features:
    """How much deviation, roughness and level change from segment to segment."""
    features: Features = {}
    for n_segments in SEGMENTS:
        length = max(signal.shape[1] // n_segments, 4)
        n_whole = signal.shape[1] // length
        parts = signal[:, : n_whole * length].reshape(len(signal), n_whole, length)
        deviations = parts.std(axis=2)
        lines = np.abs(np.diff(parts, axis=2)).mean(axis=2)
        shapes = _ratio(lines, deviations)
        for name, values in {"deviation": deviations, "line": lines, "shape": shapes}.items():
            mean, middle = values.mean(axis=1), np.median(values, axis=1)
            features[f"{name} varies ({n_segments})"] = _ratio(values.std(axis=1), mean)
            features[f"{name} peaks ({n_segments})"] = _ratio(values.max(axis=1), middle)
            features[f"{name} dips ({n_segments})"] = _ratio(values.min(axis=1), middle)
        features[f"level varies ({n_segments})"] = parts.mean(axis=2).std(axis=1)
    return features


def _correlations(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """``(n_pairs,)`` between the variates."""
    products = signal @ signal.T / signal.shape[1]
    return np.asarray(products[np.triu_indices(len(signal), k=1)])


def _moments(values: NDArray[np.float64]) -> Features:
    """Skewness and kurtosis, 0 and 0 of what is flat."""
    centred = values - values.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1)
    skewness = _ratio((centred**3).mean(axis=1), variance**1.5)
    kurtosis = _ratio((centred**4).mean(axis=1), variance**2)
    return {"skewness": skewness, "kurtosis": kurtosis}


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the straight line through ``(x, y)``, for each row of y."""
    centred = x - x.mean()
    return np.asarray(y @ centred / np.square(centred).sum())


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    """above / below, 0 where there is nothing below."""
    nothing = np.abs(below) <= 1e-20
    return np.where(nothing, 0.0, above / np.where(nothing, 1.0, below))
