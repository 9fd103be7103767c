"""A whole TFLite model as an ONNX model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from nvdla.compiler.frontend.tflite import detection, functions, layers, moves
from nvdla.compiler.frontend.tflite.graph import CONVERSIONS, FlatConverter, UnsupportedError
from nvdla.compiler.frontend.tflite.reader import FlatModel, FlatOperator, read_model
from nvdla.errors import FormatError
from nvdla.util.arguments import by_annotations

if TYPE_CHECKING:
    from onnx import ModelProto

#: the modules that register conversions, in the order of the page
FAMILIES = (layers, functions, moves, detection)
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
    conversion = CONVERSIONS.get(operator.op)
    if conversion is None:
        raise UnsupportedError("this operator is not converted")
    conversion.function(c, operator)


def _described(model: FlatModel, operator: FlatOperator, number: int) -> str:
    made = f" that makes {model.tensors[operator.outputs[0]].name}" if operator.outputs else ""
    return f"operator {number} ({operator.op}){made}"


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
    makers = {number: each for each in operators for number in each.outputs}
    users: dict[int, int] = {}
    for each in operators:
        for number in each.inputs:
            users[number] = users.get(number, 0) + 1
    ends = set(c.model.outputs)
    merged: dict[int, FlatOperator] = {}
    gone: set[int] = set()
    for last in operators:
        middle = makers.get(last.inputs[0]) if last.op == "BATCH_TO_SPACE_ND" and last.inputs else None
        first = makers.get(middle.inputs[0]) if middle is not None and middle.inputs else None
        if middle is None or first is None or first.op != "SPACE_TO_BATCH_ND":
            continue
        inner = (*first.outputs, *middle.outputs)
        if all(users.get(number) == 1 and number not in ends for number in inner):
            made = _merged(c, first, middle, last)
            if made is not None:
                merged[id(middle)] = made
                gone |= {id(first), id(last)}
    return [merged.get(id(each), each) for each in operators if id(each) not in gone]


def _merged(c: FlatConverter, first: FlatOperator, middle: FlatOperator, last: FlatOperator) -> FlatOperator | None:
    """One dilated convolution that does what three operators do; None where there is none."""
    strides = [middle.options.get(key) for key in ("stride_h", "stride_w", "dilation_h_factor", "dilation_w_factor")]
    plain = middle.op in ("CONV_2D", "DEPTHWISE_CONV_2D") and strides == [1, 1, 1, 1]
    if not plain or middle.options.get("padding") == layers.SAME or min(len(first.inputs), len(last.inputs)) < 3:
        return None
    if not all(c.is_constant(number) for each in (first, last) for number in each.inputs[1:3]):
        return None
    blocks, others = (c.integers(each.inputs[1], "block shape") for each in (first, last))
    pads, crops = (c.integers(each.inputs[2], "paddings") for each in (first, last))
    if blocks != others or len(blocks) != 2 or len(pads) != 4 or len(crops) != 4 or min(blocks) < 1:
        return None
    kept = [pad - crop for pad, crop in zip(pads, crops, strict=True)]  # before, after of rows and of columns
    if min(kept) < 0 or min(crops) < 0:
        return None
    if c.tensors[last.outputs[0]].quantization is not None and not _same_scale(c, middle.outputs[0], last.outputs[0]):
        return None
    options = middle.options | {"dilation_h_factor": blocks[0], "dilation_w_factor": blocks[1]}
    options["pads"] = [kept[0], kept[2], kept[1], kept[3]]
    return replace(middle, inputs=[first.inputs[0], *middle.inputs[1:]], outputs=last.outputs, options=options)


def _same_scale(c: FlatConverter, one: int, other: int) -> bool:
    first, second = c.tensors[one].quantization, c.tensors[other].quantization
    if first is None or second is None:
        return False
    return first.scales.tolist() == second.scales.tolist() and first.points.tolist() == second.points.tolist()
