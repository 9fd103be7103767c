"""What :mod:`nvdla.kernels.fast.sdp_int8_add` says of numbers of 16 bits, as LLVM IR."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from nvdla.kernels.fast.loops_code import Loops
from nvdla.kernels.jit.intrinsic_code import intrinsic

NUMBERS = 32
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
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
            undefined, self.builder.trunc(value, _SHORTS.element), ir.Constant(_INT32, 0)
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
        one = ir.Constant(_SHORTS, [1] * NUMBERS)
        rounded = builder.lshr(builder.add(upper, one), one)
        result = builder.sub(builder.xor(rounded, negative), negative)
        for sign, limit in ((">", -128), ("<", 127)):
            end = ir.Constant(_SHORTS, [limit] * NUMBERS)
            result = builder.select(builder.icmp_signed(sign, result, end), result, end)
        return builder.trunc(result, _BYTES)


@intrinsic
def add_shorts(typing_context, first, second, out, size, floor, scale):  # type: ignore[no-untyped-def]
    """``out = max(first + second, floor) * scale / 2^15``, rounded (halves away from zero) and limited to int8, for the
    whole vectors of ``size`` bytes at three addresses; ``scale`` is below 2^15. Returns how many bytes that were."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        emitter = _Sum(builder)
        floor, scale = emitter.everywhere(args[4]), emitter.everywhere(args[5])
        vectors = builder.udiv(args[3], emitter.constant(NUMBERS))

        def vector(index, carried):  # type: ignore[no-untyped-def]
            at = builder.mul(index, emitter.constant(NUMBERS))
            a, b, c = (builder.add(each, at) for each in args[:3])
            total = builder.add(emitter.bytes_at(a), emitter.bytes_at(b))
            total = builder.select(builder.icmp_signed(">", total, floor), total, floor)
            emitter.put(emitter.converted(total, scale), c, 1)
            return carried

        with builder.if_then(builder.icmp_signed(">", vectors, emitter.constant(0))):
            emitter.loop(vectors, [], vector)
        return builder.mul(vectors, emitter.constant(NUMBERS))

    return types.int64(*[types.int64] * 6), generate
