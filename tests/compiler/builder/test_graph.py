"""The dependency graph: what the firmware's events guarantee covers every hazard in memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.build_checks import samples, two_convolutions
from support.random_networks import networks

from nvdla.compiler.builder import Network, build, calibrate
from nvdla.compiler.builder.addresses import ALIGNMENT, Addresses, Extent, layout_of, lives
from nvdla.compiler.builder.emit import _Emitter, link, memory_plan
from nvdla.compiler.builder.lower import lower
from nvdla.compiler.builder.packing import PackedWeights
from nvdla.compiler.builder.schedule import ScheduledDlaTask, schedule
from nvdla.emulator.hardware.configuration import configuration
from nvdla.loadable.descriptors.abi import NEW
from nvdla.loadable.descriptors.enums import Event, OpType
from nvdla.loadable.descriptors.task import DlaTask
from nvdla.runtime import Runtime

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def _parts(net: Network, config: str):
    """Program, tasks, addresses and memory plan of a network."""
    chosen = configuration(config)
    program = lower(net, chosen, "int8", calibrate(net, samples(net, np.random.default_rng(1), 1)))
    tasks = schedule(program, chosen)
    layout = memory_plan(program, chosen, tasks)
    addresses = Addresses(program, chosen, layout)
    return (
        program,
        tasks,
        _Emitter(program, chosen, tasks, addresses, layout, PackedWeights(program, chosen)),
        layout,
    )


def _orders(operations, links) -> np.ndarray:
    """[a, b]: moment a is before moment b, by what firmware and hardware guarantee.

    Moment 2i is the start of operation i (its read DMA may run ahead of the one before it), 2i + 1 its completion.
    """
    before = np.zeros((2 * len(operations), 2 * len(operations)), bool)
    queues: dict[OpType, list[int]] = {}
    for index, operation in enumerate(operations):
        before[2 * index, 2 * index + 1] = True
        queue = queues.setdefault(operation.type, [])
        if queue:
            before[2 * queue[-1], 2 * index] = before[2 * queue[-1] + 1, 2 * index + 1] = True
        if len(queue) > 1:
            # Two register groups: the third operation is programmed when the first is complete.
            before[2 * queue[-2] + 1, 2 * index] = True
        queue.append(index)
        for consumer, event in links[index].consumers.values():
            if event == Event.OP_COMPLETED:
                before[2 * index + 1, 2 * consumer] = True
        if links[index].fused_parent is not None:
            parent = links[index].fused_parent[0]
            # The parent is enabled when this is enabled, and has handed over everything when this is complete.
            before[2 * index, 2 * parent] = before[2 * parent + 1, 2 * index + 1] = True
    for middle in range(len(before)):
        before |= before[:, [middle]] & before[[middle], :]
    return before


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
@SETTINGS
@given(net=networks())
def test_events_and_queue_order_cover_every_hazard(config, net):
    """Read after write, write after read (re-used memory), write after write: the first is complete before the
    second, or before the first of a chain on the fly whose last writes."""
    _, tasks, emitter, _ = _parts(net, config)
    for task in tasks:
        if not isinstance(task, ScheduledDlaTask):
            continue
        extents = {each.index: emitter._extents(each) for each in task.operations}
        before = _orders(task.operations, link(task.operations, extents))
        for one, other in itertools.combinations(task.operations, 2):
            if one.chain is other.chain:
                assert not _overlap(extents[one.index][0], extents[other.index][1]), "a chain overwrites what it reads"
                continue
            (read, written), (other_read, other_written) = extents[one.index], extents[other.index]
            done, names = 2 * one.last.index + 1, f"{one.layer} and {other.layer}"
            if _overlap(written, other_read):
                assert before[done, 2 * other.index], names
            if _overlap(read, other_written) or _overlap(written, other_written):
                assert before[done, 2 * other.index] or before[done, 2 * other.chain[0].index], names


def test_who_takes_on_the_fly_is_enabled_ahead_of_what_its_chain_overwrites():
    """The fourth convolution's result lies where the second's was, which the third has read: the convolution waits for
    that, and with it its SDP, which needs no wait of its own."""
    net = Network("row")
    tensor = net.input("data", (8, 8, 8))
    for number in range(4):
        tensor = net.convolution(f"c{number}", tensor, np.ones((8, 8, 3, 3)), padding=1)
    net.output(tensor)
    _, (task,), emitter, layout = _parts(net, "nv_small")
    assert layout.size < 3 * 8 * 8 * 8
    links = link(task.operations, {each.index: emitter._extents(each) for each in task.operations})
    post = [each.index for each in task.operations if each.type == OpType.SDP]
    assert {links[index].consumers[OpType.SDP][1] for index in post[:-1]} == {Event.OP_ENABLED}


def _overlap(some: list[Extent], others: list[Extent]) -> bool:
    return any(a.memory == b.memory and _share(a, b) for a in some for b in others)


def _share(a: Extent, b: Extent) -> bool:
    """Whether both touch a byte: each byte is looked at."""
    low, high = max(a.start, b.start), min(a.end, b.end)
    if low >= high:
        return False
    bytes_ = np.arange(low, high)
    touched = [
        (bytes_ - each.start) % each.stride < each.span if each.stride else np.ones(high - low, bool) for each in (a, b)
    ]
    return bool(np.any(touched[0] & touched[1]))


@SETTINGS
@given(net=networks())
def test_dependency_counts_are_the_events_that_arrive(net):
    built = build(net, "nv_small", "int8", calibrate(net, samples(net, np.random.default_rng(1), 1)))
    for entry in built.loadable.tasks:
        decoded = DlaTask.decode(built.loadable, entry, NEW)
        arriving = [0] * len(decoded)
        for common in decoded.dependencies:
            for consumer in [*common.consumers, common.fused_parent]:
                if consumer.index >= 0:
                    arriving[consumer.index] += 1
        assert arriving == [common.dependency_count for common in decoded.dependencies]
        for kind in range(6):
            queue = [common.index for common in decoded.dependencies if common.op_type == kind]
            assert decoded.network.op_head[kind] == (queue[0] if queue else -1)
            for one, after in itertools.pairwise(queue):
                assert decoded.dependencies[one].consumers[kind].index == after


@SETTINGS
@given(net=networks())
def test_memory_is_shared_only_by_surfaces_whose_lives_do_not_overlap(net):
    program, _, _, layout = _parts(net, "nv_small")
    chosen = configuration("nv_small")
    lived = lives(program.operations).values()
    placed = [(root, life) for root, life in lived if root.role == "inner" and id(root) in layout.offsets]
    for (one, first), (other, second) in itertools.combinations(placed, 2):
        starts = layout.offsets[id(one)], layout.offsets[id(other)]
        ends = [start + layout_of(root, chosen).size for start, root in zip(starts, (one, other), strict=True)]
        if max(starts) < min(ends):
            assert first.last < second.first or second.last < first.first
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets.values())


def test_a_chain_of_layers_needs_the_memory_of_two():
    net = Network()
    x = net.input("in", (8, 16, 16))
    for number in range(12):
        x = net.relu(f"r{number}", net.scale(f"s{number}", x, 1.0))
    net.output(x)
    _, _, _, layout = _parts(net, "nv_small")
    assert layout.size == 2 * 8 * 16 * 16


def test_a_convolution_waits_for_its_sdp_as_nvidias_compiler_has_it():
    """Events of a convolution, its SDP and a pool behind them (compare loadables of NVIDIA's compiler)."""
    net = Network()
    x = net.convolution("c", net.input("in", (8, 9, 9)), np.ones((8, 8, 3, 3)))
    net.output(net.max_pool("p", net.relu("r", x), 3, 2))
    loadable = build(net, "nv_small", "int8", calibrate(net, samples(net, np.random.default_rng(1), 1))).loadable
    conv, sdp, pdp = DlaTask.decode(loadable, loadable.tasks[0], NEW).dependencies
    assert [each.dependency_count for each in (conv, sdp, pdp)] == [1, 2, 1]
    assert (conv.consumers[OpType.SDP].index, conv.consumers[OpType.SDP].event) == (1, Event.OP_PROGRAMMED)
    assert (sdp.consumers[OpType.PDP].index, sdp.consumers[OpType.PDP].event) == (2, Event.OP_PROGRAMMED)
    assert (sdp.fused_parent.index, sdp.fused_parent.event) == (0, Event.OP_ENABLED)
    assert (pdp.fused_parent.index, pdp.fused_parent.event) == (1, Event.OP_ENABLED)


def test_no_operation_is_enabled_before_the_one_before_it_in_its_queue():
    """The C model deadlocks if a read DMA finds its second group enabled first."""
    net = Network()
    x = net.input("in", (8, 9, 9))
    net.output(net.scale("behind", net.lrn("lrn", net.scale("before", x, 2.0)), 3.0))
    net.output(net.scale("free", x, 4.0))  # could start at once
    data = samples(net, np.random.default_rng(1), 1)
    built = build(net, "nv_small", "int8", calibrate(net, data))
    runtime = Runtime(built.loadable, config="nv_small")
    log: list = []
    runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs], csb_log=log)
    enabled: dict[str, list[int]] = {}
    for index, engine, _ in (entry[1:] for entry in log if entry[0] == "enable"):
        enabled.setdefault(engine, []).append(index)
    assert len(enabled["SDP"]) == 3 and all(order == sorted(order) for order in enabled.values())


def test_a_chain_on_the_fly_does_not_write_where_it_reads():
    """The pool writes while the convolution still reads, so the two surfaces cannot share memory."""
    net = Network()
    x = net.scale("s", net.input("in", (8, 12, 12)), 2.0)
    x = net.max_pool("p", net.convolution("c", x, np.ones((8, 8, 3, 3)), padding=1), 2)
    net.output(net.scale("t", x, 2.0))
    program, _, _, layout = _parts(net, "nv_small")
    source, result = program.tensors["s"].root, program.tensors["p"].root
    assert id(program.tensors["c"].root) not in layout.offsets
    assert layout.offsets[id(source)] != layout.offsets[id(result)]


def _convolution_links(level: int) -> list[tuple[bool, Event]]:
    """Of each convolution and the next: whether they have the same banks, and what the next waits for."""
    net = two_convolutions()
    calibration = calibrate(net, samples(net, np.random.default_rng(1), 1))
    loadable = build(net, "nv_small", "int8", calibration, level=level).loadable
    task = DlaTask.decode(loadable, loadable.tasks[0], NEW)
    operations = [task.operation(index) for index in range(len(task))]
    queue = [each for each in operations if each.common.op_type == OpType.CONV]
    return [
        (
            (one.op.data_bank, one.op.weight_bank) == (after.op.data_bank, after.op.weight_bank),
            Event(one.common.consumers[OpType.CONV].event),
        )
        for one, after in itertools.pairwise(queue)
    ]


def test_a_convolution_with_other_banks_waits_for_the_one_before():
    """Its weights would be fetched, and told of, before CSC begins with it and forgets what it was told: the C model
    deadlocks."""
    assert _convolution_links(level=0) == [(False, Event.OP_COMPLETED)]


def test_convolutions_in_a_row_have_the_same_banks_where_they_find_room():
    assert set(_convolution_links(level=1)) == {(True, Event.OP_ENABLED)}
