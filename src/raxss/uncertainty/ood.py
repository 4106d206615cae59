"""Is this recording like those that a model has learned from?

    training series, their mean supports -> OODDetector: lengths, and what spectra and supports look like together
    a series, its mean support           -> notes: what is unlike, and how

Of the training data a summary is kept, no samples: the shortest and the longest, and of spectra and supports the
middle, the spread, how they go together, and how far from the middle training series are found themselves. A
model answers whatever it is given; these notes say when the question was another than the one it was made for.
They do not say that an answer is wrong, and a recording without any may be unfamiliar in ways that are not
looked at. Next: summary.py puts the notes into the evidence.
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
FLOOR = 1e-6  # shares below this are alike: rounding, quantisation
FLAT = 1e-9  # of the largest sample: what a straight line leaves by rounding
FEWEST_SERIES = 20  # fewer do not say what is usual
N_FOLDS = 5
FARTHEST = {"spectrum": 0.975, "support": 0.99}  # share of training series within the limit
MOST_OFF = 3.0  # spreads from the middle; what is farther does not widen how bands go together
SHRUNK = 0.1  # of correlations, towards none
TIMES = 2.0  # shorter than the shortest, longer than the longest


def spectrum_shares(series: Series) -> Floats:
    """How the power of a series is shared among 16 bands, ``(16,)``, relative to its rate.

    The bands are of equal width on a logarithmic scale, up to half the rate. Several variates are averaged, each
    with a sum of 1. Scale and offset change nothing. Gaps count as the mean; of a long series 64 stretches are
    taken.

    Examples
    --------
    >>> wave = np.sin(2 * np.pi * np.arange(4096) / 20)  # a twentieth of the rate
    >>> shares = spectrum_shares(Series(wave))
    >>> float(EDGES[shares.argmax()]) < 1 / 20 <= float(EDGES[shares.argmax() + 1]), float(shares.max()) > 0.9
    (True, True)
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
class Likeness:
    """What values of one kind are usual.

    Attributes
    ----------
    middle, spread
        ``(d,)`` medians, and median distances from them, scaled to be deviations of a normal variable.
    inverse
        ``(d, d)`` of the correlations.
    limit
        The distance that is still usual.
    low, high
        ``(d,)`` where nine tenths of the training series lie.
    """

    middle: Floats
    spread: Floats
    inverse: Floats
    limit: float
    low: Floats
    high: Floats

    @classmethod
    def of(cls, values: Floats, *, farthest: float) -> Self | None:
        """From one row a training series ``(n, d)``; None where these are fewer than 20.

        The limit is the distance that a share ``farthest`` of the rows has from the others: each fifth of them is
        measured by the other four.
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
        """From the middle, in spreads, as bands that go together count once."""
        return float(_distance(value[None], self.middle, self.spread, self.inverse)[0])

    def arrays(self) -> dict[str, Floats]:
        """What `from_arrays` makes the same from."""
        names = ("middle", "spread", "inverse", "low", "high")
        return {name: getattr(self, name) for name in names} | {"limit": np.array([self.limit])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats], d: int) -> Self:
        """Read back what `arrays` gave, of so many dimensions; whatever else is refused with a ValueError."""
        shapes: dict[str, tuple[int, ...]] = {"inverse": (d, d), "limit": (1,)}
        shapes |= dict.fromkeys(("middle", "spread", "low", "high"), (d,))
        found = {name: item.shape for name, item in arrays.items()}
        sound = all(item.dtype == np.float64 and np.isfinite(item).all() for item in arrays.values())
        if found != shapes or not sound or (arrays["spread"] <= 0).any() or arrays["limit"][0] < 0:
            raise ValueError(f"what it knows of its training data has arrays {found}, needed are {shapes}")
        parts = {name: item for name, item in arrays.items() if name != "limit"}
        return cls(**parts, limit=float(arrays["limit"][0]))


@dataclass(frozen=True, eq=False)
class OODDetector:
    """What a model folder keeps of its training data besides counts: summaries, no samples.

    Attributes
    ----------
    shortest, longest
        Samples of the training series.
    spectrum, support
        What is usual; None where there were fewer than 20 series, or no support to speak of.
    """

    shortest: int
    longest: int
    spectrum: Likeness | None
    support: Likeness | None

    @classmethod
    def of(cls, series: Sequence[Series], supports: Sequence[float] = ()) -> Self:
        """From the training series, and mean supports of series that stand for them.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> noise = [Series(rng.normal(size=1000), rate=100.0) for _ in range(40)]
        >>> familiar = OODDetector.of(noise)
        >>> familiar.notes(Series(rng.normal(size=1200), rate=100.0))
        []
        >>> for note in familiar.notes(Series(rng.normal(size=2400).cumsum(), rate=100.0)):
        ...     print(note)
        the recording is longer than any that the model has learned from: 2,400 samples, up to 1,000 there.
        its spectrum is unlike those that the model has learned from: most of all, ...
        """
        lengths = [item.n_samples for item in series]
        found = np.array([value for value in supports if np.isfinite(value)], dtype=np.float64)
        spectra = None
        if len(series) >= FEWEST_SERIES:
            spectra = Likeness.of(np.stack([_logs(item) for item in series]), farthest=FARTHEST["spectrum"])
        return cls(
            min(lengths), max(lengths), spectra, Likeness.of(found[:, None], farthest=FARTHEST["support"])
        )

    def notes(self, series: Series, support: float | None = None) -> list[str]:
        """What is unlike the training data, in plain words; ``support`` is the mean of the series, where known."""
        found = []
        if series.n_samples < self.shortest / TIMES:
            found.append(
                f"the recording is shorter than any that the model has learned from: {series.n_samples:,} samples, "
                f"{self.shortest:,} at least there."
            )
        if series.n_samples > self.longest * TIMES:
            found.append(
                f"the recording is longer than any that the model has learned from: {series.n_samples:,} samples, "
                f"up to {self.longest:,} there."
            )
        if self.spectrum is not None:
            found += _about_spectrum(self.spectrum, series)
        if self.support is not None and support is not None and np.isfinite(support):
            found += _about_support(self.support, support)
        return found

    def arrays(self) -> dict[str, Floats]:
        """What `from_arrays` makes the same from."""
        arrays = {"n_samples": np.array([self.shortest, self.longest], dtype=np.float64)}
        for name in ("spectrum", "support"):
            likeness = getattr(self, name)
            if likeness is not None:
                arrays |= {f"{name}/{part}": item for part, item in likeness.arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats]) -> Self:
        """Read back what `arrays` gave; whatever else is refused with a ValueError."""
        known = {"n_samples"} | {name for name in arrays if name.startswith(("spectrum/", "support/"))}
        lengths = arrays["n_samples"] if "n_samples" in arrays else np.zeros(0)
        whole = lengths.shape == (2,) and lengths.dtype == np.float64 and (lengths == np.trunc(lengths)).all()
        if set(arrays) != known or not whole or not 1 <= lengths[0] <= lengths[1] < np.inf:
            raise ValueError(f"what it knows of its training data is not whole: {sorted(arrays)}")
        parts = {}
        for name, d in (("spectrum", N_BANDS), ("support", 1)):
            own = {key.removeprefix(f"{name}/"): arrays[key] for key in arrays if key.startswith(f"{name}/")}
            parts[name] = Likeness.from_arrays(own, d) if own else None
        return cls(int(lengths[0]), int(lengths[1]), parts["spectrum"], parts["support"])


def _logs(series: Series) -> Floats:
    return np.log(spectrum_shares(series) + FLOOR)


def _fitted(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Middle and spread that a few odd rows do not move, and the inverse of how columns go together."""
    middle = np.median(values, axis=0)
    spread = 1.4826 * np.median(np.abs(values - middle), axis=0) + 1e-3
    off = np.clip((values - middle) / spread, -MOST_OFF, MOST_OFF)
    d = values.shape[1]
    together = (1 - SHRUNK) * np.atleast_2d(np.cov(off.T)) + SHRUNK * np.eye(d)
    inverse: Floats = np.linalg.inv(together).astype(np.float64)
    return middle, spread, inverse


def _distance(values: Floats, middle: Floats, spread: Floats, inverse: Floats) -> Floats:
    off = (values - middle) / spread
    return np.sqrt(np.maximum(np.einsum("ni,ij,nj->n", off, inverse, off), 0.0) / values.shape[1])


def _about_spectrum(usual: Likeness, series: Series) -> list[str]:
    logs = _logs(series)
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
        f"its spectrum is unlike those that the model has learned from: most of all, {share} of its power lies "
        f"between {low:.3g} and {high:.3g} {unit}, usually {usual_low} to {usual_high} "
        f"({distance / usual.limit:.2g} times as far from the middle as is usual)."
    ]


def _about_support(usual: Likeness, support: float) -> list[str]:
    if usual.distance(np.array([support])) <= usual.limit:
        return []
    how = "less" if support < usual.middle[0] else "more"
    return [
        f"its windows are {how} alike than in the series that the model was made with: a mean support of "
        f"{support:.3f}, usually {usual.low[0]:.3f} to {usual.high[0]:.3f}."
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share > 10 * FLOOR else "next to nothing"
