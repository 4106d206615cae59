"""CUDA layout of retrieval: series on the device, and the shape of the blocks that walk them.

    Searches of one kind -> Layout: factors and norms of all their windows, the shape of blocks that suits them

All series are concatenated on one axis of *places*: window i of a series is at place origin + i, its first
sample at stride times that. walk.cu takes a step along many diagonals as one product of matrices, so every
window has a row of factors: samples that entered and left since the window before.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss._core.threads import compiled, each_on_threads
from raxss.method.retrieval.diagonal import fresh_starts
from raxss.method.retrieval.search import Search, sliding_means

MOST_NEIGHBORS = 32  # a list lies in a block's memory, and is gone through rank by rank

_ALIGNED = 256  # series begin at multiples of this place
_WARPS_AT_ONCE = 16  # on a processor, for which walk.cu is compiled
_MOST_WAYS = 8  # among which the columns of a block are divided, as in merge.cu
_MOST_DIVIDED = 2**19  # rows of all blocks that are divided, about


class Shape(NamedTuple):
    """How a block of walk.cu is built: for this it is compiled."""

    tiles: int  # of 8 columns
    warps: int

    @property
    def chunk(self) -> int:
        """Columns that a warp takes at once."""
        return 8 * self.tiles

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 16 * self.chunk


SHAPES = [Shape(2, 16), Shape(3, 12), Shape(2, 8), Shape(1, 8), Shape(1, 4), Shape(1, 2), Shape(1, 1)]


# -- Limits of the kernel, and shapes of blocks --------------------------------------------------------------


def too_much_for_it(search: Search, device: torch.device) -> str | None:
    """Reason why the kernel does not support a search along diagonals, or None."""
    if search.spread_gap > 1:
        return "neighbors must lie apart from each other (spread)"
    if search.n_neighbors > MOST_NEIGHBORS:
        return f"n_neighbors is {search.n_neighbors}, and it lists at most {MOST_NEIGHBORS}"
    if not _fitting(search, device):
        return f"one stride is {_n_terms(search)} products, too many for the memory of its blocks"
    return None


def bytes_needed(searches: Sequence[Search]) -> int:
    """Least device memory in bytes of searching all at once, with the anchors' products of one block."""
    total = 0
    for search in searches:
        n_terms = _n_terms(search)
        n_places = search.n_windows + search.window_length // search.stride + 2 * _ALIGNED
        # Samples, means and phases; terms, twice laid out; lists; then products of a block and its segments.
        total += 8 * n_places * (3 * n_terms // 2 + 3 * n_terms + 12 + 2 * search.n_neighbors + 8)
    if len(searches) == 1:  # alone, some of its blocks are divided, and have lists of their own
        total += 8 * min(_MOST_WAYS * searches[0].n_windows, _MOST_DIVIDED) * searches[0].n_neighbors
    return total + max((16 * search.n_windows * 8 for search in searches), default=0)


def shared_bytes(search: Search, shape: Shape) -> int:
    """Shared memory of a block in walk.cu: factors and lists of rows; columns and candidates of each warp."""
    depth = depth_of(search)
    pitch = depth + (4 if depth % 8 == 0 else 0)
    of_a_warp = 4 * shape.chunk * (pitch + 1) + 64 + 32
    of_rows = 16 * (shape.chunk * depth + 4) + shape.rows * (2 + search.n_neighbors) + shape.rows // 2
    return 8 * (of_rows + shape.warps * of_a_warp)


def depth_of(search: Search) -> int:
    """Factors of a window: two that begin diagonals, those of a step, and zeros up to a multiple of 4."""
    return 4 * -(-(_n_terms(search) + 2) // 4)


def blocks_at_once(search: Search, device: torch.device, shape: Shape) -> tuple[int, int]:
    """Blocks that run at once: on one processor, and on all."""
    n_processors, room = _capacity(device)
    on_one = max(min(room // shared_bytes(search, shape), _WARPS_AT_ONCE // shape.warps), 1)
    return on_one, on_one * n_processors


def divided(n_blocks: int, at_once: int) -> tuple[int, int]:
    """Number of undivided blocks, in full turns of all processors; and the parts of each of the others."""
    n_rest = n_blocks % at_once
    return n_blocks - n_rest, min(at_once // n_rest, _MOST_WAYS) if n_rest else 1


def _fastest(searches: Sequence[Search], device: torch.device) -> Shape:
    """The shape of the least `_effort`."""
    return min(_fitting(searches[0], device), key=functools.partial(_effort, searches, device))


def _fitting(search: Search, device: torch.device) -> list[Shape]:
    """Shapes that fit into shared memory."""
    _, room = _capacity(device)
    return [shape for shape in SHAPES if shared_bytes(search, shape) <= room]


def _effort(searches: Sequence[Search], device: torch.device, shape: Shape) -> float:
    """Estimated time of all blocks, in steps of one warp."""
    first = searches[0]
    lengths = np.array([search.n_windows for search in searches])
    widths = np.minimum(lengths, 2 * np.array([search.farthest for search in searches]) + shape.rows)
    n_blocks = -(-lengths // shape.rows)
    products = float((n_blocks * widths).sum())
    on_one, at_once = blocks_at_once(first, device, shape)
    n_whole, ways = divided(int(n_blocks.sum()), at_once)
    if len(searches) > 1:
        ways = 1
    width, warming = products / n_blocks.sum(), shape.rows * shape.warps
    steps = n_whole // at_once * (width + warming) + (n_whole < n_blocks.sum()) * (width / ways + warming)
    # Few warps hide little of each other's waiting; small tiles read more for each product.
    pairs = on_one * shape.rows * steps * (1 + 4 / (on_one * shape.warps)) * (1 + 0.5 / shape.tiles)
    anchors = 1.5 * products * first.window_length * len(first.samples) / depth_of(first)
    return float(pairs + anchors * on_one / at_once)


def _capacity(device: torch.device) -> tuple[int, int]:
    """Processors, and shared memory of a block less what kernel and driver take; without a GPU those of an H100."""
    if device.type != "cuda":
        return 132, 227 * 1024 - 256
    about = torch.cuda.get_device_properties(device)
    room = int(getattr(about, "shared_memory_per_block_optin", 48 * 1024))
    return about.multi_processor_count, room - 256


def _n_terms(search: Search) -> int:
    """Products of one step along a diagonal."""
    return 2 * search.stride * len(search.samples)


# -- Arrays on the device ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """Searches of one kind, laid out on the device."""

    searches: list[Search]
    shape: Shape  # of the blocks that will walk them
    origins: NDArray[np.int64]  # place of each series' first window
    n_places: int  # length of the common axis, a multiple of 256
    fresh: list[NDArray[np.int64]]  # windows of each series where sums start anew, see `fresh_starts`
    phases: Tensor  # (n_variates * stride, n_places) samples by their place within a stride
    means: Tensor  # (n_variates, n_places) of the windows; zeros under cosine
    rows: Tensor  # (n_places, depth) factors of the step that arrives at each window, behind two others
    columns: Tensor  # (n_places, depth), see walk.cu
    inverses: Tensor  # (n_places,) 1 / norm of neighbors
    row_inverses: Tensor  # (n_places,) 1 / norm of queries
    row_norms: Tensor  # (n_places,)


def lay_out_on(device: torch.device, searches: list[Search]) -> Layout:
    """Bring searches of one kind to the device and arrange them for the walk."""
    first = searches[0]
    stride, n_variates = first.stride, len(first.samples)
    reach_of_window = -(-first.window_length // stride)
    lengths = np.array([_aligned(search.n_windows + reach_of_window + 1) for search in searches])
    lengths[-1] += _aligned(reach_of_window + 3 * _ALIGNED)  # anchors.cu reads past the end
    ends = np.cumsum(lengths)
    origins, n_places = ends - lengths, int(ends[-1])

    on_host, fresh = _in_a_row(searches, origins, ends, pinned=device.type == "cuda")
    samples, means, norms = (item.to(device, non_blocking=True) for item in on_host)
    inverses, row_inverses, row_norms, arrives = norms
    rows, columns = _factors(first, samples, means, arrives)
    columns[torch.from_numpy(origins).to(device), 0] = 1.0
    return Layout(
        searches=searches,
        shape=_fastest(searches, device),
        origins=origins,
        n_places=n_places,
        fresh=fresh,
        phases=samples.view(n_variates, n_places, stride).transpose(1, 2).contiguous().flatten(0, 1),
        means=means[:, ::stride].contiguous(),
        rows=rows,
        columns=columns,
        inverses=inverses,
        row_inverses=row_inverses,
        row_norms=row_norms,
    )


def _in_a_row(
    searches: list[Search],
    origins: NDArray[np.int64],  # (n_searches,) from and to which place each series goes
    ends: NDArray[np.int64],
    *,
    pinned: bool,  # memory, since sending it costs more than most of what follows
) -> tuple[tuple[Tensor, Tensor, Tensor], list[NDArray[np.int64]]]:
    """Samples and the means of the windows at every sample ``(n_variates, n_places * stride)``, norms as in
    `place_norms` ``(4, n_places)``; and the windows of each series where sums start anew."""
    length, stride = searches[0].window_length, searches[0].stride
    n_variates, n_places = len(searches[0].samples), int(ends[-1])
    samples = torch.empty((n_variates, n_places * stride), dtype=torch.float64, pin_memory=pinned)
    means = torch.empty_like(samples, pin_memory=pinned)
    norms = torch.empty((4, n_places), dtype=torch.float64, pin_memory=pinned)

    def fill(which: int) -> NDArray[np.int64]:
        search, origin, end = searches[which], int(origins[which]), int(ends[which])
        n_samples = search.samples.shape[1]
        some = samples.numpy()[:, origin * stride : end * stride]
        some[:, :n_samples] = search.samples
        some[:, n_samples:] = 0.0
        some = means.numpy()[:, origin * stride : end * stride]
        n_means = n_samples - length + 1 if search.centred else 0
        for variate, sample in enumerate(search.samples if search.centred else ()):
            some[variate, :n_means] = sliding_means(sample, length)
        some[:, n_means:] = 0.0
        skipped = search.flat | search.nonfinite
        place_norms(search.norms, search.flat, skipped, search.bank, norms.numpy()[:, origin:end])
        return np.flatnonzero(fresh_starts(search.norms, skipped))

    fresh = each_on_threads(fill, range(len(searches)))
    return (samples, means, norms), fresh


def _aligned(n: int) -> int:
    return -(-n // _ALIGNED) * _ALIGNED


def _factors(
    search: Search,  # any of them: they are of one kind
    samples: Tensor,  # (n_variates, n_places * stride)
    means: Tensor,  # (n_variates, n_places * stride)
    arrives: Tensor,  # (n_places,) 1 where a step arrives, else 0
) -> tuple[Tensor, Tensor]:  # (n_places, depth) twice
    """Factors of rows and of columns: their products, summed, are the step of diagonal.py to a pair of windows.

    Those of a window are the samples that entered since the window before it, and those that left; signs and
    gain are with the rows.
    """
    length, stride, (n_variates, n_samples) = search.window_length, search.stride, samples.shape
    n_terms, n_places = _n_terms(search), len(arrives)
    n_steps = n_samples - max(length, stride + 1)
    arrived = slice(stride, stride + n_steps)
    terms = samples.new_zeros((2, n_variates, n_samples))
    torch.sub(samples[:, length : length + n_steps], means[:, 1 : 1 + n_steps], out=terms[0, :, arrived])
    torch.sub(samples[:, :n_steps], means[:, :n_steps], out=terms[1, :, arrived])
    terms = terms.view(2, n_variates, n_places, stride)
    terms *= arrives.view(-1, 1)

    columns = samples.new_zeros((n_places, depth_of(search)))
    columns[:, 2 : 2 + n_terms].view(n_places, 2, n_variates, stride).copy_(terms.permute(2, 0, 1, 3))
    rows = columns.clone()
    gain = length / (length - 1) if search.centred else 1.0
    rows[:, 2 : 2 + n_terms // 2] *= gain
    rows[:, 2 + n_terms // 2 :] *= -gain
    return rows, columns


@compiled
def place_norms(
    norms: NDArray[np.float64],  # (n_windows,)
    flat: NDArray[np.bool_],
    skipped: NDArray[np.bool_],  # flat or not finite
    bank: NDArray[np.int64],
    out: NDArray[np.float64],  # (4, n) 1 / norm of neighbors, of queries, norm, whether a step arrives
) -> None:
    """Norms of every place of one series, those after its last window included."""
    out[0] = np.nan
    out[1] = 0.0
    out[2] = np.inf
    out[3] = 0.0
    for window in range(len(norms)):
        if not skipped[window]:
            out[1, window] = 1.0 / norms[window]
            out[2, window] = norms[window]
        if window > 0:
            out[3, window] = 1.0
    for window in bank:
        out[0, window] = 0.0 if flat[window] else 1.0 / norms[window]
