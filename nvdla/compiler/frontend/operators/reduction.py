"""Reductions over space or channels, and normalizations."""

from __future__ import annotations

import math

import numpy as np

from nvdla.compiler.builder import NetworkTensor
from nvdla.compiler.frontend.graph import Cut, Function, Graph, GraphValue, Node, canonical
from nvdla.compiler.frontend.operators.convolution import as_columns
from nvdla.compiler.frontend.operators.pooling import mean as global_mean
from nvdla.compiler.frontend.operators.registry import operator
from nvdla.limits import MAX_KERNEL
from nvdla.util.precision import Precision


@operator("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", note="PDP or a convolution with ones")
def reduce(graph: Graph, node: Node) -> GraphValue:
    """Over rows and columns in the PDP (sums: a convolution with ones). Over others by a convolution with ones (maxima:
    the PDP), after a reordering of the elements if that is possible."""
    value, axes = _operands(graph, node)
    if not axes:
        return graph.alias(node, value, value.index)
    kind = node.op[len("Reduce") :].lower()
    return _reduced(graph, node, value, axes, kind, graph.label(node))


@operator("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", note="table, convolution, table")
def reduce_function(graph: Graph, node: Node) -> GraphValue:
    """A table for the elements (squares in fp16: a product), a sum as for ReduceSum, and a table for the result if
    the operator needs one."""
    value, axes = _operands(graph, node)
    if graph.precision == Precision.FP16 and node.op == "ReduceLogSum":
        raise Cut("in fp16 the logarithm of a sum has no table, because its range is unknown")
    before, after = _AROUND[node.op]
    net, source = graph.network, value
    if before is not None:
        cube, name = graph.flat(value), graph.label(node, "each")
        product = before is np.square and graph.precision == Precision.FP16
        inner = net.multiply(name, cube, cube) if product else net.function(name, cube, before)
        source = GraphValue("", value.shape, inner, value.index)
    if not axes:
        raise Cut("it has no axes")
    if after is None:
        return _reduced(graph, node, source, axes, "sum", graph.label(node))
    sums = _reduced(graph, node, source, axes, "sum", graph.label(node, "sum"))
    graph.tensors.pop(sums.placed.name, None)
    return graph.result(node, net.function(graph.label(node), sums.placed, after), sums.index)


SQUARES, VARIANCE, INVERSE = "squares", "variance", "inverse"
"""Names of layers after that of a LayerNormalization's output: of its squared deviations, their mean, and 1 / sqrt of
that."""
_AROUND: dict[str, tuple[Function | None, Function | None]] = {
    "ReduceL1": (np.abs, None),
    "ReduceSumSquare": (np.square, None),
    "ReduceL2": (np.square, lambda x: np.sqrt(np.maximum(x, 0))),
    "ReduceLogSum": (None, lambda x: np.log(np.maximum(x, 1e-6))),
}


def _operands(graph: Graph, node: Node) -> tuple[GraphValue, tuple[int, ...]]:
    value = graph.source(node)
    axes = node.setting("axes", 1)
    axes = [axes] if isinstance(axes, int) else axes
    if not axes:
        axes = [] if node.get("noop_with_empty_axes", 0) else range(len(value.shape))
    return value, tuple(sorted({axis % len(value.shape) for axis in axes}))


def _reduced(graph: Graph, node: Node, value: GraphValue, axes: tuple[int, ...], kind: str, name: str) -> GraphValue:
    count = math.prod(value.shape[axis] for axis in axes)
    if count == 1:
        shape = node.out_shape
        index = None if value.index is None else value.index.reshape(shape)
        return GraphValue(node.outputs[0], shape, value.tensor, index, value.boundary)
    rank = len(value.shape)
    spatial = tuple(range(max(rank - 2, 1), rank)) if rank >= 4 else (rank - 1,) if rank == 3 else ()
    in_order = value.index is None and (value.tensor is None or value.tensor.shape == canonical(value.shape))
    if spatial and set(axes) <= set(spatial) and in_order:
        cube = graph.cube(value)
        window = cube.shape[1] if rank - 2 in axes else 1, cube.shape[2] if rank - 1 in axes else 1
        return graph.result(node, _over_space(graph, name, cube, window, kind))
    order = np.arange(value.size).reshape(value.shape)
    kept = [axis for axis in range(rank) if axis not in axes]
    channels = _whole_channels(value, kept, axes, count)
    if channels is not None:
        reduced = _over_space(graph, name, value.placed, value.placed.shape[1:], kind)
        return graph.result(node, reduced, channels.reshape(node.out_shape))
    rest = math.prod(value.shape[axis] for axis in kept)
    if kind in ("max", "min"):
        rows, columns = _factors(count)
        try:
            cube = graph.arrange(value, order.transpose(*kept, *axes), (rest, rows, columns))
        except Cut as cut:
            raise Cut(cut.reason, f"divide it with Split and take the {kind.capitalize()} of the parts") from None
        return graph.result(node, _over_space(graph, name, cube, (rows, columns), kind))
    below = value.shape[kept[-1]] if kept else 1
    shape = (count, rest // below, below)
    cube = graph.arrange(value, order.transpose(*axes, *kept), shape)
    weights = np.full((1, count, 1, 1), 1.0 if kind == "sum" else 1.0 / count)
    return graph.result(node, graph.network.convolution(name, cube, weights))


def _whole_channels(value: GraphValue, kept: list[int], axes: tuple[int, ...], count: int) -> np.ndarray | None:
    """Return the channel that each result reduces where all of them take the whole of a channel of its cube (a
    mean over the tokens of a transformer); else None."""
    if value.tensor is None or value.index is None or count != math.prod(value.tensor.shape[1:]):
        return None
    channels, pixels = np.divmod(value.index.transpose(*kept, *axes).reshape(-1, count), count)
    whole = (channels == channels[:, :1]).all() and (np.sort(pixels, axis=1) == np.arange(count)).all()
    return channels[:, 0] if whole else None


def _factors(count: int) -> tuple[int, int]:
    """A number as rows times columns, as square as it goes."""
    rows = next(r for r in range(math.isqrt(count), 0, -1) if count % r == 0)
    return rows, count // rows


def _over_space(graph: Graph, name: str, cube: NetworkTensor, window: tuple[int, int], kind: str) -> NetworkTensor:
    net = graph.network
    if kind in ("max", "min"):
        pool = net.max_pool if kind == "max" else net.min_pool
        return graph.tie(pool(name, cube, window, window), cube)
    if kind == "mean" and window == cube.shape[1:]:
        return global_mean(graph, name, cube)
    if kind == "mean":
        return net.average_pool(name, cube, window, window)
    if max(window) > MAX_KERNEL:
        mean = net.average_pool(f"{name}/mean", cube, window, window)
        return net.scale(name, mean, np.array([float(window[0] * window[1])]))
    return net.depthwise(name, cube, np.ones((cube.shape[0], 1, *window)))


@operator("InstanceNormalization", "GroupNormalization", note="host")
def by_data(graph: Graph, node: Node) -> GraphValue:
    """These run on the host: no engine computes the mean and variance of the data."""
    raise Cut("mean and variance are computed from the data, which no engine supports", "train with BatchNormalization")


@operator("LayerNormalization", note="convolutions, lookup table, SDP")
def layer_norm(graph: Graph, node: Node) -> GraphValue:
    """Over the last dimension, in int8 and fp16: mean and variance by 1x1 convolutions, 1 / sqrt by a lookup table,
    products in the SDP. In fp16, one iteration of Newton's method refines the table's result. In int8, the node runs on
    the host if the variances of the calibration data differ by more than a factor of 32; in fp16, if they or the
    squares are out of the range of fp16, or without calibration data. LayerNormalization that is written out as means,
    squares and a square root is recognized, also over channels."""
    value = graph.source(node)
    rank = len(value.shape)
    if graph.precision == Precision.INT16:
        raise Cut("a variance in int16 needs a table that is too steep", "build in int8 or fp16")
    if int(node.get("axis", -1)) % rank != rank - 1:
        raise Cut("it must normalize the last dimension")
    count = value.shape[-1]
    order = np.arange(value.size).reshape(1, -1, count).transpose(0, 2, 1)
    cube, pixels = as_columns(graph, value, order)
    result = _scaled(graph, node, _normalized(graph, node, cube), count)
    index = np.arange(value.size).reshape(count, -1).T[pixels[0]]
    return graph.result(node, result, np.ascontiguousarray(index).reshape(value.shape))


def _normalized(graph: Graph, node: Node, cube: NetworkTensor) -> NetworkTensor:
    """The cube without the mean of its channels, divided by their standard deviation."""
    net, count, in_halves = graph.network, cube.shape[0], graph.precision == Precision.FP16
    share, ones = _shares(count, in_halves), np.ones((count, 1, 1, 1))
    epsilon = float(node.get("epsilon", 1e-5))
    least = max(epsilon, float(np.finfo(np.float32).tiny))  # a constant row has the variance 0
    mean = net.convolution(graph.label(node, "mean"), cube, -share)
    means = graph.tie(net.convolution(graph.label(node, "means"), mean, ones), mean)
    centered = net.add(graph.label(node, "centered"), cube, means)
    name = graph.label(node, SQUARES)
    squares = net.multiply(name, centered, centered) if in_halves else net.function(name, centered, np.square)
    variance = net.convolution(graph.label(node, VARIANCE), squares, share, np.array([epsilon]))
    inverse = net.function(graph.label(node, INVERSE), variance, lambda x: 1.0 / np.sqrt(np.maximum(x, least)), True)
    inverse = _refined(graph, node, variance, inverse) if in_halves else inverse
    inverses = graph.tie(net.convolution(graph.label(node, "inverses"), inverse, ones), inverse)
    return net.multiply(graph.label(node, "normalized"), centered, inverses)


def _shares(count: int, in_halves: bool) -> np.ndarray:
    """The weights of a mean. Halves have a sum of 1: some are above 1 / count, others below."""
    shares = np.full((1, count, 1, 1), 1.0 / count)
    if in_halves:
        unit = float(np.spacing(np.float16(1 / count)))
        shares = np.floor(shares / unit) * unit
        shares[0, : round((1 - shares.sum()) / unit)] += unit
    return shares


def _refined(graph: Graph, node: Node, variance: NetworkTensor, inverse: NetworkTensor) -> NetworkTensor:
    """One iteration of Newton's method: y * (1.5 - 0.5 * variance * y * y)."""
    net = graph.network
    root = net.multiply(graph.label(node, "root"), variance, inverse)
    product = net.multiply(graph.label(node, "product"), root, inverse)
    correction = net.scale(graph.label(node, "correction"), product, np.array([-0.5]), np.array([1.5]))
    return net.multiply(graph.label(node, "refined"), inverse, correction)


def _scaled(graph: Graph, node: Node, normalized: NetworkTensor, count: int) -> NetworkTensor:
    """The factor and the offset of each channel."""
    factors = np.broadcast_to(node.required(1, "scale"), (count,)).astype(np.float64)
    offsets = np.broadcast_to(node.required(2, "B"), (count,)).astype(np.float64) if node.has(2) else np.zeros(count)
    return graph.network.scale(graph.label(node), normalized, factors, offsets)
