"""Convolution and fully connected layers: weights and bias to integers, scaling and activation in the SDP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder import floating, winograd
from nvdla.builder.cbuf import fit
from nvdla.builder.groups import Group
from nvdla.builder.ir import BYTES, Convert, Convolve, Process, Stage, Surface
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.concat import gather
from nvdla.builder.lower.grouped import groups_together
from nvdla.builder.lower.stages import ALU, bias_operand, number_or_channels, prelu_stage
from nvdla.builder.quantize import common_fixed_point, fixed_point, halves, quantize
from nvdla.builder.shapes import Shape, column, numbers_of, padding_of, pair, reach, slid, weights_of
from nvdla.errors import BuildError, shape_text
from nvdla.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer

# Register fields of CSC and CDMA: kernel size and dilation 5 bits (one less is written), stride 3 bits, padding 5 bits.
MAX_KERNEL, MAX_STRIDE, MAX_DILATION, MAX_PADDING = 32, 8, 32, 31
LEAST_UNITS = 64
"""Units of the accumulator in one of the result, from which on a zero point is rounded to them."""


@dataclass
class Window:
    """How a kernel moves: pairs (vertical, horizontal), padding (top, bottom, left, right)."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)


class ConvolutionLayer(LayerType):
    """``weights`` (kernels, channels / groups, rows, columns), ``bias`` (kernels,)."""

    kind = "convolution"
    zero_points = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """Pairs are (vertical, horizontal); ``padding`` is one number, a pair, or (top, bottom, left, right)."""
        weights, groups = weights_of(name, settings["weights"]), settings["groups"]
        kernels, per_group, rows, columns = weights.shape
        channels, height, width = shapes[0]
        if groups < 1 or channels % groups or kernels % groups or per_group != channels // groups:
            raise BuildError(
                f"layer {name}: weights {shape_text(weights.shape)} with {groups} "
                f"groups do not fit {channels} input channels; "
                f"they must be (kernels, {channels} / groups, rows, columns) and groups divide kernels and channels"
            )
        stride, dilation = pair(name, "stride", settings["stride"]), pair(name, "dilation", settings["dilation"])
        pads = padding_of(name, settings["padding"])
        out = (
            slid(name, "height", height + pads[0] + pads[1], rows, stride[0], dilation[0]),
            slid(name, "width", width + pads[2] + pads[3], columns, stride[1], dilation[1]),
        )
        bias = numbers_of(name, "bias", settings["bias"], kernels)
        settings.update(weights=weights, bias=bias, stride=stride, padding=pads, dilation=dilation)
        return (kernels, *out)

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """A dense convolution with zeros between groups."""
        dense = floating.expand_groups(layer.weights, inputs[0].shape[1], layer.groups)
        return floating.convolve(inputs[0], dense, layer.stride, layer.padding, layer.dilation) + column(layer.bias)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Groups become several dense convolutions on aligned channel ranges where that is possible."""
        layer = group.layer
        window = Window(layer.stride, layer.padding, layer.dilation)
        source = lowering.source(layer.inputs[0])
        blocks = winograd.target(lowering, group)
        if blocks is not None:
            plain = _halves(group, source, lowering.places[group.output.name], group.kernels, group.biases, window)
            lowering.operations.append(winograd.made(plain, blocks))
            return
        destination = lowering.target(group.output)
        scales, bias = lowering.integers(group, group.kernels, layer.groups)
        block = groups_together(lowering, group)
        for first in range(0, layer.groups, block):
            count = min(block, layer.groups - first)
            ins = _range(source.channels, layer.groups, first, count)
            outs = _range(destination.channels, layer.groups, first, count)
            kernels = slice(outs[0], outs[0] + outs[1])
            dense = floating.expand_groups(group.kernels[kernels], ins[1], count)
            convolve(
                lowering,
                part_of(group, np.arange(kernels.start, kernels.stop)),
                source.channel_range(*ins),
                destination.channel_range(*outs),
                dense,
                bias[kernels],
                window,
                scales[kernels] if scales is not None else None,
            )


def _range(channels: int, groups: int, first: int, count: int) -> tuple[int, int]:
    each = channels // groups
    return first * each, count * each


def convolve(
    lowering: Lowering,
    group: Group,
    source: Surface,
    destination: Surface,
    weights: np.ndarray,
    bias: np.ndarray,
    window: Window,
    scales: np.ndarray | None,
) -> None:
    """One dense convolution with its SDP operation. ``scales`` (K,) of the weights, None for fp16.

    Kernels whose group does not fit the convolution buffer are computed a part at a time and put together.
    """
    name = group.name
    check_window(name, weights.shape, window)
    if scales is None:
        operation = _halves(group, source, destination, weights, bias, window)
    else:
        operation = _integers(lowering, group, source, destination, weights, bias, window, scales)
    try:
        fit(operation, lowering.config)
    except BuildError:
        if len(weights) == 1:
            raise
    else:
        lowering.operations.append(operation)
        return
    atom = lowering.atom_channels
    most = atom if len(weights) > atom else ceil_div(len(weights), 2)
    parts = []
    for first in range(0, len(weights), most):
        chosen = slice(first, min(first + most, len(weights)))
        count = chosen.stop - first
        part = destination.channel_range(first, count)
        if most < atom:
            part = lowering.temporary(name, count, *destination.shape[1:], destination)
        parts.append(part)
        part_scales = None if scales is None else scales[chosen]
        each = part_of(group, np.arange(chosen.start, chosen.stop))
        convolve(lowering, each, source, part, weights[chosen], bias[chosen], window, part_scales)
    if most < atom:
        gather(lowering, name, parts, destination)


def part_of(group: Group, kernels: np.ndarray) -> Group:
    """The group for some of its kernels (their numbers): slopes and limits a channel go along. A group with a summand
    takes kernels that follow one another."""
    activation, summand = group.activation, group.summand
    if summand is not None:
        return replace(group, summand=summand.channel_range(int(kernels[0]), len(kernels)))
    if activation is None:
        return group
    chosen = {
        what: values[kernels]
        for what, values in activation.settings.items()
        if what in ("slopes", "high") and np.ndim(values)
    }
    return replace(group, activation=replace(activation, settings={**activation.settings, **chosen}))


def _halves(
    group: Group,
    source: Surface,
    destination: Surface,
    weights: np.ndarray,
    bias: np.ndarray,
    window: Window,
) -> Convolve:
    process = Process(group.name, None, destination, *_half_stages(group, bias))
    elements = halves(group.name, "weight", weights)
    return Convolve(group.name, source, elements, window.stride, window.padding, window.dilation, process)


def _integers(
    lowering: Lowering,
    group: Group,
    source: Surface,
    destination: Surface,
    weights: np.ndarray,
    bias: np.ndarray,
    window: Window,
    scales: np.ndarray,
) -> Convolve:
    elements = quantize(weights, scales[:, None, None, None], lowering.precision)
    unit = source.scale * scales
    if source.zero:
        # What the elements that stand for 0 add, pads included.
        bias = bias - source.zero * elements.astype(np.int64).sum(axis=(1, 2, 3)) * unit
    truncate = accumulator_truncate(elements, bias / unit, lowering.precision)
    process = integer_process(lowering, group, destination, bias, unit * 2.0**truncate)
    return Convolve(group.name, source, elements, window.stride, window.padding, window.dilation, process, truncate)


def check_window(name: str, shape: tuple[int, ...], window: Window) -> None:
    """Limits of the convolution pipeline's registers and of its padding (programming guide, limitations)."""
    for what, size, stride, dilation, pads in (
        ("rows", shape[2], window.stride[0], window.dilation[0], window.padding[:2]),
        ("columns", shape[3], window.stride[1], window.dilation[1], window.padding[2:]),
    ):
        if size > MAX_KERNEL:
            raise BuildError(
                f"layer {name}: {size} kernel {what}, at most {MAX_KERNEL}; pool or split the input before this layer"
            )
        if stride > MAX_STRIDE or dilation > MAX_DILATION:
            raise BuildError(
                f"layer {name}: stride {stride} and dilation {dilation} of the {what} are limited to {MAX_STRIDE} and "
                f"{MAX_DILATION}; use a smaller one with a pool before it"
            )
        span = reach(size, dilation)
        if max(pads) >= span or max(pads) > MAX_PADDING:
            raise BuildError(
                f"layer {name}: padding {max(pads)} of the {what} must be less than the {span} that the kernel spans "
                f"and at most {MAX_PADDING}; use less padding"
            )


def accumulator_truncate(elements: np.ndarray, bias: np.ndarray, precision: str) -> int:
    """Bits that CACC drops so that no sum, bias included, can leave 31 bits; rarely any in int8."""
    sums = np.abs(elements.astype(np.int64)).reshape(elements.shape[0], -1).sum(axis=1).astype(np.float64)
    largest = float(np.max(sums * (1 << (8 * BYTES[precision] - 1)) + np.abs(bias)))
    return max(0, int(np.ceil(np.log2(max(largest, 1.0)))) - 30)


def integer_process(
    lowering: Lowering, group: Group, destination: Surface, bias: np.ndarray, unit: np.ndarray
) -> Process:
    """SDP stages from accumulators whose units are worth ``unit`` (K,): bias, factors, activation, output converter."""
    if group.summand is not None:
        return _integer_sum(lowering, group, group.summand, destination, bias, unit)
    operand, shift = bias_operand(group.name, bias, unit)
    uniform = bool(np.all(unit == unit[0]))
    x1 = Stage("add", operand, shift)
    if not np.any(operand):
        x1 = Stage()
    if uniform and _takes_zero(destination, float(unit[0])):
        zero = -round(destination.zero * destination.scale / float(unit[0]))
        convert, after = Convert(*fixed_point(float(unit[0]) / destination.scale), zero), unit
    else:
        multipliers, truncate = common_fixed_point(unit / destination.scale)
        adds = "add" if np.any(operand) else None
        x1 = Stage(adds, operand if adds else None, shift, number_or_channels(multipliers), truncate)
        convert, after = Convert(offset=-destination.zero), np.full_like(unit, destination.scale)
    x2 = _activate(lowering, group, x1, float(after[0]))
    plain = x1.alu is None and x1.multiplier is None and not x1.relu
    return Process(group.name, None, destination, None if plain else x1, x2, convert=convert)


def _takes_zero(destination: Surface, unit: float) -> bool:
    """Whether the zero point may be added in units of the accumulator: in whole ones that are fine against those of the
    destination, and few enough for 32 bits with the largest sum."""
    if not destination.zero:
        return True
    units = destination.scale / unit
    return LEAST_UNITS <= units <= 2.0**30 / abs(destination.zero)


def _integer_sum(
    lowering: Lowering, group: Group, summand: Surface, destination: Surface, bias: np.ndarray, unit: np.ndarray
) -> Process:
    """SDP stages from accumulators whose units are worth ``unit`` (K,): bias and factors in X1, the sum (product,
    largest, smallest) in X2."""
    operand, bias_shift = bias_operand(group.name, bias, unit)
    finer = group.unit
    multipliers, truncate = common_fixed_point(unit / finer, most=31)
    factor = number_or_channels(multipliers)
    x1 = Stage("add" if np.any(operand) else None, operand if np.any(operand) else None, bias_shift, factor, truncate)
    constant = summand.zero << group.summand_shift
    # Where the constant is still in, it is the lower end of the elements that cuts off what is negative.
    x2 = _combined(group, summand, relu=group.activation is not None and not constant)
    if x2.multiplier is not None:
        finer *= summand.scale
    convert = lowering.convert(finer, destination, constant)
    return Process(group.name, None, destination, x1, x2, convert=convert)


def _combined(group: Group, summand: Surface, relu: bool) -> Stage:
    """The stage that combines a convolution's result with another cube."""
    if group.combines == "multiply":
        return Stage(multiplier=summand, relu=relu)
    return Stage(ALU[group.combines], summand, group.summand_shift, relu=relu)


def _activate(lowering: Lowering, group: Group, x1: Stage, unit: float) -> Stage | None:
    """Put the activation into X1 (ReLU) and X2 (upper limit, PReLU)."""
    if group.activation is None:
        return None
    if group.activation.kind == "prelu":
        return prelu_stage(group.activation.slopes)
    x1.relu = True
    if group.activation.kind == "clip":
        operand, shift = bias_operand(group.name, np.atleast_1d(group.activation.high), np.array([unit]))
        return Stage("min", number_or_channels(operand), shift)
    return None


def _half_stages(group: Group, bias: np.ndarray) -> tuple[Stage | None, Stage | None]:
    x1 = Stage("add", halves(group.name, "bias", bias)) if np.any(bias) else Stage()
    x2 = None
    if group.summand is not None:
        return (x1 if np.any(bias) else None), _combined(group, group.summand, group.activation is not None)
    if group.activation is not None:
        x2 = half_activation(group.activation, x1)
    plain = x1.alu is None and not x1.relu
    return None if plain else x1, x2


def half_activation(activation: Layer, x1: Stage) -> Stage | None:
    """The activation in fp16: ReLU in the given stage, the rest in the returned one."""
    kind = activation.kind
    if kind == "prelu":
        return Stage(multiplier=halves(activation.name, "slope", activation.slopes), prelu=True)
    x1.relu = True
    return Stage("min", number_or_channels(quantize(activation.high, 1.0, "fp16"))) if kind == "clip" else None
