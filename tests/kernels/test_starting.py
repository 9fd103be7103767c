"""Locks around the start of processes."""

from __future__ import annotations

import os
import threading
import time

import pytest

from nvdla.kernels.jit import compilation
from nvdla.kernels.threads import interrupts_kept

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")


def ended(child: int) -> bool:
    """Whether the process ends with 0 within ten seconds; it does not outlive the test."""
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def test_a_fork_can_start_processes_of_its_own():
    with interrupts_kept():
        child = os.fork()
        if not child:
            with interrupts_kept():
                os._exit(0)
    assert ended(child)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_can_load_kernels_while_a_thread_compiles():
    """The thread does not exist in the child, and numba's lock would never be released there."""
    pytest.importorskip("numba")
    from numba.core.compiler_lock import global_compiler_lock

    compiling = threading.Event()

    def compile_kernel() -> None:
        with global_compiler_lock:
            compiling.set()
            time.sleep(0.3)

    thread = threading.Thread(target=compile_kernel)
    thread.start()
    compiling.wait()
    child = os.fork()
    if not child:
        global_compiler_lock.acquire()
        os._exit(0)
    thread.join()
    assert ended(child)
    assert not compilation._forking
