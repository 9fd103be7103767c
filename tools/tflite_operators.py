"""Write the table of docs/tflite.md: every TFLite operator that is converted, and how its test cases run on nv_small.

PYTHONPATH=.:tests python -m tools.tflite_operators            write the table
PYTHONPATH=.:tests python -m tools.tflite_operators --check    exit code 1 where the table is not current
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

import numpy as np
from support.tflite_models import CASES, Case, goldens

from nvdla.compiler.frontend.compiler import compile
from nvdla.compiler.frontend.tflite.conversion import FAMILIES
from nvdla.compiler.frontend.tflite.graph import CONVERSIONS
from nvdla.compiler.frontend.tflite.reader import read_model

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tflite.md"
BEGIN, END = "<!-- table of tools/tflite_operators.py -->", "<!-- end of table -->"
_MOVES = ("Transpose", "Identity", "Reshape")


def units(case: Case, wanted: list[np.ndarray]) -> tuple[str, float]:
    """("accelerator" or "host", largest difference to the interpreter in units of the output) of a case on nv_small."""
    made = case.made()
    model = read_model(made.data, case.name)
    compiled = compile(made.data, "nv_small")
    feeds = {}
    for number, array in zip(model.inputs, made.arrays, strict=True):
        scale = model.tensors[number].quantization
        feeds[model.tensors[number].name] = (
            array if scale is None else ((array.astype(np.float64) - scale.points[0]) * scale.scales[0])
        ).astype(np.float32)
    found, largest = compiled.run(feeds), 0.0
    for number, expected in zip(model.outputs, wanted, strict=True):
        scale, got = model.tensors[number].quantization, found[model.tensors[number].name]
        if scale is not None:
            elements = np.rint(got / scale.scales[0]) + scale.points[0]
            largest = max(largest, float(np.abs(elements - expected).max(initial=0)))
    host = any(row.placement == "host" and row.op not in _MOVES for row in compiled.nodes)
    return "host" if host else "accelerator", largest


def table() -> str:
    """The table, with a row per operator."""
    recorded = goldens()
    found: dict[str, list[tuple[str, float]]] = {}
    for name, case in CASES.items():
        op = read_model(case.made().data, name).operators[0].op
        found.setdefault(op, []).append(units(case, recorded[name]))
    lines = ["| operator | ONNX | conversion | cases | accelerator | units |", "|---|---|---|---|---|---|"]
    families = [module.__name__ for module in FAMILIES]
    for op in sorted(CONVERSIONS, key=lambda op: (families.index(CONVERSIONS[op].function.__module__), op)):
        conversion, rows = CONVERSIONS[op], found.get(op, [])
        about = (inspect.getdoc(conversion.function) or "").rstrip(".")
        here = sum(place == "accelerator" for place, _ in rows)
        largest = f"{max(error for _, error in rows):.0f}" if rows else ""
        counts = (len(rows), here) if rows else ("", "")
        lines.append(f"| {op} | {conversion.onnx} | {about} | {counts[0]} | {counts[1]} | {largest} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with a new table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description="write the table of docs/tflite.md")
    parser.add_argument("--check", action="store_true", help="compare only")
    current = PAGE.read_text(encoding="utf-8")
    made = page(current)
    if parser.parse_args().check:
        return int(made != current)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
