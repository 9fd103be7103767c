"""The steps of a compile grow with the number of nodes, not faster. Steps are counted, not timed: lines of the package
that Python executes, loops and comprehensions included, in all threads."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.growing_networks import FAMILIES

import nvdla
from nvdla import limits
from nvdla.compiler.builder import Calibration, Network, build, schedule
from nvdla.compiler.builder.lower import convolution
from nvdla.compiler.frontend import importer
from nvdla.compiler.frontend.quantization import activations, calibrate
from nvdla.errors import BuildError
from nvdla.limits import PlanLimits

ROOT = str(Path(nvdla.__file__).parent)
#: what twice the nodes may take: 2.5 times the steps is promised; all but the nodes that fail take 2
MOST, PROMISED = 2.1, 2.5
#: nodes of the smaller of two networks; fewer where a node takes many steps
SIZES = {
    "branches": 48,
    "concats": 20,
    "cuts": 30,
    "convolution": 120,
    "pooled": 80,
    "quantized": 100,
    "residual": 40,
    "swishes": 60,
}
USUAL = 240


def samples(model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    shapes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in model.graph.input}
    return {name: random.uniform(-1, 1, shape).astype("f4") for name, shape in shapes.items()}


def steps(model, target: str, level: int) -> int:
    """Lines executed while a model is compiled for fp16 without, or for int8 with calibration data."""
    counted = [0]

    def line(frame, event, argument):
        counted[0] += 1
        return line

    def call(frame, event, argument):
        name = frame.f_code.co_filename
        # "<string>": what dataclasses generate, which compares and copies.
        return line(frame, event, argument) if name.startswith(ROOT) or name == "<string>" else None

    before = sys.gettrace(), threading.gettrace()
    sys.settrace(call)
    threading.settrace(call)
    try:
        if target == "fp16":
            nvdla.compile(model, "nv_full", "fp16", level=level)
        else:
            data = None if target == "model" else samples(model)
            nvdla.compile(model, "nv_small", "int8", data, level=level)
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
    return counted[0]


CASES = [(name, target, 1) for name in FAMILIES for target in ("fp16", "samples") if name not in ("quantized",)]
CASES.remove(("doubling", "samples", 1))  # its numbers are infinite
#: the search of level 2 ends at its budget; before, its steps are operations times trials
SEARCHED, SMALLEST = 300, {"residual": 6, "pooled": 12, "branches": 12, "relu": 60}
CASES += [(name, "fp16", 2) for name in SMALLEST]
CASES += [(name, "fp16", 0) for name in ("relu", "residual", "inputs")] + [("quantized", "model", 1)]


@pytest.mark.parametrize(("name", "target", "level"), CASES)
def test_twice_the_nodes_take_twice_the_steps(name, target, level, monkeypatch):
    monkeypatch.setattr(schedule, "LONGEST", 6)  # rows, and failures of one node each, that small networks have, too
    monkeypatch.setattr(importer, "SINGLE_FAILURES", 2)
    monkeypatch.setattr(calibrate, "OWN_MODELS", 8)
    steps(FAMILIES[name](2), target, level)  # what is made once
    monkeypatch.setattr(limits, "PLAN", PlanLimits(searched=SEARCHED))
    size = SMALLEST[name] if level == 2 else SIZES.get(name, USUAL)
    small, large = (steps(FAMILIES[name](count), target, level) for count in (size, 2 * size))
    most = PROMISED if name == "doubling" else MOST
    assert large < most * small, f"{size} nodes: {small} steps, {2 * size} nodes: {large} steps"


def test_many_parts_share_one_float_model(monkeypatch):
    """Their calibration is the same as with a model each."""
    model, made = FAMILIES["cuts"](6), []
    opened = activations.open_session
    monkeypatch.setattr(activations, "open_session", lambda *given, **named: made.append(1) or opened(*given, **named))
    own = nvdla.compile(model, "nv_small", "int8", samples(model))
    assert sum(part.loadable is not None for part in own.parts) == len(made) == 6
    monkeypatch.setattr(calibrate, "OWN_MODELS", 5)
    run, ran = activations.run_session, []
    monkeypatch.setattr(activations, "run_session", lambda *given: ran.append(given[0]) or run(*given))
    shared = nvdla.compile(model, "nv_small", "int8", samples(model))
    assert len(made) == 7 and shared.package == own.package
    once = len(ran)  # each sample once; those that errors are measured with, with a rounded input, up to twice more
    assert once <= 3 * len(samples(model))
    monkeypatch.setattr(activations, "SHARED_BYTES", 0)
    assert nvdla.compile(model, "nv_small", "int8", samples(model)).package == own.package
    assert len(ran) - once > 2 * once


@pytest.mark.parametrize("name", ["pool", "sigmoid", "swishes"])
def test_long_chains_do_not_end_in_recursion(name):
    """What a tensor is a function of, and within which bounds it lies, is looked for without calls within calls."""
    model = FAMILIES[name](1050)
    assert nvdla.compile(model, "nv_full", "fp16").parts
    if name == "pool":
        assert nvdla.compile(model, "nv_small", "int8", samples(model)).whole


def test_nodes_that_fail_one_after_the_other_end_up_on_the_host():
    """The first ones alone, later ones with their neighbours; the results stay those of the model."""
    compiled = nvdla.compile(FAMILIES["doubling"](60), "nv_full", "fp16")
    placed = [row.placement for row in compiled.nodes]
    assert 16 < placed.count("host") < 60 and placed.count("accelerator")
    assert all(row.reason for row in compiled.nodes if row.placement == "host")
    values = np.full((1, 8, 4, 4), 2.0**-60, np.float32)
    assert np.array_equal(compiled.run(values)["t60"], np.ones_like(values))


@pytest.mark.parametrize(
    ("stride", "problem"),
    [
        (40, "plan: must be at most 1,000 operations"),
        (1 << 20, "stride: must have at most 4,096 positions, got 1048576x1048576"),
    ],
)
def test_a_layer_with_too_many_operations_is_refused_before_they_are_made(stride, problem, monkeypatch):
    """A deconvolution needs one convolution for each position within its stride."""
    monkeypatch.setattr(limits, "PLAN", PlanLimits(operations=1000))
    net = Network("net")
    made = []
    monkeypatch.setattr(convolution, "_phase", lambda *given, call=convolution._phase: made.append(1) or call(*given))
    x = net.input("x", (4, 1, 1))
    net.output(net.deconvolution("up", x, np.ones((4, 3, 3, 3), np.float32), stride=stride, padding=(0, 0, 0, 0)))
    with pytest.raises(BuildError, match=f"layer up: {problem}"):
        build(net, "nv_small", "int8", Calibration({"x": 1.0, "up": 1.0}))
    assert len(made) <= 1001
