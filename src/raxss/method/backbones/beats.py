"""Heart beats of a window of an ECG: intervals between them, their shape, and noise.

    windows (batch, n_variates, length), NaN where a sample is missing, rate in Hz -> features (batch, d)

Beats are found as by Pan and Tompkins (IEEE Trans Biomed Eng 1985): a band-limited difference, squared, a moving
mean, a threshold that adapts to the window, and a refractory period. Here the difference is the second one, which
sees less of T waves, and nothing depends on what came before, so that windows are computed side by side.
All features keep their value where the signal is scaled, shifted or turned over. Nothing is learned.
Next: views.py makes a view of them, window_classifiers.py fits classifiers on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import next_fast_len, rfft
from scipy.ndimage import maximum_filter1d, minimum_filter1d, uniform_filter1d
from torch import Tensor

from raxss._core.settings import is_number
from raxss._core.threads import each_on_threads
from raxss.errors import ConfigError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Columns = dict[str, Floats]  # name of a feature -> (n,)

LOWEST_RATE, HIGHEST_RATE = 20.0, 100_000.0  # Hz; a QRS complex lasts two samples at 20 Hz

# Detection; times in seconds, levels as shares of squared amplitudes.
SMOOTHING = 0.025
STEP = 0.03  # of the second difference, whose band is then about 8 to 28 Hz
INTEGRATION = 0.1
REFRACTORY = 0.22
REFINEMENT = 0.06  # of the place of a beat, to either side
BLOCK = 2.0  # each is expected to have a beat
NEIGHBOURHOOD = 1.2  # to either side, whose largest energy lowers the threshold where beats are small
THRESHOLD, LEAST_THRESHOLD = 0.2, 0.06
LEAST_LEVEL = 1e-4  # of the largest energy
LONG_GAP = 0.04  # shorter ones are interpolated, longer ones end an interval

# Shapes: points of a beat at 80 Hz, 24 of them before its peak.
SPACING = 0.0125
POINTS = np.arange(-24, 40)
REGIONS = {"p": (4, 18), "qrs": (19, 30), "t": (32, 56)}  # of these points
N_SHAPE = 32  # points of the median beat that are features

MOST_PAIRED = 64  # intervals whose pairs are compared for their entropy
MOST_OF_ALL_VARIATES = 3
SAMPLES_AT_ONCE = 2**18
RATES_OF_ECGS = (50.0, 2000.0)  # Hz
FEWEST_SECONDS_OF_BEATS = 4.0
# Of `shows_beats`.
MOST_LOOKED_AT = 64  # series
SECONDS_LOOKED_AT = 10.0
LEAST_ALIKE = 0.75
BEATS_A_MINUTE = (30.0, 220.0)
TINY = 1e-9


def beat_features(windows: Tensor, rate: float) -> Tensor:
    """Features ``(batch, d)`` of windows ``(batch, n_variates, length)``, in float32, without a gradient.

    Up to three variates have their features side by side. Of more variates there are the features of the one with
    the clearest beats in the window, and the least and largest value of each number over all variates.
    Fewer than two intervals between beats: numbers about intervals and shapes are 0, and ``"too_few"`` is 1.

    Examples
    --------
    >>> beat_features(torch.zeros(2, 1, 3000), rate=300.0).shape
    torch.Size([2, 104])
    """
    lines = windows.detach().double().cpu().numpy()
    n, n_variates, length = lines.shape
    n_at_once = max(SAMPLES_AT_ONCE // (n_variates * length), 1)
    parts = [lines[k : k + n_at_once] for k in range(0, n, n_at_once)]
    found = each_on_threads(partial(_of_windows, rate=rate), parts)
    table = np.concatenate([np.zeros((0, n_beat_features(n_variates))), *found])
    return torch.from_numpy(table).float().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).to(windows.device)


def shows_beats(samples: Sequence[NDArray[Any]], rate: float | None) -> bool:
    """Whether series ``(n_variates, n_samples)`` show heart beats, as ECGs do.

    Of up to 64 of them, the middle ten seconds: half of them at least have a variate with beats, 30 to 220 a
    minute, that are alike. The mean correlation of the beats of a recording with their median beat is .92 and .98
    in the middle recording of two sets of ECGs, and .34 to .53 in sets of EEG, EMG, heart sounds and movements.

    >>> noise = np.random.default_rng(0).normal(size=(8, 1, 3000))
    >>> shows_beats(list(noise), rate=250.0), shows_beats(list(noise), rate=None)
    (False, False)
    """
    low, high = RATES_OF_ECGS
    if rate is None or not low <= rate <= high:
        return False
    places = np.linspace(0, len(samples) - 1, min(len(samples), MOST_LOOKED_AT)).astype(np.int64)
    found = [
        _has_alike_beats(_middle(samples[place], round(SECONDS_LOOKED_AT * rate)), rate) for place in places
    ]
    return float(np.mean(found)) >= 0.5


def holds_beats(window_length: int, rate: float | None) -> bool:
    """Whether a window is long enough for several heart beats: four seconds.

    >>> holds_beats(1000, 250.0), holds_beats(999, 250.0), holds_beats(1000, None)
    (True, False, False)
    """
    return rate is not None and window_length >= FEWEST_SECONDS_OF_BEATS * rate


def _middle(samples: NDArray[Any], n: int) -> Floats:
    first = max((samples.shape[1] - n) // 2, 0)
    return np.asarray(samples[:, first : first + n], dtype=np.float64)


def _has_alike_beats(part: Floats, rate: float) -> bool:
    if not holds_beats(part.shape[1], rate):
        return False
    features = beat_features(torch.from_numpy(part)[:, None], rate).numpy()  # each variate by itself
    alike, per_minute = (features[:, names().index(name)] for name in ("alike_mean", "rate"))
    low, high = BEATS_A_MINUTE
    return bool(((alike >= LEAST_ALIKE) & (per_minute >= low) & (per_minute <= high)).any())


def n_beat_features(n_variates: int) -> int:
    """Number of features of a window.

    >>> n_beat_features(1), n_beat_features(3), n_beat_features(12)
    (104, 312, 248)
    """
    if n_variates <= MOST_OF_ALL_VARIATES:
        return n_variates * len(names())
    return len(names()) + 2 * (len(names()) - N_SHAPE)


@cache
def names() -> tuple[str, ...]:
    """What each feature of one variate is; the points of the median beat are last.

    >>> names()[:5], names()[-1]
    (('too_few', 'beats_per_second', 'rate', 'rr_mean', 'rr_median'), 'shape_31')
    """
    return tuple(_of_lines(np.zeros((1, 1)), 100.0))


def checked_rate(rate: Any) -> float:
    """A sampling rate at which beats can be seen, or a ConfigError."""
    if not is_number(rate) or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise ConfigError(
            f"the view 'beats' needs the sampling rate in Hz, a number from {LOWEST_RATE:g} to {HIGHEST_RATE:g}, "
            f"and its rate is {rate!r}. Give the series their rate, Series(samples, rate=300.0), or set the "
            "option rate beside view, as in {'view': 'beats', 'rate': 300.0}."
        )
    return float(rate)


@dataclass(frozen=True, eq=False)
class Beats:
    """Beats of lines ``(n, length)``, in columns; NaN behind the last of a line."""

    places: Floats  # (n, most) of their peaks, in samples
    intervals: Floats  # (n, most - 1) in seconds, NaN across a gap
    polarity: Floats  # (n,) 1 or -1: the sign of the peaks
    level: Floats  # (n,) energy of a typical beat
    quiet: Floats  # (n,) median energy


def find_beats(x: Floats, present: Bools, rate: float) -> Beats:
    """Beats of lines ``(n, length)`` at unit deviation, interpolated where samples are not present.

    With s, the signal smoothed over 25 ms, the energy is e = mean over 100 ms of (s(t) - (s(t - 30 ms) +
    s(t + 30 ms)) / 2)². A beat is where e is the largest within 220 ms and above

        max(.2 min(level, largest e within 1.2 s), .06 level),    level: median of the largest e of blocks of 2 s

    It is placed at the largest second difference within 60 ms, of the sign that is larger over the beats of a line.

    >>> time = np.arange(1500) / 250
    >>> line = np.exp(-((time[None] % 0.8 - 0.4) ** 2) / 2 / 0.015**2)  # a peak every .8 s, from .4 s on
    >>> beats = find_beats(line, np.ones((1, 1500), dtype=bool), 250.0)
    >>> np.round(beats.places[0, :3] / 250, 2), np.round(beats.intervals[0, :2], 2)
    (array([0.4, 1.2, 2. ]), array([0.8, 0.8]))
    """
    gaps = _long_gaps(present, rate)
    second = _second_difference(x, rate)
    energy = np.where(gaps, 0.0, _moving_mean(second * second, INTEGRATION, rate))
    level = _level(energy, rate)
    rows, columns = np.nonzero(_peaks(energy, level, rate))
    shifted, polarity = _refined(second, rows, columns, rate)
    most = x.shape[1] // (_half(REFRACTORY, rate) + 1) + 1
    places = np.full((len(x), most), np.nan)
    ranks = _ranks(rows)
    fits = ranks < most  # all but peaks that are equal up to rounding
    places[rows[fits], ranks[fits]] = shifted[fits]
    before = gaps.cumsum(axis=1)  # missing samples up to each place
    n_before = before[np.arange(len(x))[:, None], np.nan_to_num(places).astype(np.int64)]
    intervals = np.where(np.diff(n_before, axis=1) == 0, np.diff(places, axis=1) / rate, np.nan)
    return Beats(places, intervals, polarity, level, np.median(energy, axis=1))


def _of_windows(part: Floats, rate: float) -> Floats:
    """``(n, n_variates, length)`` -> ``(n, d)``."""
    n, n_variates, length = part.shape
    columns = _of_lines(part.reshape(-1, length), rate)
    table = np.stack(list(columns.values()), axis=1).reshape(n, n_variates, -1)
    if n_variates <= MOST_OF_ALL_VARIATES:
        return table.reshape(n, -1)
    clearest = columns["alike_mean"].reshape(n, n_variates).argmax(axis=1)
    numbers = np.nan_to_num(table[:, :, :-N_SHAPE])
    return np.concatenate([table[np.arange(n), clearest], numbers.min(axis=1), numbers.max(axis=1)], axis=1)


def _of_lines(lines: Floats, rate: float) -> Columns:
    """Features of lines ``(n, length)``, by name."""
    present = np.isfinite(lines)
    x = _standardised(lines, present)
    beats = find_beats(x, present, rate)
    columns = _of_intervals(beats, present.sum(axis=1) / rate)
    columns |= _of_noise(x, present, beats, rate)
    return columns | _of_shapes(x, present, beats, rate)


# Detection ------------------------------------------------------------------------------------------------------


def _half(seconds: float, rate: float) -> int:
    return max(round(seconds * rate), 1)


def _moving_mean(x: Floats, seconds: float, rate: float) -> Floats:
    """Mean over an odd number of samples; beyond the ends of a line, its first and last."""
    size = 2 * min(_half(seconds / 2, rate), x.shape[1]) + 1
    found: Floats = uniform_filter1d(x, size, axis=1, mode="nearest")
    return found


def _standardised(lines: Floats, present: Bools) -> Floats:
    """Lines at mean 0 and deviation 1, interpolated where samples are missing; 0 where a line is flat."""
    x = np.where(present, lines, 0.0)
    largest = np.abs(x).max(axis=1, keepdims=True)
    x = x / np.where(largest > 0, largest, 1.0)  # so that no square is too large or small
    places = np.arange(x.shape[1])
    for row in np.flatnonzero(~present.all(axis=1) & present.any(axis=1)):
        there = present[row]
        x[row] = np.interp(places, places[there], x[row, there])
    n = np.maximum(present.sum(axis=1, keepdims=True), 1)
    x = x - (x * present).sum(axis=1, keepdims=True) / n
    deviation = np.sqrt((x * x * present).sum(axis=1, keepdims=True) / n)
    flat = np.abs(x).max(axis=1, keepdims=True) <= 1e-6  # of the largest value: rounding
    return np.where(flat, 0.0, x / np.maximum(deviation, TINY))


def _long_gaps(present: Bools, rate: float) -> Bools:
    """Samples in gaps of more than 40 ms."""
    if present.all():
        return np.zeros_like(present)
    size = _half(LONG_GAP, rate) + 1
    missing = (~present).astype(np.uint8)
    found = minimum_filter1d(missing, size, axis=1, mode="nearest")
    found = maximum_filter1d(found, size, axis=1, mode="nearest", origin=-1 if size % 2 == 0 else 0)
    return (found > 0) & ~present


def _second_difference(x: Floats, rate: float) -> Floats:
    step = min(_half(STEP, rate), x.shape[1])
    smooth = _moving_mean(x, SMOOTHING, rate)
    padded = np.pad(smooth, ((0, 0), (step, step)), mode="edge")
    return smooth - (padded[:, : -2 * step] + padded[:, 2 * step :]) / 2


def _level(energy: Floats, rate: float) -> Floats:
    """The median over blocks of 2 s of the largest energy; blocks of 0 are left out.

    An artefact does not move it. It is not far below the largest of all: next to a single beat, nothing is one.
    """
    length = energy.shape[1]
    n_blocks = max(int(length / (BLOCK * rate)), 1)
    largest = np.maximum.reduceat(energy, np.arange(n_blocks) * length // n_blocks, axis=1)
    median = _quantiles(np.where(largest > 0, largest, np.nan), (0.5,))[0]
    return np.maximum(median, LEAST_LEVEL * largest.max(axis=1))


def _peaks(energy: Floats, level: Floats, rate: float) -> Bools:
    """Where energy is the largest within the refractory period, and above the threshold."""
    length = energy.shape[1]
    first = energy * (1 - 1e-6 * np.arange(length) / length)  # of equal ones, the first is the largest
    half = min(_half(REFRACTORY, rate), length)
    largest = maximum_filter1d(first, 2 * half + 1, axis=1, mode="nearest")
    around = maximum_filter1d(energy, 2 * min(_half(NEIGHBOURHOOD, rate), length) + 1, axis=1, mode="nearest")
    lowest = np.maximum(THRESHOLD * np.minimum(level[:, None], around), LEAST_THRESHOLD * level[:, None])
    found: Bools = (first == largest) & (energy > lowest) & (energy > TINY)
    return found


def _refined(second: Floats, rows: Ints, columns: Ints, rate: float) -> tuple[Floats, Floats]:
    """Places of peaks between samples, and the polarity of each line."""
    length, half = second.shape[1], _half(REFINEMENT, rate)
    near = np.clip(columns[:, None] + np.arange(-half, half + 1), 0, length - 1)
    values = second[rows[:, None], near]
    excess = np.bincount(rows, values.max(axis=1) + values.min(axis=1), minlength=len(second))
    polarity = np.where(excess < 0, -1.0, 1.0)
    values = values * polarity[rows, None]
    best = near[np.arange(len(rows)), values.argmax(axis=1)]
    left, here, right = (polarity[rows] * second[rows, np.clip(best + k, 0, length - 1)] for k in (-1, 0, 1))
    bend = np.maximum(2 * here - left - right, TINY)  # of the parabola through three samples
    return np.clip(best + np.clip((right - left) / bend / 2, -0.5, 0.5), 0, length - 1), polarity


def _ranks(rows: Ints) -> Ints:
    """How many of the same row came before: ``[0, 0, 2, 2, 2]`` -> ``[0, 1, 0, 1, 2]``."""
    places = np.arange(len(rows))
    return places - np.searchsorted(rows, rows) if len(rows) else places


# Intervals ------------------------------------------------------------------------------------------------------


def _of_intervals(beats: Beats, seconds: Floats) -> Columns:
    """Numbers about intervals between beats, in seconds or relative to their median."""
    rr = beats.intervals
    n = np.isfinite(rr).sum(axis=1)
    enough = n >= 2
    median = _quantiles(rr, (0.5,))[0]
    relative = rr / np.where(enough, median, 1.0)[:, None]
    steps, relative_steps = np.diff(rr, axis=1), np.diff(relative, axis=1)
    away = np.abs(relative_steps)
    deviation, rmssd = _deviation(rr), np.sqrt(_mean(steps**2))
    sd1 = _deviation(steps) / np.sqrt(2)
    sd2 = np.sqrt(np.maximum(2 * deviation**2 - sd1**2, 0.0))
    mean = np.where(enough, _mean(rr), 1.0)
    columns = {
        "rate": 60 / np.where(enough, median, 1.0),
        "rr_mean": mean,
        "rr_median": median,
        "rr_deviation": deviation,
        "rr_cv": deviation / mean,
        "rmssd": rmssd,
        "rmssd_relative": rmssd / mean,
        "pnn20": _share(np.abs(steps) > 0.02, steps),
        "pnn50": _share(np.abs(steps) > 0.05, steps),
        "pnn10_percent": _share(away > 0.1, away),
        "turning_points": _turning_points(rr),
        "rr_entropy": _entropy(relative, 0.4, 1.6),
        "step_entropy": _entropy(relative_steps, -0.7, 0.7),
        "sample_entropy": _sample_entropy(relative),
        "sd1": sd1 / mean,
        "sd2": sd2 / mean,
        "sd1_to_sd2": sd1 / (sd2 + 0.005 * mean),
        "early": _share((relative[:, :-1] < 0.85) & (relative[:, 1:] > 1.05), steps),
        "pauses": _share(relative > 1.6, relative),
        **{f"autocorrelation_{lag}": _autocorrelation(relative, lag) for lag in (1, 2, 3)},
        **_named_quantiles("rr", relative, (0.0, 0.1, 0.25, 0.75, 0.9, 1.0)),
        **_named_quantiles("step", away, (0.25, 0.5, 0.75, 0.9, 1.0)),
    }
    known = {
        "too_few": (~enough).astype(float),
        "beats_per_second": np.isfinite(beats.places).sum(axis=1) / np.maximum(seconds, 1.0),
    }
    return known | {name: np.where(enough, column, 0.0) for name, column in columns.items()}


def _mean(values: Floats) -> Floats:
    """Mean over what is not NaN, by row; 0 where nothing is."""
    there = np.isfinite(values)
    found: Floats = np.where(there, values, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    return found


def _deviation(values: Floats) -> Floats:
    found: Floats = np.sqrt(_mean((values - _mean(values)[:, None]) ** 2))
    return found


def _share(condition: Bools, among: Floats) -> Floats:
    """Share of true among the places at which ``among`` is not NaN."""
    return _mean(np.where(np.isfinite(among), condition, np.nan))


def _quantiles(values: Floats, shares: tuple[float, ...]) -> list[Floats]:
    """Quantiles over what is not NaN, by row; 0 where nothing is."""
    if not values.shape[1]:
        return [np.zeros(len(values)) for _ in shares]
    ordered = np.sort(values, axis=1)  # NaN is last
    last = np.maximum(np.isfinite(values).sum(axis=1) - 1, 0)
    rows = np.arange(len(values))
    found = []
    for share in shares:
        place = share * last
        low = place.astype(np.int64)
        left, right = ordered[rows, low], ordered[rows, np.minimum(low + 1, last)]
        found.append(np.nan_to_num(left + (place - low) * (right - left)))
    return found


def _named_quantiles(name: str, values: Floats, shares: tuple[float, ...]) -> Columns:
    found = _quantiles(values, shares)
    return {f"{name}_{round(100 * share)}": column for share, column in zip(shares, found, strict=True)}


def _turning_points(rr: Floats) -> Floats:
    """Share of intervals that are longer, or shorter, than both their neighbours; 2/3 for white noise."""
    steps = np.diff(rr, axis=1)
    products = steps[:, 1:] * steps[:, :-1]
    return _share(products < 0, products)


def _entropy(values: Floats, low: float, high: float, n_bins: int = 15) -> Floats:
    """Entropy of the histogram of each row; values beyond the ends are in the outer bins."""
    rows, columns = np.nonzero(np.isfinite(values))
    bins = ((values[rows, columns] - low) / (high - low) * n_bins).clip(0, n_bins - 1).astype(np.int64)
    counts = np.bincount(rows * n_bins + bins, minlength=len(values) * n_bins).reshape(-1, n_bins)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    found: Floats = -(share * np.log(share + TINY)).sum(axis=1)
    return found


def _sample_entropy(relative: Floats, tolerance: float = 0.1) -> Floats:
    """-log of the share of equal pairs of intervals whose next ones are equal, too, up to the tolerance."""
    some = relative[:, :MOST_PAIRED]
    equal = np.abs(some[:, :, None] - some[:, None, :]) <= tolerance  # False where one is NaN
    known = np.isfinite(some[:, 1:])
    now = equal[:, :-1, :-1] & known[:, :, None] & known[:, None, :]
    n_now, n_both = (item.sum(axis=(1, 2)) - known.sum(axis=1) for item in (now, now & equal[:, 1:, 1:]))
    found: Floats = -np.log((np.maximum(n_both, 0) + 1) / (np.maximum(n_now, 0) + 1))
    return found


def _autocorrelation(relative: Floats, lag: int) -> Floats:
    centred = relative - _mean(relative)[:, None]
    return _mean(centred[:, lag:] * centred[:, :-lag]) / (_mean(centred**2) + 1e-6)


# Noise ----------------------------------------------------------------------------------------------------------


def _of_noise(x: Floats, present: Bools, beats: Beats, rate: float) -> Columns:
    """Powers outside of the band of an ECG, peakedness, flat and clipped stretches."""
    steps = np.abs(np.diff(x, axis=1))
    both = present[:, 1:] & present[:, :-1]
    n = np.maximum(present.sum(axis=1), 1)
    high = (x - _moving_mean(x, 1.0, rate)) * present
    square = high * high
    variance, third, fourth = (item.sum(axis=1) / n for item in (square, square * high, square * square))
    extremes = np.abs(x) >= np.abs(x).max(axis=1, keepdims=True) - 1e-3
    return {
        **_bands(x, present, rate),
        "kurtosis": np.log1p(fourth / (variance**2 + TINY)),
        "skewness": np.abs(third) / (variance**1.5 + TINY),
        "wander": 1 - np.minimum(variance, 1.0),
        "roughness": np.sqrt((steps**2 * both).sum(axis=1) / np.maximum(both.sum(axis=1), 1)),
        "flat": (both & (steps < 1e-3)).sum(axis=1) / np.maximum(both.sum(axis=1), 1),
        "clipped": (extremes & present).sum(axis=1) / n,
        "quiet": np.log10((beats.quiet + 1e-6) / (beats.level + 1e-6)),
        "absent": 1 - present.mean(axis=1) if x.shape[1] else np.zeros(len(x)),
    }


def _bands(x: Floats, present: Bools, rate: float) -> Columns:
    """Shares of power below, in and above the band of an ECG, and of QRS complexes and atrial waves in it."""
    length = x.shape[1]
    extent = np.where(present, np.arange(1, length + 1), 0).max(axis=1, keepdims=True)
    places = np.arange(length)
    taper = np.where(places < extent, np.sin(np.pi * (places + 0.5) / np.maximum(extent, 1)) ** 2, 0.0)
    size = next_fast_len(length, real=True)
    power = np.abs(rfft(x * taper, n=size, axis=1)) ** 2
    edges = [0.0, 0.5, 1.0, 4.0, 9.0, 15.0, 40.0, np.inf]
    begins = np.searchsorted(np.arange(power.shape[1]) * rate / size, edges)
    parts = [power[:, a:b].sum(axis=1) for a, b in itertools.pairwise(begins)]
    total = sum(parts) + TINY
    band = parts[1] + parts[2] + parts[3] + parts[4] + parts[5] + TINY
    return {
        "outside": (parts[0] + parts[6]) / total,
        "slow": parts[0] / total,
        "fast": parts[6] / total,
        "below_1": parts[1] / band,
        "from_1_to_4": parts[2] / band,
        "from_4_to_9": parts[3] / band,
        "from_9_to_15": parts[4] / band,
    }


# Shapes ---------------------------------------------------------------------------------------------------------


def _of_shapes(x: Floats, present: Bools, beats: Beats, rate: float) -> Columns:
    """How alike beats are, and the median beat: widths, waves before and behind, its points."""
    rows, columns, cuts = _cut_out(x, present, beats, rate)
    n = len(x)
    enough = (np.bincount(rows, minlength=n) >= 2) & (np.isfinite(beats.intervals).sum(axis=1) >= 2)
    middle = _median_beats(rows, cuts, n)

    def by_line(values: Floats) -> Floats:  # (n, most), NaN where there is no whole beat
        table = np.full(beats.places.shape, np.nan)
        table[rows, columns] = values
        return table

    alike = by_line(_correlation(cuts, middle[rows]))
    amplitude = by_line(np.ptp(cuts[:, slice(*REGIONS["qrs"])], axis=1))
    relative = amplitude / np.maximum(_quantiles(amplitude, (0.5,))[0], TINY)[:, None]
    found = {
        "alike_mean": _mean(alike),
        **_named_quantiles("alike", alike, (0.0, 0.1, 0.25, 0.5)),
        "unlike": _share(alike < 0.8, alike),
        "amplitude_cv": _deviation(amplitude) / np.maximum(_mean(amplitude), TINY),
        **_named_quantiles("amplitude", relative, (0.0, 1.0)),
        **_of_regions(cuts, middle, lambda values: _mean(by_line(values))),
        **_of_median_beat(middle),
    }
    return {name: np.where(enough, column, 0.0) for name, column in found.items()}


def _cut_out(x: Floats, present: Bools, beats: Beats, rate: float) -> tuple[Ints, Ints, Floats]:
    """Line, place among its beats and points ``(n_beats, 64)`` of each beat that is whole, upright, median 0."""
    length = x.shape[1]
    signal = _moving_mean(x, SPACING, rate) - _moving_mean(x, 1.0, rate)
    rows, columns = np.nonzero(np.isfinite(beats.places))
    times = beats.places[rows, columns][:, None] + POINTS * SPACING * rate
    low = np.clip(np.floor(times).astype(np.int64), 0, max(length - 2, 0))
    high = np.minimum(low + 1, length - 1)
    before = _long_gaps(present, rate).cumsum(axis=1)
    whole = (times[:, 0] >= 0) & (times[:, -1] <= length - 1)
    whole &= before[rows, high[:, -1]] == before[rows, low[:, 0]]
    rows, columns, times, low, high = (item[whole] for item in (rows, columns, times, low, high))
    share = times - low
    cuts = (1 - share) * signal[rows[:, None], low] + share * signal[rows[:, None], high]
    cuts = cuts * beats.polarity[rows, None]
    return rows, columns, cuts - np.median(cuts, axis=1, keepdims=True) if len(cuts) else cuts


def _median_beats(rows: Ints, cuts: Floats, n: int) -> Floats:
    """The median of each point over the beats of a line: ``(n, 64)``; 0 where there is no beat."""
    counts = np.bincount(rows, minlength=n)
    table = np.full((n, max(counts.max(initial=0), 1), len(POINTS)), np.nan)
    table[rows, _ranks(rows)] = cuts
    table.sort(axis=1)  # NaN is last
    lines, last = np.arange(n), np.maximum(counts - 1, 0)
    return np.nan_to_num((table[lines, last // 2] + table[lines, (last + 1) // 2]) / 2)


def _correlation(one: Floats, other: Floats) -> Floats:
    one, other = (item - item.mean(axis=1, keepdims=True) for item in (one, other))
    norms = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    found: Floats = (one * other).sum(axis=1) / np.maximum(norms, TINY)
    return found


def _of_regions(cuts: Floats, middle: Floats, mean: Callable[[Floats], Floats]) -> Columns:
    """Energy of P, QRS and T regions: of the median beat, beside that of single beats and of its QRS complex.

    A wave that each beat has stays in the median beat; fibrillation waves do not.
    """
    begin, end = REGIONS["qrs"]
    whole = middle[:, begin:end].var(axis=1) + TINY
    columns = {}
    for name, (begin, end) in REGIONS.items():
        single, median = mean(cuts[:, begin:end].var(axis=1)), middle[:, begin:end].var(axis=1)
        columns[f"{name}_repeats"] = median / (single + TINY)
        if name != "qrs":
            columns[f"{name}_energy"] = np.log10(median / whole + 1e-4)
            columns[f"{name}_single_energy"] = np.log10(single / whole + 1e-4)
    return columns


def _of_median_beat(middle: Floats) -> Columns:
    """Width and balance of the QRS complex, height and time of the waves, points at unit deviation."""
    height = np.maximum(middle[:, slice(*REGIONS["qrs"])].max(axis=1), TINY)
    relative = middle / height[:, None]
    near = relative[:, 14:36]
    columns = {
        "qrs_width": SPACING * (np.abs(near) > 0.25).sum(axis=1),
        "qrs_trough": np.clip(near.min(axis=1), -3.0, 0.0),
    }
    for name in ("p", "t"):
        begin, end = REGIONS[name]
        part = relative[:, begin:end]
        place = np.abs(part).argmax(axis=1)
        columns[f"{name}_height"] = np.clip(part[np.arange(len(part)), place], -3.0, 3.0)
        columns[f"{name}_time"] = SPACING * POINTS[begin + place]
    deviation = np.maximum(middle.std(axis=1), TINY)
    points = (middle / deviation[:, None]).reshape(len(middle), N_SHAPE, -1).mean(axis=2)
    return columns | {f"shape_{k}": points[:, k] for k in range(N_SHAPE)}
