"""A quantized network as ONNX that onnxruntime runs: the same integers of weights, the same scales (QDQ form).

Every group of layers that the hardware does in one operation is real arithmetic between DequantizeLinear and
QuantizeLinear, so onnxruntime rounds where the hardware does: once, at its end. Functions of one number are the
hardware's table of 256 entries. What differs is how a tie is rounded (to even there, away from zero here), and that the
hardware multiplies by a 16-bit factor where a float has 24 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.compiler.builder import Built, Network
from nvdla.compiler.builder.groups import group_layers
from nvdla.compiler.builder.layers import (
    ClipSettings,
    ConstantSettings,
    ConvSettings,
    DeconvSettings,
    ElementwiseSettings,
    FunctionSettings,
    Group,
    JoinSettings,
    LrnSettings,
    NetworkTensor,
    PadSettings,
    PoolSettings,
    PreluSettings,
    ScaleSettings,
    SliceSettings,
    UpsampleSettings,
)
from nvdla.compiler.builder.quantization import quantize
from nvdla.errors import BuildError
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from nvdla.compiler.frontend.graph import Binding


OPSET, IR_VERSION = 17, 9
LOWEST, HIGHEST = -128, 127


class Exporter:
    """An ONNX graph under construction; ``scales`` by tensor name, None for a float model."""

    def __init__(self, network: Network, built: Built | None) -> None:
        import onnx

        self.onnx = onnx
        self.network, self.built = network, built
        tensors = built.program.tensors if built else {}
        self.scales = {name: tensor.scale for name, tensor in tensors.items()} if built else None
        self.zeros = {name: tensor.zero for name, tensor in tensors.items()}
        self.nodes: list[NodeProto] = []
        self.initializers: list[Any] = []

    # ---- pieces

    def constant(self, name: str, values: np.ndarray) -> str:
        """Add a constant; returns its name."""
        self.initializers.append(self.onnx.numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node; returns its output."""
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def real(self, tensor: NetworkTensor) -> str:
        """The real numbers of a tensor that was made before."""
        return tensor.name if self.scales is None else f"{tensor.name}/real"

    def finish(self, name: str, value: str) -> None:
        """Real numbers ``value`` become the tensor ``name``: elements and what they stand for."""
        if self.scales is None:
            self.node("Identity", [value], name)
            return
        if name not in self.scales:  # internal to an operation: a sum after the convolution
            self.node("Identity", [value], f"{name}/real")
            return
        scale = self.constant(f"{name}/scale", np.float32(self.scales[name]))
        zero = self.constant(f"{name}/zero", np.int8(self.zeros[name]))
        self.node("QuantizeLinear", [value, scale, zero], f"{name}/elements")
        self.node("DequantizeLinear", [f"{name}/elements", scale, zero], f"{name}/real")

    # ---- the whole

    def model(self) -> Any:
        """The ONNX model."""
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        for tensor in self.network.inputs:
            if self.scales is not None:
                self.finish(tensor.name, tensor.name)
        for group in group_layers(self.network):
            self._group(group)
        for tensor in self.network.outputs:
            if tensor in self.network.inputs:
                raise BuildError("an input that is an output, too, does not go out as QDQ", layer=tensor.name)
            if self.scales is not None:
                self.node("Identity", [f"{tensor.name}/real"], f"{tensor.name}")
        ends = [
            [helper.make_tensor_value_info(tensor.name, kind, [1, *tensor.shape]) for tensor in tensors]
            for tensors in (self.network.inputs, self.network.outputs)
        ]
        graph = helper.make_graph(self.nodes, self.network.name, *ends, self.initializers)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="nvdla")
        self.onnx.checker.check_model(model)
        return model

    def _group(self, group: Group) -> None:
        layer, name = group.layer, group.output.name
        if layer.kind == "function" and self.scales is not None:
            self._table(group, self.scales)
            return
        form = FORMS.get(layer.kind)
        if form is None:
            raise BuildError(f"{layer.kind} has no form in ONNX", layer=layer.name)
        value = form(self, group, f"{name}/value")
        if group.activation is not None:
            value = FORMS[group.activation.kind](self, Group(group.activation, group.output), f"{name}/active", value)
        self.finish(name, value)

    def _table(self, group: Group, scales: Mapping[str, float]) -> None:
        """A function as the hardware has it: one entry for each element."""
        name, source = group.output.name, group.layer.inputs[0].name
        if source not in scales:
            raise BuildError(
                "its function is looked up before the result is rounded, which has no form in ONNX. Compile with -O 0 "
                "(Python: level=0).",
                layer=group.layer.name,
            )
        x = (np.arange(LOWEST, HIGHEST + 1) - self.zeros[source]) * scales[source]
        values = np.asarray(FunctionSettings.of(group.layer).function(x), np.float64)
        entries = np.clip(np.floor(values / scales[name] + 0.5) + self.zeros[name], LOWEST, HIGHEST)
        table = self.constant(f"{name}/table", entries.astype(np.int8))
        wide = self.node("Cast", [f"{source}/elements"], f"{name}/wide", to=self.onnx.TensorProto.INT32)
        offset = self.constant(f"{name}/offset", np.int32(-LOWEST))
        index = self.node("Add", [wide, offset], f"{name}/index")
        self.node("Gather", [table, index], f"{name}/elements", axis=0)
        scale = self.constant(f"{name}/scale", np.float32(scales[name]))
        zero = self.constant(f"{name}/zero", np.int8(self.zeros[name]))
        self.node("DequantizeLinear", [f"{name}/elements", scale, zero], f"{name}/real")

    def weights(self, group: Group, kernel_axis: int) -> list[str]:
        """Weights and bias of a convolution: integers with their scales, or floats."""
        name, layer = group.output.name, group.layer
        if self.built is None or layer.name not in self.built.program.quantized:
            weights = self.constant(f"{name}/weights", group.kernels.astype(np.float32))
            return [weights, self.constant(f"{name}/bias", group.biases.astype(np.float32))]
        weights_of_layer = self.built.program.quantized[layer.name]
        shape = [1] * 4
        shape[kernel_axis] = -1
        grouped = np.array_equal(
            weights_of_layer.scales, np.full_like(weights_of_layer.scales, weights_of_layer.scales[0])
        )
        elements = quantize(group.kernels, weights_of_layer.scales.reshape(shape), Precision.INT8)
        scales = weights_of_layer.scales[0] if grouped else weights_of_layer.scales
        inputs = [
            self.constant(f"{name}/weights", elements),
            self.constant(f"{name}/weight_scale", np.asarray(scales, np.float32)),
            self.constant(f"{name}/weight_zero", np.zeros(np.shape(scales), np.int8)),
        ]
        attributes = {} if grouped else {"axis": kernel_axis}
        weights = self.node("DequantizeLinear", inputs, f"{name}/weights_real", **attributes)
        return [weights, self.constant(f"{name}/bias", weights_of_layer.bias.astype(np.float32))]


def _source(exporter: Exporter, group: Group) -> str:
    return exporter.real(group.layer.inputs[0])


def _pads(padding: tuple[int, int, int, int]) -> list[int]:
    top, bottom, left, right = padding
    return [top, left, bottom, right]


def _convolution(exporter: Exporter, group: Group, output: str) -> str:
    settings = ConvSettings.of(group.layer)
    return exporter.node(
        "Conv",
        [_source(exporter, group), *exporter.weights(group, 0)],
        output,
        kernel_shape=settings.weights.shape[2:],
        strides=settings.stride,
        dilations=settings.dilation,
        pads=_pads(settings.padding),
        group=settings.groups,
    )


def _deconvolution(exporter: Exporter, group: Group, output: str) -> str:
    settings = DeconvSettings.of(group.layer)
    inputs = [_source(exporter, group), *exporter.weights(group, 1)]
    window = {"kernel_shape": settings.weights.shape[2:], "strides": settings.stride, "pads": _pads(settings.padding)}
    return exporter.node("ConvTranspose", inputs, output, **window)


def _column(exporter: Exporter, name: str, values: np.ndarray) -> str:
    return exporter.constant(name, np.asarray(values, np.float32).reshape(-1, 1, 1))


def _scale(exporter: Exporter, group: Group, output: str) -> str:
    settings = ScaleSettings.of(group.layer)
    inputs = [_source(exporter, group), _column(exporter, f"{output}/factors", settings.factors)]
    product = exporter.node("Mul", inputs, f"{output}/product")
    return exporter.node("Add", [product, _column(exporter, f"{output}/bias", settings.bias)], output)


def _relu(exporter: Exporter, group: Group, output: str, value: str | None = None) -> str:
    return exporter.node("Relu", [value or _source(exporter, group)], output)


def _prelu(exporter: Exporter, group: Group, output: str, value: str | None = None) -> str:
    slopes = _column(exporter, f"{output}/slopes", PreluSettings.of(group.layer).slopes)
    return exporter.node("PRelu", [value or _source(exporter, group), slopes], output)


def _clip(exporter: Exporter, group: Group, output: str, value: str | None = None) -> str:
    settings = ClipSettings.of(group.layer)
    low = exporter.constant(f"{output}/low", np.float32(settings.low))
    above = exporter.node("Max", [value or _source(exporter, group), low], f"{output}/above")
    return exporter.node("Min", [above, _column(exporter, f"{output}/high", np.asarray(settings.high))], output)


def _elementwise(exporter: Exporter, group: Group, output: str) -> str:
    layer = group.layer
    kind = {"add": "Add", "multiply": "Mul", "maximum": "Max", "minimum": "Min"}[
        ElementwiseSettings.of(layer).operation
    ]
    result = exporter.real(layer.inputs[0])
    for number, other in enumerate(layer.inputs[1:], start=1):
        last = number == len(layer.inputs) - 1
        result = exporter.node(kind, [result, exporter.real(other)], output if last else f"{output}/{number}")
    return result


def _concat(exporter: Exporter, group: Group, output: str) -> str:
    settings = group.layer.settings
    axis = 1 + settings.axis if isinstance(settings, JoinSettings) else 1
    return exporter.node("Concat", [exporter.real(tensor) for tensor in group.layer.inputs], output, axis=axis)


def _pool(exporter: Exporter, group: Group, output: str) -> str:
    pool, source = PoolSettings.of(group.layer), _source(exporter, group)
    settings = {"kernel_shape": pool.kernel, "strides": pool.stride, "pads": _pads(pool.padding)}
    if pool.mode == "average":
        if pool.counted != pool.padding:
            if any(pool.counted):
                raise BuildError(
                    "an average that counts a part of its padding has no form in ONNX", layer=group.layer.name
                )
            return exporter.node("AveragePool", [source], output, count_include_pad=0, **settings)
        return exporter.node("AveragePool", [source], output, count_include_pad=1, **settings)
    if pool.mode == "max":
        return exporter.node("MaxPool", [source], output, **settings)
    less = exporter.node("Neg", [source], f"{output}/negative")
    largest = exporter.node("MaxPool", [less], f"{output}/largest", **settings)
    return exporter.node("Neg", [largest], output)


def _mean(exporter: Exporter, group: Group, output: str) -> str:
    return exporter.node("GlobalAveragePool", [_source(exporter, group)], output)


def _lrn(exporter: Exporter, group: Group, output: str) -> str:
    lrn = LrnSettings.of(group.layer)
    settings = {"size": lrn.size, "alpha": lrn.alpha, "beta": lrn.beta, "bias": lrn.k}
    return exporter.node("LRN", [_source(exporter, group)], output, **settings)


def _upsample(exporter: Exporter, group: Group, output: str) -> str:
    scales = exporter.constant(
        f"{output}/factors", np.array([1, 1, *UpsampleSettings.of(group.layer).factor], np.float32)
    )
    inputs = [_source(exporter, group), "", scales]
    settings = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return exporter.node("Resize", inputs, output, **settings)


def _softmax(exporter: Exporter, group: Group, output: str) -> str:
    return exporter.node("Softmax", [_source(exporter, group)], output, axis=1)


def _slice(exporter: Exporter, group: Group, output: str) -> str:
    part = SliceSettings.of(group.layer)
    (first, count), (top, down, rows), (left, right, columns) = part.channels, part.rows, part.columns
    starts, steps = (first, top, left), (1, down, right)
    ends = (first + count, top + (rows - 1) * down + 1, left + (columns - 1) * right + 1)
    inputs = [
        exporter.constant(f"{output}/{what}", np.array(numbers, np.int64))
        for what, numbers in (("starts", starts), ("ends", ends), ("axes", (1, 2, 3)), ("steps", steps))
    ]
    return exporter.node("Slice", [_source(exporter, group), *inputs], output)


def _pad(exporter: Exporter, group: Group, output: str) -> str:
    border = PadSettings.of(group.layer)
    top, bottom, left, right = border.padding
    pads = exporter.constant(f"{output}/pads", np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))
    value = exporter.constant(f"{output}/border", np.float32(border.value))
    return exporter.node("Pad", [_source(exporter, group), pads, value], output)


def _constant(exporter: Exporter, group: Group, output: str) -> str:
    return exporter.constant(output, ConstantSettings.of(group.layer).values[None].astype(np.float32))


FORMS: dict[str, Callable[..., str]] = {
    "convolution": _convolution,
    "deconvolution": _deconvolution,
    "scale": _scale,
    "relu": _relu,
    "prelu": _prelu,
    "clip": _clip,
    "elementwise": _elementwise,
    "concat": _concat,
    "join": _concat,
    "pool": _pool,
    "mean": _mean,
    "lrn": _lrn,
    "upsample": _upsample,
    "softmax": _softmax,
    "slice": _slice,
    "pad": _pad,
    "constant": _constant,
}


def qdq_model(network: Network, built: Built) -> Any:
    """The quantized network as an ``onnx.ModelProto`` in QDQ form, real numbers in and out.

    ``network`` is the one that was built, in int8. Raises BuildError for other precisions.
    """
    mixed = {surface.precision for surface in built.program.tensors.values()} != {Precision.INT8}
    if built.program.precision != Precision.INT8 or mixed:
        kind = "of mixed precision" if built.program.precision == Precision.INT8 else built.program.precision
        raise BuildError(f"network {network.name} is {kind}; only int8 goes out as QDQ")
    return Exporter(network, built).model()


def with_ends_of_model(
    model: ModelProto,
    inputs: Sequence[Binding],
    outputs: Sequence[Binding],
    shapes: Mapping[str, Sequence[int]],
    order: Sequence[str],
) -> ModelProto:
    """Give an exported network the inputs and outputs of the model that it was compiled from.

    Args:
        model: What :func:`qdq_model` returns; it is changed.
        inputs: Which tensors of the network the model's inputs become.
        outputs: Which tensors the model's outputs are in.
        shapes: Of the model's inputs, by name.
        order: The names of the model's outputs.

    Returns:
        The model, with nodes that move elements where the compiler left them out.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    first: list[NodeProto] = []
    last: list[NodeProto] = []
    values = {entry.name: entry for entry in (*graph.input, *graph.output)}
    cubes = {entry.name: tuple(dim.dim_value for dim in entry.type.tensor_type.shape.dim) for entry in graph.output}
    renamed = {}
    for binding in inputs:
        shape = tuple(shapes[binding.value])
        same = shape == (1, *binding.shape) and binding.value == binding.tensor
        if binding.index is None and same:
            continue
        cube = renamed[binding.tensor] = f"{binding.tensor}/cube"
        scale = [f"{binding.tensor}/scale", f"{binding.tensor}/zero"]
        # Quantized before its elements move, so that a compiler finds the scale of the input.
        first.append(helper.make_node("QuantizeLinear", [binding.value, *scale], [f"{cube}/elements"]))
        first.append(helper.make_node("DequantizeLinear", [f"{cube}/elements", *scale], [f"{cube}/real"]))
        first += _moves(graph, f"{cube}/real", binding.index, (1, *binding.shape), cube)
        values[binding.value] = helper.make_tensor_value_info(binding.value, TensorProto.FLOAT, shape)
    for binding in outputs:
        same = binding.shape == cubes[binding.tensor] and binding.value == binding.tensor
        if binding.index is None and same:
            continue
        cube = renamed[binding.tensor] = f"{binding.tensor}/cube"
        last += _moves(graph, cube, binding.index, binding.shape, binding.value)
        values[binding.value] = helper.make_tensor_value_info(binding.value, TensorProto.FLOAT, binding.shape)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    nodes = [*first, *graph.node, *last]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.input.extend(values[name] for name in dict.fromkeys(binding.value for binding in inputs))
    graph.output.extend(values[name] for name in order)
    return model


def _moves(
    graph: GraphProto, source: str, index: np.ndarray | None, shape: Sequence[int], result: str
) -> Iterator[NodeProto]:
    """Yield nodes that take elements ``index`` (None: all) of a value in the order of ``shape``."""
    from onnx import helper, numpy_helper

    arrays = {"flat": np.array([-1]), "order": index, "shape": np.array(shape)}
    for name, array in arrays.items():
        if array is not None:
            graph.initializer.append(numpy_helper.from_array(array.astype(np.int64).ravel(), f"{result}/{name}"))
    flat = f"{result}/all"
    yield helper.make_node("Reshape", [source, f"{result}/flat"], [flat])
    if index is not None:
        yield helper.make_node("Gather", [flat, f"{result}/order"], [f"{result}/taken"])
        flat = f"{result}/taken"
    yield helper.make_node("Reshape", [flat, f"{result}/shape"], [result])
