"""Where a helper runs: not on its caller's core.

On a busy machine Linux wakes a helper on the caller's core as well as on another, and leaves both there. Then they take
turns, and a helper is worth nothing. So one that meets its caller there again and again leaves that core out of those
that it may run on.
"""

from __future__ import annotations

import sys
from typing import Any

from numba import njit, types

from nvdla.kernels.jit.crew_state import CORES, CORES_BYTES
from nvdla.kernels.jit.record_code import words

MEETINGS = 4
"""Tasks on end that a helper does on its caller's core before it leaves it."""


def of_system(name: str, *arguments: Any) -> Any:
    """A function of the C library that returns an int, for compiled code."""
    return types.ExternalFunction(name, types.int32(*arguments))


if sys.platform == "linux":
    current_core = of_system("sched_getcpu")
    _process = of_system("getpid")
    _get_cores = of_system("sched_getaffinity", types.int32, types.int64, types.int64)
    _set_cores = of_system("sched_setaffinity", types.int32, types.int64, types.int64)
else:  # nobody says where a thread runs, or lets it choose

    @njit(nogil=True)
    def current_core():  # type: ignore[no-untyped-def]
        """Unknown."""
        return -1

    @njit(nogil=True)
    def _get_cores(thread, size, cores):  # type: ignore[no-untyped-def]
        return -1

    _set_cores, _process = _get_cores, current_core


@njit(nogil=True)
def met(bed, core, meetings):  # type: ignore[no-untyped-def]
    """On how many tasks on end the helper with this ``bed`` has met its caller on the ``core`` where that was, now that
    it joins another (``meetings`` before); 0 where they are so many that it has left the core."""
    if core < 0 or core >= 8 * CORES_BYTES or core != current_core():
        return 0
    if meetings + 1 < MEETINGS:
        return meetings + 1
    _leave(bed + CORES, core)
    return 0


@njit(nogil=True)
def _leave(place, core):  # type: ignore[no-untyped-def]
    """Run on any core but one, of those that the helper was given and that the process's first thread may use, too.
    Whoever else sets its cores is obeyed.

    At the ``place`` there are four sets of cores: what the system says of the helper and of the first thread, what the
    helper has asked for, and what it was given.
    """
    told = words(place, CORES_BYTES // 8)
    first = words(place + CORES_BYTES, CORES_BYTES // 8)
    wanted = words(place + 2 * CORES_BYTES, CORES_BYTES // 8)
    given = words(place + 3 * CORES_BYTES, CORES_BYTES // 8)
    if _get_cores(0, CORES_BYTES, place) < 0 or _get_cores(_process(), CORES_BYTES, place + CORES_BYTES) < 0:
        return
    changed, left = False, 0
    for at in range(told.size):
        changed |= told[at] != wanted[at]
    for at in range(told.size):
        given[at] = told[at] if changed else given[at]
        wanted[at] = given[at] & first[at] & ~((1 << core % 64) if at == core // 64 else 0)
        left |= wanted[at]
    if left:
        _set_cores(0, CORES_BYTES, place + 2 * CORES_BYTES)
