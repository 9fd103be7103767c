"""Memory and loops in LLVM IR, for what emits the tiles of int8 products and their endings."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

_INT64 = ir.IntType(64)


class Loops:
    """Short names for a builder's instructions; addresses and counters are int64."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def constant(self, value: int) -> ir.Constant:
        """A number of 64 bits."""
        return ir.Constant(_INT64, value)

    def load(self, address: ir.Value, kind: ir.Type, align: int) -> ir.Value:
        """What lies at an address, of so many bytes' alignment."""
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = align
        return loaded

    def loop(self, count: ir.Value, carried: list[ir.Value], body: Any) -> list[ir.Value]:
        """``count`` (at least 1) rounds of ``body(index, carried) -> carried``; returns the carried values after."""
        builder = self.builder
        before = builder.block
        head = builder.append_basic_block("loop")
        after = builder.append_basic_block("after")
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(_INT64)
        index.add_incoming(self.constant(0), before)
        phis = []
        for value in carried:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            phis.append(phi)
        results = body(index, phis)
        following = builder.add(index, self.constant(1))
        end = builder.block
        index.add_incoming(following, end)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, end)
        builder.cbranch(builder.icmp_signed("<", following, count), head, after)
        builder.position_at_end(after)
        return results

    def put(self, value: ir.Value, address: ir.Value, align: int) -> None:
        """Store there."""
        stored = self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()))
        stored.align = align
