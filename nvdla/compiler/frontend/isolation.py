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
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
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
        hint = ". Its numbers are of 64 bits: export it with float32" if _has_doubles(model) else ""
        raise FormatError(f"{name}: onnxruntime cannot run it: {one_line(error)}{hint}") from None


def _has_doubles(model: ModelProto | bytes) -> bool:
    """Check whether an input of a model, which onnxruntime has refused, is of float64."""
    onnx, _ = packages()
    with contextlib.suppress(Exception):  # protobuf raises its own exception types
        proto = onnx.ModelProto.FromString(model) if isinstance(model, bytes) else model
        return any(value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for value in proto.graph.input)
    return False


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


class InterpreterMissing(FormatError):
    """The package ai-edge-litert is not installed."""


def _interpreter(model: bytes, name: str, reference: bool, everything: bool = False) -> Any:
    """LiteRT's interpreter of a TFLite model, with its reference kernels or its optimized ones. Raises FormatError.

    ``everything``: it keeps the values of all tensors.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        raise InterpreterMissing(f"{name} needs LiteRT's interpreter: pip install 'nvdla[tflite]'") from None
    kind = OpResolverType.BUILTIN_REF if reference else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    try:
        interpreter = Interpreter(
            model_content=model,
            experimental_op_resolver_type=kind,
            num_threads=1,
            experimental_preserve_all_tensors=everything,
        )
        interpreter.allocate_tensors()
    except Exception as error:  # the interpreter raises ValueError and RuntimeError
        raise FormatError(f"{name}: LiteRT cannot run it: {one_line(error)}") from None
    return interpreter


class _Interpreted:
    """A node that LiteRT's interpreter computes. Every run begins with zeros in its variables."""

    def __init__(self, node: NodeProto, name: str) -> None:
        model = next((field.s for field in node.attribute if field.name == "model"), b"")
        self._interpreter = _interpreter(model, f"{name}: {node.op_type}", reference=False)
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
        results = _interpret(self._interpreter, self._inputs, self._outputs, [values[name] for name in self._given])
        return dict(zip(self.outputs, results, strict=True))


def _interpret(interpreter: Any, inputs: Sequence[Any], outputs: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Run an interpreter. ``inputs`` and ``outputs``: rows of its details."""
    interpreter.reset_all_variables()
    for row, value in zip(inputs, values, strict=True):
        interpreter.set_tensor(row["index"], np.ascontiguousarray(value, row["dtype"]))
    interpreter.invoke()
    return [interpreter.get_tensor(row["index"]) for row in outputs]


#: what runs the reference of a comparison
ONNXRUNTIME, REFERENCE_KERNELS, OPTIMIZED_KERNELS = (
    "onnxruntime",
    "TFLite's reference kernels",
    "TFLite's optimized kernels",
)
#: operators whose reference kernels are wrong (ai-edge-litert 2.3.0): a quantized SUM gives -1 for all elements,
#: LOCAL_RESPONSE_NORMALIZATION leaves out the last channel of each window
_WRONG_REFERENCES = frozenset(["SUM", "LOCAL_RESPONSE_NORMALIZATION"])


class InterpretedFile:
    """A TFLite file in LiteRT's interpreter, with those methods of an ``InferenceSession`` that this package uses.

    The rounding of the reference kernels is TFLite's specification. Operators without one, or with a wrong one, make
    the interpreter use its optimized kernels for the whole file; ``kernels`` states which.

    Args:
        data: the file, which :func:`nvdla.compiler.frontend.tflite.tflite_proto` accepts.
        name: of the file, for messages.
        operators: names of its operators.
        ends: names of the inputs and of the outputs of its ONNX model, in the order of the file.
        everything: keep the values of all tensors.

    Raises:
        FormatError: the interpreter refuses the file.
    """

    def __init__(
        self,
        data: bytes,
        name: str,
        operators: Collection[str],
        ends: tuple[Sequence[str], Sequence[str]],
        everything: bool = False,
    ) -> None:
        self._name, self.kernels = name, REFERENCE_KERNELS
        try:
            if not _WRONG_REFERENCES.isdisjoint(operators):
                raise FormatError(f"{name}: a reference kernel is wrong")
            self._interpreter = _interpreter(data, name, True, everything)
        except InterpreterMissing:
            raise
        except FormatError:
            self._interpreter, self.kernels = _interpreter(data, name, False, everything), OPTIMIZED_KERNELS
        # A tensor that the file lists twice is one input or output of the ONNX model.
        inputs = {row["index"]: row for row in self._interpreter.get_input_details()}
        outputs = {row["index"]: row for row in self._interpreter.get_output_details() if row["index"] not in inputs}
        self._inputs = dict(zip(ends[0], inputs.values(), strict=True))
        self._outputs = dict(zip(ends[1], outputs.values(), strict=True))

    def get_inputs(self) -> list[End]:
        """Inputs in order."""
        return _interpreted_ends(self._inputs)

    def get_outputs(self) -> list[End]:
        """Outputs in order."""
        return _interpreted_ends(self._outputs)

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs by name (None: all). Raises FormatError."""
        rows = [self._outputs[name] for name in (self._outputs if outputs is None else outputs)]
        values = [feeds[name] for name in self._inputs]
        try:
            return _interpret(self._interpreter, list(self._inputs.values()), rows, values)
        except Exception as error:  # the interpreter raises ValueError and RuntimeError
            raise FormatError(f"{self._name}: LiteRT cannot run it: {one_line(error)}") from None

    def tensors(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run it; return the tensors of the file whose names are unique. Raises FormatError."""
        self.run([], feeds)
        rows = self._interpreter.get_tensor_details()
        counts = Counter(row["name"] for row in rows)
        values = {}
        for row in rows:
            if counts[row["name"]] == 1:
                with contextlib.suppress(ValueError):  # a tensor that no operator of the run makes
                    values[row["name"]] = self._interpreter.get_tensor(row["index"])
        return values


class InterpretedValues:
    """All values of the ONNX model of a TFLite file: the quantized tensors are those of LiteRT's interpreter.

    Args:
        opened: the session of the ONNX model, with all values as outputs.
        file: the file, which keeps the values of all tensors.
    """

    def __init__(self, opened: Any, file: InterpretedFile) -> None:
        self._opened, self._file = opened, file
        self.get_inputs, self.get_outputs = opened.get_inputs, opened.get_outputs

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Values by name (None: all). Raises FormatError."""
        names = [end.name for end in self.get_outputs()] if outputs is None else list(outputs)
        values = dict(zip(names, self._opened.run(names, feeds), strict=True))
        for tensor, array in self._file.tensors(feeds).items():
            for name in (tensor, f"{tensor}/elements"):
                if name in values and array.dtype.kind in "iu" and values[name].dtype == array.dtype:
                    values[name] = _in_order(array, values[name])
        return [values[name] for name in names]


def _in_order(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A tensor of a TFLite file in the shape and order of its value in ONNX: unchanged, or NCHW instead of NHWC.

    Both are possible where the sizes are equal. The right one differs from the value by rounding alone.
    """
    orders = [array] if array.ndim != 4 else [array, array.transpose(0, 3, 1, 2)]
    sizes = [size for size in like.shape if size != 1]
    fitting = [order.reshape(like.shape) for order in orders if [size for size in order.shape if size != 1] == sizes]
    return min(fitting, key=lambda order: int(np.abs(order.astype(np.int64) - like).sum()), default=like)


def _interpreted_ends(rows: Mapping[str, Any]) -> list[End]:
    """Inputs or outputs of an interpreter, with onnxruntime's names of types."""
    words = {"float32": "float", "float64": "double"}
    kinds = [(name, np.dtype(row["dtype"]).name, row["shape"].tolist()) for name, row in rows.items()]
    return [End(name, f"tensor({words.get(kind, kind)})", shape) for name, kind, shape in kinds]


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
