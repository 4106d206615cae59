"""Out-of-distribution detection: warnings about recordings unlike the training data.

    training series, their mean supports -> OODDetector: range of lengths, distributions of spectra and supports
    a series, its mean support           -> notes: which of these is unusual, and how

Spectra and supports are compared by a robust Mahalanobis distance; its limit is cross-validated on the training
series. Summaries are kept, no samples. A note does not mean that a score is wrong, and a recording without any
may be unusual in ways that are not looked at. summary.py puts the notes into the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.signal import detrend
from scipy.signal.windows import hann

from raxss.data.series import Series

Floats = NDArray[np.float64]

SEGMENT = 1024  # samples of which a spectrum is taken
MOST_SEGMENTS = 64  # of a series, spread evenly: a day has no more of them than an hour
N_BANDS = 16
EDGES = np.array([0.0, *np.geomspace(2 / SEGMENT, 0.5, N_BANDS + 1)[1:]])  # in cycles a sample
FLOOR = 1e-6  # smaller shares count as equal: rounding, quantisation
FLAT = 1e-9  # of the largest sample: the rounding error of a straight line
FEWEST_SERIES = 20  # to estimate a distribution from
N_FOLDS = 5
FARTHEST = {"spectrum": 0.975, "support": 0.99}  # share of training series within the limit
MOST_OFF = 3.0  # deviations are clipped here before correlations are estimated
SHRUNK = 0.1  # of correlations, towards none
TIMES = 2.0  # shorter than the shortest, longer than the longest


def spectrum_shares(series: Series) -> Floats:
    """Share of the power of a series in each of 16 bands, ``(16,)``, relative to its rate.

    The bands are of equal width on a logarithmic scale, up to half the rate. Several variates are averaged, each
    with a sum of 1. Scale and offset change nothing. Gaps count as the mean; of a long series 64 segments are used.
    """
    length = min(SEGMENT, series.n_samples)
    n_segments = int(np.clip(2 * series.n_samples // SEGMENT - 1, 1, MOST_SEGMENTS))
    starts = np.linspace(0, series.n_samples - length, n_segments).astype(np.int64)
    cut = np.stack([series.samples[:, start : start + length] for start in starts], axis=1).astype(np.float64)
    finite = np.isfinite(cut)
    n_finite = np.maximum(finite.sum(axis=-1, keepdims=True), 1)
    cut = np.where(finite, cut, np.where(finite, cut, 0.0).sum(axis=-1, keepdims=True) / n_finite)
    straight = detrend(cut, axis=-1) if length > 2 else cut - cut.mean(axis=-1, keepdims=True)
    straight[np.abs(straight).max(axis=-1) <= FLAT * np.abs(cut).max(axis=-1)] = 0.0
    power = np.square(np.abs(np.fft.rfft(straight * hann(length, sym=False), n=SEGMENT))).mean(axis=1)
    band = np.searchsorted(EDGES, np.fft.rfftfreq(SEGMENT), side="left") - 1  # a band takes its upper edge
    sums = np.stack([power[:, band == index].sum(axis=1) for index in range(N_BANDS)], axis=1)
    total = sums.sum(axis=1, keepdims=True)
    shares: Floats = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0).mean(axis=0)
    return shares


@dataclass(frozen=True, eq=False)
class RobustDistribution:
    """Robust location, scale and correlations of values ``(n, d)``, with a limit of the Mahalanobis distance."""

    middle: Floats  # (d,) medians
    spread: Floats  # (d,) median absolute deviations, scaled to standard deviations of a normal variable
    inverse: Floats  # (d, d) inverse of the correlations
    limit: float  # the largest distance that is still usual
    low: Floats  # (d,) 5th percentile of the training series
    high: Floats  # (d,) 95th percentile

    @classmethod
    def of(cls, values: Floats, *, farthest: float) -> Self | None:
        """From one row a training series; None for fewer than 20.

        The limit is the distance that a share ``farthest`` of the rows is within, by five-fold cross-validation.
        """
        if len(values) < FEWEST_SERIES:
            return None
        fold = np.arange(len(values)) % N_FOLDS
        distances = np.empty(len(values))
        for index in range(N_FOLDS):
            distances[fold == index] = _distance(values[fold == index], *_fitted(values[fold != index]))
        limit = float(np.quantile(distances, farthest, method="higher"))
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        return cls(*_fitted(values), limit, low, high)

    def distance(self, value: Floats) -> float:
        """Mahalanobis distance from the middle, divided by the root of d."""
        return float(_distance(value[None], self.middle, self.spread, self.inverse)[0])

    def arrays(self) -> dict[str, Floats]:
        """As a model folder keeps it."""
        return vars(self) | {"limit": np.array([self.limit])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats], d: int) -> Self:
        """Read back `arrays` of d dimensions; anything else is refused with a ValueError."""
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("middle", "spread", "low", "high"), (d,))
        shapes |= {"inverse": (d, d), "limit": (1,)}
        found = {name: array.shape for name, array in arrays.items()}
        sound = all(array.dtype == np.float64 and np.isfinite(array).all() for array in arrays.values())
        if found != shapes or not sound or (arrays["spread"] <= 0).any() or arrays["limit"][0] < 0:
            raise ValueError(f"its summary of the training data has arrays {found}, needed are {shapes}")
        parts = {name: array for name, array in arrays.items() if name != "limit"}
        return cls(**parts, limit=float(arrays["limit"][0]))


@dataclass(frozen=True, eq=False)
class OODDetector:
    """Summaries of the training data that new series are compared with."""

    shortest: int  # samples of the training series
    longest: int
    spectrum: RobustDistribution | None  # None for fewer than 20 series
    support: RobustDistribution | None  # None for fewer than 20 series, or without support

    @classmethod
    def of(cls, series: Sequence[Series], supports: Sequence[float] = ()) -> Self:
        """From the training series and their mean supports."""
        lengths = [item.n_samples for item in series]
        finite = np.array([value for value in supports if np.isfinite(value)], dtype=np.float64)
        spectrum = None
        if len(series) >= FEWEST_SERIES:
            logs = np.stack([_log_shares(item) for item in series])
            spectrum = RobustDistribution.of(logs, farthest=FARTHEST["spectrum"])
        support = RobustDistribution.of(finite[:, None], farthest=FARTHEST["support"])
        return cls(min(lengths), max(lengths), spectrum, support)

    def notes(self, series: Series, support: float | None = None) -> list[str]:
        """How a series differs from the training data; ``support`` is its mean, where known."""
        notes = []
        for beyond, how, usual in (
            (series.n_samples < self.shortest / TIMES, "shorter", f"at least {self.shortest:,}"),
            (series.n_samples > self.longest * TIMES, "longer", f"at most {self.longest:,}"),
        ):
            if beyond:
                notes.append(
                    f"the recording is {how} than any that the model has learned from: {series.n_samples:,} "
                    f"samples, {usual} in training."
                )
        if self.spectrum is not None:
            notes += _about_spectrum(self.spectrum, series)
        if self.support is not None and support is not None and np.isfinite(support):
            notes += _about_support(self.support, support)
        return notes

    def arrays(self) -> dict[str, Floats]:
        """As a model folder keeps it."""
        arrays = {"n_samples": np.array([self.shortest, self.longest], dtype=np.float64)}
        for name, usual in (("spectrum", self.spectrum), ("support", self.support)):
            if usual is not None:
                arrays |= {f"{name}/{part}": array for part, array in usual.arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats]) -> Self:
        """Read back `arrays`; anything else is refused with a ValueError."""
        parts: dict[str, dict[str, Floats]] = {"n_samples": {}, "spectrum": {}, "support": {}}
        for name, array in arrays.items():
            parts.setdefault(name.partition("/")[0], {})[name.partition("/")[2]] = array
        lengths = arrays.get("n_samples", np.zeros(0))
        whole = lengths.shape == (2,) and lengths.dtype == np.float64 and (lengths == np.trunc(lengths)).all()
        known = len(parts) == 3 and len(parts["n_samples"]) == 1
        if not known or not whole or not 1 <= lengths[0] <= lengths[1] < np.inf:
            raise ValueError(f"its summary of the training data is incomplete: {sorted(arrays)}")
        spectrum, support = (
            RobustDistribution.from_arrays(parts[name], d) if parts[name] else None
            for name, d in (("spectrum", N_BANDS), ("support", 1))
        )
        return cls(int(lengths[0]), int(lengths[1]), spectrum, support)


def _log_shares(series: Series) -> Floats:
    return np.log(spectrum_shares(series) + FLOOR)


def _fitted(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Middle, spread, and inverse of the correlations, robust against a few outliers."""
    middle = np.median(values, axis=0)
    spread = 1.4826 * np.median(np.abs(values - middle), axis=0) + 1e-3
    off = np.clip((values - middle) / spread, -MOST_OFF, MOST_OFF)
    correlations = (1 - SHRUNK) * np.atleast_2d(np.cov(off.T)) + SHRUNK * np.eye(values.shape[1])
    inverse: Floats = np.linalg.inv(correlations).astype(np.float64)
    return middle, spread, inverse


def _distance(values: Floats, middle: Floats, spread: Floats, inverse: Floats) -> Floats:
    off = (values - middle) / spread
    return np.sqrt(np.maximum(np.einsum("ni,ij,nj->n", off, inverse, off), 0.0) / values.shape[1])


def _about_spectrum(usual: RobustDistribution, series: Series) -> list[str]:
    logs = _log_shares(series)
    distance = usual.distance(logs)
    if distance <= usual.limit:
        return []
    off = logs - usual.middle
    # Shares sum to 1: one band that is too strong makes all others too weak, and is the one to name.
    most = int(np.argmax(np.abs(off - np.median(off)) / usual.spread))
    low, high = EDGES[most] * series.rate, EDGES[most + 1] * series.rate
    share, usual_low, usual_high = (_percent(np.exp(item[most])) for item in (logs, usual.low, usual.high))
    unit = "Hz" if series.rate != 1.0 else "cycles a sample"
    return [
        f"its spectrum differs from those of the training series, most strongly in one band: {share} of its power "
        f"lies between {low:.3g} and {high:.3g} {unit}, usually {usual_low} to {usual_high} "
        f"({distance / usual.limit:.2g} times as far from the middle as is usual)."
    ]


def _about_support(usual: RobustDistribution, support: float) -> list[str]:
    if usual.distance(np.array([support])) <= usual.limit:
        return []
    how = "less" if support < usual.middle[0] else "more"
    return [
        f"its windows are {how} similar to each other than in the training series: a mean support of "
        f"{support:.3f}, usually {usual.low[0]:.3f} to {usual.high[0]:.3f}."
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share > 10 * FLOOR else "next to nothing"
