"""Values of all cases for some queries, by products of bytes or of single precision, and how far they may be off.

    Keys -> PackedKeys (one byte a component) or PlainKeys (nothing but norms)
    queries (n, d) -> values (n, n_columns), coarse (n, n_bundles) and their errors

A vector x is stored as s_x a, with whole numbers |a| <= 127. Whatever was lost by rounding,

    |q·k - s_q s_k a_q·a_k| = |q·(k - s_k a_k) + (q - s_q a_q)·s_k a_k|
                           <= |q| |k - s_k a_k| + |q - s_q a_q| |s_k a_k|

and the norms on the right are computed with the bytes. Keys are centred before, which changes q·k by q·centre for
all alike: what is stored is how keys differ. Products of bytes need a processor with AVX-512 VNNI and a quarter of
the memory of single precision; elsewhere blocks of keys are multiplied as they are.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raxss._core.memory import refuse_too_large
from raxss._core.threads import each_on_threads
from raxss.library.search_kernels import (
    GRID,
    HAS_BYTE_PRODUCTS,
    LANES,
    LEVELS,
    MOST_COMPONENTS,
    ROWS,
    WORD,
    Errors,
    Packed,
    PackedQueries,
    fill_lanes,
    largest_of_cases,
    pack_keys,
    pack_queries,
    reduce_bundles,
    reduce_products,
)
from raxss.library.search_keys import KEYS_AT_ONCE, Keys

ROWS_AT_ONCE = 256  # queries of one task
_ROUNDING = 2.0**-20  # of |q| |k|: more than all roundings of a value to single precision
_SMALLEST = 2.0**-125  # what single precision loses near 0, also where processors take such numbers for 0
_LARGEST = 126  # sums below 2 to this cannot overflow, whatever their order


class CaseLayout:
    """Which case is in which column, and how far the values of a column may be off; see search_kernels.py."""

    def __init__(
        self,
        keys: Keys,
        cases: NDArray[np.int64],
        residuals: NDArray[np.float64],
        lengths: NDArray[np.float64],
    ) -> None:
        n_columns = -(-len(cases) // LANES) * LANES
        self.cases = np.full(n_columns, -1)
        self.cases[: len(cases)] = cases
        self.places = np.empty(len(cases), np.int64)
        self.places[cases] = np.arange(len(cases))
        # Of keys, to the largest of each case, then to columns and bundles.
        of_cases = [
            np.maximum.reduceat(of_keys[keys.order], keys.starts[:-1]) for of_keys in (residuals, lengths)
        ]
        self.residuals, self.lengths = np.zeros(n_columns), np.zeros(n_columns)
        self.residuals[: len(cases)], self.lengths[: len(cases)] = (of_keys[cases] for of_keys in of_cases)
        self.bundle_residuals = self.residuals.reshape(-1, LANES).max(axis=1)
        self.bundle_lengths = self.lengths.reshape(-1, LANES).max(axis=1)

    @property
    def n_columns(self) -> int:
        """Cases, and what fills the last bundle."""
        return len(self.cases)


class Values(Protocol):
    """Approximate values of all cases for some queries."""

    layout: CaseLayout
    on_threads: bool  # whether several threads may fill at once; else products have threads of their own

    def prepare(self, queries: NDArray[np.float64]) -> PreparedQueries:
        """From queries (n, d), of norm 1 or 0 for cosine."""
        ...


class PreparedQueries(Protocol):
    """Queries made ready, and the errors of their values."""

    errors: Errors

    def fill(self, first: int, values: NDArray[np.float32], coarse: NDArray[np.float32]) -> None:
        """Put the values of the rows from ``first`` on, a multiple of ROWS; beyond the last they are anything."""
        ...


def values_of(keys: Keys, *, cosine: bool, packed: bool | None = None) -> Values:
    """Bytes where the processor can multiply them, else single precision."""
    if packed is None:
        packed = HAS_BYTE_PRODUCTS and keys.width <= MOST_COMPONENTS
    return PackedKeys(keys, cosine=cosine) if packed else PlainKeys(keys, cosine=cosine)


class PackedKeys:
    """Keys as bytes, LANES cases side by side; those with as many keys together, so that little is padded."""

    on_threads = True

    def __init__(self, keys: Keys, *, cosine: bool) -> None:
        counts = np.diff(keys.starts)
        cases = np.argsort(-counts, kind="stable")
        columns = np.zeros(-(-len(cases) // LANES) * LANES, np.int64)
        columns[: len(cases)] = counts[cases]
        starts = np.concatenate([[0], np.cumsum(columns[::LANES])])
        self.n_words, n_vectors = -(-keys.width // WORD), int(starts[-1])
        n_bytes = n_vectors * LANES * (self.n_words * WORD + 8)
        refuse_too_large(
            n_bytes + 16 * keys.n_keys,
            f"a search among {keys.n_keys:,} keys of {keys.width} components",
            "Keep fewer windows of a case.",
        )
        self.cosine, self.centre = cosine, keys.centre(unit=cosine)
        self.packed = Packed(
            np.zeros(n_vectors * LANES * self.n_words, np.uint32),
            np.zeros(n_vectors * LANES, np.float32),
            np.zeros(n_vectors * LANES, np.float32),
            starts,
        )
        places = np.empty(keys.n_keys, np.int64)  # vector * LANES + lane
        column_of = np.empty(len(cases), np.int64)
        column_of[cases] = np.arange(len(cases))
        rank = np.empty(keys.n_keys, np.int64)  # of a key within its case
        rank[keys.order] = np.arange(keys.n_keys) - np.repeat(keys.starts[:-1], counts)
        column = column_of[keys.cases]
        places = (starts[column // LANES] + rank) * LANES + column % LANES
        residuals, lengths = np.empty(keys.n_keys), np.empty(keys.n_keys)

        def pack(part: tuple[NDArray[np.float32], slice]) -> None:
            some, where = part
            out = self.packed, residuals[where], lengths[where]
            pack_keys(some, keys.norms[where], cosine, self.centre, places[where], *out)

        each_on_threads(pack, list(keys.parts()))
        fill_lanes(self.packed, self.n_words, columns)
        self.layout = CaseLayout(keys, cases, residuals, lengths)

    def prepare(self, queries: NDArray[np.float64]) -> PreparedQueries:
        """The same for queries."""
        return _BytesOfQueries(self, queries)


class _BytesOfQueries:
    def __init__(self, keys: PackedKeys, queries: NDArray[np.float64]) -> None:
        self._keys = keys
        n_rows = -(-len(queries) // ROWS) * ROWS
        vectors = queries if keys.cosine else queries - keys.centre
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        bases = np.zeros(n_rows)
        bases[: len(queries)] = queries @ keys.centre if keys.cosine else -(norms**2)
        scales, residuals = np.zeros(n_rows, np.float32), np.zeros(len(queries))
        words = np.zeros(n_rows * keys.n_words, np.uint32)
        packed = PackedQueries(words, np.zeros(n_rows, np.int32), scales, bases.astype(np.float32))
        pack_queries(vectors, packed, residuals)
        twice = 1.0 if keys.cosine else 2.0  # -|q - k|^2 = 2 q·k - |k|^2 - |q|^2
        self._queries = packed._replace(scales=scales * np.float32(twice))
        self.errors = _errors(norms, twice * residuals, bases[: len(queries)], keys.cosine, vectors.shape[1])

    def fill(self, first: int, values: NDArray[np.float32], coarse: NDArray[np.float32]) -> None:
        """See `PreparedQueries`."""
        largest_of_cases(
            self._keys.packed, self._queries, self._keys.n_words, first, values.reshape(-1), coarse
        )


def _errors(
    norms: NDArray[np.float64],
    residuals: NDArray[np.float64],
    bases: NDArray[np.float64],
    cosine: bool,
    width: int,
) -> Errors:
    """a r + b h + c + e h^2; roundings are of products and sums, at most |q| h, bases and h^2.

    Distances may be too small for single precision, cosines not: then each component of a query or key, each
    product and the scales of bytes are off by `_SMALLEST`, the last times up to 127^2 d.
    """
    if cosine:
        return Errors(norms, residuals + _ROUNDING * norms, _ROUNDING * np.abs(bases) + GRID, 0.0)
    lost = 2 * LEVELS * width * _SMALLEST
    return Errors(2 * norms, residuals + lost, 2 * _ROUNDING * norms**2 + lost * (1 + norms), 2 * _ROUNDING)


class Pieces:
    """All keys in the order of their blocks and cases, and a number of cases of one block at a time."""

    def __init__(self, keys: Keys, n_at_once: int) -> None:
        self.keys = keys
        self.cases = np.argsort(keys.block_of, kind="stable")
        place = np.empty(keys.n_cases, np.int64)
        place[self.cases] = np.arange(keys.n_cases)
        self.order = np.argsort(place[keys.cases], kind="stable")
        self.starts = np.concatenate([[0], np.cumsum(np.diff(keys.starts)[self.cases])])
        self.bounds: list[tuple[int, int]] = []  # places of the first case, and after the last
        first = 0
        while first < keys.n_cases:
            block_end = int(
                np.searchsorted(keys.block_of[self.cases], keys.block_of[self.cases[first]], "right")
            )
            end = int(np.searchsorted(self.starts, self.starts[first] + n_at_once, "right")) - 1
            self.bounds.append((first, min(max(end, first + 1), block_end)))
            first = self.bounds[-1][1]

    def numbers(self, first: int, end: int) -> NDArray[np.int64]:
        """Of the keys of some cases."""
        return self.order[self.starts[first] : self.starts[end]]

    def vectors(self, first: int, end: int) -> NDArray[np.float32]:
        """The keys of some cases, a view where they lie side by side."""
        numbers = self.numbers(first, end)
        block = int(self.keys.block_of[self.cases[first]])
        places = numbers - self.keys.block_starts[block]
        whole = slice(int(places[0]), int(places[-1]) + 1)
        if np.array_equal(places, np.arange(whole.start, whole.stop)):
            return self.keys.blocks[block][whole]
        return self.keys.blocks[block][places]


class PlainKeys:
    """Keys as they are, multiplied in single precision some at a time: no memory besides, on any processor."""

    on_threads = False

    def __init__(self, keys: Keys, *, cosine: bool) -> None:
        self.pieces, self.cosine = Pieces(keys, KEYS_AT_ONCE // 4), cosine
        norms = keys.norms
        # Queries are made smaller where products with the longest key could overflow, and values larger again.
        self.shrink = max(int(np.frexp(norms.max())[1]) - _LARGEST, 0) if cosine else 0
        if cosine:
            grow = np.ldexp(1.0, self.shrink)
            self.gains = np.divide(grow, norms, out=np.zeros_like(norms), where=norms > 0)
            self.shifts = np.zeros_like(norms)
        else:
            self.gains, self.shifts = np.full(len(norms), 2.0), -(norms**2)
        errors = plain_errors(keys, cosine=cosine, shrink=self.shrink)
        self.layout = CaseLayout(keys, self.pieces.cases, *errors)

    def prepare(self, queries: NDArray[np.float64]) -> PreparedQueries:
        """In single precision."""
        return _SinglesOfQueries(self, queries)


def plain_errors(
    keys: Keys, *, cosine: bool, shrink: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """r and h of keys in single precision, where sums of products may come in any order.

    Queries were divided by 2 to the ``shrink``.
    """
    rounding = (keys.width + 8) * 2.0**-23
    if not cosine:
        return rounding * keys.norms, keys.norms
    smallest = np.where(keys.norms > 0, keys.norms, 1.0)
    lost = keys.width * np.ldexp(_SMALLEST, shrink) * np.maximum(1 / smallest, 1.0)
    return rounding + lost, np.ones_like(smallest)


class _SinglesOfQueries:
    def __init__(self, keys: PlainKeys, queries: NDArray[np.float64]) -> None:
        self._keys = keys
        singles, self._bases, self.errors = plain_queries(queries, cosine=keys.cosine)
        self._queries = np.ldexp(singles, -keys.shrink)

    def fill(self, first: int, values: NDArray[np.float32], coarse: NDArray[np.float32]) -> None:
        """See `PreparedQueries`."""
        keys, pieces = self._keys, self._keys.pieces
        values[:, len(pieces.cases) :] = -np.inf
        rows = slice(first, first + len(values))
        for begin, end in pieces.bounds:
            numbers = pieces.numbers(begin, end)
            products = self._queries[rows] @ pieces.vectors(begin, end).T
            starts = pieces.starts[begin : end + 1] - pieces.starts[begin]
            of_keys = keys.gains[numbers], keys.shifts[numbers]
            reduce_products(products, starts, begin, *of_keys, self._bases[rows], values)
        reduce_bundles(values, coarse)


def plain_queries(
    queries: NDArray[np.float64], *, cosine: bool, rounding: float = 0.0
) -> tuple[NDArray[np.float32], NDArray[np.float32], Errors]:
    """Queries in single precision up to a multiple of ROWS, what is added to their values, and the errors.

    ``rounding``, of |q| |k|, is what a device loses besides by multiplying with fewer digits.
    """
    singles = np.zeros((-(-len(queries) // ROWS) * ROWS, queries.shape[1]), np.float32)
    singles[: len(queries)] = queries
    norms = np.sqrt(np.einsum("ij,ij->i", queries, queries))
    bases = np.zeros(len(singles))
    if not cosine:
        bases[: len(queries)] = -(norms**2)
    lost = (1.0 if cosine else 2.0) * rounding * norms
    errors = _errors(norms, lost, bases[: len(queries)], cosine, queries.shape[1])
    return singles, bases.astype(np.float32), errors
