"""Scales of activations and of outputs.

The model runs with those values as outputs that an operation of the hardware ends with; steps within one node of the
model, and copies in another order, are computed from them by the builder's own float forms.

All elements of a Concat share one scale. At the end of a model a Concat of very different ranges runs on the host, so
that each input keeps its own scale; elsewhere a note reports it. So are channels of one output that stay below two
units of its scale.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.compiler.builder.accuracy import LayerAccuracy
from nvdla.compiler.builder.floating import evaluate
from nvdla.compiler.builder.groups import group_layers
from nvdla.compiler.builder.layer_types import bounds_of
from nvdla.compiler.builder.quantization import LARGEST, Calibration
from nvdla.compiler.frontend.importer import ACCELERATOR, HOST, Imported, Part
from nvdla.compiler.frontend.isolation import reads, run_session
from nvdla.compiler.frontend.model import Model
from nvdla.compiler.frontend.opening import feeds_of, open_session
from nvdla.compiler.frontend.operators.reduction import INVERSE, SQUARES, VARIANCE
from nvdla.errors import FormatError, shape_text
from nvdla.tensors.real import Units
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from onnx import NodeProto


#: Values that calibration works on at a time: enough for arrays to be fast, few enough for the caches.
STACKED_BYTES = 4 << 20
#: Memory of the values of several parts, for all samples.
SHARED_BYTES = 128 << 20


class FloatModel:
    """The float model in onnxruntime with chosen inner values as outputs."""

    def __init__(self, imported: Imported, values: Iterable[str], threads: int | None = None) -> None:
        import onnx

        self.name = imported.model.name
        proto = onnx.ModelProto()
        proto.CopyFrom(imported.model.proto)
        graph = proto.graph
        inputs = set(imported.model.inputs)
        self.values = [name for name in dict.fromkeys(values) if name not in inputs]
        known = {value.name: value for value in [*graph.value_info, *graph.output]}
        wanted = [known.get(name) or onnx.ValueInfoProto(name=name) for name in self.values]
        copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in wanted]
        del graph.output[:]
        graph.output.extend(copies)
        # Old models list initializers as inputs too, which keeps onnxruntime from folding them.
        ends = [value for value in graph.input if value.name in inputs]
        del graph.input[:]
        graph.input.extend(ends)
        worker = imported.model.worker
        self.session = open_session(proto, self.name, worker, threads=threads) if self.values else None

    def run(self, feed: Mapping[str, np.ndarray], values: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """The inputs and the chosen values, or some of them."""
        results = dict(feed)
        wanted = self.values if values is None else [name for name in dict.fromkeys(values) if name not in results]
        if self.session is not None and wanted:
            results.update(
                zip(wanted, run_session(self.session, self.name, wanted, feeds_of(self.session, feed)), strict=True)
            )
        return results


class SharedModel(FloatModel):
    """The float model for many parts, one after the other.

    onnxruntime computes all values for any of them. So those of the next parts are kept, as far as SHARED_BYTES hold
    them for all samples.
    """

    def __init__(self, imported: Imported, parts: Iterable[list[str]], samples: int) -> None:
        """``parts``: the values that are needed together; ``samples``: number of feeds."""
        parts = list(parts)
        super().__init__(imported, [name for names in parts for name in names])
        self._groups: dict[frozenset[str], list[str]] = {}
        group: list[str] = []
        left = 0
        for names in parts:
            size = 4 * samples * sum(math.prod(imported.model.shapes.get(name, ())) for name in names)
            if size <= SHARED_BYTES:
                if size > left:
                    group, left = [], SHARED_BYTES
                group.extend(names)
                left -= size
                self._groups[frozenset(names)] = group
        self._group: list[str] | None = None
        self._kept: dict[bytes, dict[str, np.ndarray]] = {}

    def run(self, feed: Mapping[str, np.ndarray], values: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """The inputs and at least the chosen values."""
        group = self._groups.get(frozenset(values or ()))
        if group is None:
            return super().run(feed, values)
        if group is not self._group:
            self._group, self._kept = group, {}
        digest = hashlib.sha256()
        for name in sorted(feed):
            digest.update(name.encode() + np.ascontiguousarray(feed[name]).tobytes())
        key = digest.digest()
        if key not in self._kept:
            self._kept[key] = super().run(feed, group)
        return self._kept[key]


class QuantizedModel:
    """A quantized model as stored in its file, in onnxruntime; gives the real numbers of values of the float model.

    Values that the file has no tensor of are left out.
    """

    def __init__(self, imported: Imported, values: Iterable[str]) -> None:
        import onnx

        model = imported.model
        self.name, self._stored = model.name, model.stored
        proto = onnx.ModelProto()
        proto.CopyFrom(model.quantized)
        computed = {name for node in proto.graph.node for name in node.output}
        names = {value: self._stored.get(value, (value, None))[0] for value in values}
        self._names = {value: name for value, name in names.items() if name in computed}
        del proto.graph.output[:]
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(self._names.values()))
        self._types = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
        self._as_array = onnx.helper.tensor_dtype_to_np_dtype
        self.session = open_session(proto, self.name, model.worker, optimize=False)

    def run(self, feed: Mapping[str, np.ndarray], values: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Return the inputs and all available values; ``values`` is ignored."""
        names = list(dict.fromkeys(self._names.values()))
        given = {name: self._given(name, array) for name, array in feed.items() if name in self._types}
        results = dict(zip(names, run_session(self.session, self.name, names, given), strict=True))
        return dict(feed) | {value: self._real(value, results[name]) for value, name in self._names.items()}

    def _given(self, name: str, array: np.ndarray) -> np.ndarray:
        dtype, known = self._as_array(self._types[name]), self._stored.get(name)
        if dtype.kind not in "iu" or known is None or array.dtype.kind != "f":
            return array.astype(dtype)
        scale, zero = known[1]
        return np.clip(np.rint(array / scale) + zero, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)

    def _real(self, value: str, array: np.ndarray) -> np.ndarray:
        known = self._stored.get(value)
        if known is None or array.dtype.kind == "f":
            return array
        return Units(*known[1]).real(array).astype(np.float32)


class Activations:
    """Values (1, C, H, W) of the tensors of one accelerator part, by name: of its inputs and of the last layer of every
    group that the hardware computes at once. ``quantized``: those of a quantized model as stored in its file, as far as
    that has them."""

    def __init__(
        self, imported: Imported, part: Part, quantized: bool = False, model: FloatModel | None = None
    ) -> None:
        """``model``: one that gives the values of this part among others (None: one for this part alone)."""
        self.imported, self.part = imported, part
        self.network = part.layers
        self.ends = {group.output.name for group in group_layers(self.network)}
        self._given = {name for name in self.ends if self._is_value(name)}
        self._computed = self._plan()
        needed = {tensor.name for tensor in self.network.inputs} | self._given
        needed -= {binding.tensor for binding in part.inputs}
        self.needed = [
            *(binding.value for binding in part.inputs),
            *(imported.tensors[name] for name in sorted(needed)),
        ]
        self._quantized = quantized
        self._model: FloatModel | QuantizedModel | None = model

    @property
    def _chosen(self) -> FloatModel | QuantizedModel:
        """The model, made when its values are asked for."""
        if self._model is None:
            model_type = QuantizedModel if self._quantized else FloatModel
            self._model = model_type(self.imported, self.needed)
        return self._model

    def _is_value(self, name: str) -> bool:
        """Return whether a tensor holds each element of one ONNX value once, in an order that is known."""
        imported = self.imported
        if name not in imported.tensors or name not in imported.orders:
            return False
        size = int(np.prod(imported.model.shapes.get(imported.tensors[name], (0,))))
        order = imported.orders[name]
        if order is not None and np.count_nonzero(np.bincount(order.ravel(), minlength=size)) != size:
            return False  # some elements of the tensor are repeated, others are not in the value
        return size == int(np.prod(self.network.layer(name).output.shape))

    def _plan(self) -> list[str]:
        """Layers to compute here, in order: ends that are not values, and the layers that they need."""
        known = self._given | {tensor.name for tensor in self.network.inputs}
        needed: set[str] = set()
        for layer in reversed(self.network.layers):
            if layer.kind != "input" and layer.name not in known and (layer.name in self.ends or layer.name in needed):
                needed.add(layer.name)
                needed.update(tensor.name for tensor in layer.inputs)
        needed -= known
        return [layer.name for layer in self.network.layers if layer.name in needed]

    def values(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All values for one feed of the model."""
        return self._completed(self._read(feed))

    def _read(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The values that the model gives for one feed."""
        results = self._chosen.run(feed, self.needed)
        cubes = {}
        for binding in self.part.inputs:
            flat = self._flat(binding.value, results[binding.value])
            cubes[binding.tensor] = (flat if binding.index is None else flat[binding.index.ravel()]).reshape(
                1, *binding.shape
            )
        for name in self._given:
            if self.imported.tensors[name] in results:
                cubes[name] = self._cube(
                    name, self._flat(self.imported.tensors[name], results[self.imported.tensors[name]])
                )
        return cubes

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # runs in a separate thread
    def _completed(self, cubes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All values (N, C, H, W), from those that the model gives."""
        for name in self._computed:
            layer = self.network.layer(name)
            if any(tensor.name not in cubes for tensor in layer.inputs):
                continue
            cubes[name] = np.asarray(evaluate(layer, *(cubes[tensor.name] for tensor in layer.inputs)))
        return {name: cubes[name] for name in cubes if name in self.ends or self.network.layer(name).kind == "input"}

    def _flat(self, value: str, result: np.ndarray) -> np.ndarray:
        """The elements of a result, which must have the shape that onnx infers."""
        expected = self.imported.model.shapes[value]
        if result.size != math.prod(expected):
            raise FormatError(
                f"{self.imported.model.file}: tensor {value}: onnxruntime's result: must be "
                f"{shape_text(expected)} (onnx's shape inference), got {shape_text(result.shape)}"
            )
        return np.asarray(result, np.float32).ravel()

    def _cube(self, name: str, flat: np.ndarray) -> np.ndarray:
        shape, order = self.network.layer(name).output.shape, self.imported.orders[name]
        if order is not None:
            cube = np.empty_like(flat)
            cube[order.ravel()] = flat
            flat = cube
        return flat.reshape(1, *shape)

    def batches(self, feeds: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
        """The values (N, C, H, W) of some feeds after the others; the next ones are computed while the caller works on
        these."""
        rest = iter(feeds)
        with ThreadPoolExecutor(1) as ahead:
            waiting = ahead.submit(self._stacked, rest)
            while values := waiting.result():
                waiting = ahead.submit(self._stacked, rest)
                yield values

    def _stacked(self, feeds: Iterator[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The values of as many feeds as have STACKED_BYTES; nothing at the end."""
        samples: list[dict[str, np.ndarray]] = []
        size = 0
        while size < STACKED_BYTES and (feed := next(feeds, None)) is not None:
            samples.append(self._read(feed))
            size += sum(array.nbytes for array in samples[-1].values())
        if len(samples) < 2:
            return self._completed(samples[0]) if samples else {}
        return self._completed({name: np.concatenate([values[name] for values in samples]) for name in samples[0]})


#: The largest accepted ratio between the ranges of two inputs of a Concat: the smaller one keeps 8 units on each side.
MOST_APART: dict[str, float] = {Precision.INT8: 16.0, Precision.INT16: 4096.0}
#: The largest accepted ratio between two variances of a LayerNormalization in int8: the smallest one has 8 units.
MOST_VARIANCE = 32.0
#: The largest accepted squared deviation in fp16 (a fourth of the largest half), and the smallest accepted variance.
MOST_SQUARE, LEAST_VARIANCE = 16376.0, 2.0**-17
#: Operators whose results hold elements of their first input (Concat: of all) and nothing else.
MOVES = frozenset(
    [
        *("Cast", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    ]
)
_Range = tuple[float, str]


@dataclass(frozen=True)
class SharedScale:
    """A Concat on the accelerator whose inputs have ranges too far apart for one scale.

    Attributes:
        node: name of the Concat.
        nodes: the Concat and what moves its elements on to the model's outputs or to the host; empty where another
            operation of the accelerator reads them, or where the model specifies the scale of the result.
        reason: the ranges, and what they mean.
    """

    node: str
    nodes: tuple[str, ...]
    reason: str


def shared_scales(imported: Imported, calibrations: Iterable[Calibration]) -> list[SharedScale]:
    """Find the Concats of an integer network whose inputs have ranges too far apart for one scale.

    Args:
        imported: the network.
        calibrations: those of its parts on the accelerator.
    """
    limit = MOST_APART.get(imported.precision)
    graph = imported.model.proto.graph.node
    if limit is None or not any(node.op_type == "Concat" for node in graph):
        return []
    placements = {row.name: row.placement for row in imported.nodes}
    on_host = {name for name, placement in placements.items() if placement == HOST}
    ranges = _ranges(imported, calibrations)
    users = _users(graph)
    ends = closing(imported.model, on_host)
    shared, known = [], set()
    for node in graph:
        if node.op_type not in MOVES or node.name in on_host:
            continue
        taken = [ranges[name] for name in _moved(node) if name in ranges]
        if not taken:
            continue
        least, most = min(ends[0] for ends in taken), max(ends[1] for ends in taken)
        ranges.update(dict.fromkeys(node.output, (least, most)))
        if node.op_type != "Concat" or placements.get(node.name) != ACCELERATOR or most[0] <= limit * least[0]:
            continue
        after = _after(node, users, on_host) if node.name in ends else []
        kept = any(value in imported.model.magnitudes for follower in after for value in follower.output)
        nodes = () if kept else tuple(follower.name for follower in after)
        if nodes or (least, most) not in known:
            shared.append(SharedScale(node.name, nodes, _reason(imported.precision, least, most)))
        known.add((least, most))
    return shared


def wide_variances(imported: Imported, calibrations: Iterable[Calibration]) -> dict[str, str]:
    """Return the LayerNormalizations on the accelerator whose variances differ too much for 8 bits, or are too large or
    too small for fp16, each with why."""
    magnitudes = {name: most for calibration in calibrations for name, most in calibration.magnitudes.items()}
    placements = {row.name: row.placement for row in imported.nodes}
    reasons: dict[str, str] = {}
    for node in imported.model.proto.graph.node:
        if node.op_type == "LayerNormalization" and placements.get(node.name) == ACCELERATOR:
            name = imported.model.layer_names.get(node.output[0], node.output[0])
            layers = (f"{name}/{layer}" for layer in (SQUARES, VARIANCE, INVERSE))
            reason = _of_variances(imported.precision, *(magnitudes.get(layer, 0.0) for layer in layers))
            reasons |= {node.name: reason} if reason else {}
    return reasons


def _of_variances(precision: str, square: float, variance: float, inverse: float) -> str:
    """Return what is wrong with the largest squared deviation, variance and 1 / sqrt of a variance, or nothing."""
    ratio, least = variance * inverse**2, inverse**-2 if inverse else LEAST_VARIANCE
    if precision == Precision.INT8 and ratio > MOST_VARIANCE:
        return (
            f"variances of the calibration data: must differ by a factor of at most {MOST_VARIANCE:g} in int8, got "
            f"{ratio:.3g}"
        )
    if precision == Precision.FP16 and square > MOST_SQUARE:
        return f"squared deviations of the calibration data: must be at most {MOST_SQUARE:g} in fp16, got {square:.5g}"
    if precision == Precision.FP16 and least < LEAST_VARIANCE:
        return f"variances of the calibration data: must be at least {LEAST_VARIANCE:.2g} in fp16, got {least:.2g}"
    return ""


def closing(model: Model, on_host: Iterable[str] = ()) -> set[str]:
    """Names of the nodes whose elements only move on: to the model's outputs, or to the nodes ``on_host``."""
    users, done = _users(model.proto.graph.node), set(on_host)
    for node in reversed(model.proto.graph.node):
        if node.op_type in MOVES and all(user.name in done for value in node.output for user in users.get(value, ())):
            done.add(node.name)
    return done.difference(on_host)


def closing_values(model: Model) -> set[str]:
    """The model's outputs, and the values whose elements only move on to them."""
    ends, users = closing(model), _users(model.proto.graph.node)
    only_moved = {value for value, nodes in users.items() if all(node.name in ends for node in nodes)}
    return only_moved | set(model.outputs)


def _users(graph: Iterable[Any]) -> dict[str, list[NodeProto]]:
    """The nodes that read each value."""
    users: dict[str, list[NodeProto]] = {}
    for node in graph:
        for value in reads(node):
            users.setdefault(value, []).append(node)
    return users


def _moved(node: NodeProto) -> list[str]:
    """The inputs whose elements the result holds."""
    return [name for name in (node.input if node.op_type == "Concat" else node.input[:1]) if name]


def _after(node: NodeProto, users: Mapping[str, list[NodeProto]], on_host: set[str]) -> list[Any]:
    """The node, and all that its elements go through before they leave or reach the host."""
    followers = {node.name: node}
    waiting = [node]
    while waiting:
        for value in waiting.pop().output:
            for user in users.get(value, ()):
                if user.name not in followers and user.name not in on_host:
                    followers[user.name] = user
                    waiting.append(user)
    return list(followers.values())


def _ranges(imported: Imported, calibrations: Iterable[Calibration]) -> dict[str, tuple[_Range, _Range]]:
    """The largest magnitude of every value and constant, twice: as the least and as the most of what it holds."""
    magnitudes: dict[str, float] = {}
    for calibration in calibrations:
        for tensor, magnitude in calibration.magnitudes.items():
            value = imported.tensors.get(tensor)
            if value is not None:
                magnitudes[value] = max(magnitudes.get(value, 0.0), magnitude)
    for node in imported.model.proto.graph.node:
        for name in _moved(node) if node.op_type == "Concat" else ():
            constant = imported.model.constants.get(name)
            if constant is not None and constant.size and constant.dtype.kind == "f":
                magnitudes[name] = float(np.abs(constant).max())
    return {
        name: ((magnitude, name), (magnitude, name))
        for name, magnitude in magnitudes.items()
        if magnitude > 0 and np.isfinite(magnitude)
    }


def _reason(precision: str, least: _Range, most: _Range) -> str:
    units = least[0] / most[0] * LARGEST[precision]
    return (
        f"joins ranges from {least[0]:.3g} ({least[1]}) to {most[0]:.3g} ({most[1]}): in one {precision} scale "
        f"{least[1]} has {units:.1f} units"
    )


def channel_labels(part: Part, is_channels_last: bool) -> dict[str, np.ndarray]:
    """Return the channel of the model's value that each element of an output belongs to, in the order of its cube.

    Channels are axis 1, of four axes the last where the model ``is_channels_last``; of three axes the shorter of the
    last two; of five and more the last.
    """
    shapes = {tensor.name: tensor.shape for tensor in part.layers.outputs}
    labels_by_tensor: dict[str, np.ndarray] = {}
    for binding in part.outputs:
        axis = _channel_axis(binding.shape, is_channels_last)
        sizes = [size if i == axis else 1 for i, size in enumerate(binding.shape)]
        numbers = np.broadcast_to(np.arange(int(np.prod(sizes)), dtype=np.int32).reshape(sizes), binding.shape)
        labels = np.full(int(np.prod(shapes[binding.tensor])), -1, np.int32)
        labels[slice(None) if binding.index is None else binding.index.ravel()] = numbers.ravel()
        labels_by_tensor.setdefault(binding.tensor, labels.reshape(shapes[binding.tensor]))
    return labels_by_tensor


def _channel_axis(shape: tuple[int, ...], is_channels_last: bool) -> int:
    rank = len(shape)
    if rank == 3:
        return 1 if shape[1] <= shape[2] else 2
    is_last = rank > 4 or (rank == 4 and is_channels_last)
    return rank - 1 if is_last else min(1, rank - 1)


def weak_channels(part: Part, rows: Iterable[LayerAccuracy]) -> list[str]:
    """Return a note for each output with channels that integers hardly hold.

    A score of a sigmoid or softmax (from -1 to 1 by its nature) may be near 0 in all samples: such an output has a note
    only where no channel of it reaches two units.
    """
    notes = []
    values = {binding.tensor: binding.value for binding in part.outputs}
    for row in rows:
        weak = [channels.weak for channels in row.channels if channels.weak_count]
        weak_total, total = (
            sum(channels.weak_count for channels in row.channels),
            sum(channels.count for channels in row.channels),
        )
        layer = part.layers.layer(row.tensor)
        if weak and (weak_total == total or max(map(abs, bounds_of(layer, np.inf, {}))) > 1):
            notes.append(
                f"output {values[row.tensor]}: {weak_total} of {total} channels ({', '.join(weak)}) stay below two "
                f"{row.precision} units of {row.scale:.3g} in the calibration data: they lose their meaning"
            )
    return notes
