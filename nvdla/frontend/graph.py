"""What operators see while they are imported: nodes, values, and the builder network of one accelerator part.

An ONNX value of any rank is a cube (C, H, W) of the builder and, where its order differs, an index: position
``index[i...]`` of the cube holds element ``i...`` of the value. Operators that only move elements (Reshape, Transpose,
Slice ...) change the index and nothing else; an operator that needs a certain cube asks for it (:meth:`Graph.arrange`),
and the elements are moved on the accelerator, exactly, by copies and convolutions with ones and zeros. What enters from
outside takes any order for free: a part's inputs are bound in the order in which they are first needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.builder import Network, NetworkTensor
from nvdla.errors import NvdlaError, shape_text
from nvdla.frontend.arrange import arrange
from nvdla.frontend.model import Model
from nvdla.hardware.configuration import Configuration

Function = Callable[[np.ndarray], np.ndarray]
Shape = tuple[int, ...]
Cube = tuple[int, int, int]
FLOATS = ("float16", "float32", "float64")


class Cut(NvdlaError):
    """A node that the accelerator cannot do: why, and what to do about it."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}; {advice}" if advice else reason)
        self.reason, self.advice = reason, advice


@dataclass
class Node:
    """One ONNX node. ``attributes`` as Python values; ``inputs`` and ``outputs`` are value names ("" = left out)."""

    name: str
    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    model: Model
    proto: Any

    def constant(self, index: int) -> np.ndarray | None:
        """The array of a constant input, None where it is computed or left out."""
        return self.model.constants.get(self.inputs[index]) if index < len(self.inputs) else None

    def has(self, index: int) -> bool:
        """Whether an input is there."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def shape(self, index: int) -> Shape:
        """The shape of an input."""
        return self.shape_of(self.inputs[index])

    def shape_of(self, name: str) -> Shape:
        """The shape of a tensor. Raises Cut where it is not static."""
        if name not in self.model.shapes:
            raise Cut(f"tensor {name} has no static shape", "fix the model's shapes (--shape)")
        return self.model.shapes[name]

    @property
    def out_shape(self) -> Shape:
        """The shape of the first output."""
        return self.shape_of(self.outputs[0])

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or ``default``."""
        return self.attributes.get(name, default)

    def setting(self, name: str, index: int, default: Any = None) -> Any:
        """A number or list that is an attribute in old opsets and a constant input in newer ones."""
        if name in self.attributes:
            return self.attributes[name]
        if not self.has(index):
            return default
        value = self.constant(index)
        if value is None:
            raise Cut(f"{name} is computed at run time", "make it a constant")
        return value.item() if value.ndim == 0 else value.tolist()

    def required(self, index: int, what: str) -> np.ndarray:
        """A constant input; Cut where it is computed."""
        return np.asarray(self.weights(index, what), np.float64)

    def weights(self, index: int, what: str) -> np.ndarray:
        """A constant input that may be large: float32 as it is, all else as float64; Cut where it is computed."""
        array = self.constant(index)
        if array is None:
            raise Cut(f"{what} ({self.inputs[index]}) is computed at run time, not a constant", "bind it as a constant")
        numbers = np.asarray(array, np.float32 if array.dtype == np.float32 else np.float64)
        if not np.all(np.isfinite(numbers)):
            raise Cut(f"{what} ({self.inputs[index]}) holds NaN or infinity")
        return numbers

    def computed(self) -> list[int]:
        """Positions of inputs that are no constants."""
        return [i for i, name in enumerate(self.inputs) if name and name not in self.model.constants]


@dataclass(eq=False)
class GraphValue:
    """An ONNX value during import. ``tensor`` None: an input of the part that no layer has asked for yet.

    ``index``: None (the cube holds the elements in the value's order) or an array of the value's shape.
    ``base``, ``function``: this value is a function of one number of another value. ``unpadded``: this value is that
    one with ``border`` around it (top, bottom, left, right).
    """

    name: str
    shape: Shape
    tensor: NetworkTensor | None = None
    index: np.ndarray | None = None
    boundary: str = ""
    base: GraphValue | None = None
    function: Function | None = None
    unpadded: tuple[GraphValue, tuple[int, int, int, int]] | None = None
    border: float = 0.0

    @property
    def placed(self) -> NetworkTensor:
        """``tensor`` of a value that a layer has asked for."""
        assert self.tensor is not None, f"{self.name} has no tensor yet"
        return self.tensor

    @property
    def size(self) -> int:
        """Elements of it."""
        return math.prod(self.shape)

    def order(self) -> np.ndarray:
        """The index, written out."""
        return np.arange(self.size).reshape(self.shape) if self.index is None else self.index


@dataclass
class Binding:
    """How a bound tensor of a part and an ONNX value belong together.

    Inputs: the cube is ``value.ravel()[index]``; outputs: the value is ``cube.ravel()[index]`` (None = same order).
    """

    tensor: str
    value: str
    index: np.ndarray | None
    shape: Shape


def canonical(shape: Shape) -> Cube:
    """The cube of a value whose elements stay in order: batch and leading dimensions are channels."""
    if len(shape) >= 4:
        return math.prod(shape[:-2]), shape[-2], shape[-1]
    if len(shape) == 3:
        return shape[0] * shape[1], 1, shape[2]
    return math.prod(shape), 1, 1


class Graph:
    """The network of one accelerator part under construction."""

    def __init__(self, model: Model, config: Configuration, precision: str, network: Network) -> None:
        self.model, self.config, self.precision, self.network = model, config, precision, network
        self.values: dict[str, GraphValue] = {}
        self.placements: list[GraphValue] = []
        self.bindings: list[Binding] = []
        self.tensors: dict[str, str] = {}
        self.orders: dict[str, np.ndarray | None] = {}
        self.ties: dict[str, str] = {}
        self.magnitudes: dict[str, float] = {}
        self.node: Node | None = None
        self.arranged: dict[tuple[str, Shape, bytes], NetworkTensor] = {}

    # ---- values

    def enter(self, name: str) -> GraphValue:
        """A value that comes from outside this part."""
        if name not in self.values:
            shape = self.model.shapes.get(name)
            if shape is None:
                raise Cut(f"tensor {name} has no static shape", "fix the model's shapes (--shape)")
            if math.prod(shape) == 0:
                raise Cut(f"tensor {name} of shape {shape_text(shape)} is empty")
            self.values[name] = GraphValue(name, shape, boundary=name)
        return self.values[name]

    def source(self, node: Node, index: int = 0) -> GraphValue:
        """The value of a computed input."""
        if not node.has(index):
            raise Cut(f"input {index} is left out")
        if node.inputs[index] in self.model.constants:
            raise Cut(f"input {node.inputs[index]} is a constant where a computed tensor is needed")
        return self.enter(node.inputs[index])

    def alias(
        self, node: Node, value: GraphValue, index: np.ndarray | None, output: int = 0, shape: Shape | None = None
    ) -> GraphValue:
        """A result that holds the elements of another value in another order: nothing is computed."""
        shape = node.shape_of(node.outputs[output]) if shape is None else shape
        held = value.size if index is None else index.size
        if held != math.prod(shape):  # onnx's inference believes the shape that a Reshape asks for
            raise Cut(f"it would make {held} elements a tensor of {shape_text(shape)}")
        if index is not None:
            index = np.array(index, order="C").reshape(shape)
        return GraphValue(node.outputs[output], shape, value.tensor, index, value.boundary)

    def result(self, node: Node, tensor: NetworkTensor, index: np.ndarray | None = None, output: int = 0) -> GraphValue:
        """A result that a layer computes."""
        shape = node.shape_of(node.outputs[output])
        if index is None and math.prod(tensor.shape) != math.prod(shape):
            raise Cut(f"its result would be {tensor}, but the model says {shape_text(shape)}")
        self.tensors[tensor.name] = node.outputs[output]
        return GraphValue(node.outputs[output], shape, tensor, index)

    # ---- layers

    def label(self, node: Node, suffix: str = "") -> str:
        """A free layer name: the value's own for the layer that computes it, with a suffix for helpers."""
        wanted = f"{node.outputs[0]}/{suffix}" if suffix else node.outputs[0]
        name, number = wanted, 1
        while self.network.has(name):
            number += 1
            name = f"{wanted}.{number}"
        return name

    def tie(self, tensor: NetworkTensor, source: NetworkTensor) -> NetworkTensor:
        """``tensor`` holds elements of ``source`` only, so both have one range."""
        self.ties[tensor.name] = source.name
        return tensor

    def bind(self, value: GraphValue, positions: np.ndarray | None, cube: Cube) -> NetworkTensor:
        """An input of the part as a cube whose elements are ``positions`` of the value from outside."""
        name, number = value.boundary, 1
        while self.network.has(name):
            number += 1
            name = f"{value.boundary}.{number}"
        tensor = self.network.input(name, cube)
        self.tensors[name] = value.boundary
        index = None if positions is None else positions.reshape(cube)
        self.bindings.append(Binding(name, value.boundary, index, cube))
        return tensor

    def flat(self, value: GraphValue) -> NetworkTensor:
        """The value as any cube, for layers that look at each element alone; an input is bound now."""
        if value.tensor is None:
            root = self.values[value.boundary]
            if root.tensor is None:
                self.place(root, self.bind(root, None, canonical(root.shape)))
            self.place(value, root.placed)
        return value.placed

    def place(self, value: GraphValue, tensor: NetworkTensor) -> None:
        """Give a value that had none its tensor."""
        value.tensor = tensor
        self.placements.append(value)

    def cube(self, value: GraphValue) -> NetworkTensor:
        """The value as its canonical cube."""
        return self.arrange(value, None, canonical(value.shape))

    def arrange(self, value: GraphValue, wanted: np.ndarray | None, cube: Cube) -> NetworkTensor:
        """The value as a cube whose elements are ``wanted`` (flat positions in the value, -1 = zero; None = in order).

        Elements are moved by layers where they have to; an input is bound in that order. Raises Cut where no
        layer can.
        """
        positions = wanted
        if value.index is not None:
            order = value.index.ravel()
            positions = order if wanted is None else _through(order, wanted.ravel())
        if value.tensor is None and self.values[value.boundary].tensor is None:
            if positions is None:
                return (
                    self.flat(value)
                    if cube == canonical(self.values[value.boundary].shape)
                    else self._bind_once(value, None, cube)
                )
            if positions.min() >= 0:
                return self._bind_once(value, positions, cube)
        source = self.flat(value)
        if positions is None:
            if source.shape == cube:
                return source
            positions = np.arange(math.prod(cube))
        made = arrange(self, source, positions.reshape(cube))
        if made is None:
            raise Cut(
                f"its elements would have to be moved from {source} into the order of {'x'.join(map(str, cube))}, "
                "which no engine does",
                "reorder the model so that channels stay channels",
            )
        return made

    def _bind_once(self, value: GraphValue, positions: np.ndarray | None, cube: Cube) -> NetworkTensor:
        for each in self.bindings:
            same = (
                each.index is None
                if positions is None
                else each.index is not None and np.array_equal(each.index.ravel(), positions.ravel())
            )
            if each.value == value.boundary and each.shape == cube and same:
                return next(tensor for tensor in self.network.inputs if tensor.name == each.tensor)
        return self.bind(value, positions, cube)

    # ---- numbers

    def on_cube(self, value: GraphValue, array: np.ndarray) -> np.ndarray:
        """A constant, broadcast to the value, in the order of its cube (C, H, W)."""
        tensor = self.flat(value)
        spread = np.broadcast_to(np.asarray(array, np.float64), value.shape)
        if value.index is None:
            return np.ascontiguousarray(spread).reshape(tensor.shape)
        result = np.zeros(math.prod(tensor.shape))
        result[value.index.ravel()] = spread.ravel()
        return result.reshape(tensor.shape)


def _through(order: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Positions ``wanted`` of a value whose elements lie at ``order``; -1 stays -1."""
    found = order[np.maximum(wanted, 0)]
    return np.where(wanted < 0, -1, found)


def factor_of(values: np.ndarray) -> float | np.ndarray | None:
    """A cube of constants as one number, one a channel (C,), or None where it varies within a channel."""
    first = values[:, 0, 0]
    if not np.all(values == first[:, None, None]):
        return None
    return float(first[0]) if np.all(first == first[0]) else first
