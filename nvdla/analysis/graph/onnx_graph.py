"""The graph as an ONNX model in a domain of its own, for viewers that people have (Netron).

A node is an operation with its descriptors as attributes, a tensor a value in memory or on the fly. Nothing runs it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.analysis.graph.document import tensor_name
from nvdla.analysis.study import Study
from nvdla.descriptors.fields import FieldView, fields
from nvdla.errors import FormatError
from nvdla.loadable.model import Loadable
from nvdla.precision import Precision
from nvdla.program.operation import Key, Operation
from nvdla.program.values import Value

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

DOMAIN, OPSET, IR = "nvdla", 1, 8
#: protobuf ends at 2 GiB
MAX_WEIGHTS = 1 << 30


def onnx_model(study: Study, weights: bool = True) -> ModelProto:
    """The model: checked by ``onnx.checker``. ``weights``: with the bytes of constants, else they are inputs.

    Raises FormatError without onnx, and for more than MAX_WEIGHTS bytes of weights.
    """
    try:
        import onnx
    except ImportError:
        raise FormatError("--onnx needs onnx: pip install 'nvdla[onnx]'") from None
    from onnx import helper

    names = _Names(study)
    constants = [value for value in study.values if value.kind == "constant"]
    if weights and sum(value.bytes for value in constants) > MAX_WEIGHTS:
        raise FormatError(f"more than {MAX_WEIGHTS >> 30} GiB of weights: leave them out with --no-weights")
    given = [value for value in study.values if value.writer is None and (value.kind != "constant" or not weights)]
    graph = helper.make_graph(
        [_node(study, names, node) for chain in study.steps for node in chain],
        study.title,
        [names.info(value) for value in given],
        [names.info(value) for value in study.values if value.kind == "output"],
        [_initializer(study.loadable, names, value) for value in constants] if weights else [],
        value_info=[names.info(value) for value in study.values if value.kind == "intermediate"] + names.flying(),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(DOMAIN, OPSET)], ir_version=IR)
    model.producer_name, model.domain = "nvdla", DOMAIN
    model.doc_string = (
        f"{study.config.name}: {study.config_reason}. For looking at; no runtime knows the domain {DOMAIN}."
    )
    onnx.checker.check_model(model)
    return model


class _Names:
    """A name, a type and a shape for every value, and for what goes on the fly."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._by_id: dict[int, str] = {}
        taken: set[str] = set()
        for value in study.values:
            name = tensor_name(study, value) or "value"
            self._by_id[value.id] = name if name not in taken else f"{name} #{value.id}"
            taken.add(self._by_id[value.id])
        self.made: dict[Key, list[str]] = {}
        self.used: dict[Key, list[str]] = {}
        for value in study.values:
            if value.writer:
                self.made.setdefault(value.writer, []).append(self.of(value))
            for key, _ in dict.fromkeys(value.readers):
                self.used.setdefault(key, []).append(self.of(value))
        self._flying: list[Operation] = []
        for chain in study.chains:
            for giver, taker in itertools.pairwise(chain):
                self.made.setdefault(giver.key, []).append(self.fly(giver))
                self.used.setdefault(taker.key, []).insert(0, self.fly(giver))
                self._flying.append(giver)

    def of(self, value: Value) -> str:
        """The name of a value."""
        return self._by_id[value.id]

    @staticmethod
    def fly(node: Operation) -> str:
        """What an operation hands over on the fly."""
        return f"{node.label} on the fly"

    def info(self, value: Value) -> ValueInfoProto:
        """Name, type and shape of a value."""
        from onnx import helper

        shape = [1, *value.shape] if value.shape else [value.bytes]
        return helper.make_tensor_value_info(self.of(value), self._type(value), shape)

    def flying(self) -> list[ValueInfoProto]:
        """Of what goes on the fly."""
        from onnx import helper

        return [
            helper.make_tensor_value_info(self.fly(node), _type_of(node, 1), [1, *node.output])
            for node in self._flying
            if node.output
        ]

    def _type(self, value: Value) -> int:
        """By who writes it, else by who reads it; bytes where nobody says."""
        from onnx import TensorProto

        if not value.shape:
            return int(TensorProto.UINT8)
        key = value.writer or (value.readers[0][0] if value.readers else None)
        node = self._study.by_key[key] if key else None
        found = _type_of(node, int(bool(value.writer))) if node else int(TensorProto.UINT8)
        sizes = {int(TensorProto.INT8): 1, int(TensorProto.INT16): 2, int(TensorProto.FLOAT16): 2}
        if sizes.get(found) == value.element_bytes:
            return found
        return int({1: TensorProto.INT8, 2: TensorProto.INT16}.get(value.element_bytes, TensorProto.UINT8))


def _type_of(node: Operation, side: int) -> int:
    """The element type of what an operation reads (0) or writes (1)."""
    from onnx import TensorProto

    if node.precisions is None:
        half = (node.precision or "").startswith("fp16")
        return int(TensorProto.FLOAT16 if half else TensorProto.INT8)
    types = {Precision.INT8: TensorProto.INT8, Precision.INT16: TensorProto.INT16, Precision.FP16: TensorProto.FLOAT16}
    return int(types.get(node.precisions[side], TensorProto.UINT8))


def _node(study: Study, names: _Names, node: Operation) -> NodeProto:
    from onnx import helper

    estimate, span = study.estimates[node.key], study.schedule.spans[node.key]
    title = f"{node.label} {node.layer or ''}".strip()
    made = helper.make_node(
        node.engine.upper(), names.used.get(node.key, []), names.made.get(node.key, []), title, node.what, DOMAIN
    )
    if not made.input and not made.output:
        made.output.append(f"{node.label} nothing")  # ONNX knows no node without a tensor
    about: dict[str, Any] = {"what": node.what, "layer": node.layer, "precision": node.precision}
    about |= {"cycles": estimate.cycles, "bound_by": estimate.bound, "macs": estimate.macs or None}
    about |= {"start_cycle": span.start, "end_cycle": span.end}
    for structure in (node.op, None if node.type is None else node.surface):
        about |= {each.name: _attribute(each) for each in fields(structure) if _is_told(each)} if structure else {}
    made.attribute.extend(helper.make_attribute(key, value) for key, value in about.items() if value is not None)
    return made


def _is_told(field: FieldView) -> bool:
    return not field.reserved and not (isinstance(field.value, list) and not field.value)


def _attribute(field: FieldView) -> Any:
    """The name of an enum's number, else the number; numbers that 64 bits with a sign cannot hold as text."""
    if field.meaning is not None:
        return field.meaning
    large = isinstance(field.value, int) and not -(1 << 63) <= field.value < 1 << 63
    return str(field.value) if large else field.value


def _initializer(loadable: Loadable, names: _Names, value: Value) -> TensorProto:
    """A constant as bytes, as they lie in the file; what the file does not fill is 0."""
    from onnx import helper

    data = np.zeros(value.bytes, np.uint8)
    at = 0
    contents = loadable.contents(loadable.memory(value.memory))
    for start, end in value.pieces:
        for offset, blob in contents:
            low, high = max(start, offset), min(end, offset + blob.length)
            if low < high:
                data[at + low - start : at + high - start] = np.frombuffer(
                    blob.data[low - offset : high - offset], np.uint8
                )
        at += end - start
    return helper.make_tensor(names.of(value), 2, [value.bytes], data.tobytes(), raw=True)
