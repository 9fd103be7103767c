"""The state of the crew in memory: what :mod:`nvdla.kernels.jit.crew_code` works on."""

from __future__ import annotations

PAGE = 4096
"""The crew's state begins at a multiple of this; the places below are apart, so that cores do not fight for them."""

LOCK, GENERATION, MEMBERS, NEXT, TASK = (128 * place for place in range(5))
"""int64 at these bytes: taken by a caller; number of tasks so far; helpers at work, their limit and whether the task is
closed; next piece; function, environment and pieces."""

CLOSED = 1 << 40
LIMIT_SHIFT = 16
JOINED = (1 << LIMIT_SHIFT) - 1
