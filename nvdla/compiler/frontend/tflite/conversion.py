"""A whole TFLite model as an ONNX model.

Operators without an ONNX form become nodes that LiteRT's interpreter computes on the host. Such a node contains a
TFLite model of its operator alone, with real numbers in and out.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import flatbuffers
import numpy as np

from nvdla.compiler.frontend.isolation import LITERT
from nvdla.compiler.frontend.tflite import detection, functions, layers, moves
from nvdla.compiler.frontend.tflite.generated import tflite_generated as fb
from nvdla.compiler.frontend.tflite.graph import CONVERSIONS, FlatConverter, UnsupportedError
from nvdla.compiler.frontend.tflite.reader import (
    HOST_OPTIONS,
    IDENTIFIER,
    TYPES,
    FlatModel,
    FlatOperator,
    FlatTensor,
    read_model,
)
from nvdla.errors import FormatError
from nvdla.util.arguments import by_annotations

if TYPE_CHECKING:
    from onnx import ModelProto

#: the modules that register conversions
FAMILIES = (layers, functions, moves, detection)
#: operators that the interpreter computes: without branches, random numbers or results of open size
INTERPRETED = frozenset(
    [
        *("ATAN2", "BITCAST", "BITWISE_XOR", "BROADCAST_ARGS", "CONV_3D", "DYNAMIC_UPDATE_SLICE", "EMBEDDING_LOOKUP"),
        *("FAKE_QUANT", "LSTM", "MATRIX_DIAG", "MATRIX_SET_DIAG", "REDUCE_ALL", "REDUCE_ANY", "REVERSE_SEQUENCE"),
        *("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "RIGHT_SHIFT", "RNN", "SCATTER_ND", "SEGMENT_SUM"),
        *("SPARSE_TO_DENSE", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", "ZEROS_LIKE"),
        *("BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN"),
        *("UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_SUM", "AudioSpectrogram", "Mfcc", "TFLite_Detection_PostProcess"),
    ]
)
# What Python and numpy raise where options, shapes and constants of an operator do not fit each other.
_UNUSUAL = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError, OverflowError)


@by_annotations
def tflite_proto(
    onnx: ModuleType, data: bytes, name: str, shapes: Mapping[str, Sequence[int]]
) -> tuple[str, ModelProto, str]:
    """Convert a TFLite model.

    Args:
        onnx: the package.
        data: the bytes of the file.
        name: of the model, for messages.
        shapes: shapes of inputs with open sizes, in the order of the file (NHWC).

    Returns:
        Its name, an ``onnx.ModelProto`` with the tensors of the file at its ends, and the sha256 of the file.

    Raises:
        FormatError: the file is damaged, or has an operator that is not converted.
    """
    try:
        return name, _converted(onnx, read_model(data, name), shapes), hashlib.sha256(data).hexdigest()
    except (FormatError, UnsupportedError) as error:
        raise FormatError(f"{name}: {error}") from None


def _converted(onnx: ModuleType, model: FlatModel, shapes: Mapping[str, Sequence[int]]) -> ModelProto:
    inputs = [model.tensors[number].name for number in model.inputs]
    for key in shapes:
        if key not in inputs:
            raise FormatError(f"shape for {key}: the model's inputs are {', '.join(inputs) or 'none'}")
    converter = FlatConverter(onnx, model, shapes)
    for number, operator in enumerate(_dilated(converter, _needed(model))):
        try:
            _convert(converter, operator)
        except UnsupportedError as error:
            raise FormatError(f"{_described(model, operator, number)}: {error}") from None
        except _UNUSUAL as error:
            words = " ".join(str(error).split())[:120] or type(error).__name__
            where = _described(model, operator, number)
            raise FormatError(f"{where}: its options and tensors do not fit ({words})") from None
    return converter.proto()


def _convert(c: FlatConverter, operator: FlatOperator) -> None:
    if not operator.outputs:
        raise UnsupportedError("it has no result")
    if moves.folds(c, operator):
        return
    conversion, first = CONVERSIONS.get(operator.op), len(c.nodes)
    try:
        if conversion is None:
            raise UnsupportedError("this operator is not converted")
        conversion.function(c, operator)
    except UnsupportedError:
        c.host = ""
        if operator.op not in INTERPRETED:
            raise
        if importlib.util.find_spec("ai_edge_litert") is None:
            raise UnsupportedError("it needs LiteRT's interpreter: pip install 'nvdla[tflite]'") from None
        del c.nodes[first:]
        _interpret(c, operator)


def _described(model: FlatModel, operator: FlatOperator, number: int) -> str:
    target = f" that makes {model.tensors[operator.outputs[0]].name}" if operator.outputs else ""
    return f"operator {number} ({operator.op}){target}"


def _needed(model: FlatModel) -> list[FlatOperator]:
    """The operators whose results are used."""
    needed, kept = set(model.outputs), []
    for operator in reversed(model.operators):
        if needed & set(operator.outputs):
            needed |= set(operator.inputs)
            kept.append(operator)
    return kept[::-1]


def _dilated(c: FlatConverter, operators: list[FlatOperator]) -> list[FlatOperator]:
    """The operators, with dilations where a convolution runs between SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND."""
    makers = {number: operator for operator in operators for number in operator.outputs}
    users: dict[int, int] = {}
    for operator in operators:
        for number in operator.inputs:
            users[number] = users.get(number, 0) + 1
    ends = set(c.model.outputs)
    merged: dict[int, FlatOperator] = {}
    gone: set[int] = set()
    for last in operators:
        chain = _before(makers, last) if last.op == "BATCH_TO_SPACE_ND" else []
        inner = [number for operator in chain[:-1] for number in operator.outputs]
        if chain and all(users.get(number) == 1 and number not in ends for number in inner):
            dilated = _merged(c, chain)
            merged |= {id(old): new for old, new in zip(chain[1:-1], dilated, strict=False)}
            gone |= {id(chain[0]), id(last)} if dilated else set()
    return [merged.get(id(operator), operator) for operator in operators if id(operator) not in gone]


def _before(makers: Mapping[int, FlatOperator], last: FlatOperator) -> list[FlatOperator]:
    """Return SPACE_TO_BATCH_ND and what follows it up to ``last``: a convolution, which between sequences has operators
    that add and remove its rows around it. Return nothing where other operators are there."""
    chain = [last]
    while len(chain) < 5 and chain[0].op != "SPACE_TO_BATCH_ND" and chain[0].inputs and chain[0].inputs[0] in makers:
        chain.insert(0, makers[chain[0].inputs[0]])
    begins = chain[0].op == "SPACE_TO_BATCH_ND" and min(len(chain[0].inputs), len(last.inputs)) >= 3
    around = [operator.op for operator in chain[1:-1]]
    is_sequence = around[::2] == ["EXPAND_DIMS", "RESHAPE"] or around[::2] == ["EXPAND_DIMS", "SQUEEZE"]
    return chain if begins and (len(chain) == 3 or is_sequence) else []


def _merged(c: FlatConverter, chain: list[FlatOperator]) -> list[FlatOperator]:
    """One dilated convolution in place of the operators of :func:`_before` but the first and the last, with those that
    add and remove rows; nothing where there is none."""
    first, *_, last = chain
    middle = chain[len(chain) // 2]
    strides = [middle.options.get(key) for key in ("stride_h", "stride_w", "dilation_h_factor", "dilation_w_factor")]
    plain = middle.op in ("CONV_2D", "DEPTHWISE_CONV_2D") and strides == [1, 1, 1, 1]
    if not plain or middle.options.get("padding") == layers.SAME:
        return []
    if not all(c.is_constant(number) for operator in (first, last) for number in operator.inputs[1:3]):
        return []
    blocks, others = (c.integers(operator.inputs[1], "block shape") for operator in (first, last))
    pads, crops = (c.integers(operator.inputs[2], "paddings") for operator in (first, last))
    axes = 2 if len(chain) == 3 else 1
    if blocks != others or [len(blocks), len(pads), len(crops)] != [axes, 2 * axes, 2 * axes] or min(blocks) < 1:
        return []
    kept = [pad - crop for pad, crop in zip(pads, crops, strict=True)]  # before, after of rows and of columns
    if min(kept) < 0 or min(crops) < 0:
        return []
    if c.tensors[last.outputs[0]].quantization is not None and not _same_scale(c, middle.outputs[0], last.outputs[0]):
        return []
    blocks, kept = [1] * (2 - axes) + blocks, [0, 0] * (2 - axes) + kept
    options = middle.options | {"dilation_h_factor": blocks[0], "dilation_w_factor": blocks[1]}
    options["pads"] = [kept[0], kept[2], kept[1], kept[3]]
    if axes == 2:
        return [replace(middle, inputs=[first.inputs[0], *middle.inputs[1:]], outputs=last.outputs, options=options)]
    _, before, _, after, _ = chain
    cube, sequence = c.tensors[middle.outputs[0]].shape, c.tensors[after.outputs[0]].shape
    if c.integers(before.inputs[1], "axis") not in ([1], [-3]) or len(cube) != 4 or sequence[1:] != cube[2:]:
        return []
    whole = replace(before, inputs=[first.inputs[0], *before.inputs[1:]])
    rows = replace(after, op="SQUEEZE", inputs=middle.outputs, outputs=last.outputs, options={"squeeze_dims": [1]})
    return [whole, replace(middle, options=options), rows]


def _same_scale(c: FlatConverter, number: int, other: int) -> bool:
    first, second = c.tensors[number].quantization, c.tensors[other].quantization
    if first is None or second is None:
        return False
    return first.scales.tolist() == second.scales.tolist() and first.points.tolist() == second.points.tolist()


# ---- operators of the interpreter


def _interpret(c: FlatConverter, operator: FlatOperator) -> None:
    """Add a node that the interpreter computes. Results have the shapes that the file states."""
    given = [n for n in dict.fromkeys(operator.inputs) if n >= 0 and not c.tensors[n].variable]
    given = [n for n in given if not c.is_constant(n)]
    for number in given:
        if c.shape(number) != c.tensors[number].shape:
            wanted = f"{list(c.tensors[number].shape)}, got {list(c.shape(number))}"
            raise UnsupportedError(f"shape of {c.tensors[number].name}: must be that of the file, {wanted}")
    for number in (*given, *operator.outputs):
        if c.tensors[number].quantized and not c.is_quantized(number):
            raise UnsupportedError(f"type of {c.tensors[number].name}: {c.tensors[number].kind} is not computed")
    model = _OneOperator(c, operator, given).model()
    names = [f"{c.tensors[number].name}/{operator.op}" for number in operator.outputs]
    values = [c.read(number) for number in given]
    c.host = "LiteRT's interpreter computes it"
    results = c.parts(operator.op, values, names, domain=LITERT, model=model)
    c.host = ""
    for number, value in zip(operator.outputs, results, strict=True):
        tensor = c.tensors[number]
        kind = np.dtype(np.float32) if c.is_quantized(number) else tensor.dtype
        element = c.onnx.helper.np_dtype_to_tensor_dtype(kind)
        c.infos.append(c.onnx.helper.make_tensor_value_info(value, element, list(tensor.shape)))
        c.write(number, value, tensor.shape)


class _OneOperator:
    """A TFLite model of one operator: QUANTIZE before it and DEQUANTIZE after it where its tensors are quantized."""

    def __init__(self, c: FlatConverter, operator: FlatOperator, given: Sequence[int]) -> None:
        self.c, self.operator, self.given = c, operator, given
        self.builder = flatbuffers.Builder(1 << 12)
        self.buffers = [self._table("Buffer")]
        self.tensors: list[int] = []
        self.places = {-1: -1}
        self.codes: list[int] = []
        self.operators: list[int] = []

    def model(self) -> bytes:
        """The bytes of the file."""
        held = (*self.operator.inputs, *self.operator.outputs, *self.operator.intermediates)
        for number in dict.fromkeys(held):
            if number >= 0:
                self.places[number] = self._tensor(self.c.tensors[number], self._data(number))
        inputs = [self._real(number, "QUANTIZE") for number in self.given]
        self._operator()
        outputs = [self._real(number, "DEQUANTIZE") for number in self.operator.outputs]
        listed = {"tensors": self._tables(self.tensors), "operators": self._tables(self.operators)}
        ends = {"inputs": self._numbers(inputs), "outputs": self._numbers(outputs)}
        graphs = self._tables([self._table("SubGraph", **listed, **ends)])
        rest = {"operator_codes": self._tables(self.codes), "buffers": self._tables(self.buffers)}
        self.builder.Finish(self._table("Model", version=3, subgraphs=graphs, **rest), IDENTIFIER)
        return bytes(self.builder.Output())

    def _data(self, number: int) -> np.ndarray | memoryview | None:
        """The elements of a constant, None for a computed tensor."""
        if number in self.c.folded:
            if self.c.tensors[number].quantized:
                raise UnsupportedError(f"{self.c.tensors[number].name} is computed from constants")
            return self.c.folded[number].astype(self.c.tensors[number].dtype)
        return self.c.tensors[number].data if number not in self.c.values else None

    def _real(self, number: int, op: str) -> int:
        """The tensor of the real numbers of a quantized one; any other tensor unchanged."""
        place, tensor = self.places[number], self.c.tensors[number]
        if not self.c.is_quantized(number):
            return place
        real = self._tensor(FlatTensor(f"{tensor.name}/{op}", "FLOAT32", tensor.shape, tensor.shape), None)
        inputs, outputs = ([real], [place]) if op == "QUANTIZE" else ([place], [real])
        self._add(op, 2, inputs=self._numbers(inputs), outputs=self._numbers(outputs))
        return real

    def _operator(self) -> None:
        operator = self.operator
        inputs, outputs, inner = (
            self._numbers([self.places[number] for number in numbers])
            for numbers in (operator.inputs, operator.outputs, operator.intermediates)
        )
        fields = {"inputs": inputs, "outputs": outputs, "intermediates": inner}
        if operator.table in HOST_OPTIONS:
            fields |= {"builtin_options": self._options(), "builtin_options_type": operator.table}
        elif any(key[0] != "_" for key in operator.options):  # REDUCE_ANY and REDUCE_ALL
            numbers = {key: option for key, option in operator.options.items() if key[0] != "_"}
            fields |= {"builtin_options": self._table("ReducerOptions", **numbers)}
            fields |= {"builtin_options_type": fb.BuiltinOptions.ReducerOptions}
        if operator.custom:
            fields["custom_options"] = self._numbers(np.frombuffer(operator.custom, np.uint8), "u1")
        self._add(operator.op, operator.version, **fields)

    def _options(self) -> int:
        """The options of the operator, without the numbers that the file leaves out."""
        codes = HOST_OPTIONS[self.operator.table]
        self.builder.StartObject(len(codes))
        for slot, code in enumerate(codes):
            value = self.operator.options[f"{slot}"]
            if value is not None:
                kind = {"b": "Int8", "i": "Int32", "f": "Float32", "?": "Bool"}[code]
                getattr(self.builder, f"Prepend{kind}Slot")(slot, value, None)
        return int(self.builder.EndObject())

    def _add(self, op: str, version: int, **fields: int) -> None:
        number = getattr(fb.BuiltinOperator, op, fb.BuiltinOperator.CUSTOM)
        custom = {"custom_code": self.builder.CreateString(op)} if number == fb.BuiltinOperator.CUSTOM else {}
        old = min(number, fb.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES)
        code = {"version": version, "builtin_code": number, "deprecated_builtin_code": old}
        self.codes.append(self._table("OperatorCode", **custom, **code))
        self.operators.append(self._table("Operator", opcode_index=len(self.codes) - 1, **fields))

    def _tensor(self, tensor: FlatTensor, data: np.ndarray | memoryview | None) -> int:
        """Add a tensor; returns its position."""
        builder, quantization = self.builder, tensor.quantization
        fields = {"name": builder.CreateString(tensor.name), "shape": self._numbers(tensor.shape)}
        if quantization is not None:
            scales, points = self._numbers(quantization.scales, "f4"), self._numbers(quantization.points, "i8")
            parameters = {"scale": scales, "zero_point": points, "quantized_dimension": quantization.axis}
            fields["quantization"] = self._table("QuantizationParameters", **parameters)
        number = 0
        if data is not None:
            number = len(self.buffers)
            elements = self._numbers(np.frombuffer(data, np.uint8), "u1")
            self.buffers.append(self._table("Buffer", data=elements))
        kind = next(number for number, name in TYPES.items() if name == tensor.kind)
        row = fields | {"type": kind, "buffer": number, "is_variable": tensor.variable}
        self.tensors.append(self._table("Tensor", **row))
        return len(self.tensors) - 1

    def _table(self, table: str, /, **fields: Any) -> int:
        getattr(fb, f"{table}Start")(self.builder)
        for name, value in fields.items():
            getattr(fb, f"{table}Add{''.join(part.capitalize() for part in name.split('_'))}")(self.builder, value)
        return int(getattr(fb, f"{table}End")(self.builder))

    def _tables(self, offsets: Sequence[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())

    def _numbers(self, values: Any, dtype: str = "i4") -> int:
        return int(self.builder.CreateNumpyVector(np.asarray(values, dtype).ravel()))
