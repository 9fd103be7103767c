"""Improvement of quantized networks: equalized channels and adjusted rounding.

Every weight is rounded up or down so that the error of the layer's results on the calibration data is least. With the
error ``e`` of one kernel's weights and the mean ``G`` of the outer products of what the kernel sees, the mean squared
error of the results is ``e G e``; coordinate descent on it, weight by weight, never makes it worse than rounding to the
nearest.

A convolution whose kernel ``k`` is divided by ``f`` gives a channel that is smaller by ``f``; where every consumer of
the channel multiplies its weights for it by ``f`` the results stay the same. ReLU, PReLU, pooling and (with a limit of
its own for each channel) ReLU6 let such a factor through; sums tie the channels of their inputs together, so that
residual networks are equalized too (idea: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction", 2019).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from nvdla.compiler.builder.calibration import Statistics, check_method, gather
from nvdla.compiler.builder.floating import convolve_groups, evaluate, expand_groups, pad, windows
from nvdla.compiler.builder.groups import group_layers
from nvdla.compiler.builder.layer_types import bounds_of, layer_type, own_scale
from nvdla.compiler.builder.layers import (
    ClipSettings,
    ConvSettings,
    Ends,
    Group,
    KernelSettings,
    Layer,
    ReluSettings,
    ScaleSettings,
)
from nvdla.compiler.builder.lower.elementwise import worth
from nvdla.compiler.builder.lower.lowering import NetworkLowering
from nvdla.compiler.builder.network import Network
from nvdla.compiler.builder.quantization import LARGEST, Calibration, changing, quantize
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import BuildError
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, Json
from nvdla.util.precision import Precision

# Weights of one kernel beyond which a layer is rounded to the nearest: the matrix would take more than 150 MB.
LARGEST_KERNEL = 6144
POSITIONS = 64
SWEEPS = 3
_DAMPING = 0.01


def takes_rounding(layer: Layer) -> bool:
    """Return whether the weights of a layer can be rounded adaptively."""
    settings = layer.settings
    return isinstance(settings, ConvSettings) and math.prod(settings.weights.shape[1:]) <= LARGEST_KERNEL


class Patches:
    """Mean outer products of what the kernels of every convolution see, (groups, d, d), at some random positions of
    each sample."""

    def __init__(self, network: Network, seed: int = 0) -> None:
        self.layers = [group.layer for group in group_layers(network) if takes_rounding(group.layer)]
        self._rng = np.random.default_rng(seed)
        self._sums: dict[str, np.ndarray] = {}
        self._counts: dict[str, int] = {}

    def update(self, values: Mapping[str, np.ndarray]) -> None:
        """Take in one batch: arrays (N, C, H, W) by name of tensor."""
        for layer in self.layers:
            patches = self._patches(layer, values[layer.inputs[0].name])
            self._sums[layer.name] = self._sums.get(layer.name, 0.0) + patches.transpose(0, 2, 1) @ patches
            self._counts[layer.name] = self._counts.get(layer.name, 0) + patches.shape[1]

    def _patches(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        """(groups, positions, weights of a kernel) float32."""
        its = ConvSettings.of(layer)
        view = windows(pad(x, its.padding), its.weights.shape[2:], its.stride, its.dilation)
        count = min(POSITIONS * len(x), len(x) * view.shape[2] * view.shape[3])
        picks = [self._rng.integers(0, view.shape[axis], count) for axis in (0, 2, 3)]
        chosen = view[picks[0], :, picks[1], picks[2]].astype(np.float32)
        return chosen.reshape(count, its.groups, -1).transpose(1, 0, 2)

    def moments(self, name: str) -> np.ndarray | None:
        """The mean outer products of one layer, None where they were not gathered.

        The fewer positions were seen for the size of a kernel, the more they are drawn to equal, unrelated inputs, for
        which rounding to the nearest is best.
        """
        if name not in self._sums:
            return None
        products, count, size = self._sums[name], self._counts[name], self._sums[name].shape[-1]
        trust = count / (count + size)
        level = np.trace(products, axis1=1, axis2=2)[:, None, None] / count / size
        return trust * products / count + ((1 - trust) * level * np.eye(size)).astype(products.dtype)


def round_adaptively(weights: np.ndarray, scales: np.ndarray, moments: np.ndarray, largest: int = 127) -> np.ndarray:
    """Elements (K, d) of weights (K, d) for mean outer products (d, d); each is the weight rounded up or down."""
    moments = moments + _DAMPING * float(np.mean(np.diag(moments))) * np.eye(len(moments), dtype=moments.dtype)
    numbers = weights / scales[:, None]
    down, up = np.clip(np.floor(numbers), -largest, largest), np.clip(np.ceil(numbers), -largest, largest)
    elements = np.clip(np.floor(numbers + 0.5), -largest, largest)
    error = elements - numbers
    slope = error @ moments
    diagonal = np.diag(moments)
    for _ in range(SWEEPS):
        changed = False
        for index in np.flatnonzero(diagonal > 0):
            best = error[:, index] - slope[:, index] / diagonal[index]
            choice = np.clip(np.floor(numbers[:, index] + best + 0.5), down[:, index], up[:, index])
            rows = np.flatnonzero(choice != elements[:, index])
            if rows.size:
                changed = True
                slope[rows] += np.outer(choice[rows] - elements[rows, index], moments[index])
                elements[:, index] = choice
                error[:, index] = choice - numbers[:, index]
        if not changed:
            break
    return elements


@dataclass(frozen=True)
class Rounded:
    """A network whose convolutions hold weights that int8 represents exactly, with the scales (K,) by layer."""

    network: Network
    weight_scales: Mapping[str, np.ndarray]


def adapt(network: Network, patches: Patches, calibration: Calibration, per_channel: bool) -> Rounded:
    """Adaptive rounding of all convolutions whose inputs were gathered, with the scales that building takes.

    ``network`` must be folded (:func:`fold`).
    """
    lowering = NetworkLowering(network, configuration("nv_small"), Precision.INT8, calibration, per_channel)
    groups = {group.layer.name: group for group in lowering.groups}
    changes: dict[str, dict[str, Json]] = {}
    scales: dict[str, np.ndarray] = {}
    for layer in patches.layers:
        moments = patches.moments(layer.name)
        if moments is None:
            continue
        groups_of_layer = ConvSettings.of(layer).groups
        weights = np.asarray(ConvSettings.of(network.layer(layer.name)).weights, np.float64)
        own = lowering.kernel_scales(groups[layer.name], weights)
        kernels = weights.reshape(groups_of_layer, len(weights) // groups_of_layer, -1)
        parts = [
            round_adaptively(part, scale, moment, LARGEST[Precision.INT8])
            for part, scale, moment in zip(kernels, own.reshape(groups_of_layer, -1), moments, strict=True)
        ]
        elements = np.concatenate(parts).reshape(weights.shape)
        changes[layer.name] = {"weights": elements * own[:, None, None, None]}
        scales[layer.name] = own
    return Rounded(network.changed(changes), scales)


# Samples whose mean errors are corrected, and the multiplications spent on them.
CORRECTED_SAMPLES, CORRECTED_MACS = 16, 5e9
# Samples from which on a mean error is that of the network, not of the samples. Where fewer are within the limit of
# multiplications, biases are corrected for rounded weights alone (Calibration.means).
LEAST_SAMPLES = 8
# Share of elements that an activation lets through: with fewer, a mean is not worth a large change of the bias.
_LEAST_SLOPE = 0.25


class Means:
    """Inputs of some samples, drawn evenly from all, and the means of the channels of all tensors in floats."""

    def __init__(self, network: Network, seed: int = 0) -> None:
        self._inputs = [tensor.name for tensor in network.inputs]
        macs = sum(
            layer.settings.weights[0].size * np.prod(layer.output.shape)
            for layer in network.layers
            if isinstance(layer.settings, ConvSettings)
        )
        most = int(min(CORRECTED_MACS / max(macs, 1), CORRECTED_SAMPLES))
        self._most = most if most >= LEAST_SAMPLES else 0
        self._rng = np.random.default_rng(seed)
        self.seen = 0
        self.samples: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = []

    def update(self, values: Mapping[str, np.ndarray]) -> None:
        """Take in one batch: arrays (N, C, H, W) by name of tensor."""
        for index in range(len(values[self._inputs[0]])):
            self.seen += 1
            place = self.seen - 1 if self.seen <= self._most else int(self._rng.integers(self.seen))
            if place < self._most:
                inputs = {name: values[name][index : index + 1] for name in self._inputs}
                means = {name: array[min(index, len(array) - 1)].mean(axis=(1, 2)) for name, array in values.items()}
                self.samples[place : place + 1] = [(inputs, means)]


def corrections(network: Network, calibration: Calibration, per_channel: bool, means: Means) -> dict[str, np.ndarray]:
    """Return what the bias (K,) of each convolution needs so that its results have the means of the float network.

    The network runs layer by layer on the samples. Its tensors are rounded, and each layer gets the corrected results
    of those before it. So the biases make up for rounded weights, for roundings of activations that do not cancel out,
    and for what noise adds to the mean of a function that is not linear. Layers in int16 have next to no noise.
    """
    wide = {name for name, precision in calibration.precisions.items() if precision == Precision.INT16}
    calibration = replace(calibration, precisions={})
    lowering = NetworkLowering(network, configuration("nv_small"), Precision.INT8, calibration, per_channel)
    unrounded = {group.output.name for group in lowering.claimed.values()} | wide
    left = Counter(tensor.name for group in lowering.groups for tensor in group.layer.inputs)
    values: dict[str, np.ndarray] = {}

    def keep(name: str, result: np.ndarray) -> None:
        if name not in unrounded:
            scale, zero = lowering.scales[name], lowering.zero(name)
            elements = np.clip(np.rint(result / scale) + zero, -128 if zero else -127, 127)
            result = (elements - zero) * scale
        # A constant is there once, other tensors once per sample.
        values[name] = np.broadcast_to(result.astype(np.float32), (len(means.samples), *result.shape[1:]))

    for name in means.samples[0][0]:
        keep(name, np.concatenate([inputs[name] for inputs, _ in means.samples]))
    added: dict[str, np.ndarray] = {}
    for group in lowering.groups:
        layer, name = group.layer, group.output.name
        sources = [values[tensor.name] for tensor in layer.inputs]
        if isinstance(layer.settings, ConvSettings):
            result = _convolution(lowering, group, sources[0], rounded=layer.name not in wide)
            if name in means.samples[0][1]:
                exact = np.array([known[name] for _, known in means.samples])
                added[layer.name] = _shift(group, result, exact)
                result = result + added[layer.name].astype(np.float32)[:, None, None]
        else:
            result = evaluate(layer, *sources)
        keep(name, result if group.activation is None else evaluate(group.activation, result))
        for tensor in layer.inputs:
            left[tensor.name] -= 1
            if not left[tensor.name]:
                values.pop(tensor.name, None)
    return added


def _convolution(lowering: NetworkLowering, group: Group, source: np.ndarray, rounded: bool) -> np.ndarray:
    """The results with or without rounded weights, and the bias."""
    its, weights = ConvSettings.of(group.layer), np.asarray(group.kernels, np.float64)
    scales = lowering.kernel_scales(group, weights)[:, None, None, None]
    weights = quantize(weights, scales, Precision.INT8) * scales if rounded else weights
    result = convolve_groups(source, weights, its.stride, its.padding, its.dilation, its.groups)
    return result + group.biases.astype(np.float32)[:, None, None]


def _shift(group: Group, result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the change (K,) of the bias that brings the means of results (N, K, H, W) after the activation near to
    ``exact`` (N, K): their mean error, less the share that chance explains."""
    shift = np.zeros(result.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond float32 are left as they are
        for _ in range(2 if group.activation else 1):
            moved = result + shift.astype(np.float32)[:, None, None]
            active = moved if group.activation is None else evaluate(group.activation, moved)
            errors = exact - active.mean(axis=(2, 3))
            error = errors.mean(axis=0)
            chance = errors.var(axis=0) / max(len(errors) - 1, 1)
            slope = np.maximum(np.mean(active == moved, axis=(0, 2, 3)), _LEAST_SLOPE)
            change = error * error**2 / np.maximum(error**2 + chance, 1e-30) / slope
            shift += np.where(np.isfinite(change), change, 0.0)
    return shift


# A factor beyond this would cost the biases and the fixed-point factors of the SDP their bits.
LARGEST_FACTOR = 256.0
ROUNDS = 20
# Channels this much smaller than the largest are left as they are.
_SMALLEST = 1e-4
# A channel that is small in one tensor must not become more times larger than usual in another, whose range grows.
_MOST_ABOVE = 4.0
_AFFINE = ("convolution", "deconvolution", "scale")


def fold(network: Network) -> Network:
    """The same network with factors a channel moved into the convolution or factors before them, as building does it.

    Layers keep their names; a folded one is left with factors 1 and biases 0.
    """
    changes: dict[str, Document] = {}
    for group in group_layers(network):
        settings = group.layer.settings
        if isinstance(settings, ScaleSettings):
            changes[group.layer.name] = {"factors": settings.factors, "bias": settings.bias}
        elif isinstance(settings, KernelSettings):
            weights = group.kernels.astype(settings.weights.dtype)
            changes[group.layer.name] = {"weights": weights, "bias": group.bias}
        else:
            continue
        for member in group.members[1:]:
            folded = network.layer(member).settings
            if isinstance(folded, ScaleSettings):
                changes[member] = {"factors": np.ones_like(folded.factors), "bias": np.zeros_like(folded.bias)}
    return network.changed(changes)


@dataclass
class _Channels:
    """Channel numbers of all tensors; channels that must have one factor have one number in the end."""

    of: dict[str, np.ndarray] = field(default_factory=dict)
    leader: list[int] = field(default_factory=list)
    fixed: set[int] = field(default_factory=set)

    def new(self, count: int) -> np.ndarray:
        first = len(self.leader)
        self.leader.extend(range(first, first + count))
        return np.arange(first, first + count)

    def find(self, number: int) -> int:
        while self.leader[number] != number:
            self.leader[number] = self.leader[self.leader[number]]
            number = self.leader[number]
        return number

    def tie(self, some: np.ndarray, others: np.ndarray) -> None:
        for first, other in zip(some.tolist(), others.tolist(), strict=True):
            self.leader[self.find(other)] = self.find(first)

    def hold(self, numbers: np.ndarray) -> None:
        """These channels keep their size."""
        self.fixed.update(numbers.tolist())

    def resolved(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """(numbers by tensor, whether a number is free)."""
        lead = np.array([self.find(number) for number in range(len(self.leader))], np.intp)
        free = np.ones(len(lead), bool)
        free[lead[sorted(self.fixed)]] = False
        return {name: lead[numbers] for name, numbers in self.of.items()}, free


def _trace(network: Network, groups: list[Group], held: Set[str]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Which channels go together, and which may get a factor."""
    channels = _Channels()
    for tensor in network.inputs:
        channels.of[tensor.name] = channels.new(tensor.shape[0])
        channels.hold(channels.of[tensor.name])
    for group in groups:
        layer = group.layer
        sources = [channels.of[tensor.name] for tensor in layer.inputs]
        channels.of[group.output.name] = result = _result(channels, layer, sources)
        limits = [limiting.settings for limiting in (layer, group.activation) if limiting is not None]
        if any(isinstance(settings, ClipSettings) and settings.low != 0 for settings in limits):
            channels.hold(result)
    for name in {tensor.name for tensor in network.outputs} | (held & set(channels.of)):
        channels.hold(channels.of[name])
    return channels.resolved()


def _result(channels: _Channels, layer: Layer, sources: list[np.ndarray]) -> np.ndarray:
    if layer.kind in _AFFINE:
        return channels.new(layer.output.shape[0])
    same = layer_type(layer.kind).channels(layer, sources)
    for other in same[1:]:
        channels.tie(same[0], other)
    if same:
        return same[0]
    for channel_ids in sources:
        channels.hold(channel_ids)
    result = channels.new(layer.output.shape[0])
    channels.hold(result)
    return result


def equalize(
    network: Network, peaks: Mapping[str, np.ndarray], per_channel: bool, held: Set[str] = frozenset()
) -> tuple[Network, dict[str, np.ndarray]]:
    """Return an equivalent network with equalized channels, and the divisors (C,) of each tensor's channels.

    ``peaks``: the largest magnitude of every channel of every tensor between groups, from calibration. With weight
    scales per kernel (``per_channel``) the sizes of kernels do not matter, only those of activations and of the weights
    that one kernel has for different channels. ``held``: tensors whose channels keep their size.
    """
    folded = fold(network)
    groups = group_layers(folded)
    numbers, free = _trace(folded, groups, held)
    matrices = {
        group.layer.name: _matrix(group.layer)
        for group in groups
        if group.layer.kind in ("convolution", "deconvolution")
    }
    factors = np.zeros(len(free))  # logarithms
    for _ in range(ROUNDS):
        pull, weight, above = np.zeros(len(free)), np.zeros(len(free)), np.full(len(free), -np.inf)
        for sizes, ids, sign in _sizes(folded, groups, matrices, numbers, factors, peaks, per_channel):
            # Channels of nothing have no size to bring to that of others.
            some = sizes > _SMALLEST * max(float(sizes.max()), 1e-30)
            if np.any(some):
                logs = np.log(sizes[some])
                logs -= logs.mean()
                pull += np.bincount(ids[some], sign * logs, len(free))
                weight += np.bincount(ids[some], minlength=len(free))
                if sign > 0:
                    np.maximum.at(above, ids[some], logs)
        change = np.maximum(pull / np.maximum(weight, 1), above - np.log(_MOST_ABOVE))
        change = np.where(free & (weight > 0), change, 0.0)
        factors = np.clip(factors + change, -np.log(LARGEST_FACTOR), np.log(LARGEST_FACTOR))
    by_tensor = {name: np.exp(factors[ids]) for name, ids in numbers.items()}
    return folded.changed(_changes(groups, by_tensor)), by_tensor


def _sizes(
    folded: Network,
    groups: list[Group],
    matrices: Mapping[str, np.ndarray],
    numbers: Mapping[str, np.ndarray],
    factors: np.ndarray,
    peaks: Mapping[str, np.ndarray],
    per_channel: bool,
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """(magnitudes of channels, their numbers, +1 where a factor divides them and -1 where it multiplies)."""
    for tensor in [*folded.inputs, *(group.output for group in groups)]:
        if tensor.name in peaks:
            ids = numbers[tensor.name]
            yield peaks[tensor.name] / np.exp(factors[ids]), ids, 1
    for group in groups:
        if group.layer.name not in matrices:
            continue
        ids, source = numbers[group.output.name], numbers[group.layer.inputs[0].name]
        sizes = matrices[group.layer.name] * np.exp(factors[source]) / np.exp(factors[ids])[:, None]
        largest = sizes.max(axis=1)
        if not per_channel:
            yield largest, ids, 1
            yield sizes.max(axis=0), source, -1
        elif _groups(group.layer) < len(source):
            yield (sizes / np.maximum(largest, 1e-30)[:, None]).max(axis=0), source, -1


def _groups(layer: Layer) -> int:
    return layer.settings.groups if isinstance(layer.settings, ConvSettings) else 1


def _matrix(layer: Layer) -> np.ndarray:
    """The largest magnitude of the weights between each channel of the result and each of the source, (K, C)."""
    sizes = np.abs(KernelSettings.of(layer).weights).max(axis=(2, 3))
    if layer.kind == "deconvolution":
        sizes = sizes.T
    return expand_groups(sizes[:, :, None, None], layer.inputs[0].shape[0], _groups(layer))[..., 0, 0]


def _changes(groups: list[Group], factors: Mapping[str, np.ndarray]) -> dict[str, Document]:
    """New settings of the layers for factors (C,) by tensor."""
    changes: dict[str, Document] = {}
    for group in groups:
        layer, out = group.layer, factors[group.output.name]
        if isinstance(layer.settings, KernelSettings | ScaleSettings):
            changes[layer.name] = {
                "bias": layer.settings.bias / out,
                **_scaled(layer, factors[layer.inputs[0].name], out),
            }
        for member in (layer, group.activation):
            if member is not None and isinstance(member.settings, ClipSettings | ReluSettings) and np.any(out != 1):
                changes[member.name] = {"high": np.broadcast_to(member.settings.high, out.shape) / out}
    return changes


def _scaled(layer: Layer, source: np.ndarray, out: np.ndarray) -> dict[str, np.ndarray]:
    if isinstance(layer.settings, ScaleSettings):
        return {"factors": layer.settings.factors * source / out}
    weights, groups = KernelSettings.of(layer).weights, _groups(layer)
    if layer.kind == "deconvolution":
        scaled = weights * source[:, None, None, None] / out[:, None, None]
    else:
        own = np.repeat(source.reshape(groups, -1), weights.shape[0] // groups, axis=0)  # (K, C / groups)
        scaled = weights * own[:, :, None, None] / out[:, None, None, None]
    return {"weights": scaled.astype(weights.dtype)}


# Samples that the sizes of channels are taken from: they need not be exact.
PEAK_SAMPLES = 32
# Memory of values that are kept from the first time.
KEPT_BYTES = 128 << 20
# Methods that do not clip outputs; other methods also apply to outputs.
_WHOLE_OUTPUTS = ("max", "mse")
Batches = Callable[[], Iterable[Mapping[str, np.ndarray]]]


@by_annotations
@dataclass(frozen=True)
class Recipe:
    """Changes of a network before an integer build.

    ``method``: where tensors saturate ("max", "percentile", "entropy", "mse"). ``equalize``: channels of one tensor are
    scaled to similar magnitudes. ``bias_correction`` and ``adaptive_rounding``: int8 weights are chosen for the results
    that they give. ``per_channel``: one weight scale per kernel; pass the same to :func:`nvdla.compiler.builder.build`.
    ``zero_points``: int8 tensors that are never far below 0 use all 256 elements. ``headroom``: ranges are enlarged for
    samples that were not part of the calibration
    (:meth:`nvdla.compiler.builder.quantization.Statistics.headroom`).

    Raises BuildError for a method that does not exist and a percentile out of range.
    """

    method: str = "mse"
    percentile: float = 99.99
    equalize: bool = True
    bias_correction: bool = True
    adaptive_rounding: bool = False
    per_channel: bool = True
    zero_points: bool = True
    headroom: bool = True

    def __post_init__(self) -> None:
        check_method(self.method, self.percentile)


@dataclass(frozen=True)
class Refined:
    """A network that gives the same results in floats (but for adaptively rounded weights) and its calibration.

    ``factors``: by what the channels of a tensor, (C,), were divided against the network given. ``measured``: what
    the corrections of biases are from.
    """

    network: Network
    calibration: Calibration
    factors: Mapping[str, np.ndarray] = field(default_factory=dict)
    measured: Means | None = None

    def in_int16(self, layers: Set[str], per_channel: bool) -> Refined:
        """Return the network with some layers in int16, and biases corrected for the noise that is left.

        Args:
            layers: Names of layers; others are ignored.
            per_channel: Whether weights have one scale per kernel.

        Returns:
            The same network with another calibration.
        """
        own = {layer.name: Precision.INT16 for layer in self.network.layers if layer.name in layers}
        calibration = replace(self.calibration, precisions=own)
        if own and self.measured is not None and calibration.corrections:
            measured = corrections(self.network, calibration, per_channel, self.measured)
            calibration = replace(calibration, corrections=measured)
        return replace(self, calibration=calibration)


INT16_HEADROOM = 2.0
"""One of 15 bits: a single element that saturates in unseen data costs int16 more than the noise of that bit."""


@by_annotations
def refine(
    network: Network,
    batches: Batches,
    recipe: Recipe | None = None,
    precision: str = "int8",
    held: Set[str] = frozenset(),
) -> Refined:
    """Calibrate and improve a network for "int8" or "int16".

    Args:
        network: The network.
        batches: Function that returns float values of tensors (N, C, H, W) by name of the layer, batch by batch; at
            least those of the inputs and of the last layer of every group. It is called once, or twice for equalization
            (the first time for 32 samples).
        recipe: The improvements to apply.
        precision: "int8" or "int16".
        held: Tensors that equalization does not change.

    Returns:
        The improved network with its calibration and the factors of equalization.

    Raises:
        BuildError: The batches are empty, or contain NaN or infinities.
    """
    recipe = recipe or Recipe()
    int8 = precision == Precision.INT8
    folded = fold(network)
    factors: Mapping[str, np.ndarray] = {}
    peaks = Statistics(histograms=False)
    every: Iterable[Mapping[str, np.ndarray]] = batches()
    if recipe.equalize:
        every = _first(iter(every), peaks, batches)
        folded, factors = equalize(network, peaks.peaks, recipe.per_channel, held)
    patches = Patches(folded) if int8 and recipe.adaptive_rounding else None
    statistics = Statistics(histograms=recipe.method != "max")
    measured = Means(folded) if int8 and recipe.bias_correction else None
    gather(divided(every, factors), *(taker for taker in (statistics, patches, measured) if taker is not None))
    if not statistics:
        raise BuildError(f"network {network.name}: calibration data: must have at least one input, got none")
    magnitudes = statistics.magnitudes(recipe.method, recipe.percentile, LARGEST[precision])
    spare = 1.0 if int8 else INT16_HEADROOM
    room = {name: factor * spare if recipe.headroom else 1.0 for name, factor in statistics.headroom().items()}
    magnitudes = {name: magnitude * room[name] for name, magnitude in magnitudes.items()}
    points = int8 and recipe.zero_points
    ranges = _of_outputs(folded, statistics, room) if recipe.method in _WHOLE_OUTPUTS else {}
    ranges |= _of_arguments(folded, magnitudes, ranges, 2 * LARGEST[precision] + 1)
    magnitudes |= {name: max(-low, high) or 1.0 for name, (low, high) in ranges.items()}
    ranges = _of_inner(folded, statistics, magnitudes, room) | ranges if points else {}
    ranges = {name: ends for name, ends in ranges.items() if worth(*ends)}
    result = folded
    scales: Mapping[str, np.ndarray] = {}
    if patches is not None:
        rounded = adapt(folded, patches, Calibration(magnitudes, zero_points=points), recipe.per_channel)
        result, scales = rounded.network, rounded.weight_scales
    means = statistics.means if recipe.bias_correction else {}
    calibration = Calibration(magnitudes, scales, means, zero_points=points, ranges=ranges, method=recipe.method)
    if measured is not None and len(measured.samples) >= LEAST_SAMPLES and _is_complete(result, magnitudes):
        calibration = replace(calibration, corrections=corrections(result, calibration, recipe.per_channel, measured))
    return Refined(result, calibration, factors, measured)


def _is_complete(network: Network, magnitudes: Mapping[str, float]) -> bool:
    """Return whether all tensors between groups have a scale already."""
    tensors = [*network.inputs, *(group.output for group in group_layers(network))]
    return all(
        tensor.name in magnitudes or own_scale(tensor.producer, Precision.INT8) is not None for tensor in tensors
    )


def _first(
    every: Iterator[Mapping[str, np.ndarray]], peaks: Statistics, batches: Batches
) -> Iterable[Mapping[str, np.ndarray]]:
    """Give the first samples to ``peaks``, and return all: they are computed twice only if they need much memory."""
    kept: list[Mapping[str, np.ndarray]] = []
    size = seen = 0
    while seen < PEAK_SAMPLES and (values := next(every, None)) is not None:
        peaks.update(values)
        seen += max(map(len, values.values()))
        size += sum(array.nbytes for array in values.values())
        if size <= KEPT_BYTES:
            kept.append(values)
    return chain(kept, every) if size <= KEPT_BYTES else batches()


def _of_outputs(network: Network, statistics: Statistics, room: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """(lowest, highest) number of outputs, which are not cut off: they keep the extremes that calibration found.

    The results of a sigmoid and similar functions are known, independent of the samples. An output that is an
    input is a copy of it, with its scale.
    """
    ends_by_name = {}
    inputs, seen = set(network.inputs), dict[int, Ends]()
    computed = [output for output in network.outputs if output not in inputs]
    for tensor in (output for output in computed if output.name in statistics):
        bounds = bounds_of(tensor.producer, np.inf, seen)
        known = np.all(np.isfinite(bounds))
        (low, high), ends = bounds, statistics.ends[tensor.name]
        if known:
            low, high = min(low, ends[0]), max(high, ends[1])
        else:
            low, high = np.clip(np.multiply(ends, room[tensor.name]), *bounds)
        ends_by_name[tensor.name] = min(float(low), 0.0), max(float(high), 0.0)
    return ends_by_name


def _of_arguments(
    network: Network, magnitudes: Mapping[str, float], outputs: Mapping[str, tuple[float, float]], levels: int
) -> dict[str, tuple[float, float]]:
    """(lowest, highest) number of the arguments of bounded functions whose results are outputs of so many ``levels``.

    Unseen samples may have any result of such a function: the one face of a picture has a higher score than that of any
    sample. So the argument reaches as far to one side as the samples do to the other, but not beyond the number from
    which on the integers of the result stay the same.
    """
    ends_by_name = {}
    for layer in network.layers:
        if layer.kind != "function" or layer.name not in outputs:
            continue
        argument, (low, high) = layer.inputs[0], outputs[layer.name]
        largest = magnitudes.get(argument.name, 0.0)
        bounded = np.all(np.isfinite(bounds_of(layer, np.inf, {})))
        if not (bounded and largest and high > low) or argument.name in outputs or argument.producer.kind == "input":
            continue
        ends_by_name[argument.name] = -largest, largest
        if len(network.consumers(argument)) == 1:
            numbers = np.linspace(-largest, largest, 1 << 14)
            elements = np.rint(np.clip(evaluate(layer, numbers), low, high) * (levels / (high - low)))
            ends_by_name[argument.name] = changing(numbers, elements) or ends_by_name[argument.name]
    return ends_by_name


def _of_inner(
    network: Network, statistics: Statistics, magnitudes: Mapping[str, float], room: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """(lowest, highest) number of the tensors between inputs and outputs that have a magnitude."""
    bound = {tensor.name for tensor in (*network.inputs, *network.outputs)}
    ranges = {}
    for name in magnitudes.keys() - bound:
        low, high = np.clip(np.multiply(statistics.ends[name], room[name]), -magnitudes[name], magnitudes[name])
        ranges[name] = float(low), float(high)
    return ranges


def divided(
    batches: Iterable[Mapping[str, np.ndarray]], factors: Mapping[str, np.ndarray]
) -> Iterator[Mapping[str, np.ndarray]]:
    """The values that the equalized network has."""
    for values in batches:
        yield {
            name: array / factors[name].astype(array.dtype)[:, None, None] if name in factors else array
            for name, array in values.items()
        }
