"""Parts of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.concat import place
from nvdla.builder.shapes import Shape
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class SliceLayer(LayerType):
    """``channels`` (first, count), ``rows`` and ``columns`` (first, stride, count); None: all of them."""

    kind = "slice"
    keeps_scale = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """What is taken must lie within the input."""
        shape = shapes[0]
        channels = settings["channels"] or (0, shape[0])
        rows = settings["rows"] or (0, 1, shape[1])
        columns = settings["columns"] or (0, 1, shape[2])
        for what, size, (first, stride, count) in (
            ("channels", shape[0], (channels[0], 1, channels[1])),
            ("rows", shape[1], rows),
            ("columns", shape[2], columns),
        ):
            if first < 0 or stride < 1 or count < 1 or first + (count - 1) * stride >= size:
                raise BuildError(f"layer {name}: {what} {first} + {count} with stride {stride} are not within {size}")
        settings.update(channels=channels, rows=rows, columns=columns)
        return channels[1], rows[2], columns[2]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Every stride-th row and column of a range of channels."""
        (first, count), (top, down, rows), (left, right, columns) = layer.channels, layer.rows, layer.columns
        x = inputs[0][:, first : first + count, top : top + (rows - 1) * down + 1 : down]
        return x[..., left : left + (columns - 1) * right + 1 : right]

    def channels(self, layer: Layer, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Those that are taken."""
        first, count = layer.channels
        return [inputs[0][first : first + count]]

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A copy of rows and columns; channels that begin within an atom are moved by a 1x1 convolution."""
        layer = group.layer
        source, destination = lowering.source(layer.inputs[0]), lowering.target(group.output)
        first, count = layer.channels
        aligned = first % lowering.atom_channels == 0
        part = source.every(*layer.rows, *layer.columns)
        if aligned:
            lowering.copy(group.name, part.channel_range(first, count), destination)
            return
        if part.shape != source.shape:
            begin = first // lowering.atom_channels * lowering.atom_channels
            needed = part.channel_range(begin, first + count - begin)
            part = lowering.temporary(group.name, *needed.shape, source)
            lowering.copy(group.name, needed, part)
            first -= begin
        place(lowering, group.name, part, (first, count), 0, destination)
