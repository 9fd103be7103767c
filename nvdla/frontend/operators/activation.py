"""Activations and other functions of one number."""

from __future__ import annotations

import numpy as np

from nvdla.frontend.graph import Cut, Graph, GraphValue, Node, factor_of
from nvdla.frontend.operators.functions import JUMPS, POLES, TABLE
from nvdla.frontend.operators.registry import operator
from nvdla.frontend.operators.unary import is_table, keep, linear, moved, table

LARGE = 3.0e38


@operator("Relu", note="ReLU of the SDP")
def relu(graph: Graph, node: Node) -> GraphValue:
    """ReLU, in the operation before it where that is a convolution, scaling or elementwise one."""
    source = graph.source(node)
    function = lambda x: np.maximum(x, 0.0)  # noqa: E731
    if is_table(source):
        return table(graph, node, source, function)
    made = graph.network.relu(graph.label(node), graph.flat(source))
    graph.tensors[made.name] = node.outputs[0]
    return keep(node, moved(node, source, made), source, function)


@operator("LeakyRelu", note="PReLU of the SDP")
def leaky_relu(graph: Graph, node: Node) -> GraphValue:
    """PReLU with one slope for all channels."""
    slope = float(node.get("alpha", 0.01))
    source = graph.source(node)
    made = graph.network.prelu(graph.label(node), graph.flat(source), slope)
    graph.tensors[made.name] = node.outputs[0]
    return keep(node, moved(node, source, made), source, lambda x: np.where(x < 0, slope * x, x))


@operator("PRelu", note="PReLU of the SDP")
def prelu(graph: Graph, node: Node) -> GraphValue:
    """PReLU with a constant slope a channel, or one for all."""
    source = graph.source(node)
    slopes = factor_of(graph.on_cube(source, node.required(1, "slope")))
    if slopes is None:
        return _prelu_by_element(graph, node, source)
    made = graph.network.prelu(graph.label(node), graph.flat(source), np.asarray(slopes))
    graph.tensors[made.name] = node.outputs[0]
    return moved(node, source, made)


def _prelu_by_element(graph: Graph, node: Node, source: GraphValue) -> GraphValue:
    """Slopes that vary within a channel: max(x, 0) + slope * min(x, 0)."""
    net, tensor = graph.network, graph.flat(source)
    slopes = net.constant(graph.label(node, "slopes"), graph.on_cube(source, node.required(1, "slope")))
    above = net.relu(graph.label(node, "above"), tensor)
    below = net.clip(graph.label(node, "below"), tensor, -LARGE, 0.0)
    scaled = net.multiply(graph.label(node, "scaled"), below, slopes)
    made = net.add(graph.label(node), above, scaled)
    graph.tensors[made.name] = node.outputs[0]
    return moved(node, source, made)


@operator("Clip", note="limits of the SDP")
def clip(graph: Graph, node: Node) -> GraphValue:
    """Lower and upper limit in the SDP; both constants. A lower limit of 0 joins the convolution before it."""
    source = graph.source(node)
    low, high = (_limit(node, name, index) for name, index in (("min", 1), ("max", 2)))
    low, high = (-LARGE if low is None else low), (LARGE if high is None else high)
    if low > high:
        low = high
    function = lambda x: np.clip(x, low, high)  # noqa: E731
    if is_table(source):
        return table(graph, node, source, function)
    if low <= -65504 and high >= 65504:
        return graph.alias(node, source, source.index)
    tensor = graph.flat(source)
    if low == 0 and high >= 65504:
        made = graph.network.relu(graph.label(node), tensor)
    elif low == high:
        made = graph.network.scale(graph.label(node), tensor, np.zeros(1), np.array([low]))
    else:
        made = graph.network.clip(graph.label(node), tensor, low, high)
    graph.tensors[made.name] = node.outputs[0]
    return keep(node, moved(node, source, made), source, function)


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
    if graph.precision == "int8" or is_table(source):
        return table(graph, node, source, np.abs)
    tensor = graph.flat(source)
    made = graph.network.prelu(graph.label(node), tensor, -1.0)
    graph.tensors[made.name] = node.outputs[0]
    return keep(node, moved(node, source, made), source, np.abs)


@operator(*TABLE, note="look-up table")
def function(graph: Graph, node: Node) -> GraphValue:
    """A look-up table in the SDP (in the CDP where the SDP has none).

    int8 has one entry for each value: exact, jumps too. int16 and fp16 interpolate 257 entries: functions with jumps
    (Sign, Floor, Ceil, Round, ThresholdedRelu, Shrink) and steep ones (Log, Reciprocal, Sqrt, Tan, inverse functions)
    run on the host, and so does a function whose table would be off by more than 1/64 of its largest value. Where a
    function has no value (Log of 0) the table holds 0 or its largest finite entry. Functions that follow one another
    share one table; so do x * sigmoid(x) and the spelled-out forms of hard-swish.
    """
    form = TABLE[node.op](node)
    if node.op in POLES and graph.precision != "int8":
        raise Cut("it is too steep for a table that interpolates between entries", "build in int8")
    return table(graph, node, graph.source(node), form, node.op not in JUMPS)
