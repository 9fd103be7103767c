"""ONNX networks of any number of nodes, a family for each way in which networks grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 8, 4, 4)
_RANDOM = np.random.default_rng(0)
#: small enough that sums and convolutions of many nodes stay finite
POINT = (_RANDOM.normal(size=(8, 8, 1, 1)) * 0.1).astype("f4")
WINDOW = (_RANDOM.normal(size=(8, 8, 3, 3)) * 0.05).astype("f4")


def _model(nodes, inputs, outputs, constants=None, opset=18) -> Any:
    """``inputs``: name -> shape; ``outputs``: names; ``constants``: name -> array."""
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    shapes = {**inputs, **dict.fromkeys(outputs)}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    ends = [[infos[name] for name in each] for each in (inputs, outputs)]
    graph = helper.make_graph(nodes, "net", *ends, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _node(kind, inputs, outputs, **attributes) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def _chain(kind: str, operands: str = "", constants=None, **attributes) -> Callable[[int], Any]:
    """``count`` nodes of one kind, one behind the other. ``operands``: further inputs, {0} for the value before."""

    def made(count: int) -> Any:
        nodes = [
            _node(kind, f"t{number} {operands.format(f't{number}')}", f"t{number + 1}", **attributes)
            for number in range(count)
        ]
        return _model(nodes, {"t0": SHAPE}, [f"t{count}"], constants)

    return made


def residual(count: int) -> Any:
    """Blocks of two convolutions with a sum around them."""
    nodes = []
    for n in range(count):
        nodes += [
            _node("Conv", f"t{n} w", f"a{n}", pads=[1, 1, 1, 1]),
            _node("Relu", f"a{n}", f"b{n}"),
            _node("Conv", f"b{n} v", f"c{n}"),
            _node("Add", f"c{n} t{n}", f"s{n}"),
            _node("Relu", f"s{n}", f"t{n + 1}"),
        ]
    return _model(nodes, {"t0": SHAPE}, [f"t{count}"], {"w": WINDOW, "v": POINT})


def pooled(count: int) -> Any:
    """Convolutions, each with a pooling behind it."""
    nodes = []
    for n in range(count):
        nodes += [_node("Conv", f"t{n} w", f"c{n}", pads=[1, 1, 1, 1])]
        nodes += [_node("MaxPool", f"c{n}", f"t{n + 1}", kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    return _model(nodes, {"t0": SHAPE}, [f"t{count}"], {"w": WINDOW})


def branches(count: int) -> Any:
    """Convolutions of one tensor, added."""
    nodes = []
    for n in range(count):
        nodes += [_node("Conv", "x w", f"a{n}"), _node("Relu", f"a{n}", f"b{n}")]
    names = " ".join(f"b{n}" for n in range(count))
    return _model([*nodes, _node("Sum", names, "y")], {"x": SHAPE}, ["y"], {"w": POINT})


def cuts(count: int) -> Any:
    """Convolutions, each with a node for the host behind it."""
    nodes = []
    for n in range(count):
        nodes += [_node("Conv", f"t{n} w", f"c{n}"), _node("CumSum", f"c{n} axis", f"t{n + 1}")]
    return _model(nodes, {"t0": SHAPE}, [f"t{count}"], {"w": POINT, "axis": np.array(3, np.int64)})


def wide(kind: str, **attributes) -> Callable[[int], Any]:
    """One node that takes ``count`` results."""

    def made(count: int) -> Any:
        nodes = [_node("Relu", "x", f"b{n}") for n in range(count)]
        nodes.append(_node(kind, " ".join(f"b{n}" for n in range(count)), "y", **attributes))
        return _model(nodes, {"x": (1, 8, 2, 2)}, ["y"])

    return made


def concats(count: int) -> Any:
    """A Concat of Concats of one channel, which moves every element."""
    inner = [_node("Concat", "x " * 10, f"c{n}", axis=1) for n in range(count)]
    outer = _node("Concat", " ".join(f"c{n}" for n in range(count)), "y", axis=1)
    return _model([*inner, outer], {"x": (1, 1, 2, 2)}, ["y"])


def inputs(count: int) -> Any:
    """The sum of ``count`` inputs."""
    names = [f"x{n}" for n in range(count)]
    return _model([_node("Sum", " ".join(names), "y")], dict.fromkeys(names, SHAPE), ["y"])


def ends(count: int) -> Any:
    """As many inputs as outputs, one node between each two."""
    nodes = [_node("Relu", f"x{n}", f"y{n}") for n in range(count)]
    return _model(nodes, {f"x{n}": SHAPE for n in range(count)}, [f"y{n}" for n in range(count)])


def outputs(count: int) -> Any:
    """A chain all of whose results are outputs."""
    nodes = [_node("Relu", f"t{n}", f"t{n + 1}") for n in range(count)]
    return _model(nodes, {"t0": SHAPE}, [f"t{n + 1}" for n in range(count)])


def split(count: int) -> Any:
    """A tensor cut into parts, which are put together again."""
    parts = " ".join(f"s{n}" for n in range(count))
    nodes = [_node("Split", "x", parts, axis=1, num_outputs=count)]
    nodes += [_node("Relu", f"s{n}", f"y{n}") for n in range(count)]
    nodes.append(_node("Concat", " ".join(f"y{n}" for n in range(count)), "y", axis=1))
    return _model(nodes, {"x": (1, 8 * count, 2, 2)}, ["y"])


def swishes(count: int) -> Any:
    """x * sigmoid(x) again and again: each is a function of the first number."""
    nodes = []
    for n in range(count):
        nodes += [_node("Sigmoid", f"t{n}", f"s{n}"), _node("Mul", f"t{n} s{n}", f"t{n + 1}")]
    return _model(nodes, {"t0": SHAPE}, [f"t{count}"])


def quantized(count: int) -> Any:
    """Convolutions between QuantizeLinear and DequantizeLinear."""
    whole = np.clip(np.round(POINT / 0.01), -127, 127).astype("i1")
    constants = {"s": np.float32(0.05), "z": np.int8(0), "u": np.float32(0.01), "q": whole}
    nodes = [_node("QuantizeLinear", "t0 s z", "q0"), _node("DequantizeLinear", "q0 s z", "d0")]
    for n in range(count):
        nodes += [
            _node("DequantizeLinear", "q u z", f"w{n}"),
            _node("Conv", f"d{n} w{n}", f"c{n}"),
            _node("Relu", f"c{n}", f"e{n}"),
            _node("QuantizeLinear", f"e{n} s z", f"q{n + 1}"),
            _node("DequantizeLinear", f"q{n + 1} s z", f"d{n + 1}"),
        ]
    return _model(nodes, {"t0": SHAPE}, [f"d{count}"], constants)


FAMILIES: dict[str, Callable[[int], Any]] = {
    "relu": _chain("Relu"),
    "sigmoid": _chain("Sigmoid"),
    "pool": _chain("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "doubling": _chain("Add", "{0}"),
    "constant": _chain("Add", "c", {"c": np.linspace(-0.1, 0.1, 128, dtype="f4").reshape(SHAPE)}),
    "convolution": _chain("Conv", "w", {"w": POINT}),
    "transpose": _chain("Transpose", perm=[0, 1, 3, 2]),
    "residual": residual,
    "pooled": pooled,
    "branches": branches,
    "cuts": cuts,
    "sum": wide("Sum"),
    "concat": wide("Concat", axis=1),
    "concats": concats,
    "inputs": inputs,
    "ends": ends,
    "outputs": outputs,
    "split": split,
    "swishes": swishes,
    "quantized": quantized,
}
