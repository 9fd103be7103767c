"""Whether worker processes may begin as copies of this one (fork), which have loaded already what it has loaded.

A copy has one thread, the one that asked for it; what another thread held at that moment is held for ever. So every
thread of the process must be known to come to no harm: the kernels' helpers and those of OpenBLAS, which both start
anew in a copy, the one that listens for Ctrl-C, and the one that says on a terminal that a command still works. With
any other thread (a notebook's, another library's) workers are new interpreters.
"""

from __future__ import annotations

import os
import sys
import threading

HARMLESS = ("nvdla-kernels", "nvdla-interrupts", "nvdla-working")


def may_fork() -> bool:
    """Linux alone, and from Python 3.11 on: older pools start processes after threads of their own."""
    if sys.platform != "linux" or sys.version_info < (3, 11):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    others = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    known = 1 + len(others) + _blas_threads()
    return all(name in HARMLESS for name in others) and len(os.listdir("/proc/self/task")) <= known


def _blas_threads() -> int:
    """How many threads OpenBLAS has in this process, beside those that call it."""
    from threadpoolctl import threadpool_info

    return sum(
        each["num_threads"] - 1
        for each in threadpool_info()
        if each["internal_api"] == "openblas" and each.get("threading_layer") == "pthreads"
    )


def end_with_parent(parent: int) -> None:
    """In a copy: end when the process ``parent`` does, however that ends."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
