"""TFLite models of one operator each, over shapes, strides, paddings and scales, with inputs for them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.tflite_writer import FlatWriter, interpreted

SAME, VALID = 0, 1
NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)
CONSTANT_SCALE = 0.02


@dataclass(frozen=True)
class Case:
    """A model with one input set. ``units``: by how many units of the output the accelerator may differ."""

    name: str
    build: Callable[[OneOperator], None]
    units: float = 1.0

    def made(self) -> OneOperator:
        """The model and its inputs: the same at each call."""
        made = OneOperator(np.random.default_rng(zlib.crc32(self.name.encode())))
        self.build(made)
        return made


class OneOperator:
    """A model under construction: inputs with elements, constants, outputs."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.writer = rng, FlatWriter()
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.arrays: list[np.ndarray] = []

    @property
    def data(self) -> bytes:
        """The file."""
        return self.writer.model(self.inputs, self.outputs)

    def input(self, shape, scale: float | None = 0.04, zero: int = -3, kind: str = "int8") -> int:
        """An input with random elements."""
        number = self.writer.tensor(shape, kind, scale, zero)
        if kind.startswith("float"):
            array = self.rng.normal(size=shape).astype(kind)
        else:
            info = np.iinfo(kind)
            array = self.rng.integers(info.min, info.max + 1, shape).astype(kind)
        self.inputs.append(number)
        self.arrays.append(array)
        return number

    def output(self, shape, scale: float | None = 0.04, zero: int = -3, kind: str = "int8") -> int:
        """An output."""
        number = self.writer.tensor(shape, kind, scale, zero)
        self.outputs.append(number)
        return number

    def constant(self, values: Any, scale: Any = None, zero: int = 0, axis: int = 0) -> int:
        """A constant; plain numbers are int32."""
        return self.writer.constant(values, scale, zero, axis)

    def elements(self, shape, kind: str = "int8") -> np.ndarray:
        """Random elements of weights, without the lowest of int8."""
        info = np.iinfo(kind)
        return self.rng.integers(info.min + (info.min < 0), info.max + 1, shape).astype(kind)

    def op(self, kind: str, inputs, custom: bytes = b"", **options: Any) -> None:
        """The operator, with all outputs."""
        self.writer.operator(kind, inputs, self.outputs, custom, **options)


CASES: dict[str, Case] = {}


def case(name: str, units: float = 1.0) -> Callable[[Callable[[OneOperator], None]], None]:
    """Register a case."""

    def add(build: Callable[[OneOperator], None]) -> None:
        assert name not in CASES
        CASES[name] = Case(name, build, units)

    return add


def _size(size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    return -(-size // stride) if padding == SAME else (size - (kernel - 1) * dilation - 1) // stride + 1


def _weighted(
    net: OneOperator, op: str, shape, kernel, kernels: int, stride=1, dilation=1, padding=SAME, act=NONE, kind="int8",
    per_axis=True, bias=True, depth: int | None = None,
) -> None:  # fmt: skip
    """CONV_2D or DEPTHWISE_CONV_2D."""
    source = net.input(shape, 0.03, 7 if kind == "int8" else 120, kind)
    deep = op == "DEPTHWISE_CONV_2D"
    sizes = (1, *kernel, kernels) if deep else (kernels, *kernel, depth or shape[3])
    scales = net.rng.uniform(0.002, 0.02, kernels) if per_axis else 0.01
    zero = 0 if kind == "int8" else 128
    elements = net.elements(sizes, kind)
    if kind == "uint8":
        elements = np.maximum(elements, 1)
    weights = net.constant(elements, scales, zero, 3 if deep else 0)
    taps = np.prod(sizes[1:3]) * (1 if deep else sizes[3])
    given = [source, weights]
    if bias:
        limit = 3000
        values = net.rng.integers(-limit, limit, kernels).astype(np.int32)
        given.append(net.constant(values, 0.03 * np.asarray(net.writer.tensors[weights]["scales"])))
    scale = 0.03 * float(np.mean(scales)) * 74 * 74 * 2.5 * np.sqrt(taps) / 127
    out = [_size(s, k, stride, dilation, padding) for s, k in zip(shape[1:3], kernel, strict=True)]
    zero = (-128 if act == RELU6 else -10) + (128 if kind == "uint8" else 0)
    net.output((shape[0], *out, kernels), scale, zero, kind)
    options = {"padding": padding, "stride_w": stride, "stride_h": stride, "fused_activation_function": act}
    options |= {"dilation_w_factor": dilation, "dilation_h_factor": dilation}
    net.op(op, given, **options, **({"depth_multiplier": kernels // shape[3]} if deep else {}))


for _number, (_shape, _kernels, _form) in enumerate(
    (
        ((1, 8, 8, 3), 4, {"kernel": (3, 3)}),
        ((1, 9, 7, 5), 6, {"kernel": (3, 3), "stride": 2}),
        ((1, 9, 7, 5), 6, {"kernel": (3, 3), "stride": 2, "padding": VALID}),
        ((1, 10, 11, 8), 3, {"kernel": (5, 3), "stride": 3, "act": RELU}),
        ((1, 12, 12, 16), 33, {"kernel": (1, 1), "act": RELU6}),
        ((1, 7, 9, 4), 5, {"kernel": (2, 4), "act": RELU_N1_TO_1, "per_axis": False}),
        ((1, 12, 13, 4), 8, {"kernel": (3, 3), "dilation": 2}),
        ((1, 12, 13, 4), 8, {"kernel": (3, 3), "dilation": 3, "padding": VALID}),
        ((1, 9, 9, 6), 7, {"kernel": (3, 3), "kind": "uint8", "per_axis": False, "act": RELU6}),
        ((1, 8, 8, 3), 8, {"kernel": (4, 4), "stride": 4, "kind": "uint8", "per_axis": False, "padding": VALID}),
        ((1, 6, 6, 8), 12, {"kernel": (3, 3), "depth": 4}),
        ((2, 6, 5, 3), 4, {"kernel": (3, 3)}),
    )
):
    case(f"CONV_2D {_number}")(
        lambda net, shape=_shape, kernels=_kernels, form=_form: _weighted(
            net, "CONV_2D", shape, kernels=kernels, **form
        )
    )

for _number, (_shape, _kernels, _form) in enumerate(
    (
        ((1, 8, 8, 6), 6, {"kernel": (3, 3)}),
        ((1, 9, 8, 5), 5, {"kernel": (3, 3), "stride": 2, "act": RELU6}),
        ((1, 9, 8, 5), 5, {"kernel": (5, 5), "stride": 2, "padding": VALID, "act": RELU}),
        ((1, 11, 12, 4), 4, {"kernel": (3, 3), "dilation": 2}),
        ((1, 7, 7, 3), 6, {"kernel": (3, 3)}),
        ((1, 7, 8, 8), 8, {"kernel": (3, 3), "kind": "uint8", "per_axis": False}),
        ((1, 6, 6, 40), 40, {"kernel": (3, 3), "stride": 2}),
    )
):
    case(f"DEPTHWISE_CONV_2D {_number}")(
        lambda net, shape=_shape, kernels=_kernels, form=_form: _weighted(
            net, "DEPTHWISE_CONV_2D", shape, kernels=kernels, **form
        )
    )


def _transposed(net: OneOperator, shape, out, kernel, stride: int, padding: int) -> None:
    scales = net.rng.uniform(0.002, 0.02, out[3])
    wanted = net.constant(list(out))
    weights = net.constant(net.elements((out[3], *kernel, shape[3])), scales)
    source = net.input(shape, 0.03, 7)
    net.output(out, 0.03 * 0.011 * 74 * 74 * 3 * np.sqrt(shape[3] * kernel[0] * kernel[1]) / stride / 127, 4)
    net.op("TRANSPOSE_CONV", [wanted, weights, source], padding=padding, stride_w=stride, stride_h=stride)


for _number, _form in enumerate(
    (
        ((1, 5, 6, 4), (1, 10, 12, 3), (3, 3), 2, SAME),
        ((1, 5, 6, 4), (1, 10, 12, 3), (2, 2), 2, VALID),
        ((1, 4, 5, 3), (1, 11, 13, 5), (5, 5), 2, VALID),
        ((1, 5, 5, 8), (1, 5, 5, 6), (3, 3), 1, SAME),
        ((1, 4, 4, 4), (1, 15, 16, 4), (4, 4), 4, SAME),
    )
):
    case(f"TRANSPOSE_CONV {_number}")(lambda net, form=_form: _transposed(net, *form))


def _connected(net: OneOperator, shape, units: int, act=NONE, keep=False, kind="int8", per_axis=False) -> None:
    depth = shape[-1] if keep else int(np.prod(shape[1:]))
    source = net.input(shape, 0.03, 7 if kind == "int8" else 130, kind)
    scales = net.rng.uniform(0.002, 0.02, units) if per_axis else 0.01
    elements = np.maximum(net.elements((units, depth), kind), -127 if kind == "int8" else 1)
    weights = net.constant(elements, scales, 0 if kind == "int8" else 128)
    bias = net.constant(net.rng.integers(-3000, 3000, units).astype(np.int32), 0.03 * np.asarray(scales))
    out = (*shape[:-1], units) if keep else (shape[0], units)
    net.output(out, 0.03 * 0.01 * 74 * 74 * 2.5 * np.sqrt(depth) / 127, 11 if kind == "int8" else 139, kind)
    net.op("FULLY_CONNECTED", [source, weights, bias], fused_activation_function=act, keep_num_dims=keep)


for _number, _form in enumerate(
    (
        {"shape": (1, 40), "units": 10},
        {"shape": (1, 3, 4, 5), "units": 7, "act": RELU},
        {"shape": (1, 6, 8), "units": 5, "keep": True},
        {"shape": (1, 1, 1, 24), "units": 9, "act": RELU6},
        {"shape": (1, 33), "units": 12, "kind": "uint8"},
        {"shape": (3, 16), "units": 6, "per_axis": True},
    )
):
    case(f"FULLY_CONNECTED {_number}")(lambda net, form=_form: _connected(net, **form))


def _matmul(net: OneOperator, adjoint: bool, constant: bool) -> None:
    source = net.input((1, 5, 12), 0.03, 2)
    shape = (1, 7, 12) if adjoint else (1, 12, 7)
    other = net.constant(net.elements(shape), 0.01) if constant else net.input(shape, 0.02, -4)
    net.output((1, 5, 7), 0.03 * 0.01 * 74 * 74 * 2.5 * np.sqrt(12) / 127, 3)
    net.op("BATCH_MATMUL", [source, other], adj_x=False, adj_y=adjoint)


for _adjoint in (False, True):
    for _constant in (False, True):
        case(f"BATCH_MATMUL {'adjoint ' * _adjoint}{'constant' if _constant else 'computed'}")(
            lambda net, adjoint=_adjoint, constant=_constant: _matmul(net, adjoint, constant)
        )


def _two(net: OneOperator, op: str, first, second, act=NONE, constant=False, kind="int8", same=False) -> None:
    middle = 128 if kind == "uint8" else 0
    scales = (0.03, 0.03) if same else (0.03, 0.021)
    one = net.input(first, scales[0], middle - 5, kind)
    zero = middle - 5 if same else middle + 9
    if constant:
        other = net.constant(net.elements(second, kind), scales[1], zero)
    else:
        other = net.input(second, scales[1], zero, kind)
    scale = {"MUL": 0.06, "ADD": 0.045, "SUB": 0.045}.get(op, scales[0])
    zero = middle - 5 if same else middle + 3
    net.output(np.broadcast_shapes(first, second), scale, zero, kind)
    form = {"fused_activation_function": act} if op in ("ADD", "SUB", "MUL") else {}
    net.op(op, [one, other], **form)


_MAP, _CHANNELS = (1, 5, 6, 8), (1, 1, 1, 8)
for _op in ("ADD", "SUB", "MUL"):
    for _name, _form in {
        "maps": {"second": _MAP},
        "relu": {"second": _MAP, "act": RELU},
        "channels": {"second": _CHANNELS},
        "constant channels": {"second": (8,), "constant": True},
        "constant number": {"second": (), "constant": True},
        "constant map": {"second": (5, 6, 8), "constant": True},
        "uint8": {"second": _MAP, "kind": "uint8"},
    }.items():
        case(f"{_op} {_name}", 2)(lambda net, op=_op, form=_form: _two(net, op, _MAP, **form))
for _op in ("MAXIMUM", "MINIMUM"):
    case(f"{_op} maps")(lambda net, op=_op: _two(net, op, _MAP, _MAP, same=True))
    case(f"{_op} constant")(lambda net, op=_op: _two(net, op, _MAP, (), same=True, constant=True))
case("ADD rank 2", 2)(lambda net: _two(net, "ADD", (1, 20), (1, 20)))


def _pool(net: OneOperator, op: str, shape, kernel, stride: int, padding: int, act=NONE, kind="int8") -> None:
    zero = -20 if kind == "int8" else 108
    source = net.input(shape, 0.04, zero, kind)
    out = [_size(s, k, stride, 1, padding) for s, k in zip(shape[1:3], kernel, strict=True)]
    net.output((1, *out, shape[3]), 0.04, zero, kind)
    form = {"padding": padding, "stride_w": stride, "stride_h": stride, "fused_activation_function": act}
    net.op(op, [source], filter_height=kernel[0], filter_width=kernel[1], **form)


for _op in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
    for _number, _form in enumerate(
        (
            ((1, 8, 8, 5), (2, 2), 2, VALID),
            ((1, 9, 7, 6), (3, 3), 2, SAME),
            ((1, 9, 7, 6), (3, 2), 1, VALID, RELU),
            ((1, 7, 7, 12), (7, 7), 1, VALID),
            ((1, 6, 9, 4), (3, 3), 3, SAME, RELU6, "uint8"),
        )
    ):
        case(f"{_op} {_number}")(lambda net, op=_op, form=_form: _pool(net, op, *form))


def _moved(net: OneOperator, op: str, shape, out, constants=(), kind="int8", **options: Any) -> None:
    """An operator that moves elements: constants are int32 or arrays of elements."""
    middle = 128 if kind == "uint8" else 0
    given = [net.input(shape, 0.04, middle - 3, kind)]
    for each in constants:
        typed = isinstance(each, np.ndarray) and each.dtype == np.dtype(kind)
        given.append(net.constant(each, 0.04 if typed else None, middle - 3 if typed else 0))
    for each in out if isinstance(out, list) else [out]:
        net.output(each, 0.04, middle - 3, kind)
    net.op(op, given, **options)


_MOVES: dict[str, tuple[Any, ...]] = {
    "RESHAPE flatten": ("RESHAPE", (1, 3, 4, 5), (1, 60), ([1, 60],)),
    "RESHAPE open": ("RESHAPE", (1, 4, 6, 2), (1, 24, 2), ([1, -1, 2],)),
    "RESHAPE same": ("RESHAPE", (1, 1, 1, 12), (1, 12), ([1, 12],)),
    "SQUEEZE": ("SQUEEZE", (1, 1, 1, 12), (1, 12), (), {"squeeze_dims": [1, 2]}),
    "EXPAND_DIMS": ("EXPAND_DIMS", (1, 12), (1, 1, 12), ([1],)),
    "TRANSPOSE whole": ("TRANSPOSE", (1, 3, 4, 5), (1, 5, 3, 4), ([0, 3, 1, 2],)),
    "TRANSPOSE rank 3": ("TRANSPOSE", (1, 6, 8), (1, 8, 6), ([0, 2, 1],)),
    "CONCATENATION channels": ("CONCATENATION", (1, 4, 5, 6), (1, 4, 5, 12), None, {"axis": 3}),
    "CONCATENATION rows": ("CONCATENATION", (1, 4, 5, 6), (1, 8, 5, 6), None, {"axis": 1}),
    "CONCATENATION last": ("CONCATENATION", (1, 7), (1, 14), None, {"axis": -1}),
    "PACK": ("PACK", (1, 6), (1, 2, 6), None, {"axis": 1, "values_count": 2}),
    "UNPACK": ("UNPACK", (1, 3, 8), [(1, 8)] * 3, (), {"axis": 1, "num": 3}),
    "SPLIT_V": ("SPLIT_V", (1, 4, 4, 9), [(1, 4, 4, 2), (1, 4, 4, 7)], ([2, -1], 3), {"num_splits": 2}),
    "SLICE": ("SLICE", (1, 6, 7, 8), (1, 3, 4, 5), ([0, 2, 1, 3], [1, 3, 4, -1])),
    "STRIDED_SLICE steps": (
        "STRIDED_SLICE", (1, 9, 8, 6), (1, 4, 3, 6), ([0, 1, 2, 0], [1, 9, 8, 6], [1, 2, 2, 1]), {"begin_mask": 8},
    ),
    "STRIDED_SLICE shrink": (
        "STRIDED_SLICE", (1, 5, 6, 4), (1, 6, 4), ([0, 2, 0, 0], [0, 3, 0, 0], [1, 1, 1, 1]),
        {"begin_mask": 13, "end_mask": 13, "shrink_axis_mask": 2},
    ),
    "STRIDED_SLICE backwards": (
        "STRIDED_SLICE", (1, 5, 6, 4), (1, 5, 6, 4), ([0, 0, 0, 0], [0, 0, 0, 0], [1, 1, -1, 1]),
        {"begin_mask": 15, "end_mask": 15},
    ),
    "PAD": ("PAD", (1, 4, 5, 6), (1, 7, 8, 6), (np.array([[0, 0], [1, 2], [3, 0], [0, 0]], np.int32),)),
    "PAD channels": ("PAD", (1, 4, 5, 6), (1, 4, 5, 9), (np.array([[0, 0], [0, 0], [0, 0], [1, 2]], np.int32),)),
    "PADV2": (
        "PADV2", (1, 4, 5, 6), (1, 6, 7, 6),
        (np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32), np.array(40, np.int8)),
    ),
    "MIRROR_PAD": (
        "MIRROR_PAD", (1, 5, 6, 4), (1, 7, 9, 4), (np.array([[0, 0], [1, 1], [2, 1], [0, 0]], np.int32),), {"mode": 0},
    ),
    "MIRROR_PAD symmetric": (
        "MIRROR_PAD", (1, 5, 6, 4), (1, 8, 9, 5), (np.array([[0, 0], [1, 2], [2, 1], [0, 1]], np.int32),), {"mode": 1},
    ),
    "TILE": ("TILE", (1, 3, 4, 5), (1, 6, 4, 10), ([1, 2, 1, 2],)),
    "GATHER channels": ("GATHER", (1, 4, 5, 8), (1, 4, 5, 3), ([6, 0, 3],), {"axis": 3}),
    "GATHER rows": ("GATHER", (1, 6, 5, 4), (1, 2, 5, 4), ([1, 4],), {"axis": 1}),
    "SPACE_TO_DEPTH": ("SPACE_TO_DEPTH", (1, 6, 8, 3), (1, 3, 4, 12), (), {"block_size": 2}),
    "DEPTH_TO_SPACE": ("DEPTH_TO_SPACE", (1, 3, 4, 12), (1, 6, 8, 3), (), {"block_size": 2}),
    "SPACE_TO_BATCH_ND": (
        "SPACE_TO_BATCH_ND", (1, 6, 8, 3), (4, 4, 4, 3), ([2, 2], np.array([[1, 1], [0, 0]], np.int32)),
    ),
    "BATCH_TO_SPACE_ND": (
        "BATCH_TO_SPACE_ND", (4, 3, 4, 3), (1, 5, 8, 3), ([2, 2], np.array([[0, 1], [0, 0]], np.int32)),
    ),
    "REVERSE_V2": ("REVERSE_V2", (1, 4, 5, 3), (1, 4, 5, 3), ([2],)),
    "RESHAPE uint8": ("RESHAPE", (1, 3, 4, 5), (1, 60), ([1, 60],), {"kind": "uint8"}),
}  # fmt: skip


def _move(net: OneOperator, op: str, shape, out, constants, options: dict[str, Any]) -> None:
    if constants is None:  # two inputs of the same shape
        sources = [net.input(shape), net.input(shape)]
        net.output(out)
        net.op(op, sources, **options)
    elif op == "SPLIT_V":
        _moved(net, op, shape, out, constants, **options)
    else:
        _moved(net, op, shape, out, constants, **options)


for _name, (_op, _shape, _out, _constants, *_rest) in _MOVES.items():
    case(_name)(
        lambda net, op=_op, shape=_shape, out=_out, constants=_constants, rest=_rest: _move(
            net, op, shape, out, constants, rest[0] if rest else {}
        )
    )


@case("SPLIT")
def _split(net: OneOperator) -> None:
    axis = net.constant(3)
    source = net.input((1, 4, 4, 9))
    for _ in range(3):
        net.output((1, 4, 4, 3))
    net.op("SPLIT", [axis, source], num_splits=3)


def _reduced(net: OneOperator, op: str, shape, axes: list[int], keep: bool) -> None:
    source = net.input(shape, 0.04, -20)
    out = [1 if axis in axes else size for axis, size in enumerate(shape)]
    out = out if keep else [size for axis, size in enumerate(shape) if axis not in axes]
    count = int(np.prod([shape[axis] for axis in axes]))
    scale, zero = {"MEAN": (0.04 * 3 / np.sqrt(count), 10), "SUM": (0.04 * np.sqrt(count) * 2, 10)}.get(op, (0.04, -20))
    net.output(out, scale, zero)
    net.op(op, [source, net.constant(axes)], keep_dims=keep)


for _op in ("MEAN", "SUM", "REDUCE_MAX"):
    for _axes, _keep in (([1, 2], True), ([1, 2], False), ([3], True), ([2], False)):
        case(f"{_op} {_axes} {'kept' if _keep else 'dropped'}", 1 if _op == "REDUCE_MAX" else 2)(
            lambda net, op=_op, axes=_axes, keep=_keep: _reduced(net, op, (1, 6, 5, 8), axes, keep)
        )


def _resized(net: OneOperator, op: str, shape, sizes, **options: Any) -> None:
    source = net.input(shape)
    net.output((1, *sizes, shape[3]))
    net.op(op, [source, net.constant(sizes)], **options)


for _op in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
    for _name, _form in {
        "twice": {},
        "half pixel": {"half_pixel_centers": True},
        "aligned": {"align_corners": True},
    }.items():
        case(f"{_op} {_name}", 2 if _op == "RESIZE_BILINEAR" else 1)(
            lambda net, op=_op, form=_form: _resized(net, op, (1, 5, 6, 4), [10, 12], **form)
        )
    case(f"{_op} odd", 2 if _op == "RESIZE_BILINEAR" else 1)(
        lambda net, op=_op: _resized(net, op, (1, 4, 6, 3), [7, 9], half_pixel_centers=True)
    )


def _function(net: OneOperator, op: str, out, shape=(1, 5, 6, 8), given=(0.04, -3), slope=None, **options: Any) -> None:
    source = [net.input(shape, *given)]
    if slope is not None:
        source.append(net.constant(net.elements(slope), 0.005, 3))
    net.output(shape, *out)
    net.op(op, source, **options)


for _name, _units, _form in (
    ("RELU", 1, {"op": "RELU", "out": (0.02, -128)}),
    ("RELU in the same range", 1, {"op": "RELU", "out": (0.04, -3)}),
    ("RELU6", 1, {"op": "RELU6", "out": (6 / 255, -128), "given": (0.07, -3)}),
    ("RELU_N1_TO_1", 1, {"op": "RELU_N1_TO_1", "out": (1 / 127, 0)}),
    ("LEAKY_RELU", 1, {"op": "LEAKY_RELU", "out": (0.025, -60), "alpha": 0.2}),
    ("PRELU", 1, {"op": "PRELU", "out": (0.025, -60), "slope": (1, 1, 8)}),
    ("PRELU by element", 2, {"op": "PRELU", "out": (0.025, -60), "slope": (5, 6, 8)}),
    ("LOGISTIC", 2, {"op": "LOGISTIC", "out": (1 / 256, -128)}),
    ("LOGISTIC rank 2", 2, {"op": "LOGISTIC", "out": (1 / 256, -128), "shape": (1, 30)}),
    ("TANH", 2, {"op": "TANH", "out": (1 / 128, 0), "given": (0.02, 5)}),
    ("HARD_SWISH", 2, {"op": "HARD_SWISH", "out": (0.025, -113)}),
    ("ELU", 2, {"op": "ELU", "out": (0.025, -88)}),
    ("SOFTMAX", 2, {"op": "SOFTMAX", "out": (1 / 256, -128), "shape": (1, 20), "beta": 1.0}),
    ("SOFTMAX of rows", 2, {"op": "SOFTMAX", "out": (1 / 256, -128), "shape": (1, 4, 10), "beta": 1.0}),
    ("SOFTMAX with beta", 2, {"op": "SOFTMAX", "out": (1 / 256, -128), "shape": (1, 12), "beta": 0.5}),
    ("L2_NORMALIZATION", 2, {"op": "L2_NORMALIZATION", "out": (1 / 128, 0), "shape": (1, 16)}),
    ("QUANTIZE to another range", 1, {"op": "QUANTIZE", "out": (0.03, 10)}),
    ("QUANTIZE to uint8", 1, {"op": "QUANTIZE", "out": (0.04, 125, "uint8")}),
    ("ABS", 1, {"op": "ABS", "out": (0.04, -128)}),
    ("RSQRT", 2, {"op": "RSQRT", "out": (0.05, -128), "given": (0.04, -128), "shape": (1, 30)}),
    ("EXP", 2, {"op": "EXP", "out": (0.2, -128), "given": (0.03, 0), "shape": (1, 30)}),
):
    case(_name, _units)(lambda net, form=_form: _function(net, **form))


@case("DEQUANTIZE")
def _dequantize(net: OneOperator) -> None:
    source = net.input((1, 4, 5, 6))
    net.output((1, 4, 5, 6), None, 0, "float32")
    net.op("DEQUANTIZE", [source])


@case("QUANTIZE of floats")
def _quantize(net: OneOperator) -> None:
    source = net.input((1, 4, 5, 6), None, 0, "float32")
    net.output((1, 4, 5, 6), 0.02, -5)
    net.op("QUANTIZE", [source])


# ---- models in floats and integers, which are compared in onnxruntime: the accelerator has numbers of its own for them

FLOAT_CASES: dict[str, Case] = {}


def _float(name: str, shapes=((2, 7),), out=None, constants=(), kind="float32", positive=False, result=None, **options):
    """Register a case with inputs of a type, constants after them, and outputs of a type."""
    op = name.split()[0]

    def build(net: OneOperator) -> None:
        given = [net.input(shape, None, 0, kind) for shape in shapes]
        if positive:
            net.arrays = [np.abs(array) + np.array(1, array.dtype) for array in net.arrays]
        given += [net.constant(each) for each in constants]
        for shape in out if isinstance(out, list) else [shapes[0] if out is None else out]:
            net.output(shape, None, 0, (result or kind) if not isinstance(result, list) else result[len(net.outputs)])
        net.op(op, given, **options)

    FLOAT_CASES[f"float {name}"] = Case(f"float {name}", build)


_MAPS = ((1, 4, 5, 6),)
for _op in (
    "ABS",
    "CEIL",
    "COS",
    "EXP",
    "FLOOR",
    "NEG",
    "RELU",
    "RELU6",
    "RELU_0_TO_1",
    "ROUND",
    "SIGN",
    "SIN",
    "SQUARE",
):
    _float(_op, _MAPS)
for _op in ("ELU", "HARD_SWISH", "LOGISTIC", "TANH", "LOG_SOFTMAX", "L2_NORMALIZATION"):
    _float(_op, _MAPS)
for _op in ("LOG", "RSQRT", "SQRT"):
    _float(_op, _MAPS, positive=True)
_float("GELU", _MAPS)
_float("GELU tanh", _MAPS, approximate=True)
for _op in ("DIV", "FLOOR_DIV", "FLOOR_MOD", "POW", "SQUARED_DIFFERENCE", "ADD_N", "MAXIMUM", "MINIMUM"):
    _float(_op, _MAPS * 2, positive=True)
for _op in ("EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL"):
    _float(_op, ((1, 3, 4, 2), (1, 3, 1, 2)), (1, 3, 4, 2), kind="int32", result="bool")
_float("ARG_MAX", _MAPS, (1, 4, 5), [np.array(3, np.int32)], result="int32", output_type=2)
_float("ARG_MIN rows", _MAPS, (1, 5, 6), [np.array(1, np.int32)], result="int64", output_type=4)
_float("TOPK_V2", ((2, 9),), [(2, 3), (2, 3)], [np.array(3, np.int32)], result=["float32", "int32"])
_float("CUMSUM", ((2, 5),), None, [np.array(1, np.int32)], exclusive=True, reverse=True)
_float("BROADCAST_TO", ((1, 4),), (3, 4), [[3, 4]])
_float("GATHER_ND", ((3, 4, 5),), (2, 5), [np.array([[0, 1], [2, 3]], np.int32)])
_float("CAST", _MAPS, result="int32", in_data_type=0, out_data_type=2)
_float("REDUCE_MIN", _MAPS, (1, 5, 6), [[1]])
_float("REDUCE_PROD", _MAPS, (1, 4, 6), [[2]])
_float("L2_POOL_2D", _MAPS, (1, 2, 3, 6), padding=0, stride_w=2, stride_h=2, filter_width=2, filter_height=2)
_float("LOCAL_RESPONSE_NORMALIZATION", _MAPS, radius=2, bias=1.5, alpha=0.3, beta=0.75)
_float("MIRROR_PAD", _MAPS, (1, 6, 8, 6), [np.array([[0, 0], [1, 1], [2, 1], [0, 0]], np.int32)], mode=0)
_float("STRIDED_SLICE new axis", ((4, 6),), (1, 2, 6), [[0, 1], [0, 3], [1, 1]], new_axis_mask=1, end_mask=0)
_float("STRIDED_SLICE ellipsis", ((2, 3, 4, 6),), (2, 3, 4, 2), [[0, 1], [0, 5], [1, 2]], ellipsis_mask=1)


def _selected(net: OneOperator) -> None:
    condition = net.input((1, 4, 5, 1), None, 0, "uint8")
    net.writer.tensors[condition]["kind"] = "bool"
    net.arrays[0] = net.arrays[0] > 100
    sources = [net.input((1, 4, 5, 6), None, 0, "float32") for _ in range(2)]
    net.output((1, 4, 5, 6), None, 0, "float32")
    net.op("SELECT_V2", [condition, *sources])


def _one_hot(net: OneOperator) -> None:
    places = net.input((3,), None, 0, "int32")
    net.arrays[0] = np.array([0, 4, 2], np.int32)
    numbers = [net.constant(np.array(each, kind)) for each, kind in ((5, "i4"), (2.0, "f4"), (-1.0, "f4"))]
    net.output((3, 5), None, 0, "float32")
    net.op("ONE_HOT", [places, *numbers], axis=-1)


FLOAT_CASES |= {
    name: Case(name, build) for name, build in {"float SELECT_V2": _selected, "float ONE_HOT": _one_hot}.items()
}


#: what the interpreter computes for each case, recorded by ``python tests/support/tflite_models.py``
GOLDENS = Path(__file__).parent / "tflite_goldens.npz"


def goldens() -> dict[str, list[np.ndarray]]:
    """The recorded outputs by case."""
    with np.load(GOLDENS) as found:
        counts = {name: len(case.made().outputs) for name, case in (CASES | FLOAT_CASES).items()}
        return {name: [found[f"{name}:{n}"] for n in range(count)] for name, count in counts.items()}


def record() -> None:
    """Record the outputs of all cases."""
    found = {}
    for name, each in (CASES | FLOAT_CASES).items():
        made = each.made()
        for number, array in enumerate(interpreted(made.data, *made.arrays)):
            found[f"{name}:{number}"] = array
    np.savez_compressed(GOLDENS, **found)


if __name__ == "__main__":
    record()
