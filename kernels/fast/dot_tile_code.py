"""What :mod:`nvdla.kernels.fast.dot_tile` stands for: the tile as LLVM IR, for numba to compile into kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from nvdla.kernels.fast.dot_instructions_code import INSTRUCTIONS
from nvdla.kernels.fast.dot_layout import (
    ALU,
    CEILING,
    FLOOR,
    HALF,
    HALVES,
    KERNELS,
    NARROW_PIXELS,
    NARROW_VECTORS,
    OFFSET,
    PIXELS,
    PLACES,
    ROUNDING,
    ROW_STRIDE,
    SCALE,
    SHIFT,
    VECTORS,
    WIDE,
    WORDS,
)
from nvdla.kernels.fast.loops_code import Loops
from nvdla.kernels.jit.intrinsic_code import intrinsic
from nvdla.kernels.jit.processor import dot_instructions

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_INT32, WORDS)


class _Operands(NamedTuple):
    """What a tile multiplies; ``counts``: taps, and quads of each."""

    data: ir.Value
    pixels: ir.Value
    taps: ir.Value
    counts: list[ir.Value]
    weights: ir.Value
    flip: ir.Value


class _Emitter(Loops):
    """Emits the loops of one tile of ``pixels`` rows and ``vectors`` vectors of 16 accumulators, with a set of
    ``instructions`` (of :data:`~nvdla.kernels.fast.dot_instructions_code.INSTRUCTIONS`)."""

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

    def tile(self, operands: _Operands) -> list[ir.Value]:
        """The accumulators after all taps and quads: as much of the tile at a time as registers hold."""
        chosen = self.instructions
        sums: dict[tuple[int, int], ir.Value] = {}
        for top in range(0, self.pixels, chosen.rows):
            for left in range(0, self.vectors, chosen.vectors):
                rows = range(top, min(top + chosen.rows, self.pixels))
                columns = range(left, min(left + chosen.vectors, self.vectors))
                sums |= self._part(operands, rows, columns)
        return [sums[row, v] for row in range(self.pixels) for v in range(self.vectors)]

    def _part(self, operands: _Operands, rows: range, columns: range) -> dict[tuple[int, int], ir.Value]:
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
        each = WORDS // chosen.words
        return {
            (row, v): self._joined(sums[(at * len(columns) + number) * each :][:each])
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
        for at, value in enumerate(sums):
            row, v = divmod(at, self.vectors)
            self.put(value, self.builder.add(out, self.constant(4 * (row * KERNELS + v * WORDS))), 4)

    def convert(self, sums: list[ir.Value], ending: ir.Value, out: ir.Value) -> None:
        """Sums through X1 and the output converter to memory, in 32 bits."""
        builder = self.builder

        def field(at: int) -> ir.Value:
            return self.load(builder.add(ending, self.constant(8 * at)), _INT64, 8)

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
    def dot_tile(typing_context, data, pixel_offsets, taps, tap_count, quads, weights, flip, out, ending):  # type: ignore[no-untyped-def]
        """``sums[p][k] = sum over taps t, quads s, bytes j of (data[pixel_offsets[p] + taps[t] + 4 s + j] ^ flip) *
        weights[t][s][k][j]`` for the first kernels k of 64; all arguments are addresses (int64) or numbers.
        ``weights`` is 64-byte aligned; ``flip`` is 0 for data that are unsigned, ``FLIP`` for int8 data, which then
        count as data + 128.

        The sums go to ``out``, int32 (pixels, 64). With ``ending`` (0: none), the address of what
        :data:`~nvdla.kernels.fast.dot_layout.ENDING` says, they go through X1 and the output converter in 32 bits, and
        ``out`` is where the first row of results belongs.
        """

        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            emit_tile(builder, pixels, vectors, instructions or dot_instructions() or "", args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return dot_tile


def emit_tile(builder: ir.IRBuilder, pixels: int, vectors: int, instructions: str, args: list[ir.Value]) -> None:
    """The body of a tile: ``args`` are the nine of :func:`tile_intrinsic`'s functions."""
    data, pixel_offsets, taps, tap_count, quads, weights, flip, out, ending = args
    emitter = _Emitter(builder, pixels, vectors, instructions)
    totals = emitter.tile(_Operands(data, pixel_offsets, taps, [tap_count, quads], weights, flip))
    is_bare = builder.icmp_signed("==", ending, emitter.constant(0))
    with builder.if_else(is_bare) as (bare, converted):
        with bare:
            emitter.store(totals, out)
        with converted:
            emitter.convert(totals, ending, out)


dot_tile = tile_intrinsic(PIXELS, VECTORS)
dot_narrow_tile = tile_intrinsic(NARROW_PIXELS, NARROW_VECTORS)
dot_row = tile_intrinsic(1, VECTORS)
