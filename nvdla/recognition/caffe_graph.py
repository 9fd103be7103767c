"""The layers of a Caffe network with their shapes, with or without weights."""

from __future__ import annotations

import itertools
import math
import os

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.caffe.layers import pooled_size
from nvdla.caffe.network import CaffeLayer, read_network
from nvdla.caffe.text import TextMessage
from nvdla.caffe.weights import read_weights
from nvdla.errors import FormatError
from nvdla.recognition.model_graph import ModelGraph, ModelLayer, Shape

_KINDS = {
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
    """The graph of a .prototxt in phase TEST. Raises FormatError naming file, line and layer."""
    network = read_network(prototxt, None if caffemodel is None else read_weights(caffemodel))
    shapes: dict[int, Shape | None] = {}
    latest: dict[str, int] = {}
    for name, shape in network.inputs.items():
        latest[name] = len(shapes)
        shapes[latest[name]] = None if shape is None else _cube(shape[1:])
    inputs, layers = dict(latest), []
    for layer in network.layers:
        given = tuple(latest[blob] for blob in layer.bottoms)
        made = _layer(layer, given, [shapes[point] for point in given], len(shapes))
        for top, point, shape in zip(layer.tops, made.outputs, _shapes(layer, made, shapes), strict=True):
            latest[top], shapes[point] = point, shape
        layers.append(made)
    taken = {point for layer in layers for point in layer.inputs}
    outputs = {name: point for name, point in latest.items() if point not in taken}
    return ModelGraph(network.name, layers, inputs, outputs, shapes)


def _cube(shape: tuple[int, ...]) -> Shape | None:
    """(C, H, W) of what lies behind the batch; 1 for what is missing."""
    if len(shape) > 3 or any(size <= 0 for size in shape):
        return None
    channels, height, width = (*shape, 1, 1, 1)[:3]
    return channels, height, width


def _layer(layer: CaffeLayer, given: tuple[int, ...], shapes: list[Shape | None], first: int) -> ModelLayer:
    kind = _KINDS.get(layer.type, "pass")
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
        shape = None if None in shapes else _concatenated(layer, [each for each in shapes if each is not None])
    elif layer.type in ("Flatten", "Reshape"):
        shape = None if source is None else (math.prod(source), 1, 1)
    outputs = tuple(range(first, first + len(layer.tops)))
    return ModelLayer(
        layer.name, kind, given, outputs, shape, window, stride, _weights(layer, kind),
        whole=layer.type == "InnerProduct", skewed=_skewed(layer), adds=_adds(layer),
        cpu=layer.type in ("Softmax", "Power"),
    )  # fmt: skip


def _shapes(layer: CaffeLayer, made: ModelLayer, shapes: dict[int, Shape | None]) -> list[Shape | None]:
    """Of each output; a slice's are cut in equal parts or at slice_point."""
    if made.kind != "slice" or made.shape is None:
        return [made.shape] * len(made.outputs)
    channels, height, width = made.shape
    settings, count = layer.message["slice_param"], len(made.outputs)
    if settings["axis"] != 1:
        return [None] * count
    points = [0, *settings["slice_point"], channels]
    if len(points) != count + 1:
        points = [channels * part // count for part in range(count + 1)]
    return [(end - start, height, width) for start, end in itertools.pairwise(points)]


def _adds(layer: CaffeLayer) -> bool:
    return layer.type != "Scale" or bool(layer.message["scale_param"]["bias_term"])


def _skewed(layer: CaffeLayer) -> bool:
    dilation = layer.message["convolution_param"]["dilation"] if layer.type == "Convolution" else []
    return len(set(dilation)) > 1


def _pair(settings: TextMessage, name: str, parts: tuple[str, str], default: int) -> tuple[int, int]:
    """(rows, columns) of a setting given once, once for each, or as two fields."""
    if any(part in settings for part in parts):
        return settings[parts[0]] or default, settings[parts[1]] or default
    values = settings[name]
    values = values if isinstance(values, list) else [values]
    values = [each for each in values if each is not None] or [default]
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


def _weights(layer: CaffeLayer, kind: str) -> np.ndarray | None:
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
