"""Caffe layers to ONNX nodes.

Blobs of Caffe are variables: a layer in place writes the blob that it reads. Here every layer's result is a value of
its own, so that all can be looked at.

Sources: Caffe's src/caffe/layers/<type>_layer.cpp. Shapes are known throughout, so sizes are settled here and no
operator is left to work them out its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.compiler.caffe.network import CaffeLayer
from nvdla.compiler.caffe.text import TextMessage
from nvdla.errors import FormatError, shape_text
from nvdla.limits import MAX_CUBE_SIDE
from nvdla.util.rounding import ceil_div

OPSET, IR_VERSION = 13, 8
#: elements of all values together, and multiplications: far above real networks (ResNet-152: 10^8, 10^10)
MAX_ELEMENTS = 1 << 30
MAX_MULTIPLICATIONS = 10**13


@dataclass(frozen=True)
class CaffeValue:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements of it."""
        return math.prod(self.shape)


@dataclass
class CaffeGraph:
    """Nodes and constants. ``layer``: the one that is being turned over. ``names``: those that are taken."""

    onnx: Any
    names: set[str] = field(default_factory=set)
    layer: CaffeLayer | None = None
    nodes: list[object] = field(default_factory=list)
    constants: list[object] = field(default_factory=list)
    elements: int = 0
    multiplications: int = 0

    def constant(self, array: np.ndarray) -> str:
        """A constant, in the element type of the array (floats become float32)."""
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype("<f4")
        name = self._name(f"constant{len(self.constants)}")
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def number(self, value: float) -> str:
        """A constant of one number."""
        return self.constant(np.array(value, np.float32))

    def node(
        self, kind: str, inputs: Sequence[CaffeValue | str], shape: Sequence[int], work: int = 0, **attributes: Any
    ) -> CaffeValue:
        """Add an operator with one result of ``shape``. ``work``: multiplications of an element of the result."""
        value = CaffeValue(self._name(kind), tuple(shape))
        self._charge(value, work)
        words = [operand if isinstance(operand, str) else operand.name for operand in inputs]
        self.nodes.append(self.onnx.helper.make_node(kind, words, [value.name], **attributes))
        return value

    def _name(self, kind: str) -> str:
        """An unused name for a result: "ip1/Reshape", or "ip1/Reshape.7" where that exists."""
        name = f"{self.layer.name}/{kind}" if self.layer else kind
        if name in self.names:
            name = f"{name}.{len(self.nodes)}"
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def fail(self, why: str) -> FormatError:
        """The error to raise, with the name of the layer that is being turned over."""
        return FormatError(why) if self.layer is None else self.layer.fail(why)

    def allow(self, shape: Sequence[int]) -> None:
        """Refuse a result of this shape before anything of its size is made."""
        if any(size <= 0 for size in shape):
            raise self.fail(f"result: sizes must be at least 1, got {'x'.join(map(str, shape))}")
        elements = self.elements + math.prod(shape)
        if elements > MAX_ELEMENTS:
            raise self.fail(f"tensors: must have at most {MAX_ELEMENTS} elements together, got {elements} up to here")

    def _charge(self, value: CaffeValue, work: int) -> None:
        """Refuse layers that need too much memory or time."""
        self.allow(value.shape)
        self.elements += value.size
        self.multiplications += value.size * work
        if self.multiplications > MAX_MULTIPLICATIONS:
            raise self.fail(
                f"work: must be at most {MAX_MULTIPLICATIONS} multiplications, got {self.multiplications} up to here"
            )


ONE = range(1, 2)
ONE_OR_TWO = range(1, 3)
TWO_OR_MORE = range(2, 1 << 16)
ANY = range(1, 1 << 16)
#: height and width of a pooled image: what NVDLA's registers hold
#: what Caffe's MAX pooling starts from
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Conversion:
    """``parameters``: the field of a layer that sets this type; ``bottoms``: how many it takes."""

    function: Callable[..., list[CaffeValue]]
    parameters: str | None
    bottoms: range


LAYERS: dict[str, Conversion] = {}


Turn = Callable[..., list[CaffeValue]]


def _layer(kind: str, parameters: str | None = None, bottoms: range = ONE) -> Callable[[Turn], Turn]:
    def register(function: Turn) -> Turn:
        LAYERS[kind] = Conversion(function, parameters, bottoms)
        return function

    return register


# ---- what several need


def _axis(layer: CaffeLayer, value: int, axes: int, what: str = "axis") -> int:
    """An axis, counted from the end where it is negative."""
    if not -axes <= value < axes:
        raise layer.fail(f"{what}: must be {-axes} to {axes - 1} for a blob of {axes} axes, got {value}")
    return value % axes


def _blob(layer: CaffeLayer, index: int, count: int, shape: Sequence[int], what: str) -> np.ndarray:
    """A weight blob in its shape; leading axes of 1 may be missing or too many, as in old files."""
    if layer.blobs is None:
        raise layer.fail("weights: must be given. Add the .caffemodel: --caffe NET.prototxt NET.caffemodel.")
    if len(layer.blobs) != count:
        known = len(layer.blobs) or "none under this name"
        raise layer.fail(f"weight blobs in the .caffemodel: must be {count}, got {known}")
    blob = layer.blobs[index]
    if _plain(blob.shape) != _plain(shape):
        raise layer.fail(
            f"{what}: must be {shape_text(shape)} (network), got {shape_text(blob.shape)} in the .caffemodel"
        )
    return blob.reshape(shape)


def _plain(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without leading axes of 1."""
    first = next((place for place, size in enumerate(shape) if size != 1), len(shape))
    return tuple(shape[first:])


def _image(layer: CaffeLayer, value: CaffeValue) -> tuple[int, int, int, int]:
    if len(value.shape) != 4:
        raise layer.fail(f"bottom: must have the 4 axes N, C, H, W, got {shape_text(value.shape)}")
    batch, channels, height, width = value.shape
    return batch, channels, height, width


def _pair(
    layer: CaffeLayer, settings: TextMessage, name: str, parts: tuple[str, str], default: int | None
) -> tuple[int, int]:
    """(height, width) of a setting given once, once for each, or as two fields."""
    values = settings[name]
    if any(part in settings for part in parts):
        if values:
            raise layer.fail(f"{name}: must be given alone, or as {parts[0]} and {parts[1]}, got both")
        values = [settings[part] for part in parts]
    elif not values:
        values = [default]
    if len(values) not in (1, 2):
        raise layer.fail(f"{name}: must be given once, or twice (height and width), got {len(values)} times")
    if None in values:
        raise layer.fail(f"{settings.schema.name}: {name}: must be given")
    return values[0], values[-1]


@dataclass(frozen=True)
class _Window:
    """(height, width) of each."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]


def _window(layer: CaffeLayer, settings: TextMessage, kernel: tuple[int, int] | None = None) -> _Window:
    kernel = kernel or _pair(layer, settings, "kernel_size", ("kernel_h", "kernel_w"), None)
    stride = _pair(layer, settings, "stride", ("stride_h", "stride_w"), 1)
    pad = _pair(layer, settings, "pad", ("pad_h", "pad_w"), 0)
    if 0 in kernel or 0 in stride:
        raise layer.fail(
            f"kernel and stride: must be at least 1, got kernel {shape_text(kernel)}, stride {shape_text(stride)}"
        )
    return _Window(kernel, stride, pad)


def _operator(
    graph: CaffeGraph, kind: str, value: CaffeValue, *others: CaffeValue | str, **attributes: Any
) -> CaffeValue:
    """An operator whose result has its first input's shape."""
    return graph.node(kind, [value, *others], value.shape, **attributes)


def _linear(graph: CaffeGraph, value: CaffeValue, scale: float, shift: float) -> CaffeValue:
    """shift + scale * x"""
    if scale != 1:
        value = _operator(graph, "Mul", value, graph.number(scale))
    return _operator(graph, "Add", value, graph.number(shift)) if shift else value


def _reshaped(graph: CaffeGraph, value: CaffeValue, shape: Sequence[int]) -> CaffeValue:
    return graph.node("Reshape", [value, graph.constant(np.array(shape, np.int64))], shape)


# ---- convolutions and inner products


@_layer("Convolution", "convolution_param")
def _convolution(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    return _convolved(graph, layer, value, "Conv", lambda n, k, s, p, d: (n + 2 * p - (d * (k - 1) + 1)) // s + 1)


@_layer("Deconvolution", "convolution_param")
def _deconvolution(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    return _convolved(graph, layer, value, "ConvTranspose", lambda n, k, s, p, d: s * (n - 1) + d * (k - 1) + 1 - 2 * p)


def _convolved(
    graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue, kind: str, size: Callable[..., int]
) -> list[CaffeValue]:
    """``size`` of the result from that of the image, kernel, stride, padding and dilation, in one direction."""
    settings, window, dilation = _convolution_settings(layer, value)
    batch, channels, *image = value.shape
    outputs, group = settings["num_output"], settings["group"]
    kernels, depth = (outputs, channels) if kind == "Conv" else (channels, outputs)
    operands = _weights(graph, layer, settings, (kernels, depth // group, *window.kernel))
    work, attributes = channels // group * math.prod(window.kernel), _attributes(window, dilation, group)
    sizes = map(size, image, window.kernel, window.stride, window.pad, dilation)
    return [graph.node(kind, [value, *operands], (batch, outputs, *sizes), work, **attributes)]


def _convolution_settings(layer: CaffeLayer, value: CaffeValue) -> tuple[TextMessage, _Window, tuple[int, int]]:
    settings = layer.message["convolution_param"]
    channels, outputs, group = _image(layer, value)[1], settings["num_output"], settings["group"]
    if not outputs:
        raise layer.fail("convolution_param.num_output: must be given")
    if _axis(layer, settings["axis"], 4) != 1:
        raise layer.fail(f"axis: must be 1 (convolution over height and width), got {settings['axis']}")
    if group == 0 or channels % group or outputs % group:
        raise layer.fail(f"group: must divide {channels} channels and {outputs} outputs, got {group}")
    dilation = (settings["dilation"] or [1])[:2]
    if len(settings["dilation"]) > 2 or 0 in dilation:
        raise layer.fail(f"dilation: must be one or two numbers above 0, got {settings['dilation']}")
    return settings, _window(layer, settings), (dilation[0], dilation[-1])


def _weights(graph: CaffeGraph, layer: CaffeLayer, settings: TextMessage, shape: tuple[int, ...]) -> list[str]:
    count = 2 if settings["bias_term"] else 1
    operands = [graph.constant(_blob(layer, 0, count, shape, "weights"))]
    if settings["bias_term"]:
        operands.append(graph.constant(_blob(layer, 1, count, (settings["num_output"],), "bias")))
    return operands


def _attributes(window: _Window, dilation: tuple[int, int], group: int) -> dict[str, object]:
    return {
        "kernel_shape": window.kernel,
        "strides": window.stride,
        "pads": [*window.pad, *window.pad],
        "dilations": dilation,
        "group": group,
    }


@_layer("InnerProduct", "inner_product_param")
def _inner_product(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    settings = layer.message["inner_product_param"]
    outputs, axis = settings["num_output"], _axis(layer, settings["axis"], len(value.shape))
    if not outputs:
        raise layer.fail("inner_product_param.num_output: must be given")
    kept, length = value.shape[:axis], math.prod(value.shape[axis:])
    shape = (length, outputs) if settings["transpose"] else (outputs, length)
    count = 2 if settings["bias_term"] else 1
    weights = _blob(layer, 0, count, shape, "weights")
    flat = _reshaped(graph, value, (math.prod(kept), length))
    operands: list[CaffeValue | str] = [flat, graph.constant(weights)]
    if settings["bias_term"]:
        operands.append(graph.constant(_blob(layer, 1, count, (outputs,), "bias")))
    rows = math.prod(kept)
    result = graph.node("Gemm", operands, (rows, outputs), length, transB=int(not settings["transpose"]))
    return [_reshaped(graph, result, (*kept, outputs)) if len(kept) != 1 else result]


# ---- pooling


@_layer("Pooling", "pooling_param")
def _pooling(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    settings = layer.message["pooling_param"]
    _, _, height, width = _image(layer, value)
    if settings["pool"] == "STOCHASTIC":
        raise layer.fail("pooling method: must be MAX or AVE, got STOCHASTIC")
    whole = settings["global_pooling"]
    if whole and any(key in settings for key in ("kernel_size", "kernel_h", "kernel_w")):
        raise layer.fail("kernel size: must be omitted with global_pooling")
    window = _window(layer, settings, (height, width) if whole else None)
    if whole and (window.pad != (0, 0) or window.stride != (1, 1)):
        raise layer.fail("pad and stride: must be omitted with global_pooling")
    if any(pad >= kernel for pad, kernel in zip(window.pad, window.kernel, strict=True)):
        raise layer.fail(f"pad: must be less than the kernel {shape_text(window.kernel)}, got {shape_text(window.pad)}")
    return [_pooled(graph, value, window, settings["pool"], settings["round_mode"] == "CEIL")]


def _pooled(graph: CaffeGraph, value: CaffeValue, window: _Window, pool: str, ceil: bool) -> CaffeValue:
    """Windows may reach beyond the padding at the end (sizes round up); AVE divides by the area inside the padding
    (pooling_layer.cpp, Reshape and Forward_cpu)."""
    batch, channels, *image = value.shape
    axes = list(zip(image, window.kernel, window.stride, window.pad, strict=True))
    size = [pooled_size(n, k, s, p, ceil) for n, k, s, p in axes]
    shape = (batch, channels, *size)
    graph.allow(shape)
    if max(size) > MAX_CUBE_SIDE:
        raise graph.fail(f"height and width of the result: must be at most {MAX_CUBE_SIDE}, got {shape_text(shape)}")
    padding = [0, 0, 0, 0]
    areas = []
    for axis, ((n, k, s, p), count) in enumerate(zip(axes, size, strict=True)):
        starts = np.arange(count) * s - p
        areas.append(np.minimum(starts + k, n + p) - starts)
        padding[axis], padding[axis + 2] = p, max((count - 1) * s + k - n - p, 0)
    fill = graph.number(LOWEST if pool == "MAX" else 0.0)
    if any(padding):
        pads = graph.constant(np.array([0, 0, *padding[:2], 0, 0, *padding[2:]], np.int64))
        grown = (batch, channels, *(n + padding[axis] + padding[axis + 2] for axis, n in enumerate(image)))
        value = graph.node("Pad", [value, pads, fill], grown)
    work = math.prod(window.kernel)
    kind = "MaxPool" if pool == "MAX" else "AveragePool"
    result = graph.node(kind, [value], shape, work, kernel_shape=window.kernel, strides=window.stride)
    if pool == "MAX":
        return result
    area = np.outer(*areas).astype(np.float64)
    if (area == work).all():
        return result
    with np.errstate(divide="ignore"):  # Caffe also divides by 0 where a window is outside
        return _operator(graph, "Mul", result, graph.constant(work / area))


def pooled_size(n: int, kernel: int, stride: int, pad: int, ceil: bool = True) -> int:
    """Elements of a pooled axis of ``n``: rounded up, but no window begins in the padding at the end."""
    room = n + 2 * pad - kernel
    count = (ceil_div(room, stride) if ceil else room // stride) + 1
    return count - 1 if pad and (count - 1) * stride >= n + pad else count


# ---- element by element


@_layer("ReLU", "relu_param")
def _relu(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    slope = layer.message["relu_param"]["negative_slope"]
    return [_operator(graph, "LeakyRelu", value, alpha=slope) if slope else _operator(graph, "Relu", value)]


@_layer("PReLU", "prelu_param")
def _prelu(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    if len(value.shape) < 2:
        raise layer.fail(f"its bottom is {shape_text(value.shape)}, must have channels")
    channels = 1 if layer.message["prelu_param"]["channel_shared"] else value.shape[1]
    slope = _blob(layer, 0, 1, (channels,), "slopes").reshape(channels, *[1] * (len(value.shape) - 2))
    return [_operator(graph, "PRelu", value, graph.constant(slope))]


@_layer("ELU", "elu_param")
def _elu(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    return [_operator(graph, "Elu", value, alpha=layer.message["elu_param"]["alpha"])]


def _plain_operator(kind: str, operator: str, parameters: str | None = None) -> None:
    @_layer(kind, parameters)
    def function(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
        return [_operator(graph, operator, value)]


_plain_operator("Sigmoid", "Sigmoid", "sigmoid_param")
_plain_operator("TanH", "Tanh", "tanh_param")
_plain_operator("AbsVal", "Abs")
_plain_operator("BNLL", "Softplus")
_plain_operator("Dropout", "Identity", "dropout_param")


@_layer("Power", "power_param")
def _power(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    """(shift + scale * x) ^ power"""
    settings = layer.message["power_param"]
    result = _linear(graph, value, settings["scale"], settings["shift"])
    power = settings["power"]
    return [result if power == 1 else _operator(graph, "Pow", result, graph.number(power))]


@_layer("Exp", "exp_param")
def _exp(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    """base ^ (shift + scale * x); base e where it is -1"""
    settings = layer.message["exp_param"]
    factor = _log_of_base(layer, settings["base"])
    return [_operator(graph, "Exp", _linear(graph, value, settings["scale"] * factor, settings["shift"] * factor))]


@_layer("Log", "log_param")
def _log(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    """log of shift + scale * x, to the base; e where it is -1"""
    settings = layer.message["log_param"]
    factor = _log_of_base(layer, settings["base"])
    if factor == 0:
        raise layer.fail("base of the logarithm: must not be 1")
    result = _operator(graph, "Log", _linear(graph, value, settings["scale"], settings["shift"]))
    return [_linear(graph, result, 1 / factor, 0.0)]


def _log_of_base(layer: CaffeLayer, base: float) -> float:
    if base == -1:
        return 1.0
    if base <= 0:
        raise layer.fail(f"base: must be above 0, or -1 for e, got {base:g}")
    return math.log(base)


# ---- normalization, scales


@_layer("BatchNorm", "batch_norm_param")
def _batch_norm(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    """Mean and variance of training, divided by the factor in the third blob (batch_norm_layer.cpp, Forward_cpu)."""
    settings = layer.message["batch_norm_param"]
    if settings["use_global_stats"] is False:
        raise layer.fail(
            "use_global_stats: must be true or omitted, got false. A loadable cannot compute the mean and "
            "variance of a batch."
        )
    if len(value.shape) < 2:
        raise layer.fail(f"its bottom is {shape_text(value.shape)}, must have channels")
    channels = (value.shape[1],)
    mean, variance = (_blob(layer, place, 3, channels, name) for place, name in enumerate(("mean", "variance")))
    factor = float(_blob(layer, 2, 3, (1,), "factor")[0])
    factor = 1 / factor if factor else 0.0
    zeros, ones = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    operands = [graph.constant(array) for array in (ones, zeros, mean * factor, variance * factor)]
    return [_operator(graph, "BatchNormalization", value, *operands, epsilon=settings["eps"])]


@_layer("Scale", "scale_param", ONE_OR_TWO)
def _scale(
    graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue, other: CaffeValue | None = None
) -> list[CaffeValue]:
    settings = layer.message["scale_param"]
    own = 1 if other is None else 0
    count = own + settings["bias_term"]
    if other is None:
        shape = _covered(layer, settings, value)
        factor: CaffeValue | str = graph.constant(
            _aligned(_blob(layer, 0, count, shape, "scale"), layer, settings, value)
        )
    else:
        factor = _second(graph, layer, settings, value, other)
    result = _operator(graph, "Mul", value, factor)
    if settings["bias_term"]:
        shape = _covered(layer, settings, value) if other is None else other.shape
        bias = _aligned(_blob(layer, own, count, shape, "bias"), layer, settings, value)
        result = _operator(graph, "Add", result, graph.constant(bias))
    return [result]


@_layer("Bias", "bias_param", ONE_OR_TWO)
def _bias(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue, other: CaffeValue | None = None) -> list[CaffeValue]:
    settings = layer.message["bias_param"]
    if other is not None:
        return [_operator(graph, "Add", value, _second(graph, layer, settings, value, other))]
    bias = _blob(layer, 0, 1, _covered(layer, settings, value), "bias")
    return [_operator(graph, "Add", value, graph.constant(_aligned(bias, layer, settings, value)))]


def _covered(layer: CaffeLayer, settings: TextMessage, value: CaffeValue) -> tuple[int, ...]:
    """The axes of the bottom that a learned scale or bias covers."""
    axis, axes = _axis(layer, settings["axis"], len(value.shape)), settings["num_axes"]
    if axes < -1 or axis + axes > len(value.shape):
        raise layer.fail(
            f"num_axes: must be -1, or at most {len(value.shape) - axis} (axes from axis {axis} on), got {axes}"
        )
    return value.shape[axis:] if axes == -1 else value.shape[axis : axis + axes]


def _trailing(layer: CaffeLayer, settings: TextMessage, value: CaffeValue, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Append axes of 1 to a shape, so that it matches the bottom from ``axis`` on."""
    axis = _axis(layer, settings["axis"], len(value.shape)) if shape else len(value.shape)
    if value.shape[axis : axis + len(shape)] != shape:
        raise layer.fail(f"shape {shape_text(shape)}: must match {shape_text(value.shape)} from axis {axis} on")
    return (*shape, *[1] * (len(value.shape) - axis - len(shape)))


def _aligned(blob: np.ndarray, layer: CaffeLayer, settings: TextMessage, value: CaffeValue) -> np.ndarray:
    return blob.reshape(_trailing(layer, settings, value, blob.shape))


def _second(
    graph: CaffeGraph, layer: CaffeLayer, settings: TextMessage, value: CaffeValue, other: CaffeValue
) -> CaffeValue:
    return _reshaped(graph, other, _trailing(layer, settings, value, other.shape))


@_layer("LRN", "lrn_param")
def _lrn(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    settings = layer.message["lrn_param"]
    size, alpha, beta = settings["local_size"], settings["alpha"], settings["beta"]
    _image(layer, value)
    if size % 2 == 0:
        raise layer.fail(f"local_size: must be odd, got {size}")
    if settings["norm_region"] == "ACROSS_CHANNELS":
        return [_operator(graph, "LRN", value, size=size, alpha=alpha, beta=beta, bias=settings["k"], work=size)]
    # Within a channel: the average of squares in a window, 1 instead of k (lrn_layer.cpp, LayerSetUp).
    window = _Window((size, size), (1, 1), (size // 2, size // 2))
    mean = _pooled(graph, _operator(graph, "Mul", value, value), window, "AVE", True)
    factor = _operator(graph, "Pow", _linear(graph, mean, alpha, 1.0), graph.number(-beta))
    return [_operator(graph, "Mul", value, factor)]


@_layer("Softmax", "softmax_param")
def _softmax(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    axis = _axis(layer, layer.message["softmax_param"]["axis"], len(value.shape))
    return [_operator(graph, "Softmax", value, axis=axis)]


# ---- several blobs, other shapes


@_layer("Eltwise", "eltwise_param", TWO_OR_MORE)
def _eltwise(graph: CaffeGraph, layer: CaffeLayer, *values: CaffeValue) -> list[CaffeValue]:
    settings = layer.message["eltwise_param"]
    operation, factors = settings["operation"], settings["coeff"]
    for operand in values[1:]:
        if operand.shape != values[0].shape:
            raise layer.fail(
                f"shapes of its bottoms: must be equal, got {shape_text(values[0].shape)} and "
                f"{shape_text(operand.shape)}"
            )
    if factors and (operation != "SUM" or len(factors) != len(values)):
        raise layer.fail(
            f"coefficients: must be one for each of {len(values)} bottoms of SUM, got {len(factors)} of {operation}"
        )
    factors = factors or [1.0] * len(values)
    terms = [_linear(graph, operand, factor, 0.0) for operand, factor in zip(values, factors, strict=True)]
    result = terms[0]
    for term in terms[1:]:
        result = _operator(graph, {"SUM": "Add", "PROD": "Mul", "MAX": "Max"}[operation], result, term)
    return [result]


@_layer("Concat", "concat_param", ANY)
def _concat(graph: CaffeGraph, layer: CaffeLayer, *values: CaffeValue) -> list[CaffeValue]:
    first = values[0].shape
    axis = _axis(layer, _named_axis(layer, layer.message["concat_param"], "concat_dim"), len(first))
    for operand in values[1:]:
        if len(operand.shape) != len(first) or any(
            a != b for place, (a, b) in enumerate(zip(operand.shape, first, strict=True)) if place != axis
        ):
            raise layer.fail(
                f"shapes of its bottoms: must be equal except on axis {axis}, got {shape_text(first)} and "
                f"{shape_text(operand.shape)}"
            )
    size = sum(operand.shape[axis] for operand in values)
    return [graph.node("Concat", values, (*first[:axis], size, *first[axis + 1 :]), axis=axis)]


def _named_axis(layer: CaffeLayer, settings: TextMessage, old: str) -> int:
    if old in settings and "axis" in settings:
        raise layer.fail(f"axis: must be given as axis or {old}, got both")
    return settings[old] if old in settings else settings["axis"]


@_layer("Slice", "slice_param")
def _slice(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    settings, tops = layer.message["slice_param"], len(layer.tops)
    axis = _axis(layer, _named_axis(layer, settings, "slice_dim"), len(value.shape))
    size, points = value.shape[axis], settings["slice_point"]
    if points and len(points) != tops - 1:
        raise layer.fail(f"slice points: must be {tops - 1} (one less than tops), got {len(points)}")
    if not points and (tops == 0 or size % tops):
        raise layer.fail(
            f"size {size} of axis {axis}: must be a multiple of {tops} (tops). Give slice_point for unequal parts."
        )
    ends = [*points, size] if points else [size // tops * (place + 1) for place in range(tops)]
    begins = [0, *ends[:-1]]
    if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
        raise layer.fail(f"slice points {points} must rise and be within 0 to {size}")
    return [_cut(graph, value, {axis: (begin, end)}) for begin, end in zip(begins, ends, strict=True)]


def _cut(graph: CaffeGraph, value: CaffeValue, ranges: dict[int, tuple[int, int]]) -> CaffeValue:
    """The part of a value between begin and end on some axes."""
    shape = tuple(ranges[a][1] - ranges[a][0] if a in ranges else size for a, size in enumerate(value.shape))
    columns = ([b for b, _ in ranges.values()], [e for _, e in ranges.values()], list(ranges))
    return graph.node("Slice", [value, *(graph.constant(np.array(column, np.int64)) for column in columns)], shape)


@_layer("Split", None)
def _split(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    return [value for _ in layer.tops]


@_layer("Crop", "crop_param", range(2, 3))
def _crop(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue, like: CaffeValue) -> list[CaffeValue]:
    """The first bottom cut to the sizes of the second, from ``axis`` on."""
    settings, axes = layer.message["crop_param"], len(value.shape)
    axis, offsets = _axis(layer, settings["axis"], axes), settings["offset"] or [0]
    if len(like.shape) != axes or len(offsets) not in (1, axes - axis):
        raise layer.fail(
            f"offsets: must be 1 or {axes - axis} for bottoms of {axes} axes each, got {len(offsets)} for {axes} "
            f"and {len(like.shape)} axes"
        )
    offsets = offsets * (axes - axis) if len(offsets) == 1 else offsets
    ranges = {a: (begin, begin + like.shape[a]) for a, begin in zip(range(axis, axes), offsets, strict=True)}
    if any(end > value.shape[a] for a, (_, end) in ranges.items()):
        raise layer.fail(
            f"end of the crop: must be within {shape_text(value.shape)}, got {shape_text(like.shape)} at offsets "
            f"{offsets}"
        )
    return [_cut(graph, value, ranges)]


@_layer("Flatten", "flatten_param")
def _flatten(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    settings, shape = layer.message["flatten_param"], value.shape
    first = _axis(layer, settings["axis"], len(shape))
    last = _axis(layer, settings["end_axis"], len(shape), "end_axis")
    if last < first:
        raise layer.fail(f"end_axis: must be at least {first} (axis), got {last}")
    return [_reshaped(graph, value, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))]


@_layer("Reshape", "reshape_param")
def _reshape(graph: CaffeGraph, layer: CaffeLayer, value: CaffeValue) -> list[CaffeValue]:
    """Reshape: 0 keeps a dimension, one -1 takes the remaining size; axis and num_axes select the replaced part."""
    settings, shape = layer.message["reshape_param"], value.shape
    begin = settings["axis"] + (len(shape) + 1 if settings["axis"] < 0 else 0)
    count = len(shape) - begin if settings["num_axes"] == -1 else settings["num_axes"]
    if not 0 <= begin <= len(shape) or not 0 <= count <= len(shape) - begin:
        raise layer.fail(
            f"axis and num_axes: must be within the {len(shape)} axes of the blob, got {settings['axis']} and "
            f"{settings['num_axes']}"
        )
    dims = list(settings["shape"]["dim"])
    for place, size in enumerate(dims):
        if size == 0 and begin + place < len(shape):
            dims[place] = shape[begin + place]
    rest = math.prod(shape[:begin]) * math.prod(shape[begin + count :]) * math.prod(size for size in dims if size != -1)
    if dims.count(-1) == 1 and rest > 0 and value.size % rest == 0:
        dims[dims.index(-1)] = value.size // rest
    new_shape = (*shape[:begin], *dims, *shape[begin + count :])
    if any(size <= 0 for size in new_shape) or math.prod(new_shape) != value.size:
        raise layer.fail(
            f"new shape: must have the {value.size} elements of {shape_text(shape)}, got "
            f"{shape_text(settings['shape']['dim'])}"
        )
    return [_reshaped(graph, value, new_shape)]
