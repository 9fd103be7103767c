"""The crew: threads that take pieces of a kernel's work, and cost nothing while they have none.

A kernel that shares its work hands out *pieces*, numbered from 0, by a counter that all threads draw from, the calling
thread too: so a thread that has no core holds nobody up but for the piece that it is in, and pieces that no helper has
taken are done by the caller. A helper that finds nothing to do looks again for some microseconds (steps follow each
other closely), then sleeps until it is woken. numba's own threading layers are not used: OpenMP's threads spin at every
barrier while others wait for a core, and end the process after a fork; the simple one breaks with several callers.

The crew works for one caller at a time: where several threads run kernels at once each of them does its own pieces, and
there is work for every core anyway. Whoever has the crew meanwhile does with one helper fewer.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

from nvdla.kernels.jit.compilation import helpers, late, limit_of_thread, njit
from nvdla.kernels.jit.cores import usable_cores
from nvdla.kernels.jit.crew_state import CLOSED, MEMBERS, MOST_HELPERS, PAGE, STATE_BYTES, WAKES
from nvdla.kernels.jit.turns import take_short_turns

PATIENCE = 100e-6
"""Seconds that a helper looks for work before it sleeps: longer than most of a caller's last pieces take, since who has
slept may have to wait for a core that another program has taken meanwhile."""
TURN = 100e-6
"""Seconds of a helper's turn, where others want its core: who has a shorter one than they interrupts theirs."""
share: Any = late("nvdla.kernels.jit.crew_code:share")
"""The compiled sharing of pieces among a crew of threads."""


class Crew:
    """The helpers of this process, started when a kernel first shares its work."""

    def __init__(self) -> None:
        raw = np.zeros((STATE_BYTES + PAGE) // 8, np.int64)
        start = -raw.ctypes.data % PAGE // 8
        self._memory = raw
        self._state = raw[start:].ctypes.data
        raw[start + MEMBERS // 8] = CLOSED
        self._helpers: int | None = None
        self._lock = threading.Lock()

    def handle(self, wakes: bool) -> int:
        """What a kernel hands to ``share``: where the crew's state is, plus how many helpers may join. 0: none.

        Helpers that sleep are woken if the kernel ``wakes`` them. That takes some 50 microseconds until they are there
        and, where others wait for the core, often the rest of the caller's turn: it must be worth it.
        """
        most = min(limit_of_thread() or usable_cores(), usable_cores()) - 1
        if most < 1:
            return 0
        helpers = self._helpers if self._helpers is not None else self._started()
        return self._state + min(most, helpers) + (WAKES if wakes else 0)

    def _started(self) -> int:
        with self._lock:
            if self._helpers is None:
                count, patience = min(usable_cores() - 1, MOST_HELPERS), _rounds(PATIENCE)
                serve = _compiled("serve")
                for number in range(count):
                    words = (serve, self._state, number, patience)
                    threading.Thread(target=_help, args=words, name="nvdla-kernels", daemon=True).start()
                self._helpers = count
        return self._helpers


def _help(serve: Any, *words: int) -> None:
    """A helper's life. It runs in short turns, so that it is there soon after it is woken."""
    take_short_turns(TURN)
    serve(*words)


def _rounds(seconds: float) -> int:
    """How often a helper looks for work in so many seconds: measured, since processors pause for unlike times."""
    pause_for = _compiled("pause_for")
    pause_for(10)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        pause_for(200)
        best = min(best, (time.perf_counter() - began) / 200)
    return max(1, int(seconds / max(best, 1e-9)))


def _compiled(name: str) -> Any:
    """A function of the crew's code."""
    from nvdla.kernels.jit import crew_code

    return njit(cache=True, nogil=True)(getattr(crew_code, name)).compiled


_crew = Crew()


def crew_handle(wakes: bool = True) -> int:
    """:meth:`Crew.handle` of this process."""
    return _crew.handle(wakes)


helpers.handle = crew_handle


def threading_description() -> str:
    """In words, for whoever asks how kernels are spread over the cores."""
    cores = usable_cores()
    if cores == 1:
        return "1 core may be used: kernels run on the calling thread"
    helpers = "a helper that sleeps" if cores == 2 else f"{cores - 1} helpers that sleep"
    return f"{cores} cores may be used: the calling thread and {helpers} while there is no work"


def _after_fork() -> None:
    """The helpers did not come along."""
    global _crew
    usable_cores.cache_clear()
    _crew = Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
