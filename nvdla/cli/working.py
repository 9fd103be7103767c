"""The line that says that a command still works: on a terminal, whenever nothing was printed for a second.

It is the last line of standard error, is written over itself, and goes away before anything else is printed. A
pipe gets nothing of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

SILENCE = 1.0
"""Seconds without a word after which the line comes, and between two of its lines."""
_CLEAR = "\r\x1b[K"


class _Line:
    """Current work and its start time. ``spoke``: time of the last print; ``free``: the last line is empty."""

    def __init__(self, work: str, descriptor: int) -> None:
        self.work = work
        self.free = True
        self._descriptor = descriptor
        self._began = self._spoke = time.monotonic()
        self._shown = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="nvdla-working", daemon=True)
        self._thread.start()

    def give_way(self, text: str) -> None:
        """Note that ``text`` is printed."""
        with self._lock:
            self._clear()
            self._spoke = time.monotonic()
            self.free = text.endswith("\n") if text else self.free

    def end(self) -> None:
        """For good."""
        self._ended.set()
        self._thread.join()
        with self._lock:
            self._clear()

    def _go_on(self) -> None:
        while not self._ended.wait(SILENCE / 2):
            with self._lock:
                now = time.monotonic()
                if self.free and now - self._spoke >= SILENCE:
                    self._write(_CLEAR + self._fitting(f": {now - self._began:.0f} s"))
                    self._shown = True

    def _fitting(self, seconds: str) -> str:
        """The line, with the work cut so that the terminal does not wrap it: only one line can be cleared."""
        text = f"{self.work}{compiling()}".encode("ascii", "backslashreplace").decode()
        try:
            width = os.get_terminal_size(self._descriptor).columns
        except OSError:
            width = 0
        room = (width or 80) - 1 - len(seconds)
        return (text if len(text) <= room else f"{text[: max(room - 3, 0)]}...") + seconds

    def _clear(self) -> None:
        if self._shown:
            self._write(_CLEAR)
            self._shown = False

    def _write(self, text: str) -> None:
        """Past Python's streams, whose locks a process that begins as a copy of this one would find held."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode())


class _Stream:
    """A stream on the terminal; the line gives way to what is written there. The reader of a pipe prints at any time
    after the first write: the line ends there."""

    def __init__(self, stream: TextIO, line: _Line) -> None:
        self._stream = stream
        self._before: Callable[[str], None] = line.give_way if stream.isatty() else lambda _: line.end()

    def write(self, text: str) -> int:
        self._before(text)
        return int(self._stream.write(text))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_lines: list[_Line] = []


@contextlib.contextmanager
def line_of_work(work: str) -> Iterator[None]:
    """Show ``work`` in the last line while the command runs, if standard error is a terminal."""
    try:
        wanted = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        descriptor = sys.stderr.fileno() if wanted else -1
    except (OSError, ValueError, AttributeError):
        wanted = False
    if not wanted:
        yield
        return
    line, before = _Line(work, descriptor), (sys.stdout, sys.stderr)
    _lines.append(line)
    os.register_at_fork(after_in_child=lambda: _as_before(before))
    sys.stderr = _Stream(sys.stderr, line)
    if sys.stdout.isatty() or _is_pipe(sys.stdout):
        sys.stdout = _Stream(sys.stdout, line)
    try:
        yield
    finally:
        _as_before(before)
        _lines.remove(line)
        line.end()


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def working(work: str) -> Iterator[None]:
    """Show the current work of the command in the line."""
    for line in _lines:
        line.work = work
    yield


def at_rest() -> None:
    """From now on the command waits for others: nothing is missing in its silence."""
    for line in _lines:
        line.end()


def _as_before(streams: tuple[TextIO, TextIO]) -> None:
    sys.stdout, sys.stderr = streams


def compiling() -> str:
    """That kernels are being compiled, which is done once, and how many have been."""
    kernel_times = getattr(sys.modules.get("nvdla.kernels.jit.kernel_times"), "kernel_times", None)
    return f", compiling kernels, once ({kernel_times.compiled + 1})" if kernel_times and kernel_times.compiling else ""


def ending_signals() -> list[int]:
    """Signals besides Ctrl-C that end a server: SIGTERM, and SIGHUP of a closed terminal unless nohup ignores it."""
    hangup: int | None = getattr(signal, "SIGHUP", None)
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, hangup]
