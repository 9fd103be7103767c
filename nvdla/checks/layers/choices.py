"""Units of a loadable and the model layers that each can compute.

A unit is a convolution with the SDP after it, or one operation of another engine. Values are those of
:mod:`nvdla.program.values`, by id; what goes on the fly between the units of a chain has negative ids.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvdla.checks.layers.graphs import ELEMENTWISE, ModelGraph, ModelLayer, Shape
from nvdla.loadable.descriptors.enums import Activation, ConvMode, DataFormat, EmuOpType, SdpMode, SdpType
from nvdla.program.operation import Key, Operation
from nvdla.program.program import Program
from nvdla.program.values import Value, values_of
from nvdla.util.rounding import align, ceil_div

STAGES = ("x1", "x2", "y")


@dataclass(frozen=True)
class Features:
    """Features of the SDP of a unit.

    Constants added or multiplied (per channel or per element), an activation, the number of operands from results of
    other operations; ``layer``: one number for all; ``zero_points``: its output converter subtracts an offset, or it
    adds results, so saturation at the least integer may be a ReLU.
    """

    adds: bool = False
    multiplies: bool = False
    layer: bool = False
    relu: bool = False
    lut: bool = False
    zero_points: bool = False

    @property
    def copies(self) -> bool:
        """Nothing is computed."""
        return not (self.adds or self.multiplies or self.relu or self.lut)


@dataclass(frozen=True)
class Unit:
    """``operations``, the first of which gives the ``kind``; ``source``: values that it reads, by address; ``others``:
    values of each further operand that is data; ``written``: values that it writes; ``of``: who takes them and how:
    (kind of unit, "src" or "operand"), or ("output", "")."""

    operations: tuple[Operation, ...]
    kind: str
    source: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]
    written: tuple[int, ...]
    features: Features

    @property
    def first(self) -> Operation:
        """The operation that reads the source."""
        return self.operations[0]

    @property
    def last(self) -> Operation:
        """The operation that makes the result."""
        return self.operations[-1]

    @property
    def plain(self) -> bool:
        """A convolution whose kernels are in the descriptor as the model has them."""
        op = self.first.op
        return bool(op.data_format == DataFormat.FEATURE and not self.winograd)

    @property
    def winograd(self) -> bool:
        """A convolution by Winograd's method, which makes blocks of 4 x 4."""
        return bool(self.first.op.conv_mode == ConvMode.WINOGRAD)


@dataclass(frozen=True)
class Flow:
    """``units`` in order; ``values`` by id (those on the fly have none); ``takers``: who takes each value."""

    units: list[Unit]
    values: dict[int, Value]
    takers: dict[int, list[tuple[str, str]]]


def flow_of(program: Program) -> Flow:
    """The units of a program and the values between them."""
    chains = program.chains
    values = values_of(program.loadable, chains)
    read: dict[tuple[Key, str], list[Value]] = defaultdict(list)
    written: dict[Key, list[int]] = defaultdict(list)
    for value in values:
        for key, role in value.readers:
            read[key, role].append(value)
        if value.writer is not None:
            written[value.writer].append(value.id)
    for operation in program.operations:
        for access in operation.reads:
            if not read[operation.key, access.role]:  # after the end of a memory, where nothing is
                read[operation.key, access.role] = [value for value in values if value.memory == access.memory][:1]
    units: list[Unit] = []
    for chain in chains:
        units += _units(chain, read, written, -1 - len(units))
    takers: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for unit in units:
        for number in unit.source:
            takers[number].append((unit.kind, "src"))
        for number in (value for other in unit.others for value in other):
            takers[number].append((unit.kind, "operand"))
    for value in values:
        if value.kind == "output":
            takers[value.id].append(("output", ""))
    return Flow(units, {value.id: value for value in values}, takers)


def _units(
    chain: Sequence[Operation], read: dict[tuple[Key, str], list[Value]], written: dict[Key, list[int]], flying: int
) -> list[Unit]:
    """The units of a chain; ``flying``: the first id for what goes from one to the next on the fly."""
    groups: list[list[Operation]] = []
    for operation in chain:
        if operation.engine == "sdp" and groups and groups[-1][0].engine == "conv":
            groups[-1].append(operation)
        else:
            groups.append([operation])
    units = []
    for place, group in enumerate(groups):
        source = (flying - place + 1,) if place else _source(group[0], read)
        outputs = tuple(written[group[-1].key]) if place == len(groups) - 1 else (flying - place,)
        sdp = group[-1] if group[-1].engine == "sdp" else None
        others = _data_operands(sdp, read) if sdp else ()
        units.append(Unit(tuple(group), group[0].engine, source, others, outputs, _features(sdp, read)))
    return units


def _source(operation: Operation, read: dict[tuple[Key, str], list[Value]]) -> tuple[int, ...]:
    """Data that it reads, in the order of their addresses."""
    roles = {access.role for access in operation.reads}
    if operation.engine in ("conv", "sdp", "pdp", "cdp", "rubik", "cpu"):
        roles = {role for role in roles if role.startswith("src")}
    values = [value for role in sorted(roles) for value in read[operation.key, role]]
    values.sort(key=lambda value: (value.memory, value.offset))
    return tuple(dict.fromkeys(value.id for value in values))


def _data_operands(sdp: Operation, read: dict[tuple[Key, str], list[Value]]) -> tuple[tuple[int, ...], ...]:
    """Operands that are results, not constants of the file."""
    operands = []
    for stage in STAGES:
        values = [value for value in read[sdp.key, stage] if value.kind != "constant"]
        if values and getattr(sdp.op, f"{stage}_op").mode == SdpMode.PER_POINT:
            operands.append(tuple(value.id for value in sorted(values, key=lambda value: (value.memory, value.offset))))
    return tuple(operands)


def _features(sdp: Operation | None, read: dict[tuple[Key, str], list[Value]]) -> Features:
    if sdp is None:
        return Features()
    adds = multiplies = layer = relu = lut = False
    for name in STAGES:
        stage = getattr(sdp.op, f"{name}_op")
        if not stage.enable:
            continue
        relu |= stage.act in (Activation.RELU, Activation.PRELU)
        lut |= stage.act == Activation.LUT
        data = stage.mode == SdpMode.PER_POINT and any(value.kind != "constant" for value in read[sdp.key, name])
        if data:
            continue
        layer |= stage.mode == SdpMode.PER_LAYER and stage.type != SdpType.NONE
        adds |= stage.type in (SdpType.ADD, SdpType.BOTH)
        multiplies |= stage.type in (SdpType.MUL, SdpType.BOTH)
    return Features(adds, multiplies, layer, relu, lut, _has_zero_points(sdp, read))


def _has_zero_points(sdp: Operation, read: dict[tuple[Key, str], list[Value]]) -> bool:
    """Check whether the integers that an SDP writes may have a zero point: a sum takes those of its operands out in the
    output converter, where they may cancel."""
    integer = sdp.precisions is not None and sdp.precisions[-1].name != "FP16"
    return integer and bool(sdp.op.out_cvt.offset or _data_operands(sdp, read))


#: layers that one operation of the SDP may hold
MOST_TOGETHER = 6


@dataclass(frozen=True)
class Label:
    """Place of a value in the model.

    It is at ``point``, or ``inside`` a layer (by name) that begins there and has several operations (a deconvolution:
    that ends there).
    """

    point: int
    inside: str | None = None


@dataclass(frozen=True)
class LayerChoice:
    """``layers`` that a unit does, the ``label`` of its result (None: not known). ``covers``: it makes the whole first
    layer, so nothing else does that from the same data; ``checked``: its weights are the layer's."""

    layers: tuple[ModelLayer, ...]
    label: Label | None
    covers: bool = False
    checked: bool = False


Labels = Mapping[int, Label | None]


def choices_of(unit: Unit, graph: ModelGraph, labels: Labels) -> Iterator[LayerChoice]:
    """Everything that a unit may be, the likeliest first."""
    make = _CHOICES.get(unit.kind)
    if make is None:
        return
    for label in sources(unit.source, graph, labels):
        yield from make(unit, graph, labels, label)


def sources(values: Sequence[int], graph: ModelGraph, labels: Labels) -> list[Label]:
    """Return the possible combinations of values that a unit reads."""
    value_labels = [labels.get(value) for value in values]
    known = [value_label for value_label in value_labels if value_label is not None]
    if not known or len(known) < len(value_labels):
        return []
    parts = [label for place, label in enumerate(known) if not place or label != known[place - 1]]
    if len(set(parts)) == 1:
        return parts[:1]
    if any(part.inside for part in parts):
        return []
    return [Label(point) for point in graph.joined([part.point for part in parts])]


def _convolution(unit: Unit, graph: ModelGraph, labels: Labels, label: Label) -> Iterator[LayerChoice]:
    if label.inside is not None:
        return
    layers = [layer for layer in graph.takers(label.point, ("conv", "deconv", "pool")) if _fits(unit, layer, graph)]
    for layer in layers:
        whole = layer.shape is not None and _makes_all(unit, layer.shape)
        if layer.kind == "deconv" and not whole:
            for choice in _elementwise(unit, graph, labels, layer.output, first=layer):
                yield LayerChoice(choice.layers, Label(choice.label.point, layer.name) if choice.label else None)
            continue
        choices = list(_elementwise(unit, graph, labels, layer.output, first=layer))
        if _holds_factors(unit):
            choices.sort(key=lambda choice: not any(layer.kind == "affine" for layer in choice.layers[1:2]))
        for choice in choices:
            yield LayerChoice(choice.layers, choice.label, covers=whole)


def _holds_factors(unit: Unit) -> bool:
    """Addends and factors a channel in fp16 are a batch normalization's; in int8 they may be scales."""
    precisions = unit.last.precisions
    integer = precisions is None or precisions[0].name != "FP16"
    return unit.features.adds and unit.features.multiplies and not integer


def _fits(unit: Unit, layer: ModelLayer, graph: ModelGraph) -> bool:
    """Check whether a convolution can be (a part of) a layer, by shapes, kernels and strides."""
    op, source, output = unit.first.op, unit.first.input, unit.last.output
    if layer.shape is None or source is None or output is None:
        return layer.shape is None
    if layer.kind == "pool":
        return _averages(unit, layer, output)
    if layer.kind == "deconv":
        return output[0] <= layer.shape[0] and source[0] == _channels(graph, layer, source)
    if not _within(output, _room(unit, layer.shape)) and not (layer.skewed and _within(output, _turned(layer.shape))):
        return False
    if not unit.plain:
        return True
    if layer.whole:
        before = graph.shapes.get(layer.inputs[0])
        taken = op.kernel_width_csc * op.kernel_height_csc * op.kernel_channel_csc
        return before is None or taken == math.prod(before)
    kernel, stride = (op.kernel_height_csc, op.kernel_width_csc), (op.conv_stride_y, op.conv_stride_x)
    channels = _channels(graph, layer, source)
    some_groups = layer.groups > 1 and op.kernel_channel_csc < channels
    some_groups &= op.kernel_channel_csc % max(channels // layer.groups, 1) == 0
    return kernel == layer.window and stride == layer.stride and (op.kernel_channel_csc == channels or some_groups)


def _within(output: Shape, shape: Shape) -> bool:
    return all(size <= most for size, most in zip(output, shape, strict=True))


def _turned(shape: Shape) -> Shape:
    return shape[0], shape[2], shape[1]


def _room(unit: Unit, shape: Shape) -> Shape:
    """Return the possible outputs of a unit for a layer: Winograd makes blocks of 4 x 4."""
    if not unit.winograd:
        return shape
    return shape[0], align(shape[1], 4), align(shape[2], 4)


def _makes_all(unit: Unit, shape: Shape) -> bool:
    output = unit.last.output
    return output is not None and all(size >= least for size, least in zip(output, shape, strict=True))


def _averages(unit: Unit, layer: ModelLayer, output: Shape) -> bool:
    """An average over the whole image may be a convolution.

    It may also take each atom of the channels, with all its pixels, as the channels of one pixel.
    """
    op, atom = unit.first.op, unit.first.config.memory_atom // unit.first.element_bytes("src_data")
    if not unit.plain or layer.shape is None or layer.shape[1:] != (1, 1):
        return False
    kernel, pixels = (op.kernel_height_csc, op.kernel_width_csc), math.prod(layer.window)
    if kernel == (1, 1) and op.kernel_channel_csc == atom * pixels:
        return output[0] == atom and output[1] * output[2] == ceil_div(layer.shape[0], atom)
    return kernel == layer.window and output[1:] == (1, 1)


def _channels(graph: ModelGraph, layer: ModelLayer, source: Shape) -> int:
    before = graph.shapes.get(layer.inputs[0])
    return source[0] if before is None else before[0]


def _elementwise(
    unit: Unit, graph: ModelGraph, labels: Labels, point: int, first: ModelLayer | None = None
) -> Iterator[LayerChoice]:
    """Layers element by element that the SDP of a unit may do after a point (and after ``first``): every run of them
    that uses the unit's activation, table and operands, the shortest first. Saturation may be a ReLU, but need not."""
    others = [label for other in unit.others for label in sources(other, graph, labels)[:1]]
    if len(others) < len(unit.others):
        return
    start: tuple[ModelLayer, ...] = (first,) if first else ()
    does = unit.features
    paths = [(start, point, does.relu or does.zero_points, does.lut, tuple(others))]
    while paths:
        layers, at, relu, lut, operands = paths.pop(0)
        if not (relu and does.relu) and not lut and not operands and layers:
            yield LayerChoice(layers, Label(at))
        if len(layers) > MOST_TOGETHER:
            continue
        for layer in graph.takers(at, ELEMENTWISE):
            rest = _used(layer, at, graph, relu, lut, operands)
            if rest is not None and (first is not None or _may_hold(unit, layer)):
                paths.append(((*layers, layer), layer.output, *rest))


def _used(
    layer: ModelLayer, at: int, graph: ModelGraph, relu: bool, lut: bool, operands: tuple[Label, ...]
) -> tuple[bool, bool, tuple[Label, ...]] | None:
    """Return the activation, table and operands that remain after a layer; None if the layer needs others."""
    if layer.kind == "affine":
        return relu, lut, operands
    if layer.kind == "relu":
        return (False, lut, operands) if relu else None
    if layer.kind == "lut":
        return (relu, False, operands) if lut else None
    for place, other in enumerate(operands):
        here = [point for point in layer.inputs if point in graph.same(at)]
        there = [point for point in layer.inputs if point in graph.same(other.point)]
        if here and there and other.inside is None and (set(here) != set(there) or layer.inputs.count(here[0]) > 1):
            return relu, lut, operands[:place] + operands[place + 1 :]
    return None


def _may_hold(unit: Unit, layer: ModelLayer) -> bool:
    """Check whether an SDP alone has the constants that a layer needs."""
    return layer.kind != "affine" or unit.features.adds or unit.features.multiplies


def _sdp(unit: Unit, graph: ModelGraph, labels: Labels, label: Label) -> Iterator[LayerChoice]:
    does = unit.features
    if label.inside is not None:
        yield from _continued(unit, graph, labels, label)
        return
    if does.copies and not unit.others:
        yield LayerChoice(_before(graph, label.point), label)
        return
    yield from _elementwise(unit, graph, labels, label.point)
    if does.multiplies and not (does.adds or does.relu or does.lut or unit.others):
        for layer in graph.takers(label.point, ("affine", "relu")):
            if layer.kind == "affine" and layer.adds:
                yield LayerChoice((layer,), Label(label.point, layer.name))
            elif layer.kind == "relu":  # scaled for it: still the result of the layer before
                yield LayerChoice(_before(graph, label.point) or (layer,), Label(label.point, layer.name))


def _continued(unit: Unit, graph: ModelGraph, labels: Labels, label: Label) -> Iterator[LayerChoice]:
    """The second operation of a layer: the addend after the factor, the activation after its scaling."""
    for layer in graph.takers(label.point, ("affine", "relu", "eltwise")):
        if layer.name != label.inside:
            continue
        if layer.kind == "affine" and unit.features.adds and not unit.features.multiplies:
            yield from _elementwise(unit, graph, labels, layer.output, first=layer)
        if layer.kind == "relu" and unit.features.relu:
            yield LayerChoice((layer,), Label(layer.output))


def _pooling(unit: Unit, graph: ModelGraph, labels: Labels, label: Label) -> Iterator[LayerChoice]:
    op, output = unit.first.op, unit.first.output
    for layer in graph.takers(label.point, ("pool",)):
        kernel, stride = (op.pool_height + 1, op.pool_width + 1), (op.stride_y, op.stride_x)
        before = graph.shapes.get(layer.inputs[0])
        channels = before is None or output is None or output[0] <= before[0]
        if kernel == layer.window and channels and (stride == layer.stride or layer.shape is None or _single(layer)):
            yield LayerChoice((layer,), Label(layer.output), covers=output == layer.shape)


def _single(layer: ModelLayer) -> bool:
    """A window that is all of the image: the stride says nothing."""
    return layer.shape is not None and layer.shape[1:] == (1, 1)


def _norm(unit: Unit, graph: ModelGraph, labels: Labels, label: Label) -> Iterator[LayerChoice]:
    table = unit.first.op.bypass_sqsum and unit.first.op.bypass_out_mul
    for layer in graph.takers(label.point, ("lut",) if table else ("norm",)):
        yield LayerChoice((layer,), Label(layer.output))


def _rubik(unit: Unit, graph: ModelGraph, labels: Labels, label: Label) -> Iterator[LayerChoice]:
    """It puts the parts of a deconvolution together; else it only moves data."""
    layer = next((candidate for candidate in graph.layers if candidate.name == label.inside), None)
    if layer is not None:
        yield LayerChoice((layer,), Label(label.point))
    else:
        yield from _copy(unit, graph, labels, label)


def _copy(unit: Unit, graph: ModelGraph, labels: Labels, label: Label) -> Iterator[LayerChoice]:
    yield LayerChoice(_before(graph, label.point), label)


def _before(graph: ModelGraph, point: int) -> tuple[ModelLayer, ...]:
    """The layer whose result a point is."""
    producer = graph.producer.get(point)
    return (producer,) if producer else ()


def _cpu(unit: Unit, graph: ModelGraph, labels: Labels, label: Label) -> Iterator[LayerChoice]:
    softmax = getattr(unit.first.descriptors, "op_type", None) == EmuOpType.SOFTMAX
    for layer in graph.takers(label.point, ("softmax",) if softmax else ("affine",)):
        if layer.cpu:
            yield LayerChoice((layer,), Label(layer.output))


_CHOICES: dict[str, Callable[[Unit, ModelGraph, Labels, Label], Iterator[LayerChoice]]] = {
    "conv": _convolution,
    "sdp": _sdp,
    "pdp": _pooling,
    "cdp": _norm,
    "rubik": _rubik,
    "bdma": _copy,
    "cpu": _cpu,
}
