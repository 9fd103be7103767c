"""ONNX's own backend tests against `nvdla compile`: how many run on the accelerator, exactly, and why others do not.

    python -m tools.onnx_scoreboard [--config nv_small] [--precision int8] [--only TEXT] [--verbose] [--json FILE]

Every static case of onnx.backend.test (node, simple, pytorch-converted, pytorch-operator) that onnxruntime passes is
compiled and run. Node tests give weights as graph inputs: all but the first tensor of real numbers are bound as
constants. Scales are the largest magnitudes of the case's own data. Classes:

* exact: all on the accelerator; the emulator equals the integer reference, and the result is within two steps of its
  scale of what onnxruntime computes from the same quantized input.
* noisy: all on the accelerator and equal to the integer reference, but several layers of 8 bits in a row
  are more than two steps off (at most two for each layer).
* tolerance (fp16): all on the accelerator, within 1 % of the result's largest magnitude.
* folded: nothing is left to compute, the result is a constant.
* host: some or all nodes run in onnxruntime, through the package, and the result is right: equal where all do, else
  within two steps for each layer, or 1 % in fp16.
* refused: the model is not read, with the reason.
* wrong: anything else. There must be none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from nvdla.compiler.builder import quantize
from nvdla.compiler.frontend import read
from nvdla.compiler.frontend.compiler import Compiled, compile
from nvdla.compiler.frontend.model import session
from nvdla.errors import NvdlaError

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
STEPS = 2.0
TOLERANCE = 0.01


@dataclass
class Result:
    """One case on one configuration."""

    name: str
    verdict: str
    reason: str = ""
    rank: int = 0
    real: bool = False
    operators: list[str] = field(default_factory=list)


def cases() -> list[Any]:
    return [case for kind in KINDS for case in load_model_tests(kind=kind)]


def data_of(case: Any, model: Any) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs of the first data set: arrays, None where one is not a tensor."""
    if case.data_sets:
        inputs, outputs = case.data_sets[0]
        return list(inputs), list(outputs)
    folder = Path(case.model_dir) / "test_data_set_0"
    return _files(folder, "input", model.graph.input), _files(folder, "output", model.graph.output)


def _files(folder: Path, what: str, infos: Any) -> list[Any]:
    found = []
    for number, info in enumerate(infos):
        path = folder / f"{what}_{number}.pb"
        if not path.exists() or not info.type.HasField("tensor_type"):
            found.append(None)
            continue
        found.append(numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())))
    return found


def load(case: Any) -> Any:
    if case.model is not None:
        return case.model
    return onnx.load(str(Path(case.model_dir) / "model.onnx"))


def bound(model: Any, arrays: list[Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """The model with all inputs but the first of real numbers as constants, and the feed that is left."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    names = [each.name for each in graph.input]
    held = {each.name for each in graph.initializer}
    free = [name for name in names if name not in held]
    values = dict(zip(free, arrays, strict=False))
    first = next((name for name in free if _real(values.get(name))), None)
    kept = []
    for each in graph.input:
        if each.name == first or each.name in held:
            kept.append(each)
        elif values.get(each.name) is not None and values[each.name].dtype.kind not in "OUS":
            graph.initializer.append(numpy_helper.from_array(values[each.name], each.name))
        else:
            kept.append(each)
    copies = [onnx.ValueInfoProto.FromString(each.SerializeToString()) for each in kept]
    copy.ir_version = max(copy.ir_version, 4)  # before, constants had to be inputs
    del graph.input[:]
    graph.input.extend(copies)
    return copy, {each.name: values[each.name] for each in copies if each.name not in held}


def _real(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype in (np.float32, np.float16, np.float64) and array.size > 0


def reference(model: Any, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    run = session(model, "case", optimize=False)
    names = [each.name for each in run.get_outputs()]
    return dict(zip(names, run.run(names, feed), strict=True))


def passes(model: Any, arrays: list[Any], expected: list[Any]) -> bool:
    """Return whether onnxruntime itself gives the suite's result."""
    try:
        run = session(model, "case", optimize=False)
        feed = dict(zip([each.name for each in run.get_inputs()], arrays, strict=False))
        found = run.run(None, feed)
    except Exception:
        return False
    return all(
        isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape and _close(a, b)
        for a, b in zip(found, expected, strict=False)
    )


def _close(found: np.ndarray, expected: np.ndarray) -> bool:
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    return bool(np.allclose(found, expected, rtol=1e-3, atol=1e-5, equal_nan=True))


def judge(case: Any, config: str, precision: str) -> Result | None:
    """The verdict, None for a case that onnxruntime does not pass."""
    try:
        whole = load(case)
        arrays, expected = data_of(case, whole)
    except Exception:
        return None
    if not passes(whole, arrays, expected):
        return None
    ranks = [np.ndim(each) for each in [*arrays, *expected] if each is not None]
    real = _real(arrays[0] if arrays else None) and all(_real(each) for each in expected)
    made = Result(case.name, "wrong", "", max(ranks, default=0), real)
    made.operators = sorted({node.op_type for node in whole.graph.node})
    try:
        model, feed = bound(whole, arrays)
        wanted = reference(model, feed)
        loaded = read(model)
    except NvdlaError as error:
        made.verdict, made.reason = "refused", str(error)
        return made
    try:
        calibration = (
            [feed] if feed and all(_real(each) and np.isfinite(each).all() for each in feed.values()) else None
        )
        own: dict[str, Any] = {"method": "max", "headroom": False}  # the scales are for the data that are run
        compiled = compile(loaded, config, precision, calibration, **own)
        if calibration and compiled.loadable is not None:
            # what the accelerator sees is the rounded input: its values have to be in range, too
            compiled = compile(loaded, config, precision, [feed, rounded_input(compiled, feed)], **own)
        made.verdict, made.reason = verdict(compiled, loaded, feed, wanted)
    except NvdlaError as error:
        made.verdict, made.reason = "refused", str(error)
    except Exception as error:  # a defect of this project: reported, and the scoreboard continues
        made.reason = f"{type(error).__name__}: {error}"
    return made


def verdict(
    compiled: Compiled, loaded: Any, feed: dict[str, np.ndarray], wanted: dict[str, np.ndarray]
) -> tuple[str, str]:
    found = compiled.run(feed)
    hosted = [row for row in compiled.nodes if row.placement == "host"]
    if compiled.loadable is None:
        same = all(
            np.array_equal(found[name], wanted[name], equal_nan=wanted[name].dtype.kind == "f") for name in wanted
        )
        kind = "host" if hosted else "folded"
        return (kind, hosted[0].reason if hosted else "") if same else ("wrong", "host result differs")
    problem = off(compiled, feed, found)
    if problem:
        return "wrong", problem
    if compiled.imported.precision == "fp16":
        for name, array in reference(loaded.proto, rounded_input(compiled, feed)).items():
            finite = np.abs(array[np.isfinite(array)])
            limit = TOLERANCE * max(float(finite.max(initial=0.0)), 1e-3)
            error = difference(found[name], array)
            if not error <= limit:
                return "wrong", f"{name}: error {error:.3g}, limit {limit:.3g}"
        return ("host", hosted[0].reason) if hosted else ("tolerance", "")
    steps = steps_off(compiled, loaded, feed, found)
    layers = sum(
        len(part.built.program.tensors) - len(part.inputs) for part in compiled.parts if part.built is not None
    )
    if steps > STEPS * max(layers, 1):
        return "wrong", f"{steps:.2f} steps off"
    if hosted:
        return "host", hosted[0].reason
    return ("exact" if steps <= STEPS else "noisy"), f"{steps:.2f} steps"


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest one; equal infinities differ by nothing."""
    with np.errstate(all="ignore"):
        apart = np.abs(found.astype(np.float64) - wanted)
    return float(np.where(found == wanted, 0.0, apart).max(initial=0.0))


def off(compiled: Compiled, feed: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> str:
    """Difference between the emulator and the integer reference; "" for nothing."""
    if compiled.imported.precision == "fp16":
        return ""
    values = {**feed, **compiled.constants}
    for number, part in enumerate(compiled.parts):
        machine = compiled._machine.parts[number]
        if part.built is not None:
            elements = machine.elements(values)
            actual, expected = machine.runtime.run(elements), part.built.expected(elements)
            for name, array in expected.items():
                if not np.array_equal(actual[name], array):
                    return f"tensor {name}: the emulator differs from the integer reference"
        values.update(machine.run(values))
    return ""


def steps_off(compiled: Compiled, loaded: Any, feed: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> float:
    """The largest difference from the float model on the same quantized input, in steps of the output's scale."""
    rounded = rounded_input(compiled, feed)
    scales = {each.value: part.scales[each.tensor] for part in compiled.parts if part.built for each in part.outputs}
    wanted = reference(loaded.proto, rounded)
    worst = 0.0
    for name, array in wanted.items():
        if name in loaded.constants:
            continue
        largest = float(np.abs(array).max(initial=0.0))
        step = scales.get(name, largest / 127 or 1.0)
        worst = max(worst, difference(found[name], array) / step)
    return worst


def rounded_input(compiled: Compiled, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The input as the accelerator gets it, in real numbers."""
    rounded = {name: np.array(array) for name, array in feed.items()}
    for part in compiled.parts:
        for each in part.inputs:  # one input may be bound several times, in parts with separate scales
            if part.built is None or each.value not in feed:
                continue
            images = part.images if feed[each.value].size % part.images == 0 else 1
            stack, given = (values[each.value].reshape(images, -1) for values in (rounded, feed))
            places = slice(None) if each.index is None else each.index.ravel()
            scale, zero = part.scales[each.tensor], part.zero_points.get(each.tensor, 0)
            elements = quantize(given[:, places], scale, part.precision, zero).astype(np.float64)
            stack[:, places] = ((elements - zero) * scale).astype(stack.dtype)
    return rounded


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="nv_small")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(words)
    results = []
    for case in cases():
        if args.only in case.name:
            result = judge(case, args.config, args.precision)
            if result is not None:
                results.append(result)
                if args.verbose or result.verdict == "wrong":
                    print(f"{result.verdict:10} {result.name} {result.reason}", flush=True)
    print_board(results, args.config, args.precision)
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n", encoding="utf-8")
    return 1 if any(each.verdict == "wrong" for each in results) else 0


def print_board(results: list[Result], config: str, precision: str) -> None:
    whole = Counter(each.verdict for each in results)
    small = Counter(each.verdict for each in results if each.real and each.rank <= 4)
    print(f"{config} {precision}: {len(results)} static cases that onnxruntime passes")
    for kind in ("exact", "noisy", "tolerance", "folded", "host", "refused", "wrong"):
        if whole[kind]:
            print(f"  {kind:10} {whole[kind]:5}   of real numbers and rank <= 4: {small[kind]}")


if __name__ == "__main__":
    sys.exit(main())
