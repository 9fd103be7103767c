"""Layers that only place data: concatenation, join, slice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvdla.compiler.builder.context import Lowering
from nvdla.compiler.builder.ir import DTYPES, Convolve, Process, Stage, Surface
from nvdla.compiler.builder.layer_types import Given, LayerType
from nvdla.compiler.builder.layers import Group, JoinSettings, Layer, NetworkTensor, Shape, SliceSettings
from nvdla.compiler.builder.quantization import fixed_point
from nvdla.errors import BuildError


def reserve(lowering: Lowering) -> None:
    """Give tensors that are concatenated their place in the result before anything writes them (outer concats
    first)."""
    bound = {tensor.name for tensor in lowering.outputs}
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
    """Return whether a part shares no atom with another part."""
    atom, end = lowering.atom_channels, part.first_channel + part.channels
    return part.first_channel % atom == 0 and (end % atom == 0 or end == whole.first_channel + whole.channels)


class ConcatLayer(LayerType):
    """Join along the channels."""

    kind = "concat"
    inputs = None
    keeps_scale = copies = True

    def shape(self, layer: Layer) -> Shape:
        """The sum of all channels."""
        return joined(layer, 0)

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Concatenate the channels."""
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
                continue
            # Moves of single channels change a scale, but no zero point.
            if (place.zero or whole.zero) and (place.scale, place.zero) != (whole.scale, whole.zero):
                fitting = lowering.temporary(group.name, *place.shape, whole)
                lowering.copy(group.name, place, fitting)
                place = fitting
            _move(lowering, group.name, place, part.first_channel - whole.first_channel, whole, halves)


def joined(layer: Layer, axis: int) -> Shape:
    """Return the shape of a layer's inputs one after the other along an axis."""
    shapes = [tensor.shape for tensor in layer.inputs]
    if not shapes or len({shape[:axis] + shape[axis + 1 :] for shape in shapes}) > 1:
        equal = ("height and width", "channels and width", "channels and height")[axis]
        raise BuildError(f"concat: inputs: must be of equal {equal}, got {shapes}", layer=layer.name)
    channels, height, width = shapes[0]
    total = sum(shape[axis] for shape in shapes)
    return ((total, height, width), (channels, total, width), (channels, height, total))[axis]


def gather(lowering: Lowering, name: str, sources: list[Surface], whole: Surface) -> None:
    """Concatenate the channels of all sources."""
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


class JoinLayer(LayerType):
    """Join along rows (``axis`` 1) or columns (2)."""

    kind = "join"
    inputs = None
    keeps_scale = copies = each_channel_alone = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> JoinSettings:
        """Return the axis."""
        return JoinSettings(given["axis"])

    def shape(self, layer: Layer) -> Shape:
        """Return the sum along the axis."""
        return joined(layer, JoinSettings.of(layer).axis)

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Concatenate the inputs along the axis."""
        return np.concatenate(inputs, axis=1 + JoinSettings.of(layer).axis)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A copy of each input."""
        whole = lowering.target(group.output)
        begin, axis = 0, JoinSettings.of(group.layer).axis
        for tensor in group.layer.inputs:
            source = lowering.source(tensor)
            lowering.copy(group.name, source, _stretch(whole, axis, begin, source.shape[axis]))
            begin += source.shape[axis]


def _stretch(whole: Surface, axis: int, first: int, count: int) -> Surface:
    return whole.crop(first, count, 0, whole.width) if axis == 1 else whole.crop(0, whole.height, first, count)


class SliceLayer(LayerType):
    """``channels`` (first, count), ``rows`` and ``columns`` (first, stride, count); None: all of them."""

    kind = "slice"
    keeps_scale = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> SliceSettings:
        """Check that the part is within the input; a range that is None is all of it."""
        shape = shapes[0]
        channels = given["channels"] or (0, shape[0])
        rows = given["rows"] or (0, 1, shape[1])
        columns = given["columns"] or (0, 1, shape[2])
        for what, size, (first, stride, count) in (
            ("channels", shape[0], (channels[0], 1, channels[1])),
            ("rows", shape[1], rows),
            ("columns", shape[2], columns),
        ):
            if first < 0 or stride < 1 or count < 1 or first + (count - 1) * stride >= size:
                raise BuildError(f"{what}: {first} + {count} with stride {stride}: must be within {size}", layer=name)
        return SliceSettings(channels, rows, columns)

    def shape(self, layer: Layer) -> Shape:
        """Return the sizes of the part."""
        part = SliceSettings.of(layer)
        return part.channels[1], part.rows[2], part.columns[2]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Every stride-th row and column of a range of channels."""
        part = SliceSettings.of(layer)
        (first, count), (top, down, rows), (left, right, columns) = part.channels, part.rows, part.columns
        x = inputs[0][:, first : first + count, top : top + (rows - 1) * down + 1 : down]
        return x[..., left : left + (columns - 1) * right + 1 : right]

    def channels(self, layer: Layer, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Those that are taken."""
        first, count = SliceSettings.of(layer).channels
        return [inputs[0][first : first + count]]

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A copy of rows and columns; channels that begin within an atom are moved by a 1x1 convolution."""
        settings = SliceSettings.of(group.layer)
        source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
        first, count = settings.channels
        aligned = first % lowering.atom_channels == 0
        part = source.every(*settings.rows, *settings.columns)
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
