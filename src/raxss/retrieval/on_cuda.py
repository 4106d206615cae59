"""Nearest windows of many series in one launch, with a CUDA kernel that never writes a similarity.

    Searches -> similarity, neighbors (n_windows, n_neighbors) of each

The recurrence of diagonal.py in float64. All series lie one behind another on one axis of *places*: window i of a
series is at place origin + i, its first sample at stride times that. A block of the kernel owns some rows of one
series; which, and where it starts from, is in tables made here. Next: walk.cu, the kernel; anchors.cu, the full
products that it starts from.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss.compiled import compiled, run_on_threads
from raxss.memory import free_on_gpu
from raxss.retrieval.diagonal import fresh_starts
from raxss.retrieval.kernels import GRID, NONE, first_eligible
from raxss.retrieval.search import Search, sliding_means

MOST_NEIGHBORS = 32  # a list lies in a block's memory, and is gone through rank by rank
LEAST_CAPABILITY = (8, 0)  # of the device: float64 matrix instructions

_ALIGNED = 256  # series begin at multiples of this place
_GROUP = 16  # anchors that anchors.cu takes at once
_ANCHOR_WINDOWS = 256  # and the windows that one of its blocks does
_MOST_ROWS, _LEAST_ROWS = 512, 64  # of one block: fewer start more often, more leave processors idle
_MEMORY_SHARE = 0.4  # of the free memory, for the anchors' products
_PLACE_BITS = 29  # of a key, as in walk.cu
_LAST_PLACE = 2**_PLACE_BITS - 1
_NO_KEY = -(2**63)
_NO_ANCHOR = -(2**62)
_FAR = 2**30  # in windows: no limit


class Shape(NamedTuple):
    """How a block of walk.cu is built: for this it is compiled."""

    columns: int = 8  # of a lane
    warps: int = 8

    @property
    def width(self) -> int:
        """Columns of a strip."""
        return 32 * self.columns


_SHAPES = [Shape(columns, warps) for columns in (8, 4, 2, 1) for warps in (8, 4)]  # the first that fits


def too_much_for_it(search: Search, device: torch.device) -> str | None:
    """What of a search along diagonals the kernel cannot do, or None if it can."""
    if search.spread_gap > 1:
        return "neighbors must lie apart from each other (spread)"
    if search.n_neighbors > MOST_NEIGHBORS:
        return f"n_neighbors is {search.n_neighbors}, and it lists at most {MOST_NEIGHBORS}"
    if shape_of(search, device) is None:
        return f"one stride is {_n_terms(search)} products, too many for the memory of its blocks"
    return None


def shape_of(search: Search, device: torch.device) -> Shape | None:
    """The widest strips and most warps whose factors fit into a block's memory, or None."""
    for shape in _SHAPES:
        if shared_bytes(search, shape, _LEAST_ROWS) <= _most_shared(device):
            return shape
    return None


@functools.cache
def why_not(device: torch.device) -> str | None:
    """Why the kernel cannot run on this device, or None if it can. Compiles it, once a process."""
    if torch.version.hip is not None:
        return "it is written for CUDA"
    if not hasattr(torch.cuda, "_compile_kernel"):
        return f"torch {torch.__version__} cannot compile it; 2.11 can"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        return "{} has compute capability {}.{}, needed is {}.{}".format(name, *capability, *LEAST_CAPABILITY)
    try:
        _kernel("anchors", device)
        _kernel("walk", device, Shape())
    except Exception as error:  # the compiler, the driver or their versions: torch raises what it finds
        return f"compiling it failed ({(str(error).strip().splitlines() or [type(error).__name__])[0]})"
    return None


def nearest_on_cuda(
    searches: Sequence[Search], device: torch.device
) -> list[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Exact lists of every search, the same as on the CPU. Searches of one kind share a launch."""
    found: list[tuple[NDArray[np.float64], NDArray[np.int64]] | None] = [None] * len(searches)
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for place, search in enumerate(searches):
        kinds.setdefault(_kind(search), []).append(place)
    with torch.cuda.device(device):
        for places in kinds.values():
            some = [searches[place] for place in places]
            for place, lists in zip(places, _nearest(some, device), strict=True):
                found[place] = lists
    return [lists for lists in found if lists is not None]


def bytes_needed(searches: Sequence[Search]) -> int:
    """Device memory that a search of all at once takes at the least, anchors' products of one block included."""
    total = 0
    for search in searches:
        n_terms = _n_terms(search)
        n_places = search.n_windows + search.window_length // search.stride + 2 * _ALIGNED
        # Samples, means and phases; terms, twice laid out; lists; then products of a block and its segments.
        total += 8 * n_places * (3 * n_terms // 2 + 3 * n_terms + 2 * search.n_neighbors + 8)
    return total + max((16 * search.n_windows * 8 for search in searches), default=0)


def _kind(search: Search) -> tuple[Any, ...]:
    """What searches of one launch have in common."""
    return (
        search.window_length,
        search.stride,
        search.centred,
        len(search.samples),
        search.n_neighbors,
        search.gap,
        search.reach,
    )


def _nearest(
    searches: list[Search], device: torch.device
) -> list[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Lists of searches of one kind."""
    layout = lay_out_on(device, searches)
    keys = _to_host(walk(layout)).numpy()
    found = [(np.empty(shape), np.empty(shape, np.int64)) for shape in map(_shape_of_lists, searches)]
    pending = iter(range(len(searches)))

    def read() -> Iterator[None]:
        for which in pending:
            search, origin = searches[which], int(layout.origins[which])
            read_keys(keys[origin : origin + search.n_windows], *found[which])
            if search.flat.any():
                queries = np.flatnonzero(search.flat)
                first_eligible(queries, search.bank, search.gap, *found[which], search.farthest)
            yield

    run_on_threads(read, n_tasks=len(searches))
    return found


@compiled
def read_keys(
    keys: NDArray[np.int64],  # (n_windows, n_neighbors)
    similarity: NDArray[np.float64],  # (n_windows, n_neighbors) out
    neighbors: NDArray[np.int64],  # (n_windows, n_neighbors) out
) -> None:
    """Take keys apart: see walk.cu."""
    for row in range(keys.shape[0]):
        for rank in range(keys.shape[1]):
            key = keys[row, rank]
            listed = key != _NO_KEY
            similarity[row, rank] = (key >> _PLACE_BITS) * GRID if listed else NONE
            neighbors[row, rank] = _LAST_PLACE - (key & _LAST_PLACE) if listed else -1


def _shape_of_lists(search: Search) -> tuple[int, int]:
    return search.n_windows, search.n_neighbors


@dataclass(frozen=True, eq=False)
class Layout:
    """Searches of one kind, laid out on the device.

    Attributes
    ----------
    shape
        Of the blocks that will walk them.
    origins
        Place of each series' first window.
    n_places
        Length of the common axis, a multiple of 256.
    fresh
        Windows of each series where sums start anew: see `fresh_starts`.
    phases
        ``(n_variates * stride, n_places)`` samples by their place within a stride.
    means
        ``(n_variates, n_places)`` of the windows; zeros under cosine.
    rows, columns
        Factors of the step that arrives at each window, in the order in which walk.cu reads them.
    inverses, row_inverses, row_norms
        ``(n_places,)`` 1 / norm of neighbors and of queries, norm of queries: see walk.cu.
    """

    searches: list[Search]
    shape: Shape
    origins: NDArray[np.int64]
    n_places: int
    fresh: list[NDArray[np.int64]]
    phases: Tensor
    means: Tensor
    rows: Tensor
    columns: Tensor
    inverses: Tensor
    row_inverses: Tensor
    row_norms: Tensor


def lay_out_on(device: torch.device, searches: list[Search]) -> Layout:
    """Bring searches of one kind to the device and arrange them for the walk."""
    first = searches[0]
    shape = shape_of(first, device) or Shape()
    length, stride, n_variates = first.window_length, first.stride, len(first.samples)
    reach_of_window = -(-length // stride)
    lengths = [-(-(one.n_windows + reach_of_window + 1) // _ALIGNED) * _ALIGNED for one in searches]
    origins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    n_places = (
        int(origins[-1]) + -(-(reach_of_window + 3 * _ALIGNED) // _ALIGNED) * _ALIGNED
    )  # read past the end
    ends = np.append(origins[1:-1], n_places)

    # Pinned memory, since sending it costs more than most of what follows.
    pinned = device.type == "cuda"
    samples = torch.empty((n_variates, n_places * stride), dtype=torch.float64, pin_memory=pinned)
    means = torch.empty_like(samples, pin_memory=pinned)  # of the window at every sample
    by_place = torch.empty((4, n_places), dtype=torch.float64, pin_memory=pinned)
    fresh: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(searches)
    pending = iter(range(len(searches)))

    def fill() -> Iterator[None]:
        for which in pending:
            search = searches[which]
            here = slice(int(origins[which]) * stride, int(ends[which]) * stride)
            some = samples.numpy()[:, here]
            some[:, : search.samples.shape[1]] = search.samples
            some[:, search.samples.shape[1] :] = 0.0
            some = means.numpy()[:, here]
            n_means = search.samples.shape[1] - length + 1 if search.centred else 0
            for variate, one in enumerate(search.samples if search.centred else ()):
                some[variate, :n_means] = sliding_means(one, length)
            some[:, n_means:] = 0.0
            skipped = search.flat | search.nonfinite
            windows = slice(int(origins[which]), int(ends[which]))
            place_norms(search.norms, search.flat, skipped, search.bank, by_place.numpy()[:, windows])
            fresh[which] = np.flatnonzero(fresh_starts(search.norms, skipped))
            yield

    run_on_threads(fill, n_tasks=len(searches))
    on_device = samples.to(device, non_blocking=True)
    means_on_device = means.to(device, non_blocking=True)
    places_on_device = by_place.to(device, non_blocking=True)

    # The step that arrives at a window: what entered, and what left, since the window before it.
    terms = torch.zeros((2, n_variates, n_places * stride), dtype=torch.float64, device=device)
    n_steps = n_places * stride - max(length, stride + 1)
    arrived = slice(stride, stride + n_steps)
    torch.sub(
        on_device[:, length : length + n_steps],
        means_on_device[:, 1 : 1 + n_steps],
        out=terms[0, :, arrived],
    )
    torch.sub(on_device[:, :n_steps], means_on_device[:, :n_steps], out=terms[1, :, arrived])
    terms = terms.view(2, n_variates, n_places, stride)
    terms *= places_on_device[3].view(-1, 1)
    gain = length / (length - 1) if first.centred else 1.0
    rows = terms.view(2, n_variates, n_places // 8, 8, stride).permute(2, 0, 1, 4, 3).contiguous()
    rows[:, 0] *= gain
    rows[:, 1] *= -gain
    columns = terms.view(2, n_variates, n_places // shape.width, 32, shape.columns, stride).permute(
        2, 0, 1, 5, 4, 3
    )
    return Layout(
        searches=searches,
        shape=shape,
        origins=origins[:-1],
        n_places=n_places,
        fresh=fresh,
        phases=on_device.view(n_variates, n_places, stride).transpose(1, 2).contiguous().flatten(0, 1),
        means=means_on_device[:, ::stride].contiguous(),
        rows=rows,
        columns=columns.contiguous(),
        inverses=places_on_device[0],
        row_inverses=places_on_device[1],
        row_norms=places_on_device[2],
    )


@compiled
def place_norms(
    norms: NDArray[np.float64],  # (n_windows,)
    flat: NDArray[np.bool_],
    skipped: NDArray[np.bool_],  # flat or not finite
    bank: NDArray[np.int64],
    by_place: NDArray[
        np.float64
    ],  # (4, n) out: 1 / norm of neighbors, of queries, norm, whether a step arrives
) -> None:
    """What the kernel asks of every place of one series, those behind its last window included."""
    by_place[0] = np.nan
    by_place[1] = 0.0
    by_place[2] = np.inf
    by_place[3] = 0.0
    for window in range(len(norms)):
        if not skipped[window]:
            by_place[1, window] = 1.0 / norms[window]
            by_place[2, window] = norms[window]
        if window > 0:
            by_place[3, window] = 1.0
    for window in bank:
        by_place[0, window] = 0.0 if flat[window] else 1.0 / norms[window]


def walk(layout: Layout) -> Tensor:
    """Lists as keys ``(n_places, n_neighbors)``, on the device."""
    device = layout.phases.device
    n_rows = rows_of_a_block(layout)
    keys = torch.full((layout.n_places, layout.searches[0].n_neighbors), _NO_KEY, device=device)
    for tables in plan(layout, n_rows, _most_products(device)):
        launch(layout, tables, n_rows, keys)
    return keys


def launch(layout: Layout, tables: Tables, n_rows: int, keys: Tensor) -> None:
    """Find the lists of the rows that the tables name: first what the walk starts from, then the walk."""
    first, device, shape = layout.searches[0], layout.phases.device, layout.shape
    kernel = _kernel("walk", device, shape)
    shared = shared_bytes(first, shape, n_rows)
    with _launching:
        if shared > kernel._max_shared_mem_bytes:
            kernel.set_shared_memory_config(shared)
    products = anchors_products(layout, tables)
    edges = torch.empty((len(tables.blocks), shape.warps, n_rows), dtype=torch.float64, device=device)
    kernel(
        grid=(len(tables.blocks), 1, 1),
        block=(32 * shape.warps, 1, 1),
        args=[
            *(layout.columns, layout.rows, layout.inverses, layout.row_inverses, layout.row_norms, products),
            *(tables.row_anchors, tables.row_masks, tables.column_anchors, tables.strip_flags),
            *(tables.blocks, tables.segments, edges, keys),
            *(_n_terms(first), first.n_neighbors, min(first.gap, _FAR), _reach(first), n_rows),
        ],
        shared_mem=shared,
    )


def anchors_products(layout: Layout, tables: Tables) -> Tensor:
    """Full products of the anchors with the windows that the tables ask for."""
    first, device = layout.searches[0], layout.phases.device
    n_variates, stride, length = len(first.samples), first.stride, first.window_length
    depth = 8 * -(-length // (8 * stride))  # samples of a phase, in the matrix instruction's steps
    within = torch.arange(depth, device=device)
    # (n_variates, stride, n_groups, 16, depth), zeros behind the window's end
    centred = layout.phases[:, tables.anchors[..., None] + within].unflatten(0, (n_variates, stride))
    centred -= layout.means[:, tables.anchors][:, None, ..., None]
    centred *= (within * stride + torch.arange(stride, device=device)[:, None] < length)[:, None, None]
    rests = centred.sum(dim=(1, 4)).transpose(0, 1).contiguous()
    spare = centred.new_zeros(8 * _GROUP)
    centred = torch.cat([centred.permute(2, 0, 1, 4, 3).flatten(), spare])
    products = torch.empty(tables.n_products, dtype=torch.float64, device=device)
    _kernel("anchors", device)(
        grid=(len(tables.tasks), 1, 1),
        block=(128, 1, 1),
        args=[
            *(centred, rests, layout.phases, layout.means, tables.groups, tables.tasks, products),
            *(n_variates * stride, n_variates, depth, layout.n_places),
        ],
    )
    return products


@dataclass(frozen=True, eq=False)
class Tables:
    """What one launch does: its blocks, their segments, and the anchors these start from; 64-bit integers.

    Attributes
    ----------
    n_products
        How many full products there are.
    blocks, segments
        ``(n_blocks, 6)`` and ``(n_segments, 3)``: see walk.cu.
    row_anchors, row_masks
        ``(n_places,)`` where a row's full products begin, less the place they begin at; ``(n_places / 8,)``.
    column_anchors, strip_flags
        ``(n_places,)`` the same of columns that start anew; ``(n_strips,)``.
    anchors
        ``(n_groups, 16)`` places of the windows whose full products are needed.
    groups
        ``(n_groups, 3, 16)`` where these go, from and to which place.
    tasks
        ``(n_tasks, 2)`` group and first place of each block of anchors.cu.
    """

    n_products: int
    blocks: Tensor
    segments: Tensor
    row_anchors: Tensor
    row_masks: Tensor
    column_anchors: Tensor
    strip_flags: Tensor
    anchors: Tensor
    groups: Tensor
    tasks: Tensor


def plan(layout: Layout, n_rows: int, most_products: int) -> Iterator[Tables]:
    """Divide all rows into blocks of ``n_rows``, and these into launches of bounded memory.

    Long series come first, so that no long block is left for the end.
    """
    draft = _Draft(layout, n_rows)
    for which in sorted(range(len(layout.searches)), key=lambda one: -layout.searches[one].n_windows):
        costs = draft.costs(which)
        block = 0
        while block < len(costs):
            room = most_products - draft.n_products
            end = block + int(np.searchsorted(np.cumsum(costs[block:]), room, side="right"))
            if end == block and draft.n_products:
                yield draft.finished()
                draft = _Draft(layout, n_rows)
                continue
            end = max(end, block + 1)
            draft.add(which, block, end)
            block = end
    if draft.n_products:
        yield draft.finished()


class _Part(NamedTuple):
    """Some blocks of one series as if its first window were at place 0 and its products came first."""

    n_products: int
    blocks: NDArray[np.int64]
    segments: NDArray[np.int64]
    rows: NDArray[np.int64]  # (n, 2) windows with anchors, where their products lie
    columns: NDArray[np.int64]  # (n, 2)
    groups: NDArray[np.int64]  # (n_groups, 4, 16): anchor, where its products go, from and to which window


class _Draft:
    """Tables in the making; series are added one after another, or some of their blocks."""

    def __init__(self, layout: Layout, n_rows: int) -> None:
        self._layout, self._n_rows = layout, n_rows
        self.n_products = 0
        self._n_segments = 0
        self._parts: list[_Part] = []
        self._known: dict[int, _Part] = {}  # by length: the channels of a recording are alike

    def costs(self, which: int) -> NDArray[np.int64]:
        """At most how many full products each block of a series needs, ``(n_blocks,)``."""
        rows, ends, first, last = self._blocks_of(which)
        fresh = self._layout.fresh[which]
        n_fresh = np.searchsorted(fresh, ends) - np.searchsorted(fresh, rows)
        width = (last - first) * self._segment_width(which)
        return (1 + n_fresh) * width + (self._n_rows + 16) * (last - first + len(fresh))

    def add(self, which: int, block: int, end: int) -> None:
        """Take these blocks of a series in."""
        search, origin = self._layout.searches[which], int(self._layout.origins[which])
        n_windows = search.n_windows
        whole = block == 0 and end * self._n_rows >= n_windows and len(search.bank) == n_windows
        whole &= not len(self._layout.fresh[which])
        part = self._known.get(n_windows) if whole else None
        if part is None:
            part = self._part(which, block, end)
            if whole:
                self._known[n_windows] = part
        shift = self.n_products - origin  # of targets, to which a place is added
        self._parts.append(
            _Part(
                part.n_products,
                np.add(part.blocks, [origin, 0, 0, self._n_segments, 0, 0]),
                np.add(part.segments, [0, 0, shift]),
                np.add(part.rows, [origin, shift]),
                np.add(part.columns, [origin, shift]),
                part.groups + np.reshape([origin, shift, origin, origin], (4, 1)),
            )
        )
        self.n_products += part.n_products
        self._n_segments += len(part.segments)

    def finished(self) -> Tables:
        """The tables of all that was added, on the device."""
        device, n_places = self._layout.phases.device, self._layout.n_places
        groups = np.concatenate([part.groups for part in self._parts])
        begin = groups[:, 2].min(axis=1)
        n_tasks = -(-(groups[:, 3].max(axis=1) - begin) // _ANCHOR_WINDOWS)
        task_group = np.repeat(np.arange(len(groups)), n_tasks)
        turn = np.arange(len(task_group)) - np.repeat(np.cumsum(n_tasks) - n_tasks, n_tasks)
        tables = [
            np.concatenate([part.blocks for part in self._parts]),
            np.concatenate([part.segments for part in self._parts]),
            np.concatenate([part.rows for part in self._parts]).T,
            np.concatenate([part.columns for part in self._parts]).T,
            groups[:, 0],
            groups[:, 1:],
            np.stack([task_group, begin[task_group] + turn * _ANCHOR_WINDOWS], axis=1),
        ]
        whole = torch.from_numpy(np.concatenate([table.ravel() for table in tables])).to(
            device
        )  # in one piece
        parts = whole.split([table.size for table in tables])
        blocks, segments, rows, columns, anchors, groups_, tasks = (
            part.view(table.shape) for part, table in zip(parts, tables, strict=True)
        )
        row_anchors = torch.full((n_places,), _NO_ANCHOR, device=device)
        row_anchors[rows[0]] = rows[1]
        column_anchors = torch.full((n_places,), _NO_ANCHOR, device=device)
        column_anchors[columns[0]] = columns[1]
        bits = 2 ** torch.arange(8, device=device)
        return Tables(
            n_products=self.n_products,
            blocks=blocks,
            segments=segments,
            row_anchors=row_anchors,
            row_masks=((row_anchors != _NO_ANCHOR).view(-1, 8) * bits).sum(dim=1),
            column_anchors=column_anchors,
            strip_flags=(column_anchors != _NO_ANCHOR)
            .view(-1, self._layout.shape.width)
            .any(dim=1)
            .to(torch.int64),
            anchors=anchors,
            groups=groups_,
            tasks=tasks,
        )

    def _part(self, which: int, block: int, end: int) -> _Part:
        """The tables of these blocks of a series."""
        search, fresh = self._layout.searches[which], self._layout.fresh[which]
        n_windows, width = search.n_windows, self._segment_width(which)
        strip = self._layout.shape.width
        padded = -(-n_windows // strip) * strip
        rows, ends, first, last = (one[block:end] for one in self._blocks_of(which))

        # Rows: the first of every block, and those that start anew, with all columns of the block's segments.
        windows = np.union1d(rows, fresh[(fresh >= rows[0]) & (fresh < ends[-1])])
        block_of = (windows - rows[0]) // self._n_rows
        column, past = (first * width)[block_of], np.minimum(last * width, padded)[block_of]
        n_products, targets = _allot(0, past - column)
        targets -= column
        anchors = [(windows, targets, column, np.minimum(past, n_windows))]
        row_table = np.stack([windows, targets], axis=1)

        # Columns: the one before every segment, and those that start anew, with all rows that meet the segment.
        segments = np.arange(first[0], last[-1])
        starts = segments * width
        row = rows[np.searchsorted(last, segments, side="right")]
        row_end = ends[np.searchsorted(first, segments, side="right") - 1]
        n_products, targets = _allot(n_products, row_end - row + 16)
        targets -= row
        anchors.append((np.maximum(starts - 1, 0), targets, row, row_end))
        # Column 0 has none before it: its own products take that place, one row on.
        n_strips = (np.minimum(starts + width, padded) - starts) // strip
        bank = np.searchsorted(search.bank, [starts, starts + width])
        n_strips[bank[0] == bank[1]] = 0  # nobody there may be a neighbor
        segment_table = np.stack([starts, n_strips, targets + (starts == 0)], axis=1)
        restarts = fresh[(fresh >= starts[0]) & (fresh < starts[-1] + width)]
        segment_of = restarts // width - segments[0]
        row, row_end = row[segment_of], row_end[segment_of]
        n_products, targets = _allot(n_products, row_end - row + 16)
        targets -= row
        anchors.append((restarts, targets, row, row_end))

        centre = np.clip((rows + ends) // 2 // width, first, last - 1) - first
        nothing = np.zeros_like(rows)
        return _Part(
            n_products,
            np.stack([nothing, rows, ends - rows, first - segments[0], last - first, centre], axis=1),
            segment_table,
            row_table,
            np.stack([restarts, targets], axis=1),
            _grouped(np.hstack([np.stack(part) for part in anchors])),
        )

    def _blocks_of(self, which: int) -> tuple[NDArray[np.int64], ...]:
        """Of each block of a series: its first row, its end, its first segment and the end of those."""
        search = self._layout.searches[which]
        n, width = search.n_windows, self._segment_width(which)
        reach = min(_reach(search), n)
        rows = np.arange(0, n, self._n_rows)
        ends = np.minimum(rows + self._n_rows, n)
        first = np.maximum(rows - reach, 0) // width
        last = np.minimum(ends - 1 + reach, n - 1) // width + 1
        return rows, ends, first, last

    def _segment_width(self, which: int) -> int:
        """Columns of a segment: equally many for each warp, in one or more turns, of about four strips."""
        search = self._layout.searches[which]
        shape = self._layout.shape
        n_strips = -(-min(search.n_windows, 2 * _reach(search) + self._n_rows) // shape.width)
        turns = max(round(n_strips / (4 * shape.warps)), 1)
        return shape.width * -(-n_strips // (turns * shape.warps))


def _allot(n_products: int, sizes: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Room for more products: how many there are then, and where each part begins."""
    ends = n_products + np.cumsum(sizes)
    return n_products + int(sizes.sum()), ends - sizes


def _grouped(anchors: NDArray[np.int64]) -> NDArray[np.int64]:
    """Anchors ``(4, n)`` in groups of 16, ``(n_groups, 4, 16)``; the last is filled up with idle ones."""
    anchors = anchors[:, np.argsort(anchors[0], kind="stable")]
    idle = anchors[:, -1:].repeat(-anchors.shape[1] % _GROUP, axis=1)
    idle[3] = idle[2]  # from here to here
    return np.hstack([anchors, idle]).reshape(4, -1, _GROUP).transpose(1, 0, 2)


def rows_of_a_block(layout: Layout) -> int:
    """The height of a block that promises to be fastest: whole turns of all processors, few full products."""
    first, device = layout.searches[0], layout.phases.device
    n_processors = torch.cuda.get_device_properties(device).multi_processor_count
    heights = np.arange(8, _MOST_ROWS + 1, 8)
    room = [shared_bytes(first, layout.shape, int(height)) <= _most_shared(device) for height in heights]
    heights = heights[room][_LEAST_ROWS // 8 - 1 :]
    lengths = np.array([search.n_windows for search in layout.searches])
    widths = np.minimum(lengths, 2 * _reach(first) + 1)
    n_blocks = -(-lengths // heights[:, np.newaxis])
    pairs = (n_blocks * widths).sum(axis=1) * heights
    turns = -(-n_blocks.sum(axis=1) // n_processors)
    steps = turns * pairs / n_blocks.sum(axis=1) * (_n_terms(first) + 3)
    full = (n_blocks * widths).sum(axis=1) * first.window_length * len(first.samples)
    return int(heights[np.argmin(steps + full / n_processors)])


def shared_bytes(search: Search, shape: Shape, n_rows: int) -> int:
    """Shared memory of a block: factors of every warp's strip, room for what waits to be listed, and for every row
    its factors, list, norm, inverse and bar."""
    n_terms = _n_terms(search)
    of_a_warp = 64 + 32 + shape.width * n_terms
    return 8 * (shape.warps * of_a_warp + n_rows * (n_terms + search.n_neighbors + 2)) + 4 * n_rows


def _most_shared(device: torch.device) -> int:
    """Shared memory that a block may have, less what the kernel and the driver take."""
    if device.type != "cuda":
        return 227 * 1024
    about = torch.cuda.get_device_properties(device)
    return int(getattr(about, "shared_memory_per_block_optin", 48 * 1024)) - 256


def _n_terms(search: Search) -> int:
    """Products of one step along a diagonal."""
    return 2 * search.stride * len(search.samples)


def _most_products(device: torch.device) -> int:
    """How many full products one launch may hold."""
    return int(_MEMORY_SHARE * free_on_gpu(device)) // 8


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, several times as fast to send."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor)


@functools.cache
def _kernel(name: str, device: torch.device, shape: Shape | None = None) -> Any:
    """A kernel of the file of its name, compiled for this device."""
    source = resources.files("raxss.retrieval").joinpath(f"{name}.cu").read_text(encoding="utf-8")
    options = [] if shape is None else [f"-DCOLUMNS={shape.columns}", f"-DWARPS={shape.warps}"]
    with torch.cuda.device(device):
        return torch.cuda._compile_kernel(source, name, nvcc_options=options)


_launching = threading.Lock()


def _reach(search: Search) -> int:
    """The reach as a number that the kernel takes."""
    return _FAR if search.reach is None else min(search.reach, _FAR)
