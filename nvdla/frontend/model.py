"""Reading a model: ONNX or Caffe in, a checked ONNX model with static shapes and no foldable nodes out.

Model files are untrusted: sizes are limited, external data must lie in the model's own folder, and whatever the onnx
and onnxruntime packages raise becomes one FormatError that names the model.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.errors import FormatError
from nvdla.files import read_file
from nvdla.frontend.quantisation.qdq import strip

MAX_MODEL = 2 << 30
MAX_NODES = 20_000
#: elements of one tensor, and of all tensors together: far above real networks (ResNet-152: 10^8)
MAX_TENSOR = 1 << 28
MAX_ELEMENTS = 1 << 31
#: elements that constant folding may make in all
MAX_FOLDED = 1 << 28
OLDEST = 7
#: elements of a constant that stays in the graph while it is worked on: shapes, axes, limits
SMALL = 1024
DOMAINS = ("", "ai.onnx")


@dataclass
class Folded:
    """A node whose result does not depend on the inputs, or that was merged into another one before import."""

    name: str
    op: str
    reason: str


@dataclass
class Model:
    """A normalised model. ``proto``: topologically sorted, no functions, every node with constant inputs folded.

    ``constants``: initializers and folded results by value name. ``shapes`` and ``types``: of every value (element
    types as numpy dtypes). ``folded``: rows for the nodes that are gone. ``sha256`` of the file, ``notes`` for people.
    ``magnitudes`` and ``ranges`` by value and ``weight_scales`` by the value that a node makes: what a quantised model
    brings.
    """

    proto: Any
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

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, constants aside."""
        return [each.name for each in self.proto.graph.input if each.name not in self.constants]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [each.name for each in self.proto.graph.output]


def packages() -> tuple[Any, Any]:
    """onnx and onnxruntime. Raises FormatError that says how to install them."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise FormatError(f"compiling a model needs {error.name}: pip install 'nvdla[onnx]'") from None
    return onnx, onnxruntime


@by_annotations
def read(
    source: Any, shapes: Mapping[str, Sequence[int]] | None = None, weights: str | os.PathLike[str] | None = None
) -> Model:
    """A model from a path (.onnx; .prototxt with ``weights``), bytes, or an ``onnx.ModelProto``.

    ``shapes``: static shapes of inputs whose shape the file leaves open. Raises FormatError naming model, node, tensor
    and reason.
    """
    onnx, _ = packages()
    name, proto, digest = _load(onnx, source, weights, dict(shapes or {}))
    try:
        stripped = strip(proto)
        model = _Normaliser(onnx, name, stripped.proto, digest).run(dict(shapes or {}))
        model.magnitudes, model.weight_scales = stripped.magnitudes, stripped.weight_scales
        model.ranges = stripped.ranges
        model.notes += stripped.notes
        return model
    except FormatError:
        raise
    except Exception as error:  # onnx, protobuf and onnxruntime raise kinds of their own, not one family
        raise FormatError(f"{name}: not a model that onnx accepts: {one_line(error)}") from None


def one_line(error: object) -> str:
    """An error of another library on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _load(
    onnx: Any, source: Any, weights: str | os.PathLike[str] | None, shapes: Mapping[str, Sequence[int]]
) -> tuple[str, Any, str]:
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        refuse_external(onnx, copy, "model")
        return copy.graph.name or "model", copy, hashlib.sha256(copy.SerializeToString(deterministic=True)).hexdigest()
    if isinstance(source, bytes | bytearray | memoryview):
        proto = _parse(onnx, bytes(source), "model")
        refuse_external(onnx, proto, "model")
        return proto.graph.name or "model", proto, hashlib.sha256(bytes(source)).hexdigest()
    path = Path(source)
    if path.suffix in (".prototxt", ".pt"):
        from nvdla.frontend.caffe_model import caffe_proto

        return caffe_proto(onnx, path, weights, shapes)
    if weights is not None:
        raise FormatError(f"{path}: weights are given beside a .prototxt only; an ONNX model holds its own")
    data = read_file(path, MAX_MODEL, "ONNX model")
    proto = _parse(onnx, data, str(path))
    digest = hashlib.sha256(data)
    _load_external(onnx, proto, path, digest)
    return path.stem, proto, digest.hexdigest()


def _parse(onnx: Any, data: bytes, name: str) -> Any:
    try:
        proto = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf raises kinds of its own
        raise FormatError(f"{name}: not an ONNX model, or damaged (cut off?): {one_line(error)}") from None
    if not proto.graph.node and not proto.graph.output:
        raise FormatError(f"{name}: not an ONNX model: its graph is empty")
    return proto


def tensors_of(graph: Any) -> list[Any]:
    """All TensorProtos of a graph: initializers and attributes, sparse ones and sub-graphs too."""
    found = [*graph.initializer, *_of_sparse(graph.sparse_initializer)]
    for node in graph.node:
        found += _of_node(node)
    return found


def _of_node(node: Any) -> list[Any]:
    found = []
    for attribute in node.attribute:
        found += [attribute.t] * attribute.HasField("t") + list(attribute.tensors)
        sparse = [attribute.sparse_tensor] * attribute.HasField("sparse_tensor")
        found += _of_sparse([*sparse, *attribute.sparse_tensors])
        for inner in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
            found += tensors_of(inner)
    return found


def _of_sparse(tensors: Iterable[Any]) -> list[Any]:
    return [part for each in tensors for part in (each.values, each.indices)]


def _tensors_of_model(proto: Any) -> list[Any]:
    """Those of its graph and of its functions."""
    inner = [tensor for function in proto.functions for node in function.node for tensor in _of_node(node)]
    return tensors_of(proto.graph) + inner


_AS_A_PATH = "give the model as a path, so that its folder is known"


def refuse_external(onnx: Any, proto: Any, name: str, advice: str = _AS_A_PATH) -> None:
    """Raise FormatError for a tensor whose data lie in another file."""
    for tensor in _tensors_of_model(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise FormatError(f"{name}: tensor {tensor.name} keeps its data in another file; {advice}")


def _load_external(onnx: Any, proto: Any, path: Path, digest: Any) -> None:
    """Read external data from files in the model's own folder, and from nowhere else."""
    folder = path.resolve().parent
    total = 0
    for tensor in _tensors_of_model(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        where = {each.key: each.value for each in tensor.external_data}
        location = where.get("location", "")
        file = Path(os.path.realpath(folder / location)) if location and "\0" not in location else folder
        if not location or os.path.isabs(location) or not file.is_relative_to(folder) or not file.is_file():
            raise FormatError(
                f"{path}: tensor {tensor.name}: external data {location!r} must be a file in the model's folder"
            )
        try:
            offset = int(where.get("offset", 0))
            length = int(where.get("length", file.stat().st_size - offset))
        except ValueError:
            raise FormatError(f"{path}: tensor {tensor.name}: offset or length of its data is no number") from None
        total += length
        if offset < 0 or length < 0 or offset + length > file.stat().st_size or total > MAX_MODEL:
            raise FormatError(
                f"{path}: tensor {tensor.name}: bytes {offset} to {offset + length} do not lie in {location} "
                f"({file.stat().st_size} bytes), or all data is above {MAX_MODEL} bytes"
            )
        with open(file, "rb") as stream:
            stream.seek(offset)
            tensor.raw_data = stream.read(length)
        digest.update(tensor.raw_data)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def reads(proto: Any) -> list[str]:
    """Value names that a node reads; sub-graphs read values of the graph around them."""
    found = [name for name in proto.input if name]
    for attribute in proto.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            inner = {each.name for each in [*graph.input, *graph.initializer]}
            inner |= {name for node in graph.node for name in node.output}
            found += [name for node in graph.node for name in reads(node) if name not in inner]
            found += [each.name for each in graph.output if each.name not in inner]
    return list(dict.fromkeys(found))


class _Normaliser:
    def __init__(self, onnx: Any, name: str, proto: Any, digest: str) -> None:
        self.onnx, self.name, self.proto, self.digest = onnx, name, proto, digest
        self.constants: dict[str, np.ndarray] = {}
        self.folded: list[Folded] = []
        self.made = 0
        self.aside: set[str] = set()
        self.added: set[str] = set()

    def run(self, shapes: dict[str, Sequence[int]]) -> Model:
        self._initializers()
        opset = self._check()
        self._inputs(shapes)
        self._name_nodes()
        for _ in range(8):
            self._infer()
            if not self._fold(opset):
                break
        self._prune()
        self._put_back()
        self._ask_runtime()
        known, types = self._shapes()
        return Model(self.proto, self.name, self.digest, opset, self.constants, known, types, self.folded)

    def fail(self, text: str) -> FormatError:
        return FormatError(f"{self.name}: {text}")

    # ---- checks

    def _check(self) -> int:
        graph = self.proto.graph
        if len(graph.node) > MAX_NODES:
            raise self.fail(f"{len(graph.node)} nodes, the limit is {MAX_NODES}")
        opsets = {each.domain or "": each.version for each in self.proto.opset_import}
        opset = opsets.get("", opsets.get("ai.onnx", 0))
        if 0 < opset < OLDEST:
            opset = self._modernise(opset)
        if self.proto.functions:
            self.proto = self.onnx.inliner.inline_local_functions(self.proto)
        self._check_order(self.proto.graph)
        if not all(each.type.tensor_type.HasField("shape") for each in self.proto.graph.output):
            self._infer()  # outputs may leave their shape to inference
        try:
            self.onnx.checker.check_model(self.proto)
        except Exception as error:
            raise self.fail(f"not a valid ONNX model: {one_line(error)}") from None
        return opset

    def _modernise(self, opset: int) -> int:
        """Operators of the first opsets in the form of a later one, where onnx can convert them; else as they are."""
        try:
            self.proto = self.onnx.version_converter.convert_version(self.proto, 13)
        except Exception:  # onnx raises kinds of its own; such nodes run on the host
            return opset
        self.proto.ir_version = max(self.proto.ir_version, 4)  # before, constants had to be inputs
        for tensor in self.proto.graph.initializer:  # attributes that have become inputs
            self.constants.setdefault(tensor.name, self.onnx.numpy_helper.to_array(tensor))
        return 13

    def _check_order(self, graph: Any) -> None:
        """Every value is made once, before it is used: no circles, nothing from nowhere."""
        known = {each.name for each in graph.input} | {each.name for each in graph.initializer}
        made = {value for node in graph.node for value in node.output}
        for number, node in enumerate(graph.node):
            for value in node.input:
                if value and value not in known:
                    why = "is made later or in a circle" if value in made else "is made nowhere"
                    raise self.fail(f"node {node.name or number} ({node.op_type}): its input {value} {why}")
            known.update(node.output)
        for each in graph.output:
            if each.name not in known:
                raise self.fail(f"output {each.name} is made by no node")

    def _initializers(self) -> None:
        for tensor in self.proto.graph.initializer:
            if math.prod(tensor.dims) > MAX_TENSOR:
                raise self.fail(
                    f"tensor {tensor.name} has {math.prod(tensor.dims)} elements, the limit is {MAX_TENSOR}"
                )
            array = self.onnx.numpy_helper.to_array(tensor)
            if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
                user = next((n for n in self.proto.graph.node if tensor.name in n.input), None)
                if user is not None and user.op_type in _WEIGHTED:
                    raise self.fail(f"node {user.name or user.op_type}: tensor {tensor.name} holds NaN or infinity")
            self.constants[tensor.name] = array
        self._set_aside()
        if self.proto.graph.sparse_initializer:
            raise self.fail("sparse initializers are not read; make them dense")

    def _set_aside(self) -> None:
        """Large constants become inputs while the graph is worked on: checks and inference need no weights."""
        graph = self.proto.graph
        large = [each for each in graph.initializer if math.prod(each.dims) > SMALL]
        known = {each.name for each in graph.input}
        self.aside = {each.name for each in large}
        self.added = self.aside - known
        for each in large:
            if each.name not in known:
                graph.input.append(self.onnx.helper.make_tensor_value_info(each.name, each.data_type, list(each.dims)))
        small = [self._copy(each) for each in graph.initializer if each.name not in self.aside]
        del graph.initializer[:]
        graph.initializer.extend(small)

    def _put_back(self) -> None:
        graph = self.proto.graph
        inputs = [self._copy(each) for each in graph.input if each.name not in self.added]
        del graph.input[:]
        graph.input.extend(inputs)
        used = {value for node in graph.node for value in reads(node)} | {each.name for each in graph.output}
        names = [name for name in self.constants if name in self.aside and name in used]
        graph.initializer.extend(self.onnx.numpy_helper.from_array(self.constants[name], name) for name in names)

    def _inputs(self, shapes: dict[str, Sequence[int]]) -> None:
        inputs = {each.name: each for each in self.proto.graph.input if each.name not in self.constants}
        for name in shapes:
            if name not in inputs:
                raise self.fail(f"shape for {name}: the model's inputs are {', '.join(inputs) or 'none'}")
        for name, each in inputs.items():
            if each.type.WhichOneof("value") != "tensor_type":
                raise self.fail(f"input {name} is a {each.type.WhichOneof('value')}, only tensors can be bound")
            shape = each.type.tensor_type.shape
            if name in shapes:
                sizes = [int(size) for size in shapes[name]]
                if each.type.tensor_type.HasField("shape") and len(shape.dim) != len(sizes):
                    raise self.fail(f"shape {sizes} for input {name}: the model has {len(shape.dim)} dimensions")
                for dim, size in zip(shape.dim, sizes, strict=False):
                    if dim.dim_value > 0 and dim.dim_value != size:  # some tools write -1 for an open one
                        raise self.fail(
                            f"shape {sizes} for input {name}: the model fixes a dimension to {dim.dim_value}"
                        )
                del shape.dim[:]
                for size in sizes:
                    shape.dim.add().dim_value = size
            sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in shape.dim]
            if not each.type.tensor_type.HasField("shape") or any(size < 0 for size in sizes):
                words = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in shape.dim]
                raise self.fail(
                    f"input {name} has the dynamic shape [{', '.join(words)}]; fix it with --shape "
                    f"{name}={','.join(word if word.isdigit() else '1' for word in words) or '1,3,224,224'}"
                )
        if shapes:  # what the file says of inner values was said of the open shape
            del self.proto.graph.value_info[:]
            for each in self.proto.graph.output:
                if each.type.HasField("tensor_type"):
                    each.type.tensor_type.ClearField("shape")

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
            self.proto = self.onnx.shape_inference.infer_shapes(self.proto, strict_mode=False, data_prop=True)
            return
        except Exception:  # what was known of inner values before folding may no longer be true
            del self.proto.graph.value_info[:]
        try:
            self.proto = self.onnx.shape_inference.infer_shapes(self.proto, strict_mode=False, data_prop=True)
        except Exception as error:
            raise self.fail(f"shape inference fails: {one_line(error)}") from None

    def _ask_runtime(self) -> None:
        """Types (and shapes) that onnx's inference does not find, as onnxruntime's finds them."""
        graph = self.proto.graph
        known = {each.name for each in [*graph.input, *graph.value_info] if each.type.WhichOneof("value")}
        known |= {each.name for each in graph.output if each.type.WhichOneof("value")}
        missing = [name for node in graph.node for name in node.output if name and name not in known]
        if not missing:
            return
        asked = self.onnx.ModelProto()
        asked.CopyFrom(self.proto)
        del asked.graph.output[:]
        asked.graph.output.extend(self.onnx.ValueInfoProto(name=name) for name in missing)
        for each in session(asked, self.name, optimise=False).get_outputs():
            kind = _RUNTIME_TYPES.get(each.type)
            if kind is None:
                continue  # a sequence or the like, which only passes between nodes of the host
            shape = each.shape if all(isinstance(size, int) for size in each.shape) else None
            graph.value_info.append(self.onnx.helper.make_tensor_value_info(each.name, kind, shape))

    def _shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, np.dtype]]:
        shapes = {name: array.shape for name, array in self.constants.items()}
        types = {name: array.dtype for name, array in self.constants.items()}
        graph = self.proto.graph
        total = 0
        for each in [*graph.input, *graph.value_info, *graph.output]:
            tensor = each.type.tensor_type
            if each.name in shapes or not tensor.elem_type:
                continue
            types[each.name] = np.dtype(self.onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
                continue
            shapes[each.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
            size = math.prod(shapes[each.name])
            total += size
            if size > MAX_TENSOR or total > MAX_ELEMENTS:
                raise self.fail(
                    f"tensor {each.name} has {size} elements ({total} up to here); the limits are "
                    f"{MAX_TENSOR} and {MAX_ELEMENTS}"
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
        copies = [self._copy(node) for node in rest]
        del self.proto.graph.node[:]
        self.proto.graph.node.extend(copies)
        return True

    @staticmethod
    def _copy(message: Any) -> Any:
        copy = type(message)()
        copy.CopyFrom(message)
        return copy

    @staticmethod
    def _is_shape_of(node: Any, shapes: Mapping[str, tuple[int, ...]], known: set[str]) -> bool:
        return node.op_type in ("Shape", "Size") and node.domain in DOMAINS and node.input[0] in shapes

    @staticmethod
    def _shape_value(node: Any, shape: tuple[int, ...]) -> np.ndarray:
        if node.op_type == "Size":
            return np.array(math.prod(shape), np.int64)
        ends = {each.name: each.i for each in node.attribute}
        return np.array(shape[slice(ends.get("start", 0), ends.get("end", len(shape)))], np.int64)

    @staticmethod
    def _foldable(node: Any, known: set[str], shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Constant inputs, a known operator without randomness, no sub-graph, and results of a bounded size.

        DequantizeLinear of constants stays: its integers are the weights of a quantised model.
        """
        if node.domain not in DOMAINS or node.op_type in _NEVER_FOLDED:
            return False
        if any(each.HasField("g") or each.graphs for each in node.attribute):
            return False
        if not all(value in known for value in node.input if value):
            return False
        return all(math.prod(shapes.get(value, (0,))) <= MAX_FOLDED for value in node.output if value)

    def _evaluate(self, nodes: list[Any]) -> None:
        """One run of onnxruntime over the nodes."""
        helper = self.onnx.helper
        made = {value for node in nodes for value in node.output if value}
        wanted = sorted({value for node in nodes for value in node.input if value} - made)
        holders = [self.onnx.numpy_helper.from_array(self.constants[name], name) for name in wanted]
        outputs = [self.onnx.ValueInfoProto(name=name) for name in sorted(made)]
        graph = helper.make_graph(nodes, "constants", [], outputs, holders)
        model = helper.make_model(graph, opset_imports=list(self.proto.opset_import), ir_version=self.proto.ir_version)
        for name, array in zip(sorted(made), run_once(model, self.name), strict=True):
            self._keep(name, np.asarray(array))
        for node in nodes:
            self.folded.append(Folded(node.name, node.op_type, "its result is a constant"))

    def _keep(self, name: str, array: np.ndarray) -> None:
        self.made += array.size
        if self.made > MAX_FOLDED:
            raise self.fail(f"constants of {self.made} elements are computed up to {name}, the limit is {MAX_FOLDED}")
        self.constants[name] = array
        self.proto.graph.initializer.append(self.onnx.numpy_helper.from_array(array, name))

    def _prune(self) -> None:
        """Nodes whose results nobody needs."""
        needed = {each.name for each in self.proto.graph.output}
        keep = []
        for node in reversed(list(self.proto.graph.node)):
            if any(value in needed for value in node.output):
                keep.append(self._copy(node))
                needed.update(reads(node))
            else:
                self.folded.append(Folded(node.name, node.op_type, "nothing uses its result"))
        del self.proto.graph.node[:]
        self.proto.graph.node.extend(reversed(keep))


#: TensorProto.DataType by onnxruntime's names
_RUNTIME_TYPES = {
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


def run_once(model: Any, name: str, feeds: Mapping[str, np.ndarray] | None = None) -> list[np.ndarray]:
    """Outputs of a small model in onnxruntime, without optimisation. Raises FormatError."""
    return session(model, name, optimise=False).run(None, dict(feeds or {}))


def session(model: Any, name: str, optimise: bool = True, threads: int | None = None) -> Any:
    """An onnxruntime session of a ModelProto. Raises FormatError with ``name`` when it cannot be made."""
    _, runtime = packages()
    options = runtime.SessionOptions()
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if threads:
        options.intra_op_num_threads = threads
    try:
        data = model if isinstance(model, bytes) else model.SerializeToString()
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises kinds of its own
        raise FormatError(f"{name}: onnxruntime cannot run it: {one_line(error)}") from None
