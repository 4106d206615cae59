"""The inner loops of PatchTST on a CPU, for one window after the other.

    a window's tokens, transposed: (width, n_slots), n_slots = n_tokens rounded up, so that 16 neighbouring
    tokens sit in one register -> attended, transformed, and the gradients of both

Loops are written with vectors of `LANES` numbers (`load`, `splat`, `fused`, ...), because a compiler left alone
makes narrow ones and calls the library for every exponential. What belongs to a window is computed from that
window alone, so it does not depend on its neighbours in the batch. Neither the attention weights nor the masks of
dropout are ever stored: a mask is a function of (seed, window, query, key), made again in the backward pass.

Everything compiled is in this one file: the compiler's cache notices changes in a function's own file only.
Next: patchtst_numba.py strings the loops together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model
from numpy.typing import NDArray

from raxss._core.kernel_cache import cached


def _features() -> set[str]:
    """What the processor can do that is compiled for: this one, unless numba was told of another."""
    if numba.config.CPU_FEATURES is not None:
        return {one[1:] for one in numba.config.CPU_FEATURES.split(",") if one.startswith("+")}
    return {name for name, there in binding.get_host_cpu_features().items() if there}


Function = TypeVar("Function", bound=Callable[..., Any])
Floats = NDArray[np.float32]
Bits = NDArray[np.uint32]

WIDE = "avx512dq" in _features()  # 512-bit registers, and instructions for parts of an exponential
LANES = 16 if WIDE else 8  # numbers in one vector
SLOTS = 4 * LANES  # tokens are padded to a multiple of this: matrix products go four vectors at a time
COLUMNS = 2 * LANES  # and the width of tokens must be a multiple of this: two vectors at a time
CHUNK = 32  # windows whose gradients are summed apart; one thread's piece of work
HEAD = 8  # numbers per head, unrolled below
GROUP = 4  # windows whose products are summed before lanes are: gradients of weights
HIDDEN = 32  # rows of the feed-forward layer at a time, so that they stay in the nearest cache
SAFE = 64.0  # scores within +-SAFE need no maximum taken off before 2^score


def compiled(function: Function) -> Function:
    """Compile a kernel once and keep it on disk. Products and sums may fuse; nothing is reordered."""
    return cast(Function, cached(numba.njit(**_OPTIONS)(function)))


def inner(function: Function) -> Function:
    """A part of kernels, which cannot be called from Python and is kept on disk with them."""
    return cast(Function, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function))


def inlined(function: Function) -> Function:
    """A part that is compiled wherever it is used, so that its vectors stay in registers."""
    options = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(Function, numba.njit(**options, **_OPTIONS)(function))


_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}


# Vectors: LANES floats or LANES 32-bit integers in one register


class _Vector(types.Type):  # type: ignore[misc]
    def __init__(self, name: str, element: ir.Type) -> None:
        super().__init__(name=f"vector_of_{name}")
        self.vector = ir.VectorType(element, LANES)


_FLOATS = _Vector("floats", ir.FloatType())
_BITS = _Vector("bits", ir.IntType(32))


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: _Vector) -> None:
        super().__init__(manager, kind, kind.vector)


def primitive(emitter: Callable[..., Any]) -> Any:
    """An operation on vectors, given by the instructions that it becomes."""
    return intrinsic(prefer_literal=True)(emitter)


def _arithmetic(operation: Any, instruction: str) -> None:
    @infer_global(operation)
    class _Both(AbstractTemplate):  # type: ignore[misc]
        def generic(self, arguments: Any, keywords: Any) -> Any:
            return signature(_FLOATS, _FLOATS, _FLOATS) if arguments == (_FLOATS, _FLOATS) else None

    @lower_builtin(operation, _FLOATS, _FLOATS)  # type: ignore[untyped-decorator]
    def _lower(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return getattr(builder, instruction)(*values)


for _operation, _instruction in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
    _arithmetic(getattr(operator, _operation), _instruction)


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS.vector, [float(np.float32(value))] * LANES)


def _bits(value: int) -> ir.Constant:
    return ir.Constant(_BITS.vector, [value] * LANES)


def _call(builder: Any, name: str, result: Any, values: Any, **flags: Any) -> Any:
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values, **flags)


def _fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _call(builder, f"llvm.fma.v{LANES}f32", _FLOATS.vector, [a, b, c])


def _spread(builder: Any, value: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, one, _pattern([0] * LANES))


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index], inbounds=True)


@primitive
def load(typing: Any, array: Any, index: Any) -> Any:
    """LANES numbers of a flat array from ``index`` on."""
    result = _BITS if array.dtype == types.uint32 else _FLOATS

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        place = _address(context, builder, sig.args[0], *values)
        return builder.load(builder.bitcast(place, result.vector.as_pointer()), align=4)

    return result(array, types.intp), emit


@primitive
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Put LANES numbers into a flat array from ``index`` on."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        place = _address(context, builder, sig.args[0], *values[:2])
        builder.store(values[2], builder.bitcast(place, _FLOATS.vector.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _FLOATS), emit


@primitive
def splat(typing: Any, array: Any, index: Any) -> Any:
    """One number of a flat array in all lanes."""
    result = _BITS if array.dtype == types.uint32 else _FLOATS

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        value = builder.load(_address(context, builder, sig.args[0], *values))
        return _spread(builder, value, result.vector)

    return result(array, types.intp), emit


@primitive
def every(typing: Any, value: Any) -> Any:
    """One number in all lanes."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return _spread(builder, values[0], _FLOATS.vector)

    return _FLOATS(types.float32), emit


@primitive
def fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return _fused(builder, *values)

    return _FLOATS(_FLOATS, _FLOATS, _FLOATS), emit


@primitive
def total(typing: Any, vector: Any) -> Any:
    """The sum over the lanes, always in the same order."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        start = ir.Constant(ir.FloatType(), -0.0)
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        return _call(builder, name, ir.FloatType(), [start, values[0]], fastmath=("reassoc",))

    return types.float32(_FLOATS), emit


@primitive
def larger(typing: Any, a: Any, b: Any) -> Any:
    """Lane by lane the larger one; ``b`` where they cannot be compared."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *values), *values)

    return _FLOATS(_FLOATS, _FLOATS), emit


@primitive
def where_positive(typing: Any, sign: Any, a: Any, b: Any) -> Any:
    """``a`` in lanes whose ``sign`` is above 0, else ``b``."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", values[0], _constant(0.0)), *values[1:])

    return _FLOATS(_FLOATS, _FLOATS, _FLOATS), emit


@primitive
def power_of_two(typing: Any, vector: Any) -> Any:
    """2^x for x below 127, relative error 2e-7, nothing below 2^-126; NaN for NaN.

    2^(what is left of x after rounding) is a polynomial; the rounded part goes into the exponent.
    """

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return (_power_wide if WIDE else _power_anywhere)(builder, values[0])

    return _FLOATS(_FLOATS), emit


def _power_wide(builder: Any, x: Any) -> Any:
    all_lanes, as_set = ir.Constant(ir.IntType(16), -1), ir.Constant(ir.IntType(32), 4)
    down = ir.Constant(ir.IntType(32), 9)
    rest = _call(builder, "llvm.x86.avx512.mask.reduce.ps.512", x.type, [x, down, x, all_lanes, as_set])
    power = _polynomial(builder, _POWER_OF_REST, rest)
    return _call(builder, "llvm.x86.avx512.mask.scalef.ps.512", x.type, [power, x, x, all_lanes, as_set])


def _power_anywhere(builder: Any, x: Any) -> Any:
    x = builder.select(builder.fcmp_ordered("<", x, _constant(-126.0)), _constant(-126.0), x)
    shifted = builder.fadd(x, _constant(1.5 * 2.0**23))  # the rounded part is in its last bits
    power = _polynomial(builder, _POWER, builder.fsub(x, builder.fsub(shifted, _constant(1.5 * 2.0**23))))
    exponent = builder.shl(builder.bitcast(shifted, _BITS.vector), _bits(23))
    return builder.fmul(power, builder.bitcast(builder.add(exponent, _bits(127 << 23)), x.type))


def _polynomial(builder: Any, coefficients: tuple[float, ...], x: Any) -> Any:
    result = _constant(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = _fused(builder, result, x, _constant(coefficient))
    return result


# Least relative error: on [0, 1] and on [-1/2, 1/2].
_POWER_OF_REST = (0.99999994, 0.69315308, 0.24015363, 0.055826314, 0.0089893425, 0.0018775760)
_POWER = (1.0, 0.69314697, 0.24022120, 0.055507133, 0.0096755417, 0.0013276467)


@primitive
def kept(typing: Any, rows: Any, factors: Any, terms: Any, threshold: Any, value: Any) -> Any:
    """``value`` in lanes that dropout keeps, else 0.

    Kept where row * factor + term < threshold, modulo 2^32: rows, factors and terms are random, so any two
    decisions are independent.
    """

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        drawn = builder.add(builder.mul(values[0], values[1]), values[2])
        keep = builder.icmp_unsigned("<", drawn, _spread(builder, values[3], _BITS.vector))
        return builder.select(keep, values[4], _constant(0.0))

    return _FLOATS(_BITS, _BITS, _BITS, types.uint32, _FLOATS), emit


@primitive
def tail_ratio(typing: Any, vector: Any) -> Any:
    """P(X > x) exp(x^2 / 2) for standard normal X as a function of 1 / (1 + 0.3 x), relative error 2e-7."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return _polynomial(builder, _TAIL, values[0])

    return _FLOATS(_FLOATS), emit


_TAIL = (  # least relative error for x from 0 to 14
    7.1692552e-06,
    0.11948768,
    0.12192040,
    0.094683282,
    0.14253613,
    -0.076507404,
    0.22866093,
    -0.16916654,
    0.038378377,
)


@primitive
def add_totals(typing: Any, array: Any, index: Any, step: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Add the sums over lanes of four times four vectors to a 4 x 4 block of a flat matrix, rows ``step`` apart."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        vectors = [builder.extract_value(four, place) for four in values[3:] for place in range(4)]
        block = LANES // 2
        while block:  # halves of two vectors side by side, so that no lane is idle
            half = len(vectors) // 2
            vectors = [
                _folded(builder, *pair, block) for pair in zip(vectors[:half], vectors[half:], strict=True)
            ]
            block //= 2
        four_floats = ir.VectorType(ir.FloatType(), 4)
        for row in range(4):
            lanes = [
                (number % len(vectors)) * LANES + number // len(vectors)
                for number in range(4 * row, 4 * row + 4)
            ]
            sums = builder.shuffle_vector(vectors[0], vectors[-1], _pattern(lanes))
            at = builder.add(values[1], builder.mul(values[2], ir.Constant(values[2].type, row)))
            place = _address(context, builder, sig.args[0], values[0], at)
            place = builder.bitcast(place, four_floats.as_pointer())
            builder.store(builder.fadd(builder.load(place, align=4), sums), place, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, a, b, c, d), emit


def _folded(builder: Any, a: Any, b: Any, block: int) -> Any:
    """Each run of 2 * block lanes of ``a`` summed to block lanes, the same of ``b`` behind it."""
    runs = range(0, LANES, 2 * block)
    low = [start + lane + source for start in runs for source in (0, LANES) for lane in range(block)]
    high = [lane + block for lane in low]
    return builder.fadd(
        builder.shuffle_vector(a, b, _pattern(low)), builder.shuffle_vector(a, b, _pattern(high))
    )


def _pattern(lanes: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)


@primitive
def repeated(typing: Any, vector: Any, part: Any) -> Any:
    """Each of the LANES / HEAD lanes of one eighth of a vector, HEAD times over."""
    which = part.literal_value

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        lanes = [which * (LANES // HEAD) + lane // HEAD for lane in range(LANES)]
        return builder.shuffle_vector(values[0], values[0], _pattern(lanes))

    return _FLOATS(_FLOATS, part), emit


@primitive
def apart(typing: Any) -> Any:
    """The function that says so is compiled once, not again wherever it is called."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), emit


# Four vectors or eight at a time


@inlined
def load_4(array: Floats, at: int, step: int) -> Any:
    """Four vectors, ``step`` apart."""
    return load(array, at), load(array, at + step), load(array, at + 2 * step), load(array, at + 3 * step)


@inlined
def store_4(array: Floats, at: int, step: int, a: Any) -> None:
    """Put four vectors, ``step`` apart."""
    store(array, at, a[0])
    store(array, at + step, a[1])
    store(array, at + 2 * step, a[2])
    store(array, at + 3 * step, a[3])


@inlined
def fused_4(one: Any, a: Any, b: Any) -> Any:
    """one * a + b, four times."""
    return fused(one, a[0], b[0]), fused(one, a[1], b[1]), fused(one, a[2], b[2]), fused(one, a[3], b[3])


@inlined
def zeros_4() -> Any:
    """Four vectors of 0."""
    zero = every(np.float32(0.0))
    return zero, zero, zero, zero


@inlined
def load_8(array: Floats, at: int, step: int) -> Any:
    """Eight vectors, ``step`` apart."""
    return load_4(array, at, step) + load_4(array, at + 4 * step, step)


@inlined
def dot_8(a: Any, array: Floats, at: int, start: Any) -> Any:
    """start + the product of eight vectors with eight neighbouring numbers."""
    start = fused(a[0], splat(array, at), start)
    start = fused(a[1], splat(array, at + 1), start)
    start = fused(a[2], splat(array, at + 2), start)
    start = fused(a[3], splat(array, at + 3), start)
    start = fused(a[4], splat(array, at + 4), start)
    start = fused(a[5], splat(array, at + 5), start)
    start = fused(a[6], splat(array, at + 6), start)
    return fused(a[7], splat(array, at + 7), start)


@inlined
def add_8(sums: Any, factor: Any, array: Floats, at: int) -> Any:
    """Eight sums, each plus the factor times one of eight neighbouring numbers."""
    return (
        fused(factor, splat(array, at), sums[0]),
        fused(factor, splat(array, at + 1), sums[1]),
        fused(factor, splat(array, at + 2), sums[2]),
        fused(factor, splat(array, at + 3), sums[3]),
        fused(factor, splat(array, at + 4), sums[4]),
        fused(factor, splat(array, at + 5), sums[5]),
        fused(factor, splat(array, at + 6), sums[6]),
        fused(factor, splat(array, at + 7), sums[7]),
    )


@inlined
def store_8(array: Floats, at: int, step: int, factor: Any, a: Any) -> None:
    """Put eight vectors times a factor, ``step`` apart."""
    store_4(array, at, step, (factor * a[0], factor * a[1], factor * a[2], factor * a[3]))
    store_4(array, at + 4 * step, step, (factor * a[4], factor * a[5], factor * a[6], factor * a[7]))


@inlined
def magnitude(a: Any) -> Any:
    """Absolute values."""
    return larger(a, every(np.float32(0.0)) - a)


@inner
def scratch(size: int) -> Floats:
    """Working space whose vectors lie within one cache line each, which doubles the speed of loading them."""
    apart()
    memory = np.empty(size + 16, np.float32)
    start = (-memory.ctypes.data) % 64 // 4
    return memory[start : start + size]


# Matrix products. Tokens of a window are flat (n_rows * n_slots).


@inner
def add_product(
    out: Floats,  # (n_out, n_slots)
    n_out: int,
    weight: Floats,  # (n_out, n_in), rows step apart
    step: int,
    entering: Floats,  # (n_in, n_slots)
    n_in: int,
    n_slots: int,
) -> None:
    """out += weight @ entering, with tokens in lanes."""
    apart()
    for row in range(0, n_out, 4):
        for slot in range(0, n_slots, SLOTS):
            place = row * n_slots + slot
            a = load_4(out, place, LANES)
            b = load_4(out, place + n_slots, LANES)
            c = load_4(out, place + 2 * n_slots, LANES)
            d = load_4(out, place + 3 * n_slots, LANES)
            for column in range(n_in):
                x = load_4(entering, column * n_slots + slot, LANES)
                factor = row * step + column
                a = fused_4(splat(weight, factor), x, a)
                b = fused_4(splat(weight, factor + step), x, b)
                c = fused_4(splat(weight, factor + 2 * step), x, c)
                d = fused_4(splat(weight, factor + 3 * step), x, d)
            store_4(out, place, LANES, a)
            store_4(out, place + n_slots, LANES, b)
            store_4(out, place + 2 * n_slots, LANES, c)
            store_4(out, place + 3 * n_slots, LANES, d)


@inner
def token_rows(
    out: Floats,  # (n_slots, n_out)
    n_out: int,
    weight: Floats,  # (n_in, n_out)
    bias: Floats,  # (n_out,)
    entering: Floats,  # (n_in, n_slots)
    n_in: int,
    n_slots: int,
) -> None:
    """out = entering^T @ weight + bias: one row per token, with outputs in lanes."""
    apart()
    for slot in range(0, n_slots, 4):
        for column in range(0, n_out, COLUMNS):
            start = load(bias, column)
            a = (start, start, start, start)
            start = load(bias, column + LANES)
            b = (start, start, start, start)
            for row in range(n_in):
                place = row * n_slots + slot
                x = (
                    splat(entering, place),
                    splat(entering, place + 1),
                    splat(entering, place + 2),
                    splat(entering, place + 3),
                )
                a = fused_4(load(weight, row * n_out + column), x, a)
                b = fused_4(load(weight, row * n_out + column + LANES), x, b)
            store_4(out, slot * n_out + column, n_out, a)
            store_4(out, slot * n_out + column + LANES, n_out, b)


@inner
def add_weight_gradient(
    out: Floats,  # (n_out, n_in), rows step apart
    step: int,
    leaving: Floats,  # (n_windows, n_out * n_slots)
    n_out: int,
    entering: Floats,  # (n_windows, n_in * n_slots)
    n_in: int,
    n_slots: int,
) -> None:
    """out += the sum over windows and tokens of leaving x entering."""
    apart()
    for row in range(0, n_out, 4):
        for column in range(0, n_in, 4):
            a = zeros_4()
            b = zeros_4()
            c = zeros_4()
            d = zeros_4()
            for window in range(len(leaving)):
                gradient = leaving[window]
                tokens = entering[window]
                for slot in range(0, n_slots, LANES):
                    x = load_4(tokens, column * n_slots + slot, n_slots)
                    g = load_4(gradient, row * n_slots + slot, n_slots)
                    a = fused_4(g[0], x, a)
                    b = fused_4(g[1], x, b)
                    c = fused_4(g[2], x, c)
                    d = fused_4(g[3], x, d)
            add_totals(out, row * step + column, step, a, b, c, d)


@inner
def add_bias_gradient(
    out: Floats,  # (n_out,)
    leaving: Floats,  # (n_out, n_slots)
    n_out: int,
    n_slots: int,
) -> None:
    """out += the sum over tokens of leaving."""
    apart()
    for row in range(n_out):
        summed = every(np.float32(0.0))
        for slot in range(0, n_slots, LANES):
            summed = summed + load(leaving, row * n_slots + slot)
        out[row] += total(summed)


@inner
def fill_rows(out: Floats, values: Floats, n_rows: int, n_slots: int) -> None:
    """One number per row."""
    apart()
    for row in range(n_rows):
        value = splat(values, row)
        for slot in range(0, n_slots, LANES):
            store(out, row * n_slots + slot, value)


@inner
def clear(out: Floats, size: int) -> None:
    """Set ``size`` numbers to 0."""
    apart()
    for place in range(0, size, LANES):
        store(out, place, every(np.float32(0.0)))


@inner
def scale_rows(out: Floats, entering: Floats, scale: Floats, shift: Floats, n_slots: int) -> None:
    """out = scale * entering + shift, with one pair per row: a normalisation whose moments are known."""
    apart()
    for row in range(len(scale)):
        factor = splat(scale, row)
        term = splat(shift, row)
        for slot in range(0, n_slots, LANES):
            place = row * n_slots + slot
            store(out, place, fused(load(entering, place), factor, term))


@inner
def row_moments(out: Floats, tokens: Floats, n_tokens: int, real: Floats) -> None:
    """Mean and sum of squared distances from it, per row over the real tokens: (2 * width,)."""
    apart()
    n_slots = len(real)
    width = len(out) // 2
    for row in range(width):
        summed = every(np.float32(0.0))
        for slot in range(0, n_slots, LANES):
            summed = fused(load(tokens, row * n_slots + slot), load(real, slot), summed)
        mean = total(summed) / np.float32(n_tokens)
        squares = every(np.float32(0.0))
        for slot in range(0, n_slots, LANES):
            off = (load(tokens, row * n_slots + slot) - every(mean)) * load(real, slot)
            squares = fused(off, off, squares)
        out[row] = mean
        out[width + row] = total(squares)


# Dropout: which numbers are kept


class Dropout(NamedTuple):
    """What is kept is multiplied by ``factor``. Each stream has a mask of its own for every window."""

    seed: np.uint64
    stream: int
    threshold: np.uint32  # of 2^32: the share that is kept; 0 means all
    factor: np.float32


@inlined
def mixed(bits: np.uint32) -> np.uint32:
    """Thirty-two bits, each of which depends on all that went in."""
    bits = np.uint32((bits ^ (bits >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    bits = np.uint32((bits ^ (bits >> np.uint32(15))) * np.uint32(0x735A2D97))
    return np.uint32(bits ^ (bits >> np.uint32(15)))


@inner
def fill_bits(out: Bits, dropout: Dropout, head: int, window: int) -> None:
    """Random bits for the mask of one window: rows, then factors of columns, then terms of columns."""
    apart()
    key = mixed(np.uint32(dropout.seed >> np.uint64(32)) ^ mixed(np.uint32(window)))
    key = mixed(np.uint32(dropout.seed) ^ key)
    key = mixed(np.uint32(dropout.stream + head) ^ key)
    for place in range(len(out)):
        out[place] = mixed(key + np.uint32(place) * np.uint32(0x9E3779B9))


# Attention


class LayerWeights(NamedTuple):
    """One encoder layer's parameters, flat, in the orders that the loops read them."""

    query: Floats  # (width, width), times log2(e) / sqrt(HEAD), so that weights are powers of two
    query_bias: Floats
    query_rows: Floats  # its transpose
    key_value: Floats  # (2 width, width)
    key_value_bias: Floats
    key_value_rows: Floats  # its transpose
    projections_back: Floats  # (width, 3 width): query, key and value as they are, transposed
    mix: Floats  # (width, width)
    mix_bias: Floats
    mix_back: Floats
    first: Floats  # (n_hidden, width)
    first_bias: Floats
    first_back: Floats  # (width, n_hidden)
    second: Floats  # (width, n_hidden)
    second_bias: Floats
    second_back: Floats  # (n_hidden, width)


@compiled
def attend(
    first: int,
    last: int,
    entering: Floats,  # (n_windows, width * n_slots)
    scale: Floats,  # (width,)
    shift: Floats,  # tokens = scale * entering + shift
    weights: LayerWeights,
    dropout: Dropout,
    n_tokens: int,
    real: Floats,  # (n_slots,) 1 for a token, 0 for padding
    heads: Floats,  # (n_windows, width * n_slots) out: what the heads say, before they are mixed
    softmax: Floats,  # (n_windows, n_heads * 2 * n_slots) out: what is added to scores, 1 / sum of powers
    summed: Floats,  # (n_windows, width * n_slots) out: tokens + mixed heads
    moments: Floats,  # (n_windows, 2 * width) out: of summed
) -> None:
    """Every token looks at every other."""
    n_slots = len(real)
    width = len(scale)
    size = width * n_slots
    part = HEAD * n_slots
    tokens = scratch(size)
    query = scratch(size)
    key_value = scratch(2 * size)
    bounds = scratch(width)
    bits = np.empty(3 * n_slots, np.uint32)
    for window in range(first, last):
        scale_rows(tokens, entering[window], scale, shift, n_slots)
        fill_rows(query, weights.query_bias, width, n_slots)
        add_product(query, width, weights.query, width, tokens, width, n_slots)
        token_rows(
            key_value, 2 * width, weights.key_value_rows, weights.key_value_bias, tokens, width, n_slots
        )
        column_bounds(bounds, key_value, width, n_tokens)
        said = heads[window]
        for head in range(width // HEAD):
            if dropout.threshold:
                fill_bits(bits, dropout, head, window)
            attend_head(
                said[head * part :],
                softmax[window, 2 * head * n_slots :],
                query[head * part :],
                key_value[head * HEAD :],
                bounds[head * HEAD :],
                bits,
                dropout,
                width,
                n_tokens,
                n_slots,
            )
        out = summed[window]
        fill_rows(out, weights.mix_bias, width, n_slots)
        add_product(out, width, weights.mix, width, said, width, n_slots)
        for place in range(0, size, LANES):
            store(out, place, load(out, place) + load(tokens, place))
        row_moments(moments[window], out, n_tokens, real)


@inner
def column_bounds(out: Floats, rows: Floats, width: int, n_tokens: int) -> None:
    """The largest absolute value of each of the keys' numbers, over all tokens."""
    apart()
    for column in range(0, width, LANES):
        largest = every(np.float32(0.0))
        for token in range(n_tokens):
            largest = larger(magnitude(load(rows, token * 2 * width + column)), largest)
        store(out, column, largest)


@inner
def attend_head(
    out: Floats,  # (HEAD, n_slots)
    softmax: Floats,  # (2, n_slots) out
    query: Floats,  # (HEAD, n_slots)
    key_value: Floats,  # (n_slots, 2 * width): HEAD numbers of a key, and width after them HEAD of a value
    bounds: Floats,  # (HEAD,)
    bits: Bits,
    dropout: Dropout,
    width: int,
    n_tokens: int,
    n_slots: int,
) -> None:
    """LANES queries against one key after the other: attention weights live in registers only."""
    apart()
    zero = every(np.float32(0.0))
    one = every(np.float32(1.0))
    for slot in range(0, n_slots, LANES):
        q = load_8(query, slot, n_slots)
        start = zero
        if total(where_positive(largest_score(q, bounds) - every(np.float32(SAFE)), one, zero)) > 0:
            highest = every(np.float32(-np.inf))
            for token in range(n_tokens):
                highest = larger(dot_8(q, key_value, token * 2 * width, zero), highest)
            start = zero - highest
        powers = zero
        said = zeros_4() + zeros_4()
        rows = load(bits, slot)
        for token in range(n_tokens):
            power = power_of_two(dot_8(q, key_value, token * 2 * width, start))
            powers = powers + power
            if dropout.threshold:
                factor = splat(bits, n_slots + token)
                power = kept(rows, factor, splat(bits, 2 * n_slots + token), dropout.threshold, power)
            said = add_8(said, power, key_value, token * 2 * width + width)
        inverse = one / powers
        store(softmax, slot, start)
        store(softmax, n_slots + slot, inverse)
        store_8(out, slot, n_slots, inverse * every(dropout.factor), said)


@inlined
def largest_score(q: Any, bounds: Floats) -> Any:
    """No key's score can be larger than this, in absolute value."""
    low = (magnitude(q[0]), magnitude(q[1]), magnitude(q[2]), magnitude(q[3]))
    high = (magnitude(q[4]), magnitude(q[5]), magnitude(q[6]), magnitude(q[7]))
    return dot_8(low + high, bounds, 0, every(np.float32(0.0)))


# Each token by itself


@inlined
def bell_of(x: Any) -> Any:
    """exp(-x^2 / 2)"""
    return power_of_two(x * x * every(np.float32(-0.5 * np.log2(np.e))))


@inlined
def normal_below(x: Any, bell: Any) -> Any:
    """P(X < x) for standard normal X, error 1e-7, given bell = exp(-x^2 / 2)."""
    one = every(np.float32(1.0))
    tail = tail_ratio(one / fused(magnitude(x), every(np.float32(0.3)), one)) * bell
    return where_positive(x, one - tail, tail)


@compiled
def transform(
    first: int,
    last: int,
    summed: Floats,  # (n_windows, width * n_slots)
    scale: Floats,  # (width,)
    shift: Floats,  # what enters is scale * summed + shift
    heads: Floats,  # (n_windows, width * n_slots)
    weights: LayerWeights,
    dropout: Dropout,
    n_tokens: int,
    real: Floats,
    out: Floats,  # (n_windows, width * n_slots) out: transformed + mixed heads
    moments: Floats,  # (n_windows, 2 * width) out
) -> None:
    """The feed-forward layer, plus the attention's own output."""
    n_slots = len(real)
    width = len(scale)
    n_hidden = len(weights.first_bias)
    normal = scratch(width * n_slots)
    hidden = scratch(HIDDEN * n_slots)
    bits = np.empty(n_slots + 2 * n_hidden, np.uint32)
    bias = weights.mix_bias + weights.second_bias
    for window in range(first, last):
        scale_rows(normal, summed[window], scale, shift, n_slots)
        leaving = out[window]
        fill_rows(leaving, bias, width, n_slots)
        add_product(leaving, width, weights.mix, width, heads[window], width, n_slots)
        if dropout.threshold:
            fill_bits(bits, dropout, 0, window)
        for block in range(0, n_hidden, HIDDEN):
            rows = min(HIDDEN, n_hidden - block)
            fill_rows(hidden, weights.first_bias[block:], rows, n_slots)
            add_product(hidden, rows, weights.first[block * width :], width, normal, width, n_slots)
            activate(hidden, rows, bits, block, n_hidden, dropout, n_slots)
            add_product(leaving, width, weights.second[block:], n_hidden, hidden, rows, n_slots)
        row_moments(moments[window], leaving, n_tokens, real)


@inner
def activate(
    hidden: Floats, n_rows: int, bits: Bits, block: int, n_hidden: int, dropout: Dropout, n_slots: int
) -> None:
    """x -> x P(X < x), then dropout, in place."""
    apart()
    scale = every(dropout.factor)
    for row in range(n_rows):
        column = n_slots + block + row
        for slot in range(0, n_slots, LANES):
            place = row * n_slots + slot
            x = load(hidden, place)
            y = x * normal_below(x, bell_of(x))
            if dropout.threshold:
                factor, term = splat(bits, column), splat(bits, column + n_hidden)
                y = kept(load(bits, slot), factor, term, dropout.threshold, y * scale)
            store(hidden, place, y)


# The two ends: patches to tokens, tokens to features


@compiled
def embed(
    first: int,
    last: int,
    series: Floats,  # (n_windows, length)
    weight: Floats,  # (width, patch_length), flat
    start: Floats,  # (width * n_slots,) bias + positions
    patch_length: int,
    patch_stride: int,
    n_tokens: int,
    n_slots: int,
    tokens: Floats,  # (n_windows, width * n_slots) out
) -> None:
    """Patches to tokens."""
    patches = scratch(patch_length * n_slots)
    clear(patches, len(patches))
    for window in range(first, last):
        fill_patches(patches, series[window], patch_length, patch_stride, n_tokens, n_slots)
        out = tokens[window]
        for place in range(0, len(start), LANES):
            store(out, place, load(start, place))
        add_product(out, len(start) // n_slots, weight, patch_length, patches, patch_length, n_slots)


@inner
def fill_patches(
    patches: Floats, samples: Floats, patch_length: int, patch_stride: int, n_tokens: int, n_slots: int
) -> None:
    """Neighbouring samples of each token; beyond the end, the last one is repeated."""
    apart()
    for offset in range(patch_length):
        for token in range(n_tokens):
            patches[offset * n_slots + token] = samples[min(token * patch_stride + offset, len(samples) - 1)]


@compiled
def write_features(
    first: int,
    last: int,
    entering: Floats,  # (n_windows, width * n_slots)
    scale: Floats,
    shift: Floats,
    n_tokens: int,
    n_slots: int,
    features: Floats,  # (n_windows, n_tokens * width) out
) -> None:
    """scale * entering + shift, one row per token."""
    width = len(scale)
    for window in range(first, last):
        out = features[window]
        tokens = entering[window]
        for row in range(width):
            for token in range(n_tokens):
                out[token * width + row] = tokens[row * n_slots + token] * scale[row] + shift[row]


# Backwards


class Norm(NamedTuple):
    """How a gradient passes a normalisation of x: by * leaving + along * (x - mean) + constant."""

    mean: Floats  # (width,)
    inverse: Floats  # 1 / deviation
    by: Floats
    along: Floats
    constant: Floats


class LayerGradients(NamedTuple):
    """Sums of each chunk of windows: (n_chunks, size of the parameter)."""

    projections: Floats  # (3 width, width)
    projections_bias: Floats
    mix: Floats
    mix_bias: Floats
    first: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats


@inner
def pass_norm(gradient: Floats, tokens: Floats, norm: Norm, real: Floats) -> None:
    """From behind a normalisation of tokens to before it, in place."""
    apart()
    n_slots = len(real)
    for row in range(len(norm.mean)):
        mean = splat(norm.mean, row)
        by = splat(norm.by, row)
        along = splat(norm.along, row)
        constant = splat(norm.constant, row)
        for slot in range(0, n_slots, LANES):
            place = row * n_slots + slot
            value = fused(load(gradient, place), by, fused(load(tokens, place) - mean, along, constant))
            store(gradient, place, value * load(real, slot))


@inner
def norm_sums(out: Floats, gradient: Floats, tokens: Floats, norm: Norm, n_slots: int) -> None:
    """The gradient, and its product with what was normalised, summed over tokens: (2 * width,)."""
    apart()
    width = len(norm.mean)
    for row in range(width):
        mean = splat(norm.mean, row)
        plain = every(np.float32(0.0))
        product = plain
        for slot in range(0, n_slots, LANES):
            value = load(gradient, row * n_slots + slot)
            plain = plain + value
            product = fused(value, load(tokens, row * n_slots + slot) - mean, product)
        out[row] = total(plain)
        out[width + row] = total(product) * norm.inverse[row]


@compiled
def read_feature_gradients(
    first: int,
    last: int,
    features: Floats,  # (n_windows, n_tokens * width) gradient
    tokens: Floats,  # (n_windows, width * n_slots) what the last normalisation saw
    norm: Norm,
    n_tokens: int,
    n_slots: int,
    leaving: Floats,  # (n_windows, width * n_slots) out: the gradient with tokens in lanes
    sums: Floats,  # (n_windows, 2 * width) out
) -> None:
    """What comes back from the head."""
    width = len(norm.mean)
    for window in range(first, last):
        gradient = features[window]
        out = leaving[window]
        for row in range(width):
            for token in range(n_tokens):
                out[row * n_slots + token] = gradient[token * width + row]
            for token in range(n_tokens, n_slots):
                out[row * n_slots + token] = 0
        norm_sums(sums[window], out, tokens[window], norm, n_slots)


@compiled
def transform_back(
    first: int,
    last: int,
    leaving: Floats,  # (n_windows, width * n_slots) in: behind the layer; out: of transformed + mixed heads
    out: Floats,  # (n_windows, width * n_slots) what the second normalisation saw
    second_norm: Norm,
    summed: Floats,  # (n_windows, width * n_slots) what the first one saw
    scale: Floats,
    shift: Floats,
    first_norm: Norm,
    weights: LayerWeights,
    dropout: Dropout,
    real: Floats,
    entering: Floats,  # (n_windows, width * n_slots) out: of what enters the feed-forward layer
    sums: Floats,  # (n_windows, 2 * width) out
    gradients: LayerGradients,
) -> None:
    """The feed-forward layer and the normalisation behind it."""
    chunk = first // CHUNK
    n_slots = len(real)
    width = len(scale)
    size = width * n_slots
    n_hidden = len(weights.first_bias)
    normal = scratch(GROUP * size).reshape((GROUP, size))
    hidden = scratch(GROUP * HIDDEN * n_slots).reshape((GROUP, HIDDEN * n_slots))
    change = scratch(GROUP * HIDDEN * n_slots).reshape((GROUP, HIDDEN * n_slots))
    bits = np.empty((GROUP, n_slots + 2 * n_hidden), np.uint32)
    first_bias = gradients.first_bias[chunk]
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        for window in range(start, stop):
            gradient = leaving[window]
            pass_norm(gradient, out[window], second_norm, real)
            add_bias_gradient(gradients.second_bias[chunk], gradient, width, n_slots)
            scale_rows(normal[window - start], summed[window], scale, shift, n_slots)
            clear(entering[window], size)
            if dropout.threshold:
                fill_bits(bits[window - start], dropout, 0, window)
        for block in range(0, n_hidden, HIDDEN):
            rows = min(HIDDEN, n_hidden - block)
            for window in range(start, stop):
                x = hidden[window - start]
                g = change[window - start]
                fill_rows(x, weights.first_bias[block:], rows, n_slots)
                add_product(
                    x, rows, weights.first[block * width :], width, normal[window - start], width, n_slots
                )
                clear(g, rows * n_slots)
                add_product(
                    g, rows, weights.second_back[block * width :], width, leaving[window], width, n_slots
                )
                activate_back(x, g, rows, bits[window - start], block, n_hidden, dropout, n_slots)
                add_product(entering[window], width, weights.first_back[block:], n_hidden, g, rows, n_slots)
                add_bias_gradient(first_bias[block:], g, rows, n_slots)
            n_windows = stop - start
            first_weight = gradients.first[chunk, block * width :]
            add_weight_gradient(
                first_weight, width, change[:n_windows], rows, normal[:n_windows], width, n_slots
            )
            second_weight = gradients.second[chunk, block:]
            add_weight_gradient(
                second_weight, n_hidden, leaving[start:stop], width, hidden[:n_windows], rows, n_slots
            )
        for window in range(start, stop):
            norm_sums(sums[window], entering[window], summed[window], first_norm, n_slots)


@inner
def activate_back(
    hidden: Floats,
    change: Floats,
    n_rows: int,
    bits: Bits,
    block: int,
    n_hidden: int,
    dropout: Dropout,
    n_slots: int,
) -> None:
    """hidden -> activated and dropped, change: from behind that to before it; both in place."""
    apart()
    scale = every(dropout.factor)
    density = every(np.float32(1 / np.sqrt(2 * np.pi)))
    for row in range(n_rows):
        column = n_slots + block + row
        for slot in range(0, n_slots, LANES):
            place = row * n_slots + slot
            x = load(hidden, place)
            bell = bell_of(x)
            below = normal_below(x, bell)
            y = x * below
            g = load(change, place) * fused(x * density, bell, below)
            if dropout.threshold:
                rows, factor, term = load(bits, slot), splat(bits, column), splat(bits, column + n_hidden)
                y = kept(rows, factor, term, dropout.threshold, y * scale)
                g = kept(rows, factor, term, dropout.threshold, g * scale)
            store(hidden, place, y)
            store(change, place, g)


@compiled
def attend_back(
    first: int,
    last: int,
    gradient: Floats,  # (n_windows, width * n_slots) in: behind the first normalisation; out: of tokens
    summed: Floats,  # (n_windows, width * n_slots) what that normalisation saw
    first_norm: Norm,
    leaving: Floats,  # (n_windows, width * n_slots) gradient of transformed + mixed heads
    entering: Floats,  # (n_windows, width * n_slots)
    scale: Floats,
    shift: Floats,  # tokens = scale * entering + shift
    heads: Floats,  # (n_windows, width * n_slots)
    softmax: Floats,  # (n_windows, n_heads * 2 * n_slots)
    weights: LayerWeights,
    dropout: Dropout,
    n_tokens: int,
    real: Floats,
    before: Norm,  # the normalisation that saw entering
    sums: Floats,  # (n_windows, 2 * width) out, for it
    gradients: LayerGradients,
) -> None:
    """The first normalisation, and attention before it."""
    chunk = first // CHUNK
    n_slots = len(real)
    width = len(scale)
    size = width * n_slots
    part = HEAD * n_slots
    tokens = scratch(GROUP * size).reshape((GROUP, size))
    mixing = scratch(GROUP * size).reshape((GROUP, size))
    changes = scratch(GROUP * 3 * size).reshape((GROUP, 3 * size))  # of queries, keys and values
    key_value = scratch(2 * size)
    query = scratch(size)
    said = scratch(size)
    said_rows = scratch(part)
    offsets = scratch(2 * n_slots)
    keys = scratch(part)
    space = scratch(3 * n_slots * LANES)
    bits = np.empty(3 * n_slots, np.uint32)
    clear(keys, part)
    for member in range(GROUP):
        clear(changes[member], 3 * size)
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        for window in range(start, stop):
            x = tokens[window - start]
            g = gradient[window]
            mixed_gradient = mixing[window - start]
            change = changes[window - start]
            scale_rows(x, entering[window], scale, shift, n_slots)
            pass_norm(g, summed[window], first_norm, real)
            for place in range(0, size, LANES):
                store(mixed_gradient, place, load(g, place) + load(leaving[window], place))
            add_bias_gradient(gradients.mix_bias[chunk], mixed_gradient, width, n_slots)
            clear(said, size)
            add_product(said, width, weights.mix_back, width, mixed_gradient, width, n_slots)
            token_rows(query, width, weights.query_rows, weights.query_bias, x, width, n_slots)
            fill_rows(key_value, weights.key_value_bias, 2 * width, n_slots)
            add_product(key_value, 2 * width, weights.key_value, width, x, width, n_slots)
            for head in range(width // HEAD):
                if dropout.threshold:
                    fill_bits(bits, dropout, head, window)
                said_gradient(
                    said_rows,
                    offsets,
                    said[head * part :],
                    heads[window, head * part :],
                    softmax[window, 2 * head * n_slots :],
                    dropout.factor,
                    n_slots,
                )
                transpose(keys, key_value[head * part :], n_tokens, n_slots)
                attend_head_back(
                    change[head * part :],
                    query[head * HEAD :],
                    key_value[head * part :],
                    keys,
                    said_rows,
                    offsets,
                    bits,
                    dropout,
                    width,
                    n_tokens,
                    real,
                    space,
                )
            add_product(g, width, weights.projections_back, 3 * width, change, 3 * width, n_slots)
            add_bias_gradient(gradients.projections_bias[chunk], change, 3 * width, n_slots)
            norm_sums(sums[window], g, entering[window], before, n_slots)
        n = stop - start
        add_weight_gradient(
            gradients.projections[chunk], width, changes[:n], 3 * width, tokens[:n], width, n_slots
        )
        add_weight_gradient(gradients.mix[chunk], width, mixing[:n], width, heads[start:stop], width, n_slots)


@inner
def transpose(rows: Floats, tokens: Floats, n_tokens: int, n_slots: int) -> None:
    """(HEAD, n_slots) -> (n_slots, HEAD)"""
    apart()
    for token in range(n_tokens):
        for number in range(HEAD):
            rows[token * HEAD + number] = tokens[number * n_slots + token]


@inner
def said_gradient(
    rows: Floats,  # (n_slots, HEAD) out: gradient of what a head says, over the sum of powers
    offsets: Floats,  # (2, n_slots) out: what is added to scores, what is taken off their gradients
    said: Floats,  # (HEAD, n_slots) gradient, overwritten
    heads: Floats,  # (HEAD, n_slots) what it said
    softmax: Floats,  # (2, n_slots)
    factor: Any,
    n_slots: int,
) -> None:
    """What all keys of a query share."""
    apart()
    for slot in range(0, n_slots, LANES):
        inverse = load(softmax, n_slots + slot)
        mean = every(np.float32(0.0))
        for place in range(slot, HEAD * n_slots, n_slots):
            value = load(said, place)
            mean = fused(value, load(heads, place), mean)
            store(said, place, value * inverse * every(factor))
        store(offsets, slot, load(softmax, slot))
        store(offsets, n_slots + slot, mean * inverse)
    transpose(rows, said, n_slots, n_slots)


@inner
def attend_head_back(
    changes: Floats,  # (3, width, n_slots) out: HEAD rows each of query, key and value
    query: Floats,  # (n_slots, width)
    key_value: Floats,  # (2, width, n_slots)
    keys: Floats,  # (n_slots, HEAD)
    said: Floats,  # (n_slots, HEAD) gradient of what the head says, over the sum of powers
    offsets: Floats,  # (2, n_slots)
    bits: Bits,
    dropout: Dropout,
    width: int,
    n_tokens: int,
    real: Floats,
    space: Floats,  # (3 * n_slots * LANES,)
) -> None:
    """LANES keys against one query after the other, in three loops that each fit into the registers."""
    apart()
    n_slots = len(real)
    size = width * n_slots
    zero = every(np.float32(0.0))
    powers = space
    shifts = space[n_slots * LANES :]
    query_change = space[2 * n_slots * LANES :]
    clear(query_change, n_slots * LANES)
    for slot in range(0, n_tokens, LANES):
        inside = load(real, slot)  # a key that is padding may have any score
        k = load_8(key_value, slot, n_slots)
        for token in range(n_tokens):
            power = power_of_two(dot_8(k, query, token * width, splat(offsets, token)))
            store(powers, token * LANES, where_positive(inside, power, zero))
        v = load_8(key_value, size + slot, n_slots)
        key_sums = zeros_4() + zeros_4()
        value_sums = zeros_4() + zeros_4()
        factors = load(bits, n_slots + slot)
        terms = load(bits, 2 * n_slots + slot)
        for token in range(n_tokens):
            power = load(powers, token * LANES)
            weight = power
            back = dot_8(v, said, token * HEAD, zero)
            if dropout.threshold:
                row = splat(bits, token)
                weight = kept(row, factors, terms, dropout.threshold, power)
                back = kept(row, factors, terms, dropout.threshold, back)
            shift = power * (back - splat(offsets, n_slots + token))
            value_sums = add_8(value_sums, weight, said, token * HEAD)
            key_sums = add_8(key_sums, shift, query, token * width)
            store(shifts, token * LANES, shift)
        store_8(changes, size + slot, n_slots, every(np.float32(np.log(2))), key_sums)
        store_8(changes, 2 * size + slot, n_slots, every(np.float32(1.0)), value_sums)
        some_keys = load_8(keys, slot * HEAD, LANES)
        for token in range(n_tokens):
            add_query_change(query_change, token * LANES, load(shifts, token * LANES), some_keys)
    for token in range(n_tokens):
        for number in range(HEAD):
            change = np.float32(0.0)
            for part in range(0, LANES, HEAD):
                change += query_change[token * LANES + part + number]
            changes[number * n_slots + token] = change * np.float32(1 / np.sqrt(HEAD))


@inlined
def add_query_change(query_change: Floats, at: int, shift: Any, keys: Any) -> None:
    """Scores' gradients times keys: the HEAD numbers of LANES / HEAD keys side by side."""
    a = fused(repeated(shift, 0), keys[0], load(query_change, at))
    b = repeated(shift, 1) * keys[1]
    a = fused(repeated(shift, 2), keys[2], a)
    b = fused(repeated(shift, 3), keys[3], b)
    a = fused(repeated(shift, 4), keys[4], a)
    b = fused(repeated(shift, 5), keys[5], b)
    a = fused(repeated(shift, 6), keys[6], a)
    b = fused(repeated(shift, 7), keys[7], b)
    store(query_change, at, a + b)


@compiled
def embed_back(
    first: int,
    last: int,
    gradient: Floats,  # (n_windows, width * n_slots)
    series: Floats,  # (n_windows, length)
    weight_back: Floats,  # (patch_length, width), flat
    patch_length: int,
    patch_stride: int,
    n_tokens: int,
    n_slots: int,
    weight: Floats,  # (n_chunks, width * patch_length) out
    start: Floats,  # (n_chunks, width * n_slots) out
    series_gradient: Floats,  # (n_windows, length) out, or empty where nobody asks
) -> None:
    """Tokens to patches, and to samples."""
    chunk = first // CHUNK
    size = start.shape[1]
    width = size // n_slots
    part = patch_length * n_slots
    patches = scratch(GROUP * part).reshape((GROUP, part))
    back = scratch(part)
    for member in range(GROUP):
        clear(patches[member], part)
    of_start = start[chunk]
    for begin in range(first, last, GROUP):
        stop = min(begin + GROUP, last)
        for window in range(begin, stop):
            g = gradient[window]
            fill_patches(
                patches[window - begin], series[window], patch_length, patch_stride, n_tokens, n_slots
            )
            for place in range(0, size, LANES):
                store(of_start, place, load(of_start, place) + load(g, place))
            if len(series_gradient):
                clear(back, part)
                add_product(back, patch_length, weight_back, width, g, width, n_slots)
                add_samples(series_gradient[window], back, patch_length, patch_stride, n_tokens, n_slots)
        members = patches[: stop - begin]
        add_weight_gradient(
            weight[chunk], patch_length, gradient[begin:stop], width, members, patch_length, n_slots
        )


@inner
def add_samples(
    samples: Floats, patches: Floats, patch_length: int, patch_stride: int, n_tokens: int, n_slots: int
) -> None:
    """The reverse of `fill_patches`: what patches share adds up."""
    for place in range(len(samples)):
        samples[place] = 0
    for token in range(n_tokens):
        for offset in range(patch_length):
            place = min(token * patch_stride + offset, len(samples) - 1)
            samples[place] += patches[offset * n_slots + token]
