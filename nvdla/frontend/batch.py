"""Models for a batch of images as models for one image, which the builder makes operations for each image of.

A model is taken so where every node does the same to each image of the batch (the first dimension of all its values),
which is known of the operators listed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from nvdla.errors import FormatError
from nvdla.frontend.model import Model, read

EACH_IMAGE_ALONE = (
    *("Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose", "Div", "Dropout", "Elu"),
    *("Flatten", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "LRN"),
    *(
        "LeakyRelu",
        "MatMul",
        "Max",
        "MaxPool",
        "Min",
        "Mul",
        "PRelu",
        "Pad",
        "Relu",
        "Reshape",
        "Sigmoid",
        "Softmax",
        "Sub",
    ),
    *("Sum", "Tanh"),
)
"""Operators that never look from one image at another, with an axis other than the first."""


def one_image(model: Model) -> tuple[Model, int] | None:
    """The model for one image, and how many images the batch has; None for models without a batch, and where that
    cannot be known to compute the same."""
    shapes = [model.shapes.get(name, ()) for name in model.inputs]
    if not shapes or any(len(shape) < 2 for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
        return None
    images = shapes[0][0]
    if images < 2 or not all(_is_alone(node, model) for node in model.proto.graph.node):
        return None
    try:
        alone = read(_narrowed(model, images))
    except FormatError:
        return None  # its shapes are those of a batch alone
    if not _corresponds(model, alone, images):
        return None
    magnitudes, weights = model.magnitudes, model.weight_scales
    named = replace(alone, name=model.name, sha256=model.sha256, folded=model.folded, notes=model.notes)
    return replace(named, magnitudes=magnitudes, weight_scales=weights), images


def _narrowed(model: Model, images: int) -> Any:
    """A copy whose inputs have a batch of 1, as the shapes that Reshape is told; all others are inferred anew."""
    copy = type(model.proto)()
    copy.CopyFrom(model.proto)
    asked = _asked_shapes(model)
    for each in copy.graph.initializer:
        if each.name in asked and model.constants[each.name].ravel()[:1] == images:
            shape = model.constants[each.name].copy()
            shape[0] = 1
            each.ClearField("int64_data")
            each.raw_data = shape.astype("<i8").tobytes()
    constants = {each.name for each in copy.graph.initializer}
    for each in copy.graph.input:
        if each.name not in constants:
            each.type.tensor_type.shape.dim[0].dim_value = 1
    del copy.graph.value_info[:]
    for each in copy.graph.output:
        each.type.tensor_type.ClearField("shape")
    return copy


def _asked_shapes(model: Model) -> set[str]:
    """Constants that are nothing but what Reshape is told."""
    shapes: set[str] = set()
    others: set[str] = set(model.outputs)
    for node in model.proto.graph.node:
        told = list(node.input[1:2]) if node.op_type == "Reshape" else []
        shapes.update(told)
        others.update(name for name in node.input if name not in told)
    return {name for name in shapes - others if name in model.constants and model.constants[name].dtype == np.int64}


def _is_alone(node: Any, model: Model) -> bool:
    """Whether a node does the same to each image, from what its operator does along which axis."""
    attributes = {each.name: each for each in node.attribute}
    if node.op_type not in EACH_IMAGE_ALONE or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in ("Concat", "Softmax", "Flatten"):
        rank = len(model.shapes.get(node.output[0], (0, 0)))
        axis = attributes["axis"].i if "axis" in attributes else 1 if node.op_type == "Flatten" else -1
        return axis % rank != 0 and (node.op_type != "Flatten" or axis == 1)
    if node.op_type in ("Gemm", "MatMul"):
        matrix = model.shapes.get(node.input[1], ())
        constant = node.input[1] in model.constants and len(matrix) == 2
        turned = "transA" in attributes and attributes["transA"].i
        return constant and not turned and not _differs(node.input[2:], model, 2)
    if node.op_type == "Pad":
        amounts = model.constants.get(node.input[1]) if len(node.input) in (2, 3) else None
        return amounts is not None and amounts[0] == amounts[len(amounts) // 2] == 0
    rank = len(model.shapes.get(node.output[0], ()))
    weights = node.input[1:] if node.op_type in ("Conv", "ConvTranspose", "Reshape") else ()
    return rank >= 2 and not _differs([name for name in node.input if name not in weights], model, rank)


def _differs(names: Iterable[str], model: Model, rank: int) -> bool:
    """Whether one of them is a constant that is not the same for every image of values with ``rank`` dimensions."""
    shapes = [model.constants[name].shape for name in names if name in model.constants]
    return any(len(shape) >= rank and shape[0] != 1 for shape in shapes)


def _corresponds(model: Model, alone: Model, images: int) -> bool:
    """Whether both have the same nodes, and every computed value is as many of the one for a single image."""
    nodes = [(node.op_type, list(node.input), list(node.output)) for node in model.proto.graph.node]
    if nodes != [(node.op_type, list(node.input), list(node.output)) for node in alone.proto.graph.node]:
        return False
    computed = {name for _, _, outputs in nodes for name in outputs} | set(model.inputs)
    shared = (set(model.constants) | set(alone.constants)) & computed
    asked = _asked_shapes(model)
    if shared or not all(_same(model, alone, name) for name in model.constants if name not in asked):
        return False
    for name in computed:
        one, all_of_them = alone.shapes.get(name, ()), model.shapes.get(name, ())
        if not one or one[0] != 1 or all_of_them != (images, *one[1:]):
            return False
    return True


def _same(model: Model, alone: Model, name: str) -> bool:
    """Whether a constant is the same for both."""
    return name in alone.constants and np.array_equal(model.constants[name], alone.constants[name])
