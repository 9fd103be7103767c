"""Layers on single elements: ReLU, PReLU, clip, functions by lookup table, scale, softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nvdla.analysis.cycles.constants import CSB_WRITE, constants
from nvdla.analysis.cycles.schedule import SDP_TABLE_WRITES
from nvdla.compiler.builder import ir as tables
from nvdla.compiler.builder import reference
from nvdla.compiler.builder.context import Lowering
from nvdla.compiler.builder.ir import Convert, Lut, Normalize, Process, Softmax, Stage, Surface
from nvdla.compiler.builder.layer_types import Given, LayerType, layer_type
from nvdla.compiler.builder.layers import (
    ClipSettings,
    ConvSettings,
    FunctionSettings,
    Group,
    Layer,
    LayerSettings,
    PreluSettings,
    ReluSettings,
    ScaleSettings,
    Shape,
    column,
    numbers_of,
)
from nvdla.compiler.builder.quantization import LARGEST, LARGEST_HALF, common_fixed_point, halves
from nvdla.emulator.memory.surfaces import MIDDLE_ATOM
from nvdla.errors import BuildError
from nvdla.util.precision import Precision
from nvdla.util.rounding import ceil_div

ALU = {"add": "add", "maximum": "max", "minimum": "min"}
"""Operation of the SDP's ALU, by the operation of an elementwise layer."""


def from_zero(lowering: Lowering, group: Group, stage: Stage) -> Stage:
    """The stage, on elements whose 0 it brings to 0."""
    zero = lowering.source(group.layer.inputs[0]).zero
    return replace(stage, alu="add", alu_operand=-zero) if zero else stage


def alone(lowering: Lowering, group: Group, x1: Stage, x2: Stage | None = None, constant: int = 0) -> None:
    """One operation from memory to memory; ``constant`` stands for 0 after its stages."""
    source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
    if not constant and not destination.zero:
        convert = lowering.convert(source.scale, destination)
    else:
        # The last stage can apply a factor: the zero points are whole numbers of finer units.
        multiplier, convert = lowering.rescaled(source.scale, constant, destination)
        if x2 is None and x1.multiplier is not None:
            x2 = Stage(multiplier=multiplier)
        else:
            (x2 or x1).multiplier = multiplier
    lowering.operations.append(Process(group.name, source, destination, x1, x2, convert=convert))


def prelu_stage(slopes: np.ndarray) -> Stage:
    """A stage that multiplies negative integers by the slopes (a number where they are all the same)."""
    multipliers, truncate = common_fixed_point(slopes, most=31)
    return Stage(multiplier=number_or_channels(multipliers), truncate=truncate, prelu=True)


def bias_operand(name: str, bias: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, int]:
    """int16 operands and their common left shift: the finest in which the largest fits."""
    exact = bias / unit
    largest = float(np.max(np.abs(exact), initial=0.0))
    shift = max(0, int(np.ceil(np.log2(max(largest, 1.0) / 32767.0))))
    if largest >= 2.0**31:
        raise BuildError(
            f"bias: must be at most 2**31 units of the accumulator, got {largest:.3g}. Check bias and calibration.",
            layer=name,
        )
    return np.clip(np.floor(exact / 2.0**shift + 0.5), -32768, 32767).astype(np.int64), shift


def number_or_channels(values: np.ndarray) -> int | float | np.ndarray:
    """An operand as one number where all are the same, else as numbers a channel."""
    return values.flat[0].item() if np.all(values == values.flat[0]) else values


class ReluLayer(LayerType):
    """max(x, 0)."""

    kind = "relu"
    each_channel_alone = zero_points = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> ReluSettings:
        """Return the limit."""
        return ReluSettings(given.get("high", np.inf))

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """max(x, 0)."""
        return np.maximum(inputs[0], 0.0)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """The SDP's own ReLU."""
        alone(lowering, group, from_zero(lowering, group, Stage(relu=True)))

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float | np.ndarray]:
        """0, and the limit or the input's."""
        return 0.0, np.minimum(ReluSettings.of(layer).high, largest)


class PreluLayer(LayerType):
    """``x`` where positive, ``slope * x`` elsewhere."""

    kind = "prelu"
    each_channel_alone = zero_points = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> PreluSettings:
        """Return the slopes; ``slopes`` is a number or (channels,)."""
        return PreluSettings(numbers_of(name, "slopes", given["slopes"], shapes[0][0]))

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Negative elements times their channel's slope."""
        x = inputs[0]
        return np.where(x >= 0, x, x * column(PreluSettings.of(layer).slopes))

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A stage of integers, or of halves."""
        slopes = PreluSettings.of(group.layer).slopes
        if lowering.integer:
            alone(lowering, group, from_zero(lowering, group, prelu_stage(slopes)))
        else:
            alone(lowering, group, Stage(multiplier=halves(group.layer.name, "slope", slopes), prelu=True))


UNLIMITED = 65504.0
"""The largest half: limits from here on limit nothing."""


class ClipLayer(LayerType):
    """Limit to low..high."""

    kind = "clip"
    each_channel_alone = zero_points = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> ClipSettings:
        """Return the limits; ``low`` is a number, ``high`` one or (channels,)."""
        low, high = float(given["low"]), given["high"]
        if not np.all(low < np.asarray(high)):
            raise BuildError(f"low {given['low']} must be less than high {np.min(high)}", layer=name)
        limit = float(high) if np.ndim(high) == 0 else numbers_of(name, "high", high, shapes[0][0])
        return ClipSettings(low, limit)

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Elements within their channel's limits."""
        limits = ClipSettings.of(layer)
        return np.clip(inputs[0], limits.low, column(np.atleast_1d(limits.high)))

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Two comparisons with numbers: X1 the lower limit, X2 the upper one."""
        settings, source = ClipSettings.of(group.layer), lowering.source(group.layer.inputs[0])
        limits = [np.atleast_1d(limit) for limit in (settings.low, settings.high)]
        if lowering.integer:
            limits = _elements(limits, source, lowering.target(group.output))
        else:
            limits = [np.clip(limit, -65504, 65504).astype(np.float16) for limit in limits]
        low, high = (number_or_channels(limit) for limit in limits)
        alone(lowering, group, Stage("max", low), Stage("min", high), source.zero)

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float | np.ndarray]:
        """The limits; infinite where a limit is beyond every number of the accelerator."""
        limits = ClipSettings.of(layer)
        low, high = limits.low, np.asarray(limits.high)
        return (low if low > -UNLIMITED else -np.inf), np.where(high < UNLIMITED, high, np.inf)


def _elements(limits: list[np.ndarray], source: Surface, target: Surface) -> list[np.ndarray]:
    """Return the limits in elements of the source.

    Each limit is the nearest element, but one beyond the limit where the elements of the result end there: the result
    cuts off exactly, in its own steps.
    """
    largest = LARGEST[target.precision]
    exact = [limit / source.scale for limit in limits]
    ends = [np.floor(limit / target.scale + 0.5) + target.zero for limit in limits]
    low = np.where(ends[0] <= -largest - 1, np.floor(exact[0]), np.floor(exact[0] + 0.5))
    high = np.where(ends[1] >= largest, np.ceil(exact[1]), np.floor(exact[1] + 0.5))
    return [np.clip(limit + source.zero, -32768, 32767).astype(np.int64) for limit in (low, high)]


# Where a function is wanted in fp16 and calibration says nothing about its input.
DEFAULT_RANGE = 8.0
# How far a table of halves may be off: a share of its largest value.
WORST = 1 / 64
# Where a table of halves is compared with its function if its input may be larger, in multiples of the range of LO: LE
# has four times that range, and ends in straight lines.
_BEYOND = 2.0 ** np.linspace(0.25, 6, 24)

# Where a function is looked at to see whether it is bounded, and by how much of its range it may still grow beyond.
_NEAR = np.linspace(-32, 32, 4097)
_FAR = np.array([-1e6, -1e4, -1e3, -1e2, 1e2, 1e3, 1e4, 1e6])
_SAME = 0.05
# A bound beyond it is that of a pole: exp(1/x).
_LARGEST = 1e30


class FunctionLayer(LayerType):
    """``function`` maps a float64 array to one of the same shape."""

    kind = "function"
    zero_points = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> FunctionSettings:
        """Return the settings; ``function`` maps a float64 array to one of its shape."""
        return FunctionSettings(given["function"], bool(given.get("octaves", False)))

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """The function itself. Raises BuildError where it gives no finite number."""
        x = inputs[0]
        result = np.asarray(FunctionSettings.of(layer).function(x), np.float64)
        if result.shape != x.shape or not np.all(np.isfinite(result)):
            raise BuildError("the function must give one finite number for each number it gets", layer=layer.name)
        return result

    def lower(self, lowering: Lowering, group: Group) -> None:
        """In the SDP's Y stage, or by the CDP with its sum and multiplication switched off.

        int8 needs no interpolation at all: LO has one entry for each value.
        """
        layer = group.layer
        form = FunctionSettings.of(layer).function
        maker = lowering.claimed.get(group.output.name)
        if maker is not None:
            layer_type("convolution").lower(lowering, _together(lowering, maker, group, form))
            return
        source, destination = lowering.source(layer.inputs[0]), lowering.target(group.output)
        if lowering.precision == Precision.INT8:
            table = tables.exact_int8(form, source.scale, destination.scale, source.zero, destination.zero)
        elif lowering.precision == Precision.INT16:
            table = tables.fit_integers(lambda x: form(x * source.scale) / destination.scale, -32768, 32767)
        elif FunctionSettings.of(layer).octaves:
            table = tables.fit_octaves(form, _known_range(lowering, group))
        else:
            reach = lowering.magnitude(layer.inputs[0], DEFAULT_RANGE)
            table = tables.fit_halves(form, -reach, reach)
            _check_halves(lowering, group, table, reach)
        if lowering.config.sdp_lut:
            lowering.operations.append(Process(group.name, source, destination, lut=table))
        else:
            lowering.operations.append(Normalize(group.name, source, destination, 3, table, Convert(), direct=True))

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float]:
        """The least and the most of what it gives for inputs of that magnitude. Of a sigmoid, a tangent and the like
        they are finite for any: far from 0 they stay as they are. Those like SiLU are bounded on one side."""
        points = np.linspace(-largest, largest, 1025) if np.isfinite(largest) else _NEAR
        with np.errstate(all="ignore"):
            values, beyond = (np.asarray(FunctionSettings.of(layer).function(x), np.float64) for x in (points, _FAR))
        if not np.all(np.isfinite(values)):
            return -np.inf, np.inf
        low, high = float(values.min()), float(values.max())
        if np.isfinite(largest):
            return low, high
        room = _SAME * (high - low)
        if (
            not np.all(np.isfinite(beyond))
            or max(-low, high) > _LARGEST
            or _has_pole(FunctionSettings.of(layer).function, points, values, room)
        ):
            return -np.inf, np.inf
        least, most = float(beyond.min()), float(beyond.max())
        return (
            min(low, least) if least >= low - room else -np.inf,
            max(high, most) if most <= high + room else np.inf,
        )


def looked_up(lowering: Lowering) -> dict[str, Group]:
    """The int8 convolutions whose own SDP operation looks up the table of the function after them, by the name of the
    function's tensor."""
    functions = [group for group in lowering.groups if group.layer.kind == "function" and lowering.config.sdp_lut]
    pairs = [(group.output.name, lowering.makers.get(group.layer.inputs[0].name), group) for group in functions]
    return {name: maker for name, maker, group in pairs if maker is not None and _looks_up(lowering, maker, group)}


def _looks_up(lowering: Lowering, maker: Group, group: Group) -> bool:
    """Return whether only the function takes a convolution's results, and no programming of its table exceeds what a
    separate operation takes: the driver loads the table for each of a grouped convolution's operations."""
    settings, tensor = maker.layer.settings, maker.output
    if not isinstance(settings, ConvSettings) or maker.activation is not None or tensor in lowering.ends:
        return False
    if {lowering.precisions[tensor.name], lowering.precisions[group.output.name]} != {Precision.INT8}:
        return False
    values = constants(lowering.config)
    channels, height, width = tensor.shape
    separate = ceil_div(channels, values.atom) * height * width * values.sdp_y_atom
    again = ceil_div(channels, values.channels) - 1 if settings.groups > 1 else 0
    return len(lowering.consumers(tensor)) == 1 and again * SDP_TABLE_WRITES * CSB_WRITE <= separate


def _together(lowering: Lowering, maker: Group, group: Group, function: Callable[[np.ndarray], np.ndarray]) -> Group:
    """The convolution's group with the table of the function after it, in the numbers of X1: without zero point."""
    mine, result = maker.output.name, group.output.name
    zeros = lowering.zero(mine), lowering.zero(result)
    lut = tables.exact_int8(function, lowering.scales[mine], lowering.scales[result], *zeros, shift=zeros[0])
    members = [*maker.members, *group.members]
    return replace(maker, members=members, output=group.output, lut=lut, unit=lowering.scales[mine])


def _has_pole(
    function: Callable[[np.ndarray], np.ndarray], points: np.ndarray, values: np.ndarray, room: float
) -> bool:
    """Return whether the extremes move by more than ``room`` if the function is sampled more finely: 1/x, a tangent."""
    for sign in (1.0, -1.0):
        signed: np.ndarray = sign * values
        middle, apart, most = points[np.argmax(signed)], float(np.diff(points).max()), float(signed.max())
        for _ in range(4):
            closer = np.linspace(middle - apart, middle + apart, 33)
            with np.errstate(all="ignore"):
                signed = sign * np.asarray(function(closer), np.float64)
            if not float(np.max(signed)) <= most + room:  # NaN, too
                return True
            middle, apart = closer[np.argmax(signed)], apart / 16
    return False


def _known_range(lowering: Lowering, group: Group) -> float:
    """Return the largest input of a function in the calibration data. Raises BuildError where that is not known."""
    reach = lowering.magnitude(group.layer.inputs[0], 0.0)
    if reach <= 0:
        raise BuildError("range of its input: must be known. Calibrate with data.", layer=group.name)
    return reach


def _check_halves(lowering: Lowering, group: Group, table: Lut, reach: float) -> None:
    """Refuse a table that is far off, and one that is where the range of its input is not known."""
    layer = group.layer
    probe = np.linspace(-reach, reach, 513)
    largest = float(np.abs(FunctionSettings.of(layer).function(probe)).max())
    if table.error > WORST * largest:
        raise BuildError(
            f"error of its table over -{reach:g} to {reach:g}: must be at most {WORST * largest:.3g}, got "
            f"{table.error:.3g}. Limit the range of its input, or use int8, where every value has a separate entry.",
            layer=group.name,
        )
    known = lowering.calibration.magnitudes if lowering.calibration else {}
    if layer.inputs[0].name in known:
        return
    far = np.concatenate((-reach * _BEYOND, reach * _BEYOND))
    with np.errstate(all="ignore"):
        real = np.clip(FunctionSettings.of(layer).function(far), -LARGEST_HALF, LARGEST_HALF)
        given = np.clip(reference.look_up(table, far), -LARGEST_HALF, LARGEST_HALF)
        right = np.abs(real - given) <= WORST * np.maximum(largest, np.abs(real))
    if not right.all():
        worst = int(np.argmin(right))
        raise BuildError(
            f"range of its input: must be known, because its table over -{reach:g} to {reach:g} "
            f"gives {given[worst]:.3g} at {far[worst]:.3g} instead of {real[worst]:.3g}. Calibrate with data.",
            layer=group.name,
        )


class SoftmaxLayer(LayerType):
    """Over the channels of a 1x1 cube (the emulated task of NVIDIA's runtime)."""

    kind = "softmax"
    shift_invariant = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> LayerSettings:
        """Refuse all but a 1x1 cube."""
        if shapes[0][1:] != (1, 1):
            raise BuildError(
                f"softmax: cube must be 1x1, got {'x'.join(map(str, shapes[0]))}. Use fully_connected or "
                "global_average_pool before it.",
                layer=name,
            )
        return LayerSettings()

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Powers of e as shares of their sum."""
        x = inputs[0]
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def own_scale(self, layer: Layer, precision: str) -> float:
        """It gives 0..1; 127 is 1."""
        return 1 / 127

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float]:
        """0 and 1."""
        return 0.0, 1.0

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A CPU task."""
        if lowering.precision == Precision.INT16:
            raise BuildError("softmax on the CPU: precision must be int8 or fp16, got int16", layer=group.name)
        if lowering.config.memory_atom == MIDDLE_ATOM:
            raise BuildError(
                "softmax on the CPU: memory atoms must be 8 or 32 bytes, got 16. Leave softmax to the application.",
                layer=group.name,
            )
        source = lowering.source(group.layer.inputs[0])
        lowering.operations.append(Softmax(group.name, source, lowering.target(group.output)))


LEAST_FACTOR = 2.0**-10
"""Smaller factors have few bits as halves, and what is added before them would be large."""
TOLERATED = 1 / 64
"""Units of the result by which a bias may be wrong that is added in whole units of the source."""


class ScaleLayer(LayerType):
    """``factors * x + bias`` a channel."""

    kind = "scale"
    zero_points = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> ScaleSettings:
        """Return factors and bias; each is (channels,), a number, or None for zeros."""
        factors, bias = (numbers_of(name, what, given[what], shapes[0][0]) for what in ("factors", "bias"))
        return ScaleSettings(factors, bias)

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """``factors * x + bias``."""
        settings = ScaleSettings.of(layer)
        return inputs[0] * column(settings.factors) + column(settings.bias)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """X1 multiplies (int16 factors of a common shift, kept in X1's result), X2 adds what is not nothing."""
        layer, settings = group.layer, ScaleSettings.of(group.layer)
        source, destination = lowering.source(layer.inputs[0]), lowering.target(group.output)
        relu_after = group.activation is not None
        if not lowering.integer:
            factors = halves(layer.name, "factor", settings.factors)
            before = _before(settings, factors)
            if lowering.level and before is not None:
                stage = Stage("add", before, multiplier=factors, relu=relu_after)
                lowering.operations.append(Process(group.name, source, destination, stage))
                return
            x1 = Stage(multiplier=factors)
            x2 = _shifted(x1, Stage("add", halves(layer.name, "bias", settings.bias)), relu_after)
            lowering.operations.append(Process(group.name, source, destination, x1, x2))
            return
        added = _added_before(settings, source, destination) if lowering.level else None
        if added is not None:
            multipliers, shift = common_fixed_point(settings.factors, _bits(lowering), 40)
            stage = Stage("add", number_or_channels(added), 0, multipliers, relu=relu_after)
            convert = lowering.convert(source.scale * 2.0**-shift, destination)
            lowering.operations.append(Process(group.name, source, destination, stage, convert=convert))
            return
        # Fewer bits where the bias would not fit 30 bits of the product's units.
        largest = float(np.max(np.abs(settings.bias), initial=0.0)) / source.scale
        largest += abs(source.zero) * float(np.max(np.abs(settings.factors), initial=0.0))
        most = 40 if largest == 0 else int(np.clip(np.floor(30 - np.log2(largest)), 0, 40))
        multipliers, shift = common_fixed_point(settings.factors, _bits(lowering), most)
        unit = source.scale * 2.0**-shift
        bias = settings.bias - source.zero * source.scale * settings.factors
        operand, left = bias_operand(group.name, bias, np.array([unit]))
        x1 = Stage(multiplier=multipliers)
        x2 = _shifted(x1, Stage("add", operand, left), relu_after)
        lowering.operations.append(
            Process(group.name, source, destination, x1, x2, convert=lowering.convert(unit, destination))
        )


def _before(settings: ScaleSettings, factors: np.ndarray) -> np.ndarray | None:
    """Return the equivalent summand before the multiplication, in fp16.

    One stage does both in that order. None if nothing is added, or a factor is too small for that.
    """
    if not np.any(settings.bias) or np.any(settings.factors == 0):
        return None
    with np.errstate(over="ignore"):
        summand = (settings.bias / factors.astype(np.float64)).astype(np.float16)
    return summand if np.all(np.isfinite(summand)) and np.all(np.abs(settings.factors) > LEAST_FACTOR) else None


def _added_before(settings: ScaleSettings, source: Surface, destination: Surface) -> np.ndarray | None:
    """Return the summand before the multiplication, in whole units of the source: one stage does both.

    None if nothing is added, or the result differs by more than TOLERATED units.
    """
    if np.any(settings.factors == 0) or not (source.zero or np.any(settings.bias)):
        return None
    exact = settings.bias / settings.factors / source.scale - source.zero
    rounded = np.floor(exact + 0.5)
    errors = np.abs((exact - rounded) * settings.factors) * source.scale / destination.scale
    return rounded.astype(np.int64) if np.max(errors) <= TOLERATED and np.max(np.abs(rounded)) < 32768 else None


def _bits(lowering: Lowering) -> int:
    """Bits of the multipliers."""
    return 14 if lowering.precision == Precision.INT16 else 15


def _shifted(x1: Stage, x2: Stage, relu_after: bool) -> Stage | None:
    """The second stage, None where it would add nothing; the last of both has the ReLU."""
    adds = bool(np.any(np.asarray(x2.alu_operand)))
    (x2 if adds else x1).relu = relu_after
    return x2 if adds else None
