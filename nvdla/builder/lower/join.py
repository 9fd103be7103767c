"""Tensors behind one another in rows or columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Surface
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.concat import joined
from nvdla.builder.shapes import Shape

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class JoinLayer(LayerType):
    """Join along rows (``axis`` 1) or columns (2)."""

    kind = "join"
    inputs = None
    keeps_scale = copies = each_channel_alone = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """The sum along the axis."""
        return joined(name, shapes, settings["axis"])

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Inputs behind one another."""
        return np.concatenate(inputs, axis=1 + layer.axis)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A copy of each input."""
        whole = lowering.target(group.output)
        begin = 0
        for tensor in group.layer.inputs:
            source = lowering.source(tensor)
            lowering.copy(group.name, source, _stretch(whole, group.layer.axis, begin, source.shape[group.layer.axis]))
            begin += source.shape[group.layer.axis]


def _stretch(whole: Surface, axis: int, first: int, count: int) -> Surface:
    return whole.crop(first, count, 0, whole.width) if axis == 1 else whole.crop(0, whole.height, first, count)
