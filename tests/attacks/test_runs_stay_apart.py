"""What a hostile loadable does to memory in one run does not reach the next, nor anything outside its own regions."""

from __future__ import annotations

import ctypes
import dataclasses
import random

import numpy as np
import pytest
from support.attack_files import INPUT, OUTPUT, WORK, Op, chain, copy, network

import nvdla
from nvdla.loadable.descriptors import NEW
from nvdla.loadable.descriptors.enums import Event, OpType

DEPENDENCIES, OPERATIONS, SURFACES, STATISTICS = 4, 5, 6, 8
#: where the third operation's descriptors begin: the second's are read before the first is done
THIRD = {OPERATIONS: 2 * ctypes.sizeof(NEW.OperationContainer), SURFACES: 2 * ctypes.sizeof(NEW.SurfaceContainer)}


def runtime_of(loadable: nvdla.Loadable) -> nvdla.Runtime:
    return nvdla.Runtime(loadable, config="nv_small", abi="new", threads=1)


def surfaces(runtime: nvdla.Runtime, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(tensor.size) for tensor in runtime.inputs]


def assert_runs_repeat(loadable: nvdla.Loadable) -> None:
    """Three runs on the same data, and a new runtime, give the same bytes."""
    runtime, fresh = runtime_of(loadable), runtime_of(loadable)
    data = surfaces(runtime, 5)
    results = [runtime.run_raw(data) for _ in range(3)]
    assert results[0] == results[1] == results[2] == fresh.run_raw(data)


def test_nothing_outside_the_regions_is_read_or_written():
    """Loadables with a few descriptor fields changed, those that still run: what lies before and behind every region
    stays as it is, and other bytes there give the same results (tests/fuzz/guards.py)."""
    import fuzz_run
    from fuzz_targets import TARGETS

    target, rng = TARGETS["run"], random.Random(7)
    seeds = [seed for seed in target.seed_inputs() if len(seed) <= target.max_len][:60]
    ran = 0
    for _ in range(300):
        try:
            fuzz_run.with_guards(nvdla.load(target.mutate(rng.choice(seeds), rng)))
            ran += 1
        except nvdla.NvdlaError:
            continue
    assert ran > 60


def test_guards_see_what_leaves_a_region():
    """A byte too many, written or read."""
    from support.guards import guarded

    from nvdla.emulator.memory.address_space import AddressSpace, Space

    with guarded(16) as guards:
        space = AddressSpace()
        data = space.map("a", Space.DRAM, 4096, 64).data
        wide = np.lib.stride_tricks.as_strided(data, (66,), (1,))
        before = bytes(wide)
        guards.check()
        guards.fill(1)
        assert bytes(wide) != before
        wide[64] = 2
        with pytest.raises(RuntimeError, match="written outside of a"):
            guards.check()


def test_statistics_written_over_the_output_are_there_in_every_run():
    assert_runs_repeat(network(chain(2), statistics=True, stat_list_index=OUTPUT))


def test_statistics_written_over_the_work_memory_are_gone_before_the_next_run():
    ops = chain(2)
    ops[0].fill = copy((WORK, 128), (OUTPUT, 64))  # reads what the statistics of the run before would have left
    assert_runs_repeat(network(ops, statistics=True, stat_list_index=WORK))


def test_an_operation_that_reads_the_firmwares_counts_reads_them_in_every_run():
    """The counts go down while the network runs; a repeated run must find them as the first did."""
    ops = chain(3)
    ops[1].fill = copy((DEPENDENCIES, 40), (WORK, 128))  # its own count, 1 in the file, 0 when it runs
    ops[2].fill = copy((WORK, 128), (OUTPUT, 0))
    assert_runs_repeat(network(ops))


@pytest.mark.parametrize("target", [OPERATIONS, SURFACES])
def test_descriptors_overwritten_by_an_operation_are_checked_again(target):
    """The first operation copies input over the descriptors of the third, before that is programmed: what it says then
    is refused, or stays inside the regions (with guards around them); and it is the same in every run."""
    from support.guards import guarded

    refused = 0
    for seed in range(24):  # eight bytes each
        place = (target, -(-THIRD[target] // 8) * 8 + 8 * seed)
        ops = [
            Op(OpType.SDP, copy((INPUT, 0), place), consumers={OpType.SDP: (1, Event.OP_COMPLETED)}),
            Op(OpType.SDP, copy((WORK, 0), (WORK, 64)), waits=1, consumers={OpType.SDP: (2, Event.OP_COMPLETED)}),
            Op(OpType.SDP, copy((WORK, 64), (OUTPUT, 0)), waits=1),
        ]
        with guarded() as guards:
            runtime = runtime_of(network(ops))
            outcomes = [outcome_of(runtime, seed)]
            guards.check()
            guards.fill(0xA5)
            outcomes.append(outcome_of(runtime, seed))
            guards.check()
        assert outcomes[0] == outcomes[1]
        refused += isinstance(outcomes[0], str)
    assert refused >= 3, "what is copied there must be looked at"


def outcome_of(runtime: nvdla.Runtime, seed: int) -> list[bytes] | str:
    try:
        return runtime.run_raw(surfaces(runtime, seed))
    except nvdla.NvdlaError as error:
        return str(error)


def test_operands_of_channels_that_only_fill_an_atom_are_the_same_for_fused_jobs(lenet_loadable):
    """The first convolution has channels to spare in its last atom; its bias has bytes there."""
    from nvdla.loadable.descriptors import DlaTask, detect

    abi, _ = detect(lenet_loadable)
    task = next(task for task in lenet_loadable.tasks if task.interface.name == "DLA1")
    decoded = DlaTask.decode(lenet_loadable, task, abi)
    first = next(each for each in decoded.operations() if each.engine == "sdp" and each.surface.x1_data.address >= 0)
    cube, channels = first.surface.x1_data, first.surface.dst_data.channel
    address = lenet_loadable.address(task.address_list[cube.address])
    spare = -channels % 8
    if not spare:
        pytest.skip("the sample has no channels to spare")
    at = address.offset + cube.offset + 2 * channels
    blobs = list(lenet_loadable.blobs)
    for offset, blob in lenet_loadable.contents(lenet_loadable.memory(address.mem_id)):
        if offset <= at < offset + len(blob.data):
            data = bytearray(blob.data)
            data[at - offset : at - offset + 2 * spare] = np.full(spare, 0x0123, "<i2").tobytes()
            blobs[blobs.index(blob)] = nvdla.loadable.Blob(blob.name, bytes(data))
    changed = dataclasses.replace(lenet_loadable, blobs=tuple(blobs))
    assert changed != lenet_loadable
    runtime = nvdla.Runtime(changed, threads=1)
    inputs = surfaces(runtime, 3)
    memories = []
    for _ in range(2):
        runtime.run_raw(inputs)
        runtime._linked.reload()  # constants whose memory was given back
        graphs = runtime._linked.dependency_graphs()
        memories.append({k: bytes(v.data) for k, v in runtime._linked.regions.items() if k not in graphs})
    assert memories[0] == memories[1]
