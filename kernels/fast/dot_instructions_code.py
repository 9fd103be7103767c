"""How processors multiply bytes, as LLVM IR: four unsigned by four signed bytes in each 32-bit word, added to the word.

Whatever the instructions, the sums are the same: those of :mod:`nvdla.kernels.fast.dot_tile`, exact modulo 2^32.
"""

from __future__ import annotations

from typing import Protocol

from llvmlite import ir

_SIGNS = 0x80808080  # of four bytes
_INT8, _INT16, _INT32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)

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

    Exact whatever the operands: 2 * 255 * 128 < 2^31. (``vpmaddubsw`` takes bytes, but saturates sums of two products
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
    "avx512vnni": Vnni(16, 12, 4),  # all of a tile in one go
    "avxvnni": Vnni(8, 3, 2),
    "avx2": MultiplyAdd(),
    "neon": NeonDot(),
}
"""By the names of :data:`nvdla.kernels.jit.processor.SETS`."""


def _every(kind: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


def _function(builder: ir.IRBuilder, name: str, arguments: list[ir.Type], result: ir.Type | None = None) -> ir.Function:
    """LLVM's intrinsic, declared once in a module; it gives what its first argument is, unless said otherwise."""
    module = builder.module
    known = module.globals.get(name)
    return known or ir.Function(module, ir.FunctionType(result or arguments[0], arguments), name)
