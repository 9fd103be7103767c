"""Costs of many points at a time, by several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from nvdla.campaign.forking import end_with_parent, may_fork
from nvdla.errors import BuildError
from nvdla.threads import interrupts_kept

_function: Callable[[Any], Any] | None = None


class Trials:
    """Calls a function for many arguments, in ``workers`` processes (1: in this one); results in order.

    Processes begin as copies of this one where that is safe. Use as a context: they end with it.
    """

    def __init__(self, function: Callable[[Any], Any], workers: int) -> None:
        self._call = function
        self._executor: ProcessPoolExecutor | None = None
        if workers > 1:
            forks = may_fork()
            context = multiprocessing.get_context("fork" if forks else "spawn")
            self._executor = ProcessPoolExecutor(workers, context, _begin, (function, os.getpid() if forks else None))

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is None:
            return
        processes = list((getattr(self._executor, "_processes", None) or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:  # interrupted or done: nothing under way is waited for
            process.terminate()

    def costs(self, points: Sequence[Any]) -> list[Any]:
        """The function of each point. Raises what it raised, BuildError where a process died."""
        if self._executor is None or len(points) < 2:
            return [self._call(point) for point in points]
        try:
            with interrupts_kept():  # the first ones start the processes
                futures = [self._executor.submit(_do, point) for point in points]
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise BuildError("a process of the search was ended; search with fewer workers") from None


def _begin(function: Callable[[Any], Any], parent: int | None) -> None:
    """In a new process: Ctrl-C is the parent's, and so is the pipe that tells of signals."""
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    if parent is not None:
        end_with_parent(parent)
    _function = function


def _do(point: Any) -> Any:
    assert _function is not None, "the process began with its function"
    return _function(point)
