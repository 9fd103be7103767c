"""Concatenation: producers write into parts of one root; parts that share atoms with others are moved by
convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import DTYPES, Convolve, Process, Stage, Surface
from nvdla.builder.layer_types import LayerType
from nvdla.builder.quantize import fixed_point
from nvdla.builder.shapes import Shape
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer, NetworkTensor


def reserve(lowering: Lowering) -> None:
    """Give tensors that are concatenated their place in the result before anything writes them (outer concats
    first)."""
    bound = {tensor.name for tensor in lowering.network.outputs}
    for group in reversed(lowering.groups):
        if group.layer.kind != "concat":
            continue
        lowering.precision = lowering.precisions[group.output.name]
        whole = lowering.target(group.output)
        for tensor, part in _parts(group, whole):
            same_scale = lowering.scales[tensor.name] == whole.scale
            fills_atoms = _fills_atoms(lowering, part, whole)
            if fills_atoms and tensor.name not in lowering.places and tensor.name not in bound and same_scale:
                lowering.places[tensor.name] = part


def _parts(group: Group, whole: Surface) -> Iterator[tuple[NetworkTensor, Surface]]:
    """Every input of a concat with its place in the result."""
    first = 0
    for tensor in group.layer.inputs:
        yield tensor, whole.channel_range(first, tensor.shape[0])
        first += tensor.shape[0]


def _fills_atoms(lowering: Lowering, part: Surface, whole: Surface) -> bool:
    """Whether a part shares no atom with another part."""
    atom, end = lowering.atom_channels, part.first_channel + part.channels
    return part.first_channel % atom == 0 and (end % atom == 0 or end == whole.first_channel + whole.channels)


class ConcatLayer(LayerType):
    """Join along the channels."""

    kind = "concat"
    inputs = None
    keeps_scale = copies = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """The sum of all channels."""
        return joined(name, shapes, 0)

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Channels behind one another."""
        return np.concatenate(inputs, axis=1)

    def channels(self, layer: Layer, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Those of all inputs."""
        return [np.concatenate(inputs)]

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Parts that share an atom are put together by convolutions."""
        whole = lowering.target(group.output)
        halves: dict[int, Surface] = {}
        for tensor, part in _parts(group, whole):
            place = lowering.source(tensor)
            if place.root is part.root and place.first_channel == part.first_channel:
                continue
            if _fills_atoms(lowering, part, whole):
                lowering.copy(group.name, place, part)
            else:
                _move(lowering, group.name, place, part.first_channel - whole.first_channel, whole, halves)


def joined(name: str, shapes: list[Shape], axis: int) -> Shape:
    """The shape of cubes behind one another along an axis."""
    if not shapes or len({shape[:axis] + shape[axis + 1 :] for shape in shapes}) > 1:
        equal = ("height and width", "channels and width", "channels and height")[axis]
        raise BuildError(f"layer {name}: concat needs inputs of one {equal}, got {shapes}")
    channels, height, width = shapes[0]
    total = sum(each[axis] for each in shapes)
    return ((total, height, width), (channels, total, width), (channels, height, total))[axis]


def gather(lowering: Lowering, name: str, sources: list[Surface], whole: Surface) -> None:
    """Put the channels of all sources behind one another."""
    first = 0
    halves: dict[int, Surface] = {}
    for source in sources:
        _move(lowering, name, source, first, whole, halves)
        first += source.channels


def _move(
    lowering: Lowering, name: str, source: Surface, first: int, whole: Surface, halves: dict[int, Surface]
) -> None:
    """Put the channels of ``source`` at channel ``first`` of ``whole``, after those of the sources before it.

    1x1 convolutions do it: one for the atoms that the source fills alone, one for each atom that it shares. The latter
    adds what the sources before have put there, which waits in ``halves`` (by atom) until the last one writes to
    ``whole``. Exact where scales are equal: every sum has one term that is not zero. With zero points, too: the
    elements themselves are moved.
    """
    atom, end = lowering.atom_channels, first + source.channels
    begin = first
    while begin < end:
        number, offset = divmod(begin, atom)
        size = min(atom, whole.channels - number * atom)
        before = None
        if offset == 0 and begin + size <= end:
            stop = end if end == whole.channels else end // atom * atom
            target = whole.channel_range(begin, stop - begin)
        else:
            stop = min(end, number * atom + size)
            target = whole.channel_range(number * atom, size)
            if stop < number * atom + size:
                target = lowering.temporary(name, size, *whole.shape[1:], whole)
            before, halves[number] = halves.get(number), target
        place(lowering, name, source, (begin - first, stop - begin), offset, target, before)
        begin = stop


def place(
    lowering: Lowering,
    name: str,
    source: Surface,
    channels: tuple[int, int],
    offset: int,
    target: Surface,
    before: Surface | None = None,
) -> None:
    """One 1x1 convolution: ``channels`` (first, count) of ``source`` from channel ``offset`` of ``target``, plus what
    is ``before``."""
    atom = lowering.atom_channels
    first = channels[0] // atom * atom
    part = source.channel_range(first, min(source.channels, channels[0] + channels[1]) - first)
    weights = np.zeros((target.channels, part.channels, 1, 1), DTYPES[lowering.precision])
    weights[offset + np.arange(channels[1]), channels[0] - first + np.arange(channels[1])] = 1
    x1 = None
    if lowering.integer and source.scale != target.scale:
        multiplier, truncate = fixed_point(source.scale / target.scale, most=31)
        x1 = Stage(multiplier=multiplier, truncate=truncate)
    x2 = Stage("add", before) if before is not None else None
    process = Process(name, None, target, x1, x2)
    lowering.operations.append(Convolve(name, part, weights, (1, 1), (0, 0, 0, 0), (1, 1), process))
