"""ONNX models opened in onnxruntime, the parts of a compiled model, and the values that go between them."""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nvdla.compiler.builder.quantization import quantize
from nvdla.compiler.frontend.checking import check_work
from nvdla.compiler.frontend.graph import Binding
from nvdla.compiler.frontend.isolation import (
    ONNXRUNTIME,
    End,
    InterpretedFile,
    InterpretedValues,
    InterpreterMissing,
    ModelWorker,
    one_line,
    packages,
    reads,
    run_session,
    session,
    worker_of,
)
from nvdla.compiler.frontend.loading import MAX_MODEL, load_model, parse, refuse_external, require_model
from nvdla.compiler.frontend.model import Model
from nvdla.compiler.frontend.quantization.qdq import strip
from nvdla.compiler.frontend.tflite.reader import read_model
from nvdla.errors import FormatError, counted
from nvdla.loadable import Loadable
from nvdla.loadable.enums import DataType
from nvdla.tensors.inputs import check_pixels
from nvdla.tensors.real import PixelNumbers, Units, decibels
from nvdla.util.escaping import Document
from nvdla.util.files import read_file
from nvdla.util.precision import Precision
from nvdla.util.recognition import kind_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

    from nvdla.compiler.builder import Built, Refined
    from nvdla.compiler.builder.reference import ReferenceMemory


class Session(Protocol):
    """A session of onnxruntime, here or in the process of a worker."""

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the values of the outputs."""

    def get_inputs(self) -> Sequence[Any]:
        """Return names, types and shapes of the inputs, as onnxruntime has them."""

    def get_outputs(self) -> Sequence[Any]:
        """Return names, types and shapes of the outputs, as onnxruntime has them."""


class RemoteSession:
    """A session in a worker, with those methods of an ``InferenceSession`` that this package uses."""

    def __init__(
        self, worker: ModelWorker, name: str, number: int, inputs: list[list[Any]], outputs: list[list[Any]]
    ) -> None:
        self._worker, self._name, self._number = worker, name, number
        self._inputs, self._outputs = ([End(*end) for end in ends] for ends in (inputs, outputs))
        weakref.finalize(self, worker.release, number)

    def get_inputs(self) -> list[End]:
        """Inputs in order."""
        return self._inputs

    def get_outputs(self) -> list[End]:
        """Outputs in order."""
        return self._outputs

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs by name (None: all). Raises FormatError."""
        names = None if outputs is None else list(outputs)
        arrays = {name: np.asarray(array) if isinstance(array, np.generic) else array for name, array in feeds.items()}
        results: list[np.ndarray] = self._worker.call(
            self._name, "nvdla.compiler.frontend.opening:run_opened", self._number, self._name, names, arrays
        )
        return results


def open_session(
    model: ModelProto, name: str, worker: ModelWorker | None, optimize: bool = True, threads: int | None = None
) -> Session:
    """A session of a ModelProto or its bytes.

    Args:
        model: the model; its data is in it, none in other files.
        name: of the model or part, for messages.
        worker: the process that runs it; None: this one.
        optimize: let onnxruntime rewrite the graph.
        threads: of one operator; None: as many as onnxruntime chooses.

    Returns:
        An ``InferenceSession`` or a :class:`RemoteSession`.

    Raises:
        FormatError: onnxruntime refuses it, or it passes a limit of the worker.
    """
    if worker is None:
        return session(model, name, optimize, threads)
    try:
        data = model if isinstance(model, bytes) else model.SerializeToString()
    except Exception as error:  # protobuf's own kinds: a model of more than 2 GiB
        raise FormatError(f"{name}: onnxruntime cannot run it: {one_line(error)}") from None
    opened = worker.call(name, "nvdla.compiler.frontend.opening:open_here", data, name, optimize, threads)
    return RemoteSession(worker, name, *opened)


@dataclass
class OpenedModel:
    """A model that runs as a reference.

    Attributes:
        session: its session.
        nodes: (name, results) of every node.
        outputs: names of the model's outputs.
        units: (scale, zero point) of quantized integers, by value name.
        stored: value -> the integers to which the model quantizes it.
        runs_in: what runs it: onnxruntime, or kernels of TFLite's interpreter.
    """

    session: Any
    nodes: list[tuple[str, list[str]]]
    outputs: list[str]
    units: dict[str, tuple[float, int]]
    stored: dict[str, str]
    runs_in: str = ONNXRUNTIME

    def real(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return a value in real numbers (float64 where it is quantized)."""
        return Units(*self.units[name]).real(value) if name in self.units and value.dtype.kind in "iu" else value


def open_file(
    path: str,
    worker: ModelWorker | None,
    optimize: bool = True,
    threads: int | None = None,
    everything: bool = False,
) -> OpenedModel:
    """Open an ONNX file, whose external data is in its own directory, or a TFLite file.

    TFLite's interpreter runs a TFLite file where the package ai-edge-litert is installed. Values inside the graph that
    are not quantized are those of onnxruntime.

    Args:
        path: the file.
        worker: the process that reads and runs it; None: this one.
        optimize: let onnxruntime rewrite the graph.
        threads: of one operator; None: as many as onnxruntime chooses.
        everything: make every value of the graph an output.

    Raises:
        FormatError: the file cannot be read, or onnxruntime refuses it.
    """
    if worker is None:
        return _open_file(path, optimize, threads, everything)
    function = "nvdla.compiler.frontend.opening:open_file_here"
    opened, nodes, outputs, units, stored, runs_in = worker.call(
        path, function, path, os.getcwd(), optimize, threads, everything
    )
    return OpenedModel(
        RemoteSession(worker, path, *opened),
        [(name, list(results)) for name, results in nodes],
        outputs,
        {name: (scale, zero) for name, (scale, zero) in units.items()},
        stored,
        runs_in,
    )


def runner_of(path: str, trusted: bool = False) -> str:
    """Return :attr:`OpenedModel.runs_in` of a file that :func:`open_file` opens. Raises FormatError."""
    return open_file(path, worker_of(trusted)).runs_in if kind_of(path) == "tflite" else ONNXRUNTIME


def _open_file(path: str, optimize: bool, threads: int | None, everything: bool) -> OpenedModel:
    onnx, _ = packages()
    require_model(path, runs=True)
    _, proto, _ = load_model(onnx, path, None, {})
    check_work(proto, path)
    nodes = [(node.name, list(node.output)) for node in proto.graph.node]
    outputs = [output.name for output in proto.graph.output]
    if everything:
        values = dict.fromkeys(value for _, results in nodes for value in results if value and value not in outputs)
        proto.graph.output.extend(onnx.ValueInfoProto(name=value) for value in values)
    ends = [end.name for end in proto.graph.input], outputs
    interpreted = None if everything else _interpreted(path, ends, False)
    opened: Any = interpreted or session(proto, path, optimize, threads)
    del proto.graph.output[len(outputs) :]
    stripped = strip(proto)
    if everything and stripped.stored and (interpreted := _interpreted(path, ends, True)):
        opened = InterpretedValues(opened, interpreted)
    runs_in = interpreted.kernels if interpreted else ONNXRUNTIME
    units = {name: (affine.scale, affine.point) for name, affine in stripped.elements.items()}
    units |= dict(stripped.stored.values())
    stored = {value: name for value, (name, _) in stripped.stored.items()}
    return OpenedModel(opened, nodes, outputs, units, stored, runs_in)


def _interpreted(path: str, ends: tuple[list[str], list[str]], everything: bool) -> InterpretedFile | None:
    """A TFLite file in its own interpreter; None for other files, and where the interpreter is not installed."""
    if kind_of(path) != "tflite":
        return None
    data = read_file(path, MAX_MODEL, "model")
    operators = {operator.op for operator in read_model(data, path).operators}
    try:
        return InterpretedFile(data, path, operators, ends, everything)
    except InterpreterMissing:
        return None


# ---- in the worker

_opened: dict[int, Session] = {}
_numbers = itertools.count()


def open_here(data: bytes, name: str, optimize: bool, threads: int | None) -> list[Any]:
    """Open a session in this process: its number, inputs and outputs."""
    check_work(data, name)
    return _kept(session(data, name, optimize, threads))


def open_file_here(path: str, directory: str, optimize: bool, threads: int | None, everything: bool) -> list[Any]:
    """Open a file in this process, as plain values: its session as that of :func:`open_here`, and all else."""
    os.chdir(directory)
    opened = _open_file(path, optimize, threads, everything)
    rest = [opened.nodes, opened.outputs, opened.units, opened.stored, opened.runs_in]
    return [_kept(opened.session), *rest]


def _kept(opened: Any) -> list[Any]:
    """Number a session, so that the other process can name it."""
    number = next(_numbers)
    _opened[number] = opened
    ends = [
        [[end.name, end.type, end.shape if isinstance(end.shape, list) else []] for end in side]
        for side in (opened.get_inputs(), opened.get_outputs())
    ]
    return [number, *ends]


def run_opened(number: int, name: str, outputs: list[str] | None, feeds: Document) -> list[Any]:
    """Run a session of this process."""
    if number not in _opened:
        raise FormatError(f"{name}: the process of this model has ended. Open the model again.")
    return run_session(_opened[number], name, outputs, feeds)


def free(numbers: list[int]) -> None:
    """Close sessions."""
    for number in numbers:
        _opened.pop(number, None)


def submodel(
    model: Model, nodes: Sequence[NodeProto], outputs: Sequence[str], known: Mapping[str, ValueInfoProto]
) -> ModelProto:
    """An ONNX model of some nodes; constants go along, what others make becomes an input. Tensors that the model
    quantizes are rounded as in the model. ``known``: types by value."""
    import onnx

    helper = onnx.helper
    nodes, rounding = _rounded(model, nodes, onnx)
    computed = {name for node in nodes for name in node.output if name}
    wanted = list(dict.fromkeys(name for node in nodes for name in reads(node) if name not in computed))
    constants = [onnx.numpy_helper.from_array(model.constants[n], n) for n in wanted if n in model.constants]
    constants += [onnx.numpy_helper.from_array(array, name) for name, array in rounding.items()]
    wanted = [name for name in wanted if name not in rounding]
    untyped = [name for name in wanted if name not in model.constants and name not in known]
    if untyped:
        raise FormatError(f"{model.file}: tensor {untyped[0]}: type must be known to onnx or onnxruntime")
    inputs = [known[name] for name in wanted if name not in model.constants]
    results = [known.get(name) or onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(list(nodes), "host", inputs, results, constants)
    return helper.make_model(graph, opset_imports=list(model.proto.opset_import), ir_version=model.proto.ir_version)


def _rounded(
    model: Model, nodes: Sequence[NodeProto], onnx: ModuleType
) -> tuple[list[NodeProto], dict[str, np.ndarray]]:
    """Return the nodes, with QuantizeLinear and DequantizeLinear after each value that the model quantizes, and the
    constants of these. Values of the accelerator are quantized already."""
    computed = {name for node in nodes for name in node.output if name}
    entered = {name for node in nodes for name in node.input if name in model.inputs} - computed
    affine = {name: affine_scale for name, affine_scale in model.affine.items() if model.types.get(name) == np.float32}
    names = {name: f"{name}/quantized" for name in entered & set(affine)}
    result: list[NodeProto] = []
    constants: dict[str, np.ndarray] = {}

    def add(value: str, name: str, tensor: str) -> None:
        more, numbers = affine[tensor].nodes(value, name, onnx)
        result.extend(more)
        constants.update(numbers)

    for name, rounded in names.items():
        add(name, rounded, name)
    for node in nodes:
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        for position, name in enumerate(node.input):
            copy.input[position] = names.get(name, name)
        result.append(copy)
        for position, name in enumerate(node.output):
            if name in affine:
                copy.output[position] = f"{name}/real"
                add(f"{name}/real", name, name)
    return result, constants


class HostPart:
    """A host part ready to run, in a worker or (None) in this process."""

    def __init__(self, model: ModelProto, name: str, worker: ModelWorker | None = None) -> None:
        self.name = name
        if worker is None and isinstance(model, bytes):  # of a package
            onnx, _ = packages()
            refuse_external(onnx, parse(onnx, model, name), name, "A package contains all data that it needs")
        self.session = open_session(model, name, worker, optimize=False)
        self.outputs = [output.name for output in self.session.get_outputs()]

    def run(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the part on the host: tensors by name in and out."""
        feeds = feeds_of(self.session, values)
        return dict(zip(self.outputs, run_session(self.session, self.name, self.outputs, feeds), strict=True))


def feeds_of(session: Session, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs of a session, in its types. Raises FormatError for a missing value, and for real numbers where
    the session takes integers; whole numbers, such as the pixels of a picture, are converted."""
    return {end.name: _fed(np.asarray(value_of(values, end.name)), end) for end in session.get_inputs()}


def _fed(value: np.ndarray, end: End) -> np.ndarray:
    integers = _INTEGERS.get(end.type)
    if integers is None or value.dtype.kind != "f":
        return np.asarray(value, dtype=_DTYPES.get(end.type), order="C")
    limits = np.iinfo(integers)
    if not np.all((value == np.rint(value)) & (value >= limits.min) & (value <= limits.max)):
        raise FormatError(f"input {end.name[:80]!r}: must be whole numbers of {integers}, got real numbers")
    return np.asarray(value, dtype=integers, order="C")


def value_of(values: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A value that a part takes. Raises FormatError where no part before it made one of this name."""
    if name not in values:
        raise FormatError(f"value {name[:80]!r}: must be produced before the part of the model that uses it")
    return values[name]


_INTEGERS = {f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


@dataclass
class PackedPart:
    """A part as it comes out of a package."""

    kind: str
    nodes: list[str]
    inputs: list[Binding]
    outputs: list[Binding]
    loadable: Loadable | None = None
    model: Any = None
    scales: dict[str, float] = field(default_factory=dict)
    precision: str = ""
    numbers: Mapping[str, PixelNumbers] = field(default_factory=dict)
    images: int = 1
    zero_points: dict[str, int] = field(default_factory=dict)
    #: name, operator, multiplications and reason of each node; empty in packages of earlier releases
    rows: list[Document] = field(default_factory=list)

    def precision_of(self, tensor: str) -> Precision:
        """Return the precision of an input of an accelerator part: inputs of an int8 network may be int16."""
        return Precision.INT16 if tensor in self._int16_tensors else Precision(self.precision)

    @cached_property
    def _int16_tensors(self) -> frozenset[str]:
        tensors = () if self.loadable is None else self.loadable.tensors
        return frozenset(tensor.name for tensor in tensors if tensor.data_type == DataType.INT16)

    @property
    def macs(self) -> int:
        """Multiplications of an inference."""
        return sum(row["macs"] for row in self.rows)


@dataclass
class CompiledPart(PackedPart):
    """One step of a compiled model. ``kind`` "accelerator": ``loadable``, ``built`` and ``refined``, the network that
    was built; "host": ``model`` (ONNX). ``images``: of a batch, whose bindings are those of one."""

    built: Built | None = None
    refined: Refined | None = None

    @classmethod
    def of(cls, bound: PackedPart, refined: Refined, built: Built) -> CompiledPart:
        """A part on the accelerator. ``bound``: its nodes, bindings, precision and images."""
        return cls(
            "accelerator",
            bound.nodes,
            bound.inputs,
            bound.outputs,
            built.loadable,
            scales={**built.input_scales, **built.output_scales},
            precision=bound.precision,
            numbers={root.name: root.converter.numbers for root in built.program.inputs if root.converter},
            images=bound.images,
            zero_points=built.zero_points,
            built=built,
            refined=refined,
        )

    @property
    def made(self) -> Built:
        """``built`` of a part on the accelerator."""
        assert self.built is not None, "a part on the host is not built"
        return self.built


def elements_of(part: PackedPart, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the elements (images, C, H, W) of all inputs of an accelerator part, by the names of its tensors.

    Args:
        part: The accelerator part.
        values: Real numbers by the model's names.

    Raises:
        FormatError: A value is missing or has another size.
    """
    return {binding.tensor: _elements(part, binding, values) for binding in part.inputs}


def _elements(part: PackedPart, binding: Binding, values: Mapping[str, np.ndarray]) -> np.ndarray:
    given = np.asarray(value_of(values, binding.value))
    flat, images = given.astype(np.float64).ravel(), part.images
    size = int(np.prod(binding.shape))
    stack = flat.reshape(images, -1) if flat.size % images == 0 else flat[None]
    fits = binding.index is None or binding.index.max(initial=0) < stack.shape[1]
    order = stack if binding.index is None or not fits else stack[:, binding.index.ravel()]
    if not fits or order.size != size * images:
        raise FormatError(f"input {binding.value}: must have {size * images} elements, got {flat.size}")
    numbers, cubes = part.numbers.get(binding.tensor), order.reshape(images, *binding.shape)
    if numbers is not None:
        return numbers.elements(cubes)
    scale, zero = part.scales[binding.tensor], part.zero_points.get(binding.tensor, 0)
    precision = part.precision_of(binding.tensor)
    if given.dtype == np.uint8:
        check_pixels(given, scale, zero, precision.dtype, binding.value)
    return quantize(cubes, scale, precision, zero)


def reals_of(part: PackedPart, results: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of an accelerator part as real numbers, by the model's names.

    Args:
        part: The accelerator part.
        results: Elements of its outputs by the names of its tensors.
    """
    values = {}
    for binding in part.outputs:
        images, zero = part.images, np.float32(part.zero_points.get(binding.tensor, 0))
        scale = np.float32(part.scales[binding.tensor])
        stack = (results[binding.tensor].astype(np.float32).reshape(images, -1) - zero) * scale
        chosen = stack if binding.index is None else stack[:, binding.index.ravel()]
        values[binding.value] = chosen.reshape(binding.shape if images == 1 else (images, *binding.shape[1:]))
    return values


def rounded(parts: Sequence[PackedPart], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return inputs of the model as the elements of the accelerator parts that read them represent them.

    An error that is measured with these inputs is one of the network, not of the rounded input.

    Args:
        parts: Parts of the model, in the order of a run.
        feeds: Real numbers by the model's names.
    """
    values, left = dict(feeds), set(feeds)
    for part in (part for part in parts if part.kind == "accelerator"):
        for binding in (binding for binding in part.inputs if binding.value in left):
            left.discard(binding.value)
            flat = np.array(feeds[binding.value], np.float32).reshape(part.images, -1)
            numbers, elements = part.numbers.get(binding.tensor), _elements(part, binding, feeds)
            scale, zero = part.scales[binding.tensor], part.zero_points.get(binding.tensor, 0)
            units = Units(scale, zero) if numbers is None else numbers.units(elements.shape[1])
            index = np.arange(flat.shape[1]) if binding.index is None else binding.index.ravel()
            flat[:, index] = units.real(elements).reshape(part.images, -1)
            values[binding.value] = flat.reshape(np.shape(feeds[binding.value]))
    return values


#: features of sensors that are judged one by one; more are those of a signal or a picture
FEATURES = 128
#: signal to noise in dB below which the rounding of an input has a note: a well used int8 range has about 40
ROUGH = 25.0


def _lost_features(exact: np.ndarray, rounded_values: np.ndarray) -> str:
    """The features of vectors and sequences (samples, 1, ...) that vary less than rounding changes them; empty for
    none."""
    from nvdla.compiler.builder.accuracy import numbers

    if exact.ndim not in (3, 4):
        return ""
    axis = 2 if exact.ndim == 3 or exact.shape[2] <= exact.shape[3] else 3
    if exact.shape[axis] > FEATURES:
        return ""
    features, errors = (np.moveaxis(array.astype(np.float64), axis, 0) for array in (exact, rounded_values - exact))
    spread = np.var(features.reshape(len(features), -1), axis=1)
    noise = np.mean(np.square(errors.reshape(len(errors), -1)), axis=1)
    lost = np.flatnonzero((spread > 0) & (4 * noise > spread))
    return f"{len(lost)} of {counted(len(features), 'feature')} ({numbers(lost.tolist())})" if len(lost) else ""


class PartChain:
    """A run of the whole model on samples, part by part as a :class:`nvdla.compiler.frontend.package.HostMachine` does.

    Attributes:
        inputs: Inputs of the model for each sample, as the parts so far represent them (:func:`rounded`).

    Args:
        feeds: Real numbers by the model's names for each sample.
    """

    def __init__(self, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._feeds = list(feeds)
        self._parts: list[PackedPart] = []
        self._values = [dict(feed) for feed in feeds]
        self.inputs: list[dict[str, np.ndarray]] = []

    def enter(self, part: CompiledPart) -> None:
        """Round the inputs of the model that an accelerator part reads."""
        self._parts.append(replace(part, images=1))
        self.inputs = [rounded(self._parts, feed) for feed in self._feeds]

    def rounding_notes(self) -> list[str]:
        """Return a note for each input of the model of which rounding leaves little on the samples: other errors are
        measured without it."""
        notes = []
        bound = [(part, binding) for part in self._parts for binding in part.inputs]
        pixels = {binding.value for part, binding in bound if binding.tensor in part.numbers}
        for name in self._feeds[0] if self.inputs else ():
            pairs = [(feed[name], rounded[name]) for feed, rounded in zip(self._feeds, self.inputs, strict=True)]
            signal = sum(float(np.sum(np.square(exact, dtype=np.float64))) for exact, _ in pairs)
            noise = sum(float(np.sum(np.square(np.subtract(*pair, dtype=np.float64)))) for pair in pairs)
            snr = decibels(signal, noise) if signal else math.inf
            wider = "int16 where it is needed on nv_full (--precision auto; Python: precision='auto')"
            if name not in pixels and (lost := _lost_features(*map(np.stack, zip(*pairs, strict=True)))):
                notes.append(
                    f"input {name}: rounding its numbers loses {lost}, which vary by less than two units on the "
                    f"calibration data. Normalize arrays before the model, and calibrate with these, or try {wider}"
                )
            elif snr < ROUGH:
                rms = math.sqrt(signal / sum(exact.size for exact, _ in pairs))
                method = "--method percentile (Python: method=)"
                advice = f"Look for samples with far larger numbers, or try {method}, or {wider}"
                if name in pixels:
                    advice = (
                        "Its elements are pixels: give the --mean and --std of the training, which say what they stand "
                        "for, or take another --input-format"
                    )
                notes.append(
                    f"input {name}: rounding its numbers (RMS {rms:.3g}) leaves {snr:.1f} dB on the calibration data. "
                    f"{advice}"
                )
        return notes

    def run(self, part: CompiledPart) -> Iterator[ReferenceMemory]:
        """Run an accelerator part: all its tensors for each sample."""
        from nvdla.compiler.builder import reference

        single, program = replace(part, images=1), part.made.program
        for values in self._values:
            memory = reference.evaluate(program, elements_of(single, values))
            values |= reals_of(single, {root.name: memory.array(root) for root in program.outputs})
            yield memory

    def run_host(self, part: CompiledPart, name: str, worker: ModelWorker | None) -> None:
        """Run a host part.

        Args:
            part: The part.
            name: Its name, for errors.
            worker: Process that runs it; None: this process.

        Raises:
            FormatError: onnxruntime refuses the part.
        """
        if not self._values:
            return
        model = HostPart(part.model, name, worker)
        for values in self._values:
            values |= model.run(values)
