"""Ctrl-C from the first moment on: behavior before a command begins and after it ends.

Until it is taken over it is Python that answers, with a traceback. So this module imports nothing but what the
interpreter is made of or has loaded by itself.
"""

import _signal  # the part of signal that is built in: the rest imports enum
import atexit
import os

TYPE_CHECKING = False  # as in typing, which would be imported for it
if TYPE_CHECKING:
    from typing import NoReturn

_SHOW_CURSOR = b"\x1b[?25h"


def install() -> None:
    """Take over Ctrl-C for a process that is the command, unless nohup or the caller already handles it."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, leave_at_once)
        atexit.register(_ignore)  # the first one, so it is called last


def leave_at_once(number: int = 0, frame: object = None) -> "NoReturn":
    """The handler before a command has begun and after it has ended."""
    os._exit(say("nvdla"))


def say(prog: str) -> int:
    """The one line, past Python's streams: the interrupted code may hold their locks. Returns the exit code."""
    try:
        cursor = _SHOW_CURSOR if os.isatty(2) else b""
        os.write(2, cursor + f"\n{prog}: interrupted\n".encode())
    except OSError:
        pass
    return 130


def _ignore() -> None:
    """All is done; an interpreter that takes itself down would let the signal kill it, without a word."""
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
