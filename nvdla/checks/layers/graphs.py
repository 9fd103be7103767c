"""Graphs of ONNX and Caffe models, in one form, with which a loadable is matched."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from nvdla.compiler.caffe.layers import pooled_size
from nvdla.compiler.caffe.network import CaffeLayer, read_network, read_weights
from nvdla.compiler.caffe.text import TextMessage
from nvdla.compiler.frontend.loading import require_model
from nvdla.compiler.frontend.model import Model, read
from nvdla.errors import FormatError
from nvdla.util.arguments import by_annotations

Shape = tuple[int, int, int]

#: what a layer does, as far as it decides which engine does it
KINDS = ("conv", "deconv", "pool", "affine", "relu", "lut", "eltwise", "norm", "softmax", "concat", "slice", "pass")
#: kinds that the SDP does element by element
ELEMENTWISE = ("affine", "relu", "lut", "eltwise")
#: kinds that move no data where the compiler is good
SILENT = ("pass", "slice", "concat")


@dataclass(frozen=True)
class ModelLayer:
    """One layer of a model.

    Attributes:
        name: Name of the layer.
        kind: One of :data:`KINDS`.
        inputs: Points that the layer reads.
        outputs: Points that the layer writes.
        shape: Shape (C, H, W) of the first output; None if unknown.
        window: Rows and columns of the window.
        stride: Rows and columns between two windows.
        weights: Weights (K, C, R, S) of a convolution.
        whole: True for an inner product.
        skewed: Whether vertical and horizontal dilation differ; NVIDIA's compiler swaps the two.
        groups: Number of groups of a convolution.
        adds: Whether an affine layer has an addend.
        cpu: Whether the layer can run on the CPU.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    shape: Shape | None
    window: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    weights: np.ndarray | None = field(default=None, repr=False, compare=False)
    whole: bool = False
    skewed: bool = False
    groups: int = 1
    adds: bool = True
    cpu: bool = False

    @property
    def output(self) -> int:
        """Its first output."""
        return self.outputs[0]


@dataclass(frozen=True)
class ModelGraph:
    """``layers`` in order; ``inputs`` and ``outputs``: points by name; ``shapes`` of points (C, H, W)."""

    name: str
    layers: Sequence[ModelLayer]
    inputs: dict[str, int]
    outputs: dict[str, int]
    shapes: dict[int, Shape | None] = field(repr=False)

    @cached_property
    def consumers(self) -> dict[int, list[ModelLayer]]:
        """Layers that take a point."""
        consumers: dict[int, list[ModelLayer]] = {}
        for layer in self.layers:
            for point in dict.fromkeys(layer.inputs):
                consumers.setdefault(point, []).append(layer)
        return consumers

    @cached_property
    def producer(self) -> dict[int, ModelLayer]:
        """The layer that makes a point."""
        return {point: layer for layer in self.layers for point in layer.outputs}

    def same(self, point: int) -> list[int]:
        """Find the points that contain bytes of a point and nothing else.

        Args:
            point: Number of the point.

        Returns:
            The point, and the points that layers make of it by renaming or slicing only.
        """
        return self._following(point, ("pass", "slice"))

    def further(self, point: int) -> list[int]:
        """Find the points that contain bytes of a point.

        Args:
            point: Number of the point.

        Returns:
            The point, and the points that layers make of it by renaming, slicing or concatenation only.
        """
        return self._following(point, SILENT)

    def _following(self, point: int, kinds: tuple[str, ...]) -> list[int]:
        reached = [point]
        for passed in reached:
            for layer in self.consumers.get(passed, ()):
                if layer.kind in kinds:
                    reached += [output for output in layer.outputs if output not in reached]
        return reached

    def takers(self, point: int, kinds: Sequence[str]) -> Iterator[ModelLayer]:
        """Find the layers that consume a point, or a point with the same bytes (:meth:`same`).

        Args:
            point: Number of the point.
            kinds: Kinds of the layers to find.

        Returns:
            The layers of these kinds.
        """
        for alias in self.same(point):
            for layer in self.consumers.get(alias, ()):
                if layer.kind in kinds:
                    yield layer

    def kinds_after(self, point: int) -> set[str]:
        """Find the kinds of the layers that consume a point, or a point that contains it (:meth:`further`).

        Args:
            point: Number of the point.

        Returns:
            The kinds of the layers; also "cpu" if one of them can run on the CPU, and "output" for an output of the
            model.
        """
        points = self.further(point)
        kinds = {layer.kind for next_point in points for layer in self.consumers.get(next_point, ())}
        kinds |= {"cpu" for next_point in points for layer in self.consumers.get(next_point, ()) if layer.cpu}
        return kinds | ({"output"} if set(points) & set(self.outputs.values()) else set())

    def joined(self, parts: Sequence[int]) -> list[int]:
        """Find the concatenations of some points.

        Args:
            parts: Numbers of the points, in their order in the concatenation.

        Returns:
            The points that consist of exactly these parts.
        """
        return [
            layer.output
            for layer in self.layers
            if layer.kind == "concat" and self._taken(layer.output, parts, 0) == len(parts)
        ]

    def _taken(self, point: int, parts: Sequence[int], place: int) -> int:
        """Count how many of the parts are used up when the point has been made of them from ``place`` on; -1: it
        cannot."""
        if place < len(parts) and point in self.same(parts[place]):
            return place + 1
        layer = self.producer.get(point)
        if layer is None or layer.kind not in ("concat", "pass"):
            return -1
        for input_point in layer.inputs:
            place = self._taken(input_point, parts, place)
            if place < 0:
                return -1
        return place


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
    """Read the graph of an ONNX model.

    Args:
        path: File of the model.

    Returns:
        The graph.

    Raises:
        FormatError: The file cannot be read, or the package onnx is missing.
    """
    require_model(path, runs=True)
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
            results = tuple(point(name) for name in node.output if name)
            layers.append(_layer(model, node, given, results, shapes))
    outputs = {name: points[name] for name in model.outputs if name in points}
    return ModelGraph(model.name, layers, inputs, outputs, shapes)


def _cube(shape: tuple[int, ...] | None) -> Shape | None:
    """(C, H, W) after the batch."""
    if shape is None or not 1 <= len(shape) <= 4:
        return None
    channels, height, width = (*shape[1:], 1, 1, 1)[:3]
    return channels, height, width


def _layer(
    model: Model, node: Any, given: tuple[int, ...], outputs: tuple[int, ...], shapes: Mapping[int, Shape | None]
) -> ModelLayer:
    kind = _KINDS.get(node.op_type, "pass")
    if node.op_type in _TWO:
        kind = "eltwise" if len(given) > 1 else "affine"
    elif node.op_type in _TABLES:
        kind = "lut"
    whole = node.op_type in ("Gemm", "MatMul")
    if whole and len(given) > 1:
        kind = "pass"  # a product of two results: the accelerator has none
    settings = {attribute.name: attribute for attribute in node.attribute}
    source, shape = shapes[given[0]], shapes[outputs[0]]
    window, stride = _ints(settings, "kernel_shape", (1, 1)), _ints(settings, "strides", (1, 1))
    if kind == "pool" and "kernel_shape" not in settings and source:
        window = source[1:]
    weights = _weights(model, node, settings) if kind == "conv" else None
    if weights is not None and not whole and "kernel_shape" not in settings:
        window = weights.shape[2], weights.shape[3]
    dilation = _ints(settings, "dilations", (1, 1))
    return ModelLayer(
        node.output[0] or node.name, kind, given, outputs, shape, window, stride, weights, whole=whole,
        skewed=dilation[0] != dilation[1], groups=max(settings["group"].i, 1) if "group" in settings else 1,
        cpu=kind == "softmax",
    )  # fmt: skip


def _ints(settings: Mapping[str, Any], name: str, default: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) of an attribute; of one axis alone (1, columns)."""
    values = list(settings[name].ints) if name in settings else list(default)
    return (1, values[0]) if len(values) == 1 else (values[0], values[1]) if values else default


def _weights(model: Model, node: Any, settings: Mapping[str, Any]) -> np.ndarray | None:
    """(K, C, R, S), of a product with a matrix (K, elements, 1, 1)."""
    weights = model.constants.get(node.input[1]) if len(node.input) > 1 else None
    if weights is None:
        return None
    if node.op_type == "Conv":
        return weights if weights.ndim == 4 else weights[:, :, None, :] if weights.ndim == 3 else None
    if weights.ndim != 2 or not math.prod(weights.shape):
        return None
    turned = node.op_type == "Gemm" and "transB" in settings and settings["transB"].i
    return (weights if turned else weights.T)[:, :, None, None]


_CAFFE_KINDS = {
    "Convolution": "conv",
    "InnerProduct": "conv",
    "Deconvolution": "deconv",
    "Pooling": "pool",
    "BatchNorm": "affine",
    "Scale": "affine",
    "Bias": "affine",
    "Power": "affine",
    "ReLU": "relu",
    "PReLU": "relu",
    "Sigmoid": "lut",
    "TanH": "lut",
    "ELU": "lut",
    "BNLL": "lut",
    "Exp": "lut",
    "Log": "lut",
    "AbsVal": "lut",
    "Eltwise": "eltwise",
    "LRN": "norm",
    "Softmax": "softmax",
    "Concat": "concat",
    "Slice": "slice",
}


@by_annotations
def caffe_graph(prototxt: str | os.PathLike[str], caffemodel: str | os.PathLike[str] | None = None) -> ModelGraph:
    """Read the graph of a Caffe model in phase TEST.

    Args:
        prototxt: File of the network.
        caffemodel: File of the weights (default: none; the graph then has no weights).

    Returns:
        The graph.

    Raises:
        FormatError: A file cannot be read; the message contains the file, the line and the layer.
    """
    network = read_network(prototxt, None if caffemodel is None else read_weights(caffemodel))
    shapes: dict[int, Shape | None] = {}
    latest: dict[str, int] = {}
    for name, shape in network.inputs.items():
        latest[name] = len(shapes)
        shapes[latest[name]] = None if shape is None else _caffe_cube(shape[1:])
    inputs, layers = dict(latest), []
    for layer in network.layers:
        given = tuple(latest[blob] for blob in layer.bottoms)
        converted = _caffe_layer(layer, given, [shapes[point] for point in given], len(shapes))
        for top, point, shape in zip(layer.tops, converted.outputs, _shapes(layer, converted, shapes), strict=True):
            latest[top], shapes[point] = point, shape
        layers.append(converted)
    taken = {point for layer in layers for point in layer.inputs}
    outputs = {name: point for name, point in latest.items() if point not in taken}
    return ModelGraph(network.name, layers, inputs, outputs, shapes)


def _caffe_cube(shape: tuple[int, ...]) -> Shape | None:
    """(C, H, W) of what is after the batch; 1 for what is missing."""
    if len(shape) > 3 or any(size <= 0 for size in shape):
        return None
    channels, height, width = (*shape, 1, 1, 1)[:3]
    return channels, height, width


def _caffe_layer(layer: CaffeLayer, given: tuple[int, ...], shapes: list[Shape | None], first: int) -> ModelLayer:
    kind = _CAFFE_KINDS.get(layer.type, "pass")
    if kind == "affine" and len(given) == 2:
        kind = "eltwise"  # Scale and Bias by another blob
    source = shapes[0] if shapes else None
    shape, window, stride = source, (1, 1), (1, 1)
    if layer.type in ("Convolution", "Deconvolution"):
        shape, window, stride = _convolved(layer, source)
    elif layer.type == "InnerProduct":
        shape = (layer.message["inner_product_param"]["num_output"] or 0, 1, 1)
    elif kind == "pool":
        shape, window, stride = _pooled(layer, source)
    elif kind == "concat":
        shape = None if None in shapes else _concatenated(layer, [shape for shape in shapes if shape is not None])
    elif layer.type in ("Flatten", "Reshape"):
        shape = None if source is None else (math.prod(source), 1, 1)
    outputs = tuple(range(first, first + len(layer.tops)))
    return ModelLayer(
        layer.name, kind, given, outputs, shape, window, stride, _caffe_weights(layer, kind),
        whole=layer.type == "InnerProduct", skewed=_skewed(layer), groups=_groups(layer), adds=_adds(layer),
        cpu=layer.type in ("Softmax", "Power"),
    )  # fmt: skip


def _shapes(layer: CaffeLayer, converted: ModelLayer, shapes: dict[int, Shape | None]) -> list[Shape | None]:
    """Return the shape of each output; a slice is cut in equal parts or at slice_point."""
    if converted.kind != "slice" or converted.shape is None:
        return [converted.shape] * len(converted.outputs)
    channels, height, width = converted.shape
    settings, count = layer.message["slice_param"], len(converted.outputs)
    if settings["axis"] != 1:
        return [None] * count
    points = [0, *settings["slice_point"], channels]
    if len(points) != count + 1:
        points = [channels * part // count for part in range(count + 1)]
    return [(end - start, height, width) for start, end in itertools.pairwise(points)]


def _adds(layer: CaffeLayer) -> bool:
    return layer.type != "Scale" or bool(layer.message["scale_param"]["bias_term"])


def _groups(layer: CaffeLayer) -> int:
    return (layer.message["convolution_param"]["group"] or 1) if layer.type == "Convolution" else 1


def _skewed(layer: CaffeLayer) -> bool:
    dilation = layer.message["convolution_param"]["dilation"] if layer.type == "Convolution" else []
    return len(set(dilation)) > 1


def _pair(settings: TextMessage, name: str, parts: tuple[str, str], default: int) -> tuple[int, int]:
    """(rows, columns) of a setting given once, once for each, or as two fields."""
    if any(part in settings for part in parts):
        return settings[parts[0]] or default, settings[parts[1]] or default
    values = settings[name]
    values = values if isinstance(values, list) else [values]
    values = [value for value in values if value is not None] or [default]
    return values[0], values[-1]


def _convolved(layer: CaffeLayer, source: Shape | None) -> tuple[Shape | None, tuple[int, int], tuple[int, int]]:
    settings = layer.message["convolution_param"]
    kernel = _pair(settings, "kernel_size", ("kernel_h", "kernel_w"), 1)
    stride = _pair(settings, "stride", ("stride_h", "stride_w"), 1)
    pad = _pair(settings, "pad", ("pad_h", "pad_w"), 0)
    dilation = (*(settings["dilation"] or [1]), 1)[0], (settings["dilation"] or [1])[-1]
    if source is None or min(*kernel, *stride) < 1:
        return None, kernel, stride
    axes = zip(source[1:], kernel, stride, pad, dilation, strict=True)
    if layer.type == "Deconvolution":
        height, width = (s * (n - 1) + d * (k - 1) + 1 - 2 * p for n, k, s, p, d in axes)
    else:
        height, width = ((n + 2 * p - (d * (k - 1) + 1)) // s + 1 for n, k, s, p, d in axes)
    return (settings["num_output"] or 0, height, width), kernel, stride


def _pooled(layer: CaffeLayer, source: Shape | None) -> tuple[Shape | None, tuple[int, int], tuple[int, int]]:
    settings = layer.message["pooling_param"]
    if settings["global_pooling"]:
        return None if source is None else (source[0], 1, 1), source[1:] if source else (1, 1), (1, 1)
    kernel = _pair(settings, "kernel_size", ("kernel_h", "kernel_w"), 1)
    stride = _pair(settings, "stride", ("stride_h", "stride_w"), 1)
    pad = _pair(settings, "pad", ("pad_h", "pad_w"), 0)
    if source is None or min(*kernel, *stride) < 1:
        return None, kernel, stride
    ceil = settings["round_mode"] == "CEIL"
    height, width = (pooled_size(n, k, s, p, ceil) for n, k, s, p in zip(source[1:], kernel, stride, pad, strict=True))
    return (source[0], height, width), kernel, stride


def _concatenated(layer: CaffeLayer, shapes: list[Shape]) -> Shape | None:
    axis = layer.message["concat_param"]["axis"]
    if axis not in (None, 1, -3) or not shapes:
        return None
    return sum(shape[0] for shape in shapes), *shapes[0][1:]


def _caffe_weights(layer: CaffeLayer, kind: str) -> np.ndarray | None:
    """(K, C, R, S) of a convolution, (K, elements, 1, 1) of an inner product; None where they are not known."""
    if kind != "conv" or not layer.blobs:
        return None
    blob = layer.blobs[0]
    if layer.type == "InnerProduct":
        outputs = layer.message["inner_product_param"]["num_output"] or 0
        if not outputs or blob.size % outputs:
            raise FormatError(f"{layer.name}: {blob.size} weights for {outputs} outputs")
        turned = bool(layer.message["inner_product_param"]["transpose"])
        flat = blob.reshape(-1, outputs).T if turned else blob.reshape(outputs, -1)
        return flat[:, :, None, None]
    return blob.reshape(blob.shape[-4:]) if blob.ndim >= 4 else None
