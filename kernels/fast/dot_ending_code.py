"""How tiles end whose sums are in memory, as LLVM IR: the float64 form of :mod:`nvdla.kernels.fast.dot_layout`, after
an estimate in float32 that nearly always decides."""

from __future__ import annotations

from abc import ABC, abstractmethod

from llvmlite import ir
from numba import types
from numba.core import cgutils

from nvdla.kernels.fast.dot_layout import (
    ALU,
    BOTTOM,
    DECIDES,
    ESTIMATE,
    FACTOR,
    FACTORS,
    HALF,
    HALVES,
    KERNELS,
    LOWEST,
    OTHER_PLACES,
    OTHER_STRIDE,
    PLACES,
    POWER,
    ROW_STRIDE,
    SHIFTED,
    TIMES,
    TOP,
    WORDS,
)
from nvdla.kernels.fast.loops_code import Loops
from nvdla.kernels.jit.intrinsic_code import intrinsic

_INT8, _INT32, _INT64, _FLOAT, _DOUBLE = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
_VECTOR, _HALF = ir.VectorType(_INT32, WORDS), ir.VectorType(_INT8, HALF)
_FLOATS, _DOUBLES = ir.VectorType(_FLOAT, WORDS), ir.VectorType(_DOUBLE, WORDS)
_HIGHEST = float((1 << 31) - 1)


class _Fields(Loops):
    """The fields of an ending, at its address."""

    def __init__(self, builder: ir.IRBuilder, ending: ir.Value) -> None:
        super().__init__(builder)
        self._ending = ending

    def field(self, place: int, kind: ir.Type = _INT64) -> ir.Value:
        """What stands there."""
        return self.load(self._at(self._ending, self.constant(place), 8), kind, 8)

    def _at(self, address: ir.Value, number: ir.Value, size: int) -> ir.Value:
        return self.builder.add(address, self.builder.mul(number, self.constant(size)))


class _Ending(_Fields, ABC):
    """The ending of a tile, register after register. ``kind``: vectors of float32 or float64; ``factors``: the field
    with the address of what the sums are multiplied by."""

    kind: ir.VectorType
    factors: int

    def every(self, place: int) -> ir.Value:
        """The number that stands there, in every place of a vector."""
        value = self.field(place, _DOUBLE)
        if self.kind.element is _FLOAT:
            value = self.builder.fptrunc(value, _FLOAT)
        undefined = ir.Constant(self.kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(_VECTOR, [0] * WORDS))

    def tile(self, sums: ir.Value, rows: ir.Value, other: ir.Value, out: ir.Value) -> ir.Value:
        """Convert all; returns the worst of what :meth:`line` says."""
        builder, size = self.builder, 4 if self.kind.element is _FLOAT else 8
        strides = self.constant(4 * KERNELS), self.field(OTHER_STRIDE), self.field(ROW_STRIDE)
        bytes_ = ir.VectorType(_INT8, WORDS)

        def register(v: ir.Value, worst: list[ir.Value]) -> list[ir.Value]:
            bias = self.load(self._at(self.field(ALU), v, 4 * WORDS), _VECTOR, 4)
            factors = self.load(self._at(self.field(self.factors), v, size * WORDS), self.kind, size)
            theirs, ours = self._places(OTHER_PLACES, v), self._places(PLACES, v)

            def row(_: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
                *places, worst = state
                total = builder.add(self.load(places[0], _VECTOR, 4), bias)
                halves = [self.load(builder.add(places[1], place), _HALF, 1) for place in theirs]
                summand = builder.shuffle_vector(*halves, ir.Constant(_VECTOR, list(range(WORDS))))
                numbers = [builder.sitofp(each, self.kind) for each in (total, summand)]
                rounded, worst = self.line(numbers[0], factors, numbers[1], worst)
                line = builder.trunc(builder.fptosi(rounded, _VECTOR), bytes_)
                # The lower half last: it has the place of an upper one that is not wanted.
                for part in (1, 0):
                    self.put(self._half(line, part), builder.add(places[2], ours[part]), 1)
                return [*(builder.add(place, stride) for place, stride in zip(places, strides, strict=True)), worst]

            return self.loop(rows, [self._at(sums, v, 4 * WORDS), other, out, *worst], row)[3:]

        registers = builder.lshr(builder.add(self.field(HALVES), self.constant(1)), self.constant(1))
        return self.loop(registers, [ir.Constant(self.kind, [0.0] * WORDS)], register)[0]

    @abstractmethod
    def line(self, total: ir.Value, factors: ir.Value, other: ir.Value, worst: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Sums and X2's summand to whole numbers; ``worst``: how far from a whole number an estimate was."""

    def _places(self, first: int, register: ir.Value) -> list[ir.Value]:
        fields = [self._at(self._ending, self.constant(first + half), 8) for half in range(2)]
        return [self.load(self._at(each, register, 16), _INT64, 8) for each in fields]

    def _half(self, line: ir.Value, part: int) -> ir.Value:
        words = ir.Constant(ir.VectorType(_INT32, HALF), list(range(part * HALF, (part + 1) * HALF)))
        return self.builder.shuffle_vector(line, ir.Constant(line.type, ir.Undefined), words)

    def _limited(self, value: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
        builder = self.builder
        value = builder.select(builder.fcmp_ordered(">", value, low), value, low)
        return builder.select(builder.fcmp_ordered("<", value, high), value, high)

    def _call(self, name: str, *operands: ir.Value) -> ir.Value:
        """LLVM's intrinsic for these vectors."""
        kind, module = self.kind, self.builder.module
        name = f"llvm.{name}.v{WORDS}f{32 if kind.element is _FLOAT else 64}"
        known = module.globals.get(name)
        return self.builder.call(
            known or ir.Function(module, ir.FunctionType(kind, [kind] * len(operands)), name), operands
        )


class _Exact(_Ending):
    """In float64."""

    kind, factors = _DOUBLES, FACTORS

    def __init__(self, builder: ir.IRBuilder, ending: ir.Value) -> None:
        super().__init__(builder, ending)
        self._lowest, self._power, self._factor = self.every(LOWEST), self.every(POWER), self.every(FACTOR)
        self._shifted, self._ends = builder.fneg(self.every(SHIFTED)), (self.every(BOTTOM), self.every(TOP))

    def line(self, total: ir.Value, factors: ir.Value, other: ir.Value, worst: ir.Value) -> tuple[ir.Value, ir.Value]:
        """X1, X2, converter."""
        highest = ir.Constant(_DOUBLES, [_HIGHEST] * WORDS)
        x = self._rounded(self._limited(self.builder.fmul(total, factors), self._lowest, highest))
        x = self._call("fmuladd", other, self._power, x)
        y = self._call("fmuladd", x, self._factor, self._shifted)
        return self._rounded(self._limited(y, *self._ends)), worst

    def _rounded(self, value: ir.Value) -> ir.Value:
        half = self._call("copysign", ir.Constant(_DOUBLES, [0.5] * WORDS), value)
        return self._call("trunc", self.builder.fadd(value, half))


class _Estimate(_Ending):
    """In float32."""

    kind, factors = _FLOATS, ESTIMATE

    def __init__(self, builder: ir.IRBuilder, ending: ir.Value) -> None:
        super().__init__(builder, ending)
        self._times, self._shifted = self.every(TIMES), builder.fneg(self.every(SHIFTED))
        self._ends = self.every(BOTTOM), self.every(TOP)

    def line(self, total: ir.Value, factors: ir.Value, other: ir.Value, worst: ir.Value) -> tuple[ir.Value, ir.Value]:
        """All in one."""
        builder = self.builder
        y = self._call("fmuladd", total, factors, self._call("fmuladd", other, self._times, self._shifted))
        y = self._limited(y, *self._ends)
        whole = self._call("rint", y)
        away = self._call("fabs", builder.fsub(y, whole))
        return whole, builder.select(builder.fcmp_ordered(">", away, worst), away, worst)


@intrinsic
def finish(typing_context, sums, rows, ending, other, out):  # type: ignore[no-untyped-def]
    """The float forms of :data:`~nvdla.kernels.fast.dot_layout.ENDING` (an address, as all arguments but ``rows``) on
    the first ``rows`` of ``sums``, int32 (rows, 64). ``other`` and ``out`` are where the first row of X2's summand lies
    and where that of the results belongs."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        emit_ending(builder, args)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def emit_ending(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
    """The body of :func:`finish`: the estimate, and the exact form where that does not decide."""
    sums, rows, ending, other, out = args
    kind = ir.IntType(WORDS)
    undecided = cgutils.alloca_once_value(builder, ir.Constant(kind, 1))
    limit = _Fields(builder, ending).field(DECIDES, _DOUBLE)
    with builder.if_then(builder.fcmp_ordered(">", limit, ir.Constant(_DOUBLE, 0.0))):
        estimate = _Estimate(builder, ending)
        worst = estimate.tile(sums, rows, other, out)
        beyond = builder.fcmp_ordered(">", worst, estimate.every(DECIDES))
        builder.store(builder.bitcast(beyond, kind), undecided)
    with builder.if_then(builder.icmp_unsigned("!=", builder.load(undecided), ir.Constant(kind, 0))):
        _Exact(builder, ending).tile(sums, rows, other, out)
