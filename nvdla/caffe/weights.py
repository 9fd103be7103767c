"""A .caffemodel: the parameter blobs of each layer, old and new forms."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.caffe.wire import BYTES, WirePart
from nvdla.errors import FormatError, shape_text
from nvdla.files import read_file

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
    data = read_file(path, MAX_FILE, "Caffe weights")
    whole = WirePart(os.fspath(path), memoryview(data), 0, len(data), "")
    found: dict[str, list[np.ndarray]] = {}
    count = 0
    for number, part in whole.fields():
        if number in (_NET_LAYER, _NET_OLD_LAYER):
            kind = "layer" if number == _NET_LAYER else "layers"
            name, blobs = _layer(part.called(f"{kind}[{count}]"), _LAYER if number == _NET_LAYER else _OLD_LAYER)
            count += 1
            if blobs or name not in found:
                found[name] = blobs
    if not count:
        raise FormatError(f"{os.fspath(path)}: holds no layer, so it is no .caffemodel")
    return found


def _layer(layer: WirePart, numbers: dict[str, int]) -> tuple[str, list[np.ndarray]]:
    name, parts = "", []
    for number, part in layer.fields():
        if number == numbers["name"]:
            name = part.called(f"{layer.name}.name").text()
        elif number == numbers["blobs"]:
            parts.append(part)
        elif number == numbers.get("oldest"):
            raise part.called(f"{layer.name}.layer").fail(
                "a layer in the oldest form (V0); rewrite the file with Caffe's upgrade_net_proto_binary"
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
    for number, each in part.fields():
        if number == 1:
            dims += _few(each.called(f"{part.name}.dim"), MAX_AXES - len(dims))
    return tuple(dims)


def _few(part: WirePart, left: int) -> Iterator[int] | list[int]:
    """At most ``left`` dimensions."""
    if part.kind == BYTES and part.stop - part.start > 10 * MAX_AXES:
        raise part.fail(f"more than {MAX_AXES} axes")
    dims = part.integers()
    if len(dims) > left:
        raise part.fail(f"more than {MAX_AXES} axes")
    return dims


def _shaped(blob: WirePart, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if any(size < 0 for size in shape):
        raise blob.fail(f"shape {shape_text(shape)} has a negative dimension")
    count = math.prod(shape)
    if count != data.size or math.prod(size or 1 for size in shape) > MAX_FILE:  # of the latter, none has elements
        raise blob.fail(f"shape {shape_text(shape)} has {count} elements, the data {data.size}")
    return data.reshape(shape)
