"""Decoders of detection and segmentation heads, and the metrics of what they decode.

A decoder is a function of all outputs of one sample (by the model's names, real numbers in the model's shapes) and of
the input's shape (C, H, W). For ``--metric map`` it returns boxes (N, 6): class, score, left, top, right, bottom, in
pixels of the input. For ``--metric miou`` it returns classes (H, W). Custom decoders call the ones of this module with
other settings.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.util.escaping import Document, Json

__all__ = ["argmax", "dbnet", "ssd", "ssd_priors", "suppress", "yolo", "yolo_rows"]
Outputs = Mapping[str, np.ndarray]
Anchors = Sequence[Sequence[tuple[float, float]]]
#: widths and heights in pixels, finest grid first
YOLOV5_ANCHORS: Anchors = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
SSD_GRIDS = (19, 10, 5, 3, 2, 1)
SSD_VARIANCES = (0.1, 0.1, 0.2, 0.2)
MAX_BOXES = 300
#: pixels of a mask that do not count
IGNORED = 255


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(values, -60, 60)))


def suppress(boxes: np.ndarray, iou: float = 0.6) -> np.ndarray:
    """Return the boxes of highest score that do not overlap a better one of their class (non-maximum suppression).

    Args:
        boxes: (N, 6): class, score, left, top, right, bottom.
        iou: largest overlap, as intersection over union.

    Returns:
        At most 300 rows of ``boxes``, best first.
    """
    boxes = boxes[np.argsort(-boxes[:, 1], kind="stable")][: MAX_BOXES * 10]
    areas = np.prod(np.maximum(boxes[:, 4:] - boxes[:, 2:4], 0), axis=1)
    free, kept = np.ones(len(boxes), bool), list[int]()
    for place in range(len(boxes)):
        if not free[place] or len(kept) == MAX_BOXES:
            continue
        kept.append(place)
        sides = np.minimum(boxes[place, 4:], boxes[:, 4:]) - np.maximum(boxes[place, 2:4], boxes[:, 2:4])
        common = np.prod(np.maximum(sides, 0), axis=1)
        union = areas[place] + areas - common
        free &= (common <= iou * union) | (boxes[:, 0] != boxes[place, 0])
    return boxes[kept]


def _boxes(centers: np.ndarray, sizes: np.ndarray, scores: np.ndarray, least: float, iou: float) -> np.ndarray:
    """Return boxes (N, 6) of centers and sizes (N, 2) for every class with a score (N, classes) of ``least``."""
    rows, classes = np.nonzero(scores >= least)
    corners = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=1)[rows]
    return suppress(np.column_stack([classes, scores[rows, classes], corners]), iou)


def yolo(
    outputs: Outputs,
    shape: tuple[int, int, int],
    anchors: Anchors = YOLOV5_ANCHORS,
    score: float = 0.001,
    iou: float = 0.6,
) -> np.ndarray:
    """Decode the heads of YOLOv5 and YOLOv7 without their last nodes: one (1, anchors * (5 + classes), H, W) per grid.

    Args:
        outputs: outputs of the model by name, real numbers.
        shape: shape (C, H, W) of the input.
        anchors: widths and heights in pixels, per grid, finest grid first.
        score: least score of a box.
        iou: largest overlap of two boxes of a class.

    Returns:
        Boxes (N, 6): class, score, left, top, right, bottom, in pixels of the input.

    Raises:
        FormatError: the outputs have another shape.
    """
    heads = sorted(outputs.values(), key=lambda head: -head.size)
    if len(heads) != len(anchors) or any(head.ndim != 4 or head.shape[1] % len(anchors[0]) for head in heads):
        shapes = ", ".join(shape_text(head.shape) for head in heads)
        raise FormatError(
            f"yolo: must be {len(anchors)} outputs (1, {len(anchors[0])} * (5 + classes), H, W): {shapes}"
        )
    parts: list[tuple[np.ndarray, ...]] = []
    for head, sizes in zip(heads, anchors, strict=True):
        height, width = head.shape[2:]
        values = _sigmoid(head.reshape(len(sizes), -1, height, width).transpose(0, 2, 3, 1))
        grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
        centers = (values[..., :2] * 2 - 0.5 + grid) * (shape[2] / width, shape[1] / height)
        areas = (values[..., 2:4] * 2) ** 2 * np.array(sizes)[:, None, None]
        scores = values[..., 4:5] * values[..., 5:]
        parts.append((centers.reshape(-1, 2), areas.reshape(-1, 2), scores.reshape(-1, scores.shape[-1])))
    centers, areas, scores = map(np.concatenate, zip(*parts, strict=True))
    return _boxes(centers, areas, scores, score, iou)


def yolo_rows(outputs: Outputs, shape: tuple[int, int, int], score: float = 0.001, iou: float = 0.6) -> np.ndarray:
    """Decode the single output of exported YOLO models: (1, N, 5 + classes) of YOLOv5, (1, 4 + classes, N) of YOLOv8.

    Args:
        outputs: outputs of the model by name, real numbers.
        shape: shape (C, H, W) of the input.
        score: least score of a box.
        iou: largest overlap of two boxes of a class.

    Returns:
        Boxes (N, 6): class, score, left, top, right, bottom, in pixels of the input.

    Raises:
        FormatError: the output has another shape.
    """
    first = next(iter(outputs.values()))
    if first.ndim != 3 or min(first.shape[1:]) < 5:
        raise FormatError(
            f"yolo_rows: must be (1, N, 5 + classes) or (1, 4 + classes, N), got {shape_text(first.shape)}"
        )
    is_new = first.shape[1] < first.shape[2]
    rows = first[0].T if is_new else first[0]
    scores = rows[:, 4:] if is_new else rows[:, 4:5] * rows[:, 5:]
    return _boxes(rows[:, :2], rows[:, 2:4], scores, score, iou)


def ssd_priors(grids: Sequence[int] = SSD_GRIDS, least: float = 0.2, most: float = 0.95) -> np.ndarray:
    """Return the priors of SSD MobileNet.

    Args:
        grids: cells per side, finest grid first.
        least: side of the priors of the finest grid, in fractions of the picture.
        most: side of the priors of the coarsest grid.

    Returns:
        (N, 4): center, width and height in fractions of the picture.
    """
    scales = [*np.linspace(least, most, len(grids)), 1.0]
    rows = []
    for place, grid in enumerate(grids):
        scale, following = scales[place : place + 2]
        ratios = [(scale, ratio) for ratio in (1.0, 2.0, 0.5, 3.0, 1 / 3)] + [(math.sqrt(scale * following), 1.0)]
        if place == 0:
            ratios = [(0.1, 1.0), (scale, 2.0), (scale, 0.5)]
        sides = np.array([(size * math.sqrt(ratio), size / math.sqrt(ratio)) for size, ratio in ratios])
        places = (np.arange(grid) + 0.5) / grid
        centers = np.stack(np.meshgrid(places, places), axis=-1).reshape(-1, 1, 2)
        size = (grid * grid, len(sides), 2)
        rows.append(np.concatenate([np.broadcast_to(centers, size), np.broadcast_to(sides, size)], 2).reshape(-1, 4))
    return np.concatenate(rows)


def ssd(
    outputs: Outputs,
    shape: tuple[int, int, int],
    priors: np.ndarray | None = None,
    y_first: bool = False,
    score: float = 0.01,
    iou: float = 0.6,
) -> np.ndarray:
    """Decode SSD heads: locations (1, N, 4) and probabilities (1, N, 1 + classes), the background first.

    Args:
        outputs: both outputs; of two with four columns the first has the locations.
        shape: shape (C, H, W) of the input.
        priors: (N, 4), default :func:`ssd_priors`.
        y_first: locations are y, x, height, width, as in TensorFlow.
        score: least score of a box.
        iou: largest overlap of two boxes of a class.

    Returns:
        Boxes (N, 6): class, score, left, top, right, bottom, in pixels of the input.

    Raises:
        FormatError: the outputs do not fit the priors, or the scores are logits.
    """
    priors = ssd_priors() if priors is None else priors
    flat = [value.reshape(-1, value.shape[-1]) for value in outputs.values()]
    flat = flat if flat[0].shape == priors.shape else flat[::-1]
    if len(flat) != 2 or flat[0].shape != priors.shape or len(flat[1]) != len(priors):
        shapes = ", ".join(shape_text(value.shape) for value in outputs.values())
        raise FormatError(f"ssd: must be (1, {len(priors)}, 4) and (1, {len(priors)}, 1 + classes), got {shapes}")
    deltas, scores = flat
    if scores.min() < -0.01 or scores.max() > 1.01:
        raise FormatError(
            "ssd: scores must be probabilities, got logits. Apply softmax or sigmoid in a custom decoder."
        )
    deltas = (deltas[:, [1, 0, 3, 2]] if y_first else deltas) * SSD_VARIANCES
    pixels = np.array([shape[2], shape[1]])
    centers = (priors[:, :2] + deltas[:, :2] * priors[:, 2:]) * pixels
    return _boxes(centers, priors[:, 2:] * np.exp(np.clip(deltas[:, 2:], -20, 20)) * pixels, scores[:, 1:], score, iou)


def dbnet(
    outputs: Outputs,
    shape: tuple[int, int, int],
    threshold: float = 0.3,
    score: float = 0.6,
    unclip: float = 1.5,
    least: int = 3,
) -> np.ndarray:
    """Decode the probability map (1, 1, H, W) of DBNet: an upright box around each connected region of text.

    Args:
        outputs: the map is the first output.
        shape: shape (C, H, W) of the input.
        threshold: least probability of a pixel of a region.
        score: least mean probability of a box.
        unclip: growth of a box: its area times this, divided by its circumference, on each side.
        least: shortest side of a region, in pixels of the map.

    Returns:
        Boxes (N, 6): class, score, left, top, right, bottom, in pixels of the input.
    """
    first = next(iter(outputs.values()))
    probability: np.ndarray = first.reshape(first.shape[-2], first.shape[-1])
    regions = _regions(probability > threshold)
    scale = np.array([shape[2] / probability.shape[1], shape[1] / probability.shape[0]] * 2)
    rows = [np.zeros((0, 6))]
    for top, left, bottom, right in regions:
        mean = float(probability[top:bottom, left:right].mean())
        width, height = right - left, bottom - top
        if min(width, height) < least or mean < score:
            continue
        grown = unclip * width * height / (2 * (width + height))
        box = np.array([left - grown, top - grown, right + grown, bottom + grown]) * scale
        rows.append(np.array([[0, mean, *box.clip(0, [shape[2], shape[1]] * 2)]]))
    return np.concatenate(rows)


def _regions(mask: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return the bounds (top, left, bottom, right) of the connected regions of a mask: runs of rows that touch."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)[:, 1]
    parent = list(range(len(starts)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    above = 0
    for place, (row, start) in enumerate(starts):
        while above < place and (starts[above, 0] < row - 1 or (starts[above, 0] < row and ends[above] < start)):
            above += 1
        other = above
        while other < place and starts[other, 0] == row - 1 and starts[other, 1] <= ends[place]:
            parent[root(other)] = root(place)
            other += 1
    bounds: dict[int, tuple[int, int, int, int]] = {}
    for place, (row, start) in enumerate(starts.tolist()):
        top, left, bottom, right = bounds.get(root(place), (row, start, row, 0))
        bounds[root(place)] = (min(top, row), min(left, start), max(bottom, row + 1), max(right, int(ends[place])))
    return list(bounds.values())


def argmax(outputs: Outputs, shape: tuple[int, int, int]) -> np.ndarray:
    """Decode a segmentation head (1, classes, H, W).

    Args:
        outputs: outputs of the model by name; the first is decoded.
        shape: shape (C, H, W) of the input.

    Returns:
        (H, W): the class of largest score per pixel; for one channel, where it is above 0.
    """
    first = next(iter(outputs.values()))
    scores = first.reshape(first.shape[-3:])
    return scores[0] > 0 if len(scores) == 1 else scores.argmax(axis=0)


def boxes_document(boxes: object, shape: tuple[int, ...]) -> list[list[float]]:
    """Return decoded boxes as plain data, in fractions of the input. Raises FormatError."""
    array = np.asarray(boxes, np.float64)
    if array.size and (array.ndim != 2 or array.shape[1] != 6 or not np.isfinite(array).all()):
        raise FormatError(f"boxes: must be finite numbers (N, 6), got {shape_text(array.shape)}")
    height, width = shape[-2:]
    return [[int(row[0]), *row[1:].round(6)] for row in array.reshape(-1, 6) / (1, 1, width, height, width, height)]


def truth_document(label: object, name: str) -> list[list[float]]:
    """Return labeled boxes as plain data: class, left, top, right, bottom in fractions, and 1 for a crowd.

    Raises:
        FormatError: the label has another form.
    """
    array: np.ndarray = np.asarray([] if label is None else label, np.float64)
    array = array.reshape(-1, 5) if array.ndim == 1 and array.size % 5 == 0 else array
    if array.ndim != 2 or array.shape[1] not in (5, 6):
        raise FormatError(f"sample {name}: label: must be boxes (N, 5), got shape {shape_text(array.shape)}")
    corners = array[:, 1:5]
    if corners.size and (corners.min() < -0.01 or corners.max() > 1.01 or (corners[:, 2:] < corners[:, :2]).any()):
        raise FormatError(
            f"sample {name}: label: boxes must be class, left, top, right, bottom in fractions of the picture, "
            f"got {array[0].tolist()}"
        )
    return [[int(row[0]), *map(float, row[1:5]), int(row[5]) if len(row) > 5 else 0] for row in array]


def cells_document(classes: object, label: object, name: str) -> list[list[int]]:
    """Compare classes (H, W) with a mask; return [label, class, pixels] of each pair. Pixels of 255 do not count.

    The classes are scaled to the size of the mask (nearest). Raises FormatError.
    """
    predicted, mask = np.asarray(classes), np.asarray(label)
    for what, array in (("classes", predicted), ("mask", mask)):
        if array.ndim != 2 or not array.size or array.dtype.kind not in "iub":
            got = f"{array.dtype} {shape_text(array.shape)}"
            raise FormatError(f"sample {name}: {what}: must be integers (H, W), got {got}")
    rows, columns = (
        (np.arange(size) * 2 + 1) * given // (2 * size) for size, given in zip(mask.shape, predicted.shape, strict=True)
    )
    predicted = predicted[rows[:, None], columns].astype(np.int64)
    counted = mask != IGNORED
    pairs, counts = np.unique(
        np.stack([mask[counted].astype(np.int64), predicted[counted]]), axis=1, return_counts=True
    )
    return [[*pair, count] for pair, count in zip(pairs.T.tolist(), counts.tolist(), strict=True)]


def average_precision(images: Sequence[tuple[np.ndarray, np.ndarray]]) -> Document:
    """Return COCO's mean average precision (pycocotools) of (truth, boxes) per image, both in fractions.

    Raises:
        FormatError: pycocotools is not installed.
    """
    if importlib.util.find_spec("pycocotools") is None:
        raise FormatError("--metric map needs pycocotools: pip install 'nvdla[detection]'")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def rectangle(corners: np.ndarray) -> list[float]:
        left, top, right, bottom = map(float, corners)
        return [left, top, right - left, bottom - top]

    truth: list[Document] = [
        {"image_id": image, "category_id": int(row[0]), "bbox": rectangle(row[1:5]), "iscrowd": int(row[5])}
        for image, (rows, _) in enumerate(images)
        for row in rows
    ]
    for number, row in enumerate(truth, 1):
        row |= {"id": number, "area": row["bbox"][2] * row["bbox"][3]}
    results = [
        {"image_id": image, "category_id": int(row[0]), "bbox": rectangle(row[2:]), "score": float(row[1])}
        for image, (_, rows) in enumerate(images)
        for row in rows
    ]
    if not truth or not results:
        return dict.fromkeys(("map", "map50", "map75"), 0.0 if truth else None)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        categories = sorted({row["category_id"] for row in truth})
        rows = {"images": [{"id": image} for image in range(len(images))], "annotations": truth}
        vars(coco)["dataset"] = {**rows, "categories": [{"id": number} for number in categories], "info": {}}
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    names = ("map", "map50", "map75")
    return {name: float(value) for name, value in zip(names, evaluation.stats[:3], strict=True)}


def intersection_over_union(cells: Mapping[tuple[int, int], int], names: Sequence[str] | None = None) -> Document:
    """Return the mean intersection over union of all classes, that of each class, and the share of right pixels."""
    labeled, predicted = Counter[int](), Counter[int]()
    for (label, other_class), count in cells.items():
        labeled[label] += count
        predicted[other_class] += count
    total = sum(labeled.values())
    rows: list[dict[str, Json]] = []
    for number in sorted({*labeled, *predicted}):
        right = cells.get((number, number), 0)
        name = names[number] if names and 0 <= number < len(names) else None
        union = labeled[number] + predicted[number] - right
        rows.append({"class": number, "name": name, "pixels": labeled[number], "iou": right / union})
    right = sum(count for (label, other_class), count in cells.items() if label == other_class)
    ratios = [right_of for row in rows if isinstance(right_of := row["iou"], float)]
    return {
        "miou": sum(ratios) / len(ratios) if ratios else None,
        "pixel_accuracy": right / total if total else None,
        "classes": rows,
    }
