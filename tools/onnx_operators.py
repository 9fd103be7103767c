"""Write the ONNX part of docs/operators.md: every operator, from its docstring, and its placement.

python -m tools.onnx_operators            write the part
python -m tools.onnx_operators --check    exit code 1 if the part is not current
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from nvdla.compiler.frontend import read
from nvdla.compiler.frontend.importer import import_graph
from nvdla.compiler.frontend.operators import FAMILIES, OPERATORS, Operator

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
TFLITE = "\n## TFLite operators\n"
"""Heading of the second part, which tools/tflite_operators.py writes."""
TARGETS = (
    ("nv_small", "int8"),
    ("nv_large", "int8"),
    ("nv_full", "int8"),
    ("nv_full", "int16"),
    ("nv_full", "fp16"),
)
SHAPE = (1, 8, 6, 6)
WORDS = {"accelerator": "yes", "cpu": "yes", "folded": "moves", "host": "host"}

_ABOUT = """\
# ONNX and TFLite operators

This page lists how `nvdla compile` implements each operator, and where it runs. The first part is for
[ONNX](#onnx-operators) models, the second for [TFLite](#tflite-operators) models. [Compile](compile.md) describes the
command; `--check` prints the placement of every node of your model.

| word | meaning |
|---|---|
| yes | on the accelerator |
| moves | nothing is computed; elements move only if a later layer needs another order |
| host | on the host: onnxruntime, or the interpreter of TFLite, runs it as a part of a package |
| with data | on the accelerator if calibration data show the range of the input, otherwise on the host |
| 4 of 5 | TFLite: four of five test cases run on the accelerator, the others have a part on the host |

## ONNX operators

This part was made by `python -m tools.onnx_operators`; do not edit. The table shows one small case per operator, the
text below it the conditions. Other operators run on the host.
"""

_ones = np.ones
#: constants and attributes of each operator's case; None = the computed input
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "Conv": ([None, _ones((4, 8, 3, 3))], {}),
    "ConvTranspose": ([None, _ones((8, 4, 2, 2))], {"strides": [2, 2]}),
    "MatMul": ([None, _ones((6, 4))], {}),
    "PRelu": ([None, _ones((8, 1, 1))], {}),
    "Pow": ([None, np.array(2.0)], {}),
    "BatchNormalization": ([None, *[_ones(8)] * 4], {}),
    "MaxPool": ([None], {"kernel_shape": [2, 2]}),
    "AveragePool": ([None], {"kernel_shape": [2, 2]}),
    "LpPool": ([None], {"kernel_shape": [2, 2], "p": 1}),
    "GlobalLpPool": ([None], {"p": 1}),
    "Reshape": ([None, np.array([1, 16, 18])], {}),
    "Squeeze": ([None, np.array([0])], {}),
    "Unsqueeze": ([None, np.array([0])], {}),
    "Transpose": ([None], {"perm": [0, 2, 3, 1]}),
    "Cast": ([None], {"to": 1}),
    "CastLike": ([None, np.array(1.0)], {}),
    "DepthToSpace": ([None], {"blocksize": 2}),
    "SpaceToDepth": ([None], {"blocksize": 2}),
    "Slice": ([None, np.array([1, 1]), np.array([5, 5]), np.array([2, 3])], {}),
    "Split": ([None], {"axis": 1, "num_outputs": 2}),
    "Gather": ([None, np.array([1, 0, 3, 2])], {"axis": 1}),
    "Expand": ([None, np.array([1, 8, 6, 6])], {}),
    "Tile": ([None, np.array([1, 1, 2, 2])], {}),
    "Pad": ([None, np.array([0, 0, 1, 1, 0, 0, 1, 1])], {}),
    "Concat": ([None, _ones(SHAPE)], {"axis": 1}),
    "Resize": ([None, np.array([]), np.array([1.0, 1.0, 2.0, 2.0])], {}),
    "Upsample": ([None, np.array([1.0, 1.0, 2.0, 2.0])], {}),
    "LRN": ([None], {"size": 5}),
    "Softmax": ([None], {"axis": 1}),
    "InstanceNormalization": ([None, _ones(8), _ones(8)], {}),
    "LayerNormalization": ([None, _ones(6)], {}),
    "GroupNormalization": ([None, _ones(8), _ones(8)], {"num_groups": 2}),
    "Clip": ([None, np.array(0.0), np.array(6.0)], {}),
}
SHAPES = {"Gemm": (1, 8), "Softmax": (1, 8), "Expand": (1, 8, 1, 1)}
OPSETS = {"Upsample": 9, "Swish": 24}
NOT_INFERRED = ("GroupNormalization", "Swish")  # onnx does not say of what shape their results are: that of the input
TWO = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")


def case(name: str) -> Any:
    """A small model of one node."""
    inputs, attributes = CASES.get(name, ([None], {}))
    if name in TWO:
        inputs = [None, np.full((8, 1, 1), 2.0)]
    if name == "Gemm":
        inputs = [None, np.ones((8, 4))]
    held, words = [], []
    for number, each in enumerate(inputs):
        words.append(f"c{number}" if each is not None else "x")
        if each is not None:
            kind = np.int64 if each.dtype.kind == "i" else np.float32
            held.append(numpy_helper.from_array(each.astype(kind), words[-1]))
    outputs = ["y", "z"] if name == "Split" else ["y"]
    node = helper.make_node(name, words, outputs, **attributes)
    info = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, SHAPES.get(name, SHAPE))
    results = [onnx.ValueInfoProto(name=each) for each in outputs]
    if name in NOT_INFERRED:
        results = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, SHAPE)]
    graph = helper.make_graph([node], name, [info], results, held)
    opset = OPSETS.get(name, 21)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def placements(name: str) -> list[str]:
    """A word for each target. Operators that the installed onnx does not know are shown by their condition alone."""
    try:
        model = read(case(name))
    except Exception:
        return ["see below"] * len(TARGETS)
    words = []
    for config, precision in TARGETS:
        found = []
        for ranged in dict.fromkeys((True, precision != "fp16")):  # fp16 is the one that needs no calibration data
            rows = import_graph(model, config, precision, ranged=ranged).nodes
            found.append(WORDS[next(each for each in rows if each.op == name).placement])
        words.append(found[0] if len(set(found)) == 1 else "with data")
    return words


def page() -> str:
    """Return the page with its ONNX part as the code has it."""
    second = "".join(PAGE.read_text(encoding="utf-8").partition(TFLITE)[1:])
    return "\n".join([_ABOUT, *_onnx()]).rstrip() + "\n" + second


def _onnx() -> list[str]:
    names = sorted(OPERATORS)
    columns: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for target, words in zip(TARGETS, zip(*map(placements, names), strict=True), strict=True):
        columns.setdefault(words, []).append(target)
    lines = [
        "| operator | becomes | " + " | ".join(title(targets) for targets in columns.values()) + " |",
        "|---|---|" + "---|" * len(columns),
        *(
            f"| {name} | {OPERATORS[name].note} | {' | '.join(row)} |"
            for name, *row in zip(names, *columns, strict=True)
        ),
    ]
    for family in FAMILIES:
        module = sys.modules[f"nvdla.compiler.frontend.operators.{family}"]
        about = inspect.getdoc(module) or ""
        lines += ["", f"### {family.capitalize()}"] + (["", about] if about.rstrip(".") != family.capitalize() else [])
        for group in _groups(family):
            lines += ["", f"#### {', '.join(each.name for each in group)}", "", inspect.cleandoc(group[0].text)]
    return lines


def title(targets: list[tuple[str, str]]) -> str:
    """Heading of targets with equal results: the precision, if all have the same."""
    precisions = dict.fromkeys(precision for _, precision in targets)
    return " or ".join(precisions) if len(targets) > 1 else " ".join(targets[0])


def _groups(family: str) -> list[list[Operator]]:
    """Operators that share a function, in the order in which they are registered."""
    found: dict[Any, list[Operator]] = {}
    for each in OPERATORS.values():
        if each.family == family:
            found.setdefault(each.function, []).append(each)
    return list(found.values())


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(words)
    text = page()
    if args.check:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
