"""Model worker: a process in which onnx and onnxruntime run, and its sessions.

onnx and onnxruntime check a model while they work on it: a malformed one can end the process that they run in, or keep
it busy for hours. So this process starts one server (:mod:`nvdla.compiler.frontend.model_worker`), which has one thread
and has
loaded both packages; every :class:`ModelWorker` is a fork of it. A worker that dies or passes a limit is one
FormatError.

Windows has neither forks nor these limits: there, models are read in this process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from nvdla import errors
from nvdla.errors import FormatError, NvdlaError
from nvdla.kernels.threads import interrupts_kept
from nvdla.limits import ModelLimits
from nvdla.util.processes import interpreter, receive, send
from nvdla.util.rounding import integer

if TYPE_CHECKING:
    from onnx import ModelProto


#: limits of every worker that is started after a change
LIMITS = ModelLimits()
#: variables of the server: one thread of OpenBLAS, so that forks are safe; few heaps, which each reserve address space
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
_BROKEN = (OSError, EOFError, ValueError, TypeError, KeyError)


def available() -> bool:
    """Return whether this system has forks and limits of processes."""
    return hasattr(os, "fork") and bool(sys.executable)


def worker_of(trusted: bool = False) -> ModelWorker | None:
    """A worker for a model, None where it is trusted, or where this system has none."""
    return None if trusted or not available() else ModelWorker()


class _Server:
    """The process that forks the workers. It ends when ``control`` is closed, which the end of this process does."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.control, theirs = socket.socketpair()
        code = f"from nvdla.compiler.frontend.model_worker import main; main({theirs.fileno()})"
        with interrupts_kept(), theirs:
            self.process = subprocess.Popen(
                interpreter(code, "-S"),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
            )

    @property
    def usable(self) -> bool:
        """Return whether it runs, and belongs to this process: not to the one that this is a fork of."""
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        """Let it end; the caller does not wait for that."""
        self.control.close()
        if self.owner != os.getpid() or self.process.poll() is None:
            self.process.returncode = 0


_lock = threading.Lock()
_server: _Server | None = None


def _forget_server() -> None:
    """In a fork of this process: the server is the parent's."""
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        _server.close()
        _server = None


def _stop() -> None:
    if _server is not None:
        _server.close()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_server)


def start() -> None:
    """Start the server, so that it loads its packages while this process does something else."""
    if available():
        _running()


def _running() -> _Server:
    global _server
    with _lock:
        if _server is None or not _server.usable:
            if _server is not None:
                _server.close()
            _server = _Server()
        return _server


class ModelWorker:
    """A process with limits, started with the first call and ended with this object.

    Calls of several threads are done one after the other.
    """

    def __init__(self, limits: ModelLimits | None = None) -> None:
        self.limits = limits or LIMITS
        self._lock = threading.Lock()
        self._end: Callable[[], object] | None = None
        self._released: list[int] = []
        self._owner = os.getpid()

    def call(self, what: str, function: str, *arguments: object) -> Any:
        """Call a function in the worker.

        Args:
            what: the model or part, for messages.
            function: "module:name" of a function of this package.
            arguments: plain values, bytes and arrays.

        Returns:
            What the function returns, as plain values, bytes and arrays.

        Raises:
            NvdlaError: that of the function, or a FormatError where the worker dies or passes a limit.
        """
        with self._lock:
            if os.getpid() != self._owner:
                raise RuntimeError("a model that was opened before a fork cannot run in the child process")
            if self._end is None:
                self._begin()
            released, self._released = self._released, []
            try:
                send(self._writer, [function, list(arguments), released])
                kind, value = receive(self._reader, self.limits.memory)
            except _BROKEN as error:
                raise FormatError(self._cause(what, error)) from None
            except BaseException:  # interrupted in the middle of an answer
                self._close()
                raise
        if kind is None:
            return value
        known = getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, NvdlaError):
            raise known(value)
        raise RuntimeError(f"{what}: {value}")

    def release(self, number: int) -> None:
        """Free a session with the next call; safe in a finalizer."""
        self._released.append(number)

    def close(self) -> None:
        """End the process, also in the middle of a call."""
        with self._lock:
            self._close()

    def _begin(self) -> None:
        server = _running()
        ours, theirs = socket.socketpair()
        status, their_status = os.pipe()
        try:
            socket.send_fds(server.control, [b"w"], [theirs.fileno(), their_status])
        except OSError as error:
            ours.close()
            os.close(status)
            raise FormatError(f"the process that reads models cannot be started: {error}") from None
        finally:
            theirs.close()
            os.close(their_status)
        self._reader, self._writer = ours.makefile("rb"), ours.makefile("wb")
        self._status = status
        self._end = weakref.finalize(self, _end, self._reader, self._writer, ours, status)
        with contextlib.suppress(OSError):
            send(self._writer, asdict(self.limits))

    def _close(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def _cause(self, what: str, error: Exception) -> str:
        """Why the worker gave no answer, or none that can be read; a worker that is still there is ended."""
        if not isinstance(error, (OSError, EOFError)):
            self._close()
            return f"{what}: values that cannot be passed between processes ({error})"
        try:
            code = integer(os.read(self._status, 16).decode("ascii", "replace"))
        except (OSError, ValueError):
            code = 0
        self._close()
        gibibytes = f"{self.limits.memory / 2**30:g} GiB of memory (ModelLimits.memory)"
        if code == -getattr(signal, "SIGXCPU", 0):
            return (
                f"{what}: too much work: must take at most {self.limits.seconds:,} seconds of processor time "
                "(ModelLimits.seconds). --trusted (trusted=True) removes the limit for a model that you trust"
            )
        if code == -getattr(signal, "SIGKILL", 0):
            return f"{what}: the system ended the process that reads it (out of memory?); the limit is {gibibytes}"
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{what}: onnx or onnxruntime crashed on it ({name}): it is malformed, or needs more than {gibibytes}"


def _end(reader: IO[bytes], writer: IO[bytes], connection: socket.socket, status: int) -> None:
    """Close a worker's connection; the server ends the process once its status pipe has no reader."""
    for stream in (reader, connection, writer):
        with contextlib.suppress(OSError, ValueError):
            stream.close()
    with contextlib.suppress(OSError):
        os.close(status)


def packages() -> tuple[ModuleType, ModuleType]:
    """onnx and onnxruntime. Raises FormatError that says how to install them."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise FormatError(f"compiling a model needs {error.name}: pip install 'nvdla[onnx]'") from None
    return onnx, onnxruntime


def one_line(error: object) -> str:
    """An error of another library on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def run_once(model: ModelProto, name: str, feeds: Mapping[str, np.ndarray] | None = None) -> list[np.ndarray]:
    """Outputs of a small model in onnxruntime, without optimisation. Raises FormatError."""
    return run_session(session(model, name, optimize=False), name, None, dict(feeds or {}))


def session(model: ModelProto | bytes, name: str, optimize: bool = True, threads: int | None = None) -> Any:
    """An onnxruntime session of a ModelProto in this process. Raises FormatError with ``name`` when it cannot be
    made."""
    _, runtime = packages()
    options = runtime.SessionOptions()
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if threads:
        options.intra_op_num_threads = threads
    try:
        data = model if isinstance(model, bytes) else model.SerializeToString()
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own exception types
        raise FormatError(f"{name}: onnxruntime cannot run it: {one_line(error)}") from None


def run_session(
    opened: Any, name: str, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Run a session. Raises FormatError with ``name``."""
    try:
        return list(opened.run(None if outputs is None else list(outputs), dict(feeds)))
    except FormatError:
        raise
    except Exception as error:  # onnxruntime raises its own exception types
        raise FormatError(f"{name}: onnxruntime cannot run it: {one_line(error)}") from None
