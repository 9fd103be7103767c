"""How a function of one number is laid on the accelerator: as a layer of its own kind, or as a table."""

from __future__ import annotations

import numpy as np

from nvdla.builder import NetworkTensor
from nvdla.frontend.graph import Cut, Function, Graph, GraphValue, Node
from nvdla.frontend.operators.functions import total


def derived(value: GraphValue) -> tuple[GraphValue, Function]:
    """The value that this one is a function of, and the function (itself, where it is none)."""
    if value.base is not None and value.function is not None:
        return value.base, value.function
    return value, lambda x: x


def is_table(value: GraphValue) -> bool:
    """Whether a look-up table makes this value: what follows goes into the same table."""
    return value.tensor is not None and value.tensor.producer.kind == "function" and value.base is not None


def keep(node: Node, made: GraphValue, source: GraphValue, function: Function) -> GraphValue:
    """Remember what the result is a function of."""
    base, inner = derived(source)
    made.base = base
    made.function = lambda x: function(inner(x))
    return made


def moved(node: Node, source: GraphValue, tensor: NetworkTensor) -> GraphValue:
    """A result whose elements lie as those of the source: same shape, same index."""
    return GraphValue(node.outputs[0], source.shape, tensor, source.index)


def table(graph: Graph, node: Node, source: GraphValue, function: Function, smooth: bool = True) -> GraphValue:
    """A look-up table, also of everything that leads to ``source`` by a table."""
    start, whole = source, function
    inner = source.function
    if is_table(source) and source.base is not None and inner is not None:
        start, outer = source.base, inner
        whole = lambda x: function(outer(x))  # noqa: E731
    if not smooth and graph.precision != "int8":
        raise Cut("it has jumps, which a table that interpolates between entries cannot hold", "build in int8")
    tensor = graph.network.function(graph.label(node), graph.flat(start), total(whole))
    graph.tensors[tensor.name] = node.outputs[0]
    return keep(node, moved(node, start, tensor), source, function)


def linear(graph: Graph, node: Node, source: GraphValue, factor: float, offset: float) -> GraphValue:
    """factor * x + offset: goes into the table before it, else into the convolution before it or an SDP operation."""

    def function(x: np.ndarray) -> np.ndarray:
        return factor * x + offset

    if is_table(source):
        return table(graph, node, source, function)
    tensor = graph.network.scale(graph.label(node), graph.flat(source), np.array([factor]), np.array([offset]))
    graph.tensors[tensor.name] = node.outputs[0]
    return keep(node, moved(node, source, tensor), source, function)
