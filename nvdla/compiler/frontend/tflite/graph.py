"""The ONNX graph of a TFLite model under construction.

A tensor of four dimensions has up to two values: one in the order of the file (NHWC) and one in that of ONNX (NCHW). An
operator asks for the one that it computes with; a Transpose makes it where it is missing, which costs nothing
on the accelerator. Quantized tensors get QuantizeLinear and DequantizeLinear, constants their real numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from nvdla.compiler.frontend.tflite.reader import FlatModel, FlatOperator, FlatQuantization, FlatTensor
from nvdla.errors import FormatError, NvdlaError
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

OPSET = 20
OPSET_OF_INT16 = 21  # the first whose QuantizeLinear gives int16
IR_VERSION = 9
#: orders of the elements of a tensor: of the file, of ONNX
FILE, ONNX = "file", "onnx"
TO_ONNX, TO_FILE = (0, 3, 1, 2), (0, 2, 3, 1)
#: property of a node that must run on the host: why
HOST_KEY = "nvdla.host"
#: metadata of a Relu: the limit that the range of its result implies
LIMIT_KEY = "nvdla.limit"
#: property of a model whose tensors have their channels last
CHANNELS_LAST_KEY = "nvdla.channels_last"
#: property of a model: mean and standard deviation of the pixels of its input, as JSON
NORMALIZATION_KEY = "nvdla.normalization"
#: elements of one constant that is computed while the model is read
MAX_FOLDED = 1 << 24
_QUANTIZED = ("INT8", "UINT8", "INT16")
#: ranges of narrower elements, which only QUANTIZE makes
_NARROW = {"INT4": (-8, 7), "UINT4": (0, 15), "INT2": (-2, 1)}


class UnsupportedError(NvdlaError):
    """An operator that has no counterpart in ONNX, and why."""


class FlatConverter:
    """Values, constants and nodes made so far. Tensors are named by their positions in the file."""

    def __init__(self, onnx: ModuleType, model: FlatModel, shapes: Mapping[str, Sequence[int]]) -> None:
        self.onnx, self.model, self.tensors = onnx, model, model.tensors
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.values: dict[int, dict[str, str]] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.folded: dict[int, np.ndarray] = {}
        self.names = {model.tensors[number].name for number in (*model.inputs, *model.outputs)}
        self.infos: list[ValueInfoProto] = []  # types of values that onnx cannot infer
        self._kept: dict[object, str] = {}
        self.host = ""  # why the nodes that are added run on the host; empty where the importer decides
        self.inputs = [self._input(number, shapes) for number in dict.fromkeys(model.inputs)]

    # ---- tensors

    def shape(self, number: int) -> tuple[int, ...]:
        """The shape of a tensor in the order of the file."""
        if number in self.shapes:
            return self.shapes[number]
        if number in self.folded:
            return self.folded[number].shape
        return self.tensors[number].shape

    def is_constant(self, number: int) -> bool:
        """Check whether the elements of a tensor are known."""
        known = self.tensors[number].data is not None or not math.prod(self.tensors[number].shape)
        return number in self.folded or (number not in self.values and known)

    def elements(self, number: int, what: str) -> np.ndarray:
        """The elements of a constant. Raises UnsupportedError for a computed tensor."""
        if number in self.folded:
            return self.folded[number]
        if not self.is_constant(number):
            raise UnsupportedError(f"{what} ({self.tensors[number].name}) must be a constant, is computed")
        tensor = self.tensors[number]
        return np.zeros(tensor.shape, tensor.dtype) if tensor.data is None else tensor.elements()

    def integers(self, number: int, what: str) -> list[int]:
        """The elements of a constant of shapes, axes or limits."""
        return [int(element) for element in self.elements(number, what).ravel()]

    def real(self, number: int, what: str = "operand") -> np.ndarray:
        """The numbers that a constant stands for: float32, integers without a scale as they are."""
        array, tensor = self.elements(number, what), self.tensors[number]
        if number not in self.folded and tensor.quantized:
            scales, points = self._spread(number, array.ndim)
            with np.errstate(over="ignore"):  # what becomes infinite is refused with the model
                return ((array.astype(np.float64) - points) * scales).astype(np.float32)
        return array.astype(np.float32) if array.dtype.kind == "f" else array

    def _spread(self, number: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Scales and zero points of a tensor that broadcast to its shape."""
        quantization = self.tensors[number].quantization
        assert quantization is not None, "only a quantized tensor has scales"
        shape = [1] * rank
        if not quantization.whole:
            shape[quantization.axis] = -1
        elif not rank:
            return quantization.scales.astype(np.float64)[0], quantization.points[0]
        return quantization.scales.astype(np.float64).reshape(shape), quantization.points.reshape(shape)

    def is_quantized(self, number: int) -> bool:
        """Check whether a computed tensor holds quantized elements."""
        tensor = self.tensors[number]
        return tensor.quantized and tensor.kind in _QUANTIZED

    def ends(self, number: int) -> tuple[float, float]:
        """The lowest and the highest number of a computed tensor."""
        quantization = self.tensors[number].quantization
        if not self.is_quantized(number) or quantization is None:
            return -math.inf, math.inf
        info = np.iinfo(self.tensors[number].dtype)
        low, high = (
            float(quantization.scales[0]) * (end - int(quantization.points[0])) for end in (info.min, info.max)
        )
        return low, high

    # ---- values

    def order(self, *numbers: int) -> str:
        """The order in which an operator on single elements computes: ONNX's, whose channels the accelerator has."""
        computed = [number for number in numbers if not self.is_constant(number)]
        whole = all(len(self.shape(number)) <= 4 for number in numbers)
        return ONNX if whole and computed and all(len(self.shape(number)) == 4 for number in computed) else FILE

    def value_of(self, number: int) -> dict[str, str]:
        """The values of a computed tensor by order. Raises UnsupportedError where no operator has made it."""
        if number not in self.values:
            raise UnsupportedError(f"tensor {self.tensors[number].name} is used before it is defined, or not defined")
        return self.values[number]

    def read(self, number: int, order: str = FILE) -> str:
        """The real numbers of a tensor as a value; a constant of lower rank gets leading dimensions in ONNX's order."""
        if self.is_constant(number):
            if (number, order) not in self._kept:
                array = self.real(number)
                if order == ONNX and array.ndim:
                    array = array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(TO_ONNX)
                self._kept[number, order] = self.constant(array, self.tensors[number].name)
            return self._kept[number, order]
        values, shape = self.value_of(number), self.shape(number)
        if order not in values and len(shape) != 4:
            return values[FILE]
        if order not in values:
            source = values[FILE if order == ONNX else ONNX]
            perm = TO_ONNX if order == ONNX else TO_FILE
            values[order] = self.node("Transpose", [source], f"{self.tensors[number].name}/{order}", perm=perm)
        return values[order]

    def weights(self, number: int, perm: Sequence[int]) -> str:
        """A tensor of weights with permuted dimensions: quantized elements with their scales where it has them."""
        tensor = self.tensors[number]
        if not self.is_constant(number):
            return self.node("Transpose", [self.read(number)], f"{tensor.name}/moved", perm=list(perm))
        if number in self.folded or tensor.kind not in (*_QUANTIZED, "INT4") or tensor.quantization is None:
            return self.constant(self.real(number, "weights").transpose(perm), tensor.name)
        elements, quantization = self.elements(number, "weights").transpose(perm), tensor.quantization
        scales, points = quantization.scales, quantization.points.astype(elements.dtype)
        form: Document = {}
        if quantization.whole:
            scales, points = scales.reshape(()), points.reshape(())
        else:
            form = {"axis": list(perm).index(quantization.axis)}
        names = [(elements, "elements"), (scales, "scale"), (points, "zero_point")]
        inputs = [self.constant(array, f"{tensor.name}/{part}") for array, part in names]
        return self.node("DequantizeLinear", inputs, tensor.name, **form)

    def constant(self, array: np.ndarray, name: str = "constant") -> str:
        """A constant as a value."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (array.shape, array.dtype.str, array.tobytes()) if array.size <= 64 else None
        if key in self._kept:
            return self._kept[key]
        held = self.fresh(name)
        self.initializers[held] = array
        if key is not None:
            self._kept[key] = held
        return held

    def shape_constant(self, sizes: Sequence[int]) -> str:
        """Sizes, axes or limits as a value."""
        return self.constant(np.array(sizes, np.int64), "shape")

    def name(self, number: int) -> str:
        """The name of the value of an operator that makes a tensor."""
        name = self.tensors[number].name
        return f"{name}/value" if number in self.model.outputs else name

    def fresh(self, name: str) -> str:
        """A name that no value has."""
        candidate, number = name, 1
        while candidate in self.names or candidate in self.initializers:
            number += 1
            candidate = f"{name}.{number}"
        self.names.add(candidate)
        return candidate

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: object) -> str:
        """Add a node; returns the value that it makes."""
        return self.parts(op, inputs, [name], **attributes)[0]

    def parts(self, op: str, inputs: Sequence[str], names: Sequence[str], **attributes: object) -> list[str]:
        """Add a node with several results; returns the values that it makes."""
        outputs = [self.fresh(name) for name in names]
        node = self.onnx.helper.make_node(op, list(inputs), outputs, **attributes)
        if self.host:
            node.metadata_props.add(key=HOST_KEY, value=self.host)
        self.nodes.append(node)
        return outputs

    # ---- results

    def write(
        self, number: int, value: str, shape: Sequence[int], order: str = FILE, reshaped: Sequence[int] | None = None
    ) -> None:
        """Make a value the tensor of the file: rounded as its type says, then, where asked, in another shape."""
        self._new(number, shape if reshaped is None else reshaped)
        value = self.rounded(number, value)
        if reshaped is not None:
            value = self.node("Reshape", [value, self.shape_constant(reshaped)], f"{self.name(number)}/shaped")
            order = FILE
        self.values[number] = {order: value}

    def alias(self, number: int, source: int) -> None:
        """Make a tensor the same real numbers as another one."""
        self._new(number, self.shape(source))
        if self.is_constant(source):
            self.folded[number] = self.real(source)
        else:
            self.values[number] = self.value_of(source)

    def fold(self, number: int, array: np.ndarray) -> None:
        """Make a tensor a constant."""
        self._new(number, array.shape)
        self.folded[number] = array

    def _new(self, number: int, shape: Sequence[int]) -> None:
        name = self.tensors[number].name
        if number in self.values or number in self.folded or self.tensors[number].data is not None:
            raise FormatError(f"tensor {name}: must be defined once, and must not be an input or a constant")
        if any(size < 0 for size in shape):
            raise UnsupportedError(f"its result {name} would have the shape {list(shape)}")
        self.shapes[number] = tuple(int(size) for size in shape)

    def parameters(self, number: int) -> list[str]:
        """Scale and zero point of a computed tensor as values."""
        tensor = self.tensors[number]
        quantization = tensor.quantization
        assert quantization is not None, "only a quantized tensor has scales"
        if not quantization.whole:
            raise UnsupportedError(
                f"tensor {tensor.name} has {quantization.scales.size} scales; a computed tensor has one"
            )
        return [self.constant(quantization.scales[0]), self.constant(quantization.points[0].astype(tensor.dtype))]

    def rounded(self, number: int, value: str) -> str:
        """Real numbers as a quantized tensor holds them; those of other tensors as they are."""
        tensor = self.tensors[number]
        if tensor.kind in _NARROW and tensor.quantization is not None:
            return self._narrowed(tensor, tensor.quantization, value)
        if not self.is_quantized(number):
            return value
        parameters = self.parameters(number)
        elements = self.node("QuantizeLinear", [value, *parameters], f"{tensor.name}/elements")
        return self.node("DequantizeLinear", [elements, *parameters], f"{tensor.name}/real")

    def _narrowed(self, tensor: FlatTensor, quantization: FlatQuantization, value: str) -> str:
        """Real numbers in steps of 4 or 2 bits: limited, then rounded as 8 bits."""
        if not quantization.whole:
            raise UnsupportedError(
                f"tensor {tensor.name} has {quantization.scales.size} scales; a computed tensor has one"
            )
        scale, point = quantization.scales[0], int(quantization.points[0])
        ends = [self.constant(np.float32(scale * (end - point))) for end in _NARROW[tensor.kind]]
        limited = self.node("Clip", [value, *ends], f"{tensor.name}/limited")
        kind = np.uint8 if tensor.kind[0] == "U" else np.int8
        parameters = [self.constant(scale), self.constant(np.array(point, kind))]
        elements = self.node("QuantizeLinear", [limited, *parameters], f"{tensor.name}/elements")
        return self.node("DequantizeLinear", [elements, *parameters], f"{tensor.name}/real")

    # ---- the whole model

    def _input(self, number: int, shapes: Mapping[str, Sequence[int]]) -> ValueInfoProto:
        tensor = self.tensors[number]
        shape = _fixed(tensor, shapes.get(tensor.name))
        _refuse_narrow(tensor)
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(tensor.dtype)
        self._new(number, shape)
        self.values[number] = {FILE: tensor.name}
        if self.is_quantized(number):
            real = self.node("DequantizeLinear", [tensor.name, *self.parameters(number)], f"{tensor.name}/real")
            self.values[number] = {FILE: real}
        return self.onnx.helper.make_tensor_value_info(tensor.name, kind, list(shape))

    def _output(self, number: int) -> ValueInfoProto:
        tensor = self.tensors[number]
        if number in self.folded:
            raise UnsupportedError(f"output {tensor.name} does not depend on the inputs")
        value = self.read(number)
        _refuse_narrow(tensor)
        if self.is_quantized(number):
            node = self.onnx.helper.make_node("QuantizeLinear", [value, *self.parameters(number)], [tensor.name])
        else:
            node = self.onnx.helper.make_node("Identity", [value], [tensor.name])
        self.nodes.append(node)
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(tensor.dtype)
        return self.onnx.helper.make_tensor_value_info(tensor.name, kind, list(self.shape(number)))

    def proto(self) -> ModelProto:
        """The ONNX model."""
        helper = self.onnx.helper
        outputs = [self._output(n) for n in dict.fromkeys(self.model.outputs) if n not in self.model.inputs]
        held = [self.onnx.numpy_helper.from_array(array, name) for name, array in self.initializers.items()]
        graph = helper.make_graph(self.nodes, self.model.name, self.inputs, outputs, held, value_info=self.infos)
        wide = any(array.dtype == np.int16 for array in self.initializers.values())
        domains = {"": OPSET_OF_INT16 if wide else OPSET} | {node.domain: 1 for node in self.nodes if node.domain}
        opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        normalization = self.model.normalization()
        if normalization is not None:
            text = json.dumps([numbers.tolist() for numbers in normalization])
            model.metadata_props.add(key=NORMALIZATION_KEY, value=text)
        model.metadata_props.add(key=CHANNELS_LAST_KEY, value="true")
        return model


def _refuse_narrow(tensor: FlatTensor) -> None:
    if tensor.kind in _NARROW:
        raise UnsupportedError(
            f"{tensor.name}: type of an input or output: must have 8 bits or more, got {tensor.kind}"
        )


def _fixed(tensor: FlatTensor, chosen: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of an input: the caller's choice for open sizes, else 1 for an open batch."""
    open_shape = tensor.signature
    if chosen is not None:
        sizes = tuple(int(size) for size in chosen)
        if len(sizes) != len(open_shape):
            raise FormatError(
                f"shape {list(sizes)} for input {tensor.name}: the model has {len(open_shape)} dimensions"
            )
        for size, fixed in zip(sizes, open_shape, strict=True):
            if fixed not in (-1, size):
                raise FormatError(
                    f"shape {list(sizes)} for input {tensor.name}: the model fixes a dimension to {fixed}"
                )
        return sizes
    if any(size < 0 for size in open_shape[1:]):
        words = ",".join(str(size) if size >= 0 else "?" for size in (max(open_shape[0], 1), *open_shape[1:]))
        raise FormatError(
            f"input {tensor.name}: shape must be fixed, got {list(open_shape)}. Add --shape {tensor.name}={words} "
            "with a number for each ? (Python: shapes=)."
        )
    return tuple(1 if size < 0 else size for size in open_shape)


# ---- registry

Function = Callable[[FlatConverter, FlatOperator], None]


@dataclass(frozen=True)
class FlatConversion:
    """Conversion of an operator to nodes; ``onnx``: the resulting ONNX operator, for the page."""

    function: Function
    onnx: str


CONVERSIONS: dict[str, FlatConversion] = {}


def converts(*names: str, onnx: str | Mapping[str, str]) -> Callable[[Function], Function]:
    """Register a function as the conversion of these operators."""

    def add(function: Function) -> Function:
        for name in names:
            CONVERSIONS[name] = FlatConversion(function, onnx if isinstance(onnx, str) else onnx[name])
        return function

    return add
