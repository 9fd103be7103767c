"""Enlarging and reducing maps."""

from __future__ import annotations

import numpy as np

from nvdla.compiler.frontend.graph import Cut, Graph, GraphValue, Node
from nvdla.compiler.frontend.opening import open_session
from nvdla.compiler.frontend.operators.registry import operator

MAX_MATRIX = 1 << 20


@operator("Resize", "Upsample", note="copies, or a fixed filter")
def resize(graph: Graph, node: Node) -> GraphValue:
    """Nearest element by integer factors: SDP copies with strides. Linear by integer factors: a deconvolution. Other
    filters (cubic, sizes, all coordinate modes, antialias) of a small map: a 1x1 convolution from all elements to
    all results. Over rows and columns only, with constant scales or sizes."""
    value = graph.source(node)
    if len(value.shape) not in (3, 4) or node.out_shape[:2] != value.shape[:2]:
        raise Cut("it changes more than rows and columns")
    if node.out_shape == value.shape and node.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        return graph.alias(node, value, value.index)
    rows, columns = (_matrix(node, value, axis) for axis in (-2, -1))
    mode = node.get("mode", "nearest")
    if mode == "nearest":
        return _nearest(graph, node, value, rows, columns)
    for factor_matrix in (rows, columns):
        if not np.all(np.isfinite(factor_matrix)):
            raise Cut("its filter has NaN or infinite factors")
    return _filter(graph, node, value, rows, columns)


def _matrix(node: Node, value: GraphValue, axis: int) -> np.ndarray:
    """The linear map of one dimension (out, in), asked of onnxruntime with unit vectors."""
    size = value.shape[axis]
    if len(value.shape) + axis < 2:
        return np.ones((1, 1))
    out = node.out_shape[axis]
    if size * out > MAX_MATRIX:
        raise Cut(f"a map from {size} to {out} positions is too large")
    return responses(node, value, axis)[:, :]


def responses(node: Node, value: GraphValue, axis: int) -> np.ndarray:
    """Result of the node for a ramp of unit vectors along one dimension; the others are constant."""
    import onnx

    model = node.model
    size, out = value.shape[axis], node.out_shape[axis]
    columns = []
    constants = [onnx.numpy_helper.from_array(model.constants[n], n) for n in node.inputs[1:] if n]
    info = onnx.helper.make_tensor_value_info(node.inputs[0], onnx.TensorProto.FLOAT, value.shape)
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    graph = onnx.helper.make_graph([proto], "filter", [info], [onnx.ValueInfoProto(name=node.outputs[0])], constants)
    ramp_model = onnx.helper.make_model(
        graph, opset_imports=list(model.proto.opset_import), ir_version=model.proto.ir_version
    )
    run = open_session(ramp_model, node.name, model.worker, optimize=False)
    zero = run.run(None, {node.inputs[0]: np.zeros(value.shape, np.float32)})[0]
    if np.any(zero):
        raise Cut("its filter has a constant part (extrapolation)")
    for place in range(size):
        unit = np.zeros(value.shape, np.float32)
        np.moveaxis(unit, axis, -1)[..., place] = 1.0
        result = np.moveaxis(run.run(None, {node.inputs[0]: unit})[0], axis, -1)
        columns.append(result.reshape(-1, out)[0].astype(np.float64))
        if not np.allclose(result, columns[-1], atol=1e-6):
            raise Cut("its filter is not the same everywhere")
    return np.stack(columns, 1)


def _nearest(graph: Graph, node: Node, value: GraphValue, rows: np.ndarray, columns: np.ndarray) -> GraphValue:
    """Every result is one element: an index."""
    if any(
        not np.array_equal(np.sort(m, 1)[:, -1:], np.ones((len(m), 1))) or np.count_nonzero(m) != len(m)
        for m in (rows, columns)
    ):
        return _filter(graph, node, value, rows, columns)
    order = value.order().reshape(*value.shape[:2], *(1, *value.shape[2:])[-2:])
    order = order[:, :, rows.argmax(1)][:, :, :, columns.argmax(1)]
    return graph.alias(node, value, order)


def _filter(graph: Graph, node: Node, value: GraphValue, rows: np.ndarray, columns: np.ndarray) -> GraphValue:
    down, across = _whole_factors(rows), _whole_factors(columns)
    if down is not None and across is not None and value.shape[0] == 1 and value.size > 64:
        return _interpolated(graph, node, value, rows, columns, (down, across))
    matrix = np.kron(rows, columns)
    if matrix.size > MAX_MATRIX:
        raise Cut(f"a fixed filter from {matrix.shape[1]} to {matrix.shape[0]} positions is too large")
    count = value.shape[0] * value.shape[1]
    order = np.arange(value.size).reshape(count, -1).T
    cube = graph.arrange(value, order, (matrix.shape[1], count, 1))
    result = graph.network.convolution(graph.label(node), cube, matrix[:, :, None, None])
    index = np.arange(matrix.shape[0] * count).reshape(matrix.shape[0], count).T
    return graph.result(node, result, np.ascontiguousarray(index).reshape(node.out_shape))


def _whole_factors(matrix: np.ndarray) -> int | None:
    """The factor of an enlargement by a whole number."""
    out, size = matrix.shape
    return out // size if out % size == 0 else None


def _interpolated(
    graph: Graph, node: Node, value: GraphValue, rows: np.ndarray, columns: np.ndarray, factors: tuple[int, int]
) -> GraphValue:
    """Linear by whole factors: the edge repeated, a deconvolution a channel, and the middle of its result.

    The kernel of one direction is what an element in the middle contributes to its neighbors.
    """
    net = graph.network
    kernels, reach = [], []
    for matrix, factor in zip((rows, columns), factors, strict=True):
        kernel, before = _kernel(matrix, factor)
        kernels.append(kernel)
        reach.append(before)
    channels = value.shape[1]
    if channels * channels * kernels[0].size * kernels[1].size > 1 << 24:
        raise Cut(f"a {kernels[0].size}x{kernels[1].size} filter for {channels} channels needs too many dense weights")
    cube = graph.cube(value)
    edged = cube
    for axis, factor in ((1, factors[0]), (2, factors[1])):
        if factor > 1:
            size = edged.shape[axis]
            edges = [(place, 1, 1) for place in (0, size - 1)]
            ends = [
                net.slice(graph.label(node, "edge"), edged, rows=edge)
                if axis == 1
                else net.slice(graph.label(node, "edge"), edged, columns=edge)
                for edge in edges
            ]
            for end in ends:
                graph.tie(end, cube)
            edged = graph.tie(net.concat(graph.label(node, "edged"), ends[0], edged, ends[1], axis=axis), cube)
    weights = np.zeros((channels, channels, kernels[0].size, kernels[1].size))
    weights[np.arange(channels), np.arange(channels)] = np.outer(kernels[0], kernels[1])
    height, width = (1, *node.out_shape[2:])[-2:]
    padding = []
    for axis, (factor, before, wanted) in enumerate(zip(factors, reach, (height, width), strict=True)):
        grown = 1 if factor > 1 else 0
        full = (edged.shape[1 + axis] - 1) * factor + kernels[axis].size
        begin = grown * factor + before
        padding += [begin, full - begin - wanted]
    if min(padding) < 0:
        raise Cut("its filter reaches beyond one element of the edge")
    pads = (padding[0], padding[1], padding[2], padding[3])
    result = net.deconvolution(graph.label(node), edged, weights, None, factors, pads)
    return graph.result(node, result)


def _kernel(matrix: np.ndarray, factor: int) -> tuple[np.ndarray, int]:
    """(taps, how many of them lie before factor * place) of the map away from the edges; Cut where it is no fixed
    filter with the edge repeated."""
    out, size = matrix.shape
    if factor == 1:
        if not np.array_equal(matrix, np.eye(size)):
            raise Cut("its map is not a fixed filter")
        return np.ones(1), 0
    if size < 3:
        raise Cut("its map is too small for a fixed filter and too large for a matrix")
    middle = size // 2
    used = np.flatnonzero(matrix[:, middle])
    first, last = int(used[0]), int(used[-1])
    kernel, before = matrix[first : last + 1, middle], middle * factor - first
    whole = np.zeros((out + 4 * factor, size + 2))
    for place in range(size + 2):
        begin = place * factor - before + factor
        if begin < 0 or begin + kernel.size > len(whole):
            raise Cut("its filter reaches beyond one element of the edge")
        whole[begin : begin + kernel.size, place] = kernel
    whole = whole[2 * factor : 2 * factor + out]
    edge = np.concatenate((whole[:, :1] + whole[:, 1:2], whole[:, 2:-2], whole[:, -2:-1] + whole[:, -1:]), axis=1)
    if not np.allclose(edge, matrix, atol=1e-6):
        raise Cut("its filter is not the same for every element (align_corners, or more than the edge is repeated)")
    return kernel, before


__all__ = ["resize"]
