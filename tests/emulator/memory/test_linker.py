"""The linker: placement, contents, address lists, limits, strides."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.emulator.memory.placement import CVSRAM_BASE, DRAM_BASE
from nvdla.errors import LinkError
from nvdla.limits import PAGE
from nvdla.loadable.enums import (
    DataFormat,
    DataType,
    Interface,
    MemoryDomain,
    MemoryFlags,
    PixelFormat,
    RelocType,
    SubInterface,
)
from nvdla.loadable.model import AddressEntry, Blob, Loadable, MemoryEntry, RelocEntry, TaskEntry, TensorDesc

ALLOC, SET, INPUT, OUTPUT = MemoryFlags.ALLOC, MemoryFlags.SET, MemoryFlags.INPUT, MemoryFlags.OUTPUT


def tensor(name, number, memory, n=1):
    return TensorDesc(
        name,
        number,
        mem_id=memory,
        size=n * 128,
        n=n,
        c=8,
        h=4,
        w=4,
        data_format=DataFormat.NCxHWx,
        data_type=DataType.INT8,
        pixel_format=PixelFormat.FEATURE_X8,
        strides=(1, 32, 128, 0, 0, 0, 0, 0),
    )


def loadable(n=1):
    memories = (
        MemoryEntry(0, 5000, flags=ALLOC),
        MemoryEntry(1, 128 * n, flags=ALLOC | INPUT, tensor_desc_id=0),
        MemoryEntry(2, 100, flags=ALLOC | SET, contents=("a", "b"), offsets=(4, 90)),
        MemoryEntry(3, 64, MemoryDomain.SRAM, ALLOC),
        MemoryEntry(4, 128, flags=ALLOC | OUTPUT, tensor_desc_id=1),
        MemoryEntry(5, 16, flags=ALLOC | SET, alignment=16384, contents=("task-0-dep_graph",), offsets=(0,)),
        MemoryEntry(6, 16),
    )
    memories = (*memories[:6], dataclasses.replace(memories[6], flags=MemoryFlags(0)))
    inputs = tuple(AddressEntry(10 + image, 1, 128 * image, 128) for image in range(n))
    return Loadable(
        memories=memories,
        addresses=(
            AddressEntry(0, 0, 100, 50),
            AddressEntry(1, 2),
            AddressEntry(2, 6),
            AddressEntry(3, 2, 10, 500),
            *inputs,
        ),
        blobs=(Blob("a", b"abcdefgh" * 10), Blob("b", b"0123456789"), Blob("task-0-dep_graph", bytes(range(16)))),
        tensors=(tensor("data", 0, 1, n), tensor("prob", 1, 4)),
        relocs=tuple(
            RelocEntry(10, 2, 8 * kind, Interface.DLA1, SubInterface.SURFS, kind)
            for kind in (RelocType.LINE, RelocType.SURFACE)
        ),
    )


def test_memories_lie_where_nvidias_runtime_puts_them():
    linked = LinkedLoadable(loadable())
    bases = {memory: region.base for memory, region in linked.regions.items()}
    assert bases == {
        0: DRAM_BASE,
        2: DRAM_BASE + 2 * PAGE,
        5: DRAM_BASE + 4 * PAGE,  # its alignment
        1: DRAM_BASE + 5 * PAGE,  # bound memories last, inputs before outputs
        4: DRAM_BASE + 6 * PAGE,
        3: CVSRAM_BASE,
    }
    assert linked.regions[3].space == Space.CVSRAM


def test_contents_lie_at_their_offsets_and_the_rest_is_zero():
    data = LinkedLoadable(loadable()).data(loadable().memory(2)).tobytes()
    assert data == bytes(4) + b"abcdefgh" * 10 + bytes(6) + b"0123456789"


def test_reset_restores_what_was_loaded():
    linked = LinkedLoadable(loadable())
    before = {memory: region.data.copy() for memory, region in linked.regions.items()}
    for region in linked.regions.values():
        region.data[:] = 0xEE
    linked.reset([2])
    assert np.array_equal(linked.regions[2].data, before[2])
    assert linked.regions[0].data[0] == 0xEE
    linked.reset()
    assert all(np.array_equal(region.data, before[memory]) for memory, region in linked.regions.items())


def test_windows_end_with_their_memory():
    linked = LinkedLoadable(loadable())
    windows = linked.address_list(TaskEntry(0, Interface.DLA1, (0, 1, 3)))
    assert [(window.address, window.size) for window in windows] == [
        (DRAM_BASE + 100, 50),
        (DRAM_BASE + 2 * PAGE, 100),
        (DRAM_BASE + 2 * PAGE + 10, 90),
    ]
    assert windows[1].data[4:8].tobytes() == b"abcd"


def test_an_address_of_a_memory_that_is_not_allocated_is_refused():
    with pytest.raises(LinkError, match=r"task 0, address 0 .* memory 6: must be allocated"):
        LinkedLoadable(loadable()).address_list(TaskEntry(0, Interface.DLA1, (2,)))


def test_too_much_memory_is_refused_with_the_sum_before_any_is_allocated():
    big = dataclasses.replace(loadable(), memories=(MemoryEntry(0, 1 << 60), MemoryEntry(1, 1 << 60)), tensors=())
    with pytest.raises(LinkError, match=f"must have at most {4 << 30} bytes together, got {2 << 60} "):
        LinkedLoadable(big)
    with pytest.raises(LinkError, match="at most 4096 bytes together"):
        LinkedLoadable(loadable(), limit=4096)


def test_inputs_must_have_their_size():
    linked = LinkedLoadable(loadable())
    with pytest.raises(LinkError, match=r"input 0 \(data\): must have 128 bytes, got 127"):
        linked.bind(loadable().memory(1), bytes(127))


def test_dependency_graphs_are_known_by_their_contents():
    assert LinkedLoadable(loadable()).dependency_graphs() == {5}


def test_views_are_traced_to_their_memories():
    linked = LinkedLoadable(loadable())
    assert linked.memories_of([linked.regions[0].data[7:9], linked.regions[3].data]) == {0, 3}


def test_other_strides_are_written_over_the_descriptors_also_after_a_reset():
    linked = LinkedLoadable(loadable(), strides={"data": (1, 64, 320)})
    memory = linked.data(loadable().memory(2))
    linked.reset([2])
    assert memory[8:12].view("<u4")[0] == 64
    assert memory[16:20].view("<u4")[0] == 320
    assert linked.data(loadable().memory(1)).size == 320
    assert linked.placement.strides_of(loadable().tensor(0))[:3] == (1, 64, 320)


@pytest.mark.parametrize(
    ("name", "strides", "said"),
    [
        ("dat", (1, 64, 256), "no bound tensor 'dat': must be one of data, prob"),
        ("data", (2, 64, 256), "only line and surface stride"),
        ("data", (1, 0, 256), "must be positive"),
        ("prob", (1, 64, 256), "line stride: must have a relocation"),
    ],
)
def test_strides_that_cannot_change_are_refused(name, strides, said):
    with pytest.raises(LinkError, match=said):
        LinkedLoadable(loadable(), strides={name: strides})


def test_a_batch_leaves_no_room_for_longer_lines():
    with pytest.raises(LinkError, match="must have at most 128 bytes"):
        LinkedLoadable(loadable(n=2), strides={"data": (1, 64, 256)})
