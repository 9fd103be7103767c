"""One Runtime and several callers at once: threads, asyncio, joblib, forked processes, calls inside calls."""

from __future__ import annotations

import asyncio
import functools
import gc
import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.branching import branching_network

import nvdla
from nvdla.compiler.builder import build, calibrate
from nvdla.errors import NvdlaError, ScheduleError
from nvdla.kernels.jit.processor import usable_cores

CALLERS = 4
NETWORKS = ["lenet.loadable", "color_digits_nv_full_fp16.loadable", "branches nv_small", "branches nv_large"]


@functools.cache
def loadable_of(name, samples):
    if not name.startswith("branches"):
        return nvdla.load(samples / name)
    network = branching_network()
    image = np.random.default_rng(1).standard_normal((1, 3, 17, 17))
    return build(network, name.split()[1], "int8", calibrate(network, image)).loadable


def random_inputs(runtime, count):
    """``count`` raw inputs and what a Runtime with one caller makes of them."""
    generator = np.random.default_rng(7)
    images = []
    for _ in range(count):
        arrays = [generator.integers(-100, 100, each.shape).astype(each.dtype) for each in runtime.inputs]
        images.append([runtime.pack(index, array) for index, array in enumerate(arrays)])
    alone = nvdla.Runtime(runtime.loadable, runtime.config.name)
    return images, [alone.run_raw(image) for image in images]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("is_first", [True, False])
def test_threads_get_the_bytes_of_a_single_caller(samples, name, is_first):
    runtime = nvdla.Runtime(loadable_of(name, samples))
    images, expected = random_inputs(runtime, 8)
    if not is_first:
        runtime.run_raw(images[0])
    with ThreadPoolExecutor(CALLERS) as pool:
        assert list(pool.map(runtime.run_raw, images * 4)) == expected * 4


def test_every_way_to_run_may_be_mixed_in_threads(samples):
    loadable = loadable_of("branches nv_small", samples)
    runtime = nvdla.Runtime(loadable)
    images, expected = random_inputs(runtime, 6)

    def observed(image):
        events = []
        result = runtime.run_raw(image, on_operation=events.append)
        assert events
        return [result]

    def single(image):
        return [runtime.run_raw(image)]

    def logged(image):
        return [runtime.run_raw(image, csb_log=[])]

    works = [(runtime.run_many, images, expected)] * 3
    works += [(observed, image, [result]) for image, result in zip(images, expected, strict=True)]
    works += [(logged, images[0], [expected[0]]), (logged, images[1], [expected[1]])]
    works += [(single, image, [result]) for image, result in zip(images, expected, strict=True)] * 4
    with ThreadPoolExecutor(CALLERS) as pool:
        futures = [(pool.submit(call, argument), result) for call, argument, result in works]
        for future, result in futures:
            assert future.result() == result


def test_asyncio_threads(samples):
    runtime = nvdla.Runtime(loadable_of("lenet.loadable", samples))
    images, expected = random_inputs(runtime, 12)

    async def all_of_them():
        return await asyncio.gather(*(asyncio.to_thread(runtime.run_raw, image) for image in images))

    assert asyncio.run(all_of_them()) == expected


def test_joblib_threads(samples):
    joblib = pytest.importorskip("joblib")
    runtime = nvdla.Runtime(loadable_of("lenet.loadable", samples))
    images, expected = random_inputs(runtime, 12)
    run = joblib.delayed(runtime.run_raw)
    assert joblib.Parallel(CALLERS, prefer="threads")(run(image) for image in images) == expected


def forked(runtime, images):
    """Results of child processes of this process, which has run before."""
    global _runtime
    _runtime = runtime
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map_async(_run_in_child, images).get(60)


def _run_in_child(image):
    return _runtime.run_raw(image)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="no fork there")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", ["lenet.loadable", "branches nv_large"])
def test_a_forked_pool_after_a_run(samples, name):
    runtime = nvdla.Runtime(loadable_of(name, samples))
    images, expected = random_inputs(runtime, 6)
    with ThreadPoolExecutor(CALLERS) as pool:  # other threads have had instances of it, too
        assert list(pool.map(runtime.run_raw, images)) == expected
    assert forked(runtime, images) == expected
    assert [runtime.run_raw(image) for image in images] == expected


def test_a_run_inside_its_own_observer_is_right_or_refused(samples):
    """While the firmware runs there is nothing to copy: an error. Later the inner run has its own instance."""
    runtime = nvdla.Runtime(loadable_of("branches nv_small", samples))
    images, expected = random_inputs(runtime, 2)
    inner = []

    def nested(event):
        inner.append(runtime.run_raw(images[1]))

    with pytest.raises(ScheduleError, match="inside a run of the same Runtime"):
        runtime.run_raw(images[0], on_operation=nested)
    assert runtime.run_raw(images[0]) == expected[0]
    assert runtime.run_raw(images[0], on_operation=nested) == expected[0]
    assert inner
    assert all(each == expected[1] for each in inner)
    assert runtime.run_raw(images[0], on_step=lambda step, seconds: nested(step)) == expected[0]
    assert all(each == expected[1] for each in inner)


def test_no_room_for_a_second_instance(samples):
    """Callers then take turns, and one inside another is refused."""
    loadable = loadable_of("branches nv_small", samples)
    single = nvdla.Runtime(loadable)
    images, expected = random_inputs(single, 4)
    single.run_raw(images[0])
    runtime = nvdla.Runtime(loadable, memory_limit=single._linked.account.taken())
    with ThreadPoolExecutor(CALLERS) as pool:
        assert list(pool.map(runtime.run_raw, images * 3)) == expected * 3
    with pytest.raises(NvdlaError, match="inside a run"):
        runtime.run_raw(images[0], on_operation=lambda event: runtime.run_raw(images[0]))
    assert runtime.run_raw(images[0]) == expected[0]


def test_small_networks_run_for_more_callers_than_there_are_cores(samples):
    callers = 2 * usable_cores() + 2
    runtime = nvdla.Runtime(loadable_of("lenet.loadable", samples))
    images, expected = random_inputs(runtime, callers)
    runtime.run_raw(images[0])
    meeting = threading.Barrier(callers)
    began = set()

    def wait_for_the_others(event):
        if threading.get_ident() not in began:
            began.add(threading.get_ident())
            meeting.wait(60)

    with ThreadPoolExecutor(callers) as pool:
        run = functools.partial(runtime.run_raw, on_operation=wait_for_the_others)
        assert list(pool.map(run, images)) == expected


def test_an_error_of_one_caller_is_not_the_others(samples):
    runtime = nvdla.Runtime(loadable_of("lenet.loadable", samples))
    images, expected = random_inputs(runtime, 8)

    def wrong(image):
        with pytest.raises(NvdlaError):
            runtime.run_raw([b"abc"])
        return runtime.run_raw(image)

    with ThreadPoolExecutor(CALLERS) as pool:
        assert list(pool.map(wrong, images)) == expected


def arrays_within(thing):
    """Every numpy array that can be reached from something of this project."""
    seen, open_ends, found = set(), [thing], []
    while open_ends:
        each = open_ends.pop()
        if id(each) in seen or isinstance(each, (type, threading.Thread)):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            found.append(each)
            continue
        ours = type(each).__module__.startswith("nvdla") and type(each).__name__ not in (
            "Machine",
            "Rehearsal",
            "Operation",
        )
        if ours or isinstance(each, (list, tuple, dict, set)):
            open_ends += gc.get_referents(each)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_a_copy_has_nothing_in_common_with_the_first_but_constants(samples, name):
    runtime = nvdla.Runtime(loadable_of(name, samples))
    images, _ = random_inputs(runtime, 1)
    for _ in range(2):
        runtime.run_raw(images[0])
    first = runtime._instances._first
    copied = first.clone()
    jobs = [job for step in (*copied.plan.fused, *copied.plan.steps) for job in getattr(step, "jobs", [])]
    states = [job.__dict__ for job in jobs]
    for state in states:
        for array in arrays_within({key: each for key, each in state.items() if key != "engine"}):
            assert not first.linked.lanes.holds(array)
    assert any(copied.linked.lanes.holds(array) for state in states for array in arrays_within({**state}))


def test_several_limits_of_threads_at_once_leave_the_blas_as_it_was(samples):
    from threadpoolctl import ThreadpoolController

    def blas_threads():
        return [each.num_threads for each in ThreadpoolController().select(user_api="blas").lib_controllers]

    loadable = loadable_of("lenet.loadable", samples)
    runtimes = [nvdla.Runtime(loadable, threads=count) for count in (1, 2, 1, 2)]
    images, expected = random_inputs(runtimes[0], 4)
    before = blas_threads()  # numba brings its own BLAS, where scipy is installed
    with ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(50):
            assert list(pool.map(lambda r, i: r.run_raw(i), runtimes, images)) == expected
    assert blas_threads() == before
