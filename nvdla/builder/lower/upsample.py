"""Upsampling by whole factors: results interleaved by strides, so that no Rubik engine is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.layer_types import LayerType
from nvdla.builder.shapes import Shape, pair

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class UpsampleLayer(LayerType):
    """``factor``: a number, or (vertical, horizontal)."""

    kind = "upsample"
    keeps_scale = each_channel_alone = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """Rows and columns times the factor."""
        settings["factor"] = factor = pair(name, "factor", settings["factor"])
        channels, height, width = shapes[0]
        return channels, height * factor[0], width * factor[1]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Nearest neighbour."""
        return inputs[0].repeat(layer.factor[0], axis=2).repeat(layer.factor[1], axis=3)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Columns first, then rows: each copy fills every factor-th column (row) of the result."""
        fy, fx = group.layer.factor
        source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
        wide = source
        if fx > 1:
            channels, height, width = source.shape
            wide = destination if fy == 1 else lowering.temporary(group.name, channels, height, width * fx, source)
            for column in range(fx):
                lowering.copy(group.name, source, wide.every(0, 1, height, column, fx, width))
        if fy > 1 or fx == 1:
            for row in range(fy):
                lowering.copy(group.name, wide, destination.every(row, fy, wide.height, 0, 1, wide.width))
