"""How many threads a run uses, those of the kernels and of numpy's matrix products; and whom Ctrl-C is for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from nvdla.kernels.jit.compilation import use_threads
from nvdla.kernels.jit.cores import usable_cores


class limited:
    """Within, kernels of the calling thread and numpy's BLAS use ``threads`` threads; None: as many as there are cores.

    Kernels and matrix products never run at the same time within a run, so the sum is never more. The limit of the
    BLAS holds for the process while it lasts; a run that names no number leaves the BLAS alone, and so does one that
    does without (``blas`` False).
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
"""Held while processes are started: who left now would leave them half-started, and they would say so."""


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Within, processes that are started do not hear of Ctrl-C, which a terminal sends to all of a command's.

    They could do without it only after their first imports, and would end with a traceback before. The parent hears
    of it when the block is left, and ends them.
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


class _BlasLimits:
    """The limits of all runs that are under way: the BLAS has one number of threads for the whole process.

    While there are several, the least holds; what the process had before comes back after the last of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: list[int] = []
        self._limiter: Any = None

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


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within, numpy's BLAS works on the calling thread alone."""
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
