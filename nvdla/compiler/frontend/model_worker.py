"""Processes of :mod:`nvdla.compiler.frontend.isolation`: a server that forks, and workers that read and run
models.

The server stays small and has one thread. It imports what models need, and never opens one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence

from nvdla.compiler.frontend import isolation
from nvdla.errors import NvdlaError, OutOfMemoryError
from nvdla.kernels.threads import end_with_parent
from nvdla.limits import ModelLimits
from nvdla.util.processes import receive, send

_PRELOADED = (
    "ctypes",
    "onnx",
    "onnx.checker",
    "onnx.inliner",
    "onnx.shape_inference",
    "onnx.version_converter",
    "onnxruntime",
    "nvdla.compiler.frontend.opening",
    "nvdla.compiler.frontend.model",
)


def main(control: int) -> None:
    """Fork a worker for every pair of connection and status pipe that arrives, until ``control`` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and that ends the workers
    with contextlib.suppress(AttributeError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):  # a call then says what to install
            importlib.import_module(name)
    _warm_up()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    _Forks(socket.socket(fileno=control), woken, waking).serve()


def _warm_up() -> None:
    """Build onnx's tables of operators before the first fork, with a model of our own."""
    try:
        from onnx import TensorProto, checker, helper, shape_inference
    except ImportError:
        return
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:]))
    model.ir_version, model.opset_import[0].version = 8, 17
    checker.check_model(model)
    shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


class _Forks:
    def __init__(self, control: socket.socket, woken: int, waking: int) -> None:
        self.control, self.woken, self.waking = control, woken, waking
        self.status: dict[int, int] = {}  # process -> where its end is reported

    def serve(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self.control, select.POLLIN)
            poll.register(self.woken, select.POLLIN)
            for pipe in self.status.values():
                poll.register(pipe, 0)  # an error: the pipe to this worker's caller is closed
            for descriptor, _ in poll.poll():
                if descriptor == self.control.fileno():
                    if not self.accept():
                        for process in self.status:
                            os.kill(process, signal.SIGKILL)
                        return
                elif descriptor == self.woken:
                    os.read(self.woken, 4096)
                else:
                    self.end(descriptor)
            self.reap()

    def accept(self) -> bool:
        """Fork a worker; False where the parent has ended."""
        try:
            data, descriptors, *_ = socket.recv_fds(self.control, 1, 2)
        except OSError:
            return False
        if not data or len(descriptors) != 2:
            return False
        server, process = os.getpid(), os.fork()
        if not process:
            self.work(descriptors[0], server, descriptors[1])
        os.close(descriptors[0])
        self.status[process] = descriptors[1]
        return True

    def end(self, pipe: int) -> None:
        for process, status in self.status.items():
            if status == pipe:
                os.kill(process, signal.SIGKILL)

    def reap(self) -> None:
        for process in list(self.status):
            done, status, used = os.wait4(process, os.WNOHANG)
            if done:
                pipe, unit = self.status.pop(process), 1 if sys.platform == "darwin" else 1024
                with contextlib.suppress(OSError):
                    os.write(pipe, f"{os.waitstatus_to_exitcode(status)} {used.ru_maxrss * unit}".encode())
                os.close(pipe)

    def work(self, connection: int, server: int, status: int) -> None:
        """In the fork: answer until the caller goes."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.close()
            for descriptor in (self.woken, self.waking, status, *self.status.values()):
                os.close(descriptor)
            if sys.platform == "linux":
                end_with_parent(server)
            if not os.environ.get("NVDLA_TRACEBACK"):  # library output about a model is not part of our messages
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            _answer(socket.socket(fileno=connection))
            code = 0
        finally:
            os._exit(code)


def _answer(connection: socket.socket) -> None:
    with connection.makefile("rb") as reader, connection.makefile("wb") as writer:
        try:
            limits = ModelLimits(**receive(reader))
            isolation.LIMITS = limits  # the budgets of folding and of host parts are counted here
            _limit_process(limits)
            while True:
                function, arguments, released = receive(reader)
                _limit_time(limits.seconds)
                send(writer, _result(function, arguments, released))
        except (EOFError, OSError):
            return


def _result(function: str, arguments: Sequence[object], released: list[int]) -> list[object]:
    try:
        if released:
            importlib.import_module("nvdla.compiler.frontend.opening").free(released)
        module, _, name = function.partition(":")
        return [None, getattr(importlib.import_module(module), name)(*arguments)]
    except NvdlaError as error:
        return [type(error).__name__, str(error)]
    except MemoryError:
        return [OutOfMemoryError.__name__, isolation.TOO_LARGE]
    except Exception as error:  # an internal error: reported by the caller as such
        traceback.print_exc()
        return ["", f"{type(error).__name__}: {error}"]


def _limit_process(limits: ModelLimits) -> None:
    import resource

    kinds = {resource.RLIMIT_AS: limits.memory, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    for kind, size in kinds.items():
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit of address space
            resource.setrlimit(kind, (_at_most(size, kind), resource.getrlimit(kind)[1]))


def _limit_time(seconds: int) -> None:
    """Processor time of one call; the process ends with SIGXCPU."""
    import resource

    spent = resource.getrusage(resource.RUSAGE_SELF)
    end = int(spent.ru_utime + spent.ru_stime) + 1 + seconds
    resource.setrlimit(
        resource.RLIMIT_CPU, (_at_most(end, resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_CPU)[1])
    )


def _at_most(value: int, kind: int) -> int:
    """A limit no higher than those that the process has already."""
    import resource

    return min([value, *(limit for limit in resource.getrlimit(kind)[1:] if limit != resource.RLIM_INFINITY)])
