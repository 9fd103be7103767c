"""The table of execution paths in docs/architecture.md: each row is derived, and each path gives the same bytes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.execution.instances import Batch
from nvdla.emulator.execution.paths import SHORT, SHORTEST, Callers, Request, RunPath, State, choose_path
from nvdla.kernels.jit.compilation import fallback_work

ROOT = Path(__file__).resolve().parents[3]
STATES = [
    State(*each)
    for each in itertools.product(
        (False, True), (False, True), (False, True), (False, True), (None, 1, SHORT, 1 << 30), (1, 8)
    )
    if each[0] or not each[1]  # what is fused is recorded
]
FLAGS = list(itertools.product((False, True), repeat=5))
REQUESTS = [Request(*flags, images, callers) for flags in FLAGS for images in (1, 9) for callers in Callers]

# Conditions of the table's first two columns, by their words.
STATE = {
    "any": lambda state: True,
    "not recorded, large network": lambda state: not state.recorded and state.is_large,
    "not recorded": lambda state: not state.recorded,
    "recorded": lambda state: state.recorded,
    "not fused, few operations on numpy": lambda state: not state.fused and state.takes_fallback,
    "not fused": lambda state: not state.fused,
    "fused": lambda state: state.fused,
    "fused, lanes": lambda state: state.fused and state.lanes > 1,
    "fused, several compiled calls": lambda state: state.fused and state.single_call is None,
    "fused, a single compiled call": lambda state: state.fused and state.single_call is not None,
    "fused, a single compiled call, long": lambda state: state.fused and (state.single_call or 0) > SHORT,
    "fused, a single compiled call, short": lambda state: state.fused and (state.single_call or 0) > SHORTEST,
}
REQUEST = {
    "any": lambda request: True,
    "any other": lambda request: True,
    "faults": lambda request: request.faulty,
    "register log": lambda request: request.logged,
    "no observer": lambda request: not request.observed,
    "observer of operations": lambda request: request.observed,
    "inside another run of the thread": lambda request: request.inside,
    "observer of steps": lambda request: request.timed,
    "several images": lambda request: request.images > 1,
    "few callers": lambda request: request.callers is Callers.FEW,
    "many callers": lambda request: request.callers is Callers.MANY,
}


def table() -> list[tuple[str, str, RunPath]]:
    """The rows of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text().split("### Execution paths")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    return [(state.strip(), request.strip(), RunPath(path.strip())) for state, request, path, _ in rows]


def test_the_first_row_that_applies_is_the_path_of_every_state_and_request():
    rows, used = table(), set()
    for state, request in itertools.product(STATES, REQUESTS):
        number = next(i for i, (one, two, _) in enumerate(rows) if STATE[one](state) and REQUEST[two](request))
        assert choose_path(state, request) is rows[number][2], (rows[number], state, request)
        used.add(number)
    assert used == set(range(len(rows))), "a row that decides nothing"
    assert {path for *_, path in rows} == set(RunPath)


def network(side: int) -> nvdla.Loadable:
    """Two convolutions of 64 kernels and a fully connected layer."""
    random = np.random.default_rng(0)
    net = Network("small")
    first = net.convolution("first", net.input("data", (64, side, side)), random.standard_normal((64, 64, 3, 3)))
    net.output(net.fully_connected("last", net.relu("relu", first), random.standard_normal((8, 64 * (side - 2) ** 2))))
    return build(net, "nv_large", "int8", calibrate(net, random.standard_normal((1, 64, side, side)))).loadable


@pytest.fixture
def chosen(monkeypatch):
    """Paths in the order in which they are chosen."""
    found: list[RunPath] = []

    def choose(state: State, request: Request) -> RunPath:
        found.append(choose_path(state, request))
        return found[-1]

    monkeypatch.setattr("nvdla.runtime.choose_path", choose)
    return found


def taken(found: list[RunPath]) -> list[RunPath]:
    """The paths since the last call, each once where it is chosen again under the lock."""
    paths = [path for path, _ in itertools.groupby(found)]
    found.clear()
    return paths


def test_a_small_network_goes_through_the_firmware_once_then_fuses(chosen, monkeypatch):
    loadable = network(4)
    image, events, steps = [bytes(range(256)) * (loadable.inputs[0].size // 256)], [], []
    runtime = nvdla.Runtime(loadable, "nv_large")
    expected = runtime.run_raw(image)
    assert taken(chosen) == [RunPath.FIRMWARE]
    assert runtime.run_raw(image, on_operation=events.append) == expected
    assert taken(chosen) == [RunPath.JOBS] and events
    assert runtime.run_raw(image) == expected
    assert taken(chosen) == [RunPath.FUSE, RunPath.POOL]
    assert runtime.run_raw(image, on_step=lambda step, seconds: steps.append(step)) == expected
    assert taken(chosen) == [RunPath.STEPS] and steps
    assert runtime.run_raw(image, csb_log=[]) == expected
    assert taken(chosen) == [RunPath.FIRMWARE]
    monkeypatch.setattr(Batch, "is_faster", lambda batch: True)
    assert runtime.run_many([image] * 3) == [expected] * 3
    assert taken(chosen) == [RunPath.FUSE, RunPath.LANES]


@pytest.mark.parametrize("cheap", [False, True])
def test_a_large_network_is_recorded_first(chosen, monkeypatch, cheap):
    monkeypatch.setattr(fallback_work, "fits_process", lambda: True)  # whatever threads other tests have left
    monkeypatch.setattr(fallback_work, "take_run", lambda cost: cheap)
    loadable = network(24)
    image = [bytes(loadable.inputs[0].size)]
    runtime = nvdla.Runtime(loadable, "nv_large")
    runtime.run_raw(image)
    then = [RunPath.FUSE, RunPath.POOL]
    assert taken(chosen) == [RunPath.RECORD, *([RunPath.FALLBACK] if cheap else then)]
    runtime.run_raw(image)
    assert taken(chosen) == (then if cheap else [RunPath.POOL])


def test_images_of_a_network_that_a_loop_runs_faster_go_one_by_one(chosen, lenet_loadable):
    runtime = nvdla.Runtime(lenet_loadable)
    images = [[bytes(runtime.inputs[0].size)]] * 8
    runtime.run_many(images)
    assert RunPath.LANES not in chosen


def test_images_of_a_network_with_many_weights_read_once_go_together(chosen):
    """4096 inputs and 1536 results: 6 MB of weights for 6 million multiplications."""
    random = np.random.default_rng(0)
    net = Network("wide")
    net.output(net.fully_connected("fc", net.input("data", (4096, 1, 1)), random.standard_normal((1536, 4096))))
    built = build(net, "nv_large", "int8", calibrate(net, random.standard_normal((1, 4096, 1, 1))))
    runtime = nvdla.Runtime(built.loadable, "nv_large")
    images = [[random.integers(0, 256, runtime.inputs[0].size, np.uint8).tobytes()] for _ in range(4)]
    assert runtime.run_many(images) == [runtime.run_raw(image) for image in images]
    assert RunPath.LANES in chosen
