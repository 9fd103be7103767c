"""Write the TFLite part of docs/operators.md: every operator that is converted, and its placement.

PYTHONPATH=.:tests python -m tools.tflite_operators            write the part
PYTHONPATH=.:tests python -m tools.tflite_operators --check    exit code 1 if the part is not current
"""

from __future__ import annotations

import argparse
import inspect
import sys

from support.tflite_models import CASES, FLOAT_CASES, Case

from nvdla.compiler.frontend.importer import import_graph
from nvdla.compiler.frontend.model import read
from nvdla.compiler.frontend.tflite.conversion import INTERPRETED
from nvdla.compiler.frontend.tflite.graph import CONVERSIONS
from nvdla.compiler.frontend.tflite.reader import read_model
from tools.onnx_operators import PAGE, TFLITE, title

TARGETS = (("nv_small", "int8"), ("nv_large", "int8"), ("nv_full", "int8"), ("nv_full", "fp16"))
#: nodes that only give elements another order at the ends of a model
_MOVES = ("Transpose", "Identity", "Reshape")
_ABOUT = """
This part was made by `PYTHONPATH=.:tests python -m tools.tflite_operators`; do not edit. [Compile TFLite
models](compile.md#tflite) describes the import.

Every operator has test models of one operator each: *cases* over shapes, strides, paddings and scales, in int8 and
uint8, or in floats (*float*). Float cases need calibration data in int8. *units*: largest accepted difference to the
reference kernels of the interpreter, in units of the output, on nv_small. Float cases are compared with the interpreter
before quantization.
"""


def placements(case: Case) -> list[str]:
    """A word for each target: accelerator, cpu, folded or host."""
    model, words = read(case.made().data, trusted=True), []
    for config, precision in TARGETS:
        rows = import_graph(model, config, precision, ranged=True).nodes
        found = {row.placement for row in rows if row.op not in _MOVES} or {row.placement for row in rows}
        words.append(next(word for word in ("host", "cpu", "accelerator", "folded") if word in found))
    return words


def summary(words: list[str]) -> str:
    """The placements of all cases on one target as one word."""
    if set(words) == {"folded"}:
        return "moves"
    here = sum(word != "host" for word in words)
    return "yes" if here == len(words) else f"{here} of {len(words)}" if here else "host"


def table() -> list[str]:
    """The lines of the table, with a row per operator."""
    found: dict[str, list[Case]] = {}
    for case in (*CASES.values(), *FLOAT_CASES.values()):
        op = read_model(case.made().data, case.name).operators[0].op
        found.setdefault(op, []).append(case)
    rows, placed = [], []
    for op in sorted(CONVERSIONS):
        cases = found.get(op, [])
        quantized = [case for case in cases if case.name in CASES]
        chosen = quantized or cases
        columns = zip(*(placements(case) for case in chosen), strict=True)
        words = [summary(list(column)) for column in columns] or ["host"] * len(TARGETS)
        count = f"{len(quantized)}" if quantized else f"{len(cases)} float" if cases else ""
        units = f"{max(case.units for case in quantized):.0f}" if quantized else ""
        rows.append((op, CONVERSIONS[op].onnx, count, units))
        placed.append(words)
    merged: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for target, column in zip(TARGETS, zip(*placed, strict=True), strict=True):
        merged.setdefault(column, []).append(target)
    head = ["operator", "ONNX", "cases", "units", *map(title, merged.values())]
    lines = [head, ["---"] * len(head), *([*row, *words] for row, *words in zip(rows, *merged, strict=True))]
    return [f"| {' | '.join(line)} |" for line in lines]


def conversions() -> list[str]:
    """List the conversions by function."""
    groups: dict[str, list[str]] = {}
    for op, conversion in CONVERSIONS.items():
        groups.setdefault(inspect.getdoc(conversion.function) or "", []).append(op)
    return [f"* {', '.join(ops)}: {about[0].lower()}{about[1:]}" for about, ops in groups.items()]


def page() -> str:
    """Return the page with its TFLite part as the code has it."""
    first = PAGE.read_text(encoding="utf-8").partition(TFLITE)[0]
    host = f"The interpreter of the package ai-edge-litert runs these on the host: {', '.join(sorted(INTERPRETED))}."
    parts = [*table(), "", "### Conversions", "", *conversions(), "", "### Other TFLite operators", "", host]
    return "\n".join([first + TFLITE + _ABOUT, *parts, "", "Next: [compile](compile.md).", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="write the TFLite part of docs/operators.md")
    parser.add_argument("--check", action="store_true", help="compare only")
    text = page()
    if parser.parse_args().check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
