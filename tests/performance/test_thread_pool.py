"""The thread pool does every piece once, also with late workers, several callers and few cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nvdla.kernels.jit.processor import cpu_quota
from nvdla.kernels.jit.thread_pool import TURN, scheduling_attributes, take_short_turns, threading_description

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def count_pieces():
    from support.thread_pool_kernels import count_pieces

    return count_pieces


@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 17, 1000])
def test_every_piece_is_done_once(count_pieces, pieces):
    for _ in range(200):
        counts = np.zeros(pieces, np.int64)
        count_pieces(counts, 1)
        assert (counts == 1).all()


def test_several_callers_at_once_share_without_mixing(count_pieces):
    def work(pieces):
        for _ in range(300):
            counts = np.zeros(pieces, np.int64)
            count_pieces(counts, 3)
            assert (counts == 3).all()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, (1, 5, 40, 41, 64, 300)))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the affinity cannot be set here")
def test_workers_without_a_core_do_not_delay_the_caller(count_pieces):
    """All threads of the process run on one core, together with spinning threads; the work still finishes."""
    code = (
        "import os, sys; sys.path[:0] = sys.argv[1:]; import numpy as np, time; "
        "from nvdla.kernels.jit import processor; processor.usable_cores = lambda: 4; "
        "from nvdla.kernels.jit import thread_pool; thread_pool.usable_cores = lambda: 4; "
        "from support.thread_pool_kernels import count_pieces; "
        "counts = np.zeros(64, np.int64); count_pieces(counts, 1); "
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "[count_pieces(counts, 1) for _ in range(500)]; assert (counts == 501).all(), counts"
    )
    subprocess.run([sys.executable, "-c", code, str(TESTS)], check=True, timeout=120)


def test_workers_sleep_when_there_is_no_work(count_pieces):
    counts = np.zeros(64, np.int64)
    count_pieces(counts, 1)
    time.sleep(0.05)
    began = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - began < 0.05


several_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores on Linux"
)


@pytest.fixture
def in_a_thread():
    """Run a function in a separate thread, whose cores and time slice no other code changes."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result()


@several_cores
def test_a_worker_that_meets_its_caller_on_a_core_leaves_it(in_a_thread):
    from support.thread_pool_kernels import meets_itself

    from nvdla.kernels.jit.thread_pool_code import MEETINGS
    from nvdla.kernels.jit.thread_pool_state import WAIT_SLOT

    def meetings():
        slot, all_cores = np.zeros(WAIT_SLOT // 8, np.int64), os.sched_getaffinity(0)
        for before in range(MEETINGS - 1):
            assert meets_itself(slot.ctypes.data, before)[1] == before + 1
            assert os.sched_getaffinity(0) == all_cores
        for _ in range(5):  # the core that was left before is one of those again, since the caller is elsewhere now
            core, count = meets_itself(slot.ctypes.data, MEETINGS - 1)
            assert count == 0
            assert os.sched_getaffinity(0) == all_cores - {core}

    in_a_thread(meetings)


@several_cores
@pytest.mark.parametrize("whole_process", [False, True])
def test_a_worker_stays_on_the_cores_that_others_give_it(in_a_thread, whole_process):
    from support.thread_pool_kernels import meets_itself

    from nvdla.kernels.jit.thread_pool_code import MEETINGS
    from nvdla.kernels.jit.thread_pool_state import WAIT_SLOT

    process, all_cores = os.getpid() if whole_process else 0, os.sched_getaffinity(0)

    def meetings():
        slot = np.zeros(WAIT_SLOT // 8, np.int64)
        left, _ = meets_itself(slot.ctypes.data, MEETINGS - 1)
        now = os.sched_getaffinity(0)
        os.sched_setaffinity(process, {left} if process == 0 else now)
        meets_itself(slot.ctypes.data, MEETINGS - 1)
        assert os.sched_getaffinity(0) == (now if process else {left})

    try:
        in_a_thread(meetings)
    finally:
        os.sched_setaffinity(os.getpid(), all_cores)


def turn_of_thread(thread: int = 0) -> float:
    """Seconds of the turns of a thread."""
    return scheduling_attributes(thread).runtime / 1e9


def test_workers_run_in_short_turns_where_the_system_lets_them(count_pieces, in_a_thread):
    count_pieces(np.zeros(64, np.int64), 1)
    before, nice = turn_of_thread(), os.nice(0)
    if not in_a_thread(lambda: take_short_turns(TURN)):
        pytest.skip("this system does not let threads choose their turns")
    workers = [thread.native_id for thread in threading.enumerate() if thread.name == "nvdla-kernels"]
    assert [turn_of_thread(worker) for worker in workers] == [TURN] * len(workers)
    assert (turn_of_thread(), os.nice(0)) == (before, nice)  # the caller's are the user's


def test_an_index_out_of_range_in_a_piece_is_an_error():
    """With index checks (NUMBA_BOUNDSCHECK) the caller gets the exception, even if it occurs in a worker."""
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import numpy as np\n"
        "from support.thread_pool_kernels import beyond_the_end\n"
        "try: beyond_the_end(np.zeros(8, np.int64))\n"
        "except IndexError: print('IndexError')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(TESTS)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1"},
    )
    assert run.stdout.strip() == "IndexError"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"a/cpu.max": "400000 100000\n", "cpu.max": "max 100000\n"}, 4.0),
        ({"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ({"a/cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_control_group(tmp_path, files, quota):
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "cgroup").write_text("0::/a/b\n")
    assert cpu_quota(tmp_path / "root", tmp_path / "cgroup") == quota


def test_the_quota_of_a_control_group_of_version_1(tmp_path):
    folder = tmp_path / "root" / "cpu" / "docker" / "x"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("50000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder.parent / "cpu.cfs_quota_us").write_text("-1\n")
    (folder.parent / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cgroup").write_text("7:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n")
    assert cpu_quota(tmp_path / "root", tmp_path / "cgroup") == 0.5


@pytest.mark.parametrize("layer", ["default", "omp", "tbb", "workqueue"])
def test_numbas_threading_layers_play_no_part(layer, samples):
    code = (
        "import sys, numpy as np, nvdla; "
        "from nvdla.kernels.jit.compilation import fallback_work; fallback_work.end(); "
        "r = nvdla.Runtime(nvdla.load(sys.argv[1])); [r.run(sys.argv[2]) for _ in range(3)]; "
        "import nvdla.kernels.fast.sdp_int8_add as f; x = np.ones(1 << 18, np.int8); "
        "f.addition(x, x, (0, 0, 0), x.size, 1, False, (0, 1, 0), x).run(); assert (x == 2).all(); "
        "assert not [m for m in sys.modules if m.startswith('numba.np.ufunc.') and m.endswith(('pool', 'omppool'))]"
    )
    words = [sys.executable, "-c", code, samples / "lenet_nv_large.loadable", samples / "digit3.pgm"]
    subprocess.run(words, check=True, env={**os.environ, "NUMBA_THREADING_LAYER": layer})


def test_the_use_of_the_cores_can_be_described():
    assert "core" in threading_description()
