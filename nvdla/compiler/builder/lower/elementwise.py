"""Layers of two inputs: sums, products and extrema, residual additions, constants, zero points.

The other summand is X2's operand, read from memory while the convolution delivers (per point). X1 brings the
accumulators to units that are a power of two finer than those of the other summand, whose left shift is all that X2
can do to it.

After a ReLU a symmetric tensor uses 128 of its elements. With a zero point ``z`` (the element that stands for 0, -128
there) its units are half as wide, at no cost:

* the SDP's output converter subtracts an offset; a ReLU is its saturation at -128;
* a convolution pads with ``z`` (PAD_VALUE of the CSC and the CDMA), and its bias takes up what ``z`` adds per kernel;
* pooling and copies keep the zero point; averages have registers for what padding adds;
* sums take the constant out in the output converter, products in X1, tables by their entries.

A tensor gets a zero point if all its writers and readers, and all tensors that share its scale, support it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from nvdla.compiler.builder.cbuf import buffer_of, weight_bytes
from nvdla.compiler.builder.context import Lowering, name_of_copy
from nvdla.compiler.builder.ir import BYTES, Process, Root, Stage, Surface
from nvdla.compiler.builder.layer_types import Given, LayerType, bounds_of, layer_type
from nvdla.compiler.builder.layers import (
    ConstantSettings,
    ConvSettings,
    ElementwiseSettings,
    Group,
    Layer,
    NetworkTensor,
    PadSettings,
    PoolSettings,
    Shape,
)
from nvdla.compiler.builder.lower.pointwise import ALU
from nvdla.compiler.builder.network import Network
from nvdla.compiler.builder.quantization import LARGEST, halves, quantize
from nvdla.errors import BuildError
from nvdla.util.precision import Precision


def values_of(layer: Layer) -> np.ndarray:
    """Return the numbers of a constant, (channels, height, width)."""
    return ConstantSettings.of(layer).values


def operation_of(layer: Layer) -> str:
    """Return the operation of an elementwise layer."""
    return ElementwiseSettings.of(layer).operation


class ConstantLayer(LayerType):
    """A tensor of fixed numbers."""

    kind = "constant"
    inputs = 0
    zero_points = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> ConstantSettings:
        """Return ``values``, which must be (channels, height, width) of finite numbers."""
        values = np.asarray(given["values"], np.float64)
        if values.ndim != 3 or not np.all(np.isfinite(values)):
            raise BuildError("a constant must be (channels, height, width) of finite numbers", layer=name)
        return ConstantSettings(values)

    def shape(self, layer: Layer) -> Shape:
        """Return the shape of the numbers."""
        channels, height, width = values_of(layer).shape
        return channels, height, width

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """One image, the same for all."""
        return np.asarray(values_of(layer)[None])

    def own_scale(self, layer: Layer, precision: str) -> float:
        """The largest magnitude is the largest integer."""
        return max(float(np.max(np.abs(values_of(layer)))), 1e-30) / LARGEST[precision]

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Elements in the loadable's constants; copied where they are an output or a part of a concatenation."""
        name = group.output.name
        root = constant_root(
            lowering, group.layer.name, values_of(group.layer), lowering.scales[name], lowering.zero(name)
        )
        if name in lowering.places or group.output in lowering.ends:
            lowering.copy(group.name, root.whole, lowering.target(group.output))
        else:
            lowering.places[name] = root.whole


def check_factors(lowering: Lowering, layer: Layer) -> None:
    """The constants that a product in halves multiplies with can be held. Raises BuildError."""
    for tensor in layer.inputs:
        if not lowering.integer and operation_of(layer) == "multiply" and tensor.producer.kind == "constant":
            halves(layer.name, "factor", values_of(tensor.producer))


def constant_root(lowering: Lowering, name: str, values: np.ndarray, scale: float, zero: int) -> Root:
    """Memory that holds numbers (C, H, W) in the precision of the group that is lowered."""
    data = quantize(values, scale, lowering.precision, zero)
    channels, height, width = values.shape
    return Root(name, channels, height, width, lowering.precision, scale, "constant", data, zero=zero)


LARGEST_SUM = 2.0**30
"""Units of the product that the summand may have: both together fit 32 bits."""


def takes(lowering: Lowering, maker: Group, group: Group) -> bool:
    """Return whether a sum can be made by the operation that makes the product which it takes."""
    layers = maker.layer, group.layer
    if any(layer.kind != "elementwise" or len(set(layer.inputs)) != 2 for layer in layers):
        return False
    if (operation_of(maker.layer), operation_of(group.layer)) != ("multiply", "add") or maker.activation is not None:
        return False
    if maker.output in lowering.ends or len(lowering.consumers(maker.output)) != 1:
        return False
    names = {group.output.name, *(tensor.name for layer in layers for tensor in layer.inputs)}
    same = len({lowering.precisions[name] for name in names}) == 1
    if not same or _constant(maker) is None or _addend(maker, group).producer.kind != "constant":
        return False
    unit = float(np.prod([lowering.scales[tensor.name] for tensor in maker.layer.inputs]))
    return not lowering.integer or float(np.max(np.abs(values_of(_addend(maker, group).producer)))) < LARGEST_SUM * unit


def lower(lowering: Lowering, maker: Group, group: Group) -> None:
    """Lower a product and a sum.

    The factor has its calibrated scale, the summand has units of the product shifted left.
    """
    check_factors(lowering, maker.layer)
    factor = _constant(maker)
    assert factor is not None, "the product has a constant"
    source = lowering.source(next(tensor for tensor in maker.layer.inputs if tensor is not factor))
    factors, target = lowering.source(factor), lowering.target(group.output)
    unit = source.scale * factors.scale
    summand, shift = _summand(lowering, _addend(maker, group), unit)
    stages = Stage(multiplier=factors), Stage("add", summand, shift, relu=group.activation is not None)
    name = "+".join([*maker.members, *group.members])
    lowering.operations.append(Process(name, source, target, *stages, convert=lowering.convert(unit, target)))


def _summand(lowering: Lowering, tensor: NetworkTensor, unit: float) -> tuple[Surface, int]:
    """The constant in the finest units that hold its largest element, and by how many bits they exceed ``unit``."""
    if not lowering.integer:
        return lowering.source(tensor), 0
    values = values_of(tensor.producer)
    largest = float(np.max(np.abs(values))) / (LARGEST[lowering.precision] * unit)
    shift = max(0, int(np.ceil(np.log2(max(largest, 1.0)))))
    scale = unit * 2.0**shift
    data = quantize(values, scale, lowering.precision)
    return Root(f"{tensor.name}/steps", *tensor.shape, lowering.precision, scale, "constant", data).whole, shift


def _constant(maker: Group) -> NetworkTensor | None:
    return next((tensor for tensor in maker.layer.inputs if tensor.producer.kind == "constant"), None)


def _addend(maker: Group, group: Group) -> NetworkTensor:
    return next(tensor for tensor in group.layer.inputs if tensor is not maker.output)


MOST_SHIFT, LEAST_SHIFT = 14, 8
"""Bits by which the units of the sum are finer than the other summand's: fewer than 8 would cost accuracy."""
SUM_BITS = 29
"""Bits of the largest summand in those units: the sum of both, and some more, has 31."""


def claimed(lowering: Lowering) -> dict[str, Group]:
    """The convolutions that are computed together with a sum (product ...), by the name of the sum's tensor."""
    makers = lowering.makers
    order = {group.output.name: position for position, group in enumerate(lowering.groups)}
    partners: dict[str, Group] = {}
    for group in lowering.groups:
        if group.layer.kind == "elementwise" and len(set(group.layer.inputs)) == 2:
            # What a maker's own operation already includes cannot include a further layer.
            free = [tensor for tensor in group.layer.inputs if tensor.name not in partners]
            able = [tensor for tensor in free if _can_wait(lowering, makers.get(tensor.name), group)]
            if able:
                partners[group.output.name] = makers[max(able, key=lambda tensor: order[tensor.name]).name]
    return partners


def without_zero_points(lowering: Lowering) -> list[str]:
    """Tensors that the SDP multiplies by unchanged from memory: a fused product saves more than finer units."""
    plain_inputs: list[NetworkTensor] = []
    makers = claimed(lowering) if lowering.level else {}
    for group in (candidate for candidate in lowering.groups if candidate.output.name in makers):
        maker = makers[group.output.name]
        product = maker.layer if maker.layer.kind == "elementwise" else group.layer
        if operation_of(product) == "multiply":
            plain_inputs += [tensor for tensor in product.inputs if tensor is not maker.output]
    return [tensor.name for tensor in plain_inputs]


def _can_wait(lowering: Lowering, maker: Group | None, group: Group) -> bool:
    """Return whether a summand comes from a dense convolution without other consumers or fused operations.

    A product of constants also accepts the sum.
    """
    if maker is not None and takes(lowering, maker, group):
        return True
    settings = maker.layer.settings if maker is not None else None
    if maker is None or not isinstance(settings, ConvSettings):
        return False
    if settings.groups != 1 or maker.activation is not None:
        return False
    tensor = maker.output
    if tensor in lowering.ends or len(lowering.consumers(tensor)) != 1:
        return False
    if not _fits(lowering, maker):
        return False
    names = {tensor.name, group.output.name, *(tensor.name for tensor in group.layer.inputs)}
    if len({lowering.precisions[name] for name in names}) != 1:
        return False
    return not lowering.integer or _shift(lowering, maker, group) >= LEAST_SHIFT


def _fits(lowering: Lowering, maker: Group) -> bool:
    """Return whether an atom's kernels take at most half of the convolution buffer: then no part has fewer kernels,
    which would have to be put together before the sum."""
    kernels, channels, rows, columns = maker.kernels.shape
    buffer = buffer_of(lowering.config)
    size = weight_bytes(min(kernels, lowering.atom_channels), channels, rows, columns, lowering.default)
    return size <= buffer.banks * buffer.bank_bytes // 2


def _other(maker: Group, group: Group) -> NetworkTensor:
    """Return the tensor that a convolution's result is combined with."""
    return next(tensor for tensor in group.layer.inputs if tensor is not maker.output)


def _shift(lowering: Lowering, maker: Group, group: Group) -> int:
    """By how many bits the units in which both are combined are finer than those of the other one; of a product, than
    those of the convolution's own result."""
    if operation_of(group.layer) == "multiply":
        # Bits of the product, and as many as a result beyond the calibrated range may have more.
        return min(MOST_SHIFT, SUM_BITS - 2 * (8 * BYTES[lowering.precisions[group.output.name]] - 1))
    scales, mine, other, total = lowering.scales, maker.output.name, _other(maker, group).name, group.output.name
    room = LARGEST[lowering.precisions[total]]
    largest = max(scales[name] * (room + abs(lowering.zero(name))) for name in (mine, other, total))
    return min(MOST_SHIFT, int(np.floor(np.log2(scales[other] * 2.0**SUM_BITS / largest))))


def together(lowering: Lowering, maker: Group, group: Group) -> Group:
    """The convolution's group with the result of both."""
    other, multiplies = lowering.source(_other(maker, group)), operation_of(group.layer) == "multiply"
    shift = _shift(lowering, maker, group) if lowering.integer else 0
    return replace(
        maker,
        members=[*maker.members, *group.members],
        output=group.output,
        activation=group.activation,
        summand=other,
        summand_shift=shift,
        combines=operation_of(group.layer),
        unit=(lowering.scales[maker.output.name] if multiplies else other.scale) * 2.0**-shift,
    )


_FORMS = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


class ElementwiseLayer(LayerType):
    """``operation`` "add", "multiply", "maximum" or "minimum" of two or more inputs of one shape."""

    kind = "elementwise"
    inputs = None

    def parse(self, name: str, shapes: list[Shape], given: Given) -> ElementwiseSettings:
        """Check that all inputs have one shape."""
        what = given["operation"]
        if len(shapes) < 2 or len(set(shapes)) > 1:
            raise BuildError(
                f"{what}: must have two or more inputs of equal shape, got {sorted(set(shapes))}", layer=name
            )
        return ElementwiseSettings(what)

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """One input after the other."""
        return reduce(_FORMS[operation_of(layer)], inputs)

    def channels(self, layer: Layer, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """All summands of a channel have one factor; factors of a product would multiply."""
        return [] if operation_of(layer) == "multiply" else inputs

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A chain of two-input operations; ReLU follows the last. Partial results have the scale of the output.

        One that waits for a convolution is made by that convolution's SDP operation.
        """
        check_factors(lowering, group.layer)
        maker = lowering.claimed.get(group.output.name)
        if maker is not None:
            if maker.layer.kind == "elementwise":
                lower(lowering, maker, group)
            else:
                layer_type("convolution").lower(lowering, together(lowering, maker, group))
            return
        sources = [lowering.source(tensor) for tensor in group.layer.inputs]
        result, whole = sources[0], lowering.target(group.output)
        for index, summand in enumerate(sources[1:], start=2):
            last = index == len(sources)
            target = whole if last else lowering.temporary(group.name, *whole.shape, whole)
            relu = last and group.activation is not None
            lowering.operations.append(_combine(lowering, group, result, summand, target, relu))
            result = target


def _combine(lowering: Lowering, group: Group, first: Surface, second: Surface, target: Surface, relu: bool) -> Process:
    operation = operation_of(group.layer)
    if operation == "multiply":
        return _product(lowering, group, first, second, target, relu)
    alu = ALU[operation]
    plain = not (first.zero or second.zero or target.zero)
    if not lowering.integer or (first.scale == second.scale and plain):
        convert = lowering.convert(first.scale, target)
        return Process(group.name, first, target, Stage(alu, second, relu=relu), convert=convert)
    # The operand of X2 can only be shifted left, so X1 multiplies the one with the smaller scale:
    # first * m and second << k have units of the same worth.
    if first.scale > second.scale:
        first, second = second, first
    shift = min(14, 30 - 8 * BYTES[lowering.precision])
    multiplier = int(np.floor(first.scale / second.scale * 2.0**shift + 0.5))
    constant = first.zero * multiplier + (second.zero << shift)
    # Where the constant is still in, it is the lower end of the elements that cuts off what is negative.
    x1, x2 = Stage(multiplier=multiplier), Stage(alu, second, shift, relu=relu and not constant)
    convert = lowering.convert(second.scale * 2.0**-shift, target, constant)
    return Process(group.name, first, target, x1, x2, convert=convert)


def _product(lowering: Lowering, group: Group, first: Surface, second: Surface, target: Surface, relu: bool) -> Process:
    """X1 takes a zero point from the first factor; the second, read from memory, must have none."""
    if second.zero:
        first, second = second, first
    convert = lowering.convert(first.scale * second.scale, target)
    product = Stage(multiplier=second, relu=relu)
    if not first.zero:
        return Process(group.name, first, target, product, convert=convert)
    return Process(group.name, first, target, Stage("add", -first.zero), product, convert=convert)


LEVELS, LOWEST, HIGHEST = 255, -128, 127
# Units that are not at least this much finer are not worth a constant in every bias.
WORTH = 0.9
# The C model of the PDP reads past its table for padded windows of 8 columns (cmod/pdp/pdp_hls_wrapper.cpp:110).
_WIDEST_PADDED_AVERAGE = 7


@dataclass(frozen=True)
class ZeroPoint:
    """The real number of one unit, and the element that stands for 0."""

    scale: float
    zero: int


Find = Callable[[str], str]


def chosen(lowering: Lowering, find: Find) -> dict[str, ZeroPoint]:
    """The zero points of tensors by name, and of the int8 copies of int16 tensors (:func:`name_of_copy`). ``find``: the
    tensor that speaks for all of one scale."""
    calibration = lowering.calibration
    if lowering.default != Precision.INT8 or calibration is None or not (calibration.zero_points or calibration.ranges):
        return {}
    makers, inputs = lowering.makers, set(lowering.inputs)
    members: dict[str, list[NetworkTensor]] = {}
    for tensor in lowering.tensors:
        members.setdefault(find(tensor.name), []).append(tensor)
    points = {}
    for lead, alike in members.items():
        if all(_can_make(lowering, tensor, makers.get(tensor.name)) for tensor in alike):
            # An input of the network keeps the scale that the application knows.
            telling = [tensor for tensor in alike if tensor in inputs] or alike
            is_stated = any(tensor.name in calibration.ranges for tensor in telling)
            point = _point([_range(lowering, tensor, makers.get(tensor.name)) for tensor in telling], is_stated)
            if point is not None:
                points[lead] = point
    copies = _copies(lowering)
    for name, tensor in copies.items():
        point = _point([_range(lowering, tensor, makers.get(tensor.name))], False)
        if point is not None:
            points[name] = point
    for name in without_zero_points(lowering):
        points.pop(find(name), None)
    _take_refused(lowering, points, find)
    by_tensor = {tensor.name: points[lead] for lead, alike in members.items() if lead in points for tensor in alike}
    return by_tensor | {name: points[name] for name in copies if name in points}


def _copies(lowering: Lowering) -> dict[str, NetworkTensor]:
    """The int16 tensors that int8 layers take, by the names of their int8 copies."""
    return {
        name_of_copy(tensor, Precision.INT8): tensor
        for group in lowering.groups
        for tensor in group.layer.inputs
        if lowering.precisions[tensor.name] != lowering.precisions[group.output.name] == Precision.INT8
    }


def _can_make(lowering: Lowering, tensor: NetworkTensor, group: Group | None) -> bool:
    """Bound tensors have zero points where that is said: by the model, or of an output by calibration."""
    ranges = lowering.scales_given.ranges
    if (group is None or tensor in lowering.ends) and tensor.name not in ranges:
        return False
    if lowering.precisions[tensor.name] != Precision.INT8:
        return False
    return group is None or _has_zero_points(group.layer)


def _has_zero_points(layer: Layer) -> bool:
    """Check whether the kind of a layer supports a zero point of its result."""
    if layer.kind == "elementwise":
        return operation_of(layer) in ("add", "multiply") and len(layer.inputs) == 2
    return layer_type(layer.kind).zero_points or layer_type(layer.kind).keeps_scale


def refusal_of(network: Network, name: str) -> str:
    """Return which layers keep a tensor of a network from having a zero point, as a clause of a sentence."""
    layer = network.layer(name)
    if layer.kind != "input" and not _has_zero_points(layer):
        return f"its producer ({_kind(layer)}) has no zero point"
    consumers = network.consumers(layer.output)
    refusing = [
        reader for reader in consumers if not (_has_zero_points(reader) or layer_type(reader.kind).shift_invariant)
    ] or [reader for reader in consumers if reader.kind == "elementwise"]
    if not refusing:
        return "layers that share its scale do not support its zero point"
    verb = "does" if len(refusing) == 1 else "do"
    return f"{', '.join(f'{reader.name} ({_kind(reader)})' for reader in refusing)} {verb} not support its zero point"


def _kind(layer: Layer) -> str:
    return operation_of(layer) if layer.kind == "elementwise" else layer.kind


def _range(lowering: Lowering, tensor: NetworkTensor, group: Group | None) -> tuple[float, float] | None:
    """(lowest, highest) real number of a tensor that 256 elements are to hold; None where its source says it."""
    given = lowering.scales_given
    if tensor.name in given.ranges:
        return given.ranges[tensor.name]
    if group is not None and group.layer.kind == "constant":
        values = values_of(group.layer)
        return min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    if group is not None and layer_type(group.layer.kind).keeps_scale:
        border = group.layer.settings.value if isinstance(group.layer.settings, PadSettings) else 0.0
        return (min(border, 0.0), max(border, 0.0)) if border else None
    largest = float(given.magnitudes.get(tensor.name, 0.0))
    low = _lowest(lowering, group) if given.zero_points and group is not None else -largest
    return max(low, -largest), largest


def _lowest(lowering: Lowering, group: Group) -> float:
    """Return the lowest number that a group can give for any input; -infinity if that is not known."""
    layer = group.activation or group.layer
    largest = max((lowering.scales_given.magnitudes.get(tensor.name, np.inf) for tensor in layer.inputs), default=0.0)
    return min(bounds_of(layer, float(largest), lowering.bounds.setdefault(float(largest), {}))[0], 0.0)


def _point(ranges: list[tuple[float, float] | None], is_stated: bool) -> ZeroPoint | None:
    """The scale and zero point for tensors of one scale; None where a symmetric range is as good and the model states
    no other (``is_stated``)."""
    known = [ends for ends in ranges if ends is not None]
    low, high = min((ends[0] for ends in known), default=0.0), max((ends[1] for ends in known), default=0.0)
    scale = (high - low) / LEVELS
    if not (np.isfinite(scale) and scale > 0) or not (is_stated or worth(low, high)):
        return None
    return ZeroPoint(scale, int(np.clip(np.floor(LOWEST - low / scale + 0.5), LOWEST, HIGHEST)))


def worth(low: float, high: float) -> bool:
    """Return whether a range is far enough from a symmetric one."""
    return (high - low) / LEVELS <= WORTH * max(-low, high) / HIGHEST


def _take_refused(lowering: Lowering, points: dict[str, ZeroPoint], find: Find) -> None:
    """Remove unsupported zero points, in rounds: after each removal, check the adjacent tensors again."""
    copies = _copies(lowering)

    def taken(tensor: NetworkTensor, group: Group) -> str:
        """Return the name of what a group takes: of a tensor, or of its copy in the other width."""
        copy = name_of_copy(tensor, lowering.precisions[group.output.name])
        return copy if copy in copies else find(tensor.name)

    ends = [
        ([taken(tensor, group) for tensor in group.layer.inputs], find(group.output.name)) for group in lowering.groups
    ]
    touching: dict[str, list[int]] = {}
    for number, (leads, out) in enumerate(ends):
        for lead in dict.fromkeys((*leads, out)):
            touching.setdefault(lead, []).append(number)
    asked = {number for lead in points for number in touching.get(lead, ())}
    while asked:
        refused: set[str] = set()
        for number in asked:
            leads, out = ends[number]
            if any(lead in points for lead in (*leads, out)):
                refused |= _refused_by(lowering, lowering.groups[number], leads, out, points)
        refused &= points.keys()
        for lead in refused:
            del points[lead]
        asked = {number for lead in refused for number in touching[lead]}


def _refused_by(lowering: Lowering, group: Group, leads: list[str], out: str, points: dict[str, ZeroPoint]) -> set[str]:
    layer, sources = group.layer, set(leads)
    if lowering.precisions[group.output.name] != Precision.INT8:
        return {out}  # it takes int16 copies of int8 tensors, which have no zero point
    if layer_type(layer.kind).keeps_scale:
        pool = layer.settings
        if not isinstance(pool, PoolSettings) or pool.mode != "average" or not any(pool.padding):
            return set()
        return {out} if pool.kernel[1] > _WIDEST_PADDED_AVERAGE else set()
    if layer.kind == "elementwise":
        return _refused_by_pair(group, leads, out, points)
    kind = layer_type(layer.kind)
    return set() if kind.zero_points or kind.shift_invariant else sources


def _refused_by_pair(group: Group, leads: list[str], out: str, points: dict[str, ZeroPoint]) -> set[str]:
    """Sums: a ReLU after a constant has to be the saturation at -128. Products: the second factor has no constant."""
    layer = group.layer
    if len(leads) != 2 or operation_of(layer) not in ("add", "multiply"):
        return set(leads)
    if operation_of(layer) == "multiply":
        return {leads[1]} if all(lead in points for lead in leads) else set()
    saturates = out in points and points[out].zero == LOWEST
    return set() if group.activation is None or saturates else set(leads)
