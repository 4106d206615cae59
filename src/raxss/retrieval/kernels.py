"""The inner loops of retrieval: choosing the nearest, and walking one tile of the window-by-window matrix.

    similarities of some rows (n_rows, n_columns) -> similarity, neighbors (n_rows, n_neighbors)
    a tile of the matrix, by recurrence           -> the same, or its similarities

One rule for every path: similarities are rounded to a grid of 2^-32, so that windows that are equally near
tie exactly whichever way their similarity was summed, and ties go to the earlier start.

Compiled functions that call each other share this file: the compiler's cache notices changes in a function's
own file only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raxss.retrieval.compiled import compiled

GRID = 2.0**-32
NONE = -np.inf  # in place of a similarity: not eligible, or nothing listed yet
_ROUNDER = 1.5 * 2.0**52 * GRID  # adding and subtracting it leaves a multiple of GRID
_SPAN = 128  # columns summarised by one maximum
_GLANCE = 64  # similarities of a tile compared with the lists at once


@compiled
def on_grid(similarity: float) -> float:
    """Round to the grid and to [-1, 1]."""
    return min(max((similarity + _ROUNDER) - _ROUNDER, -1.0), 1.0)


@compiled
def insert(
    similarity: NDArray[np.float64],  # (n_neighbors,) best first, NONE where empty
    neighbors: NDArray[np.int64],  # (n_neighbors,)
    value: float,
    window: int,
) -> None:
    """Put a window into a sorted list if it belongs there; the order of arrival does not matter."""
    place = len(similarity)
    while place > 0 and (
        similarity[place - 1] < value or (similarity[place - 1] == value and neighbors[place - 1] > window)
    ):
        place -= 1
    if place == len(similarity):
        return
    for shifted in range(len(similarity) - 1, place, -1):
        similarity[shifted] = similarity[shifted - 1]
        neighbors[shifted] = neighbors[shifted - 1]
    similarity[place] = value
    neighbors[place] = window


@compiled
def select_rows(
    similarities: NDArray[np.float64],  # (n_rows, n_columns), overwritten
    queries: NDArray[np.int64],  # (n_rows,) window indices
    bank: NDArray[np.int64],  # (n_columns,) window indices, ascending
    gap: int,
    spread_gap: int,
    top_similarity: NDArray[np.float64],  # (n_rows, n_neighbors) out
    top_neighbors: NDArray[np.int64],  # (n_rows, n_neighbors) out
) -> None:
    """List the nearest windows of each row, greedily from the best down, no two closer than ``spread_gap``.

    A neighbor lies at least ``gap`` windows from its query. ``spread_gap`` of 1 is the plain top list.
    """
    n_columns = len(bank)
    n_spans = (n_columns + _SPAN - 1) // _SPAN
    best = np.empty(n_spans)
    where = np.empty(n_spans, np.int64)
    for row in range(len(queries)):
        values = similarities[row]
        for column in range(n_columns):
            values[column] = on_grid(values[column])
        _forbid(values, bank, queries[row], gap)
        for span in range(n_spans):
            _best_of_span(values, span, best, where)
        for rank in range(top_similarity.shape[1]):
            chosen = 0
            for span in range(1, n_spans):
                if best[span] > best[chosen]:
                    chosen = span
            if n_spans == 0 or best[chosen] == NONE:
                break
            column = where[chosen]
            top_similarity[row, rank] = values[column]
            top_neighbors[row, rank] = bank[column]
            first, last = _forbid(values, bank, bank[column], spread_gap)
            for span in range(first // _SPAN, (last - 1) // _SPAN + 1):
                _best_of_span(values, span, best, where)


@compiled
def _forbid(values: NDArray[np.float64], bank: NDArray[np.int64], window: int, gap: int) -> tuple[int, int]:
    """Take every column closer than ``gap`` to ``window`` out of the running."""
    first, last = _too_close(bank, window, gap)
    values[first:last] = NONE
    return first, last


@compiled
def first_eligible(
    queries: NDArray[np.int64],
    bank: NDArray[np.int64],
    gap: int,
    similarity: NDArray[np.float64],  # (n_windows, n_neighbors) out
    neighbors: NDArray[np.int64],  # (n_windows, n_neighbors) out
) -> None:
    """List the earliest eligible windows with similarity 0: the nearest ones of a flat window."""
    for query in queries:
        first, last = _too_close(bank, query, gap)
        for rank in range(min(similarity.shape[1], len(bank) - (last - first))):
            similarity[query, rank] = 0.0
            neighbors[query, rank] = bank[rank if rank < first else rank + last - first]


@compiled
def _too_close(bank: NDArray[np.int64], window: int, gap: int) -> tuple[int, int]:
    """The columns closer than ``gap`` to ``window``: from, and up to."""
    return int(np.searchsorted(bank, window - gap + 1)), int(np.searchsorted(bank, window + gap))


@compiled
def _best_of_span(
    values: NDArray[np.float64], span: int, best: NDArray[np.float64], where: NDArray[np.int64]
) -> None:
    """Find the best column of a span, the earliest of equals."""
    best[span] = NONE
    where[span] = -1
    for column in range(span * _SPAN, min((span + 1) * _SPAN, len(values))):
        if values[column] > best[span]:
            best[span] = values[column]
            where[span] = column


@compiled
def walk_tile(
    row_first: int,
    row_end: int,
    column_first: int,
    column_end: int,
    strip: int,
    gap: int,  # only pairs with column - row >= gap
    length: int,
    stride: int,
    phases: NDArray[np.float64],  # these six: see Steps
    means: NDArray[np.float64],
    inverse: NDArray[np.float64],
    ahead: NDArray[np.float64],
    across: NDArray[np.float64],
    fresh: NDArray[np.bool_],
    similarity: NDArray[np.float64],  # (n_windows, n_neighbors) lists of rows and of columns
    neighbors: NDArray[np.int64],
    bar: NDArray[np.float64],  # (n_windows,) what a similarity must reach to be looked at
    rows: NDArray[np.float64],  # (n_rows, n_columns): write similarities here instead; or (0, 0)
) -> None:
    """Find every similarity of a tile by recurrence, and put it into the lists or into ``rows``.

    Starts from full products at the tile's upper and left edge and walks down its rows, a strip of columns at
    a time. c(i, j) keeps its place in memory along a diagonal, so a step is a sum over contiguous values.
    """
    n_rows = row_end - row_first
    # Row i holds columns at places that move one to the left with each row, so diagonals stay put.
    products = np.zeros(n_rows + column_end - column_first)
    for first in range(column_first, column_end, strip):
        end = min(first + strip, column_end)
        restarts = np.flatnonzero(fresh[first:end]) + first
        if first == column_first and not fresh[first]:
            restarts = np.concatenate((np.array([first]), restarts))
        restarted = np.zeros((len(restarts), n_rows))
        for which in range(len(restarts)):
            last = min(row_end, restarts[which] - gap + 1)
            full_products(restarts[which], row_first, last, length, stride, phases, means, restarted[which])
        for row in range(row_first, min(row_end, end - gap)):
            low = max(first, row + gap)
            place = row_end - 1 - row - column_first  # of column 0, were it in the tile
            here = products[place + low : place + end]
            if row == row_first or fresh[row]:
                full_products(row, low, end, length, stride, phases, means, here)
            for which in range(len(restarts)):
                if restarts[which] >= low:
                    here[restarts[which] - low] = restarted[which, row - row_first]
            if len(rows) > 0:
                _write(here, inverse[row], inverse[low:end], rows[row - row_first, low:end])
            else:
                for start in range(low, end, _GLANCE):
                    some = products[place + start : place + min(start + _GLANCE, end)]
                    if _any_reaches(some, row, start, inverse, bar):
                        _list(some, row, start, inverse, similarity, neighbors, bar)
            _advance(here, ahead[row], across, low)


@compiled
def full_products(
    window: int,
    first: int,
    end: int,
    length: int,
    stride: int,
    phases: NDArray[np.float64],
    means: NDArray[np.float64],
    products: NDArray[np.float64],  # (end - first,) out
) -> None:
    """Products of one centred window with the windows ``first`` to ``end``, from scratch."""
    n = end - first
    if n <= 0:
        return
    products[:n] = 0.0
    centred = np.empty(length)
    for variate in range(len(means)):
        base = variate * stride
        mean = means[variate, window]
        rest = 0.0  # what rounding leaves of the sum of the centred window
        for place in range(length):
            centred[place] = phases[base + place % stride, window + place // stride] - mean
            rest += centred[place]
        place = 0
        while place + 4 <= length:
            f0, f1, f2, f3 = centred[place], centred[place + 1], centred[place + 2], centred[place + 3]
            x0 = phases[base + place % stride, first + place // stride :]
            x1 = phases[base + (place + 1) % stride, first + (place + 1) // stride :]
            x2 = phases[base + (place + 2) % stride, first + (place + 2) // stride :]
            x3 = phases[base + (place + 3) % stride, first + (place + 3) // stride :]
            for other in range(n):
                products[other] += f0 * x0[other] + f1 * x1[other] + f2 * x2[other] + f3 * x3[other]
            place += 4
        while place < length:
            f0 = centred[place]
            x0 = phases[base + place % stride, first + place // stride :]
            for other in range(n):
                products[other] += f0 * x0[other]
            place += 1
        # The other windows were not centred, which matters only as far as this one's sum is not 0.
        for other in range(n):
            products[other] -= rest * means[variate, first + other]


@compiled
def _advance(
    products: NDArray[np.float64],
    factors: NDArray[np.float64],  # (n_terms,) of the row
    across: NDArray[np.float64],  # (n_terms, n_windows)
    low: int,
) -> None:
    """Take the products of a row to the next row, four terms at a time, then two: their number is even."""
    n = len(products)
    term = 0
    while term + 4 <= len(factors):
        f0, f1, f2, f3 = factors[term], factors[term + 1], factors[term + 2], factors[term + 3]
        x0, x1, x2, x3 = (
            across[term, low:],
            across[term + 1, low:],
            across[term + 2, low:],
            across[term + 3, low:],
        )
        for place in range(n):
            products[place] += f0 * x0[place] + f1 * x1[place] + f2 * x2[place] + f3 * x3[place]
        term += 4
    if term < len(factors):
        f0, f1 = factors[term], factors[term + 1]
        x0, x1 = across[term, low:], across[term + 1, low:]
        for place in range(n):
            products[place] += f0 * x0[place] + f1 * x1[place]


@compiled
def _any_reaches(
    products: NDArray[np.float64],
    row: int,
    first: int,
    inverse: NDArray[np.float64],
    bar: NDArray[np.float64],
) -> bool:
    """Whether any of these similarities may belong into the list of its row or its column."""
    inverse_row, bar_row = inverse[row], bar[row]
    inverses, bars = inverse[first:], bar[first:]
    n_reaching = 0
    for place in range(len(products)):
        n_reaching += products[place] * inverses[place] * inverse_row >= min(bar_row, bars[place])
    return n_reaching > 0


@compiled
def _list(
    products: NDArray[np.float64],
    row: int,
    first: int,
    inverse: NDArray[np.float64],
    similarity: NDArray[np.float64],
    neighbors: NDArray[np.int64],
    bar: NDArray[np.float64],
) -> None:
    """Put similarities into the lists of their row and their columns where they belong."""
    for place in range(len(products)):
        column = first + place
        value = products[place] * inverse[column] * inverse[row]
        if value >= bar[row]:
            insert(similarity[row], neighbors[row], on_grid(value), column)
            bar[row] = similarity[row, -1] - GRID  # half a step would do, had rounding no edges
        if value >= bar[column]:
            insert(similarity[column], neighbors[column], on_grid(value), row)
            bar[column] = similarity[column, -1] - GRID


@compiled
def _write(
    products: NDArray[np.float64],
    inverse_row: float,
    inverse: NDArray[np.float64],
    similarities: NDArray[np.float64],
) -> None:
    for place in range(len(products)):
        similarities[place] = products[place] * inverse[place] * inverse_row
