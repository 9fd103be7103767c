"""Thread pool of the compiled kernels, and turns to use it.

A shared kernel splits its work into *pieces*, numbered from 0. The workers and the calling thread take the numbers from
one atomic counter. So a thread without a core delays only its current piece, and the caller does the pieces that no
worker takes. An idle worker polls for some microseconds, since the steps of a run follow each other closely, then
sleeps until it is woken.

numba's own threading layers are not used. OpenMP's threads spin at every barrier while others wait for a core, and end
the process after a fork. The workqueue layer fails with several callers.

The pool works for one caller at a time. While several threads run kernels, every other thread computes its own pieces
alone, and the caller that has the pool uses one worker fewer.

Linux 6.12 and later let a thread choose its time slice. The thread's share of the core stays the same. A woken thread
with a short slice interrupts a running thread, which otherwise continues for milliseconds.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from functools import cache

import numpy as np

from nvdla.kernels.jit.compilation import late, limit_of_thread, pool_access
from nvdla.kernels.jit.processor import usable_cores
from nvdla.kernels.jit.thread_pool_state import CLOSED, MEMBERS, MOST_WORKERS, PAGE, STATE_BYTES, WAKES

CALLS = {"x86_64": (315, 314), "aarch64": (275, 274)}
"""Numbers of the system calls sched_getattr and sched_setattr, which the C library does not wrap."""
FAIR = (0, 3)
"""The policies SCHED_OTHER and SCHED_BATCH, which have time slices that are shares of a core."""


class Attributes(ctypes.Structure):
    """The system's struct sched_attr."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def take_short_turns(seconds: float) -> bool:
    """Set the calling thread's time slice (0.0001 to 0.1 s) and keep its other attributes.

    Return False if the system does not support it.
    """
    attributes = scheduling_attributes()
    if attributes is None or attributes.policy not in FAIR:
        return False
    runtime = attributes.runtime = round(seconds * 1e9)
    _call(1, 0, ctypes.byref(attributes), 0)
    changed = scheduling_attributes()
    return changed is not None and changed.runtime == runtime


def scheduling_attributes(thread: int = 0) -> Attributes | None:
    """Return the attributes of a thread by the system's number (0: the caller); None where the system has none."""
    attributes = Attributes()
    size = ctypes.sizeof(attributes)
    return attributes if _call(0, thread, ctypes.byref(attributes), size, 0) == 0 else None


def _call(which: int, *words: object) -> int:
    numbers = CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        return -1
    return int(ctypes.CDLL(None).syscall(numbers[which], *words))


PATIENCE = 100e-6
"""Seconds that a worker polls before it sleeps: longer than most of a caller's last pieces, since a sleeping worker can
lose its core to another program."""
TURN = 100e-6
"""Time slice of a worker in seconds: shorter than that of other threads, so that it interrupts them."""
share: Callable[..., None] = late("nvdla.kernels.jit.thread_pool_code:share")
"""The compiled distribution of pieces to the thread pool."""


class ThreadPool:
    """Workers of this process, started by the first shared kernel."""

    def __init__(self) -> None:
        raw = np.zeros((STATE_BYTES + PAGE) // 8, np.int64)
        start = -raw.ctypes.data % PAGE // 8
        self._memory = raw
        self._state = raw[start:].ctypes.data
        raw[start + MEMBERS // 8] = CLOSED
        self._workers: int | None = None
        self._lock = threading.Lock()

    def handle(self, wakes: bool) -> int:
        """Return the handle for ``share``: the address of the pool's state plus the limit of workers. 0: no workers.

        With ``wakes`` the kernel wakes sleeping workers. This takes some 50 microseconds and, if other threads wait for
        the core, often the rest of the caller's time slice.
        """
        most = min(limit_of_thread() or usable_cores(), usable_cores()) - 1
        if most < 1:
            return 0
        workers = self._workers if self._workers is not None else self._started()
        return self._state + min(most, workers) + (WAKES if wakes else 0)

    def _started(self) -> int:
        from nvdla.kernels.jit.object_code import function

        with self._lock:
            if self._workers is None:
                count, patience = min(usable_cores() - 1, MOST_WORKERS), polls()
                serve = function("jit.thread_pool_code:serve", 3)
                for number in range(count):
                    words = (serve, self._state, number, patience)
                    worker = threading.Thread(target=_work, args=words, name="nvdla-kernels", daemon=True)
                    _thread.start_new_thread(worker.start, ())  # start() waits until the worker has a core
                self._workers = count
        return self._workers


def _work(serve: Callable[..., None], *words: int) -> None:
    """Run a worker with a short time slice, so that it starts soon after it is woken."""
    take_short_turns(TURN)
    serve(*words)


@cache
def polls() -> int:
    """Measure the number of polls in :data:`PATIENCE`; the length of a pause depends on the processor."""
    from nvdla.kernels.jit.object_code import function

    pause_for = function("jit.thread_pool_code:pause_for", 1)
    pause_for(10)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        pause_for(200)
        best = min(best, (time.perf_counter() - began) / 200)
    return max(1, int(PATIENCE / max(best, 1e-9)))


_pool = ThreadPool()


def pool_handle(wakes: bool = True) -> int:
    """:meth:`ThreadPool.handle` of this process."""
    return _pool.handle(wakes)


pool_access.handle = pool_handle


def threading_description() -> str:
    """Describe how kernels use the cores."""
    cores = usable_cores()
    if cores == 1:
        return "1 usable core: kernels run on the calling thread"
    workers = "1 sleeping worker thread" if cores == 2 else f"{cores - 1} sleeping worker threads"
    return f"{cores} usable cores: the calling thread and {workers} when idle"


def _after_fork() -> None:
    """Replace the pool: a fork does not copy the workers."""
    global _pool
    usable_cores.cache_clear()
    _pool = ThreadPool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
