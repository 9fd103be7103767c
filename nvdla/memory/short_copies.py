"""Short copies within which Python's lock of the interpreter is kept.

numpy gives the lock up for whatever has more than 500 elements, and every time wakes a thread that waits for it. That
takes longer than the copy; where several threads run a small network, much longer than the run.
"""

from __future__ import annotations

import numpy as np

SHORT = 1 << 15
"""Bytes that are copied in about the time that it takes to give the lock up and to take it again."""
UNNOTICED, MOST_PIECES = 500, 8
"""Elements for which numpy keeps the lock, and so many times more that are assigned in pieces."""
_ZEROS = memoryview(bytes(SHORT))


def put(target: np.ndarray, source: memoryview | bytes | bytearray) -> None:
    """Copy bytes into as many contiguous ones (uint8)."""
    if target.size <= SHORT:
        target.data[:] = source
    else:
        target[:] = np.frombuffer(source, np.uint8)


def clear(target: np.ndarray) -> None:
    """Zero contiguous bytes (uint8)."""
    if target.size <= SHORT:
        target.data[:] = _ZEROS[: target.size]
    else:
        target.fill(0)


def assign(target: np.ndarray, source: np.ndarray) -> None:
    """``target[...] = source`` (same shape), in pieces that numpy keeps the lock for where few of them do."""
    if UNNOTICED < target.size <= MOST_PIECES * UNNOTICED:
        axis = max(range(target.ndim), key=target.shape.__getitem__)
        each = target.size // target.shape[axis]
        long = UNNOTICED // each
        if long * MOST_PIECES >= target.shape[axis]:
            before = (slice(None),) * axis
            for first in range(0, target.shape[axis], long):
                piece = *before, slice(first, first + long)
                target[piece] = source[piece]
            return
    target[...] = source
