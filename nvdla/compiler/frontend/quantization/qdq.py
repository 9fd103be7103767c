"""Scales of models with QuantizeLinear and DequantizeLinear, and of quantized operators.

QuantizeLinear and DequantizeLinear between tensors say which scale a tensor has and are taken out; those of weights
give the weights' real numbers and scales. int8 and uint8 tensors keep their elements (uint8 less 128) and zero points
where all that read them can take that (:mod:`nvdla.compiler.builder.lower.elementwise`); elsewhere, a tensor keeps its
range in a coarser unit, and a note says so. Where a tensor is quantized again to a narrower range, or in one way for
one reader and not at all for another one, a Clip takes the place of QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.compiler.builder.quantization import changing
from nvdla.compiler.frontend.isolation import reads
from nvdla.compiler.frontend.quantization.mixed import (
    ALSO_REAL,
    GIVES_ELEMENTS,
    KEEPERS,
    SYMMETRIC,
    Affine,
    ChannelScales,
    Joined,
    fold_weights,
    joined_ranges,
    lost_ends,
)
from nvdla.errors import FormatError
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

MICROSOFT = "com.microsoft"


class Rewriter:
    """Collects the nodes and constants that take the place of one node."""

    def __init__(self, constants: dict[str, np.ndarray], fresh: Callable[[str], str]) -> None:
        self.constants, self._fresh = constants, fresh
        self.nodes: list[NodeProto] = []
        self.added: dict[str, np.ndarray] = {}

    def real(self, value: str, scale: str, zero: str, axis: int | None = None) -> str:
        """The real numbers of a quantized value."""
        name = self._fresh(f"{value}_real")
        self._node("DequantizeLinear", [value, scale, zero], name, **({} if axis is None else {"axis": axis}))
        return name

    def constant(self, name: str, values: np.ndarray) -> str:
        """Add a constant under a fresh name; returns that."""
        name = self._fresh(name)
        self.added[name] = values
        return name

    def float_node(
        self, node: NodeProto, kind: str, inputs: list[str], without: tuple[str, ...] = (), domain: str = ""
    ) -> str:
        """The node itself on real numbers."""
        import onnx

        name = self._fresh(f"{node.output[0]}_real")
        new_node = onnx.helper.make_node(kind, inputs, [name], node.name, domain=domain)
        new_node.attribute.extend(attribute for attribute in node.attribute if attribute.name not in without)
        self.nodes.append(new_node)
        return name

    def quantized(self, value: str, scale: str, zero: str, output: str) -> None:
        """Add the quantization of a value."""
        self._node("QuantizeLinear", [value, scale, zero], output)

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> None:
        import onnx

        while inputs and not inputs[-1]:
            inputs.pop()
        self.nodes.append(onnx.helper.make_node(kind, inputs, [output], self._fresh(f"{output}_{kind}"), **attributes))


def _optional(node: NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _scales(rewriter: Rewriter, name: str) -> np.ndarray:
    return np.asarray(rewriter.constants[name], np.float64)


def _bias(rewriter: Rewriter, name: str, source: str, weights: str) -> list[str]:
    """An int32 bias as real numbers: its scale is that of source times weights."""
    if not name:
        return []
    units = np.ravel(_scales(rewriter, source)) * np.ravel(_scales(rewriter, weights))
    return [rewriter.constant(f"{name}_real", (rewriter.constants[name] * units).astype(np.float32))]


def _operand(node: NodeProto, first: int) -> tuple[str, str, str]:
    """Names of a quantized input: its elements, their scale and zero point."""
    value, scale, zero = node.input[first : first + 3]
    return value, scale, zero


def _conv(rewriter: Rewriter, node: NodeProto) -> None:
    x, w = _operand(node, 0), _operand(node, 3)
    axis = 0 if np.size(rewriter.constants[w[1]]) > 1 else None
    inputs = [rewriter.real(*x), rewriter.real(*w, axis=axis), *_bias(rewriter, _optional(node, 8), x[1], w[1])]
    rewriter.quantized(rewriter.float_node(node, "Conv", inputs), node.input[6], node.input[7], node.output[0])


def _matmul(rewriter: Rewriter, node: NodeProto) -> None:
    a, b = _operand(node, 0), _operand(node, 3)
    axis = -1 if np.size(rewriter.constants[b[1]]) > 1 else None
    inputs = [rewriter.real(*a), rewriter.real(*b, axis=axis)]
    rewriter.quantized(rewriter.float_node(node, "MatMul", inputs), node.input[6], node.input[7], node.output[0])


def _gemm(rewriter: Rewriter, node: NodeProto) -> None:
    import onnx

    a, b = _operand(node, 0), _operand(node, 3)
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    axis = (0 if transposed else 1) if np.size(rewriter.constants[b[1]]) > 1 else None
    alpha = next((onnx.helper.get_attribute_value(field) for field in node.attribute if field.name == "alpha"), 1.0)
    bias = _bias(rewriter, _optional(node, 6), a[1], b[1])
    if bias:
        rewriter.added[bias[0]] = rewriter.added[bias[0]] * np.float32(alpha)
    result = rewriter.float_node(node, "Gemm", [rewriter.real(*a), rewriter.real(*b, axis=axis), *bias])
    scale, zero = _optional(node, 7), _optional(node, 8)
    if scale:
        rewriter.quantized(result, scale, zero, node.output[0])
    else:
        rewriter.nodes[-1].output[0] = node.output[0]


def _two(kind: str) -> Callable[[Rewriter, NodeProto], None]:
    def rewrite(rewriter: Rewriter, node: NodeProto) -> None:
        inputs = [rewriter.real(*_operand(node, first)) for first in (0, 3)]
        result = rewriter.float_node(node, kind, inputs)
        rewriter.quantized(result, node.input[6], _optional(node, 7), node.output[0])

    return rewrite


def _one(kind: str, without: tuple[str, ...] = ()) -> Callable[[Rewriter, NodeProto], None]:
    def rewrite(rewriter: Rewriter, node: NodeProto) -> None:
        result = rewriter.float_node(node, kind, [rewriter.real(*_operand(node, 0))], without)
        rewriter.quantized(result, node.input[3], _optional(node, 4), node.output[0])

    return rewrite


def _concat(rewriter: Rewriter, node: NodeProto) -> None:
    inputs = [rewriter.real(*_operand(node, first)) for first in range(2, len(node.input), 3)]
    rewriter.quantized(rewriter.float_node(node, "Concat", inputs), node.input[0], node.input[1], node.output[0])


# (domain, operator) -> its rewriting, and the positions of scales that must be constants.
OPERATORS: dict[tuple[str, str], tuple[Callable[[Rewriter, NodeProto], None], tuple[int, ...]]] = {
    ("", "QLinearConv"): (_conv, (1, 3, 4, 6)),
    ("", "QLinearMatMul"): (_matmul, (1, 4, 6)),
    (MICROSOFT, "QGemm"): (_gemm, (1, 3, 4)),
    (MICROSOFT, "QLinearAdd"): (_two("Add"), (1, 4, 6)),
    (MICROSOFT, "QLinearMul"): (_two("Mul"), (1, 4, 6)),
    (MICROSOFT, "QLinearConcat"): (_concat, (0, 1)),
    (MICROSOFT, "QLinearSigmoid"): (_one("Sigmoid"), (1, 3)),
    (MICROSOFT, "QLinearLeakyRelu"): (_one("LeakyRelu"), (1, 3)),
    (MICROSOFT, "QLinearSoftmax"): (_one("Softmax", ("opset",)), (1, 3)),
    (MICROSOFT, "QLinearAveragePool"): (_one("AveragePool", ("channels_last",)), (1, 3)),
    (MICROSOFT, "QLinearGlobalAveragePool"): (_one("GlobalAveragePool", ("channels_last",)), (1, 3)),
}


def rewrites(node: NodeProto, constants: dict[str, np.ndarray]) -> Callable[[Rewriter, NodeProto], None] | None:
    """Return the function that makes the node a float one; None if it is not a QOperator or its scales are computed."""
    operator = OPERATORS.get((node.domain if node.domain != "ai.onnx" else "", node.op_type))
    if operator is None or any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute):
        return None
    rewrite, needed = operator
    return rewrite if all(_optional(node, index) in constants for index in needed) else None


#: elements of all initializers together that are looked at as scales, zero points and weights
MAX_ELEMENTS = 1 << 31


@dataclass
class Stripped:
    """A float model and what its quantization said.

    ``magnitudes``: the largest magnitude of tensors by value name; ``ranges``: (lowest, highest) number of those with a
    zero point. ``weight_scales``: int8 scales (K,) of kernels by the first output of the node that has the weights.
    ``notes``: tensors whose elements are not the model's. ``stored``: value -> the integers of it in the model, with
    scale and zero point; ``elements``: what any of these integers stand for, by name.
    ``affine``: scale, zero point and type by value name, for nodes that run on the host. ``assumed``: real tensors of
    which the model has quantized copies only, with the largest range of these. ``wide``: what has 16 bits.
    """

    proto: ModelProto
    magnitudes: dict[str, float] = field(default_factory=dict)
    weight_scales: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    stored: dict[str, tuple[str, tuple[float, int]]] = field(default_factory=dict)
    affine: dict[str, Affine] = field(default_factory=dict)
    elements: dict[str, Affine] = field(default_factory=dict)
    assumed: set[str] = field(default_factory=set)
    wide: list[str] = field(default_factory=list)

    @property
    def quantized(self) -> bool:
        """Return whether the model brought scales along."""
        return bool(self.magnitudes or self.weight_scales)


def strip(proto: ModelProto) -> Stripped:
    """Remove the quantization from an ``onnx.ModelProto``; one without any is unchanged. Raises FormatError."""
    quantized = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm"}
    if not any(node.op_type in quantized for node in proto.graph.node):
        return Stripped(proto)
    return _Stripper(proto).run()


class _Stripper:
    def __init__(self, proto: ModelProto) -> None:
        import onnx

        self.onnx = onnx
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(proto)
        self.graph = self.proto.graph
        self.result = Stripped(self.proto)
        self.constants = self._constants()
        self.names = {name for node in self.graph.node for name in (*node.input, *node.output, node.name)}
        self.ends = {value.name for value in self.graph.input}
        self.names |= set(self.constants) | self.ends
        self.alias: dict[str, str] = {}
        self.held: dict[str, Affine] = {}  # values whose numbers are those of a scale and zero point
        self.elements = self.result.elements
        self.made: dict[tuple[str, Affine], str] = {}
        self.readers: dict[str, list[NodeProto]] = {}
        self.joined: dict[str, Joined] = {}
        self.makers: dict[str, NodeProto] = {}  # of the kept nodes before ``indexed``
        self.indexed = 0
        self.weights: dict[str, tuple[np.ndarray, int | None]] = {}

    def _constants(self) -> dict[str, np.ndarray]:
        constants = {constant.name: self._array(constant) for constant in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        constants[node.output[0]] = self._array(attribute.t)
                    elif attribute.name in ("value_float", "value_int"):
                        constants[node.output[0]] = np.array(self.onnx.helper.get_attribute_value(attribute))
            elif node.op_type == "Identity" and node.input[0] in constants:  # PyTorch's exporter shares equal constants
                constants[node.output[0]] = constants[node.input[0]]
        return constants

    def _array(self, tensor: TensorProto) -> np.ndarray:
        try:
            return self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # onnx raises various exception types for broken tensors
            raise FormatError(f"tensor {tensor.name}: {' '.join(str(error).split())[:200]}") from None

    def fresh(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.names:
            number += 1
            name = f"{wanted}.{number}"
        self.names.add(name)
        return name

    # ---- the walk

    def run(self) -> Stripped:
        self._split_operators()
        self._real_ends()
        fold_weights(self.graph, self.constants, self._add_constant)
        ChannelScales(self.onnx, self.graph, self.constants).share()
        for reader, name in ((node, name) for node in self.graph.node for name in reads(node)):
            self.readers.setdefault(name, []).append(reader)
        self.joined = joined_ranges(self.graph.node, self.readers, self._affine)
        kept: list[NodeProto] = []
        for node in self.graph.node:
            source = node.input[0] if node.input else ""
            integers = () if node.op_type in _OF_REAL else [name for name in node.input if name in self.elements]
            for position, name in enumerate(node.input):
                node.input[position] = self._integers(name, kept) if name in integers else self.alias.get(name, name)
            taken = self._quantize(node, source, kept) if node.op_type == "QuantizeLinear" else False
            taken = taken or (node.op_type == "DequantizeLinear" and self._dequantize(node, source, kept))
            taken = taken or (node.op_type == "Clip" and self._limit(node, source, kept))
            if not taken:
                self._kernel_scales(node)
                self._keep(node, source)
                kept.append(node)
        renamed = [value.name for value in self.graph.output if value.name in self.alias]
        kept += [self.onnx.helper.make_node("Identity", [self.alias[name]], [name]) for name in renamed]
        del self.graph.node[:]
        self.graph.node.extend(kept)
        # Types and shapes of values that were integers are no longer true.
        del self.graph.value_info[:]
        self._drop_unused()
        return self.result

    def _integers(self, name: str, kept: list[NodeProto]) -> str:
        """The elements of a quantized value, for a node that computes with integers (on the host), such as a Cast."""
        nodes, constants = self.elements[name].nodes(self.alias.get(name, name), f"{name}/integers", self.onnx)
        elements: str = nodes[0].output[0]
        if elements not in self.names:
            self.names.add(elements)
            for constant, values in constants.items():
                self._add_constant(constant, values)
            kept.append(nodes[0])
        return elements

    def _split_operators(self) -> None:
        nodes = []
        for node in self.graph.node:
            rewrite = rewrites(node, self.constants)
            if rewrite is None:
                nodes.append(node)
                continue
            rewriter = Rewriter(self.constants, self.fresh)
            rewrite(rewriter, node)
            for name, values in rewriter.added.items():
                self._add_constant(name, values)
            nodes += rewriter.nodes
        copies = [self.onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self.graph.node[:]
        self.graph.node.extend(copies)

    def _real_ends(self) -> None:
        """Inputs and outputs that hold quantized numbers become real ones."""
        quantized = set[str]()
        for node in self.graph.node:
            if node.op_type == "QuantizeLinear" or (node.op_type in KEEPERS and node.input[0] in quantized):
                quantized.update(node.output)
        taken = {node.input[0] for node in self.graph.node if node.op_type == "DequantizeLinear"}
        inputs, outputs = ("input", self.graph.input, taken), ("output", self.graph.output, quantized)
        for (what, ends, names), known in ((inputs, ALSO_REAL), (outputs, GIVES_ELEMENTS)):
            for value in ends:
                kind = self.onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
                if value.name in names and kind in SYMMETRIC:
                    value.type.tensor_type.elem_type = self.onnx.TensorProto.FLOAT
                    self.result.notes.append(f"{what} {value.name}: {kind} in the model; {known}")

    def _parameters(self, node: NodeProto) -> tuple[np.ndarray, np.ndarray] | None:
        """(scale, zero point) of a node; None where they are computed."""
        names = node.input[1:3]
        if any(name and name not in self.constants for name in names):
            return None
        scale = np.asarray(self.constants[names[0]], np.float64)
        zero = self.constants[names[1]] if len(names) > 1 and names[1] else np.zeros((), np.uint8)
        if not np.all(np.isfinite(scale) & (scale > 0)):
            raise FormatError(f"node {node.name or node.op_type}: scale {names[0]} must hold positive finite numbers")
        return scale, zero

    def _affine(self, node: NodeProto) -> Affine | None:
        """Scale and zero point of a node for the whole of a tensor; None for others, and for types of other widths."""
        parameters = self._parameters(node)
        if parameters is None or parameters[0].size != 1 or parameters[1].dtype.name not in SYMMETRIC:
            return None
        scale, zero = parameters
        return Affine(float(scale.ravel()[0]), int(zero.ravel()[0]), zero.dtype.name, node.domain)

    def _quantize(self, node: NodeProto, original: str, kept: list[NodeProto]) -> bool:
        """A tensor gets its scale; the node goes, its result is the tensor itself or a Clip of it."""
        wanted, source = self._affine(node), node.input[0]
        if source in self.constants:
            return self._quantized_constant(node, self.constants[source])
        if wanted is None:
            return False
        if (source, wanted) not in self.made:
            if source not in self.held:
                result = self._first(node, original, wanted, kept)
            elif wanted.holds(self.held[source]):
                result = source
                self.result.affine.setdefault(source, wanted)
                if source not in self.result.magnitudes:
                    self._note_range(source, self.held[source])
            else:
                result = self._requantized(source, wanted, kept)
            self.made[source, wanted] = result
        self.alias[node.output[0]] = self.made[source, wanted]
        self.elements[node.output[0]] = wanted
        self._note_stored(self.made[source, wanted], node.output[0], wanted)
        return True

    def _keep(self, node: NodeProto, original: str) -> None:
        """The results of a node that only moves elements are quantized as they are."""
        is_border = node.op_type == "Pad" and original in self.elements and self._real_border(node, original)
        if is_border or (node.op_type in KEEPERS and original in self.elements):
            self.elements.update(dict.fromkeys(node.output, self.elements[original]))
            for name in node.output:
                self._note_stored(name, name, self.elements[original])
        inputs = node.input if node.op_type == "Concat" else node.input[:1]
        held = [self.held.get(name) for name in inputs]
        first = held[0] if (is_border or node.op_type in KEEPERS) and held else None
        if first is not None and all(affine is not None and first.same(affine) for affine in held):
            self.held.update(dict.fromkeys(node.output, first))

    def _real_border(self, node: NodeProto, original: str) -> bool:
        """Make the border of a Pad of integers one of real numbers; return whether it is constant."""
        name, affine = node.input[2] if len(node.input) > 2 else "", self.elements[original]
        if any(attribute.name == "mode" and attribute.s != b"constant" for attribute in node.attribute):
            return True
        if name and name not in self.constants:
            return False
        element = float(self.constants[name].ravel()[0]) if name else 0.0
        border = self.fresh(f"{node.output[0]}/border")
        self._add_constant(border, np.float32((element - affine.point) * affine.scale))
        inputs = [*node.input[:2], border, *node.input[3:]]
        del node.input[:]
        node.input.extend(inputs)
        return True

    def _first(self, node: NodeProto, source: str, wanted: Affine, kept: list[NodeProto]) -> str:
        """Real numbers are quantized: the tensor itself where that is what all its readers take, else a Clip of it."""
        readers = self.readers.get(source, [])
        ways = [self._affine(reader) if reader.op_type == "QuantizeLinear" else None for reader in readers]
        ways += [None for output in self.graph.output if output.name == source]
        if all(way is not None and way.same(wanted) for way in ways):
            self._note_argument(source, wanted, kept)
            maker = self.makers.get(source)
            ends = lost_ends(wanted, self.joined.get(node.output[0]))
            if ends is not None and maker is not None and not self._is_bounded(maker, ends):
                self._note_range(source, wanted)
                return self._requantized(source, wanted, kept, ends)
            source = self._clipped(source, wanted, maker, kept)
            self._settle(source, wanted)
            return source
        if source not in self.result.magnitudes:
            self._note_union(source, [way for way in ways if way is not None])
            self.result.assumed.add(source)
        return self._requantized(source, wanted, kept)

    def _note_argument(self, source: str, held: Affine, kept: list[NodeProto]) -> None:
        """Give the argument of a quantized activation function, which has no scale in the model, the range beyond which
        the quantized result is constant."""
        makers = self.makers
        makers.update((name, node) for node in kept[self.indexed :] for name in node.output)
        self.indexed = len(kept)
        if (maker := makers.get(source)) is None:
            return
        if maker.op_type in ("Clip", "Relu"):
            self._note_limited(maker, held, makers)
            return
        gates = [makers[name] for name in maker.input if name in makers] if maker.op_type == "Mul" else []
        gate = next((reader for reader in gates if reader.op_type in _GATES and reader.input[0] in maker.input), None)
        function = gate or maker
        if function.op_type not in _ARGUMENTS | (_GATES if gate else set()):
            return
        argument, nodes = function.input[0], [maker, function]
        known = argument in self.held or argument in self.result.magnitudes or argument not in makers
        if known or any(all(reader.output[0] != node.output[0] for node in nodes) for reader in self.readers[argument]):
            return
        low, high = held.ends
        grid = np.linspace(-1, 1, 1 << 14) * (2 * max(-low, high) + 16)
        results = grid * _gate(function, grid) if function.op_type != "Sigmoid" or gate else _gate(function, grid)
        ends = changing(grid, np.rint(np.clip(results, low, high) / held.scale))
        if ends is None:
            return
        self.result.magnitudes[argument] = max(-ends[0], ends[1])
        self.result.ranges[argument] = ends
        if gate is not None:
            self.result.magnitudes[gate.output[0]] = 1.0
            self.result.ranges[gate.output[0]] = 0.0, 1.0

    def _note_limited(self, node: NodeProto | None, held: Affine, makers: Mapping[str, NodeProto]) -> None:
        """Give what a quantized Clip or ReLU limits its range: what is beyond is cut off in any case. An argument is a
        separate tensor where a function that follows takes the limit."""
        while node is not None and node.op_type in ("Clip", "Relu") and node.input[0] not in self.held:
            if len(self.readers[node.input[0]]) > 1:
                return
            self._note_range(node.input[0], held)
            node = makers.get(node.input[0])

    def _settle(self, value: str, held: Affine) -> None:
        """The numbers of a value are those of a scale and zero point."""
        self._note_range(value, held)
        self.held[value] = self.result.affine[value] = held
        if held.bits > 8:
            self.result.wide.append(value)

    def _note_union(self, source: str, ways: list[Affine]) -> None:
        """The range that holds all ways in which a tensor is quantized."""
        self.result.magnitudes[source] = max(way.magnitude for way in ways)
        if all(way.bits == 8 and not way.symmetric for way in ways):
            lows, highs = zip(*(way.ends for way in ways), strict=True)
            self.result.ranges[source] = min(lows), max(highs)

    def _is_bounded(self, maker: NodeProto, ends: tuple[float, float]) -> bool:
        """Return whether the range of a node's result is that of its function, or a Clip has the limits already."""
        if maker.op_type == "Clip":
            constants = [self.constants[name] for name in maker.input[1:3] if name in self.constants]
            limits = [float(constant.ravel()[0]) for constant in constants if constant.size == 1]
            return len(limits) == 2 and limits[0] >= 1.01 * ends[0] and limits[1] <= 1.01 * ends[1]
        gates = [self.makers[name].op_type in _GATES for name in maker.input if name in self.makers]
        return maker.op_type in (*_FUNCTIONS, *_NOT_NEGATIVE[1:]) or (maker.op_type == "Mul" and any(gates))

    def _requantized(
        self, source: str, wanted: Affine, kept: list[NodeProto], ends: tuple[float, float] | None = None
    ) -> str:
        """Append a Clip to another range, or to ``ends``, with a separate scale."""
        name = self.fresh(f"{source}_requantized")
        low, high = ends or wanted.ends
        limits = [self.fresh(f"{name}/{end}") for end in ("low", "high")]
        for limit, value in zip(limits, (low, high), strict=True):
            self._add_constant(limit, np.float32(value))
        opset = next((entry.version for entry in self.proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
        form: Document = {"min": low, "max": high} if opset < 11 else {}
        inputs = [source] if opset < 11 else [source, *limits]
        kept.append(self.onnx.helper.make_node("Clip", inputs, [name], self.fresh(f"{name}_node"), **form))
        self._settle(name, wanted)
        return name

    def _clipped(self, source: str, wanted: Affine, maker: NodeProto | None, kept: list[NodeProto]) -> str:
        """A zero point at the low end of the range cuts negative numbers off, as a ReLU that was taken out did."""
        if wanted.point != np.iinfo(wanted.kind).min or maker is None or self._is_not_negative(maker):
            return source
        name = self.fresh(f"{source}_relu")
        kept.append(self.onnx.helper.make_node("Relu", [source], [name], self.fresh(f"{name}_node")))
        if maker.op_type in _FUNCTIONS + _AVERAGES + _JOINED:  # the Relu may be an operation, or join the next function
            self._note_range(source, wanted)
        return name

    def _is_not_negative(self, maker: NodeProto) -> bool:
        """Return whether a node gives no number below zero."""
        if maker.op_type in _AVERAGES:
            return all(name in self.held and self.held[name].ends[0] >= 0 for name in maker.input[:1])
        if maker.op_type != "Clip":
            return maker.op_type in _NOT_NEGATIVE
        low = self.constants.get(maker.input[1]) if len(maker.input) > 1 else None
        if low is None:
            low = np.array([attribute.f for attribute in maker.attribute if attribute.name == "min"])
        return low.size == 1 and float(low.ravel()[0]) >= 0

    def _note_range(self, source: str, held: Affine) -> None:
        self.result.magnitudes[source] = held.magnitude
        if held.bits == 8 and not held.symmetric:
            self.result.ranges[source] = held.ends

    def _dequantize(self, node: NodeProto, original: str, kept: list[NodeProto]) -> bool:
        parameters, source = self._parameters(node), node.input[0]
        if parameters is None:
            return False
        if source in self.constants:
            return self._real_weights(node, self.constants[source], *parameters)
        wanted = self._affine(node)
        if wanted is None:
            return False
        if any(value.name == source for value in self.graph.input) and source not in self.held:
            self._settle(source, wanted)
        if source not in self.held:
            return False
        if source not in self.result.stored:
            self._note_stored(source, original, wanted)
        held = self.elements.get(original, self.held[source])
        self.alias[node.output[0]] = self._rescaled(source, held, wanted, kept)
        return True

    def _limit(self, node: NodeProto, original: str, kept: list[NodeProto]) -> bool:
        """A Clip of integers: of constants, or of the elements of a quantized value (Brevitas)."""
        limits = [self.constants[name] for name in node.input[1:3] if name in self.constants]
        if len(limits) != 2 or any(limit.dtype.kind not in "iu" or limit.size != 1 for limit in limits):
            return False
        source, held, result = node.input[0], self.elements.get(original), node.output[0]
        if source in self.constants:
            self._add_constant(result, np.clip(self.constants[source], *limits))
        elif held is not None:
            for position, limit in enumerate(limits, 1):
                node.input[position] = self.fresh(f"{result}/limit")
                self._add_constant(node.input[position], np.float32((int(limit.item()) - held.point) * held.scale))
            kept.append(node)
            self._settle(result, held)
            self.elements[result] = held
        return source in self.constants or held is not None

    def _note_stored(self, value: str, name: str, held: Affine) -> None:
        """Note which tensor of integers of the model, ``name``, a value is."""
        self.result.stored.setdefault(value, (name, (held.scale, held.point)))

    def _rescaled(self, source: str, held: Affine, wanted: Affine, kept: list[NodeProto]) -> str:
        """Elements that are read with another scale or zero point than the one they were made with."""
        if held.same(wanted):
            return source
        middle = {affine.kind: np.iinfo(affine.kind).min for affine in (held, wanted)}
        offset = (held.point - middle[held.kind] - wanted.point + middle[wanted.kind]) * wanted.scale
        for op, number in (("Mul", wanted.scale / held.scale), ("Add", offset)):
            name = self.fresh(f"{source}_rescaled")
            self._add_constant(f"{name}/number", np.float32(number))
            kept.append(self.onnx.helper.make_node(op, [source, f"{name}/number"], [name], f"{name}_node"))
            source = name
        self._settle(source, wanted)
        return source

    def _quantized_constant(self, node: NodeProto, values: np.ndarray) -> bool:
        """Fold QuantizeLinear of a constant, such as weights of quantization-aware training."""
        parameters = self._parameters(node)
        if parameters is None or values.dtype.kind != "f" or parameters[1].dtype.name not in SYMMETRIC:
            return False
        if any(attribute.name == "block_size" and attribute.i for attribute in node.attribute):
            return False
        scale, zero = (parameter.ravel() for parameter in parameters)
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        shape = [1] * values.ndim
        if scale.size > 1:
            axis %= max(values.ndim, 1)
            if not values.ndim or scale.size != values.shape[axis] or zero.size not in (1, scale.size):
                return False
            shape[axis] = -1
        units = scale.astype(np.float32).reshape(shape)
        points = zero.astype(np.int64).reshape(shape if zero.size > 1 else [1] * values.ndim)
        info = np.iinfo(zero.dtype)
        elements = np.clip(np.rint(values.astype(np.float32) / units) + points, info.min, info.max)
        self._add_constant(node.output[0], elements.astype(zero.dtype))
        return True

    def _real_weights(self, node: NodeProto, elements: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> bool:
        if any(attribute.name == "block_size" and attribute.i for attribute in node.attribute):
            return False
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        axis = None if scale.size == 1 else axis % max(elements.ndim, 1)
        shape = [1] * elements.ndim
        if axis is not None:
            shape[axis] = -1
            if scale.size != elements.shape[axis]:
                raise FormatError(f"node {node.name}: {scale.size} scales for {elements.shape[axis]} along axis {axis}")
        units, points = scale.reshape(shape), np.asarray(zero, np.int64)
        points = points.reshape(shape if points.size > 1 else [1] * elements.ndim)
        whole = elements.astype(np.int64) - points
        name = node.output[0]
        self._add_constant(name, (whole * units).astype(np.float32))
        if elements.dtype.itemsize == 1 and np.all(np.abs(whole) <= SYMMETRIC["int8"]):
            self.weights[name] = (scale.ravel(), axis)
        elif elements.dtype.itemsize == 2:
            self.result.wide.append(node.input[0])
        elif elements.dtype.itemsize == 1:
            self.result.notes.append(f"weights {node.input[0]} do not fit -127..127 units; they get a separate scale")
        return True

    def _add_constant(self, name: str, values: np.ndarray) -> None:
        self.constants[name] = values
        self.graph.initializer.append(self.onnx.numpy_helper.from_array(np.asarray(values), name))

    def _kernel_scales(self, node: NodeProto) -> None:
        """Scales of the weights of a convolution or matrix product, one a kernel."""
        position = _KERNEL_AXIS.get(node.op_type)
        if position is None or len(node.input) < 2 or node.input[1] not in self.weights:
            return
        scale, axis = self.weights[node.input[1]]
        if node.op_type == "Gemm":
            position = 0 if any(attribute.name == "transB" and attribute.i for attribute in node.attribute) else 1
        elif node.op_type == "MatMul":
            position = self.constants[node.input[1]].ndim - 1
        if axis is None or axis == position:
            self.result.weight_scales[node.output[0]] = scale
        else:
            note = f"weights {node.input[1]} have scales along axis {axis}; they get one new scale per kernel"
            self.result.notes.append(note)

    def _drop_unused(self) -> None:
        used = {name for node in self.graph.node for name in reads(node)}
        used |= {output.name for output in self.graph.output}
        kept = [constant for constant in self.graph.initializer if constant.name in used]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)


#: functions s(x) of a product x s(x) that is an activation function, and activation functions of one operator
_GATES = {"Sigmoid", "HardSigmoid"}
_ARGUMENTS = {"HardSwish", "Sigmoid"}


def _gate(node: NodeProto, values: np.ndarray) -> np.ndarray:
    """Return the gate of an activation function, or a sigmoid, of numbers."""
    if node.op_type == "Sigmoid":
        return np.asarray(1 / (1 + np.exp(-np.clip(values, -80, 80))))
    slopes = {field.name: field.f for field in node.attribute} if node.op_type == "HardSigmoid" else {"alpha": 1 / 6}
    return np.clip(slopes.get("alpha", 0.2) * values + slopes.get("beta", 0.5), 0, 1)


_KERNEL_AXIS: Mapping[str, int] = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
_OF_REAL = ("QuantizeLinear", "DequantizeLinear", "Clip", "Pad", "Shape", "Size", *KEEPERS)
_NOT_NEGATIVE = ("Relu", "Sigmoid", "Softmax", "HardSigmoid", "Abs")
_AVERAGES = ("AveragePool", "GlobalAveragePool", "MaxPool", "ReduceMean", "ReduceMax", "ReduceSum", "Resize")
_FUNCTIONS = ("Elu", "Gelu", "HardSwish", "LeakyRelu", "PRelu", "Tanh")
_JOINED = ("Add", "Clip", "Conv", "ConvTranspose", "Div", "Gemm", "MatMul", "Max", "Min", "Mul", "Sub")
