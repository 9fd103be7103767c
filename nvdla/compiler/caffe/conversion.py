"""Caffe networks as ONNX models: the walk over the layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from nvdla.compiler.caffe.layers import IR_VERSION, LAYERS, OPSET, CaffeGraph, CaffeValue
from nvdla.compiler.caffe.network import CaffeLayer, CaffeNetwork
from nvdla.compiler.caffe.text import near

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass
class ConvertedModel:
    """``model``: the ONNX ModelProto, whose outputs are every layer's results. ``names``: a layer's name, or its blobs'
    names where it has several -> output, in order of the layers. ``blobs``: blob -> output written to it last.
    ``ends``: outputs that no layer takes: those of the network."""

    model: ModelProto
    names: dict[str, str]
    blobs: dict[str, str]
    ends: list[str]


def convert(onnx: ModuleType, network: CaffeNetwork, inputs: Mapping[str, tuple[int, ...]]) -> ConvertedModel:
    """The ONNX model of a network whose inputs have these shapes. Raises FormatError naming line and layer."""
    taken = [name for layer in network.layers for name in (layer.name, *layer.tops)]
    graph = CaffeGraph(onnx, {*inputs, *taken})
    blobs = {name: CaffeValue(name, tuple(shape)) for name, shape in inputs.items()}
    names: dict[str, str] = {}
    for layer in network.layers:
        graph.layer = layer
        if layer.type not in LAYERS:
            raise layer.fail(f"unknown type: must be one of {', '.join(sorted(LAYERS))}{near(layer.type, LAYERS)}")
        convert_layer = LAYERS[layer.type]
        _check_parameters(layer, convert_layer.parameters)
        values = convert_layer.function(graph, layer, *_bottoms(layer, blobs, convert_layer.bottoms))
        if len(values) != len(layer.tops):
            raise layer.fail(f"tops: must be {len(values)}, got {len(layer.tops)}")
        values = [graph.node("Identity", [value], value.shape) for value in values]
        for blob, value in zip(layer.tops, values, strict=True):
            blobs[blob] = value
            names[layer.name if len(values) == 1 else blob] = value.name
    written = {blob: value.name for blob, value in blobs.items() if blob not in inputs}
    ends = [written[blob] for blob in _ends(network)]
    return ConvertedModel(_model(onnx, network, inputs, graph, names), names, written, ends)


def _ends(network: CaffeNetwork) -> list[str]:
    """Blobs that no layer reads after they are written; an in-place layer reads the blob of the layer before it."""
    ends: dict[str, None] = {}
    for layer in network.layers:
        for blob in layer.bottoms:
            ends.pop(blob, None)
        ends.update(dict.fromkeys(layer.tops))
    return list(ends)


def _check_parameters(layer: CaffeLayer, wanted: str | None) -> None:
    """Refuse unused parameters: they are mistakes, and would change the result unnoticed."""
    for name, line in layer.message.open.items():
        if name not in ("transform_param", "loss_param"):
            raise layer.fail(
                f"line {line}: {name}: must be a field of the layer{near(name, layer.message.schema.fields)}"
            )
    for name in layer.message.schema.fields:
        if name.endswith("_param") and name != wanted and name in layer.message:
            takes = f"takes {wanted}" if wanted else "has no parameters"
            raise layer.fail(f"{name}: must not be given for a layer of this type, which {takes}")


def _bottoms(layer: CaffeLayer, blobs: Mapping[str, CaffeValue], counts: range) -> list[CaffeValue]:
    if len(layer.bottoms) not in counts:
        more = {1: "", 2: f" or {counts[-1]}"}.get(len(counts), " or more")
        wanted = f"{counts[0]}{more}"
        raise layer.fail(f"bottoms: must be {wanted}, got {len(layer.bottoms)}")
    return [blobs[blob] for blob in layer.bottoms]


def _model(
    onnx: ModuleType,
    network: CaffeNetwork,
    inputs: Mapping[str, tuple[int, ...]],
    graph: CaffeGraph,
    names: Mapping[str, str],
) -> ModelProto:
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    onnx_graph = helper.make_graph(
        graph.nodes,
        network.name or "caffe",
        [helper.make_tensor_value_info(name, float32, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=value) for value in dict.fromkeys(names.values())],
        graph.constants,
    )
    return helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
