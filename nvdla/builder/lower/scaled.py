"""A tensor times a constant plus a constant, element by element: one operation, X1 multiplies and X2 adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Process, Root, Stage, Surface
from nvdla.builder.lower.constant import check_factors
from nvdla.builder.quantize import LARGEST, quantize

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import NetworkTensor

LARGEST_SUM = 2.0**30
"""Units of the product that the summand may have: both together fit 32 bits."""


def takes(lowering: Lowering, maker: Group, group: Group) -> bool:
    """Whether a sum can be made by the operation that makes the product which it takes."""
    layers = maker.layer, group.layer
    if any(layer.kind != "elementwise" or len(set(layer.inputs)) != 2 for layer in layers):
        return False
    if (maker.layer.operation, group.layer.operation) != ("multiply", "add") or maker.activation is not None:
        return False
    if maker.output in lowering.network.outputs or len(lowering.network.consumers(maker.output)) != 1:
        return False
    names = {group.output.name, *(each.name for layer in layers for each in layer.inputs)}
    same = len({lowering.precisions[name] for name in names}) == 1
    if not same or _constant(maker) is None or _addend(maker, group).producer.kind != "constant":
        return False
    unit = float(np.prod([lowering.scales[each.name] for each in maker.layer.inputs]))
    return not lowering.integer or float(np.max(np.abs(_addend(maker, group).producer.values))) < LARGEST_SUM * unit


def lower(lowering: Lowering, maker: Group, group: Group) -> None:
    """The factor lies in memory as it is calibrated, the summand in units of the product shifted left."""
    check_factors(lowering, maker.layer)
    factor = _constant(maker)
    assert factor is not None, "the product has a constant"
    source = lowering.source(next(each for each in maker.layer.inputs if each is not factor))
    factors, target = lowering.source(factor), lowering.target(group.output)
    unit = source.scale * factors.scale
    summand, shift = _summand(lowering, _addend(maker, group), unit)
    stages = Stage(multiplier=factors), Stage("add", summand, shift, relu=group.activation is not None)
    name = "+".join([*maker.members, *group.members])
    lowering.operations.append(Process(name, source, target, *stages, convert=lowering.convert(unit, target)))


def _summand(lowering: Lowering, tensor: NetworkTensor, unit: float) -> tuple[Surface, int]:
    """The constant in the finest units that hold its largest element, and by how many bits they exceed ``unit``."""
    if not lowering.integer:
        return lowering.source(tensor), 0
    values = tensor.producer.values
    largest = float(np.max(np.abs(values))) / (LARGEST[lowering.precision] * unit)
    shift = max(0, int(np.ceil(np.log2(max(largest, 1.0)))))
    scale = unit * 2.0**shift
    data = quantize(values, scale, lowering.precision)
    return Root(f"{tensor.name}/steps", *tensor.shape, lowering.precision, scale, "constant", data).whole, shift


def _constant(maker: Group) -> NetworkTensor | None:
    return next((each for each in maker.layer.inputs if each.producer.kind == "constant"), None)


def _addend(maker: Group, group: Group) -> NetworkTensor:
    return next(each for each in group.layer.inputs if each is not maker.output)
