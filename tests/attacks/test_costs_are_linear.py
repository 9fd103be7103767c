"""Time and memory of loading grow with the size of the file, not faster."""

from __future__ import annotations

import dataclasses
import time
import tracemalloc
from pathlib import Path

import pytest
from support.attack_files import chain, network

import nvdla
from nvdla.loadable import AddressEntry, Blob, EventEntry, MemoryEntry, TaskEntry, TensorDesc, to_bytes
from nvdla.loadable.enums import Interface

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
    from nvdla.hardware.register_file import register_map
    from nvdla.trace.cfg import parse_cfg
    from nvdla.trace.images import TraceFolder, parse_packets

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
