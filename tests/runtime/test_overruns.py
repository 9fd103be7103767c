"""An operation that writes past its own region: hardware has no bounds, it writes the memory after it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from support.golden import LOADABLES, read, sha
from support.guards import guarded
from support.handmade import OUTPUT, WORK, Op, chain, copy, network

import nvdla
from nvdla.checks.lint.linter import lint, refusal
from nvdla.emulator.memory.address_space import AddressSpace, LeavesRegion, Space
from nvdla.loadable.descriptors.enums import OpType
from nvdla.program import Program
from tests.program.test_accesses import convolution, roomy

OVERRUN = LOADABLES.parent / "overrun" / "loadables"
CASES = json.loads((OVERRUN / "manifest.json").read_text())["cases"] if OVERRUN.is_dir() else []


def joined(flat: bool = True) -> AddressSpace:
    """Regions of 64, 32 and 32 bytes side by side in one array, and one with a gap before it."""
    space, data = AddressSpace(flat), np.arange(160, dtype=np.uint8)
    for name, base, size in (("a", 0, 64), ("b", 64, 32), ("c", 96, 32), ("d", 256, 32)):
        space.map(name, Space.DRAM, base, size, data[min(base, 128) :][:size])
    return space


def test_an_access_continues_in_the_next_region_with_a_warning():
    space, told = joined(), []
    space.noticed = told.append
    assert space.view(Space.DRAM, 60, 8, "SDP output").tolist() == list(range(60, 68))
    assert space.surface(Space.DRAM, 32, (2, 1, 2, 8), 16, 48).reshape(-1)[-1] == 32 + 48 + 15
    assert told[0].startswith("SDP output: 8 bytes from dram address 0x3c end at 0x44, outside region a")
    assert told[0].endswith("hardware continues in b")


@pytest.mark.parametrize(("address", "size"), [(120, 9), (0, 129), (200, 4), (280, 16), (60, -1)])
def test_an_access_that_leaves_mapped_memory_is_refused(address, size):
    with pytest.raises(nvdla.errors.LinkError):
        joined().view(Space.DRAM, address, size)


def test_only_adjacent_memory_is_joined():
    with pytest.raises(LeavesRegion):
        joined(flat=False).view(Space.DRAM, 60, 8)
    apart = AddressSpace(flat=True)
    apart.map("a", Space.DRAM, 0, 64)
    apart.map("b", Space.DRAM, 64, 64)
    with pytest.raises(nvdla.errors.LinkError, match="outside region a"):
        apart.view(Space.DRAM, 60, 8)


@pytest.fixture
def overrun(lenet_loadable, plant):
    """LeNet whose ip1 writes 120 channels with a surface stride of a page: into the memories after its own."""

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
    assert [each for each in runtime.warnings if "operation 0/5 (PDP)" in each and "hardware continues in" in each]
    assert sorted(seen) == list(range(12))
    assert sum(entry[0] == "task" for entry in log) == 1
    assert runtime.run_raw([surface]) == first
    assert runtime.run_many([[surface]] * 3) == [first] * 3


def test_strict_refuses_it(overrun):
    runtime = nvdla.Runtime(overrun, strict=True)
    with pytest.raises(nvdla.errors.LinkError, match=r"operation 0/5 \(PDP\).*outside region"):
        runtime.run_raw([bytes(runtime.inputs[0].size)])


def stray():
    """A copy of the input that reaches it through the address of another memory: all of it is in the adjacent
    memory."""
    regions = nvdla.Runtime(network(chain(1)))._linked.regions
    return network([Op(OpType.SDP, copy((WORK, regions[0].base - regions[2].base), (OUTPUT, 0)))])


def test_an_error_after_a_result_outside_its_memory_names_that_result(lenet_loadable, plant, nvdla_command, tmp_path):
    """The first pooling writes over the descriptors, so that the next convolution cannot be read."""

    def change(task):
        task.operation(2).surface.dst_data.offset = 20000

    plant(lenet_loadable, change).save(path := tmp_path / "stray.nvdla")
    runtime = nvdla.Runtime(path)
    with pytest.raises(nvdla.NvdlaError, match=r"operation 0/6 .*Before it: operation 0/2 \(PDP\): dst_data begins at"):
        runtime.run_raw([bytes(runtime.inputs[0].size)])
    assert any("operation 0/2 (PDP)" in warning for warning in runtime.warnings)
    code, _, err = nvdla_command("run", path, "--random-input")
    assert code == 2 and "Before it: operation 0/2 (PDP)" in err


def test_an_address_that_leads_into_another_memory_is_reported():
    """The access leaves no region: it begins in one that is not its own, as hardware would have it."""
    runtime, surface = nvdla.Runtime(stray()), bytes(range(256))
    for _ in range(2):
        assert runtime.run_raw([surface])[0][:8] == surface[:8]
    assert runtime.run_many([[surface]] * 3)[2][0][:8] == surface[:8]
    assert len(runtime.warnings) == 1
    assert "operation 0/0 (SDP): src_data begins at address" in runtime.warnings[0]
    assert runtime.warnings[0].endswith("hardware accesses it without a check")
    assert "surfaces-are-in-their-windows" in {each.rule for each in lint(stray()).findings}
    with pytest.raises(LeavesRegion, match=r"operation 0/0 \(SDP\): src_data begins at .*, outside the memory of"):
        nvdla.Runtime(stray(), strict=True).run_raw([surface])


def test_the_second_plane_of_an_image_is_looked_at_too(plant):
    """Its address is the first plane's and an offset, which may lead anywhere."""
    dice = random.Random(5)
    while True:
        loadable = roomy(convolution(dice, "nv_full"), "nv_full")
        conv = Program.of(loadable, "nv_full").operations[0]
        if any(access.role == "src uv" for access in conv.reads):
            break
    regions = nvdla.Runtime(loadable, "nv_full")._linked.regions
    src = conv.surface.src_data

    def moved(task):
        task.operation(0).surface.offset_u = regions[0].base - regions[2].base - src.offset

    runtime = nvdla.Runtime(plant(loadable, moved), "nv_full", strict=True)
    with pytest.raises(LeavesRegion, match=r"\(CONV\): src_data's second plane begins at"):
        runtime.run_raw([bytes(each.size) for each in runtime.inputs])


def test_lint_calls_it_an_error(overrun):
    assert "surfaces-are-in-their-windows" in {each.rule for each in lint(overrun).findings}


def test_what_runs_has_figures(overrun):
    """Lint calls it an error, but hardware runs it, and so do we: a named configuration does not change that."""
    assert not lint(overrun, "nv_small").clean
    assert refusal(Program.of(overrun, "nv_small")) is None
    assert "atoms of 8 bytes" in refusal(Program.of(overrun, "nv_large"))


def test_a_comparison_warns_too(overrun, tmp_path, nvdla_command):
    overrun.save(tmp_path / "overrun.nvdla")
    words = ["compare", tmp_path / "overrun.nvdla", "--random-input", "--other-threads", 1]
    code, _, error = nvdla_command(*words)
    assert code == 0
    assert "overrun.nvdla: warning: operation 0/5 (PDP)" in error
    assert "hardware continues in" in error


def test_nothing_outside_of_the_address_space_is_touched(overrun):
    with guarded() as guards:
        runtime = nvdla.Runtime(overrun)
        with pytest.raises(nvdla.errors.LinkError):
            runtime.run_raw([bytes(runtime.inputs[0].size)])
        guards.check()


def test_dram_continues_after_the_last_memory():
    """NVIDIA's compiler lets the second part of a concat end after the output, where no operation reads it."""
    case = next(iter(CASES), None)
    if case is None:
        pytest.skip("the corpus ../shared/corpus is not there")
    runtime = nvdla.Runtime(nvdla.load(OVERRUN / case["path"]))
    result = runtime.run_raw([read(OVERRUN, each) for each in case["inputs"]])
    assert [sha(each) for each in result] == [each["sha256"] for each in case["outputs"]]
    assert "operation 0/3 (SDP): SDP destination: 4096 bytes" in runtime.warnings[0]
