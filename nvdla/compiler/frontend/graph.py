"""Graph of an ONNX model during import, and the arrangement of its results.

An ONNX value of any rank is a cube (C, H, W) of the builder and, where its order differs, an index: position
``index[i...]`` of the cube holds element ``i...`` of the value. Operators that only move elements (Reshape, Transpose,
Slice ...) change the index and nothing else; an operator that needs a certain cube asks for it (:meth:`Graph.arrange`),
and the elements are moved on the accelerator, exactly, by copies and convolutions with ones and zeros. What enters from
outside takes any order for free: a part's inputs are bound in the order in which they are first needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.compiler.builder import Network, NetworkTensor
from nvdla.compiler.frontend.model import Model
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import NvdlaError, shape_text
from nvdla.limits import MAX_KERNEL
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from onnx import ModelProto


#: weights of a general permutation: elements before times elements after
MAX_DENSE = 1 << 21
MAX_PIXELS = 256
BROADCAST = 8
MAX_RUNS = 4
Run = tuple[int, int, int, int]
"""Rows or columns: start, stride, count, and how often each occurs."""


def arrange(graph: Graph, source: NetworkTensor, positions: np.ndarray) -> NetworkTensor | None:
    """A tensor whose element (c, h, w) is the element ``positions[c, h, w]`` of ``source`` (flat; -1 = zero); None
    where no engine can move them so."""
    if positions.shape == source.shape and np.array_equal(positions.ravel(), np.arange(positions.size)):
        return source
    key = source.name, positions.shape, positions.tobytes()
    if key in graph.arranged:
        return graph.arranged[key]
    for way in (_padded, _separable, _dense):
        arranged = way(graph, source, positions)
        if arranged is not None:
            graph.arranged[key] = arranged
            return arranged
    return None


def _label(graph: Graph, suffix: str) -> str:
    assert graph.node is not None, "elements are moved for a node"
    return graph.label(graph.node, suffix)


def _padded(graph: Graph, source: NetworkTensor, positions: np.ndarray) -> NetworkTensor | None:
    """Zeros around a rectangle of elements."""
    if positions.min() >= 0 or positions.max() < 0:
        return None
    taken = positions >= 0
    rows, columns = np.flatnonzero(taken.any(axis=(0, 2))), np.flatnonzero(taken.any(axis=(0, 1)))
    inside = positions[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    if inside.shape == positions.shape or (inside < 0).any():
        return None
    inner = arrange(graph, source, inside)
    if inner is None:
        return None
    _, height, width = positions.shape
    padding = (int(rows[0]), int(height - 1 - rows[-1]), int(columns[0]), int(width - 1 - columns[-1]))
    return graph.tie(graph.network.pad(_label(graph, "pad"), inner, padding), inner)


def _separable(graph: Graph, source: NetworkTensor, positions: np.ndarray) -> NetworkTensor | None:
    """Take channels, rows and columns each from a separate list."""
    _, height, width = source.shape
    taken: np.ndarray = np.asarray(positions >= 0)
    channel_taken: np.ndarray = np.asarray(taken.any(axis=(1, 2)))
    if not np.array_equal(taken, np.broadcast_to(channel_taken[:, None, None], taken.shape)) or not channel_taken.any():
        return None
    channel, row, column = positions // (height * width), positions // width % height, positions % width
    first = int(np.flatnonzero(channel_taken)[0])
    channels, rows, columns = channel[:, 0, 0], row[first, :, 0], column[first, 0, :]
    rebuilt = channels[:, None, None] * height * width + rows[None, :, None] * width + columns[None, None, :]
    if not np.array_equal(np.where(taken, rebuilt, -1), np.where(taken, positions, -1)):
        return None
    channels = np.where(channel_taken, channels, -1)
    down, across = _runs(rows), _runs(columns)
    if down is None or across is None:
        return None
    tensor = _select(graph, _cut_out(graph, source, down, across), channels)
    whole = _repeat(graph, tensor, down[0][3], across[0][3])
    kept = [
        (0, 1, size) if len(runs) > 1 else _place_in_run(places, runs[0])
        for places, runs, size in zip((rows, columns), (down, across), whole.shape[1:], strict=True)
    ]
    if all(size == count for size, (_, _, count) in zip(whole.shape[1:], kept, strict=True)):
        return whole
    return graph.tie(graph.network.slice(_label(graph, "crop"), whole, rows=kept[0], columns=kept[1]), source)


def _place_in_run(places: np.ndarray, run: Run) -> tuple[int, int, int]:
    """Return where rows or columns are in the whole of a run: its ends may be repeated less often than the others."""
    return run[3] - int((places == places[0]).sum()), 1, len(places)


def _runs(places: np.ndarray) -> list[Run] | None:
    """Rows or columns in a few runs upwards (a roll has two); only a single run repeats its elements."""
    parts = np.split(places, np.flatnonzero(np.diff(places) < 0) + 1)
    runs = [run for part in parts[: MAX_RUNS + 1] if (run := _strided(part)) is not None]
    once = len(runs) == 1 or all(repeat == 1 for *_, repeat in runs)
    return runs if once and len(runs) == len(parts) <= MAX_RUNS else None


def _cut_out(graph: Graph, source: NetworkTensor, down: list[Run], across: list[Run]) -> NetworkTensor:
    """Rows and columns of a tensor: a slice, or the slices of several runs joined."""
    if len(down) > 1 or len(across) > 1:
        axis = 1 if len(down) > 1 else 2
        ends = [([run], across) for run in down] if axis == 1 else [(down, [run]) for run in across]
        pieces = [_cut_out(graph, source, *runs) for runs in ends]
        return graph.tie(graph.network.concat(_label(graph, "join"), *pieces, axis=axis), source)
    rows, columns = down[0][:3], across[0][:3]
    if (rows, columns) == ((0, 1, source.shape[1]), (0, 1, source.shape[2])):
        return source
    return graph.tie(graph.network.slice(_label(graph, "slice"), source, rows=rows, columns=columns), source)


def _strided(places: np.ndarray) -> Run | None:
    """Rows or columns as a run: every one ``repeat`` times, the first and last one at most so often, equally far apart,
    upwards."""
    once, counts = np.unique(places, return_counts=True)
    repeat = int(np.max(counts))
    stride = int(once[1] - once[0]) if len(once) > 1 else 1
    if stride < 1 or (counts[1:-1] != repeat).any() or (np.diff(once) != stride).any() or (np.diff(places) < 0).any():
        return None
    return int(once[0]), stride, len(once), repeat


def _select(graph: Graph, source: NetworkTensor, channels: np.ndarray) -> NetworkTensor:
    """Channels by number (-1 = zeros), each any number of times: a 1x1 convolution, or a slice."""
    count = source.shape[0]
    if np.array_equal(channels, np.arange(count)):
        return source
    first = int(channels[0])
    if first >= 0 and np.array_equal(channels, first + np.arange(len(channels))):
        cut = graph.network.slice(_label(graph, "channels"), source, channels=(first, len(channels)))
        return graph.tie(cut, source)
    weights = np.zeros((len(channels), count, 1, 1))
    used = np.flatnonzero(channels >= 0)
    weights[used, channels[used]] = 1.0
    return graph.tie(graph.network.convolution(_label(graph, "channels"), source, weights), source)


def _repeat(graph: Graph, source: NetworkTensor, rows: int, columns: int) -> NetworkTensor:
    """Every row and column several times: by copies, and by pooling in a direction in which there is only one."""
    tensor = source
    along = (1 if source.shape[1] == 1 else rows, 1 if source.shape[2] == 1 else columns)
    if along != (1, 1):
        tensor = graph.tie(graph.network.upsample(_label(graph, "repeat"), tensor, along), source)
    return spread(graph, tensor, rows * source.shape[1], columns * source.shape[2])


def spread(graph: Graph, source: NetworkTensor, height: int, width: int) -> NetworkTensor:
    """One row or column (or pixel) repeated: every window of a padded max pool holds the one element, and padding never
    wins."""
    tensor = source
    while tensor.shape[1:] != (height, width):
        rows, columns = (
            min(BROADCAST, to - now + 1) for to, now in zip((height, width), tensor.shape[1:], strict=True)
        )
        padding = (rows - 1, rows - 1, columns - 1, columns - 1)
        tensor = graph.network.max_pool(_label(graph, "spread"), tensor, (rows, columns), 1, padding)
        graph.tie(tensor, source)
    return tensor


def _dense(graph: Graph, source: NetworkTensor, positions: np.ndarray) -> NetworkTensor | None:
    """Any order of few elements: a convolution as large as the cube, and a deconvolution that lays them out."""
    channels, height, width = positions.shape
    size, pixels = math.prod(source.shape), height * width
    if max(size, positions.size) * positions.size > MAX_DENSE or pixels > MAX_PIXELS:
        return None
    if max(source.shape[1:]) > MAX_KERNEL or max(height, width) > MAX_KERNEL:
        return None
    order = positions.transpose(1, 2, 0).ravel()  # pixel by pixel
    flat = source
    if source.shape[1:] != (1, 1) or pixels == 1 or not np.array_equal(order, np.arange(size)):
        weights = np.zeros((positions.size, size))
        used = np.flatnonzero(order >= 0)
        weights[used, order[used]] = 1.0
        flat = graph.network.fully_connected(_label(graph, "flat"), source, weights)
        graph.tie(flat, source)
    if pixels == 1:
        return flat
    ones = np.zeros((pixels, channels, channels, pixels))
    ones[np.arange(pixels)[:, None], np.arange(channels), np.arange(channels), np.arange(pixels)[:, None]] = 1.0
    ones = ones.reshape(positions.size, channels, height, width)
    laid = graph.network.deconvolution(_label(graph, "order"), flat, ones, stride=(height, width))
    return graph.tie(laid, source)


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
    attributes: Document
    model: Model
    proto: ModelProto

    def constant(self, index: int) -> np.ndarray | None:
        """The array of a constant input, None where it is computed or left out."""
        return self.model.constants.get(self.inputs[index]) if index < len(self.inputs) else None

    def has(self, index: int) -> bool:
        """Return whether an input is there."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def shape(self, index: int) -> Shape:
        """The shape of an input."""
        return self.shape_of(self.inputs[index])

    def shape_of(self, name: str) -> Shape:
        """The shape of a tensor. Raises Cut where it is not static."""
        if name not in self.model.shapes:
            raise Cut(f"tensor {name} has no static shape", "fix the model's shapes (--shape; Python: shapes=)")
        return self.model.shapes[name]

    @property
    def out_shape(self) -> Shape:
        """The shape of the first output."""
        return self.shape_of(self.outputs[0])

    def get(self, name: str, default: object = None) -> Any:
        """An attribute, or ``default``."""
        return self.attributes.get(name, default)

    def setting(self, name: str, index: int, default: object = None) -> Any:
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
        """A constant input that may be large: float32 unchanged, all else as float64; Cut where it is computed."""
        array = self.constant(index)
        if array is None:
            raise Cut(f"{what} ({self.inputs[index]}) is computed at run time, not a constant", "bind it as a constant")
        numbers = np.asarray(array, np.float32 if array.dtype == np.float32 else np.float64)
        if not np.all(np.isfinite(numbers)):
            raise Cut(f"{what} ({self.inputs[index]}) holds NaN or infinity")
        return numbers

    def computed(self) -> list[int]:
        """Positions of inputs that are not constants."""
        return [i for i, name in enumerate(self.inputs) if name and name not in self.model.constants]


@dataclass(eq=False)
class GraphValue:
    """An ONNX value during import. ``tensor`` None: an input of the part that no layer has asked for yet.

    ``index``: None (the cube holds the elements in the value's order) or an array of the value's shape.
    ``base``, ``function``: this value is a function of one number of another value; ``calls``: the functions that it is
    composed of.
    """

    name: str
    shape: Shape
    tensor: NetworkTensor | None = None
    index: np.ndarray | None = None
    boundary: str = ""
    base: GraphValue | None = None
    function: Function | None = None
    calls: int = 0

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
    """Mapping between a bound tensor of a part and an ONNX value.

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
        self.placements: list[tuple[GraphValue, np.ndarray | None]] = []  # and the index that a value had before
        self.bindings: list[Binding] = []
        self.tensors: dict[str, str] = {}
        self.orders: dict[str, np.ndarray | None] = {}
        self.ties: dict[str, str] = {}
        self.magnitudes: dict[str, float] = {}
        self.node: Node | None = None
        self.arranged: dict[tuple[str, Shape, bytes], NetworkTensor] = {}
        self.bound: dict[tuple[str, Cube, bytes | None], NetworkTensor] = {}

    # ---- values

    def enter(self, name: str) -> GraphValue:
        """A value that comes from outside this part."""
        if name not in self.values:
            shape = self.model.shapes.get(name)
            if shape is None:
                raise Cut(f"tensor {name} has no static shape", "fix the model's shapes (--shape; Python: shapes=)")
            if math.prod(shape) == 0:
                raise Cut(f"tensor {name} of shape {shape_text(shape)} has no elements")
            self.values[name] = GraphValue(name, shape, boundary=name)
        return self.values[name]

    def source(self, node: Node, index: int = 0) -> GraphValue:
        """The value of a computed input."""
        if not node.has(index):
            raise Cut(f"input {index} is missing")
        if node.inputs[index] in self.model.constants:
            raise Cut(f"input {node.inputs[index]} must be a computed tensor, got a constant")
        return self.enter(node.inputs[index])

    def alias(
        self, node: Node, value: GraphValue, index: np.ndarray | None, output: int = 0, shape: Shape | None = None
    ) -> GraphValue:
        """A result that holds the elements of another value in another order: nothing is computed."""
        shape = node.shape_of(node.outputs[output]) if shape is None else shape
        held = value.size if index is None else index.size
        if held != math.prod(shape):  # onnx's inference believes the shape that a Reshape asks for
            raise Cut(f"its result must have {held} elements, got shape {shape_text(shape)}")
        if index is not None:
            index = np.array(index, order="C").reshape(shape)
        return GraphValue(node.outputs[output], shape, value.tensor, index, value.boundary)

    def result(self, node: Node, tensor: NetworkTensor, index: np.ndarray | None = None, output: int = 0) -> GraphValue:
        """A result that a layer computes."""
        shape = node.shape_of(node.outputs[output])
        if index is None and math.prod(tensor.shape) != math.prod(shape):
            raise Cut(f"its result must have shape {shape_text(shape)} (model), got {tensor}")
        self.tensors[tensor.name] = node.outputs[output]
        return GraphValue(node.outputs[output], shape, tensor, index)

    # ---- layers

    def label(self, node: Node, suffix: str = "") -> str:
        """A free layer name: that of the value for the layer that computes it, with a suffix for helpers."""
        name = self.name(node.outputs[0])
        return self.network.free(f"{name}/{suffix}" if suffix else name)

    def name(self, value: str) -> str:
        """Preferred name of the tensor of a value, the same in every part."""
        return self.model.layer_names.get(value, value)

    def tie(self, tensor: NetworkTensor, source: NetworkTensor) -> NetworkTensor:
        """``tensor`` holds elements of ``source`` only, so both have one range."""
        self.ties[tensor.name] = source.name
        return tensor

    def rename(self, outputs: Mapping[NetworkTensor, str]) -> dict[str, str]:
        """Give computed tensors the names of the model's outputs that they hold, unless a layer has this name.

        Returns:
            New names, by the old ones.
        """
        layers = {
            tensor.producer: name
            for tensor, name in outputs.items()
            if tensor.producer.kind != "input" and not self.network.has(name)
        }
        renamed = {layer.name: name for layer, name in layers.items()}
        self.network.rename(layers)
        tables: tuple[dict[str, Any], ...] = (self.tensors, self.orders, self.magnitudes)
        for table in tables:
            table.update({renamed[old]: table.pop(old) for old in renamed.keys() & table.keys()})
        self.ties = {renamed.get(name, name): renamed.get(source, source) for name, source in self.ties.items()}
        return renamed

    def bind(self, value: GraphValue, positions: np.ndarray | None, cube: Cube) -> NetworkTensor:
        """An input of the part as a cube whose elements are ``positions`` of the value from outside."""
        name = self.network.free(self.name(value.boundary))
        tensor = self.network.input(name, cube)
        self.tensors[name] = value.boundary
        index = None if positions is None else positions.reshape(cube)
        self.bindings.append(Binding(name, value.boundary, index, cube))
        self.bound.setdefault(_order(value, positions, cube), tensor)
        return tensor

    def flat(self, value: GraphValue) -> NetworkTensor:
        """The value as any cube, for layers that look at each element alone; an input is bound now.

        An input with channels last is bound with its channels first, which is how convolutions take it.
        """
        if value.tensor is None and self._is_channels_last(value):
            index = value.index
            assert index is not None
            self.place(value, self._bind_once(value, index.ravel(), canonical(value.shape)), None)
        return self._in_place(value)

    def _is_channels_last(self, value: GraphValue) -> bool:
        """Check whether a value is an input (N, H, W, C) as (N, C, H, W), and that input has no tensor yet."""
        root = self.values[value.boundary]
        if root.tensor is not None or value.index is None or len(root.shape) != 4 or value.size != root.size:
            return False
        return np.array_equal(value.index, np.arange(root.size).reshape(root.shape).transpose(0, 3, 1, 2))

    def _in_place(self, value: GraphValue) -> NetworkTensor:
        """The value as a cube in which its elements are where its index says."""
        if value.tensor is None:
            root = self.values[value.boundary]
            if root.tensor is None:
                self.place(root, self.bind(root, None, canonical(root.shape)), root.index)
            self.place(value, root.placed, value.index)
        return value.placed

    def place(self, value: GraphValue, tensor: NetworkTensor, index: np.ndarray | None) -> None:
        """Give a value that had none its tensor, and where in it its elements are."""
        self.placements.append((value, value.index))
        value.tensor, value.index = tensor, index

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
        source = self._in_place(value)
        if positions is None:
            if source.shape == cube:
                return source
            positions = np.arange(math.prod(cube))
        tensor = arrange(self, source, positions.reshape(cube))
        root = self.values.get(value.boundary)
        if tensor is None and root and root.tensor is source and root.index is None and np.min(positions) >= 0:
            return self._bind_once(value, positions, cube)  # a second time, in this order
        if tensor is None:
            target = "another order" if source.shape == cube else shape_text(cube)
            moves, advice = "a transpose", "reorder the model so that channels stay channels"
            if source.shape[0] == cube[0] and math.prod(source.shape) != math.prod(cube):
                moves, advice = "rows or columns in unequal steps", "take rows and columns in equal steps"
            elif source.shape[0] == cube[0] and np.array_equal(positions.ravel(), np.arange(math.prod(source.shape))):
                moves, advice = "rows of another length", "keep rows and columns, or reshape with the channels last"
            raise Cut(f"it needs {moves} ({shape_text(source.shape)} to {target}), which NVDLA cannot do", advice)
        return tensor

    def _bind_once(self, value: GraphValue, positions: np.ndarray | None, cube: Cube) -> NetworkTensor:
        bound = self.bound.get(_order(value, positions, cube))
        return self.bind(value, positions, cube) if bound is None else bound

    # ---- numbers

    def with_constants(self, value: GraphValue, *arrays: np.ndarray) -> tuple[GraphValue, list[np.ndarray]]:
        """Bring constants into the order of a value's cube.

        An element of the cube that the value repeats (Tile, Expand, Gather, Resize) holds one constant. Where
        the constants of its repeats differ, the value is first moved into a cube that holds each repeat.

        Args:
            value: The value that the constants meet element by element.
            arrays: Constants that broadcast to the value's shape.

        Returns:
            The value to compute with, and each constant as float64 (C, H, W) in the order of that value's cube.

        Raises:
            Cut: No engine can move the elements.
        """
        spread = [np.broadcast_to(np.asarray(array, np.float64), value.shape) for array in arrays]
        if value.index is not None and not all(_one_each(value.index, array) for array in spread):
            cube = self.arrange(value, None, canonical(value.shape))
            value = GraphValue(value.name, value.shape, cube, boundary=value.boundary)
        tensor = self.flat(value)
        cubes = []
        for array in spread:
            flat = array.ravel()
            if value.index is not None:
                flat = np.zeros(math.prod(tensor.shape))
                flat[value.index.ravel()] = array.ravel()
            cubes.append(flat.reshape(tensor.shape))
        return value, cubes


def _one_each(index: np.ndarray, values: np.ndarray) -> bool:
    """Return whether positions that occur more than once have the same number each time."""
    held = np.zeros(int(index.max(initial=0)) + 1)
    held[index.ravel()] = values.ravel()
    return np.array_equal(held[index], values, equal_nan=True)


def _order(value: GraphValue, positions: np.ndarray | None, cube: Cube) -> tuple[str, Cube, bytes | None]:
    """The key of an input that is bound in this order."""
    return value.boundary, cube, None if positions is None else positions.astype(np.int64).tobytes()


def _through(order: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Positions ``wanted`` of a value whose elements are at ``order``; -1 stays -1."""
    positions = order[np.maximum(wanted, 0)]
    return np.where(wanted < 0, -1, positions)


def pixels_of(positions: np.ndarray, cube: Cube) -> np.ndarray | None:
    """The pixel (B, M) of each row of a matrix, where the cube holds each row as the channels of one pixel.

    ``positions`` (B, K, M): where the cube holds element k of row m of matrix b, whose channels are b * K to b * K + K.
    None where a row is anything else, or the rows are not all pixels, each once.
    """
    batch, inner, rows = positions.shape
    if cube != (batch * inner, *cube[1:]) or rows != math.prod(cube[1:]):
        return None
    pixels = positions[:, 0] - np.arange(batch)[:, None] * inner * rows
    held = pixels[:, None] + np.arange(batch * inner).reshape(batch, inner, 1) * rows
    once = np.broadcast_to(np.arange(rows), pixels.shape)
    return pixels if np.array_equal(held, positions) and np.array_equal(np.sort(pixels), once) else None


def factor_of(values: np.ndarray) -> float | np.ndarray | None:
    """A cube of constants as one number, one a channel (C,), or None where it varies within a channel."""
    first = values[:, 0, 0]
    if not np.all(values == first[:, None, None]):
        return None
    return float(first[0]) if np.all(first == first[0]) else first
