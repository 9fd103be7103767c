"""The FP48 accumulators of CACC for 32 pixels or kernels at once, as LLVM IR: no NaN in what is added."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from nvdla.kernels.fast.fp16_layout import VECTOR
from nvdla.kernels.fast.fp16_vector_code import LONGS, SHORTS, WORDS, Emitter
from nvdla.kernels.jit.intrinsic_code import intrinsic


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
    """Add an atom's sum (int64) with its exponent (int16) to the accumulator (int64, int64) of every place; all
    arguments are addresses. No sum is a NaN; an accumulator may be."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        exponents, mantissas, largest, sums = args
        emitter = Emitter(builder)
        exponent, mantissa, mac = (_Long(emitter, emitter.load(each, LONGS)) for each in (exponents, mantissas, sums))
        mac_exponent = _Long(emitter, builder.sext(emitter.load(largest, SHORTS), LONGS))
        new_exponent, new_mantissa = _sum(exponent, mantissa, mac_exponent, mac)
        stays = builder.or_(mac.compare("==", 0), exponent.compare("==", 255))
        emitter.store(exponent.where(stays, new_exponent).value, exponents)
        emitter.store(mantissa.where(stays, new_mantissa).value, mantissas)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def _fp32(exponent: _Long, mantissa: _Long) -> _Long:
    """:func:`nvdla.kernels.fp16_mac.fp48_to_fp32` without branches: -2^39, a case of its own there, becomes 2^23."""
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
        exponent, mantissa = (_Long(emitter, emitter.load(each, LONGS)) for each in (exponents, mantissas))
        emitter.store(builder.trunc(_fp32(exponent, mantissa).value, WORDS), out)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate
