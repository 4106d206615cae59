"""The keys of a library, as they were given: in blocks, which may stay on disk.

    blocks of (keys (n, d), cases (n,)) -> Keys: blocks, norms (n_keys,), and the keys of each case

Nothing is copied that is float32 and contiguous already, so blocks may be memory-mapped files, one a patient.
Next: search_values.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import DataError, EmptyDataError, SignalError
from raxss.library.search_kernels import norms_of

Block = tuple[ArrayLike, ArrayLike]  # keys (n, d), case of each (n,)

KEYS_AT_ONCE = 2**14  # that are read together
MOST_DISTANCE = 1e15  # components of this size have squares and sums that float32 can hold


@dataclass(frozen=True, eq=False)
class Keys:
    """All keys, numbered block after block in the order given.

    Attributes
    ----------
    blocks
        Read-only arrays ``(n, d)`` in float32.
    block_starts
        ``(n_blocks + 1,)`` number of the first key of each block.
    cases
        ``(n_keys,)`` case of each key.
    order, starts
        ``(n_keys,)`` and ``(n_cases + 1,)``: the keys of case j are ``order[starts[j]:starts[j + 1]]``, in order.
    block_of
        ``(n_cases,)`` the block that holds the keys of a case.
    norms
        ``(n_keys,)`` in float64.
    """

    blocks: tuple[NDArray[np.float32], ...]
    block_starts: NDArray[np.int64]
    cases: NDArray[np.int64]
    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    block_of: NDArray[np.int64]
    norms: NDArray[np.float64]

    @property
    def n_keys(self) -> int:
        """How many there are."""
        return len(self.cases)

    @property
    def n_cases(self) -> int:
        """How many recordings they come from."""
        return len(self.starts) - 1

    @property
    def width(self) -> int:
        """d, components of a key."""
        return int(self.blocks[0].shape[1])

    def parts(self) -> Iterator[tuple[NDArray[np.float32], slice]]:
        """All keys, some at a time, and their numbers."""
        for block, start in zip(self.blocks, self.block_starts[:-1].tolist(), strict=True):
            for first in range(0, len(block), KEYS_AT_ONCE):
                part = block[first : first + KEYS_AT_ONCE]
                yield part, slice(start + first, start + first + len(part))

    def centre(self, *, unit: bool) -> NDArray[np.float64]:
        """The mean of about 16,384 keys spread over all, of norm 1 where ``unit``: ``(d,)``."""
        step = max(self.n_keys // KEYS_AT_ONCE, 1)
        total, n = np.zeros(self.width), 0
        for block, start in zip(self.blocks, self.block_starts[:-1].tolist(), strict=True):
            some = block[::step].astype(np.float64)
            if unit:
                norms = self.norms[start : start + len(block) : step, np.newaxis]
                some = np.divide(some, norms, out=np.zeros_like(some), where=norms > 0)
            total += some.sum(axis=0)
            n += len(some)
        return total / n


def read_keys(blocks: Sequence[Block], n_cases: int) -> Keys:
    """Check blocks of keys and number them.

    Raises
    ------
    DataError
        Where keys and cases do not fit each other, a case has no keys, or keys in two blocks.

    >>> keys = read_keys([([[3.0, 4.0], [0.0, 1.0]], [1, 0])], n_cases=2)
    >>> keys.norms.tolist(), keys.order.tolist()
    ([5.0, 1.0], [1, 0])
    """
    arrays = [_as_keys(keys, place) for place, (keys, _) in enumerate(blocks)]
    if not sum(map(len, arrays)):
        raise EmptyDataError("the library has no keys, and a search needs at least one. Add cases to it.")
    widths = sorted({array.shape[1] for array in arrays})
    if len(widths) > 1:
        raise DataError(
            f"keys have {' and '.join(map(str, widths))} components, but all need as many. "
            "Compute them with the same encoder."
        )
    codes = [np.asarray(cases) for _, cases in blocks]
    for place, (array, some) in enumerate(zip(arrays, codes, strict=True)):
        _check_cases(array, some, place, n_cases)
    starts = np.concatenate([[0], np.cumsum([len(array) for array in arrays])])
    cases = np.concatenate([some.astype(np.int64) for some in codes])
    block_of_key = np.repeat(np.arange(len(arrays)), np.diff(starts))
    counts = np.bincount(cases, minlength=n_cases)
    if (counts == 0).any():
        raise DataError(
            f"case {int(np.argmin(counts))} has no keys, and every case needs at least one. Leave the case out."
        )
    order = np.argsort(cases, kind="stable")
    case_starts = np.concatenate([[0], np.cumsum(counts)])
    block_of, last = block_of_key[order[case_starts[:-1]]], block_of_key[order[case_starts[1:] - 1]]
    if (block_of != last).any():
        case = int(np.argmax(block_of != last))
        raise DataError(
            f"case {case} has keys in blocks {block_of[case]} and {last[case]}, but all keys of a case have to be "
            "in one block. Put them together."
        )
    norms = np.empty(len(cases))
    found = Keys(tuple(arrays), starts, cases, order, case_starts, block_of, norms)
    for part, where in found.parts():
        norms_of(part, norms[where])
        if not np.isfinite(norms[where]).all():
            key = where.start + int(np.argmin(np.isfinite(norms[where])))
            block = int(block_of_key[key])
            raise SignalError(
                f"key {key - int(starts[block])} of block {block} (case {cases[key]}) is not finite, and such a "
                "key is like nothing. Leave windows without features out."
            )
    return found


def _as_keys(keys: ArrayLike, block: int) -> NDArray[np.float32]:
    """A read-only float32 view where it can be one; loops are compiled for nothing else."""
    array = np.require(np.asarray(keys), np.float32, ["C", "A"])
    if array.ndim != 2 or array.shape[1] == 0:
        raise DataError(
            f"keys of block {block} have shape {array.shape}, but (n_keys, d) is needed, d at least 1. "
            "Give one row a key."
        )
    array = array.view()
    array.setflags(write=False)
    return array


def _check_cases(keys: NDArray[np.float32], cases: NDArray[np.generic], block: int, n_cases: int) -> None:
    if cases.shape != (len(keys),) or (len(keys) and not np.issubdtype(cases.dtype, np.integer)):
        raise DataError(
            f"block {block} has {len(keys)} keys and cases of shape {cases.shape} and type {cases.dtype}, but one "
            "whole number a key is needed: the place of its case among the groups."
        )
    if len(keys) and not (int(cases.min()) >= 0 and int(cases.max()) < n_cases):
        raise DataError(
            f"block {block} names case {int(cases.min()) if int(cases.min()) < 0 else int(cases.max())}, but there "
            f"are {n_cases} cases (0 to {n_cases - 1}). Give a group for every case."
        )
