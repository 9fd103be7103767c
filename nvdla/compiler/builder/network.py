"""Networks of layers: tensors, layer types and their registry, shapes.

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
from dataclasses import fields, replace
from itertools import islice

import numpy as np

from nvdla.compiler.builder.layer_types import layer_type
from nvdla.compiler.builder.layers import Layer, NetworkTensor, Padding, numbers_of
from nvdla.errors import BuildError, shape_text
from nvdla.limits import MAX_CUBE_SIDE


class Network:
    """A network under construction. Layer names are unique; tensors carry the name of the layer that makes them."""

    def __init__(self, name: str = "network") -> None:
        self.name = name
        self._layers: dict[str, Layer] = {}
        self._consumers: dict[NetworkTensor, list[Layer]] | None = None
        self._numbers: dict[str, int] = {}
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
        self._numbers = {}

    @property
    def count(self) -> int:
        """The number of layers."""
        return len(self._layers)

    def since(self, count: int) -> list[Layer]:
        """The layers that were added after the first ``count`` layers."""
        return list(islice(reversed(self._layers.values()), len(self._layers) - count))[::-1]

    def free(self, wanted: str) -> str:
        """A name that no layer has: ``wanted``, or the first of ``wanted.2``, ``wanted.3`` that is free."""
        number = self._numbers.get(wanted, 1)
        while self.has(wanted if number == 1 else f"{wanted}.{number}"):
            number += 1
        self._numbers[wanted] = number
        return wanted if number == 1 else f"{wanted}.{number}"

    def has(self, name: str) -> bool:
        """Return whether a layer has this name."""
        return name in self._layers

    def rename(self, layer: Layer, name: str) -> None:
        """Give a layer, and the tensor that it makes, another name, which no other layer has."""
        if next(reversed(self._layers)) == layer.name:  # no other layer moves
            self._layers[name] = self._layers.pop(layer.name)
            layer.name = layer.output.name = name
            self._numbers = {}
            return
        layers = self.layers
        layer.name = layer.output.name = name
        self.layers = layers

    # ---- ends

    def input(self, name: str, shape: Sequence[int]) -> NetworkTensor:
        """A tensor (channels, height, width) that the application binds."""
        tensor = self._add(Layer(name, "input", []), tuple(shape))
        self.inputs.append(tensor)
        return tensor

    def output(self, tensor: NetworkTensor) -> NetworkTensor:
        """Declare a tensor as an output of the network; outputs are bound in the order of these calls."""
        self._own(tensor, "output")
        if tensor in self.outputs:
            raise BuildError("it is an output already", layer=tensor.name)
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
        self,
        name: str,
        source: NetworkTensor,
        weights: np.ndarray,
        bias: np.ndarray | None = None,
        stride: int | tuple[int, int] = 1,
        padding: Padding = 0,
        dilation: int | tuple[int, int] = 1,
    ) -> NetworkTensor:
        """Add a depthwise convolution: ``weights`` (channels, 1, rows, columns), one kernel per channel."""
        return self.convolution(name, source, weights, bias, stride, padding, dilation, source.shape[0])

    def fully_connected(
        self, name: str, source: NetworkTensor, weights: np.ndarray, bias: np.ndarray | None = None
    ) -> NetworkTensor:
        """An inner product; ``weights`` (kernels, channels * height * width) in the order channel, row, column."""
        weights = np.asarray(weights)
        size = int(np.prod(self._own(source, name).shape))
        if weights.ndim != 2 or weights.shape[1] != size:
            raise BuildError(
                f"weights {shape_text(weights.shape)} must be (kernels, {size}) for input {source}", layer=name
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
            raise BuildError("variance + epsilon must be positive", layer=name)
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
            raise BuildError(f"concat axis {axis} is not 0 (channels), 1 (rows) or 2 (columns)", layer=name)
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
        divided by the number of elements within it.
        """
        window = {"kernel": kernel, "stride": stride, "padding": padding, "counted": counted}
        return self.add_layer("pool", name, [source], mode="average", **window)

    def global_average_pool(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """The average of each channel, in the scale of the source."""
        return self.average_pool(name, source, self._own(source, name).shape[1:])

    def mean(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """Average of each channel with a separate scale, which in int8 keeps more bits than the source's."""
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
        """Upsample by repeating the nearest element, by whole factors (vertical, horizontal)."""
        return self.add_layer("upsample", name, [source], factor=factor)

    def add_layer(self, kind: str, name: str, sources: Sequence[NetworkTensor], **settings: object) -> NetworkTensor:
        """A layer of a kind (:mod:`nvdla.compiler.builder.network`). Raises BuildError."""
        shapes = [self._own(source, name).shape for source in sources]
        chosen = layer_type(kind)
        if chosen.inputs not in (None, len(shapes)):
            raise BuildError(f"a {kind} takes {chosen.inputs} inputs, got {len(shapes)}", layer=name)
        try:
            parsed = chosen.parse(name, shapes, settings)
        except KeyError as missing:
            raise BuildError(f"a {kind} needs the setting {missing}", layer=name) from None
        if unknown := settings.keys() - {each.name for each in fields(parsed)}:
            raise BuildError(f"a {kind} has no setting {sorted(unknown)[0]!r}", layer=name)
        layer = Layer(name, kind, list(sources), parsed)
        return self._add(layer, chosen.shape(layer))

    def softmax(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """Softmax over the channels of a 1x1 cube, on the CPU (the emulated task of NVIDIA's runtime)."""
        return self.add_layer("softmax", name, [source])

    # ---- the common part

    def layer(self, name: str) -> Layer:
        """The layer of that name. Raises BuildError where there is none."""
        if name not in self._layers:
            raise BuildError(f"network {self.name} has no layer {name}")
        return self._layers[name]

    def changed(self, settings: Mapping[str, Mapping[str, object]]) -> Network:
        """Return a network of the same layers, some of them (by name) with other settings; this one is unchanged."""
        result = Network(self.name)
        made: dict[str, NetworkTensor] = {}
        for old in self.layers:
            inputs = [made[tensor.name] for tensor in old.inputs]
            layer = Layer(old.name, old.kind, inputs, replace(old.settings, **settings.get(old.name, {})))
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

    def _add(self, layer: Layer, shape: tuple[int, ...]) -> NetworkTensor:
        name = layer.name
        if name in self._layers:
            raise BuildError("another layer has this name; names must be unique", layer=name)
        if len(shape) != 3 or any(not 1 <= int(size) <= MAX_CUBE_SIDE for size in shape):
            raise BuildError(
                f"shape {shape_text(shape)} must be (channels, height, width), each 1 to {MAX_CUBE_SIDE}; "
                "make the tensor smaller or split the layer",
                layer=name,
            )
        channels, height, width = (int(size) for size in shape)
        layer.made = NetworkTensor(name, (channels, height, width), layer)
        self._layers[name] = layer
        self._consumers = None
        return layer.made

    def _own(self, tensor: NetworkTensor, name: str) -> NetworkTensor:
        if not isinstance(tensor, NetworkTensor) or self._layers.get(tensor.name) is not tensor.producer:
            raise BuildError(f"its input is not a tensor of network {self.name}", layer=name)
        return tensor
