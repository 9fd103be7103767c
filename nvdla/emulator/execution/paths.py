"""Execution paths of a run, and the one function that chooses between them.

``docs/architecture.md`` (Execution paths) has the table; a test derives every row of it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

SHORTEST, SHORT = 90_000, 250_000
"""Work of a single compiled call, in estimated nanoseconds (a third of that on a current processor), below which
Python's own work takes about as long: for raw inputs, and for inputs that the run converts."""

TURN = 5_000_000
"""Work of a loop of runs, in estimated nanoseconds, during which other callers wait for its instance."""
Image = TypeVar("Image")


class RunPath(enum.Enum):
    """Steps from raw inputs to raw outputs, or a preparation after which the caller chooses again (RECORD, FUSE)."""

    FAULTS = "faults"
    FIRMWARE = "firmware"
    RECORD = "record"
    FALLBACK = "fallback"
    FUSE = "fuse"
    JOBS = "jobs"
    STEPS = "steps"
    LANES = "lanes"
    POOL = "pool"
    ALONE = "alone"
    LOCKED = "locked"


SINGLE_CALL = (RunPath.POOL, RunPath.ALONE, RunPath.LOCKED)
"""Paths that are one compiled call where the fused steps are."""


class Callers(enum.Enum):
    """Number of threads that run the network now, and whether this run also converts inputs and outputs."""

    FEW = enum.auto()
    MANY = enum.auto()
    CONVERTING = enum.auto()


class State(NamedTuple):
    """State of a runtime. ``recorded``: it has a plan that can be repeated. ``fused``: the plan has its fused steps.

    ``is_large``: the first run only records, then the plan computes. ``takes_fallback``: compiled kernels are
    missing, and numpy alone computes the run. ``single_call``: work of the one compiled call that
    does all fused steps, None where there are several. ``lanes``: images that run together, 1 where a loop is faster.
    """

    recorded: bool = False
    fused: bool = False
    is_large: bool = False
    takes_fallback: bool = False
    single_call: int | None = None
    lanes: int = 1

    def several(self, images: Sequence[Image], path: RunPath) -> Sequence[Image]:
        """Return the images that one caller runs in a loop before others can have its instance."""
        if path not in SINGLE_CALL or self.single_call is None:
            return images[:1]
        return images[: max(1, TURN // max(1, self.single_call))]


class Request(NamedTuple):
    """Request of a caller. ``observed``: ``on_operation`` is given; ``logged``: ``csb_log``; ``timed``: ``on_step``.

    ``inside``: the calling thread is inside a run of the same runtime (in an observer). ``images``: images that are
    left to run.
    """

    observed: bool = False
    logged: bool = False
    timed: bool = False
    faulty: bool = False
    inside: bool = False
    images: int = 1
    callers: Callers = Callers.FEW


def choose_path(state: State, request: Request) -> RunPath:
    """Return the execution path of a request."""
    if request.faulty:
        return RunPath.FAULTS
    if request.logged or not state.recorded:
        return RunPath.RECORD if state.is_large and not (request.logged or request.observed) else RunPath.FIRMWARE
    if request.observed:
        return RunPath.JOBS
    if not state.fused:
        return RunPath.FALLBACK if state.takes_fallback else RunPath.JOBS if request.inside else RunPath.FUSE
    if request.timed:
        return RunPath.STEPS
    if request.images > 1 and state.lanes > 1:
        return RunPath.LANES
    return _compiled_path(state.single_call, request.callers)


def _compiled_path(work: int | None, callers: Callers) -> RunPath:
    """Return the path of fused steps in compiled calls.

    With few callers, or much work, the thread pool takes part. With many, each core has its own caller, so one thread
    does the call. The shortest calls then keep Python's lock, as do short ones of a caller that converts: otherwise
    each run would move Python's own data to another core, which takes longer than the run.
    """
    if work is None or callers is Callers.FEW or work > SHORT:
        return RunPath.POOL
    return RunPath.ALONE if callers is Callers.MANY and work > SHORTEST else RunPath.LOCKED
