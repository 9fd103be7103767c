"""What it has taken in this process to get kernels ready: compiling them, and loading numba and kernels that are kept.

numba tells when it compiles (its events ``numba:compile``); it compiles one kernel at a time, and those that the kernel
calls within.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Readied:
    """Seconds and numbers so far; ``compiling``: how many kernels are being compiled at this moment, one in another."""

    compiled: int = 0
    compile_seconds: float = 0.0
    loaded: int = 0
    load_seconds: float = 0.0
    compiling: int = 0
    _began: float = 0.0

    def on_start(self, event: object) -> None:
        """numba begins to compile a kernel."""
        if not self.compiling:
            self._began = time.perf_counter()
        self.compiling += 1

    def on_end(self, event: object) -> None:
        """numba has compiled it."""
        self.compiling -= 1
        self.compiled += 1
        if not self.compiling:
            self.compile_seconds += time.perf_counter() - self._began

    @contextlib.contextmanager
    def loading(self, kernels: int = 1) -> Iterator[None]:
        """Within, kernels are loaded, or what they need; while another is being compiled that is part of compiling."""
        began, counts = time.perf_counter(), not self.compiling
        yield
        if counts:
            self.load_seconds += time.perf_counter() - began
            self.loaded += kernels


readied = Readied()


def listen() -> None:
    """Hear of every kernel that numba compiles from now on; numba must be imported."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: object) -> None:
            readied.on_start(event)

        def on_end(self, event: object) -> None:
            readied.on_end(event)

    event.register("numba:compile", Listener())
