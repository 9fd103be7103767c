"""What :mod:`nvdla.kernels.fast.fp16_kernels` stands for, as LLVM IR on vectors that are split for any processor."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from nvdla.kernels.fast.fp16_layout import DIGITS, PLACES, VECTOR
from nvdla.kernels.fast.fp16_tree_code import Product, add_exact
from nvdla.kernels.fast.fp16_vector_code import INT16, INT64, LONGS, SHORTS, WORDS, Emitter
from nvdla.kernels.jit.intrinsic_code import intrinsic

_RECORD = 2 * 2 * VECTOR
"""Bytes of one place of VECTOR kernels: mantissas, exponents."""


class _KernelProduct(Product):
    """The products of one number of the data, not 0, with the weights of a vector of kernels.

    Booth digits are kept with 2 added, in fields of four bits at their places (two bits each): those of even places in
    one vector, of odd ones in another, so that none reaches into the next.
    """

    def __init__(self, emitter: Emitter, mantissas: ir.Value, value: ir.Value) -> None:
        super().__init__(emitter)
        builder, every = emitter.builder, emitter.every
        sign = builder.ashr(mantissas, every(15))
        magnitude = builder.sub(builder.xor(mantissas, sign), sign)
        self.value = builder.sub(builder.xor(value, sign), sign)
        """The number with the sign of each product."""
        before, after = builder.shl(magnitude, every(1)), builder.lshr(magnitude, every(1))
        turned = builder.xor(magnitude, every(0xAAAA))
        self.fields = [
            builder.add(builder.and_(turned, every(mask)), builder.and_(before, every(bits)))
            for mask, bits in ((0x3333, 0x1111), (0xCCCC, 0x4444))
        ]
        inner = builder.and_(after, builder.not_(builder.and_(magnitude, before)))
        some = builder.or_(builder.xor(magnitude, before), builder.xor(after, magnitude))
        products_sign = builder.ashr(self.value, every(15))
        self.negatives = builder.xor(inner, builder.and_(products_sign, some))
        """Bit 2 i: row i is negative; what lies between means nothing."""

    def rows(self) -> tuple[list[ir.Value], list[ir.Value]]:
        """Digit times value, less one where that is negative: its one's complement."""
        builder, every = self.emitter.builder, self.emitter.every
        rows, ones = [], []
        for digit in range(DIGITS):
            field = builder.and_(self.fields[digit % 2], every(15 << 2 * digit & 0xFFFF))
            worth = builder.sub(field, every(2 << 2 * digit))
            ones.append(builder.and_(self.negatives, every(1 << 2 * digit)))
            rows.append(builder.sub(builder.mul(worth, self.value), ones[-1]))
        return rows, ones

    def upper_rows(self) -> list[ir.Value]:
        """What the low halves have no room for, and bit 16 of each row before its shift: its sign, inverted."""
        builder, every = self.emitter.builder, self.emitter.every
        rows = []
        for digit in range(DIGITS):
            place = every(2 * digit)
            field = builder.and_(builder.lshr(self.fields[digit % 2], place), every(15))
            negative = builder.and_(builder.lshr(self.negatives, place), every(1))
            row = builder.sub(builder.mul(builder.sub(field, every(2)), self.value), negative)
            upper = builder.shl(builder.xor(negative, every(1)), place)
            if digit:
                upper = builder.or_(upper, builder.lshr(row, every(16 - 2 * digit)))
            rows.append(upper)
        return rows


class _Atom:
    """Where the operands of one atom are."""

    def __init__(self, emitter: Emitter, weights: ir.Value, places: ir.Value, data: ir.Value, exponents: ir.Value):
        self.emitter = emitter
        self.weights, self.places, self.data, self.exponents = weights, places, data, exponents

    def exponent(self, index: ir.Value) -> ir.Value:
        """Exponents of the products of one number of the data."""
        emitter = self.emitter
        own = emitter.splat(self._number(self.exponents, index), SHORTS)
        return emitter.builder.add(emitter.load(emitter.at(self._record(index), 2 * VECTOR), SHORTS), own)

    def operands(self, index: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Mantissas of the weights, and the number of the data for each."""
        emitter = self.emitter
        return emitter.load(self._record(index), SHORTS), emitter.splat(self._number(self.data, index), SHORTS)

    def _number(self, numbers: ir.Value, index: ir.Value) -> ir.Value:
        double = self.emitter.builder.shl(index, self.emitter.number(1))
        return self.emitter.load(self.emitter.at(numbers, double), INT16)

    def _record(self, index: ir.Value) -> ir.Value:
        place = self.emitter.builder.zext(self._number(self.places, index), INT64)
        return self.emitter.at(self.weights, self.emitter.builder.mul(place, self.emitter.number(_RECORD)))


@intrinsic
def multiply_atom(typing_context, weights, places, data, exponents, count, largest, sums):  # type: ignore[no-untyped-def]
    """The sums of an atom's aligned products for VECTOR kernels at one pixel.

    All arguments but ``count`` are addresses: the weights of the atom (for each place mantissas and exponents, int16 a
    kernel), and of ``count`` (at least 1) numbers of the data, none of them 0, their places in the atom, mantissas and
    exponents (int16 each). Out come the ``largest`` exponents (int16 a kernel) and the ``sums`` (int64 a kernel).
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        weights, places, data, exponents, count, largest, sums = args
        emitter = Emitter(builder)
        atom = _Atom(emitter, weights, places, data, exponents)

        def higher(index: ir.Value, top: ir.Value) -> list[ir.Value]:
            own = atom.exponent(index)
            return [builder.select(builder.icmp_signed(">", own, top), own, top)]

        top = emitter.loop(count, [emitter.every(0)], higher)[0]
        emitter.store(top, largest)

        def some(index: ir.Value, before: ir.Value) -> list[ir.Value]:
            first = builder.mul(index, emitter.number(PLACES))
            left = builder.sub(count, first)
            few = builder.select(builder.icmp_signed("<", left, emitter.number(PLACES)), left, emitter.number(PLACES))

            def one(index: ir.Value, total: ir.Value, lost: ir.Value) -> list[ir.Value]:
                at = builder.add(first, index)
                mantissas, value = atom.operands(at)
                shift = builder.sub(top, atom.exponent(at))
                return _KernelProduct(emitter, mantissas, value).added(mantissas, value, shift, total, lost)

            total, lost = emitter.loop(few, [emitter.every(0, WORDS), emitter.every(0)], one)
            return [add_exact(emitter, total, lost, before)]

        rounds = builder.sdiv(builder.add(count, emitter.number(PLACES - 1)), emitter.number(PLACES))
        emitter.store(emitter.loop(rounds, [emitter.every(0, LONGS)], some)[0], sums)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate
