"""Limits of the threads of kernels and of numpy's matrix products, and the handling of Ctrl-C in processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from nvdla.kernels.jit.compilation import use_threads
from nvdla.kernels.jit.processor import usable_cores


class limited:
    """Context in which the calling thread's kernels and numpy's BLAS use ``threads`` threads; None: all cores.

    Kernels and matrix products never run at the same time within a run, so the sum is never more. The limit of the
    BLAS holds for the process while it lasts; a run without a number, or with ``blas`` False, does not change
    the BLAS.
    """

    def __init__(self, threads: int | None, *, blas: bool = True) -> None:
        self._threads = threads
        self._blas = min(threads, usable_cores()) if blas and threads is not None else 0

    def __enter__(self) -> None:
        use_threads(self._threads)
        if self._blas:
            _blas_limits.enter(self._blas)

    def __exit__(self, *raised: object) -> None:
        if self._blas:
            _blas_limits.leave(self._blas)


STARTING = threading.Lock()
"""Held while processes are started: an exit meanwhile would leave them half-started, with error messages."""


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Block Ctrl-C in the processes that are started in this context.

    A terminal sends it to all processes of a command. A process could ignore it only after its first imports, and would
    print a traceback before. The parent receives it at the end of the context and ends the processes.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    with STARTING:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(parent: int) -> None:
    """End this process when the process ``parent`` ends for any reason."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


class _BlasLimits:
    """The limits of all runs that are under way: the BLAS has one number of threads for the whole process.

    While there are several, the least holds; what the process had before comes back after the last of them.
    """

    def __init__(self) -> None:
        self.renew_lock()
        self._limits: list[int] = []
        self._limiter: Any = None

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def enter(self, limit: int) -> None:
        with self._lock:
            self._set([*self._limits, limit])

    def leave(self, limit: int) -> None:
        with self._lock:
            left = list(self._limits)
            left.remove(limit)
            self._set(left)

    def _set(self, limits: list[int]) -> None:
        least = min(limits, default=None)
        if least != min(self._limits, default=None):
            _let_any_thread_set()
            if self._limiter is not None:
                self._limiter.restore_original_limits()
            self._limiter = None if least is None else _blas().limit(limits=least)
            _let_any_thread_set()
        self._limits = limits


def _let_any_thread_set() -> None:
    """threadpoolctl (3.8 at least) lets the thread that set OpenBLAS's threads first set them alone, and others do
    nothing; here one thread may set what another one restores."""
    from threadpoolctl import OpenBLASController

    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


_blas_limits = _BlasLimits()


def _after_fork() -> None:
    """Replace the locks: a worker process is forked while they are held, and nothing releases them in the child."""
    global STARTING
    STARTING = threading.Lock()
    _blas_limits.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit numpy's BLAS to the calling thread in this context."""
    _blas_limits.enter(1)
    try:
        yield
    finally:
        _blas_limits.leave(1)


@cache
def _blas() -> Any:
    """The BLAS libraries that the process has loaded; finding them takes milliseconds, limiting them microseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
