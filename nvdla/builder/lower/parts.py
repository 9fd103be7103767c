"""Parts of tensors, borders and constants: copies between surfaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder.fuse import Group
from nvdla.builder.ir import Root, Surface
from nvdla.builder.lower.concat import place
from nvdla.builder.quantize import quantize

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering


def constant(lowering: Lowering, group: Group) -> None:
    """Elements in the loadable's constants; copied where they are an output or a part of a concatenation."""
    root = _root(lowering, group.layer.name, group.layer.values, lowering.scales[group.output.name])
    if group.output.name in lowering.places or group.output in lowering.network.outputs:
        lowering.copy(group.name, root.whole, lowering.target(group.output))
    else:
        lowering.places[group.output.name] = root.whole


def _root(lowering: Lowering, name: str, values: np.ndarray, scale: float) -> Root:
    data = quantize(values, scale, lowering.precision)
    channels, height, width = values.shape
    return Root(name, channels, height, width, lowering.precision, scale, "constant", data)


def cut(lowering: Lowering, group: Group) -> None:
    """A copy of every step-th row and column; channels that begin within an atom are moved by a 1x1 convolution."""
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
        part = lowering.temporary(group.name, *needed.shape, source.scale)
        lowering.copy(group.name, needed, part)
        first -= begin
    place(lowering, group.name, part, (first, count), 0, destination)


def pad(lowering: Lowering, group: Group) -> None:
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
            border = _root(lowering, f"{group.name}/border", values, whole.scale)
            lowering.copy(group.name, border.whole, whole.crop(y, rows, x, columns))


def join(lowering: Lowering, group: Group) -> None:
    """Inputs behind one another in rows or columns."""
    whole = lowering.target(group.output)
    begin = 0
    for tensor in group.layer.inputs:
        source = lowering.source(tensor)
        lowering.copy(group.name, source, _stretch(whole, group.layer.axis, begin, source.shape[group.layer.axis]))
        begin += source.shape[group.layer.axis]


def _stretch(whole: Surface, axis: int, first: int, count: int) -> Surface:
    return whole.crop(first, count, 0, whole.width) if axis == 1 else whole.crop(0, whole.height, first, count)
