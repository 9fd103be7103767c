"""Checks of an ONNX model before onnxruntime sees it, and of the work that it asks for.

A shape that a file states must be the one that onnx infers from the attributes. It counts alone only where inference
knows nothing: for operators outside the standard, and for shapes that depend on data.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nvdla.compiler.frontend import isolation
from nvdla.compiler.frontend.attributes import (
    DOMAINS,
    MAX_RANK,
    Attributes,
    Constants,
    check_ranges,
    check_shapes,
    described_node,
    forget_shapes,
    infer_shapes,
    nodes_of,
    states_sizes_of_onnx,
)
from nvdla.compiler.frontend.isolation import RUNTIME_TYPES, one_line, packages, session
from nvdla.compiler.frontend.loading import check_size, light_copy, parse, refuse_external
from nvdla.errors import FormatError
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorShapeProto, ValueInfoProto


Shapes = Mapping[str, Sequence[int]]
#: operators that multiply by the weights of one of their inputs, which this is the place of
WEIGHTS: Mapping[str, int] = {
    "Conv": 1,
    "ConvTranspose": 1,
    "ConvInteger": 1,
    "DeformConv": 1,
    "Gemm": 1,
    "MatMul": 1,
    "MatMulInteger": 1,
    "QLinearConv": 3,
    "QLinearMatMul": 3,
}
_CONVOLUTIONS = ("Conv", "ConvInteger", "DeformConv", "QLinearConv")
_WINDOWS = ("MaxPool", "AveragePool", "LpPool")
_RECURRENT = ("LSTM", "GRU", "RNN")


def multiplications(
    op: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Attributes, shapes: Shapes
) -> int:
    """Multiplications of a convolution, matrix product or recurrent layer of known shapes; 0 for anything else."""
    if op == "Einsum" and inputs and all(name in shapes for name in inputs):
        return _einsum(inputs, attributes, shapes) * (len(inputs) - 1)
    if op in _RECURRENT:
        return _recurrent(inputs, shapes)
    if op not in WEIGHTS or any(name not in shapes for name in (*inputs[:2], *outputs[:1])) or not outputs:
        return 0
    place = WEIGHTS[op]
    if place >= len(inputs) or inputs[place] not in shapes:
        return 0
    out, weights = shapes[outputs[0]], shapes[inputs[place]]
    if op in _CONVOLUTIONS:
        return math.prod(out) * math.prod(weights[1:])
    given = shapes[inputs[0]]
    if op == "ConvTranspose":
        return math.prod(given) * math.prod(weights[1:])
    inner = given[-1 if not attributes.get("transA") else 0] if given else 1
    return math.prod(out) * inner


def _work(node: NodeProto, attributes: Attributes, shapes: Shapes) -> int:
    """At least one: a node without known shapes counts, too."""
    macs = multiplications(node.op_type, node.input, node.output, attributes, shapes)
    elements = sum(math.prod(shapes[name]) for name in (*node.input, *node.output) if name in shapes)
    if node.op_type in _WINDOWS and node.output and node.output[0] in shapes:
        elements = math.prod(shapes[node.output[0]]) * math.prod(attributes.get("kernel_shape", (1,)))
    elif node.op_type == "LRN":
        elements *= max(1, int(attributes.get("size", 1)))
    elif node.op_type == "Einsum":
        elements = max(elements, _einsum(node.input, attributes, shapes))
    return max(1, macs, elements)


def _recurrent(inputs: Sequence[str], shapes: Shapes) -> int:
    """Those of the input's and the state's weights, for each element of each sequence."""
    elements = math.prod(shapes[inputs[0]][:2]) if inputs and inputs[0] in shapes else 0
    return elements * sum(math.prod(shapes[name]) for name in inputs[1:3] if name in shapes)


def _einsum(inputs: Sequence[str], attributes: Attributes, shapes: Shapes) -> int:
    """The product of all its indices."""
    equation = attributes.get("equation", "")
    equation = equation.decode("utf-8", "replace") if isinstance(equation, bytes) else equation
    sizes: dict[str, int] = {}
    for term, name in zip(equation.partition("->")[0].replace(" ", "").split(","), inputs, strict=False):
        shape = shapes.get(name, ())
        first, dots, last = term.partition("...")
        rest = max(len(shape) - len(first) - len(last), 0)  # axes of the ellipsis, aligned at their end
        axes = [*first, *((f"{place}" for place in range(-rest, 0)) if dots else ()), *last]
        for axis, size in zip(axes, shape, strict=False):
            sizes[axis] = max(sizes.get(axis, 1), size)
    return math.prod(sizes.values())


class Budget:
    """Counts the work of nodes and refuses the node that passes the limit, by name."""

    def __init__(self, onnx: ModuleType, name: str, limit: int, kind: str) -> None:
        self.onnx, self.name, self.limit, self.kind = onnx, name, limit, kind
        self.spent = 0

    def charge(self, node: NodeProto, shapes: Shapes, constants: Constants, times: int = 1) -> None:
        """Count a node and its sub-graphs, ``times`` times."""
        values = {attribute.name: self.onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        self.spent += times * _work(node, values, shapes)
        if self.spent > self.limit:
            raise FormatError(
                f"{self.name}: {described_node(node)}: too much work: must be at most {self.limit:,} multiplications "
                f"(ModelLimits.{self.kind}), got {self.spent:,} up to this node. "
                "--trusted (trusted=True) removes the limit for a model that you trust"
            )
        turns = _turns(node, values, constants) if node.op_type == "Loop" else 1
        for value in values.values():
            for graph in value if isinstance(value, list) else [value]:
                if not isinstance(graph, self.onnx.GraphProto):
                    continue
                inner = {**shapes, **known_shapes([*graph.input, *graph.value_info, *graph.output])}
                held = {**constants, **small_constants(self.onnx, graph)}
                for inner_node in graph.node:
                    self.charge(inner_node, inner, held, times * turns)


def _turns(loop: NodeProto, values: Constants, constants: Constants) -> int:
    """Guaranteed number of iterations of a loop: its constant trip count, where its condition stays true; else 1."""
    body = values.get("body")
    if body is None or not loop.input or not loop.input[0] or not body.output or len(body.input) < 2:
        return 1
    count = constants.get(loop.input[0])
    if count is None or count.size != 1:
        return 1
    going_on, makers = body.output[0].name, {name: node for node in body.node for name in node.output}
    while going_on in makers and makers[going_on].op_type == "Identity":
        going_on = makers[going_on].input[0]
    unchanged = going_on == body.input[1].name
    always = going_on in makers and makers[going_on].op_type == "Constant"
    kept = any(constant.name == going_on for constant in body.initializer)
    return max(1, int(count.ravel()[0])) if unchanged or always or kept else 1


def known_shapes(values: Sequence[ValueInfoProto]) -> dict[str, tuple[int, ...]]:
    """Static shapes of ValueInfoProtos."""
    shapes = {}
    for value in values:
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(
            dim.HasField("dim_value") and dim.dim_value >= 0 for dim in tensor.shape.dim
        ):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes


def small_constants(onnx: ModuleType, graph: GraphProto) -> Document:
    """Constants of one number: initializers and Constant nodes."""
    tensors = {constant.name: constant for constant in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            tensors.update((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")
    return {
        name: onnx.numpy_helper.to_array(constant)
        for name, constant in tensors.items()
        if math.prod(constant.dims) == 1 and constant.data_location != onnx.TensorProto.EXTERNAL
    }


def check_work(model: ModelProto | bytes, name: str) -> None:
    """Check what a model that comes without its directory costs in onnxruntime, as far as its shapes are known.

    Args:
        model: a ModelProto, or its bytes.
        name: of the model or part, for messages.

    Raises:
        FormatError: its data is in other files, its local functions expand to too many nodes, or its work passes
            ``ModelLimits.host``.
    """
    onnx, _ = packages()
    proto = parse(onnx, model, name) if isinstance(model, bytes) else model
    refuse_external(onnx, proto, name, "A package contains all data that it needs")
    check_size(proto, name)
    light, shapes = light_copy(onnx, proto)
    with contextlib.suppress(Exception):  # onnx raises its own exception types; onnxruntime checks the model
        light = infer_shapes(onnx, light)
    graph = light.graph
    shapes = {**known_shapes([*graph.input, *graph.value_info, *graph.output]), **shapes}
    budget = Budget(onnx, name, isolation.LIMITS.host, "host")
    held = small_constants(onnx, graph)
    for node in graph.node:
        budget.charge(node, shapes, held)


#: domains whose operators onnx describes
_STANDARD = (*DOMAINS, "ai.onnx.ml", "ai.onnx.preview.training")
#: operators of the first release that were never part of the standard: onnx lets a model with one of them pass
_EXPERIMENTAL = frozenset(
    (
        *("ATen", "Affine", "ConstantFill", "Crop", "DynamicSlice", "GRUUnit", "GivenTensorFill", "ImageScaler"),
        *("ParametricSoftplus", "Scale", "ScaledTanh"),
    )
)


def fix_inputs(proto: ModelProto, shapes: Mapping[str, Sequence[int]], name: str) -> list[str]:
    """Give inputs static shapes: those that the caller chose, and a batch of 1 where only the batch is open.

    Returns:
        A note per input with an open batch.

    Raises:
        FormatError: a shape stays open.
    """
    held = {constant.name for constant in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input if value.name not in held}
    for key in shapes:
        if key not in inputs:
            raise FormatError(f"{name}: shape for {key}: input: must be one of {', '.join(inputs) or 'none'}")
    notes = []
    for key, value in inputs.items():
        shape = value.type.tensor_type.shape
        is_open = [_is_open(dim) for dim in shape.dim]
        if key not in shapes and len(is_open) > 1 and is_open[0] and not any(is_open[1:]):
            shape.dim[0].dim_value = 1
            words = ",".join(["N", *(str(dim.dim_value) for dim in shape.dim[1:])])
            notes.append(
                f"input {key}: its batch is open, so it is 1. For another add --shape {key}={words} (Python: shapes=)."
            )
        _fix(value, shapes.get(key), name)
    if shapes or notes:  # shapes of inner values in the file refer to the open shape
        forget_shapes(proto)
    return notes


def _is_open(dim: TensorShapeProto.Dimension) -> bool:
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _fix(value: ValueInfoProto, chosen: Sequence[int] | None, name: str) -> None:
    if value.type.WhichOneof("value") != "tensor_type":
        kind = value.type.WhichOneof("value") or "value without a type"
        raise FormatError(f"{name}: input {value.name}: must be a tensor, got a {kind}")
    tensor = value.type.tensor_type
    shape = tensor.shape
    if chosen is not None:
        sizes = [int(size) for size in chosen]
        if tensor.HasField("shape") and len(shape.dim) != len(sizes):
            raise FormatError(
                f"{name}: shape for input {value.name}: must have {len(shape.dim)} dimensions, got {sizes}"
            )
        for dim, size in zip(shape.dim, sizes, strict=False):
            if dim.dim_value > 0 and dim.dim_value != size:  # some tools write -1 for an open one
                raise FormatError(
                    f"{name}: shape for input {value.name}: fixed dimension must stay {dim.dim_value}, got {sizes}"
                )
        tensor.ClearField("shape")
        tensor.shape.SetInParent()
        for size in sizes:
            tensor.shape.dim.add().dim_value = size
        shape = tensor.shape
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in shape.dim]
    if not tensor.HasField("shape") or any(size < 0 for size in sizes):
        words = ["?" if _is_open(dim) else str(dim.dim_value) for dim in shape.dim]
        batch = ["1" if words[:1] == ["?"] and len(words) > 1 else word for word in words[:1]]
        shown = [dim.dim_param or word for dim, word in zip(shape.dim, words, strict=True)]
        raise FormatError(
            f"{name}: input {value.name}: shape must be fixed, got [{', '.join(shown)}]. Add --shape "
            f"{value.name}={','.join([*batch, *words[1:]]) or 'N,C,H,W'} with a number for each ? (Python: shapes=)."
        )


def check_model(onnx: ModuleType, proto: ModelProto, name: str) -> ModelProto:
    """Check a model whose inputs have static shapes.

    Args:
        onnx: the package.
        proto: the model.
        name: of the model, for messages.

    Returns:
        The model, its local functions expanded.

    Raises:
        FormatError: what onnx.checker refuses, naming node and reason; attributes out of range.
    """
    _check_sizes(proto, name)
    sort_nodes(proto.graph)
    check_order(proto.graph, name)
    if proto.functions:
        _check(onnx, _checkable(light_copy(onnx, proto)[0]), name)
        proto = _inlined(onnx, proto, name)
        check_size(proto, name)
    check_ranges(onnx, proto.graph.node, name)
    _state_default(onnx, proto.graph)
    light, held = light_copy(onnx, proto)
    _check(onnx, _checkable(light), name)
    try:
        inferred = infer_strictly(onnx, light, name)
    except FormatError:
        if not states_sizes_of_onnx(onnx, light):
            raise
        forget_shapes(light)
        forget_shapes(proto)
        inferred = infer_strictly(onnx, light, name)
    graph = inferred.graph
    shapes = {**known_shapes([*graph.input, *graph.value_info, *graph.output]), **held}
    check_shapes(onnx, graph.node, shapes, _constants(onnx, proto), name)
    return proto


def _state_default(onnx: ModuleType, graph: GraphProto) -> None:
    """The axes of MeanVarianceNormalization, where the model leaves them out: onnx's inference does not know them."""
    for node in nodes_of(graph.node):
        if node.op_type == "MeanVarianceNormalization" and node.domain in DOMAINS and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))


def _check_sizes(proto: ModelProto, name: str) -> None:
    """Shapes of initializers that no tensor has: onnx computes with them as they are."""
    for tensor in proto.graph.initializer:
        if len(tensor.dims) > MAX_RANK or any(size < 0 for size in tensor.dims):
            raise FormatError(
                f"{name}: tensor {tensor.name}: shape: must be at most {MAX_RANK} sizes from 0, got "
                f"{len(tensor.dims)} dimensions {list(tensor.dims)[:8]}"
            )


def sort_nodes(graph: GraphProto) -> None:
    """Move each node after the nodes whose results it reads; nodes in a circle, and all others then, stay."""
    makers = {value: place for place, node in enumerate(graph.node) for value in node.output}
    needs = [
        {makers[value] for inner in nodes_of([node]) for value in inner.input if value in makers} - {place}
        for place, node in enumerate(graph.node)
    ]
    if all(max(places, default=-1) < place for place, places in enumerate(needs)):
        return
    readers: list[list[int]] = [[] for _ in needs]
    for place, places in enumerate(needs):
        for place_of_maker in places:
            readers[place_of_maker].append(place)
    missing = [len(places) for places in needs]
    ready = [place for place, count in enumerate(missing) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for place in readers[order[-1]]:
            missing[place] -= 1
            if not missing[place]:
                heapq.heappush(ready, place)
    if len(order) == len(needs):
        nodes = [type(node).FromString(node.SerializeToString()) for node in graph.node]
        del graph.node[:]
        graph.node.extend(nodes[place] for place in order)


def check_order(graph: GraphProto, name: str) -> None:
    """Every value is made once, before it is used: no circles, nothing from nowhere."""
    known = {value.name for value in graph.input} | {constant.name for constant in graph.initializer}
    known |= {constant.values.name for constant in graph.sparse_initializer}
    computed = {value for node in graph.node for value in node.output}
    for number, node in enumerate(graph.node):
        for value in node.input:
            if value and value not in known:
                why = "is used before it is defined (or in a cycle)" if value in computed else "is not defined"
                raise FormatError(f"{name}: node {node.name or number} ({node.op_type}): its input {value} {why}")
        known.update(node.output)
    for output in graph.output:
        if output.name not in known:
            raise FormatError(f"{name}: output {output.name}: must be produced by a node")


def _inlined(onnx: ModuleType, proto: ModelProto, name: str) -> ModelProto:
    import onnx.inliner as inliner

    try:
        return inliner.inline_local_functions(proto)
    except Exception as error:  # onnx raises its own exception types
        raise FormatError(f"{name}: local functions: cannot be expanded: {one_line(error)}") from None


def _checkable(light: ModelProto) -> ModelProto:
    """A copy without the outputs whose type or shape the file leaves to inference: the checker asks for both."""
    copy = type(light)()
    copy.CopyFrom(light)
    stated = [output for output in light.graph.output if _is_stated(output)]
    del copy.graph.output[:]
    copy.graph.output.extend(stated)
    return copy


def _is_stated(value: ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or value.type.tensor_type.HasField("shape"))


def _check(onnx: ModuleType, light: ModelProto, name: str) -> None:
    try:
        onnx.checker.check_model(light)
    except Exception as error:  # onnx raises its own exception types
        raise FormatError(f"{name}: must be a valid ONNX model: {one_line(error)}") from None


def infer_strictly(onnx: ModuleType, light: ModelProto, name: str, quantized: bool = False) -> ModelProto:
    """Infer all types and shapes. Raises FormatError for the error of any node.

    ``quantized``: the quantization was taken out, so that types are no longer those of the file; they are not checked.
    """
    unknown = [node for node in light.graph.node if node.domain not in _STANDARD or node.op_type in _EXPERIMENTAL]
    if unknown:  # with such a node, onnx lets all errors pass
        light = _without(onnx, light, unknown, name)
    try:
        return infer_shapes(onnx, light, check_type=not quantized, strict=True)
    except Exception as error:
        if quantized and "type" in str(error).partition("ShapeInferenceError")[2].replace("op_type", ""):
            return light
        raise FormatError(f"{name}: must be a valid ONNX model: {_reason(error, light)}") from None


def _reason(error: object, light: ModelProto) -> str:
    """onnx's reason, and the first result of the node where it has no name."""
    text = one_line(error)
    for start in ("[ShapeInferenceError] Inference error(s): ", "[ShapeInferenceError] ", "[TypeInferenceError] "):
        text = text.replace(start, "")
    op = text.partition("op_type:")[2].partition(")")[0]
    of_kind = [node for node in light.graph.node if node.op_type == op]
    return f"{described_node(of_kind[0])}: {text}" if len(of_kind) == 1 and not of_kind[0].name else text


def _without(onnx: ModuleType, light: ModelProto, unknown: list[NodeProto], name: str) -> ModelProto:
    """A copy in which the results of unknown operators are inputs, typed as the file or else onnxruntime says."""
    copy = type(light)()
    copy.CopyFrom(light)
    graph = copy.graph
    gone = {value for node in unknown for value in node.output if value}
    typed = {value.name: value for value in [*light.graph.value_info, *light.graph.output] if value.name in gone}
    typed = {key: value for key, value in typed.items() if value.type.WhichOneof("value")}
    if gone - typed.keys():
        typed.update(_asked(onnx, light, gone - typed.keys(), name))
    kept = [node for node in light.graph.node if not gone & set(node.output)]
    del graph.node[:]
    graph.node.extend(kept)
    graph.input.extend(typed.values())
    for field in ("value_info", "output"):
        rest = [value for value in getattr(light.graph, field) if value.name not in gone]
        del getattr(graph, field)[:]
        getattr(graph, field).extend(rest)
    return copy


def _asked(onnx: ModuleType, light: ModelProto, names: set[str], name: str) -> Document:
    asked = onnx.ModelProto()
    asked.CopyFrom(light)
    del asked.graph.output[:]
    asked.graph.output.extend(onnx.ValueInfoProto(name=value_name) for value_name in sorted(names))
    return {value.name: value for value in runtime_types(onnx, session(asked, name, optimize=False))}


def runtime_types(onnx: ModuleType, opened: Any) -> list[Any]:
    """Outputs of a session as ValueInfoProtos, without sequences and the like.

    onnxruntime gives an empty shape for a scalar and for a value of unknown rank: both stay open.
    """
    infos = []
    for output in opened.get_outputs():
        kind = RUNTIME_TYPES.get(output.type)
        if kind is not None:
            shape = output.shape if output.shape and all(isinstance(size, int) for size in output.shape) else None
            infos.append(onnx.helper.make_tensor_value_info(output.name, kind, shape))
    return infos


def _constants(onnx: ModuleType, proto: ModelProto) -> Document:
    """Small initializers by name: shapes, scales, sizes."""
    small = [constant for constant in proto.graph.initializer if math.prod(constant.dims) <= MAX_RANK]
    try:
        return {constant.name: onnx.numpy_helper.to_array(constant) for constant in small}
    except Exception as error:  # onnx raises various exception types for broken tensors
        raise FormatError(f"must be a valid ONNX model: tensor: {one_line(error)}") from None
