"""The scheduler on graphs made by hand: order, events, regions of interest, and what can never end."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.handmade import INPUT, OUTPUT, WORK, Op, chain, copy, cube, network, pool
from support.small_operations import bdma, convolution

import nvdla
from nvdla.loadable.descriptors.enums import Event, OpType
from nvdla.loadable.descriptors.structures import StatContainer

SDP, PDP, CONV, BDMA = OpType.SDP, OpType.PDP, OpType.CONV, OpType.BDMA
DATA = bytes(range(200, 256)) + bytes(range(200))


def run(loadable, config="nv_small", **options):
    runtime = nvdla.Runtime(loadable, config=config, abi="new")
    return runtime, runtime.run_raw([DATA], **options)[0]


def steps(runtime):
    return [(step.what, step.index) for step in runtime.steps]


def test_a_chain_runs_in_order_and_two_operations_are_programmed_ahead():
    runtime, result = run(network(chain(4)))
    assert result[:8] == DATA[:8]
    assert steps(runtime)[:3] == [("program", 0), ("enable", 0), ("program", 1)]
    assert [index for what, index in steps(runtime) if what == "complete"] == [0, 1, 2, 3]
    groups = {step.index: step.group for step in runtime.steps}
    assert groups == {0: 0, 1: 1, 2: 0, 3: 1}


def test_dependencies_are_counted_down_in_memory_and_reloaded_for_the_next_run():
    runtime = nvdla.Runtime(network(chain(3)), config="nv_small", abi="new")
    graph = runtime.tasks[0].decoded.dependencies
    assert [node.dependency_count for node in graph] == [0, 1, 1]
    log = []
    assert runtime.run_raw([DATA])[0] == runtime.run_raw([DATA], csb_log=log)[0]
    assert log
    assert [node.dependency_count for node in graph] == [0, 0, 0]


@pytest.mark.parametrize("event", [Event.OP_PROGRAMMED, Event.OP_ENABLED, Event.OP_COMPLETED])
def test_a_consumer_on_another_processor_starts_at_its_event(event):
    ops = [
        Op(SDP, copy((INPUT, 0), (WORK, 0)), consumers={PDP: (1, event)}),
        Op(PDP, pool((INPUT, 8), (OUTPUT, 0)), waits=1),
    ]
    runtime, result = run(network(ops))
    assert result[:8] == DATA[8:16]
    order = steps(runtime)
    enabled = order.index(("enable", 1))
    if event == Event.OP_COMPLETED:
        assert enabled > order.index(("complete", 0))
    else:  # PDP is programmed only after SDP was started, so it starts as soon as it is
        assert enabled < order.index(("complete", 0))


def test_the_fused_parent_counts_like_a_consumer():
    ops = [
        Op(SDP, copy((INPUT, 0), (WORK, 0)), waits=1),
        Op(PDP, pool((INPUT, 8), (OUTPUT, 0)), fused_parent=(0, Event.OP_ENABLED)),
    ]
    runtime, _ = run(network(ops))
    order = steps(runtime)
    assert order.index(("enable", 0)) > order.index(("enable", 1))


def test_regions_of_interest_run_the_operations_once_each():
    first = chain(2)
    second = [
        Op(SDP, copy((INPUT, 16), (WORK, 512)), consumers={SDP: (1, Event.OP_COMPLETED)}),
        Op(SDP, copy((WORK, 512), (OUTPUT, 8)), waits=1),
    ]
    runtime, result = run(network(first + second, rois=2))
    assert result[:16] == DATA[:8] + DATA[16:24]
    assert [(step.index, step.roi) for step in runtime.steps if step.what == "complete"] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def dynamic(left, top, count=1):
    """A network whose input cube starts at a region of interest of the input, 8 lines of 32 bytes."""

    def fill(op, surface):
        copy((-1, 0), (OUTPUT, 0))(op, surface)
        surface.src_data.line_stride = 32

    array = np.array([count, 0, left, top, 0, 0], np.uint32).tobytes()
    options = {"dynamic_roi": 1, "input_layer": 0, "roi_array_index": 9, "surface_index": 1}
    return network([Op(SDP, fill)], extra={"rois": array}, **options)


def test_a_dynamic_region_of_interest_sets_the_start_of_the_input():
    _, result = run(dynamic(left=8, top=3))
    assert result[:8] == DATA[3 * 32 + 8 :][:8]


def test_more_regions_than_the_network_is_made_for_are_refused():
    with pytest.raises(nvdla.DescriptorError, match=r"regions of the ROI array: must be 1 to 1 .network., got 2"):
        run(dynamic(0, 0, count=2))


def test_a_cycle_is_reported_with_the_waiting_operations():
    ops = [
        Op(SDP, copy((INPUT, 0), (WORK, 0)), waits=1, consumers={PDP: (1, Event.OP_COMPLETED)}),
        Op(PDP, pool((WORK, 0), (OUTPUT, 0)), waits=1, consumers={SDP: (0, Event.OP_COMPLETED)}),
    ]
    with pytest.raises(nvdla.ScheduleError) as caught:
        run(network(ops))
    message = str(caught.value)
    assert "2 of 2 operations are not done" in message
    assert re.search(
        r"operation 0/0 \(SDP, programmed\) waits for 1 more event: OP_COMPLETED of operation 0/1", message
    )
    assert re.search(
        r"operation 0/1 \(PDP, programmed\) waits for 1 more event: OP_COMPLETED of operation 0/0", message
    )


def test_a_dependency_count_without_producers_is_reported():
    ops = chain(3)
    ops[1].waits = 2
    with pytest.raises(nvdla.ScheduleError, match=r"operation 0/1 .* waits for 1 more event that no operation sends"):
        run(network(ops))


def test_a_deadlock_names_the_events_that_are_missing(lenet_loadable, plant, samples):
    """Those that have arrived are not listed, so there are as many as the dependency count."""

    def waits_of(change):
        runtime = nvdla.Runtime(plant(lenet_loadable, change))
        with pytest.raises(nvdla.ScheduleError) as caught:
            runtime.run(samples / "digit7.pgm")
        return str(caught.value)

    def end_the_queue(task):
        task.operation(0).common.consumers[OpType.CONV].index = -1

    def wait_for_more(task):
        task.operation(0).common.dependency_count = 3

    assert "0/4 (SDP, programmed) waits for 1 more event: OP_PROGRAMMED of operation 0/3 (CONV);" in waits_of(
        end_the_queue
    )
    message = waits_of(wait_for_more)
    assert "0/0 (CONV, programmed) waits for 2 more events that no operation sends;" in message
    missing = "OP_ENABLED of operation 0/0 (CONV), OP_COMPLETED of operation 0/2 (PDP);"
    assert f"0/3 (CONV, programmed) waits for 2 more events: {missing}" in message


def test_an_event_too_many_is_reported():
    ops = [
        Op(SDP, copy((INPUT, 0), (WORK, 0)), consumers={PDP: (1, Event.OP_COMPLETED)}),
        Op(PDP, pool((WORK, 0), (OUTPUT, 0))),
    ]
    with pytest.raises(nvdla.ScheduleError, match="would decrement it below 0"):
        run(network(ops))


def test_an_operation_that_follows_itself_is_reported():
    ops = chain(2)
    ops[0].consumers[SDP] = (0, Event.OP_COMPLETED)
    with pytest.raises(nvdla.ScheduleError, match=r"operation 0/0 \(SDP\): must be queued once"):
        run(network(ops, op_head=[-1, -1, 0, -1, -1, -1]))


def test_an_operation_without_the_other_engine_on_the_fly_deadlocks():
    def fill(op, surface):
        copy((INPUT, 0), (OUTPUT, 0))(op, surface)
        cube(surface.src_data, -1, memory=2)

    with pytest.raises(nvdla.ScheduleError, match="waits for another engine on the fly"):
        run(network([Op(SDP, fill)]))


def test_the_next_run_after_a_failed_one_is_not_disturbed():
    runtime = nvdla.Runtime(network(chain(3)), config="nv_small", abi="new")

    def fail(event):
        raise nvdla.FormatError("stop")

    with pytest.raises(nvdla.FormatError):
        runtime.run_raw([DATA], on_operation=fail)
    assert runtime.run_raw([DATA])[0][:8] == DATA[:8]


def test_statistics_are_written_to_the_tasks_list():
    loadable = network(chain(2), statistics=True)
    runtime, log = nvdla.Runtime(loadable, config="nv_small", abi="new"), []
    window = runtime.tasks[0].addresses[8]
    window.data[:] = 0xAA
    runtime._linked.reset = lambda ids: None  # keep the marks, to see what is written
    runtime.run_raw([DATA], csb_log=log)
    size = StatContainer.sdp_stat.size
    stats = StatContainer.from_buffer_copy(window.data[:size].tobytes()).sdp_stat
    assert stats.nan_input_num == 0
    assert stats.runtime == 0
    register = 0x90DC  # SDP.D_PERF_ENABLE
    assert ("W", register, 0xF) in log


def test_bdma_copies_lines_and_an_operation_without_transfers_completes():
    ops = [Op(BDMA, bdma(0), consumers={BDMA: (1, Event.OP_COMPLETED)}), Op(BDMA, bdma(1), waits=1)]
    runtime, result = run(network(ops, "nv_full"), config="nv_full")
    assert result[:128] == DATA[:128]
    assert not any(result[128:])
    assert [index for what, index in steps(runtime) if what == "complete"] == [0, 1]


def test_operations_with_different_lookup_tables_do_not_overlap():
    def looked_up(index, source, destination):
        def fill(op, surface):
            copy(source, destination, atom=32)(op, surface)
            op.lut_index = index
            op.y_op.enable = 1
            op.y_op.act = 2

        return fill

    ops = [
        Op(SDP, looked_up(0, (INPUT, 0), (WORK, 0)), consumers={SDP: (1, Event.OP_PROGRAMMED)}),
        Op(SDP, looked_up(1, (INPUT, 0), (OUTPUT, 0)), waits=1),
    ]
    runtime, _ = run(network(ops, "nv_full"), config="nv_full")
    order = steps(runtime)
    assert order.index(("program", 1)) > order.index(("complete", 0))


def test_a_region_of_interest_that_starts_within_an_atom_is_refused():
    with pytest.raises(nvdla.DescriptorError, match=r"address of the ROI at column 3, row 0"):
        run(dynamic(3, 0))


def on_the_fly(op, surface):
    copy((-1, 0), (OUTPUT, 0))(op, surface)
    surface.src_data.type = 2


@pytest.mark.parametrize("event", [Event.CDMA_WT_DONE, Event.CDMA_DT_DONE, Event.OP_ENABLED, Event.OP_PROGRAMMED])
def test_sdp_may_wait_for_any_event_of_its_convolution(event):
    ops = [
        Op(CONV, convolution, consumers={SDP: (1, event)}),
        Op(SDP, on_the_fly, waits=1),
    ]
    weights = np.eye(8, dtype=np.int8)[::-1].tobytes()
    runtime, result = run(network(ops, extra={"weights": weights}))
    assert result[:8] == DATA[:8][::-1]
    assert steps(runtime).index(("enable", 1)) > steps(runtime).index(("program", 0))
