"""Cross-layer equalisation: channels of one tensor brought to like magnitudes, without any change of the network.

A convolution whose kernel ``k`` is divided by ``f`` gives a channel that is smaller by ``f``; where every consumer of
the channel multiplies its weights for it by ``f`` the results stay the same. ReLU, PReLU, pooling and (with a limit of
its own for each channel) ReLU6 let such a factor through; sums tie the channels of their inputs together, so that
residual networks are equalised too (idea: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction", 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.builder.floating import expand_groups
from nvdla.builder.groups import Group, group_layers
from nvdla.builder.layer_types import layer_type
from nvdla.builder.network import Layer, Network

# A factor beyond this would cost the biases and the fixed-point factors of the SDP their bits.
LARGEST_FACTOR = 256.0
ROUNDS = 20
# Channels this much smaller than the largest are left as they are.
_SMALLEST = 1e-4
_AFFINE = ("convolution", "deconvolution", "scale")


def fold(network: Network) -> Network:
    """The same network with factors a channel moved into the convolution or factors before them, as building does it.

    Layers keep their names; a folded one is left with factors 1 and biases 0.
    """
    changes: dict[str, dict[str, Any]] = {}
    for group in group_layers(network):
        if group.layer.kind not in _AFFINE:
            continue
        if group.layer.kind == "scale":
            changes[group.layer.name] = {"factors": group.layer.factors, "bias": group.layer.bias}
        else:
            weights = group.kernels.astype(group.layer.weights.dtype)
            changes[group.layer.name] = {"weights": weights, "bias": group.bias}
        for member in group.members[1:]:
            layer = network.layer(member)
            if layer.kind == "scale":
                changes[member] = {"factors": np.ones_like(layer.factors), "bias": np.zeros_like(layer.bias)}
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
        for one, other in zip(some.tolist(), others.tolist(), strict=True):
            self.leader[self.find(other)] = self.find(one)

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
        clips = [each for each in (layer, group.activation) if each is not None and each.kind == "clip"]
        if any(each.low != 0 for each in clips):
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
    for each in sources:
        channels.hold(each)
    result = channels.new(layer.output.shape[0])
    channels.hold(result)
    return result


def equalise(
    network: Network, peaks: Mapping[str, np.ndarray], per_channel: bool, held: Set[str] = frozenset()
) -> tuple[Network, dict[str, np.ndarray]]:
    """An equal network with channels of like magnitudes, and by what each tensor's channels were divided, (C,).

    ``peaks``: the largest magnitude of every channel of every tensor between groups, from calibration. With weight
    scales a kernel (``per_channel``) the sizes of kernels do not matter, only those of activations and of the weights
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
        pull, weight = np.zeros(len(free)), np.zeros(len(free))
        for sizes, ids, sign in _sizes(folded, groups, matrices, numbers, factors, peaks, per_channel):
            # Channels of nothing have no size to bring to that of others.
            some = sizes > _SMALLEST * max(float(sizes.max()), 1e-30)
            if np.any(some):
                logs = np.log(sizes[some])
                np.add.at(pull, ids[some], sign * (logs - logs.mean()))
                np.add.at(weight, ids[some], 1.0)
        change = np.where(free & (weight > 0), pull / np.maximum(weight, 1), 0.0)
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
        elif group.layer.settings.get("groups", 1) < len(source):
            yield (sizes / np.maximum(largest, 1e-30)[:, None]).max(axis=0), source, -1


def _matrix(layer: Layer) -> np.ndarray:
    """The largest magnitude of the weights between each channel of the result and each of the source, (K, C)."""
    sizes = np.abs(layer.weights).max(axis=(2, 3))
    if layer.kind == "deconvolution":
        sizes = sizes.T
    return expand_groups(sizes[:, :, None, None], layer.inputs[0].shape[0], layer.settings.get("groups", 1))[..., 0, 0]


def _changes(groups: list[Group], factors: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """New settings of the layers for factors (C,) by tensor."""
    changes: dict[str, dict[str, Any]] = {}
    for group in groups:
        layer, out = group.layer, factors[group.output.name]
        if layer.kind in _AFFINE:
            changes[layer.name] = {"bias": layer.bias / out, **_scaled(layer, factors[layer.inputs[0].name], out)}
        for each in (layer, group.activation):
            if each is not None and each.kind == "clip" and np.any(out != 1):
                changes[each.name] = {"high": np.broadcast_to(each.high, out.shape) / out}
    return changes


def _scaled(layer: Layer, source: np.ndarray, out: np.ndarray) -> dict[str, np.ndarray]:
    if layer.kind == "scale":
        return {"factors": layer.factors * source / out}
    weights, groups = layer.weights, layer.settings.get("groups", 1)
    if layer.kind == "deconvolution":
        scaled = weights * source[:, None, None, None] / out[:, None, None]
    else:
        own = np.repeat(source.reshape(groups, -1), weights.shape[0] // groups, axis=0)  # (K, C / groups)
        scaled = weights * own[:, :, None, None] / out[:, None, None, None]
    return {"weights": scaled.astype(weights.dtype)}
