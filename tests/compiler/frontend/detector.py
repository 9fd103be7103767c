"""A small detector in the form of YOLOv8 exports: boxes 0..160 and scores 0..1 leave in one Concat."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compiler.frontend.models import model, node

SIZE, CLASSES, BINS = 160, 3, 4
LEVELS = (16, 32)
ANCHORS = sum((SIZE // stride) ** 2 for stride in LEVELS)


def detector(seed: int = 3) -> Any:
    """Backbone with SiLU, a head at strides 16 and 32, boxes from distributions (DFL), scores by a sigmoid."""
    rng = np.random.default_rng(seed)
    held: dict[str, np.ndarray] = {}
    nodes = []

    def conv(source: str, name: str, inner: int, outer: int, size: int, stride: int, gain: float = 1.6) -> str:
        held[f"{name}.w"] = (rng.normal(size=(outer, inner, size, size)) * gain / (inner * size * size) ** 0.5).astype(
            "f4"
        )
        held[f"{name}.b"] = (rng.normal(size=outer) * 0.1).astype("f4")
        pad = size // 2
        nodes.append(node("Conv", f"{source} {name}.w {name}.b", name, strides=[stride] * 2, pads=[pad] * 4))
        return name

    def silu(source: str) -> str:
        nodes.append(node("Sigmoid", source, f"{source}.s"))
        nodes.append(node("Mul", f"{source} {source}.s", f"{source}.m"))
        return f"{source}.m"

    held["to_unit"] = np.float32(1 / 255)
    nodes.append(node("Mul", "images to_unit", "unit"))
    feature, features = "unit", []
    for number, (inner, outer) in enumerate(((3, 8), (8, 8), (8, 16), (16, 16), (16, 16))):
        feature = silu(conv(feature, f"stem{number}", inner, outer, 3, 2))
        features.append(feature)
    rows = []
    for number, (source, stride) in enumerate(zip(features[-2:], LEVELS, strict=True)):
        boxes = conv(silu(conv(source, f"box{number}", 16, 16, 3, 1)), f"boxes{number}", 16, 4 * BINS, 1, 1, 2.5)
        scores = conv(silu(conv(source, f"class{number}", 16, 16, 3, 1)), f"classes{number}", 16, CLASSES, 1, 1, 6.0)
        held[f"{scores}.b"] -= np.float32(4)
        nodes.append(node("Concat", f"{boxes} {scores}", f"level{number}", axis=1))
        held[f"shape{number}"] = np.array([1, 4 * BINS + CLASSES, (SIZE // stride) ** 2], np.int64)
        nodes.append(node("Reshape", f"level{number} shape{number}", f"rows{number}"))
        rows.append(f"rows{number}")
    nodes.append(node("Concat", " ".join(rows), "all", axis=2))
    held["parts"] = np.array([4 * BINS, CLASSES], np.int64)
    split = node("Split", "all parts", "distributions", axis=1)
    split.output.append("logits")
    nodes.append(split)
    held |= {
        "dfl.shape": np.array([1, 4, BINS, ANCHORS], np.int64),
        "dfl.w": np.arange(BINS, dtype="f4").reshape(1, BINS, 1, 1),
        "sides.shape": np.array([1, 4, ANCHORS], np.int64),
        "two": np.array([2, 2], np.int64),
        "half": np.float32(0.5),
        "anchors": np.concatenate([_centres(SIZE // stride) for stride in LEVELS], 1)[None].astype("f4"),
        "strides": np.concatenate([np.full((SIZE // s) ** 2, s) for s in LEVELS])[None].astype("f4"),
    }
    corners = node("Split", "sides two", "left_top", axis=1)
    corners.output.append("right_bottom")
    nodes += [
        node("Reshape", "distributions dfl.shape", "bins"),
        node("Transpose", "bins", "bins_first", perm=[0, 2, 1, 3]),
        node("Softmax", "bins_first", "shares", axis=1),
        node("Conv", "shares dfl.w", "lengths"),
        node("Reshape", "lengths sides.shape", "sides"),
        corners,
        node("Sub", "anchors left_top", "from"),
        node("Add", "anchors right_bottom", "to"),
        node("Add", "from to", "sum"),
        node("Mul", "sum half", "center"),
        node("Sub", "to from", "size"),
        node("Concat", "center size", "cells", axis=1),
        node("Mul", "cells strides", "pixels"),
        node("Sigmoid", "logits", "scores"),
        node("Concat", "pixels scores", "output0", axis=1),
    ]
    return model(nodes, {"images": (1, 3, SIZE, SIZE)}, {"output0": (1, 4 + CLASSES, ANCHORS)}, held)


def _centres(cells: int) -> np.ndarray:
    y, x = np.mgrid[:cells, :cells] + 0.5
    return np.stack([x.ravel(), y.ravel()])


def pictures(count: int, seed: int = 3) -> np.ndarray:
    """Random smooth pictures (count, 3, SIZE, SIZE) of pixels 0..255."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0, 255, (count, 3, SIZE // 16, SIZE // 16))
    fine = np.kron(coarse, np.ones((1, 1, 16, 16))) + rng.normal(0, 20, (count, 3, SIZE, SIZE))
    return np.clip(fine, 0, 255).astype("f4")


def detections(output: np.ndarray, threshold: float = 0.5) -> dict[int, tuple[int, np.ndarray]]:
    """(class, box as corners) by anchor, of scores from ``threshold`` on."""
    boxes, scores = output[0, :4], output[0, 4:]
    corners = np.concatenate([boxes[:2] - boxes[2:] / 2, boxes[:2] + boxes[2:] / 2])
    return {int(n): (int(scores[:, n].argmax()), corners[:, n]) for n in np.flatnonzero(scores.max(0) >= threshold)}


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""
    inner = np.prod(np.clip(np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2]), 0, None))
    return float(inner / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - inner))
