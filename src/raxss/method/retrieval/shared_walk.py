"""Windows with gaps where windows overlap much: sums over shared samples, by recurrence along diagonals.

    Search, lists of its whole windows -> lists of all windows

Its twin is `join_gaps`, by matrix products. The sums that a similarity is made of,

    sum_S x y, sum_S x², sum_S y², sum_S x, sum_S y, |S|    with x and y 0 where missing,

change from windows (k, j) to (k + 1, j + 1) by one stride of samples that enter and one that leave. The matrix of
similarities is walked in tiles. In each, sums start anew, of samples relative to their mean in the stretch that the
tile covers, so that an offset costs no digits. A pair whose shared samples vary little beside that stretch is
compared by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raxss._core.threads import compiled, run_on_threads
from raxss.method.retrieval.kernels import (
    GRID,
    LAST_PLACE,
    NO_KEY,
    NONE,
    PLACE_BITS,
    insert,
    on_grid,
    read_keys,
)
from raxss.method.retrieval.search import Lists, Search
from raxss.method.retrieval.shared_samples import FLAT_SHARED, LEAST_SHARED

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Keys = NDArray[np.int64]  # (n_windows, n_neighbors) see `insert`

_SIDE = 256  # windows a side of a tile: its sums stay in the nearest caches
_OVERLAP = 8  # least number of strides in a window
_FAINTEST = 1e-100  # products of fainter windows would vanish; the loudest sample is 1
_SURE = 1e-5  # of the squares in a stretch: of less, a recurrence has lost too many digits
_SHARED, _PRODUCT, _OWN, _OTHER, _TOTALS = range(5)  # places of the sums; the other window's totals are last


class WindowsWithGaps(NamedTuple):
    """What the loops need of a search."""

    samples: Floats  # (n_variates, n_samples) 0 where missing
    present: Flags  # (n_samples,)
    length: int
    stride: int
    centred: bool
    norms: Floats  # (n_windows,) of the samples that a window has; 0 where it is flat
    whole: Flags  # (n_windows,) nothing is missing
    in_bank: Flags  # (n_windows,)
    gap: int
    farthest: int


class Stretch(NamedTuple):
    """Samples under some consecutive windows, apart by their place within a stride; 0 where missing."""

    values: Floats  # (n_variates, stride, n)
    squares: Floats  # (stride, n) summed over the variates
    mask: Floats  # (stride, n) 1 where present


def suits_walk(search: Search) -> bool:
    """Whether windows with gaps can be compared by recurrence, and this is cheaper than matrix products."""
    overlap = _OVERLAP * search.stride <= search.window_length
    if not overlap or search.spread_gap > 1 or not search.with_gaps.any():
        return False
    norms = _norms(search)
    return bool(norms[norms > 0].min(initial=1.0) > _FAINTEST)


def walk_gaps(search: Search, found: Lists, *, side: int = _SIDE, n_threads: int | None = None) -> Lists:
    """Lists of all windows, from those of ``search.without_gaps``; the same for any number of threads."""
    gaps = np.flatnonzero(search.with_gaps)
    windows = WindowsWithGaps(
        samples=search.samples,
        present=search.present,
        length=search.window_length,
        stride=search.stride,
        centred=search.centred,
        norms=_norms(search),
        whole=~search.with_gaps & ~search.nonfinite,
        in_bank=np.isin(np.arange(search.n_windows), search.bank),
        gap=search.gap,
        farthest=search.farthest,
    )
    runs = np.split(gaps, np.flatnonzero(np.diff(gaps) > 1) + 1)
    tops = [top for run in runs for top in run[::side]]
    places = [*np.searchsorted(gaps, tops), len(gaps)]
    listed = found[1] >= 0
    levels = np.where(listed, found[0] / GRID, 0.0).astype(np.int64)
    keys = np.where(listed, (levels << PLACE_BITS) + LAST_PLACE - found[1], NO_KEY)
    lefts = range(0, search.n_windows, side)
    pending = iter(lefts)
    of_threads: list[Keys] = []  # lists of windows with gaps

    def on_thread() -> Iterator[None]:
        own = np.full((len(gaps), search.n_neighbors), NO_KEY)
        of_threads.append(own)
        for left in pending:
            right = min(left + side, search.n_windows)
            columns = lay_out(windows, left, right)
            for k, top in enumerate(tops):
                lists = own[places[k] : places[k + 1]]
                walk_tile(windows, top, top + len(lists), left, right, columns, lists, keys)
            yield

    run_on_threads(on_thread, n_tasks=len(lefts), n_threads=n_threads)
    together = np.sort(np.concatenate(of_threads, axis=1), axis=1)
    keys[gaps] = together[:, : -search.n_neighbors - 1 : -1]
    similarity = np.empty(keys.shape)
    read_keys(keys, PLACE_BITS, similarity, keys)
    return similarity, keys


def _norms(search: Search) -> Floats:
    """``(n_windows,)`` norms of the samples that windows have; 0 where flat or not usable."""
    norms = search.norms.copy()
    norms[search.with_gaps] = search.gap_norms
    norms[search.flat | search.nonfinite] = 0.0
    return norms


@compiled
def lay_out(windows: WindowsWithGaps, first: int, end: int) -> tuple[Stretch, float]:
    """Samples under the windows from ``first`` to ``end``, relative to their mean, and the sum of their squares."""
    n_variates, stride = len(windows.samples), windows.stride
    begin = first * stride
    n = (end - 1 - first) * stride + windows.length
    n_columns = n // stride + 1
    present = windows.present[begin : begin + n]
    n_present = max(present.sum(), 1)
    values = np.zeros((n_variates, stride, n_columns))
    squares, mask = np.zeros((stride, n_columns)), np.zeros((stride, n_columns))
    energy = 0.0
    for variate in range(n_variates):
        samples = windows.samples[variate, begin : begin + n]
        mean = samples.sum() / n_present if windows.centred else 0.0
        for t in range(n):
            if present[t]:
                value = samples[t] - mean
                values[variate, t % stride, t // stride] = value
                squares[t % stride, t // stride] += value * value
                mask[t % stride, t // stride] = 1.0
                energy += value * value
    return Stretch(values, squares, mask), energy


@compiled
def walk_tile(
    windows: WindowsWithGaps,
    top: int,
    bottom: int,
    left: int,
    right: int,
    laid_out: tuple[Stretch, float],  # of the columns
    lists: Keys,  # (bottom - top, n_neighbors) of the rows, which all have gaps
    keys: Keys,  # (n_windows, n_neighbors) of the columns
) -> None:
    """Compare each row with each column, and put both into the lists of the other where they belong there."""
    reaching = left - bottom < windows.farthest and top - right < windows.farthest
    if not reaching or not (windows.in_bank[left:right].any() or windows.in_bank[top:bottom].any()):
        return
    columns, column_energy = laid_out
    rows, row_energy = lay_out(windows, top, bottom)
    length, stride, centred = windows.length, windows.stride, windows.centred
    n_rows, n_columns, n_variates = bottom - top, right - left, len(windows.samples)
    n_sums = 4 + 2 * n_variates
    # The sums of row k and column j are at j + n_rows - 1 - k, so that they stay in place along a diagonal.
    sums = np.zeros((n_sums, n_rows + n_columns - 1))
    edge = np.zeros((n_sums, n_rows))  # of all rows with the first column
    for tap in range(length):
        add_products(sums, n_rows - 1, n_columns, rows, tap, columns, tap, 1.0, centred)
        add_products(edge, 0, n_rows, columns, tap, rows, tap, 1.0, centred)
    for k in range(1, n_rows):
        at = n_rows - 1 - k
        sums[_SHARED, at], sums[_PRODUCT, at] = edge[_SHARED, k], edge[_PRODUCT, k]
        sums[_OWN, at], sums[_OTHER, at] = edge[_OTHER, k], edge[_OWN, k]
        for variate in range(n_variates):
            own, other = _TOTALS + variate, _TOTALS + n_variates + variate
            sums[own, at], sums[other, at] = edge[other, k], edge[own, k]
    least = LEAST_SHARED * length
    similarity, varied = np.empty(n_columns), np.empty((2, n_columns))
    bars = np.full(n_columns, NONE)
    for c in range(n_columns):
        bars[c] = bar_of(keys, left + c)
    for k in range(n_rows):
        at, row = n_rows - 1 - k, top + k
        if k > 0:
            before = (k - 1) * stride
            for leaving in range(stride):
                entering = leaving + length
                for tap, sign in ((leaving, -1.0), (entering, 1.0)):
                    add_products(sums, at + 1, n_columns - 1, rows, before + tap, columns, tap, sign, centred)
        similarities(sums[:, at : at + n_columns], centred, similarity, varied)
        bar, norm = bar_of(lists, k), windows.norms[row]
        for c in range(n_columns):
            column, value = left + c, similarity[c]
            far = abs(column - row)
            wanted = windows.in_bank[column] or (windows.whole[column] and windows.in_bank[row])
            if far < windows.gap or far > windows.farthest or not wanted or sums[_SHARED, at + c] < least:
                continue
            other = windows.norms[column]
            if norm == 0.0 or other == 0.0:
                value = 0.0
            else:
                own_part, other_part = varied[0, c], varied[1, c]
                if own_part < _SURE * row_energy or other_part < _SURE * column_energy:
                    value, own_part, other_part = compare(windows, row, column)
                if own_part <= (FLAT_SHARED * norm) ** 2 or other_part <= (FLAT_SHARED * other) ** 2:
                    value = 0.0
            if value >= bar and windows.in_bank[column]:
                bar = insert(lists, k, on_grid(value), column) - GRID
            if value >= bars[c] and windows.whole[column] and windows.in_bank[row]:
                bars[c] = insert(keys, column, on_grid(value), row) - GRID


@compiled
def bar_of(keys: Keys, query: int) -> float:
    """The similarity that enters a list."""
    worst = keys[query, keys.shape[1] - 1]
    return NONE if worst == NO_KEY else (worst >> PLACE_BITS) * GRID - GRID


@compiled
def add_products(
    sums: Floats,  # (4 + 2 n_variates, n_sums)
    at: int,
    n: int,
    one: Stretch,
    place: int,  # sample of one
    others: Stretch,
    first: int,  # sample of the first of the others; one stride further for each of them
    sign: float,
    centred: bool,
) -> None:
    """Add what a sample of one window and samples of n others have in the sums, or take it away."""
    n_variates, stride, _ = one.values.shape
    phase, step = place % stride, place // stride
    if one.mask[phase, step] == 0.0:
        return
    other_phase, begin = first % stride, first // stride
    mask = others.mask[other_phase, begin : begin + n]
    add(sums[_SHARED, at : at + n], sign, mask)
    add(sums[_OWN, at : at + n], sign * one.squares[phase, step], mask)
    add(sums[_OTHER, at : at + n], sign, others.squares[other_phase, begin : begin + n])
    for variate in range(n_variates):
        value = sign * one.values[variate, phase, step]
        values = others.values[variate, other_phase, begin : begin + n]
        add(sums[_PRODUCT, at : at + n], value, values)
        if centred:
            add(sums[_TOTALS + variate, at : at + n], value, mask)
            add(sums[_TOTALS + n_variates + variate, at : at + n], sign, values)


@compiled
def add(sums: Floats, factor: float, values: Floats) -> None:
    """``sums += factor * values``."""
    for c in range(len(sums)):
        sums[c] += factor * values[c]


@compiled
def similarities(sums: Floats, centred: bool, similarity: Floats, varied: Floats) -> None:
    """Similarity ``(n,)``, and squares of both windows relative to their means over shared samples ``(2, n)``."""
    n_variates = (len(sums) - _TOTALS) // 2 if centred else 0
    own, other = varied
    similarity[:], own[:], other[:] = sums[_PRODUCT], sums[_OWN], sums[_OTHER]
    for variate in range(n_variates):
        total, other_total = sums[_TOTALS + variate], sums[_TOTALS + n_variates + variate]
        for c in range(len(similarity)):
            share = 1.0 / max(sums[_SHARED, c], 1.0)
            similarity[c] -= total[c] * other_total[c] * share
            own[c] -= total[c] * total[c] * share
            other[c] -= other_total[c] * other_total[c] * share
    for c in range(len(similarity)):
        similarity[c] /= np.sqrt(max(own[c] * other[c], 1e-300))


@compiled
def compare(windows: WindowsWithGaps, row: int, column: int) -> tuple[float, float, float]:
    """Similarity of one pair, and squares of both relative to their means over shared samples."""
    length, first, second = windows.length, row * windows.stride, column * windows.stride
    both = windows.present[first : first + length] & windows.present[second : second + length]
    n = both.sum()
    product = own = other = 0.0
    for variate in range(len(windows.samples)):
        x = windows.samples[variate, first : first + length]
        y = windows.samples[variate, second : second + length]
        x_mean = y_mean = 0.0
        if windows.centred:
            for t in range(length):
                if both[t]:
                    x_mean += x[t] / n
                    y_mean += y[t] / n
        for t in range(length):
            if both[t]:
                product += (x[t] - x_mean) * (y[t] - y_mean)
                own += (x[t] - x_mean) ** 2
                other += (y[t] - y_mean) ** 2
    return product / (np.sqrt(own) * np.sqrt(other) + 1e-300), own, other
