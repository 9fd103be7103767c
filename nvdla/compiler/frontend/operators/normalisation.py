"""Normalization and softmax."""

from __future__ import annotations

import numpy as np

from nvdla.compiler.builder import NetworkTensor
from nvdla.compiler.frontend.graph import Cut, Graph, GraphValue, Node
from nvdla.compiler.frontend.operators.registry import operator
from nvdla.util.precision import Precision

MAX_ROWS = 16


@operator("LRN", note="CDP")
def lrn(graph: Graph, node: Node) -> GraphValue:
    """Across channels in the CDP: size 3, 5, 7 or 9."""
    value = graph.source(node)
    if value.shape[0] != 1:
        return _batches(graph, node, value)
    made = _lrn(graph, node, graph.cube(value), graph.label(node))
    return graph.result(node, made)


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
        raise Cut(f"a batch of {value.shape[0]}", "compile for batch 1 (--shape)")
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
        raise Cut(f"{len(rows)} rows; the CPU task takes one 1x1 cube each, at most {MAX_ROWS} are made")
    if graph.precision == Precision.INT16:
        raise Cut("the CPU task takes int8 and fp16")
    parts = []
    for number, row in enumerate(rows):
        cube = graph.arrange(value, row, (len(row), 1, 1))
        name = graph.label(node) if len(rows) == 1 else graph.label(node, f"row{number}")
        parts.append(graph.network.softmax(name, cube))
    made = parts[0] if len(parts) == 1 else graph.network.concat(graph.label(node), *parts)
    index = np.arange(rows.size)
    places = np.empty(rows.size, np.int64)
    places[rows.ravel()] = index
    return graph.result(node, made, None if np.array_equal(places, index) else places.reshape(value.shape))


@operator("InstanceNormalization", "LayerNormalization", "GroupNormalization", note="host")
def by_data(graph: Graph, node: Node) -> GraphValue:
    """These run on the host: no engine computes the mean and variance of the data."""
    raise Cut(
        "mean and variance are those of the data itself, which no engine computes", "train with BatchNormalization"
    )
