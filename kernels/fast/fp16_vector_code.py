"""LLVM IR on vectors of 32 pixels or kernels, which are split for any processor: for the fp16 multiplier-adders."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from nvdla.kernels.fast.fp16_layout import VECTOR

INT16, INT32, INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
SHORTS, WORDS, LONGS = (ir.VectorType(each, VECTOR) for each in (INT16, INT32, INT64))


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
        """What lies at an address, on any boundary."""
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = 1
        return loaded

    def store(self, value: ir.Value, address: ir.Value) -> None:
        """Put it there, on any boundary."""
        stored = self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()))
        stored.align = 1

    def splat(self, value: ir.Value, kind: ir.VectorType) -> ir.Value:
        """A number in every place of a vector."""
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INT32, VECTOR), [0] * VECTOR))

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
        """Whether one of a vector of bits is set."""
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
