"""Every limit refuses what is beyond it, names itself, and can be raised by the caller."""

from __future__ import annotations

import numpy as np
import pytest
from support.attack_files import INPUT, OUTPUT, Op, chain, copy, network, pool

import nvdla
from nvdla import limits as all_limits
from nvdla.compiler.builder import Network, build
from nvdla.emulator.firmware.operation import check_budget
from nvdla.emulator.trace import replay
from nvdla.limits import Limits, Meter, PlanLimits, Work
from nvdla.loadable import to_bytes
from nvdla.loadable.descriptors import NEW, DlaTask
from nvdla.loadable.descriptors.enums import OpType


def run(limits: Limits, ops=None) -> None:
    runtime = nvdla.Runtime(network(ops or chain(3)), config="nv_small", abi="new", threads=1, limits=limits)
    runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs])


@pytest.mark.parametrize("name, value", [("file_size", 100), ("tables", 5), ("depth", 1), ("string_bytes", 5)])
def test_limits_of_the_container_are_named_and_adjustable(name, value):
    data = to_bytes(network(chain(2)))
    with pytest.raises(nvdla.LoadableError, match=rf"\(Limits\.{name}\)"):
        nvdla.load(data, limits=Limits(**{name: value}))
    assert nvdla.load(data, limits=Limits(**{name: 1 << 20}))


@pytest.mark.parametrize("name, value", [("operations", 2), ("luts", 1)])
def test_limits_of_a_task_are_named_and_adjustable(name, value):
    loadable = network(chain(3))
    with pytest.raises(nvdla.DescriptorError, match=rf"must be at most {value} \(Limits\.{name}\)"):
        DlaTask.decode(loadable, loadable.tasks[0], NEW, limits=Limits(**{name: value}))
    assert DlaTask.decode(loadable, loadable.tasks[0], NEW, limits=Limits(**{name: 100}))


@pytest.mark.parametrize("config", ["auto", "nv_small"])
@pytest.mark.parametrize("name, value", [("operations", 2), ("luts", 1), ("all_operations", 2)])
def test_limits_of_tasks_are_those_of_a_runtime(config, name, value):
    """Also where the configuration is given, so that nothing is decoded to choose one."""
    loadable = network(chain(3))
    with pytest.raises(nvdla.DescriptorError, match=rf"must be at most {value} \(Limits\.{name}\)"):
        nvdla.Runtime(loadable, config=config, abi="new", limits=Limits(**{name: value}))
    assert nvdla.Runtime(loadable, config=config, abi="new", limits=Limits(**{name: 3}))


def test_data_at_shared_offsets_has_an_adjustable_limit():
    from support.attack_files import FILES

    data = FILES.joinpath("shared_strings.nvdla").read_bytes()
    with pytest.raises(nvdla.LoadableError, match=r"must be at most 8 times the file size \(Limits\.sharing\)"):
        nvdla.load(data)
    with pytest.raises(nvdla.LoadableError, match=r"offsets|no blob is named"):  # a later check, so this one passed
        nvdla.load(data, limits=Limits(sharing=10_000))


def test_the_memory_limit_names_the_sum_before_anything_is_allocated():
    loadable = network(chain(1))
    with pytest.raises(nvdla.LinkError, match=r"must have at most 8192 bytes together, got \d+ \(0\.00 GiB\)"):
        nvdla.Runtime(loadable, config="nv_small", abi="new", memory_limit=8192)
    assert nvdla.Runtime(loadable, config="nv_small", abi="new", memory_limit=1 << 20)


@pytest.mark.parametrize("field", ["elements", "cube"])
def test_the_budget_of_a_run_stops_it(field):
    with pytest.raises(nvdla.ScheduleError, match=rf"Limits\.{field}"):
        run(Limits(**{field: 1}))
    run(Limits(**{field: 1 << 16}))


def test_operations_are_counted_before_a_run_and_while_it_goes_on():
    runtime = nvdla.Runtime(network(chain(3)), config="nv_small", abi="new", threads=1)
    with pytest.raises(nvdla.ScheduleError, match=r"operations: must be at most 2 \(run budget\), got 3"):
        check_budget([each for task in runtime.tasks for each in task.operations()], Limits(operations=2))
    meter = Meter(Limits(operations=2))
    meter.charge("sdp", Work())
    meter.charge("sdp", Work())
    with pytest.raises(nvdla.ScheduleError, match=r"sdp: operations: must be at most 2 .Limits\.operations., got 3"):
        meter.charge("sdp", Work())


def test_a_runtime_reads_its_file_with_its_limits(tmp_path):
    path = tmp_path / "network.nvdla"
    path.write_bytes(to_bytes(network(chain(2))))
    with pytest.raises(nvdla.LoadableError, match=r"\(Limits\.tables\)"):
        nvdla.Runtime(path, limits=Limits(tables=5))


def test_a_memory_limit_is_one_of_the_limits():
    loadable, given = network(chain(1)), Limits(cube=1 << 20, memory=8192)
    with pytest.raises(nvdla.LinkError, match="must have at most 8192 bytes together"):
        nvdla.Runtime(loadable, config="nv_small", abi="new", limits=given)
    runtime = nvdla.Runtime(loadable, config="nv_small", abi="new", limits=given, memory_limit=1 << 20)
    assert runtime.limits == Limits(cube=1 << 20, memory=1 << 20)


@pytest.mark.parametrize("make", [copy, pool])
def test_every_engine_is_metered(make):
    op_type = OpType.SDP if make is copy else OpType.PDP
    with pytest.raises(nvdla.ScheduleError, match=r"Limits\.elements"):
        run(Limits(elements=4), [Op(op_type, make((INPUT, 0), (OUTPUT, 0)))])


def test_a_plan_costs_what_its_first_run_did():
    """The budget is for one run: a runtime may be used without limit."""
    limits = Limits(operations=3)
    runtime = nvdla.Runtime(network(chain(3)), config="nv_small", abi="new", threads=1, limits=limits)
    for _ in range(5):
        runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs])


@pytest.mark.parametrize(
    "line, said",
    [
        ("mem_init(pri_mem, 0x80000000, 0x1000, ALL_ZERO);\n" * 3, r"Limits\.elements"),
        ("mem_init(pri_mem, 0x80000000, 0x100000, ALL_ZERO);\n", "must be at most 65536 bytes"),
    ],
)
def test_a_replay_has_a_budget_and_a_memory_limit(tmp_path, line, said):
    (tmp_path / "t.cfg").write_text(line)
    with pytest.raises(nvdla.NvdlaError, match=said):
        replay(tmp_path / "t.cfg", "nv_small", limits=Limits(memory=1 << 16, elements=10_000))


def test_images_of_a_trace_share_one_limit(tmp_path):
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(bytes(40_000))
    lines = [f'mem_load(pri_mem, 0x8000000{n}, "{name}");\n' for n, name in enumerate(("a.bin", "b.bin"))]
    (tmp_path / "t.cfg").write_text("".join(lines))
    with pytest.raises(nvdla.TraceError, match=r"t\.cfg:2: .*b\.bin: must have at most"):
        replay(tmp_path / "t.cfg", "nv_small", limits=Limits(memory=1 << 16))


def test_a_budget_error_states_the_work_and_the_amount():
    meter = Meter(Limits(multiplications=10, cube=5))
    meter.charge("conv", Work(multiplications=6, cube=5))
    with pytest.raises(nvdla.ScheduleError, match=r"conv: cube: must have at most 5 elements .*, got 6"):
        meter.allow("conv", Work(cube=6))
    with pytest.raises(nvdla.ScheduleError, match=r"conv: multiplications: must be at most .*, got 12"):
        meter.charge("conv", Work(multiplications=6))


def planned(convolutions: int = 3, level: int = 1):
    """Convolutions in a row, and as many on one cube."""
    net, weights = Network("net"), np.full((8, 8, 1, 1), 0.1)
    cube = x = net.input("in", (8, 4, 4))
    for number in range(convolutions):
        x = net.convolution(f"c{number}", x, weights)
        net.output(net.convolution(f"d{number}", cube, weights))
    net.output(x)
    return build(net, "nv_full", "fp16", level=level)


@pytest.mark.parametrize(
    "name, value, what",
    [
        ("operations", 4, "layer c2: plan: must be at most 4 operations"),
        ("memory", 300, "layer c1: plan: weights must be at most 300 bytes"),
        ("memory", 400, "layer d1: plan: weights must be at most 400 bytes"),
    ],
)
def test_limits_of_a_plan_are_named_with_the_layer_and_adjustable(name, value, what, monkeypatch):
    monkeypatch.setattr(all_limits, "PLAN", PlanLimits(**{name: value}))
    with pytest.raises(nvdla.BuildError, match=rf"{what} \(PlanLimits\.{name}\), got"):
        planned()
    monkeypatch.setattr(all_limits, "PLAN", PlanLimits(**{name: 1 << 16}))
    assert planned().loadable


def test_surfaces_of_a_plan_are_limited(monkeypatch):
    net, x = Network("net"), None
    x = net.input("in", (8, 64, 64))
    for number in range(3):
        x = net.max_pool(f"p{number}", x, 3, 1, 1)
    net.output(x)
    monkeypatch.setattr(all_limits, "PLAN", PlanLimits(memory=100_000))
    with pytest.raises(nvdla.BuildError, match=r"surfaces between operations must be at most 100,000 bytes"):
        build(net, "nv_full", "fp16")


def test_the_search_ends_at_its_budget(monkeypatch):
    whole = planned(level=2).sidecar["evaluated"]["search"]
    monkeypatch.setattr(all_limits, "PLAN", PlanLimits(searched=1))
    cut = planned(level=2).sidecar["evaluated"]["search"]
    assert whole["complete"] and not cut["complete"] and cut["trials"] < whole["trials"]
