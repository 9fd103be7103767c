"""How many threads a run uses: those of numba's kernels, and those of numpy's matrix products."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from nvdla.kernels.jit.compilation import use_threads


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Within, kernels of the calling thread and numpy's BLAS use ``threads`` threads; None: as many as there are cores.

    Kernels and matrix products never run at the same time within a run, so the sum is never more. The limit of the
    BLAS holds for the process while it lasts; a run that names no number leaves the BLAS alone.
    """
    use_threads(threads)
    if threads is None:
        yield
        return
    with _blas().limit(limits=min(threads, _cores())):
        yield


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _blas() -> Any:
    """The BLAS libraries that the process has loaded; finding them takes milliseconds, limiting them microseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
