"""Compiled code of the fp16 convolutions: vectors, trees, accumulators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from llvmlite import ir
from numba import types

from nvdla.kernels.fast.fp16_layout import CLASSES, DIGITS, ENTRY, HIGH_TABLE, LOW_TABLE, PIXELS, PLACES, VECTOR
from nvdla.kernels.jit.linked_code import intrinsic

INT16, INT32, INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
SHORTS, WORDS, LONGS = (ir.VectorType(element, VECTOR) for element in (INT16, INT32, INT64))


class Emitter:
    """Short names for a builder's instructions."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def number(self, value: int) -> ir.Constant:
        """An int64."""
        return ir.Constant(INT64, value)

    def every(self, value: int, kind: ir.VectorType = SHORTS) -> ir.Constant:
        """A constant in every place of a vector."""
        return ir.Constant(kind, [value] * VECTOR)

    def at(self, address: ir.Value, offset: int | ir.Value) -> ir.Value:
        """An address, so many bytes on."""
        return self.builder.add(address, self.number(offset) if isinstance(offset, int) else offset)

    def load(self, address: ir.Value, kind: ir.Type) -> ir.Value:
        """Load from an unaligned address."""
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = 1
        return loaded

    def store(self, value: ir.Value, address: ir.Value) -> None:
        """Store to an unaligned address."""
        stored = self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()))
        stored.align = 1

    def splat(self, value: ir.Value, kind: ir.VectorType) -> ir.Value:
        """A number in every place of a vector."""
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INT32, VECTOR), [0] * VECTOR))

    def loop(self, count: ir.Value, carried: list[ir.Value], body: Callable[..., list[ir.Value]]) -> list[ir.Value]:
        """Emit ``count`` (at least 1) rounds of ``body(index, *carried)``, which returns the next carried values."""
        builder = self.builder
        before = builder.block
        head, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(head)
        builder.position_at_end(head)
        phis = [builder.phi(value.type) for value in (self.number(0), *carried)]
        results = body(*phis)
        following = [builder.add(phis[0], self.number(1)), *results]
        for phi, first, value in zip(phis, (self.number(0), *carried), following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following[0], count), head, after)
        builder.position_at_end(after)
        return results

    def any(self, bits: ir.Value) -> ir.Value:
        """Check whether any bit of a vector of bits is set."""
        whole = ir.IntType(VECTOR)
        return self.builder.icmp_unsigned("!=", self.builder.bitcast(bits, whole), ir.Constant(whole, 0))

    def majority(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Bits that two or three have."""
        builder = self.builder
        return builder.or_(builder.and_(a, b), builder.and_(c, builder.or_(a, b)))

    def odd(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Bits that one or three have."""
        return self.builder.xor(self.builder.xor(a, b), c)

    def carries(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """The carry out of every bit of ``total`` = a + b."""
        return self.majority(a, b, self.builder.not_(total))


_UPPER_BIAS = 0x5555
Pair = tuple[ir.Value, ir.Value]


class Tree:
    """The carry-save adders of a multiplier, in halves of 16 bits. ``majorities`` of the lower half carry into the
    upper one."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.majorities: list[ir.Value] = []
        self._below: list[ir.Value] = []

    def add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> Pair:
        """A carry-save adder: the rows of sums and carries."""
        builder, every = self.emitter.builder, self.emitter.every
        majority = self.emitter.majority(a, b, c)
        self.majorities.append(majority)
        carry = builder.shl(majority, every(1))
        if self._below:
            carry = builder.or_(carry, builder.lshr(self._below.pop(0), every(15)))
        return self.emitter.odd(a, b, c), carry

    def _five(self, a: ir.Value, b: ir.Value, c: ir.Value, d: ir.Value, e: ir.Value) -> Pair:
        s, k = self.add(a, b, c)
        s, k = self.add(s, k, d)
        return self.add(s, k, e)

    def two_rows(self, rows: list[ir.Value], ones: list[ir.Value]) -> Pair:
        """Eight rows and the ones that complete them, to two rows (cmac.h:560)."""
        joined = [rows[0]]
        for row, completion in zip(rows[1:], ones, strict=False):
            joined.append(self.emitter.builder.or_(row, completion))
        s0, k0 = self._five(joined[0], joined[1], joined[2], joined[3], ones[3])
        s1, k1 = self._five(rows[4], joined[5], joined[6], joined[7], ones[7])
        s, k = self.add(s0, k0, s1)
        return self.add(s, k, k1)

    def upper(self) -> Tree:
        """The tree of the upper half, when this one is done. The ones that complete rows are all below."""
        tree = Tree(self.emitter)
        tree._below = list(self.majorities)
        return tree


def _bits_at(emitter: Emitter, places: ir.Value) -> ir.Value:
    """1 << place in every place of a vector, 0 for places that are not below 16."""
    builder = emitter.builder
    below = builder.icmp_unsigned("<", places, emitter.every(16))
    shifted = builder.shl(emitter.every(1), builder.and_(places, emitter.every(15)))
    return builder.select(below, shifted, emitter.every(0))


def _count(emitter: Emitter, carries: ir.Value, bits: ir.Value) -> ir.Value:
    """1 where ``carries`` has one of the ``bits``."""
    builder = emitter.builder
    return builder.zext(builder.icmp_unsigned("!=", builder.and_(carries, bits), emitter.every(0)), SHORTS)


class Product(ABC):
    """The products of one number with a vector of others: the carries that they lose."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter

    @abstractmethod
    def rows(self) -> tuple[list[ir.Value], list[ir.Value]]:
        """The low halves of the eight Booth rows, and the ones that complete those that are negative."""

    @abstractmethod
    def upper_rows(self) -> list[ir.Value]:
        """The upper halves; called after :meth:`rows`, and only if they are needed."""

    def lost(self, data: ir.Value, factor: ir.Value, shift: ir.Value, lost: ir.Value) -> ir.Value:
        """``lost`` plus c - u of the theorem (:mod:`nvdla.kernels.fast.fp16_pixels`) in every place of a vector."""
        emitter, builder = self.emitter, self.emitter.builder
        tree = Tree(emitter)
        s, k = tree.two_rows(*self.rows())
        carries = emitter.carries(s, k, builder.mul(data, factor))
        lost = builder.add(lost, _count(emitter, carries, _bits_at(emitter, builder.sub(shift, emitter.every(1)))))
        places = builder.sub(shift, emitter.every(17))
        before = builder.block
        with builder.if_then(emitter.any(builder.icmp_unsigned("<", places, emitter.every(15))), likely=False):
            more = builder.add(lost, self._lost_above(tree, data, factor, places))
            inside = builder.block
        joined = builder.phi(SHORTS)
        joined.add_incoming(lost, before)
        joined.add_incoming(more, inside)
        return joined

    def _lost_above(self, lower: Tree, data: ir.Value, factor: ir.Value, places: ir.Value) -> ir.Value:
        """c - u where the shift is more than 16, 0 elsewhere."""
        emitter, builder = self.emitter, self.emitter.builder
        nothing = emitter.every(0)
        s, k = lower.upper().two_rows(self.upper_rows(), [nothing] * DIGITS)
        wide = builder.mul(builder.sext(data, WORDS), builder.sext(factor, WORDS))
        product = builder.trunc(builder.ashr(wide, emitter.every(16, WORDS)), SHORTS)
        bias = emitter.every(_UPPER_BIAS)
        total = builder.add(product, bias)
        in_range = builder.icmp_unsigned("<", places, emitter.every(15))
        bits = builder.select(in_range, _bits_at(emitter, places), nothing)
        lost = _count(emitter, emitter.carries(s, k, total), bits)
        return builder.sub(lost, _count(emitter, emitter.carries(product, bias, total), bits))

    def added(
        self, data: ir.Value, factor: ir.Value, shift: ir.Value, total: ir.Value, lost: ir.Value
    ) -> list[ir.Value]:
        """``total`` (int32) plus the shifted exact products, and :meth:`lost`; nothing where the shift is over 31."""
        emitter, builder = self.emitter, self.emitter.builder
        product = builder.mul(builder.sext(data, WORDS), builder.sext(factor, WORDS))
        near = builder.icmp_unsigned("<", shift, emitter.every(32))
        product = builder.select(near, product, emitter.every(0, WORDS))
        by = builder.zext(builder.and_(shift, emitter.every(31)), WORDS)
        total = builder.add(total, builder.ashr(product, by))
        return [total, self.lost(data, factor, shift, lost)]


def add_exact(emitter: Emitter, total: ir.Value, lost: ir.Value, sums: ir.Value) -> ir.Value:
    """``sums`` (int64) plus products less what they lose."""
    builder = emitter.builder
    exact = builder.sub(total, builder.sext(lost, WORDS))
    return builder.add(sums, builder.sext(exact, LONGS))


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
        """Bit 2 i: row i is negative; the other bits are undefined."""

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
        """The upper bits of the rows, with bit 16 of each row before its shift: its sign, inverted."""
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
    """Addresses of the operands of one atom."""

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

    All arguments but ``count`` are addresses. ``weights``: mantissas and exponents for each place of the atom, int16
    per kernel. ``places``, ``data`` and ``exponents``: places in the atom, mantissas and exponents of ``count`` (at
    least 1) numbers of the data other than 0, int16. The results are the ``largest`` exponents (int16 per kernel) and
    the ``sums`` (int64 per kernel).
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

            def product(index: ir.Value, total: ir.Value, lost: ir.Value) -> list[ir.Value]:
                at = builder.add(first, index)
                mantissas, value = atom.operands(at)
                shift = builder.sub(top, atom.exponent(at))
                return _KernelProduct(emitter, mantissas, value).added(mantissas, value, shift, total, lost)

            total, lost = emitter.loop(few, [emitter.every(0, WORDS), emitter.every(0)], product)
            return [add_exact(emitter, total, lost, before)]

        rounds = builder.sdiv(builder.add(count, emitter.number(PLACES - 1)), emitter.number(PLACES))
        emitter.store(emitter.loop(rounds, [emitter.every(0, LONGS)], some)[0], sums)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


class _PixelProduct(Product):
    """The products of one weight with a vector of data, whose rows are in tables."""

    def __init__(self, emitter: Emitter, low: ir.Value, high: ir.Value, word: ir.Value) -> None:
        super().__init__(emitter)
        self.low, self.high = low, high
        builder = emitter.builder
        self.entries = []
        """Offset of the entry of each digit: 128 bytes per class."""
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
    """Add the aligned products of ``count`` places (1 to 4), in every pixel, to ``sums`` (int64 per pixel).

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
            for number, (row, completion, upper) in enumerate(entries):
                at = digit * CLASSES + number
                emitter.store(row, emitter.at(low, 2 * at * ENTRY))
                emitter.store(completion, emitter.at(low, 2 * at * ENTRY + 2 * PIXELS))
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
            exponent = emitter.load(emitter.at(exponents, builder.shl(index, emitter.number(1))), INT16)
            at = emitter.at(data_exponents, builder.mul(index, emitter.number(2 * PIXELS)))
            total = builder.add(emitter.load(at, SHORTS), emitter.splat(exponent, SHORTS))
            return [builder.select(builder.icmp_signed(">", total, top), total, top)]

        emitter.store(emitter.loop(count, [emitter.every(0)], place)[0], largest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


class _Long:
    """A vector of int64 with Python's operators."""

    def __init__(self, emitter: Emitter, value: ir.Value) -> None:
        self.emitter, self.value = emitter, value

    def _do(self, name: str, other: _Long | int) -> _Long:
        right = self.emitter.every(other, LONGS) if isinstance(other, int) else other.value
        return _Long(self.emitter, getattr(self.emitter.builder, name)(self.value, right))

    def __add__(self, other: _Long | int) -> _Long:
        return self._do("add", other)

    def __sub__(self, other: _Long | int) -> _Long:
        return self._do("sub", other)

    def __and__(self, other: _Long | int) -> _Long:
        return self._do("and_", other)

    def __or__(self, other: _Long | int) -> _Long:
        return self._do("or_", other)

    def __xor__(self, other: _Long | int) -> _Long:
        return self._do("xor", other)

    def __lshift__(self, other: _Long | int) -> _Long:
        return self._do("shl", other)

    def __rshift__(self, other: _Long | int) -> _Long:
        return self._do("ashr", other)

    def compare(self, how: str, other: _Long | int) -> ir.Value:
        right = self.emitter.every(other, LONGS) if isinstance(other, int) else other.value
        return self.emitter.builder.icmp_signed(how, self.value, right)

    def where(self, condition: ir.Value, other: _Long | int) -> _Long:
        """This where the condition holds, else the other."""
        right = self.emitter.every(other, LONGS) if isinstance(other, int) else other.value
        return _Long(self.emitter, self.emitter.builder.select(condition, self.value, right))

    def leading_zeros(self) -> _Long:
        builder = self.emitter.builder
        name = f"llvm.ctlz.v{VECTOR}i64"
        kind = ir.FunctionType(LONGS, [LONGS, ir.IntType(1)])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return _Long(self.emitter, builder.call(function, [self.value, ir.Constant(ir.IntType(1), 0)]))

    def redundant_bits(self, width: int) -> _Long:
        """Count the bits below the sign bit of ``width`` bits that equal it; -1 if the number needs one more bit."""
        return (self ^ (self >> 63)).leading_zeros() - (65 - width)


def _sum(exponent: _Long, mantissa: _Long, mac_exponent: _Long, mac_mantissa: _Long) -> tuple[_Long, _Long]:
    """:func:`nvdla.kernels.fp16_mac.fp48_add` without its NaN and zeros, and without branches.

    There the sum either loses its last bit or moves left; here it moves left by ``left`` + 1 >= 0, and its last bit is
    the guard in both cases.
    """
    builder = exponent.emitter.builder
    left = mac_mantissa.redundant_bits(38)
    small, small_exponent = mac_mantissa << left + 2, mac_exponent - left + 49
    large_exponent = exponent.where(mantissa.compare("!=", 0), 0)
    swap = small_exponent.compare(">", large_exponent)
    small, large = mantissa.where(swap, small), small.where(swap, mantissa)
    small_exponent, large_exponent = (
        large_exponent.where(swap, small_exponent),
        small_exponent.where(swap, large_exponent),
    )
    difference = large_exponent - small_exponent
    near = difference.compare("<=", 40)
    difference = difference.where(near, 40)
    mask = (1 << 40) - 1
    zero = small ^ small
    lost = (small << (zero + 40 - difference) & mask).where(near, 0)
    total = large + (small >> difference).where(near, 0)
    left = total.redundant_bits(40) + 1
    joined = total << left | lost >> zero + 40 - left
    total, guard = joined >> 1, (joined & 1).compare("!=", 0)
    sticky = (lost << left & mask).compare("!=", 0)
    negative = total.compare("<", 0)
    rounds = builder.and_(guard, builder.or_(builder.not_(negative), sticky))
    total = (total + 1).where(rounds, total)
    above = builder.and_(builder.not_(negative), total.compare(">=", 1 << 39))
    wraps = builder.and_(negative, total.compare(">=", 0))
    halved = total >> 1 | (zero - (1 << 39)).where(negative, 0)
    over = builder.or_(above, wraps)
    total = halved.where(over, total)
    result = large_exponent - left + 1
    result = (result + 1).where(over, result)
    return (result & 0xFF).where(total.compare("!=", 0), 0), total


@intrinsic
def add_atoms(typing_context, exponents, mantissas, largest, sums):  # type: ignore[no-untyped-def]
    """Add an atom's sum (int64) with its exponent (int16) to the accumulator (int64, int64) of every place; all
    arguments are addresses. No sum is a NaN; an accumulator may be."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        exponents, mantissas, largest, sums = args
        emitter = Emitter(builder)
        exponent, mantissa, mac = (
            _Long(emitter, emitter.load(address, LONGS)) for address in (exponents, mantissas, sums)
        )
        mac_exponent = _Long(emitter, builder.sext(emitter.load(largest, SHORTS), LONGS))
        new_exponent, new_mantissa = _sum(exponent, mantissa, mac_exponent, mac)
        stays = builder.or_(mac.compare("==", 0), exponent.compare("==", 255))
        emitter.store(exponent.where(stays, new_exponent).value, exponents)
        emitter.store(mantissa.where(stays, new_mantissa).value, mantissas)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def _fp32(exponent: _Long, mantissa: _Long) -> _Long:
    """:func:`nvdla.kernels.fp16_mac.fp48_to_fp32` without branches: -2^39, a special case there, becomes 2^23."""
    zero = mantissa ^ mantissa
    negative = mantissa.compare("<", 0)
    sign = (zero + 0x80000000).where(negative, 0)
    magnitude = (zero - mantissa).where(negative, mantissa)
    rounded = (magnitude >> 15) + (magnitude >> 14 & 1)
    more = rounded >> 24
    rounded = (rounded >> 1).where(more.compare("!=", 0), rounded)
    number = sign | (exponent + 64 + more & 0xFF) << 23 | rounded & 0x7FFFFF
    nan = sign | 0x7F800000 | (mantissa >> 29 & 0x3FF)
    return nan.where(exponent.compare("==", 255), number.where(mantissa.compare("!=", 0), 0))


@intrinsic
def deliver_fp32(typing_context, exponents, mantissas, out):  # type: ignore[no-untyped-def]
    """The accumulators (int64, int64) as fp32 bits (uint32); all arguments are addresses."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        exponents, mantissas, out = args
        emitter = Emitter(builder)
        exponent, mantissa = (_Long(emitter, emitter.load(address, LONGS)) for address in (exponents, mantissas))
        emitter.store(builder.trunc(_fp32(exponent, mantissa).value, WORDS), out)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate
