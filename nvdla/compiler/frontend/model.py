"""Reading a model: ONNX or Caffe in, a checked ONNX model with static shapes and no foldable nodes out.

Model files are untrusted: sizes are limited, external data must be in the model's own directory, and any exception
of the onnx and onnxruntime packages becomes one FormatError that names the model.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.compiler.frontend import isolation
from nvdla.compiler.frontend.attributes import DOMAINS, check_shapes, infer_shapes
from nvdla.compiler.frontend.checking import Budget, check_model, fix_inputs, infer_strictly, runtime_types
from nvdla.compiler.frontend.isolation import ModelWorker, one_line, packages, reads, run_once, session
from nvdla.compiler.frontend.loading import SMALL, check_size, load_model, without_torch
from nvdla.compiler.frontend.normalization import Pattern, PatternSearch
from nvdla.compiler.frontend.quantization.mixed import Affine
from nvdla.compiler.frontend.quantization.qdq import strip
from nvdla.compiler.frontend.tflite.graph import CHANNELS_LAST_KEY
from nvdla.errors import ArgumentTypeError, FormatError, described, shown
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.rounding import is_digits

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto


#: elements of one tensor, and of all tensors together: far above real networks (ResNet-152: 10^8)
MAX_TENSOR = 1 << 28
MAX_ELEMENTS = 1 << 31
#: elements that constant folding may make in all
MAX_FOLDED = 1 << 28
OLDEST = 7


@dataclass
class Folded:
    """A node whose result does not depend on the inputs, or that was merged into another one before import."""

    name: str
    op: str
    reason: str


@dataclass
class Model:
    """A normalized model. ``proto``: topologically sorted, no functions, every node with constant inputs folded.

    ``constants``: initializers and folded results by value name. ``shapes`` and ``types``: of every value (element
    types as numpy dtypes). ``folded``: rows for the nodes that are gone. ``sha256`` of the file, ``notes`` for people.
    ``magnitudes`` and ``ranges`` by value and ``weight_scales`` by the value that a node makes: what a quantized model
    brings. ``stored``: value -> its name in the file, scale and zero point, where the file has integers of it;
    ``quantized``: the model as stored in the file, None for one without integers. ``affine``, ``assumed`` and ``wide``
    as in :class:`nvdla.compiler.frontend.quantization.qdq.Stripped`.
    """

    proto: ModelProto
    name: str
    sha256: str
    opset: int
    constants: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    types: dict[str, np.dtype]
    folded: list[Folded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    magnitudes: dict[str, float] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    weight_scales: dict[str, np.ndarray] = field(default_factory=dict)
    stored: dict[str, tuple[str, tuple[float, int]]] = field(default_factory=dict)
    quantized: ModelProto | None = None
    affine: dict[str, Affine] = field(default_factory=dict)
    assumed: set[str] = field(default_factory=set)
    wide: list[str] = field(default_factory=list)
    #: versions of the packages that read it
    tools: dict[str, str] = field(default_factory=dict)
    #: its file as given, or ``name``: for errors
    file: str = ""
    #: large constants, and whether the file lists them as inputs
    aside: dict[str, bool] = field(default_factory=dict)
    #: the process that runs parts of the model; None: this one
    worker: ModelWorker | None = field(default=None, compare=False, repr=False)

    def measured(self) -> Model:
        """Return a copy without the assumed ranges, so that calibration data sets them."""
        stated = {name: magnitude for name, magnitude in self.magnitudes.items() if name not in self.assumed}
        ranges = {name: ends for name, ends in self.ranges.items() if name not in self.assumed}
        return replace(self, magnitudes=stated, ranges=ranges, assumed=set())

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, constants aside."""
        return [value.name for value in self.proto.graph.input if value.name not in self.constants]

    @property
    def source(self) -> Document:
        """The file, for layer files and packages; ``channels_last``: tensors (N, H, W, C), where that is known."""
        is_last = any(entry.key == CHANNELS_LAST_KEY for entry in self.proto.metadata_props)
        return {"name": self.name, "sha256": self.sha256} | ({"channels_last": True} if is_last else {})

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [value.name for value in self.proto.graph.output]

    @cached_property
    def layer_names(self) -> dict[str, str]:
        """Names of inner values of a model of torch.onnx, by the PyTorch module that computes them.

        If a module has several operators, or is a number in a sequence, the operator follows.
        A second use has a number.
        """
        scopes = {node.output[0]: (_scope(node), node.op_type.lower()) for node in self.proto.graph.node}
        operators: dict[str, set[str]] = {}
        for scope, operator in scopes.values():
            operators.setdefault(scope, set()).add(operator)
        containers = {scope[:at] for scope in operators for at, mark in enumerate(scope) if mark == "."}
        taken, outputs = {*self.constants, *self.inputs, *scopes}, set(self.outputs)
        names: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for value, (scope, operator) in scopes.items():
            if not scope or value in outputs:
                continue
            is_alone = len(operators[scope]) == 1 and scope not in containers and not is_digits(scope)
            base = name = scope if is_alone else f"{scope}.{operator}"
            while name in taken and name != value:
                numbers[base] = numbers.get(base, 1) + 1
                name = f"{base}.{numbers[base]}"
            taken.add(name)
            names[value] = name
        return names


@by_annotations
def read(
    source: object,
    shapes: Mapping[str, Sequence[int]] | None = None,
    weights: str | os.PathLike[str] | None = None,
    trusted: bool = False,
    worker: ModelWorker | None = None,
    example_inputs: Sequence[object] | None = None,
) -> Model:
    """Read a model: parse, check, infer shapes, fold constants.

    Args:
        source: a path (.onnx, .tflite, .pt2; .prototxt with ``weights``), bytes, an ``onnx.ModelProto``, a
            ``torch.nn.Module`` or a ``torch.export.ExportedProgram``.
        shapes: static shapes of inputs whose shape the file leaves open.
        weights: the .caffemodel of a .prototxt.
        trusted: read and run the model in this process, without limits on its memory and processor time.
        worker: the process that reads and runs it; None: a new one.
        example_inputs: the arguments of a module's ``forward``.

    Returns:
        The normalized model.

    Raises:
        FormatError: naming model, node, tensor and reason.
    """
    fixed = dict(shapes or {})
    file = os.fsdecode(source) if isinstance(source, str | os.PathLike) else ""
    source = without_torch(source, example_inputs, trusted)
    if trusted or not isolation.available():
        return _restored(packages()[0], _read(source, fixed, weights, None, file), None)
    isolation.start()
    try:
        import onnx
    except ImportError:
        packages()
    worker = worker or ModelWorker()
    if isinstance(source, onnx.ModelProto):
        try:
            source = ["proto", source.SerializeToString(deterministic=True)]
        except Exception as error:  # protobuf's own kinds: a model of more than 2 GiB
            raise FormatError(f"model: must be accepted by onnx: {one_line(error)}") from None
        name = file or "model"
    elif isinstance(source, bytes | bytearray | memoryview):
        name, source = "model", ["bytes", bytes(source)]
    elif isinstance(source, str | os.PathLike):
        name = os.fsdecode(source)
        source = ["path", _reachable(name)]
    else:
        hint = ". For a state dict, make the module and call load_state_dict" if isinstance(source, Mapping) else ""
        raise ArgumentTypeError(
            "model must be a path, bytes, an onnx.ModelProto, an ExportedProgram or a torch.nn.Module, got "
            f"{described(source)}{hint}"
        )
    weights_path = None if weights is None else _reachable(os.fsdecode(weights))
    arguments = source, fixed, weights_path, os.getcwd(), file
    plain = worker.call(name, "nvdla.compiler.frontend.model:read_here", *arguments)
    return _restored(onnx, _of_plain(onnx, plain), worker)


def _reachable(path: str) -> str:
    """A path as another process can open it: descriptors of this one by its number."""
    for prefix in ("/dev/fd/", "/proc/self/fd/"):
        if path.startswith(prefix):
            return f"/proc/{os.getpid()}/fd/{path.removeprefix(prefix)}"
    return f"/proc/{os.getpid()}/fd/0" if path == "/dev/stdin" else path


def read_here(
    source: list[object], shapes: dict[str, list[int]], weights: str | None, directory: str, file: str
) -> Document:
    """Read a model in this process, a worker; as plain values."""
    onnx, _ = packages()
    os.chdir(directory)
    kind, content = source
    given = onnx.ModelProto.FromString(content) if kind == "proto" else content
    return _plain(_read(given, shapes, weights, isolation.LIMITS.folding, file))


def _read(
    source: object,
    shapes: Mapping[str, Sequence[int]],
    weights: str | os.PathLike[str] | None,
    folding: int | None,
    file: str,
) -> Model:
    """A model without its large constants in ``proto``; ``folding``: the budget of constant folding; ``file``: its path
    in errors, if it has one."""
    onnx, _ = packages()
    name, proto, digest = load_model(onnx, source, weights, shapes, file or "model")
    file = file or name
    try:
        check_size(proto, file)
        notes = fix_inputs(proto, shapes, file)
        proto = check_model(onnx, proto, file)
        stripped = strip(proto)
        model = _Normalizer(onnx, file, stripped.proto, digest, folding, stripped.proto is not proto).run()
        model.name, model.file = name, file
        model.magnitudes, model.weight_scales = stripped.magnitudes, stripped.weight_scales
        model.ranges, model.stored, model.affine = stripped.ranges, stripped.stored, stripped.affine
        model.assumed, model.wide = stripped.assumed, stripped.wide
        model.quantized = proto if stripped.stored else None
        model.notes += [*notes, *stripped.notes]
        return model
    except (FormatError, MemoryError):
        raise
    except Exception as error:  # onnx, protobuf and onnxruntime raise their own exception types, without a common base
        raise FormatError(f"{file}: must be accepted by onnx: {one_line(error)}") from None


_PLAIN = (
    *("name", "sha256", "opset", "notes", "magnitudes", "ranges", "weight_scales", "aside", "tools", "shapes"),
    *("stored", "wide", "file"),
)


def _plain(model: Model) -> Document:
    """A model as plain values, for another process."""
    graph = model.proto.graph
    used = {value for node in graph.node for value in reads(node)}
    used |= {value.name for value in (*graph.output, *graph.input)}
    return {
        **{key: getattr(model, key) for key in _PLAIN},
        "proto": model.proto.SerializeToString(),
        "constants": {k: array for k, array in model.constants.items() if k in used or k not in model.aside},
        "types": {name: kind.name for name, kind in model.types.items()},
        "folded": [asdict(row) for row in model.folded],
        "affine": {name: asdict(affine) for name, affine in model.affine.items()},
        "assumed": sorted(model.assumed),
        "quantized": None if model.quantized is None else model.quantized.SerializeToString(),
    }


def _of_plain(onnx: ModuleType, plain: Document) -> Model:
    plain["proto"] = onnx.ModelProto.FromString(plain["proto"])
    plain["shapes"] = {name: tuple(shape) for name, shape in plain["shapes"].items()}
    plain["types"] = {name: np.dtype(kind) for name, kind in plain["types"].items()}
    plain["folded"] = [Folded(**row) for row in plain["folded"]]
    plain["ranges"] = {name: tuple(ends) for name, ends in plain["ranges"].items()}
    plain["stored"] = {name: (stored, tuple(units)) for name, (stored, units) in plain["stored"].items()}
    plain["affine"] = {name: Affine(**row) for name, row in plain["affine"].items()}
    plain["assumed"] = set(plain["assumed"])
    if plain["quantized"] is not None:
        plain["quantized"] = onnx.ModelProto.FromString(plain["quantized"])
    return Model(**plain)


def _restored(onnx: ModuleType, model: Model, worker: ModelWorker | None) -> Model:
    """The model with its large constants in ``proto``, which stayed aside while it was worked on."""
    graph = model.proto.graph
    added = {name for name, was_input in model.aside.items() if not was_input}
    inputs = [_copy(value) for value in graph.input if value.name not in added]
    del graph.input[:]
    graph.input.extend(inputs)
    used = {value for node in graph.node for value in reads(node)} | {output.name for output in graph.output}
    names = [name for name in model.constants if name in model.aside and name in used]
    graph.initializer.extend(onnx.numpy_helper.from_array(model.constants[name], name) for name in names)
    model.worker = worker
    return model


def _scope(node: NodeProto) -> str:
    """Path of the module of PyTorch ("layer1.0.conv1") that a node is of; empty if it is of none, or not known."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == "pkg.torch.onnx.name_scopes"), "")
    return ["", *re.findall(r"'([\w.]{0,200})'", scopes)[:-1]][-1]


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


class _Normalizer:
    def __init__(
        self, onnx: ModuleType, name: str, proto: ModelProto, digest: str, folding: int | None, quantized: bool = False
    ) -> None:
        self.onnx, self.name, self.proto, self.digest = onnx, name, proto, digest
        self.quantized = quantized
        self.constants: dict[str, np.ndarray] = {}
        self.folded: list[Folded] = []
        self.made = 0
        self.aside: dict[str, bool] = {}
        self.budget = None if folding is None else Budget(onnx, name, folding, "folding")

    def run(self) -> Model:
        self._initializers()
        opset = self._opset()
        self._name_nodes()
        for _ in range(8):
            self._infer()
            if not self._fold(opset):
                break
        self._prune()
        infer_strictly(self.onnx, self.proto, self.name, self.quantized)  # with what folding has made known
        self._ask_runtime()
        known, types = self._shapes()
        check_shapes(self.onnx, self.proto.graph.node, known, self.constants, self.name)
        if opset >= OLDEST and not self.quantized:  # a quantized model has scales of the inner values
            self._join_normalizations(known, types)
        result = Model(self.proto, self.name, self.digest, opset, self.constants, known, types, self.folded)
        runtime = packages()[1]
        result.tools = {"onnx": self.onnx.__version__, "onnxruntime": runtime.__version__}
        result.aside = self.aside
        return result

    def fail(self, text: str) -> FormatError:
        return FormatError(f"{self.name}: {text}")

    # ---- checks

    def _opset(self) -> int:
        opsets = {entry.domain or "": entry.version for entry in self.proto.opset_import}
        opset = opsets.get("", opsets.get("ai.onnx", 0))
        return self._modernise(opset) if 0 < opset < OLDEST else opset

    def _modernise(self, opset: int) -> int:
        """Operators of the first opsets in the form of a later one, where onnx can convert them; else as they are."""
        try:
            self.proto = self.onnx.version_converter.convert_version(self.proto, 13)
        except Exception:  # onnx raises its own exception types; such nodes run on the host
            return opset
        self.proto.ir_version = max(self.proto.ir_version, 4)  # before, constants had to be inputs
        for tensor in self.proto.graph.initializer:  # attributes that have become inputs
            self.constants.setdefault(tensor.name, self.onnx.numpy_helper.to_array(tensor))
        return 13

    def _initializers(self) -> None:
        for tensor in self.proto.graph.initializer:
            if math.prod(tensor.dims) > MAX_TENSOR:
                size = shown(math.prod(tensor.dims))
                raise self.fail(f"tensor {tensor.name}: must have at most {MAX_TENSOR} elements, got {size}")
            array = self._array(tensor)
            if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
                user = next((n for n in self.proto.graph.node if tensor.name in n.input), None)
                if user is not None and user.op_type in _WEIGHTED:
                    raise self.fail(
                        f"node {user.name or user.op_type}: tensor {tensor.name}: must be finite, got NaN or infinity"
                    )
            self.constants[tensor.name] = array
        self._set_aside()
        if self.proto.graph.sparse_initializer:
            raise self.fail("initializers: must be dense, got a sparse one. Make it dense.")

    def _array(self, tensor: TensorProto) -> np.ndarray:
        try:
            return self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # onnx raises various exception types for broken tensors
            raise self.fail(f"tensor {tensor.name}: {one_line(error)}") from None

    def _set_aside(self) -> None:
        """Large constants become inputs while the graph is worked on: checks and inference need no weights."""
        graph = self.proto.graph
        large = [constant for constant in graph.initializer if math.prod(constant.dims) > SMALL]
        known = {value.name for value in graph.input}
        self.aside = {constant.name: constant.name in known for constant in large}
        for constant in large:
            if constant.name not in known:
                self._add_input(constant.name, constant.data_type, constant.dims)
        small = [_copy(constant) for constant in graph.initializer if constant.name not in self.aside]
        del graph.initializer[:]
        graph.initializer.extend(small)

    def _add_input(self, name: str, kind: int, shape: Sequence[int]) -> None:
        self.proto.graph.input.append(self.onnx.helper.make_tensor_value_info(name, kind, list(shape)))

    def _name_nodes(self) -> None:
        """Nodes without a name get the name of their first result: every row of a report needs one."""
        seen: set[str] = set()
        for number, node in enumerate(self.proto.graph.node):
            name = node.name or next((value for value in node.output if value), f"node{number}")
            node.name = name if name not in seen else f"{name}_{number}"
            seen.add(node.name)

    # ---- inference and folding

    def _infer(self) -> None:
        try:
            self.proto = infer_shapes(self.onnx, self.proto)
            return
        except Exception:  # what was known of inner values before folding may no longer be true
            del self.proto.graph.value_info[:]
        try:
            self.proto = infer_shapes(self.onnx, self.proto)
        except Exception as error:
            raise self.fail(f"shape inference fails: {one_line(error)}") from None

    def _ask_runtime(self) -> None:
        """Types (and shapes) that onnx's inference does not find, as onnxruntime's finds them."""
        graph = self.proto.graph
        known = {value.name for value in [*graph.input, *graph.value_info] if value.type.WhichOneof("value")}
        known |= {value.name for value in graph.output if value.type.WhichOneof("value")}
        missing = [name for node in graph.node for name in node.output if name and name not in known]
        if not missing:
            return
        asked = self.onnx.ModelProto()
        asked.CopyFrom(self.proto)
        del asked.graph.output[:]
        asked.graph.output.extend(self.onnx.ValueInfoProto(name=name) for name in missing)
        graph.value_info.extend(runtime_types(self.onnx, session(asked, self.name, optimize=False)))
        self._infer()  # what follows from them

    def _shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, np.dtype]]:
        shapes = {name: array.shape for name, array in self.constants.items()}
        types = {name: array.dtype for name, array in self.constants.items()}
        graph = self.proto.graph
        total = 0
        for value in [*graph.input, *graph.value_info, *graph.output]:
            tensor = value.type.tensor_type
            if value.name in shapes or not tensor.elem_type:
                continue
            types[value.name] = np.dtype(self.onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
                continue
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
            if any(size < 0 for size in shapes[value.name]):
                raise self.fail(f"tensor {value.name}: shape: must hold sizes from 0, got {list(shapes[value.name])}")
            size = math.prod(shapes[value.name])
            total += size
            if size > MAX_TENSOR or total > MAX_ELEMENTS:
                raise self.fail(
                    f"tensor {value.name}: must have at most {MAX_TENSOR} elements ({MAX_ELEMENTS} with the "
                    f"tensors before it), got {size} ({total})"
                )
        return shapes, types

    def _fold(self, opset: int) -> bool:
        """Replace nodes whose inputs are all known by their results; True where that made something known."""
        shapes, _ = self._shapes()
        chosen, known = [], set(self.constants)
        for node in self.proto.graph.node:
            if self._is_shape_of(node, shapes, known):
                self._keep(node.output[0], self._shape_value(node, shapes[node.input[0]]))
                self.folded.append(Folded(node.name, node.op_type, "its result is a constant"))
                known.add(node.output[0])
                chosen.append(node)
            elif self._foldable(node, known, shapes):
                known.update(node.output)
                chosen.append(node)
        if not chosen:
            return False
        evaluate = [node for node in chosen if not all(v in self.constants for v in node.output if v)]
        if evaluate:
            self._evaluate(evaluate)
        gone = {id(node) for node in chosen}
        rest = [node for node in self.proto.graph.node if id(node) not in gone]
        copies = [_copy(node) for node in rest]
        del self.proto.graph.node[:]
        self.proto.graph.node.extend(copies)
        return True

    @staticmethod
    def _is_shape_of(node: NodeProto, shapes: Mapping[str, tuple[int, ...]], known: set[str]) -> bool:
        return node.op_type in ("Shape", "Size") and node.domain in DOMAINS and node.input[0] in shapes

    @staticmethod
    def _shape_value(node: NodeProto, shape: tuple[int, ...]) -> np.ndarray:
        if node.op_type == "Size":
            return np.array(math.prod(shape), np.int64)
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        return np.array(shape[slice(ends.get("start", 0), ends.get("end", len(shape)))], np.int64)

    @staticmethod
    def _foldable(node: NodeProto, known: set[str], shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Constant inputs, a known operator without randomness, no sub-graph, and results of a bounded size.

        DequantizeLinear of constants stays: its integers are the weights of a quantized model.
        """
        if node.domain not in DOMAINS or node.op_type in _NEVER_FOLDED:
            return False
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            return False
        if not all(value in known for value in node.input if value):
            return False
        return all(math.prod(shapes.get(value, (0,))) <= MAX_FOLDED for value in node.output if value)

    def _evaluate(self, nodes: list[NodeProto]) -> None:
        """One run of onnxruntime over the nodes."""
        helper = self.onnx.helper
        self._charge(nodes)
        results = {value for node in nodes for value in node.output if value}
        wanted = sorted({value for node in nodes for value in node.input if value} - results)
        holders = [self.onnx.numpy_helper.from_array(self.constants[name], name) for name in wanted]
        outputs = [self.onnx.ValueInfoProto(name=name) for name in sorted(results)]
        graph = helper.make_graph(nodes, "constants", [], outputs, holders)
        model = helper.make_model(graph, opset_imports=list(self.proto.opset_import), ir_version=self.proto.ir_version)
        for name, array in zip(sorted(results), run_once(model, self.name), strict=True):
            self._keep(name, np.asarray(array))
        for node in nodes:
            self.folded.append(Folded(node.name, node.op_type, "its result is a constant"))

    def _charge(self, nodes: list[NodeProto]) -> None:
        """Count the work of folding before it is done."""
        if self.budget is not None:
            shapes, _ = self._shapes()
            for node in nodes:
                self.budget.charge(node, shapes, self.constants)

    def _keep(self, name: str, array: np.ndarray) -> None:
        self.made += array.size
        if self.made > MAX_FOLDED:
            raise self.fail(
                f"computed constants: must have at most {MAX_FOLDED} elements, got {self.made} up to {name}"
            )
        self.constants[name] = array
        if array.size > SMALL:
            self.aside[name] = False
            self._add_input(name, self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        else:
            self.proto.graph.initializer.append(self.onnx.numpy_helper.from_array(array, name))

    def _prune(self) -> None:
        """Remove nodes whose results are not used."""
        needed = {output.name for output in self.proto.graph.output}
        keep = []
        for node in reversed(list(self.proto.graph.node)):
            if any(value in needed for value in node.output):
                keep.append(_copy(node))
                needed.update(reads(node))
            else:
                self.folded.append(Folded(node.name, node.op_type, "nothing uses its result"))
        del self.proto.graph.node[:]
        self.proto.graph.node.extend(reversed(keep))

    # ---- LayerNormalization

    def _join_normalizations(self, shapes: dict[str, tuple[int, ...]], types: dict[str, np.dtype]) -> None:
        """Replace each written out LayerNormalization by one node, which onnxruntime supports in every opset.
        ``shapes`` and ``types`` are added to."""
        graph = self.proto.graph
        outputs = {output.name for output in graph.output}
        joined, inner = {}, {}
        for pattern in PatternSearch(graph.node, self.constants, shapes, types, outputs).patterns():
            joined[pattern.last.name] = self._joined(pattern, shapes, types)
            inner.update(
                dict.fromkeys(pattern.nodes - {pattern.last.name}, f"part of LayerNormalization {pattern.last.name}")
            )
        if joined:
            self.folded += [Folded(n.name, n.op_type, inner[n.name]) for n in graph.node if n.name in inner]
            kept = [node for node in graph.node if node.name not in inner]
            copies = [_copy(new) for node in kept for new in joined.get(node.name, [node])]
            del graph.node[:]
            graph.node.extend(copies)

    def _joined(
        self, pattern: Pattern, shapes: dict[str, tuple[int, ...]], types: dict[str, np.dtype]
    ) -> list[NodeProto]:
        """The node, between two transposes where it is not over the last dimension."""
        make, result = self.onnx.helper.make_node, pattern.last.output[0]
        kind, shape = types[pattern.source], shapes[pattern.source]
        free = result
        while any(name.startswith(f"{free}/") for name in types):
            free += "_"
        names = [f"{free}/scale", f"{free}/bias"]
        for name, array in zip(names, (pattern.scale, pattern.bias), strict=True):
            self._keep(name, array.astype(kind))
            shapes[name], types[name] = array.shape, kind
        source, normalized, order = pattern.source, result, [*range(len(shape))]
        if pattern.axis != len(shape) - 1:
            source, normalized = f"{free}/channels_last", f"{free}/normalized"
            order.append(order.pop(pattern.axis))
        attributes = {"axis": -1, "epsilon": pattern.epsilon}
        nodes = [make("LayerNormalization", [source, *names], [normalized], pattern.last.name, **attributes)]
        if source == pattern.source:
            return nodes
        for name in (source, normalized):
            shapes[name], types[name] = tuple(shape[axis] for axis in order), kind
            element = self.onnx.helper.np_dtype_to_tensor_dtype(kind)
            self.proto.graph.value_info.append(self.onnx.helper.make_tensor_value_info(name, element, shapes[name]))
        back = np.argsort(order).tolist()
        return [
            make("Transpose", [pattern.source], [source], source, perm=order),
            *nodes,
            make("Transpose", [normalized], [result], normalized, perm=back),
        ]


_WEIGHTED = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "PRelu"])
_NEVER_FOLDED = frozenset(
    [
        "DequantizeLinear",
        "QuantizeLinear",
        "RandomNormal",
        "RandomUniform",
        "RandomNormalLike",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
        "If",
        "Loop",
        "Scan",
        "SequenceConstruct",
        "SequenceEmpty",
        "Optional",
    ]
)
