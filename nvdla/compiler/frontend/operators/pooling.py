"""Pooling."""

from __future__ import annotations

import numpy as np

from nvdla.compiler.builder import NetworkTensor
from nvdla.compiler.frontend.graph import Cut, Graph, GraphValue, Node
from nvdla.compiler.frontend.operators.convolution import OnnxWindow, trimmed, window_of
from nvdla.compiler.frontend.operators.registry import operator
from nvdla.util.precision import Precision


@operator("MaxPool", note="PDP")
def max_pool(graph: Graph, node: Node) -> GraphValue:
    """Largest value of each window in the PDP, also with ceil_mode; windows above 8 become cascades.

    No dilation; Indices are not computed. A preceding Pad with the lowest number is folded in.
    """
    value, outer = trimmed(graph.source(node), lowest=True)
    window = _window(node, value, outer)
    if _is_too_wide(window):
        value = graph.source(node)
        window = _window(node, value)
    if window.dilation != (1, 1):
        return _dilated(graph, node, value, window)
    result = graph.network.max_pool(graph.label(node), graph.cube(value), window.kernel, window.stride, window.padding)
    graph.tie(result, graph.cube(value))
    return graph.result(node, result)


def _is_too_wide(window: OnnxWindow) -> bool:
    """Return whether a window would hold padding alone."""
    return max(window.padding[:2]) >= window.kernel[0] or max(window.padding[2:]) >= window.kernel[1]


def _dilated(graph: Graph, node: Node, value: GraphValue, window: OnnxWindow) -> GraphValue:
    """A dilated window as the largest of slices, where few and without padding."""
    if window.kernel[0] * window.kernel[1] > 16 or any(window.padding):
        raise Cut(f"dilation {window.dilation} of a padded or large window is not supported by PDP")
    cube = graph.cube(value)
    rows, columns = (1, *node.out_shape[2:])[-2:]
    result: NetworkTensor | None = None
    for y in range(window.kernel[0]):
        for x in range(window.kernel[1]):
            part = graph.network.slice(
                graph.label(node, "part"),
                cube,
                rows=(y * window.dilation[0], window.stride[0], rows),
                columns=(x * window.dilation[1], window.stride[1], columns),
            )
            graph.tie(part, cube)
            last = (y, x) == (window.kernel[0] - 1, window.kernel[1] - 1)
            name = graph.label(node) if last else graph.label(node, "largest")
            result = part if result is None else graph.network.maximum(name, result, part)
    assert result is not None, "a window has at least one place"
    return graph.result(node, result)


def _window(node: Node, value: GraphValue, outer: tuple[int, int, int, int] = (0, 0, 0, 0)) -> OnnxWindow:
    """The window with as much padding at the end as the result needs (ceil_mode)."""
    if len(value.shape) not in (3, 4):
        raise Cut(f"its window has {len(value.shape) - 2} dimensions; PDP supports two")
    kernel = node.get("kernel_shape")
    window = window_of(node, kernel, value.shape[2:], outer)
    if not node.get("ceil_mode", 0):
        return window
    sizes = (1, *value.shape[2:])[-2:]
    wanted = (1, *node.out_shape[2:])[-2:]
    pads = list(window.padding)
    for axis in (0, 1):
        span = (wanted[axis] - 1) * window.stride[axis] + (window.kernel[axis] - 1) * window.dilation[axis] + 1
        pads[2 * axis + 1] = max(pads[2 * axis + 1], span - sizes[axis] - pads[2 * axis])
    return OnnxWindow(window.kernel, window.stride, window.dilation, (pads[0], pads[1], pads[2], pads[3]))


@operator("AveragePool", note="PDP")
def average_pool(graph: Graph, node: Node) -> GraphValue:
    """Mean of each window in the PDP, padding counted or not (windows at the border then have another divisor),
    also with ceil_mode. No dilation. A preceding Pad with zeros is folded in if padding counts. If a quantized model
    gives the result another range, the mean is a convolution with equal weights, because the PDP keeps the scale.
    """
    value = graph.source(node)
    counts = bool(node.get("count_include_pad", 0))
    outer = (0, 0, 0, 0)
    if counts or not _pads(node):
        value, outer = trimmed(value)
        counts = True
    plain = window_of(node, node.get("kernel_shape"), value.shape[2:], outer)
    window = _window(node, value, outer)
    if window.dilation != (1, 1):
        raise Cut(f"dilation {window.dilation} is not supported by PDP")
    # the part of the padding that counts: what ceil_mode adds at the end never does
    counted = plain.padding if counts else (0, 0, 0, 0)
    cube = graph.cube(value)
    name = graph.label(node)
    if window.kernel == cube.shape[1:] and not any(window.padding):
        result = mean(graph, name, cube)
    elif counted == window.padding and _has_own_range(graph, node):
        taps = np.full((cube.shape[0], 1, *window.kernel), 1.0 / (window.kernel[0] * window.kernel[1]))
        result = graph.network.depthwise(name, cube, taps, stride=window.stride, padding=window.padding)
    elif counted == window.padding:
        result = graph.network.average_pool(name, cube, window.kernel, window.stride, window.padding)
    else:
        result = graph.network.average_pool(name, cube, window.kernel, window.stride, window.padding, counted)
    return graph.result(node, result)


def _has_own_range(graph: Graph, node: Node) -> bool:
    """Return whether a quantized model states another range for the result than for the input."""
    model, names = graph.model, (node.inputs[0], node.outputs[0])
    if graph.precision == Precision.FP16 or not all(name in model.magnitudes for name in names):
        return False
    input_ends, other = (model.ranges.get(name, (-model.magnitudes[name], model.magnitudes[name])) for name in names)
    return not np.allclose(input_ends, other, rtol=1e-3)


def _pads(node: Node) -> bool:
    """Return whether the pool itself pads, or rounds sizes up."""
    return bool(any(node.get("pads", ())) or node.get("ceil_mode", 0) or node.get("auto_pad", "NOTSET") != "NOTSET")


@operator("GlobalAveragePool", "GlobalMaxPool", note="PDP, means in integers as convolutions")
def global_pool(graph: Graph, node: Node) -> GraphValue:
    """One window over the whole map. Means in integers are convolutions with ones and have a separate scale."""
    value = graph.source(node)
    cube = graph.cube(value)
    if node.op == "GlobalMaxPool":
        result = graph.tie(graph.network.global_max_pool(graph.label(node), cube), cube)
    else:
        result = mean(graph, graph.label(node), cube)
    return graph.result(node, result)


def mean(graph: Graph, name: str, cube: NetworkTensor) -> NetworkTensor:
    """The mean of each channel: in integers with a separate scale, in halves by the PDP."""
    return (
        graph.network.global_average_pool(name, cube)
        if graph.precision == Precision.FP16
        else graph.network.mean(name, cube)
    )


@operator("LpPool", "GlobalLpPool", note="table and convolution")
def lp_pool(graph: Graph, node: Node) -> GraphValue:
    """For p 1: magnitudes by table, their sum by a convolution with ones.

    Any other p runs on the host, because the root of a sum of powers in 8 bits has large errors near zero.
    """
    value = graph.source(node)
    power = int(node.get("p", 2))
    if power != 1:
        raise Cut(f"p={power} is not supported: the root of a sum of powers is not exact enough")
    if node.op == "GlobalLpPool":
        window = OnnxWindow(graph.cube(value).shape[1:], (1, 1), (1, 1), (0, 0, 0, 0))
    else:
        window = _window(node, value)
    cube, net = graph.cube(value), graph.network
    powers = net.function(graph.label(node, "magnitude"), cube, np.abs)
    sums = net.depthwise(
        graph.label(node),
        powers,
        np.ones((cube.shape[0], 1, *window.kernel)),
        stride=window.stride,
        padding=window.padding,
        dilation=window.dilation,
    )
    return graph.result(node, sums)
