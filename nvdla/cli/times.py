"""What a command that runs a network has spent its time on: linking, getting kernels ready, running."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from nvdla.kernels.jit.readied import readied


class Times:
    """Begins with linking: the loadable is laid into memory. ``run``: seconds of the runs alone, without the kernels
    that were compiled or loaded meanwhile."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._before = _kernel_seconds()
        self.link = self.run = 0.0

    def linked(self) -> None:
        """Linking is through."""
        self.link = self._since(self._began, self._before)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within, the network runs."""
        began, before = time.perf_counter(), _kernel_seconds()
        yield
        self.run += self._since(began, before)

    def document(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        return {
            "link_seconds": self.link,
            "compile_seconds": readied.compile_seconds,
            "kernels_compiled": readied.compiled,
            "load_seconds": readied.load_seconds,
            "kernels_loaded": readied.loaded,
            "run_seconds": self.run,
        }

    def tell(self, quiet: bool) -> None:
        """One line on a terminal."""
        if sys.stderr.isatty() and not quiet:
            print(f"times: {self}", file=sys.stderr)

    def __str__(self) -> str:
        parts = [f"linking {_said(self.link)}"]
        if readied.compiled:
            parts.append(f"compiling {readied.compiled} kernels {_said(readied.compile_seconds)}")
        if readied.load_seconds:
            parts.append(f"loading {readied.loaded} kernels {_said(readied.load_seconds)}")
        return ", ".join([*parts, f"running {_said(self.run)}"])

    @staticmethod
    def _since(began: float, before: float) -> float:
        return max(time.perf_counter() - began - (_kernel_seconds() - before), 0.0)


def _kernel_seconds() -> float:
    return readied.compile_seconds + readied.load_seconds


def _said(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
