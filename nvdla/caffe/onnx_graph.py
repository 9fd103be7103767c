"""Caffe networks as ONNX models: the graph under construction, and the walk over the layers.

Blobs of Caffe are variables: a layer in place writes the blob that it reads. Here every layer's result is a value of
its own, so that all can be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.caffe.network import Layer, Network
from nvdla.caffe.text import near

OPSET, IR_VERSION = 13, 8
#: elements of all values together, and multiplications: far above real networks (ResNet-152: 10^8, 10^10)
MAX_ELEMENTS = 1 << 30
MAX_MULTIPLICATIONS = 10**13


@dataclass(frozen=True)
class Value:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass
class Model:
    """``model``: the ONNX ModelProto, whose outputs are every layer's results. ``names``: a layer's name, or its blobs'
    names where it has several -> output, in order of the layers. ``blobs``: blob -> output written to it last."""

    model: Any
    names: dict[str, str]
    blobs: dict[str, str]


@dataclass
class Graph:
    """Nodes and constants. ``layer``: the one that is being turned over."""

    onnx: Any
    layer: Layer | None = None
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    elements: int = 0
    multiplications: int = 0

    def constant(self, array: np.ndarray) -> str:
        """A constant, in the element type of the array (floats become float32)."""
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype("<f4")
        name = f"constant{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def node(
        self, kind: str, inputs: Sequence[Value | str], shape: Sequence[int], work: int = 0, **attributes: Any
    ) -> Value:
        """Add an operator with one result of ``shape``. ``work``: multiplications of an element of the result."""
        made = Value(f"value{len(self.nodes)}", tuple(shape))
        self._charge(made, work)
        words = [each if isinstance(each, str) else each.name for each in inputs]
        self.nodes.append(self.onnx.helper.make_node(kind, words, [made.name], **attributes))
        return made

    def allow(self, shape: Sequence[int]) -> None:
        """Refuse a result of this shape before anything of its size is made."""
        if any(size <= 0 for size in shape):
            raise self.layer.fail(f"its result would be {'x'.join(map(str, shape))}")
        elements = self.elements + math.prod(shape)
        if elements > MAX_ELEMENTS:
            raise self.layer.fail(f"the tensors have {elements} elements up to here, the limit is {MAX_ELEMENTS}")

    def _charge(self, value: Value, work: int) -> None:
        """Refuse what would take memory or time without end."""
        self.allow(value.shape)
        self.elements += value.size
        self.multiplications += value.size * work
        if self.multiplications > MAX_MULTIPLICATIONS:
            raise self.layer.fail(
                f"{self.multiplications} multiplications up to here, the limit is {MAX_MULTIPLICATIONS}"
            )


def convert(onnx: Any, network: Network, inputs: Mapping[str, tuple[int, ...]]) -> Model:
    """The ONNX model of a network whose inputs have these shapes. Raises FormatError naming line and layer."""
    from nvdla.caffe.layers import LAYERS

    graph = Graph(onnx)
    blobs = {name: Value(name, tuple(shape)) for name, shape in inputs.items()}
    names: dict[str, str] = {}
    for layer in network.layers:
        graph.layer = layer
        if layer.type not in LAYERS:
            raise layer.fail(f"this type is not known{near(layer.type, LAYERS)}; known are {', '.join(sorted(LAYERS))}")
        convert_layer = LAYERS[layer.type]
        _check_parameters(layer, convert_layer.parameters)
        made = convert_layer.function(graph, layer, *_bottoms(layer, blobs, convert_layer.bottoms))
        if len(made) != len(layer.tops):
            raise layer.fail(f"{len(layer.tops)} tops, must be {len(made)}")
        made = [graph.node("Identity", [each], each.shape) for each in made]
        for blob, value in zip(layer.tops, made, strict=True):
            blobs[blob] = value
            names[layer.name if len(made) == 1 else blob] = value.name
    written = {blob: value.name for blob, value in blobs.items() if blob not in inputs}
    return Model(_model(onnx, network, inputs, graph, names), names, written)


def _check_parameters(layer: Layer, wanted: str | None) -> None:
    """Parameters that nobody would look at are mistakes, and would change the result unnoticed."""
    for name, line in layer.message.open.items():
        if name not in ("transform_param", "loss_param"):
            raise layer.fail(f"line {line}: {name} is not known{near(name, layer.message.schema.fields)}")
    for name in layer.message.schema.fields:
        if name.endswith("_param") and name != wanted and name in layer.message:
            takes = f"takes {wanted}" if wanted else "has no parameters"
            raise layer.fail(f"{name} does not belong to a layer of this type, which {takes}")


def _bottoms(layer: Layer, blobs: Mapping[str, Value], counts: range) -> list[Value]:
    if len(layer.bottoms) not in counts:
        more = {1: "", 2: f" or {counts[-1]}"}.get(len(counts), " or more")
        wanted = f"{counts[0]}{more}"
        raise layer.fail(f"{len(layer.bottoms)} bottoms, must be {wanted}")
    return [blobs[blob] for blob in layer.bottoms]


def _model(
    onnx: Any, network: Network, inputs: Mapping[str, tuple[int, ...]], graph: Graph, names: Mapping[str, str]
) -> Any:
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    made = helper.make_graph(
        graph.nodes,
        network.name or "caffe",
        [helper.make_tensor_value_info(name, float32, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=value) for value in dict.fromkeys(names.values())],
        graph.constants,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
