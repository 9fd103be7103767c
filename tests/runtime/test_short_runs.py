"""Short runs of several threads: no lock that others hold, no turn of the interpreter given away, the same bytes."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

import nvdla
from nvdla.emulator.execution.instances import Instances
from nvdla.emulator.execution.paths import SINGLE_CALL, RunPath

NETWORKS = ["lenet", "lenet_nv_large", "color_digits"]


def ready(samples, name, **options):
    """A Runtime that repeats its plan, with an array and the raw surface of it."""
    runtime = nvdla.Runtime(samples / f"{name}.loadable", **options)
    array = np.random.default_rng(3).integers(0, 100, runtime.inputs[0].shape).astype(runtime.inputs[0].dtype)
    surface = runtime.pack(0, array)
    for _ in range(3):
        runtime.run_raw([surface])
        runtime.run(array)
    return runtime, array, surface


@pytest.fixture
def turns_of_another_thread():
    """Counts the turns of another Python thread, which runs only when the lock is released."""
    turns, ends, interval = [0], [], sys.getswitchinterval()

    def take_turns():
        while not ends:
            turns[0] += 1
            time.sleep(0)

    sys.setswitchinterval(1000)
    thread = threading.Thread(target=take_turns)
    thread.start()
    yield lambda: turns[0]
    ends.append(True)
    sys.setswitchinterval(interval)
    thread.join()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_short_run_with_its_conversions_does_not_give_up_the_interpreter(samples, name, turns_of_another_thread):
    runtime, array, _ = ready(samples, name)
    taken = 0
    for _ in range(100):
        before = turns_of_another_thread()
        runtime.run(array)
        taken += turns_of_another_thread() - before
    assert taken == 0


def test_a_long_run_gives_it_up(samples, turns_of_another_thread):
    runtime, array, _ = ready(samples, "lenet_nv_full_fp16")
    before = turns_of_another_thread()
    for _ in range(200):  # on a busy machine the other thread may sleep through some of them
        runtime.run(array)
        if turns_of_another_thread() > before:
            break
    assert turns_of_another_thread() > before


@pytest.mark.parametrize("threads", [None, 1])
def test_a_caller_that_finds_an_idle_instance_waits_for_no_lock(samples, threads):
    """A thread that is stopped in the middle of taking one would stop all others."""
    from nvdla.kernels.threads import _blas_limits

    runtime, _, surface = ready(samples, "lenet", threads=threads)
    results = []
    with runtime._instances._condition, _blas_limits._lock:
        thread = threading.Thread(target=lambda: results.append(runtime.run_raw([surface])), daemon=True)
        thread.start()
        thread.join(20)
    assert results == [runtime.run_raw([surface])]


@pytest.mark.parametrize("name", NETWORKS)
def test_however_a_short_run_is_done_it_gives_the_same_bytes(samples, name):
    runtime, _, surface = ready(samples, name)
    with runtime._instances.one() as instance:
        inputs = runtime._bound([surface])
        results = [instance.run(inputs, path) for path in (*SINGLE_CALL, RunPath.STEPS, RunPath.JOBS)]
    assert results == [results[0]] * 5
    assert any(results[0][0])


def test_an_exclusive_run_overlaps_with_no_other():
    """Callers without the lock, and callers that run the firmware, which must be alone."""

    class Idle:
        def __init__(self):
            self.users = 0

    instances, wrong, alone, runs = Instances(4), [], [0], [0]
    instances.renew(Idle())
    instances._idle += [Idle() for _ in range(3)]
    ends = time.monotonic() + 1

    def caller():
        while time.monotonic() < ends:
            with instances.one() as mine:
                mine.users += 1
                if mine.users != 1 or alone[0]:
                    wrong.append("two on one instance, or during a run that must be alone")
                runs[0] += 1
                mine.users -= 1

    def lonely():
        while time.monotonic() < ends:
            with instances.alone():
                alone[0] += 1
                time.sleep(0)
                if alone[0] != 1 or any(each.users for each in instances._idle) or len(instances._idle) != 4:
                    wrong.append("another run is active")
                alone[0] -= 1
            time.sleep(0.001)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=each) for each in [caller] * 4 + [lonely] * 2]
        for each in threads:
            each.start()
        for each in threads:
            each.join(20)
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert runs[0] > 100
    assert not any(each.is_alive() for each in threads)
    assert not instances._busy
