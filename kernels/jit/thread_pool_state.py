"""Layout of the thread pool's state in memory, for :mod:`nvdla.kernels.jit.thread_pool_code`."""

from __future__ import annotations

PAGE = 4096
"""Alignment of the state. Its fields are in different cache lines."""

LOCK, GENERATION, MEMBERS, NEXT, TASK, WAIT_SLOTS = (128 * place for place in range(6))
"""Byte offsets of int64 fields: pool taken by a caller; number of tasks so far; joined workers, their limit and the
flag CLOSED; next piece; function, environment, pieces and the caller's core; the contiguous wait slots of the workers.
"""

OTHERS = LOCK + 8
"""Offset of the last task for which another caller has a core."""

WAIT_SLOT, MUTEX, CONDITION, CORES = 768, 64, 160, 256
"""Bytes of a wait slot, and offsets in it. Its first word is 1 while its worker sleeps; then follow the system's mutex
and condition, and four sets of cores (:mod:`nvdla.kernels.jit.thread_pool_code`)."""
CORES_BYTES = 128
"""Bytes of a set of cores in the C library's format, one bit per core."""

MOST_WORKERS = (1 << 11) - 1
WAKES = 1 << 11
"""Low bits of a handle: the limit of workers, and the flag to wake them. The other bits are the state's address."""

STATE_BYTES = WAIT_SLOTS + WAIT_SLOT * MOST_WORKERS

CLOSED = 1 << 40
LIMIT_SHIFT = 16
JOINED = (1 << LIMIT_SHIFT) - 1
