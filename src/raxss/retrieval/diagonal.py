"""Nearest windows along diagonals, for windows that overlap much.

    Search -> similarity, neighbors (n_windows, n_neighbors)

Write c(i, j) for the product of the centred windows i and j. One window further on, each has lost the samples
that leave it and gained as many that enter:

    c(i+1, j+1) = c(i, j) + gain * sum over one stride of (entering_i entering_j - leaving_i leaving_j)

with every sample taken relative to the mean of the window that it enters or leaves, one sample at a time, and
gain = L / (L - 1) (cosine: relative to 0, gain 1). That is 2 products per sample of stride instead of L, and
since all is relative to the window's own mean, drift and offset cost no digits. Samples are laid out by their
place within a stride, so neighbouring diagonals are neighbours in memory. kernels.py walks the matrix.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raxss.retrieval.compiled import compiled, run_on_threads
from raxss.retrieval.kernels import NONE, first_eligible, select_rows, walk_tile
from raxss.retrieval.search import Search, sliding_means

TILE = 1024  # windows a side: the larger, the less its edges cost; rounding errors grow slowly with it
STRIP = 256  # columns walked at once, so that their samples stay in the first-level cache
_ROW_VALUES = 2**22  # float64 values of whole rows that one thread holds: 32 MB
_LOUDER = 64.0  # how much louder an earlier window may be before sums start anew
_FAINTEST = 1e-100  # products of fainter windows would vanish; the loudest sample is 1


@dataclass(frozen=True, eq=False)
class Steps:
    """A search laid out for walking along diagonals; a *term* is one entering or leaving sample.

    Attributes
    ----------
    phases
        ``(n_variates * stride, n)`` samples by their place within a stride.
    means
        ``(n_variates, n_windows)`` of the windows; zeros under cosine.
    inverse
        ``(n_windows,)`` 1 / norm; 0 for flat windows, NaN for those that are not finite.
    ahead
        ``(n_windows, n_terms)`` factors of row i on its way to row i + 1, gain and sign included.
    across
        ``(n_terms, n_windows)`` factors of column j on its way to column j + 1.
    fresh
        ``(n_windows,)`` where sums start anew.
    """

    phases: NDArray[np.float64]
    means: NDArray[np.float64]
    inverse: NDArray[np.float64]
    ahead: NDArray[np.float64]
    across: NDArray[np.float64]
    fresh: NDArray[np.bool_]


def suits_diagonals(search: Search) -> bool:
    """Whether windows overlap by half at least, and the bank is not so small that products are cheaper."""
    if 2 * search.stride > search.window_length or search.n_windows < 2:
        return False
    shaped = search.norms[~search.flat & ~search.nonfinite]
    return bool(
        len(search.bank) * search.window_length > search.n_windows * 4 * search.stride
        and shaped.min(initial=1.0) > _FAINTEST
    )


def nearest_by_diagonals(
    search: Search,
    *,
    tile: int = TILE,
    strip: int = STRIP,
    n_threads: int | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Exact lists by the recurrence; the same for any number of threads."""
    every_window = len(search.bank) == search.n_windows - int(search.nonfinite.sum())
    if every_window and search.spread_gap == 1:
        return _nearest_by_tiles(search, tile, strip, n_threads)
    return _nearest_by_rows(search, tile, strip, n_threads)


def _nearest_by_tiles(
    search: Search, tile: int, strip: int, n_threads: int | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Keep only the lists: a tile of the upper triangle serves its rows and its columns."""
    n_windows = search.n_windows
    steps = lay_out(search)
    similarity, neighbors = search.empty_lists()
    # What a similarity must reach to be looked at. A flat window ties with everything: see first_eligible.
    bar = np.where(search.flat | search.nonfinite, np.inf, NONE)
    tiles = _Tiles(n_windows, tile, search.gap)
    no_rows = np.empty((0, 0))

    def work() -> Iterator[None]:
        while (place := tiles.claim()) is not None:
            row, column = place
            try:
                walk_tile(
                    row * tile,
                    min((row + 1) * tile, n_windows),
                    column * tile,
                    min((column + 1) * tile, n_windows),
                    strip,
                    search.gap,
                    search.window_length,
                    search.stride,
                    *(steps.phases, steps.means, steps.inverse, steps.ahead, steps.across, steps.fresh),
                    *(similarity, neighbors, bar, no_rows),
                )
            finally:
                tiles.release(place)
            yield

    run_on_threads(work, n_tasks=len(tiles), n_threads=n_threads)
    first_eligible(np.flatnonzero(search.flat), search.bank, search.gap, similarity, neighbors)
    return similarity, neighbors


def _nearest_by_rows(
    search: Search, tile: int, strip: int, n_threads: int | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Look at whole rows, as spread and banks need: neighbors beyond the nearest may still be wanted."""
    n_windows = search.n_windows
    steps = lay_out(search)
    similarity, neighbors = search.empty_lists()
    n_rows = min(max(_ROW_VALUES // n_windows, 16), tile)
    pending = iter(range(0, n_windows, n_rows))

    def work() -> Iterator[None]:
        rows = np.empty((n_rows, n_windows))
        for first in pending:
            end = min(first + n_rows, n_windows)
            walk_tile(
                *(first, end, 0, n_windows, strip, -n_windows, search.window_length, search.stride),
                *(steps.phases, steps.means, steps.inverse, steps.ahead, steps.across, steps.fresh),
                *(similarity, neighbors, steps.inverse, rows),
            )
            some = rows[: end - first]
            select_rows(
                some if len(search.bank) == n_windows else some[:, search.bank],
                np.arange(first, end),
                search.bank,
                search.gap,
                search.spread_gap,
                similarity[first:end],
                neighbors[first:end],
            )
            yield

    run_on_threads(work, n_tasks=-(-n_windows // n_rows), n_threads=n_threads)
    return similarity, neighbors


class _Tiles:
    """Hands out tiles of the upper triangle so that no two threads hold the same rows or columns.

    Tiles near the diagonal come first: there the best neighbors usually are, and lists that are good early
    need little attention later. The order does not change the lists.
    """

    def __init__(self, n_windows: int, tile: int, gap: int) -> None:
        n_blocks = -(-n_windows // tile)
        self._pending = [
            (row, row + further)
            for further in range(n_blocks)
            for row in range(n_blocks - further)
            if (further + 1) * tile > gap  # else nothing in it is eligible
        ]
        self._busy: set[int] = set()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._pending)

    def claim(self) -> tuple[int, int] | None:
        """Take a tile whose rows and columns are free, waiting for one if need be; None when all are done."""
        with self._changed:
            while self._pending:
                for place, tile in enumerate(self._pending):
                    if self._busy.isdisjoint(tile):
                        self._busy.update(tile)
                        return self._pending.pop(place)
                self._changed.wait()
            return None

    def release(self, tile: tuple[int, int]) -> None:
        """Give a tile's rows and columns free."""
        with self._changed:
            self._busy.difference_update(tile)
            self._changed.notify_all()


def lay_out(search: Search) -> Steps:
    """Arrange samples, entering and leaving ones for the walk."""
    (n_variates, n_samples), stride = search.samples.shape, search.stride
    n_windows, length = search.n_windows, search.window_length
    n_columns = -(-n_samples // stride) + 1
    whole = np.zeros((n_variates, n_columns * stride))
    whole[:, :n_samples] = search.samples
    phases = np.ascontiguousarray(whole.reshape(n_variates, n_columns, stride).transpose(0, 2, 1))
    n_steps = (n_windows - 1) * stride  # of one sample each
    terms = np.zeros((2, n_variates, n_windows * stride))
    entering, leaving = terms[:, :, :n_steps]
    entering[:] = search.samples[:, length : length + n_steps]
    leaving[:] = search.samples[:, :n_steps]
    gain = 1.0
    if search.centred:
        gain = length / (length - 1)
        for variate, samples in enumerate(search.samples):
            means = sliding_means(samples, length)
            entering[variate] -= means[1 : n_steps + 1]
            leaving[variate] -= means[:n_steps]
    by_window = terms.reshape(2, n_variates, n_windows, stride)
    signs = np.array([gain, -gain]).reshape(2, 1, 1, 1)
    with np.errstate(divide="ignore"):
        inverse = np.where(search.flat, 0.0, 1.0 / search.norms)
    inverse[search.nonfinite] = np.nan
    return Steps(
        phases=phases.reshape(n_variates * stride, n_columns),
        means=search.means,
        inverse=inverse,
        ahead=np.ascontiguousarray((signs * by_window).transpose(2, 0, 1, 3)).reshape(n_windows, -1),
        across=np.ascontiguousarray(by_window.transpose(0, 1, 3, 2)).reshape(-1, n_windows),
        fresh=fresh_starts(search.norms, search.flat | search.nonfinite),
    )


@compiled
def fresh_starts(norms: NDArray[np.float64], skipped: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where a window is so much quieter than one before it that sums must not be carried into it.

    What a loud stretch rounds away is small beside it, yet may be large beside a quiet one that follows. With
    this, an error grows by at most ``_LOUDER`` squared: it stays near 1e-12, and below 1e-8 at the worst.
    """
    fresh = np.zeros(len(norms), np.bool_)
    loudest = 0.0
    for window in range(len(norms)):
        if not skipped[window] and loudest > _LOUDER * norms[window]:
            fresh[window] = True
            loudest = 0.0
        loudest = max(loudest, norms[window])
    return fresh
