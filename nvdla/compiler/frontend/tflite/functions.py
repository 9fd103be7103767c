"""TFLite's arithmetic, activations, reductions and comparisons as ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nvdla.compiler.frontend.tflite.graph import FILE, ONNX, TO_FILE, TO_ONNX, FlatConverter, UnsupportedError, converts
from nvdla.compiler.frontend.tflite.layers import LIMITS, activated, limited
from nvdla.compiler.frontend.tflite.reader import FlatOperator
from nvdla.util.escaping import Document


def broadcast(c: FlatConverter, numbers: Sequence[int]) -> tuple[int, ...]:
    """The shape that tensors broadcast to."""
    shapes = [c.shape(number) for number in numbers]
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        words = " and ".join(str(list(shape)) for shape in shapes)
        raise UnsupportedError(f"shapes {words} do not broadcast") from None


def together(c: FlatConverter, numbers: Sequence[int]) -> tuple[list[str], str, tuple[int, ...]]:
    """Tensors that an operator combines element by element: their values, order and shape."""
    shape = broadcast(c, numbers)
    order = c.order(*numbers) if len(shape) == 4 else FILE
    return [c.read(number, order) for number in numbers], order, shape


_TWO = {
    "ADD": "Add",
    "SUB": "Sub",
    "MUL": "Mul",
    "DIV": "Div",
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "POW": "Pow",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "EQUAL": "Equal",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
    "ADD_N": "Sum",
}


@converts(*_TWO, onnx=_TWO)
def two(c: FlatConverter, operator: FlatOperator) -> None:
    """Two or more tensors element by element, with broadcasting."""
    out = operator.outputs[0]
    values, order, shape = together(c, operator.inputs)
    result = c.node(_TWO[operator.op], values, c.name(out))
    c.write(out, activated(c, operator, result), shape, order)


@converts("SQUARED_DIFFERENCE", onnx="Sub, Mul")
def squared_difference(c: FlatConverter, operator: FlatOperator) -> None:
    """The product of a difference with itself."""
    out = operator.outputs[0]
    values, order, shape = together(c, operator.inputs)
    difference = c.node("Sub", values, f"{c.name(out)}/difference")
    c.write(out, c.node("Mul", [difference, difference], c.name(out)), shape, order)


_COMPOSED = {"NOT_EQUAL": "Equal, Not", "FLOOR_DIV": "Div, Floor", "FLOOR_MOD": "Mod"}


@converts(*_COMPOSED, onnx=_COMPOSED)
def composed(c: FlatConverter, operator: FlatOperator) -> None:
    """Comparisons and divisions that ONNX writes as several nodes; of integers on the host."""
    out = operator.outputs[0]
    values, order, shape = together(c, operator.inputs)
    real = c.tensors[out].kind.startswith("FLOAT")
    if operator.op == "NOT_EQUAL":
        result = c.node("Not", [c.node("Equal", values, f"{c.name(out)}/equal")], c.name(out))
    elif operator.op == "FLOOR_MOD" and not real:
        result = c.node("Mod", values, c.name(out))
    elif real:
        whole = c.node("Floor", [c.node("Div", values, f"{c.name(out)}/quotient")], c.name(out))
        product = whole if operator.op == "FLOOR_DIV" else c.node("Mul", [whole, values[1]], f"{c.name(out)}/product")
        result = whole if operator.op == "FLOOR_DIV" else c.node("Sub", [values[0], product], c.name(out))
    else:
        raise UnsupportedError("division of integers that are computed")
    c.write(out, result, shape, order)


@converts("SELECT", "SELECT_V2", onnx="Where")
def select(c: FlatConverter, operator: FlatOperator) -> None:
    """Elements of one of two tensors by a condition."""
    out, numbers = operator.outputs[0], operator.inputs
    if operator.op == "SELECT" and len(c.shape(numbers[0])) == 1 and len(c.shape(numbers[1])) != 1:
        raise UnsupportedError("a condition of one dimension, which selects rows")
    values, order, shape = together(c, numbers)
    c.write(out, c.node("Where", values, c.name(out)), shape, order)


# ---- one tensor

_ONE = {
    "RELU": "Relu",
    "LOGISTIC": "Sigmoid",
    "TANH": "Tanh",
    "HARD_SWISH": "HardSwish",
    "ELU": "Elu",
    "ABS": "Abs",
    "NEG": "Neg",
    "EXP": "Exp",
    "LOG": "Log",
    "SIN": "Sin",
    "COS": "Cos",
    "SQRT": "Sqrt",
    "FLOOR": "Floor",
    "CEIL": "Ceil",
    "ROUND": "Round",
    "SIGN": "Sign",
    "LOGICAL_NOT": "Not",
    "LEAKY_RELU": "LeakyRelu",
    "GELU": "Gelu",
}


@converts(*_ONE, onnx=_ONE)
def one(c: FlatConverter, operator: FlatOperator) -> None:
    """A function of each element."""
    source, out = operator.inputs[0], operator.outputs[0]
    order = c.order(source)
    form: Document = {}
    if operator.op == "LEAKY_RELU":
        form = {"alpha": operator.options.get("alpha", 0.0)}
    elif operator.op == "GELU":
        form = {"approximate": "tanh" if operator.options.get("approximate") else "none"}
    result = c.node(_ONE[operator.op], [c.read(source, order)], c.name(out), **form)
    c.write(out, result, c.shape(source), order)


@converts("RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", onnx="Clip")
def limits(c: FlatConverter, operator: FlatOperator) -> None:
    """Limits of each element; none where the range of the result implies them."""
    source, out = operator.inputs[0], operator.outputs[0]
    ends = {"RELU6": LIMITS[3], "RELU_N1_TO_1": LIMITS[2], "RELU_0_TO_1": (0.0, 1.0)}[operator.op]
    order = c.order(source)
    c.write(out, limited(c, c.read(source, order), *ends, out), c.shape(source), order)


@converts("SQUARE", "RSQRT", onnx={"SQUARE": "Mul", "RSQRT": "Sqrt, Reciprocal"})
def powers(c: FlatConverter, operator: FlatOperator) -> None:
    """A square, or the reciprocal of a square root."""
    source, out = operator.inputs[0], operator.outputs[0]
    order = c.order(source)
    value = c.read(source, order)
    if operator.op == "SQUARE":
        result = c.node("Mul", [value, value], c.name(out))
    else:
        result = c.node("Reciprocal", [c.node("Sqrt", [value], f"{c.name(out)}/root")], c.name(out))
    c.write(out, result, c.shape(source), order)


@converts("PRELU", onnx="PRelu")
def prelu(c: FlatConverter, operator: FlatOperator) -> None:
    """Slopes below zero that are constants, per channel or per element."""
    source, slope = operator.inputs[:2]
    if not c.is_constant(slope):
        raise UnsupportedError("slopes that are computed")
    values, order, shape = together(c, operator.inputs[:2])
    c.write(operator.outputs[0], c.node("PRelu", values, c.name(operator.outputs[0])), shape, order)
    if shape != c.shape(source):
        raise UnsupportedError("slopes that are larger than the input")


_ALONG = {"SOFTMAX": "Softmax", "LOG_SOFTMAX": "LogSoftmax", "L2_NORMALIZATION": "LpNormalization"}


@converts(*_ALONG, onnx=_ALONG)
def along_channels(c: FlatConverter, operator: FlatOperator) -> None:
    """A function of all numbers along the last dimension."""
    source, out = operator.inputs[0], operator.outputs[0]
    shape, order = c.shape(source), c.order(source)
    value, beta = c.read(source, order), operator.options.get("beta", 1.0)
    if operator.op == "SOFTMAX" and beta != 1:
        value = c.node("Mul", [value, c.constant(np.float32(beta))], f"{c.name(out)}/scaled")
    axis = 1 if order == ONNX else len(shape) - 1
    form: Document = {"p": 2} if operator.op == "L2_NORMALIZATION" else {}
    result = c.node(_ALONG[operator.op], [value], c.name(out), axis=axis, **form)
    c.write(out, activated(c, operator, result), shape, order)


@converts("QUANTIZE", onnx="QuantizeLinear")
def quantize(c: FlatConverter, operator: FlatOperator) -> None:
    """Another scale and zero point, or the first ones."""
    source, out = operator.inputs[0], operator.outputs[0]
    known = c.is_constant(source) or FILE in c.value_of(source)
    order = FILE if known else ONNX  # what an input of the model is rounded to, is said of the input itself
    c.write(out, c.read(source, order), c.shape(source), order)


@converts("DEQUANTIZE", onnx="DequantizeLinear")
def dequantize(c: FlatConverter, operator: FlatOperator) -> None:
    """The real numbers of a tensor: nothing is computed."""
    source, out = operator.inputs[0], operator.outputs[0]
    if c.is_constant(source) or c.is_quantized(source):
        c.alias(out, source)
    else:
        cast(c, operator)


@converts("CAST", onnx="Cast")
def cast(c: FlatConverter, operator: FlatOperator) -> None:
    """Another element type, of tensors without scales."""
    source, out = operator.inputs[0], operator.outputs[0]
    if c.is_quantized(source) or c.is_quantized(out):
        raise UnsupportedError("elements of a quantized tensor as they are")
    order = c.order(source)
    kind = c.onnx.helper.np_dtype_to_tensor_dtype(c.tensors[out].dtype)
    c.write(out, c.node("Cast", [c.read(source, order)], c.name(out), to=kind), c.shape(source), order)


# ---- reductions

_REDUCTIONS = {
    "MEAN": "ReduceMean",
    "SUM": "ReduceSum",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
}


@converts(*_REDUCTIONS, onnx=_REDUCTIONS)
def reduction(c: FlatConverter, operator: FlatOperator) -> None:
    """A reduction over constant axes; the mean over rows and columns is a pool."""
    source, out = operator.inputs[0], operator.outputs[0]
    shape = c.shape(source)
    axes = sorted({_axis(axis, len(shape)) for axis in c.integers(operator.inputs[1], "axes")})
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    result = kept if operator.options.get("keep_dims") else tuple(s for a, s in enumerate(shape) if a not in axes)
    order = ONNX if len(shape) == 4 else FILE
    value, name = c.read(source, order), c.name(out)
    if order == ONNX and axes == [1, 2] and operator.op == "MEAN":
        output = c.node("GlobalAveragePool", [value], name)
    elif axes:
        places = [TO_ONNX.index(axis) if order == ONNX else axis for axis in axes]
        output = c.node(_REDUCTIONS[operator.op], [value, c.shape_constant(places)], name, keepdims=1)
    else:
        output = c.node("Identity", [value], name)
    if result != kept and order == ONNX and axes != [1, 2] and axes != [3]:  # else the rest is in the file's order
        output, order = c.node("Transpose", [c.rounded(out, output)], f"{name}/file", perm=list(TO_FILE)), FILE
    c.write(out, output, kept, order, reshaped=None if result == kept else result)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise UnsupportedError(f"axis {axis} of {rank} dimensions")
    return axis % rank


@converts("ARG_MAX", "ARG_MIN", onnx={"ARG_MAX": "ArgMax", "ARG_MIN": "ArgMin"})
def arg(c: FlatConverter, operator: FlatOperator) -> None:
    """The position of the largest or smallest number."""
    source, out = operator.inputs[0], operator.outputs[0]
    shape = c.shape(source)
    axis = _axis(c.integers(operator.inputs[1], "axis")[0], len(shape))
    kind = "ArgMax" if operator.op == "ARG_MAX" else "ArgMin"
    result = c.node(kind, [c.read(source)], f"{c.name(out)}/place", axis=axis, keepdims=0)
    to = c.onnx.helper.np_dtype_to_tensor_dtype(c.tensors[out].dtype)
    c.write(out, c.node("Cast", [result], c.name(out), to=to), [s for a, s in enumerate(shape) if a != axis])


@converts("TOPK_V2", onnx="TopK")
def top_k(c: FlatConverter, operator: FlatOperator) -> None:
    """The largest numbers of the last dimension and their positions."""
    source, shape = operator.inputs[0], c.shape(operator.inputs[0])
    count = c.integers(operator.inputs[1], "k")[0]
    if not shape or not 0 <= count <= shape[-1]:
        raise UnsupportedError(f"the {count} largest of {list(shape)}")
    names = c.parts(
        "TopK", [c.read(source), c.shape_constant([count])], [c.name(number) for number in operator.outputs], axis=-1
    )
    result = (*shape[:-1], count)
    c.write(operator.outputs[0], names[0], result)
    to = c.onnx.helper.np_dtype_to_tensor_dtype(c.tensors[operator.outputs[1]].dtype)
    c.write(operator.outputs[1], c.node("Cast", [names[1]], f"{names[1]}/whole", to=to), result)


@converts("CUMSUM", onnx="CumSum")
def cumsum(c: FlatConverter, operator: FlatOperator) -> None:
    """Sums up to each element."""
    source, out = operator.inputs[0], operator.outputs[0]
    axis = c.constant(np.array(c.integers(operator.inputs[1], "axis")[0], np.int64))
    form: Document = {key: int(bool(operator.options.get(key))) for key in ("exclusive", "reverse")}
    c.write(out, c.node("CumSum", [c.read(source), axis], c.name(out), **form), c.shape(source))
