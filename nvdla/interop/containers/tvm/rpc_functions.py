"""Functions of the server for remote callers: the emulator's functions, and the ones TVM's own client asks for.

``nvdla.load(file or bytes, config, abi)`` makes a module of a loadable. Its functions, and the global ``nvdla.*``
which take the module as first argument, follow TVM's graph executor: ``run(inputs..., outputs...)`` at once, or
``set_input``, ``run()`` and ``get_output``. Files are what the caller uploaded, or files in the server's directory.
"""

from __future__ import annotations

import json
import os
import stat
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import nvdla
from nvdla.emulator.hardware.configuration import configurations
from nvdla.errors import FormatError, shape_text
from nvdla.interop.containers.tvm.crt import CrtModule, CrtRuntime, FuncRegistry, FunctionHandle, ModuleHandle
from nvdla.interop.containers.tvm.rpc_protocol import TensorView
from nvdla.interop.containers.tvm.rpc_session import RemoteMemory, RpcSession
from nvdla.interop.containers.tvm.rpc_worker import NetworkInfo, TensorInfo, Worker
from nvdla.limits import Limits

_REGISTRY_BYTES = 4096
_MAX_MODULES = 64
_MAX_UPLOADS = 256


@dataclass
class Service:
    """State shared by all callers: the folder of loadables (None: only uploads) and the limits.

    ``memory_limit`` bounds what is kept for one caller, in bytes, all together: tensors, uploads, networks with their
    inputs and outputs. ``limits`` bound one run; ``strict`` refuses one that leaves a region of memory. Each caller's
    networks have their own process."""

    models: Path | None = None
    memory_limit: int = 1 << 30
    transfer_limit: int = 256 << 20
    threads: int | None = None
    limits: Limits = field(default_factory=Limits)
    strict: bool = False
    make_worker: Callable[[int | None, Limits, bool], Worker] = Worker
    _workers: weakref.WeakSet[Worker] = field(default_factory=weakref.WeakSet)

    def session(self) -> RpcSession:
        """A new caller's session with all functions registered."""
        runtime = CrtRuntime(_REGISTRY_BYTES, _MAX_MODULES, max_transfer_bytes=self.transfer_limit)
        worker = self.make_worker(self.threads, self.limits, self.strict)
        self._workers.add(worker)
        session = RpcSession(runtime, RemoteMemory(self.memory_limit), on_close=worker.close)
        Functions(self, session, worker).register()
        return session

    def close(self) -> None:
        """Ends all callers' processes, and with them the runs in progress."""
        for worker in list(self._workers):
            worker.close()


class ServedNetwork:
    """A loaded network, run for one caller in its worker."""

    def __init__(self, session: RpcSession, worker: Worker, info: NetworkInfo) -> None:
        self._session = session
        self._worker = worker
        self.info = info
        self._inputs: list[np.ndarray | None] = [None] * len(info.inputs)
        self._outputs: list[np.ndarray] = []

    def module(self, on_free: Callable[[], None]) -> CrtModule:
        """The functions of the network as a module of the runtime."""
        functions: dict[str, Callable[..., object]] = {
            "run": self.run, "run_raw": self.run_raw, "set_input": self.set_input, "get_output": self.get_output,
            "get_num_inputs": lambda *_: len(self.info.inputs),
            "get_num_outputs": lambda *_: len(self.info.outputs), "describe": self.describe,
        }  # fmt: skip
        return CrtModule(FuncRegistry(list(functions), list(functions.values())), self, on_free)

    def describe(self, *_: object) -> str:
        """JSON: the configuration, name, shape, dtype and size of every input and output, and warnings of
        the runs so far (``warnings``)."""
        tensors = {
            kind: [
                {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "bytes": t.bytes}
                for t in getattr(self.info, kind)
            ]
            for kind in ("inputs", "outputs")
        }
        info, warnings = self.info, self._worker.warnings(self.info.number)
        return json.dumps({"config": info.config, "config_reason": info.config_reason, **tensors, "warnings": warnings})

    def set_input(self, *arguments: Any) -> None:
        """Input number or name, tensor (NCHW)."""
        if len(arguments) != 2 or not isinstance(arguments[1], TensorView):
            raise FormatError("set_input: arguments: must be the number or name of an input, and a tensor")
        index = _find(self.info.inputs, arguments[0], "input")
        self._inputs[index] = self._input(self.info.inputs[index], arguments[1])

    def _input(self, tensor: TensorInfo, view: TensorView) -> np.ndarray:
        """A copy of a caller's tensor, no larger than what was counted when the network was loaded."""
        array = self._session.array(view)
        if array.nbytes > tensor.array_bytes:
            raise FormatError(
                f"input {tensor.name!r}: must be {tensor.dtype} {shape_text(tensor.shape)} "
                f"({tensor.array_bytes} bytes), got {array.dtype} {shape_text(array.shape)}"
            )
        return array.copy()

    def get_output(self, *arguments: Any) -> np.ndarray | None:
        """Output number or name; with a tensor as well, the output is written there."""
        if not 1 <= len(arguments) <= 2:
            raise FormatError(
                "get_output: arguments: must be the number or name of an output, and optionally a tensor to write to"
            )
        index = _find(self.info.outputs, arguments[0], "output")
        if not self._outputs:
            raise FormatError("no output yet. Run the network first.")
        if len(arguments) == 1:
            return self._outputs[index]
        self._write(arguments[1:], self._outputs[index : index + 1])
        return None

    def run(self, *arguments: Any) -> np.ndarray | None:
        """Without arguments, on the inputs that were set. With the input tensors, or the input and the output tensors.
        Returns the output where there is one and no output tensor was given."""
        inputs, outputs = self._split(arguments)
        if inputs:
            self._inputs = [self._input(t, view) for t, view in zip(self.info.inputs, inputs, strict=True)]
        missing = [t.name for t, value in zip(self.info.inputs, self._inputs, strict=True) if value is None]
        if missing:
            raise FormatError(f"input {missing[0]!r}: must be set. Call set_input, or pass the inputs to run.")
        self._outputs = self._worker.run(self.info.number, self._inputs)  # type: ignore[arg-type]
        return self._deliver(arguments, outputs, self._outputs)

    def run_raw(self, *arguments: Any) -> np.ndarray | None:
        """Run on raw surfaces: one-dimensional tensors of uint8 in and out."""
        inputs, outputs = self._split(arguments)
        if not inputs:
            raise FormatError(f"run_raw: arguments: must be {len(self.info.inputs)} input surfaces as uint8 tensors")
        surfaces = [self._session.array(view).tobytes() for view in inputs]
        result = self._worker.run_raw(self.info.number, surfaces)
        arrays = [np.frombuffer(surface, np.uint8) for surface in result]
        return self._deliver(arguments, outputs, arrays)

    def _split(self, arguments: tuple[Any, ...]) -> tuple[tuple[TensorView, ...], tuple[TensorView, ...]]:
        """Arguments as inputs and outputs; both may be absent."""
        ins, outs = len(self.info.inputs), len(self.info.outputs)
        if len(arguments) not in (0, ins, ins + outs) or not all(isinstance(a, TensorView) for a in arguments):
            raise FormatError(
                f"run: arguments: must be none, {ins} inputs, or {ins} inputs and {outs} outputs, got {len(arguments)}"
            )
        return arguments[:ins], arguments[ins:]

    def _deliver(
        self, arguments: tuple[object, ...], views: tuple[object, ...], arrays: list[np.ndarray]
    ) -> np.ndarray | None:
        if views:
            self._write(views, arrays)
            return None
        return arrays[0] if arguments and len(arrays) == 1 else None

    def _write(self, views: tuple[object, ...], arrays: list[np.ndarray]) -> None:
        for view, array in zip(views, arrays, strict=True):
            if not isinstance(view, TensorView):
                raise FormatError("output: must be a tensor")
            target = self._session.array(view)
            if target.shape != array.shape or target.dtype != array.dtype:
                raise FormatError(
                    f"output: must be {array.dtype} {shape_text(array.shape)}, got "
                    f"{target.dtype} {shape_text(target.shape)}"
                )
            target[...] = array


def _find(tensors: Sequence[TensorInfo], key: object, kind: str) -> int:
    """A tensor by its number or name."""
    names = [tensor.name for tensor in tensors]
    if isinstance(key, str) and key in names:
        return names.index(key)
    if isinstance(key, int) and 0 <= key < len(names):
        return key
    raise FormatError(f"{kind}: must be one of {', '.join(map(repr, names[:16]))}, got {repr(key)[:80]}")


class Functions:
    """The global functions of one caller."""

    def __init__(self, service: Service, session: RpcSession, worker: Worker) -> None:
        self._service = service
        self._session = session
        self._worker = worker
        self._runtime = session.runtime
        self._memory = session.memory
        self._files: dict[str, bytes] = {}

    def register(self) -> None:
        """Offer the toolkit's functions to callers."""
        for name, function in {
            "nvdla.version": lambda *_: nvdla.__version__,
            "nvdla.functions": lambda *_: "\n".join(self._runtime.global_names()),
            "nvdla.load": self._load, "nvdla.free": self._free,
            "nvdla.run": self._of("run"), "nvdla.run_raw": self._of("run_raw"),
            "nvdla.set_input": self._of("set_input"), "nvdla.get_output": self._of("get_output"),
            "nvdla.describe": self._of("describe"),
            "ffi.FunctionListGlobalNamesFunctor": self._name_functor, "nvdla.function_name": self._function_name,
            "tvm.rpc.server.upload": self._upload, "tvm.rpc.server.download": self._download,
            "tvm.rpc.server.remove": self._remove, "tvm.rpc.server.listdir": self._list,
            "tvm.rpc.server.load_module": self._load,
        }.items():  # fmt: skip
            self._runtime.register(name, function)

    def _of(self, name: str) -> Callable[..., object]:
        """A module's function as a global one that takes the module first."""

        def call(*arguments: object) -> object:
            if not arguments or not isinstance(arguments[0], ModuleHandle):
                raise FormatError(f"nvdla.{name}: first argument: must be the module that nvdla.load returned")
            state = self._runtime.module(arguments[0]).state
            return getattr(state, name)(*arguments[1:])

        return call

    def _load(self, *arguments: Any) -> ModuleHandle:
        """A loadable's bytes or the name of a file; configuration and ABI, if they are not to be found out."""
        if not 1 <= len(arguments) <= 3 or not all(isinstance(a, str) for a in arguments[1:]):
            raise FormatError(
                "nvdla.load: arguments: must be a loadable (bytes, or the name of a file), a configuration and an ABI"
            )
        source, config, abi = (*arguments, "auto", "auto")[:3]
        if config not in ("auto", *configurations()):  # names only: callers read no files of the server's
            raise FormatError(
                f"hardware configuration: must be one of {', '.join(configurations())}, got {config[:80]!r}"
            )
        data = source if isinstance(source, bytes) else self._file(source)
        info = self._worker.load(data, config, abi, self._memory.limit - self._memory.used)
        self._memory.charge(info.kept, "the network: ")
        try:
            return self._runtime.add_module(
                ServedNetwork(self._session, self._worker, info).module(lambda: self._release(info))
            )
        except FormatError:
            self._release(info)
            raise

    def _release(self, info: NetworkInfo) -> None:
        self._memory.give_back(info.kept)
        self._worker.free(info.number)

    def _free(self, *arguments: object) -> None:
        if len(arguments) != 1 or not isinstance(arguments[0], ModuleHandle):
            raise FormatError("nvdla.free: argument: must be the module that nvdla.load returned")
        self._runtime.free_module(arguments[0])

    def _file(self, name: object) -> bytes:
        """An upload, or a file in the folder that the server offers (never outside it)."""
        if not isinstance(name, str):
            raise FormatError(f"loadable: must be bytes or the name of a file, got {type(name).__name__}")
        if name in self._files:
            return self._files[name]
        if self._service.models is None:
            raise FormatError(f"missing file {name[:200]!r}. Upload it, or start the server with --models DIR.")
        return _model(self._service.models, name, self._service.memory_limit)

    def _upload(self, *arguments: Any) -> None:
        if len(arguments) != 2 or not isinstance(arguments[0], str) or not isinstance(arguments[1], bytes):
            raise FormatError("upload: arguments: must be a name and bytes")
        name, data = arguments
        if len(self._files) >= _MAX_UPLOADS and name not in self._files:
            raise FormatError(f"uploads: must be at most {_MAX_UPLOADS} files. Remove some.")
        old = self._upload_size(name)
        self._memory.charge(max(len(name) + len(data) - old, 0), "upload: ")
        self._memory.give_back(max(old - len(name) - len(data), 0))
        self._files[name] = data

    def _upload_size(self, name: str) -> int:
        return len(name) + len(self._files[name]) if name in self._files else 0

    def _download(self, *arguments: object) -> bytes:
        name = arguments[0] if arguments else None
        if not isinstance(name, str) or name not in self._files:
            raise FormatError(f"nothing named {str(name)[:200]!r} was uploaded")
        return self._files[name]

    def _remove(self, *arguments: object) -> None:
        name = str(arguments[0]) if arguments else ""
        self._memory.give_back(self._upload_size(name))
        self._files.pop(name, None)

    def _list(self, *_: object) -> str:
        return ",".join(self._files)

    def _name_functor(self, *_: object) -> FunctionHandle:
        """As TVM's own: a function which gives the number of names for -1, and a name for its index."""
        return FunctionHandle(self._runtime.get_global("nvdla.function_name") or 0)

    def _function_name(self, *arguments: object) -> object:
        names = list(self._runtime.global_names())
        index = arguments[0] if len(arguments) == 1 else None
        if not isinstance(index, int) or not -1 <= index < len(names):
            raise FormatError(
                f"function_name: argument: must be -1 (the number of functions) or an index below {len(names)}"
            )
        return len(names) if index == -1 else names[index]


def _model(folder: Path, name: str, limit: int) -> bytes:
    """A regular file in the offered folder, never outside it; messages do not reveal the directory's path."""
    missing = FormatError(f"missing file {name[:200]!r}. Upload it, or copy it to the directory of --models.")
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise missing
        # A pipe without a writer would block the caller.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError, RuntimeError):
        raise missing from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise FormatError(f"{name[:200]!r}: must be a regular file")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1) if status.st_size <= limit else b""
    if status.st_size > limit or len(data) > limit:
        raise FormatError(f"{name[:200]!r}: must have at most {limit} bytes (--memory-limit), got {status.st_size}")
    return data
