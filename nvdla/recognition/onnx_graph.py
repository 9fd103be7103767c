"""The layers of an ONNX model with their shapes and weights; a layer is called after the value that it makes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.frontend.model import Model, read
from nvdla.recognition.model_graph import ModelGraph, ModelLayer, Shape

_KINDS = {
    "Conv": "conv",
    "Gemm": "conv",
    "MatMul": "conv",
    "ConvTranspose": "deconv",
    "MaxPool": "pool",
    "AveragePool": "pool",
    "GlobalAveragePool": "pool",
    "GlobalMaxPool": "pool",
    "ReduceMean": "pool",
    "BatchNormalization": "affine",
    "Relu": "relu",
    "LeakyRelu": "relu",
    "PRelu": "relu",
    "LRN": "norm",
    "Softmax": "softmax",
    "Concat": "concat",
    "Split": "slice",
    "Slice": "slice",
}
#: with one operand that is a constant they are affine
_TWO = ("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min", "Mean")
_TABLES = ("Sigmoid", "Tanh", "Elu", "Selu", "HardSigmoid", "HardSwish", "Softplus", "Exp", "Log", "Abs", "Sqrt", "Erf",
           "Gelu", "Celu", "Softsign", "Mish", "Reciprocal")  # fmt: skip


@by_annotations
def onnx_graph(path: str | os.PathLike[str]) -> ModelGraph:
    """The graph of an ONNX model. Raises FormatError for what cannot be read, and without the package onnx."""
    model = read(path)
    points: dict[str, int] = {}
    shapes: dict[int, Shape | None] = {}

    def point(name: str) -> int:
        if name not in points:
            points[name] = len(points)
            shapes[points[name]] = _cube(model.shapes.get(name))
        return points[name]

    inputs = {name: point(name) for name in model.inputs}
    layers = []
    for node in model.proto.graph.node:
        data = [name for name in node.input if name and name not in model.constants]
        if data:
            given = tuple(point(name) for name in data)
            made = tuple(point(name) for name in node.output if name)
            layers.append(_layer(model, node, given, made, shapes))
    outputs = {name: points[name] for name in model.outputs if name in points}
    return ModelGraph(model.name, layers, inputs, outputs, shapes)


def _cube(shape: tuple[int, ...] | None) -> Shape | None:
    """(C, H, W) behind the batch."""
    if shape is None or not 1 <= len(shape) <= 4:
        return None
    channels, height, width = (*shape[1:], 1, 1, 1)[:3]
    return channels, height, width


def _layer(
    model: Model, node: Any, given: tuple[int, ...], made: tuple[int, ...], shapes: Mapping[int, Shape | None]
) -> ModelLayer:
    kind = _KINDS.get(node.op_type, "pass")
    if node.op_type in _TWO:
        kind = "eltwise" if len(given) > 1 else "affine"
    elif node.op_type in _TABLES:
        kind = "lut"
    whole = node.op_type in ("Gemm", "MatMul")
    if whole and len(given) > 1:
        kind = "pass"  # a product of two results: the accelerator has none
    settings = {each.name: each for each in node.attribute}
    source, shape = shapes[given[0]], shapes[made[0]]
    window, stride = _ints(settings, "kernel_shape", (1, 1)), _ints(settings, "strides", (1, 1))
    if kind == "pool" and "kernel_shape" not in settings and source:
        window = source[1:]
    weights = _weights(model, node, settings) if kind == "conv" else None
    if weights is not None and not whole and "kernel_shape" not in settings:
        window = weights.shape[2], weights.shape[3]
    dilation = _ints(settings, "dilations", (1, 1))
    return ModelLayer(
        node.output[0] or node.name, kind, given, made, shape, window, stride, weights, whole=whole,
        skewed=dilation[0] != dilation[1], cpu=kind == "softmax",
    )  # fmt: skip


def _ints(settings: Mapping[str, Any], name: str, default: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) of an attribute; of one axis alone (1, columns)."""
    values = list(settings[name].ints) if name in settings else list(default)
    return (1, values[0]) if len(values) == 1 else (values[0], values[1]) if values else default


def _weights(model: Model, node: Any, settings: Mapping[str, Any]) -> np.ndarray | None:
    """(K, C, R, S), of a product with a matrix (K, elements, 1, 1)."""
    found = model.constants.get(node.input[1]) if len(node.input) > 1 else None
    if found is None:
        return None
    if node.op_type == "Conv":
        return found if found.ndim == 4 else found[:, :, None, :] if found.ndim == 3 else None
    if found.ndim != 2 or not math.prod(found.shape):
        return None
    turned = node.op_type == "Gemm" and "transB" in settings and settings["transB"].i
    return (found if turned else found.T)[:, :, None, None]
