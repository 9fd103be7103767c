"""The nine light_* models of the onnx package with real-looking weights, compiled and run on every configuration.

    python -m benchmarks.zoo [NAME ...] [--target nv_small:int8] [--json FILE]

The package's models have constant weights; here they get seeded numbers of He's scale, so that activations keep their
range. Every model is calibrated with seeded images, compiled, and run on the emulator; each output must equal the
integer reference (fp16: be within 2 % of its largest magnitude).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import nvdla
from nvdla.compiler.frontend.compiler import Compiled

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
TARGETS = ("nv_small:int8", "nv_small_256:int8", "nv_large:int8", "nv_full:int8", "nv_full:fp16")


def model(name: str, seed: int = 0) -> Any:
    """A light model whose ConstantOfShape nodes are initializers of seeded numbers."""
    proto = onnx.load(str(FOLDER / f"light_{name}.onnx"))
    graph = proto.graph
    rng = np.random.default_rng(seed)
    held = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    uses = {value: (node, place) for node in graph.node for place, value in enumerate(node.input)}
    kept, made = [], []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in held:
            shape = tuple(int(size) for size in held[node.input[0]])
            made.append(numpy_helper.from_array(_numbers(rng, node.output[0], shape, uses), node.output[0]))
        else:
            kept.append(node)
    constants = [numpy_helper.from_array(_initial(rng, n, a, uses), n) for n, a in held.items() if n in uses]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    inputs = [onnx.ValueInfoProto.FromString(e.SerializeToString()) for e in graph.input if e.name not in held]
    for field, values in ((graph.node, copies), (graph.input, inputs), (graph.initializer, constants + made)):
        del field[:]
        field.extend(values)
    proto.ir_version = 8
    return proto


def _initial(rng: np.random.Generator, name: str, array: np.ndarray, uses: dict[str, Any]) -> np.ndarray:
    """Initializers that are shapes stay; floats get numbers."""
    return array if array.dtype.kind != "f" or array.ndim == 0 else _numbers(rng, name, array.shape, uses)


def _numbers(rng: np.random.Generator, name: str, shape: tuple[int, ...], uses: dict[str, Any]) -> np.ndarray:
    node, place = uses[name]
    while node.op_type in ("Unsqueeze", "Reshape"):
        node, place = uses[node.output[0]]
    if node.op_type in ("Conv", "Gemm") and place == 1:
        fan = int(np.prod(shape[1:]))
        return (rng.normal(size=shape) * np.sqrt(2.0 / fan)).astype(np.float32)
    if node.op_type == "Mul" or (node.op_type == "BatchNormalization" and place in (1, 4)):
        return rng.uniform(0.7, 1.3, shape).astype(np.float32)
    return rng.normal(0.0, 0.05, shape).astype(np.float32)


def images(count: int, shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
    """Smooth random pictures, about -2 to 2."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(count, shape[1], 9, 9))
    rows, columns = (np.linspace(0, 7.99, size) for size in shape[2:])
    y, x = rows.astype(int), columns.astype(int)
    fy, fx = (rows - y)[:, None], (columns - x)[None, :]
    top = coarse[:, :, y][..., x] * (1 - fx) + coarse[:, :, y][..., x + 1] * fx
    low = coarse[:, :, y + 1][..., x] * (1 - fx) + coarse[:, :, y + 1][..., x + 1] * fx
    return (top * (1 - fy) + low * fy).astype(np.float32)


def shape_of(proto: Any) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim)


def judge(compiled: Compiled, image: np.ndarray) -> dict[str, Any]:
    """Return whether every accelerator part on the emulator equals the integer reference."""
    values = {compiled.imported.model.inputs[0]: image}
    compiled.run(image)
    equal, worst = True, 0.0
    for number, part in enumerate(compiled.parts):
        machine = compiled._machine.parts[number]
        if part.built is not None:
            elements = machine.elements(values)
            actual, expected = machine.runtime.run(elements), part.built.expected(elements)
            for name, array in expected.items():
                difference = np.abs(actual[name].astype(np.float64) - array.astype(np.float64)).max()
                equal &= bool(difference == 0)
                worst = max(worst, float(difference / max(np.abs(array.astype(np.float64)).max(), 1e-6)))
        values.update(machine.run(values))
    return {"equal": equal, "relative": worst}


def measure(name: str, target: str, samples: int) -> dict[str, Any]:
    config, precision = target.split(":")
    proto = model(name)
    data = images(samples + 1, shape_of(proto))
    began = time.perf_counter()
    compiled = nvdla.compile(proto, config, precision, data[:samples] if precision != "fp16" else None)
    seconds = time.perf_counter() - began
    report = compiled.report
    row = {"model": name, "target": target, "seconds": round(seconds, 1)}
    row |= {"host": report["host_nodes"], "share": report["accelerator_macs_share"], **judge(compiled, data[samples:])}
    row["reasons"] = sorted({f"{each.op}: {each.reason}" for each in compiled.nodes if each.placement == "host"})
    row["ok"] = row["equal"] if precision != "fp16" else row["relative"] <= 0.02
    row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return row


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--target", action="append", help="configuration:precision (default: all five)")
    parser.add_argument("--samples", type=int, default=4, help="calibration images")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(words)
    rows = []
    for name in args.names or NAMES:
        for target in args.target or TARGETS:
            row = measure(name, target, args.samples)
            print(json.dumps(row), flush=True)
            rows.append(row)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(row['ok'] for row in rows)} of {len(rows)}")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
