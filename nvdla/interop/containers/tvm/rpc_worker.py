"""A caller's networks in a separate process, so that one caller's run does not stop another's.

The server starts one worker for the first network of a caller. The worker ends with the connection, even during a run.
Jobs and answers go through the worker's standard input and output; both ends are this program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import nvdla
from nvdla import errors
from nvdla.errors import FormatError, NvdlaError, printable
from nvdla.kernels.threads import interrupts_kept
from nvdla.limits import Limits
from nvdla.loadable import load as load_loadable
from nvdla.util.escaping import Document
from nvdla.util.processes import interpreter, receive, send

#: Memory of a loaded network in addition to the memory of its tasks: the file's bytes as blobs, linked, and packed
#: for the kernels.
_COPIES_OF_THE_FILE = 3
_CODE = "from nvdla.interop.containers.tvm.rpc_worker import main; main()"


@dataclass(frozen=True)
class TensorInfo:
    """A bound tensor as callers see it; ``bytes`` is the size of its surface."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def array_bytes(self) -> int:
        """Bytes of its elements."""
        return int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class NetworkInfo:
    """Description of a loaded network. ``kept``: bytes that it takes while it is loaded, with one set of inputs and
    of outputs."""

    number: int
    config: str
    config_reason: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    kept: int


class Worker:
    """The server's end of a process that loads and runs networks; it is started with the first job."""

    def __init__(self, threads: int | None = None, limits: Limits | None = None, strict: bool = False) -> None:
        self._settings = [threads, asdict(limits or Limits()), strict]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def load(self, data: bytes, config: str, abi: str, limit: int) -> NetworkInfo:
        """Loads a network that may take ``limit`` bytes. Raises NvdlaError."""
        answer = self._do("load", data, config, abi, limit)
        for kind in ("inputs", "outputs"):
            answer[kind] = tuple(TensorInfo(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in answer[kind])
        return NetworkInfo(**answer)

    def run(self, number: int, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Runs on tensors (N, C, H, W), one an input; the outputs. Raises NvdlaError."""
        return self._do("run", number, list(inputs))

    def run_raw(self, number: int, surfaces: Sequence[bytes]) -> list[bytes]:
        """Run on raw surfaces."""
        return self._do("run_raw", number, list(surfaces))

    def warnings(self, number: int) -> list[str]:
        """Return the warnings of the network's runs."""
        return self._do("warnings", number)

    def free(self, number: int) -> None:
        """Forget a network."""
        if self._process is not None and not self._is_closed:
            self._do("free", number)

    def close(self) -> None:
        """End the process, even during a run. May be called from any thread."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
                with contextlib.suppress(OSError):
                    self._process.stdin.close()  # type: ignore[union-attr]
                self._process.wait()

    def _do(self, name: str, *arguments: object) -> Any:
        process = self._started()
        assert process.stdin and process.stdout  # both are pipes
        try:
            send(process.stdin, [name, *arguments])
            kind, value = receive(process.stdout)
        except (OSError, EOFError, ValueError):
            self.close()
            raise FormatError("the process with this client's networks has ended. Connect again.") from None
        if kind is None:
            return value
        known = getattr(errors, kind, None)
        raise (known if isinstance(known, type) and issubclass(known, NvdlaError) else FormatError)(value)

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise FormatError("networks of this client: released, because the connection is being closed")
            if self._process is None:
                with interrupts_kept():
                    self._process = subprocess.Popen(interpreter(_CODE), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                assert self._process.stdin  # a pipe
                send(self._process.stdin, self._settings)
            return self._process


class _Networks:
    """The worker's end."""

    def __init__(self, threads: int | None, limits: Limits, strict: bool = False) -> None:
        self._settings: Document = {"threads": threads, "limits": limits, "strict": strict}
        self._loaded: dict[int, nvdla.Runtime] = {}
        self._told: set[int] = set()
        self._next = 0

    def load(self, data: bytes, config: str, abi: str, limit: int) -> Document:
        loadable = load_loadable(data)
        kept = _COPIES_OF_THE_FILE * len(data) + sum(memory.size for memory in loadable.memories)
        _check_kept(kept, limit)
        runtime = nvdla.Runtime(loadable, config=config, abi=abi, **self._settings)
        inputs, outputs = (tuple(map(_info, tensors)) for tensors in (runtime.inputs, runtime.outputs))
        kept += sum(tensor.array_bytes for tensor in (*inputs, *outputs))
        _check_kept(kept, limit)
        self._next += 1
        self._loaded[self._next] = runtime
        return asdict(NetworkInfo(self._next, runtime.config.name, runtime.config_reason, inputs, outputs, kept))

    def run(self, number: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
        runtime = self._loaded[number]
        result = runtime.run(inputs)
        self._tell(number)
        return [np.asarray(result[tensor.name]) for tensor in runtime.outputs]

    def run_raw(self, number: int, surfaces: list[bytes]) -> list[bytes]:
        result = [bytes(surface) for surface in self._loaded[number].run_raw(surfaces)]
        self._tell(number)
        return result

    def _tell(self, number: int) -> None:
        """Print the warnings of a network once, where the server was started."""
        if number not in self._told:
            self._told.add(number)
            for warning in self._loaded[number].warnings:
                print(f"nvdla serve: network {number}: warning: {printable(warning)}", file=sys.stderr, flush=True)

    def warnings(self, number: int) -> list[str]:
        return self._loaded[number].warnings

    def free(self, number: int) -> None:
        del self._loaded[number]


def _check_kept(kept: int, limit: int) -> None:
    if kept > limit:
        raise FormatError(
            f"size of the network: must be at most {limit} bytes, got {kept}. Free others, or raise --memory-limit."
        )


def _info(tensor: Any) -> TensorInfo:
    return TensorInfo(tensor.name, tuple(tensor.shape), str(np.dtype(tensor.dtype)), tensor.size)


def main() -> None:
    """The worker: answers until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, and that ends the workers
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not become part of an answer
    threads, limits, strict = receive(jobs)
    networks = _Networks(threads, Limits(**limits), strict)
    while True:
        try:
            name, *arguments = receive(jobs)
        except EOFError:
            return
        try:
            answer = [None, getattr(networks, name)(*arguments)]
        except NvdlaError as error:
            answer = [type(error).__name__, str(error)]
        except MemoryError:
            answer = ["FormatError", "the machine has too little memory for this"]
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            answer = ["FormatError", f"internal fault: {type(error).__name__}; the server's log has it"]
        try:
            send(answers, answer)
        except BrokenPipeError:  # the server has ended
            os._exit(0)
