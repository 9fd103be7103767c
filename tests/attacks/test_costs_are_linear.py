"""Time and memory of loading grow with the size of the file, not faster."""

from __future__ import annotations

import dataclasses
import itertools
import time
import tracemalloc
from pathlib import Path

import pytest
from support.attack_files import chain, network

import nvdla
from nvdla.checks.lint import linter
from nvdla.checks.lint.linter import DRY_RUN, Context, Order, rules
from nvdla.checks.lint.memory_rules import _Contents
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.loadable import AddressEntry, Blob, EventEntry, Limits, MemoryEntry, TaskEntry, TensorDesc, to_bytes
from nvdla.loadable.descriptors.enums import Event, OpType
from nvdla.loadable.enums import Interface
from nvdla.program import Program

FACTOR = 8


def with_entries(kind: str, count: int) -> bytes:
    """A loadable with ``count`` more entries of a kind."""
    model = network(chain(1))
    first = 100
    flags = model.memories[3].flags
    more = {
        "memories": lambda n: MemoryEntry(n, 64),
        "addresses": lambda n: AddressEntry(n, 2, 0, 64),
        "events": lambda n: EventEntry(n),
        "blobs": lambda n: Blob(f"b{n}", b"12345678"),
        "tensors": lambda n: TensorDesc(f"t{n}", n, 2, 64, 1, 8, 1, 8),
        "tasks": lambda n: TaskEntry(n, Interface.EMU1, (3,)),
    }
    if kind == "contents":  # one memory, filled by one blob again and again
        filled = MemoryEntry(first, 64 * count, flags=flags, contents=("task-0-addr0",) * count,
                             offsets=tuple(range(0, 64 * count, 64)))  # fmt: skip
        return to_bytes(dataclasses.replace(model, memories=(*model.memories, filled)))
    if kind == "address_list":
        task = dataclasses.replace(model.tasks[0], address_list=(*model.tasks[0].address_list, *[3] * count))
        return to_bytes(dataclasses.replace(model, tasks=(task,)))
    entries = tuple(more[kind](first + n) for n in range(count))
    return to_bytes(dataclasses.replace(model, **{kind: (*getattr(model, kind), *entries)}))


def seconds_to_load(data: bytes) -> float:
    """The best of three."""
    times = []
    for _ in range(3):
        began = time.process_time()
        nvdla.load(data)
        times.append(time.process_time() - began)
    return min(times)


KINDS = ("memories", "addresses", "events", "blobs", "tensors", "tasks", "contents", "address_list")


@pytest.mark.parametrize("kind", KINDS)
def test_loading_takes_time_in_proportion(kind):
    small, large = with_entries(kind, 400), with_entries(kind, 400 * FACTOR)
    assert seconds_to_load(large) < 3 * FACTOR * seconds_to_load(small) + 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_loading_takes_memory_in_proportion(kind):
    peaks = {}
    for count in (400, 400 * FACTOR):
        data = with_entries(kind, count)
        tracemalloc.start()
        nvdla.load(data)
        peaks[len(data)] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    for size, peak in peaks.items():
        assert peak < 100 * size + (1 << 20), kind


def test_a_trace_line_takes_time_in_proportion():
    """Regular expressions that try again and again would take minutes."""
    from nvdla.emulator.hardware.register_file import register_map
    from nvdla.emulator.trace.commands import TraceFolder, parse_packets
    from nvdla.emulator.trace.languages import parse_cfg

    registers = register_map("nv_small")
    for line in ("a(" + " " * 200_000, "a" * 200_000, 'a("' * 60_000, "reg_write(" + "x," * 100_000 + ")"):
        began = time.process_time()
        with pytest.raises(nvdla.TraceError):
            parse_cfg(line, "t.cfg", registers, TraceFolder(Path("."), 1 << 20))
        assert time.process_time() - began < 2
    for text in (b"{offset:0,size:1,payload:" + b" " * 200_000 + b"x,x", b"offset" + b" " * 200_000):
        began = time.process_time()
        with pytest.raises(nvdla.TraceError):
            parse_packets(text, "t.dat", 1 << 20)
        assert time.process_time() - began < 2


def tasks_of_one_list(tasks: int, entries: int) -> bytes:
    """Tasks that share one list of addresses in the file: as often as the file would let them."""
    model = network(chain(1))
    marker = tuple([3] * entries)
    task = dataclasses.replace(model.tasks[0], address_list=marker)
    more = tuple(dataclasses.replace(task, id=n) for n in range(tasks))
    return to_bytes(
        dataclasses.replace(model, tasks=more, submits=(dataclasses.replace(model.submits[0], task_ids=(0,)),))
    )


def test_address_lists_are_counted_in_total():
    data = tasks_of_one_list(64, 8192)
    with pytest.raises(nvdla.LoadableError, match=r"at most 262144 entries \(Limits.task_addresses\), got 524288"):
        nvdla.load(data)
    assert len(nvdla.load(data, limits=Limits(task_addresses=1 << 20)).tasks) == 64


def test_tasks_are_counted():
    """Each is decoded and run, though all may share their lists."""
    data = tasks_of_one_list(4097, 9)
    with pytest.raises(nvdla.LoadableError, match=r"at most 4096 tasks \(Limits.tasks\), got 4097"):
        nvdla.load(data)
    assert len(nvdla.load(data, limits=Limits(tasks=4097)).tasks) == 4097


def many_tasks(count: int) -> nvdla.Loadable:
    """Tasks that share all of their descriptors."""
    model = network(chain(1))
    tasks = tuple(dataclasses.replace(model.tasks[0], id=number) for number in range(count))
    return dataclasses.replace(
        model, tasks=tasks, submits=(dataclasses.replace(model.submits[0], task_ids=tuple(range(count))),)
    )


def test_rules_of_lint_take_tasks_one_by_one():
    """No rule looks through the operations of all tasks for each of them."""
    context = Context(Program.of(many_tasks(2000), "nv_small", checked=False))
    assert sum(len(subject.accesses) for subject in context.subjects) == 4000
    for each in rules():
        if each.name != DRY_RUN:
            began = time.process_time()
            list(each.findings(context))
            assert time.process_time() - began < 0.4, each.name


def test_blobs_of_a_memory_are_found_by_their_place():
    """Operations times blobs would be hours: a memory may hold one blob thousands of times."""
    blob = Blob("b", bytes(4), 4)
    contents = _Contents([(0, Blob("long", bytes(40), 40)), *((8 * n, blob) for n in range(20_000))])
    began = time.process_time()
    found = [contents.touched(4 + 4 * n, 8 + 4 * n) for n in range(20_000)]
    assert [each and each.name for each in found[:14]] == ["long"] * 9 + ["b", None, "b", None, "b"]
    assert contents.touched(0, 1).name in ("long", "b") and contents.touched(160_000, 160_100) is None
    assert (contents.at(159_999) or (0, None))[0] == 159_992
    assert time.process_time() - began < 2


def test_orders_of_a_task_are_looked_for_so_long_and_no_longer(monkeypatch):
    """Every operation of a graph without an order would be followed from every other one."""
    program = Program.of(network(chain(40)), "nv_small")
    unordered = program.dla_tasks[0]
    for common in unordered.dependencies:
        for consumer in common.consumers:
            consumer.event = Event.OP_ENABLED
    pairs = list(itertools.pairwise(range(39)))
    assert not any(Order(unordered, {}, overlap_of=OpType.SDP).is_ordered(*pair) for pair in pairs)
    monkeypatch.setattr(linter, "MOST_LOOKS", 100)
    bounded = Order(program.dla_tasks[0], {})
    assert all(bounded.is_ordered(*pair) for pair in pairs)
    assert bounded._work <= 101


def test_tasks_that_share_a_list_share_its_windows():
    loadable = nvdla.load(network(chain(1)).to_bytes())
    linked = LinkedLoadable(loadable)
    task = loadable.tasks[0]
    assert linked.address_list(task) is linked.address_list(dataclasses.replace(task, id=9))
