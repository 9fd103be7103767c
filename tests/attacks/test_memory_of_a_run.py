"""``memory_limit`` is what a run may take in all (memory list, temporaries, packed weights): measured, not believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import nvdla

SLACK = 24 << 20  # kernels, pages of the allocator, what the interpreter keeps

MEASURE = """
import json, re, sys
import numpy as np
import nvdla
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.limits import Limits

def make(kind, channels, side):
    net = Network(kind)
    data = net.input("data", (channels, side, side))
    rng = np.random.default_rng(0)
    if kind == "add":
        result = net.add("y", data, net.relu("r", data))
    elif kind == "sigmoid":
        result = net.sigmoid("y", data)
    elif kind == "upsample":
        result = net.upsample("y", data, 2)
    elif kind == "lrn":
        result = net.lrn("y", data)
    elif kind == "pool":
        result = net.average_pool("y", data, 3, 1, padding=1)
    else:
        size = int(kind[-1])
        weights = rng.normal(0, 0.1, (channels, channels, size, size)).astype(np.float32)
        result = net.convolution("y", data, weights, padding=size // 2)
    net.output(result)
    return net, calibrate(net, {"data": rng.normal(0, 1, (1, channels, side, side)).astype(np.float32)})

def status(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

def growth(action):
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    outcome = action()
    return status("VmHWM") - before, outcome

kind, precision, channels, side = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
loadables = []
for extent in (16, side):
    net, calibration = make(kind, channels, extent)
    loadables.append(build(net, config="nv_full", precision=precision, calibration=calibration).loadable)
small, large = loadables

def surfaces(runtime):
    return [np.random.default_rng(1).integers(0, 60, each.size, np.uint8).tobytes() for each in runtime.inputs]

def runs(loadable, limit):
    runtime = nvdla.Runtime(loadable, config="nv_full", threads=1, memory_limit=limit)
    given = surfaces(runtime)
    for _ in range(3):
        runtime.run_raw(given)
    return runtime._linked.account.taken()

def refused(limit):
    try:
        runs(large, limit)
    except nvdla.LinkError as error:
        return str(error)

runs(small, Limits.memory)  # kernels and modules
needed = runs(large, Limits.memory)
listed = sum(memory.size for memory in large.memories)
import ctypes, gc
gc.collect(); ctypes.CDLL(None).malloc_trim(0)
taken, _ = growth(lambda: runs(large, needed))
gc.collect(); ctypes.CDLL(None).malloc_trim(0)
without, said = growth(lambda: refused(2 * listed))
print(json.dumps(dict(needed=needed, listed=listed, taken=taken, without=without, said=said)))
"""

ONE_OF_EACH = [("add", "fp16", 32, 512), ("conv3", "int16", 32, 160)]
MORE = [
    (kind, precision, 32, 384)
    for kind in ("add", "sigmoid", "upsample", "lrn", "pool", "conv1", "conv3")
    for precision in ("int8", "int16", "fp16")
    if (kind, precision) != ("conv3", "fp16")
]


def measured(kind: str, precision: str, channels: int, side: int) -> dict:
    words = [sys.executable, "-c", MEASURE, kind, precision, str(channels), str(side)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=600, check=False)
    if "clear_refs" in done.stderr:
        pytest.skip("the greatest resident size cannot be set back here")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_the_number_holds(found: dict) -> None:
    assert found["listed"] < found["needed"]
    assert found["taken"] <= found["needed"] + SLACK
    assert "Pass a higher memory_limit" in found["said"]
    assert found["without"] <= found["listed"] * 2 + SLACK  # refused before temporaries are taken


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_run_takes_no_more_than_its_memory_limit(case):
    assert_the_number_holds(measured(*case))


@linux
@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_run_of_any_engine_takes_no_more_than_its_memory_limit(case):
    assert_the_number_holds(measured(*case))


def test_a_second_run_has_the_same_room(lenet_loadable):
    runtime = nvdla.Runtime(lenet_loadable, threads=1)
    room = runtime._linked.account.room()
    given = [bytes(each.size) for each in runtime.inputs]
    for _ in range(3):
        runtime.run_raw(given, csb_log=[])
    assert runtime._linked.account.room() == room
    assert runtime._linked.account.scratch > 0
