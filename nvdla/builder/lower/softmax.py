"""Softmax on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Softmax
from nvdla.builder.layer_types import LayerType
from nvdla.builder.shapes import Shape
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class SoftmaxLayer(LayerType):
    """Over the channels of a 1x1 cube (the emulated task of NVIDIA's runtime)."""

    kind = "softmax"

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """Only a 1x1 cube."""
        if shapes[0][1:] != (1, 1):
            raise BuildError(
                f"layer {name}: softmax of a cube {'x'.join(map(str, shapes[0]))} is not possible, the CPU task "
                "normalises a 1x1 cube only; use fully_connected or global_average_pool before it"
            )
        return shapes[0]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Powers of e as shares of their sum."""
        x = inputs[0]
        with np.errstate(invalid="ignore"):  # infinities of a float network are found and said by whoever calibrates
            powers = np.exp(x - x.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def own_scale(self, layer: Layer, precision: str) -> float:
        """It gives 0..1; 127 is 1."""
        return 1 / 127

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float]:
        """0 and 1."""
        return 0.0, 1.0

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A CPU task."""
        if lowering.precision == "int16":
            raise BuildError(
                f"layer {group.name}: softmax on the CPU takes int8 and fp16, not int16; build in int8 or fp16"
            )
        source = lowering.source(group.layer.inputs[0])
        lowering.operations.append(Softmax(group.name, source, lowering.target(group.output)))
