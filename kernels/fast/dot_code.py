"""Compiled code of the int8 dot products and sums: instructions, tiles, epilogues, loops.

All sets of instructions give the same sums: those of :mod:`nvdla.kernels.fast.dot_tile`, exact modulo 2^32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

from llvmlite import ir
from numba import types
from numba.core import cgutils

from nvdla.kernels.fast.dot_layout import (
    ALU,
    BOTTOM,
    CEILING,
    DECIDES,
    ESTIMATE,
    FACTOR,
    FACTORS,
    FLOOR,
    HALF,
    HALVES,
    KERNELS,
    LOWEST,
    NARROW_PIXELS,
    NARROW_VECTORS,
    OFFSET,
    OTHER_PLACES,
    OTHER_STRIDE,
    PIXELS,
    PLACES,
    POWER,
    ROUNDING,
    ROW_STRIDE,
    SCALE,
    SHIFT,
    SHIFTED,
    TIMES,
    TOP,
    VECTORS,
    WIDE,
    WORDS,
)
from nvdla.kernels.jit.linked_code import intrinsic
from nvdla.kernels.jit.processor import dot_instructions

_LOOPS_CODE_INT64 = ir.IntType(64)


class Loops:
    """Short names for a builder's instructions; addresses and counters are int64."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def constant(self, value: int) -> ir.Constant:
        """A number of 64 bits."""
        return ir.Constant(_LOOPS_CODE_INT64, value)

    def load(self, address: ir.Value, kind: ir.Type, align: int) -> ir.Value:
        """Load from an address with an alignment in bytes."""
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = align
        return loaded

    def loop(self, count: ir.Value, carried: list[ir.Value], body: Any) -> list[ir.Value]:
        """Emit ``count`` (at least 1) rounds of ``body(index, carried) -> carried``; return the last carried values."""
        builder = self.builder
        before = builder.block
        head = builder.append_basic_block("loop")
        after = builder.append_basic_block("after")
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(_LOOPS_CODE_INT64)
        index.add_incoming(self.constant(0), before)
        phis = []
        for value in carried:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            phis.append(phi)
        results = body(index, phis)
        following = builder.add(index, self.constant(1))
        end = builder.block
        index.add_incoming(following, end)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, end)
        builder.cbranch(builder.icmp_signed("<", following, count), head, after)
        builder.position_at_end(after)
        return results

    def put(self, value: ir.Value, address: ir.Value, align: int) -> None:
        """Store to an address with an alignment in bytes."""
        stored = self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()))
        stored.align = align


_SIGNS = 0x80808080  # of four bytes
_INT8, _INT16, _INT32, _INT64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)

Values = tuple[ir.Value, ...]


class Instructions(Protocol):
    """A set of instructions. ``words``: 32-bit words of a register; ``rows`` and ``vectors``: of a tile (vectors of 16
    words), how many are computed in one go, so that accumulators stay in registers.

    ``signed``: it takes signed data, x - 128 for x. Then ``sum(x w) = sum((x - 128) w) - sum(-128 w)``, so a row of
    the tile more is computed, with -128 for data, and taken off all others.
    """

    words: int
    rows: int
    vectors: int
    signed: bool

    def data(self, builder: ir.IRBuilder, bytes_: ir.Value) -> Values:
        """Four bytes in every word as ``add`` takes them."""

    def weights(self, builder: ir.IRBuilder, column: ir.Value) -> Values:
        """Four weights in each word as ``add`` takes them."""

    def add(self, builder: ir.IRBuilder, total: ir.Value, data: Values, weights: Values) -> ir.Value:
        """The words of ``total`` and their products."""


class Vnni:
    """``vpdpbusd``: of AVX512-VNNI with 16 words, of AVX-VNNI (and AVX512-VL) with 8."""

    signed = False

    def __init__(self, words: int, rows: int, vectors: int) -> None:
        self.words, self.rows, self.vectors = words, rows, vectors
        self._name = f"llvm.x86.avx512.vpdpbusd.{32 * words}"

    def data(self, builder: ir.IRBuilder, bytes_: ir.Value) -> Values:
        """As they are."""
        return (bytes_,)

    def weights(self, builder: ir.IRBuilder, column: ir.Value) -> Values:
        """As they are."""
        return (column,)

    def add(self, builder: ir.IRBuilder, total: ir.Value, data: Values, weights: Values) -> ir.Value:
        """One instruction."""
        return builder.call(_function(builder, self._name, [total.type] * 3), [total, *data, *weights])


class MultiplyAdd:
    """AVX2: the bytes of a word as two pairs of 16-bit numbers, by ``vpmaddwd``: two products and their sum in 32 bits.

    Exact for all operands: 2 * 255 * 128 < 2^31. (``vpmaddubsw`` takes bytes, but saturates sums of two products
    at 16 bits, which weights of more than 64 could reach.)
    """

    words, rows, vectors, signed = 8, 2, 2, False

    def data(self, builder: ir.IRBuilder, bytes_: ir.Value) -> Values:
        """The unsigned bytes 0 and 2 of each word, and 1 and 3."""
        pairs = builder.bitcast(bytes_, ir.VectorType(_INT16, 16))
        return builder.and_(pairs, _every(pairs.type, 255)), builder.lshr(pairs, _every(pairs.type, 8))

    def weights(self, builder: ir.IRBuilder, column: ir.Value) -> Values:
        """The signed bytes 0 and 2 of each word, and 1 and 3."""
        pairs = builder.bitcast(column, ir.VectorType(_INT16, 16))
        eight = _every(pairs.type, 8)
        return builder.ashr(builder.shl(pairs, eight), eight), builder.ashr(pairs, eight)

    def add(self, builder: ir.IRBuilder, total: ir.Value, data: Values, weights: Values) -> ir.Value:
        """Two products of pairs."""
        for ours, theirs in zip(data, weights, strict=True):
            multiply = _function(builder, "llvm.x86.avx2.pmadd.wd", [ours.type] * 2, total.type)
            total = builder.add(total, builder.call(multiply, [ours, theirs]))
        return total


class NeonDot:
    """``sdot`` of Armv8.2's dot products, which multiplies signed bytes by signed bytes."""

    words, rows, vectors, signed = 4, 6, 1, True

    def data(self, builder: ir.IRBuilder, bytes_: ir.Value) -> Values:
        """Less 128."""
        return (builder.bitcast(builder.xor(bytes_, _every(bytes_.type, _SIGNS)), ir.VectorType(_INT8, 16)),)

    def weights(self, builder: ir.IRBuilder, column: ir.Value) -> Values:
        """As they are."""
        return (builder.bitcast(column, ir.VectorType(_INT8, 16)),)

    def add(self, builder: ir.IRBuilder, total: ir.Value, data: Values, weights: Values) -> ir.Value:
        """One instruction."""
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        dot = _function(builder, name, [total.type, data[0].type, data[0].type])
        return builder.call(dot, [total, *data, *weights])


INSTRUCTIONS: dict[str, Instructions] = {
    "amx": Vnni(16, 12, 4),  # besides its products of matrices
    "avx512vnni": Vnni(16, 12, 4),  # all of a tile in one go
    "avxvnni": Vnni(8, 3, 2),
    "avx2": MultiplyAdd(),
    "neon": NeonDot(),
}
"""By the names of :data:`nvdla.kernels.jit.processor.SETS`."""


def _every(kind: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


def _function(builder: ir.IRBuilder, name: str, arguments: list[ir.Type], result: ir.Type | None = None) -> ir.Function:
    """LLVM's intrinsic, declared once per module. The default ``result`` is the type of the first argument."""
    module = builder.module
    known = module.globals.get(name)
    return known or ir.Function(module, ir.FunctionType(result or arguments[0], arguments), name)


_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_VECTOR, _HALF = ir.VectorType(_INT32, WORDS), ir.VectorType(_INT8, HALF)
_FLOATS, _DOUBLES = ir.VectorType(_FLOAT, WORDS), ir.VectorType(_DOUBLE, WORDS)
_HIGHEST = float((1 << 31) - 1)


class _Fields(Loops):
    """The fields of an epilogue, at its address."""

    def __init__(self, builder: ir.IRBuilder, epilogue: ir.Value) -> None:
        super().__init__(builder)
        self._epilogue = epilogue

    def field(self, place: int, kind: ir.Type = _INT64) -> ir.Value:
        """Load the field at a place."""
        return self.load(self._at(self._epilogue, self.constant(place), 8), kind, 8)

    def _at(self, address: ir.Value, number: ir.Value, size: int) -> ir.Value:
        return self.builder.add(address, self.builder.mul(number, self.constant(size)))


class _Epilogue(_Fields, ABC):
    """Epilogue of a tile, register after register.

    ``kind``: vectors of float32 or float64; ``factors``: the field with the address of the factors of the sums.
    """

    kind: ir.VectorType
    factors: int

    def every(self, place: int) -> ir.Value:
        """Load the number at a place into every element of a vector."""
        value = self.field(place, _DOUBLE)
        if self.kind.element is _FLOAT:
            value = self.builder.fptrunc(value, _FLOAT)
        undefined = ir.Constant(self.kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(_VECTOR, [0] * WORDS))

    def tile(self, sums: ir.Value, rows: ir.Value, other: ir.Value, out: ir.Value) -> ir.Value:
        """Convert the whole tile; return the largest distance of :meth:`line`."""
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
                numbers = [builder.sitofp(integers, self.kind) for integers in (total, summand)]
                rounded, worst = self.line(numbers[0], factors, numbers[1], worst)
                line = builder.trunc(builder.fptosi(rounded, _VECTOR), bytes_)
                # The lower half last: it overwrites an unused upper half.
                for part in (1, 0):
                    self.put(self._half(line, part), builder.add(places[2], ours[part]), 1)
                return [*(builder.add(place, stride) for place, stride in zip(places, strides, strict=True)), worst]

            return self.loop(rows, [self._at(sums, v, 4 * WORDS), other, out, *worst], row)[3:]

        registers = builder.lshr(builder.add(self.field(HALVES), self.constant(1)), self.constant(1))
        return self.loop(registers, [ir.Constant(self.kind, [0.0] * WORDS)], register)[0]

    @abstractmethod
    def line(self, total: ir.Value, factors: ir.Value, other: ir.Value, worst: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Convert sums and X2's summand to whole numbers; ``worst``: largest distance of an estimate from one."""

    def _places(self, first: int, register: ir.Value) -> list[ir.Value]:
        fields = [self._at(self._epilogue, self.constant(first + half), 8) for half in range(2)]
        return [self.load(self._at(field, register, 16), _INT64, 8) for field in fields]

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


class _Exact(_Epilogue):
    """Exact epilogue in float64."""

    kind, factors = _DOUBLES, FACTORS

    def __init__(self, builder: ir.IRBuilder, epilogue: ir.Value) -> None:
        super().__init__(builder, epilogue)
        self._lowest, self._power, self._factor = self.every(LOWEST), self.every(POWER), self.every(FACTOR)
        self._shifted, self._ends = builder.fneg(self.every(SHIFTED)), (self.every(BOTTOM), self.every(TOP))

    def line(self, total: ir.Value, factors: ir.Value, other: ir.Value, worst: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Apply X1, X2 and the converter."""
        highest = ir.Constant(_DOUBLES, [_HIGHEST] * WORDS)
        x = self._rounded(self._limited(self.builder.fmul(total, factors), self._lowest, highest))
        x = self._call("fmuladd", other, self._power, x)
        y = self._call("fmuladd", x, self._factor, self._shifted)
        return self._rounded(self._limited(y, *self._ends)), worst

    def _rounded(self, value: ir.Value) -> ir.Value:
        half = self._call("copysign", ir.Constant(_DOUBLES, [0.5] * WORDS), value)
        return self._call("trunc", self.builder.fadd(value, half))


class _Estimate(_Epilogue):
    """Estimated epilogue in float32."""

    kind, factors = _FLOATS, ESTIMATE

    def __init__(self, builder: ir.IRBuilder, epilogue: ir.Value) -> None:
        super().__init__(builder, epilogue)
        self._times, self._shifted = self.every(TIMES), builder.fneg(self.every(SHIFTED))
        self._ends = self.every(BOTTOM), self.every(TOP)

    def line(self, total: ir.Value, factors: ir.Value, other: ir.Value, worst: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Apply X1, X2 and the converter in two operations."""
        builder = self.builder
        y = self._call("fmuladd", total, factors, self._call("fmuladd", other, self._times, self._shifted))
        y = self._limited(y, *self._ends)
        whole = self._call("rint", y)
        away = self._call("fabs", builder.fsub(y, whole))
        return whole, builder.select(builder.fcmp_ordered(">", away, worst), away, worst)


@intrinsic
def finish(typing_context, sums, rows, epilogue, other, out):  # type: ignore[no-untyped-def]
    """Apply an epilogue in floating point to the first ``rows`` of ``sums``, int32 (rows, 64).

    All arguments but ``rows`` are addresses: ``epilogue`` of the fields of
    :data:`~nvdla.kernels.fast.dot_layout.EPILOGUE`, ``other`` and ``out`` of the first row of X2's summand and results.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        emit_epilogue(builder, args)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def emit_epilogue(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
    """Emit the body of :func:`finish`: the estimate, and the exact epilogue if the estimate does not decide."""
    sums, rows, epilogue, other, out = args
    kind = ir.IntType(WORDS)
    undecided = cgutils.alloca_once_value(builder, ir.Constant(kind, 1))
    limit = _Fields(builder, epilogue).field(DECIDES, _DOUBLE)
    with builder.if_then(builder.fcmp_ordered(">", limit, ir.Constant(_DOUBLE, 0.0))):
        estimate = _Estimate(builder, epilogue)
        worst = estimate.tile(sums, rows, other, out)
        beyond = builder.fcmp_ordered(">", worst, estimate.every(DECIDES))
        builder.store(builder.bitcast(beyond, kind), undecided)
    with builder.if_then(builder.icmp_unsigned("!=", builder.load(undecided), ir.Constant(kind, 0))):
        _Exact(builder, epilogue).tile(sums, rows, other, out)


class TileOperands(NamedTuple):
    """Operands of a tile; ``counts``: taps, and quads per tap."""

    data: ir.Value
    pixels: ir.Value
    taps: ir.Value
    counts: list[ir.Value]
    weights: ir.Value
    flip: ir.Value


class TileEmitter(Loops):
    """Emits the loops of one tile of ``pixels`` rows and ``vectors`` vectors of 16 accumulators, with a set of
    ``instructions`` (of :data:`~nvdla.kernels.fast.dot_code.INSTRUCTIONS`)."""

    def __init__(self, builder: ir.IRBuilder, pixels: int, vectors: int, instructions: str) -> None:
        super().__init__(builder)
        self.pixels = pixels
        self.vectors = vectors
        self.instructions = INSTRUCTIONS[instructions]

    def _every_word(self, value: ir.Value, words: int) -> ir.Value:
        kind = ir.VectorType(_INT32, words)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(kind, [0] * words))

    def splat(self, value: ir.Value, words: int = WORDS) -> ir.Value:
        """A 64-bit number's low half in every word."""
        return self._every_word(self.builder.trunc(value, _INT32), words)

    def tile(self, operands: TileOperands) -> list[ir.Value]:
        """The accumulators after all taps and quads: as much of the tile at a time as registers hold."""
        chosen = self.instructions
        sums: dict[tuple[int, int], ir.Value] = {}
        for top in range(0, self.pixels, chosen.rows):
            for left in range(0, self.vectors, chosen.vectors):
                rows = range(top, min(top + chosen.rows, self.pixels))
                columns = range(left, min(left + chosen.vectors, self.vectors))
                sums |= self._part(operands, rows, columns)
        return [sums[row, v] for row in range(self.pixels) for v in range(self.vectors)]

    def _part(self, operands: TileOperands, rows: range, columns: range) -> dict[tuple[int, int], ir.Value]:
        """Accumulators by row and vector."""
        builder, chosen = self.builder, self.instructions
        data, pixels, taps, counts, weights, flip = operands
        kind = ir.VectorType(_INT32, chosen.words)
        registers = len(columns) * WORDS // chosen.words
        first = self.constant(4 * WORDS * columns[0])
        flips = self.splat(flip, chosen.words)
        places = [builder.add(data, self.load(builder.add(pixels, self.constant(8 * row)), _INT64, 8)) for row in rows]
        height = len(rows) + chosen.signed
        zeros = [ir.Constant(kind, [0] * chosen.words) for _ in range(height * registers)]

        def tap(index: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            offset = self.load(builder.add(taps, builder.mul(index, self.constant(8))), _INT64, 8)
            bases = [builder.add(place, offset) for place in places]

            def quad(inner: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
                weight, *sums = state
                advance = builder.mul(inner, self.constant(4))
                loaded = [
                    self.load(builder.add(weight, self.constant(4 * chosen.words * v)), kind, 4 * chosen.words)
                    for v in range(registers)
                ]
                factors = [chosen.weights(builder, column) for column in loaded]
                for row in range(height):
                    if row < len(bases):
                        four = self._every_word(self.load(builder.add(bases[row], advance), _INT32, 1), chosen.words)
                        taken = chosen.data(builder, builder.xor(four, flips))
                    else:
                        taken = chosen.data(builder, zeros[0])
                    for v, factor in enumerate(factors):
                        at = row * registers + v
                        sums[at] = chosen.add(builder, sums[at], taken, factor)
                return [builder.add(weight, self.constant(4 * KERNELS)), *sums]

            return self.loop(counts[1], carried, quad)

        sums = self.loop(counts[0], [builder.add(weights, first), *zeros], tap)[1:]
        if chosen.signed:
            offsets = sums[-registers:]
            sums = [builder.sub(value, offsets[at % registers]) for at, value in enumerate(sums[:-registers])]
        registers = WORDS // chosen.words
        return {
            (row, v): self._joined(sums[(at * len(columns) + number) * registers :][:registers])
            for at, row in enumerate(rows)
            for number, v in enumerate(columns)
        }

    def _joined(self, parts: list[ir.Value]) -> ir.Value:
        """Registers side by side as one vector."""
        while len(parts) > 1:
            words = ir.VectorType(_INT32, 2 * parts[0].type.count)
            order = ir.Constant(words, list(range(words.count)))
            parts = [self.builder.shuffle_vector(*parts[at : at + 2], order) for at in range(0, len(parts), 2)]
        return parts[0]

    def store(self, sums: list[ir.Value], out: ir.Value) -> None:
        """Put the sums to memory as they are."""
        for at, value in enumerate(sums):
            row, v = divmod(at, self.vectors)
            self.put(value, self.builder.add(out, self.constant(4 * (row * KERNELS + v * WORDS))), 4)

    def convert(self, sums: list[ir.Value], epilogue: ir.Value, out: ir.Value) -> None:
        """Sums through X1 and the output converter to memory, in 32 bits."""
        builder = self.builder

        def field(at: int) -> ir.Value:
            return self.load(builder.add(epilogue, self.constant(8 * at)), _INT64, 8)

        numbers = [self.splat(field(at)) for at in (FLOOR, CEILING, OFFSET, SCALE, ROUNDING, SHIFT)]
        halves, is_wide, stride = field(HALVES), _more_than(builder, field(WIDE), 0), field(ROW_STRIDE)
        rows = [builder.add(out, builder.mul(stride, self.constant(row))) for row in range(self.pixels)]
        for v in range(self.vectors):
            low, high = (v * WORDS // HALF + part for part in range(2))
            with builder.if_then(_more_than(builder, halves, low)):
                bias = self.load(builder.add(field(ALU), self.constant(4 * WORDS * v)), _VECTOR, 4)
                places = field(PLACES + low), field(PLACES + high)
                lines = [
                    self.converted(builder.add(sums[row * self.vectors + v], bias), numbers)
                    for row in range(self.pixels)
                ]
                with builder.if_else(is_wide) as (together, apart):
                    with together:
                        self._put_lines(lines, rows, places[0])
                    with apart:
                        self._put_lines([self._half(line, 0) for line in lines], rows, places[0])
                        with builder.if_then(_more_than(builder, halves, high)):
                            self._put_lines([self._half(line, 1) for line in lines], rows, places[1])

    def converted(self, value: ir.Value, numbers: list[ir.Value]) -> ir.Value:
        """int32 words through X1's limits and the output converter: int8 numbers."""
        builder = self.builder
        floor, ceiling, offset, scale, half, shift = numbers
        product = builder.mul(builder.sub(self._bounded(value, floor, ceiling), offset), scale)
        negative = builder.ashr(product, ir.Constant(_VECTOR, [31] * WORDS))
        rounded = builder.ashr(builder.add(builder.add(product, half), negative), shift)
        low, high = ir.Constant(_VECTOR, [-128] * WORDS), ir.Constant(_VECTOR, [127] * WORDS)
        return builder.trunc(self._bounded(rounded, low, high), ir.VectorType(_INT8, WORDS))

    def _bounded(self, value: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
        builder = self.builder
        value = builder.select(builder.icmp_signed("<", value, low), low, value)
        return builder.select(builder.icmp_signed(">", value, high), high, value)

    def _half(self, line: ir.Value, part: int) -> ir.Value:
        words = ir.Constant(ir.VectorType(_INT32, HALF), list(range(part * HALF, (part + 1) * HALF)))
        return self.builder.shuffle_vector(line, ir.Constant(line.type, ir.Undefined), words)

    def _put_lines(self, lines: list[ir.Value], rows: list[ir.Value], place: ir.Value) -> None:
        for line, row in zip(lines, rows, strict=True):
            self.put(line, self.builder.add(row, place), 1)


def _more_than(builder: ir.IRBuilder, value: ir.Value, number: int) -> ir.Value:
    return builder.icmp_signed(">", value, ir.Constant(_INT64, number))


def tile_intrinsic(pixels: int, vectors: int, instructions: str | None = None) -> Any:
    """The tile as a function for kernels; with the processor's best instructions unless said otherwise."""

    @intrinsic
    def dot_tile(typing_context, data, pixel_offsets, taps, tap_count, quads, weights, flip, out, epilogue):  # type: ignore[no-untyped-def]
        """``sums[p][k] = sum over taps t, quads s, bytes j of (data[pixel_offsets[p] + taps[t] + 4 s + j] ^ flip) *
        weights[t][s][k][j]`` for the first kernels k of 64; all arguments are addresses (int64) or numbers.
        ``weights`` is 64-byte aligned; ``flip`` is 0 for data that are unsigned, ``FLIP`` for int8 data, which then
        count as data + 128.

        The sums go to ``out``, int32 (pixels, 64). With ``epilogue``, the address of the fields of
        :data:`~nvdla.kernels.fast.dot_layout.EPILOGUE` (0: none), they go through X1 and the output converter in 32
        bits, and ``out`` is the address of the first row of results.
        """

        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            emit_tile(builder, pixels, vectors, instructions or dot_instructions() or "", args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return dot_tile


def emit_tile(builder: ir.IRBuilder, pixels: int, vectors: int, instructions: str, args: list[ir.Value]) -> None:
    """The body of a tile: ``args`` are the nine of :func:`tile_intrinsic`'s functions."""
    data, pixel_offsets, taps, tap_count, quads, weights, flip, out, epilogue = args
    emitter = TileEmitter(builder, pixels, vectors, instructions)
    totals = emitter.tile(TileOperands(data, pixel_offsets, taps, [tap_count, quads], weights, flip))
    is_bare = builder.icmp_signed("==", epilogue, emitter.constant(0))
    with builder.if_else(is_bare) as (bare, converted):
        with bare:
            emitter.store(totals, out)
        with converted:
            emitter.convert(totals, epilogue, out)


dot_tile = tile_intrinsic(PIXELS, VECTORS)
dot_narrow_tile = tile_intrinsic(NARROW_PIXELS, NARROW_VECTORS)
dot_row = tile_intrinsic(1, VECTORS)


NUMBERS = 32
_SDP_INT8_ADD_CODE_INT32, _SDP_INT8_ADD_CODE_INT64 = ir.IntType(32), ir.IntType(64)
_BYTES, _SHORTS, _WORDS = (ir.VectorType(ir.IntType(bits), NUMBERS) for bits in (8, 16, 32))


class _Sum(Loops):
    """Vectors of a sum."""

    def bytes_at(self, address: ir.Value) -> ir.Value:
        """Bytes in memory as numbers of 16 bits."""
        return self.builder.sext(self.load(address, _BYTES, 1), _SHORTS)

    def everywhere(self, value: ir.Value) -> ir.Value:
        """A number of 64 bits in each place of 16."""
        undefined = ir.Constant(_SHORTS, ir.Undefined)
        first = self.builder.insert_element(
            undefined, self.builder.trunc(value, _SHORTS.element), ir.Constant(_SDP_INT8_ADD_CODE_INT32, 0)
        )
        return self.builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, [0] * NUMBERS))

    def converted(self, value: ir.Value, scale: ir.Value) -> ir.Value:
        """Numbers times ``scale`` / 2^15, rounded and limited to a byte."""
        builder = self.builder
        negative = builder.ashr(value, ir.Constant(_SHORTS, [15] * NUMBERS))
        magnitude = builder.sub(builder.xor(value, negative), negative)
        # The upper 16 bits of a product, which processors have an instruction for: one bit more than the result has.
        four = builder.shl(magnitude, ir.Constant(_SHORTS, [2] * NUMBERS))
        product = builder.mul(builder.sext(four, _WORDS), builder.sext(scale, _WORDS))
        upper = builder.trunc(builder.lshr(product, ir.Constant(_WORDS, [16] * NUMBERS)), _SHORTS)
        ones = ir.Constant(_SHORTS, [1] * NUMBERS)
        rounded = builder.lshr(builder.add(upper, ones), ones)
        result = builder.sub(builder.xor(rounded, negative), negative)
        for sign, limit in ((">", -128), ("<", 127)):
            end = ir.Constant(_SHORTS, [limit] * NUMBERS)
            result = builder.select(builder.icmp_signed(sign, result, end), result, end)
        return builder.trunc(result, _BYTES)


@intrinsic
def add_shorts(typing_context, first, second, out, size, floor, scale):  # type: ignore[no-untyped-def]
    """``out = max(first + second, floor) * scale / 2^15``, rounded (halves away from zero) and limited to int8, for the
    whole vectors of ``size`` bytes at three addresses; ``scale`` is below 2^15. Returns the number of these bytes."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        emitter = _Sum(builder)
        floor, scale = emitter.everywhere(args[4]), emitter.everywhere(args[5])
        vectors = builder.udiv(args[3], emitter.constant(NUMBERS))

        def vector(index, carried):  # type: ignore[no-untyped-def]
            at = builder.mul(index, emitter.constant(NUMBERS))
            a, b, c = (builder.add(address, at) for address in args[:3])
            total = builder.add(emitter.bytes_at(a), emitter.bytes_at(b))
            total = builder.select(builder.icmp_signed(">", total, floor), total, floor)
            emitter.put(emitter.converted(total, scale), c, 1)
            return carried

        with builder.if_then(builder.icmp_signed(">", vectors, emitter.constant(0))):
            emitter.loop(vectors, [], vector)
        return builder.mul(vectors, emitter.constant(NUMBERS))

    return types.int64(*[types.int64] * 6), generate
