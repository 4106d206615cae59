"""Blocked path of retrieval: nearest windows by plain matrix products, a block of rows at a time.

    Search -> similarity, neighbors (n_windows, n_neighbors)

For coarse strides, where windows share little, for features and for banks of scattered windows. Never holds
the whole window-by-window matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from raxss._core.threads import each_on_threads, now_and_then
from raxss.method.retrieval.kernels import select_rows
from raxss.method.retrieval.search import Lists, Search

_BLOCK_VALUES = 2**22  # float64 values in one block of similarities or windows: 32 MB
_ROWS_AT_ONCE = 64  # that a thread selects from


def nearest_by_blocks(
    search: Search,
    *,
    block_values: int = _BLOCK_VALUES,
    on_progress: Callable[[float], None] | None = None,
) -> Lists:
    """Exact lists by float64 matrix products."""
    n_values = search.window_length * len(search.samples)
    similarity, neighbors = search.empty_lists()
    if len(search.bank) == 0:
        return similarity, neighbors
    report = now_and_then(on_progress)
    columns = max(block_values // n_values, 1)
    n_bank = min(len(search.bank), columns + 2 * search.farthest)
    rows = max(min(block_values // n_bank, columns), 1)
    held = search.unit_windows(search.bank) if len(search.bank) <= columns else None
    for first in range(0, search.n_windows, rows):
        queries = np.arange(first, min(first + rows, search.n_windows))
        near = search.bank if held is not None else search.bank_near(first, first + len(queries))
        vectors = search.unit_windows(slice(first, first + rows))
        block = np.empty((len(queries), len(near)))
        for column in range(0, len(near), columns):
            part = slice(column, column + columns)
            bank = search.unit_windows(near[part]) if held is None else held
            np.matmul(vectors, bank.T, out=block[:, part])
        each_on_threads(
            partial(_list_rows, search, block, queries, near, similarity, neighbors),
            range(0, len(queries), _ROWS_AT_ONCE),
        )
        report((first + len(queries)) / search.n_windows)
    return similarity, neighbors


def _list_rows(
    search: Search,
    block: NDArray[np.float64],
    queries: NDArray[np.int64],
    bank: NDArray[np.int64],
    similarity: NDArray[np.float64],
    neighbors: NDArray[np.int64],
    row: int,
) -> None:
    """Fill the lists of some queries from ``row`` on."""
    some = slice(row, row + _ROWS_AT_ONCE)
    which = slice(queries[some][0], queries[some][-1] + 1)
    limits = search.gap, search.farthest, search.spread_gap
    select_rows(block[some], queries[some], bank, *limits, similarity[which], neighbors[which])
