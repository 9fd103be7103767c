"""Memory does not grow from run to run."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import nvdla

RUNS, WINDOWS = 200, 8


def resident() -> int:
    """Bytes that the process holds in memory now (Linux)."""
    import os

    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(params=["lenet.loadable", "lenet_nv_large.loadable", "color_digits.loadable"])
def prepared(request, samples):
    runtime = nvdla.Runtime(nvdla.load(samples / request.param), threads=1)
    tensor = runtime.inputs[0]
    values = np.random.default_rng(0).integers(-128, 128, tensor.shape).astype(tensor.dtype)
    surface = runtime.pack(0, values)
    for _ in range(20):
        runtime.run_raw([surface])
    gc.collect()
    return runtime, surface


def test_python_allocates_nothing_that_stays(prepared):
    runtime, surface = prepared
    grown = []
    tracemalloc.start()
    try:
        for _ in range(WINDOWS):
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(RUNS):
                runtime.run_raw([surface])
            gc.collect()
            grown.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    # Caches of small blocks fill up at first; what a run leaves behind would be in every window.
    assert min(grown) < RUNS * 24  # the least object that Python can make has 24 bytes or more


def test_resident_memory_stays(prepared):
    pytest.importorskip("resource")
    runtime, surface = prepared
    before = resident()
    for _ in range(RUNS):
        runtime.run_raw([surface])
    gc.collect()
    assert resident() - before < 1 << 20


def test_observed_runs_keep_no_memory(prepared):
    runtime, surface = prepared
    count = 0

    def observe(event):
        nonlocal count
        count += 1

    for _ in range(5):
        runtime.run_raw([surface], on_operation=observe)
    before = resident()
    for _ in range(RUNS):
        runtime.run_raw([surface], on_operation=observe)
    gc.collect()
    assert count > RUNS
    assert resident() - before < 1 << 20
