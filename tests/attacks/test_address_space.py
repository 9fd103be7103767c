"""Loadables that ask for more than an address space of 8 GiB: an NvdlaError, by the limits and by the system alone."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import pytest

import nvdla
from nvdla.errors import LinkError, NvdlaError, OutOfMemoryError
from nvdla.loadable import MemoryEntry

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
LARGE = 8 << 30


def grown(loadable, size: int):
    """The loadable with one more memory of ``size`` bytes."""
    entry = MemoryEntry(1000, size, flags=1)
    return dataclasses.replace(loadable, memories=(*loadable.memories, entry))


@pytest.mark.parametrize("size", [LARGE + 4096, 1 << 40, 1 << 62])
def test_a_memory_list_beyond_8_gib_is_refused_before_any_is_taken(size):
    loadable = grown(nvdla.load(SAMPLES / "lenet.loadable"), size)
    with pytest.raises(LinkError, match=r"memory list: must have at most \d+ bytes together, got \d+"):
        nvdla.Runtime(loadable)


def test_where_the_limit_is_raised_the_system_refuses_and_the_error_is_ours():
    """No limit of the process: what no address space has room for."""
    loadable = grown(nvdla.load(SAMPLES / "lenet.loadable"), 1 << 47)
    with pytest.raises(OutOfMemoryError, match="out of memory"):
        nvdla.Runtime(loadable, memory_limit=1 << 50)


@pytest.mark.parametrize("name", ["lenet", "color_digits", "lenet_nv_full_fp16"])
@pytest.mark.parametrize("strides", [0, 1, None], ids=["overlapping", "a byte apart", "as they were"])
def test_a_corrupted_operation_that_requests_more_memory_is_an_error(name, strides, plant):
    """Cubes of 8192 in every direction stand for 512 GiB: each operation in turn, all others as they were."""
    loadable = nvdla.load(SAMPLES / f"{name}.loadable")
    count = sum(each.num_operations for each in nvdla.Runtime(loadable).tasks if hasattr(each, "num_operations"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for index in range(count):
        damaged = plant(loadable, lambda task, index=index: enlarge(task, index, strides))
        try:
            runtime = nvdla.Runtime(damaged)
            runtime.run_raw([bytes(each.size) for each in runtime.inputs])
        except NvdlaError:
            refused += 1
    assert refused == count
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB: a GiB


def enlarge(task, index: int, strides: int | None) -> None:
    """Make every cube of an operation 8192 wide, high and deep."""
    if index >= task.network.num_operations:
        return
    surface = task.operation(index).surface
    for name, *_ in surface._fields_:
        cube = getattr(surface, name)
        if hasattr(cube, "surf_stride"):
            cube.width = cube.height = cube.channel = 8192
            cube.size = 0xFFFFFFFF
            if strides is not None:
                cube.line_stride = cube.surf_stride = strides
