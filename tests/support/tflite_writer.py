"""TFLite files written with the generated bindings, and the reference interpreter that says what they compute."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np

from nvdla.compiler.frontend.tflite.generated import tflite_generated as fb
from nvdla.compiler.frontend.tflite.reader import read_model

#: options of operators, where they have a table of another operator's name
_OPTIONS = {
    "AVERAGE_POOL_2D": "Pool2D",
    "MAX_POOL_2D": "Pool2D",
    "L2_POOL_2D": "Pool2D",
    "MEAN": "Reducer",
    "SUM": "Reducer",
    "REDUCE_MAX": "Reducer",
    "REDUCE_MIN": "Reducer",
    "REDUCE_PROD": "Reducer",
    "L2_NORMALIZATION": "L2Norm",
    "BATCH_MATMUL": "BatchMatMul",
    "CONV_2D": "Conv2D",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2D",
    "ARG_MAX": "ArgMax",
    "ARG_MIN": "ArgMin",
    "SPLIT_V": "SplitV",
}
_KINDS = {"int8": "INT8", "uint8": "UINT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "bool": "BOOL"}
_KINDS |= {"float32": "FLOAT32", "float16": "FLOAT16"}


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


class FlatWriter:
    """Collects tensors and operators of one subgraph; :meth:`model` writes the file."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.operators: list[tuple[str, list[int], list[int], dict[str, Any], bytes]] = []

    def tensor(
        self,
        shape: Sequence[int],
        kind: str = "int8",
        scale: Any = None,
        zero: Any = 0,
        axis: int = 0,
        data: np.ndarray | None = None,
        name: str = "",
        signature: Sequence[int] | None = None,
    ) -> int:
        """Add a tensor; returns its position. ``scale``: one number, or one per index of ``axis``."""
        scales = None if scale is None else np.atleast_1d(np.asarray(scale, np.float32))
        points = None if scales is None else np.broadcast_to(np.atleast_1d(zero), scales.shape)
        row = {"shape": shape, "kind": kind, "scales": scales, "points": points, "axis": axis, "data": data}
        self.tensors.append(row | {"name": name or f"t{len(self.tensors)}", "signature": signature})
        return len(self.tensors) - 1

    def constant(self, data: Any, scale: Any = None, zero: Any = 0, axis: int = 0) -> int:
        """Add a constant; plain numbers are int32."""
        array = data if isinstance(data, np.ndarray) else np.asarray(data, np.int32)
        return self.tensor(array.shape, array.dtype.name, scale, zero, axis, array)

    def operator(self, op: str, inputs: Sequence[int], outputs: Sequence[int], custom: bytes = b"", **options: Any):
        """Add an operator with the fields of its table of options, or ``slots=(table, {slot: (kind, value)})``."""
        self.operators.append((op, list(inputs), list(outputs), options, custom))

    def model(self, inputs: Sequence[int], outputs: Sequence[int], metadata: bytes = b"") -> bytes:
        """The file; ``metadata``: as :func:`pictures_metadata` makes them."""
        b = flatbuffers.Builder(1 << 12)
        ops = list(dict.fromkeys(each[0] for each in self.operators))
        codes = _tables(b, [_code(b, op) for op in ops])
        operators = _tables(b, [_operator(b, ops.index(each[0]), *each) for each in self.operators])
        buffers, tensors = [_table(b, "Buffer")], []
        for row in self.tensors:
            number = 0
            if row["data"] is not None:
                number = len(buffers)
                data = b.CreateNumpyVector(np.frombuffer(np.ascontiguousarray(row["data"]).tobytes(), np.uint8))
                buffers.append(_table(b, "Buffer", data=data))
            tensors.append(_tensor(b, row, number))
        listed = {"tensors": _tables(b, tensors), "operators": operators}
        ends = {"inputs": _numbers(b, inputs), "outputs": _numbers(b, outputs)}
        graph = _table(b, "SubGraph", **listed, **ends)
        notes = []
        if metadata:
            data = b.CreateNumpyVector(np.frombuffer(metadata, np.uint8))
            buffers.append(_table(b, "Buffer", data=data))
            notes = [_table(b, "Metadata", name=b.CreateString("TFLITE_METADATA"), buffer=len(buffers) - 1)]
        made = {"metadata": _tables(b, notes)} if notes else {}
        made |= {"operator_codes": codes, "subgraphs": _tables(b, [graph]), "buffers": _tables(b, buffers)}
        b.Finish(_table(b, "Model", version=3, **made), b"TFL3")
        return bytes(b.Output())


def pictures_metadata(mean: Sequence[float], std: Sequence[float]) -> bytes:
    """Metadata that specify the normalization of the pixels of the first input."""
    b = flatbuffers.Builder(256)

    def table(**slots: int) -> int:
        b.StartObject(8)
        for slot, value in slots.items():
            number = int(slot.removeprefix("slot"))
            if slot == "slot0" and "slot1" in slots and value == 1:
                b.PrependUint8Slot(0, value, 0)  # the kind of the union in slot 1
            else:
                b.PrependUOffsetTRelativeSlot(number, value, 0)
        return b.EndObject()

    options = [_numbers(b, values, "f4") for values in (mean, std)]
    normalization = table(slot0=options[0], slot1=options[1])
    unit = table(slot0=1, slot1=normalization)
    tensor = table(slot0=b.CreateString("image"), slot4=_tables(b, [unit]))
    graph = table(slot2=_tables(b, [tensor]))
    b.Finish(table(slot0=b.CreateString("net"), slot3=_tables(b, [graph])), b"M001")
    return bytes(b.Output())


def _table(b: flatbuffers.Builder, table: str, /, **fields: Any) -> int:
    getattr(fb, f"{table}Start")(b)
    for name, value in fields.items():
        getattr(fb, f"{table}Add{_camel(name)}")(b, value)
    return getattr(fb, f"{table}End")(b)


def _tables(b: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    b.StartVector(4, len(offsets), 4)
    for each in reversed(offsets):
        b.PrependUOffsetTRelative(each)
    return b.EndVector()


def _numbers(b: flatbuffers.Builder, values: Any, dtype: str = "i4") -> int:
    return b.CreateNumpyVector(np.asarray(values, dtype).ravel())


def _code(b: flatbuffers.Builder, op: str) -> int:
    number = getattr(fb.BuiltinOperator, op, fb.BuiltinOperator.CUSTOM)
    custom = {} if hasattr(fb.BuiltinOperator, op) else {"custom_code": b.CreateString(op)}
    old = min(number, fb.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES)
    return _table(
        b,
        "OperatorCode",
        **custom,
        deprecated_builtin_code=old,
        version=_VERSIONS.get(op, 2),
        builtin_code=number,
    )


#: versions of operators that the interpreter asks for with quantized elements
_VERSIONS = dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "RESIZE_BILINEAR"), 3)
_FIRST = (
    *(
        "RESHAPE",
        "SQUEEZE",
        "EXPAND_DIMS",
        "DEPTH_TO_SPACE",
        "HARD_SWISH",
        "PRELU",
        "CAST",
        "CEIL",
        "COS",
        "FLOOR",
        "NEG",
    ),
    *("RELU_0_TO_1", "ROUND", "SIN", "SQUARE", "ELU", "POW", "ADD_N", "CUMSUM", "L2_POOL_2D", "ONE_HOT"),
    *(
        "LOCAL_RESPONSE_NORMALIZATION",
        "ATAN2",
        "DYNAMIC_UPDATE_SLICE",
        "REVERSE_SEQUENCE",
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
    ),
)
_VERSIONS |= dict.fromkeys(_FIRST, 1)
_VERSIONS |= {"FULLY_CONNECTED": 4, "RELU_N1_TO_1": 1}


def _operator(
    b: flatbuffers.Builder, code: int, op: str, inputs: Any, outputs: Any, options: Any, custom: bytes
) -> int:
    table = f"{_OPTIONS.get(op, _camel(op))}Options"
    fields = {"opcode_index": code, "inputs": _numbers(b, inputs), "outputs": _numbers(b, outputs)}
    if "intermediates" in options:
        fields["intermediates"] = _numbers(b, options["intermediates"])
    if "slots" in options:
        fields["builtin_options_type"], slots = options["slots"]
        b.StartObject(max(slots) + 1)
        for slot, (kind, value) in slots.items():
            getattr(b, f"Prepend{kind}Slot")(slot, value, None)
        fields["builtin_options"] = b.EndObject()
    elif hasattr(fb.BuiltinOptions, table):
        options = {key: _numbers(b, each) if isinstance(each, list) else each for key, each in options.items()}
        fields["builtin_options"] = _table(b, table, **options)
        fields["builtin_options_type"] = getattr(fb.BuiltinOptions, table)
    if custom:
        fields["custom_options"] = b.CreateNumpyVector(np.frombuffer(custom, np.uint8))
    return _table(b, "Operator", **fields)


def _tensor(b: flatbuffers.Builder, row: dict[str, Any], buffer: int) -> int:
    fields: dict[str, Any] = {"name": b.CreateString(row["name"]), "shape": _numbers(b, row["shape"])}
    fields["is_variable"] = row.get("variable", False)
    if row["signature"] is not None:
        fields["shape_signature"] = _numbers(b, row["signature"])
    if row["scales"] is not None:
        scales, points = _numbers(b, row["scales"], "f4"), _numbers(b, row["points"], "i8")
        fields["quantization"] = _table(
            b, "QuantizationParameters", scale=scales, zero_point=points, quantized_dimension=row["axis"]
        )
    return _table(
        b, "Tensor", **fields, type=getattr(fb.TensorType, _KINDS.get(row["kind"], row["kind"])), buffer=buffer
    )


_OPTIMISED = ("SUM", "CEIL", "ROUND", "ELU", "LOCAL_RESPONSE_NORMALIZATION")


def interpreter(data: bytes) -> Any:
    """The interpreter with reference kernels, without its words on standard error.

    The reference kernel of a quantized SUM gives -1 (ai-edge-litert 2.3.0), that of LOCAL_RESPONSE_NORMALIZATION leaves
    out the last channel of each window, and some operators have none: those are the optimized kernels.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kinds = OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    other = any(each.op in _OPTIMISED for each in read_model(data, "model").operators)
    with _quiet():
        made = Interpreter(model_content=data, experimental_op_resolver_type=kinds[other])
        made.allocate_tensors()
    return made


def interpreted(data: bytes, *inputs: np.ndarray) -> list[np.ndarray]:
    """What the interpreter computes, in the elements of the file."""
    made = interpreter(data)
    for row, array in zip(made.get_input_details(), inputs, strict=True):
        made.set_tensor(row["index"], array)
    made.invoke()
    return [made.get_tensor(row["index"]) for row in made.get_output_details()]


@contextlib.contextmanager
def _quiet():
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
