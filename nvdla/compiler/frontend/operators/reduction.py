"""Reductions over space or channels."""

from __future__ import annotations

import math

import numpy as np

from nvdla.compiler.builder import NetworkTensor
from nvdla.compiler.frontend.graph import Cut, Function, Graph, GraphValue, Node, canonical
from nvdla.compiler.frontend.operators.pooling import mean as global_mean
from nvdla.compiler.frontend.operators.registry import operator
from nvdla.limits import MAX_KERNEL
from nvdla.util.precision import Precision


@operator("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", note="PDP or a convolution with ones")
def reduce(graph: Graph, node: Node) -> GraphValue:
    """Over rows and columns in the PDP (sums: a convolution with ones). Over other dimensions by a convolution with
    ones, after a reordering of the elements if that is possible."""
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
    rest = math.prod(value.shape[axis] for axis in kept)
    if kind in ("max", "min"):
        rows, columns = _factors(count)
        cube = graph.arrange(value, order.transpose(*kept, *axes), (rest, rows, columns))
        return graph.result(node, _over_space(graph, name, cube, (rows, columns), kind))
    below = value.shape[kept[-1]] if kept else 1
    shape = (count, rest // below, below)
    cube = graph.arrange(value, order.transpose(*axes, *kept), shape)
    weights = np.full((1, count, 1, 1), 1.0 if kind == "sum" else 1.0 / count)
    return graph.result(node, graph.network.convolution(name, cube, weights))


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
