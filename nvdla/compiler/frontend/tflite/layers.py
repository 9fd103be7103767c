"""TFLite's convolutions, matrix products, pools and resizes as ONNX nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvdla.compiler.frontend.tflite.graph import LIMIT_KEY, ONNX, FlatConverter, UnsupportedError, converts
from nvdla.compiler.frontend.tflite.reader import FlatOperator
from nvdla.util.escaping import Document
from nvdla.util.rounding import ceil_div

SAME = 0
_NONE, _RELU, _RELU_N1_TO_1, _RELU6, _TANH = range(5)
#: limits of fused activations
LIMITS = {_RELU: (0.0, math.inf), _RELU_N1_TO_1: (-1.0, 1.0), _RELU6: (0.0, 6.0)}


def limited(c: FlatConverter, value: str, low: float, high: float, out: int) -> str:
    """A value within limits; without those that the quantization of the result has already."""
    least, greatest = c.ends(out)
    half = (greatest - least) / 510 if math.isfinite(greatest) else 0.0
    implied = high
    if greatest <= high + half:
        high = math.inf
    if least >= low - half and low < 0:
        low = -math.inf
    if low == 0 and high == math.inf:
        result = c.node("Relu", [value], c.name(out))
        if math.isfinite(implied):
            c.nodes[-1].metadata_props.add(key=LIMIT_KEY, value=str(implied))
        return result
    if low == -math.inf and high == math.inf:
        return value
    limits = [c.constant(np.float32(end)) if math.isfinite(end) else "" for end in (low, high)]
    return c.node("Clip", [c.rounded(out, value), *limits], c.name(out))


def activated(c: FlatConverter, operator: FlatOperator, value: str) -> str:
    """A value with the activation that the operator has fused."""
    kind, out = operator.options.get("fused_activation_function", _NONE), operator.outputs[0]
    if kind == _NONE:
        return value
    if kind == _TANH:
        return c.node("Tanh", [value], c.name(out))
    if kind not in LIMITS:
        raise UnsupportedError(f"fused activation {kind}")
    return limited(c, value, *LIMITS[kind], out)


def window_padding(size: int, kernel: int, stride: int, dilation: int, padding: int) -> tuple[int, int, int]:
    """(size of the result, padding before, padding after) of one dimension."""
    if min(size, kernel, stride, dilation) < 1:
        raise UnsupportedError(
            f"size, kernel, stride, dilation: must be positive, got {size}, {kernel}, {stride}, {dilation}"
        )
    span = (kernel - 1) * dilation + 1
    if padding != SAME:
        return (size - span) // stride + 1, 0, 0
    out = ceil_div(size, stride)
    total = max((out - 1) * stride + span - size, 0)
    return out, total // 2, total - total // 2


def _window(operator: FlatOperator, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[Document, list[int]]:
    """Attributes of a window, and the sizes of its result."""
    options = operator.options
    strides = [options["stride_h"], options["stride_w"]]
    dilations = [options.get("dilation_h_factor", 1), options.get("dilation_w_factor", 1)]
    windows = [
        window_padding(*axis, options["padding"]) for axis in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    pads = [window[1] for window in windows] + [window[2] for window in windows]
    out = [window[0] for window in windows]
    if "pads" in options:  # of a dilated convolution
        pads = options["pads"]
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        out = [
            (s + pads[i] + pads[i + 2] - span) // strides[i] + 1
            for i, (s, span) in enumerate(zip(sizes, spans, strict=True))
        ]
    if min(out) < 1:
        raise UnsupportedError(f"window {list(kernel)} does not fit rows and columns {list(sizes)}")
    return {"kernel_shape": list(kernel), "strides": strides, "dilations": dilations, "pads": pads}, out


def _bias(c: FlatConverter, operator: FlatOperator, place: int) -> list[str]:
    given = len(operator.inputs) > place and operator.inputs[place] >= 0
    return [c.read(operator.inputs[place])] if given else []


def _rank(c: FlatConverter, number: int, rank: int) -> tuple[int, ...]:
    shape = c.shape(number)
    if len(shape) != rank:
        raise UnsupportedError(f"{c.tensors[number].name}: must have {rank} dimensions, got {len(shape)}")
    return shape


@converts("CONV_2D", onnx="Conv")
def conv(c: FlatConverter, operator: FlatOperator) -> None:
    """A convolution; groups where the kernels have fewer channels than the input."""
    source, weights = operator.inputs[:2]
    batch, *sizes, channels = _rank(c, source, 4)
    kernels, height, width, depth = _rank(c, weights, 4)
    if not depth or channels % depth or kernels % (channels // depth):
        raise UnsupportedError(f"{kernels} kernels of {depth} channels do not fit {channels} channels")
    window, out = _window(operator, tuple(sizes), (height, width))
    inputs = [c.read(source, ONNX), c.weights(weights, (0, 3, 1, 2)), *_bias(c, operator, 2)]
    result = c.node("Conv", inputs, c.name(operator.outputs[0]), group=channels // depth, **window)
    c.write(operator.outputs[0], activated(c, operator, result), (batch, *out, kernels), ONNX)


@converts("DEPTHWISE_CONV_2D", onnx="Conv")
def depthwise(c: FlatConverter, operator: FlatOperator) -> None:
    """A convolution with a group per channel of the input."""
    source, weights = operator.inputs[:2]
    batch, *sizes, channels = _rank(c, source, 4)
    depth, height, width, kernels = _rank(c, weights, 4)
    if depth != 1 or not channels or kernels % channels:
        raise UnsupportedError(f"weights {list(c.shape(weights))} do not fit {channels} channels")
    window, out = _window(operator, tuple(sizes), (height, width))
    inputs = [c.read(source, ONNX), c.weights(weights, (3, 0, 1, 2)), *_bias(c, operator, 2)]
    result = c.node("Conv", inputs, c.name(operator.outputs[0]), group=channels, **window)
    c.write(operator.outputs[0], activated(c, operator, result), (batch, *out, kernels), ONNX)


@converts("TRANSPOSE_CONV", onnx="ConvTranspose")
def transpose_conv(c: FlatConverter, operator: FlatOperator) -> None:
    """A deconvolution whose padding follows from the output shape, a constant."""
    wanted, weights, source = operator.inputs[:3]
    batch, height, width, channels = _rank(c, source, 4)
    kernels, *kernel, depth = _rank(c, weights, 4)
    shape = c.integers(wanted, "output shape")
    if channels != depth or len(shape) != 4 or shape[0] != batch or shape[3] != kernels:
        raise UnsupportedError(f"output shape {shape} does not fit weights {list(c.shape(weights))}")
    options = operator.options
    strides, before, after, grow = [options["stride_h"], options["stride_w"]], [], [], []
    for size, k, stride, out in zip((height, width), kernel, strides, shape[1:3], strict=True):
        full = (size - 1) * stride + k
        total = max(full - out, 0) if options["padding"] == SAME else 0
        before.append(total // 2)
        after.append(total - total // 2 + max(full - total - out, 0))
        grow.append(max(out - full + total, 0))
        if stride < 1 or grow[-1] >= stride:
            raise UnsupportedError(f"output: must fit input {size}, kernel {k}, stride {stride}, got {out}")
    window: Document = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": before + after,
        "output_padding": grow,
    }
    inputs = [c.read(source, ONNX), c.weights(weights, (3, 0, 1, 2)), *_bias(c, operator, 3)]
    result = c.node("ConvTranspose", inputs, c.name(operator.outputs[0]), **window)
    c.write(operator.outputs[0], activated(c, operator, result), shape, ONNX)


@converts("FULLY_CONNECTED", onnx="Gemm")
def fully_connected(c: FlatConverter, operator: FlatOperator) -> None:
    """A matrix product of the elements in rows as long as the weights."""
    source, weights, out = *operator.inputs[:2], operator.outputs[0]
    if operator.options.get("weights_format", 0):
        raise UnsupportedError("shuffled weights")
    shape, (units, depth) = c.shape(source), _rank(c, weights, 2)
    if not depth or math.prod(shape) % depth:
        raise UnsupportedError(f"input {list(shape)} does not fit weights {[units, depth]}")
    rows = math.prod(shape) // depth
    value = c.read(source)
    if shape != (rows, depth):
        value = c.node("Reshape", [value, c.shape_constant((rows, depth))], f"{c.name(out)}/rows")
    inputs = [value, c.weights(weights, (0, 1)), *_bias(c, operator, 2)]
    result = activated(c, operator, c.node("Gemm", inputs, c.name(out), transB=1))
    kept = operator.options.get("keep_num_dims") and shape[-1:] == (depth,) and len(shape) != 2
    c.write(out, result, (rows, units), reshaped=(*shape[:-1], units) if kept else None)


@converts("BATCH_MATMUL", onnx="MatMul")
def batch_matmul(c: FlatConverter, operator: FlatOperator) -> None:
    """A matrix product; a constant second matrix brings its scales."""
    values, shapes = [], []
    for number, key in zip(operator.inputs, ("adj_x", "adj_y"), strict=False):
        shape = c.shape(number)
        if len(shape) < 2:
            raise UnsupportedError(f"matrix of shape {list(shape)}")
        turned = bool(operator.options.get(key))
        perm = [*range(len(shape) - 2), *((-1, -2) if turned else (-2, -1))]
        perm = [axis % len(shape) for axis in perm]
        if c.is_constant(number) and key == "adj_y":
            values.append(c.weights(number, perm))
        elif turned:
            values.append(c.node("Transpose", [c.read(number)], f"{c.tensors[number].name}/turned", perm=perm))
        else:
            values.append(c.read(number))
        shapes.append([shape[axis] for axis in perm])
    leading = _broadcast(shapes[0][:-2], shapes[1][:-2])
    if shapes[0][-1] != shapes[1][-2]:
        raise UnsupportedError(f"matrices {shapes[0]} and {shapes[1]} do not fit")
    result = c.node("MatMul", values, c.name(operator.outputs[0]))
    c.write(operator.outputs[0], result, (*leading, shapes[0][-2], shapes[1][-1]))


def _broadcast(*shapes: Any) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*(tuple(shape) for shape in shapes))
    except ValueError:
        raise UnsupportedError(f"shapes {' and '.join(str(list(shape)) for shape in shapes)} do not fit") from None


_POOLS = {"AVERAGE_POOL_2D": "AveragePool", "MAX_POOL_2D": "MaxPool", "L2_POOL_2D": "Mul, AveragePool, Sqrt"}


@converts(*_POOLS, onnx=_POOLS)
def pool(c: FlatConverter, operator: FlatOperator) -> None:
    """A window over rows and columns; averages do not count padding."""
    source, out = operator.inputs[0], operator.outputs[0]
    batch, *sizes, channels = _rank(c, source, 4)
    kernel = (operator.options["filter_height"], operator.options["filter_width"])
    window, result = _window(operator, tuple(sizes), kernel)
    value, name = c.read(source, ONNX), c.name(out)
    if operator.op == "L2_POOL_2D":
        value = c.node("Mul", [value, value], f"{name}/squares")
    if operator.op == "MAX_POOL_2D":
        output = c.node("MaxPool", [value], name, **window)
    else:
        del window["dilations"]
        output = c.node("AveragePool", [value], name, count_include_pad=0, **window)
    if operator.op == "L2_POOL_2D":
        output = c.node("Sqrt", [output], name)
    c.write(out, activated(c, operator, output), (batch, *result, channels), ONNX)


@converts("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", onnx="Resize")
def resize(c: FlatConverter, operator: FlatOperator) -> None:
    """Rows and columns by linear or nearest interpolation, in the three coordinate modes of TFLite."""
    source, wanted = operator.inputs[:2]
    batch, *given, channels = _rank(c, source, 4)
    sizes = c.integers(wanted, "size")
    if len(sizes) != 2 or min(sizes) < 1:
        raise UnsupportedError(f"size {sizes}")
    if given == [1, 1]:  # one element per channel, repeated
        shape = c.shape_constant((batch, channels, *sizes))
        result = c.node("Expand", [c.read(source, ONNX), shape], c.name(operator.outputs[0]))
        c.write(operator.outputs[0], result, (batch, *sizes, channels), ONNX)
        return
    aligned, half = operator.options.get("align_corners"), operator.options.get("half_pixel_centers")
    mode = "align_corners" if aligned else "half_pixel" if half else "asymmetric"
    form: Document = {"mode": "linear", "coordinate_transformation_mode": mode}
    if operator.op == "RESIZE_NEAREST_NEIGHBOR":
        form |= {"mode": "nearest", "nearest_mode": "floor" if mode == "asymmetric" else "round_prefer_ceil"}
    inputs = [c.read(source, ONNX), "", "", c.shape_constant((batch, channels, *sizes))]
    result = c.node("Resize", inputs, c.name(operator.outputs[0]), **form)
    c.write(operator.outputs[0], result, (batch, *sizes, channels), ONNX)


@converts("LOCAL_RESPONSE_NORMALIZATION", onnx="LRN")
def lrn(c: FlatConverter, operator: FlatOperator) -> None:
    """Normalization across channels."""
    options, source = operator.options, operator.inputs[0]
    size = 2 * options["radius"] + 1
    form = {"alpha": options["alpha"] * size, "beta": options["beta"], "bias": options["bias"], "size": size}
    _rank(c, source, 4)
    result = c.node("LRN", [c.read(source, ONNX)], c.name(operator.outputs[0]), **form)
    c.write(operator.outputs[0], result, c.shape(source), ONNX)
