"""A .prototxt: the layers of a network as they run for inference (phase TEST)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.caffe.schema import NET, OLD_TYPES
from nvdla.caffe.text import TextMessage, near, one_line, parse
from nvdla.errors import FormatError
from nvdla.files import read_file

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
    """One layer: ``message`` holds its parameters (:mod:`nvdla.caffe.schema`), ``blobs`` its weights."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    message: TextMessage
    file: str
    blobs: tuple[np.ndarray, ...] | None = None

    def fail(self, why: str) -> FormatError:
        """An error that names file, line and layer."""
        said = one_line(f"layer {self.name} ({self.type}): {why}")
        return FormatError(f"{self.file}: line {self.message.line}: {said}")


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
    data = read_file(path, MAX_TEXT, "Caffe network")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: byte {error.start}: no text (a network is described in a .prototxt)") from None
    net = parse(text, NET, name)
    messages = [*net["layer"], *net["layers"]]
    if net["layer"] and net["layers"]:
        raise FormatError(f"{name}: layers are given in both forms, 'layer' and 'layers'")
    if not 0 < len(messages) <= MAX_LAYERS:
        raise FormatError(f"{name}: {len(messages)} layers, must be 1 to {MAX_LAYERS}")
    tops = sum(len(each["top"]) for each in messages)
    if tops > MAX_TOPS:
        raise FormatError(f"{name}: the layers have {tops} tops, must be at most {MAX_TOPS}")
    state = _State(net["state"]["level"], frozenset(net["state"]["stage"]))
    kept = [_layer(each, name, weights) for each in messages if _included(each, state, name)]
    layers = [each for each in kept if each.type not in DATA_LAYERS + JUDGING_LAYERS]
    taken = {blob for layer in layers for blob in layer.bottoms}
    offered = _declared(net, name)
    for each in kept:
        if each.type in DATA_LAYERS:
            offered |= _offered(each)
    inputs = {blob: shape for blob, shape in offered.items() if blob in taken}
    _check_bottoms(layers, offered)
    return CaffeNetwork(net["name"] or "", name, inputs, layers)


def _check_bottoms(layers: Sequence[CaffeLayer], offered: Mapping[str, object]) -> None:
    """Every blob that a layer takes comes in, or a layer before it wrote it."""
    known = set(offered)
    for layer in layers:
        for blob in layer.bottoms:
            if blob not in known:
                raise layer.fail(f"bottom {blob} is written by no layer before{near(blob, known)}")
        known |= set(layer.tops)


def _layer(message: TextMessage, file: str, weights: Mapping[str, Sequence[np.ndarray]] | None) -> CaffeLayer:
    kind = message["type"] or ""
    if message.schema.name == "V1LayerParameter":
        kind = OLD_TYPES[message["type"] or "NONE"][1]
    name = message["name"] or ""
    if not kind:
        raise FormatError(
            f"{file}: line {message.line}: layer {name!r} has no type (files of the oldest form are rewritten by "
            "Caffe's upgrade_net_proto_text)"
        )
    blobs = None if weights is None else tuple(weights.get(name, ()))
    return CaffeLayer(name, kind, tuple(message["bottom"]), tuple(message["top"]), message, file, blobs)


class _State(NamedTuple):
    """What the rules of layers ask for, beside the phase."""

    level: int
    stages: frozenset[str]


def _included(message: TextMessage, state: _State, file: str) -> bool:
    """The rules of include and exclude, as Caffe applies them (net.cpp, FilterNet)."""
    include, exclude = message["include"], message["exclude"]
    if include and exclude:
        raise FormatError(f"{file}: line {message.line}: layer {message['name']!r} has include and exclude rules")
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
        raise FormatError(f"{file}: give input_shape or input_dim, not both")
    if dims and len(dims) != 4 * len(names):
        raise FormatError(f"{file}: {len(names)} inputs take {4 * len(names)} input_dim, there are {len(dims)}")
    sizes: list[tuple[int, ...] | None] = [tuple(shape["dim"]) for shape in shapes] or [
        tuple(dims[place : place + 4]) for place in range(0, len(dims), 4)
    ]
    if sizes and len(sizes) != len(names):
        raise FormatError(f"{file}: {len(names)} inputs, but shapes for {len(sizes)}")
    return dict(zip(names, sizes or [None] * len(names), strict=True))


def _offered(layer: CaffeLayer) -> dict[str, tuple[int, ...] | None]:
    """What a data layer brings, with shapes where it gives them."""
    shapes: list[tuple[int, ...] | None] = []
    if layer.type == "Input":
        shapes = [tuple(shape["dim"]) for shape in layer.message["input_param"]["shape"]]
    elif layer.type == "MemoryData":
        sizes = layer.message["memory_data_param"]
        shape = tuple(sizes[each] for each in ("batch_size", "channels", "height", "width"))
        shapes = [shape] if None not in shape else []
    if len(shapes) == 1:
        shapes *= len(layer.tops)
    if layer.type == "Input" and shapes and len(shapes) != len(layer.tops):
        raise layer.fail(f"{len(layer.tops)} tops, but {len(shapes)} shapes")
    if layer.type not in ("Input", "DummyData"):
        return {layer.tops[0]: shapes[0] if shapes else None} if layer.tops else {}  # the second top is labels
    return dict(zip(layer.tops, shapes or [None] * len(layer.tops), strict=True))
