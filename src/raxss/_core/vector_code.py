"""Vector instructions for compiled loops: an emitter of LLVM code, and numba functions on vectors.

    VectorEmitter(context, builder, element, lanes)   load, store, spread, fused, larger, ... as LLVM instructions
    load(array, index) -> vector, fused(a, b, c), total(vector), ...   the same, callable from compiled functions

From plain loops a compiler makes narrow vectors, keeps sums in memory and calls the library for every
exponential. With vectors, sums stay in registers. A vector that a compiled function holds has `LANES` numbers
of 32 bits, float32 or uint32. Intrinsics with other elements (retrieval computes in float64) are built on
`VectorEmitter` directly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model
from numpy.typing import NDArray

from raxss._core.kernel_cache import cached

Function = TypeVar("Function", bound=Callable[..., Any])
Floats = NDArray[np.float32]
Bits = NDArray[np.uint32]


def processor_features() -> frozenset[str]:
    """Instruction sets to compile for: those of this processor, or what ``NUMBA_CPU_FEATURES`` lists."""
    if numba.config.CPU_FEATURES is not None:
        names = numba.config.CPU_FEATURES.split(",")
        return frozenset(name[1:] for name in names if name.startswith("+"))
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


WIDE = "avx512dq" in processor_features()  # 512-bit registers, and instructions for parts of an exponential
LANES = 16 if WIDE else 8  # numbers in one vector of a compiled function

_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}


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


# Emitting LLVM instructions

_INDEX, _PLACE = ir.IntType(64), ir.IntType(32)
_SUFFIXES = {ir.FloatType(): "f32", ir.DoubleType(): "f64", ir.IntType(32): "i32"}
_BYTES = {ir.FloatType(): 4, ir.DoubleType(): 8, ir.IntType(32): 4}


class VectorEmitter:
    """Emits operations on vectors of one element type into the function that numba is compiling.

    ``element`` is the LLVM type of a number: float, double or 32-bit integer. Vectors with more ``lanes``
    than the registers of the processor are split by the compiler.
    """

    def __init__(self, context: Any, builder: Any, element: ir.Type, lanes: int) -> None:
        self.context, self.builder, self.element, self.lanes = context, builder, element, lanes
        self.vector = ir.VectorType(element, lanes)
        self._suffix, self._align = f"v{lanes}{_SUFFIXES[element]}", _BYTES[element]

    def address(self, kind: Any, array: Any, *offsets: Any) -> Any:
        """Where the data of a numba array begins, ``offsets`` numbers further on."""
        return self.advance(self.context.make_array(kind)(self.context, self.builder, array).data, *offsets)

    def advance(self, address: Any, *offsets: Any) -> Any:
        """An address that many numbers further on; offsets are integers or LLVM values."""
        for offset in offsets:
            value = ir.Constant(_INDEX, offset) if isinstance(offset, int) else offset
            address = self.builder.gep(address, [value], inbounds=True)
        return address

    def load(self, address: Any) -> Any:
        """A vector of neighbouring numbers."""
        return self.builder.load(self.builder.bitcast(address, self.vector.as_pointer()), align=self._align)

    def store(self, vector: Any, address: Any) -> None:
        """Put a vector."""
        place = self.builder.bitcast(address, vector.type.as_pointer())
        self.builder.store(vector, place, align=self._align)

    def constant(self, value: float) -> ir.Constant:
        """The same number in all lanes."""
        return ir.Constant(self.vector, [value] * self.lanes)

    def spread(self, value: Any) -> Any:
        """A scalar in all lanes."""
        first = self.builder.insert_element(
            ir.Constant(self.vector, ir.Undefined), value, ir.Constant(_PLACE, 0)
        )
        return self.shuffle(first, first, [0] * self.lanes)

    def shuffle(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """These lanes of ``a`` followed by ``b``."""
        pattern = ir.Constant(ir.VectorType(_PLACE, len(lanes)), list(lanes))
        return self.builder.shuffle_vector(a, b, pattern)

    def call(self, name: str, result: ir.Type, values: Sequence[Any], **flags: Any) -> Any:
        """A function of LLVM or of the processor without side effects."""
        kind = ir.FunctionType(result, [value.type for value in values])
        function = cgutils.insert_pure_function(self.builder.module, kind, name=name)
        return self.builder.call(function, values, **flags)

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        return self.call(f"llvm.fma.{self._suffix}", self.vector, [a, b, c])

    def total(self, vector: Any) -> Any:
        """The sum over the lanes, always in the same order."""
        values = [ir.Constant(self.element, -0.0), vector]
        return self.call(
            f"llvm.vector.reduce.fadd.{self._suffix}", self.element, values, fastmath=("reassoc",)
        )

    def larger(self, a: Any, b: Any) -> Any:
        """Lane by lane the larger number; ``b`` where they cannot be compared."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def smaller(self, a: Any, b: Any) -> Any:
        """Lane by lane the smaller number; ``b`` where they cannot be compared."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def polynomial(self, coefficients: Sequence[float], x: Any) -> Any:
        """Coefficients from the constant one up (Horner's scheme)."""
        *lower, highest = (self.constant(float(np.float32(value))) for value in coefficients)
        result = highest
        for coefficient in reversed(lower):
            result = self.fused(result, x, coefficient)
        return result

    def bits(self, lanes: Any) -> Any:
        """Truth values of the lanes as the bits of a 64-bit integer."""
        return self.builder.zext(self.builder.bitcast(lanes, ir.IntType(self.lanes)), _INDEX)

    def variable(self) -> Any:
        """The place of a vector that starts at 0 and stays in a register."""
        return cgutils.alloca_once_value(self.builder, self.constant(0.0))


# Vectors in compiled functions: LANES floats or LANES 32-bit integers in one register


class _Vector(types.Type):  # type: ignore[misc]
    def __init__(self, name: str, element: ir.Type) -> None:
        super().__init__(name=f"vector_of_{name}")
        self.element, self.vector = element, ir.VectorType(element, LANES)

    def emitter(self, context: Any, builder: Any) -> VectorEmitter:
        return VectorEmitter(context, builder, self.element, LANES)


FLOATS = _Vector("floats", ir.FloatType())
BITS = _Vector("bits", ir.IntType(32))


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: _Vector) -> None:
        super().__init__(manager, kind, kind.vector)


def _arithmetic(operation: Any, instruction: str) -> None:
    @infer_global(operation)
    class _Both(AbstractTemplate):  # type: ignore[misc]
        def generic(self, arguments: Any, keywords: Any) -> Any:
            return signature(FLOATS, FLOATS, FLOATS) if arguments == (FLOATS, FLOATS) else None

    @lower_builtin(operation, FLOATS, FLOATS)  # type: ignore[untyped-decorator]
    def _lower(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return getattr(builder, instruction)(*values)


for _operation, _instruction in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
    _arithmetic(getattr(operator, _operation), _instruction)


def primitive(emitter: Callable[..., Any]) -> Any:
    """An operation on vectors, given by the instructions that it becomes."""
    return intrinsic(prefer_literal=True)(emitter)


def _from_array(array: Any, read: Callable[[VectorEmitter, Any], Any]) -> tuple[Any, Callable[..., Any]]:
    """Signature and code generator of a function of a flat array and an index that gives a vector."""
    kind = BITS if array.dtype == types.uint32 else FLOATS

    def generate(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        do = kind.emitter(context, builder)
        return read(do, do.address(sig.args[0], *values))

    return kind(array, types.intp), generate


def on_floats(emit: Callable[..., Any], n_vectors: int) -> tuple[Any, Callable[..., Any]]:
    """Signature and code generator of a function of ``n_vectors`` vectors of floats that gives another."""

    def generate(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return emit(FLOATS.emitter(context, builder), *values)

    return FLOATS(*[FLOATS] * n_vectors), generate


@primitive
def load(typing: Any, array: Any, index: Any) -> Any:
    """LANES numbers of a flat array from ``index`` on."""
    return _from_array(array, VectorEmitter.load)


@primitive
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Put LANES numbers into a flat array from ``index`` on."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        do = FLOATS.emitter(context, builder)
        do.store(values[2], do.address(sig.args[0], *values[:2]))
        return context.get_dummy_value()

    return types.void(array, types.intp, FLOATS), emit


@primitive
def splat(typing: Any, array: Any, index: Any) -> Any:
    """One number of a flat array in all lanes."""
    return _from_array(array, lambda do, address: do.spread(do.builder.load(address)))


@primitive
def every(typing: Any, value: Any) -> Any:
    """One number in all lanes."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return FLOATS.emitter(context, builder).spread(values[0])

    return FLOATS(types.float32), emit


@primitive
def fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    return on_floats(VectorEmitter.fused, 3)


@primitive
def larger(typing: Any, a: Any, b: Any) -> Any:
    """Lane by lane the larger one; ``b`` where they cannot be compared."""
    return on_floats(VectorEmitter.larger, 2)


@primitive
def total(typing: Any, vector: Any) -> Any:
    """The sum over the lanes, always in the same order."""
    return types.float32(FLOATS), on_floats(VectorEmitter.total, 1)[1]


@primitive
def where_positive(typing: Any, sign: Any, a: Any, b: Any) -> Any:
    """``a`` in lanes whose ``sign`` is above 0, else ``b``."""

    def chosen(do: VectorEmitter, sign: Any, a: Any, b: Any) -> Any:
        return do.builder.select(do.builder.fcmp_ordered(">", sign, do.constant(0.0)), a, b)

    return on_floats(chosen, 3)


@primitive
def apart(typing: Any) -> Any:
    """The function that calls this is compiled once, not again wherever it is called."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), emit


# Powers of two. Polynomials have least relative error: on [0, 1] and on [-1/2, 1/2].

_ABOVE_FLOOR = (0.99999994, 0.69315308, 0.24015363, 0.055826314, 0.0089893425, 0.0018775760)
_NEAREST = (1.0, 0.69314697, 0.24022120, 0.055507133, 0.0096755417, 0.0013276467)


@primitive
def power_of_two(typing: Any, vector: Any) -> Any:
    """2^x for x below 127, relative error 2e-7, nothing below 2^-126; NaN for NaN.

    2^(what is left of x after rounding) is a polynomial; the rounded part goes into the exponent.
    """

    def power(do: VectorEmitter, x: Any) -> Any:
        if not WIDE:
            return _power_by_bits(do, x)
        return _scaled(do, do.polynomial(_ABOVE_FLOOR, _remainder(do, x)), x)

    return on_floats(power, 1)


_ALL_LANES, _CURRENT_ROUNDING = ir.Constant(ir.IntType(16), -1), ir.Constant(ir.IntType(32), 4)


def _remainder(do: VectorEmitter, x: Any) -> Any:
    """What is left of x after rounding down to a whole number."""
    values = [x, ir.Constant(ir.IntType(32), 9), x, _ALL_LANES, _CURRENT_ROUNDING]
    return do.call("llvm.x86.avx512.mask.reduce.ps.512", x.type, values)


def _scaled(do: VectorEmitter, x: Any, exponent: Any) -> Any:
    """x times 2 to the exponent, rounded down."""
    values = [x, exponent, exponent, _ALL_LANES, _CURRENT_ROUNDING]
    return do.call("llvm.x86.avx512.mask.scalef.ps.512", x.type, values)


def _power_by_bits(do: VectorEmitter, x: Any) -> Any:
    """2^x by shifting the rounded part into the exponent's bits, on any processor."""
    builder, least, shift = do.builder, do.constant(-126.0), do.constant(1.5 * 2.0**23)
    x = builder.select(builder.fcmp_ordered("<", x, least), least, x)
    shifted = builder.fadd(x, shift)  # the rounded part is in its last bits
    power = do.polynomial(_NEAREST, builder.fsub(x, builder.fsub(shifted, shift)))
    whole = BITS.emitter(do.context, builder)
    exponent = builder.shl(builder.bitcast(shifted, BITS.vector), whole.constant(23))
    return builder.fmul(power, builder.bitcast(builder.add(exponent, whole.constant(127 << 23)), x.type))
