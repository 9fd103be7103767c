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
from typing import Any

from nvdla.cli.ctrl_c import leave_at_once, say

#: seconds that a command has for ending by itself
GRACE = 0.5


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
        if heard[0] == signal.SIGINT and not ended.wait(GRACE) and not _ends_after_starting(ended):
            _remove_parts()
            os._exit(say(prog))
    os.close(hear)


def _ends_after_starting(ended: threading.Event) -> bool:
    """Where processes are being started, that is waited for: they can be ended only then."""
    threads: Any = sys.modules.get("nvdla.threads")
    if not threads or not threads.STARTING.locked():
        return False
    with threads.STARTING:
        pass
    return ended.wait(GRACE)


def _remove_parts() -> None:
    """Files that were being written, where anything has been written yet."""
    files: Any = sys.modules.get("nvdla.files")
    for path in list(files.UNFINISHED) if files else ():
        with contextlib.suppress(OSError):
            os.unlink(path)
