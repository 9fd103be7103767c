"""PReLU: a slope for what is negative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Stage
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.stages import alone, from_zero, prelu_stage
from nvdla.builder.quantize import halves
from nvdla.builder.shapes import Shape, column, numbers_of

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class PreluLayer(LayerType):
    """``x`` where positive, ``slope * x`` elsewhere."""

    kind = "prelu"
    each_channel_alone = zero_points = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """``slopes``: a number or (channels,)."""
        settings["slopes"] = numbers_of(name, "slopes", settings["slopes"], shapes[0][0])
        return shapes[0]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Negative elements times their channel's slope."""
        x = inputs[0]
        return np.where(x >= 0, x, x * column(layer.slopes))

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A stage of integers, or of halves."""
        slopes = group.layer.slopes
        if lowering.integer:
            alone(lowering, group, from_zero(lowering, group, prelu_stage(slopes)))
        else:
            alone(lowering, group, Stage(multiplier=halves(group.layer.name, "slope", slopes), prelu=True))
