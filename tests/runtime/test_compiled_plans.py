"""A network by one call of compiled code: the same bytes as step by step, and as operation by operation."""

from __future__ import annotations

import numpy as np
import pytest

import nvdla
from nvdla.compiler.warm_up import _network
from nvdla.emulator.execution.paths import RunPath
from nvdla.emulator.execution.plan import STRETCH_WORK, Plan, compiled_steps
from nvdla.emulator.execution.steps import Chain, CpuStep
from nvdla.kernels.fast.dot_tile import available
from nvdla.kernels.jit.recorded_calls import CommandList

pytestmark = pytest.mark.skipif(not available(), reason="this processor has no AVX512-VNNI: nothing is fused")


@pytest.fixture(scope="module", params=["nv_small", "nv_large"])
def runtime(request):
    """Convolutions, sums, pooling of both kinds, a norm that Python takes part in, and a softmax of the CPU."""
    from nvdla.compiler.builder import build, calibrate

    network = _network(40)
    image = np.random.default_rng(1).standard_normal((1, *network.inputs[0].shape))
    return nvdla.Runtime(build(network, request.param, "int8", calibrate(network, image)).loadable, request.param)


def images(runtime, count):
    random = np.random.default_rng(5)
    return [random.integers(-128, 128, runtime.inputs[0].size, np.int8).tobytes() for _ in range(count)]


def test_as_one_call_it_gives_what_single_operations_give(runtime):
    for image in images(runtime, 4):
        by_operation = runtime.run_raw([image], on_operation=lambda event: None)
        by_step = runtime.run_raw([image], on_step=lambda step, seconds: None)
        assert runtime.run_raw([image]) == by_step == by_operation


def test_few_calls_do_all_steps(runtime):
    for image in images(runtime, 2):
        runtime.run_raw([image])
    calls = compiled_steps(runtime._plan.fused)
    walks = [each for each in calls if isinstance(each, CommandList)]
    others = [each for each in calls if not isinstance(each, CommandList)]
    assert len(walks) <= len(others) + 1, "what compiled code does is one call between what Python does"
    assert not any(isinstance(each, CpuStep) for each in others), "softmax is compiled"
    assert any(isinstance(each, Chain) for each in others), "the norm is not"
    assert len(calls) < len(runtime._plan.fused) / 2


def test_long_stretches_end_now_and_then(runtime):
    """So that Ctrl-C is heard of."""
    for image in images(runtime, 2):
        runtime.run_raw([image])
    steps = [each for each in runtime._plan.fused if not isinstance(each, CpuStep)]
    for step in steps:
        for job in step.jobs:
            for record in (job.records() or ([], None))[0]:
                record.work = STRETCH_WORK
    walks = [each for each in compiled_steps(steps) if isinstance(each, CommandList)]
    assert len(walks) > 2


def test_copies_of_a_plan_have_calls_of_their_own(runtime):
    for image in images(runtime, 2):
        runtime.run_raw([image])
    plan = runtime._plan
    plan.run(RunPath.POOL)
    moved = plan.moved(nvdla.emulator.memory.address_space.Move(runtime._linked.lanes, runtime._linked.clone(1).lanes))
    assert isinstance(moved, Plan)
    assert moved._calls is None
