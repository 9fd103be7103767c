"""The bridge DMA: its command queue, its status register, its copies."""

from __future__ import annotations

import numpy as np
import pytest
from support.engine_bench import SOURCE, TARGET, Bench

from nvdla.emulator.memory.address_space import Space
from nvdla.errors import ConfigError, LinkError, ScheduleError

CVSRAM = 0x50000000
DRAM_TO_DRAM, CVSRAM_TO_DRAM, DRAM_TO_CVSRAM = 3, 2, 1


def queue(bench, source=SOURCE, target=TARGET, command=DRAM_TO_DRAM, line=32, lines=1, surfaces=1, **strides):
    bench.write(
        BDMA__CFG_SRC_ADDR_LOW=source,
        BDMA__CFG_DST_ADDR_LOW=target,
        BDMA__CFG_CMD=command,
        BDMA__CFG_LINE=line // 32 - 1,
        BDMA__CFG_LINE_REPEAT=lines - 1,
        BDMA__CFG_SURF_REPEAT=surfaces - 1,
        BDMA__CFG_SRC_LINE=strides.get("source_line", line),
        BDMA__CFG_DST_LINE=strides.get("target_line", line),
        BDMA__CFG_SRC_SURF=strides.get("source_surface", line * lines),
        BDMA__CFG_DST_SURF=strides.get("target_surface", line * lines),
        BDMA__CFG_OP=1,
    )


def status(bench):
    register = bench.machine.registers.map.register("BDMA", "STATUS")
    value = bench.machine.registers.read_register(register)
    return {"free": value & 0xFF, "idle": value >> 8 & 1, "busy": (value >> 9 & 1, value >> 10 & 1)}


def test_lines_and_surfaces_are_copied_with_their_strides():
    bench = Bench("nv_full")
    data = np.random.default_rng(0).integers(0, 256, (2, 3, 64), np.uint8)
    bench.store(SOURCE, data)
    queue(bench, line=64, lines=3, surfaces=2, target_line=96, target_surface=320)
    bench.write(BDMA__CFG_LAUNCH0=1)
    completion = bench.step()
    assert completion.interrupts == 1 << 6
    written = bench.load(TARGET, (640,), np.uint8)
    for s in range(2):
        for line in range(3):
            at = s * 320 + line * 96
            assert np.array_equal(written[at : at + 64], data[s, line])
    assert np.count_nonzero(written) == np.count_nonzero(data)


def test_a_launch_runs_all_that_was_queued_since_the_last_one():
    bench = Bench("nv_full")
    bench.store(SOURCE, np.arange(64, dtype=np.uint8))
    queue(bench, command=DRAM_TO_CVSRAM, target=CVSRAM, line=64)
    queue(bench, command=CVSRAM_TO_DRAM, source=CVSRAM + 32, target=TARGET)
    bench.write(BDMA__CFG_LAUNCH1=1)
    completion = bench.step()
    assert completion.interrupts == 1 << 7
    assert bench.load(TARGET, (32,), np.uint8).tolist() == list(range(32, 64))
    assert bench.load(CVSRAM, (64,), np.uint8, Space.CVSRAM).tolist() == list(range(64))


def test_groups_end_in_the_order_of_their_launch():
    bench = Bench("nv_full")
    for group in (1, 0, 1):
        bench.store(SOURCE, np.full(32, group + 1, np.uint8))
        queue(bench)
        bench.write(**{f"BDMA__CFG_LAUNCH{group}": 1})
        if group == 0:
            assert [bench.step().interrupts, bench.step().interrupts] == [1 << 7, 1 << 6]
    assert bench.step().interrupts == 1 << 7
    assert bench.machine.step() is None


def test_the_status_counts_free_slots_and_busy_groups():
    bench = Bench("nv_full")
    assert status(bench) == {"free": 20, "idle": 1, "busy": (0, 0)}
    queue(bench)
    queue(bench)
    assert status(bench) == {"free": 18, "idle": 0, "busy": (0, 0)}
    bench.write(BDMA__CFG_LAUNCH0=1)
    assert status(bench) == {"free": 18, "idle": 0, "busy": (1, 0)}
    bench.step()
    assert status(bench) == {"free": 20, "idle": 1, "busy": (0, 0)}


def test_a_fill_repeats_one_line_with_a_stride_of_zero():
    bench = Bench("nv_full")
    bench.store(SOURCE, np.arange(32, dtype=np.uint8))
    queue(bench, lines=5, source_line=0)
    bench.write(BDMA__CFG_LAUNCH0=1)
    bench.step()
    assert bench.load(TARGET, (5, 32), np.uint8).tolist() == [list(range(32))] * 5


def test_more_transfers_than_the_queue_holds_are_refused():
    bench = Bench("nv_full")
    for _ in range(20):
        queue(bench)
    with pytest.raises(ScheduleError, match="more than 20 BDMA transfers"):
        queue(bench)


def test_a_launch_without_a_transfer_never_ends():
    bench = Bench("nv_full")
    bench.write(BDMA__CFG_LAUNCH0=1)
    with pytest.raises(ScheduleError, match="launched without a queued transfer"):
        bench.step()


def test_a_group_at_work_cannot_be_launched_again():
    bench = Bench("nv_full")
    queue(bench)
    bench.write(BDMA__CFG_LAUNCH0=1)
    with pytest.raises(ScheduleError, match="while busy"):
        bench.write(BDMA__CFG_LAUNCH0=1)


@pytest.mark.parametrize(
    ("transfer", "text"),
    [
        ({"source": 0x1000}, "BDMA transfer 0 source: no dram region"),
        ({"target": TARGET + 0xFFE0, "line": 64}, "outside region"),
        (
            dict.fromkeys(("source_line", "source_surface", "target_line", "target_surface"), 0) | {"lines": 1 << 24},
            "must have at most",
        ),
    ],
)
def test_transfers_outside_memory_are_refused(transfer, text):
    bench = Bench("nv_full")
    queue(bench, **transfer)
    bench.write(BDMA__CFG_LAUNCH0=1)
    with pytest.raises(LinkError, match=text):
        bench.step()


def test_configurations_without_a_bdma_say_who_has_it():
    bench = Bench("nv_large")
    queue(bench)
    bench.write(BDMA__CFG_LAUNCH0=1)
    with pytest.raises(ConfigError, match="nv_large has no BDMA; configurations with it: nv_full"):
        bench.step()
