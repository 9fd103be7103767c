"""The float form of every layer: what the network means, before any quantisation (float64, batches of images)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nvdla.builder.layer_types import layer_type
from nvdla.builder.network import Layer, Network
from nvdla.builder.shapes import reach
from nvdla.errors import BuildError


def run(network: Network, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
    """Every tensor of the network by name, as float64 (N, C, H, W). One input may be given alone, N may be left out."""
    values = _inputs(network, inputs)
    count = max((len(array) for array in values.values()), default=1)
    for layer in network.layers:
        if layer.kind == "constant":
            values[layer.name] = np.broadcast_to(layer.values, (count, *layer.values.shape))
        elif layer.kind != "input":
            values[layer.name] = evaluate(layer, *(values[tensor.name] for tensor in layer.inputs))
    return values


def evaluate(layer: Layer, *sources: np.ndarray) -> np.ndarray:
    """One layer on arrays (N, C, H, W)."""
    form: Callable[..., np.ndarray] = FORMS.get(layer.kind) or layer_type(layer.kind).form
    return form(layer, *sources)


def _inputs(network: Network, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
    if not isinstance(inputs, Mapping):
        if len(network.inputs) != 1:
            raise BuildError(f"network {network.name} has {len(network.inputs)} inputs: give them by name")
        inputs = {network.inputs[0].name: inputs}
    values = {}
    for tensor in network.inputs:
        if tensor.name not in inputs:
            raise BuildError(f"input {tensor.name} of network {network.name} is missing")
        array = np.asarray(inputs[tensor.name], np.float64)
        array = array[None] if array.ndim == 3 else array
        if array.shape[1:] != tensor.shape:
            raise BuildError(
                f"input {tensor.name} has shape {array.shape}, must be (N, {', '.join(map(str, tensor.shape))})"
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
    return np.moveaxis(np.tensordot(view, np.asarray(weights, np.float64), ((1, 4, 5), (1, 2, 3))), 3, 1)


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


def _column(vector: np.ndarray) -> np.ndarray:
    return vector[None, :, None, None]


def _convolution(layer: Layer, x: np.ndarray) -> np.ndarray:
    dense = expand_groups(layer.weights, x.shape[1], layer.groups)
    return convolve(x, dense, layer.stride, layer.padding, layer.dilation) + _column(layer.bias)


def _deconvolution(layer: Layer, x: np.ndarray) -> np.ndarray:
    (sy, sx), (top, _, left, _) = layer.stride, layer.padding
    _, kernels, rows, columns = layer.weights.shape
    height, width = (x.shape[2] - 1) * sy + rows, (x.shape[3] - 1) * sx + columns
    whole = np.zeros((x.shape[0], kernels, height, width))
    for row in range(rows):
        for column in range(columns):
            part = np.einsum("nchw,ck->nkhw", x, layer.weights[:, :, row, column])
            whole[:, :, row : row + x.shape[2] * sy : sy, column : column + x.shape[3] * sx : sx] += part
    _, out_height, out_width = layer.output.shape
    return whole[:, :, top : top + out_height, left : left + out_width] + _column(layer.bias)


def _pool(layer: Layer, x: np.ndarray) -> np.ndarray:
    if layer.mode == "average" and layer.counted != layer.padding:
        sums = windows(pad(x, layer.padding), layer.kernel, layer.stride).sum(axis=(4, 5))
        inside = np.pad(np.ones(x.shape[2:]), (layer.counted[:2], layer.counted[2:]), constant_values=1.0)
        rest = [outer - inner for outer, inner in zip(layer.padding, layer.counted, strict=True)]
        counts = windows(pad(inside[None, None], tuple(rest)), layer.kernel, layer.stride).sum(axis=(4, 5))
        return sums / counts
    forms: dict[str, tuple[Callable[..., np.ndarray], float]] = {
        "max": (np.max, -np.inf),
        "min": (np.min, np.inf),
        "average": (np.mean, 0.0),
    }
    reduce, fill = forms[layer.mode]
    return reduce(windows(pad(x, layer.padding, fill), layer.kernel, layer.stride), axis=(4, 5))


def _elementwise(layer: Layer, *sources: np.ndarray) -> np.ndarray:
    form = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[layer.operation]
    result = sources[0]
    for other in sources[1:]:
        result = form(result, other)
    return result


def _lrn(layer: Layer, x: np.ndarray) -> np.ndarray:
    half = layer.size // 2
    squares = np.pad(x * x, ((0, 0), (half, half), (0, 0), (0, 0)))
    total = sliding_window_view(squares, layer.size, axis=1).sum(-1)
    return x * (layer.k + layer.alpha / layer.size * total) ** -layer.beta


def _softmax(layer: Layer, x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # infinities of a float network are found and said by whoever calibrates
        powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _function(layer: Layer, x: np.ndarray) -> np.ndarray:
    result = np.asarray(layer.settings["function"](x), np.float64)
    if result.shape != x.shape or not np.all(np.isfinite(result)):
        raise BuildError(f"layer {layer.name}: the function must give one finite number for each number it gets")
    return result


def _slice(layer: Layer, x: np.ndarray) -> np.ndarray:
    (first, count), (top, down, rows), (left, right, columns) = layer.channels, layer.rows, layer.columns
    x = x[:, first : first + count, top : top + (rows - 1) * down + 1 : down]
    return x[..., left : left + (columns - 1) * right + 1 : right]


FORMS: dict[str, Callable[..., np.ndarray]] = {
    "convolution": _convolution,
    "deconvolution": _deconvolution,
    "scale": lambda layer, x: x * _column(layer.factors) + _column(layer.bias),
    "relu": lambda layer, x: np.maximum(x, 0.0),
    "prelu": lambda layer, x: np.where(x >= 0, x, x * _column(layer.slopes)),
    "clip": lambda layer, x: np.clip(x, layer.low, _column(np.atleast_1d(layer.high))),
    "function": _function,
    "elementwise": _elementwise,
    "concat": lambda layer, *sources: np.concatenate(sources, axis=1),
    "join": lambda layer, *sources: np.concatenate(sources, axis=1 + layer.axis),
    "constant": lambda layer: layer.values[None],
    "slice": _slice,
    "pad": lambda layer, x: pad(x, layer.padding, layer.value),
    "pool": _pool,
    "lrn": _lrn,
    "softmax": _softmax,
}
