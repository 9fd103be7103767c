"""The frame of lowering: scales, places of tensors, and the table of layer types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvdla.builder.fuse import Group, group_layers
from nvdla.builder.ir import BYTES, Convert, Operation, Process, Program, Quantised, Root, Softmax, Surface
from nvdla.builder.lower import activation, concat, convolution, elementwise, normalize, parts, pool, resample
from nvdla.builder.lower.correction import exact_scales, mean_error
from nvdla.builder.network import Network, Tensor
from nvdla.builder.quantize import LARGEST, Calibration, fixed_point, weight_scales
from nvdla.errors import BuildError, ConfigError
from nvdla.hardware.configuration import Configuration, configurations
from nvdla.memory.surfaces import FEATURE_ATOMS

# Softmax gives 0..1; 127 is 1.
SOFTMAX_SCALE = 1 / 127
# Layers whose result has the scale of their inputs.
KEEPS_SCALE = ("pool", "concat", "join", "upsample", "slice", "pad")


class Lowering:
    """One network on its way to one configuration and precision. Layer types append to ``operations``."""

    def __init__(
        self,
        network: Network,
        config: Configuration,
        precision: str,
        calibration: Calibration | None,
        per_channel: bool,
    ) -> None:
        if precision not in config.precisions:
            able = [name for name, each in configurations().items() if precision in each.precisions]
            raise ConfigError(
                f"{config.name} has no {precision}; "
                + (f"build for {', '.join(able)}" if able else "precisions are int8, int16 and fp16")
            )
        if config.memory_atom not in FEATURE_ATOMS.values():
            able = [name for name, each in configurations().items() if each.memory_atom in FEATURE_ATOMS.values()]
            raise ConfigError(
                f"{config.name} has memory atoms of {config.memory_atom} bytes, which loadables have no tensor format "
                f"for; build for {', '.join(able)}"
            )
        if not network.inputs or not network.outputs:
            raise BuildError(f"network {network.name} needs at least one input and one output (Network.output)")
        self.network, self.config, self.precision, self.per_channel = network, config, precision, per_channel
        self.calibration = calibration
        self.operations: list[Operation] = []
        self.groups = group_layers(network)
        self.scales = self._unify_scales()
        self.places: dict[str, Surface] = {}
        self.quantised: dict[str, Quantised] = {}
        self._temporaries = 0

    @property
    def integer(self) -> bool:
        return self.precision != "fp16"

    @property
    def atom_channels(self) -> int:
        """Channels in one memory atom."""
        return self.config.memory_atom // BYTES[self.precision]

    def magnitude(self, tensor: Tensor, default: float) -> float:
        """The largest magnitude a tensor is meant to hold, for fitting tables."""
        if self.integer:
            return self.scales[tensor.name] * (127 if self.precision == "int8" else 32767)
        known = self.calibration.magnitudes if self.calibration else {}
        return float(known.get(tensor.name, default))

    # ---- scales

    def _unify_scales(self) -> dict[str, float]:
        """The scale of every tensor between groups; pooling, concat and upsampling keep the scale of their input."""
        tensors = list(self.network.inputs) + [group.output for group in self.groups]
        if not self.integer:
            return {tensor.name: 1.0 for tensor in tensors}
        if self.calibration is None:
            raise BuildError(
                f"network {self.network.name}: {self.precision} needs scales; pass calibration=calibrate(network, "
                f"samples)"
            )
        inputs = {tensor.name for tensor in self.network.inputs}
        leader = {tensor.name: tensor.name for tensor in tensors}

        def find(name: str) -> str:
            while leader[name] != name:
                name = leader[name]
            return name

        for group in self.groups:
            if group.layer.kind not in KEEPS_SCALE:
                continue
            for source in group.layer.inputs:
                if group.layer.kind in ("concat", "join") and find(source.name) in inputs:
                    continue  # is copied with a change of scale
                first, second = find(source.name), find(group.output.name)
                # An input keeps the scale the application knows.
                if second in inputs:
                    first, second = second, first
                leader[second] = first
        scales: dict[str, float] = {}
        for name in leader:
            lead = find(name)
            own = self._own_scale(name)
            if lead not in inputs:
                scales[lead] = max(scales.get(lead, 0.0), own)
            else:
                scales[lead] = self._own_scale(lead)
        return {name: scales[find(name)] for name in leader}

    def _own_scale(self, name: str) -> float:
        group = next((each for each in self.groups if each.output.name == name), None)
        if group is not None and group.layer.kind == "softmax":
            return SOFTMAX_SCALE
        if group is not None and group.layer.kind == "constant":
            return max(float(np.max(np.abs(group.layer.values))), 1e-30) / LARGEST[self.precision]
        return self.calibration.scale(name, self.precision)

    def integers(self, group: Group, weights: np.ndarray, groups: int) -> tuple[np.ndarray | None, np.ndarray]:
        """Scales (K,) of weights (K, C / groups, R, S), None for fp16, and the bias (K,), corrected where the means of
        the source are known."""
        if not self.integer:
            return None, group.bias
        source = group.layer.inputs[0]
        given = self.calibration.weight_scales.get(group.layer.name) if self.precision == "int8" else None
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
                scales = exact_scales(scales, self.scales[source.name], self.scales[group.output.name])
        bias, means = group.bias, self.calibration.means.get(source.name)
        if means is not None:
            bias = bias - mean_error(group, weights, scales, self.precision, means, groups)
        self.quantised[group.layer.name] = Quantised(scales, bias)
        return scales, bias

    # ---- places

    def source(self, tensor: Tensor) -> Surface:
        """Where a tensor lies that was made before."""
        return self.places[tensor.name]

    def target(self, tensor: Tensor) -> Surface:
        """Where a tensor is to be written: a place reserved in a concat, or a root of its own."""
        if tensor.name not in self.places:
            role = "output" if tensor in self.network.outputs else "inner"
            channels, height, width = tensor.shape
            scale = self.scales[tensor.name]
            self.places[tensor.name] = Root(tensor.name, channels, height, width, self.precision, scale, role).whole
        return self.places[tensor.name]

    def temporary(self, name: str, channels: int, height: int, width: int, scale: float) -> Surface:
        """A root for a value inside a layer."""
        self._temporaries += 1
        return Root(f"{name}/{self._temporaries}", channels, height, width, self.precision, scale).whole

    def copy(self, name: str, source: Surface, destination: Surface) -> None:
        """Copy by the SDP, changing the scale where it differs."""
        self.operations.append(
            Process(name, source, destination, convert=self.convert(source.scale, destination.scale))
        )

    def convert(self, scale_in: float, scale_out: float) -> Convert:
        """The output converter from one scale to another; nothing to do for fp16 and equal scales."""
        if not self.integer or scale_in == scale_out:
            return Convert()
        return Convert(*fixed_point(scale_in / scale_out))

    # ---- the walk

    def run(self) -> Program:
        for tensor in self.network.inputs:
            channels, height, width = tensor.shape
            scale = self.scales[tensor.name]
            self.places[tensor.name] = Root(tensor.name, channels, height, width, self.precision, scale, "input").whole
        concat.reserve(self)
        for group in self.groups:
            LOWER[group.layer.kind](self, group)
        outputs = [self._as_output(tensor) for tensor in self.network.outputs]
        return Program(
            self.network.name,
            self.precision,
            self.operations,
            [self.places[tensor.name].root for tensor in self.network.inputs],
            outputs,
            dict(self.places),
            self.quantised,
        )

    def _as_output(self, tensor: Tensor) -> Root:
        """The root that is bound; tensors that are only a part of another root (or an input) are copied."""
        place = self.places[tensor.name]
        if place.root.role == "output" and place.root.name == tensor.name:
            return place.root
        channels, height, width = tensor.shape
        root = Root(tensor.name, channels, height, width, self.precision, place.scale, "output")
        self.copy(tensor.name, place, root.whole)
        return root


def _softmax(lowering: Lowering, group: Group) -> None:
    if lowering.precision == "int16":
        raise BuildError(
            f"layer {group.name}: softmax on the CPU takes int8 and fp16, not int16; build in int8 or fp16"
        )
    source = lowering.source(group.layer.inputs[0])
    lowering.operations.append(Softmax(group.name, source, lowering.target(group.output)))


LOWER: dict[str, Callable[[Lowering, Group], None]] = {
    "convolution": convolution.lower,
    "deconvolution": resample.deconvolution,
    "upsample": resample.upsample,
    "scale": activation.scale,
    "relu": activation.relu,
    "prelu": activation.prelu,
    "clip": activation.clip,
    "function": activation.function,
    "elementwise": elementwise.lower,
    "concat": concat.lower,
    "pool": pool.lower,
    "join": parts.join,
    "constant": parts.constant,
    "slice": parts.cut,
    "pad": parts.pad,
    "lrn": normalize.lower,
    "softmax": _softmax,
}


def lower(
    network: Network,
    config: Configuration,
    precision: str,
    calibration: Calibration | None = None,
    per_channel: bool = False,
) -> Program:
    """The hardware operations of a network. Raises BuildError (ConfigError for what the configuration lacks)."""
    return Lowering(network, config, precision, calibration, per_channel).run()
