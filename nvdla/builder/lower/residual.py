"""Sums, products, largest and smallest that the SDP makes behind the convolution whose result they take: no pass of
their own through memory.

The other summand is X2's operand, read from memory while the convolution delivers (per point). X1 brings the
accumulators to units that are a power of two finer than those of the other summand, whose left shift is all that X2
can do to it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder.cbuf import buffer_of, weight_bytes
from nvdla.builder.groups import Group
from nvdla.builder.ir import BYTES
from nvdla.builder.lower import scaled
from nvdla.builder.quantize import LARGEST

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import NetworkTensor

MOST_SHIFT, LEAST_SHIFT = 14, 8
"""Bits by which the units of the sum are finer than the other summand's: fewer than 8 would cost accuracy."""
SUM_BITS = 29
"""Bits of the largest summand in those units: the sum of both, and some more, has 31."""


def claimed(lowering: Lowering) -> dict[str, Group]:
    """The convolutions that are computed together with a sum (product ...), by the name of the sum's tensor."""
    makers = {group.output.name: group for group in lowering.groups}
    order = {group.output.name: position for position, group in enumerate(lowering.groups)}
    found: dict[str, Group] = {}
    for group in lowering.groups:
        if group.layer.kind == "elementwise" and len(set(group.layer.inputs)) == 2:
            able = [tensor for tensor in group.layer.inputs if _can_wait(lowering, makers.get(tensor.name), group)]
            if able:
                found[group.output.name] = makers[max(able, key=lambda tensor: order[tensor.name]).name]
    return found


def without_zero_points(lowering: Lowering) -> list[str]:
    """Tensors that the SDP multiplies by as they lie in memory: a product that waits saves more than finer units."""
    found: list[NetworkTensor] = []
    makers = claimed(lowering) if lowering.level else {}
    for group in (each for each in lowering.groups if each.output.name in makers):
        maker = makers[group.output.name]
        product = maker.layer if maker.layer.kind == "elementwise" else group.layer
        if product.operation == "multiply":
            found += [tensor for tensor in product.inputs if tensor is not maker.output]
    return [tensor.name for tensor in found]


def _can_wait(lowering: Lowering, maker: Group | None, group: Group) -> bool:
    """Whether a summand comes from a dense convolution that nobody else needs, and nothing else was to follow it; or
    is a product of constants, which takes the sum as well."""
    if maker is not None and scaled.takes(lowering, maker, group):
        return True
    if maker is None or maker.layer.kind != "convolution" or maker.layer.groups != 1 or maker.activation is not None:
        return False
    network, tensor = lowering.network, maker.output
    if tensor in network.outputs or len(network.consumers(tensor)) != 1:
        return False
    if not _fits(lowering, maker):
        return False
    names = {tensor.name, group.output.name, *(each.name for each in group.layer.inputs)}
    if len({lowering.precisions[each] for each in names}) != 1:
        return False
    return not lowering.integer or _shift(lowering, maker, group) >= LEAST_SHIFT


def _fits(lowering: Lowering, maker: Group) -> bool:
    """Whether an atom's kernels take at most half of the convolution buffer: then no part has fewer kernels, which
    would have to be put together before the sum."""
    kernels, channels, rows, columns = maker.kernels.shape
    buffer = buffer_of(lowering.config)
    size = weight_bytes(min(kernels, lowering.atom_channels), channels, rows, columns, lowering.default)
    return size <= buffer.banks * buffer.bank_bytes // 2


def _other(maker: Group, group: Group) -> NetworkTensor:
    """What a convolution's result is combined with."""
    return next(each for each in group.layer.inputs if each is not maker.output)


def _shift(lowering: Lowering, maker: Group, group: Group) -> int:
    """By how many bits the units in which both are combined are finer than those of the other one; of a product, than
    those of the convolution's own result."""
    if group.layer.operation == "multiply":
        # Bits of the product, and as many as a result beyond the calibrated range may have more.
        return min(MOST_SHIFT, SUM_BITS - 2 * (8 * BYTES[lowering.precisions[group.output.name]] - 1))
    scales, mine, other, total = lowering.scales, maker.output.name, _other(maker, group).name, group.output.name
    room = LARGEST[lowering.precisions[total]]
    largest = max(scales[name] * (room + abs(lowering.zero(name))) for name in (mine, other, total))
    return min(MOST_SHIFT, int(np.floor(np.log2(scales[other] * 2.0**SUM_BITS / largest))))


def together(lowering: Lowering, maker: Group, group: Group) -> Group:
    """The convolution's group with the result of both."""
    other, multiplies = lowering.source(_other(maker, group)), group.layer.operation == "multiply"
    shift = _shift(lowering, maker, group) if lowering.integer else 0
    return replace(
        maker,
        members=[*maker.members, *group.members],
        output=group.output,
        activation=group.activation,
        summand=other,
        summand_shift=shift,
        combines=group.layer.operation,
        unit=(lowering.scales[maker.output.name] if multiplies else other.scale) * 2.0**-shift,
    )
