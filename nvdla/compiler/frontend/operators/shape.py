"""Operators that move elements; most of them need no operation."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from nvdla.compiler.builder import NetworkTensor
from nvdla.compiler.frontend.graph import Cut, Graph, GraphValue, Node, canonical, pixels_of
from nvdla.compiler.frontend.operators.registry import operator

MAX_MOVED = 1 << 24


def order_of(value: GraphValue) -> np.ndarray:
    """Position of each element of a value. Raises Cut for more than can be moved."""
    if value.size > MAX_MOVED:
        raise Cut(f"it moves {value.size} elements; the limit is {MAX_MOVED}")
    return value.order()


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze", note="no operation")
def rename(graph: Graph, node: Node) -> GraphValue:
    """Another shape for the same elements: nothing is computed."""
    value = graph.source(node)
    return graph.alias(node, value, value.index)


@operator("Identity", "Dropout", "Cast", "CastLike", note="no operation")
def same(graph: Graph, node: Node) -> GraphValue:
    """The same elements (Dropout in its inference form, Cast between real numbers)."""
    value = graph.source(node)
    training = node.constant(2) if node.op == "Dropout" and node.has(2) else None
    if training is not None and bool(training.ravel()[0]):
        raise Cut("it is in training mode")
    return _unchanged(graph, node, value)


def _unchanged(graph: Graph, node: Node, value: GraphValue) -> GraphValue:
    result = graph.alias(node, value, value.index)
    result.base, result.function, result.calls = value.base, value.function, value.calls
    return result


@operator("Transpose", note="no operation")
def transpose(graph: Graph, node: Node) -> GraphValue:
    """Another order of the same elements. It is free at the ends of an accelerator part, and where it cancels with
    others (NHWC models; a channel shuffle is one 1x1 convolution). Small tensors are reordered by convolutions."""
    value = graph.source(node)
    order = node.get("perm", list(range(len(value.shape)))[::-1])
    return graph.alias(node, value, order_of(value).transpose(order))


@operator("DepthToSpace", note="deconvolution with ones")
def depth_to_space(graph: Graph, node: Node) -> GraphValue:
    """A deconvolution with ones and zeros: exact."""
    value = graph.source(node)
    block = int(node.get("blocksize"))
    batch, channels, _height, _width = value.shape
    if batch != 1 or channels * channels > 1 << 20:
        return graph.alias(node, value, _depth_order(node, order_of(value), block))
    order = np.arange(channels)
    if node.get("mode", "DCR") == "DCR":
        places = order.reshape(block, block, -1).transpose(2, 0, 1)
    else:
        places = order.reshape(-1, block, block)
    weights = np.zeros((channels, channels // block**2, block, block))
    for out, y, x in np.ndindex(places.shape):
        weights[places[out, y, x], out, y, x] = 1.0
    cube = graph.cube(value)
    result = graph.network.deconvolution(graph.label(node), cube, weights, stride=block)
    return graph.result(node, graph.tie(result, cube))


def _depth_order(node: Node, order: np.ndarray, block: int) -> np.ndarray:
    batch, channels, height, width = order.shape
    if node.get("mode", "DCR") == "DCR":
        order = order.reshape(batch, block, block, channels // block**2, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        order = order.reshape(batch, channels // block**2, block, block, height, width).transpose(0, 1, 4, 2, 5, 3)
    return order


@operator("SpaceToDepth", note="convolution with ones")
def space_to_depth(graph: Graph, node: Node) -> GraphValue:
    """A convolution with ones and zeros, kernel and stride as large as the block: exact."""
    value = graph.source(node)
    block = int(node.get("blocksize"))
    batch, channels, height, width = value.shape
    block_first = node.get("mode", "DCR") == "DCR"  # an attribute since opset 28
    if batch != 1 or block > 8 or channels**2 * block**4 > 1 << 20:
        order = order_of(value).reshape(batch, channels, height // block, block, width // block, block)
        return graph.alias(node, value, order.transpose((0, 3, 5, 1, 2, 4) if block_first else (0, 1, 3, 5, 2, 4)))
    weights = np.zeros((channels * block * block, channels, block, block))
    for y, x, c in np.ndindex(block, block, channels):
        out = (y * block + x) * channels + c if block_first else (c * block + y) * block + x
        weights[out, c, y, x] = 1.0
    cube = graph.cube(value)
    result = graph.network.convolution(graph.label(node), cube, weights, stride=block)
    return graph.result(node, graph.tie(result, cube))


@operator("Slice", note="copies of the SDP")
def slice_(graph: Graph, node: Node) -> GraphValue:
    """A part of a tensor in channels, rows and columns, with constant bounds and positive steps. Negative steps only
    for small tensors."""
    value = graph.source(node)
    starts, ends = node.setting("starts", 1), node.setting("ends", 2)
    axes = node.setting("axes", 3, list(range(len(starts))))
    steps = node.setting("steps", 4, [1] * len(starts))
    cut = [slice(None)] * len(value.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = value.shape[axis]
        if step < 0:
            start = min(start, size - 1) if start >= 0 else start + size
            end = end + size if -size <= end < 0 else end
            cut[axis] = slice(start, None if end < 0 else end, step)
        else:
            cut[axis] = slice(start, end, step)
    return graph.alias(node, value, order_of(value)[tuple(cut)])


@operator("Split", note="copies of the SDP")
def split(graph: Graph, node: Node) -> list[GraphValue]:
    """Consecutive parts of a tensor, as for Slice."""
    value = graph.source(node)
    axis = int(node.get("axis", 0)) % len(value.shape)
    order, first, values = order_of(value), 0, []
    for number, name in enumerate(node.outputs):
        if not name:
            raise Cut("one of its outputs is missing")
        shape = node.shape_of(name)
        part = order.take(np.arange(first, first + shape[axis]), axis)
        values.append(graph.alias(node, value, part, number))
        first += shape[axis]
    return values


@operator("Gather", note="copies of the SDP")
def gather(graph: Graph, node: Node) -> GraphValue:
    """Rows or channels with constant indices: a channel permutation is one 1x1 convolution, a range a slice."""
    value = graph.source(node)
    indices = node.constant(1)
    if indices is None:
        raise Cut("its indices are computed")
    axis = int(node.get("axis", 0))
    return graph.alias(node, value, order_of(value).take(np.asarray(indices), axis))


@operator("Expand", "Tile", note="copies, or pooling of one element")
def repeat(graph: Graph, node: Node) -> GraphValue:
    """Repeated elements: integer factors in rows and columns, channels by a 1x1 convolution."""
    value = graph.source(node)
    if math.prod(node.out_shape) > MAX_MOVED:
        raise Cut(f"its result has {math.prod(node.out_shape)} elements; the limit is {MAX_MOVED}")
    if node.op == "Tile":
        return graph.alias(node, value, np.tile(order_of(value), node.setting("repeats", 1)))
    order = order_of(value).reshape((1,) * (len(node.out_shape) - len(value.shape)) + value.shape)
    return graph.alias(node, value, np.ascontiguousarray(np.broadcast_to(order, node.out_shape)))


@operator("Concat", note="producers write into one tensor")
def concat(graph: Graph, node: Node) -> GraphValue:
    """Along channels, rows or columns. Concatenation of channels is free if each part fills whole atoms, and so is that
    of slices of one tensor with channels last (a roll). Constants are stored in the loadable."""
    axis = int(node.get("axis", 1)) % len(node.out_shape)
    values = [_part(graph, node, index) for index in range(len(node.inputs)) if node.has(index)]
    if len(values) == 1:
        return graph.alias(node, values[0], values[0].index)
    if len({(value.tensor, value.boundary) for value in values}) == 1:
        index = np.concatenate([order_of(value) for value in values], axis)
        if _is_free(graph, values[0], index):
            return graph.alias(node, values[0], index)
    rank, out = len(node.out_shape), node.out_shape
    leading = math.prod(out[:axis])
    if rank >= 3 and axis >= max(rank - 2, 2) and all(value.index is None for value in values):
        cubes = [graph.cube(value) for value in values]
        result = graph.network.concat(graph.label(node), *cubes, axis=axis - rank + 3)
        return graph.result(node, result)
    del leading
    if rank >= 3 and axis < rank - (2 if rank >= 4 else 1):
        shapes = [canonical(value.shape) for value in values]
    else:
        shapes = [(value.size, 1, 1) for value in values]
    cubes = [graph.arrange(value, None, shape) for value, shape in zip(values, shapes, strict=True)]
    result = graph.network.concat(graph.label(node), *cubes)
    first, orders = 0, []
    for value in values:
        orders.append(np.arange(first, first + value.size).reshape(value.shape))
        first += value.size
    index = np.concatenate(orders, axis)
    plain = np.array_equal(index.ravel(), np.arange(index.size))
    return graph.result(node, result, None if plain else index)


def _is_free(graph: Graph, value: GraphValue, index: np.ndarray) -> bool:
    """Return whether all elements of a value's tensor can take another order without a layer: those of an input that is
    not bound yet, or rows that each fill a pixel (channels last)."""
    if value.tensor is None:
        root = graph.values[value.boundary]
        return root.tensor is None and np.array_equal(np.sort(index, None), np.arange(root.size))
    return pixels_of(index.reshape(1, -1, index.shape[-1]).transpose(0, 2, 1), value.tensor.shape) is not None


def _part(graph: Graph, node: Node, index: int) -> GraphValue:
    """An input of Concat; a constant one is a tensor of the loadable."""
    array = node.constant(index)
    if array is None:
        return graph.source(node, index)
    if array.size == 0:
        raise Cut("one of its inputs has no elements")
    values = np.asarray(array, np.float64)
    tensor = graph.network.constant(graph.label(node, "constant"), values.reshape(canonical(values.shape)))
    return GraphValue(node.inputs[index], values.shape, tensor)


@operator("Pad", note="part of the next operation, or copies around the tensor")
def pad(graph: Graph, node: Node) -> GraphValue:
    """Zeros around rows and columns are folded into the next convolution or average, the lowest number into the next
    MaxPool. Other borders are copied from constants of the loadable. reflect, edge and wrap only for small tensors.
    Negative pads crop."""
    value = graph.source(node)
    mode = node.get("mode", "constant")
    rank = len(value.shape)
    begins, ends = _pads(node, rank)
    if not any(begins + ends):
        return _unchanged(graph, node, value)
    if mode != "constant":
        return _mirrored(graph, node, value, begins, ends, mode)
    number = node.get("value", 0.0)
    if node.has(2):
        number = float(node.required(2, "constant_value").ravel()[0])
    grown = [(max(b, 0), max(e, 0)) for b, e in zip(begins, ends, strict=True)]
    cut = tuple(slice(max(-b, 0), size - max(-e, 0)) for b, e, size in zip(begins, ends, value.shape, strict=True))
    if min(begins + ends) < 0:
        value = GraphValue("", tuple(s.stop - s.start for s in cut), value.tensor, order_of(value)[cut], value.boundary)
    if (last := _channels_last(graph, value, grown)) is not None and math.isfinite(number):
        rows, columns = grown[1:3] if rank == 4 else ((0, 0), grown[1])
        padded = graph.network.pad(graph.label(node), last, (*rows, *columns), number)
        if number == 0:
            graph.tie(padded, last)
        order = np.arange(math.prod(padded.shape)).reshape(padded.shape[0], -1).T
        return graph.result(node, padded, order.reshape(node.out_shape))
    outer = grown[: rank - 2] if rank >= 4 else grown[: rank - 1]
    inner = ([(0, 0)] if rank == 3 else []) + grown[len(outer) :]
    if rank < 3 or any(b or e for b, e in outer):
        return _in_channels(graph, node, value, grown, number)
    (top, bottom), (left, right) = inner
    if not math.isfinite(number):
        raise Cut(f"a border with the value {number} is not supported")
    cube = graph.cube(value)
    padded = graph.network.pad(graph.label(node), cube, (top, bottom, left, right), number)
    if number == 0:
        graph.tie(padded, cube)
    return graph.result(node, padded)


def _channels_last(graph: Graph, value: GraphValue, grown: list[tuple[int, int]]) -> NetworkTensor | None:
    """The value (1, rows, channels) or (1, rows, columns, channels) as a cube, if only rows and columns grow and its
    channels are the last axis: those of a tensor that has them so, or of an input that is not bound yet."""
    if len(value.shape) not in (3, 4) or value.shape[0] != 1 or any(grown[0]) or not any(grown[1]) or any(grown[-1]):
        return None
    *sizes, channels = value.shape[1:]
    cube = channels, math.prod(sizes[:-1]), sizes[-1]
    order = np.arange(value.size).reshape(-1, channels).T
    if value.tensor is None and graph.values[value.boundary].tensor is None:
        return graph.arrange(value, order.reshape(cube), cube) if len(sizes) == 1 else None
    held = order_of(value).reshape(-1, channels).T.ravel()
    is_planes = value.tensor is not None and value.tensor.shape == cube and np.array_equal(held, np.arange(value.size))
    return value.tensor if is_planes else None


def _pads(node: Node, rank: int) -> tuple[list[int], list[int]]:
    pads = [int(amount) for amount in node.setting("pads", 1, node.get("paddings"))]
    axes = [axis % rank for axis in node.setting("axes", 3, list(range(rank)))]
    begins, ends = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        begins[axis], ends[axis] = pads[position], pads[position + len(axes)]
    return begins, ends


def _mirrored(graph: Graph, node: Node, value: GraphValue, begins: list[int], ends: list[int], mode: str) -> GraphValue:
    forms: dict[str, Literal["reflect", "edge", "wrap"]] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    form = forms.get(mode)
    if form is None or min(begins + ends) < 0:
        raise Cut(f"mode {mode} is not supported")
    return graph.alias(node, value, np.pad(order_of(value), list(zip(begins, ends, strict=True)), form))


def _in_channels(
    graph: Graph, node: Node, value: GraphValue, grown: list[tuple[int, int]], number: float
) -> GraphValue:
    """A border in channels or batch: zeros by a convolution, then the number added where it belongs."""
    order = np.pad(np.arange(value.size).reshape(value.shape), grown, constant_values=-1)
    cube = canonical(node.out_shape)
    if number == 0:
        return graph.result(node, graph.arrange(value, order, cube))
    inner = graph.arrange(value, order, cube)
    border = np.where(order < 0, number, 0.0).reshape(cube)
    constant = graph.network.constant(graph.label(node, "border"), border)
    return graph.result(node, graph.network.add(graph.label(node), inner, constant))
