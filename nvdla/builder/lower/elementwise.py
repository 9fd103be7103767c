"""Elementwise layers: two inputs an operation, brought to one scale inside the SDP."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import BYTES, Process, Stage, Surface
from nvdla.builder.layer_types import LayerType, layer_type
from nvdla.builder.lower import residual, scaled
from nvdla.builder.lower.constant import check_factors
from nvdla.builder.lower.stages import ALU
from nvdla.builder.shapes import Shape
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer

_FORMS = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


class ElementwiseLayer(LayerType):
    """``operation`` "add", "multiply", "maximum" or "minimum" of two or more inputs of one shape."""

    kind = "elementwise"
    inputs = None

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """That of all inputs."""
        if len(shapes) < 2 or len(set(shapes)) > 1:
            what = settings["operation"]
            raise BuildError(f"layer {name}: {what} needs two or more inputs of one shape, got {sorted(set(shapes))}")
        return shapes[0]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """One input after the other."""
        return reduce(_FORMS[layer.operation], inputs)

    def channels(self, layer: Layer, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """All summands of a channel have one factor; factors of a product would multiply."""
        return [] if layer.operation == "multiply" else inputs

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A chain of two-input operations; ReLU follows the last. Partial results have the scale of the output.

        One that waits for a convolution is made by that convolution's SDP operation.
        """
        check_factors(lowering, group.layer)
        maker = lowering.claimed.get(group.output.name)
        if maker is not None:
            if maker.layer.kind == "elementwise":
                scaled.lower(lowering, maker, group)
            else:
                layer_type("convolution").lower(lowering, residual.together(lowering, maker, group))
            return
        sources = [lowering.source(tensor) for tensor in group.layer.inputs]
        result, whole = sources[0], lowering.target(group.output)
        for index, summand in enumerate(sources[1:], start=2):
            last = index == len(sources)
            target = whole if last else lowering.temporary(group.name, *whole.shape, whole)
            relu = last and group.activation is not None
            lowering.operations.append(_combine(lowering, group, result, summand, target, relu))
            result = target


def _combine(lowering: Lowering, group: Group, first: Surface, second: Surface, target: Surface, relu: bool) -> Process:
    operation = group.layer.operation
    if operation == "multiply":
        return _product(lowering, group, first, second, target, relu)
    alu = ALU[operation]
    plain = not (first.zero or second.zero or target.zero)
    if not lowering.integer or (first.scale == second.scale and plain):
        convert = lowering.convert(first.scale, target)
        return Process(group.name, first, target, Stage(alu, second, relu=relu), convert=convert)
    # The operand of X2 can only be shifted left, so X1 multiplies the one with the smaller scale:
    # first * m and second << k have units of the same worth.
    if first.scale > second.scale:
        first, second = second, first
    shift = min(14, 30 - 8 * BYTES[lowering.precision])
    multiplier = int(np.floor(first.scale / second.scale * 2.0**shift + 0.5))
    constant = first.zero * multiplier + (second.zero << shift)
    # Where the constant is still in, it is the lower end of the elements that cuts off what is negative.
    x1, x2 = Stage(multiplier=multiplier), Stage(alu, second, shift, relu=relu and not constant)
    convert = lowering.convert(second.scale * 2.0**-shift, target, constant)
    return Process(group.name, first, target, x1, x2, convert=convert)


def _product(lowering: Lowering, group: Group, first: Surface, second: Surface, target: Surface, relu: bool) -> Process:
    """X1 takes a zero point from the first factor; the second, read from memory, must have none."""
    if second.zero:
        first, second = second, first
    convert = lowering.convert(first.scale * second.scale, target)
    product = Stage(multiplier=second, relu=relu)
    if not first.zero:
        return Process(group.name, first, target, product, convert=convert)
    return Process(group.name, first, target, Stage("add", -first.zero), product, convert=convert)
