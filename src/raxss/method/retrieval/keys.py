"""Similarity and window in one 64-bit key, in torch: the largest keys of a row are its nearest windows.

    similarities (n_rows, n_columns) -> keys -> similarity, place of the column (n_rows, n_neighbors)

A similarity on the grid is an integer of 34 bits. Followed by the place of its column, counted backwards, it is a
key that orders by similarity, ties by the earlier place.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raxss.method.retrieval.kernels import GRID, NONE
from raxss.method.retrieval.search import Lists

PLACE_BITS = 29
LAST_PLACE = 2**PLACE_BITS - 1
INELIGIBLE = -(2**63)


def keys_of(similarities: Tensor, first: int = 0) -> Tensor:
    """Keys of similarities ``(..., n_columns)``, changed in place; ``first``: place of the first column.

    >>> keys = keys_of(torch.tensor([[0.5, 1.0, 0.5]], dtype=torch.float64))
    >>> largest_keys(keys, torch.arange(3), 2)
    (array([[1. , 0.5]]), array([[1, 0]]))
    """
    n_columns = similarities.shape[-1]
    backwards = torch.arange(
        LAST_PLACE - first, LAST_PLACE - first - n_columns, -1, device=similarities.device
    )
    rounded = (similarities.clamp_(-1.0, 1.0) / GRID).round_().to(torch.int64)
    return (rounded << PLACE_BITS) + backwards


def largest_keys(keys: Tensor, bank: Tensor, n_neighbors: int, spread_gap: int = 1) -> Lists:
    """Similarity and place in the bank (-1: none) of the largest keys of each row, best first.

    No two of their windows are closer than ``spread_gap``; then the keys are changed.
    """
    n_neighbors = min(n_neighbors, len(bank))
    if spread_gap == 1:
        best = keys.topk(n_neighbors, dim=1).values
    else:
        best = torch.empty((len(keys), n_neighbors), dtype=torch.int64, device=keys.device)
        for rank in range(n_neighbors):
            best[:, rank], column = keys.max(dim=1)
            keys[(bank - bank[column][:, None]).abs() < spread_gap] = INELIGIBLE
    found = best.cpu().numpy()
    listed = found != INELIGIBLE
    places = np.where(listed, LAST_PLACE - (found & LAST_PLACE), -1)
    return np.where(listed, (found >> PLACE_BITS) * GRID, NONE), places
