"""Activations and other functions of one number, normalization and softmax."""

from __future__ import annotations

import numpy as np

from nvdla.compiler.builder import NetworkTensor
from nvdla.compiler.frontend.graph import Cut, Graph, GraphValue, Node, factor_of
from nvdla.compiler.frontend.operators.functions import (
    JUMPS,
    POLES,
    TABLE,
    is_table,
    keep,
    linear,
    moved,
    table,
)
from nvdla.compiler.frontend.operators.registry import operator
from nvdla.compiler.frontend.tflite.graph import LIMIT_KEY
from nvdla.util.precision import Precision

LARGE = 3.0e38
MAX_ROWS = 16


@operator("Relu", note="ReLU of the SDP")
def relu(graph: Graph, node: Node) -> GraphValue:
    """ReLU, folded into a preceding convolution, scaling or elementwise operation."""
    source = graph.source(node)
    function = lambda x: np.maximum(x, 0.0)  # noqa: E731
    if is_table(source):
        return table(graph, node, source, function)
    limits = [float(entry.value) for entry in node.proto.metadata_props if entry.key == LIMIT_KEY]
    result = graph.network.relu(graph.label(node), graph.flat(source), *limits[:1])
    graph.tensors[result.name] = node.outputs[0]
    return keep(node, moved(node, source, result), source, function)


@operator("LeakyRelu", note="PReLU of the SDP")
def leaky_relu(graph: Graph, node: Node) -> GraphValue:
    """PReLU with one slope for all channels."""
    slope = float(node.get("alpha", 0.01))
    source = graph.source(node)
    result = graph.network.prelu(graph.label(node), graph.flat(source), slope)
    graph.tensors[result.name] = node.outputs[0]
    return keep(node, moved(node, source, result), source, lambda x: np.where(x < 0, slope * x, x))


@operator("PRelu", note="PReLU of the SDP")
def prelu(graph: Graph, node: Node) -> GraphValue:
    """PReLU with a constant slope per channel, or one for all."""
    source, (values,) = graph.with_constants(graph.source(node), node.required(1, "slope"))
    slopes = factor_of(values)
    if slopes is None:
        return _prelu_by_element(graph, node, source, values)
    result = graph.network.prelu(graph.label(node), source.placed, np.asarray(slopes))
    graph.tensors[result.name] = node.outputs[0]
    return moved(node, source, result)


def _prelu_by_element(graph: Graph, node: Node, source: GraphValue, values: np.ndarray) -> GraphValue:
    """Slopes that vary within a channel: max(x, 0) + slope * min(x, 0)."""
    net, tensor = graph.network, source.placed
    slopes = net.constant(graph.label(node, "slopes"), values)
    above = net.relu(graph.label(node, "above"), tensor)
    below = net.clip(graph.label(node, "below"), tensor, -LARGE, 0.0)
    scaled = net.multiply(graph.label(node, "scaled"), below, slopes)
    magnitude = graph.model.magnitudes.get(graph.tensors.get(tensor.name, ""))
    if magnitude is not None:  # a quantized model has no ranges of the parts
        graph.magnitudes |= {below.name: magnitude, scaled.name: magnitude * float(np.abs(values).max(initial=0))}
    result = net.add(graph.label(node), above, scaled)
    graph.tensors[result.name] = node.outputs[0]
    return moved(node, source, result)


@operator("Clip", note="limits of the SDP")
def clip(graph: Graph, node: Node) -> GraphValue:
    """Lower and upper limit in the SDP; both constants. A lower limit of 0 is folded into the preceding convolution."""
    source = graph.source(node)
    low, high = (_limit(node, name, index) for name, index in (("min", 1), ("max", 2)))
    low, high = (-LARGE if low is None else low), (LARGE if high is None else high)
    if low > high:
        low = high
    function = lambda x: np.clip(x, low, high)  # noqa: E731
    if is_table(source):
        return table(graph, node, source, function)
    if (low <= -65504 and high >= 65504) or _holds(graph, node, low, high):
        return graph.alias(node, source, source.index)
    tensor = graph.flat(source)
    if low == 0 and high >= 65504:
        result = graph.network.relu(graph.label(node), tensor)
    elif low == high:
        result = graph.network.scale(graph.label(node), tensor, np.zeros(1), np.array([low]))
    else:
        result = graph.network.clip(graph.label(node), tensor, low, high)
    graph.tensors[result.name] = node.outputs[0]
    return keep(node, moved(node, source, result), source, function)


def _holds(graph: Graph, node: Node, low: float, high: float) -> bool:
    """Return whether a tensor has no other range than that of the quantized copies that are made of it, and it is
    within the limits."""
    name, model = node.inputs[0], graph.model
    if name not in model.assumed or graph.precision == Precision.FP16:
        return False
    magnitude = model.magnitudes[name]
    lowest, highest = model.ranges.get(name, (-magnitude, magnitude))
    return low <= lowest and highest <= high


def _limit(node: Node, name: str, index: int) -> float | None:
    value = node.setting(name, index)
    if isinstance(value, list):
        raise Cut(f"{name} must be one number")
    return None if value is None else float(value)


@operator("Abs", "Neg", note="SDP")
def simple(graph: Graph, node: Node) -> GraphValue:
    """Neg multiplies by -1; Abs is the larger of x and -x (int8: a table)."""
    source = graph.source(node)
    if node.op == "Neg":
        return linear(graph, node, source, -1.0, 0.0)
    if graph.precision == Precision.INT8 or is_table(source):
        return table(graph, node, source, np.abs)
    tensor = graph.flat(source)
    result = graph.network.prelu(graph.label(node), tensor, -1.0)
    graph.tensors[result.name] = node.outputs[0]
    return keep(node, moved(node, source, result), source, np.abs)


@operator(*TABLE, note="lookup table")
def function(graph: Graph, node: Node) -> GraphValue:
    """A lookup table in the SDP (int8: by the operation of the convolution before), or in the CDP if the SDP has none.

    int8 tables have one entry per value and are exact. int16 and fp16 tables interpolate 257 entries. Functions with
    jumps (Sign, Floor, Ceil, Round, ThresholdedRelu, Shrink) and steep functions (Log, Reciprocal, Sqrt, Tan, inverse
    functions) then run on the host. So does a function whose table has an error above 1/64 of its largest value. For
    undefined values (Log of 0) the table contains 0 or its largest finite entry. Consecutive functions share one table,
    as do x * sigmoid(x) and expanded forms of hard-swish.
    """
    form = TABLE[node.op](node)
    if node.op in POLES and graph.precision != Precision.INT8:
        raise Cut("it is too steep for a table that interpolates between entries", "build in int8")
    return table(graph, node, graph.source(node), form, node.op not in JUMPS)


@operator("LRN", note="CDP")
def lrn(graph: Graph, node: Node) -> GraphValue:
    """Across channels in the CDP: size 3, 5, 7 or 9."""
    value = graph.source(node)
    if value.shape[0] != 1:
        return _batches(graph, node, value)
    result = _lrn(graph, node, graph.cube(value), graph.label(node))
    return graph.result(node, result)


def _lrn(graph: Graph, node: Node, cube: NetworkTensor, name: str) -> NetworkTensor:
    return graph.network.lrn(
        name,
        cube,
        int(node.get("size")),
        float(node.get("alpha", 1e-4)),
        float(node.get("beta", 0.75)),
        float(node.get("bias", 1.0)),
    )


def _batches(graph: Graph, node: Node, value: GraphValue) -> GraphValue:
    """Every image of a batch alone."""
    if value.shape[0] > MAX_ROWS:
        raise Cut(f"batch {value.shape[0]} is not supported", "compile for batch 1 (--shape; Python: shapes=)")
    order = np.arange(value.size).reshape(value.shape)
    parts = []
    for image in order:
        shape = (image.shape[0], *(1, *image.shape[1:])[-2:])
        cube = graph.arrange(value, image, shape)
        parts.append(_lrn(graph, node, cube, graph.label(node, "image")))
    return graph.result(node, graph.network.concat(graph.label(node), *parts))


@operator("Softmax", note="CPU task of NVIDIA's runtime")
def softmax(graph: Graph, node: Node) -> GraphValue:
    """The CPU task of NVIDIA's runtime, over the channels of a 1x1 cube: one row (up to 16 rows, one task each), int8
    and fp16."""
    value = graph.source(node)
    rank = len(value.shape)
    old = node.model.opset < 13
    axis = int(node.get("axis", 1 if old else -1)) % rank
    order = np.arange(value.size).reshape(value.shape)
    if old:
        rows = order.reshape(int(np.prod(value.shape[:axis])), -1)
    else:
        rows = np.moveaxis(order, axis, -1).reshape(-1, value.shape[axis])
    if len(rows) > MAX_ROWS:
        raise Cut(f"it has {len(rows)} rows of one CPU operation each; the limit is {MAX_ROWS}")
    if graph.precision == Precision.INT16:
        raise Cut("the CPU operation supports only int8 and fp16")
    parts = []
    for number, row in enumerate(rows):
        cube = graph.arrange(value, row, (len(row), 1, 1))
        name = graph.label(node) if len(rows) == 1 else graph.label(node, f"row{number}")
        parts.append(graph.network.softmax(name, cube))
    result = parts[0] if len(parts) == 1 else graph.network.concat(graph.label(node), *parts)
    index = np.arange(rows.size)
    places = np.empty(rows.size, np.int64)
    places[rows.ravel()] = index
    return graph.result(node, result, None if np.array_equal(places, index) else places.reshape(value.shape))
