"""TFLite_Detection_PostProcess on the host is greedy non-maximum suppression of decoded boxes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from flatbuffers import flexbuffers
from support.tflite_writer import FlatWriter

import nvdla
from nvdla.compiler.frontend.tflite.detection import settings
from nvdla.compiler.frontend.tflite.graph import UnsupportedError
from nvdla.errors import FormatError

ANCHORS, CLASSES, MOST = 40, 4, 8
SCORE, OVERLAP = 0.3, 0.4
NUMBERS = {"max_detections": MOST, "max_classes_per_detection": 1, "detections_per_class": 6, "num_classes": CLASSES}
SCALES = {"y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0}


def options(regular: bool) -> bytes:
    builder = flexbuffers.Builder()
    with builder.Map():
        for name, value in NUMBERS.items():
            builder.Int(name, value)
        builder.Bool("use_regular_nms", regular)
        for name, value in (SCALES | {"nms_score_threshold": SCORE, "nms_iou_threshold": OVERLAP}).items():
            builder.Float(name, value)
    return bytes(builder.Finish())


def model(anchors: np.ndarray, custom: bytes) -> bytes:
    writer = FlatWriter()
    ends = [writer.tensor((1, ANCHORS, 4), "float32"), writer.tensor((1, ANCHORS, CLASSES + 1), "float32")]
    held = writer.constant(anchors)
    outputs = [writer.tensor(shape, "float32") for shape in ((1, MOST, 4), (1, MOST), (1, MOST), (1,))]
    writer.operator("TFLite_Detection_PostProcess", [*ends, held], outputs, custom)
    return writer.model(ends, outputs)


def expected(boxes, scores, anchors, regular: bool):
    middle = boxes[:, :2] / 10 * anchors[:, 2:] + anchors[:, :2]
    half = np.exp(boxes[:, 2:] / 5) * anchors[:, 2:] / 2
    corners = np.concatenate([middle - half, middle + half], 1)
    scores = scores[:, 1:]  # the first class is the background
    if regular:
        found = [(scores[i, k], i, k) for k in range(CLASSES) for i in kept(corners, scores[:, k], 6)]
    else:
        found = [(scores[i].max(), i, scores[i].argmax()) for i in kept(corners, scores.max(1), MOST)]
    found = sorted(found, reverse=True)[:MOST]
    return [corners[i] for _, i, _ in found], [k for *_, k in found], [score for score, *_ in found]


def kept(corners, scores, most: int) -> list[int]:
    chosen: list[int] = []
    for i in np.argsort(-scores):
        if (
            scores[i] >= SCORE
            and len(chosen) < most
            and all(overlap(corners[i], corners[j]) <= OVERLAP for j in chosen)
        ):
            chosen.append(int(i))
    return chosen


def overlap(one, other) -> float:
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    common = max(sides[0], 0) * max(sides[1], 0)
    areas = [np.prod(each[2:] - each[:2]) for each in (one, other)]
    return common / (sum(areas) - common)


@pytest.mark.parametrize("regular", [False, True])
def test_detections_are_the_best_boxes_that_do_not_overlap(regular):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        anchors = np.concatenate([rng.uniform(0.2, 0.8, (ANCHORS, 2)), rng.uniform(0.1, 0.4, (ANCHORS, 2))], 1)
        anchors = anchors.astype(np.float32)
        boxes = rng.normal(size=(ANCHORS, 4)).astype(np.float32)
        scores = rng.uniform(0, 1, (ANCHORS, CLASSES + 1)).astype(np.float32) ** (6 if seed == 2 else 2)
        compiled = nvdla.compile(model(anchors, options(regular)), "nv_small",
                                 calibration={"t0": boxes[None], "t1": scores[None]})  # fmt: skip
        found, classes, values, count = compiled.run({"t0": boxes[None], "t1": scores[None]}).values()
        wanted = expected(boxes, scores, anchors, regular)
        number = len(wanted[0])
        assert count.tolist() == [number] and found.shape == (1, MOST, 4)
        np.testing.assert_allclose(found[0, :number], wanted[0], rtol=1e-5, atol=1e-6)
        assert classes[0, :number].tolist() == wanted[1]
        np.testing.assert_allclose(values[0, :number], wanted[2])
        assert not found[0, number:].any() and not values[0, number:].any()


def test_options_are_read_as_they_were_written():
    assert settings(options(True)) == {
        **{name: float(value) for name, value in NUMBERS.items()},
        **SCALES,
        "use_regular_nms": 1.0,
        "nms_score_threshold": pytest.approx(SCORE),
        "nms_iou_threshold": pytest.approx(OVERLAP),
    }


def test_damaged_options_are_refused():
    data, refused = options(False), 0
    for place in range(len(data)):
        for changed in (data[:place], data[:place] + b"\xff" + data[place + 1 :]):
            try:
                settings(changed)
            except UnsupportedError:
                refused += 1
    assert refused > len(data)


def test_missing_settings_are_named():
    with pytest.raises(FormatError, match=r"TFLite_Detection_PostProcess.*num_classes"):
        builder = flexbuffers.Builder()
        with builder.Map():
            builder.Int("max_detections", 3)
        nvdla.compile(model(np.ones((ANCHORS, 4), np.float32), bytes(builder.Finish())), "nv_small")
