"""Baselines of localisation: circular shifts of the marks, an oracle of the same windows, plain detectors.

    scores of samples, truth of every channel -> mean area, and the share of circular shifts that do as well
    WindowAttribution, truth                  -> scores of windows that know which share of them is marked
    Series                                    -> band power, line length: scores of a plain detector

Evidence that is smooth over seconds may lie on events of a short recording by luck, which the shifts measure; it
may miss them because its windows are long, which the windows that know measure: a yardstick, no strict bound.
Next: scripts/measure_marks.py uses these with real marks.
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
from raxss.explain.faithfulness.localisation import Truth, average_precisions, moved_in_time
from raxss.explain.faithfulness.model_adapter import WindowAttribution

Floats = NDArray[np.float64]
SMOOTH_SECONDS = 0.025  # two periods of 80 Hz: shorter than the events, longer than their waves
ORDER = 4


@dataclass(frozen=True, eq=False)
class Shifted:
    """An area, and what it would be if the marks were elsewhere in time.

    Attributes
    ----------
    areas
        ``(n_channels,)``, and ``area``, their mean.
    by_chance
        ``(n_shifts,)`` means over channels with the marks of all channels moved by the same time.
    p
        Share of the shifts, none included, with a mean as large.
    """

    areas: Floats
    by_chance: Floats

    @property
    def area(self) -> float:
        """Mean over channels."""
        return float(self.areas.mean())

    @property
    def p(self) -> float:
        """One-sided; no smaller than one by the number of shifts."""
        as_large = self.by_chance >= self.area - 1e-12
        return float((1 + as_large.sum()) / (1 + len(self.by_chance)))


def shift_test(scores: Sequence[Floats], truths: Sequence[Truth], *, step: int = 8) -> Shifted:
    """Compare the area of channels with that under every circular shift of their marks.

    All channels are shifted together, because events of one moment are seen on many of them.

    Parameters
    ----------
    scores, truths
        Of each channel, ``(n_samples,)``, the same number in all.
    step
        Samples from one shift to the next.

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
