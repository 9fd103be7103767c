"""The float form of every layer: what the network means, before any quantization (float64, batches of images)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nvdla.compiler.builder.layer_types import layer_type
from nvdla.compiler.builder.layers import Layer, reach
from nvdla.compiler.builder.network import Network
from nvdla.errors import BuildError, shape_text

# Multiplications of one matrix product: OpenBLAS divides larger ones among threads, which spin while they wait.
_PRODUCT = 1 << 18


def run(network: Network, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
    """Every tensor of the network by name, as float64 (N, C, H, W). One input may be given alone, N may be left out."""
    values = _inputs(network, inputs)
    count = max((len(array) for array in values.values()), default=1)
    for layer in network.layers:
        if layer.kind != "input":
            result = evaluate(layer, *(values[tensor.name] for tensor in layer.inputs))
            values[layer.name] = result if layer.inputs else np.broadcast_to(result, (count, *result.shape[1:]))
    return values


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # statistics refuse what is not finite, by name
def evaluate(layer: Layer, *sources: np.ndarray) -> np.ndarray:
    """One layer on arrays (N, C, H, W)."""
    return layer_type(layer.kind).form(layer, list(sources))


def _inputs(network: Network, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
    if not isinstance(inputs, Mapping):
        if len(network.inputs) != 1:
            raise BuildError(
                f"inputs of network {network.name}: must be given by name, because there are {len(network.inputs)}"
            )
        inputs = {network.inputs[0].name: inputs}
    values = {}
    for tensor in network.inputs:
        if tensor.name not in inputs:
            raise BuildError(f"network {network.name}: input {tensor.name}: must be given")
        array = np.asarray(inputs[tensor.name], np.float64)
        array = array[None] if array.ndim == 3 else array
        if array.shape[1:] != tensor.shape:
            raise BuildError(
                f"input {tensor.name}: shape: must be Nx{shape_text(tensor.shape)}, got {shape_text(array.shape)}"
            )
        values[tensor.name] = array
    return values


def pad(x: np.ndarray, padding: tuple[int, int, int, int], value: float = 0) -> np.ndarray:
    """Pad height and width of (N, C, H, W) by (top, bottom, left, right)."""
    return np.pad(x, ((0, 0), (0, 0), padding[:2], padding[2:]), constant_values=value)


def windows(
    x: np.ndarray, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int] = (1, 1)
) -> np.ndarray:
    """All windows of (N, C, H, W) as a view (N, C, out H, out W, rows, columns)."""
    spans = tuple(reach(k, d) for k, d in zip(kernel, dilation, strict=True))
    view = sliding_window_view(x, spans, axis=(2, 3))
    return view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def convolve(
    x: np.ndarray,
    weights: np.ndarray,
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> np.ndarray:
    """(N, C, H, W) with weights (K, C, R, S), in float64: exact for whole numbers while sums stay below 2**53."""
    view = windows(pad(np.asarray(x, np.float64), padding), weights.shape[2:], stride, dilation)
    kernels = np.asarray(weights, np.float64)
    if kernels.shape[2:] == (1, 1):
        picked = np.argmax(kernels[:, :, 0, 0] != 0, axis=1)
        factors = kernels[np.arange(len(kernels)), picked]
        if np.count_nonzero(factors) == np.count_nonzero(kernels):  # channels are moved
            return np.asarray(view[..., 0, 0][:, picked] * factors)
    return np.moveaxis(np.tensordot(view, kernels, ((1, 4, 5), (1, 2, 3))), 3, 1)


def convolve_groups(
    x: np.ndarray,
    weights: np.ndarray,
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
) -> np.ndarray:
    """(N, C, H, W) with weights (K, C / groups, R, S), in float32 and without zeros between groups."""
    view = windows(pad(np.asarray(x, np.float32), padding), weights.shape[2:], stride, dilation)
    kernels = np.asarray(weights, np.float32)
    if groups == view.shape[1] == len(weights):
        taps = np.ndindex(*weights.shape[2:])
        return sum((view[..., r, s] * kernels[:, 0, r, s, None, None] for r, s in taps), np.float32(0.0))
    (count, _, height, width), size = view.shape[:4], kernels[0].size
    matrices, view = kernels.reshape(groups, -1, size), view.transpose(0, 1, 4, 5, 2, 3)
    results = np.empty((count, groups, matrices.shape[1], height, width), np.float32)
    rows = max(_PRODUCT // (matrices[0].size * width), 1)
    for row in range(0, height, rows):
        columns = view[..., row : row + rows, :].reshape(count, groups, size, -1)
        most = max(_PRODUCT // (size * columns.shape[-1]), 1)
        for first in range(0, matrices.shape[1], most):
            part = results[:, :, first : first + most, row : row + rows]
            part[:] = np.matmul(matrices[:, first : first + most], columns).reshape(part.shape)
    return results.reshape(count, len(kernels), height, width)


def extreme(view: np.ndarray, larger: np.ufunc) -> np.ndarray:
    """The extreme of each window (..., rows, columns), with np.maximum or np.minimum."""
    for _ in range(2):
        view = reduce(larger, (view[..., index] for index in range(view.shape[-1])))
    return view


def expand_groups(weights: np.ndarray, channels: int, groups: int) -> np.ndarray:
    """Grouped weights (K, C / groups, R, S) as dense ones (K, C, R, S) with zeros between the groups."""
    if groups == 1:
        return weights
    kernels, per_group = weights.shape[:2]
    dense = np.zeros((kernels, channels, *weights.shape[2:]), weights.dtype)
    for group in range(groups):
        rows = slice(group * kernels // groups, (group + 1) * kernels // groups)
        dense[rows, group * per_group : (group + 1) * per_group] = weights[rows]
    return dense
