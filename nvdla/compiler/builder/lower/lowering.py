"""Lowering of groups of layers to hardware operations: branches, scale correction, image inputs.

A 3x3 and a 1x1 branch on the same input are a 3x3 convolution, as are two of the same size. Smaller kernels are put
into the largest where their padding says that they look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nvdla.analysis.cycles.constants import Memory
from nvdla.compiler.builder import cbuf
from nvdla.compiler.builder.cbuf import fit
from nvdla.compiler.builder.context import Lowering
from nvdla.compiler.builder.groups import group_layers, merged
from nvdla.compiler.builder.ir import (
    DTYPES,
    Convolve,
    LoweredProgram,
    PixelConverter,
    Process,
    Root,
)
from nvdla.compiler.builder.layer_types import layer_type, own_scale
from nvdla.compiler.builder.layers import ConvSettings, Group, NetworkTensor
from nvdla.compiler.builder.lower import concat, elementwise, pointwise
from nvdla.compiler.builder.network import Network
from nvdla.compiler.builder.quantization import (
    LARGEST,
    LARGEST_HALF,
    Calibration,
)
from nvdla.emulator.hardware.configuration import Configuration, configurations
from nvdla.emulator.memory.surfaces import feature_format
from nvdla.errors import BuildError, ConfigError, in_layer
from nvdla.loadable.enums import PixelFormat
from nvdla.tensors.real import PixelNumbers
from nvdla.util.arguments import by_annotations
from nvdla.util.precision import Precision

FORMATS = ("auto", "image", "feature", "pixels")


def chosen(lowering: NetworkLowering, wanted: str) -> dict[str, PixelFormat]:
    """The pixel formats of inputs by name. ``wanted``: "auto" where that is possible, "image" for all of them (else
    BuildError), "pixels" for all of them with unsigned elements, "feature" for none, or the name of a pixel format."""
    if wanted not in FORMATS and cbuf.named(wanted) is None:
        names = ", ".join(pixel_format.name for pixel_format in PixelFormat if pixel_format < PixelFormat.FEATURE)
        raise BuildError(f"input format {wanted!r}: must be one of {', '.join(FORMATS)}, {names}")
    formats: dict[str, PixelFormat] = {}
    for tensor in lowering.network.inputs if wanted != "feature" else ():
        form, reason = _form(lowering, tensor, wanted)
        reason = reason if form is None else _hindrance(lowering, tensor, form)
        if form is not None and not reason:
            formats[tensor.name] = form
        elif wanted != "auto":
            raise BuildError(f"input {tensor.name} cannot be an image: {reason}; use the input format auto or feature")
    return formats


def _form(lowering: NetworkLowering, tensor: NetworkTensor, wanted: str) -> tuple[PixelFormat | None, str]:
    """The format of an input, or why there is none."""
    channels, precision = tensor.shape[0], lowering.default
    known = cbuf.named(wanted)
    if known is not None:
        reason = cbuf.hindrance(known, channels, precision, lowering.config)
        if not reason and cbuf.depth(wanted) not in (None, lowering.numbers.bits):
            reason = f"pixels of {wanted} have {cbuf.depth(wanted)} bits, the given ones {lowering.numbers.bits}"
        return (None, reason) if reason else (known, "")
    if wanted != "pixels":
        return cbuf.format_for(channels, precision), "it has more than four channels"
    bits = lowering.numbers.bits
    form = cbuf.unsigned_format(channels, lowering.config, bits)
    return form, f"no pixel format of {lowering.config.name} has {channels} channels of {bits} bits"


def converted(lowering: NetworkLowering) -> dict[str, PixelConverter]:
    """Return the CDMA conversion of inputs that are unsigned pixels, and set the scales of these inputs.

    If channels have separate scales, the weights of the consuming layers include their factors. fp16 has no scale, so
    its factors contain the whole conversion.
    """
    converters: dict[str, PixelConverter] = {}
    for tensor in (candidate for candidate in lowering.network.inputs if candidate.name in lowering.images):
        form = lowering.images[tensor.name]
        converter, unit = cbuf.converter(lowering.numbers, form, tensor.shape[0], lowering.default)
        if lowering.default == Precision.FP16:
            converter = replace(converter, factors=tuple(unit * factor for factor in converter.factors))
        else:
            lowering.scales[tensor.name] = unit
        converters[tensor.name] = converter
        if any(factor != 1 for factor in converter.factors):
            factors = np.array(converter.factors)[:, None, None]
            for group in lowering.readers.get(tensor, ()):
                group.weights = group.kernels * factors
    return converters


def _hindrance(lowering: NetworkLowering, tensor: NetworkTensor, form: PixelFormat) -> str:
    """Why an input cannot be an image; "" where it can."""
    if tensor in lowering.ends:
        return "it is an output, too"
    if lowering.precisions[tensor.name] != lowering.default:
        return f"it is in {lowering.precisions[tensor.name]}"
    if tensor.shape[1:] == (1, 1):
        return "it is a single pixel"
    for group in lowering.readers.get(tensor, ()):
        layer = group.layer
        if not isinstance(layer.settings, ConvSettings) or layer.settings.groups != 1:
            return f"layer {layer.name} is not a dense convolution"
        if layer.settings.dilation != (1, 1):
            return f"layer {layer.name} has dilation {layer.settings.dilation}"
        if lowering.precisions[group.output.name] != lowering.default:
            return f"layer {layer.name} has another precision"
        if not _fits(lowering, tensor, form, group):
            return f"layer {layer.name} does not fit the convolution buffer on whole lines"
    return ""


def _fits(lowering: NetworkLowering, tensor: NetworkTensor, form: PixelFormat, group: Group) -> bool:
    precision, settings = lowering.default, ConvSettings.of(group.layer)
    assert group.weights is not None
    source = Root("", *tensor.shape, precision, pixels=form).whole
    weights = np.broadcast_to(np.zeros((), DTYPES[precision]), (1, *group.weights.shape[1:]))
    result = Root("", 1, *group.layer.output.shape[1:], precision).whole
    process = Process("", None, result)
    trial = Convolve("", source, weights, settings.stride, settings.padding, settings.dilation, process)
    try:
        fit(trial, lowering.config)
    except BuildError:
        return False
    return True


class NetworkLowering(Lowering):
    """Lowering of a whole network: scales, precisions, zero points and image inputs, then group by group."""

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
        if feature_format(config.memory_atom) is None:
            able = [name for name, known in configurations().items() if feature_format(known.memory_atom) is not None]
            raise ConfigError(
                f"{config.name}: memory atom: must have a tensor format in loadables, got {config.memory_atom} "
                f"bytes. Compile for {', '.join(able)}."
            )
        if not network.inputs or not network.outputs:
            raise BuildError(f"network {network.name}: must have at least one input and one output (Network.output)")
        groups = group_layers(network)
        if level:
            groups = merged(groups, network, calibration)
        super().__init__(
            groups,
            network.inputs,
            network.outputs,
            network.consumers,
            config,
            precision,
            calibration,
            per_channel,
            level,
            memory,
        )
        self.network = network
        self.readers = _readers(self.groups)
        self.scales = self._unify_scales()
        for name, point in elementwise.chosen(self, self._leaders()).items():
            self.scales[name], self.zeros[name] = point.scale, point.zero
        self.claimed = elementwise.claimed(self) | pointwise.looked_up(self) if level else {}
        bits = cbuf.depth(input_format)
        self.numbers = numbers or PixelNumbers(bits=bits or cbuf.PICTURE_BITS)
        self.images = chosen(self, "feature" if input_format == "auto" and not level else input_format)
        self.converters = converted(self) if bits is not None else {}
        for name in self.converters:  # CDMA makes symmetric elements of pixels
            self.zeros.pop(name, None)

    # ---- scales

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
                f"network {self.network.name}: scales: must be given for {self.precision}. Pass "
                "calibration=calibrate(network, samples)."
            )
        inputs = {tensor.name for tensor in self.network.inputs}
        find = self._leaders()
        wanted = self._wanted()
        wide = {find(name) for name, precision in wanted.items() if precision == Precision.INT16}
        wide -= inputs - wanted.keys()  # an input keeps its precision, if it is not named itself
        self.precisions = {
            tensor.name: Precision.INT16 if find(tensor.name) in wide else self.default for tensor in tensors
        }
        scales: dict[str, float] = {}
        for tensor in tensors:
            lead = find(tensor.name)
            if lead not in inputs:
                scales[lead] = max(scales.get(lead, 0.0), self._own_scale(tensor.name))
            else:
                scales[lead] = self._own_scale(lead)
        return {tensor.name: scales[find(tensor.name)] for tensor in tensors}

    def _leaders(self) -> Callable[[str], str]:
        """The tensor that speaks for all that have one scale with a given one."""
        leader = {tensor.name: tensor.name for tensor in self.tensors}
        inputs = {tensor.name for tensor in self.network.inputs}

        def find(name: str) -> str:
            lead = name
            while leader[lead] != lead:
                lead = leader[lead]
            while leader[name] != lead:  # the next question is answered at once
                leader[name], name = lead, leader[name]
            return lead

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
        wanted = {}
        given = self.scales_given.precisions
        members = {name: group for group in reversed(self.groups) for name in group.members} if given else {}
        inputs = {tensor.name for tensor in self.network.inputs}
        for name, precision in given.items():
            group = members.get(name)
            if group is None and name not in inputs:
                raise BuildError(f"precision {precision}: layer: must be in network {self.network.name}, got {name}")
            if precision not in LARGEST or precision not in self.config.precisions or self.default != Precision.INT8:
                raise BuildError(
                    f"precision: mixed layers must be int16 within an int8 network on nv_full, got {precision} within "
                    f"{self.default} on {self.config.name}",
                    layer=name,
                )
            if group is None or group.layer.kind != "softmax":
                wanted[name if group is None else group.output.name] = precision
        return wanted

    def _own_scale(self, name: str) -> float:
        group = self.makers.get(name)
        own = None if group is None else own_scale(group.layer, self.precisions[name])
        return own if own is not None else self.scales_given.scale(name, self.precisions[name])

    # ---- places

    # ---- the walk

    def run(self) -> LoweredProgram:
        """Lower the whole network."""
        for tensor in self.network.inputs:
            channels, height, width = tensor.shape
            scale = self.scales[tensor.name]
            precision, zero = self.precisions[tensor.name], self.zero(tensor.name)
            root = Root(tensor.name, channels, height, width, precision, scale, "input", zero=zero)
            root.pixels, root.converter = self.images.get(tensor.name), self.converters.get(tensor.name)
            self.places[tensor.name] = root.whole
        concat.reserve(self)
        waiting = {group.output.name for group in self.claimed.values()}
        for group in self.groups:
            if group.output.name in waiting:
                continue
            self.precision = self.precisions[group.output.name]
            with in_layer(group.name):
                self._check_halves(group)
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
            self.quantized,
            self.grouped,
        )

    def _check_halves(self, group: Group) -> None:
        """Check that a convolution of halves reads and writes no value above the largest half on the calibration data.

        Sums, extremes and limits may: a mask of -1e9 keeps its meaning when it saturates."""
        if self.precision != Precision.FP16 or group.layer.kind not in ("convolution", "deconvolution"):
            return
        known = self.calibration.magnitudes if self.calibration else {}
        for tensor in (*group.layer.inputs, group.output):
            largest = known.get(tensor.name, 0.0)
            if largest > LARGEST_HALF:
                raise BuildError(
                    f"{tensor.name}: must be at most {LARGEST_HALF:g}, the largest half, got {largest:.3g} on the "
                    "calibration data. Rescale the model, or compile for int8.",
                    layer=group.name,
                )

    def _as_output(self, tensor: NetworkTensor) -> Root:
        """The root that is bound; tensors that are only a part of another root (or an input) are copied."""
        place = self.places[tensor.name]
        if place.root.role == "output" and place.root.name == tensor.name:
            return place.root
        channels, height, width = tensor.shape
        root = Root(tensor.name, channels, height, width, place.precision, place.scale, "output", zero=place.zero)
        with in_layer(tensor.name):
            self.copy(tensor.name, place, root.whole)
        return root


def _readers(groups: list[Group]) -> dict[NetworkTensor, list[Group]]:
    """The groups that take a tensor, each once."""
    readers: dict[NetworkTensor, list[Group]] = {}
    for group in groups:
        for tensor in dict.fromkeys(group.layer.inputs):
            readers.setdefault(tensor, []).append(group)
    return readers


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
    """Return the hardware operations of a network, with costs evaluated for a memory.

    ``numbers``: the numbers that pixels represent, if inputs are pixels. Raises BuildError, or
    ConfigError for missing features of the configuration.
    """
    return NetworkLowering(
        network, config, precision, calibration, per_channel, level, input_format, memory, numbers
    ).run()
