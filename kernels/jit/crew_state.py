"""The state of the crew in memory: what :mod:`nvdla.kernels.jit.crew_code` works on."""

from __future__ import annotations

PAGE = 4096
"""The crew's state begins at a multiple of this; the places below are apart, so that cores do not fight for them."""

LOCK, GENERATION, MEMBERS, NEXT, TASK, BEDS = (128 * place for place in range(6))
"""int64 at these bytes: taken by a caller; number of tasks so far; helpers at work, their limit and whether the task is
closed; next piece; function, environment, pieces and the caller's core; what the helpers sleep on, one bed after the
other."""

OTHERS = LOCK + 8
"""Until which task there is another caller, too."""

BED, MUTEX, CONDITION, CORES = 768, 64, 160, 256
"""Bytes of a bed, whose first word says whether its helper sleeps; in it lie the system's mutex and condition, and
four sets of cores (:mod:`nvdla.kernels.jit.crew_places_code`)."""
CORES_BYTES = 128
"""Bytes of a set of cores, a bit a core, as the C library has it."""

MOST_HELPERS = (1 << 11) - 1
WAKES = 1 << 11
"""Of a handle, the address of the state: the low bits say how many helpers may join, and whether to wake them."""

STATE_BYTES = BEDS + BED * MOST_HELPERS

CLOSED = 1 << 40
LIMIT_SHIFT = 16
JOINED = (1 << LIMIT_SHIFT) - 1
