"""The state of the crew in memory: what :mod:`nvdla.kernels.jit.crew_code` works on."""

from __future__ import annotations

PAGE = 4096
"""The crew's state begins at a multiple of this; the places below are apart, so that cores do not fight for them."""

LOCK, GENERATION, MEMBERS, NEXT, TASK, BEDS = (128 * place for place in range(6))
"""int64 at these bytes: taken by a caller; number of tasks so far; helpers at work, their limit and whether the task is
closed; next piece; function, environment and pieces; what the helpers sleep on, one bed after the other."""

BED, MUTEX, CONDITION = 256, 64, 160
"""Bytes of a bed, whose first word says whether its helper sleeps; where the system's mutex and condition lie in it."""

MOST_HELPERS = (1 << 11) - 1
WAKES = 1 << 11
"""Of a handle, the address of the state: the low bits say how many helpers may join, and whether to wake them."""

STATE_BYTES = BEDS + BED * MOST_HELPERS

CLOSED = 1 << 40
LIMIT_SHIFT = 16
JOINED = (1 << LIMIT_SHIFT) - 1
