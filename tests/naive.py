"""The paper's equations as plain double loops in float64: slow, obvious, and shared with nothing under test.

    samples -> similarity of every pair -> lists, support -> weights -> series probability

Every sum is exact (math.fsum) before it is rounded once. At the end: a kernel of ROCKET, augmentation of
windows, PPV features of MiniROCKET, probes of faithfulness, and keys of near-duplicate stretches.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

TIE = 1e-9  # similarities closer than this count as equal when lists are compared


@dataclass
class Lists:
    similarity: NDArray[np.float64]  # (n_windows, n_neighbors), NaN where there is none
    neighbors: NDArray[np.int64]  # (n_windows, n_neighbors), -1 where there is none
    support: NDArray[np.float64]  # (n_windows,)
    flat: NDArray[np.bool_]
    nonfinite: NDArray[np.bool_]
    lonely: NDArray[np.bool_]
    matrix: NDArray[np.float64]  # (n_windows, n_windows) every similarity
    starts: NDArray[np.int64]  # (n_windows,)


def starts_of(n_samples: int, window_length: int, stride: int) -> list[int]:
    starts = [0]
    while starts[-1] + stride + window_length <= n_samples:
        starts.append(starts[-1] + stride)
    return starts


Window = list[list[float]]  # of each variate its samples, NaN where missing


def window_vectors(
    samples: ArrayLike, window_length: int, stride: int, measure: str
) -> tuple[list[Window], list[bool], list[bool]]:
    """Each window, centred (Pearson) or raw (cosine) over the samples that it has; flat; mostly missing.

    A sample is missing where any variate is not finite.
    """
    variates = np.atleast_2d(np.asarray(samples, dtype=np.float64)).tolist()
    starts = starts_of(len(variates[0]), window_length, stride)
    present = [all(map(math.isfinite, column)) for column in zip(*variates, strict=True)]
    length = min(window_length, len(present))
    windows: list[Window] = [[] for _ in starts]
    flat = [True for _ in starts]
    gone = [2 * (length - sum(present[start : start + length])) > length for start in starts]
    for variate in variates:
        finite = [value for value in variate if math.isfinite(value)]
        series_mean = math.fsum(finite) / len(finite) if finite else 0.0
        farthest = max((abs(value - series_mean) for value in finite), default=0.0)
        for k, start in enumerate(starts):
            if gone[k]:
                continue
            level = series_mean if measure == "pearson" else 0.0
            places = range(start, start + length)
            window = [variate[t] - level if present[t] else math.nan for t in places]
            if measure == "pearson":
                window = _centred(window)
                deviation = math.sqrt(_squares(window) / sum(present[t] for t in places))
                flat[k] = flat[k] and deviation <= 1e-6 * farthest
            else:
                flat[k] = flat[k] and all(value == 0 for value in window if not math.isnan(value))
            windows[k].append(window)
    return windows, [a and not b for a, b in zip(flat, gone, strict=True)], gone


def _centred(values: list[float]) -> list[float]:
    known = [value for value in values if not math.isnan(value)]
    mean = math.fsum(known) / len(known)
    return [value - mean for value in values]


def _squares(values: list[float]) -> float:
    return math.fsum(value * value for value in values if not math.isnan(value))


def _phi(first: Window, second: Window, measure: str) -> float:
    """Over the samples that both have: -inf where these are less than a quarter, 0 where one has no shape there."""
    places = [t for t, (a, b) in enumerate(zip(first[0], second[0], strict=True)) if not math.isnan(a + b)]
    if 4 * len(places) < len(first[0]):
        return -math.inf
    shared = [[[variate[t] for t in places] for variate in window] for window in (first, second)]
    if measure == "pearson":
        shared = [[_centred(variate) for variate in window] for window in shared]
    squares = [math.fsum(map(_squares, window)) for window in shared]
    for window, of_shared in zip((first, second), squares, strict=True):
        if len(places) < len(first[0]) and of_shared <= 1e-8 * math.fsum(map(_squares, window)):
            return 0.0
    product = math.fsum(a * b for x, y in zip(*shared, strict=True) for a, b in zip(x, y, strict=True))
    return product / (math.sqrt(squares[0]) * math.sqrt(squares[1]))


def similarity(samples: ArrayLike, window_length: int, stride: int, measure: str) -> NDArray[np.float64]:
    """phi of every pair of windows; 0 where one is flat, NaN where one is mostly missing."""
    vectors, flat, nonfinite = window_vectors(samples, window_length, stride, measure)
    return _every_pair(vectors, flat, nonfinite, measure)


def _every_pair(
    windows: list[Window], flat: Sequence[bool], nonfinite: Sequence[bool], measure: str
) -> NDArray[np.float64]:
    n = len(windows)
    matrix = np.empty((n, n))
    for k in range(n):
        for j in range(n):
            if nonfinite[k] or nonfinite[j]:
                matrix[k, j] = math.nan
            elif flat[k] or flat[j]:  # where too little is shared they are not eligible either
                whole = [[0.0 * value for value in window[0]] for window in (windows[k], windows[j])]
                matrix[k, j] = min(_phi([whole[0]], [whole[1]], "none"), 0.0) if _have_gaps(whole) else 0.0
            else:
                matrix[k, j] = _phi(windows[k], windows[j], measure)
    return matrix


def _have_gaps(windows: Sequence[list[float]]) -> bool:
    return any(math.isnan(value) for window in windows for value in window)


def lists_of(
    matrix: NDArray[np.float64],
    starts: Sequence[int],
    flat: Sequence[bool],
    nonfinite: Sequence[bool],
    *,
    n_neighbors: int = 10,
    exclusion: int = 0,
    spread: int = 0,
    bank: Sequence[int] | None = None,
    reach: int | None = None,  # most windows between query and neighbor
) -> Lists:
    """Greedy from the best down; similarities within TIE are equal, and then the earlier start is first."""
    n = len(starts)
    out = Lists(
        np.full((n, n_neighbors), math.nan),
        np.full((n, n_neighbors), -1),
        np.zeros(n),
        np.asarray(flat, dtype=bool),
        np.asarray(nonfinite, dtype=bool),
        np.zeros(n, dtype=bool),
        matrix,
        np.asarray(starts),
    )
    for k in range(n):
        eligible = [
            j
            for j in sorted(set(range(n) if bank is None else bank))
            if not nonfinite[k] and not nonfinite[j] and abs(starts[j] - starts[k]) > exclusion
            if reach is None or abs(j - k) <= reach
            if matrix[k, j] > -math.inf
        ]
        for rank in range(n_neighbors):
            if not eligible:
                break
            best = max(matrix[k, j] for j in eligible)
            chosen = next(j for j in eligible if matrix[k, j] >= best - TIE)
            out.similarity[k, rank] = matrix[k, chosen]
            out.neighbors[k, rank] = chosen
            eligible = [j for j in eligible if j != chosen and abs(starts[j] - starts[chosen]) > spread]
    out.support, out.lonely = support_of(out.similarity, flat, nonfinite)
    return out


def support_of(
    similarity: NDArray[np.float64], flat: Sequence[bool], nonfinite: Sequence[bool]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Mean of each list, and which windows are lonely: they borrow the mean of the others."""
    listed = [[float(s) for s in row if not math.isnan(s)] for row in similarity]
    own = [math.fsum(row) / len(row) for row in listed if row]
    support = np.zeros(len(listed))
    lonely = np.zeros(len(listed), dtype=bool)
    for k, row in enumerate(listed):
        if nonfinite[k]:
            support[k] = math.nan
        elif row:
            support[k] = math.fsum(row) / len(row)
        else:
            lonely[k] = True
            support[k] = math.fsum(own) / len(own) if own and not flat[k] else 0.0
    return support, lonely


def retrieve(
    samples: ArrayLike, window_length: int, stride: int = 1, *, measure: str = "pearson", **settings: Any
) -> Lists:
    """Eq. (1) for every window of a series; settings as in `lists_of`."""
    vectors, flat, nonfinite = window_vectors(samples, window_length, stride, measure)
    starts = starts_of(np.atleast_2d(np.asarray(samples)).shape[1], window_length, stride)
    return lists_of(_every_pair(vectors, flat, nonfinite, measure), starts, flat, nonfinite, **settings)


def nearest_at_once(samples: ArrayLike, found: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Lists under the settings and flags of a retrieval by one product of all windows, for thousands of them.

    Windows with gaps are compared one by one with all others, over the samples that both have.
    """
    rows = np.atleast_2d(np.asarray(samples, dtype=np.float64))
    missing = ~np.isfinite(rows).all(axis=0)
    rows = np.where(np.isfinite(rows), rows, np.nan)
    if found.measure == "pearson":
        rows = rows - np.nanmean(rows, axis=1, keepdims=True)
    rows = np.nan_to_num(rows / np.nanmax(np.abs(rows)))
    windows = np.lib.stride_tricks.sliding_window_view(rows, found.window_length, axis=1)[:, :: found.stride]
    masks = np.lib.stride_tricks.sliding_window_view(~missing, found.window_length)[:: found.stride]
    with_gaps = {
        k: _shared_with_all(windows, masks, k, found.measure) for k in np.flatnonzero(found.with_gaps)
    }
    if found.measure == "pearson":
        windows = windows - windows.mean(axis=2, keepdims=True)
    vectors = np.concatenate(list(windows), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[found.flat | found.nonfinite] = 0.0
    exact = vectors @ vectors.T
    for k, row in with_gaps.items():
        exact[k] = exact[:, k] = np.where(found.flat | found.flat[k], np.minimum(row, 0.0), row)
    exact = np.where(exact == -np.inf, exact, np.round(np.clip(exact, -1, 1) * 2.0**32) / 2.0**32)
    distance = np.abs(np.subtract.outer(np.arange(len(exact)), np.arange(len(exact))))
    exact[distance * found.stride <= found.exclusion] = -np.inf
    if found.bank == "local":
        exact[distance > found.bank_size // 2] = -np.inf
    exact[:, found.nonfinite] = -np.inf
    order = np.argsort(-exact, axis=1, kind="stable")[:, : found.n_neighbors]
    best = np.take_along_axis(exact, order, axis=1)
    best[found.nonfinite] = -np.inf
    listed = best > -np.inf
    return np.where(listed, best, np.nan), np.where(listed, order, -1)


def _shared_with_all(
    windows: NDArray[np.float64],  # (n_variates, n_windows, length)
    masks: NDArray[np.bool_],  # (n_windows, length)
    k: int,
    measure: str,
) -> NDArray[np.float64]:
    """Similarity of window k to every window over the samples that both have, -inf where these are too few."""
    shared = masks & masks[k]

    def centred(values: NDArray[np.float64], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        mean = values.sum(axis=-1, where=mask, keepdims=True) / np.maximum(mask.sum(axis=-1), 1)[..., None]
        return np.where(mask, values - (mean if measure == "pearson" else 0.0), 0.0)

    own = centred(np.broadcast_to(windows[:, k : k + 1], windows.shape), shared)
    others = centred(windows, shared)
    product = (own * others).sum(axis=(0, 2))
    squares = [np.square(item).sum(axis=(0, 2)) for item in (own, others)]
    whole = np.square(centred(windows, masks)).sum(axis=(0, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = product / np.sqrt(squares[0] * squares[1])
    found = np.where((squares[0] <= 1e-8 * whole[k]) | (squares[1] <= 1e-8 * whole), 0.0, found)
    return np.where(4 * shared.sum(axis=1) >= masks.shape[1], found, -np.inf)


def retrieve_features(
    features: ArrayLike,
    samples: ArrayLike,
    window_length: int,
    stride: int,
    *,
    measure: str = "cosine",
    **settings: Any,
) -> Lists:
    """Eq. (1) with one given vector a window; a vector is a window of all vectors laid end to end.

    A window whose signal has no shape (Pearson's rule, whatever the measure) is flat, and so is one whose vector
    is flat. A window whose signal is mostly missing, or whose vector is not finite, cannot be used.
    """
    _, shapeless, gone = window_vectors(samples, window_length, stride, "pearson")
    rows = np.asarray(features, dtype=np.float64).copy()
    rows[np.asarray(gone, dtype=bool) | ~np.isfinite(rows).all(axis=1)] = math.nan
    length = rows.shape[1]
    vectors, flat, nonfinite = window_vectors(rows.reshape(-1), length, length, measure)
    flat = [(a or b) and not c for a, b, c in zip(flat, shapeless, nonfinite, strict=True)]
    starts = starts_of(np.atleast_2d(np.asarray(samples)).shape[1], window_length, stride)
    return lists_of(_every_pair(vectors, flat, nonfinite, measure), starts, flat, nonfinite, **settings)


def batch_support(
    vectors: Tensor,  # (batch, d), float64
    series: Sequence[int],
    starts: Sequence[int],
    flat: Sequence[bool],
    n_neighbors: int,
    exclusion: int,
) -> Tensor:  # (batch,)
    """Eq. (1) within a batch as a loop over pairs; autograd follows every cosine by itself."""
    n, nothing = len(vectors), (vectors * 0.0).sum()
    lists: list[list[Tensor]] = []
    for k in range(n):
        row = []
        for j in range(n):
            if series[k] == series[j] and abs(starts[k] - starts[j]) > exclusion:
                norm = vectors[k].square().sum().sqrt() * vectors[j].square().sum().sqrt()
                row.append(nothing if flat[k] or flat[j] else (vectors[k] * vectors[j]).sum() / norm)
        lists.append(sorted(row, key=lambda entry: -entry.item())[:n_neighbors])
    supports = []
    for k in range(n):
        own = [torch.stack(lists[j]).mean() for j in range(n) if series[j] == series[k] and lists[j]]
        if lists[k]:
            supports.append(torch.stack(lists[k]).mean())
        else:
            supports.append(torch.stack(own).mean() if own and not flat[k] else nothing)
    return torch.stack(supports)


def window_weights(support: Sequence[float], temperature: float) -> list[float]:
    """Eq. (2): alpha_k = exp(s̄_k / tau) / sum_t exp(s̄_t / tau); exactly 0 where the support is NaN."""
    finite = [s for s in support if not math.isnan(s)]
    if not finite:
        return [0.0 for _ in support]
    top = max(finite)
    powers = [0.0 if math.isnan(s) else math.exp((s - top) / temperature) for s in support]
    total = math.fsum(powers)
    return [power / total for power in powers]


def series_probability(weights: Sequence[float], posteriors: Sequence[Sequence[float]]) -> list[float]:
    """Eq. (3): p̂_c = sum_k alpha_k p_{k,c}."""
    n_classes = len(posteriors[0])
    return [
        math.fsum(weight * posterior[c] for weight, posterior in zip(weights, posteriors, strict=True))
        for c in range(n_classes)
    ]


def smoothed(
    posteriors: Sequence[Sequence[float]],
    neighbors: Sequence[Sequence[int]],
    smoothing: float,
    left_out: Sequence[bool],
) -> list[list[float]]:
    """(1 - lambda) p_k + lambda · mean of p_j over the listed neighbors that are used; p_k where there are none."""
    out = []
    for own, row, alone in zip(posteriors, neighbors, left_out, strict=True):
        used = [] if alone else [posteriors[j] for j in row if j >= 0 and not left_out[j]]
        if used:
            means = [math.fsum(item[c] for item in used) / len(used) for c in range(len(own))]
            out.append([(1 - smoothing) * p + smoothing * q for p, q in zip(own, means, strict=True)])
        else:
            out.append(list(own))
    return out


def votes(
    weights: Sequence[float], neighbors: Sequence[Sequence[int]], smoothing: float, left_out: Sequence[bool]
) -> list[float]:
    """Share of each window's own posterior in a smoothed score."""
    out = [0.0 for _ in weights]
    for k, row in enumerate(neighbors):
        used = [] if left_out[k] else [j for j in row if j >= 0 and not left_out[j]]
        out[k] += weights[k] * ((1 - smoothing) if used else 1.0)
        for j in used:
            out[j] += smoothing * weights[k] / len(used)
    return out


def weight_without(similarity: ArrayLike, k: int, j: int, temperature: float) -> float:
    """Weight of window k when its j-th listed neighbor is left out and nothing takes its place."""
    left = np.array(similarity, dtype=np.float64)
    left[k, j] = math.nan
    support, _ = support_of(left, [False] * len(left), [False] * len(left))
    return window_weights(support.tolist(), temperature)[k]


def kernel_outputs(
    samples: ArrayLike,  # (n_variates, n_samples)
    weights: ArrayLike,  # (n_channels, length)
    channels: Sequence[int],
    *,
    bias: float,
    dilation: int,
    padding: int,
) -> list[float]:
    """Output of a convolution kernel at every place, with zero padding."""
    rows, taps = np.asarray(samples, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    n_samples, length = rows.shape[1], taps.shape[1]
    outputs = []
    for place in range(-padding, n_samples + padding - (length - 1) * dilation):
        terms = [bias]
        for k, channel in enumerate(channels):
            for j in range(length):
                if 0 <= place + j * dilation < n_samples:
                    terms.append(taps[k, j] * rows[channel, place + j * dilation])
        outputs.append(math.fsum(terms))
    return outputs


def augmented(windows: NDArray[Any], draws: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Windows (batch, n_variates, length) changed one by one and sample by sample, as was drawn for each."""
    return np.array(
        [
            _augmented(window.astype(np.float64), {kind: draw[k] for kind, draw in draws.items()})
            for k, window in enumerate(windows)
        ]
    )


def _augmented(window: NDArray[np.float64], draws: dict[str, Any]) -> NDArray[np.float64]:
    n_variates, length = window.shape
    for kind, draw in draws.items():
        before = window.copy()
        for v in range(n_variates):
            for t in range(length):
                value = before[v, t]
                if kind == "stretch":
                    value = _between((length - 1) / 2 + (t - (length - 1) / 2) * float(draw), before[v])
                elif kind == "mirror":
                    value *= draw[v]
                elif kind == "rotate":
                    first = v - v % 3
                    value = math.fsum(draw[v % 3, j] * before[first + j, t] for j in range(3))
                elif kind == "reverse":
                    value = before[v, length - 1 - t] if draw else value
                elif kind in ("flip", "gain"):
                    value *= draw
                elif kind == "mask":
                    hidden = draw[0] <= (t + 0.5) / length < draw[1]
                    value = math.fsum(before[v]) / length if hidden else value
                elif kind == "drop":
                    value = 0.0 if draw[v] else value
                elif kind == "noise":
                    value += draw[v, t]
                else:
                    raise ValueError(kind)
                window[v, t] = value
    return window


def _between(place: float, samples: NDArray[np.float64]) -> float:
    """The value at a place between two samples; beyond an end, that of the place as far before it."""
    last = len(samples) - 1
    while not 0 <= place <= last:
        place = -place if place < 0 else 2 * last - place
    low = math.floor(place)
    high = min(low + 1, last)
    return float(samples[low] + (place - low) * (samples[high] - samples[low]))


def shares(
    samples: ArrayLike,  # (n_rows, n_samples)
    rows: Sequence[int],
    dilations: Sequence[int],
    cuts: ArrayLike,  # (n_groups, 84, n_cuts)
) -> NDArray[np.float64]:
    """MiniROCKET's shares of places above thresholds, kernel by kernel: as `cuts`."""
    found = np.zeros_like(np.asarray(cuts, dtype=np.float64))
    for group, (row, dilation) in enumerate(zip(rows, dilations, strict=True)):
        for kernel, three in enumerate(combinations(range(9), 3)):
            taps = [[2.0 if j in three else -1.0 for j in range(9)]]
            outputs = kernel_outputs(samples, taps, [row], bias=0.0, dilation=dilation, padding=4 * dilation)
            for which, cut in enumerate(np.asarray(cuts)[group, kernel]):
                found[group, kernel, which] = sum(value > cut for value in outputs) / len(outputs)
    return found


# -- Probes of faithfulness ----------------------------------------------------------------------------------


def distinct_places(windows: NDArray[Any]) -> NDArray[np.int64]:
    """Windows of copies ``(n_copies, n_windows, ..)`` -> which of those seen before, at the same start, each is."""
    seen: dict[tuple[int, bytes], int] = {}
    places = np.empty(windows.shape[:2], dtype=np.int64)
    for copy in range(len(windows)):
        for start in range(windows.shape[1]):
            places[copy, start] = seen.setdefault((start, windows[copy, start].tobytes()), len(seen))
    return places


def without_needless(
    chosen: NDArray[np.bool_], candidates: Sequence[int], still_flips: Any
) -> NDArray[np.bool_]:
    """Each candidate put back if the decision stays flipped without it, one after the other."""
    chosen = chosen.copy()
    for candidate in candidates:
        chosen[candidate] = False
        if not still_flips([chosen.copy()])[0]:
            chosen[candidate] = True
    return chosen


def stretch_keys(samples: Sequence[float]) -> set[int]:
    """Keys of 256 samples around each place that departs most from its surroundings, sample by sample."""
    signal = [float(value) for value in samples]
    n = len(signal)
    clean = [value if math.isfinite(value) else None for value in signal]
    level = next((value for value in clean if value is not None), 0.0)
    flat = [0.0 if value is None else value - level for value in clean]

    def departure(place: int) -> float:
        if not 32 <= place < n - 32:
            return 0.0
        near, around = flat[place - 4 : place + 4], flat[place - 32 : place + 32]
        return abs(math.fsum(near) / 8 - math.fsum(around) / 64)

    heights = [departure(place) for place in range(n)]
    highest = [
        place
        for place in range(n)
        if heights[place] > 0 and heights[place] == max(heights[max(place - 64, 0) : place + 65])
    ]
    keys = set()
    for before, place in zip([-65, *highest], highest, strict=False):
        stretch = signal[place - 128 : place + 128] if 128 <= place <= n - 128 else []
        if place - before <= 64 or not stretch or not all(map(math.isfinite, stretch)):
            continue
        if sum(a != b for a, b in zip(stretch[1:], stretch, strict=False)) < 192:
            continue
        mean = math.fsum(stretch) / 256
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in stretch) / 256)
        upright = 1 if math.fsum(stretch[124:132]) / 8 >= math.fsum(stretch[96:160]) / 64 else -1
        steps = [round(32 * upright * (value - mean) / deviation) for value in stretch]
        content = b"".join(step.to_bytes(4, "little", signed=True) for step in steps)
        keys.add(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little"))
    return keys


# -- Cases ---------------------------------------------------------------------------------------------------


def case_similarity(query: Sequence[float], key: Sequence[float], measure: str) -> float:
    """Cosine, 0 where one is all zeros; or the negative squared distance."""
    if measure == "euclidean":
        return -math.fsum((a - b) ** 2 for a, b in zip(query, key, strict=True))
    norms = math.hypot(*query) * math.hypot(*key)
    return math.fsum(a * b for a, b in zip(query, key, strict=True)) / norms if norms else 0.0


def nearest_cases(
    query: Sequence[float],
    keys: Sequence[Sequence[float]],
    cases: Sequence[int],  # of each key
    groups: Sequence[Any],  # of each case
    *,
    measure: str,
    n_cases: int,
    group: Any,  # of the query, or None
    excluded: Sequence[int] = (),
    most_a_group: int | None = None,
    local: Sequence[bool] = (),  # of each case, or nothing
) -> list[tuple[int, int, float]]:
    """Case, best key and similarity, best first; similarities within TIE are equal: the earlier is first."""
    best: dict[int, tuple[float, int]] = {}
    for number, (key, case) in enumerate(zip(keys, cases, strict=True)):
        value = case_similarity(query, key, measure)
        if case not in best or value > best[case][0] + TIE:
            best[case] = value, number
    left = [case for case in best if case not in excluded and (group is None or groups[case] != group)]
    listed: list[tuple[int, int, float]] = []
    while left and len(listed) < n_cases:
        first = [case for case in left if local and local[case]] or left
        highest = max(best[case][0] for case in first)
        case = min(case for case in first if best[case][0] >= highest - TIE)
        left.remove(case)
        if most_a_group is None or sum(groups[other] == groups[case] for other, *_ in listed) < most_a_group:
            listed.append((case, best[case][1], best[case][0]))
    return listed


def case_score(
    keys: Any, case: Any, labels: Any, groups: Any, queries: Any, weights: Any, posteriors: Any, *,
    own: int | None, prior: Any, mixing: float, tau: float, least: float | None, n_cases: int, most_a_group: int,
) -> Any:  # fmt: skip
    """The score of one series with cases (`raxss.library.votes`), window by window and case by case."""
    n_classes = len(posteriors[0])
    visible = [j for j in range(len(labels)) if groups[j] != own]
    n_of_group = {group: sum(groups[j] == group for j in visible) for group in set(groups)}
    v = {j: 1.0 / min(n_of_group[groups[j]], most_a_group) for j in visible}
    if prior is not None:
        shares = {j: 1.0 / n_of_group[groups[j]] for j in visible}
        total = {c: sum(shares[j] for j in visible if labels[j] == c) for c in range(n_classes)}
        v = {j: v[j] * prior[labels[j]] / sum(prior) / total[labels[j]] for j in visible}
    score = [0.0] * n_classes
    for k, query in enumerate(queries):
        best = {}
        for j in visible:
            own_keys = [np.asarray(keys[i], dtype=np.float64) for i in range(len(case)) if case[i] == j]
            best[j] = max(float(query @ h / np.sqrt((query @ query) * (h @ h))) for h in own_keys)
        listed: list[int] = []
        for j in sorted(visible, key=lambda j: (-best[j], j)):
            if len(listed) < n_cases and sum(groups[i] == groups[j] for i in listed) < most_a_group:
                listed.append(j)
        votes = bool(listed) and (least is None or best[listed[0]] >= least)
        total_influence = sum(v[j] * np.exp(best[j] / tau) for j in listed)
        for c in range(n_classes):
            q = sum(v[j] * np.exp(best[j] / tau) for j in listed if labels[j] == c)
            mixed = (
                (1 - mixing) * posteriors[k][c] + mixing * q / total_influence if votes else posteriors[k][c]
            )
            score[c] += weights[k] * mixed
    return np.array(score)
