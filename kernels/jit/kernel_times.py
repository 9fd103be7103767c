"""Time that this process has spent on compiling kernels and on loading numba and cached kernels.

numba sends an event when it compiles (``numba:compile``). It compiles one kernel at a time; the kernels that this one
calls are compiled within.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class KernelTimes:
    """Seconds and numbers so far. ``compiling``: kernels that are being compiled now, nested."""

    compiled: int = 0
    compile_seconds: float = 0.0
    loaded: int = 0
    load_seconds: float = 0.0
    compiling: int = 0
    _began: float = 0.0

    def on_start(self, event: object) -> None:
        """Count a kernel that numba starts to compile."""
        if not self.compiling:
            self._began = time.perf_counter()
        self.compiling += 1

    def on_end(self, event: object) -> None:
        """Count a compiled kernel and its time."""
        self.compiling -= 1
        self.compiled += 1
        if not self.compiling:
            self.compile_seconds += time.perf_counter() - self._began

    @contextlib.contextmanager
    def loading(self, kernels: int = 1) -> Iterator[None]:
        """Measure the loading of kernels; within a compilation it is part of the compilation time."""
        began, counts = time.perf_counter(), not self.compiling
        yield
        if counts:
            self.load_seconds += time.perf_counter() - began
            self.loaded += kernels


kernel_times = KernelTimes()


def listen() -> None:
    """Measure every compilation from now on; numba must be imported."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: object) -> None:
            kernel_times.on_start(event)

        def on_end(self, event: object) -> None:
            kernel_times.on_end(event)

    event.register("numba:compile", Listener())
