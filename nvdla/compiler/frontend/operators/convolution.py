"""Convolutions and matrix products."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nvdla.compiler.builder import NetworkTensor
from nvdla.compiler.builder.layers import PadSettings
from nvdla.compiler.builder.lower.convolution import MAX_STRIDE
from nvdla.compiler.frontend.graph import Cut, Graph, GraphValue, Node, pixels_of
from nvdla.compiler.frontend.operators.registry import operator
from nvdla.compiler.frontend.operators.shape import order_of
from nvdla.errors import shape_text
from nvdla.util.rounding import ceil_div

__all__ = ["OnnxWindow", "as_columns", "auto_pads", "conv", "conv_transpose", "gemm", "matmul", "product", "unrolled"]


@dataclass(frozen=True)
class OnnxWindow:
    """Pairs (vertical, horizontal); ``padding`` (top, bottom, left, right)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]

    @property
    def is_plain(self) -> bool:
        """Return whether there is neither padding nor dilation."""
        return not any(self.padding) and self.dilation == (1, 1)


LOWEST = float(np.finfo(np.float16).min)
"""Least value of padding in a maximum: no element of the accelerator is smaller."""


def trimmed(value: GraphValue, lowest: bool = False) -> tuple[GraphValue, tuple[int, int, int, int]]:
    """The value without the zeros that a Pad put around it, and their widths (top, bottom, left, right). ``lowest``:
    numbers instead that never win a maximum."""
    layer = None if value.tensor is None else value.tensor.producer
    if layer is None or layer.kind != "pad":
        return value, (0, 0, 0, 0)
    settings, inner, (channels, height, width) = PadSettings.of(layer), layer.inputs[0], layer.output.shape
    neutral = settings.value < LOWEST if lowest else settings.value == 0
    in_order = value.index is None or np.array_equal(value.index.ravel(), np.arange(channels * height * width))
    outer, sizes = value.shape[:2], value.shape[2:]
    if not (neutral and in_order and math.prod(outer) == channels and sizes in ((height, width), (width,))):
        return value, (0, 0, 0, 0)
    return GraphValue(value.name, (*outer, *inner.shape[3 - len(sizes) :]), inner), settings.padding


def window_of(
    node: Node, kernel: Sequence[int], sizes: Sequence[int], outer: tuple[int, int, int, int] = (0, 0, 0, 0)
) -> OnnxWindow:
    """The window of a Conv or pool over ``sizes``, padded by ``outer`` before."""
    count = len(kernel)
    if count not in (1, 2):
        raise Cut(f"its window has {count} dimensions; the engines support two")
    strides = list(node.get("strides", [1] * count))
    dilations = list(node.get("dilations", [1] * count))
    padded = [size + o for size, o in zip(sizes, _sums(outer, count), strict=True)]
    pads = auto_pads(node, kernel, padded, strides, dilations)
    before, after = pads[:count], pads[count:]
    pairs = [(0, 0)] * (2 - count) + list(zip(before, after, strict=True))
    (top, bottom), (left, right) = pairs
    whole = (top + outer[0], bottom + outer[1], left + outer[2], right + outer[3])
    if min(whole) < 0:
        raise Cut(f"negative padding {list(pads)} is not supported")
    return OnnxWindow(_pair(kernel), _pair(strides), _pair(dilations), whole)


def auto_pads(
    node: Node, kernel: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Pads (begins, then ends) from ``pads`` or ``auto_pad``."""
    mode = node.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return list(node.get("pads", [0] * 2 * len(kernel)))
    if mode == "VALID":
        return [0] * 2 * len(kernel)
    begins, ends = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (ceil_div(size, stride) - 1) * stride + (k - 1) * dilation + 1 - size)
        small = total // 2
        begins.append(small if mode == "SAME_UPPER" else total - small)
        ends.append(total - begins[-1])
    return begins + ends


def _pair(values: Sequence[int]) -> tuple[int, int]:
    sizes = [int(size) for size in values]
    return (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])


def _sums(outer: tuple[int, int, int, int], count: int) -> list[int]:
    return [outer[0] + outer[1], outer[2] + outer[3]][2 - count :]


#: weights of a matrix product or a batch that is unrolled
MAX_UNROLLED = 1 << 26


def unrolled(weights: np.ndarray, bias: np.ndarray | None, batch: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Weights for a batch whose images are consecutive channels: one group per image."""
    if batch == 1:
        return weights, bias
    if weights.size * batch > MAX_UNROLLED:
        raise Cut(
            f"a batch of {batch} would need {weights.size * batch} weights",
            "compile for batch 1 (--shape; Python: shapes=)",
        )
    return np.tile(weights, (batch, 1, 1, 1)), None if bias is None else np.tile(bias, batch)


def _patches(graph: Graph, node: Node, value: GraphValue, weights: np.ndarray) -> tuple[GraphValue, np.ndarray]:
    """The value with the elements of each window as channels, and the weights as 1x1 kernels."""
    batch, channels, height, width = value.shape
    y, x = weights.shape[2:]
    rows, columns = height // y, width // x
    order = order_of(value).reshape(value.shape)[:, :, : rows * y, : columns * x]
    order = order.reshape(batch, channels, rows, y, columns, x).transpose(0, 1, 3, 5, 2, 4)
    patches = graph.alias(node, value, order, shape=(batch, channels * y * x, rows, columns))
    return patches, weights.reshape(len(weights), -1, 1, 1)


@operator("Conv", note="convolution")
def conv(graph: Graph, node: Node) -> GraphValue:
    """A convolution in CONV and SDP.

    Weights and bias are constants. 1-D is 2-D with one row. Kernel and dilation up to 32, stride up to 8, padding up to
    31 and less than the dilated kernel. Larger strides that equal the kernel (patch embedding) are a 1x1 convolution of
    the input in another order. Groups and depthwise become dense convolutions on aligned channels. A batch
    becomes groups with the same weights. A preceding Pad with zeros is folded in.
    """
    value = graph.source(node)
    weights = node.weights(1, "weights")
    bias = node.required(2, "bias").ravel() if node.has(2) else None
    spatial = weights.ndim - 2
    if spatial not in (1, 2) or len(value.shape) != spatial + 2:
        raise Cut(f"its convolution has {spatial} dimensions; CONV supports two")
    value, outer = trimmed(value)
    window = window_of(node, weights.shape[2:], value.shape[2:], outer)
    weights = weights.reshape(*weights.shape[:2], *window.kernel)
    batch, channels = value.shape[0], value.shape[1]
    groups = int(node.get("group", 1))
    if channels != weights.shape[1] * groups:
        raise Cut(f"weights {shape_text(weights.shape)} in {groups} groups do not fit {channels} channels")
    if window.stride == window.kernel and max(window.stride) > MAX_STRIDE and window.is_plain:
        value, weights = _patches(graph, node, value, weights)
        window = OnnxWindow((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    weights, bias = unrolled(weights, bias, batch)
    result = graph.network.convolution(
        graph.label(node),
        graph.cube(value),
        weights,
        bias,
        window.stride,
        window.padding,
        window.dilation,
        groups * batch,
    )
    return graph.result(node, result)


@operator("ConvTranspose", note="deconvolution")
def conv_transpose(graph: Graph, node: Node) -> GraphValue:
    """One convolution for each position within the stride, results interleaved by strides.

    Weights and bias are constants. 1-D is 2-D with one row. Groups become dense weights. pads, output_padding and
    output_shape are supported. Dilated kernels are expanded with zeros, up to a size of 32.
    """
    value = graph.source(node)
    weights = node.weights(1, "weights")
    bias = node.required(2, "bias").ravel() if node.has(2) else None
    spatial = weights.ndim - 2
    if spatial not in (1, 2):
        raise Cut(f"its deconvolution has {spatial} dimensions; CONV supports two")
    groups, batch = int(node.get("group", 1)), value.shape[0]
    strides = _two(node.get("strides", [1] * spatial), 1)
    weights = _dilated(
        weights.reshape(*weights.shape[:2], *_two(weights.shape[2:], 1)), _two(node.get("dilations", [1] * spatial), 1)
    )
    dense, bias = _dense_groups(weights, groups * batch if groups > 1 else batch, groups, batch, bias)
    wanted = _two(node.out_shape[2:], 1)
    sizes = _two(value.shape[2:], 1)
    full = [(size - 1) * stride + kernel for size, stride, kernel in zip(sizes, strides, dense.shape[2:], strict=True)]
    begins = _two(_deconvolution_begins(node, full[-spatial:], wanted[-spatial:], spatial), 0)
    ends = [f - b - w for f, b, w in zip(full, begins, wanted, strict=True)]
    grow = [max(0, -end) for end in ends]
    dense = np.pad(dense, ((0, 0), (0, 0), (0, grow[0]), (0, grow[1])))
    padding = (begins[0], max(ends[0], 0), begins[1], max(ends[1], 0))
    result = graph.network.deconvolution(
        graph.label(node), graph.cube(value), dense, bias, (strides[0], strides[1]), padding
    )
    return graph.result(node, result)


def _two(values: Iterable[int], fill: int) -> list[int]:
    """LayerSettings of one dimension as those of two: one row."""
    settings = [int(setting) for setting in values]
    return [fill, *settings] if len(settings) == 1 else settings


def _dilated(weights: np.ndarray, dilation: list[int]) -> np.ndarray:
    if dilation == [1, 1]:
        return weights
    rows, columns = ((size - 1) * distance + 1 for size, distance in zip(weights.shape[2:], dilation, strict=True))
    spread = np.zeros((*weights.shape[:2], rows, columns))
    spread[:, :, :: dilation[0], :: dilation[1]] = weights
    return spread


def _dense_groups(
    weights: np.ndarray, blocks: int, groups: int, batch: int, bias: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Weights (C, K / groups, R, S) of groups and a batch as one block-diagonal deconvolution."""
    if groups * batch == 1:
        return weights, bias
    channels, per_group = weights.shape[:2]
    size = channels // groups
    if weights.size * groups * batch * batch > MAX_UNROLLED:
        raise Cut(
            f"{groups} groups with batch {batch} need too many dense weights",
            "compile for batch 1 (--shape; Python: shapes=)",
        )
    dense = np.zeros((batch * channels, batch * groups * per_group, *weights.shape[2:]))
    for block in range(groups * batch):
        group = block % groups
        rows = slice(block * size, (block + 1) * size)
        dense[rows, block * per_group : (block + 1) * per_group] = weights[group * size : (group + 1) * size]
    return dense, None if bias is None else np.tile(bias, batch)


def _deconvolution_begins(node: Node, full: list[int], wanted: list[int], spatial: int) -> list[int]:
    """Rows and columns cut off before the result."""
    mode = node.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID") and not node.get("output_shape"):
        return list(node.get("pads", [0] * 2 * spatial))[:spatial] if mode == "NOTSET" else [0] * spatial
    extra = node.get("output_padding", [0] * spatial)
    total = [max(0, f + e - w) for f, e, w in zip(full, extra, wanted, strict=True)]
    # With output_shape, ONNX ignores pads, and an odd row or column is cut off at the end for SAME_UPPER alone.
    return [amount // 2 if mode == "SAME_UPPER" else amount - amount // 2 for amount in total]


@operator("Gemm", note="fully connected")
def gemm(graph: Graph, node: Node) -> GraphValue:
    """An inner product in CONV and SDP: alpha * A * B + beta * C with constant B and C.

    A may be transposed. Rows of A become columns of a 1x1 convolution; one row becomes a kernel as large as the cube
    before Flatten, up to 32x32. C is a row, a column or a number; any other C is added as a constant.
    """
    value = graph.source(node)
    matrix, alpha = node.weights(1, "B"), float(node.get("alpha", 1.0))
    if alpha != 1:
        matrix = matrix.astype(np.float64) * alpha
    matrix = matrix.T if node.get("transB") else matrix
    order = np.arange(value.size).reshape(value.shape)
    order = order.T if node.get("transA") else order
    offset = None
    if node.has(2):
        offset = node.required(2, "C") * float(node.get("beta", 1.0))
    return product(graph, node, value, order[None], matrix[None], offset)


@operator("MatMul", note="fully connected")
def matmul(graph: Graph, node: Node) -> GraphValue:
    """A product with a constant matrix, in CONV and SDP. One side is a constant; batches of the constant side become
    groups. Two computed sides run on the host."""
    computed = node.computed()
    if len(computed) != 1:
        raise Cut("both matrices are computed; CONV multiplies with constant weights")
    value = graph.source(node, computed[0])
    constant = node.weights(1 - computed[0], "matrix")
    order = np.arange(value.size).reshape(value.shape)
    if computed[0] == 0:
        order, constant = _wide(order, 1), _wide(constant, 0)
        return product(graph, node, value, *_stacks(order, constant, together=True), None)
    # (A x)^T = x^T A^T
    order, constant = np.swapaxes(_wide(order, 0), -1, -2), np.swapaxes(_wide(constant, 1), -1, -2)
    return product(graph, node, value, *_stacks(order, constant, together=False), None, transposed=True)


def _wide(array: np.ndarray, position: int) -> np.ndarray:
    """Vectors as matrices: a row on the left side (1), a column on the right one (0)."""
    if array.ndim > 1:
        return array
    return array[None, :] if position == 1 else array[:, None]


def _stacks(order: np.ndarray, matrix: np.ndarray, together: bool) -> tuple[np.ndarray, np.ndarray]:
    """Both sides with one batch dimension. ``together``: a constant without batches serves the rows of all."""
    if together and math.prod(matrix.shape[:-2]) == 1:
        return order.reshape(1, -1, order.shape[-1]), matrix.reshape(1, *matrix.shape[-2:])
    batch = np.broadcast_shapes(order.shape[:-2], matrix.shape[:-2])
    order = np.broadcast_to(order, (*batch, *order.shape[-2:])).reshape(-1, *order.shape[-2:])
    return order, np.broadcast_to(matrix, (*batch, *matrix.shape[-2:])).reshape(-1, *matrix.shape[-2:])


def product(
    graph: Graph,
    node: Node,
    value: GraphValue,
    order: np.ndarray,
    matrix: np.ndarray,
    offset: np.ndarray | None,
    transposed: bool = False,
) -> GraphValue:
    """Rows ``order`` (B, M, K) of flat positions in the value times ``matrix`` (B, K, N), plus ``offset``."""
    batch, rows, inner = order.shape
    columns = matrix.shape[2]
    bias, late = _bias(offset, batch, rows, columns)
    if late is None:
        name = graph.label(node)
    else:
        name = graph.label(node, "product")
    kernels = _whole(value, order[0], matrix[0]) if batch == 1 and value.tensor is not None else None
    # the cube (B * N, M, 1) holds element (b, m, n) at (b * N + n) * M + m; (M * N, 1, 1) holds (m, n) at m * N + n
    places = np.arange(batch * columns * rows).reshape(batch, columns, rows).transpose(0, 2, 1)
    if kernels is not None:
        repeated = None if bias is None else np.tile(bias, rows)
        result = graph.network.convolution(name, value.placed, kernels, repeated, groups=rows)
        places = np.arange(rows * columns).reshape(1, rows, columns)
    else:
        if batch * inner * columns > MAX_UNROLLED:
            raise Cut(f"{batch} products of {inner}x{columns} need too many weights")
        cube, pixels = as_columns(graph, value, order.transpose(0, 2, 1))
        weights = matrix.transpose(0, 2, 1).reshape(batch * columns, inner, 1, 1)
        result = graph.network.convolution(
            name, cube, weights, None if bias is None else np.tile(bias, batch), groups=batch
        )
        places = np.take_along_axis(places, pixels[:, :, None], axis=1)
        late = None if late is None else late[np.argsort(pixels[0])]
    if late is not None:
        offsets = late if kernels is not None else late.T
        constant = graph.network.constant(graph.label(node, "C"), offsets.reshape(result.shape))
        result = graph.network.add(graph.label(node), result, constant)
    index = places.transpose(0, 2, 1) if transposed else places
    return graph.result(node, result, np.ascontiguousarray(index).reshape(node.out_shape))


def as_columns(graph: Graph, value: GraphValue, wanted: np.ndarray) -> tuple[NetworkTensor, np.ndarray]:
    """Flat positions (B, K, M) in the value as a cube with B * K channels of M pixels, and the pixel (B, M) of each m.

    If each row of K elements fills the channels of a pixel already, in any order of rows, nothing moves. Otherwise the
    cube has one column, or the columns of a value with four dimensions (channels last).
    """
    batch, inner, rows = wanted.shape
    if value.tensor is not None:
        pixels = pixels_of(value.order().ravel()[wanted], value.placed.shape)
        if pixels is not None:
            return value.placed, pixels
    in_order = np.broadcast_to(np.arange(rows), (batch, rows))
    width = value.shape[-2] if len(value.shape) == 4 and rows % value.shape[-2] == 0 else 1
    if width > 1:
        with contextlib.suppress(Cut):
            return graph.arrange(value, wanted, (batch * inner, rows // width, width)), in_order
    return graph.arrange(value, wanted, (batch * inner, rows, 1)), in_order


def _whole(value: GraphValue, order: np.ndarray, matrix: np.ndarray) -> np.ndarray | None:
    """Kernels as large as the cube, weights in the order of its elements: (M * N, channels of a row, height, width) for
    rows ``order`` (M, K) times ``matrix`` (K, N), each row a group; None where rows share channels or are too large."""
    channels, height, width = value.placed.shape
    rows, columns = len(order), matrix.shape[1]
    size = channels // rows * height * width
    places: np.ndarray = order if value.index is None else np.asarray(value.index.ravel()[order])
    places = places - np.arange(rows)[:, None] * size
    if channels % rows or max(height, width) > 32 or places.min() < 0 or places.max() >= size:
        return None
    if rows > 1 and rows * columns * size > MAX_UNROLLED:
        return None
    once = all(len(np.unique(row)) == len(row) for row in places)
    weights = np.zeros((rows, columns, size), matrix.dtype if once else np.float64)
    for own, row in zip(weights, places, strict=True):
        if once:
            own[:, row] = matrix.T
        else:
            np.add.at(own, (np.arange(columns)[:, None], row), matrix.T)
    return weights.reshape(rows * columns, channels // rows, height, width)


def _bias(
    offset: np.ndarray | None, batch: int, rows: int, columns: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(a number a column, None), or (None, (M, N)) where C differs from row to row."""
    if offset is None:
        return None, None
    spread = np.broadcast_to(offset, (rows, columns))
    if np.all(spread == spread[:1]):
        return np.ascontiguousarray(spread[0]), None
    return None, np.ascontiguousarray(spread)
