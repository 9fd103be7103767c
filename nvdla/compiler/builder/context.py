"""State of a network's lowering and the services that layer types use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvdla import limits
from nvdla.analysis.cycles.constants import Memory
from nvdla.compiler.builder.cost_model import CostModel
from nvdla.compiler.builder.ir import (
    BYTES,
    Convert,
    Convolve,
    GroupsChoice,
    Operation,
    PixelConverter,
    Process,
    Quantized,
    Root,
    Stage,
    Surface,
)
from nvdla.compiler.builder.layers import ConvSettings, Ends, Group, KernelSettings, Layer, NetworkTensor
from nvdla.compiler.builder.quantization import (
    LARGEST,
    Calibration,
    common_fixed_point,
    fixed_point,
    quantize,
    weight_scales,
)
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import BuildError
from nvdla.util.precision import Precision


class _Operations(list[Operation]):
    """The operations of a network. One layer may need any number of them, so each is counted before it is kept."""

    weights = 0  # bytes

    def append(self, operation: Operation) -> None:
        """Add an operation.

        Raises:
            BuildError: The operations or their weights exceed the limits of a plan.
        """
        limits.PLAN.check_operations("", len(self) + 1)
        if isinstance(operation, Convolve):
            self.weights += operation.weights.nbytes
            limits.PLAN.check_memory("", "weights", self.weights)
        super().append(operation)


def mean_error(
    group: Group, weights: np.ndarray, scales: np.ndarray, precision: str, means: np.ndarray, groups: int
) -> np.ndarray:
    """Return the average contribution (K,) of integer weights (K, C / groups, R, S) to the results.

    ``means`` (C,) of the source's channels; the zeros of a convolution's padding are counted in.
    """
    units = scales[:, None, None, None]
    error = quantize(weights, units, precision) * units - weights
    own = np.repeat(means.reshape(groups, -1), len(weights) // groups, axis=0)
    layer = group.layer
    settings = KernelSettings.of(layer)
    if not isinstance(settings, ConvSettings):
        return np.einsum("kcrs,kc->k", error, own) / np.prod(settings.stride)
    (_, *sizes), (_, *results) = layer.inputs[0].shape, layer.output.shape
    rows, columns = (
        _inside(
            sizes[axis],
            results[axis],
            error.shape[2 + axis],
            settings.stride[axis],
            settings.padding[2 * axis],
            settings.dilation[axis],
        )
        for axis in (0, 1)
    )
    return np.einsum("kcrs,kc,r,s->k", error, own, rows, columns, optimize=True)


def _inside(size: int, results: int, taps: int, stride: int, before: int, dilation: int) -> np.ndarray:
    """Return the share of results (taps,) for which each tap reads the source and not the padding."""
    places = np.arange(results)[:, None] * stride - before + np.arange(taps) * dilation
    return np.mean((places >= 0) & (places < size), axis=0)


def exact_scales(scales: np.ndarray, source: float, destination: float) -> np.ndarray:
    """Weight scales (K,), not below those given, whose factors to the destination are whole multipliers of one shift.

    Kernels far smaller than the largest have multipliers of few bits; a scale that fits them leaves no error of gain.
    """
    ratios = source * scales / destination
    _, shift = common_fixed_point(ratios)
    multipliers = np.ceil(ratios * 2.0**shift - 1e-6)
    return np.where(multipliers < 1 << 15, np.maximum(multipliers, 1) * 2.0**-shift * destination / source, scales)


# Largest bias in units of the accumulator: int16 shifted by 4, which is below the noise of rounded weights. int16 data
# have 256 times as many units for the same real value. 32767 is that of biases that saturate.
_LARGEST_BIAS: dict[str, float] = {Precision.INT8: 32766.0 * 16, Precision.INT16: 32766.0 * 16 * 256}


def name_of_copy(tensor: NetworkTensor, precision: str) -> str:
    """Return the name of a tensor's copy in the other integer width."""
    return f"{tensor.name}/{precision}"


class Lowering:
    """State of one network on its way to one configuration and precision.

    Layer types append to ``operations``. ``default`` is the precision of the network, ``precision`` that of the group
    that is being lowered.
    """

    def __init__(
        self,
        groups: list[Group],
        inputs: list[NetworkTensor],
        outputs: list[NetworkTensor],
        consumers: Callable[[NetworkTensor], list[Layer]],
        config: Configuration,
        precision: str,
        calibration: Calibration | None,
        per_channel: bool,
        level: int,
        memory: Memory | None,
    ) -> None:
        self.config, self.per_channel, self.level = config, per_channel, level
        self.default = self.precision = precision
        self.calibration = calibration
        self.groups, self.inputs, self.outputs, self.consumers = groups, inputs, outputs, consumers
        self.ends = set(outputs)
        self.makers = {group.output.name: group for group in groups}
        self.operations: list[Operation] = _Operations()
        self.precisions: dict[str, str] = {}
        self.scales: dict[str, float] = {}
        self.zeros: dict[str, int] = {}
        self.bounds: dict[float, dict[int, Ends]] = {}
        self.places: dict[str, Surface] = {}
        self.converters: dict[str, PixelConverter] = {}
        self.claimed: dict[str, Group] = {}
        self.quantized: dict[str, Quantized] = {}
        self.grouped: list[GroupsChoice] = []
        self.cost_model = CostModel(config, level, memory)
        self._converted: dict[tuple[str, str], Surface] = {}
        self._temporaries = 0

    @property
    def integer(self) -> bool:
        """Return whether it computes in integers."""
        return self.precision != Precision.FP16

    @property
    def atom_channels(self) -> int:
        """Channels in one memory atom."""
        return self.config.memory_atom // BYTES[self.precision]

    def magnitude(self, tensor: NetworkTensor, default: float) -> float:
        """The largest magnitude a tensor is meant to hold, for fitting tables."""
        if self.integer:
            return self.scales[tensor.name] * (LARGEST[self.precisions[tensor.name]] + abs(self.zero(tensor.name)))
        known = self.calibration.magnitudes if self.calibration else {}
        return float(known.get(tensor.name, default))

    @property
    def scales_given(self) -> Calibration:
        """The calibration, which every network of integers has."""
        assert self.calibration is not None, "only fp16 needs no calibration"
        return self.calibration

    @property
    def tensors(self) -> list[NetworkTensor]:
        """Inputs, and results of the groups."""
        return [*self.inputs, *(group.output for group in self.groups)]

    def zero(self, name: str) -> int:
        """The element that stands for 0 in a tensor."""
        return self.zeros.get(name, 0)

    def integers(self, group: Group, weights: np.ndarray, groups: int) -> tuple[np.ndarray | None, np.ndarray]:
        """Scales (K,) of weights (K, C / groups, R, S), None for fp16, and the bias (K,), corrected where the means of
        the source are known."""
        if not self.integer:
            return None, group.biases
        source = group.layer.inputs[0]
        scales = self.kernel_scales(group, weights)
        bias, means = group.biases, self.scales_given.means.get(source.name)
        correction = self.scales_given.corrections.get(group.layer.name)
        if correction is not None:
            bias = bias + correction
        elif means is not None:
            if source.name in self.converters:
                means = means / np.array(self.converters[source.name].factors)
            bias = bias - mean_error(group, weights, scales, self.precision, means, groups)
        self.quantized[group.layer.name] = Quantized(scales, bias)
        return scales, bias

    def scale_of(self, tensor: NetworkTensor) -> float:
        """The scale of a tensor in the precision of the group that is lowered."""
        scale = self.scales[tensor.name]
        if self.precisions[tensor.name] == self.precision:
            return scale
        if self.precision == Precision.INT16:
            # 256 units of int16 are one of int8, so that widening is exact; 128 where elements are up to 255 from 0.
            return scale / (128 if self.zero(tensor.name) else 256)
        narrow = scale * LARGEST[Precision.INT16] / LARGEST[Precision.INT8]
        return self.scales.get(name_of_copy(tensor, self.precision), narrow)

    def kernel_scales(self, group: Group, weights: np.ndarray) -> np.ndarray:
        """Scales (K,) of weights (K, C / groups, R, S): those of the calibration, else from the weights."""
        given = self.scales_given.weight_scales.get(group.layer.name) if self.precision == Precision.INT8 else None
        if given is not None:
            given = np.ravel(np.asarray(given, np.float64))
            # A batch is unrolled into as many groups with the same weights.
            scales = np.tile(given, len(weights) // len(given)) if len(weights) % max(len(given), 1) == 0 else given
            if len(scales) != len(weights):
                raise BuildError(
                    f"weight scales: must be {len(weights)} (one per kernel), got {len(given)}", layer=group.layer.name
                )
            if not np.all(np.isfinite(scales) & (scales > 0)):
                raise BuildError("weight scales must be positive finite numbers", layer=group.layer.name)
            sizes = np.ravel(np.abs(group.factors))  # factors of layers that were folded into the weights
            scales = scales * np.tile(np.where(sizes > 0, sizes, 1.0), len(scales) // len(sizes))
        else:
            scales = weight_scales(weights, self.precision, self.per_channel)
            if np.any(scales != scales[0]):
                source = self.scale_of(group.layer.inputs[0])
                # A kernel that is far smaller than its bias would cost all biases their low bits: they share a shift.
                scales = np.maximum(scales, np.abs(group.biases) / source / _LARGEST_BIAS[self.precision])
                scales = exact_scales(scales, source, self.scales[group.output.name])
        return scales

    def source(self, tensor: NetworkTensor) -> Surface:
        """Return the surface of an existing tensor in the precision of the group being lowered."""
        place = self.places[tensor.name]
        if place.precision == self.precision:
            return place
        key = tensor.name, self.precision
        if key not in self._converted:
            self._converted[key] = self._convert(tensor, place)
        return self._converted[key]

    def _convert(self, tensor: NetworkTensor, place: Surface) -> Surface:
        """Return a copy in the other integer width, made by a separate SDP operation (only the SDP can convert).

        The SDP takes and gives two int16 surfaces for one of int8 (cmod/sdp/NV_NVDLA_sdp.cpp:528, :1496).
        """
        name = name_of_copy(tensor, self.precision)
        if place.precision == Precision.INT16 and (place.root.role != "inner" or place.channels != place.root.channels):
            whole = Root(f"{name}/copy", *place.shape, Precision.INT16, place.scale).whole
            self.operations.append(Process(name, place, whole))
            place = whole
        result = Root(name, *tensor.shape, self.precision, self.scale_of(tensor), zero=self.zero(name)).whole
        for surface in (place, result):
            surface.root.paired = surface.precision == Precision.INT16
        self.copy(name, place, result)
        return result

    def target(self, tensor: NetworkTensor) -> Surface:
        """Return the surface for a tensor's result: a place reserved in a concat, or a separate root."""
        if tensor.name not in self.places:
            role = "output" if tensor in self.ends else "inner"
            channels, height, width = tensor.shape
            scale, zero = self.scales[tensor.name], self.zero(tensor.name)
            precision = self.precisions[tensor.name]
            root = Root(tensor.name, channels, height, width, precision, scale, role, zero=zero)
            self.places[tensor.name] = root.whole
        return self.places[tensor.name]

    def temporary(self, name: str, channels: int, height: int, width: int, like: Surface) -> Surface:
        """A root for a value inside a layer, with the scale and zero point of another."""
        self._temporaries += 1
        label = f"{name}/{self._temporaries}"
        return Root(label, channels, height, width, self.precision, like.scale, zero=like.zero).whole

    def copy(self, name: str, source: Surface, destination: Surface) -> None:
        """Copy by the SDP, changing scale and zero point where they differ."""
        x1, convert = None, self.convert(source.scale, destination, source.zero)
        if source.scale != destination.scale and (source.zero or destination.zero):
            multiplier, convert = self.rescaled(source.scale, source.zero, destination)
            x1 = Stage(multiplier=multiplier)
        self.operations.append(Process(name, source, destination, x1, convert=convert))

    def convert(self, unit: float, destination: Surface, constant: int = 0) -> Convert:
        """The output converter from units of ``unit``, of which ``constant`` stand for 0, to a surface; nothing to do
        for fp16 and equal scales. Zero points cost up to half a unit: it should be fine against the surface's units."""
        if not self.integer:
            return Convert()
        if unit == destination.scale:
            return Convert(offset=constant - destination.zero)
        offset = constant - int(np.floor(destination.zero * destination.scale / unit + 0.5))
        return Convert(*fixed_point(unit / destination.scale), offset)

    def rescaled(self, unit: float, constant: int, destination: Surface) -> tuple[int, Convert]:
        """Return a multiplier and the output converter after it.

        They convert from units of ``unit``, of which ``constant`` stand for 0. Zero points are exact.
        """
        multiplier, shift = fixed_point(unit / destination.scale, most=20)
        return multiplier, Convert(1, shift, constant * multiplier - (destination.zero << shift))
