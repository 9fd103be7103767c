"""TFLite_Detection_PostProcess: boxes decoded, overlapping ones suppressed. It runs on the host."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from nvdla.compiler.frontend.tflite.graph import FlatConverter, UnsupportedError, converts
from nvdla.compiler.frontend.tflite.reader import FlatOperator

#: settings of a custom operator, and the bytes of them that are read
MAX_SETTINGS = 64
_INTEGER, _UNSIGNED, _REAL, _BOOL = 1, 2, 3, 26


def settings(data: bytes) -> dict[str, float]:
    """Numbers of a map of a FlexBuffer by name.

    Args:
        data: the options of a custom operator.

    Returns:
        The entries that are numbers or truth values.

    Raises:
        UnsupportedError: the bytes do not contain a map.
    """
    try:
        width, kind = data[-1], data[-2]
        if kind >> 2 != 9 or width not in (1, 2, 4, 8):
            raise UnsupportedError("options that are not a map")
        return _map(data, _offset(data, len(data) - 2 - width, width), 1 << (kind & 3))
    except (IndexError, ValueError, struct.error):
        raise UnsupportedError("options that are damaged") from None


def _number(data: bytes, place: int, width: int, code: str = "BHIQ") -> Any:
    if place < 0:
        raise IndexError(place)
    return struct.unpack_from("<" + code[(1, 2, 4, 8).index(width)], data, place)[0]


def _offset(data: bytes, place: int, width: int) -> int:
    """Target of an offset; offsets point backwards."""
    return place - int(_number(data, place, width))


def _map(data: bytes, start: int, width: int) -> dict[str, float]:
    count = _number(data, start - width, width)
    if count > MAX_SETTINGS:
        raise UnsupportedError(f"{count} settings; at most {MAX_SETTINGS}")
    keys, key_width = _offset(data, start - 3 * width, width), _number(data, start - 2 * width, width)
    options = {}
    for index in range(count):
        name = _offset(data, keys + index * key_width, key_width)
        if name < 0:
            raise IndexError(name)
        text = data[name : data.index(b"\0", name) if b"\0" in data[name:] else name].decode("utf-8")
        kind = data[start + count * width + index] >> 2
        code = {_INTEGER: "bhiq", _UNSIGNED: "BHIQ", _BOOL: "BHIQ", _REAL: "\0efd"}.get(kind)
        if code is not None:
            options[text] = float(_number(data, start + index * width, width, code))
    return options


@converts("TFLite_Detection_PostProcess", onnx="NonMaxSuppression, TopK")
def detections(c: FlatConverter, operator: FlatOperator) -> None:
    """Boxes, classes, scores and their number, for a batch of one; on the host."""
    boxes, scores, anchors = operator.inputs[:3]
    given, sizes = settings(operator.custom), c.shape(scores)
    classes, most = int(given["num_classes"]), int(given["max_detections"])
    if c.shape(boxes)[:1] != (1,) or len(sizes) != 3 or sizes[0] != 1 or c.shape(boxes)[1] != sizes[1]:
        raise UnsupportedError(f"boxes: must fit scores {list(sizes)} of one image, got {list(c.shape(boxes))}")
    if not 0 < classes <= sizes[2] or most < 1 or sizes[1] < 1:
        raise UnsupportedError(f"num_classes: must be 1 to {sizes[2]}, got {classes} (max_detections {most})")
    c.host = "boxes need more than 8 bits"
    corners = _decoded(c, operator, boxes, anchors, given)
    name = c.tensors[scores].name
    first = sizes[2] - classes  # the background, where there is one
    limits = [c.shape_constant([limit]) for limit in (first, sizes[2], 2)]
    alone = c.node("Slice", [c.read(scores), *limits], f"{name}/classes")
    regular = bool(given.get("use_regular_nms", 0))
    if not regular and given.get("max_classes_per_detection", 1) != 1:
        raise UnsupportedError("more than one class per detection")
    by_class = c.node("Transpose", [alone], f"{name}/by_class", perm=[0, 2, 1])
    per_class = int(given.get("detections_per_class", 100)) if regular else most
    if not regular:  # the best class of each box competes with those of the others
        by_class = c.node("ReduceMax", [by_class, c.shape_constant([1])], f"{name}/best", keepdims=1)
    threshold = np.nextafter(np.float32(given["nms_score_threshold"]), np.float32(-math.inf))
    numbers = [np.int64(per_class), np.float32(given["nms_iou_threshold"]), threshold]
    inputs = [corners, by_class, *(c.constant(np.array(number)) for number in numbers)]
    chosen = c.node("NonMaxSuppression", inputs, f"{name}/chosen")
    _results(c, operator, (corners, by_class, alone, chosen), most, regular)


def _decoded(c: FlatConverter, operator: FlatOperator, boxes: int, anchors: int, given: dict[str, float]) -> str:
    """Corners (1, anchors, 4) of boxes from their middles and sizes relative to anchors."""
    name, places = c.tensors[boxes].name, c.real(anchors, "anchors").astype(np.float32)
    scales = np.array([given[f"{key}_scale"] for key in "yxhw"], np.float32)
    if places.ndim != 2 or places.shape[1:] != (4,) or not np.all(scales):
        raise UnsupportedError(f"anchors {list(places.shape)} with scales {scales.tolist()}")
    limits = [c.shape_constant([limit]) for limit in (0, 4, 2)]
    plain = c.node("Slice", [c.read(boxes), *limits], f"{name}/boxes")
    scaled = c.node("Div", [plain, c.constant(scales, "scales")], f"{name}/scaled")
    halves = [f"{name}/{part}" for part in ("offsets", "sizes")]
    parts = c.parts("Split", [scaled, c.shape_constant([2, 2])], halves, axis=2)
    moved = c.node("Mul", [parts[0], c.constant(places[None, :, 2:])], f"{name}/moved")
    middles = c.node("Add", [moved, c.constant(places[None, :, :2])], f"{name}/middles")
    grown = c.node("Exp", [parts[1]], f"{name}/grown")
    reach = c.node("Mul", [grown, c.constant(places[None, :, 2:] / 2)], f"{name}/reach")
    low, high = (c.node(op, [middles, reach], f"{name}/{op}") for op in ("Sub", "Add"))
    return c.node("Concat", [low, high], f"{name}/corners", axis=2)


def _results(c: FlatConverter, operator: FlatOperator, values: tuple[str, ...], most: int, regular: bool) -> None:
    """The best detections, with zeros up to ``most``."""
    corners, by_class, alone, chosen = values
    name = c.tensors[operator.outputs[0]].name
    place = c.node("Gather", [chosen, c.constant(np.array(2, np.int64))], f"{name}/place", axis=1)
    kept = c.node("GatherND", [by_class, chosen], f"{name}/scores")
    # zeros after the detections, so that TopK always has enough elements
    pads = c.shape_constant([0, most])
    padded = c.node("Pad", [kept, pads], f"{name}/padded")
    names = [f"{name}/{part}" for part in ("best", "order")]
    best, order = c.parts("TopK", [padded, c.shape_constant([most])], names, axis=0)
    count = c.node("ReduceSum", [c.node("Cast", [c.node("Shape", [kept], f"{name}/size")], f"{name}/real", to=1)],
                   f"{name}/found", keepdims=1)  # fmt: skip
    count = c.node("Min", [count, c.constant(np.array([most], np.float32))], f"{name}/number")
    rows = c.node("Gather", [c.node("Pad", [place, pads], f"{name}/places"), order], f"{name}/rows", axis=0)
    real = c.node("Less", [order, c.node("Shape", [kept], f"{name}/length")], f"{name}/is_real")
    weight = c.node("Cast", [real], f"{name}/weight", to=1)
    corners_found = c.node("Gather", [corners, rows], f"{name}/found_boxes", axis=1)
    column = c.node("Unsqueeze", [weight, c.shape_constant([0, 2])], f"{name}/column")
    boxes = c.node("Mul", [corners_found, column], f"{name}/boxes")
    if regular:
        which = c.node("Gather", [chosen, c.constant(np.array(1, np.int64))], f"{name}/class", axis=1)
        kinds = c.node("Gather", [c.node("Pad", [which, pads], f"{name}/classes"), order], f"{name}/kind", axis=0)
        kinds = c.node("Unsqueeze", [kinds, c.shape_constant([0])], f"{name}/kinds")
    else:
        likely = c.node("ArgMax", [alone], f"{name}/likely", axis=2, keepdims=0)
        kinds = c.node("Gather", [likely, rows], f"{name}/kinds", axis=1)
    row = c.node("Unsqueeze", [weight, c.shape_constant([0])], f"{name}/row")
    named = c.node("Mul", [c.node("Cast", [kinds], f"{name}/numbers", to=1), row], f"{name}/named")
    scores = c.node("Unsqueeze", [best, c.shape_constant([0])], f"{name}/best_scores")
    shapes = ((1, most, 4), (1, most), (1, most), (1,))
    for number, value, shape in zip(operator.outputs, (boxes, named, scores, count), shapes, strict=False):
        c.write(number, value, shape)
    c.host = ""
