"""What :mod:`nvdla.kernels.fast.fp16_pixels` stands for, as LLVM IR on vectors that are split for any processor."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types

from nvdla.kernels.fast.fp16_layout import CLASSES, DIGITS, ENTRY, HIGH_TABLE, LOW_TABLE, PIXELS
from nvdla.kernels.jit.intrinsic_code import intrinsic

_INT16, _INT32, _INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_SHORTS, _WORDS, _LONGS = (ir.VectorType(each, PIXELS) for each in (_INT16, _INT32, _INT64))
_BITS = ir.VectorType(ir.IntType(1), PIXELS)
_UPPER_BIAS = 0x5555
_Pair = tuple[ir.Value, ir.Value]


class _Emitter:
    """Short names for a builder's instructions."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def number(self, value: int) -> ir.Constant:
        return ir.Constant(_INT64, value)

    def every(self, value: int, kind: ir.VectorType = _SHORTS) -> ir.Constant:
        """A constant in every pixel."""
        return ir.Constant(kind, [value] * PIXELS)

    def at(self, address: ir.Value, offset: int | ir.Value) -> ir.Value:
        return self.builder.add(address, self.number(offset) if isinstance(offset, int) else offset)

    def load(self, address: ir.Value, kind: ir.Type) -> ir.Value:
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = 1
        return loaded

    def store(self, value: ir.Value, address: ir.Value) -> None:
        stored = self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()))
        stored.align = 1

    def splat(self, value: ir.Value, kind: ir.VectorType) -> ir.Value:
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT32, PIXELS), [0] * PIXELS))

    def loop(self, count: ir.Value, carried: list[ir.Value], body: Callable[..., list[ir.Value]]) -> list[ir.Value]:
        """``count`` (at least 1) rounds of ``body(index, *carried)``, which returns what the next round gets."""
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
        whole = ir.IntType(PIXELS)
        return self.builder.icmp_unsigned("!=", self.builder.bitcast(bits, whole), ir.Constant(whole, 0))

    def majority(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        builder = self.builder
        return builder.or_(builder.and_(a, b), builder.and_(c, builder.or_(a, b)))

    def odd(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.builder.xor(self.builder.xor(a, b), c)

    def carries(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """The carry out of every bit of ``total`` = a + b."""
        return self.majority(a, b, self.builder.not_(total))


class _Tree:
    """The carry-save adders of a multiplier, in halves of 16 bits. ``majorities`` of the lower half carry into the
    upper one."""

    def __init__(self, emitter: _Emitter) -> None:
        self.emitter = emitter
        self.majorities: list[ir.Value] = []
        self._below: list[ir.Value] = []

    def add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> _Pair:
        builder, every = self.emitter.builder, self.emitter.every
        majority = self.emitter.majority(a, b, c)
        self.majorities.append(majority)
        carry = builder.shl(majority, every(1))
        if self._below:
            carry = builder.or_(carry, builder.lshr(self._below.pop(0), every(15)))
        return self.emitter.odd(a, b, c), carry

    def _five(self, a: ir.Value, b: ir.Value, c: ir.Value, d: ir.Value, e: ir.Value) -> _Pair:
        s, k = self.add(a, b, c)
        s, k = self.add(s, k, d)
        return self.add(s, k, e)

    def two_rows(self, rows: list[ir.Value], ones: list[ir.Value]) -> _Pair:
        """Eight rows and the ones that complete them, to two rows (cmac.h:560)."""
        joined = [rows[0]]
        for row, one in zip(rows[1:], ones, strict=False):
            joined.append(self.emitter.builder.or_(row, one))
        s0, k0 = self._five(joined[0], joined[1], joined[2], joined[3], ones[3])
        s1, k1 = self._five(rows[4], joined[5], joined[6], joined[7], ones[7])
        s, k = self.add(s0, k0, s1)
        return self.add(s, k, k1)

    def upper(self) -> _Tree:
        """The tree of the upper half, when this one is done. The ones that complete rows are all below."""
        tree = _Tree(self.emitter)
        tree._below = list(self.majorities)
        return tree


def _bits_at(emitter: _Emitter, places: ir.Value) -> ir.Value:
    """1 << place in every pixel, 0 for places that are not below 16."""
    builder = emitter.builder
    below = builder.icmp_unsigned("<", places, emitter.every(16))
    shifted = builder.shl(emitter.every(1), builder.and_(places, emitter.every(15)))
    return builder.select(below, shifted, emitter.every(0))


def _count(emitter: _Emitter, carries: ir.Value, bits: ir.Value) -> ir.Value:
    """1 where ``carries`` has one of the ``bits``."""
    builder = emitter.builder
    return builder.zext(builder.icmp_unsigned("!=", builder.and_(carries, bits), emitter.every(0)), _SHORTS)


class _Product:
    """The products of one weight with a vector of data."""

    def __init__(self, emitter: _Emitter, low: ir.Value, high: ir.Value, word: ir.Value) -> None:
        self.emitter = emitter
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

    def lost(self, data: ir.Value, factor: ir.Value, shift: ir.Value, lost: ir.Value) -> ir.Value:
        """``lost`` plus c - u of the theorem, in every pixel."""
        emitter, builder = self.emitter, self.emitter.builder
        rows, ones = [], []
        for digit, entry in enumerate(self.entries):
            address = emitter.at(emitter.at(self.low, entry), 2 * digit * CLASSES * ENTRY)
            rows.append(emitter.load(address, _SHORTS))
            ones.append(emitter.load(emitter.at(address, 2 * PIXELS), _SHORTS))
        tree = _Tree(emitter)
        s, k = tree.two_rows(rows, ones)
        carries = emitter.carries(s, k, builder.mul(data, factor))
        lost = builder.add(lost, _count(emitter, carries, _bits_at(emitter, builder.sub(shift, emitter.every(1)))))
        places = builder.sub(shift, emitter.every(17))
        before = builder.block
        with builder.if_then(emitter.any(builder.icmp_unsigned("<", places, emitter.every(15))), likely=False):
            more = builder.add(lost, self._lost_above(tree, data, factor, places))
            inside = builder.block
        joined = builder.phi(_SHORTS)
        joined.add_incoming(lost, before)
        joined.add_incoming(more, inside)
        return joined

    def _lost_above(self, lower: _Tree, data: ir.Value, factor: ir.Value, places: ir.Value) -> ir.Value:
        """c - u where the shift is more than 16, 0 elsewhere."""
        emitter, builder = self.emitter, self.emitter.builder
        rows = []
        for digit, entry in enumerate(self.entries):
            half = builder.lshr(entry, emitter.number(1))
            rows.append(emitter.load(emitter.at(emitter.at(self.high, half), 2 * digit * CLASSES * PIXELS), _SHORTS))
        nothing = emitter.every(0)
        s, k = lower.upper().two_rows(rows, [nothing] * DIGITS)
        wide = builder.mul(builder.sext(data, _WORDS), builder.sext(factor, _WORDS))
        product = builder.trunc(builder.ashr(wide, emitter.every(16, _WORDS)), _SHORTS)
        bias = emitter.every(_UPPER_BIAS)
        total = builder.add(product, bias)
        in_range = builder.icmp_unsigned("<", places, emitter.every(15))
        bits = builder.select(in_range, _bits_at(emitter, places), nothing)
        lost = _count(emitter, emitter.carries(s, k, total), bits)
        return builder.sub(lost, _count(emitter, emitter.carries(product, bias, total), bits))


@intrinsic
def add_products(typing_context, low, high, data, data_exponents, words, mantissas, exponents, largest, count, sums):  # type: ignore[no-untyped-def]
    """Add the aligned products of ``count`` places (1 to 4), in every pixel, to ``sums`` (int64 a pixel).

    All arguments but ``count`` are addresses: tables from :func:`fill_tables` one after the other, data and their
    exponents (int16, a vector a place), the weights' words (uint32), mantissas and exponents (int16) one a place, the
    atom's ``largest`` exponent (int16 a pixel). Exponents are multiples of four.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        low, high, data, data_exponents, words, mantissas, exponents, largest, count, sums = args
        emitter = _Emitter(builder)
        top = emitter.load(largest, _SHORTS)

        def place(index: ir.Value, total: ir.Value, lost: ir.Value) -> list[ir.Value]:
            double = builder.shl(index, emitter.number(1))
            vector = builder.mul(index, emitter.number(2 * PIXELS))
            word = builder.zext(emitter.load(emitter.at(words, builder.shl(index, emitter.number(2))), _INT32), _INT64)
            factor = emitter.splat(emitter.load(emitter.at(mantissas, double), _INT16), _SHORTS)
            exponent = emitter.splat(emitter.load(emitter.at(exponents, double), _INT16), _SHORTS)
            values = emitter.load(emitter.at(data, vector), _SHORTS)
            own = builder.add(emitter.load(emitter.at(data_exponents, vector), _SHORTS), exponent)
            shift = builder.sub(top, own)
            lows = emitter.at(low, builder.mul(index, emitter.number(2 * LOW_TABLE)))
            highs = emitter.at(high, builder.mul(index, emitter.number(2 * HIGH_TABLE)))
            product = builder.mul(builder.sext(values, _WORDS), builder.sext(factor, _WORDS))
            near = builder.icmp_unsigned("<", shift, emitter.every(32))
            product = builder.select(near, product, emitter.every(0, _WORDS))
            by = builder.zext(builder.and_(shift, emitter.every(31)), _WORDS)
            total = builder.add(total, builder.ashr(product, by))
            return [total, _Product(emitter, lows, highs, word).lost(values, factor, shift, lost)]

        total, lost = emitter.loop(count, [emitter.every(0, _WORDS), emitter.every(0)], place)
        exact = builder.sub(total, builder.sext(lost, _WORDS))
        emitter.store(builder.add(emitter.load(sums, _LONGS), builder.sext(exact, _LONGS)), sums)
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
        emitter = _Emitter(builder)
        every = emitter.every
        value = emitter.load(data, _SHORTS)
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
        emitter = _Emitter(builder)

        def place(index: ir.Value, top: ir.Value) -> list[ir.Value]:
            one = emitter.load(emitter.at(exponents, builder.shl(index, emitter.number(1))), _INT16)
            at = emitter.at(data_exponents, builder.mul(index, emitter.number(2 * PIXELS)))
            total = builder.add(emitter.load(at, _SHORTS), emitter.splat(one, _SHORTS))
            return [builder.select(builder.icmp_signed(">", total, top), total, top)]

        emitter.store(emitter.loop(count, [emitter.every(0)], place)[0], largest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


class _Long:
    """A vector of int64 with Python's operators."""

    def __init__(self, emitter: _Emitter, value: ir.Value) -> None:
        self.emitter, self.value = emitter, value

    def _do(self, name: str, other: _Long | int) -> _Long:
        right = self.emitter.every(other, _LONGS) if isinstance(other, int) else other.value
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
        right = self.emitter.every(other, _LONGS) if isinstance(other, int) else other.value
        return self.emitter.builder.icmp_signed(how, self.value, right)

    def where(self, condition: ir.Value, other: _Long | int) -> _Long:
        """This where the condition holds, else the other."""
        right = self.emitter.every(other, _LONGS) if isinstance(other, int) else other.value
        return _Long(self.emitter, self.emitter.builder.select(condition, self.value, right))

    def leading_zeros(self) -> _Long:
        builder = self.emitter.builder
        name = f"llvm.ctlz.v{PIXELS}i64"
        kind = ir.FunctionType(_LONGS, [_LONGS, ir.IntType(1)])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return _Long(self.emitter, builder.call(function, [self.value, ir.Constant(ir.IntType(1), 0)]))

    def redundant_bits(self, width: int) -> _Long:
        """How many bits below the sign bit of ``width`` bits equal it; -1 where the number needs one more bit."""
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
    """Add an atom's sum (int64) with its exponent (int16) to the accumulator (int64, int64) of every pixel; all
    arguments are addresses. No sum is a NaN; an accumulator may be."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        exponents, mantissas, largest, sums = args
        emitter = _Emitter(builder)
        exponent, mantissa, mac = (_Long(emitter, emitter.load(each, _LONGS)) for each in (exponents, mantissas, sums))
        mac_exponent = _Long(emitter, builder.sext(emitter.load(largest, _SHORTS), _LONGS))
        new_exponent, new_mantissa = _sum(exponent, mantissa, mac_exponent, mac)
        stays = builder.or_(mac.compare("==", 0), exponent.compare("==", 255))
        emitter.store(exponent.where(stays, new_exponent).value, exponents)
        emitter.store(mantissa.where(stays, new_mantissa).value, mantissas)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
