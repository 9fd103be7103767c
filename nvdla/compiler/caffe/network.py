"""Caffe networks: layers and shapes from the prototxt, weights from the caffemodel.

Only what is asked for is walked into; everything else is stepped over. Nothing is copied: values of length-delimited
fields are views of the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nvdla.compiler.caffe.text import NET, OLD_TYPES, TextMessage, near, one_line, parse
from nvdla.errors import FormatError, shape_text
from nvdla.util.arguments import by_annotations
from nvdla.util.files import read_file
from nvdla.util.recognition import wrong_kind

MAX_TEXT = 4 << 20
MAX_LAYERS = 1 << 14
MAX_TOPS = 2 * MAX_LAYERS

#: layers that bring data in
DATA_LAYERS = ("Input", "Data", "ImageData", "MemoryData", "HDF5Data", "WindowData", "DummyData")
#: layers that only judge, or write elsewhere
JUDGING_LAYERS = (
    "Accuracy",
    "ContrastiveLoss",
    "EuclideanLoss",
    "HDF5Output",
    "HingeLoss",
    "InfogainLoss",
    "MultinomialLogisticLoss",
    "SigmoidCrossEntropyLoss",
    "Silence",
    "SoftmaxWithLoss",
)


@dataclass(frozen=True)
class CaffeLayer:
    """One layer: ``message`` holds its parameters (:mod:`nvdla.compiler.caffe.text`), ``blobs`` its weights."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    message: TextMessage
    file: str
    blobs: tuple[np.ndarray, ...] | None = None

    def fail(self, why: str) -> FormatError:
        """An error that names file, line and layer."""
        text = one_line(f"layer {self.name} ({self.type}): {why}")
        return FormatError(f"{self.file}: line {self.message.line}: {text}")


@dataclass(frozen=True)
class CaffeNetwork:
    """``inputs``: blob -> its shape, None where the file does not say; ``layers``: in order, those that compute."""

    name: str
    file: str
    inputs: Mapping[str, tuple[int, ...] | None]
    layers: Sequence[CaffeLayer] = field(default_factory=list)


@by_annotations
def read_network(
    path: str | os.PathLike[str], weights: Mapping[str, Sequence[np.ndarray]] | None = None
) -> CaffeNetwork:
    """The network of a .prototxt in phase TEST. ``weights``: blobs by layer name (:func:`read_weights`).

    Layers that only bring data, or judge (loss, accuracy), are left out; of the blobs that come in, those stay that a
    layer takes. Raises FormatError naming file, line and field.
    """
    name = os.fspath(path)
    if (other := wrong_kind(path, name, "a Caffe network (.prototxt)", ("prototxt",))) is not None:
        raise FormatError(other)
    data = read_file(path, MAX_TEXT, "Caffe network")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: must be text (a .prototxt), but byte {error.start} is not UTF-8") from None
    net = parse(text, NET, name)
    messages = [*net["layer"], *net["layers"]]
    if net["layer"] and net["layers"]:
        raise FormatError(f"{name}: layers: must all be given as 'layer' or all as 'layers', got both")
    if not 0 < len(messages) <= MAX_LAYERS:
        raise FormatError(f"{name}: must have 1 to {MAX_LAYERS} layers, got {len(messages)}")
    tops = sum(len(message["top"]) for message in messages)
    if tops > MAX_TOPS:
        raise FormatError(f"{name}: tops of all layers: must be at most {MAX_TOPS}, got {tops}")
    state = _State(net["state"]["level"], frozenset(net["state"]["stage"]))
    kept = [_layer(message, name, weights) for message in messages if _included(message, state, name)]
    layers = [layer for layer in kept if layer.type not in DATA_LAYERS + JUDGING_LAYERS]
    taken = {blob for layer in layers for blob in layer.bottoms}
    offered = _declared(net, name)
    for layer in kept:
        if layer.type in DATA_LAYERS:
            offered |= _offered(layer)
    inputs = {blob: shape for blob, shape in offered.items() if blob in taken}
    _check_bottoms(layers, offered)
    return CaffeNetwork(net["name"] or "", name, inputs, layers)


def _check_bottoms(layers: Sequence[CaffeLayer], offered: Mapping[str, object]) -> None:
    """Every blob that a layer takes comes in, or a layer before it wrote it."""
    known = set(offered)
    for layer in layers:
        for blob in layer.bottoms:
            if blob not in known:
                raise layer.fail(f"bottom {blob}: must be written by an earlier layer{near(blob, known)}")
        known |= set(layer.tops)


def _layer(message: TextMessage, file: str, weights: Mapping[str, Sequence[np.ndarray]] | None) -> CaffeLayer:
    kind = message["type"] or ""
    if message.schema.name == "V1LayerParameter":
        kind = OLD_TYPES[message["type"] or "NONE"][1]
    name = message["name"] or ""
    if not kind:
        raise FormatError(
            f"{file}: line {message.line}: layer {name!r}: type: must be given. Convert files of the oldest format "
            "with Caffe's upgrade_net_proto_text."
        )
    blobs = None if weights is None else tuple(weights.get(name, ()))
    return CaffeLayer(name, kind, tuple(message["bottom"]), tuple(message["top"]), message, file, blobs)


class _State(NamedTuple):
    """State that the rules of layers match, in addition to the phase."""

    level: int
    stages: frozenset[str]


def _included(message: TextMessage, state: _State, file: str) -> bool:
    """The rules of include and exclude, as Caffe applies them (net.cpp, FilterNet)."""
    include, exclude = message["include"], message["exclude"]
    if include and exclude:
        raise FormatError(
            f"{file}: line {message.line}: layer {message['name']!r}: must have include or exclude rules, got both"
        )
    if include:
        return any(_met(rule, state) for rule in include)
    return not any(_met(rule, state) for rule in exclude)


def _met(rule: TextMessage, state: _State) -> bool:
    level, stages = state
    return (
        rule["phase"] in (None, "TEST")
        and ("min_level" not in rule or level >= rule["min_level"])
        and ("max_level" not in rule or level <= rule["max_level"])
        and stages.issuperset(rule["stage"])
        and stages.isdisjoint(rule["not_stage"])
    )


def _declared(net: TextMessage, file: str) -> dict[str, tuple[int, ...] | None]:
    """Inputs of the old form: ``input: "data"`` with ``input_shape`` or four ``input_dim``."""
    names, shapes, dims = net["input"], net["input_shape"], net["input_dim"]
    if shapes and dims:
        raise FormatError(f"{file}: shapes of the inputs: must be given as input_shape or input_dim, got both")
    if dims and len(dims) != 4 * len(names):
        raise FormatError(
            f"{file}: input_dim: must be {4 * len(names)} numbers for {len(names)} inputs, got {len(dims)}"
        )
    sizes: list[tuple[int, ...] | None] = [tuple(shape["dim"]) for shape in shapes] or [
        tuple(dims[place : place + 4]) for place in range(0, len(dims), 4)
    ]
    if sizes and len(sizes) != len(names):
        raise FormatError(f"{file}: shapes: must be {len(names)}, one per input, got {len(sizes)}")
    return dict(zip(names, sizes or [None] * len(names), strict=True))


def _offered(layer: CaffeLayer) -> dict[str, tuple[int, ...] | None]:
    """Blobs of a data layer, with their shapes where it states them."""
    shapes: list[tuple[int, ...] | None] = []
    if layer.type == "Input":
        shapes = [tuple(shape["dim"]) for shape in layer.message["input_param"]["shape"]]
    elif layer.type == "MemoryData":
        sizes = layer.message["memory_data_param"]
        shape = tuple(sizes[size_name] for size_name in ("batch_size", "channels", "height", "width"))
        shapes = [shape] if None not in shape else []
    if len(shapes) == 1:
        shapes *= len(layer.tops)
    if layer.type == "Input" and shapes and len(shapes) != len(layer.tops):
        raise layer.fail(f"shapes: must be {len(layer.tops)}, one per top, got {len(shapes)}")
    if layer.type not in ("Input", "DummyData"):
        return {layer.tops[0]: shapes[0] if shapes else None} if layer.tops else {}  # the second top is labels
    return dict(zip(layer.tops, shapes or [None] * len(layer.tops), strict=True))


VARINT, WIDE, BYTES, NARROW = 0, 1, 2, 5
_KINDS = {VARINT: "varint", WIDE: "64-bit", BYTES: "length-delimited", NARROW: "32-bit"}
MAX_VARINT = 10  # bytes of 64 bits, seven at a time


@dataclass(frozen=True)
class WirePart:
    """A field, or the whole file: its bytes ``data[start:stop]``, what it is called in errors, and its number's
    ``value`` where it is a varint."""

    file: str
    data: memoryview
    start: int
    stop: int
    name: str
    kind: int = BYTES
    value: int = 0

    def fail(self, why: str) -> FormatError:
        """An error that names file, byte and field."""
        return FormatError(f"{self.file}: byte {self.start}, {self.name or 'file'}: {why}")

    def fields(self) -> Iterator[tuple[int, WirePart]]:
        """(number, field) of a message in file order. Raises FormatError where the bytes are not a message."""
        self.of(BYTES)
        at = self.start
        while at < self.stop:
            tag, begin = self._varint(at)
            number, kind = tag >> 3, tag & 7
            name = f"{self.name}.{number}" if self.name else str(number)
            if number == 0 or kind not in _KINDS:
                raise self.at(at, name).fail(
                    f"tag: must have a field number from 1 and a known wire type, got {tag} (number {number}, wire "
                    f"type {kind})"
                )
            value = 0
            if kind == VARINT:
                value, at = self._varint(begin)
            elif kind == BYTES:
                size, begin = self._varint(begin)
                at = begin + size
            else:
                at = begin + (8 if kind == WIDE else 4)
            if at > self.stop:
                raise self.at(begin, name).fail(
                    f"size: must be at most {self.stop - begin} bytes (rest of the message), got {at - begin} (cut "
                    "off?)"
                )
            yield number, WirePart(self.file, self.data, begin, at, name, kind, value)

    def of(self, kind: int) -> WirePart:
        """This field, after its wire type was checked."""
        if self.kind != kind:
            raise self.fail(f"must be {_KINDS[kind]}, got {_KINDS[self.kind]}")
        return self

    def at(self, start: int, name: str) -> WirePart:
        """The same bytes from ``start`` on, under another name."""
        return WirePart(self.file, self.data, start, self.stop, name)

    def called(self, name: str) -> WirePart:
        """This part under another name."""
        return WirePart(self.file, self.data, self.start, self.stop, name, self.kind, self.value)

    def text(self) -> str:
        """Its bytes as text."""
        self.of(BYTES)
        return bytes(self.data[self.start : self.stop]).decode("utf-8", "replace")

    def signed(self) -> int:
        """A varint as int64."""
        value = self.of(VARINT).value
        return value - (1 << 64) if value >= 1 << 63 else value

    def integers(self) -> list[int]:
        """Repeated int64: packed, or one."""
        if self.kind == VARINT:
            return [self.signed()]
        self.of(BYTES)
        integers, at = [], self.start
        while at < self.stop:
            value, at = self._varint(at)
            integers.append(value - (1 << 64) if value >= 1 << 63 else value)
        return integers

    def numbers(self, dtype: str) -> np.ndarray:
        """Repeated floats or doubles ("<f4", "<f8"): packed, or one. A view of the file."""
        size = int(dtype[-1])
        if self.kind != BYTES:
            self.of(NARROW if size == 4 else WIDE)
        if (self.stop - self.start) % size:
            raise self.fail(f"size: must be a multiple of {size} bytes (element), got {self.stop - self.start}")
        return np.frombuffer(self.data[self.start : self.stop], dtype)

    def _varint(self, at: int) -> tuple[int, int]:
        """Return the value and the offset after it."""
        value = 0
        for number in range(MAX_VARINT):
            if at + number >= self.stop:
                raise self.at(at, self.name).fail("number: must end within the message (cut off?)")
            byte = self.data[at + number]
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return value & ((1 << 64) - 1), at + number + 1
        raise self.at(at, self.name).fail(f"number: must have at most {MAX_VARINT} bytes")


MAX_FILE = (2 << 30) - 1  # a protobuf message cannot be longer
MAX_AXES = 32

# Field numbers in caffe.proto
_NET_OLD_LAYER, _NET_LAYER = 2, 100
_LAYER = {"name": 1, "blobs": 7}
_OLD_LAYER = {"name": 4, "blobs": 6, "oldest": 1}
_LEGACY_AXES = (1, 2, 3, 4)
_DATA, _SHAPE, _DOUBLE_DATA = 5, 7, 8


@by_annotations
def read_weights(path: str | os.PathLike[str]) -> dict[str, list[np.ndarray]]:
    """Layer name -> its blobs (float32 or float64, views of the file). Raises FormatError naming byte and field.

    A file may name a layer twice (its data layers of both phases); the one with blobs counts.
    """
    if (other := wrong_kind(path, os.fspath(path), "Caffe weights (.caffemodel)", ("caffemodel",))) is not None:
        raise FormatError(other)
    data = read_file(path, MAX_FILE, "Caffe weights")
    whole = WirePart(os.fspath(path), memoryview(data), 0, len(data), "")
    blobs_by_layer: dict[str, list[np.ndarray]] = {}
    count = 0
    for number, part in whole.fields():
        if number in (_NET_LAYER, _NET_OLD_LAYER):
            kind = "layer" if number == _NET_LAYER else "layers"
            name, blobs = _stored_layer(part.called(f"{kind}[{count}]"), _LAYER if number == _NET_LAYER else _OLD_LAYER)
            count += 1
            if blobs or name not in blobs_by_layer:
                blobs_by_layer[name] = blobs
    if not count:
        raise FormatError(f"{os.fspath(path)}: must be a .caffemodel, got a file without layers")
    return blobs_by_layer


def _stored_layer(layer: WirePart, numbers: dict[str, int]) -> tuple[str, list[np.ndarray]]:
    name, parts = "", []
    for number, part in layer.fields():
        if number == numbers["name"]:
            name = part.called(f"{layer.name}.name").text()
        elif number == numbers["blobs"]:
            parts.append(part)
        elif number == numbers.get("oldest"):
            raise part.called(f"{layer.name}.layer").fail(
                "layer format: must be V1 or later, got V0. Convert the file with Caffe's upgrade_net_proto_binary."
            )
    return name, [_blob(part.called(f"{layer.name}.blobs[{index}]")) for index, part in enumerate(parts)]


def _blob(blob: WirePart) -> np.ndarray:
    """One blob in its shape; as in Caffe, double data go before float data."""
    values: dict[int, list[np.ndarray]] = {_DATA: [], _DOUBLE_DATA: []}
    legacy: dict[int, int] = {}
    shape = None
    for number, part in blob.fields():
        if number in values:
            values[number].append(part.called(f"{blob.name}.data").numbers("<f4" if number == _DATA else "<f8"))
        elif number in _LEGACY_AXES:
            legacy[number] = part.called(f"{blob.name}.{('num', 'channels', 'height', 'width')[number - 1]}").signed()
        elif number == _SHAPE:
            shape = _shape(part.called(f"{blob.name}.shape"))
    if shape is None:
        shape = tuple(legacy.get(axis, 0) for axis in _LEGACY_AXES) if legacy else None
    pieces = values[_DOUBLE_DATA] or values[_DATA]
    data = pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    return data if shape is None else _shaped(blob, data, shape)


def _shape(part: WirePart) -> tuple[int, ...]:
    dims: list[int] = []
    for number, piece in part.fields():
        if number == 1:
            dims += _few(piece.called(f"{part.name}.dim"), MAX_AXES - len(dims))
    return tuple(dims)


def _few(part: WirePart, left: int) -> Iterator[int] | list[int]:
    """At most ``left`` dimensions."""
    if part.kind == BYTES and part.stop - part.start > 10 * MAX_AXES:
        raise part.fail(f"axes of the shape: must be at most {MAX_AXES}, got more")
    dims = part.integers()
    if len(dims) > left:
        raise part.fail(f"axes of the shape: must be at most {MAX_AXES}, got more")
    return dims


def _shaped(blob: WirePart, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if any(size < 0 for size in shape):
        raise blob.fail(f"shape: must not be negative, got {shape_text(shape)}")
    count = math.prod(shape)
    if count != data.size or math.prod(size or 1 for size in shape) > MAX_FILE:  # of the latter, none has elements
        raise blob.fail(f"shape: must have {data.size} elements (the data), got {shape_text(shape)}")
    return data.reshape(shape)
