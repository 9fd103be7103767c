"""How long the turns of a thread are that shares its core with others.

Linux (6.12) lets a thread choose: its share of the core stays the same, but who asks for short turns and is woken while
it has not had its share interrupts others, who go on for milliseconds otherwise.
"""

from __future__ import annotations

import ctypes
import platform
import sys

CALLS = {"x86_64": (315, 314), "aarch64": (275, 274)}
"""Numbers of the system calls sched_getattr and sched_setattr, for which the C library has no functions."""
FAIR = (0, 3)
"""The policies SCHED_OTHER and SCHED_BATCH: others have no turns, or what they have is not a share."""


class Attributes(ctypes.Structure):
    """The system's struct sched_attr."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def take_short_turns(seconds: float) -> bool:
    """Ask for turns of so many seconds (the system takes 0.0001 to 0.1) for the calling thread; its share and all else
    stay as they are. False where the system does not let threads choose."""
    found = _attributes(0)
    if found is None or found.policy not in FAIR:
        return False
    wanted = found.runtime = round(seconds * 1e9)
    _call(1, 0, ctypes.byref(found), 0)
    told = _attributes(0)
    return told is not None and told.runtime == wanted


def turn_of_thread(thread: int = 0) -> float | None:
    """Seconds of the turns of a thread (by the system's number; 0: the calling one); None where nobody says."""
    found = _attributes(thread)
    return found.runtime / 1e9 if found and found.runtime else None


def _attributes(thread: int) -> Attributes | None:
    found = Attributes()
    size = ctypes.sizeof(found)
    return found if _call(0, thread, ctypes.byref(found), size, 0) == 0 else None


def _call(which: int, *words: object) -> int:
    numbers = CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        return -1
    return int(ctypes.CDLL(None).syscall(numbers[which], *words))
