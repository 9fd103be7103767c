"""Accuracy of quantized networks per layer and per channel group.

One signal-to-noise ratio of a whole tensor is that of its largest channels: a tensor of boxes (0..160) and scores
(0..1) in one int8 scale can have 30 dB, and every score is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from nvdla.compiler.builder import reference
from nvdla.compiler.builder.compiler import Built
from nvdla.compiler.builder.context import name_of_copy
from nvdla.compiler.builder.groups import group_layers
from nvdla.compiler.builder.ir import Convolve, LoweredProgram, Operation, Surface
from nvdla.compiler.builder.layer_types import Ranges, same_results
from nvdla.compiler.builder.layers import Group, Layer, NetworkTensor
from nvdla.compiler.builder.network import Network
from nvdla.compiler.builder.quantization import LARGEST, LARGEST_HALF, SMALLEST_HALF, Calibration, ends_of, quantize
from nvdla.compiler.builder.refinement import takes_rounding
from nvdla.program.naming import at_limits, limited_of
from nvdla.tensors.real import Units, decibels
from nvdla.util.precision import Precision

#: The largest channel of a group has at most this many times the range of its smallest.
LIKE = 16.0
#: Numbers and ranges of channels that a group names.
_NAMED = 8


@dataclass(frozen=True)
class ChannelGroup:
    """Channels of an output with ranges within a factor of 16.

    Attributes:
        channels: their numbers, as "0-3, 7".
        count: how many they are.
        range: the largest magnitude that they hold in the float model on the calibration data.
        units: ``range`` in units (quantization steps); None in fp16.
        snr: signal to noise with all layers before, in dB; None where the measured float values are all 0.
        weak: channels among them whose own range is below two units, though it is not 0, as "5, 6".
        weak_count: how many these are.
    """

    channels: str
    count: int
    range: float
    units: float | None
    snr: float | None
    weak: str
    weak_count: int


class ChannelRanges:
    """The largest magnitude of every channel of an output in the float model, over all samples.

    Args:
        labels: the number of the channel that each element of the tensor belongs to; -1: to none.
    """

    def __init__(self, labels: np.ndarray) -> None:
        planes = labels.reshape(len(labels), -1)
        # One label for each plane where planes are channels, as they mostly are; else one for each element.
        flat = planes[:, 0] if np.array_equal(planes, np.broadcast_to(planes[:, :1], planes.shape)) else labels.ravel()
        self._used = flat >= 0
        self.labels = flat[self._used]
        self.largest = np.zeros(int(self.labels.max(initial=-1)) + 1)

    def rows(self, values: np.ndarray) -> np.ndarray:
        """The values (1, C, H, W) or (C, H, W) that belong to a channel, a row for each of ``labels``."""
        rows = values.reshape(len(self._used), -1)
        return rows if self._used.all() else rows[self._used]

    def see(self, values: np.ndarray) -> None:
        """Take in the float values (N, C, H, W) of some samples."""
        rows = self.rows(np.maximum(values.max(axis=0), -values.min(axis=0)))
        np.maximum.at(self.largest, self.labels, rows.max(axis=1))


class ChannelSums:
    """Signal and noise of every channel, over the samples that are measured."""

    def __init__(self, ranges: ChannelRanges) -> None:
        self._of, self._ranges = ranges, ranges.largest
        self._signal, self._noise = np.zeros_like(self._ranges), np.zeros_like(self._ranges)

    def add(self, exact: np.ndarray, result: np.ndarray) -> None:
        """Take in one sample: the float values and those that the integers stand for, both of the tensor's shape."""
        real, other = self._of.rows(exact), self._of.rows(result)
        count = len(self._ranges)
        self._signal += np.bincount(self._of.labels, np.sum(real**2, axis=1), count)
        self._noise += np.bincount(self._of.labels, np.sum((other - real) ** 2, axis=1), count)

    def groups(self, unit: float | None) -> list[ChannelGroup]:
        """The groups, those of the largest ranges first. ``unit``: the real number of one unit; None in fp16."""
        order = np.argsort(-self._ranges, kind="stable")
        groups, first = [], 0
        while first < len(order):
            largest = self._ranges[order[first]]
            size = int(np.count_nonzero(self._ranges[order[first:]] * LIKE >= largest)) if largest else len(order)
            groups.append(self._group(np.sort(order[first : first + size]), float(largest), unit))
            first += size
        return groups

    def _group(self, channels: np.ndarray, largest: float, unit: float | None) -> ChannelGroup:
        ranges = self._ranges[channels]
        signal = float(self._signal[channels].sum())
        weak = channels[(ranges > 0) & (ranges < 2 * (unit or 0.0))]
        return ChannelGroup(
            channels=numbers(channels.tolist()),
            count=len(channels),
            range=largest + 0.0,  # not -0
            units=None if unit is None else largest / unit + 0.0,
            snr=decibels(signal, float(self._noise[channels].sum())) if signal else None,
            weak=numbers(weak.tolist()),
            weak_count=len(weak),
        )


def numbers(ordered: Iterable[int]) -> str:
    """Numbers in ascending order in few words: "0-3, 7"."""
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    words = ["-".join(map(str, run)) for run in runs]
    return ", ".join(words[:_NAMED]) + (" ..." if len(words) > _NAMED else "")


# Signal to noise, in dB, from which a layer needs no advice: the rounding of a well used int8 range gives about 40.
GOOD = 30.0
SATURATED = (
    "all elements are 0 or the largest value; check the numbers of the samples (--mean, --std; Python: preprocessing=)"
)
# Methods of calibration that cut off less than _MUCH_SATURATION of the elements.
_HARDLY_CUT = ("max", "mse")
_MUCH_SATURATION, _WIDE_KERNELS, _PEAKED = 1e-3, 8.0, 24.0


@dataclass(frozen=True)
class LayerAccuracy:
    """One operation of the hardware. ``layer``: names of its layers; ``tensor``: its result.

    ``alone``: signal to noise (dB) where its inputs are the float ones, rounded; ``chain``: with all layers before it.
    ``saturated``: share of elements whose numbers are out of the range, but for those at which nothing is lost
    (``limited`` in the layer file). ``scale``: real number of one unit. ``advice``: what to try, empty where the layer
    is good. ``channels``: of an output, its channels in groups of like ranges.
    """

    layer: str
    tensor: str
    precision: str
    alone: float
    chain: float
    saturated: float
    scale: float
    advice: str
    channels: list[ChannelGroup] = field(default_factory=list)


@dataclass
class _Sums:
    signal: float = 0.0
    square: float = 0.0
    alone: float = 0.0
    chain: float = 0.0
    saturated: float = 0.0
    at_ends: int = 0
    count: int = 0
    peak: float = 0.0
    between: int = 0
    channels: ChannelSums | None = None


def accuracy(
    network: Network,
    built: Built,
    samples: Iterable[Mapping[str, np.ndarray]],
    factors: Mapping[str, np.ndarray] | None = None,
    channels: Mapping[str, ChannelRanges] | None = None,
    chains: Iterable[reference.ReferenceMemory] | None = None,
    calibration: Calibration | None = None,
) -> list[LayerAccuracy]:
    """Errors over samples, in the order of the network. ``network`` is the one that was built; a sample has the float
    values of its tensors, (1, C, H, W) by name. ``factors``: by what the channels of its tensors were divided
    (:class:`nvdla.compiler.builder.refinement.Refined`); ratios are those of the numbers before. ``channels``: ranges
    of the channels of outputs, by tensor. ``chains``: results of a run for each sample; None: of runs with the float
    inputs of the sample. ``calibration``: that of ``built``, for advice."""
    program, factors = built.program, factors or {}
    groups = _as_computed(group_layers(network), program)
    sums = {group.output.name: _Sums() for group in groups}
    for name, ranges in (channels or {}).items():
        if name in sums:
            sums[name].channels = ChannelSums(ranges)
    of_integers = program.ranges()
    ends = {group.output.name: _Ends.of(network, built, group.output, of_integers) for group in groups}
    runs = iter(chains) if chains is not None else None
    for values in samples:
        elements = built.quantize_inputs({root.name: values[root.name] for root in program.inputs})
        chain = reference.evaluate(program, elements) if runs is None else next(runs)
        alone = _Alone(program, elements)
        for group in groups:
            name = group.output.name
            if name in values:
                _add(sums[name], program, group, values, factors.get(name), chain, alone, ends[name])
    convolved = {operation.layer for operation in program.operations if isinstance(operation, Convolve)}
    names = {group.output.name: group.name for group in groups}
    adviser = _Adviser(program, convolved, names, calibration or Calibration({}))
    return [_row(adviser, group, sums[group.output.name]) for group in groups if sums[group.output.name].count]


def worst(rows: list[LayerAccuracy], count: int = 5) -> list[LayerAccuracy]:
    """The layers that are worst by themselves: there the error is made, later ones inherit it."""
    return sorted((row for row in rows if np.isfinite(row.alone)), key=lambda row: row.alone)[:count]


@dataclass(eq=False)
class _Unit(Group):
    """Group in its computed shape, including the convolutions before a sum when all of them are one operation."""

    sources: list[NetworkTensor] = field(default_factory=list)


def _as_computed(groups: list[Group], program: LoweredProgram) -> list[_Unit]:
    makers = {group.output.name: group for group in groups}
    return [_unit(group, makers, program) for group in groups if group.output.name in program.tensors]


def _unit(group: Group, makers: Mapping[str, Group], program: LoweredProgram) -> _Unit:
    """Return the unit of a group, including all preceding groups that do not write a tensor."""
    kept = [tensor for tensor in group.layer.inputs if tensor.name in program.tensors]
    taken = [
        _unit(makers[tensor.name], makers, program)
        for tensor in group.layer.inputs
        if tensor.name not in program.tensors
    ]
    main = taken[0] if taken else group
    members = [name for group_taken in (*taken, group) for name in group_taken.members]
    sources = [*kept, *(tensor for group_taken in taken for tensor in group_taken.sources)]
    return _Unit(main.layer, group.output, members, group.activation, main.weights, main.bias, sources=sources)


class _Alone:
    """Runs the operations of one layer on rounded float inputs. ``elements``: those of the network's inputs."""

    def __init__(self, program: LoweredProgram, elements: Mapping[str, np.ndarray]) -> None:
        self.program = program
        self.memory = reference.inputs_of(program, elements)
        self.operations: dict[str, list[Operation]] = {}
        for operation in program.operations:
            self.operations.setdefault(operation.layer, []).append(operation)

    def run(self, group: _Unit, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Elements of the group's result (C, H, W)."""
        for tensor in group.sources:
            surface = self.program.tensors[tensor.name]
            if surface.root.role != "input" and surface.root.data is None and tensor.name in values:
                elements = quantize(values[tensor.name][0], surface.scale, surface.precision, surface.zero)
                self.memory.store(surface, elements)
        converted = [name_of_copy(tensor, precision) for tensor in group.sources for precision in LARGEST]
        # An int16 layer takes int8 tensors converted, and the other way round.
        for name in (*converted, group.name):
            for operation in self.operations.get(name, ()):
                reference.step(operation, self.memory)
        return self.memory.load(self.program.tensors[group.output.name])


@dataclass(frozen=True)
class _Ends:
    """Ends of a tensor's range beyond which numbers lose nothing.

    ``limited``: (2, C), in the layer file. ``takers``: layers that read the tensor, none of an output. ``ranges``: of
    all integer tensors.
    """

    name: str
    limited: np.ndarray
    takers: list[Layer]
    ranges: Ranges

    @classmethod
    def of(cls, network: Network, built: Built, tensor: NetworkTensor, ranges: Ranges) -> _Ends:
        limited = at_limits(limited_of(built.sidecar["tensors"].get(tensor.name, {})), tensor.shape[0])
        takers = [] if tensor in network.outputs else network.consumers(tensor)
        return cls(tensor.name, limited, takers, ranges)

    def limit(self, exact: np.ndarray) -> np.ndarray:
        """Real numbers (C, H, W); those beyond the range are at its end if the functions after it give the same."""
        if self.name not in self.ranges:
            return exact
        low, high, unit = self.ranges[self.name]
        within = np.clip(exact, low, high)
        same = np.where(exact < low, self.limited[0][:, None, None], self.limited[1][:, None, None])
        if self.takers and np.abs(exact - within).max(initial=0) > unit / 2:
            after = [same_results(taker, exact[None], within[None], self.ranges)[0] for taker in self.takers]
            same = same | np.all(after, axis=0)
        limited: np.ndarray = np.where(same, within, exact)
        return limited


def _add(
    sums: _Sums,
    program: LoweredProgram,
    group: _Unit,
    values: Mapping[str, np.ndarray],
    factors: np.ndarray | None,
    chain: reference.ReferenceMemory,
    alone: _Alone,
    ends: _Ends,
) -> None:
    surface = program.tensors[group.output.name]
    units = Units(surface.scale, surface.zero, factors)
    exact = ends.limit(np.asarray(values[group.output.name][0], np.float64))
    real = Units(factors=factors).real(exact)
    together, single = chain.load(surface), alone.run(group, values)
    computed = units.real(together)
    sums.signal += float(np.sum(real**2))
    sums.chain += float(np.sum((computed - real) ** 2))
    if sums.channels is not None:
        sums.channels.add(real, computed)
    sums.alone += float(np.sum((units.real(single) - real) ** 2))
    sums.square += float(np.sum(exact**2))
    sums.peak = max(sums.peak, float(np.abs(exact).max()))
    sums.count += exact.size
    if surface.precision in LARGEST:
        least, most = ends_of(surface.precision, surface.zero)
        low, high = surface.real(np.array((least, most)))  # elements for these numbers lose nothing
        sums.saturated += int(np.count_nonzero((exact < low - surface.scale / 2) | (exact > high + surface.scale / 2)))
        inside = (single > least) & (single < most)
        sums.at_ends += int(np.count_nonzero(~inside))
        sums.between += int(np.count_nonzero(inside & (single != surface.zero)))


def _row(adviser: _Adviser, group: _Unit, sums: _Sums) -> LayerAccuracy:
    surface = adviser.program.tensors[group.output.name]
    saturated = sums.saturated / sums.count
    alone = decibels(sums.signal, sums.alone)
    advice = "" if alone >= GOOD or sums.signal == 0 else adviser.advice(group, surface, sums, saturated)
    chain = decibels(sums.signal, sums.chain)
    unit = surface.scale if surface.precision in LARGEST else None
    if unit is not None and sums.at_ends and not sums.between and np.isinf(chain):
        advice = SATURATED
    outputs = sums.channels.groups(unit) if sums.channels is not None else []
    return LayerAccuracy(
        group.name, group.output.name, str(surface.precision), alone, chain, saturated, surface.scale, advice, outputs
    )


@dataclass(frozen=True)
class _Adviser:
    """Finds the most likely cause of a layer's error.

    ``convolved``: layers with a convolution. ``names``: of groups, by their tensor.
    """

    program: LoweredProgram
    convolved: Set[str]
    names: Mapping[str, str]
    calibration: Calibration

    def advice(self, group: _Unit, surface: Surface, sums: _Sums, saturated: float) -> str:
        """Return the cause of a layer's error and the option that fixes it."""
        if surface.precision not in LARGEST:
            return f"{_reason_of_halves(group, sums)}; the host has float32 (Python: keep_on_host)"
        if group.layer.kind == "softmax":
            return f"the unit of a softmax is fixed (1/{LARGEST[surface.precision]}); fp16 has smaller ones"
        largest = (LARGEST[surface.precision] - surface.zero) * surface.scale
        rms = (sums.square / sums.count) ** 0.5
        if saturated > _MUCH_SATURATION and sums.peak > 1.05 * largest:
            reason = f"values up to {sums.peak:.3g} saturate at {largest:.3g}"
            if self.calibration.method in _HARDLY_CUT:
                return f"{reason}, as rounded inputs make them larger than in the calibration data: see the notes"
            return f"{reason}: try --method max (Python: method='max'), or more calibration data"
        # Rounding to the tensor's own units is most of the error: other weights do not help.
        is_rounded = surface.scale**2 / 12 * sums.count > sums.alone / 2
        if largest > (2 if is_rounded else 4) * sums.peak:
            if self.calibration.magnitudes.get(group.output.name, 0.0) <= 2 * sums.peak:
                why = f"use a part of the range {largest:.3g}, which an adjacent tensor needs"
                return f"values up to {sums.peak:.3g} {why}"
            (wider,) = self._wider(group, surface) or ("fp16",)
            return (
                f"measured samples reach {sums.peak:.3g} of {largest:.3g} in the calibration data: if few samples need "
                f"that, try --method percentile (Python: method=), else {wider}"
            )
        if group.name in self.convolved and group.weights is not None:
            sizes = np.abs(group.weights).reshape(len(group.weights), -1).max(axis=1)
            scales = self.program.quantized.get(group.layer.name)
            uneven = sizes.max() > _WIDE_KERNELS * max(float(np.median(sizes)), 1e-30)
            if uneven and scales is not None and np.ptp(scales.scales) == 0:
                fix = f"omit --per-layer (Python: per_channel=True), or use {_EQUALIZATION}"
                return f"kernels differ much in size: {fix}"
        if sums.peak > _PEAKED * rms:
            (wider,) = self._wider(group, surface) or ("fp16",)
            return f"a few values are far larger than the rest: try {wider}"
        tried = [*([] if is_rounded else self._rounding(group)), *self._wider(group, surface)]
        return f"try {', or '.join(tried)}" if tried else ""

    def _rounding(self, group: _Unit) -> list[str]:
        is_open = takes_rounding(group.layer) and group.layer.name not in self.calibration.weight_scales
        return ["adaptive rounding (--weights-effort 2; Python: adaptive_rounding=True)"] * is_open

    def _wider(self, group: _Unit, surface: Surface) -> list[str]:
        """Int16, also for what the layer reads: alone it would leave its rounded inputs as they are."""
        tensors = dict.fromkeys(tensor.name for tensor in group.sources)
        narrow = [name for name in tensors if self.program.tensors[name].precision == Precision.INT8]
        read = ", ".join(self.names.get(name, f"input {name}") for name in narrow)
        own = ["this layer"] * (surface.precision == Precision.INT8)
        layers = " and ".join([*own, *([f"what it reads ({read})"] if read else [])])
        option = "(--precision LAYER=int16,...; Python: precision={LAYER: 'int16'})"
        return [f"int16 for {layers} on nv_full {option}"] if layers else []


def _reason_of_halves(group: _Unit, sums: _Sums) -> str:
    """The most likely cause of an error in fp16."""
    if sums.peak > LARGEST_HALF:
        return f"values up to {sums.peak:.3g} exceed {LARGEST_HALF:g}, the largest number of fp16"
    weights = np.zeros(0) if group.weights is None else np.abs(group.weights[group.weights != 0])
    if weights.size and np.median(weights) < SMALLEST_HALF:
        return f"most weights are below {SMALLEST_HALF:.2g}, where fp16 loses bits: scale them up in the model"
    if sums.peak < SMALLEST_HALF:
        return f"all values are below {SMALLEST_HALF:.2g}, where fp16 loses bits: scale them up in the model"
    return "large values cancel out, which fp16 (11 bits) rounds"


_EQUALIZATION = "equalization (--weights-effort 1; Python: equalize=True)"
