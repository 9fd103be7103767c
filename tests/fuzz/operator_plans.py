"""Valid inputs and attributes of ONNX operators whose parts must fit each other: plans for ``operator_models``."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Plan:
    """What goes into a node. ``inputs``: place -> a shape, or the array of a constant. ``base``: the shape of inputs
    that the plan leaves open. ``kinds``: type parameter -> type. ``strict``: nothing else is added."""

    inputs: dict[int, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    base: tuple[int, ...] = ()
    kinds: dict[str, str] = field(default_factory=dict)
    outputs: int = 0
    strict: bool = False

    def plain(self) -> dict[str, Any]:
        """The attributes that onnx's helper can make; the others are AttributeProtos."""
        return {
            name: value
            for name, value in self.attributes.items()
            if type(value).__name__ != "AttributeProto" and value != []
        }


WORDS = (b"NOTSET", b"linear", b"nearest", b"cubic", b"constant", b"reflect", b"edge", b"mean", b"sum", b"none", b"add")
WORDS = (*WORDS, b"mul", b"max", b"forward", b"reverse", b"bidirectional", b"CRD", b"DCR", b"half_pixel", b"asymmetric")
WORDS = (*WORDS, b"align_corners", b"floor", b"ceil", b"round_prefer_floor", b"tanh", b"ij,jk->ik", b"avg", b"bilinear")

_Random = random.Random


def _flag(r: _Random, rank: int) -> int:
    return r.randrange(2)


def _axis(r: _Random, rank: int) -> int:
    return r.randrange(-rank, rank) if rank else 0


def _axes(r: _Random, rank: int) -> list[int]:
    return sorted(r.sample(range(rank), r.randint(1, rank))) if rank else [0]


#: plausible values of attributes by name, for a rank
ATTRIBUTES: dict[str, Callable[[_Random, int], Any]] = {
    **dict.fromkeys(("axis", "batch_axis", "time_axis"), _axis),
    "axes": _axes,
    **dict.fromkeys(("keepdims", "ceil_mode", "count_include_pad", "transA", "transB", "exclusive", "reverse"), _flag),
    **dict.fromkeys(("largest", "sorted", "allowzero", "training_mode", "upper", "select_last_index", "fmod"), _flag),
    "perm": lambda r, rank: r.sample(range(rank), rank),
    "kernel_shape": lambda r, rank: [r.randint(1, 3) for _ in range(max(rank - 2, 1))],
    "strides": lambda r, rank: [r.randint(1, 3) for _ in range(max(rank - 2, 1))],
    "dilations": lambda r, rank: [r.randint(1, 2) for _ in range(max(rank - 2, 1))],
    "pads": lambda r, rank: [r.randrange(2) for _ in range(2 * max(rank - 2, 1))],
    "auto_pad": lambda r, rank: r.choice((b"NOTSET", b"SAME_UPPER", b"SAME_LOWER", b"VALID")),
    "to": lambda r, rank: r.choice((1, 1, 1, 2, 3, 6, 7, 9, 10, 11, 16)),
    "blocksize": lambda r, rank: 2,
    "size": lambda r, rank: r.choice((1, 3, 5)),
    "epsilon": lambda r, rank: 1e-5,
    "alpha": lambda r, rank: r.choice((0.01, 0.5, 1.0, 2.0)),
    "beta": lambda r, rank: r.choice((0.5, 1.0)),
    "num_groups": lambda r, rank: 1,
    "hidden_size": lambda r, rank: 3,
    "equation": lambda r, rank: r.choice((b"ij,jk->ik", b"...i->...", b"ab->ba", b"nchw->nhwc", b"a,a->")),
    "num_outputs": lambda r, rank: r.choice((1, 2)),
    "p": lambda r, rank: r.choice((1, 2)),
    "dtype": lambda r, rank: r.choice((1, 7, 10)),
    "output_dtype": lambda r, rank: r.choice((2, 3)),
    "bias": lambda r, rank: r.choice((0.0, 0.5, 1.0)),
    "direction": lambda r, rank: r.choice((b"forward", b"reverse", b"bidirectional")),
    "approximate": lambda r, rank: r.choice((b"none", b"tanh")),
    "mode": lambda r, rank: r.choice((b"nearest", b"linear", b"constant", b"edge", b"DCR", b"CRD", b"avg", b"max")),
}


def _rows(r: _Random) -> tuple[int, ...]:
    return (1, r.choice((1, 2, 3, 4, 8, 16)), r.randint(3, 9), r.randint(3, 9))


def _numbers(r: _Random, *shape: int) -> np.ndarray:
    fan = float(np.sqrt(max(np.prod(shape[1:]), 1)))
    return (np.random.default_rng(r.randrange(1 << 16)).standard_normal(shape) / fan).astype(np.float32)


def _whole(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def _conv(r: _Random, transposed: bool = False) -> Plan:
    base = _rows(r)
    group = r.choice((1, 1, 1, base[1], 2 if base[1] % 2 == 0 else 1))
    kernels, size = group * r.randint(1, 4), (r.randint(1, 3), r.randint(1, 3))
    shape = (base[1], kernels // group, *size) if transposed else (kernels, base[1] // group, *size)
    plan = Plan({0: base, 1: _numbers(r, *shape)}, {"group": group}, base, strict=True)
    if r.randrange(2):
        plan.inputs[2] = _numbers(r, kernels)
    for name, length in (("strides", 2), ("dilations", 2), ("pads", 4), ("kernel_shape", 2)):
        if r.randrange(2):
            plan.attributes[name] = list(size) if name == "kernel_shape" else ATTRIBUTES[name](r, 4)[:length]
    if r.randrange(6) == 0:
        plan.attributes.pop("pads", None)
        plan.attributes["auto_pad"] = ATTRIBUTES["auto_pad"](r, 4)
    return plan


def _pool(r: _Random) -> Plan:
    base = _rows(r)
    kernel = [r.randint(1, 3), r.randint(1, 3)]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if r.randrange(2):
        attributes["strides"] = [r.randint(1, 3), r.randint(1, 3)]
    if r.randrange(2):
        attributes["pads"] = [r.randrange(size) for size in kernel * 2]
    for name in ("ceil_mode", "count_include_pad"):
        if r.randrange(3) == 0:
            attributes[name] = 1
    return Plan({0: base}, attributes, base, outputs=1, strict=True)


def _gemm(r: _Random) -> Plan:
    m, k, n = r.randint(1, 4), r.choice((1, 4, 17)), r.choice((1, 3, 10))
    a, b = r.randrange(2), r.randrange(2)
    plan = Plan(
        {0: (k, m) if a else (m, k), 1: _numbers(r, *((n, k) if b else (k, n)))},
        {"transA": a, "transB": b},
        strict=True,
    )
    if r.randrange(2):
        plan.inputs[2] = _numbers(r, *r.choice(((n,), (1, n), (m, n), (1,))))
    if r.randrange(3) == 0:
        plan.attributes |= {"alpha": r.choice((0.5, 2.0)), "beta": r.choice((0.5, 0.0))}
    return plan


def _matmul(r: _Random) -> Plan:
    k, n, lead = r.choice((1, 4, 9)), r.choice((1, 3, 8)), r.choice(((), (1,), (2,), (1, 3)))
    right: Any = _numbers(r, k, n) if r.randrange(4) else (*lead, k, n)
    return Plan({0: (*lead, r.randint(1, 5), k), 1: right}, strict=True)


def _per_channel(count: int, **attributes: Any) -> Callable[[_Random], Plan]:
    def plan(r: _Random) -> Plan:
        base = _rows(r)
        held = {place: _numbers(r, base[1]) for place in range(1, count + 1)}
        if count == 4:
            held[4] = np.abs(held[4]) + 0.5
        return Plan({0: base, **held}, dict(attributes), base, outputs=1, strict=True)

    return plan


def _layer_norm(r: _Random) -> Plan:
    base = _rows(r)
    return Plan({0: base, 1: _numbers(r, base[3]), 2: _numbers(r, base[3])}, {"axis": -1}, base, outputs=1, strict=True)


def _prelu(r: _Random) -> Plan:
    base = _rows(r)
    return Plan(
        {0: base, 1: _numbers(r, *r.choice(((base[1], 1, 1), (1,), (1, base[1], 1, 1))))}, {}, base, strict=True
    )


def _binary(r: _Random) -> Plan:
    base = _rows(r)
    other = r.choice((base, (base[1], 1, 1), (1,), (), (1, base[1], 1, 1), (base[3],)))
    right: Any = (
        np.asarray(_numbers(r, *other) + (0.0 if r.randrange(3) else 2.0), np.float32) if r.randrange(2) else other
    )
    return Plan({0: base, 1: right} if r.randrange(6) else {0: right, 1: base}, {}, base, strict=True)


def _reshape(r: _Random) -> Plan:
    base = _rows(r)
    total = int(np.prod(base))
    target = r.choice(
        ((1, -1), (0, -1), (total,), (base[0], base[1], base[2] * base[3]), (-1, base[3]), (1, total, 1, 1))
    )
    return Plan({0: base, 1: _whole(*target)}, {}, base, strict=True)


def _slice(r: _Random) -> Plan:
    base = _rows(r)
    axes = sorted(r.sample(range(4), r.randint(1, 3)))
    starts, ends = [r.randrange(base[a]) for a in axes], [r.choice((base[a], 1 << 40, -1)) for a in axes]
    plan = Plan(
        {0: base, 1: _whole(*starts), 2: _whole(*ends), 3: _whole(*axes)},
        {"starts": starts, "ends": ends, "axes": axes},
        base,
    )
    if r.randrange(3) == 0:
        plan.inputs[4] = _whole(*(r.choice((1, 2, -1)) for _ in axes))
    return plan


def _split(r: _Random) -> Plan:
    base = (1, 4, *_rows(r)[2:])
    parts = r.choice(([2, 2], [1, 3], [1, 1, 2], [4]))
    return Plan({0: base, 1: _whole(*parts)}, {"axis": 1, "split": parts}, base, outputs=len(parts), strict=True)


def _concat(r: _Random) -> Plan:
    base, axis = _rows(r), r.choice((1, 1, 2, 3, -1, 0))
    shapes = []
    for _ in range(r.randint(1, 4)):
        shape = list(base)
        shape[axis] = r.randint(1, 5)
        shapes.append(tuple(shape))
    return Plan(dict(enumerate(shapes)), {"axis": axis}, base, strict=True)


def _pad(r: _Random) -> Plan:
    base = _rows(r)
    pads = [0, 0, *(r.choice((0, 1, 2, -1)) for _ in range(2)), 0, 0, *(r.choice((0, 1, 2)) for _ in range(2))]
    return Plan(
        {0: base, 1: _whole(*pads)},
        {"pads": pads, "mode": r.choice((b"constant", b"reflect", b"edge"))},
        base,
        strict=True,
    )


def _resize(r: _Random) -> Plan:
    base = _rows(r)
    scales = np.asarray([1, 1, r.choice((1, 2, 3, 0.5)), r.choice((1, 2, 1.5))], np.float32)
    plan = Plan(
        {0: base, 1: np.zeros(0, np.float32), 2: scales}, {"mode": r.choice((b"nearest", b"linear"))}, base, strict=True
    )
    if r.randrange(3) == 0:
        plan.inputs[2] = np.zeros(0, np.float32)
        plan.inputs[3] = _whole(*(base[:2]), base[2] * r.choice((1, 2)), base[3] + r.randrange(4))
    if r.randrange(3) == 0:
        plan.attributes["coordinate_transformation_mode"] = r.choice((b"half_pixel", b"asymmetric", b"align_corners"))
    return plan


def _held(
    op_inputs: Callable[[_Random, tuple[int, ...]], dict[int, Any]], **attributes: Any
) -> Callable[[_Random], Plan]:
    def plan(r: _Random) -> Plan:
        base = _rows(r)
        return Plan({0: base, **op_inputs(r, base)}, dict(attributes), base)

    return plan


def _recurrent(gates: int) -> Callable[[_Random], Plan]:
    def plan(r: _Random) -> Plan:
        steps, width, hidden = r.randint(1, 4), r.choice((1, 3)), r.choice((1, 4))
        held = {
            0: (steps, 1, width),
            1: _numbers(r, 1, gates * hidden, width),
            2: _numbers(r, 1, gates * hidden, hidden),
        }
        if r.randrange(2):
            held[3] = _numbers(r, 1, 2 * gates * hidden)
        return Plan(held, {"hidden_size": hidden}, (steps, 1, width), strict=True)

    return plan


def _scalars(*pairs: tuple[float, ...]) -> Callable[[_Random, tuple[int, ...]], dict[int, Any]]:
    return lambda r, base: {place: np.asarray(r.choice(each), np.float32) for place, each in enumerate(pairs, 1)}


def _blocks(r: _Random) -> Plan:
    base = (1, 4 * r.randint(1, 3), 2 * r.randint(1, 4), 2 * r.randint(1, 4))
    return Plan({0: base}, {"blocksize": 2}, base, strict=True)


def _quantize(r: _Random) -> Plan:
    base = _rows(r)
    return Plan(
        {0: base, 1: np.asarray(0.05, np.float32), 2: np.asarray(r.choice((0, 3)), r.choice((np.int8, np.uint8)))},
        {},
        base,
        strict=True,
    )


def _dequantise(r: _Random) -> Plan:
    base = _rows(r)
    held = np.random.default_rng(r.randrange(99)).integers(-128, 127, base).astype(np.int8)
    return Plan({0: held, 1: np.asarray(0.05, np.float32), 2: np.asarray(0, np.int8)}, {}, base, strict=True)


def _one(r: _Random) -> Plan:
    base = _rows(r)
    return Plan({0: base}, {}, base, outputs=1)


def _einsum(r: _Random) -> Plan:
    equation, shapes = r.choice(
        ((b"ij,jk->ik", ((2, 3), (3, 4))), (b"nchw->nhwc", ((1, 2, 3, 4),)), (b"bij,bjk->bik", ((2, 3, 4), (2, 4, 5))))
    )
    return Plan(dict(enumerate(shapes)), {"equation": equation}, shapes[0], strict=True)


def _rois(r: _Random) -> Plan:
    base, count = _rows(r), r.randint(1, 3)
    rois = np.abs(_numbers(r, count, 4)) + np.float32([0, 0, 2, 2])
    attributes = {"output_height": 2, "output_width": 2, "pooled_shape": [2, 2], "spatial_scale": r.choice((1.0, 0.5))}
    return Plan({0: base, 1: rois, 2: np.zeros(count, np.int64)}, attributes, base, strict=True)


def _max_rois(r: _Random) -> Plan:
    base = _rows(r)
    return Plan({0: base, 1: np.float32([[0, 0, 0, 2, 2]])}, {"pooled_shape": [2, 2]}, base, strict=True)


def _one_hot(r: _Random) -> Plan:
    return Plan(
        {0: _whole(0, 2, 1), 1: np.asarray(3, np.int64), 2: np.float32([0, 1])}, {"axis": -1}, (3,), strict=True
    )


def _attention(r: _Random) -> Plan:
    heads, length, width = r.choice((1, 2)), r.randint(1, 4), r.choice((2, 4))
    shape = (1, heads, length, width)
    return Plan({0: shape, 1: shape, 2: shape}, {}, shape, outputs=1, strict=True)


def _grid(r: _Random) -> Plan:
    base = _rows(r)
    return Plan({0: base, 1: np.clip(_numbers(r, 1, 3, 2, 2), -1, 1)}, {}, base, strict=True)


def _qlinear(r: _Random) -> Plan:
    held: dict[int, Any] = {place: np.asarray(0.05, np.float32) for place in (1, 4, 6)}
    held |= {place: np.asarray(0, np.uint8) for place in (2, 5, 7)}
    kinds = {0: (2, 3), 3: np.asarray([[1] * 4] * 3, np.uint8)}
    return Plan({**held, **kinds}, {}, (2, 3), strict=True)


def _square(r: _Random) -> Plan:
    return Plan({0: (1, 3, 3)}, {}, (1, 3, 3), strict=True)


def _upsample(r: _Random) -> Plan:
    base, scales = _rows(r), [1.0, 1.0, float(r.randint(1, 3)), 2.0]
    return Plan({0: base, 1: np.float32(scales)}, {"scales": scales, "mode": b"nearest"}, base, strict=True)


PLANS: dict[str, Callable[[_Random], Plan]] = {
    "Conv": _conv,
    "ConvTranspose": lambda r: _conv(r, True),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    "Gemm": _gemm,
    "Einsum": _einsum,
    "RoiAlign": _rois,
    "MaxRoiPool": _max_rois,
    "OneHot": _one_hot,
    "Attention": _attention,
    "GridSample": _grid,
    "QLinearMatMul": _qlinear,
    "Det": _square,
    "Upsample": _upsample,
    "MatMul": _matmul,
    "BatchNormalization": _per_channel(4),
    "InstanceNormalization": _per_channel(2),
    "GroupNormalization": _per_channel(2, num_groups=1),
    "LayerNormalization": _layer_norm,
    "PRelu": _prelu,
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Greater", "Less", "Equal"), _binary
    ),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Pad": _pad,
    "Resize": _resize,
    "Clip": _held(_scalars((-1.0, 0.0, -0.5), (1.0, 6.0, 0.5)), min=-1.0, max=1.0),
    "Tile": _held(lambda r, base: {1: _whole(1, r.choice((1, 2)), r.choice((1, 2)), 1)}),
    "Expand": _held(lambda r, base: {1: _whole(*base)}),
    "Gather": _held(lambda r, base: {1: _whole(*(r.randrange(base[1]) for _ in range(r.randint(1, 3))))}, axis=1),
    "TopK": _held(lambda r, base: {1: _whole(1)}, axis=-1),
    "CumSum": _held(lambda r, base: {1: np.asarray(r.randrange(4), np.int64)}),
    "Unsqueeze": _held(lambda r, base: {1: _whole(r.randrange(5))}, axes=[0]),
    "Squeeze": _held(lambda r, base: {1: _whole(0)}, axes=[0]),
    **{
        f"Reduce{kind}": _held(lambda r, base: {1: _whole(*_axes(r, 4))}, axes=[2, 3])
        for kind in ("Sum", "Mean", "Max")
    },
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantise,
    "LRN": lambda r: Plan({0: (b := _rows(r))}, {"size": r.choice((1, 3, 5)), "alpha": 0.01}, b),
    "Transpose": lambda r: Plan({0: (b := _rows(r))}, {"perm": r.sample(range(4), 4)}, b),
    **dict.fromkeys(
        ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Softmax", "HardSigmoid", "Gelu", "Exp", "Abs"), _one
    ),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "Flatten", "Identity", "Neg", "HardSwish", "Dropout"), _one),
}
