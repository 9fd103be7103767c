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
from dataclasses import asdict, dataclass
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
    from onnx import ModelProto, NodeProto, ValueInfoProto


TOO_LARGE = "the model needs more memory than it may have (ModelLimits.memory)"
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
                raise RuntimeError("model: must be opened in the process that uses it, got one from before a fork")
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
            code, peak = map(integer, os.read(self._status, 64).decode("ascii", "replace").split())
        except (OSError, ValueError):
            code = peak = 0
        self._close()
        gibibytes = f"{self.limits.memory / 2**30:g} GiB of memory (ModelLimits.memory)"
        if code == -getattr(signal, "SIGXCPU", 0):
            return (
                f"{what}: too much work: must take at most {self.limits.seconds:,} seconds of processor time "
                "(ModelLimits.seconds). --trusted (trusted=True) removes the limit for a model that you trust"
            )
        if code == -getattr(signal, "SIGKILL", 0):
            return f"{what}: the system ended the process that reads it (out of memory?); the limit is {gibibytes}"
        if code < 0 and peak > self.limits.memory // 2:  # onnx uses memory that it did not get
            return f"{what}: {TOO_LARGE}"
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{what}: onnx or onnxruntime crashed on it ({name}): it is malformed, or needs more than {gibibytes}"


def _end(reader: IO[bytes], writer: IO[bytes], connection: socket.socket, status: int) -> None:
    """Close a worker's connection; the server ends the process once its status pipe has no reader."""
    for stream in (reader, connection, writer):
        with contextlib.suppress(OSError, ValueError):
            stream.close()
    with contextlib.suppress(OSError):
        os.close(status)


#: domain of nodes that LiteRT's interpreter computes; their attribute "model" is a TFLite model
LITERT = "nvdla.litert"


#: TensorProto.DataType by onnxruntime's names
RUNTIME_TYPES = {
    "tensor(float)": 1,
    "tensor(uint8)": 2,
    "tensor(int8)": 3,
    "tensor(uint16)": 4,
    "tensor(int16)": 5,
    "tensor(int32)": 6,
    "tensor(int64)": 7,
    "tensor(string)": 8,
    "tensor(bool)": 9,
    "tensor(float16)": 10,
    "tensor(double)": 11,
    "tensor(uint32)": 12,
    "tensor(uint64)": 13,
    "tensor(bfloat16)": 16,
}


@dataclass(frozen=True)
class End:
    """An input or output of a session, as onnxruntime describes it."""

    name: str
    type: str
    shape: list[int | str | None]


def packages() -> tuple[ModuleType, ModuleType]:
    """onnx and onnxruntime. Raises FormatError that says how to install them."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        extra = "pip install 'nvdla[onnx]', or 'nvdla[tflite]' for TFLite"
        raise FormatError(f"package {error.name}: must be installed to compile a model: {extra}") from None
    return onnx, onnxruntime


def one_line(error: object) -> str:
    """An error of another library on one line. Raises MemoryError where it is one: the model is not to blame."""
    if isinstance(error, MemoryError):
        raise error
    return " ".join(str(error).split())[:300] or type(error).__name__


def run_once(model: ModelProto, name: str, feeds: Mapping[str, np.ndarray] | None = None) -> list[np.ndarray]:
    """Outputs of a small model in onnxruntime, without optimization. Raises FormatError."""
    return run_session(session(model, name, optimize=False), name, None, dict(feeds or {}))


def session(model: ModelProto | bytes, name: str, optimize: bool = True, threads: int | None = None) -> Any:
    """An onnxruntime session of a ModelProto in this process. Raises FormatError with ``name`` when it cannot be
    made."""
    _, runtime = packages()
    options = runtime.SessionOptions()
    levels = runtime.GraphOptimizationLevel
    options.log_severity_level = 4
    # Between two runs the processor has other work than waiting threads.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if threads:
        options.intra_op_num_threads = threads
    try:
        data = model if isinstance(model, bytes) else model.SerializeToString()
        # Without it, optimized int8 products on processors with AVX2 alone saturate their 16-bit sums: wrong by many
        # units. Operators with "QLinear" in their names exclude it.
        options.add_session_config_entry("session.x64quantprecision", str(int(b"QLinear" not in data)))
        # onnxruntime refuses a model with it where two of these products share a constant, such as a zero point: real
        # products between DequantizeLinear and QuantizeLinear stay real.
        best = levels.ORT_ENABLE_BASIC if b"DequantizeLinear" in data else levels.ORT_ENABLE_ALL
        options.graph_optimization_level = best if optimize else levels.ORT_DISABLE_ALL
        if LITERT.encode() in data and any(
            node.domain == LITERT for node in packages()[0].ModelProto.FromString(data).graph.node
        ):
            return _MixedSession(data, name, optimize, threads)
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except FormatError:
        raise
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


class _Interpreted:
    """A node that LiteRT's interpreter computes. Every run begins with zeros in its variables."""

    def __init__(self, node: NodeProto, name: str) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter, OpResolverType
        except ImportError:
            how = "pip install 'nvdla[tflite]'"
            raise FormatError(f"{name}: {node.op_type} needs LiteRT's interpreter: {how}") from None
        model = next((field.s for field in node.attribute if field.name == "model"), b"")
        kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        try:
            self._interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kind, num_threads=1)
            self._interpreter.allocate_tensors()
        except Exception as error:  # the interpreter raises ValueError and RuntimeError
            raise FormatError(f"{name}: {node.op_type}: LiteRT cannot run it: {one_line(error)}") from None
        self._inputs, self._outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        self._given, self.outputs = list(node.input), list(node.output)
        if len(self._given) != len(self._inputs) or len(self.outputs) != len(self._outputs):
            raise FormatError(f"{name}: {node.op_type}: TFLite model: must have the inputs and outputs of the node")

    def ends(self, onnx: ModuleType) -> list[ValueInfoProto]:
        """Types and shapes of the results."""
        make, kind = onnx.helper.make_tensor_value_info, onnx.helper.np_dtype_to_tensor_dtype
        rows = zip(self.outputs, self._outputs, strict=True)
        return [make(name, kind(np.dtype(row["dtype"])), row["shape"].tolist()) for name, row in rows]

    def run(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the results."""
        self._interpreter.reset_all_variables()
        for name, row in zip(self._given, self._inputs, strict=True):
            self._interpreter.set_tensor(row["index"], np.ascontiguousarray(values[name], row["dtype"]))
        self._interpreter.invoke()
        return {
            name: self._interpreter.get_tensor(row["index"])
            for name, row in zip(self.outputs, self._outputs, strict=True)
        }


class _MixedSession:
    """A session of a model of which LiteRT's interpreter computes some nodes and onnxruntime all others."""

    def __init__(self, data: bytes, name: str, optimize: bool, threads: int | None) -> None:
        self._onnx, _ = packages()
        self._proto = self._onnx.ModelProto.FromString(data)
        self._open = lambda proto: session(proto, name, optimize, threads)
        graph = self._proto.graph
        self._held = {constant.name: constant for constant in graph.initializer}
        self._infos = {info.name: info for info in graph.input if info.name not in self._held}
        self._outputs = [info.name for info in graph.output]
        self._inputs = list(self._infos)
        self._segments: list[Any] = []
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.domain == LITERT:
                self._add(nodes)
                self._segments.append(_Interpreted(node, name))
                self._infos |= {info.name: info for info in self._segments[-1].ends(self._onnx)}
                nodes = []
            else:
                nodes.append(node)
        self._add(nodes)

    def _add(self, nodes: list[NodeProto]) -> None:
        """Add a session of nodes of onnxruntime."""
        helper, graph = self._onnx.helper, self._proto.graph
        written = {name for node in nodes for name in node.output if name}
        others = [name for node in graph.node if not written & set(node.output) for name in reads(node)]
        outputs = [name for name in dict.fromkeys((*others, *self._outputs)) if name in written]
        if not outputs:
            return
        read = list(dict.fromkeys(name for node in nodes for name in reads(node) if name not in written))
        inputs = [self._infos[name] for name in read if name in self._infos]
        held = [self._held[name] for name in read if name in self._held]
        results = [self._onnx.ValueInfoProto(name=name) for name in outputs]
        part = helper.make_graph(nodes, "part", inputs, results, held)
        opsets = [opset for opset in self._proto.opset_import if opset.domain != LITERT]
        opened = self._open(helper.make_model(part, opset_imports=opsets, ir_version=self._proto.ir_version))
        for end in opened.get_outputs():
            shape = end.shape or None  # empty for an unknown rank, too
            self._infos[end.name] = helper.make_tensor_value_info(end.name, RUNTIME_TYPES[end.type], shape)
        self._segments.append(_Part(opened, [info.name for info in inputs], outputs))

    def _ends(self, names: Sequence[str]) -> list[End]:
        words = {number: word for word, number in RUNTIME_TYPES.items()}
        ends = []
        for name in names:
            tensor = self._infos[name].type.tensor_type
            sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
            ends.append(End(name, words[tensor.elem_type], list(sizes)))
        return ends

    def get_inputs(self) -> list[End]:
        """Inputs in order."""
        return self._ends(self._inputs)

    def get_outputs(self) -> list[End]:
        """Outputs in order."""
        return self._ends(self._outputs)

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs by name (None: all)."""
        values = dict(feeds)
        for segment in self._segments:
            values |= segment.run(values)
        return [values[name] for name in (self._outputs if outputs is None else outputs)]


@dataclass(frozen=True)
class _Part:
    """Nodes of onnxruntime between those of the interpreter."""

    opened: Any
    inputs: list[str]
    outputs: list[str]

    def run(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the results."""
        results = self.opened.run(self.outputs, {name: values[name] for name in self.inputs})
        return dict(zip(self.outputs, results, strict=True))


def reads(node: NodeProto) -> list[str]:
    """Value names that a node reads; sub-graphs read values of the graph around them."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            inner = {value.name for value in [*graph.input, *graph.initializer]}
            inner |= {name for inner_node in graph.node for name in inner_node.output}
            names += [name for inner_node in graph.node for name in reads(inner_node) if name not in inner]
            names += [output.name for output in graph.output if output.name not in inner]
    return list(dict.fromkeys(names))
