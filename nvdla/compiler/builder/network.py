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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice

import numpy as np

from nvdla.compiler.builder.layer_types import layer_type
from nvdla.compiler.builder.layers import Layer, NetworkTensor, Padding, numbers_of
from nvdla.errors import BuildError, counted, shape_text
from nvdla.limits import MAX_CUBE_SIDE
from nvdla.util.arguments import by_annotations


class Network:
    """A network under construction.

    Layer names are unique; a tensor has the name of the layer that produces it. Methods that add a layer return its
    output tensor (channels, height, width).
    """

    def __init__(self, name: str = "network") -> None:
        self.name = name
        self._layers: dict[str, Layer] = {}
        self._consumers: dict[NetworkTensor, list[Layer]] | None = None
        self._numbers: dict[str, int] = {}
        self.inputs: list[NetworkTensor] = []
        self.outputs: list[NetworkTensor] = []

    def __repr__(self) -> str:
        ends = (f"{tensor.name} {shape_text(tensor.shape)}" for tensor in (*self.inputs, *self.outputs))
        return f"<Network {self.name}: {counted(len(self._layers), 'layer')}; {', '.join(ends)}>"

    @property
    def layers(self) -> list[Layer]:
        """All layers, in the order in which they were added."""
        return list(self._layers.values())

    @layers.setter
    def layers(self, layers: Sequence[Layer]) -> None:
        """Replace the layers; their tensors are unchanged."""
        self._layers = {layer.name: layer for layer in layers}
        self._consumers = None
        self._numbers = {}

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self._layers)

    def since(self, count: int) -> list[Layer]:
        """Return the layers that were added after the first ones.

        Args:
            count: Number of the first layers.
        """
        return list(islice(reversed(self._layers.values()), len(self._layers) - count))[::-1]

    def free(self, wanted: str) -> str:
        """Return a name that no layer has.

        Args:
            wanted: The preferred name; if a layer has it, ``wanted.2``, ``wanted.3`` and so on.
        """
        number = self._numbers.get(wanted, 1)
        while self.has(wanted if number == 1 else f"{wanted}.{number}"):
            number += 1
        self._numbers[wanted] = number
        return wanted if number == 1 else f"{wanted}.{number}"

    def has(self, name: str) -> bool:
        """Return whether a layer has this name.

        Args:
            name: Name of a layer.
        """
        return name in self._layers

    def rename(self, names: Mapping[Layer, str]) -> None:
        """Rename layers and their output tensors.

        Args:
            names: New names of layers of this network, which no other layer has.
        """
        last = next(reversed(self._layers), "")
        if [layer.name for layer in names] == [last]:  # no other layer moves
            (name,) = names.values()
            self._layers[name] = self._layers.pop(last)
            self._layers[name].name = self._layers[name].output.name = name
            self._numbers = {}
        elif names:
            layers = self.layers
            for layer, name in names.items():
                layer.name = layer.output.name = name
            self.layers = layers

    # ---- ends

    def input(self, name: str, shape: Sequence[int]) -> NetworkTensor:
        """Add an input, which the application binds.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            shape: (channels, height, width).
        """
        tensor = self._add(Layer(name, "input", []), tuple(shape))
        self.inputs.append(tensor)
        return tensor

    def output(self, tensor: NetworkTensor) -> NetworkTensor:
        """Declare a tensor as an output of the network; outputs are bound in the order of these calls.

        Args:
            tensor: A tensor of this network.

        Returns:
            The same tensor.

        Raises:
            BuildError: The tensor is an output already, or belongs to another network.
        """
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
        """Add a convolution.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            weights: Array (kernels, channels / groups, rows, columns).
            bias: Numbers (kernels,) to add.
            stride: One number or (vertical, horizontal).
            padding: One number, (vertical, horizontal) or (top, bottom, left, right).
            dilation: One number or (vertical, horizontal).
            groups: Number of groups of channels.
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
        """Add a depthwise convolution: one kernel per channel.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            weights: Array (channels, 1, rows, columns).
            bias: Numbers (channels,) to add.
            stride: One number or (vertical, horizontal).
            padding: One number, (vertical, horizontal) or (top, bottom, left, right).
            dilation: One number or (vertical, horizontal).
        """
        return self.convolution(name, source, weights, bias, stride, padding, dilation, source.shape[0])

    def fully_connected(
        self, name: str, source: NetworkTensor, weights: np.ndarray, bias: np.ndarray | None = None
    ) -> NetworkTensor:
        """Add an inner product.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            weights: Array (kernels, channels * height * width), in the order channel, row, column.
            bias: Numbers (kernels,) to add.

        Raises:
            BuildError: The shape of the weights does not fit the input.
        """
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
        """Add a transposed convolution.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            weights: Array (channels, kernels, rows, columns).
            bias: Numbers (kernels,) to add.
            stride: One number or (vertical, horizontal).
            padding: Rows and columns to cut off the result, in the forms of :meth:`convolution`.
        """
        settings = {"stride": stride, "padding": padding}
        return self.add_layer("deconvolution", name, [source], weights=weights, bias=bias, **settings)

    # ---- per-channel and activation layers

    def scale(
        self, name: str, source: NetworkTensor, factors: np.ndarray, bias: np.ndarray | None = None
    ) -> NetworkTensor:
        """Add ``factors * x + bias`` per channel.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            factors: Numbers (channels,), or one number.
            bias: Numbers (channels,), or one number.
        """
        return self.add_layer("scale", name, [source], factors=factors, bias=bias)

    def bias(self, name: str, source: NetworkTensor, bias: np.ndarray) -> NetworkTensor:
        """Add a constant per channel.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            bias: Numbers (channels,).
        """
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
        """Add ``gamma * (x - mean) / sqrt(variance + epsilon) + beta`` per channel.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            mean: Numbers (channels,).
            variance: Numbers (channels,).
            gamma: Numbers (channels,); default: 1.
            beta: Numbers (channels,); default: 0.
            epsilon: Number added to the variance.

        Raises:
            BuildError: ``variance + epsilon`` is not positive.
        """
        channels = self._own(source, name).shape[0]
        mean, variance = (numbers_of(name, what, v, channels) for what, v in (("mean", mean), ("variance", variance)))
        if np.any(variance + epsilon <= 0):
            raise BuildError("variance + epsilon must be positive", layer=name)
        factors = 1.0 / np.sqrt(variance + epsilon)
        if gamma is not None:
            factors = factors * numbers_of(name, "gamma", gamma, channels)
        shift = -mean * factors + numbers_of(name, "beta", beta, channels)
        return self.scale(name, source, factors, shift)

    def relu(self, name: str, source: NetworkTensor, high: float = math.inf) -> NetworkTensor:
        """Add ``max(x, 0)``.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            high: Limit that the range of the result implies, such as the 6 of a ReLU6: at that end nothing is lost.
        """
        return self.add_layer("relu", name, [source], high=high)

    def prelu(self, name: str, source: NetworkTensor, slopes: np.ndarray | float) -> NetworkTensor:
        """Add a PReLU: ``x`` if positive, else ``slope * x``.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            slopes: One number, or numbers (channels,).
        """
        return self.add_layer("prelu", name, [source], slopes=slopes)

    def clip(self, name: str, source: NetworkTensor, low: float = 0.0, high: float | np.ndarray = 6.0) -> NetworkTensor:
        """Add a limit to an interval; the default is ReLU6.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            low: Lower limit.
            high: Upper limit, one number or numbers (channels,).
        """
        return self.add_layer("clip", name, [source], low=low, high=high)

    def function(
        self,
        name: str,
        source: NetworkTensor,
        function: Callable[[np.ndarray], np.ndarray],
        octaves: bool = False,
    ) -> NetworkTensor:
        """Add a function of one number, computed with a lookup table.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            function: Maps a float64 array to one of the same shape.
            octaves: The function is a power of a positive number. In fp16, its table has entries at powers of two.
        """
        return self.add_layer("function", name, [source], function=function, octaves=octaves)

    def sigmoid(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """Add ``1 / (1 + exp(-x))``, computed with a lookup table.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
        """
        return self.function(name, source, lambda x: 1.0 / (1.0 + np.exp(-np.clip(x, -700, 700))))

    def tanh(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """Add the hyperbolic tangent, computed with a lookup table.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
        """
        return self.function(name, source, np.tanh)

    # ---- several inputs

    def add(self, name: str, *sources: NetworkTensor) -> NetworkTensor:
        """Add the element-wise sum of tensors.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            *sources: Two or more tensors of the same shape.
        """
        return self.add_layer("elementwise", name, sources, operation="add")

    def multiply(self, name: str, *sources: NetworkTensor) -> NetworkTensor:
        """Add the element-wise product of tensors.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            *sources: Two or more tensors of the same shape.
        """
        return self.add_layer("elementwise", name, sources, operation="multiply")

    def maximum(self, name: str, *sources: NetworkTensor) -> NetworkTensor:
        """Add the element-wise maximum of tensors.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            *sources: Two or more tensors of the same shape.
        """
        return self.add_layer("elementwise", name, sources, operation="maximum")

    def minimum(self, name: str, *sources: NetworkTensor) -> NetworkTensor:
        """Add the element-wise minimum of tensors.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            *sources: Two or more tensors of the same shape.
        """
        return self.add_layer("elementwise", name, sources, operation="minimum")

    def concat(self, name: str, *sources: NetworkTensor, axis: int = 0) -> NetworkTensor:
        """Concatenate tensors.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            *sources: Tensors whose shapes differ only in the axis.
            axis: 0 (channels), 1 (rows) or 2 (columns).

        Returns:
            Tensor (channels, height, width).

        Raises:
            BuildError: The axis is not 0, 1 or 2.
        """
        if axis not in (0, 1, 2):
            raise BuildError(f"concat axis: must be 0 (channels), 1 (rows) or 2 (columns), got {axis}", layer=name)
        if axis == 0:
            return self.add_layer("concat", name, sources)
        return self.add_layer("join", name, sources, axis=axis)

    # ---- parts, borders, constants

    def constant(self, name: str, values: np.ndarray) -> NetworkTensor:
        """Add a tensor of fixed numbers, which the loadable contains.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            values: Array (channels, height, width).
        """
        return self.add_layer("constant", name, [], values=values)

    @by_annotations
    def slice(
        self,
        name: str,
        source: NetworkTensor,
        channels: tuple[int, int] | None = None,
        rows: tuple[int, int, int] | None = None,
        columns: tuple[int, int, int] | None = None,
    ) -> NetworkTensor:
        """Add a part of a tensor.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            channels: (first, count); default: all.
            rows: (first, stride, count); default: all.
            columns: (first, stride, count); default: all.
        """
        return self.add_layer("slice", name, [source], channels=channels, rows=rows, columns=columns)

    @by_annotations
    def pad(self, name: str, source: NetworkTensor, padding: Padding, value: float = 0.0) -> NetworkTensor:
        """Add a border of a constant around rows and columns.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            padding: One number, (vertical, horizontal) or (top, bottom, left, right).
            value: The constant.
        """
        return self.add_layer("pad", name, [source], padding=padding, value=value)

    # ---- pooling and the rest

    @by_annotations
    def max_pool(
        self,
        name: str,
        source: NetworkTensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: Padding = 0,
    ) -> NetworkTensor:
        """Add the maximum of each window; padding is ignored.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            kernel: Rows and columns of the window, one number or a pair.
            stride: One number or (vertical, horizontal); default: the kernel.
            padding: One number, (vertical, horizontal) or (top, bottom, left, right).
        """
        return self.add_layer("pool", name, [source], mode="max", kernel=kernel, stride=stride, padding=padding)

    @by_annotations
    def min_pool(
        self,
        name: str,
        source: NetworkTensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: Padding = 0,
    ) -> NetworkTensor:
        """Add the minimum of each window; padding is ignored.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            kernel: Rows and columns of the window, one number or a pair.
            stride: One number or (vertical, horizontal); default: the kernel.
            padding: One number, (vertical, horizontal) or (top, bottom, left, right).
        """
        return self.add_layer("pool", name, [source], mode="min", kernel=kernel, stride=stride, padding=padding)

    @by_annotations
    def average_pool(
        self,
        name: str,
        source: NetworkTensor,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: Padding = 0,
        counted: Padding | None = None,
    ) -> NetworkTensor:
        """Add the mean of each window; padding counts as zeros, as in the hardware.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            kernel: Rows and columns of the window, one number or a pair.
            stride: One number or (vertical, horizontal); default: the kernel.
            padding: One number, (vertical, horizontal) or (top, bottom, left, right).
            counted: Part of the padding that counts (default: all). Windows that extend beyond it are divided by the
                number of elements within it.
        """
        window = {"kernel": kernel, "stride": stride, "padding": padding, "counted": counted}
        return self.add_layer("pool", name, [source], mode="average", **window)

    def global_average_pool(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """Add the mean of each channel, with the scale of the source.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
        """
        return self.average_pool(name, source, self._own(source, name).shape[1:])

    def mean(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """Add the mean of each channel, with a separate scale, which keeps more bits in int8.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
        """
        return self.add_layer("mean", name, [source])

    def global_max_pool(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """Add the maximum of each channel.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
        """
        return self.max_pool(name, source, self._own(source, name).shape[1:])

    @by_annotations
    def lrn(
        self, name: str, source: NetworkTensor, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> NetworkTensor:
        """Add local response normalization: ``x * (k + alpha / size * sum(x^2)) ** -beta``.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            size: Number of adjacent channels in the sum.
            alpha: Factor of the sum.
            beta: Exponent.
            k: Constant term.
        """
        return self.add_layer("lrn", name, [source], size=size, alpha=alpha, beta=beta, k=k)

    @by_annotations
    def upsample(self, name: str, source: NetworkTensor, factor: int | tuple[int, int]) -> NetworkTensor:
        """Add nearest-neighbor upsampling.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
            factor: Whole number, or (vertical, horizontal).
        """
        return self.add_layer("upsample", name, [source], factor=factor)

    def add_layer(self, kind: str, name: str, sources: Sequence[NetworkTensor], **settings: object) -> NetworkTensor:
        """Add a layer of any kind.

        Args:
            kind: Kind of layer, registered in ``nvdla.compiler.builder.lower``.
            name: Name of the layer, unique in the network; also the name of its output.
            sources: Input tensors.
            **settings: Settings of the kind.

        Raises:
            BuildError: The kind or a setting does not exist, or the sources do not fit.
        """
        shapes = [self._own(source, name).shape for source in sources]
        chosen = layer_type(kind)
        if chosen.inputs not in (None, len(shapes)):
            raise BuildError(f"a {kind}: inputs: must be {chosen.inputs}, got {len(shapes)}", layer=name)
        try:
            parsed = chosen.parse(name, shapes, settings)
        except KeyError as missing:
            raise BuildError(f"a {kind}: setting {missing}: must be given", layer=name) from None
        if unknown := settings.keys() - {field.name for field in fields(parsed)}:
            raise BuildError(f"a {kind}: setting: must be known, got {sorted(unknown)[0]!r}", layer=name)
        layer = Layer(name, kind, list(sources), parsed)
        return self._add(layer, chosen.shape(layer))

    def softmax(self, name: str, source: NetworkTensor) -> NetworkTensor:
        """Add a softmax over the channels of a 1x1 cube, computed on the CPU like NVIDIA's runtime.

        Args:
            name: Name of the layer, unique in the network; also the name of its output.
            source: Input tensor (channels, height, width).
        """
        return self.add_layer("softmax", name, [source])

    # ---- the common part

    def layer(self, name: str) -> Layer:
        """Return a layer.

        Args:
            name: Its name.

        Raises:
            BuildError: The network has no layer with this name.
        """
        if name not in self._layers:
            raise BuildError(f"layer: must be in network {self.name}, got {name!r}")
        return self._layers[name]

    def changed(self, settings: Mapping[str, Mapping[str, object]]) -> Network:
        """Return a copy of this network in which some layers have other settings.

        Args:
            settings: New settings by name of the layer.
        """
        result = Network(self.name)
        tensors: dict[str, NetworkTensor] = {}
        for old in self.layers:
            inputs = [tensors[tensor.name] for tensor in old.inputs]
            layer = Layer(old.name, old.kind, inputs, replace(old.settings, **settings.get(old.name, {})))
            tensors[old.name] = layer.result = NetworkTensor(old.name, old.output.shape, layer)
            result._layers[old.name] = layer
        result.inputs = [tensors[tensor.name] for tensor in self.inputs]
        result.outputs = [tensors[tensor.name] for tensor in self.outputs]
        return result

    def consumers(self, tensor: NetworkTensor) -> list[Layer]:
        """Return the layers that read a tensor.

        Args:
            tensor: A tensor of this network.
        """
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
        layer.result = NetworkTensor(name, (channels, height, width), layer)
        self._layers[name] = layer
        self._consumers = None
        return layer.result

    def _own(self, tensor: NetworkTensor, name: str) -> NetworkTensor:
        if not isinstance(tensor, NetworkTensor) or self._layers.get(tensor.name) is not tensor.producer:
            one_by_one = " Give the tensors one by one, not as a list." if isinstance(tensor, (list, tuple)) else ""
            got = "a tensor of another network" if isinstance(tensor, NetworkTensor) else type(tensor).__name__
            raise BuildError(f"its input must be a tensor of network {self.name}, got {got}.{one_by_one}", layer=name)
        return tensor
