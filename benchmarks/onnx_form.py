"""A network of ``nvdla.compiler.builder`` as a float32 ONNX model: the same layers, shapes and weights."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from nvdla.compiler.builder import Layer, Network

OPSET, IR_VERSION = 17, 9


def onnx_model(network: Network) -> bytes:
    """The serialized model; inputs (1, C, H, W). Raises KeyError for a kind of layer that no benchmark uses."""
    weights: list[Any] = []
    nodes = [NODES[layer.kind](layer, weights) for layer in network.layers if layer.kind != "input"]
    ends = [
        [helper.make_tensor_value_info(each.name, TensorProto.FLOAT, [1, *each.shape]) for each in tensors]
        for tensors in (network.inputs, network.outputs)
    ]
    graph = helper.make_graph(nodes, network.name, *ends, weights)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def int8_model(network: Network) -> bytes:
    """The same quantized by onnxruntime: unsigned activations, signed weights with a scale a kernel, QDQ form."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(onnx_model(network))
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(source, target, _Calibration(network), quant_format=QuantFormat.QDQ, per_channel=True, **types)
        return target.read_bytes()


class _Calibration:
    """Two random images; speed does not depend on the ranges."""

    def __init__(self, network: Network) -> None:
        random = np.random.default_rng(2)
        shapes = {each.name: (1, *each.shape) for each in network.inputs}
        self._left = [
            {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()} for _ in range(2)
        ]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def _node(layer: Layer, kind: str, *constants: str, **attributes: Any) -> Any:
    inputs = [tensor.name for tensor in layer.inputs]
    return helper.make_node(kind, [*inputs, *constants], [layer.name], layer.name, **attributes)


def _constant(layer: Layer, what: str, values: np.ndarray, weights: list[Any]) -> str:
    name = f"{layer.name}.{what}"
    weights.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
    return name


def _pads(layer: Layer) -> list[int]:
    top, bottom, left, right = layer.settings.padding
    return [top, left, bottom, right]


def _convolution(layer: Layer, weights: list[Any]) -> Any:
    constants = [_constant(layer, what, getattr(layer.settings, what), weights) for what in ("weights", "bias")]
    return _node(
        layer,
        "Conv",
        *constants,
        kernel_shape=layer.settings.weights.shape[2:],
        strides=layer.settings.stride,
        dilations=layer.settings.dilation,
        pads=_pads(layer),
        group=layer.settings.groups,
    )


def _pool(layer: Layer, weights: list[Any]) -> Any:
    if layer.settings.mode == "average" and layer.settings.kernel == layer.inputs[0].shape[1:]:
        return _node(layer, "GlobalAveragePool")
    settings = {"kernel_shape": layer.settings.kernel, "strides": layer.settings.stride, "pads": _pads(layer)}
    if layer.settings.mode == "average":
        return _node(layer, "AveragePool", count_include_pad=1, **settings)
    return _node(layer, "MaxPool", **settings)


def _lrn(layer: Layer, weights: list[Any]) -> Any:
    return _node(
        layer,
        "LRN",
        size=layer.settings.size,
        alpha=layer.settings.alpha,
        beta=layer.settings.beta,
        bias=layer.settings.k,
    )


NODES = {
    "convolution": _convolution,
    "relu": lambda layer, weights: _node(layer, "Relu"),
    "elementwise": lambda layer, weights: _node(layer, "Add"),
    "concat": lambda layer, weights: _node(layer, "Concat", axis=1),
    "pool": _pool,
    "lrn": _lrn,
}
