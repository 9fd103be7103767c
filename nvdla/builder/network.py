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
from nvdla.builder.shapes import Padding, numbers_of
from nvdla.errors import BuildError, shape_text

# Largest width, height and channel count of a data cube (13-bit size registers).
MAX_SIZE = 8192


@dataclass(eq=False)
class NetworkTensor:
    """A cube (channels, height, width) that one layer makes and others take."""

    name: str
    shape: tuple[int, int, int]
    producer: Layer

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape))}"


@dataclass(eq=False)
class Layer:
    """One layer. ``kind`` selects what it is (:mod:`nvdla.builder.layer_types`); ``settings`` are its numbers."""

    name: str
    kind: str
    inputs: list[NetworkTensor]
    settings: dict[str, Any] = field(default_factory=dict)
    made: NetworkTensor | None = None

    @property
    def output(self) -> NetworkTensor:
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
        self._layers: dict[str, Layer] = {}
        self._consumers: dict[NetworkTensor, list[Layer]] | None = None
        self.inputs: list[NetworkTensor] = []
        self.outputs: list[NetworkTensor] = []

    @property
    def layers(self) -> list[Layer]:
        """All layers, in the order in which they were added."""
        return list(self._layers.values())

    @layers.setter
    def layers(self, layers: Sequence[Layer]) -> None:
        """Other layers, in this order; their tensors stay."""
        self._layers = {layer.name: layer for layer in layers}
        self._consumers = None

    def has(self, name: str) -> bool:
        """Whether a layer has this name."""
        return name in self._layers

    def rename(self, layer: Layer, name: str) -> None:
        """Give a layer, and the tensor that it makes, another name, which no other layer has."""
        layers = self.layers
        layer.name = layer.output.name = name
        self.layers = layers

    # ---- ends

    def input(self, name: str, shape: Sequence[int]) -> NetworkTensor:
        """A tensor (channels, height, width) that the application binds."""
        tensor = self._add(name, "input", [], tuple(shape))
        self.inputs.append(tensor)
        return tensor

    def output(self, tensor: NetworkTensor) -> NetworkTensor:
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
        source: NetworkTensor,
        weights: np.ndarray,
        bias: np.ndarray | None = None,
        stride: int | tuple[int, int] = 1,
        padding: Padding = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
    ) -> NetworkTensor:
        """A convolution. ``weights`` (kernels, channels / groups, rows, columns), ``bias`` (kernels,).

        Pairs are (vertical, horizontal); ``padding`` is one number, a pair, or (top, bottom, left, right).
        """
        settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return self.add_layer("convolution", name, [source], weights=weights, bias=bias, **settings)

    def depthwise(
        self, name: str, source: NetworkTensor, weights: np.ndarray, bias: np.ndarray | None = None, **settings: Any
    ) -> NetworkTensor:
        """A depthwise convolution: ``weights`` (channels, 1, rows, columns), one kernel a channel."""
        return self.convolution(name, source, weights, bias, groups=source.shape[0], **settings)

    def fully_connected(
        self, name: str, source: NetworkTensor, weights: np.ndarray, bias: np.ndarray | None = None
    ) -> NetworkTensor:
        """An inner product; ``weights`` (kernels, channels * height * width) in the order channel, row, column."""
        weights = np.asarray(weights)
        size = int(np.prod(self._own(source, name).shape))
        if weights.ndim != 2 or weights.shape[1] != size:
            raise BuildError(
                f"layer {name}: weights {shape_text(weights.shape)} must be (kernels, {size}) for input {source}"
            )
        return self.convolution(name, source, weights.reshape(weights.shape[0], *source.shape), bias)

    def deconvolution(
        self,
        name: str,
        source: NetworkTensor,
        weights: np.ndarray,
        bias: np.ndarray | None = None,
        stride: int | tuple[int, int] = 1,
        padding: Padding = 0,
    ) -> NetworkTensor:
        """A transposed convolution; ``weights`` (channels, kernels, rows, columns), ``padding`` is cut off the
        result."""
        settings = {"stride": stride, "padding": padding}
        return self.add_layer("deconvolution", name, [source], weights=weights, bias=bias, **settings)

    # ---- per-channel and activation layers

    def scale(
        self, name: str, source: NetworkTensor, factors: np.ndarray, bias: np.ndarray | None = None
    ) -> NetworkTensor:
        """``factors * x + bias`` a channel; both (channels,) or numbers."""
        return self.add_layer("scale", name, [source], factors=factors, bias=bias)

    def bias(self, name: str, source: NetworkTensor, bias: np.ndarray) -> NetworkTensor:
        """Add (channels,) numbers."""
        return self.scale(name, source, np.ones(self._own(source, name).shape[0]), bias)

    def batch_norm(
        self,
        name: str,
        source: NetworkTensor,
        mean: np.ndarray,
        variance: np.ndarray,
        gamma: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        epsilon: float = 1e-5,
    ) -> NetworkTensor:
        """``gamma * (x - mean) / sqrt(variance + epsilon) + beta``, all (channels,)."""
        channels = self._own(source, name).shape[0]
        mean, variance = (numbers_of(name, what, v, channels) for what, v in (("mean", mean), ("variance", variance)))
        if np.any(variance + epsilon <= 0):
            raise BuildError(f"layer {name}: variance + epsilon must be positive")
        factors = 1.0 / np.sqrt(variance + epsilon)
        if gamma is not None:
            factors = factors * numbers_of(name, "gamma", gamma, channels)
        shift = -mean * factors + numbers_of(name, "beta", beta, channels)
        return self.scale(name, source, factors, shift)

    def relu(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """max(x, 0)."""
        return self.add_layer("relu", name, [source])

    def prelu(self, name: str, source: NetworkTensor, slopes: np.ndarray | float) -> NetworkTensor:
        """``x`` where positive, ``slope * x`` elsewhere; slopes a number or (channels,)."""
        return self.add_layer("prelu", name, [source], slopes=slopes)

    def clip(self, name: str, source: NetworkTensor, low: float = 0.0, high: float | np.ndarray = 6.0) -> NetworkTensor:
        """Limit to low..high; the defaults are ReLU6. ``high`` may be (channels,) numbers."""
        return self.add_layer("clip", name, [source], low=low, high=high)

    def function(self, name: str, source: NetworkTensor, function: Callable[[np.ndarray], np.ndarray]) -> NetworkTensor:
        """Any function of one number, by look-up table. ``function`` maps a float64 array to one of the same shape."""
        return self.add_layer("function", name, [source], function=function)

    def sigmoid(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """1 / (1 + exp(-x)), by a lookup table."""
        return self.function(name, source, lambda x: 1.0 / (1.0 + np.exp(-np.clip(x, -700, 700))))

    def tanh(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """tanh(x), by a lookup table."""
        return self.function(name, source, np.tanh)

    # ---- several inputs

    def add(self, name: str, *sources: NetworkTensor) -> NetworkTensor:
        """The sum of two or more tensors, element by element."""
        return self.add_layer("elementwise", name, sources, operation="add")

    def multiply(self, name: str, *sources: NetworkTensor) -> NetworkTensor:
        """The product of two or more tensors, element by element."""
        return self.add_layer("elementwise", name, sources, operation="multiply")

    def maximum(self, name: str, *sources: NetworkTensor) -> NetworkTensor:
        """The largest of two or more tensors, element by element."""
        return self.add_layer("elementwise", name, sources, operation="maximum")

    def minimum(self, name: str, *sources: NetworkTensor) -> NetworkTensor:
        """The smallest of two or more tensors, element by element."""
        return self.add_layer("elementwise", name, sources, operation="minimum")

    def concat(self, name: str, *sources: NetworkTensor, axis: int = 0) -> NetworkTensor:
        """Join along the channels (``axis`` 0), rows (1) or columns (2)."""
        if axis not in (0, 1, 2):
            raise BuildError(f"layer {name}: concat axis {axis} is not 0 (channels), 1 (rows) or 2 (columns)")
        if axis == 0:
            return self.add_layer("concat", name, sources)
        return self.add_layer("join", name, sources, axis=axis)

    # ---- parts, borders, constants

    def constant(self, name: str, values: np.ndarray) -> NetworkTensor:
        """A tensor (channels, height, width) of fixed numbers, kept in the loadable."""
        return self.add_layer("constant", name, [], values=values)

    def slice(
        self,
        name: str,
        source: NetworkTensor,
        channels: tuple[int, int] | None = None,
        rows: tuple[int, int, int] | None = None,
        columns: tuple[int, int, int] | None = None,
    ) -> NetworkTensor:
        """A part of a tensor: ``channels`` (first, count), ``rows`` and ``columns`` (first, stride, count)."""
        return self.add_layer("slice", name, [source], channels=channels, rows=rows, columns=columns)

    def pad(self, name: str, source: NetworkTensor, padding: Padding, value: float = 0.0) -> NetworkTensor:
        """A border of one number around rows and columns."""
        return self.add_layer("pad", name, [source], padding=padding, value=value)

    # ---- pooling and the rest

    def max_pool(
        self,
        name: str,
        source: NetworkTensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: Padding = 0,
    ) -> NetworkTensor:
        """Largest value of each window; ``stride`` defaults to the kernel; padding never wins."""
        return self.add_layer("pool", name, [source], mode="max", kernel=kernel, stride=stride, padding=padding)

    def min_pool(
        self,
        name: str,
        source: NetworkTensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: Padding = 0,
    ) -> NetworkTensor:
        """The smallest value of each window; padding is left out."""
        return self.add_layer("pool", name, [source], mode="min", kernel=kernel, stride=stride, padding=padding)

    def average_pool(
        self,
        name: str,
        source: NetworkTensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: Padding = 0,
        counted: Padding | None = None,
    ) -> NetworkTensor:
        """Mean of each window; padding counts as zeros (the hardware always divides by the whole kernel).

        ``counted``: the part of the padding that counts, where that is not all; windows that reach beyond it are
        divided by what of them lies within.
        """
        window = {"kernel": kernel, "stride": stride, "padding": padding, "counted": counted}
        return self.add_layer("pool", name, [source], mode="average", **window)

    def global_average_pool(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """The average of each channel, in the scale of the source."""
        return self.average_pool(name, source, self._own(source, name).shape[1:])

    def mean(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """The average of each channel with a scale of its own, which in int8 keeps more bits than the source's."""
        return self.add_layer("mean", name, [source])

    def global_max_pool(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """The largest value of each channel."""
        return self.max_pool(name, source, self._own(source, name).shape[1:])

    def lrn(
        self, name: str, source: NetworkTensor, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> NetworkTensor:
        """Local response normalisation across channels: ``x * (k + alpha / size * sum(x^2)) ** -beta``."""
        return self.add_layer("lrn", name, [source], size=size, alpha=alpha, beta=beta, k=k)

    def upsample(self, name: str, source: NetworkTensor, factor: int | tuple[int, int]) -> NetworkTensor:
        """Nearest neighbour by whole factors (vertical, horizontal)."""
        return self.add_layer("upsample", name, [source], factor=factor)

    def add_layer(self, kind: str, name: str, sources: Sequence[NetworkTensor], **settings: Any) -> NetworkTensor:
        """A layer of a kind (:mod:`nvdla.builder.layer_types`). Raises BuildError."""
        shapes = [self._own(source, name).shape for source in sources]
        made = layer_type(kind)
        if made.inputs not in (None, len(shapes)):
            raise BuildError(f"layer {name}: a {kind} takes {made.inputs} inputs, got {len(shapes)}")
        try:
            shape = made.shape(name, shapes, settings)
        except KeyError as missing:
            raise BuildError(f"layer {name}: a {kind} needs the setting {missing}") from None
        return self._add(name, kind, list(sources), shape, settings)

    def softmax(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """Softmax over the channels of a 1x1 cube, on the CPU (the emulated task of NVIDIA's runtime)."""
        return self.add_layer("softmax", name, [source])

    # ---- the common part

    def layer(self, name: str) -> Layer:
        """The layer of that name. Raises BuildError where there is none."""
        if name not in self._layers:
            raise BuildError(f"network {self.name} has no layer {name}")
        return self._layers[name]

    def changed(self, settings: Mapping[str, Mapping[str, Any]]) -> Network:
        """A network of the same layers, some of them (by name) with other settings; this one stays as it is."""
        result = Network(self.name)
        made: dict[str, NetworkTensor] = {}
        for old in self.layers:
            inputs = [made[tensor.name] for tensor in old.inputs]
            layer = Layer(old.name, old.kind, inputs, {**old.settings, **settings.get(old.name, {})})
            made[old.name] = layer.made = NetworkTensor(old.name, old.output.shape, layer)
            result._layers[old.name] = layer
        result.inputs = [made[tensor.name] for tensor in self.inputs]
        result.outputs = [made[tensor.name] for tensor in self.outputs]
        return result

    def consumers(self, tensor: NetworkTensor) -> list[Layer]:
        """The layers that take a tensor."""
        if self._consumers is None:
            self._consumers = {}
            for layer in self._layers.values():
                for source in dict.fromkeys(layer.inputs):
                    self._consumers.setdefault(source, []).append(layer)
        return self._consumers.get(tensor, [])

    def _add(
        self,
        name: str,
        kind: str,
        inputs: list[NetworkTensor],
        shape: tuple[int, ...],
        settings: dict[str, Any] | None = None,
    ) -> NetworkTensor:
        if name in self._layers:
            raise BuildError(f"layer {name}: another layer has this name; names must be unique")
        if len(shape) != 3 or any(not 1 <= int(size) <= MAX_SIZE for size in shape):
            raise BuildError(
                f"layer {name}: shape {shape_text(shape)} must be (channels, height, width), each 1 to {MAX_SIZE}; "
                "make the tensor smaller or split the layer"
            )
        layer = Layer(name, kind, inputs, settings or {})
        channels, height, width = (int(size) for size in shape)
        layer.made = NetworkTensor(name, (channels, height, width), layer)
        self._layers[name] = layer
        self._consumers = None
        return layer.made

    def _own(self, tensor: NetworkTensor, name: str) -> NetworkTensor:
        if not isinstance(tensor, NetworkTensor) or self._layers.get(tensor.name) is not tensor.producer:
            raise BuildError(f"layer {name}: its input is not a tensor of network {self.name}")
        return tensor
