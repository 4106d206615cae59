"""CUDA work plan of retrieval: rows and columns of each block, and the full products it starts from.

    Layout -> Tables of each launch: blocks, segments, anchors

A block owns some rows of one series, and each of its warps sweeps segments of their columns. If a series is
alone, blocks that would leave processors idle are divided: each part has some of the columns, and lists of
its own (merge.cu). A walk starts from full products of some windows, the *anchors*, with ranges of other
windows: of the block's first row, of the first column, and of windows much quieter than those before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss.method.retrieval.cuda_layout import Layout, blocks_at_once, divided

ANCHORS_OF_A_GROUP = 16  # that anchors.cu takes at once
WINDOWS_OF_A_TASK = 256  # that one of its blocks does

_MOST_CHUNKS = 2**16  # of a segment: a column's place in it has 22 bits in walk.cu
_NOWHERE = -(2**62)  # wherever counting begins, below 0


@dataclass(frozen=True, eq=False)
class Tables:
    """What one launch does: its blocks, their segments, and the anchors these start from; 64-bit integers."""

    n_products: int  # full products
    n_partial: int  # rows of lists that are to be merged
    blocks: Tensor  # (n_blocks, 12), see walk.cu
    segments: Tensor  # (n_segments, 2), see walk.cu
    row_anchors: Tensor  # (n_places,) where full products of windows that start anew begin, less their place
    column_anchors: Tensor  # (n_places,)
    anchors: Tensor  # (n_groups, 16) places of the windows whose full products are needed
    groups: Tensor  # (n_groups, 3, 16) where these go, from and to which place
    tasks: Tensor  # (n_tasks, 2) group and first place of each block of anchors.cu
    merges: Tensor  # (n_merges, 4), see merge.cu


def plan(layout: Layout, most_products: int) -> Iterator[Tables]:
    """Divide all rows into blocks, and these into launches of bounded memory; long series first."""
    draft = _Draft(layout)
    for which in sorted(range(len(layout.searches)), key=lambda item: -layout.searches[item].n_windows):
        costs = draft.costs(which)
        block = 0
        while block < len(costs):
            room = most_products - draft.n_products
            end = block + int(np.searchsorted(np.cumsum(costs[block:]), room, side="right"))
            if end == block and draft.n_products:
                yield draft.finished()
                draft = _Draft(layout)
                continue
            end = max(end, block + 1)
            draft.add(which, block, end)
            block = end
    if draft.n_products:
        yield draft.finished()


class _Part(NamedTuple):
    """Some blocks of one series as if its first window were at place 0, and its products and lists came first."""

    n_products: int
    n_partial: int
    blocks: NDArray[np.int64]
    segments: NDArray[np.int64]
    rows: NDArray[np.int64]  # (n, 2) windows that start anew, where their products lie
    columns: NDArray[np.int64]  # (n, 2)
    groups: NDArray[np.int64]  # (n_groups, 4, 16): anchor, where its products go, from and to which window
    merges: NDArray[np.int64]


class _Draft:
    """Tables in the making; series are added one after another, or some of their blocks."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.n_products = 0
        self._n_partial = 0
        self._n_segments = 0
        self._parts: list[_Part] = []
        self._known: dict[int, _Part] = {}  # by length: the channels of a recording are alike

    def costs(self, which: int) -> NDArray[np.int64]:
        """Upper bound of the full products of each block of a series, ``(n_blocks,)``."""
        rows, ends, low, high = self._blocks_of(which)
        fresh = self._layout.fresh[which]
        n_fresh = np.searchsorted(fresh, ends) - np.searchsorted(fresh, rows)
        return (1 + n_fresh) * (high - low) + self._layout.shape.rows * (1 + len(fresh))

    def add(self, which: int, block: int, end: int) -> None:
        """Add blocks of a series."""
        search, origin = self._layout.searches[which], int(self._layout.origins[which])
        n_windows = search.n_windows
        whole = block == 0 and end * self._layout.shape.rows >= n_windows and len(search.bank) == n_windows
        whole &= not len(self._layout.fresh[which])
        part = self._known.get(n_windows) if whole else None
        if part is None:
            part = self._part(which, block, end)
            if whole:
                self._known[n_windows] = part
        shift = self.n_products - origin  # of targets, to which a place is added
        moved = [origin, 0, 0, 0, self._n_segments, 0, 0, shift, 0, 0, shift, self._n_partial]
        self._parts.append(
            part._replace(
                blocks=np.add(part.blocks, moved),
                rows=np.add(part.rows, [origin, shift]),
                columns=np.add(part.columns, [origin, shift]),
                groups=part.groups + np.reshape([origin, shift, origin, origin], (4, 1)),
                merges=np.add(part.merges, [self._n_partial, 0, origin, 0]),
            )
        )
        self.n_products += part.n_products
        self._n_partial += part.n_partial
        self._n_segments += len(part.segments)

    def finished(self) -> Tables:
        """The tables of all that was added, on the device."""
        device, n_places = self._layout.phases.device, self._layout.n_places
        groups = np.concatenate([part.groups for part in self._parts])
        begin = groups[:, 2].min(axis=1)
        n_tasks = -(-(groups[:, 3].max(axis=1) - begin) // WINDOWS_OF_A_TASK)
        group, turn = _repeated(n_tasks)
        tables = [
            np.concatenate([part.blocks for part in self._parts]),
            np.concatenate([part.segments for part in self._parts]),
            np.concatenate([part.rows for part in self._parts]).T,
            np.concatenate([part.columns for part in self._parts]).T,
            groups[:, 0],
            groups[:, 1:],
            np.stack([group, begin[group] + turn * WINDOWS_OF_A_TASK], axis=1),
            np.concatenate([part.merges for part in self._parts]),
        ]
        in_one_piece = torch.from_numpy(np.concatenate([table.ravel() for table in tables])).to(device)
        pieces = in_one_piece.split([table.size for table in tables])
        blocks, segments, rows, columns, anchors, targets, tasks, merges = (
            piece.view(table.shape) for piece, table in zip(pieces, tables, strict=True)
        )
        row_anchors = torch.full((n_places,), _NOWHERE, device=device)
        row_anchors[rows[0]] = rows[1]
        column_anchors = torch.full((n_places,), _NOWHERE, device=device)
        column_anchors[columns[0]] = columns[1]
        placed = row_anchors, column_anchors, anchors, targets, tasks, merges
        return Tables(self.n_products, self._n_partial, blocks, segments, *placed)

    def _part(self, which: int, block: int, end: int) -> _Part:
        """The tables of these blocks of a series."""
        fresh = self._layout.fresh[which]
        rows, ends, low, high = (item[block:end] for item in self._blocks_of(which))

        # Rows: the first of every block, and those that start anew, with all columns that the block comes by.
        n_products, starts_at = _allot(0, high - low)
        starts_at -= low
        anchors = [(rows, starts_at, low, high)]
        anew = np.setdiff1d(fresh[(fresh >= rows[0]) & (fresh < ends[-1])], rows)
        block_of = (anew - rows[0]) // self._layout.shape.rows
        n_products, targets = _allot(n_products, (high - low)[block_of])
        targets -= low[block_of]
        anchors.append((anew, targets, low[block_of], high[block_of]))
        row_table = np.stack([anew, targets], axis=1)

        # Columns: the first of all, and those that start anew, with all rows of the blocks that come by them.
        restarts = fresh[(fresh >= low[0]) & (fresh < high[-1])]
        if low[0] == 0:
            restarts = np.union1d(restarts, [0])
        row = rows[np.searchsorted(high, restarts, side="right")]
        row_end = ends[np.searchsorted(low, restarts, side="right") - 1]
        n_products, targets = _allot(n_products, row_end - row)
        targets -= row
        anchors.append((restarts, targets, row, row_end))
        column_at = np.where(low == 0, targets[0] if low[0] == 0 else 0, _NOWHERE)

        starts = np.stack([starts_at, low, high, column_at], axis=1)
        blocks, segments, merges = self._sweeps(which, rows, ends, starts)
        return _Part(
            n_products=n_products,
            n_partial=int(merges[:, 1].sum()) * self._layout.shape.rows,
            blocks=blocks,
            segments=segments,
            rows=row_table,
            columns=np.stack([restarts, targets], axis=1),
            groups=_grouped(np.hstack([np.stack(some) for some in anchors])),
            merges=merges,
        )

    def _sweeps(
        self,
        which: int,
        rows: NDArray[np.int64],  # (n,) first row of each block, and its end
        ends: NDArray[np.int64],
        starts: NDArray[np.int64],  # (n, 4) where its diagonals start from, as in walk.cu
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Blocks, divided where that is faster, with as many segments as warps or a multiple; what is merged."""
        search, shape = self._layout.searches[which], self._layout.shape
        n, reach = search.n_windows, min(search.farthest, search.n_windows)

        # A pair of column j comes by when the sweep is less than a chunk before j.
        begin = np.maximum(rows - reach, 0) // shape.chunk - 1
        n_chunks = -(-np.minimum(ends + reach, n) // shape.chunk) - begin
        ways = np.minimum(self._ways(len(rows)), n_chunks)
        _, lists_at = _allot(0, np.where(ways > 1, ways, 0) * shape.rows)
        merges = np.stack([lists_at, ways, rows, ends - rows], axis=1)[ways > 1]
        of, part = _repeated(ways)
        goes_to = np.where(ways[of] > 1, lists_at[of] + part * shape.rows, _NOWHERE)
        done = n_chunks[of] * part // ways[of]
        n_chunks = n_chunks[of] * (part + 1) // ways[of] - done
        begin = begin[of] + done

        turns = -(-n_chunks // (shape.warps * _MOST_CHUNKS))
        width = -(-n_chunks // (shape.warps * turns))
        n_segments = -(-n_chunks // width)
        centre = np.clip((((rows + ends) // 2)[of] // shape.chunk - begin) // width, 0, n_segments - 1)
        owner, place = _repeated(n_segments)
        length = np.minimum(width[owner], n_chunks[owner] - place * width[owner])
        at = (begin[owner] + place * width[owner]) * shape.chunk
        bank = np.searchsorted(search.bank, [at, at + (length + 1) * shape.chunk])
        length[bank[0] == bank[1]] = 0  # no neighbor is eligible there

        nothing, first = np.zeros_like(of), np.cumsum(n_segments) - n_segments
        blocks = [nothing, rows[of], (ends - rows)[of], nothing + n, first, n_segments, centre]
        blocks += [*starts[of].T, goes_to]
        return np.stack(blocks, axis=1), np.stack([at, length], axis=1), merges

    def _ways(self, n_blocks: int) -> NDArray[np.int64]:
        """Number of parts of each block, so that no processor is idle."""
        ways = np.ones(n_blocks, np.int64)
        if len(self._layout.searches) == 1:
            first, device, shape = self._layout.searches[0], self._layout.phases.device, self._layout.shape
            n_whole, of_the_others = divided(n_blocks, blocks_at_once(first, device, shape)[1])
            ways[n_whole:] = of_the_others
        return ways

    def _blocks_of(self, which: int) -> tuple[NDArray[np.int64], ...]:
        """Of each block of a series: its first row, its end, from and to which column its diagonals begin."""
        search, height = self._layout.searches[which], self._layout.shape.rows
        n = search.n_windows
        reach = min(search.farthest, n)
        rows = np.arange(0, n, height)
        ends = np.minimum(rows + height, n)
        return rows, ends, np.maximum(rows - reach - height, 0), np.minimum(ends + reach, n)


def _allot(n_products: int, sizes: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Allot parts after ``n_products``: their end, and where each begins."""
    ends = n_products + np.cumsum(sizes)
    return n_products + int(sizes.sum()), ends - sizes


def _repeated(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each index repeated by its count, and the repetition: [2, 1] -> [0, 0, 1], [0, 1, 0]."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which]


def _grouped(anchors: NDArray[np.int64]) -> NDArray[np.int64]:
    """Anchors ``(4, n)`` in groups of 16, ``(n_groups, 4, 16)``; the last is filled up with idle ones."""
    anchors = anchors[:, np.argsort(anchors[0], kind="stable")]
    idle = anchors[:, -1:].repeat(-anchors.shape[1] % ANCHORS_OF_A_GROUP, axis=1)
    idle[3] = idle[2]  # from here to here
    return np.hstack([anchors, idle]).reshape(4, -1, ANCHORS_OF_A_GROUP).transpose(1, 0, 2)
