"""TFLite (LiteRT) files: bytes in, verified tensors and operators out.

The tables are those of fbs/tflite.fbs. Slots, number types and defaults come from the generated bindings, and every
position is checked before it is read (:mod:`nvdla.loadable.reader`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nvdla.compiler.frontend.tflite.generated import tflite_generated as fb
from nvdla.errors import FormatError, shown
from nvdla.limits import MAX_SHARING, Limits
from nvdla.loadable.reader import Verifier
from nvdla.loadable.schema import STRING, FieldType, Scalar, String, TableField, TableSchema, Union, Vector
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document

IDENTIFIER = b"TFL3"
MAX_RANK = 8
MAX_OPERATORS = 10_000
#: names of fused operators are those of all their parts in one
_LIMITS = Limits(string_bytes=1 << 16)

# ---- schema

_NUMBERS = dict(Bool="?", Int8="b", Uint8="B", Int32="i", Uint32="I", Int64="q", Uint64="Q", Float32="f")  # noqa: C408
_BYTES, _INTEGERS, _FLOATS, _LONGS = (Vector(Scalar(code)) for code in "Bifq")
_UNREAD = Scalar("B")  # a byte is inside every field


class _Slots:
    """A builder that notes the fields that the functions of the bindings would write."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[str, object]] = {}

    def __getattr__(self, name: str) -> Callable[[int, object, object], None]:
        def note(slot: int, value: object, default: object) -> None:
            self.found[slot] = name.removeprefix("Prepend").removesuffix("Slot"), default

        return note


def _table(table: str, /, **offsets: FieldType | Union) -> TableSchema:
    """The schema of a table of the bindings; ``offsets``: what its offsets lead to."""
    fields: dict[int, TableField] = {}
    for function in (name for name in vars(fb) if name.startswith(f"{table}Add")):
        slots = _Slots()
        getattr(fb, function)(slots, 0)
        slot, (kind, default) = next(iter(slots.found.items()))
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", function.removeprefix(f"{table}Add")).lower()
        if kind in _NUMBERS:
            fields[slot] = TableField(name, Scalar(_NUMBERS[kind]), default)
        elif name in offsets:
            chosen = offsets[name]
            empty: object = () if isinstance(chosen, Vector) else "" if isinstance(chosen, String) else None
            fields[slot] = TableField(name, chosen, empty)
    last = max(fields, default=-1)
    return TableSchema(table, tuple(fields.get(slot, TableField(f"_{slot}", _UNREAD)) for slot in range(last + 1)))


def _names(enumeration: type) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


OPERATORS = _names(fb.BuiltinOperator)
TYPES = _names(fb.TensorType)
OPTIONS = {
    number: _table(name, new_shape=_INTEGERS, squeeze_dims=_INTEGERS)
    for number, name in _names(fb.BuiltinOptions).items()
    if number
}
#: types of the numbers in the options of operators that have no ONNX form, by number of the table
HOST_OPTIONS = {6: "ib?", 7: "b?", 14: "bffb?", 31: "?b?", 50: "?", 58: "ffi?"}  # SVDF to FAKE_QUANT
HOST_OPTIONS |= {69: "bff???", 70: "?b??", 71: "bff???", 87: "ii", 106: "biiibiii"}  # sequences and CONV_3D
OPTIONS |= {
    number: TableSchema("options", tuple(TableField(f"{slot}", Scalar(code)) for slot, code in enumerate(codes)))
    for number, codes in HOST_OPTIONS.items()
}
_QUANTIZATION = _table("QuantizationParameters", min=_FLOATS, max=_FLOATS, scale=_FLOATS, zero_point=_LONGS)
_TENSOR = _table(
    "Tensor",
    shape=_INTEGERS,
    name=STRING,
    quantization=_QUANTIZATION,
    sparsity=TableSchema("SparsityParameters", ()),
    shape_signature=_INTEGERS,
)
_OPERATOR = _table(
    "Operator",
    inputs=_INTEGERS,
    outputs=_INTEGERS,
    builtin_options=Union("builtin_options_type", OPTIONS),
    custom_options=_BYTES,
    intermediates=_INTEGERS,
)
_SUBGRAPH = _table(
    "SubGraph",
    tensors=Vector(_TENSOR),
    inputs=_INTEGERS,
    outputs=_INTEGERS,
    operators=Vector(_OPERATOR),
    name=STRING,
)
_MODEL = _table(
    "Model",
    operator_codes=Vector(_table("OperatorCode", custom_code=STRING)),
    subgraphs=Vector(_SUBGRAPH),
    description=STRING,
    buffers=Vector(_table("Buffer", data=_BYTES)),
    metadata=Vector(_table("Metadata", name=STRING)),
)


# Metadata of the file, in a separate buffer: the fields before those that are read have no names here.
def _after(count: int, *fields: TableField) -> tuple[TableField, ...]:
    return (*(TableField(f"_{slot}", _UNREAD) for slot in range(count)), *fields)


_NORMALIZATION = TableSchema("NormalizationOptions", (TableField("mean", _FLOATS, ()), TableField("std", _FLOATS, ())))
_UNIT = TableSchema(
    "ProcessUnit", (TableField("kind", Scalar("B"), 0), TableField("options", Union("kind", {1: _NORMALIZATION})))
)
_TENSOR_METADATA = TableSchema("TensorMetadata", _after(4, TableField("process_units", Vector(_UNIT), ())))
_GRAPH_METADATA = TableSchema("SubGraphMetadata", _after(2, TableField("inputs", Vector(_TENSOR_METADATA), ())))
_METADATA = TableSchema("ModelMetadata", _after(3, TableField("subgraphs", Vector(_GRAPH_METADATA), ())))
METADATA_NAME = "TFLITE_METADATA"

# ---- models

_DTYPES = {
    "BOOL": "?",
    **{f"FLOAT{8 * size}": f"<f{size}" for size in (2, 4, 8)},
    **{f"{kind}{8 * size}": f"<{kind[0].lower()}{size}" for kind in ("INT", "UINT") for size in (1, 2, 4, 8)},
}


@dataclass(frozen=True)
class FlatQuantization:
    """``scale * (element - point)``, one for a tensor or one per index of ``axis``."""

    scales: np.ndarray
    points: np.ndarray
    axis: int

    @property
    def whole(self) -> bool:
        """True if one scale holds for the whole tensor."""
        return self.scales.size == 1


@dataclass
class FlatTensor:
    """A tensor of the file. ``kind``: the name of its type; ``data``: its bytes where it is a constant."""

    name: str
    kind: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    data: memoryview | None = None
    quantization: FlatQuantization | None = None
    unread: str = ""
    variable: bool = False

    @property
    def dtype(self) -> np.dtype:
        """The numpy type of its elements; of packed ones that of the unpacked. Raises FormatError."""
        if self.kind == "INT4":
            return np.dtype("i1")
        if self.kind not in _DTYPES:
            raise FormatError(f"tensor {self.name}: type: must be one of {', '.join(_DTYPES)}, INT4, got {self.kind}")
        return np.dtype(_DTYPES[self.kind])

    @property
    def quantized(self) -> bool:
        """True if its elements represent real numbers."""
        return self.quantization is not None and self.kind in ("INT4", "INT8", "UINT8", "INT16", "INT32", "INT64")

    def elements(self) -> np.ndarray:
        """The elements of a constant. Raises FormatError where the file has fewer or more bytes."""
        if self.unread:
            raise FormatError(f"tensor {self.name}: {self.unread}")
        assert self.data is not None, f"{self.name} is computed"
        count, dtype = math.prod(self.shape), self.dtype
        size = (count + 1) // 2 if self.kind == "INT4" else count * dtype.itemsize
        if len(self.data) != size:
            raise FormatError(f"tensor {self.name}: data: must be {shown(size)} bytes, got {len(self.data)}")
        if self.kind != "INT4":
            return np.frombuffer(self.data, dtype).reshape(self.shape)
        pairs = np.frombuffer(self.data, np.int8)
        return np.stack([np.left_shift(pairs, 4) >> 4, pairs >> 4], 1).ravel()[:count].reshape(self.shape)


@dataclass
class FlatOperator:
    """An operator of the file. ``inputs`` and ``outputs``: positions of tensors, -1 for one that is left out."""

    op: str
    version: int
    inputs: list[int]
    outputs: list[int]
    options: Document = field(default_factory=dict)
    custom: bytes = b""
    table: int = 0  # of its options
    intermediates: list[int] = field(default_factory=list)


@dataclass
class FlatModel:
    """The first subgraph of a TFLite file."""

    name: str
    tensors: list[FlatTensor]
    operators: list[FlatOperator]
    inputs: list[int]
    outputs: list[int]
    metadata: dict[str, memoryview]

    def normalization(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation of the pixels of the first input, as the metadata specify.

        Returns:
            Two arrays of one number, or one per channel; None where the file specifies none.

        Raises:
            FormatError: the metadata are damaged, or do not fit the input.
        """
        data = self.metadata.get(METADATA_NAME)
        if data is None or not self.inputs:
            return None
        stated: Document = Verifier(data, _LIMITS, FormatError).root(_METADATA)
        units = [
            unit for graph in stated["subgraphs"][:1] for row in graph["inputs"][:1] for unit in row["process_units"]
        ]
        options = next((unit["options"] for unit in units if unit["kind"] == 1), None)
        if options is None:
            return None
        mean, std = (np.array(options[key], np.float64) for key in ("mean", "std"))
        channels = self.tensors[self.inputs[0]].shape[-1:]
        if {mean.size, std.size} - {1, *channels}:
            got = f"{mean.size} and {std.size}"
            raise FormatError(
                f"metadata: mean and std: must be one number or one per channel {list(channels)}, got {got}"
            )
        if not np.isfinite([*mean, *std]).all() or not std.all():
            raise FormatError(f"metadata: mean and std: must be finite, std not 0, got {mean[:4]} and {std[:4]}")
        return mean, std


@by_annotations
def is_tflite(data: bytes | memoryview) -> bool:
    """Check whether bytes begin as a TFLite file does."""
    return bytes(data[4:8]) == IDENTIFIER


def read_model(data: bytes, name: str) -> FlatModel:
    """Read a TFLite file.

    Args:
        data: the bytes of the file.
        name: of the model.

    Returns:
        Its tensors and operators, with positions that are checked.

    Raises:
        FormatError: naming the table or tensor, the expected and the actual value.
    """
    if not is_tflite(data):
        raise FormatError(f"bytes 4 to 7: must be {IDENTIFIER.decode()} (a TFLite model), got {data[4:8]!r}")
    buffer = memoryview(data)
    return _Reading(buffer, Verifier(buffer, _LIMITS, FormatError).root(_MODEL)).model(name)


class _Reading:
    def __init__(self, buffer: memoryview, tables: Document) -> None:
        self.buffer, self.tables = buffer, tables
        self.shared = 0

    def model(self, name: str) -> FlatModel:
        if not self.tables["subgraphs"]:
            raise FormatError("subgraphs: must be at least 1, got 0")
        graph = self.tables["subgraphs"][0]
        if len(graph["operators"]) > MAX_OPERATORS:
            raise FormatError(f"operators: must be at most {MAX_OPERATORS}, got {len(graph['operators'])}")
        count = len(graph["tensors"])
        names: set[str] = set()
        tensors = [self._tensor(number, row, names) for number, row in enumerate(graph["tensors"])]
        inputs, outputs = (_positions(graph[key], count, key) for key in ("inputs", "outputs"))
        operators = [self._operator(row, count) for row in graph["operators"]]
        return FlatModel(name, tensors, operators, inputs, outputs, self._metadata())

    def _data(self, number: int, what: str) -> memoryview:
        """The bytes of a buffer; they may be after the tables."""
        buffers = self.tables["buffers"]
        if number >= len(buffers):
            raise FormatError(f"{what}: buffer: must be less than {len(buffers)}, got {number}")
        row = buffers[number]
        begin, size = row["offset"], row["size"]
        if begin > 1:
            if begin + size > len(self.buffer):
                limit = f"must be inside the file ({len(self.buffer)} bytes)"
                raise FormatError(f"{what}: bytes {shown(begin)} to {shown(begin + size)}: {limit}")
            return self.buffer[begin : begin + size]
        return row["data"] if isinstance(row["data"], memoryview) else memoryview(b"")

    def _tensor(self, number: int, row: Document, names: set[str]) -> FlatTensor:
        name = row["name"] or f"tensor{number}"
        if name in names:
            name = next(f"{name}_{n}" for n in range(number, 2 * number + 2) if f"{name}_{n}" not in names)
        names.add(name)
        shape, signature = (tuple(row[key]) for key in ("shape", "shape_signature"))
        if len(shape) > MAX_RANK or any(size < 0 for size in shape):
            raise FormatError(f"tensor {name}: shape: must be at most {MAX_RANK} sizes from 0, got {list(shape)[:8]}")
        signature = signature if len(signature) == len(shape) else shape
        data = self._data(row["buffer"], f"tensor {name}") if row["buffer"] else memoryview(b"")
        self.shared += len(data)
        if self.shared > MAX_SHARING * len(self.buffer):
            limit = f"must be at most {MAX_SHARING} times the file"
            raise FormatError(f"tensors share buffers: {limit} ({MAX_SHARING * len(self.buffer)} bytes), got more")
        kind = TYPES.get(row["type"], f"number {row['type']}")
        unread = "sparse constants are not read; make them dense" if row["sparsity"] is not None else ""
        quantization, details = row["quantization"], (row["quantization"] or {}).get("details_type", 0)
        if details:
            unread = f"quantization per block or by custom parameters (kind {details}) is not read"
        tensor = FlatTensor(name, kind, shape, signature, data if len(data) else None, unread=unread)
        tensor.variable = row["is_variable"]
        if quantization is not None and len(quantization["scale"]):
            tensor.quantization = _quantization(quantization, tensor)
        return tensor

    def _operator(self, row: Document, count: int) -> FlatOperator:
        codes = self.tables["operator_codes"]
        if row["opcode_index"] >= len(codes):
            raise FormatError(f"operator code: must be less than {len(codes)}, got {row['opcode_index']}")
        code = codes[row["opcode_index"]]
        number = max(code["builtin_code"], code["deprecated_builtin_code"])
        op = OPERATORS.get(number, f"operator {number}")
        if op == "CUSTOM":
            op = code["custom_code"] or op
        inputs, outputs = (_positions(row[key], count, op, key == "inputs") for key in ("inputs", "outputs"))
        custom = bytes(row["custom_options"]) if isinstance(row["custom_options"], memoryview) else b""
        inner, options = _positions(row["intermediates"], count, op), dict(row["builtin_options"] or {})
        return FlatOperator(op, code["version"], inputs, outputs, options, custom, row["builtin_options_type"], inner)

    def _metadata(self) -> dict[str, memoryview]:
        return {row["name"]: self._data(row["buffer"], "metadata") for row in self.tables["metadata"]}


def _quantization(row: Document, tensor: FlatTensor) -> FlatQuantization:
    scales = np.array(row["scale"], np.float32)
    points: np.ndarray = np.array(row["zero_point"] or (0,), np.int64)
    axis = row["quantized_dimension"]
    if not np.all(np.isfinite(scales) & (scales >= 0)):
        raise FormatError(f"tensor {tensor.name}: scales: must be finite and not negative, got {scales[:8].tolist()}")
    if scales.size > 1 and not (0 <= axis < len(tensor.shape) and tensor.shape[axis] == scales.size):
        raise FormatError(
            f"tensor {tensor.name}: {scales.size} scales along axis {axis}: must fit shape {list(tensor.shape)}"
        )
    if points.size not in (1, scales.size):
        raise FormatError(f"tensor {tensor.name}: zero points: must be 1 or {scales.size}, got {points.size}")
    if points.size != scales.size:
        points = np.broadcast_to(points, scales.shape)
    if tensor.kind in ("INT8", "UINT8", "INT16"):
        info = np.iinfo(tensor.dtype)
        if points.min() < info.min or points.max() > info.max:
            raise FormatError(
                f"tensor {tensor.name}: zero point: must be {info.min} to {info.max}, got {points[:8].tolist()}"
            )
    return FlatQuantization(scales, points, axis)


def _positions(values: Sequence[int], count: int, what: str, optional: bool = False) -> list[int]:
    """Positions of tensors, checked."""
    for number in values:
        if not (-1 if optional else 0) <= number < count:
            raise FormatError(f"{what}: tensor: must be less than {count}, got {number}")
    return list(values)
