"""Model files of any kind as ONNX models in memory.

Model files are untrusted: sizes are limited, external data is in the model's own directory, and what local functions
expand to is counted before they are expanded.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.compiler.caffe import read_network, read_weights
from nvdla.compiler.caffe.conversion import convert
from nvdla.compiler.caffe.network import CaffeNetwork
from nvdla.compiler.caffe.text import one_line as text_one_line
from nvdla.compiler.frontend.attributes import nodes_of
from nvdla.compiler.frontend.isolation import one_line
from nvdla.compiler.frontend.tflite import is_tflite, tflite_proto
from nvdla.errors import FormatError, shown
from nvdla.limits import MAX_SHARING
from nvdla.util.files import read_file
from nvdla.util.recognition import is_text, kind_of, wrong_kind
from nvdla.util.rounding import integer

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

MAX_MODEL = 2 << 30
MODEL_KINDS = ("onnx", "cut-onnx", "tflite", "prototxt")
MAX_NODES = 20_000
#: elements of a constant that stays in the graph while it is worked on: shapes, axes, limits
SMALL = 1024


def load_model(
    onnx: ModuleType,
    source: Any,
    weights: str | os.PathLike[str] | None,
    shapes: Mapping[str, Sequence[int]],
    file: str = "model",
) -> tuple[str, ModelProto, str]:
    """(name, ModelProto, sha256) of a path, bytes or ModelProto. ``file``: the name of the last two in errors. Raises
    FormatError."""
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        _refuse_weights(weights, file)
        refuse_external(onnx, copy, file)
        return copy.graph.name or "model", copy, hashlib.sha256(copy.SerializeToString(deterministic=True)).hexdigest()
    if isinstance(source, bytes | bytearray | memoryview):
        _refuse_weights(weights, file)
        if is_tflite(bytes(source[:8])):
            return tflite_proto(onnx, bytes(source), "model", shapes)
        proto = parse(onnx, bytes(source), "model")
        refuse_external(onnx, proto, "model")
        return proto.graph.name or "model", proto, hashlib.sha256(bytes(source)).hexdigest()
    path = Path(source)
    require_model(path)
    if path.suffix == ".prototxt" or kind_of(path) == "prototxt":
        return caffe_proto(onnx, path, weights, shapes)
    _refuse_weights(weights, str(path))
    data = read_file(path, MAX_MODEL, "model")
    if is_tflite(data):
        return path.stem, *tflite_proto(onnx, data, str(path), shapes)[1:]
    proto = parse(onnx, data, str(path))
    digest = hashlib.sha256(data)
    _load_external(onnx, proto, path, digest)
    return path.stem, proto, digest.hexdigest()


def _refuse_weights(weights: str | os.PathLike[str] | None, name: str) -> None:
    if weights is not None:
        raise FormatError(
            f"{name}: weights (--weights; Python: weights=): must be given with a .prototxt only. Other models contain "
            "their weights."
        )


def require_model(path: str | os.PathLike[str], more: Collection[str] = (), runs: bool = False) -> None:
    """Raise FormatError for a file of another kind than the models that load_model reads, and ``more``. ``runs``: the
    caller runs the model in floating point."""
    name = os.fspath(path)
    wanted = "an ONNX or TFLite model" if runs else "a model (ONNX, TFLite, PyTorch .pt2 or Caffe)"
    if not os.path.exists(path):
        read_file(path, MAX_MODEL, "model")  # has the reason
    other = wrong_kind(path, name, wanted, (*MODEL_KINDS, *more), runs)
    if other is None and is_text(path) and Path(path).suffix != ".prototxt":
        other = f"{name}: must be {wanted}, got a text file"
    if other is not None:
        raise FormatError(other)


def without_torch(source: object, example_inputs: Sequence[object] | None, trusted: bool) -> object:
    """Export models of PyTorch to ONNX in memory.

    Args:
        source: a ``torch.nn.Module``, a ``torch.export.ExportedProgram``, the path of a .pt2 file, or any other model.
        example_inputs: the arguments of a module's ``forward``.
        trusted: read .pt2 files, which can contain code.

    Returns:
        An ``onnx.ModelProto``; any other ``source`` unchanged.

    Raises:
        FormatError: PyTorch cannot export it.
    """
    loaded = sys.modules.get("torch")
    if loaded is not None and isinstance(source, loaded.nn.Module | loaded.export.ExportedProgram):
        is_module = isinstance(source, loaded.nn.Module)
        return _exported(source, example_inputs, type(source).__name__ if is_module else "model")
    if example_inputs is not None:
        raise FormatError(f"example_inputs: must be given for a torch.nn.Module only, got {type(source).__name__}")
    if not isinstance(source, str | os.PathLike) or kind_of(source) != "pt2":
        return source
    name = os.fspath(source)
    if not trusted:
        raise FormatError(
            f"{name}: PyTorch reads .pt2 files with pickle, which can run code: must be trusted. "
            "Add --trusted (Python: trusted=True) if you trust its source."
        )
    torch = _torch(name)
    try:
        program = torch.export.load(name)
    except Exception as error:  # of zipfile, pickle and PyTorch
        raise FormatError(f"{name}: torch.export.load: {_cause(error)}") from None
    proto = _exported(program, None, name)
    proto.graph.name = Path(name).stem
    return proto


def _cause(error: BaseException) -> str:
    """The first of the errors that led to an error of PyTorch, on one line and without colors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(re.sub(r"\x1b\[[\d;]*m", "", str(error)) or type(error).__name__)


def _torch(name: str) -> Any:
    try:
        importlib.import_module("onnxscript")  # torch.onnx needs it
        return importlib.import_module("torch")
    except ImportError as error:
        raise FormatError(f"{name}: package {error.name}: must be installed: pip install 'nvdla[torch]'") from None


def _exported(model: Any, example_inputs: Sequence[object] | None, name: str) -> ModelProto:
    """A module in evaluation mode, or a program, as a ModelProto."""
    torch = _torch(name)
    is_module = isinstance(model, torch.nn.Module)
    if is_module and not isinstance(example_inputs, Sequence):
        got = "none" if example_inputs is None else type(example_inputs).__name__
        raise FormatError(f"{name}: example_inputs: must be a tuple with the arguments of forward, got {got}")
    training = [module for module in model.modules() if module.training] if is_module else []
    try:
        for module in training:
            module.training = False
        arguments = tuple(example_inputs or ()) if is_module else ()
        with (
            _fixed_quantizers(model) if is_module else contextlib.nullcontext(),
            warnings.catch_warnings(),
            _only_errors("torch.onnx"),
        ):
            warnings.simplefilter("ignore")
            proto = torch.onnx.export(model, arguments, dynamo=True, verbose=False).model_proto
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None
    except Exception as error:  # the code of the model can raise any kind
        raise FormatError(f"{name}: torch.onnx.export: {_cause(error)}") from None
    finally:
        for module in training:
            module.training = True
    proto.graph.name = name
    return proto


@contextlib.contextmanager
def _fixed_quantizers(model: Any) -> Iterator[None]:
    """Put rounding with the scales of now in the place of PyTorch's FakeQuantize modules, which cannot be exported:
    they branch on tensors, and observe."""
    quantization = importlib.import_module("torch.ao.quantization")
    replaced = []
    try:
        for path, module in list(model.named_modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, quantization.FakeQuantizeBase):
                    fixed = _fixed_quantizer(child, f"{path}.{name}".lstrip("."))
                elif isinstance(child, quantization.ObserverBase):
                    fixed = importlib.import_module("torch").nn.Identity()
                else:
                    continue
                setattr(module, name, fixed)
                replaced.append((module, name, child))
        yield
    finally:
        for module, name, child in replaced:
            setattr(module, name, child)


def _fixed_quantizer(quantizer: Any, name: str) -> Any:
    """A module that rounds as a FakeQuantize module does, with its scales as constants. Raises FormatError for a range
    that 8 bits do not have."""
    torch = importlib.import_module("torch")
    if not quantizer.fake_quant_enabled[0]:
        return torch.nn.Identity()
    scales, zeros = quantizer.scale.detach().clone(), quantizer.zero_point.detach().clone()
    scale, zero, axis = float(scales[0]), int(zeros[0]), quantizer.ch_axis
    limits = (quantizer.activation_post_process.quant_min, quantizer.activation_post_process.quant_max)
    whole = (0, 255) if limits[0] >= 0 else (-128, 127)
    if limits[0] < whole[0] or limits[1] > whole[1]:
        raise FormatError(
            f"quantizer {name}: range: must be within -128..127 or 0..255, got {limits[0]}..{limits[1]}. Set quant_min "
            "and quant_max of its FakeQuantize."
        )

    def rounding(values: Any) -> Any:
        # A smaller range (7 bits, -127..127): ONNX has none, and the exporter would limit integers by real numbers.
        if len(scales) > 1:
            if limits != whole:
                shape = [-1 if place == axis else 1 for place in range(values.ndim)]
                values = values.clamp(*(((limit - zeros) * scales).reshape(shape) for limit in limits))
            return torch.fake_quantize_per_channel_affine(values, scales, zeros.int(), axis, *whole)
        if limits != whole:
            values = values.clamp(*((limit - zero) * scale for limit in limits))
        return torch.fake_quantize_per_tensor_affine(values, scale, zero, *whole)

    return type("FixedQuantizer", (torch.nn.Module,), {"forward": lambda _, values: rounding(values)})()


@contextlib.contextmanager
def _only_errors(name: str) -> Iterator[None]:
    """Ignore the warnings of a logger and of those below it."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def parse(onnx: ModuleType, data: bytes, name: str) -> ModelProto:
    """A ModelProto of bytes. Raises FormatError."""
    try:
        proto = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf raises its own exception types
        if name.lower().endswith(".tflite"):
            raise FormatError(f"{name}: must be a TFLite model, got data without its identifier (TFL3)") from None
        raise FormatError(f"{name}: must be an intact ONNX model (cut off?): {one_line(error)}") from None
    if not proto.graph.node and not proto.graph.output:
        raise FormatError(f"{name}: must be an ONNX model, got an empty graph")
    return proto


def tensors_of(graph: GraphProto) -> list[TensorProto]:
    """All TensorProtos of a graph: initializers and attributes, sparse ones and sub-graphs too."""
    tensors = [*graph.initializer, *_of_sparse(graph.sparse_initializer)]
    for node in graph.node:
        tensors += _of_node(node)
    return tensors


def _of_node(node: NodeProto) -> list[TensorProto]:
    tensors = []
    for attribute in node.attribute:
        tensors += [attribute.t] * attribute.HasField("t") + list(attribute.tensors)
        sparse = [attribute.sparse_tensor] * attribute.HasField("sparse_tensor")
        tensors += _of_sparse([*sparse, *attribute.sparse_tensors])
        for inner in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
            tensors += tensors_of(inner)
    return tensors


def _of_sparse(tensors: Iterable[SparseTensorProto]) -> list[TensorProto]:
    return [part for sparse in tensors for part in (sparse.values, sparse.indices)]


def _tensors_of_model(proto: ModelProto) -> list[TensorProto]:
    """Those of its graph and of its functions."""
    inner = [tensor for function in proto.functions for node in function.node for tensor in _of_node(node)]
    return tensors_of(proto.graph) + inner


def check_size(proto: ModelProto, name: str) -> None:
    """Count nodes, those of sub-graphs and of local functions as often as they are called, before any is expanded.

    Args:
        proto: a ModelProto.
        name: of the model, for messages.

    Raises:
        FormatError: there are more than MAX_NODES, or a function calls itself.
    """
    functions = {_called(function, function.name): function for function in proto.functions}
    sizes: dict[tuple[str, ...], int] = {}

    def size(nodes: Sequence[NodeProto]) -> int:
        return sum(sizes.get(_called(node, node.op_type), 1) for node in nodes_of(nodes))

    for key, function in functions.items():
        waiting = [(key, function)]
        open_calls: set[tuple[str, ...]] = set()
        while waiting:
            key, function = waiting[-1]
            calls = {_called(node, node.op_type) for node in nodes_of(function.node)} & functions.keys()
            if key in open_calls or calls <= sizes.keys():
                if not calls <= sizes.keys():
                    raise FormatError(f"{name}: function {function.name}: must not call itself")
                sizes[key] = max(1, size(function.node))
                waiting.pop()
                continue
            open_calls.add(key)
            waiting += [(call, functions[call]) for call in calls - sizes.keys()]
    total = size(proto.graph.node)
    if total > MAX_NODES:
        many = f"{total:,}" if total < 10**15 else "more than 10^15"
        expanded = " (local functions expanded)" if functions else ""
        raise FormatError(f"{name}: nodes{expanded}: must be at most {MAX_NODES:,}, got {many}")


def _called(message: ModelProto | GraphProto | NodeProto, name: str) -> tuple[str, ...]:
    """Key by which a node calls a function: domain, name and overload."""
    return message.domain, name, getattr(message, "overload", "")


def light_copy(onnx: ModuleType, proto: ModelProto) -> tuple[ModelProto, dict[str, tuple[int, ...]]]:
    """A copy for checks and inference, which need no weights.

    Returns:
        A ModelProto whose large initializers are inputs, and the shapes of all initializers.
    """
    light = onnx.ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    graph, light_graph = proto.graph, light.graph
    light_graph.name = graph.name or "graph"
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light_graph, field).extend(getattr(graph, field))
    known = {value.name for value in graph.input}
    for constant in graph.initializer:
        if math.prod(constant.dims) <= SMALL:
            light_graph.initializer.append(constant)
        elif constant.name not in known:
            light_graph.input.append(
                onnx.helper.make_tensor_value_info(constant.name, constant.data_type, list(constant.dims))
            )
    return light, {constant.name: tuple(constant.dims) for constant in graph.initializer}


_AS_A_PATH = "Give the model as a path, so that its directory is known"


def refuse_external(onnx: ModuleType, proto: ModelProto, name: str, advice: str = _AS_A_PATH) -> None:
    """Raise FormatError for a tensor whose data are in another file."""
    for tensor in _tensors_of_model(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise FormatError(f"{name}: tensor {tensor.name}: its data are in another file. {advice}.")


def _load_external(onnx: ModuleType, proto: ModelProto, path: Path, digest: hashlib._Hash) -> None:
    """Read external data from files in the model's own folder, and from nowhere else."""
    folder = path.resolve().parent
    total = 0
    taken: dict[Path, int] = {}
    for tensor in _tensors_of_model(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        where = {entry.key: entry.value for entry in tensor.external_data}
        location = where.get("location", "")
        file = Path(os.path.realpath(folder / location)) if location and "\0" not in location else folder
        if not location or os.path.isabs(location) or not file.is_relative_to(folder) or not file.is_file():
            raise FormatError(
                f"{path}: tensor {tensor.name}: external data {location!r} must be a file in the model's folder"
            )
        try:
            offset = integer(where.get("offset", "0"))
            length = integer(where.get("length", str(file.stat().st_size - offset)))
        except ValueError:
            raise FormatError(f"{path}: tensor {tensor.name}: offset and length of its data: must be numbers") from None
        size = file.stat().st_size
        if offset < 0 or length < 0 or offset + length > size:
            raise FormatError(
                f"{path}: tensor {tensor.name}: bytes {shown(offset)} to {shown(offset + length)}: must be in "
                f"{location}, which has {size} bytes"
            )
        total += length
        if total > MAX_MODEL:
            raise FormatError(f"{path}: data in other files: must be at most {MAX_MODEL} bytes (2 GiB), got more")
        taken[file] = taken.get(file, 0) + length
        if taken[file] > MAX_SHARING * size:
            raise FormatError(
                f"{path}: tensors share the bytes of {location}: must be at most {MAX_SHARING} times the file "
                f"({MAX_SHARING * size} bytes), got {taken[file]} up to tensor {tensor.name}"
            )
        with open(file, "rb") as stream:
            stream.seek(offset)
            tensor.raw_data = stream.read(length)
        digest.update(tensor.raw_data)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


MAX_FILE = 2 << 30


def caffe_proto(
    onnx: ModuleType, path: Path, weights: str | os.PathLike[str] | None, shapes: Mapping[str, Sequence[int]]
) -> tuple[str, ModelProto, str]:
    """(name, ModelProto, sha256 of both files) of a .prototxt with its .caffemodel.

    The batch is 1 unless ``shapes`` says otherwise. Values carry the names of the layers that make them.
    """
    if weights is None:
        raise FormatError(
            f"{path}: weights of a Caffe network: must be given. Add --weights FILE.caffemodel (Python: weights=)."
        )
    network = read_network(path, read_weights(weights))
    with np.errstate(all="ignore"):  # weights of a broken file may be infinite
        converted = convert(onnx, network, _inputs(network, shapes))
    names = {value: layer for layer, value in converted.names.items()}
    _rename(converted.model.graph, names, converted.ends)
    digest = hashlib.sha256(read_file(path, MAX_FILE) + read_file(weights, MAX_FILE)).hexdigest()
    # Outputs of a converted network have names alone; a model that others check has types and shapes.
    return path.stem, onnx.shape_inference.infer_shapes(converted.model), digest


def _inputs(network: CaffeNetwork, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    shapes_by_input = {}
    for name, shape in network.inputs.items():
        chosen = tuple(shapes[name]) if name in shapes else None if shape is None else (1, *shape[1:])
        if chosen is None or any(size <= 0 for size in chosen):
            raise FormatError(
                f"{network.file}: input {text_one_line(name)}: shape must be given. Add for example --shape "
                f"{text_one_line(name)}=1,3,224,224."
            )
        shapes_by_input[name] = chosen
    return shapes_by_input


def _rename(graph: GraphProto, names: Mapping[str, str], ends: Sequence[str]) -> None:
    """Remove the Identity after every layer and give its result the layer's name."""
    users: dict[str, int] = {}
    for node in graph.node:
        for value in node.input:
            users[value] = users.get(value, 0) + 1
    makers = {value: node for node in graph.node for value in node.output}
    new = dict(names)
    kept = []
    for node in graph.node:
        source = node.input[0] if node.input else ""
        if node.op_type == "Identity" and node.output[0] in names and source in makers and users[source] == 1:
            new[source] = names[node.output[0]]
        else:
            kept.append(node)
    for node in kept:
        node.input[:] = [new.get(value, value) for value in node.input]
        node.output[:] = [new.get(value, value) for value in node.output]
    taken = set(ends)
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    outputs = [type(output).FromString(output.SerializeToString()) for output in graph.output if output.name in taken]
    for output in outputs:
        output.name = new.get(output.name, output.name)
    del graph.output[:]
    graph.output.extend(outputs)
