"""Attributes, shapes and types of ONNX nodes.

A last window that begins in the padding at the end, or after it, is dropped. onnx's inference does not drop it before
opset 22; onnxruntime does at every opset.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto


DOMAINS = ("", "ai.onnx")
#: dimensions of a tensor; onnxruntime has far fewer
MAX_RANK = 64
_LARGEST = (1 << 31) - 1
#: elements of a vector whose values onnx's inference follows
_LONGEST = 1 << 20
_FLAG = (0, 1)
_SIZE = (1, _LARGEST)
#: accepted range of integer attributes (each number of a list) of all operators that have them
RANGES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("axis", "axes", "batch_axis", "time_axis"), (-MAX_RANK, MAX_RANK - 1)),
    **dict.fromkeys(("batch_dims", "perm"), (0, MAX_RANK - 1)),
    **dict.fromkeys(("kernel_shape", "strides", "dilations", "output_shape", "group", "blocksize"), _SIZE),
    **dict.fromkeys(("pooled_shape", "hidden_size", "num_outputs", "output_height", "output_width"), _SIZE),
    **dict.fromkeys(("output_padding", "sampling_ratio", "block_size", "pads"), (0, _LARGEST)),
    **dict.fromkeys(("ceil_mode", "count_include_pad", "storage_order", "align_corners", "antialias"), _FLAG),
    **dict.fromkeys(("keepdims", "select_last_index", "noop_with_empty_axes", "allowzero", "exclusive"), _FLAG),
    **dict.fromkeys(("transA", "transB", "reverse", "exclude_outside", "largest", "sorted", "fmod"), _FLAG),
    **dict.fromkeys(("new_axis", "linear_before_reset", "input_forget", "training_mode", "saturate"), _FLAG),
    "to": (1, MAX_RANK),
}
#: the same for attributes of one operator
RANGES_OF: Mapping[tuple[str, str], tuple[int, int]] = {
    ("Pad", "pads"): (-_LARGEST, _LARGEST),
    ("LRN", "size"): _SIZE,
    ("LpPool", "p"): _SIZE,
    ("LpNormalization", "p"): _SIZE,
}
WORDS: Mapping[str, tuple[str, ...]] = {"auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")}
#: terms of letters and at most one ellipsis; onnx does not end on others
_TERM = r"[A-Za-z]*(?:\.{3}[A-Za-z]*)?"
_EQUATION = re.compile(f"{_TERM}(?:,{_TERM})*(?:->{_TERM})?")
#: attributes that may be infinite: (operator, name); a Constant holds any number
_INFINITE = {("Pad", "value"), ("Clip", "min"), ("Clip", "max")}
_POOLS = ("AveragePool", "MaxPool", "LpPool")
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_ALONG = ("Concat", "Split", "Softmax", "LogSoftmax", "Hardmax", "Gather", "GatherElements", "ArgMax", "ArgMin", "TopK")


def nodes_of(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of their sub-graphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
                yield from nodes_of(graph.node)


def described_node(node: NodeProto) -> str:
    """A node for messages."""
    name = node.name or next((value for value in node.output if value), "")
    return f"node {name} ({node.op_type})" if name else f"node {node.op_type}"


def check_ranges(onnx: ModuleType, nodes: Sequence[NodeProto], name: str) -> None:
    """Check that attributes are finite and in range.

    Args:
        onnx: the package.
        nodes: nodes of a graph; their sub-graphs are checked too.
        name: of the model, for messages.

    Raises:
        FormatError: naming node, attribute, range and value.
    """
    kinds = onnx.AttributeProto
    for node in nodes_of(nodes):
        if node.domain not in DOMAINS:
            continue
        for attribute in node.attribute:
            where = f"{name}: {described_node(node)}: attribute {attribute.name}"
            if attribute.type in (kinds.FLOAT, kinds.FLOATS):
                numbers = [attribute.f] if attribute.type == kinds.FLOAT else attribute.floats
                _check_finite(node.op_type, attribute.name, numbers, where)
            elif attribute.type in (kinds.INT, kinds.INTS):
                _check_integers(
                    node.op_type,
                    attribute,
                    [attribute.i] if attribute.type == kinds.INT else list(attribute.ints),
                    where,
                )
            elif attribute.type == kinds.STRING:
                _check_word(node.op_type, attribute.name, attribute.s.decode("utf-8", "replace"), where)


def _check_finite(op: str, attribute: str, numbers: Sequence[float], where: str) -> None:
    if op == "Constant":
        return
    accepted: Callable[[float], bool] = math.isfinite
    if (op, attribute) in _INFINITE:
        accepted = lambda number: not math.isnan(number)  # noqa: E731
    wrong = next((number for number in numbers if not accepted(number)), None)
    if wrong is not None:
        raise FormatError(f"{where}: must be finite, got {wrong}")


def _check_word(op: str, attribute: str, word: str, where: str) -> None:
    if attribute in WORDS and word not in WORDS[attribute]:
        raise FormatError(f"{where}: must be one of {', '.join(WORDS[attribute])}, got {word[:80]!r}")
    if (op, attribute) == ("Einsum", "equation") and not _EQUATION.fullmatch(word.replace(" ", "")):
        raise FormatError(f"{where}: must be terms of letters or ..., as in 'ij,jk->ik', got {word[:80]!r}")


def _check_integers(op: str, attribute: AttributeProto, numbers: list[int], where: str) -> None:
    limits = RANGES_OF.get((op, attribute.name), RANGES.get(attribute.name))
    if limits is None or op == "Constant":
        return
    wrong = next((number for number in numbers if not limits[0] <= number <= limits[1]), None)
    if wrong is not None:
        raise FormatError(f"{where}: must be {limits[0]} to {limits[1]}, got {wrong}")
    if attribute.name == "perm" and sorted(numbers) != list(range(len(numbers))):
        raise FormatError(f"{where}: must hold each of 0 to {len(numbers) - 1} once, got {numbers}")


# ---- with shapes

Shapes = Mapping[str, tuple[int, ...]]
Constants = Mapping[str, Any]
"""Values of small constants by name."""
Attributes = Mapping[str, Any]
"""Values of a node's attributes by name."""


def check_shapes(onnx: ModuleType, nodes: Sequence[NodeProto], shapes: Shapes, constants: Constants, name: str) -> None:
    """Check that attributes fit the shapes of inputs and outputs.

    Args:
        onnx: the package.
        nodes: nodes of the graph.
        shapes: static shapes by value name, as far as they are known.
        constants: arrays by value name.
        name: of the model, for messages.

    Raises:
        FormatError: naming node, attribute, the expected and the actual value.
    """
    for node in nodes:
        check = _CHECKS.get(node.op_type)
        if check is None or node.domain not in DOMAINS:
            continue
        values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        problem = check(_Fitted(node, values, shapes, constants))
        if problem:
            raise FormatError(f"{name}: {described_node(node)}: {problem}")


class _Fitted:
    """A node with its attributes, shapes and constants."""

    def __init__(self, node: NodeProto, values: Document, shapes: Shapes, constants: Constants) -> None:
        self.node, self.values, self._shapes, self._constants = node, values, shapes, constants

    def shape(self, index: int) -> tuple[int, ...] | None:
        """The shape of an input, None where it is not known or left out."""
        return self._shapes.get(self.node.input[index]) if index < len(self.node.input) else None

    def constant(self, index: int) -> np.ndarray | None:
        """A constant input."""
        return self._constants.get(self.node.input[index]) if index < len(self.node.input) else None

    @property
    def out(self) -> tuple[int, ...] | None:
        """The shape of the first output."""
        return self._shapes.get(self.node.output[0]) if self.node.output else None


def _lengths(fitted: _Fitted, spatial: int) -> str:
    for attribute, times in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 2), ("output_padding", 1)):
        values = fitted.values.get(attribute)
        if values is not None and len(values) != times * spatial:
            return f"attribute {attribute}: must hold {times * spatial} numbers, got {len(values)}"
    return ""


def _convolution(fitted: _Fitted) -> str:
    given, weights, bias = fitted.shape(0), fitted.shape(1), fitted.shape(2)
    if weights is None:
        return ""
    if len(weights) < 3 or (given is not None and len(given) != len(weights)):
        return f"weights: must have the dimensions of the input, got {shape_text(weights)}"
    problem = _lengths(fitted, len(weights) - 2)
    kernel = tuple(fitted.values.get("kernel_shape", weights[2:]))
    if problem or kernel != weights[2:]:
        return problem or f"attribute kernel_shape: must be {list(weights[2:])} (weights), got {list(kernel)}"
    group, transposed = fitted.values.get("group", 1), fitted.node.op_type == "ConvTranspose"
    problem = _padding(fitted) or (_deconvolution(fitted, weights[2:]) if transposed else "")
    if problem:
        return problem
    channels, kernels = (weights[0], weights[1] * group) if transposed else (weights[1] * group, weights[0])
    if given is not None and given[1] != channels:
        return f"weights {shape_text(weights)} in {group} groups: must take {given[1]} channels, got {channels}"
    if (channels if transposed else kernels) % group:
        return f"attribute group: must divide {channels if transposed else kernels}, got {group}"
    return f"bias: must be {kernels}, got {shape_text(bias)}" if bias is not None and bias != (kernels,) else ""


def _padding(fitted: _Fitted) -> str:
    """Settings for which onnx infers another shape than onnxruntime computes, or which onnxruntime refuses."""
    mode, pads = fitted.values.get("auto_pad", b"NOTSET"), fitted.values.get("pads")
    dilations = fitted.values.get("dilations", [1])
    if mode.startswith(b"SAME") and max(dilations) > 1 and fitted.node.op_type in ("Conv", "LpPool"):
        return f"attribute dilations: must be 1 with auto_pad {mode.decode()}, got {list(dilations)}"
    if mode == b"NOTSET" or pads is None or (mode == b"VALID" and not any(pads)):
        return ""
    return f"attribute pads: must be absent with auto_pad {mode.decode()}, got {list(pads)}"


def _deconvolution(fitted: _Fitted, kernel: Sequence[int]) -> str:
    """Sizes of a deconvolution that onnx infers differently, or that onnxruntime refuses."""
    given, spatial = fitted.shape(0), len(kernel)
    target, extra = fitted.values.get("output_shape"), fitted.values.get("output_padding", [0] * spatial)
    strides, dilations = (fitted.values.get(name, [1] * spatial) for name in ("strides", "dilations"))
    limits = [max(distances) for distances in zip(strides, dilations, strict=True)]
    if any(amount >= limit for amount, limit in zip(extra, limits, strict=True)):
        return f"attribute output_padding: must be less than {limits} (strides or dilations), got {list(extra)}"
    if any(extra) and target is None and fitted.values.get("auto_pad", b"").startswith(b"SAME"):
        return f"attribute output_padding: must be 0 with auto_pad, got {list(extra)}"
    if given is None or target is None:
        return ""
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    most = [
        (size - 1) * stride + span + limit - 1
        for size, stride, span, limit in zip(given[2:], strides, spans, limits, strict=True)
    ]
    if all(least <= size <= top for least, size, top in zip(given[2:], target, most, strict=True)):
        return ""
    return (
        f"attribute output_shape: must be {shape_text(given[2:])} (input) to {shape_text(most)}, "
        f"got {shape_text(target)}"
    )


def _pool(fitted: _Fitted) -> str:
    given = fitted.shape(0)
    if given is None:
        return ""
    if len(given) < 3:
        return f"input: must have at least 3 dimensions, got {shape_text(given)}"
    problem = _lengths(fitted, len(given) - 2) or _padding(fitted)
    if problem:
        return problem
    kernel, pads = fitted.values.get("kernel_shape", ()), fitted.values.get("pads", ())
    half = len(pads) // 2
    for axis, (size, before, after) in enumerate(zip(kernel, pads[:half], pads[half:], strict=False)):
        if max(before, after) >= size * fitted.values.get("dilations", [1] * len(kernel))[axis]:
            return f"attribute pads: must be less than the window ({size}), got {max(before, after)}"
    return ""


def _along(fitted: _Fitted) -> str:
    given, axis = fitted.shape(0), fitted.values.get("axis")
    if given is None or axis is None:
        return ""
    rank = max(len(given), 1)
    return "" if -rank <= axis < rank else f"attribute axis: must be {-rank} to {rank - 1}, got {axis}"


def _reshape(fitted: _Fitted) -> str:
    given, result = fitted.shape(0), fitted.out
    target = fitted.constant(1)
    if target is not None and (target < -1).any():
        return f"shape: must hold sizes, 0 or -1, got {target.ravel().tolist()[:8]}"
    if given is None or result is None or math.prod(given) == math.prod(result):
        return ""
    return f"shape: must have {math.prod(given)} elements, got {shape_text(result)}"


def _resize(fitted: _Fitted) -> str:
    given = fitted.shape(0)
    place = 2 if len(fitted.node.input) > 2 else 1
    scales: Any = fitted.values.get("scales") if "scales" in fitted.values else fitted.constant(place)
    for what, numbers in (("scales", scales), ("sizes", fitted.constant(3))):
        if numbers is None or not np.size(numbers):
            continue
        values = np.asarray(numbers, np.float64).ravel()
        if not np.all(np.isfinite(values) & (values > 0)):
            return f"{what}: must be positive finite numbers, got {values.tolist()[:8]}"
        axes = fitted.values.get("axes")
        expected = len(axes) if axes else len(given) if given is not None else values.size
        if values.size != expected:
            return f"{what}: must be {expected} numbers, got {values.size}"
    return ""


def _transpose(fitted: _Fitted) -> str:
    given, perm = fitted.shape(0), fitted.values.get("perm")
    if given is None or perm is None or len(perm) == len(given):
        return ""
    return f"attribute perm: must hold {len(given)} numbers, got {len(perm)}"


def _blocks(fitted: _Fitted) -> str:
    given, block = fitted.shape(0), fitted.values.get("blocksize", 1)
    if given is None or len(given) != 4:
        return ""
    if fitted.node.op_type == "SpaceToDepth":
        bad = any(size % block for size in given[2:])
        return f"attribute blocksize: must divide {shape_text(given[2:])}, got {block}" if bad else ""
    return f"attribute blocksize: its square must divide {given[1]}, got {block}" if given[1] % block**2 else ""


def _pad(fitted: _Fitted) -> str:
    given = fitted.shape(0)
    amounts = fitted.values["pads"] if "pads" in fitted.values else fitted.constant(1)
    if given is None or amounts is None or fitted.values.get("mode") != b"reflect":
        return ""
    axes = fitted.constant(3)
    sizes = [given[axis] for axis in np.ravel(axes).tolist()] if axes is not None else list(given)
    for size, amount in zip(sizes * 2, np.ravel(amounts).tolist(), strict=False):
        if amount >= max(size, 1):
            return f"pads: must be less than the size ({size}) with mode reflect, got {amount}"
    return ""


def _celu(fitted: _Fitted) -> str:
    return "" if fitted.values.get("alpha", 1.0) else "attribute alpha: must not be 0, got 0.0"


def _lrn(fitted: _Fitted) -> str:
    size = fitted.values.get("size", 1)
    return "" if size % 2 else f"attribute size: must be odd, got {size}"


def _normalization(fitted: _Fitted) -> str:
    given = fitted.shape(0)
    if given is None or len(given) < 2:
        return ""
    for index in range(1, 5):
        shape = fitted.shape(index)
        if shape is not None and math.prod(shape) != given[1]:
            return f"input {index}: must have {given[1]} numbers, got {shape_text(shape)}"
    return ""


_CHECKS: Mapping[str, Callable[[_Fitted], str]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys(_ALONG, _along),
    "Reshape": _reshape,
    "Resize": _resize,
    "Upsample": _resize,
    "Transpose": _transpose,
    "BatchNormalization": _normalization,
    "SpaceToDepth": _blocks,
    "DepthToSpace": _blocks,
    "Pad": _pad,
    "Celu": _celu,
    "LRN": _lrn,
}


_POOL_OPERATORS = ("AveragePool", "LpPool", "MaxPool")


def infer_shapes(onnx: ModuleType, proto: ModelProto, *, check_type: bool = False, strict: bool = False) -> ModelProto:
    """Infer types and shapes.

    Args:
        onnx: the package.
        proto: the model; it is not changed.
        check_type: as for ``onnx.shape_inference.infer_shapes``.
        strict: raise onnx's error for a node that does not fit.

    Returns:
        A copy of the model with the types and shapes of all values that can be inferred.
    """

    if not any(_rounds_up(node) for node in nodes_of(proto.graph.node)):
        return _inferred(onnx, proto, check_type, strict)
    changed = type(proto)()
    changed.CopyFrom(proto)
    for node in nodes_of(changed.graph.node):
        if _rounds_up(node):
            _round_down(onnx, node)
    inferred = _inferred(onnx, changed, check_type, strict)
    for node, given in zip(list(nodes_of(inferred.graph.node)), list(nodes_of(proto.graph.node)), strict=True):
        if _rounds_up(given):
            del node.attribute[:]
            node.attribute.extend(given.attribute)
    return inferred


def _inferred(onnx: ModuleType, model: ModelProto, check_type: bool, strict: bool) -> ModelProto:
    """onnx's own inference. It follows the values of vectors, which may be shapes, unless one is long: it would make an
    object of every element."""
    short = not _has_long_vector(onnx.shape_inference.infer_shapes(model).graph)
    return onnx.shape_inference.infer_shapes(model, check_type=check_type, strict_mode=strict, data_prop=short)


def _has_long_vector(graph: GraphProto) -> bool:
    shapes = (value.type.tensor_type.shape.dim for value in (*graph.input, *graph.value_info, *graph.output))
    return any(len(sizes) == 1 and sizes[0].dim_value > _LONGEST for sizes in shapes)


def states_sizes_of_onnx(onnx: ModuleType, proto: ModelProto) -> bool:
    """Return whether a model has pools with ``ceil_mode``, and states the shapes that onnx's own inference gives.

    Tools that store inferred shapes write such files; onnxruntime runs them with the shapes that the standard defines.
    """
    if not any(_rounds_up(node) for node in nodes_of(proto.graph.node)):
        return False
    try:
        _inferred(onnx, proto, check_type=True, strict=True)
    except Exception:  # onnx raises its own exception types
        return False
    return True


def forget_shapes(proto: ModelProto) -> None:
    """Drop the shapes of inner values and outputs in a file."""
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")


def _rounds_up(node: NodeProto) -> bool:
    if node.op_type not in _POOL_OPERATORS or node.domain not in DOMAINS:
        return False
    return any(attribute.name == "ceil_mode" and attribute.i for attribute in node.attribute)


def _round_down(onnx: ModuleType, node: NodeProto) -> None:
    """Give a pool the padding at the end with which its size, rounded down, is the one that the standard defines.

    With window k (dilation counted), stride s and pads p and q, the size is the lesser of
    ceil((size + p + q - k) / s) + 1 and ceil((size + p) / s). The second bound holds because the last window begins
    before the padding at the end. The lesser of both is
    floor((size + p + min(q + s, k) - 1 - k) / s) + 1.
    """
    values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    kernel = values.get("kernel_shape", [])
    count = len(kernel)
    strides, dilations = (values.get(name, [1] * count) for name in ("strides", "dilations"))
    mode = values.get("auto_pad", b"NOTSET")
    pads = values.get("pads", [0] * 2 * count) if mode == b"NOTSET" else [0] * 2 * count
    if len(strides) != count or len(dilations) != count or len(pads) != 2 * count:
        return  # onnx says what is wrong
    del values["ceil_mode"]
    if not mode.startswith(b"SAME"):
        spans = [(k - 1) * dilation + 1 for k, dilation in zip(kernel, dilations, strict=True)]
        ends = [min(q + s, span) - 1 for q, s, span in zip(pads[count:], strides, spans, strict=True)]
        values |= {"auto_pad": b"NOTSET", "pads": [*pads[:count], *ends]}
    del node.attribute[:]
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in values.items())
