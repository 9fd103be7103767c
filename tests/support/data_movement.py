"""Random ONNX graphs of operators that move elements, followed by constants for each element, against onnxruntime.

``python tests/support/data_movement.py FIRST COUNT`` judges seeds in both precisions and prints the ones below their
limits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import nvdla
from nvdla.compiler.frontend.model import run_once

LEAST, LARGEST = 8, 1500
"""Elements of a tensor: enough for a signal-to-noise ratio, and few enough to compile in a tenth of a second."""
LIMITS = {"fp16": 45.0, "int8": 20.0}
"""Lowest signal-to-noise ratio (dB) of an output: the eighth power of a value has eight times its relative error."""
TARGETS = {"fp16": "nv_full", "int8": "nv_small"}


FUNCTIONS = ("Relu", "LeakyRelu", "Neg", "Identity", "Sigmoid", "Tanh", "HardSwish")
"""The last ones are look-up tables, which interpolate in fp16: those networks have the first four alone."""


class _Growing:
    """A graph under construction: every step appends nodes to the last value, whose shape is known."""

    def __init__(self, seed: int, tables: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.functions = FUNCTIONS if tables else FUNCTIONS[:4]
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.count = 0

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def constant(self, values: Any, kind: Any = np.int64) -> str:
        name = self.name("c")
        self.constants[name] = np.asarray(values, kind)
        return name

    def add(self, op: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> list[str]:
        names = [self.name("t") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op}{self.count}", **attributes))
        return names

    def spatial(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 4


Shape = tuple[int, ...]
Grown = tuple[str, Shape] | None
Step = Callable[[_Growing, str, Shape], Grown]


def _tile(g: _Growing, x: str, shape: Shape) -> Grown:
    axis = int(g.rng.integers(1, len(shape)))
    repeats = [1] * len(shape)
    repeats[axis] = g.pick([2, 2, 3])
    return g.add("Tile", [x, g.constant(repeats)])[0], tuple(s * r for s, r in zip(shape, repeats, strict=True))


def _expand(g: _Growing, x: str, shape: Shape) -> Grown:
    ones = [axis for axis, size in enumerate(shape) if size == 1 and axis > 0]
    if not ones:
        return None
    out = list(shape)
    out[g.pick(ones)] = g.pick([2, 3, 4])
    return g.add("Expand", [x, g.constant(out)])[0], tuple(out)


def _gather(g: _Growing, x: str, shape: Shape) -> Grown:
    axis = int(g.rng.integers(1, len(shape)))
    indices = g.rng.integers(0, shape[axis], int(g.rng.integers(1, 2 * shape[axis] + 1)))
    if g.rng.random() < 0.4:
        indices = np.sort(indices)
    made = g.add("Gather", [x, g.constant(indices)], axis=axis)[0]
    return made, (*shape[:axis], len(indices), *shape[axis + 1 :])


def _resize(g: _Growing, x: str, shape: Shape) -> Grown:
    if not g.spatial(shape):
        return None
    down, across = g.pick([(2, 2), (2, 1), (1, 2), (3, 2), (1, 3)])
    inputs = [x, "", g.constant([1, 1, down, across], np.float32)]
    made = g.add("Resize", inputs, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return made[0], (*shape[:2], shape[2] * down, shape[3] * across)


def _transpose(g: _Growing, x: str, shape: Shape) -> Grown:
    order = [0, *(1 + g.rng.permutation(len(shape) - 1)).tolist()]
    return g.add("Transpose", [x], perm=order)[0], tuple(shape[axis] for axis in order)


def _reshape(g: _Growing, x: str, shape: Shape) -> Grown:
    size = math.prod(shape)
    factors = [f for f in range(1, size + 1) if size % f == 0]
    first = g.pick(factors)
    second = g.pick([f for f in factors if (size // first) % f == 0])
    out = g.pick([(1, size), (1, first, size // first), (1, first, second, size // first // second)])
    return g.add("Reshape", [x, g.constant(out)])[0], out


def _slice(g: _Growing, x: str, shape: Shape) -> Grown:
    axis = int(g.rng.integers(1, len(shape)))
    first, step = int(g.rng.integers(0, shape[axis])), g.pick([1, 1, 2])
    end = int(g.rng.integers(first + 1, shape[axis] + 1))
    made = g.add("Slice", [x, *(g.constant([each]) for each in (first, end, axis, step))])[0]
    return made, (*shape[:axis], len(range(first, end, step)), *shape[axis + 1 :])


def _concat(g: _Growing, x: str, shape: Shape) -> Grown:
    axis = int(g.rng.integers(1, len(shape)))
    other = g.add(g.pick(["Relu", "Identity", "Neg"]), [x])[0]
    return g.add("Concat", g.pick([[x, x], [x, other], [other, x]]), axis=axis)[0], (
        *shape[:axis],
        2 * shape[axis],
        *shape[axis + 1 :],
    )


def _roll(g: _Growing, x: str, shape: Shape) -> Grown:
    """Two slices whose places are swapped, as torch.roll is exported."""
    axis = int(g.rng.integers(1, len(shape)))
    first = int(g.rng.integers(1, max(shape[axis], 2)))
    if shape[axis] == 1:
        return None
    ends = ((first, 1 << 40), (0, first))
    halves = [g.add("Slice", [x, *(g.constant([each]) for each in (*end, axis))])[0] for end in ends]
    return g.add("Concat", halves, axis=axis)[0], shape


def _split(g: _Growing, x: str, shape: Shape) -> Grown:
    axes = [axis for axis in range(1, len(shape)) if shape[axis] % 2 == 0]
    if not axes:
        return None
    axis = g.pick(axes)
    halves = g.add("Split", [x], 2, axis=axis, num_outputs=2)
    half = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
    if g.rng.random() < 0.5:
        return g.add("Concat", halves[::-1], axis=axis)[0], shape
    # the other half is used as well, so that Split has no unused output
    return g.add("Add", halves)[0], half


def _depth_to_space(g: _Growing, x: str, shape: Shape) -> Grown:
    if not g.spatial(shape) or shape[1] % 4:
        return None
    made = g.add("DepthToSpace", [x], blocksize=2, mode=g.pick(["DCR", "CRD"]))[0]
    return made, (shape[0], shape[1] // 4, 2 * shape[2], 2 * shape[3])


def _space_to_depth(g: _Growing, x: str, shape: Shape) -> Grown:
    if not g.spatial(shape) or shape[2] % 2 or shape[3] % 2:
        return None
    return g.add("SpaceToDepth", [x], blocksize=2)[0], (shape[0], shape[1] * 4, shape[2] // 2, shape[3] // 2)


def _pad(g: _Growing, x: str, shape: Shape) -> Grown:
    if not g.spatial(shape):
        return None
    begins, ends = ([0, 0, *g.rng.integers(0, 2, 2).tolist()] for _ in range(2))
    mode = g.pick(["edge", "constant", "wrap"])
    made = g.add("Pad", [x, g.constant(begins + ends)], mode=mode)[0]
    return made, tuple(s + b + e for s, b, e in zip(shape, begins, ends, strict=True))


MOVES: tuple[Step, ...] = (
    _tile,
    _tile,
    _expand,
    _expand,
    _gather,
    _gather,
    _resize,
    _resize,
    _transpose,
    _reshape,
    _slice,
    _concat,
    _roll,
    _split,
    _depth_to_space,
    _space_to_depth,
    _pad,
)


def _numbers(g: _Growing, shape: Shape, low: float = 0.5, high: float = 1.5, signed: bool = True) -> np.ndarray:
    """Numbers of a random shape that broadcasts to ``shape``, of magnitudes from ``low`` to ``high``."""
    sizes = [size if g.rng.random() < 0.6 else 1 for size in shape]
    sizes = sizes[int(g.rng.integers(0, len(sizes))) :]
    values = g.rng.uniform(low, high, sizes)
    return values * g.rng.choice([-1.0, 1.0], sizes) if signed else values


def _binary(g: _Growing, x: str, shape: Shape) -> Grown:
    op = g.pick(["Mul", "Add", "Mul", "Add", "Sub", "Div", "Max", "Min", "Sum"])
    constant = g.constant(_numbers(g, shape), np.float32)
    flipped = op in ("Mul", "Add", "Sub", "Max", "Min", "Sum") and g.rng.random() < 0.3
    return g.add(op, [constant, x] if flipped else [x, constant])[0], shape


def _several(g: _Growing, x: str, shape: Shape) -> Grown:
    constants = [g.constant(_numbers(g, shape), np.float32) for _ in range(2)]
    return g.add(g.pick(["Max", "Min", "Sum", "Mean"]), [constants[0], x, constants[1]])[0], shape


def _prelu(g: _Growing, x: str, shape: Shape) -> Grown:
    return g.add("PRelu", [x, g.constant(_numbers(g, shape, 0.1, 0.9), np.float32)])[0], shape


def _batch_norm(g: _Growing, x: str, shape: Shape) -> Grown:
    parts = [g.rng.uniform(0.5, 1.5, shape[1]) for _ in range(4)]
    return g.add("BatchNormalization", [x, *(g.constant(part, np.float32) for part in parts)])[0], shape


def _function(g: _Growing, x: str, shape: Shape) -> Grown:
    return g.add(g.pick(g.functions), [x])[0], shape


def _with_itself(g: _Growing, x: str, shape: Shape) -> Grown:
    """A value meets a function of the same elements."""
    other = g.add(g.pick(g.functions), [x])[0]
    return g.add(g.pick(["Mul", "Add"]), [x, other])[0], shape


def _matrix(g: _Growing, x: str, shape: Shape) -> Grown:
    """A matrix product over the last dimension, with an offset for each row or none."""
    columns = int(g.rng.integers(2, 9))
    weights = g.rng.normal(size=(shape[-1], columns)) / math.sqrt(shape[-1])
    made, out = g.add("MatMul", [x, g.constant(weights, np.float32)])[0], (*shape[:-1], columns)
    offset = g.constant(_numbers(g, out), np.float32)
    return (g.add("Add", [made, offset])[0] if g.rng.random() < 0.5 else made), out


CONSTANTS: tuple[Step, ...] = (
    _binary,
    _binary,
    _binary,
    _several,
    _prelu,
    _batch_norm,
    _function,
    _with_itself,
    _matrix,
)


def data_movement(seed: int, tables: bool = True) -> tuple[ModelProto, Shape]:
    """A model from a seed, and the shape of its input ``x``; its output is ``y``."""
    g = _Growing(seed, tables)
    value, shape = "x", (1,)
    while math.prod(shape) < LEAST:
        shape = (1, *(int(g.rng.integers(1, 7)) for _ in range(g.pick([1, 2, 3, 3, 3]))))
    start = shape
    if g.spatial(shape) and g.rng.random() < 0.5:
        kernels = int(g.rng.integers(2, 9)) + LEAST // shape[2] // shape[3]
        weights = g.rng.normal(size=(kernels, shape[1], 1, 1)) / math.sqrt(shape[1])
        made = g.add("Conv", [value, g.constant(weights, np.float32)])[0]
        value, shape = made, (1, kernels, *shape[2:])
    for _ in range(int(g.rng.integers(1, 4))):
        for steps, count in ((MOVES, int(g.rng.integers(1, 4))), (CONSTANTS, int(g.rng.integers(1, 3)))):
            for _ in range(count):
                grown = g.pick(steps)(g, value, shape)
                if grown is not None and LEAST <= math.prod(grown[1]) <= LARGEST:
                    value, shape = grown
    g.nodes.append(helper.make_node("Identity", [value], ["y"], "last"))
    used = _used(g.nodes)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in (("x", start), ("y", shape))
    ]
    read = {name for node in used for name in node.input}
    held = [numpy_helper.from_array(each, name) for name, each in g.constants.items() if name in read]
    graph = helper.make_graph(used, f"moves{seed}", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), start


def _used(nodes: list[NodeProto]) -> list[NodeProto]:
    """The nodes that lead to the output."""
    needed, kept = {"y"}, []
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input)
    return kept[::-1]


@dataclass
class Judged:
    """One network: ``snr`` (dB) and ``error`` (root mean square) of the output against onnxruntime, ``table`` and
    ``step``: the lowest chain and the coarsest scale in the report's table of accuracy, ``accelerated``: whether a node
    runs on the accelerator."""

    seed: int
    snr: float
    error: float
    table: float
    step: float
    accelerated: bool

    def fault(self, precision: str) -> str:
        """Why it is below its limit without a reason in the table; empty where it is not.

        The table explains a ratio that is its own, and an error below one step: rows are about whole tensors, of which
        an output may be a part with small numbers.
        """
        explained = precision == "int8" and (self.snr >= self.table - 3.0 or self.error < self.step)
        if self.snr >= LIMITS[precision] or explained:
            return ""
        return f"seed {self.seed}, {precision}: {self.snr:.1f} dB, the report's table says {self.table:.1f} dB"


def judge(seed: int, precision: str) -> Judged:
    """Compile the network of a seed, run its calibration samples, and compare with onnxruntime."""
    model, shape = data_movement(seed, tables=precision != "fp16")
    samples = np.random.default_rng(seed).normal(size=(4, *shape[1:])).astype(np.float32)
    compiled = nvdla.compile(model, TARGETS[precision], precision, samples)
    noise = signal = 0.0
    for sample in samples:
        found = compiled.run(sample[None])["y"].astype(np.float64)
        exact = run_once(model, "net", {"x": sample[None]})[0].astype(np.float64)
        noise, signal = noise + np.square(found - exact).sum(), signal + np.square(exact).sum()
    snr = math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-30) / noise)
    rows = compiled.report.get("accuracy", [])  # none where all nodes run on the host
    table, step = (
        min((row["chain"] for row in rows), default=math.inf),
        max((row["scale"] for row in rows), default=0.0),
    )
    error = math.sqrt(noise / (len(samples) * exact.size))
    return Judged(seed, snr, error, table, step, any(row.placement == "accelerator" for row in compiled.nodes))


def main(first: int, count: int) -> None:
    """Judge seeds one after another."""
    for precision in LIMITS:
        judged, faults = [], 0
        for seed in range(first, first + count):
            try:
                judged.append(judge(seed, precision))
            except Exception as error:  # the campaign goes on
                print(f"seed {seed}, {precision}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                faults += 1
                continue
            if judged[-1].snr < LIMITS[precision]:
                print(judged[-1], precision, flush=True)
            if judged[-1].fault(precision):
                faults += 1
                print(judged[-1].fault(precision), flush=True)
        below = sum(each.snr < LIMITS[precision] for each in judged)
        here = sum(each.accelerated for each in judged)
        lowest = min(each.snr for each in judged)
        print(
            f"{precision}: {len(judged)} networks, {here} on the accelerator, lowest {lowest:.1f} dB, "
            f"{below} below {LIMITS[precision]:.0f} dB, {faults} faults",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
