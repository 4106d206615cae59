"""Nearest windows with torch, on a GPU.

    Search -> similarity, neighbors (n_windows, n_neighbors)

Float64 matrix products in blocks of bounded size. A similarity on the grid of kernels.py is an integer of
34 bits; with the window's place behind it, it becomes one 64-bit key, and the largest keys are the nearest
windows, ties already in order.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from raxss.errors import ConfigError
from raxss.retrieval.kernels import GRID, NONE
from raxss.retrieval.search import Search

_BLOCK_VALUES = 2**24  # 64-bit values in one block: 128 MB
_PLACE_BITS = 29
_INELIGIBLE = -(2**63)


def nearest_on_torch(
    search: Search, device: str, *, block_values: int = _BLOCK_VALUES
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Exact lists on a torch device; the same as on the CPU."""
    place = _device(device)
    n_bank, n_values = len(search.bank), search.window_length * len(search.samples)
    similarity, neighbors = search.empty_lists()
    if n_bank == 0:
        return similarity, neighbors
    windows = _UnitWindows(search, place)
    bank = torch.from_numpy(search.bank).to(place)
    columns = max(block_values // n_values, 1)
    rows = max(min(block_values // n_bank, columns), 1)
    backwards = torch.arange(2**_PLACE_BITS - 1, 2**_PLACE_BITS - 1 - n_bank, -1, device=place)
    for first in range(0, search.n_windows, rows):
        queries = torch.arange(first, min(first + rows, search.n_windows), device=place)
        vectors = windows.take(queries)
        keys = torch.empty((len(queries), n_bank), dtype=torch.int64, device=place)
        for column in range(0, n_bank, columns):
            part = slice(column, column + columns)
            values = (vectors @ windows.take(bank[part]).T).clamp_(-1.0, 1.0)
            keys[:, part] = ((values / GRID).round_().to(torch.int64) << _PLACE_BITS) + backwards[part]
        keys[(bank - queries[:, None]).abs() < search.gap] = _INELIGIBLE
        best = _largest(keys, bank, search.n_neighbors, search.spread_gap).cpu().numpy()
        listed = best != _INELIGIBLE
        chosen = 2**_PLACE_BITS - 1 - (best & (2**_PLACE_BITS - 1))
        which = slice(first, first + len(queries)), slice(0, best.shape[1])
        similarity[which] = np.where(listed, (best >> _PLACE_BITS) * GRID, NONE)
        neighbors[which] = np.where(listed, search.bank[np.where(listed, chosen, 0)], -1)
    return similarity, neighbors


class _UnitWindows:
    """Normalised windows, made on the device when they are asked for."""

    def __init__(self, search: Search, device: torch.device) -> None:
        self._samples = torch.from_numpy(search.samples).to(device)
        self._windows = self._samples.unfold(1, search.window_length, search.stride)
        self._means = torch.from_numpy(search.means).to(device)
        self._norms = torch.from_numpy(search.divisors).to(device)

    def take(self, which: torch.Tensor) -> torch.Tensor:
        """``(n, n_variates * window_length)`` vectors of norm 1, zeros for flat windows."""
        vectors = self._windows[:, which] - self._means[:, which, None]
        vectors /= self._norms[which, None]
        return vectors.transpose(0, 1).reshape(len(which), -1)


def _largest(keys: torch.Tensor, bank: torch.Tensor, n_neighbors: int, spread_gap: int) -> torch.Tensor:
    """The largest keys of each row, best first; no two of their windows closer than ``spread_gap``."""
    n_neighbors = min(n_neighbors, len(bank))
    if spread_gap == 1:
        return keys.topk(n_neighbors, dim=1).values
    best = torch.empty((len(keys), n_neighbors), dtype=torch.int64, device=keys.device)
    for rank in range(n_neighbors):
        best[:, rank], column = keys.max(dim=1)
        keys[(bank - bank[column][:, None]).abs() < spread_gap] = _INELIGIBLE
    return best


def _device(name: str) -> torch.device:
    """The device of this name, if work can be done there."""
    try:
        place = torch.device(name)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or ["unavailable"])[0]
        raise ConfigError(
            f"device {name!r} cannot be used ({reason}). Use 'cpu', or a torch device of this machine."
        ) from error
    return place
