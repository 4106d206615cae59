"""Localisation: evidence against known events in time, with baselines.

Contributions to a class count, spread over samples, so that evidence may be no finer than its windows and still
count. Chance is the mean area with the events moved in time: smooth evidence lies on events by luck more often
than samples in a random order do. Windows that know the marks show what windows of this length can reach.
marks.py reads marked events; scripts/measure_marks.py compares with real marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d
from scipy.signal import butter, sosfiltfilt

from raxss.data.series import Series
from raxss.errors import ConfigError, DataError
from raxss.explain.faithfulness.model_adapter import WindowAttribution

Floats = NDArray[np.float64]
Truth = NDArray[np.bool_]
MOST_SHIFTS, FEWEST_SHIFTS = 256, 16  # of events in time
SAMPLES_SHIFTED = 2**26  # of all shifts together, where that leaves enough of them
SAMPLES_SUMMED = 2**22  # at once
SMOOTH_SECONDS = 0.025  # two periods of 80 Hz: shorter than the events, longer than their waves
ORDER = 4


@dataclass(frozen=True)
class Found:
    """How well one series' evidence finds its events."""

    area: float  # under the precision-recall curve (average precision) of contributions, over samples
    chance: float  # mean of that area with the events moved along the series, in a circle
    base_rate: float  # share of the samples in an event: the area of samples in random order
    by_weight: float | None  # the same of weights alone; None where they are equal
    by_posterior: float  # the same of posteriors alone


def located(attribution: WindowAttribution, truth: NDArray[np.bool_], class_: int) -> Found | None:
    """Compare evidence for a class with the truth; None where all or no samples lie in events."""
    if truth.all() or not truth.any():
        return None
    contributions = attribution.over_time(attribution.contributions(class_))
    n_shifts = min(max(SAMPLES_SHIFTED // len(truth), FEWEST_SHIFTS), MOST_SHIFTS)
    shifts = np.unique(np.linspace(0, len(truth), n_shifts, endpoint=False).astype(int))
    area, *moved = average_precisions(contributions, moved_in_time(truth, shifts)).tolist()

    def area_of(values: Floats) -> float:
        return float(average_precisions(attribution.over_time(values), truth[None])[0])

    by_posterior = area_of(attribution.centred(class_))
    by_weight = area_of(attribution.weights) if attribution.weights_differ else None
    return Found(area, float(np.mean(moved)), float(truth.mean()), by_weight, by_posterior)


def moved_in_time(truth: Truth, shifts: NDArray[np.int64]) -> Truth:
    """The truth, moved along the series in a circle by so many samples: ``(n_shifts, n_samples)``."""
    return np.stack([np.roll(truth, shift) for shift in shifts])


def average_precisions(
    scores: Floats,  # (n_samples,)
    truths: Truth,  # (k, n_samples), each with at least one True
) -> Floats:  # (k,)
    """Average precision of one score against many truths; samples of equal score count together."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)  # of each score's samples
    found = []
    at_once = max(SAMPLES_SUMMED // len(scores), 1)
    for first in range(0, len(truths), at_once):
        hits = np.cumsum(truths[first : first + at_once, order], axis=1)[:, last].astype(np.float64)
        gained = np.diff(hits, axis=1, prepend=0.0) / hits[:, -1:]
        found.append((gained * hits / (last + 1.0)).sum(axis=1))
    return np.concatenate(found)


def truth_of(events: Sequence[tuple[int, int]], n_samples: int) -> NDArray[np.bool_]:
    """First samples and lengths -> which samples lie in an event.

    >>> truth_of([(1, 2)], 4)
    array([False,  True,  True, False])
    """
    truth = np.zeros(n_samples, dtype=bool)
    for start, length in events:
        truth[max(start, 0) : max(start + length, 0)] = True
    return truth


@dataclass(frozen=True, eq=False)
class Shifted:
    """An area, and what it would be if the marks were elsewhere in time."""

    areas: Floats  # (n_channels,)
    by_chance: Floats  # (n_shifts,) means over channels with the marks of all channels moved by the same time

    @property
    def area(self) -> float:
        """Mean over channels."""
        return float(self.areas.mean())

    @property
    def p(self) -> float:
        """One-sided p value; at least 1 / (1 + number of shifts)."""
        as_large = self.by_chance >= self.area - 1e-12
        return float((1 + as_large.sum()) / (1 + len(self.by_chance)))


def shift_test(scores: Sequence[Floats], truths: Sequence[Truth], *, step: int = 8) -> Shifted:
    """Compare the area of channels with that under every circular shift of their marks.

    Scores and truths are of each channel, ``(n_samples,)``, the same number in all. They are shifted together, by
    ``step`` samples at a time, because events of one moment are seen on many channels.

    Examples
    --------
    >>> truth = np.arange(64) == 40
    >>> found = shift_test([truth.astype(float)], [truth], step=1)
    >>> found.area, len(found.by_chance), found.p
    (1.0, 63, 0.015625)
    """
    lengths = {len(item) for item in (*scores, *truths)}
    if len(lengths) != 1 or len(scores) != len(truths):
        raise DataError(
            f"{len(scores)} scores and {len(truths)} truths of {sorted(lengths)} samples cannot be shifted "
            "together; one of each a channel is needed, all of one length."
        )
    shifts = np.arange(0, lengths.pop(), step)
    areas = np.stack(
        [
            average_precisions(score, moved_in_time(truth, shifts))
            for score, truth in zip(scores, truths, strict=True)
        ]
    )
    return Shifted(areas[:, 0], areas[:, 1:].mean(axis=0))


def windows_that_know(attribution: WindowAttribution, truth: Truth) -> Floats:
    """What samples are given by windows that each say which share of them is marked: ``(n_samples,)``.

    Examples
    --------
    >>> attribution = WindowAttribution(series=Series(np.zeros(4)), starts=np.array([0, 2]), window_length=2,
    ...                    posteriors=np.ones((2, 2)), weights=np.ones(2) / 2, probability=np.ones(2))
    >>> windows_that_know(attribution, np.array([False, False, False, True]))
    array([0. , 0. , 0.5, 0.5])
    """
    return in_windows(attribution, truth.astype(np.float64))


def in_windows(attribution: WindowAttribution, values: Floats) -> Floats:
    """Values of samples as windows of a model would show them: their mean in each window, spread over it."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.minimum(attribution.starts + attribution.window_length, len(values))
    return attribution.over_time((total[ends] - total[attribution.starts]) / (ends - attribution.starts))


def band_power(series: Series, low: float, high: float) -> Floats:
    """Power between two frequencies, a running mean over 25 ms: ``(n_samples,)``, summed over variates.

    Examples
    --------
    >>> times = np.arange(2000) / 2000.0
    >>> burst = np.where((times > 0.4) & (times < 0.5), np.sin(2 * np.pi * 120 * times), 0.0)
    >>> float(np.argmax(band_power(Series(burst, rate=2000.0), 80, 250)) / 2000).__round__(1)
    0.4
    """
    if not 0 < low < high < series.rate / 2:
        raise ConfigError(
            f"a band from {low:g} to {high:g} Hz does not lie below half the rate of series {series.name!r}, "
            f"{series.rate:g} Hz. Choose a lower band, or start from a higher rate."
        )
    filters = butter(ORDER, (low, high), btype="bandpass", fs=series.rate, output="sos")
    filtered = sosfiltfilt(filters, np.asarray(series.samples, dtype=np.float64), axis=1)
    return _smoothed(np.square(filtered).sum(axis=0), series.rate)


def line_length(series: Series) -> Floats:
    """How far the signal goes from sample to sample, a running mean over 25 ms: ``(n_samples,)``.

    Examples
    --------
    >>> line_length(Series([0.0, 1.0, 1.0, -1.0], rate=20.0))
    array([0., 1., 0., 2.])
    """
    samples = np.asarray(series.samples, dtype=np.float64)
    steps = np.abs(np.diff(samples, axis=1, prepend=samples[:, :1])).sum(axis=0)
    return _smoothed(steps, series.rate)


def _smoothed(values: Floats, rate: float) -> Floats:
    smooth: Floats = uniform_filter1d(values, max(round(SMOOTH_SECONDS * rate), 1), mode="nearest")
    return smooth
