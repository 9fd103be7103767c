"""Long use: nothing grows. The short form of tests/support/long_use.py, whose 10,000 cycles are in RESULTS.md."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from support.long_use import LENET, cycle, grown, watch

import nvdla

linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


@linux
def test_sixty_cycles_grow_nothing():
    assert not grown(watch(60, warm=40), slack=4 << 20)


@linux
@pytest.mark.slow
def test_a_thousand_cycles_grow_nothing():
    assert not grown(watch(1000, warm=100), slack=8 << 20)


def test_a_runtime_frees_its_memory_at_once():
    """No circle of references keeps simulated memory until the garbage collector comes by."""
    gc.collect()
    gc.disable()
    try:
        runtime = nvdla.Runtime(nvdla.load(LENET), threads=1)
        inputs = [bytes(tensor.size) for tensor in runtime.inputs]
        runtime.run_raw(inputs)
        runtime.run_raw(inputs)
        regions = [weakref.ref(region.data) for region in runtime._linked.regions.values()]
        del runtime
        assert not [each for each in regions if each() is not None]
    finally:
        gc.enable()


def test_errors_do_not_keep_memory():
    gc.collect()
    counts = []
    for _ in range(3):
        for _ in range(50):
            with pytest.raises(nvdla.LoadableError):
                nvdla.load(b"NVDA" * 100)
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert counts[2] <= counts[1] + 10


def test_cycles_agree_with_each_other():
    assert cycle() == cycle()
