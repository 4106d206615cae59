"""Blocks of the window-by-window matrix in vector registers: LLVM code that retrieval's kernels call.

    a block: ROWS rows by COLUMNS columns of the window-by-window matrix

A block's sums stay in registers: a factor that was fetched serves ROWS rows or COLUMNS columns, and nearly
all that is left to do is multiply and add.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from raxss._core.vector_code import VectorEmitter, processor_features

_FEATURES = processor_features()
_WIDE = "avx512f" in _FEATURES
LANES = 8 if _WIDE else 4 if "avx" in _FEATURES else 2  # float64 values in one register
ROWS = 6
COLUMNS = LANES * (4 if _WIDE else 2)  # with 32 registers, or with 16
SUMS = 8 * LANES  # that a correlation adds up at once

_INT = ir.IntType(64)
_STARTS = range(0, COLUMNS, LANES)  # of a block's vectors


class _Arguments(VectorEmitter):
    """Vector operations on the arrays that an intrinsic is called with."""

    def __init__(self, context: Any, builder: Any, signature: Any, values: Any) -> None:
        super().__init__(context, builder, ir.DoubleType(), LANES)
        self._types, self._values = signature.args, values

    def argument(self, which: int, *offsets: Any) -> Any:
        """Where the data of an argument begins, ``offsets`` numbers further on."""
        return self.address(self._types[which], self._values[which], *offsets)

    def pushed(self, before: Any, vector: Any) -> Any:
        """All lanes one further on; what leaves the vector before comes in."""
        return self.shuffle(before, vector, range(LANES - 1, 2 * LANES - 1))


@intrinsic  # type: ignore[untyped-decorator]
def walk_block(
    typing_context: Any,
    products: Any,  # c(i, j) of the block's first row; out: of the row below its last
    at: Any,  # where in it, and in norms and bars, the block begins
    across: Any,  # (n_terms, COLUMNS) factors of the columns
    across_at: Any,
    ahead: Any,  # (n_terms, ROWS) factors of the rows
    ahead_at: Any,
    n_terms: Any,
    tails: Any,  # (ROWS, LANES) last vector of each row of the block on the left, stepped; out: of this one
    scales: Any,  # (ROWS,) 1 / norm of the rows
    norms: Any,  # of the columns
    bars: Any,  # of the columns
    bar: Any,  # the lowest of the rows
    found: Any,  # (ROWS, COLUMNS) out: c(i, j)
) -> Any:
    """Take a block of products ROWS rows down its diagonals; whether any reaches a bar.

    The sums over terms are those of a matrix product. A product of row i steps to row i + 1 and at once one
    column on, so the lanes of each finished row are pushed by one, and the last lane waits in ``tails``.
    """
    arguments = (products, at, across, across_at, ahead, ahead_at, n_terms, tails, scales, norms, bars, bar)
    signature = types.boolean(*arguments, found)

    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        do = _Arguments(context, builder, signature, given)
        n_terms, bar = given[6], do.spread(given[11])
        columns, rows = do.argument(2, given[3]), do.argument(4, given[5])
        sums = [[do.variable() for _ in _STARTS] for _ in range(ROWS)]
        with cgutils.for_range(builder, n_terms, intp=_INT) as term:
            factors = do.advance(columns, builder.mul(term.index, ir.Constant(_INT, COLUMNS)))
            vectors = [do.load(do.advance(factors, start)) for start in _STARTS]
            factors = do.advance(rows, builder.mul(term.index, ir.Constant(_INT, ROWS)))
            for row in range(ROWS):
                factor = do.spread(builder.load(do.advance(factors, row)))
                for vector, total in zip(vectors, sums[row], strict=True):
                    builder.store(do.fused(factor, vector, builder.load(total)), total)
        place = do.argument(0, given[1])
        here = [do.load(do.advance(place, start)) for start in _STARTS]
        largest: list[Any] = []
        for row in range(ROWS):
            scale = do.spread(builder.load(do.argument(8, row)))
            before = do.load(do.argument(7, row * LANES))
            below = []
            for which, start in enumerate(_STARTS):
                do.store(here[which], do.argument(12, row * COLUMNS + start))
                scaled = builder.fmul(here[which], scale)
                largest = [*largest, scaled] if row == 0 else largest
                largest[which] = do.larger(largest[which], scaled)
                stepped = builder.fadd(here[which], builder.load(sums[row][which]))
                below.append(do.pushed(before, stepped))
                before = stepped
            do.store(before, do.argument(7, row * LANES))
            here = below
        reached = None
        for which, start in enumerate(_STARTS):
            do.store(here[which], do.advance(place, start))
            needed = do.smaller(do.load(do.argument(10, given[1], start)), bar)
            needed = builder.fmul(needed, do.load(do.argument(9, given[1], start)))
            lanes = builder.fcmp_ordered(">=", largest[which], needed)
            reached = lanes if reached is None else builder.or_(reached, lanes)
        return builder.icmp_unsigned("!=", do.bits(reached), ir.Constant(_INT, 0))

    return signature, emit


@intrinsic  # type: ignore[untyped-decorator]
def reaching(
    typing_context: Any,
    products: Any,
    at: Any,  # where in it a row of a block begins
    inverse: Any,
    bars: Any,
    column: Any,  # where in both the block's first column is
    scale: Any,  # 1 / norm of the row
    bar: Any,  # of the row
) -> Any:
    """Which of COLUMNS similarities reach the bar of their row or their column, as bits."""
    signature = types.int64(products, at, inverse, bars, column, scale, bar)

    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        do = _Arguments(context, builder, signature, given)
        scale, bar = do.spread(given[5]), do.spread(given[6])
        every = ir.Constant(_INT, 0)
        for start in _STARTS:
            value = builder.fmul(
                do.load(do.argument(0, given[1], start)), do.load(do.argument(2, given[4], start))
            )
            needed = do.smaller(do.load(do.argument(3, given[4], start)), bar)
            bits = do.bits(builder.fcmp_ordered(">=", builder.fmul(value, scale), needed))
            every = builder.or_(every, builder.shl(bits, ir.Constant(_INT, start)))
        return every

    return signature, emit


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(typing_context: Any, bits: Any) -> Any:
    """The place of the lowest bit of a number that is not 0."""

    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), emit


@intrinsic  # type: ignore[untyped-decorator]
def add_correlation(
    typing_context: Any,
    samples: Any,
    at: Any,
    taps: Any,
    taps_at: Any,
    n_taps: Any,
    sums: Any,
    sums_at: Any,
) -> Any:
    """Add sum over q of taps[q] samples[p + q] to SUMS sums, one for each place p from ``at`` on."""
    signature = types.void(samples, at, taps, taps_at, n_taps, sums, sums_at)

    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        do = _Arguments(context, builder, signature, given)
        starts = range(0, SUMS, LANES)
        first, factors, out = do.argument(0, given[1]), do.argument(2, given[3]), do.argument(5, given[6])
        totals = [cgutils.alloca_once_value(builder, do.load(do.advance(out, start))) for start in starts]
        with cgutils.for_range(builder, given[4], intp=_INT) as tap:
            factor = do.spread(builder.load(do.advance(factors, tap.index)))
            for start, total in zip(starts, totals, strict=True):
                vector = do.load(do.advance(first, tap.index, start))
                builder.store(do.fused(factor, vector, builder.load(total)), total)
        for start, total in zip(starts, totals, strict=True):
            do.store(builder.load(total), do.advance(out, start))
        return context.get_dummy_value()

    return signature, emit
