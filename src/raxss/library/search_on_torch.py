"""Values of all cases for some queries on a GPU: products in single precision, the largest of each case there.

    Keys -> KeysOnDevice, as PackedKeys in search_values.py

Only the largest value of a case leaves the device. Which cases are listed, and their similarity in float64, is
decided by the same loops as on the CPU, so lists are the same.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss._core.memory import available_bytes, gigabytes
from raxss.errors import DataError
from raxss.library.search_kernels import Errors, reduce_bundles
from raxss.library.search_keys import Keys
from raxss.library.search_values import (
    ROWS_AT_ONCE,
    CaseLayout,
    Pieces,
    PreparedQueries,
    plain_errors,
    plain_queries,
)

_KEYS_AT_ONCE = 2**18
_COARSER = {"highest": 0.0, "high": 2.0**-9, "medium": 2.0**-6}  # torch may then multiply with fewer digits


class KeysOnDevice:
    """Keys on a torch device, of norm 1 for cosine."""

    on_threads = False

    def __init__(self, keys: Keys, *, cosine: bool, device: torch.device) -> None:
        self.pieces, self.cosine, self.device = Pieces(keys, _KEYS_AT_ONCE), cosine, device
        n_bytes = 4 * keys.n_keys * (keys.width + 1) + 8 * ROWS_AT_ONCE * min(_KEYS_AT_ONCE, keys.n_keys)
        free = available_bytes(device)
        if free is not None and n_bytes > free:
            raise DataError(
                f"a search among {keys.n_keys:,} keys of {keys.width} components needs {gigabytes(n_bytes)} on "
                f"{device}, but {gigabytes(free)} are free. Search on the CPU, or keep fewer windows of a case."
            )
        self.vectors: list[Tensor] = []
        self.counts: list[Tensor] = []
        self.shifts: list[Tensor] = []
        for first, end in self.pieces.bounds:
            vectors, norms = self.pieces.vectors(first, end), keys.norms[self.pieces.numbers(first, end)]
            if cosine:
                gains = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
                vectors = (vectors * gains[:, np.newaxis]).astype(np.float32)
            shifts = np.zeros_like(norms) if cosine else -(norms**2)
            counts = np.diff(self.pieces.starts[first : end + 1])
            self.vectors.append(torch.tensor(vectors, device=device))
            self.shifts.append(torch.tensor(shifts, dtype=torch.float32, device=device))
            self.counts.append(torch.tensor(counts, device=device))
        self.layout = CaseLayout(keys, self.pieces.cases, *plain_errors(keys, cosine=cosine))

    def prepare(self, queries: NDArray[np.float64]) -> PreparedQueries:
        """In single precision, on the device."""
        return _QueriesOnDevice(self, queries)


class _QueriesOnDevice:
    errors: Errors

    def __init__(self, keys: KeysOnDevice, queries: NDArray[np.float64]) -> None:
        self._keys = keys
        rounding = _COARSER[torch.get_float32_matmul_precision()]  # now: it may change between searches
        singles, bases, self.errors = plain_queries(queries, cosine=keys.cosine, rounding=rounding)
        self._queries = torch.tensor(singles, device=keys.device)
        self._bases = torch.tensor(bases, device=keys.device)

    def fill(self, first: int, values: NDArray[np.float32], coarse: NDArray[np.float32]) -> None:
        """See `PreparedQueries`."""
        keys, rows = self._keys, slice(first, first + len(values))
        values[:, len(keys.pieces.cases) :] = -np.inf
        gain = 1.0 if keys.cosine else 2.0
        of_keys = zip(keys.pieces.bounds, keys.vectors, keys.shifts, keys.counts, strict=True)
        for (begin, end), vectors, shifts, counts in of_keys:
            products = torch.addmm(shifts[:, None], vectors, self._queries[rows].T, alpha=gain)
            largest = torch.segment_reduce(products, "max", lengths=counts, axis=0) + self._bases[rows]
            values[:, begin:end] = largest.T.cpu().numpy()
        reduce_bundles(values, coarse)
