"""The float network that a user writes: layers, and the tensors between them.

Tensors are cubes (channels, height, width) of real numbers, weights are numpy arrays (kernels, channels, rows,
columns).
Every method of :class:`Network` adds one layer and returns the tensor it makes, so that a network reads top to bottom::

    net = Network("tiny")
    x = net.input("data", (3, 32, 32))
    x = net.convolution("conv1", x, weights, bias, padding=1)
    x = net.relu("relu1", x)
    net.output(net.max_pool("pool1", x, 2))

Shapes and arguments are checked here; what one hardware configuration can do is checked when the network is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.builder.layer_types import layer_type
from nvdla.builder.shapes import Padding, padding_of, pair, pooled, slid
from nvdla.errors import BuildError

# Largest width, height and channel count of a data cube (13-bit size registers).
MAX_SIZE = 8192


@dataclass(eq=False)
class Tensor:
    """A cube (channels, height, width) that one layer makes and others take."""

    name: str
    shape: tuple[int, int, int]
    producer: Layer

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape))}"


@dataclass(eq=False)
class Layer:
    """One layer. ``kind`` selects the float form (floating.py) and the lowering (lower/); ``settings`` are its
    numbers."""

    name: str
    kind: str
    inputs: list[Tensor]
    settings: dict[str, Any] = field(default_factory=dict)
    made: Tensor | None = None

    @property
    def output(self) -> Tensor:
        """The tensor that it makes."""
        assert self.made is not None, "a layer has its tensor from the network that it is added to"
        return self.made

    def __getattr__(self, key: str) -> Any:
        try:
            return self.__dict__["settings"][key]
        except KeyError:
            raise AttributeError(key) from None


class Network:
    """A network under construction. Layer names are unique; tensors carry the name of the layer that makes them."""

    def __init__(self, name: str = "network") -> None:
        self.name = name
        self.layers: list[Layer] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    # ---- ends

    def input(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor (channels, height, width) that the application binds."""
        tensor = self._add(name, "input", [], tuple(shape))
        self.inputs.append(tensor)
        return tensor

    def output(self, tensor: Tensor) -> Tensor:
        """Declare a tensor as an output of the network; outputs are bound in the order of these calls."""
        self._own(tensor, "output")
        if tensor in self.outputs:
            raise BuildError(f"layer {tensor.name}: it is an output already")
        self.outputs.append(tensor)
        return tensor

    # ---- convolutions

    def convolution(
        self,
        name: str,
        source: Tensor,
        weights: np.ndarray,
        bias: np.ndarray | None = None,
        stride: int | tuple[int, int] = 1,
        padding: Padding = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
    ) -> Tensor:
        """A convolution. ``weights`` (kernels, channels / groups, rows, columns), ``bias`` (kernels,).

        Pairs are (vertical, horizontal); ``padding`` is one number, a pair, or (top, bottom, left, right).
        """
        weights = self._weights(name, weights)
        kernels, per_group, rows, columns = weights.shape
        channels, height, width = self._own(source, name).shape
        if groups < 1 or channels % groups or kernels % groups or per_group != channels // groups:
            raise BuildError(
                f"layer {name}: weights {weights.shape} with {groups} groups do not fit {channels} input channels; "
                f"they must be (kernels, {channels} / groups, rows, columns) and groups divide kernels and channels"
            )
        stride, dilation = pair(name, "stride", stride), pair(name, "dilation", dilation)
        pads = padding_of(name, padding)
        out = (
            slid(name, "height", height + pads[0] + pads[1], rows, stride[0], dilation[0]),
            slid(name, "width", width + pads[2] + pads[3], columns, stride[1], dilation[1]),
        )
        settings = {
            "weights": weights,
            "bias": self._vector(name, "bias", bias, kernels),
            "stride": stride,
            "padding": pads,
            "dilation": dilation,
            "groups": groups,
        }
        return self._add(name, "convolution", [source], (kernels, *out), settings)

    def depthwise(
        self, name: str, source: Tensor, weights: np.ndarray, bias: np.ndarray | None = None, **settings: Any
    ) -> Tensor:
        """A depthwise convolution: ``weights`` (channels, 1, rows, columns), one kernel a channel."""
        return self.convolution(name, source, weights, bias, groups=source.shape[0], **settings)

    def fully_connected(self, name: str, source: Tensor, weights: np.ndarray, bias: np.ndarray | None = None) -> Tensor:
        """An inner product; ``weights`` (kernels, channels * height * width) in the order channel, row, column."""
        weights = np.asarray(weights)
        size = int(np.prod(self._own(source, name).shape))
        if weights.ndim != 2 or weights.shape[1] != size:
            raise BuildError(f"layer {name}: weights {weights.shape} must be (kernels, {size}) for input {source}")
        return self.convolution(name, source, weights.reshape(weights.shape[0], *source.shape), bias)

    def deconvolution(
        self,
        name: str,
        source: Tensor,
        weights: np.ndarray,
        bias: np.ndarray | None = None,
        stride: int | tuple[int, int] = 1,
        padding: Padding = 0,
    ) -> Tensor:
        """A transposed convolution; ``weights`` (channels, kernels, rows, columns), ``padding`` is cut off the
        result."""
        weights = self._weights(name, weights)
        channels, height, width = self._own(source, name).shape
        if weights.shape[0] != channels:
            raise BuildError(f"layer {name}: weights {weights.shape} must be ({channels}, kernels, rows, columns)")
        stride, pads = pair(name, "stride", stride), padding_of(name, padding)
        rows = (height - 1) * stride[0] + weights.shape[2] - pads[0] - pads[1]
        columns = (width - 1) * stride[1] + weights.shape[3] - pads[2] - pads[3]
        if min(rows, columns) < 1:
            raise BuildError(f"layer {name}: padding {pads} cuts the result {rows}x{columns} away; use less padding")
        settings = {
            "weights": weights,
            "bias": self._vector(name, "bias", bias, weights.shape[1]),
            "stride": stride,
            "padding": pads,
        }
        return self._add(name, "deconvolution", [source], (weights.shape[1], rows, columns), settings)

    # ---- per-channel and activation layers

    def scale(self, name: str, source: Tensor, factors: np.ndarray, bias: np.ndarray | None = None) -> Tensor:
        """``factors * x + bias`` a channel; both (channels,) or numbers."""
        channels = self._own(source, name).shape[0]
        settings = {
            "factors": self._vector(name, "factors", factors, channels),
            "bias": self._vector(name, "bias", bias, channels),
        }
        return self._add(name, "scale", [source], source.shape, settings)

    def bias(self, name: str, source: Tensor, bias: np.ndarray) -> Tensor:
        """Add (channels,) numbers."""
        return self.scale(name, source, np.ones(self._own(source, name).shape[0]), bias)

    def batch_norm(
        self,
        name: str,
        source: Tensor,
        mean: np.ndarray,
        variance: np.ndarray,
        gamma: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        epsilon: float = 1e-5,
    ) -> Tensor:
        """``gamma * (x - mean) / sqrt(variance + epsilon) + beta``, all (channels,)."""
        channels = self._own(source, name).shape[0]
        mean, variance = (self._vector(name, what, v, channels) for what, v in (("mean", mean), ("variance", variance)))
        if np.any(variance + epsilon <= 0):
            raise BuildError(f"layer {name}: variance + epsilon must be positive")
        factors = 1.0 / np.sqrt(variance + epsilon)
        if gamma is not None:
            factors = factors * self._vector(name, "gamma", gamma, channels)
        shift = -mean * factors + self._vector(name, "beta", beta, channels)
        return self.scale(name, source, factors, shift)

    def relu(self, name: str, source: Tensor) -> Tensor:
        """max(x, 0)."""
        return self._add(name, "relu", [source], self._own(source, name).shape)

    def prelu(self, name: str, source: Tensor, slopes: np.ndarray | float) -> Tensor:
        """``x`` where positive, ``slope * x`` elsewhere; slopes a number or (channels,)."""
        slopes = self._vector(name, "slopes", slopes, self._own(source, name).shape[0])
        return self._add(name, "prelu", [source], source.shape, {"slopes": slopes})

    def clip(self, name: str, source: Tensor, low: float = 0.0, high: float | np.ndarray = 6.0) -> Tensor:
        """Limit to low..high; the defaults are ReLU6. ``high`` may be (channels,) numbers."""
        if not np.all(low < np.asarray(high)):
            raise BuildError(f"layer {name}: low {low} must be less than high {np.min(high)}")
        channels = self._own(source, name).shape[0]
        limit = float(high) if np.ndim(high) == 0 else self._vector(name, "high", high, channels)
        return self._add(name, "clip", [source], source.shape, {"low": float(low), "high": limit})

    def function(self, name: str, source: Tensor, function: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        """Any function of one number, by look-up table. ``function`` maps a float64 array to one of the same shape."""
        return self._add(name, "function", [source], self._own(source, name).shape, {"function": function})

    def sigmoid(self, name: str, source: Tensor) -> Tensor:
        """1 / (1 + exp(-x)), by a lookup table."""
        return self.function(name, source, lambda x: 1.0 / (1.0 + np.exp(-np.clip(x, -700, 700))))

    def tanh(self, name: str, source: Tensor) -> Tensor:
        """tanh(x), by a lookup table."""
        return self.function(name, source, np.tanh)

    # ---- several inputs

    def add(self, name: str, *sources: Tensor) -> Tensor:
        """The sum of two or more tensors, element by element."""
        return self._elementwise(name, "add", sources)

    def multiply(self, name: str, *sources: Tensor) -> Tensor:
        """The product of two or more tensors, element by element."""
        return self._elementwise(name, "multiply", sources)

    def maximum(self, name: str, *sources: Tensor) -> Tensor:
        """The largest of two or more tensors, element by element."""
        return self._elementwise(name, "maximum", sources)

    def minimum(self, name: str, *sources: Tensor) -> Tensor:
        """The smallest of two or more tensors, element by element."""
        return self._elementwise(name, "minimum", sources)

    def concat(self, name: str, *sources: Tensor, axis: int = 0) -> Tensor:
        """Join along the channels (``axis`` 0), rows (1) or columns (2)."""
        shapes = [self._own(each, name).shape for each in sources]
        if axis not in (0, 1, 2):
            raise BuildError(f"layer {name}: concat axis {axis} is not 0 (channels), 1 (rows) or 2 (columns)")
        if not shapes or len({shape[:axis] + shape[axis + 1 :] for shape in shapes}) > 1:
            equal = ("height and width", "channels and width", "channels and height")[axis]
            raise BuildError(f"layer {name}: concat needs inputs of one {equal}, got {shapes}")
        shape = (*shapes[0][:axis], sum(each[axis] for each in shapes), *shapes[0][axis + 1 :])
        if axis == 0:
            return self._add(name, "concat", list(sources), shape)
        return self._add(name, "join", list(sources), shape, {"axis": axis})

    # ---- parts, borders, constants

    def constant(self, name: str, values: np.ndarray) -> Tensor:
        """A tensor (channels, height, width) of fixed numbers, kept in the loadable."""
        values = np.asarray(values, np.float64)
        if values.ndim != 3 or not np.all(np.isfinite(values)):
            raise BuildError(f"layer {name}: a constant must be (channels, height, width) of finite numbers")
        return self._add(name, "constant", [], values.shape, {"values": values})

    def slice(
        self,
        name: str,
        source: Tensor,
        channels: tuple[int, int] | None = None,
        rows: tuple[int, int, int] | None = None,
        columns: tuple[int, int, int] | None = None,
    ) -> Tensor:
        """A part of a tensor: ``channels`` (first, count), ``rows`` and ``columns`` (first, step, count)."""
        shape = self._own(source, name).shape
        channels = (0, shape[0]) if channels is None else channels
        rows = (0, 1, shape[1]) if rows is None else rows
        columns = (0, 1, shape[2]) if columns is None else columns
        for what, size, (first, step, count) in (
            ("channels", shape[0], (channels[0], 1, channels[1])),
            ("rows", shape[1], rows),
            ("columns", shape[2], columns),
        ):
            if first < 0 or step < 1 or count < 1 or first + (count - 1) * step >= size:
                raise BuildError(f"layer {name}: {what} {first} + {count} steps of {step} are not within {size}")
        settings = {"channels": channels, "rows": rows, "columns": columns}
        return self._add(name, "slice", [source], (channels[1], rows[2], columns[2]), settings)

    def pad(self, name: str, source: Tensor, padding: Padding, value: float = 0.0) -> Tensor:
        """A border of one number around rows and columns."""
        pads = padding_of(name, padding)
        channels, height, width = self._own(source, name).shape
        shape = (channels, height + pads[0] + pads[1], width + pads[2] + pads[3])
        return self._add(name, "pad", [source], shape, {"padding": pads, "value": float(value)})

    # ---- pooling and the rest

    def max_pool(
        self,
        name: str,
        source: Tensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: Padding = 0,
    ) -> Tensor:
        """Largest value of each window; ``stride`` defaults to the kernel; padding never wins."""
        return self._pool(name, "max", source, kernel, stride, padding)

    def min_pool(
        self,
        name: str,
        source: Tensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: Padding = 0,
    ) -> Tensor:
        """The smallest value of each window; padding is left out."""
        return self._pool(name, "min", source, kernel, stride, padding)

    def average_pool(
        self,
        name: str,
        source: Tensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: Padding = 0,
        counted: Padding | None = None,
    ) -> Tensor:
        """Mean of each window; padding counts as zeros (the hardware always divides by the whole kernel).

        ``counted``: the part of the padding that counts, where that is not all; windows that reach beyond it are
        divided by what of them lies within.
        """
        made = self._pool(name, "average", source, kernel, stride, padding)
        pads = made.producer.padding
        within = pads if counted is None else padding_of(name, counted)
        if any(inner > outer for inner, outer in zip(within, pads, strict=True)):
            raise BuildError(f"layer {name}: counted padding {within} must be at most the padding {pads}")
        made.producer.settings["counted"] = within
        return made

    def global_average_pool(self, name: str, source: Tensor) -> Tensor:
        """The average of each channel."""
        return self.average_pool(name, source, self._own(source, name).shape[1:])

    def global_max_pool(self, name: str, source: Tensor) -> Tensor:
        """The largest value of each channel."""
        return self.max_pool(name, source, self._own(source, name).shape[1:])

    def lrn(
        self, name: str, source: Tensor, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> Tensor:
        """Local response normalisation across channels: ``x * (k + alpha / size * sum(x^2)) ** -beta``."""
        if size not in (3, 5, 7, 9):
            raise BuildError(f"layer {name}: LRN size {size} is not one of 3, 5, 7, 9 (the windows of the CDP)")
        if k <= 0 or alpha < 0:
            raise BuildError(f"layer {name}: LRN needs k > 0 and alpha >= 0, got k {k} and alpha {alpha}")
        settings = {"size": size, "alpha": float(alpha), "beta": float(beta), "k": float(k)}
        return self._add(name, "lrn", [source], self._own(source, name).shape, settings)

    def upsample(self, name: str, source: Tensor, factor: int | tuple[int, int]) -> Tensor:
        """Nearest neighbour by whole factors (vertical, horizontal)."""
        return self.add_layer("upsample", name, [source], factor=factor)

    def add_layer(self, kind: str, name: str, sources: Sequence[Tensor], **settings: Any) -> Tensor:
        """A layer of a kind that is one file (:mod:`nvdla.builder.layer_types`). Raises BuildError."""
        shapes = [self._own(source, name).shape for source in sources]
        shape = layer_type(kind).shape(name, shapes, settings)
        return self._add(name, kind, list(sources), shape, settings)

    def softmax(self, name: str, source: Tensor) -> Tensor:
        """Softmax over the channels of a 1x1 cube, on the CPU (the emulated task of NVIDIA's runtime)."""
        if self._own(source, name).shape[1:] != (1, 1):
            raise BuildError(
                f"layer {name}: softmax of {source} is not possible, the CPU task normalises a 1x1 cube only; "
                "use fully_connected or global_average_pool before it"
            )
        return self._add(name, "softmax", [source], source.shape)

    # ---- the common part

    def layer(self, name: str) -> Layer:
        """The layer of that name. Raises BuildError where there is none."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise BuildError(f"network {self.name} has no layer {name}")

    def changed(self, settings: Mapping[str, Mapping[str, Any]]) -> Network:
        """A network of the same layers, some of them (by name) with other settings; this one stays as it is."""
        result = Network(self.name)
        made: dict[str, Tensor] = {}
        for old in self.layers:
            inputs = [made[tensor.name] for tensor in old.inputs]
            layer = Layer(old.name, old.kind, inputs, {**old.settings, **settings.get(old.name, {})})
            made[old.name] = layer.made = Tensor(old.name, old.output.shape, layer)
            result.layers.append(layer)
        result.inputs = [made[tensor.name] for tensor in self.inputs]
        result.outputs = [made[tensor.name] for tensor in self.outputs]
        return result

    def consumers(self, tensor: Tensor) -> list[Layer]:
        """The layers that take a tensor."""
        return [layer for layer in self.layers if tensor in layer.inputs]

    def _add(
        self, name: str, kind: str, inputs: list[Tensor], shape: tuple[int, ...], settings: dict[str, Any] | None = None
    ) -> Tensor:
        if any(layer.name == name for layer in self.layers):
            raise BuildError(f"layer {name}: another layer has this name; names must be unique")
        if len(shape) != 3 or any(not 1 <= int(size) <= MAX_SIZE for size in shape):
            raise BuildError(
                f"layer {name}: shape {tuple(shape)} must be (channels, height, width), each 1 to {MAX_SIZE}; "
                "make the tensor smaller or split the layer"
            )
        layer = Layer(name, kind, inputs, settings or {})
        channels, height, width = (int(size) for size in shape)
        layer.made = Tensor(name, (channels, height, width), layer)
        self.layers.append(layer)
        return layer.made

    def _own(self, tensor: Tensor, name: str) -> Tensor:
        if not isinstance(tensor, Tensor) or tensor.producer not in self.layers:
            raise BuildError(f"layer {name}: its input is not a tensor of network {self.name}")
        return tensor

    def _elementwise(self, name: str, operation: str, sources: Sequence[Tensor]) -> Tensor:
        shapes = {self._own(each, name).shape for each in sources}
        if len(sources) < 2 or len(shapes) > 1:
            raise BuildError(f"layer {name}: {operation} needs two or more inputs of one shape, got {sorted(shapes)}")
        return self._add(name, "elementwise", list(sources), sources[0].shape, {"operation": operation})

    def _pool(self, name: str, mode: str, source: Tensor, kernel: Any, stride: Any, padding: Padding) -> Tensor:
        channels, height, width = self._own(source, name).shape
        kernel = pair(name, "kernel", kernel)
        stride = kernel if stride is None else pair(name, "stride", stride)
        pads = padding_of(name, padding)
        if max(pads[0], pads[1]) >= kernel[0] or max(pads[2], pads[3]) >= kernel[1]:
            raise BuildError(f"layer {name}: padding {pads} must be less than the kernel {kernel}; use less padding")
        out = (
            pooled(name, "height", height + pads[0] + pads[1], kernel[0], stride[0]),
            pooled(name, "width", width + pads[2] + pads[3], kernel[1], stride[1]),
        )
        settings = {"mode": mode, "kernel": kernel, "stride": stride, "padding": pads}
        return self._add(name, "pool", [source], (channels, *out), settings)

    @staticmethod
    def _weights(name: str, weights: np.ndarray) -> np.ndarray:
        weights = np.asarray(weights)
        if weights.dtype != np.float32:  # which stay as they are: large networks take half the memory
            weights = weights.astype(np.float64)
        if weights.ndim != 4 or weights.size == 0:
            raise BuildError(f"layer {name}: weights {weights.shape} must have four dimensions, none of them zero")
        if not np.all(np.isfinite(weights)):
            raise BuildError(f"layer {name}: weights hold NaN or infinity")
        return weights

    @staticmethod
    def _vector(name: str, what: str, values: np.ndarray | float | None, count: int) -> np.ndarray:
        """(count,) float64 from an array, a number or None (zeros)."""
        vector = np.zeros(count) if values is None else np.asarray(values, np.float64).reshape(-1)
        if vector.size == 1:
            vector = np.full(count, vector[0])
        if vector.size != count or not np.all(np.isfinite(vector)):
            raise BuildError(f"layer {name}: {what} must be {count} finite numbers, got {vector.size}")
        return vector
