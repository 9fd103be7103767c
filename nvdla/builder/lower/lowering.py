"""The frame of lowering: scales and places of tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvdla.analysis.cycles.constants import Memory
from nvdla.argument_kinds import by_annotations
from nvdla.builder import pixels
from nvdla.builder.branches import merged
from nvdla.builder.groups import Group, group_layers
from nvdla.builder.ir import (
    BYTES,
    Convert,
    GroupsChoice,
    LoweredProgram,
    Operation,
    Process,
    Quantised,
    Root,
    Stage,
    Surface,
)
from nvdla.builder.layer_types import layer_type, own_scale
from nvdla.builder.lower import concat, images, residual, zero_points
from nvdla.builder.lower.correction import exact_scales, mean_error
from nvdla.builder.network import Network, NetworkTensor
from nvdla.builder.quantize import LARGEST, Calibration, fixed_point, weight_scales
from nvdla.builder.weigh import Weigher
from nvdla.errors import BuildError, ConfigError
from nvdla.hardware.configuration import Configuration, configurations
from nvdla.memory.surfaces import FEATURE_ATOMS
from nvdla.tensors.pixel_numbers import PixelNumbers

# Largest bias in units of the accumulator: int16 shifted by 4, which is below the noise of rounded weights.
_LARGEST_BIAS = 32767.0 * 16


class Lowering:
    """One network on its way to one configuration and precision. Layer types append to ``operations``."""

    @by_annotations
    def __init__(
        self,
        network: Network,
        config: Configuration,
        precision: str,
        calibration: Calibration | None,
        per_channel: bool,
        level: int = 1,
        input_format: str = "auto",
        memory: Memory | None = None,
        numbers: PixelNumbers | None = None,
    ) -> None:
        config.require(precision)
        if config.memory_atom not in FEATURE_ATOMS.values():
            able = [name for name, each in configurations().items() if each.memory_atom in FEATURE_ATOMS.values()]
            raise ConfigError(
                f"{config.name} has memory atoms of {config.memory_atom} bytes, which loadables have no tensor format "
                f"for; build for {', '.join(able)}"
            )
        if not network.inputs or not network.outputs:
            raise BuildError(f"network {network.name} needs at least one input and one output (Network.output)")
        self.network, self.config, self.per_channel, self.level = network, config, per_channel, level
        # That of the network, and that of the group which is being lowered.
        self.default = self.precision = precision
        self.calibration = calibration
        self.operations: list[Operation] = []
        self.groups = group_layers(network)
        if level:
            self.groups = merged(self.groups, network, calibration)
        self.precisions: dict[str, str] = {}
        self.zeros: dict[str, int] = {}
        self.scales = self._unify_scales()
        for name, point in zero_points.chosen(self, self._leaders()).items():
            self.scales[name], self.zeros[name] = point.scale, point.zero
        self.places: dict[str, Surface] = {}
        self._converted: dict[tuple[str, str], Surface] = {}
        self.quantised: dict[str, Quantised] = {}
        self.grouped: list[GroupsChoice] = []
        self._temporaries = 0
        self.weigher = Weigher(config, level, memory)
        self.claimed: dict[str, Group] = residual.claimed(self) if level else {}
        bits = pixels.depth(input_format)
        self.numbers = numbers or PixelNumbers(bits=bits or pixels.PICTURE_BITS)
        self.images = images.chosen(self, "feature" if input_format == "auto" and not level else input_format)
        self.converters = images.converted(self) if bits is not None else {}
        for name in self.converters:  # CDMA makes symmetric elements of pixels
            self.zeros.pop(name, None)

    @property
    def integer(self) -> bool:
        """Whether it computes in integers."""
        return self.precision != "fp16"

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

    # ---- scales

    @property
    def scales_given(self) -> Calibration:
        """The calibration, which every network of integers has."""
        assert self.calibration is not None, "only fp16 needs no calibration"
        return self.calibration

    @property
    def tensors(self) -> list[NetworkTensor]:
        """Inputs, and what the groups make."""
        return list(self.network.inputs) + [group.output for group in self.groups]

    def _unify_scales(self) -> dict[str, float]:
        """The scale of every tensor between groups; pooling, concat and upsampling keep the scale of their input.

        What has one scale has one precision too: the wider one, where some of it is wanted in int16.
        """
        tensors = self.tensors
        if not self.integer:
            self.precisions = {tensor.name: self.default for tensor in tensors}
            return {tensor.name: 1.0 for tensor in tensors}
        if self.calibration is None:
            raise BuildError(
                f"network {self.network.name}: {self.precision} needs scales; pass calibration=calibrate(network, "
                f"samples)"
            )
        inputs = {tensor.name for tensor in self.network.inputs}
        find = self._leaders()
        wanted = self._wanted()
        wide = {find(name) for name, precision in wanted.items() if precision == "int16"} - inputs
        self.precisions = {tensor.name: "int16" if find(tensor.name) in wide else self.default for tensor in tensors}
        scales: dict[str, float] = {}
        for tensor in tensors:
            lead = find(tensor.name)
            if lead not in inputs:
                scales[lead] = max(scales.get(lead, 0.0), self._own_scale(tensor.name))
            else:
                scales[lead] = self._own_scale(lead)
        return {tensor.name: scales[find(tensor.name)] for tensor in tensors}

    def zero(self, name: str) -> int:
        """The element that stands for 0 in a tensor."""
        return self.zeros.get(name, 0)

    def _leaders(self) -> Callable[[str], str]:
        """The tensor that speaks for all that have one scale with a given one."""
        leader = {tensor.name: tensor.name for tensor in self.tensors}
        inputs = {tensor.name for tensor in self.network.inputs}

        def find(name: str) -> str:
            while leader[name] != name:
                name = leader[name]
            return name

        for group in self.groups:
            kind = layer_type(group.layer.kind)
            if not kind.keeps_scale:
                continue
            for source in group.layer.inputs:
                if kind.copies and find(source.name) in inputs:
                    continue  # is copied with a change of scale
                first, second = find(source.name), find(group.output.name)
                # An input keeps the scale the application knows.
                if second in inputs:
                    first, second = second, first
                leader[second] = first
        return find

    def _wanted(self) -> dict[str, str]:
        """Precisions that the calibration wants, by tensor; layers that share an operation go together."""
        found = {}
        for name, precision in self.scales_given.precisions.items():
            group = next((each for each in self.groups if name in each.members), None)
            if group is None:
                raise BuildError(
                    f"precision {precision} for layer {name}: network {self.network.name} has no such layer"
                )
            if precision not in LARGEST or precision not in self.config.precisions or self.default != "int8":
                raise BuildError(
                    f"layer {name}: {precision} within a network of {self.default} on {self.config.name} is not "
                    "possible; a network of int8 may have layers of int16, on nv_full"
                )
            if group.layer.kind != "softmax":
                found[group.output.name] = precision
        return found

    def _own_scale(self, name: str) -> float:
        group = next((each for each in self.groups if each.output.name == name), None)
        own = None if group is None else own_scale(group.layer, self.precisions[name])
        return own if own is not None else self.scales_given.scale(name, self.precisions[name])

    def integers(self, group: Group, weights: np.ndarray, groups: int) -> tuple[np.ndarray | None, np.ndarray]:
        """Scales (K,) of weights (K, C / groups, R, S), None for fp16, and the bias (K,), corrected where the means of
        the source are known."""
        if not self.integer:
            return None, group.biases
        source = group.layer.inputs[0]
        scales = self.kernel_scales(group, weights)
        bias, means = group.biases, self.scales_given.means.get(source.name)
        if means is not None:
            if source.name in self.converters:
                means = means / np.array(self.converters[source.name].factors)
            bias = bias - mean_error(group, weights, scales, self.precision, means, groups)
        self.quantised[group.layer.name] = Quantised(scales, bias)
        return scales, bias

    def scale_of(self, tensor: NetworkTensor) -> float:
        """The scale of a tensor in the precision of the group that is lowered."""
        scale = self.scales[tensor.name]
        if self.precisions[tensor.name] == self.precision:
            return scale
        # 256 units of int16 are one of int8, so that widening is exact.
        return scale / 256 if self.precision == "int16" else scale * LARGEST["int16"] / LARGEST["int8"]

    def kernel_scales(self, group: Group, weights: np.ndarray) -> np.ndarray:
        """Scales (K,) of weights (K, C / groups, R, S): those of the calibration, else from the weights."""
        given = self.scales_given.weight_scales.get(group.layer.name) if self.precision == "int8" else None
        if given is not None:
            given = np.ravel(np.asarray(given, np.float64))
            # A batch is unrolled into as many groups with the same weights.
            scales = np.tile(given, len(weights) // len(given)) if len(weights) % max(len(given), 1) == 0 else given
            if len(scales) != len(weights):
                raise BuildError(f"layer {group.layer.name}: {len(given)} weight scales for {len(weights)} kernels")
            if not np.all(np.isfinite(scales) & (scales > 0)):
                raise BuildError(f"layer {group.layer.name}: weight scales must be positive finite numbers")
        else:
            scales = weight_scales(weights, self.precision, self.per_channel)
            if np.any(scales != scales[0]):
                source = self.scale_of(group.layer.inputs[0])
                # A kernel that is far smaller than its bias would cost all biases their low bits: they share a shift.
                scales = np.maximum(scales, np.abs(group.biases) / source / _LARGEST_BIAS)
                scales = exact_scales(scales, source, self.scales[group.output.name])
        return scales

    # ---- places

    def source(self, tensor: NetworkTensor) -> Surface:
        """Where a tensor lies that was made before, in the precision of the group that is lowered."""
        place = self.places[tensor.name]
        if place.precision == self.precision:
            return place
        key = tensor.name, self.precision
        if key not in self._converted:
            self._converted[key] = self._convert(tensor, place)
        return self._converted[key]

    def _convert(self, tensor: NetworkTensor, place: Surface) -> Surface:
        """A copy in the other width of integers, by an SDP operation of its own (the only one that may convert).

        The SDP takes and gives two int16 surfaces for one of int8 (cmod/sdp/NV_NVDLA_sdp.cpp:528, :1496).
        """
        name = f"{tensor.name}/{self.precision}"
        if place.precision == "int16" and (place.root.role != "inner" or place.channels != place.root.channels):
            whole = Root(f"{name}/copy", *place.shape, "int16", place.scale).whole
            self.operations.append(Process(name, place, whole))
            place = whole
        result = Root(name, *tensor.shape, self.precision, self.scale_of(tensor)).whole
        for surface in (place, result):
            surface.root.paired = surface.precision == "int16"
        self.copy(name, place, result)
        return result

    def target(self, tensor: NetworkTensor) -> Surface:
        """Where a tensor is to be written: a place reserved in a concat, or a root of its own."""
        if tensor.name not in self.places:
            role = "output" if tensor in self.network.outputs else "inner"
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
        """A multiplier, and the output converter behind it, from units of ``unit`` of which ``constant`` stand for 0:
        zero points are exact."""
        multiplier, shift = fixed_point(unit / destination.scale, most=20)
        return multiplier, Convert(1, shift, constant * multiplier - (destination.zero << shift))

    # ---- the walk

    def run(self) -> LoweredProgram:
        """Lower the whole network."""
        for tensor in self.network.inputs:
            channels, height, width = tensor.shape
            scale = self.scales[tensor.name]
            root = Root(tensor.name, channels, height, width, self.default, scale, "input", zero=self.zero(tensor.name))
            root.pixels, root.converter = self.images.get(tensor.name), self.converters.get(tensor.name)
            self.places[tensor.name] = root.whole
        concat.reserve(self)
        waiting = {group.output.name for group in self.claimed.values()}
        for group in self.groups:
            if group.output.name in waiting:
                continue
            self.precision = self.precisions[group.output.name]
            layer_type(group.layer.kind).lower(self, group)
        self.precision = self.default
        outputs = [self._as_output(tensor) for tensor in self.network.outputs]
        return LoweredProgram(
            self.network.name,
            self.default,
            self.operations,
            [self.places[tensor.name].root for tensor in self.network.inputs],
            outputs,
            dict(self.places),
            self.quantised,
            self.grouped,
        )

    def _as_output(self, tensor: NetworkTensor) -> Root:
        """The root that is bound; tensors that are only a part of another root (or an input) are copied."""
        place = self.places[tensor.name]
        if place.root.role == "output" and place.root.name == tensor.name:
            return place.root
        channels, height, width = tensor.shape
        root = Root(tensor.name, channels, height, width, place.precision, place.scale, "output", zero=place.zero)
        self.copy(tensor.name, place, root.whole)
        return root


@by_annotations
def lower(
    network: Network,
    config: Configuration,
    precision: str,
    calibration: Calibration | None = None,
    per_channel: bool = False,
    level: int = 1,
    input_format: str = "auto",
    memory: Memory | None = None,
    numbers: PixelNumbers | None = None,
) -> LoweredProgram:
    """The hardware operations of a network, weighed for a memory. ``numbers``: what pixels stand for, where inputs are
    pixels. Raises BuildError (ConfigError for what the configuration lacks)."""
    return Lowering(network, config, precision, calibration, per_channel, level, input_format, memory, numbers).run()
