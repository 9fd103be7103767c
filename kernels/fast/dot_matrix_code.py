"""Compiled code of products of matrices of int8 (AMX), for :mod:`nvdla.kernels.fast.dot_tile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from nvdla.kernels.fast.dot_code import TileEmitter, TileOperands
from nvdla.kernels.fast.dot_layout import KERNELS, MATRIX_PIXELS, MATRIX_QUADS, MATRIX_UNIT, ROW_STRIDE, VECTORS, WORDS
from nvdla.kernels.jit.linked_code import intrinsic
from nvdla.kernels.jit.processor import dot_instructions

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_INT32, WORDS)
BUFFERS = 4
"""Blocks of data in turns, so that a copy need not wait for the product of the block before."""
_SUMS, _DATA, _WEIGHTS = range(4), 4, (5, 6)
"""Numbers of AMX's registers: sums of 16 pixels and 16 kernels each, data of 16 pixels, weights of 16 kernels."""


class _MatrixTile(TileEmitter):
    """Emits a tile of 16 pixels and 64 kernels by AMX: ``tdpbusd`` adds the products of 16 x 64 unsigned and 64 x 16
    signed bytes to 16 x 16 words, exact modulo 2^32.

    Weights are in its order already. Data of the pixels are copied next to each other, 64 bytes at a time: two units
    of 32, of one tap or of two. At the end half a block may be left: zeros, then the last unit, meet the last 64 rows
    of the weights.
    """

    BYTES = ir.VectorType(_INT8, 4 * MATRIX_UNIT)

    def __init__(self, builder: ir.IRBuilder) -> None:
        super().__init__(builder, MATRIX_PIXELS, VECTORS, "amx")
        self._blocks = self._reserved(BUFFERS * MATRIX_PIXELS * 4 * MATRIX_QUADS)

    def _reserved(self, size: int) -> ir.Value:
        """The address of ``size`` bytes, 64-byte aligned, for the whole function."""
        room = cgutils.alloca_once(self.builder, ir.ArrayType(_INT8, size))
        room.align = 64
        return self.builder.ptrtoint(room, _INT64)

    def call(self, name: str, *operands: ir.Value | int) -> None:
        """An instruction of AMX: numbers of registers, addresses and strides."""
        builder, pointer = self.builder, _INT8.as_pointer()
        values = [ir.Constant(_INT8, value) if isinstance(value, int) else value for value in operands]
        at = len(values) // 2
        if values and values[at].type == _INT64:
            values[at] = builder.inttoptr(values[at], pointer)
        module = builder.module
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        name = f"llvm.x86.{name}"
        builder.call(module.globals.get(name) or ir.Function(module, kind, name), values)

    def sums(self, operands: TileOperands, out: ir.Value) -> None:
        """Put the sums, int32 (16, 64), to ``out``."""
        builder, (taps, quads) = self.builder, operands.counts
        flips = builder.bitcast(self.splat(operands.flip, MATRIX_UNIT), self.BYTES)
        units = builder.udiv(builder.mul(taps, quads), self.constant(MATRIX_UNIT))
        for register in _SUMS:
            self.call("tilezero", register)

        def unit(state: list[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
            """The offset of a unit, and the tap and place of the next one."""
            tap, place = state
            offset = builder.add(self.load(tap, _INT64, 8), place)
            following = builder.add(place, self.constant(4 * MATRIX_UNIT))
            is_last = builder.icmp_unsigned("==", following, builder.mul(quads, self.constant(4)))
            tap = builder.select(is_last, builder.add(tap, self.constant(8)), tap)
            return offset, [tap, builder.select(is_last, self.constant(0), following)]

        def block(index: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            *state, weights = carried
            buffer = builder.urem(index, self.constant(BUFFERS))
            target = builder.add(self._blocks, builder.mul(buffer, self.constant(MATRIX_PIXELS * 4 * MATRIX_QUADS)))
            first, state = unit(state)
            second, state = unit(state)
            self._copy(operands, [first, second], flips, target)
            self._multiply(target, weights)
            return [*state, builder.add(weights, self.constant(4 * KERNELS * MATRIX_QUADS))]

        start = [operands.taps, self.constant(0), operands.weights]
        *state, weights = self.loop(builder.udiv(units, self.constant(2)), start, block)
        with builder.if_then(builder.trunc(units, ir.IntType(1))):
            offset, _ = unit(state)
            self._copy(operands, [None, offset], flips, self._blocks)
            self._multiply(self._blocks, builder.sub(weights, self.constant(4 * KERNELS * MATRIX_UNIT)))
        for register in _SUMS:
            place = builder.add(out, self.constant(4 * WORDS * register))
            self.call("tilestored64", register, place, self.constant(4 * KERNELS))

    def _copy(self, operands: TileOperands, offsets: list[ir.Value | None], flips: ir.Value, target: ir.Value) -> None:
        """Copy units of all pixels to 16 lines of 64 bytes; None: zeros."""
        builder = self.builder
        order = ir.Constant(ir.VectorType(_INT32, 8 * MATRIX_UNIT), list(range(8 * MATRIX_UNIT)))
        for row in range(MATRIX_PIXELS):
            pixel = self.load(builder.add(operands.pixels, self.constant(8 * row)), _INT64, 8)
            base, halves = builder.add(operands.data, pixel), []
            for offset in offsets:
                if offset is None:
                    halves.append(ir.Constant(self.BYTES, [0] * self.BYTES.count))
                else:
                    halves.append(builder.xor(self.load(builder.add(base, offset), self.BYTES, 1), flips))
            line = builder.shuffle_vector(*halves, order)
            self.put(line, builder.add(target, self.constant(4 * MATRIX_QUADS * row)), 64)

    def _multiply(self, data: ir.Value, weights: ir.Value) -> None:
        self.call("tileloadd64", _DATA, data, self.constant(4 * MATRIX_QUADS))
        for register in _SUMS:
            column = _WEIGHTS[register % len(_WEIGHTS)]
            place = self.builder.add(weights, self.constant(4 * WORDS * register))
            self.call("tileloadd64", column, place, self.constant(4 * KERNELS))
            self.call("tdpbusd", register, _DATA, column)

    def convert_rows(self, epilogue: ir.Value, operands: TileOperands, out: ir.Value) -> None:
        """Put the results in 32 bits to memory, a row after the other."""
        builder = self.builder
        sums, row_tile = self._reserved(4 * KERNELS * MATRIX_PIXELS), TileEmitter(builder, 1, VECTORS, "amx")
        self.sums(operands, sums)
        stride = self.load(builder.add(epilogue, self.constant(8 * ROW_STRIDE)), _INT64, 8)

        def row(_: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
            source, target = places
            vectors = [self.constant(4 * WORDS * v) for v in range(VECTORS)]
            row_tile.convert([self.load(builder.add(source, v), _VECTOR, 64) for v in vectors], epilogue, target)
            return [builder.add(source, self.constant(4 * KERNELS)), builder.add(target, stride)]

        self.loop(self.constant(MATRIX_PIXELS), [sums, out], row)

    def configure(self) -> None:
        """Give all registers 16 rows of 64 bytes."""
        settings = self._reserved(64)
        for at in range(0, 64, 8):
            # Palette 1; bytes of the rows of registers 0 to 7 from byte 16 on, numbers of their rows from byte 48 on.
            value = {0: 1, 16: 0x40004000400040, 24: 0x40004000400040, 48: 0x1010101010101010}.get(at, 0)
            self.put(self.constant(value), self.builder.add(settings, self.constant(at)), 8)
        self.call("ldtilecfg", settings)


def emit_matrix_tile(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
    """The body of a tile of 16 pixels by products of matrices, like :func:`emit_tile`."""
    data, pixel_offsets, taps, tap_count, quads, weights, flip, out, epilogue = args
    tile, operands = _MatrixTile(builder), TileOperands(data, pixel_offsets, taps, [tap_count, quads], weights, flip)
    with builder.if_else(builder.icmp_signed("==", epilogue, tile.constant(0))) as (bare, converted):
        with bare:
            tile.sums(operands, out)
        with converted:
            tile.convert_rows(epilogue, operands, out)


def _matrix_intrinsic(emit: Callable[[_MatrixTile], None]) -> Any:
    """A function without arguments for kernels, which does nothing where the processor has no products of matrices."""

    @intrinsic
    def matrices(typing_context):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            if dot_instructions() == "amx":
                emit(_MatrixTile(builder))
            return context.get_dummy_value()

        return types.void(), generate

    return matrices


@intrinsic
def dot_matrix_tile(typing_context, data, pixel_offsets, taps, tap_count, quads, weights, flip, out, epilogue):  # type: ignore[no-untyped-def]
    """The tile of :func:`tile_intrinsic` for 16 pixels by products of matrices, between :data:`begin_matrices` and
    :data:`end_matrices`; nothing where the processor has none."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        if dot_instructions() == "amx":
            emit_matrix_tile(builder, args)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), generate


begin_matrices = _matrix_intrinsic(lambda tile: tile.configure())
end_matrices = _matrix_intrinsic(lambda tile: tile.call("tilerelease"))
