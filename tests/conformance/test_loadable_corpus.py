"""Compiled networks against NVIDIA's C model driven by NVIDIA's firmware: outputs, every operation, register writes.

Quick: the smallest case of each kind, and every refusal. All cases: ``pytest tests/conformance -m slow``.
"""

from __future__ import annotations

import hashlib
import json

import pytest
from support.golden import LOADABLES, REGRESSION, golden_log, inputs_of, manifest, quick, read, runtime_of, sha

import nvdla

CASES = manifest(LOADABLES)
QUICK = quick(CASES)
REST = [case for case in CASES if not any(case is other for other in QUICK)]
LOGGED = [case for case in CASES if "csb" in case.get("files", {})]
EXPECTED_ERRORS = {
    "unsupported-operation": nvdla.ConfigError,
    "unsupported-precision": nvdla.ConfigError,
    "broken-dependency-graph": nvdla.ScheduleError,
    "pdp-starved": nvdla.ScheduleError,
}


def parameters(quick_cases, slow_cases):
    name = "path"
    return [pytest.param(case, id=case[name]) for case in quick_cases] + [
        pytest.param(case, id=case[name], marks=pytest.mark.slow) for case in slow_cases
    ]


@pytest.mark.parametrize("case", parameters(QUICK, REST))
def test_every_operation_and_output_equals_the_golden_bytes(case):
    if case["expect"] != "ok":
        with pytest.raises(EXPECTED_ERRORS[case["error_kind"]]):
            runtime_of(case).run_raw(inputs_of(case))
        return
    seen = {}

    def note(event):
        if event.destination is not None:
            seen[event.task, event.index] = sha(event.destination.tobytes())

    outputs = runtime_of(case).run_raw(inputs_of(case), on_operation=note)
    for row in json.loads((LOADABLES / case["files"]["ops"]).read_text()):
        if "sha256" in row:
            where = f"first divergent operation: task {row['task']} op {row['op']} {row['type']}"
            assert seen.get((row["task"], row["op"])) == row["sha256"], where
    for number, described in enumerate(case["outputs"]):
        assert outputs[number] == read(LOADABLES, described), f"output {number}"


def is_quick(case):
    return any(case is other for other in QUICK)


@pytest.mark.parametrize(
    "case",
    parameters([case for case in LOGGED if is_quick(case)], [case for case in LOGGED if not is_quick(case)]),
)
def test_register_writes_equal_the_reference_log_write_for_write(case):
    log: list = []
    runtime_of(case).run_raw(inputs_of(case), csb_log=log)
    assert [line for line in log if line[0] not in ("task", "irq")] == golden_log(LOADABLES / case["files"]["csb"])


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in manifest(REGRESSION)])
def test_nvidias_driver_regression_gives_its_golden_bytes(case):
    loadable = nvdla.load(REGRESSION / case["flatbuf"])
    runtime = nvdla.Runtime(loadable, config=case["config"])
    assert runtime.abi == case["abi"]
    output = runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs])[0]
    assert output == (REGRESSION / case["raw_output"]).read_bytes()


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in manifest(REGRESSION)])
def test_nvidias_driver_regression_gives_its_golden_image(case):
    """The same against NVIDIA's own golden file: a header of 36 bytes, then the elements in NCHW order."""
    runtime = nvdla.Runtime(nvdla.load(REGRESSION / case["flatbuf"]), config=case["config"])
    golden = (REGRESSION / case["golden_dimg"]).read_bytes()
    assert hashlib.md5(golden).hexdigest() == case["golden_md5"]
    [tensor] = runtime.run([bytes(tensor.size) for tensor in runtime.inputs]).values()
    assert golden[36:] == tensor.tobytes()


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_later_runs_repeat_every_operation_of_the_first(precision):
    """What a Runtime remembers of its first run gives the same bytes on other data as a fresh one."""
    for case in [case for case in QUICK if case["expect"] == "ok" and case["precision"] == precision]:
        first = inputs_of(case)
        other = [data[len(data) // 2 :] + data[: len(data) // 2] for data in first]
        used, fresh = runtime_of(case), runtime_of(case)
        used.run_raw(first)
        assert observed(used, other) == observed(fresh, other), case["path"]
        # Without observers, jobs may be fused.
        assert used.run_raw(other) == through_firmware(fresh, other), case["path"]


def through_firmware(runtime, inputs):
    """Outputs of a run through the firmware."""
    return runtime.run_raw(inputs, csb_log=[])


@pytest.mark.parametrize("case", parameters([case for case in QUICK if case["expect"] == "ok"], []))
def test_the_configuration_that_is_chosen_gives_the_golden_bytes(case):
    runtime = nvdla.Runtime(nvdla.load(LOADABLES / case["path"]))
    outputs = runtime.run_raw(inputs_of(case))
    assert outputs == [read(LOADABLES, described) for described in case["outputs"]], runtime.config_reason


def observed(runtime, inputs):
    """Outputs, and what observers see: operations with their counters and what they wrote."""
    seen = []

    def note(event):
        written = None if event.destination is None else sha(event.destination.tobytes())
        seen.append((event.task, event.index, event.group, event.statistics, written))

    return runtime.run_raw(inputs, on_operation=note), seen
