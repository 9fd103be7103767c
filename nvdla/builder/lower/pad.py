"""A border of one number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder import floating
from nvdla.builder.groups import Group
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.constant import constant_root
from nvdla.builder.shapes import Shape, padding_of

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class PadLayer(LayerType):
    """``padding`` rows and columns of ``value`` around the input."""

    kind = "pad"
    keeps_scale = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """``padding``: one number, a pair, or (top, bottom, left, right)."""
        pads = padding_of(name, settings["padding"])
        settings.update(padding=pads, value=float(settings["value"]))
        channels, height, width = shapes[0]
        return channels, height + pads[0] + pads[1], width + pads[2] + pads[3]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """The input in the middle."""
        return floating.pad(inputs[0], layer.padding, layer.value)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """The tensor in the middle, constants around it."""
        layer = group.layer
        source, whole = lowering.source(layer.inputs[0]), lowering.target(group.output)
        top, bottom, left, right = layer.padding
        channels, height, width = source.shape
        lowering.copy(group.name, source, whole.crop(top, height, left, width))
        for y, rows, x, columns in (
            (0, top, 0, whole.width),
            (top + height, bottom, 0, whole.width),
            (top, height, 0, left),
            (top, height, left + width, right),
        ):
            if rows and columns:
                values = np.full((channels, rows, columns), layer.value)
                border = constant_root(lowering, f"{group.name}/border", values, whole.scale, whole.zero)
                lowering.copy(group.name, border.whole, whole.crop(y, rows, x, columns))
