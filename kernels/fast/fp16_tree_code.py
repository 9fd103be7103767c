"""The carry-save tree of the fp16 multipliers on 32 pixels or kernels at once, in halves of 16 bits, as LLVM IR."""

from __future__ import annotations

from abc import ABC, abstractmethod

from llvmlite import ir

from nvdla.kernels.fast.fp16_layout import DIGITS
from nvdla.kernels.fast.fp16_vector_code import LONGS, SHORTS, WORDS, Emitter

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
        for row, one in zip(rows[1:], ones, strict=False):
            joined.append(self.emitter.builder.or_(row, one))
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
        """The upper halves; asked for behind :meth:`rows`, and where they are needed only."""

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
