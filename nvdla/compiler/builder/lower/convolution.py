"""Convolution, grouped and depthwise convolution, deconvolution.

The accelerator knows dense convolutions only, so the weights between groups are zeros that are fetched and multiplied.
Few groups together waste fewer products; many fill the MAC cells and need fewer operations. The cycle model decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from nvdla.analysis.alternatives import PARTS, Geometry, alternatives
from nvdla.analysis.cycles.constants import ChainShape
from nvdla.analysis.cycles.estimate import queue_cycles
from nvdla.compiler.builder import floating
from nvdla.compiler.builder.cbuf import fit
from nvdla.compiler.builder.context import Lowering
from nvdla.compiler.builder.cost_model import GAIN
from nvdla.compiler.builder.ir import (
    BYTES,
    Contract,
    Convert,
    Convolve,
    GroupsChoice,
    GroupsForm,
    Pool,
    Process,
    Root,
    Stage,
    Surface,
)
from nvdla.compiler.builder.layer_types import Given, LayerType
from nvdla.compiler.builder.layers import (
    ClipSettings,
    ConvSettings,
    DeconvSettings,
    Group,
    Layer,
    NetworkTensor,
    PreluSettings,
    Shape,
    column,
    numbers_of,
    padding_of,
    pair,
    reach,
    slid,
    weights_of,
)
from nvdla.compiler.builder.lower.concat import gather
from nvdla.compiler.builder.lower.pointwise import ALU, bias_operand, number_or_channels, prelu_stage
from nvdla.compiler.builder.packing import BLOCK, transformed
from nvdla.compiler.builder.quantization import common_fixed_point, fixed_point, halves, quantize
from nvdla.errors import BuildError, shape_text
from nvdla.limits import MAX_CUBE_SIDE, MAX_KERNEL
from nvdla.util.precision import Precision
from nvdla.util.rounding import align, ceil_div

# Most positions within the stride of a deconvolution, each of which is a convolution; networks have up to 32 x 32.
MAX_PHASES = 64 * 64
SIMULATED = 8
"""Convolutions of a layer that the cycle model evaluates; the cost of the last two is extrapolated to the others."""


def groups_together(lowering: Lowering, group: Group, biased: bool) -> int:
    """Return the number of groups per dense convolution; from level 1 on the fastest number. ``biased``: the SDP reads
    a number for each kernel."""
    layer, settings = group.layer, ConvSettings.of(group.layer)
    if settings.groups == 1:
        return 1
    ins, outs = layer.inputs[0].shape[0] // settings.groups, group.output.shape[0] // settings.groups
    least, usual = _aligned(lowering, ins, outs)
    if not lowering.level:
        return usual
    sizes = {min(least, settings.groups), min(usual, settings.groups), min(2 * usual, settings.groups)}
    forms = [form for size in sorted(sizes) if (form := _evaluated(lowering, group, size, biased)) is not None]
    if not forms:
        return usual
    taken = min(range(len(forms)), key=lambda at: forms[at].cycles * (GAIN if forms[at].groups == usual else 1))
    lowering.grouped.append(GroupsChoice(group.name, settings.groups, tuple(forms), taken))
    return forms[taken].groups


def _aligned(lowering: Lowering, ins: int, outs: int) -> tuple[int, int]:
    """The fewest groups of which every part but the last fills whole atoms, and as many as fill a MAC cell."""
    atom = lowering.atom_channels
    least = lcm(lcm(ins, atom) // ins, lcm(outs, atom) // outs)
    return least, least * max(1, lowering.config.mac_atomic_c // (least * ins))


def _evaluated(lowering: Lowering, group: Group, size: int, biased: bool) -> GroupsForm | None:
    """Return the form of a layer, alone in a queue, with that many groups together; None if it exceeds the buffer."""
    full, rest = divmod(ConvSettings.of(group.layer).groups, size)
    whole, last = (_chains(lowering, group, count, biased) for count in (size, rest))
    if whole is None or last is None:
        return None
    config, memory, count = lowering.config, lowering.cost_model.memory, full + (rest > 0)
    fewer, more = (
        queue_cycles(whole * number + last, config, memory, element_bytes=BYTES[lowering.precision])
        for number in (min(full, SIMULATED - 2), min(full, SIMULATED))
    )
    return GroupsForm(size, count, more + max(full - SIMULATED, 0) * (more - fewer) // 2)


def _chains(lowering: Lowering, group: Group, size: int, biased: bool) -> list[ChainShape] | None:
    """A dense convolution of so many groups as the cycle model takes it; None if it exceeds the buffer."""
    if not size:
        return []
    geometry, config = _geometry(group, size, lowering.precision, biased), lowering.config
    numbers = (*PARTS, 2 * PARTS[-1])
    fitting = alternatives(geometry, config, lowering.cost_model.memory, numbers=numbers, thorough=False)
    if not fitting:
        return None
    return [geometry.chain(part, fitting[0], number == 0, config) for number, part in enumerate(fitting[0].parts)]


def _geometry(group: Group, size: int, precision: str, biased: bool) -> Geometry:
    settings = ConvSettings.of(group.layer)
    source, result = group.layer.inputs[0].shape, group.output.shape
    rows, columns = settings.weights.shape[2:]
    return Geometry(
        (source[0] * size // settings.groups, *source[1:]),
        (result[0] * size // settings.groups, *result[1:]),
        (rows, columns),
        reach(rows, settings.dilation[0]),
        settings.stride[0],
        settings.padding[0],
        group.summand is not None,
        BYTES[precision],
        biased=biased,
        table=group.lut is not None,
    )


# Register fields of CSC and CDMA: dilation 5 bits (one less is written), stride 3 bits, padding 5 bits.
MAX_STRIDE, MAX_DILATION, MAX_PADDING = 8, 32, 31
LEAST_UNITS = 64
"""Units of the accumulator in one of the result, from which on a zero point is rounded to them."""


@dataclass
class Window:
    """Movement of a kernel: pairs (vertical, horizontal), padding (top, bottom, left, right)."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)


class ConvolutionLayer(LayerType):
    """``weights`` (kernels, channels / groups, rows, columns), ``bias`` (kernels,)."""

    kind = "convolution"
    zero_points = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> ConvSettings:
        """Return the settings; a step is a number or (vertical, horizontal)."""
        weights, groups = weights_of(name, given["weights"]), given["groups"]
        kernels, per_group, _, _ = weights.shape
        channels = shapes[0][0]
        if groups < 1 or channels % groups or kernels % groups or per_group != channels // groups:
            raise BuildError(
                f"weights {shape_text(weights.shape)} with {groups} "
                f"groups do not fit {channels} input channels; "
                f"they must be (kernels, {channels} / groups, rows, columns) and groups divide kernels and channels",
                layer=name,
            )
        stride, dilation = pair(name, "stride", given["stride"]), pair(name, "dilation", given["dilation"])
        pads, bias = padding_of(name, given["padding"]), numbers_of(name, "bias", given["bias"], kernels)
        return ConvSettings(weights, bias, stride, pads, dilation, groups)

    def shape(self, layer: Layer) -> Shape:
        """Return as many channels as kernels, and the positions of the window."""
        settings, (_, height, width) = ConvSettings.of(layer), layer.inputs[0].shape
        (kernels, _, rows, columns), pads = settings.weights.shape, settings.padding
        return (
            kernels,
            slid(layer.name, "height", height + pads[0] + pads[1], rows, settings.stride[0], settings.dilation[0]),
            slid(layer.name, "width", width + pads[2] + pads[3], columns, settings.stride[1], settings.dilation[1]),
        )

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """A dense convolution with zeros between groups."""
        its = ConvSettings.of(layer)
        dense = floating.expand_groups(its.weights, inputs[0].shape[1], its.groups)
        return floating.convolve(inputs[0], dense, its.stride, its.padding, its.dilation) + column(its.bias)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Groups become several dense convolutions on aligned channel ranges where that is possible."""
        settings = ConvSettings.of(group.layer)
        window, groups = Window(settings.stride, settings.padding, settings.dilation), settings.groups
        source = lowering.source(group.layer.inputs[0])
        blocks = winograd_target(lowering, group)
        if blocks is not None:
            plain = _halves(group, source, lowering.places[group.output.name], group.kernels, group.biases, window)
            lowering.operations.append(by_winograd(plain, blocks))
            return
        destination = lowering.target(group.output)
        scales, bias = lowering.integers(group, group.kernels, groups)
        biased = bool(np.any(bias)) or (scales is not None and bool(np.any(scales != scales[0])))
        block = groups_together(lowering, group, biased)
        for first in range(0, groups, block):
            count = min(block, groups - first)
            ins = _range(source.channels, groups, first, count)
            outs = _range(destination.channels, groups, first, count)
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
    per_group = channels // groups
    return first * per_group, count * per_group


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
    if lowering.level:
        source, window = without_unused_rows(source, destination, weights, window)
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
        piece = part_of(group, np.arange(chosen.start, chosen.stop))
        convolve(lowering, piece, source, part, weights[chosen], bias[chosen], window, part_scales)
    if most < atom:
        gather(lowering, name, parts, destination)


def without_unused_rows(
    source: Surface, destination: Surface, weights: np.ndarray, window: Window
) -> tuple[Surface, Window]:
    """The rows that kernels of one row with a stride use, and the window over them: CDMA skips the others."""
    stride = window.stride[0]
    if weights.shape[2] > 1 or stride == 1 or any(window.padding[:2]) or source.root.pixels is not None:
        return source, window
    rows = replace(source, height=destination.height, row_stride=source.row_stride * stride)
    return rows, replace(window, stride=(1, window.stride[1]))


def part_of(group: Group, kernels: np.ndarray) -> Group:
    """The group for some of its kernels (their numbers): slopes and limits a channel go along. A group with a summand
    takes kernels that follow one another."""
    activation, summand = group.activation, group.summand
    if summand is not None:
        return replace(group, summand=summand.channel_range(int(kernels[0]), len(kernels)))
    if activation is None:
        return group
    settings = activation.settings
    if isinstance(settings, PreluSettings):
        settings = replace(settings, slopes=settings.slopes[kernels])
    elif isinstance(settings, ClipSettings) and isinstance(settings.high, np.ndarray):
        settings = replace(settings, high=settings.high[kernels])
    return replace(group, activation=replace(activation, settings=settings))


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
                f"kernel {what}: must be at most {MAX_KERNEL}, got {size}. Pool or split the input before this layer.",
                layer=name,
            )
        if stride > MAX_STRIDE or dilation > MAX_DILATION:
            raise BuildError(
                f"stride and dilation of the {what}: must be at most {MAX_STRIDE} and {MAX_DILATION}, got {stride} "
                f"and {dilation}. Use a smaller one with a pool before it.",
                layer=name,
            )
        span = reach(size, dilation)
        if max(pads) >= span or max(pads) > MAX_PADDING:
            raise BuildError(
                f"padding of the {what}: must be less than {span} (span of the kernel) and at most {MAX_PADDING}, "
                f"got {max(pads)}. Use less padding.",
                layer=name,
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
    if group.lut is not None:
        multipliers, truncate = common_fixed_point(unit / group.unit)
        x1 = _scaled(group, bias, unit, multipliers, truncate)
        return Process(group.name, None, destination, x1, lut=group.lut)
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
    """Return whether the zero point may be added in units of the accumulator: in whole ones that are fine against
    those of the destination, and few enough for 32 bits with the largest sum."""
    if not destination.zero:
        return True
    units = destination.scale / unit
    return LEAST_UNITS <= units <= 2.0**30 / abs(destination.zero)


def _integer_sum(
    lowering: Lowering, group: Group, summand: Surface, destination: Surface, bias: np.ndarray, unit: np.ndarray
) -> Process:
    """SDP stages from accumulators whose units are worth ``unit`` (K,): bias and factors in X1, the sum (product,
    largest, smallest) in X2."""
    finer = group.unit
    multipliers, truncate = common_fixed_point(unit / finer, most=31)
    x1 = _scaled(group, bias, unit, multipliers, truncate)
    constant = summand.zero << group.summand_shift
    # Where the constant is still in, it is the lower end of the elements that cuts off what is negative.
    x2 = _combined(group, summand, relu=group.activation is not None and not constant)
    if x2.multiplier is not None:
        finer *= summand.scale
    convert = lowering.convert(finer, destination, constant)
    return Process(group.name, None, destination, x1, x2, convert=convert)


def _scaled(group: Group, bias: np.ndarray, unit: np.ndarray, multipliers: np.ndarray, truncate: int) -> Stage:
    """X1 with bias and factors."""
    operand, shift = bias_operand(group.name, bias, unit)
    added = bool(np.any(operand))
    return Stage("add" if added else None, operand if added else None, shift, number_or_channels(multipliers), truncate)


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
        return prelu_stage(PreluSettings.of(group.activation).slopes)
    x1.relu = True
    if group.activation.kind == "clip":
        operand, shift = bias_operand(
            group.name, np.atleast_1d(ClipSettings.of(group.activation).high), np.array([unit])
        )
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
        return Stage(multiplier=halves(activation.name, "slope", PreluSettings.of(activation).slopes), prelu=True)
    x1.relu = True
    if kind != "clip":
        return None
    return Stage("min", number_or_channels(quantize(ClipSettings.of(activation).high, 1.0, Precision.FP16)))


class DeconvolutionLayer(LayerType):
    """``weights`` (channels, kernels, rows, columns), ``padding`` is cut off the result."""

    kind = "deconvolution"
    zero_points = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> DeconvSettings:
        """Return the settings; a step is a number or (vertical, horizontal)."""
        weights, channels = weights_of(name, given["weights"]), shapes[0][0]
        if weights.shape[0] != channels:
            raise BuildError(
                f"weights {shape_text(weights.shape)} must be ({channels}, kernels, rows, columns)", layer=name
            )
        stride, pads = pair(name, "stride", given["stride"]), padding_of(name, given["padding"])
        bias = numbers_of(name, "bias", given["bias"], weights.shape[1])
        return DeconvSettings(weights, bias, stride, pads)

    def shape(self, layer: Layer) -> Shape:
        """Return the sizes of the result; ``padding`` is cut off."""
        settings, (_, height, width) = DeconvSettings.of(layer), layer.inputs[0].shape
        weights, stride, pads = settings.weights, settings.stride, settings.padding
        rows = (height - 1) * stride[0] + weights.shape[2] - pads[0] - pads[1]
        columns = (width - 1) * stride[1] + weights.shape[3] - pads[2] - pads[3]
        if min(rows, columns) < 1:
            raise BuildError(
                f"padding {pads}: result must have at least one row and column, got {rows}x{columns}. Use less "
                "padding.",
                layer=layer.name,
            )
        return weights.shape[1], rows, columns

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Every element times all weights, added up where they fall."""
        x, settings = inputs[0], DeconvSettings.of(layer)
        (sy, sx), (top, _, left, _) = settings.stride, settings.padding
        _, kernels, rows, columns = settings.weights.shape
        height, width = (x.shape[2] - 1) * sy + rows, (x.shape[3] - 1) * sx + columns
        whole = np.zeros((x.shape[0], kernels, height, width))
        for row in range(rows):
            for col in range(columns):
                part = np.einsum("nchw,ck->nkhw", x, settings.weights[:, :, row, col])
                whole[:, :, row : row + x.shape[2] * sy : sy, col : col + x.shape[3] * sx : sx] += part
        _, out_height, out_width = layer.output.shape
        return whole[:, :, top : top + out_height, left : left + out_width] + column(settings.bias)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """One convolution for each position within the stride, or one for all of them before Rubik.

        Result element u (before the cut) gets input q - t times weight p + stride * t where u = stride * q + p; so the
        weights p, p + stride, ... in reverse order are a kernel, and its results are every stride-th element from p.
        """
        layer, settings = group.layer, DeconvSettings.of(group.layer)
        (sy, sx), (top, _, left, _) = settings.stride, settings.padding
        weights = np.swapaxes(group.kernels, 0, 1)
        kernels, _, rows, columns = weights.shape
        source, result = lowering.source(layer.inputs[0]), lowering.target(group.output)
        scales, bias = lowering.integers(group, weights, 1)
        taps = ceil_div(rows, sy), ceil_div(columns, sx)
        height, width = source.height + taps[0] - 1, source.width + taps[1] - 1
        exact = (top, left) == (0, 0) and (height * sy, width * sx) == result.shape[1:]
        full = result if exact else lowering.temporary(group.name, kernels, height * sy, width * sx, result)
        window = Window(padding=(taps[0] - 1, taps[0] - 1, taps[1] - 1, taps[1] - 1))
        if lowering.level and lowering.config.rubik and (sy, sx) != (1, 1) and _fits(lowering, group, sy * sx):
            phases = [_phase(weights, (py, px), (sy, sx), taps) for py in range(sy) for px in range(sx)]
            _contracted(lowering, group, source, full, phases, bias, window, scales)
        else:
            _interleaved(lowering, group, source, full, weights, bias, window, scales)
        if not exact:
            part = full.crop(top, result.height, left, result.width)
            if result.shape[1:] == (1, 1):
                # The SDP reads 1x1 cubes only with the strides of a 1x1 surface; the PDP takes any.
                lowering.operations.append(Pool(group.name, part, result, "max", (1, 1), (1, 1), (0, 0, 0, 0)))
            else:
                lowering.copy(group.name, part, result)


def _fits(lowering: Lowering, group: Group, phases: int) -> bool:
    """Return whether the results of all phases make a legal cube."""
    return phases * align(group.kernels.shape[1], lowering.atom_channels) <= MAX_CUBE_SIDE


def _contracted(
    lowering: Lowering,
    group: Group,
    source: Surface,
    full: Surface,
    phases: list[np.ndarray],
    bias: np.ndarray,
    window: Window,
    scales: np.ndarray | None,
) -> None:
    """One convolution with the kernels of all phases, filled up to whole atoms; Rubik puts them between one another."""
    sy, sx = DeconvSettings.of(group.layer).stride
    kernels = full.channels
    unused = -kernels % lowering.atom_channels
    setting_index = np.concatenate(
        [np.arange(kernels), np.full(unused, kernels - 1)]
    )  # index of the settings per kernel
    which = np.tile(setting_index, len(phases))
    weights = np.concatenate([np.pad(phase, ((0, unused), (0, 0), (0, 0), (0, 0))) for phase in phases])
    height, width = full.height // sy, full.width // sx
    stack = lowering.temporary(group.name, len(which), height, width, full)
    convolve(
        lowering,
        part_of(group, which),
        source,
        stack,
        weights,
        bias[which],
        window,
        None if scales is None else scales[which],
    )
    lowering.operations.append(Contract(group.name, stack, full, (sy, sx)))


def _interleaved(
    lowering: Lowering,
    group: Group,
    source: Surface,
    full: Surface,
    weights: np.ndarray,
    bias: np.ndarray,
    window: Window,
    scales: np.ndarray | None,
) -> None:
    """A convolution for each phase: every stride-th row by the SDP after it, every stride-th column by a copy."""
    sy, sx = DeconvSettings.of(group.layer).stride
    if sy * sx > MAX_PHASES:
        raise BuildError(f"stride: must have at most {MAX_PHASES:,} positions, got {sy}x{sx}.", layer=group.name)
    kernels = full.channels
    height, width = full.height // sy, full.width // sx
    taps = ceil_div(weights.shape[2], sy), ceil_div(weights.shape[3], sx)
    for px in range(sx):
        strip = full if sx == 1 else lowering.temporary(group.name, kernels, height * sy, width, full)
        for py in range(sy):
            kernel = _phase(weights, (py, px), (sy, sx), taps)
            target = strip.every(py, sy, height, 0, 1, width)
            convolve(lowering, group, source, target, kernel, bias, window, scales)
        if sx > 1:
            lowering.copy(group.name, strip, full.every(0, 1, height * sy, px, sx, width))


def _phase(weights: np.ndarray, phase: tuple[int, int], stride: tuple[int, int], taps: tuple[int, int]) -> np.ndarray:
    """Every stride-th weight from the phase, reversed, with zeros in front of kernels shorter than ``taps``.

    All phases have equally large kernels, so that they give equally many elements with legal padding.
    """
    part = weights[:, :, phase[0] :: stride[0], phase[1] :: stride[1]][:, :, ::-1, ::-1]
    return np.pad(part, ((0, 0), (0, 0), (taps[0] - part.shape[2], 0), (taps[1] - part.shape[3], 0)))


def winograd_target(lowering: Lowering, group: Group) -> Surface | None:
    """Return the result surface of a convolution if this method is faster; None if it is not, or is not possible."""
    settings, tensor = ConvSettings.of(group.layer), group.output
    if (
        not lowering.level
        or not lowering.config.winograd
        or lowering.precision != Precision.FP16
        or settings.groups != 1
    ):
        return None
    if group.kernels.shape[2:] != (3, 3) or (settings.groups, *settings.stride, *settings.dilation) != (1,) * 5:
        return None
    source = lowering.source(group.layer.inputs[0])
    if source.root.pixels is not None or group.summand is not None or max(settings.padding) >= BLOCK - 1:
        return None
    place = _winograd_place(lowering, tensor)
    if place is None or not np.all(np.isfinite(transformed(group.kernels, lowering.config))):
        return None
    channels, height, width = tensor.shape
    shape = align(height, BLOCK), align(width, BLOCK)
    whole = Root(tensor.name, channels, *shape, lowering.precision).whole
    weights, result = quantize(group.kernels, 1.0, Precision.FP16), Process("", None, whole.crop(0, height, 0, width))
    plain = Convolve(group.name, source, weights, (1, 1), settings.padding, (1, 1), result)
    below, right = shape[0] - height, shape[1] - width
    padding = _more(settings.padding, below, right)
    other = replace(plain, process=Process("", None, whole), padding=padding, winograd=True)
    if not lowering.cost_model.prefers(other, plain):
        return None
    if place:
        return lowering.target(tensor)
    lowering.places[tensor.name] = whole.crop(0, height, 0, width)
    return whole


def _more(padding: tuple[int, int, int, int], below: int, right: int) -> tuple[int, int, int, int]:
    return padding[0], padding[1] + below, padding[2], padding[3] + right


def _winograd_place(lowering: Lowering, tensor: NetworkTensor) -> bool | None:
    """Return whether the result's place is given (an output, a part of a concatenation), which must then be of whole
    blocks; None where the method cannot write it, or where a pool takes it on the fly."""
    consumers = lowering.consumers(tensor)
    given = tensor.name in lowering.places or tensor in lowering.ends
    if given:
        return True if not tensor.shape[1] % BLOCK and not tensor.shape[2] % BLOCK else None
    return None if [layer.kind for layer in consumers] == ["pool"] else False


def by_winograd(operation: Convolve, destination: Surface) -> Convolve:
    """A direct convolution as one by this method into such a cube, which may have more rows and columns."""
    result = operation.process.destination
    below, right = destination.height - result.height, destination.width - result.width
    process = replace(operation.process, destination=destination)
    return replace(operation, process=process, padding=_more(operation.padding, below, right), winograd=True)
