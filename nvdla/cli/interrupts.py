"""Ctrl-C ends every command at once: one line on standard error, exit code 130, no file half-written.

Python raises KeyboardInterrupt between two steps of its own code. That is not enough: a compiler or an import may take
the exception for a failure of its own, or drop it where C code called back, and a long call into C does not get to it.
So the first Ctrl-C is noted, and who has not ended a moment later is ended from a thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

#: seconds that a command has for ending by itself
GRACE = 0.5
_SHOW_CURSOR = b"\x1b[?25h"


def leave_at_once(number: int = signal.SIGINT, frame: object = None) -> NoReturn:
    """The handler before a command has begun and after it has ended."""
    say("nvdla")
    os._exit(130)


def install() -> None:
    """Take over Ctrl-C for a process that is the command, unless somebody has decided otherwise (nohup, a caller)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_at_once)


@contextlib.contextmanager
def noted(prog: str) -> Iterator[list[int]]:
    """Within, Ctrl-C raises KeyboardInterrupt, is noted in the list, and ends the process after :data:`GRACE`."""
    found: list[int] = []
    usual = signal.getsignal(signal.SIGINT)
    ours = usual in (signal.default_int_handler, leave_at_once)
    if not ours or threading.current_thread() is not threading.main_thread():
        yield found
        return

    def note(number: int, frame: object) -> None:
        found.append(number)
        raise KeyboardInterrupt

    hook = sys.unraisablehook
    sys.unraisablehook = lambda problem: None if found else hook(problem)  # what C code dropped
    signal.signal(signal.SIGINT, note)
    try:
        with _watched(prog):
            yield found
    finally:
        signal.signal(signal.SIGINT, usual)
        sys.unraisablehook = hook


@contextlib.contextmanager
def _watched(prog: str) -> Iterator[None]:
    """A thread that hears of Ctrl-C while the main thread is in C code, and ends the process where that goes on."""
    if not hasattr(os, "set_blocking"):
        yield
        return
    hear, tell = os.pipe()
    os.set_blocking(tell, False)
    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    ended = threading.Event()
    threading.Thread(target=_listen, args=(hear, ended, prog), name="nvdla-interrupts", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(tell)  # the thread reads the end of the pipe, and closes its side


def _listen(hear: int, ended: threading.Event, prog: str) -> None:
    while heard := os.read(hear, 1):
        if heard[0] == signal.SIGINT and not ended.wait(GRACE):
            _remove_parts()
            say(prog)
            os._exit(130)
    os.close(hear)


def _remove_parts() -> None:
    """Files that were being written, where anything has been written yet."""
    files: Any = sys.modules.get("nvdla.files")
    for path in list(files.UNFINISHED) if files else ():
        with contextlib.suppress(OSError):
            os.unlink(path)


def say(prog: str) -> None:
    """The one line, past Python's streams: whoever was interrupted may hold their locks."""
    with contextlib.suppress(OSError):
        cursor = _SHOW_CURSOR if os.isatty(2) else b""
        os.write(2, cursor + f"\n{prog}: interrupted\n".encode())
