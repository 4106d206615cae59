"""The inner loops of retrieval: choosing the nearest, and walking one tile of the window-by-window matrix.

    similarities of some rows (n_rows, n_columns) -> similarity, neighbors (n_rows, n_neighbors)
    a tile of the matrix, by recurrence           -> the same
    some whole rows of it, by recurrence          -> their similarities

One rule for every path: similarities are rounded to a grid of 2^-32, so that windows that are equally near
tie exactly whichever way their similarity was summed, and ties go to the earlier start. vectors.py has the
inner block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raxss._core.threads import compiled
from raxss.method.retrieval.vectors import (
    COLUMNS,
    LANES,
    ROWS,
    SUMS,
    add_correlation,
    lowest_bit,
    reaching,
    walk_block,
)

GRID = 2.0**-32
NONE = -np.inf  # in place of a similarity: not eligible, or nothing listed yet
PLACE_BITS = 30  # of a key: what is left of 64 beside a similarity
LAST_PLACE = 2**PLACE_BITS - 1
NO_KEY = -(2**63)
_ROUNDER = 1.5 * 2.0**52 * GRID  # adding and subtracting it leaves a multiple of GRID
_SPAN = 128  # columns summarised by one maximum
_STRIP_VALUES = 2**13  # factors of the columns walked at once: 64 KB, which the nearest caches hold
_OUT = -1e300  # in place of a product: its pair is not eligible, whatever is added to it


@compiled
def on_grid(similarity: float) -> float:
    """Round to the grid and to [-1, 1]."""
    return min(max((similarity + _ROUNDER) - _ROUNDER, -1.0), 1.0)


@compiled
def insert(keys: NDArray[np.int64], query: int, similarity: float, window: int) -> float:
    """Put a window into the list of another if it belongs there; return the similarity of the worst one listed now.

    A key holds a similarity on the grid and, backwards, the window, so the larger of two keys is the nearer
    window, of equals the earlier. Each place of a sorted list takes the middle one of its own key, the one
    before and the new one: no branches to predict, and the order of arrival does not matter.
    """
    key = (np.int64(similarity / GRID) << PLACE_BITS) + (LAST_PLACE - window)
    for place in range(keys.shape[1] - 1, 0, -1):
        keys[query, place] = max(keys[query, place], min(keys[query, place - 1], key))
    keys[query, 0] = max(keys[query, 0], key)
    return (keys[query, keys.shape[1] - 1] >> PLACE_BITS) * GRID


@compiled
def read_keys(
    keys: NDArray[np.int64],  # (n_windows, n_neighbors)
    place_bits: int,
    similarity: NDArray[np.float64],  # (n_windows, n_neighbors) out
    neighbors: NDArray[np.int64],  # (n_windows, n_neighbors) out, -1 where there is none; may be the keys
) -> None:
    """Take the lists' keys apart."""
    last_place = (1 << place_bits) - 1
    for query in range(keys.shape[0]):
        for rank in range(keys.shape[1]):
            key = keys[query, rank]
            similarity[query, rank] = NONE if key == NO_KEY else (key >> place_bits) * GRID
            neighbors[query, rank] = -1 if key == NO_KEY else last_place - (key & last_place)


@compiled
def select_rows(
    similarities: NDArray[np.float64],  # (n_rows, n_columns), NONE where not eligible; overwritten
    queries: NDArray[np.int64],  # (n_rows,) window indices
    bank: NDArray[np.int64],  # (n_columns,) window indices, ascending
    gap: int,
    reach: int,
    spread_gap: int,
    top_similarity: NDArray[np.float64],  # (n_rows, n_neighbors) out
    top_neighbors: NDArray[np.int64],  # (n_rows, n_neighbors) out
) -> None:
    """List the nearest windows of each row, greedily from the best down, no two closer than ``spread_gap``.

    A neighbor lies at least ``gap`` and at most ``reach`` windows from its query.
    """
    n_columns = len(bank)
    n_spans = (n_columns + _SPAN - 1) // _SPAN
    best = np.empty(n_spans)
    where = np.empty(n_spans, np.int64)
    for row in range(len(queries)):
        values = similarities[row]
        for column in range(n_columns):
            values[column] = on_grid(values[column]) if values[column] > NONE else NONE
        first, last = _closer(bank, queries[row], reach + 1)
        values[:first] = NONE
        values[last:] = NONE
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
    first, last = _closer(bank, window, gap)
    values[first:last] = NONE
    return first, last


@compiled
def first_eligible(
    queries: NDArray[np.int64],
    bank: NDArray[np.int64],
    gap: int,
    similarity: NDArray[np.float64],  # (n_windows, n_neighbors) out
    neighbors: NDArray[np.int64],  # (n_windows, n_neighbors) out
    reach: int,
) -> None:
    """List the earliest eligible windows with similarity 0: the nearest ones of a flat window."""
    for query in queries:
        column, end = _closer(bank, query, reach + 1)
        first, last = _closer(bank, query, gap)
        for rank in range(similarity.shape[1]):
            if first <= column < last:
                column = last
            if column >= end:
                break
            similarity[query, rank] = 0.0
            neighbors[query, rank] = bank[column]
            column += 1


@compiled
def _closer(bank: NDArray[np.int64], window: int, distance: int) -> tuple[int, int]:
    """The columns closer than ``distance`` to ``window``: from, and up to."""
    return int(np.searchsorted(bank, window - distance + 1)), int(np.searchsorted(bank, window + distance))


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


class DiagonalSteps(NamedTuple):
    """A search laid out for walking along diagonals; a *term* is one entering or leaving sample.

    Arrays by window go on for one block after the last, so that blocks need not end with it.
    """

    length: int  # of a window
    stride: int
    gain: float  # of every term, see diagonal.py
    phases: NDArray[np.float64]  # (n_variates * stride, n) samples by their place within a stride
    means: NDArray[np.float64]  # (n_variates, n_windows); zeros under cosine
    inverse: NDArray[np.float64]  # (n_windows + COLUMNS,) 1 / norm; 0 for flat windows, NaN if not finite
    norms: NDArray[np.float64]  # (n_windows + COLUMNS,) huge where a window has none to compare
    terms: NDArray[np.float64]  # (n_windows, n_terms) what enters, then what leaves, before the next window
    fresh: NDArray[np.bool_]  # (n_windows,) where sums start anew


class Lists(NamedTuple):
    """The lists of all windows, and what keeps windows out of them."""

    keys: NDArray[np.int64]  # (n_windows, n_neighbors) see insert; NO_KEY where nothing is listed yet
    bar: NDArray[np.float64]  # (n_windows + COLUMNS,) that a similarity must reach to enter its row's list
    column_bar: NDArray[np.float64]  # the same for its column's; infinite where columns have no list
    column_inverse: NDArray[np.float64]  # inverse; NaN where a column is not in the bank


class Eligible(NamedTuple):
    """Distances, column - row, at which windows may be neighbors."""

    nearest: int
    farthest: int
    gap: int  # and no closer than this on either side


@compiled
def walk_tile(
    row_first: int,
    row_end: int,
    column_first: int,
    column_end: int,
    eligible: Eligible,
    steps: DiagonalSteps,
    lists: Lists,
) -> None:
    """Find every similarity of a tile by recurrence, and put those that belong there into the lists.

    Starts from full products along the upper and the left edge, and anew where the signal turns quiet.
    Columns are walked a strip at a time; what leaves a strip to the right enters the next one from the left.
    """
    nearest, farthest, gap = eligible
    n_terms = steps.terms.shape[1]
    strip = max(_STRIP_VALUES // n_terms // COLUMNS, 1) * COLUMNS
    strip = min(strip, _whole_blocks(column_end - column_first, COLUMNS))
    across = aligned(strip * n_terms)
    products = aligned(strip)
    no_rows = np.empty((0, 0))
    for top, bottom in _parts(steps.fresh, row_first, row_end):
        ahead = _rows_packed(steps, top, bottom)
        for left, right in _parts(steps.fresh, column_first, column_end):
            if right - 1 - top < nearest or left - (bottom - 1) > farthest:
                continue
            edge = np.full(bottom - top + ROWS + 1, _OUT)
            first, end = max(left - farthest, top), min(left - nearest + 1, bottom)
            full_products(left, first, end, steps, edge[first - top :])
            for row in range(max(left - gap + 1, top), min(left + gap, bottom)):
                edge[row - top] = _OUT
            for first in range(left, right, strip):
                end = min(first + strip, right)
                _pack_columns(steps.terms, first, end, across)
                _start(top, first, end, eligible, steps, products)
                _descend(
                    top, bottom, first, end, eligible, steps, products, across, ahead, edge, lists, no_rows, 0
                )


@compiled
def walk_rows(
    row_first: int,
    row_end: int,
    anew: bool,
    parts: NDArray[np.int64],  # (n_parts, 4) first column, end, place in the rows, place in products
    steps: DiagonalSteps,
    across: NDArray[np.float64],  # factors of all columns, packed
    products: NDArray[np.float64],  # of the first row, unless found anew; out: of the row after the last
    rows: NDArray[np.float64],  # (n_rows, n_columns) out
) -> None:
    """Find all similarities of some rows by recurrence. The number of rows divides by ROWS, or is the last."""
    n_windows, n_terms = steps.terms.shape
    every = Eligible(-n_windows, n_windows, 0)
    no_lists = Lists(np.empty((0, 0), np.int64), steps.norms, steps.norms, steps.inverse)
    for top, bottom in _parts(steps.fresh, row_first, row_end):
        ahead = _rows_packed(steps, top, bottom)
        edge = np.zeros(bottom - top + ROWS + 1)
        for part in range(len(parts)):
            first, end, place, at = parts[part]
            here = products[at : at + _whole_blocks(end - first, COLUMNS)]
            factors = across[at * n_terms :]
            if anew or top > row_first:
                _start(top, first, end, every, steps, here)
            full_products(first, top, min(bottom + 1, n_windows), steps, edge)
            some = rows[top - row_first :]
            _descend(top, bottom, first, end, every, steps, here, factors, ahead, edge, no_lists, some, place)


@compiled
def _parts(fresh: NDArray[np.bool_], first: int, end: int) -> list[tuple[int, int]]:
    """Stretches of windows within which sums are carried on."""
    parts = []
    start = first
    for window in range(first + 1, end):
        if fresh[window]:
            parts.append((start, window))
            start = window
    parts.append((start, end))
    return parts


@compiled
def _start(
    row: int,
    first: int,
    end: int,
    eligible: Eligible,
    steps: DiagonalSteps,
    products: NDArray[np.float64],  # out
) -> None:
    """Products of a row with some columns, as far as they are eligible."""
    products[:] = _OUT
    low, high = max(first, row + eligible.nearest), min(end, row + eligible.farthest + 1)
    full_products(row, low, high, steps, products[low - first :])
    for column in range(max(first, row - eligible.gap + 1), min(end, row + eligible.gap)):
        products[column - first] = _OUT


@compiled
def _descend(
    top: int,
    bottom: int,
    first: int,
    end: int,
    eligible: Eligible,
    steps: DiagonalSteps,
    products: NDArray[np.float64],  # of row ``top``; out: of row ``bottom``
    across: NDArray[np.float64],
    ahead: NDArray[np.float64],
    edge: NDArray[np.float64],  # products of column ``first`` with rows from top on; out: of column ``end``
    lists: Lists,
    rows: NDArray[np.float64],  # (n_rows, n): write similarities here instead of listing them; or (0, 0)
    place: int,  # of column ``first`` in them
) -> None:
    """Walk the columns from ``first`` to ``end`` down from row ``top`` to row ``bottom``, block by block."""
    n_blocks = _whole_blocks(end - first, COLUMNS) // COLUMNS
    n_terms = steps.terms.shape[1]
    inverse, norms, bars = steps.inverse, steps.norms[first:], lists.column_bar[first:]
    found = aligned(ROWS * COLUMNS)
    tails = aligned(ROWS * LANES)
    scales = np.zeros(ROWS)
    for row in range(top, bottom, ROWS):
        n_rows = min(ROWS, bottom - row)
        # Blocks with an eligible pair, and on the right those into which one may move.
        begin = max(row + eligible.nearest - first, 0) // COLUMNS
        stop = min((row + 2 * ROWS + eligible.farthest - first) // COLUMNS + 1, n_blocks)
        for k in range(ROWS):
            scale = inverse[row + k] if k < n_rows else 0.0
            scales[k] = 0.0 if np.isnan(scale) else scale
            tails[k * LANES + LANES - 1] = edge[row - top + k + 1] if begin == 0 else _OUT
        lowest = _lowest(lists.bar, row, n_rows)
        for block in range(begin, stop):
            at, column = block * COLUMNS, first + block * COLUMNS
            reached = walk_block(
                products,
                at,
                across,
                at * n_terms,
                ahead,
                (row - top) * n_terms,
                n_terms,
                tails,
                scales,
                norms,
                bars,
                lowest,
                found,
            )
            if len(rows) > 0:
                for k in range(n_rows):
                    for c in range(min(COLUMNS, end - column)):
                        value = found[k * COLUMNS + c] * inverse[column + c] * inverse[row + k]
                        rows[row - top + k, place + at + c] = value
            elif reached:
                _list(found, row, n_rows, column, end, eligible, inverse, lists)
                lowest = _lowest(lists.bar, row, n_rows)
        for k in range(ROWS):
            edge[row - top + k + 1] = tails[k * LANES + LANES - 1] if begin < stop == n_blocks else _OUT


@compiled
def _lowest(bar: NDArray[np.float64], row: int, n_rows: int) -> float:
    """The lowest bar of some rows."""
    lowest = np.inf
    for k in range(n_rows):
        lowest = min(lowest, bar[row + k])
    return lowest


@compiled
def _list(
    found: NDArray[np.float64],  # (ROWS, COLUMNS), flat
    row: int,
    n_rows: int,
    column: int,
    end: int,
    eligible: Eligible,
    inverse: NDArray[np.float64],
    lists: Lists,
) -> None:
    """Put similarities of a block into the lists of their rows and their columns where they belong."""
    keys, bar, column_bar, column_inverse = lists
    nearest, farthest, gap = eligible
    for k in range(n_rows):
        i = row + k
        bits = reaching(found, k * COLUMNS, column_inverse, column_bar, column, inverse[i], bar[i])
        while bits != 0:
            c = lowest_bit(bits)
            bits &= bits - 1
            j = column + c
            if j >= end or abs(j - i) < gap or j - i < nearest or j - i > farthest:
                continue
            value = found[k * COLUMNS + c] * column_inverse[j] * inverse[i]
            if value >= bar[i]:
                # Half a step below the worst would do, had rounding no edges.
                bar[i] = insert(keys, i, on_grid(value), j) - GRID
            if value >= column_bar[j]:
                column_bar[j] = insert(keys, j, on_grid(value), i) - GRID


@compiled
def _rows_packed(steps: DiagonalSteps, first: int, end: int) -> NDArray[np.float64]:
    """Factors of rows for `walk_block`, ``(n_blocks, n_terms, ROWS)`` flat; samples that leave count negative."""
    terms, gain = steps.terms, steps.gain
    n_terms = terms.shape[1]
    packed = np.zeros(_whole_blocks(end - first, ROWS) * n_terms)
    for row in range(end - first):
        at = row // ROWS * ROWS * n_terms + row % ROWS
        for term in range(n_terms):
            packed[at + term * ROWS] = terms[first + row, term] * (gain if term < n_terms // 2 else -gain)
    return packed


@compiled
def pack_columns(terms: NDArray[np.float64], parts: NDArray[np.int64], across: NDArray[np.float64]) -> None:
    """Factors of the columns of all parts for `walk_rows`."""
    for part in range(len(parts)):
        _pack_columns(terms, parts[part, 0], parts[part, 1], across[parts[part, 3] * terms.shape[1] :])


@compiled
def _pack_columns(terms: NDArray[np.float64], first: int, end: int, across: NDArray[np.float64]) -> None:
    """Factors of columns for `walk_block`, ``(n_blocks, n_terms, COLUMNS)`` flat."""
    n_terms = terms.shape[1]
    across[: _whole_blocks(end - first, COLUMNS) * n_terms] = 0.0
    for column in range(end - first):
        at = column // COLUMNS * COLUMNS * n_terms + column % COLUMNS
        for term in range(n_terms):
            across[at + term * COLUMNS] = terms[first + column, term]


@compiled
def _whole_blocks(n: int, block: int) -> int:
    """So many, rounded up to whole blocks."""
    return (n + block - 1) // block * block


@compiled
def aligned(n: int) -> NDArray[np.float64]:
    """Zeros that begin where a vector may begin without crossing a line of the cache."""
    values = np.zeros(n + 8)
    skipped = (-values.ctypes.data // 8) % 8
    return values[skipped : skipped + n]


@compiled
def full_products(
    window: int,
    first: int,
    end: int,
    steps: DiagonalSteps,
    products: NDArray[np.float64],  # (end - first,) out
) -> None:
    """Products of one centred window with the windows ``first`` to ``end``, from scratch."""
    n = end - first
    if n <= 0:
        return
    length, stride, means = steps.length, steps.stride, steps.means
    sums = np.zeros(_whole_blocks(n, SUMS))
    taps = np.empty(length // stride + 1)
    rests = np.empty(len(means))
    for variate in range(len(means)):
        rest = 0.0  # what rounding leaves of the sum of the centred window
        for phase in range(min(stride, length)):
            samples = steps.phases[variate * stride + phase]
            n_taps = (length - phase - 1) // stride + 1
            for tap in range(n_taps):
                taps[tap] = samples[window + tap] - means[variate, window]
                rest += taps[tap]
            for place in range(0, n, SUMS):
                add_correlation(samples, first + place, taps, 0, n_taps, sums, place)
        rests[variate] = rest
    for other in range(n):
        total = sums[other]
        for variate in range(len(means)):
            # The other windows were not centred, which matters only as far as this one's sum is not 0.
            total -= rests[variate] * means[variate, first + other]
        products[other] = total
