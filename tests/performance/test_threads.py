"""The number of threads: it is kept to, and it changes nothing but the time."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder import Network, build, calibrate

CPU_TIME = """
import sys, time
import numpy as np
import nvdla
runtime = nvdla.Runtime(nvdla.load(sys.argv[1]), threads=1)
tensor = runtime.inputs[0]
surface = runtime.pack(0, np.ones(tensor.shape, tensor.dtype))
began = time.perf_counter()
while time.perf_counter() - began < 1:  # kernels are loaded
    runtime.run_raw([surface])
wall, cpu = time.perf_counter(), time.process_time()
while time.perf_counter() - wall < 0.5:
    runtime.run_raw([surface])
print((time.process_time() - cpu) / (time.perf_counter() - wall))
"""


def network(seed: int = 0) -> Network:
    """Layers that are large enough for several threads."""
    rng = np.random.default_rng(seed)
    net = Network("threads")
    x = net.input("data", (64, 28, 28))
    x = net.relu("relu1", net.convolution("conv1", x, rng.normal(size=(64, 64, 3, 3)), rng.normal(size=64), padding=1))
    x = net.max_pool("pool1", x, 2)
    x = net.convolution("conv2", x, rng.normal(size=(96, 64, 1, 1)), rng.normal(size=96))
    net.output(x)
    return net


@pytest.fixture(scope="module")
def loadables():
    made = {}
    for config, precision in (("nv_small", "int8"), ("nv_large", "int8"), ("nv_full", "int16"), ("nv_full", "fp16")):
        net = network()
        samples = np.random.default_rng(1).normal(size=(2, 64, 28, 28))
        calibration = None if precision == "fp16" else calibrate(net, samples)
        made[config, precision] = build(net, config, precision, calibration).loadable
    return made


CASES = [("nv_small", "int8"), ("nv_large", "int8"), ("nv_full", "int16"), ("nv_full", "fp16")]


@pytest.mark.parametrize("case", CASES)
def test_results_do_not_depend_on_the_number_of_threads(loadables, case):
    results = set()
    for threads in (1, 2, 3, None):
        runtime = nvdla.Runtime(loadables[case], threads=threads)
        tensor = runtime.inputs[0]
        values = np.random.default_rng(2).integers(-100, 100, tensor.shape).astype(tensor.dtype)
        surface = runtime.pack(0, values)
        for _ in range(2):  # through the firmware, then fused
            results.add(tuple(runtime.run_raw([surface])))
    assert len(results) == 1


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="with one core nothing can take more than one")
@pytest.mark.parametrize("case", [("nv_large", "int8"), ("nv_full", "int16")])
def test_one_thread_takes_no_more_than_one_core(loadables, case, tmp_path):
    path = tmp_path / "net.loadable"
    loadables[case].save(path)
    run = subprocess.run([sys.executable, "-c", CPU_TIME, path], check=True, capture_output=True, text=True)
    assert float(run.stdout) < 1.15


def test_a_limit_ends_with_the_run(loadables):
    from threadpoolctl import ThreadpoolController

    def blas_threads():
        """Threads of numpy's BLAS: those of other packages, which may be loaded at any time, take no part in a run."""
        libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        return [each.num_threads for each in libraries if "numpy" in each.filepath or len(libraries) == 1]

    runtime = nvdla.Runtime(loadables["nv_full", "int16"], threads=1)
    tensor = runtime.inputs[0]
    for _ in range(3):  # libraries are loaded
        runtime.run(np.ones(tensor.shape, tensor.dtype))
    before, seen = blas_threads(), []
    runtime.run(np.ones(tensor.shape, tensor.dtype), on_operation=lambda event: seen.append(blas_threads()))
    assert {count for counts in seen for count in counts} == {1}
    assert blas_threads() == before


def test_the_command_takes_the_number_of_threads(nvdla_command, samples):
    words = ("run", samples / "lenet.loadable", "--input", samples / "digit3.pgm", "--top", "10")
    outputs = {nvdla_command(*words, "--threads", n)[1].split("\n", 1)[1] for n in (1, 2, 7)}
    assert len(outputs) == 1
