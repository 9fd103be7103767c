"""Pieces of a model that run on the host in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nvdla.errors import FormatError
from nvdla.frontend.model import Model, one_line, packages, reads, refuse_external, session


def submodel(model: Model, nodes: Sequence[Any], outputs: Sequence[str]) -> Any:
    """An ONNX model of some nodes; constants go along, what others make becomes an input."""
    import onnx

    helper = onnx.helper
    made = {name for node in nodes for name in node.output if name}
    wanted = list(dict.fromkeys(name for node in nodes for name in reads(node) if name not in made))
    known = {
        each.name: each for each in [*model.proto.graph.input, *model.proto.graph.value_info, *model.proto.graph.output]
    }
    constants = [onnx.numpy_helper.from_array(model.constants[n], n) for n in wanted if n in model.constants]
    untyped = [name for name in wanted if name not in model.constants and name not in known]
    if untyped:
        raise FormatError(f"{model.name}: tensor {untyped[0]} has no type that onnx or onnxruntime infers")
    inputs = [known[name] for name in wanted if name not in model.constants]
    results = [known.get(name) or onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(list(nodes), "host", inputs, results, constants)
    return helper.make_model(graph, opset_imports=list(model.proto.opset_import), ir_version=model.proto.ir_version)


class HostPart:
    """A host part ready to run."""

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        if isinstance(model, bytes):  # of a package: onnxruntime would read files beside whoever runs it
            onnx, _ = packages()
            refuse_external(onnx, _parsed(onnx, model, name), name, "a package holds all that it needs")
        self.session = session(model, name, optimise=False)
        self.outputs = [each.name for each in self.session.get_outputs()]

    def run(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the part on the host: tensors by name in and out."""
        feeds = {}
        for each in self.session.get_inputs():
            feeds[each.name] = np.asarray(value_of(values, each.name), dtype=_DTYPES.get(each.type), order="C")
        try:
            return dict(zip(self.outputs, self.session.run(self.outputs, feeds), strict=True))
        except Exception as error:  # onnxruntime raises kinds of its own
            raise FormatError(f"{self.name}: onnxruntime cannot run it: {one_line(error)}") from None


def _parsed(onnx: Any, data: bytes, name: str) -> Any:
    try:
        return onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's own kinds
        raise FormatError(f"{name}: no ONNX model: {one_line(error)}") from None


def value_of(values: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A value that a part takes. Raises FormatError where no part before it made one of this name."""
    if name not in values:
        raise FormatError(f"value {name[:80]!r} is taken by a part of the model, and made by none before it")
    return values[name]


_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
