"""Worker processes: start, end, messages to and from them.

A copy has one thread, the one that asked for it; what another thread held at that moment is held indefinitely. So every
thread of the process must be known to come to no harm: the kernels' helpers and those of OpenBLAS, which both restart
in a copy, the one that listens for Ctrl-C, and the one that says on a terminal that a command still works. With any
other thread (a notebook's, another library's) workers are new interpreters.

Python adds the current directory to the path of a new interpreter. A file there, which may come from anybody, must not
take the place of a module.

No message is unpickled, so a process that a hostile file has taken over cannot make the other one execute code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import IO, Any

import numpy as np

HARMLESS = ("nvdla-kernels", "nvdla-interrupts", "nvdla-working")


def interpreter(code: str, *options: str) -> list[str]:
    """Command of a new interpreter that runs ``code`` with this process's path of modules, the toolkit's included, and
    without the current directory: ``sys``, which is built in, is all that is imported before."""
    path = [*(path for path in sys.path if path), str(Path(__file__).resolve().parents[2])]
    return [sys.executable, *options, "-c", f"import sys; sys.path[:] = {path!r}; {code}"]


def pool(count: int, begin: Callable[..., None], *arguments: object) -> ProcessPoolExecutor:
    """Return a pool of processes: copies of this one where that is safe, new interpreters elsewhere.

    Args:
        count: the number of processes.
        begin: what each process calls first, with the arguments and the id of this process (None in an interpreter).
        arguments: its arguments.
    """
    if may_fork():
        context = multiprocessing.get_context("fork")
        return ProcessPoolExecutor(count, context, begin, (*arguments, os.getpid()))
    with _without_current_directory():  # its queues start a process that tracks them
        return ProcessPoolExecutor(count, _Spawning(), begin, (*arguments, None))


class _NewInterpreter(SpawnProcess):
    def start(self) -> None:
        with _without_current_directory():
            super().start()


class _Spawning(SpawnContext):
    Process = _NewInterpreter


@contextlib.contextmanager
def _without_current_directory() -> Iterator[None]:
    """Start interpreters of multiprocessing without the current directory, which ``python -c`` puts before Python's
    own modules; they get this process's path of modules afterwards."""
    util: Any = importlib.import_module("multiprocessing.util")
    plain = util._args_from_interpreter_flags
    flag = "-P" if sys.version_info >= (3, 11) else "-I"
    util._args_from_interpreter_flags = lambda: [*plain(), flag]
    try:
        yield
    finally:
        util._args_from_interpreter_flags = plain


def may_fork() -> bool:
    """Linux alone, and from Python 3.11 on: older pools start threads before processes."""
    if sys.platform != "linux" or sys.version_info < (3, 11):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    known = 1 + len(others) + _blas_threads()
    return all(name in HARMLESS for name in others) and len(os.listdir("/proc/self/task")) <= known


def _blas_threads() -> int:
    """Return the number of threads of OpenBLAS in this process, without those that call it."""
    from threadpoolctl import threadpool_info

    return sum(
        library["num_threads"] - 1
        for library in threadpool_info()
        if library["internal_api"] == "openblas" and library.get("threading_layer") == "pthreads"
    )


#: keys of values that JSON does not have: bytes and arrays of numbers follow the text; arrays of text; other mappings
_BLOB, _TEXTS, _PAIRS = "$bytes", "$texts", "$pairs"


def send(stream: IO[bytes], value: object) -> None:
    """Write ``value``: the length of its JSON text, the text, then its bytes and arrays."""
    blobs: list[bytes | bytearray | memoryview] = []
    text = json.dumps(_lifted(value, blobs)).encode()
    for piece in (len(text).to_bytes(8, "little"), text, *blobs):
        stream.write(piece)
    stream.flush()


def _lifted(value: object, blobs: list[bytes | bytearray | memoryview]) -> object:
    if isinstance(value, (list, tuple)):
        return [_lifted(item, blobs) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _lifted(item, blobs) for key, item in value.items()}
        return {_PAIRS: [[_lifted(key, blobs), _lifted(item, blobs)] for key, item in value.items()]}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OSU":
            return {_TEXTS: [_text(text) for text in value.ravel()], "shape": list(value.shape)}
        plain = np.ascontiguousarray(value)
        blobs.append(plain.reshape(-1).view(np.uint8).data if plain.nbytes else b"")
        return {_BLOB: plain.nbytes, "dtype": _kind(plain.dtype), "shape": list(value.shape)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        blobs.append(value)
        return {_BLOB: len(value)}
    return value.item() if isinstance(value, np.generic) else value


def _kind(dtype: np.dtype) -> str:
    """A name from which ``np.dtype`` makes the type again; types of ml_dtypes (bfloat16, float8) have no letter."""
    try:
        return dtype.str if np.dtype(dtype.str) == dtype else dtype.name
    except TypeError:
        return dtype.name


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def receive(stream: IO[bytes], limit: int | None = None) -> Any:
    """Read what :func:`send` wrote.

    Args:
        stream: a binary stream.
        limit: the largest accepted number of bytes in all; None: no limit.

    Raises:
        EOFError: the stream ends.
        ValueError: the message is not one of :func:`send`, or longer than ``limit``.
    """
    reader = _Reader(stream, limit)
    return reader.value(json.loads(reader.take(int.from_bytes(reader.take(8), "little"))))


class _Reader:
    def __init__(self, stream: IO[bytes], limit: int | None) -> None:
        self._stream, self._left = stream, limit

    def take(self, size: int) -> bytes:
        self._count(size)
        data = self._stream.read(size)
        if len(data) != size:
            raise EOFError
        return data

    def _array(self, size: int, dtype: str, shape: list[int]) -> np.ndarray:
        self._count(size)
        data = np.empty(size, np.uint8)
        if size and self._stream.readinto(data.data) != size:  # type: ignore[attr-defined]
            raise EOFError
        return data.view(dtype).reshape(shape)

    def _count(self, size: object) -> None:
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"message: size: must be a whole number from 0, got {size!r}")
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise ValueError("message: must fit the header, got one that is too long")

    def value(self, value: object) -> object:
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        if _TEXTS in value:
            return np.array(value[_TEXTS], object).reshape(value["shape"])
        if _PAIRS in value:
            return {self.value(key): self.value(item) for key, item in value[_PAIRS]}
        if _BLOB not in value:
            return {key: self.value(item) for key, item in value.items()}
        if "dtype" in value:
            return self._array(value[_BLOB], value["dtype"], value["shape"])
        return self.take(value[_BLOB])
