"""What :mod:`nvdla.kernels.fast.fp16_pixels` stands for, as LLVM IR on vectors that are split for any processor."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from nvdla.kernels.fast.fp16_layout import CLASSES, DIGITS, ENTRY, HIGH_TABLE, LOW_TABLE, PIXELS
from nvdla.kernels.fast.fp16_tree_code import Product, add_exact
from nvdla.kernels.fast.fp16_vector_code import INT16, INT32, INT64, LONGS, SHORTS, WORDS, Emitter
from nvdla.kernels.jit.intrinsic_code import intrinsic


class _PixelProduct(Product):
    """The products of one weight with a vector of data, whose rows lie in tables."""

    def __init__(self, emitter: Emitter, low: ir.Value, high: ir.Value, word: ir.Value) -> None:
        super().__init__(emitter)
        self.low, self.high = low, high
        builder = emitter.builder
        self.entries = []
        """Where the entry of each digit begins: 128 bytes a class."""
        for digit in range(DIGITS):
            shift = 3 * digit - 7
            moved = (
                builder.lshr(word, emitter.number(shift)) if shift > 0 else builder.shl(word, emitter.number(-shift))
            )
            self.entries.append(builder.and_(moved, emitter.number(7 << 7)))

    def rows(self) -> tuple[list[ir.Value], list[ir.Value]]:
        """Looked up."""
        emitter, rows, ones = self.emitter, [], []
        for digit, entry in enumerate(self.entries):
            address = emitter.at(emitter.at(self.low, entry), 2 * digit * CLASSES * ENTRY)
            rows.append(emitter.load(address, SHORTS))
            ones.append(emitter.load(emitter.at(address, 2 * PIXELS), SHORTS))
        return rows, ones

    def upper_rows(self) -> list[ir.Value]:
        """Looked up."""
        emitter, rows = self.emitter, []
        for digit, entry in enumerate(self.entries):
            half = emitter.builder.lshr(entry, emitter.number(1))
            rows.append(emitter.load(emitter.at(emitter.at(self.high, half), 2 * digit * CLASSES * PIXELS), SHORTS))
        return rows


@intrinsic
def add_products(typing_context, low, high, data, data_exponents, words, mantissas, exponents, largest, count, sums):  # type: ignore[no-untyped-def]
    """Add the aligned products of ``count`` places (1 to 4), in every pixel, to ``sums`` (int64 a pixel).

    All arguments but ``count`` are addresses: tables from :func:`fill_tables` one after the other, data and their
    exponents (int16, a vector a place), the weights' words (uint32), mantissas and exponents (int16) one a place, the
    atom's ``largest`` exponent (int16 a pixel). Exponents are multiples of four.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        low, high, data, data_exponents, words, mantissas, exponents, largest, count, sums = args
        emitter = Emitter(builder)
        top = emitter.load(largest, SHORTS)

        def place(index: ir.Value, total: ir.Value, lost: ir.Value) -> list[ir.Value]:
            double = builder.shl(index, emitter.number(1))
            vector = builder.mul(index, emitter.number(2 * PIXELS))
            word = builder.zext(emitter.load(emitter.at(words, builder.shl(index, emitter.number(2))), INT32), INT64)
            factor = emitter.splat(emitter.load(emitter.at(mantissas, double), INT16), SHORTS)
            exponent = emitter.splat(emitter.load(emitter.at(exponents, double), INT16), SHORTS)
            values = emitter.load(emitter.at(data, vector), SHORTS)
            own = builder.add(emitter.load(emitter.at(data_exponents, vector), SHORTS), exponent)
            shift = builder.sub(top, own)
            lows = emitter.at(low, builder.mul(index, emitter.number(2 * LOW_TABLE)))
            highs = emitter.at(high, builder.mul(index, emitter.number(2 * HIGH_TABLE)))
            return _PixelProduct(emitter, lows, highs, word).added(values, factor, shift, total, lost)

        total, lost = emitter.loop(count, [emitter.every(0, WORDS), emitter.every(0)], place)
        emitter.store(add_exact(emitter, total, lost, emitter.load(sums, LONGS)), sums)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), generate


@intrinsic
def fill_tables(typing_context, data, low, high):  # type: ignore[no-untyped-def]
    """The Booth rows of a vector of signed mantissas for all values of all digits; all arguments are addresses.

    ``low``: for each digit and class the row's low 16 bits, then the one that completes a negative row; ``high``: the
    upper 16 bits. A row is +-value, shifted by twice the digit, with the bit 16 (before that) that stands for its sign.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        data, low, high = args
        emitter = Emitter(builder)
        every = emitter.every
        value = emitter.load(data, SHORTS)
        negative = builder.ashr(value, every(15))
        magnitude = builder.sub(builder.xor(value, negative), negative)
        doubled = builder.shl(magnitude, every(1))
        signs = (negative, builder.not_(negative))
        values = [(builder.xor(row, sign), sign) for sign in signs for row in (magnitude, doubled)]
        for digit in range(DIGITS):
            shift = every(2 * digit)
            ones = [builder.shl(builder.and_(sign, every(1)), shift) for sign in signs]
            uppers = [builder.shl(builder.and_(sign, every(1)), shift) for sign in reversed(signs)]
            entries = [(every(0), every(0), every(1 << 2 * digit))]
            for number, (row, _) in enumerate(values):
                upper = uppers[number // 2]
                if digit:
                    upper = builder.or_(upper, builder.lshr(row, every(16 - 2 * digit)))
                entries.append((builder.shl(row, shift), ones[number // 2], upper))
            for number, (row, one, upper) in enumerate(entries):
                at = digit * CLASSES + number
                emitter.store(row, emitter.at(low, 2 * at * ENTRY))
                emitter.store(one, emitter.at(low, 2 * at * ENTRY + 2 * PIXELS))
                emitter.store(upper, emitter.at(high, 2 * at * PIXELS))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic
def largest_exponents(typing_context, exponents, data_exponents, count, largest):  # type: ignore[no-untyped-def]
    """The largest sum of exponents of ``count`` places, at least 0, in every pixel; the others are addresses."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        exponents, data_exponents, count, largest = args
        emitter = Emitter(builder)

        def place(index: ir.Value, top: ir.Value) -> list[ir.Value]:
            one = emitter.load(emitter.at(exponents, builder.shl(index, emitter.number(1))), INT16)
            at = emitter.at(data_exponents, builder.mul(index, emitter.number(2 * PIXELS)))
            total = builder.add(emitter.load(at, SHORTS), emitter.splat(one, SHORTS))
            return [builder.select(builder.icmp_signed(">", total, top), total, top)]

        emitter.store(emitter.loop(count, [emitter.every(0)], place)[0], largest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
