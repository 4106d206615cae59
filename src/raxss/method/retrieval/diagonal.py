"""Diagonal path of retrieval: products c(i, j) of centred windows by recurrence, for windows that overlap much.

One window further on, each has lost the samples that leave it and gained as many that enter:

    c(i+1, j+1) = c(i, j) + gain * sum over one stride of (entering_i entering_j - leaving_i leaving_j)

with every sample relative to the mean of the window that it enters or leaves, and gain = L / (L - 1) (cosine:
relative to 0, gain 1). That is 2 products per sample of stride instead of L, and drift and offset cost no
digits. kernels.py walks the matrix, a tile at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from raxss._core.threads import compiled, run_on_threads
from raxss.method.retrieval.blocked import nearest_by_blocks
from raxss.method.retrieval.kernels import (
    NO_KEY,
    NONE,
    PLACE_BITS,
    DiagonalSteps,
    Eligible,
    Lists,
    aligned,
    first_eligible,
    pack_columns,
    read_keys,
    select_rows,
    walk_rows,
    walk_tile,
)
from raxss.method.retrieval.search import Lists as NeighborLists
from raxss.method.retrieval.search import Search, sliding_means
from raxss.method.retrieval.shared_samples import join_gaps
from raxss.method.retrieval.shared_walk import suits_walk, walk_gaps
from raxss.method.retrieval.vectors import COLUMNS, ROWS, SUMS

# Windows a side: larger tiles have cheaper edges, but there are fewer to share.
TILES = (768, 1536, 3072, 6144)
_TILES_ABREAST = 12  # least number of tiles a side for a larger size
_ROW_VALUES = 2**22  # float64 values of whole rows that one thread holds: 32 MB
_LOUDER = 64.0  # how much louder an earlier window may be before sums start anew
_FAINTEST = 1e-100  # products of fainter windows would vanish; the loudest sample is 1
_NO_NORM = 1e300  # in place of a norm: whatever its products are, only a bar below 0 is reached


def suits_diagonals(search: Search) -> bool:
    """Whether the recurrence is cheaper than products: windows overlap by half, the bank has long stretches."""
    length, stride, n_bank = search.window_length, search.stride, len(search.bank)
    if 2 * stride > length or search.n_windows < 2 or n_bank == 0:
        return False
    if search.norms[~search.flat & ~search.nonfinite].min(initial=1.0) <= _FAINTEST:
        return False
    if _is_a_triangle(search):
        return True
    stretches = _stretches(search, search.bank)
    n_columns = (stretches[:, 1] - stretches[:, 0] + COLUMNS / 2).sum()  # blocks are walked whole
    return bool(2 * stride * n_columns + length * len(stretches) < 0.35 * length * n_bank)  # measured


def _is_a_triangle(search: Search) -> bool:
    """Whether each pair is computed once and serves the lists of both its windows."""
    return search.spread_gap == 1 and len(search.bank) == search.n_windows - int(search.nonfinite.sum())


def nearest_on_cpu(search: Search, *, on_progress: Callable[[float], None] | None = None) -> NeighborLists:
    """Exact lists by the faster path; windows with gaps are compared over the samples that both have."""
    whole = search.without_gaps
    nearest = nearest_by_diagonals if suits_diagonals(whole) else nearest_by_blocks
    found = nearest(whole, on_progress=on_progress)
    return walk_gaps(search, found) if suits_walk(search) else join_gaps(search, found)


def nearest_by_diagonals(
    search: Search,
    *,
    tile: int | None = None,
    n_threads: int | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> NeighborLists:
    """Exact lists by the recurrence; the same for any number of threads."""
    if len(search.bank) == 0:
        return search.empty_lists()
    work = _tiles_of_the_bank
    if search.spread_gap > 1:
        work = _whole_rows
    elif _is_a_triangle(search):
        work = _tiles_of_the_triangle
    on_thread, n_tasks, found = work(search, lay_out(search), tile or tile_side(search.n_windows))
    run_on_threads(on_thread, n_tasks=n_tasks, n_threads=n_threads, on_progress=on_progress)
    similarity, neighbors = found()
    if search.spread_gap == 1:
        flat = np.flatnonzero(search.flat)
        first_eligible(flat, search.bank, search.gap, similarity, neighbors, search.farthest)
    return similarity, neighbors


def tile_side(n_windows: int) -> int:
    """Windows a side of the tiles; it must not depend on the number of threads, or rounding would too."""
    return max(side for side in TILES if side == TILES[0] or side * _TILES_ABREAST <= n_windows)


# The work of each thread, the number of tasks, and similarity and neighbors when all are done.
_Work = tuple[Callable[[], Iterator[None]], int, Callable[[], NeighborLists]]


def _tiles_of_the_triangle(search: Search, steps: DiagonalSteps, tile: int) -> _Work:
    """The whole series as bank: a tile of the upper triangle serves rows and columns."""
    n_windows = search.n_windows
    keys, bar = _no_keys(search)
    lists = Lists(keys, bar, bar, steps.inverse)
    eligible = Eligible(search.gap, search.farthest, search.gap)
    tiles = _Tiles(n_windows, tile, search.gap, search.farthest)

    def on_thread() -> Iterator[None]:
        while (place := tiles.claim()) is not None:
            row, column = place
            try:
                rows = row * tile, min((row + 1) * tile, n_windows)
                walk_tile(*rows, column * tile, min((column + 1) * tile, n_windows), eligible, steps, lists)
            finally:
                tiles.release(place)
            yield

    return on_thread, len(tiles), lambda: _read(lists.keys)


def _tiles_of_the_bank(search: Search, steps: DiagonalSteps, tile: int) -> _Work:
    """A bank of stretches: all windows are rows, those of the bank columns, and only rows have lists."""
    n_windows = search.n_windows
    keys, bar = _no_keys(search)
    in_bank = np.full_like(steps.inverse, np.nan)
    in_bank[search.bank] = steps.inverse[search.bank]
    lists = Lists(keys, bar, np.full_like(bar, np.inf), in_bank)
    eligible = Eligible(-search.farthest, search.farthest, search.gap)
    stretches = _stretches(search, search.bank).tolist()
    pending = iter(range(0, n_windows, tile))

    def on_thread() -> Iterator[None]:
        for first in pending:
            for left, right in stretches:
                walk_tile(first, min(first + tile, n_windows), left, right, eligible, steps, lists)
            yield

    return on_thread, -(-n_windows // tile), lambda: _read(lists.keys)


def _whole_rows(search: Search, steps: DiagonalSteps, tile: int) -> _Work:
    """Whole rows of similarities, as spread needs them: it may list windows beyond the nearest."""
    n_windows = search.n_windows
    similarity, neighbors = search.empty_lists()
    n_columns = min(n_windows, tile + 2 * search.farthest)
    n_rows = min(max(_ROW_VALUES // n_columns // ROWS, 1) * ROWS, tile)
    firsts = range(0, n_windows, tile)
    pending = iter(firsts)
    shared = _Columns(search, steps, search.bank) if search.reach is None else None
    limits = search.gap, search.farthest, search.spread_gap

    def on_thread() -> Iterator[None]:
        rows = np.empty((n_rows, n_columns))
        for first in pending:
            end = min(first + tile, n_windows)
            columns = shared or _Columns(search, steps, search.bank_near(first, end))
            products = aligned(columns.n_products)
            for top in range(first, end, n_rows):
                bottom = min(top + n_rows, end)
                some = rows[: bottom - top, : columns.n_windows]
                walk_rows(top, bottom, top == first, columns.parts, steps, columns.across, products, some)
                lists = similarity[top:bottom], neighbors[top:bottom]
                select_rows(columns.of_bank(some), np.arange(top, bottom), columns.bank, *limits, *lists)
                yield

    n_tasks = sum(-(-(min(first + tile, n_windows) - first) // n_rows) for first in firsts)
    return on_thread, n_tasks, lambda: (similarity, neighbors)


class _Columns:
    """The windows of a bank, and those between that are walked over, as columns of whole rows."""

    def __init__(self, search: Search, steps: DiagonalSteps, bank: NDArray[np.int64]) -> None:
        self.bank = bank
        stretches = _stretches(search, self.bank)
        windows = np.concatenate([np.arange(*stretch) for stretch in stretches] or [self.bank])
        self.n_windows = len(windows)
        self._of_bank = None if len(windows) == len(self.bank) else np.searchsorted(windows, self.bank)
        breaks = (np.diff(windows) > 1) | steps.fresh[windows[1:]]  # sums are not carried across
        firsts = np.concatenate([np.zeros(min(len(windows), 1), np.int64), np.flatnonzero(breaks) + 1])
        n_columns = np.diff(firsts, append=len(windows))
        widths = -(-n_columns // COLUMNS) * COLUMNS
        self.parts = np.column_stack(
            [windows[firsts], windows[firsts] + n_columns, firsts, np.cumsum(widths) - widths]
        )
        self.n_products = int(widths.sum())
        self.across = aligned(self.n_products * steps.terms.shape[1])
        pack_columns(steps.terms, self.parts, self.across)

    def of_bank(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The columns of the bank."""
        return rows if self._of_bank is None else rows[:, self._of_bank]


def _stretches(search: Search, bank: NDArray[np.int64]) -> NDArray[np.int64]:
    """``(n_stretches, 2)`` windows to walk, from and up to: the bank, and gaps that are cheaper walked over."""
    breaks = np.flatnonzero(np.diff(bank) * 2 * search.stride > search.window_length + 2 * search.stride)
    places = np.concatenate([[0], breaks + 1, [len(bank)]]) if len(bank) else np.zeros(1, np.int64)
    return np.column_stack([bank[places[:-1]], bank[places[1:] - 1] + 1])


def _no_keys(search: Search) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Empty lists, and the least similarity to enter each. A flat window ties with all: see first_eligible."""
    bars = np.full(search.n_windows + COLUMNS, np.inf)
    bars[: search.n_windows][~search.flat & ~search.nonfinite] = NONE
    return np.full((search.n_windows, search.n_neighbors), NO_KEY, np.int64), bars


def _read(keys: NDArray[np.int64]) -> NeighborLists:
    """Similarity and neighbors; these take the keys' place."""
    similarity = np.empty(keys.shape)
    read_keys(keys, PLACE_BITS, similarity, keys)
    return similarity, keys


class _Tiles:
    """Hands out tiles of the upper triangle so that no two threads hold the same rows or columns.

    Tiles near the diagonal come first, where the best neighbors usually are.
    """

    _MOST_WAITING = 64

    def __init__(self, n_windows: int, tile: int, gap: int, reach: int) -> None:
        n_blocks = -(-n_windows // tile)
        furthers = [
            further  # blocks from the diagonal
            for further in range(n_blocks)
            if (further + 1) * tile > gap and (further - 1) * tile < reach  # else nothing in it is eligible
        ]
        self._n_tiles = sum(n_blocks - further for further in furthers)
        self._upcoming = ((row, row + further) for further in furthers for row in range(n_blocks - further))
        self._waiting: list[tuple[int, int]] = []  # passed over because another thread was there
        self._busy: set[int] = set()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._n_tiles

    def claim(self) -> tuple[int, int] | None:
        """Take a tile whose rows and columns are free, waiting for one if need be; None when all are done."""
        with self._changed:
            while (tile := self._free()) is None:
                if not self._waiting:
                    return None
                self._changed.wait()
            self._busy.update(tile)
            return tile

    def _free(self) -> tuple[int, int] | None:
        for place, tile in enumerate(self._waiting):
            if self._busy.isdisjoint(tile):
                return self._waiting.pop(place)
        while len(self._waiting) < self._MOST_WAITING:
            upcoming = next(self._upcoming, None)
            if upcoming is None or self._busy.isdisjoint(upcoming):
                return upcoming
            self._waiting.append(upcoming)
        return None

    def release(self, tile: tuple[int, int]) -> None:
        """Free a tile's rows and columns."""
        with self._changed:
            self._busy.difference_update(tile)
            self._changed.notify_all()


def lay_out(search: Search) -> DiagonalSteps:
    """Arrange samples, and entering and leaving terms, for the walk."""
    (n_variates, n_samples), stride = search.samples.shape, search.stride
    n_windows, length = search.n_windows, search.window_length
    phases = np.zeros((n_variates, stride, -(-n_samples // stride) + SUMS))
    terms = np.zeros((n_windows, 2, n_variates, stride))
    for variate, samples in enumerate(search.samples):
        for phase in range(min(stride, n_samples)):
            every = samples[phase::stride]
            phases[variate, phase, : len(every)] = every
        means = sliding_means(samples, length) if search.centred else np.zeros(n_samples - length + 1)
        _fill_terms(samples, means, length, terms[:, :, variate])
    hidden = search.flat | search.nonfinite
    inverse = np.full(n_windows + COLUMNS, np.nan)
    norms = np.full(n_windows + COLUMNS, _NO_NORM)
    with np.errstate(divide="ignore"):
        inverse[:n_windows] = np.where(search.flat, 0.0, 1.0 / search.norms)
    inverse[:n_windows][search.nonfinite] = np.nan
    norms[:n_windows][~hidden] = search.norms[~hidden]
    return DiagonalSteps(
        length=length,
        stride=stride,
        gain=length / (length - 1) if search.centred and length > 1 else 1.0,
        phases=phases.reshape(n_variates * stride, -1),
        means=search.means,
        inverse=inverse,
        norms=norms,
        terms=terms.reshape(n_windows, -1),
        fresh=fresh_starts(search.norms, hidden),
    )


@compiled
def _fill_terms(
    samples: NDArray[np.float64],
    means: NDArray[np.float64],  # of the window at every sample
    length: int,
    terms: NDArray[np.float64],  # (n_windows, 2, stride) out
) -> None:
    """Samples that enter and leave on the way to the next window, relative to the mean of their window."""
    n_windows, _, stride = terms.shape
    for window in range(n_windows - 1):
        for phase in range(stride):
            place = window * stride + phase
            terms[window, 0, phase] = samples[place + length] - means[place + 1]
            terms[window, 1, phase] = samples[place] - means[place]


@compiled
def fresh_starts(norms: NDArray[np.float64], skipped: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where a window is so much quieter than one before it that sums must not be carried into it.

    What a loud stretch rounds away may be large beside a quiet one that follows. With this, an error grows by
    at most ``_LOUDER`` squared: it stays near 1e-12, and below 1e-8 at the worst.
    """
    fresh = np.zeros(len(norms), np.bool_)
    loudest = 0.0
    for window in range(len(norms)):
        if not skipped[window] and loudest > _LOUDER * norms[window]:
            fresh[window] = True
            loudest = 0.0
        loudest = max(loudest, norms[window])
    return fresh
