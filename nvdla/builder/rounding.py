"""Adaptive rounding: weights chosen for the results that they give, not each for itself.

Every weight is rounded up or down so that the error of the layer's results on the calibration data is least. With the
error ``e`` of one kernel's weights and the mean ``G`` of the outer products of what the kernel sees, the mean squared
error of the results is ``e G e``; coordinate descent on it, weight by weight, never makes it worse than rounding to the
nearest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.builder.floating import pad, windows
from nvdla.builder.groups import group_layers
from nvdla.builder.lower.lowering import Lowering
from nvdla.builder.network import Layer, Network
from nvdla.builder.quantize import LARGEST, Calibration
from nvdla.hardware.configuration import configuration

# Weights of one kernel beyond which a layer is rounded to the nearest: the matrix would take more than 150 MB.
LARGEST_KERNEL = 6144
POSITIONS = 64
SWEEPS = 3
_DAMPING = 0.01


class Patches:
    """Mean outer products of what the kernels of every convolution see, (groups, d, d), at some random positions of
    each sample."""

    def __init__(self, network: Network, seed: int = 0) -> None:
        groups = (each.layer for each in group_layers(network) if each.layer.kind == "convolution")
        self.layers = [layer for layer in groups if np.prod(layer.weights.shape[1:]) <= LARGEST_KERNEL]
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
        view = windows(pad(x, layer.padding), layer.weights.shape[2:], layer.stride, layer.dilation)
        count = min(POSITIONS * len(x), len(x) * view.shape[2] * view.shape[3])
        picks = [self._rng.integers(0, view.shape[axis], count) for axis in (0, 2, 3)]
        chosen = view[picks[0], :, picks[1], picks[2]].astype(np.float32)
        return chosen.reshape(count, layer.groups, -1).transpose(1, 0, 2)

    def moments(self, name: str) -> np.ndarray | None:
        """The mean outer products of one layer, None where they were not gathered.

        The fewer positions were seen for the size of a kernel, the more they are drawn to equal, unrelated inputs, for
        which rounding to the nearest is best.
        """
        if name not in self._sums:
            return None
        found, count, size = self._sums[name], self._counts[name], self._sums[name].shape[-1]
        trust = count / (count + size)
        level = np.trace(found, axis1=1, axis2=2)[:, None, None] / count / size
        return trust * found / count + ((1 - trust) * level * np.eye(size)).astype(found.dtype)


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

    ``network`` must be folded (equalise.fold).
    """
    lowering = Lowering(network, configuration("nv_small"), "int8", calibration, per_channel)
    groups = {group.layer.name: group for group in lowering.groups}
    changes: dict[str, dict[str, Any]] = {}
    scales: dict[str, np.ndarray] = {}
    for layer in patches.layers:
        moments = patches.moments(layer.name)
        if moments is None:
            continue
        weights = np.asarray(network.layer(layer.name).weights, np.float64)
        own = lowering.kernel_scales(groups[layer.name], weights)
        kernels = weights.reshape(layer.groups, len(weights) // layer.groups, -1)
        parts = [
            round_adaptively(part, scale, moment, LARGEST["int8"])
            for part, scale, moment in zip(kernels, own.reshape(layer.groups, -1), moments, strict=True)
        ]
        elements = np.concatenate(parts).reshape(weights.shape)
        changes[layer.name] = {"weights": elements * own[:, None, None, None]}
        scales[layer.name] = own
    return Rounded(network.changed(changes), scales)
