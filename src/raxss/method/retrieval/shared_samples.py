"""Similarity of windows with missing samples: over the samples that both of a pair have, by matrix products.

    windows (n, n_variates, length), masks (n, length), twice -> similarity (n, m)
    Search, lists of its whole windows                        -> lists of all windows

With M_k the mask of window k, S = M_k M_j the shared samples and n their number, sums over S are products of
matrices: x_k . x_j, x_k . M_j, M_k . x_j, x_k² . M_j, M_k . x_j² and M_k . M_j. Whole windows are searched by the
fast paths (diagonal.py, blocked.py, on_torch.py); here the pairs with gaps are added to their lists. On a CPU,
windows that overlap much take shared_walk.py instead.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss.method.retrieval.kernels import NONE
from raxss.method.retrieval.keys import INELIGIBLE, keys_of, largest_keys
from raxss.method.retrieval.search import Lists, Search

LEAST_SHARED = 0.25  # of a window: with fewer samples in common, two windows are not compared
FLAT_SHARED = 1e-4  # of a window's norm: with less of it in the shared samples, there is no shape to compare

_BLOCK_VALUES = 2**21  # float64 values of some windows or of their similarities: 16 MB
_CPU = torch.device("cpu")


def shared_similarity(
    first: Tensor,  # (n, n_variates, length), of norm 1, 0 where missing
    first_present: Tensor,  # (n, length) of 1 and 0
    second: Tensor,  # (m, n_variates, length)
    second_present: Tensor,  # (m, length)
    *,
    centred: bool,
) -> Tensor:  # (n, m)
    r"""Similarity of every pair over the samples present in both.

    phi(k, j) = sum_S (x_k - mean_S x_k)(x_j - mean_S x_j) / (|x_k - mean_S x_k|_S |x_j - mean_S x_j|_S)

    without the means under cosine, summed over the variates. -inf where fewer than a quarter of the samples are
    shared, 0 where either has no shape left in them. In float64: differences of sums lose digits.

    Examples
    --------
    >>> windows = torch.tensor([[[1.0, 2.0, 3.0, 0.0]], [[0.0, 4.0, 5.0, 9.0]]], dtype=torch.float64)
    >>> present = torch.tensor([[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    >>> unit = windows / windows.flatten(1).norm(dim=1)[:, None, None]
    >>> shared_similarity(unit, present, unit, present, centred=True)[0, 1]  # (2, 3) and (4, 5)
    tensor(1., dtype=torch.float64)
    """
    length = first.shape[2]
    shared = first_present @ second_present.T
    product = first.flatten(1) @ second.flatten(1).T
    own = first.square().sum(dim=1) @ second_present.T
    other = first_present @ second.square().sum(dim=1).T
    if centred:
        n = shared.clamp_min(1.0)
        for variate in range(first.shape[1]):
            total = first[:, variate] @ second_present.T
            other_total = first_present @ second[:, variate].T
            product -= total * other_total / n
            own -= total.square() / n
            other -= other_total.square() / n
    shapeless = torch.minimum(own, other) <= FLAT_SHARED**2
    similarity = product / (own.clamp_min(FLAT_SHARED**2) * other.clamp_min(FLAT_SHARED**2)).sqrt()
    similarity = similarity.clamp_(-1.0, 1.0).masked_fill_(shapeless, 0.0)
    return similarity.masked_fill_(shared < LEAST_SHARED * length, NONE)


def join_gaps(search: Search, found: Lists, place: torch.device = _CPU) -> Lists:
    """Lists of all windows, from those of ``search.without_gaps``; the same where no window has gaps."""
    if not search.with_gaps.any():
        return found
    windows = _MaskedWindows(search, place)
    gaps, in_bank = np.flatnonzero(search.with_gaps), search.bank[search.with_gaps[search.bank]]
    if search.spread_gap > 1:
        usable = np.flatnonzero(~search.nonfinite)
        return _nearest(windows, usable, search.bank, search.empty_lists())
    found = _nearest(windows, gaps, search.bank, found)
    whole = np.flatnonzero(~search.with_gaps & ~search.nonfinite)
    if len(in_bank):
        _merge(found, whole, _nearest(windows, whole, in_bank, search.empty_lists()))
    return found


def _nearest(
    windows: _MaskedWindows, queries: NDArray[np.int64], bank: NDArray[np.int64], lists: Lists
) -> Lists:
    """Replace the lists of these queries, ascending, by their nearest windows of this bank."""
    search, place = windows.search, windows.place
    similarity, neighbors = lists
    similarity[queries], neighbors[queries] = NONE, -1
    n_values = search.window_length * (1 + len(search.samples))
    n_columns = max(_BLOCK_VALUES // n_values, 1)
    n_rows = max(min(_BLOCK_VALUES // max(len(bank), 1), n_columns), 1)
    for first in range(0, len(queries), n_rows):
        some = queries[first : first + n_rows]
        reached = np.searchsorted(bank, [some[0] - search.farthest, some[-1] + search.farthest + 1])
        near = bank[slice(*reached)]
        if len(near) == 0:
            continue
        rows, columns = torch.from_numpy(some).to(place), torch.from_numpy(near).to(place)
        keys = torch.empty((len(some), len(near)), dtype=torch.int64, device=place)
        for column in range(0, len(near), n_columns):
            part = slice(column, column + n_columns)
            values = windows.similarity(rows, columns[part])
            barred = values == NONE
            keys[:, part] = keys_of(values, column).masked_fill_(barred, INELIGIBLE)
        distance = (columns - rows[:, None]).abs_()
        keys[(distance < search.gap) | (distance > search.farthest)] = INELIGIBLE
        alike, places = largest_keys(keys, columns, search.n_neighbors, search.spread_gap)
        similarity[some, : places.shape[1]] = alike
        neighbors[some, : places.shape[1]] = np.where(places >= 0, near[places], -1)
    return lists


def _merge(lists: Lists, rows: NDArray[np.int64], others: Lists) -> None:
    """Join two lists of each of these rows: the most similar first, ties by the earlier window."""
    n_neighbors = lists[0].shape[1]
    similarity, neighbors = (
        np.concatenate([a[rows], b[rows]], axis=1) for a, b in zip(lists, others, strict=True)
    )
    order = np.lexsort((neighbors, -similarity), axis=1)[:, :n_neighbors]
    lists[0][rows] = np.take_along_axis(similarity, order, axis=1)
    lists[1][rows] = np.take_along_axis(neighbors, order, axis=1)


class _MaskedWindows:
    """Windows of a search as unit vectors with their masks, cut on the device in parts."""

    def __init__(self, search: Search, place: torch.device) -> None:
        self.search, self.place = search, place
        length, stride = search.window_length, search.stride
        self._windows = torch.from_numpy(search.samples).to(place).unfold(1, length, stride)
        self._masks = torch.from_numpy(search.present).to(place).unfold(0, length, stride)
        means, norms = search.means.copy(), search.divisors
        means[:, search.with_gaps] = search.gap_means
        norms[search.with_gaps] = np.where(search.flat[search.with_gaps], np.inf, search.gap_norms)
        self._means, self._norms = (torch.from_numpy(item).to(place) for item in (means, norms))
        self._with_gaps = torch.from_numpy(search.with_gaps).to(place)

    def _take(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """``(n, n_variates, length)`` of norm 1, zeros where missing or flat; masks ``(n, length)``."""
        vectors = (self._windows[:, which] - self._means[:, which, None]) / self._norms[which, None]
        masks = self._masks[which]
        return (vectors * masks).transpose(0, 1), masks.double()

    def similarity(self, rows: Tensor, columns: Tensor) -> Tensor:
        """``(n_rows, n_columns)``; whole windows among themselves by one product."""
        (first, first_masks), (second, second_masks) = self._take(rows), self._take(columns)
        row_gaps, column_gaps = self._with_gaps[rows], self._with_gaps[columns]
        centred = self.search.centred
        if bool(row_gaps.all()) or bool(column_gaps.all()):
            return shared_similarity(first, first_masks, second, second_masks, centred=centred)
        found = first.flatten(1) @ second.flatten(1).T
        if bool(row_gaps.any()):
            some = first[row_gaps], first_masks[row_gaps]
            found[row_gaps] = shared_similarity(*some, second, second_masks, centred=centred)
        if bool(column_gaps.any()):
            whole = torch.nonzero(~row_gaps)[:, 0]
            which = torch.nonzero(column_gaps)[:, 0]
            found[whole[:, None], which] = shared_similarity(
                first[whole], first_masks[whole], second[which], second_masks[which], centred=centred
            )
        return found
