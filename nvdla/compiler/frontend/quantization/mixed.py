"""Scales and zero points, and scales that one layer alone cannot choose.

Mixed precision: which layers of an int8 network need int16, by what they do to the results on calibration data.
Activations with a scale per channel, as NNCF writes them before depthwise convolutions, get one scale.
Limits that only the scales of tensors state, and where these scales are lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from nvdla.compiler.frontend.isolation import reads
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from nvdla.compiler.builder.accuracy import LayerAccuracy

Outputs = Mapping[str, np.ndarray]
# Samples on which a choice is judged (a loss of 0.5 % is one in 200), and layers that are tried in int8 again one by
# one.
JUDGED_SAMPLES = 256
TRIED_BACK = 16
#: ratio of the scales of the channels of an activation, up to which they get one scale
MOST_APART = 1 << 16
#: largest elements without sign, by type: the symmetric range of NVDLA's elements of that width
SYMMETRIC = {"int8": 127, "uint8": 127, "int16": 32767, "uint16": 32767}

ALSO_REAL = "commands also take real numbers (float arrays)"
GIVES_ELEMENTS = "a loadable gives elements (--real: real numbers), a package real numbers"
"""Notes on integer inputs and outputs, for a loadable with the integers of the model."""


@dataclass(frozen=True)
class Affine:
    """Numbers ``scale * (element - point)`` of elements of type ``kind`` (numpy), of a QuantizeLinear of ``domain``."""

    scale: float
    point: int
    kind: str
    domain: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest number."""
        info = np.iinfo(self.kind)
        return self.scale * (info.min - self.point), self.scale * (info.max - self.point)

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return int(np.iinfo(self.kind).bits)

    @property
    def symmetric(self) -> bool:
        """Return whether the zero point is the middle element."""
        info = np.iinfo(self.kind)
        return self.point == (0 if info.min < 0 else (info.max + 1) // 2)

    @property
    def magnitude(self) -> float:
        """The largest magnitude; of symmetric elements that of the highest."""
        if self.symmetric:
            return self.scale * SYMMETRIC[self.kind]
        return max(abs(end) for end in self.ends)

    def same(self, other: Affine) -> bool:
        """Return whether both stand for the same numbers."""
        mine, others = ((affine.scale, *affine.ends) for affine in (self, other))
        return self.bits == other.bits and bool(np.allclose(mine, others, rtol=1e-6))

    def holds(self, other: Affine) -> bool:
        """Return whether no number of the other one is beyond these by more than half a step."""
        (low, high), (lowest, highest) = self.ends, other.ends
        room = max(self.scale, other.scale) / 2
        if self.symmetric and other.symmetric:  # the lowest element of int8 has no counterpart
            return other.magnitude <= self.magnitude + room
        return low - room <= lowest and highest <= high + room

    def nodes(self, value: str, result: str, onnx: ModuleType) -> tuple[list[NodeProto], dict[str, np.ndarray]]:
        """QuantizeLinear and DequantizeLinear from a value to its rounded numbers, and their constants by name."""
        scale, point, elements = (f"{result}/{part}" for part in ("scale", "zero_point", "elements"))
        make = onnx.helper.make_node
        nodes = [
            make("QuantizeLinear", [value, scale, point], [elements], f"{elements}_node", domain=self.domain),
            make("DequantizeLinear", [elements, scale, point], [result], f"{result}/real", domain=self.domain),
        ]
        return nodes, {scale: np.float32(self.scale), point: np.asarray(self.point, self.kind)}


def drop(exact: Sequence[Outputs], results: Sequence[Outputs]) -> float:
    """Loss by quantization, 0 (none) to 1, the worst over the outputs.

    A vector of scores loses the share of samples whose best score is another one's; any other output its noise, as a
    share of the signal's energy.
    """
    worst = 0.0
    for name in exact[0]:
        reals, others = (
            np.stack([np.asarray(outputs[name], np.float64) for outputs in all_]) for all_ in (exact, results)
        )
        sizes = [size for size in reals.shape[1:] if size > 1]
        if len(sizes) == 1:
            flat, other = (array.reshape(len(exact), -1) for array in (reals, others))
            lost = float(np.mean(flat.argmax(axis=1) != other.argmax(axis=1)))
        else:
            signal = float(np.sum(reals**2))
            lost = min(float(np.sum((reals - others) ** 2)) / signal, 1.0) if signal else 0.0
        worst = max(worst, lost)
    return worst


def choose(
    rows: Iterable[LayerAccuracy],
    loss: Callable[[frozenset[str]], float],
    most: float,
    inputs: Set[str] = frozenset(),
) -> frozenset[str]:
    """The tensors to compute in int16 so that ``loss`` of them is at most ``most``.

    ``loss(tensors)`` builds the network with these in int16 and measures it. Layers are ranked by the noise that each
    makes alone; the shortest sufficient head of that ranking is found by bisection, and then each of its layers, the
    least noisy first, goes back to int8 where that does no harm. The ``inputs`` of the network become int16 where
    layers alone are not enough. Raises BuildError where int16 throughout is not enough.
    """
    if loss(frozenset()) <= most:
        return frozenset()
    ranked = [row.tensor for row in sorted(rows, key=lambda row: row.alone) if np.isfinite(row.alone)]
    always: list[str] = []
    least = loss(frozenset(ranked))
    if least > most and inputs:
        always = sorted(inputs)
        least = loss(frozenset([*always, *ranked]))
    if least > most:
        every = "every layer and input" if inputs else "every layer"
        raise BuildError(
            f"with {every} in int16 that can be (a softmax cannot), the results still lose {100 * least:.3g} %, more "
            f"than {100 * most:.3g} %; build all in int16 (other nodes run on the host) or in fp16, or allow more "
            "(--max-drop; Python: max_drop=)"
        )
    low, high = 0 if not always else -1, len(ranked)
    while high - low > 1:
        middle = (low + high) // 2
        fits = loss(frozenset([*always, *ranked[:middle]])) <= most
        low, high = (low, middle) if fits else (middle, high)
    chosen = [*always, *ranked[:high]]
    for name in list(reversed(chosen))[:TRIED_BACK]:
        without = [tensor for tensor in chosen if tensor != name]
        if loss(frozenset(without)) <= most:
            chosen = without
    return frozenset(chosen)


def fold_weights(
    graph: GraphProto, constants: Mapping[str, np.ndarray], add: Callable[[str, np.ndarray], None]
) -> None:
    """Compute what quantization-aware training does with weights before their QuantizeLinear.

    It takes in the factors of a batch normalization and limits the range; PyTorch's exporter computes it for small
    weights only.

    Args:
        graph: The graph; the nodes are removed.
        constants: Its constants by name.
        add: Adds a constant to both.
    """
    leads = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    for node in reversed(graph.node):
        if node.op_type in _OF_WEIGHTS and node.output[0] in leads:
            leads |= set(node.input)
    folded = []
    for node in graph.node:
        function, arity = _OF_WEIGHTS.get(node.op_type, (None, 0))
        arrays = [constants[name] for name in node.input if name in constants]
        if function is None or node.output[0] not in leads or not arity == len(arrays) == len(node.input):
            continue
        shapes = [array.shape for array in arrays]
        if all(array.dtype.kind == "f" for array in arrays) and np.broadcast_shapes(*shapes) in shapes:
            add(node.output[0], function(*arrays))
            folded.append(node)
    for node in folded:
        graph.node.remove(node)


_OF_WEIGHTS: Mapping[str, tuple[Callable[..., np.ndarray], int]] = {
    "Clip": (np.clip, 3),
    "Max": (np.maximum, 2),
    "Min": (np.minimum, 2),
    "Mul": (np.multiply, 2),
}


class ChannelScales:
    """Activations with a scale per channel, between a convolution (with or without ReLU) and depthwise convolutions."""

    def __init__(self, onnx: ModuleType, graph: GraphProto, constants: dict[str, np.ndarray]) -> None:
        self.onnx, self.graph, self.constants = onnx, graph, constants
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in reads(node):
                self.readers.setdefault(name, []).append(node)
        self.ends = {value.name for value in graph.output}

    def share(self) -> None:
        """Give the activations one scale. The weights take the factors of the channels: the results stay equal."""
        for node in self.graph.node:
            if node.op_type == "QuantizeLinear" and len(node.input) == 3:
                scale, zero = (self.constants.get(name) for name in node.input[1:])
                if scale is not None and zero is not None and scale.ndim == zero.ndim == 1 and scale.size > 1:
                    self._share(node, scale.astype(np.float64), zero)

    def _share(self, node: NodeProto, scale: np.ndarray, zero: np.ndarray) -> None:
        pairs = self._readers(node.output[0])
        consumers = [reader for pair in pairs for reader in self._readers(pair.output[0])]
        producer = self._producer(node, len(scale))
        along = {_axis(pair) for pair in (node, *pairs)}
        if producer is None or not consumers or along != {1} or np.ptp(zero) or len(zero) != len(scale):
            return
        if not scale.max() < MOST_APART * scale.min():
            return
        if any(pair.op_type != "DequantizeLinear" or pair.input[1:] != node.input[1:] for pair in pairs):
            return
        if not all(self._is_depthwise(reader, len(scale)) for reader in consumers):
            return
        largest = scale.max()
        self._multiply(producer, largest / scale, has_bias=True)
        for reader in consumers:
            self._multiply(reader, scale / largest, has_bias=False)
        for pair in (node, *pairs):
            pair.input[1] = self._constant(np.float32(largest), node.input[1])
            pair.input[2] = self._constant(zero[0], node.input[2])
        for name in dict.fromkeys((producer.output[0], node.input[0], *(pair.output[0] for pair in (node, *pairs)))):
            self._rename(name)

    def _rename(self, name: str) -> None:
        """Rename a value that is no longer that of the file, so that it is not compared with it."""
        fresh, maker = self._fresh(name), self.makers.pop(name)
        self.makers[fresh], self.readers[fresh] = maker, self.readers.pop(name, [])
        maker.output[0] = fresh
        for reader in self.readers[fresh]:
            reader.input[list(reader.input).index(name)] = fresh

    def _readers(self, name: str) -> list[NodeProto]:
        """The consumers of a value; none where the model returns it."""
        return [] if name in self.ends else self.readers.get(name, [])

    def _producer(self, node: NodeProto, channels: int) -> NodeProto | None:
        """The convolution whose channels can be multiplied, None where another node reads them."""
        for _ in range(2):
            maker = self.makers.get(node.input[0])
            if maker is None or len(self._readers(node.input[0])) != 1:
                return None
            if maker.op_type != "Relu":
                break
            node = maker
        weights = None if maker is None else self._weights(maker)
        if maker is None or weights is None or len(self.constants[weights.input[0]]) != channels:
            return None
        return maker if all(name in self.constants for name in maker.input[2:]) else None

    def _is_depthwise(self, node: NodeProto, channels: int) -> bool:
        groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
        weights = self._weights(node)
        return weights is not None and groups == channels and self.constants[weights.input[0]].shape[1] == 1

    def _weights(self, node: NodeProto) -> NodeProto | None:
        """The DequantizeLinear of the constant weights of a convolution, which no other node reads."""
        maker = self.makers.get(node.input[1]) if node.op_type == "Conv" else None
        if maker is None or maker.op_type != "DequantizeLinear" or len(maker.input) != 3:
            return None
        known = all(name in self.constants for name in maker.input) and self.constants[maker.input[0]].ndim == 4
        first = _axis(maker) == 0 or (known and self.constants[maker.input[1]].ndim == 0)
        return maker if known and first and len(self._readers(node.input[1])) == 1 else None

    def _multiply(self, node: NodeProto, factors: np.ndarray, has_bias: bool) -> None:
        """Multiply the channels of a convolution's result."""
        weights = self._weights(node)
        assert weights is not None, "checked before"
        elements, scale, zero = (self.constants[name] for name in weights.input)
        factors = np.repeat(factors, len(elements) // len(factors))
        weights.input[1] = self._constant((scale * factors).astype(np.float32), weights.input[1])
        weights.input[2] = self._constant(np.broadcast_to(zero, factors.shape), weights.input[2])
        kept = [attribute for attribute in weights.attribute if attribute.name != "axis"]
        del weights.attribute[:]
        weights.attribute.extend([*kept, self.onnx.helper.make_attribute("axis", 0)])
        if has_bias and len(node.input) > 2 and node.input[2]:
            bias = self.constants[node.input[2]]
            node.input[2] = self._constant((bias * factors).astype(bias.dtype), node.input[2])

    def _constant(self, array: np.ndarray, name: str) -> str:
        name = self._fresh(name)
        self.constants[name] = np.ascontiguousarray(array).reshape(np.shape(array))
        self.graph.initializer.append(self.onnx.numpy_helper.from_array(self.constants[name], name))
        return name

    def _fresh(self, name: str) -> str:
        while name in self.constants or name in self.makers:
            name += "/shared"
        return name


def _axis(node: NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)


# ---- limits that only the scales of tensors state
#
# Tools for quantization take a Clip or ReLU6 out where the range of its result is the same. NVDLA saturates at that
# range, too, as long as the tensor has its scale. The parts of a Concat get the scale of the widest, a range becomes
# symmetric where the zero point is not supported: there the limit must become an operation again.

#: operators whose results have the elements of their inputs
KEEPERS = (
    *("Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Resize"),
    *("Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample"),
)
#: share of the widest range of a Concat below which a part ends before the Concat does
NEAR = 0.9
#: how much farther than the nearer end of a range the other one is, where a symmetric range would be much wider
FAR = 4
Joined = tuple[float, float, float]
_NOT_JOINED: Joined = (-math.inf, math.inf, 0.0)


def joined_ranges(
    nodes: Sequence[NodeProto],
    readers: Mapping[str, Sequence[NodeProto]],
    affine_of: Callable[[NodeProto], Affine | None],
) -> dict[str, Joined]:
    """Return where values become parts of a Concat with another scale.

    Args:
        nodes: those of a model, in their order.
        readers: the nodes that read a value.
        affine_of: scale and zero point of a QuantizeLinear, None where they are not those of a whole tensor.

    Returns:
        Value -> the highest lower end, the lowest upper end and the largest magnitude of those Concats.
    """
    units: dict[str, Affine] = {}
    for node in nodes:
        moved = node.op_type == "DequantizeLinear" or node.op_type in KEEPERS
        way = (
            affine_of(node)
            if node.op_type == "QuantizeLinear"
            else units.get(next(iter(node.input), ""))
            if moved
            else None
        )
        if way is not None:
            units.update(dict.fromkeys(node.output, way))
    joined: dict[str, Joined] = {}
    for node in reversed(nodes):
        for name in node.output:
            if name in units:
                ways = [_beyond(reader, units[name], readers, affine_of, joined) for reader in readers.get(name, ())]
                lows, highs, widest = zip(_NOT_JOINED, *ways, strict=True)
                joined[name] = max(lows), min(highs), max(widest)
    return joined


def _beyond(
    reader: NodeProto,
    held: Affine,
    readers: Mapping[str, Sequence[NodeProto]],
    affine_of: Callable[[NodeProto], Affine | None],
    joined: Mapping[str, Joined],
) -> Joined:
    """Return what a value with the scale ``held`` becomes a part of through one of its readers."""
    if reader.op_type == "Concat":
        following = [node for name in reader.output[:1] for node in readers.get(name, ())]
        ways = [way for node in following if node.op_type == "QuantizeLinear" and (way := affine_of(node)) is not None]
        if not ways:
            return -math.inf, math.inf, math.inf
        if not all(way.same(held) for way in ways):
            return *ways[0].ends, max(map(abs, ways[0].ends))
    elif reader.op_type == "QuantizeLinear":
        way = affine_of(reader)
        if way is None or not way.same(held):
            return _NOT_JOINED
    elif reader.op_type != "DequantizeLinear" and reader.op_type not in KEEPERS:
        return _NOT_JOINED
    lows, highs, widest = zip(_NOT_JOINED, *(joined.get(name, _NOT_JOINED) for name in reader.output), strict=True)
    return max(lows), min(highs), max(widest)


def lost_ends(held: Affine, joined: Joined | None) -> tuple[float, float] | None:
    """Return the numbers at which a model cuts a tensor off, None where the scale that the tensor gets does so, too.

    Args:
        held: its scale and zero point.
        joined: what :func:`joined_ranges` has for it.
    """
    low, high = held.ends
    lowest, highest, widest = joined or _NOT_JOINED
    is_two_sided, farther, nearer = low < 0, max(-low, high), min(-low, high)
    low, high, least = max(low, lowest), min(high, highest), NEAR * widest
    is_cut = high < least or (is_two_sided and (-low < least or FAR * nearer < farther))
    return (low, high) if is_cut and low < high else None
