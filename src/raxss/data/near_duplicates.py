"""Near-duplicate search: series of different parts that hold the same signal, whatever they are called.

    series, parts (n_series,) -> list of NearDuplicate: identical values, a common stretch, or the whole course

- *identical*: the same values, by hash; whether stored as integers, float32 or float64.
- *stretch*: the same samples over a second or so, scaled, shifted, negated or with a little noise. Features
  are shapes around anchors, which are local maxima of the signal, so that a crop has the same ones.
- *resampled*: the same course at another rate, pooled or resampled. Features are means over 64 equal bins.

Neighbouring channels of one recording are not copies, although they correlate with up to .999: in differences
they do not, and what is left when one is taken from the other is no white noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import maximum_filter1d, uniform_filter1d
from scipy.signal import correlate, detrend
from scipy.signal.windows import blackmanharris

from raxss.data.series import Series

CHUNK = 2**18  # samples read at a time: a day of signal is never in memory
SHORTEST_COPY = 8  # samples; fewer may agree by chance

N_BINS = 64  # of a whole series, for its course
N_CANDIDATES = 3  # nearest courses that are looked at closely
COARSEST_COURSE = 0.5  # correlation of courses below which samples are not compared
RESAMPLED = 0.997  # correlation of bins and of their differences; neighbouring channels reach .990
FEWEST_BINS, MOST_BINS = 32, 4096
SHIFTS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # samples of the lower rate

SHAPE_RADIUS = 128  # samples on each side of an anchor
SHAPE_BLOCK = 8  # samples in one of the 32 means that describe the shape
SURROUNDINGS = 64  # samples whose mean an anchor departs from
MOST_ANCHORS = 100_000  # over all series: the search is quadratic in them
NARROWEST_ANCHOR = 64
FARTHEST_SHAPE = 0.3  # distance of unit vectors, a correlation of .955
STRETCH = 512  # samples on each side of an anchor that are compared
SHORTEST_STRETCH = 384
SIMILAR_STRETCH = 0.8  # correlation of blocks below which samples are not compared
MOST_JITTER = 8  # samples by which noise may move an anchor

EXACT = 0.999  # correlation of samples and of their differences; neighbouring channels reach .98 of both
NOISY = 0.99  # correlation of samples where only white noise differs, 20 dB below the signal
WHITE = 0.15  # autocorrelation of white noise from one sample to the next, at most


FEWEST_FREQUENCIES = 10  # bins of a spectrum; a sine has up to 9
ABOVE_NOISE = 10.0  # times the power of what differs: frequencies that both signals surely share
LEAST_POWER = 1e-4  # of the mean over frequencies; below is what the window lets through
BESIDE_EVENT = 0.7  # correlation beside the largest event
LONGEST_LOOK = 2**14  # samples in which a whole course is searched for what repeats
BETTER_THAN_SELF = 0.2  # of what a signal and itself some time later differ by: a copy differs less


@dataclass(frozen=True)
class NearDuplicate:
    """Two series that hold the same signal, and the smallest correlation over variates of what was compared."""

    first: int
    second: int
    kind: Literal["identical", "stretch", "resampled"]
    similarity: float = 1.0


def find_near_duplicates(series: Sequence[Series], parts: ArrayLike) -> list[NearDuplicate]:
    """Pairs of series in different ``parts`` that hold the same signal; within one part only identical ones.

    A stretch must be at least 400 samples long (more if all series together have over 13 million samples) and
    at the same rate; a copy at another rate must be of the whole series. Flat series are no copies, and hum,
    sines, ramps, regular pulses, one spike or step only where all values are identical. A copy that was
    high-passed, or that drifts where the other does not, is not found. Series of a negative part are left out.
    """
    parts = np.asarray(parts)
    chosen = [
        index for index in np.flatnonzero(parts >= 0).tolist() if first_varying(series[index]) is not None
    ]
    found = {(item.first, item.second): item for item in _identical(series, chosen)}
    for search in (_stretches, _resampled):
        for item in search(series, chosen, parts):
            found.setdefault((item.first, item.second), item)
    return [found[pair] for pair in sorted(found)]


def first_varying(series: Series) -> int | None:
    """The first variate that varies: copies are looked for by it and confirmed by all."""
    for variate, row in enumerate(series.samples):
        if any(np.any(part != row[0]) for _, part in _chunks(row) if np.isfinite(part).any()):
            return variate
    return None


def _chunks(row: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Begin and samples of each stretch."""
    for begin in range(0, len(row), CHUNK):
        yield begin, row[begin : begin + CHUNK]


# The same values -------------------------------------------------------------------------------------------


def _identical(series: Sequence[Series], chosen: Sequence[int]) -> Iterator[NearDuplicate]:
    seen: dict[bytes, int] = {}
    for index in chosen:
        item = series[index]
        if item.n_samples < SHORTEST_COPY:
            continue
        digest = hashlib.blake2b(str(item.samples.shape).encode(), digest_size=16)
        for row in item.samples:
            for _, part in _chunks(row):
                digest.update((np.asarray(part, dtype=np.float64) + 0.0).tobytes())  # + 0.0: no -0.0
        first = seen.setdefault(digest.digest(), index)
        if first != index:
            yield NearDuplicate(first, index, "identical")


# A stretch of both ------------------------------------------------------------------------------------------


def _stretches(
    series: Sequence[Series], chosen: Sequence[int], parts: NDArray[Any]
) -> Iterator[NearDuplicate]:
    total = sum(series[index].n_samples for index in chosen)
    radius = max(NARROWEST_ANCHOR, -(-total // (2 * MOST_ANCHORS)))
    owners, places, shapes = [], [], []
    for index in chosen:
        found, described = _anchors(series[index], radius)
        owners.append(np.full(len(found), index))
        places.append(found)
        shapes.append(described)
    if not shapes:
        return
    owner, place, shape = np.concatenate(owners), np.concatenate(places), np.concatenate(shapes)
    done = set()
    for query, target, distance in _nearest_across(shape, parts[owner], n_neighbors=1):
        pair = (int(owner[query]), int(owner[target]))
        if distance > FARTHEST_SHAPE or pair in done:
            continue
        similarity = _same_stretch(series[pair[0]], int(place[query]), series[pair[1]], int(place[target]))
        if similarity is not None:
            done.add(pair)
            yield NearDuplicate(min(pair), max(pair), "stretch", similarity)


def _anchors(series: Series, radius: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Places of the anchors, and the shape around each, upright and of norm 1."""
    places, shapes = [], []
    for found, stretches, signs in anchored_stretches(series, radius):
        blocks = stretches.reshape(len(found), 2 * SHAPE_RADIUS // SHAPE_BLOCK, SHAPE_BLOCK)
        places.append(found)
        shapes.append(_unit(blocks.mean(axis=2) * signs[:, None]).astype(np.float32))
    return np.concatenate(places), np.concatenate(shapes)


def anchored_stretches(
    series: Series, radius: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
    """Anchors ``(n,)``, samples around them ``(n, 256)`` and signs ``(n,)``, of each piece that is read at once.

    An anchor is where the mean of 8 samples departs more from the mean of 64 around them than anywhere within
    ``radius`` samples, amid finite samples; its sign is that of the departure.
    """
    row = series.samples[first_varying(series) or 0]
    margin = radius + SHAPE_RADIUS  # that an anchor and its stretch may look at
    around = np.arange(-SHAPE_RADIUS, SHAPE_RADIUS)
    for begin in range(0, len(row), CHUNK):
        low = max(begin - margin, 0)
        samples = np.asarray(row[low : begin + CHUNK + margin], dtype=np.float64)
        finite = np.isfinite(samples)
        level = (
            samples[finite][0] if finite.any() else 0.0
        )  # a large offset would cost the means their digits
        clean = np.where(finite, samples - level, 0.0)
        departure = uniform_filter1d(clean, SHAPE_BLOCK) - uniform_filter1d(clean, SURROUNDINGS)
        height = np.abs(departure)
        peaks = np.flatnonzero((height == maximum_filter1d(height, 2 * radius + 1)) & (height > 0))
        peaks = peaks[np.diff(peaks, prepend=-radius - 1) > radius]  # equal heights: what repeats says little
        own = (low + peaks >= begin) & (low + peaks < begin + CHUNK)
        peaks = peaks[own & (peaks >= SHAPE_RADIUS) & (peaks + SHAPE_RADIUS <= len(samples))]
        peaks = peaks[finite[peaks[:, None] + around].all(axis=1)]
        yield low + peaks, samples[peaks[:, None] + around], np.sign(departure[peaks])


def _same_stretch(first: Series, at_first: int, second: Series, at_second: int) -> float | None:
    """Similarity of the samples around two anchors; None if they are no copies."""
    before = min(at_first, at_second, STRETCH)
    after = min(first.n_samples - at_first, second.n_samples - at_second, STRETCH)
    length = (before + after - 2 * MOST_JITTER) // SHAPE_BLOCK * SHAPE_BLOCK
    if length < SHORTEST_STRETCH:
        return None
    begin = at_first - before + MOST_JITTER
    reference = _stretch(first.samples, begin, length)
    wide = _stretch(second.samples, at_second - before, length + 2 * MOST_JITTER)
    lead = min(first_varying(first) or 0, len(wide) - 1)
    if (
        abs(_correlation(_blocks(reference[lead]), _blocks(wide[lead, MOST_JITTER : MOST_JITTER + length])))
        < SIMILAR_STRETCH
    ):
        return None  # most pairs of anchors: alike for a heart beat, not for a second
    lagged = np.lib.stride_tricks.sliding_window_view(wide[lead], length)
    lag = int(np.argmax(np.abs(_unit(lagged) @ _unit(reference[lead][None])[0])))
    return _copy_similarity(reference, wide[:, lag : lag + length])


def _blocks(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(samples.reshape(-1, SHAPE_BLOCK).mean(axis=1))


def _stretch(samples: NDArray[Any], begin: int, length: int) -> NDArray[np.float64]:
    stretch = np.asarray(samples[..., begin : begin + length], dtype=np.float64)
    return np.where(np.isfinite(stretch), stretch, 0.0)


def _copy_similarity(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    """The smallest correlation over variates, or None if any of them is no copy or none is distinctive."""
    smallest, distinctive = 1.0, False
    for item, other in zip(first, second, strict=False):
        item, other = item - item.mean(), other - other.mean()
        if not item.any() and not other.any():
            continue
        similarity = abs(_correlation(item, other))
        exact = min(similarity, abs(_correlation(np.diff(item), np.diff(other)))) >= EXACT
        if not exact and not (
            similarity >= NOISY and _is_white(other - item * (item @ other) / (item @ item))
        ):
            return None
        smallest = min(smallest, similarity)
        distinctive = distinctive or _is_distinctive(item, other)
    return round(float(smallest), 6) if distinctive else None


def _is_white(residual: NDArray[np.float64]) -> bool:
    return bool(abs(residual[1:] @ residual[:-1]) <= WHITE * (residual @ residual))


def _is_distinctive(
    samples: NDArray[np.float64], other: NDArray[np.float64], finer: NDArray[np.float64] | None = None
) -> bool:
    """Whether two signals that are alike must be copies, because they would not be so by chance.

    Linear trends do not count. The two must be alike beside the largest event too, which rules out
    a lone spike or step; share more frequencies than a sine or slow course has; and be more alike than either
    is to itself some time later, which rules out whatever repeats (looked for in ``finer`` samples, if given).
    """
    samples, other = detrend(samples), detrend(other)
    beside, beside_other = _beside_event(samples, samples), _beside_event(other, samples)
    flat = beside.std() < 1e-6 * samples.std()  # what rounding leaves of a level
    if flat or abs(_correlation(beside, beside_other)) < BESIDE_EVENT:
        return False
    window = blackmanharris(len(samples))
    power = np.abs(np.fft.rfft(window * samples)) ** 2
    noise = np.abs(np.fft.rfft(window * (samples - other * (samples @ other) / (other @ other)))) ** 2
    floor = max(ABOVE_NOISE * noise.mean(), LEAST_POWER * power.mean())
    if np.count_nonzero(power > floor) < FEWEST_FREQUENCIES:
        return False
    apart = 1 - abs(_correlation(samples, other)) + 1e-6
    return apart < BETTER_THAN_SELF * (1 - _self_similarity(samples if finer is None else detrend(finer)))


def _beside_event(samples: NDArray[np.float64], where: NDArray[np.float64]) -> NDArray[np.float64]:
    """Both sides of the largest change of ``where``, each without its trend."""
    width = max(1, len(where) // 64)
    event = width + int(np.argmax(np.abs(where[2 * width :] - where[: -2 * width])))
    sides = samples[: max(event - 2 * width, 0)], samples[event + 2 * width :]
    return np.concatenate([detrend(side) for side in sides if len(side) > 2])


def _self_similarity(samples: NDArray[np.float64]) -> float:
    """Largest autocorrelation beyond its first zero crossing."""
    n = len(samples)
    lags = np.arange(n // 2 + 1)
    products = correlate(samples, samples, mode="full", method="fft")[n - 1 + lags]
    sums, squares = (np.concatenate([[0.0], np.cumsum(item)]) for item in (samples, samples**2))
    head, tail = sums[n - lags], sums[n] - sums[lags]
    energy = (squares[n - lags] - head**2 / (n - lags)) * (squares[n] - squares[lags] - tail**2 / (n - lags))
    similarity = (products - head * tail / (n - lags)) / np.sqrt(np.maximum(energy, np.finfo(float).tiny))
    lost = np.flatnonzero(similarity <= 0)
    return float(np.abs(similarity[lost[0] :]).max()) if len(lost) else 0.0


# The whole course -------------------------------------------------------------------------------------------


def _resampled(
    series: Sequence[Series], chosen: Sequence[int], parts: NDArray[Any]
) -> Iterator[NearDuplicate]:
    chosen = [index for index in chosen if series[index].n_samples >= N_BINS]
    if not chosen:
        return
    courses = np.stack([_course(series[index]) for index in chosen])
    members, part = np.asarray(chosen), parts[chosen]
    done = set()
    farthest = np.sqrt(2 - 2 * COARSEST_COURSE)
    for query, target, distance in _nearest_across(courses, part, n_neighbors=N_CANDIDATES, signs=(1, -1)):
        pair = tuple(sorted((int(members[query]), int(members[target]))))
        if distance > farthest or pair in done:
            continue
        done.add(pair)
        similarity = resampled_similarity(series[pair[0]], series[pair[1]])
        if similarity >= RESAMPLED:
            yield NearDuplicate(pair[0], pair[1], "resampled", round(similarity, 6))


def _course(series: Series) -> NDArray[np.float32]:
    """Bin means and their differences, both of norm 1: level and scale do not matter."""
    row = series.samples[first_varying(series) or 0]
    means = _bin_means(row, np.linspace(0, len(row), N_BINS + 1))
    return (np.concatenate([_unit(means[None])[0], _unit(np.diff(means)[None])[0]]) / np.sqrt(2)).astype(
        np.float32
    )


def _bin_means(row: NDArray[Any], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of the samples between edges ``(..., n_bins + 1)``, which may be fractions; gaps count as the first."""
    origin = float(row[0]) if np.isfinite(row[0]) else 0.0
    integral, total = np.zeros(edges.shape), 0.0
    for begin, part in _chunks(row):
        samples = np.asarray(part, dtype=np.float64) - origin
        sums = np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(samples), samples, 0.0))])
        here = edges >= begin  # later chunks correct what lies beyond this one
        integral[here] = total + np.interp(edges[here] - begin, np.arange(len(sums)), sums)
        total += sums[-1]
    return np.asarray(np.diff(integral) / np.diff(edges))


def resampled_similarity(first: Series, second: Series) -> float:
    """How well the bins of the shorter series follow from those of the longer one, both at one coarse rate.

    Bins are about four samples of the shorter series wide. Its bins are fitted by those of the other, taken
    half a sample and a sample early and late, which covers shifts, pooling of overlapping stretches and the
    filters of resampling. Returned is the smallest correlation, over variates, of fit and bins or of both in
    differences; 0 where that is high although the signals are not distinctive.
    """
    if first.n_samples < second.n_samples:
        first, second = second, first
    best = 0.0
    by_length = first.n_samples / second.n_samples
    for ratio in {first.rate / second.rate, by_length, float(round(by_length))}:  # a stated rate may be wrong
        n_low = int(min(second.n_samples, first.n_samples / ratio))
        if abs(n_low - second.n_samples) > 0.05 * second.n_samples:
            continue  # at this ratio it would be no copy of the whole
        width = max(4 if n_low > 8 * FEWEST_BINS else 2, -(-n_low // MOST_BINS))
        n_bins = (n_low - 2) // width
        if n_bins < FEWEST_BINS:
            continue
        # Whole samples of the lower rate, so that nothing is interpolated there.
        edges: NDArray[np.float64] = np.arange(1, n_bins * width + 2, width).astype(np.float64)
        alike, distinctive = 1.0, False
        for sample, other in zip(first.samples, second.samples, strict=False):
            bins = _bin_means(other, edges)
            shifted = _bin_means(sample, (edges + np.array(SHIFTS)[:, None]) * ratio).T
            if np.ptp(bins) > 0 or np.ptp(shifted) > 0:
                fit = _fitted(shifted, bins)
                here = min(_correlation(fit, bins), _correlation(np.diff(fit), np.diff(bins)))
                alike = min(alike, here)
                if here < RESAMPLED or (
                    not distinctive and _is_distinctive(bins, fit, _stretch(other, 0, LONGEST_LOOK))
                ):
                    distinctive = True
            if alike < best:
                break
        best = max(best, alike if distinctive else 0.0)
    return float(best)


def _fitted(shifted: NDArray[np.float64], bins: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least-squares fit of ``bins`` by columns."""
    columns = shifted - shifted.mean(axis=0)
    return np.asarray(columns @ np.linalg.lstsq(columns, bins - bins.mean(), rcond=1e-6)[0])


# Shared -----------------------------------------------------------------------------------------------------


def _nearest_across(
    vectors: NDArray[np.float32], parts: NDArray[Any], *, n_neighbors: int, signs: tuple[int, ...] = (1,)
) -> Iterator[tuple[int, int, float]]:
    """For every vector the nearest ones in parts with more vectors: each pair of parts is searched once."""
    from sklearn.neighbors import NearestNeighbors

    names, counts = np.unique(parts, return_counts=True)
    by_size = names[np.argsort(counts, kind="stable")]
    for position, name in enumerate(by_size[:-1]):
        queries = np.flatnonzero(parts == name)
        for other in by_size[position + 1 :]:
            targets = np.flatnonzero(parts == other)
            search = NearestNeighbors(n_neighbors=min(n_neighbors, len(targets)), algorithm="brute")
            search.fit(vectors[targets])
            for sign in signs:
                distances, found = search.kneighbors(sign * vectors[queries])
                for query, near, far in zip(queries, found, distances, strict=True):
                    for target, distance in zip(near, far, strict=True):
                        yield int(query), int(targets[target]), float(distance)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows centred and of norm 1; a constant row becomes zeros."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.where(norms > 0, norms, 1.0))


def _correlation(samples: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(_unit(samples[None])[0] @ _unit(other[None])[0])
