"""An operation that writes behind its own region: hardware has no bounds, memory behind it is as good as its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.golden import LOADABLES, read, sha
from support.guards import guarded

import nvdla
from nvdla.lint.linter import lint, refusal
from nvdla.memory.address_space import AddressSpace, LeavesRegion, Space

OVERRUN = LOADABLES.parent / "overrun" / "loadables"
CASES = json.loads((OVERRUN / "manifest.json").read_text())["cases"] if OVERRUN.is_dir() else []


def joined(flat: bool = True) -> AddressSpace:
    """Regions of 64, 32 and 32 bytes side by side in one array, and one with a gap before it."""
    space, data = AddressSpace(flat), np.arange(160, dtype=np.uint8)
    for name, base, size in (("a", 0, 64), ("b", 64, 32), ("c", 96, 32), ("d", 256, 32)):
        space.map(name, Space.DRAM, base, size, data[min(base, 128) :][:size])
    return space


def test_an_access_goes_on_in_the_next_region_and_it_is_told():
    space, told = joined(), []
    space.noticed = told.append
    assert space.view(Space.DRAM, 60, 8, "SDP output").tolist() == list(range(60, 68))
    assert space.surface(Space.DRAM, 32, (2, 1, 2, 8), 16, 48).reshape(-1)[-1] == 32 + 48 + 15
    assert told[0].startswith("SDP output: 8 bytes from dram address 0x3c end at 0x44, outside region a")
    assert told[0].endswith("hardware goes on in b")


@pytest.mark.parametrize(("address", "size"), [(120, 9), (0, 129), (200, 4), (280, 16), (60, -1)])
def test_an_access_that_leaves_mapped_memory_is_refused(address, size):
    with pytest.raises(nvdla.errors.LinkError):
        joined().view(Space.DRAM, address, size)


def test_only_memory_that_lies_side_by_side_is_joined():
    with pytest.raises(LeavesRegion):
        joined(flat=False).view(Space.DRAM, 60, 8)
    apart = AddressSpace(flat=True)
    apart.map("a", Space.DRAM, 0, 64)
    apart.map("b", Space.DRAM, 64, 64)
    with pytest.raises(nvdla.errors.LinkError, match="outside region a"):
        apart.view(Space.DRAM, 60, 8)


@pytest.fixture
def overrun(lenet_loadable, plant):
    """LeNet whose ip1 writes 120 channels with a surface stride of a page: into the memories behind its own."""

    def change(task):
        task.operation(9).surface.dst_data.width = task.operation(9).surface.src_data.width = 1
        cube = task.operation(5).surface.dst_data
        cube.surf_stride = 4096

    return plant(lenet_loadable, change)


def test_a_loadable_that_leaves_its_region_runs_and_is_reported(overrun):
    runtime = nvdla.Runtime(overrun)
    surface = bytes(runtime.inputs[0].size)
    seen, log = [], []
    first = runtime.run_raw([surface], on_operation=lambda event: seen.append(event.index), csb_log=log)
    assert [each for each in runtime.warnings if "operation 5 (PDP)" in each and "hardware goes on in" in each]
    assert sorted(seen) == list(range(12))
    assert sum(entry[0] == "task" for entry in log) == 1
    assert runtime.run_raw([surface]) == first
    assert runtime.run_many([[surface]] * 3) == [first] * 3


def test_strict_refuses_it(overrun):
    runtime = nvdla.Runtime(overrun, strict=True)
    with pytest.raises(nvdla.errors.LinkError, match=r"operation 5 \(PDP\).*outside region"):
        runtime.run_raw([bytes(runtime.inputs[0].size)])


def test_lint_calls_it_an_error(overrun):
    assert "surfaces-lie-in-their-windows" in {each.rule for each in lint(overrun).findings}


def test_what_runs_has_figures(overrun):
    """Lint calls it an error, but hardware runs it, and so do we: a named configuration is no reason to refuse it."""
    assert not lint(overrun, "nv_small").clean
    assert refusal(overrun, "nv_small") is None
    assert "atoms of 8 bytes" in refusal(overrun, "nv_large")


def test_a_comparison_says_it_too(overrun, tmp_path, nvdla_command):
    overrun.save(tmp_path / "overrun.nvdla")
    words = ["compare", tmp_path / "overrun.nvdla", "--random-input", "--other-threads", 1]
    code, _, error = nvdla_command(*words)
    assert code == 0
    assert "overrun.nvdla: warning: task 0 operation 5 (PDP)" in error
    assert "hardware goes on in" in error


def test_nothing_outside_of_the_address_space_is_touched(overrun):
    with guarded() as guards:
        runtime = nvdla.Runtime(overrun)
        with pytest.raises(nvdla.errors.LinkError):
            runtime.run_raw([bytes(runtime.inputs[0].size)])
        guards.check()


def test_dram_goes_on_behind_the_last_memory():
    """Where NVIDIA's compiler lets the second part of a concat end behind the output: nobody reads it there."""
    case = next(iter(CASES), None)
    if case is None:
        pytest.skip("the corpus ../shared/corpus is not there")
    runtime = nvdla.Runtime(nvdla.load(OVERRUN / case["path"]))
    result = runtime.run_raw([read(OVERRUN, each) for each in case["inputs"]])
    assert [sha(each) for each in result] == [each["sha256"] for each in case["outputs"]]
    assert "operation 3 (SDP): SDP output: 4096 bytes" in runtime.warnings[0]
