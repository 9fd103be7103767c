"""Quantised ONNX models come in with their own scales: what is left is a float graph, the scales beside it.

QuantizeLinear and DequantizeLinear between tensors say which scale a tensor has and are taken out; those of weights
give the weights' real numbers and scales. int8 and uint8 tensors keep their elements (uint8 less 128) and zero points
where all that read them can take that (:mod:`nvdla.builder.lower.zero_points`); elsewhere, a tensor keeps its range in
a coarser unit, and a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.errors import FormatError
from nvdla.frontend.quantisation.operators import Rewriter, rewrites

#: elements of all initializers together that are looked at as scales, zero points and weights
MAX_ELEMENTS = 1 << 31
# Largest elements without sign, by type: the symmetric range of NVDLA's elements of that width.
_SYMMETRIC = {"int8": 127, "uint8": 127, "int16": 32767, "uint16": 32767}


@dataclass
class Stripped:
    """A float model and what its quantisation said.

    ``magnitudes``: the largest magnitude of tensors by value name; ``ranges``: (lowest, highest) number of those with a
    zero point. ``weight_scales``: int8 scales (K,) of kernels by
    the first output of the node that has the weights. ``notes``: tensors whose elements are not the model's.
    """

    proto: Any
    magnitudes: dict[str, float] = field(default_factory=dict)
    weight_scales: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def quantised(self) -> bool:
        """Whether the model brought scales along."""
        return bool(self.magnitudes or self.weight_scales)


def strip(proto: Any) -> Stripped:
    """Take the quantisation out of an ``onnx.ModelProto``; one without any comes back as it is. Raises FormatError."""
    quantised = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm"}
    if not any(node.op_type in quantised for node in proto.graph.node):
        return Stripped(proto)
    return _Stripper(proto).run()


class _Stripper:
    def __init__(self, proto: Any) -> None:
        import onnx

        self.onnx = onnx
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(proto)
        self.graph = self.proto.graph
        self.result = Stripped(self.proto)
        self.constants = self._constants()
        self.names = {name for node in self.graph.node for name in (*node.input, *node.output, node.name)}
        self.names |= set(self.constants) | {each.name for each in self.graph.input}
        self.alias: dict[str, str] = {}
        self.weights: dict[str, tuple[np.ndarray, int | None]] = {}

    def _constants(self) -> dict[str, np.ndarray]:
        found = {each.name: self._array(each) for each in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == "Constant":
                for each in node.attribute:
                    if each.name == "value":
                        found[node.output[0]] = self._array(each.t)
                    elif each.name in ("value_float", "value_int"):
                        found[node.output[0]] = np.array(self.onnx.helper.get_attribute_value(each))
        return found

    def _array(self, tensor: Any) -> np.ndarray:
        try:
            return self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # onnx raises kinds of its own for broken tensors
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
        kept: list[Any] = []
        for node in self.graph.node:
            for position, name in enumerate(node.input):
                node.input[position] = self.alias.get(name, name)
            taken = self._quantize(node, kept) if node.op_type == "QuantizeLinear" else False
            taken = taken or (node.op_type == "DequantizeLinear" and self._dequantize(node))
            if not taken:
                self._kernel_scales(node)
                kept.append(node)
        kept += [
            self.onnx.helper.make_node("Identity", [self.alias[each.name]], [each.name])
            for each in self.graph.output
            if each.name in self.alias
        ]
        del self.graph.node[:]
        self.graph.node.extend(kept)
        # Types and shapes of values that were integers are no longer true.
        del self.graph.value_info[:]
        self._drop_unused()
        return self.result

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
        """Inputs and outputs that hold quantised numbers become real ones."""
        made = {node.output[0] for node in self.graph.node if node.op_type == "QuantizeLinear"}
        taken = {node.input[0] for node in self.graph.node if node.op_type == "DequantizeLinear"}
        integers = (self.onnx.TensorProto.INT8, self.onnx.TensorProto.UINT8)
        for what, ends, names in (("input", self.graph.input, taken), ("output", self.graph.output, made)):
            for each in ends:
                if each.name in names and each.type.tensor_type.elem_type in integers:
                    each.type.tensor_type.elem_type = self.onnx.TensorProto.FLOAT
                    self.result.notes.append(
                        f"{what} {each.name} is quantised in the model; it is bound in real numbers"
                    )

    def _parameters(self, node: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """(scale, zero point) of a node; None where they are computed."""
        names = [*node.input[1:3]]
        if any(name and name not in self.constants for name in names):
            return None
        scale = np.asarray(self.constants[names[0]], np.float64)
        zero = self.constants[names[1]] if len(names) > 1 and names[1] else np.zeros((), np.uint8)
        if not np.all(np.isfinite(scale) & (scale > 0)):
            raise FormatError(f"node {node.name or node.op_type}: scale {names[0]} must hold positive finite numbers")
        return scale, zero

    def _quantize(self, node: Any, kept: list[Any]) -> bool:
        """A tensor gets its scale; the node goes, its result is the tensor itself."""
        parameters = self._parameters(node)
        source = node.input[0]
        if parameters is None or source in self.constants or parameters[0].size != 1:
            return False
        scale, zero = float(parameters[0].ravel()[0]), parameters[1]
        kind, point = zero.dtype.name, int(np.asarray(zero).ravel()[0])
        if kind not in _SYMMETRIC:
            return False
        source = self._clipped(node, source, kind, point, kept)
        self._note_range(source, scale, kind, point)
        self.alias[node.output[0]] = source
        return True

    def _clipped(self, node: Any, source: str, kind: str, point: int, kept: list[Any]) -> str:
        """A zero point at the low end of the range cuts negative numbers off, as a ReLU that was taken out did."""
        if point != np.iinfo(kind).min:
            return source
        maker = next((each for each in reversed(kept) if source in each.output), None)
        if maker is None or maker.op_type in _NOT_NEGATIVE:
            return source
        name = self.fresh(f"{source}_relu")
        kept.append(self.onnx.helper.make_node("Relu", [source], [name], self.fresh(f"{name}_node")))
        return name

    def _note_range(self, source: str, scale: float, kind: str, point: int) -> None:
        info = np.iinfo(kind)
        middle = 0 if info.min < 0 else (info.max + 1) // 2
        largest = _SYMMETRIC[kind]
        if point == middle:
            magnitude = scale * largest
        else:
            magnitude = scale * max(point - info.min, info.max - point)
        self._add_range(source, (scale * (info.min - point), scale * (info.max - point)), kind, point == middle)
        known = self.result.magnitudes.setdefault(source, magnitude)
        if not np.isclose(known, magnitude, rtol=1e-6):
            self.result.notes.append(
                f"tensor {source} is quantised up to {known:.4g} and up to {magnitude:.4g}; the larger is taken"
            )
            self.result.magnitudes[source] = max(known, magnitude)

    def _add_range(self, source: str, held: tuple[float, float], kind: str, symmetric: bool) -> None:
        """Keep the range of a tensor with a zero point; one that is quantised in two ways has none."""
        if np.iinfo(kind).bits != 8:
            return
        if source not in self.result.magnitudes and not symmetric:
            self.result.ranges[source] = held
        elif source in self.result.ranges and not np.allclose(self.result.ranges[source], held, rtol=1e-6):
            del self.result.ranges[source]

    def _dequantize(self, node: Any) -> bool:
        parameters = self._parameters(node)
        if parameters is None:
            return False
        source = node.input[0]
        if source not in self.constants:
            inner = {each.name for each in self.graph.input} | set(self.result.magnitudes)
            if parameters[0].size != 1:
                return False
            if source in inner and source not in self.result.magnitudes:
                scale, zero = float(parameters[0].ravel()[0]), parameters[1]
                self._note_range(source, scale, zero.dtype.name, int(np.asarray(zero).ravel()[0]))
            self.alias[node.output[0]] = source
            return True
        return self._real_weights(node, self.constants[source], *parameters)

    def _real_weights(self, node: Any, elements: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> bool:
        if any(each.name == "block_size" and each.i for each in node.attribute):
            return False
        axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
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
        if elements.dtype.itemsize == 1 and np.all(np.abs(whole) <= _SYMMETRIC["int8"]):
            self.weights[name] = (scale.ravel(), axis)
        elif elements.dtype.itemsize == 1:
            self.result.notes.append(
                f"weights {node.input[0]} do not fit -127..127 units; they get a scale of their own"
            )
        return True

    def _add_constant(self, name: str, values: np.ndarray) -> None:
        self.constants[name] = values
        self.graph.initializer.append(self.onnx.numpy_helper.from_array(np.asarray(values), name))

    def _kernel_scales(self, node: Any) -> None:
        """Scales of the weights of a convolution or matrix product, one a kernel."""
        position = _KERNEL_AXIS.get(node.op_type)
        if position is None or len(node.input) < 2 or node.input[1] not in self.weights:
            return
        scale, axis = self.weights[node.input[1]]
        kernels = position
        if node.op_type == "Gemm":
            kernels = 0 if any(each.name == "transB" and each.i for each in node.attribute) else 1
        elif node.op_type == "MatMul":
            kernels = self.constants[node.input[1]].ndim - 1
        if axis is None or axis == kernels:
            self.result.weight_scales[node.output[0]] = scale
        else:
            self.result.notes.append(
                f"weights {node.input[1]} have scales along axis {axis}; they get new ones a kernel"
            )

    def _drop_unused(self) -> None:
        used = {name for node in self.graph.node for name in node.input} | {each.name for each in self.graph.output}
        for node in self.graph.node:
            used |= _inner_names(node)
        kept = [each for each in self.graph.initializer if each.name in used]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)


_KERNEL_AXIS: Mapping[str, int] = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
_NOT_NEGATIVE = ("Relu", "Sigmoid", "Softmax", "HardSigmoid", "Abs")


def _inner_names(node: Any) -> set[str]:
    """Values that the sub-graphs of a node name."""
    found: set[str] = set()
    for each in node.attribute:
        for graph in [each.g] if each.HasField("g") else each.graphs:
            for inner in graph.node:
                found |= set(inner.input) | _inner_names(inner)
    return found
