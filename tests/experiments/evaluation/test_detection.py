"""Boxes and masks: decoders give back what heads encode, and the metrics are those of COCO and of plain counting."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.tflite_writer import FlatWriter

import nvdla
from nvdla.cli.main import main
from nvdla.errors import FormatError
from nvdla.experiments.evaluation import decoders, open_source
from nvdla.experiments.evaluation.decoders import average_precision, intersection_over_union

SHAPE = (3, 64, 96)
#: class, score, left, top, right, bottom
TRUTH = np.array([[1, 0.9, 10, 12, 42, 40], [0, 0.8, 50, 8, 90, 56], [1, 0.7, 12, 30, 30, 60.0]])


def logit(value: np.ndarray | float) -> np.ndarray:
    return np.log(value / (1 - np.asarray(value)))


def same_boxes(found: np.ndarray, expected: np.ndarray = TRUTH, within: float = 1e-3) -> None:
    order = np.argsort(-found[:, 1])
    assert found.shape == expected.shape
    assert np.abs(found[order] - expected).max() < within


def test_yolo_heads_give_back_the_boxes() -> None:
    anchors = (((20, 20), (40, 60)), ((64, 64), (90, 90)))
    heads = {}
    for grid, sizes in zip((8, 16), anchors, strict=True):
        height, width = SHAPE[1] // grid, SHAPE[2] // grid
        head = np.full((2, 7, height, width), -30.0)
        if grid == 8:
            for name, score, *corners in TRUTH:
                center = (np.array(corners[:2]) + corners[2:]) / 2 / grid
                column, row = np.floor(center).astype(int)
                size = np.array(corners[2:]) - corners[:2]
                anchor = int(np.abs(np.log(size / np.array(sizes))).sum(axis=1).argmin())
                head[anchor, :2, row, column] = logit((center - [column, row] + 0.5) / 2)
                head[anchor, 2:4, row, column] = logit(np.sqrt(size / np.array(sizes[anchor])) / 2)
                head[anchor, 4, row, column] = 30
                head[anchor, 5 + int(name), row, column] = logit(score)
        heads[f"head{grid}"] = head.reshape(1, 14, height, width)
    same_boxes(decoders.yolo(heads, SHAPE, anchors, score=0.1))
    with pytest.raises(FormatError, match=r"yolo: must be 3 outputs"):
        decoders.yolo(heads, SHAPE)


@pytest.mark.parametrize("is_new", [True, False])
def test_yolo_rows_give_back_the_boxes(is_new: bool) -> None:
    rows = np.zeros((40, 6 if is_new else 7))
    places = np.arange(3) * 9
    rows[places, :2], rows[places, 2:4] = (TRUTH[:, 2:4] + TRUTH[:, 4:]) / 2, TRUTH[:, 4:] - TRUTH[:, 2:4]
    if not is_new:
        rows[places, 4] = 1
    rows[places, (4 if is_new else 5) + TRUTH[:, 0].astype(int)] = TRUTH[:, 1]
    rows[places + 1] = rows[places] * 0.99  # overlap the boxes, with a lower score
    same_boxes(decoders.yolo_rows({"output0": (rows.T if is_new else rows)[None]}, SHAPE))


@pytest.mark.parametrize("y_first", [True, False])
def test_ssd_heads_give_back_the_boxes(y_first: bool) -> None:
    priors = decoders.ssd_priors()
    assert priors.shape == (1917, 4)  # of SSD MobileNet
    pixels = np.array([SHAPE[2], SHAPE[1]])
    deltas, scores = np.zeros((1917, 4)), np.zeros((1917, 3))
    for place, (name, score, *corners) in zip((100, 1200, 1500), TRUTH, strict=True):
        center, size = (
            (np.array(corners[:2]) + corners[2:]) / 2 / pixels,
            (np.array(corners[2:]) - corners[:2]) / pixels,
        )
        prior = priors[place]
        deltas[place] = [*((center - prior[:2]) / prior[2:] / 0.1), *(np.log(size / prior[2:]) / 0.2)]
        scores[place, 1 + int(name)] = score
    deltas = deltas[:, [1, 0, 3, 2]] if y_first else deltas
    outputs = {"scores": scores[None], "boxes": deltas[None]}
    same_boxes(decoders.ssd(outputs, SHAPE, y_first=y_first, score=0.5))
    with pytest.raises(FormatError, match="must be probabilities"):
        decoders.ssd({**outputs, "scores": scores[None] * 9}, SHAPE)


def test_dbnet_regions_are_those_that_touch() -> None:
    probability = np.zeros((1, 1, 32, 48))
    probability[0, 0, 4:12, 5:25] = 0.9
    probability[0, 0, 20:28, 30:40] = 0.7
    probability[0, 0, 12:20, 24] = 0.9  # joins the first region; its box is mostly empty
    expected = np.array([[0, 0.7, 60, 40, 80, 56.0]])
    same_boxes(decoders.dbnet({"map": probability}, SHAPE, unclip=0.0, score=0.6), expected)
    grown = decoders.dbnet({"map": probability}, SHAPE, score=0.6)
    distance = 1.5 * 80 / 36 * 2  # unclip times area by circumference, in pixels of the input
    assert grown[0, 2:] == pytest.approx([60 - distance, 40 - distance, 80 + distance, 56 + distance])


@pytest.mark.parametrize("seed", range(8))
def test_regions_equal_a_flood_fill(seed: int) -> None:
    mask = np.random.default_rng(seed).random((17, 23)) < 0.3 + seed / 20
    left, bounds = {tuple(place) for place in np.argwhere(mask).tolist()}, []
    while left:
        region, border = set(), {left.pop()}
        while border:
            region |= border
            around = {(y + dy, x + dx) for y, x in border for dy in (-1, 0, 1) for dx in (-1, 0, 1)}
            border = around & left
            left -= border
        ys, xs = zip(*region, strict=True)
        bounds.append((min(ys), min(xs), max(ys) + 1, max(xs) + 1))
    assert sorted(decoders._regions(mask)) == sorted(bounds)


def test_average_precision_is_that_of_coco() -> None:
    pytest.importorskip("pycocotools")
    truth = np.array([[0, 0.1, 0.1, 0.4, 0.4, 0], [1, 0.5, 0.5, 0.9, 0.9, 0]])
    boxes = np.array([[0, 0.9, 0.1, 0.1, 0.4, 0.4], [1, 0.8, 0.5, 0.5, 0.9, 0.9]])
    assert average_precision([(truth, boxes)]) == pytest.approx({"map": 1, "map50": 1, "map75": 1})
    assert average_precision([(truth, boxes[:1])])["map"] == pytest.approx(0.5)  # one class of two
    narrower = boxes - [0, 0, 0, 0, 0.3 * 0.35, 0]  # IoU 0.65 and 0.7375
    assert average_precision([(truth, narrower)])["map50"] == pytest.approx(1)
    assert average_precision([(truth, narrower)])["map75"] == pytest.approx(0)
    crowd = truth + np.array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]])
    assert average_precision([(crowd, boxes)])["map"] == pytest.approx(1)  # a box in a crowd does not count
    assert average_precision([(truth, boxes[:0])])["map"] == 0


def test_intersection_over_union_is_that_of_sets() -> None:
    rng = np.random.default_rng(3)
    mask, classes = rng.integers(0, 3, (20, 30)), rng.integers(0, 3, (20, 30))
    mask[0] = 255
    cells = {(label, other): count for label, other, count in decoders.cells_document(classes, mask, "x")}
    found = intersection_over_union(cells, ["a", "b", "c"])
    counted = mask != 255
    ratios = [
        np.sum((mask == number) & (classes == number)) / np.sum(((mask == number) | (classes == number)) & counted)
        for number in range(3)
    ]
    assert found["miou"] == pytest.approx(np.mean(ratios))
    assert [row["iou"] for row in found["classes"]] == pytest.approx(ratios)
    assert found["pixel_accuracy"] == pytest.approx((mask == classes)[counted].mean())
    coarse = np.arange(6).reshape(2, 3)
    fine = np.repeat(np.repeat(coarse, 4, axis=0), 5, axis=1)
    assert all(label == other for label, other, _ in decoders.cells_document(coarse, fine, "x"))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two outputs: bright pixels (probability), and the classes dark and bright; compiled for int8."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    folder = tmp_path_factory.mktemp("heads")
    weights = np.array([[8.0], [-4.0], [4.0]], np.float32).reshape(3, 1, 1, 1)
    bias = np.array([-4.0, 2.0, -2.0], np.float32)
    constants = [
        numpy_helper.from_array(array, name)
        for name, array in (("w0", weights[:1]), ("b0", bias[:1]), ("w1", weights[1:]), ("b1", bias[1:]))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["text"]),
        helper.make_node("Conv", ["x", "w1", "b1"], ["classes"]),
    ]
    info = helper.make_tensor_value_info
    ends = [
        [info("x", TensorProto.FLOAT, [1, 1, 32, 48])],
        [
            info("text", TensorProto.FLOAT, [1, 1, 32, 48]),
            info("classes", TensorProto.FLOAT, [1, 2, 32, 48]),
        ],
    ]
    graph = helper.make_graph(nodes, "heads", *ends, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")
    from PIL import Image

    rng, annotations = np.random.default_rng(1), []
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for number in range(6):
        left, top = rng.integers(2, 14, 2).tolist()
        mask = np.zeros((32, 48), np.uint8)
        for x in (left, left + 20):
            mask[top : top + 8, x : x + 12] = 1
            annotations.append({"image_id": number, "category_id": 7, "bbox": [x, top, 12, 8], "id": len(annotations)})
        Image.fromarray(mask * 255).save(folder / "images" / f"{number}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
    rows = [{"id": number, "file_name": f"{number}.png", "width": 48, "height": 32} for number in range(6)]
    document = {"images": rows, "annotations": annotations, "categories": [{"id": 7, "name": "text"}]}
    (folder / "boxes.json").write_text(json.dumps(document))
    (folder / "heads_of_mine.py").write_text(
        "from nvdla.experiments.evaluation.decoders import argmax, dbnet\n"
        "def decode(outputs, shape):\n    return dbnet({'map': outputs['text']}, shape, unclip=0.0)\n"
        "def classes(outputs, shape):\n    return argmax({'classes': outputs['classes']}, shape)\n"
        "def bright(decoded, label):\n    return float((decoded == label).mean())\n"
        "def broken(outputs, shape):\n    return outputs['none']\n"
    )
    words = [folder / "net.onnx", "--calibrate", folder / "images", "--scale", 1 / 255, "-o", folder / "net.out", "-q"]
    assert main(["compile", *map(str, words)]) == 0
    return folder


@pytest.fixture
def measured(network: Path, capsys: pytest.CaptureFixture[str], as_documented: Callable) -> Callable[..., dict]:
    """The summary of an evaluation, which its schema describes."""

    def run(*words: str) -> dict:
        capsys.readouterr()
        given = ["evaluate", "net.out", "images", "--against", "net.onnx", "--workers", "1", *words, "--json"]
        assert main(given) == 0
        document = json.loads(capsys.readouterr().out)
        as_documented(document)
        return document["summary"]

    return run


def test_boxes_of_coco_from_end_to_end(network: Path, measured, capsys, monkeypatch) -> None:
    pytest.importorskip("pycocotools")
    monkeypatch.chdir(network)
    words = ("--labels", "boxes.json", "--metric", "map", "--decoder", "heads_of_mine:decode")
    summary = measured(*words)
    assert summary["samples"] == 6
    assert summary["detection"]["map"] == summary["float"]["detection"]["map"] == pytest.approx(1)
    rows = [{"path": f"images/{n}.png", "label": [[0, 0, 0, 0.1, 0.1]]} for n in range(6)]
    (network / "list.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["evaluate", "net.out", "list.jsonl", "--workers", "1", *words[2:]]) == 0
    assert re.search(r"mAP \(IoU 0.50 to 0.95\)\s+0\.0000", capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["loadable", "package"])
@pytest.mark.parametrize("channels", [3, 16])
def test_decoders_take_outputs_of_tflite_models_by_name_with_channels_first(channels, kind, tmp_path, monkeypatch):
    """As a loadable and as a package, and those of the model itself."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(6)
    writer = FlatWriter()
    writer.tensor((1, 8, 6, channels), "int8", 0.02, 0, name="data")
    writer.constant(rng.integers(-50, 50, (4, 1, 1, channels), np.int8), 0.05)
    writer.constant(np.zeros(4, np.int32), 0.001)
    writer.tensor((1, 8, 6, 4), "int8", 0.08, 0, name="mask")
    writer.operator("CONV_2D", [0, 1, 2], [3], padding=1, stride_w=1, stride_h=1)
    Path("net.tflite").write_bytes(writer.model([0], [3]))
    compiled = nvdla.compile("net.tflite")
    if kind == "loadable":
        compiled.save("net.out")
    else:
        Path("net.out").write_bytes(compiled.package)
    images = rng.normal(size=(5, 8, 6, channels)).astype(np.float32)
    masks = compiled.run(images)["mask"].argmax(-1)
    Path("heads_of_tflite.py").write_text(
        "import numpy as np\n"
        "def classes(outputs, shape):\n"
        f"    assert outputs['mask'].shape == (1, 4, 8, 6) and tuple(shape) == ({channels}, 8, 6), shape\n"
        "    return outputs['mask'][0].argmax(0)\n"
    )
    np.savez("data.npz", images=images, labels=masks)
    for number, words in enumerate((["--decoder", "heads_of_tflite:classes"], [])):
        given = ["evaluate", "net.out", "data.npz", "--metric", "miou", "--against", "net.tflite", *words]
        assert main([*given, "--workers", "1", "--output", f"result{number}.json"]) == 0
        summary = json.loads(Path(f"result{number}.json").read_text())["summary"]
        assert summary["segmentation"]["pixel_accuracy"] == 1
        assert summary["float"]["segmentation"]["pixel_accuracy"] > 0.97


@pytest.mark.parametrize("kind", ["loadable", "package"])
def test_classes_as_labels_of_an_output_with_one_number_are_refused(kind, tmp_path, monkeypatch, capsys) -> None:
    """The first of two outputs has no classes: an accuracy would be that of label 0. --judge names the other one."""
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    helper, rng = onnx.helper, np.random.default_rng(8)
    shapes = {"data": [1, 3, 4, 4], "size": [1, 1, 1, 1], "kind": [1, 4, 1, 1]}
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    nodes = [helper.make_node("Conv", ["data", f"w{count}"], [name]) for name, count in (("size", 1), ("kind", 4))]
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=(count, 3, 4, 4)).astype(np.float32), f"w{count}")
        for count in (1, 4)
    ]
    graph = helper.make_graph(nodes, "two", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    images = rng.normal(size=(8, 3, 4, 4)).astype(np.float32)
    compiled = nvdla.compile(model, calibration=images)
    if kind == "loadable":
        compiled.save("net.out")
    else:
        Path("net.out").write_bytes(compiled.package)
    np.savez("data.npz", images=images, labels=np.arange(8) % 2)
    assert main(["evaluate", "net.out", "data.npz", "--workers", "1"]) == 2
    error = capsys.readouterr().err
    assert "must not be a class, because output size has one number" in error
    assert "judges output size; --judge NAME chooses another output (kind)" in error
    Path("net.onnx").write_bytes(model.SerializeToString())
    (wanted,) = onnxruntime.InferenceSession("net.onnx").run(["kind"], {"data": images[:1]})[:1]
    np.savez("data.npz", images=images[:1], labels=[int(np.argmax(wanted))])
    words = "evaluate", "net.out", "data.npz", "--judge", "kind", "--against", "net.onnx", "--workers", "1", "--json"
    assert main(list(words)) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert summary["top1"]["value"] == summary["float"]["top1"]["value"] == 1 and summary["float"]["snr_db"] > 25
    assert main(["evaluate", "net.out", "data.npz", "--judge", "box"]) == 2
    assert "output to judge: must be one of size, kind, got box" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["loadable", "package"])
def test_metrics_take_real_numbers(kind, network, tmp_path, monkeypatch) -> None:
    """Those of a loadable are its elements times the scale."""
    monkeypatch.chdir(tmp_path)
    Path("my_means.py").write_text("def largest(output, label):\n    return float(abs(output).max())\n")
    compiled = nvdla.compile(str(network / "net.onnx"), calibration=str(network / "images"))
    if kind == "loadable":
        compiled.save("net.out")
    else:
        Path("net.out").write_bytes(compiled.package)
    images = np.random.default_rng(0).uniform(0, 255, (4, 1, 32, 48)).astype(np.float32)
    np.savez("data.npz", images=images, labels=np.zeros(4, int))
    words = ["evaluate", "net.out", "data.npz", "--metric", "my_means:largest", "--workers", "1", "--output", "r.json"]
    assert main(words) == 0
    first = next(iter(compiled.run(images).values()))
    expected = np.abs(first.reshape(4, -1)).max(axis=1).mean()
    assert json.loads(Path("r.json").read_text())["summary"]["metric"]["value"] == pytest.approx(expected, rel=1e-5)


def test_decoders_take_outputs_of_a_loadable_in_the_shapes_of_the_model(tmp_path, monkeypatch) -> None:
    """Behind a node that needs no operation: its name and its shape, not those of the node before it."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    nodes = [
        onnx.helper.make_node("Conv", ["data", "weights"], ["maps"]),
        onnx.helper.make_node("Reshape", ["maps", "sizes"], ["rows"]),
    ]
    weights = onnx.numpy_helper.from_array(rng.normal(size=(8, 3, 1, 1)).astype(np.float32), "weights")
    sizes = onnx.numpy_helper.from_array(np.array([1, 2, 4, -1]), "sizes")
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("data", [1, 3, 4, 6]), ("rows", [1, 2, 4, 24]))
    ]
    graph = onnx.helper.make_graph(nodes, "rows", ends[:1], ends[1:], [weights, sizes])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    images = rng.normal(size=(8, 3, 4, 6)).astype(np.float32)
    nvdla.compile("net.onnx", calibration=images).save("net.out")
    np.savez("data.npz", images=images, labels=np.zeros(8, int))
    Path("heads_of_rows.py").write_text(
        "def rows(outputs, shape):\n    return outputs['rows']\n"
        "def score(rows, label):\n    assert rows.shape == (1, 2, 4, 24)\n    return float((rows**2).sum())\n"
    )
    words = ["--metric", "heads_of_rows:score", "--decoder", "heads_of_rows:rows", "--against", "net.onnx"]
    assert main(["evaluate", "net.out", "data.npz", *words, "--workers", "1", "--output", "result.json"]) == 0
    summary = json.loads(Path("result.json").read_text())["summary"]
    assert summary["metric"]["value"] == pytest.approx(summary["float"]["metric"]["value"], rel=0.02)


def test_masks_from_end_to_end(network: Path, measured, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(network)
    words = ("--labels", "masks", "--metric", "miou", "--decoder", "heads_of_mine:classes")
    page = tmp_path / "page.html"
    summary = measured(*words, "--report", str(page))
    assert summary["segmentation"]["miou"] == summary["float"]["segmentation"]["miou"] == 1
    assert [row["pixels"] for row in summary["segmentation"]["classes"]] == [6 * (32 * 48 - 192), 6 * 192]
    assert "mean IoU" in page.read_text()
    summary = measured("--labels", "masks", "--metric", "heads_of_mine:bright", *words[4:])
    assert summary["metric"]["value"] == summary["float"]["metric"]["value"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metric", "map"), "--metric map: --decoder: must be MODULE:FUNCTION, got none"),
        (("--decoder", "heads_of_mine:decode"), "--metric: must be map, miou or MODULE:FUNCTION, got none"),
        (("--metric", "map", "--decoder", "heads_of_mine:broken"), "heads_of_mine:broken of sample 0.png: KeyError"),
        (("--metric", "map", "--decoder", "heads_of_mine:classes"), "boxes: must be finite numbers (N, 6), got 32x48"),
        (("--metric", "miou", "--resize", "32", "--crop", "32"), "--metric miou: --crop: must be 0"),
        (("--metric", "miou", "--decoder", "heads_of_mine:classes"), "mask: must be integers (H, W), got float64 2x6"),
    ],
)
def test_wrong_decoders_are_refused(network: Path, capsys, monkeypatch, words: tuple[str, ...], message: str) -> None:
    monkeypatch.chdir(network)
    assert main(["evaluate", "net.out", "images", "--labels", "boxes.json", "--workers", "1", *words]) == 2
    assert message in capsys.readouterr().err


def test_wrong_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="in fractions of the picture"):
        decoders.truth_document([0, 3, 4, 50, 60], "x")
    with pytest.raises(FormatError, match=r"must be boxes \(N, 5\)"):
        decoders.truth_document([0, 3, 4], "x")
    (tmp_path / "a.pgm").write_bytes(b"P5\n1 1\n255\n0")
    (tmp_path / "b").mkdir()
    with pytest.raises(FormatError, match="mask: must be one file per image, got none for a"):
        open_source(tmp_path, str(tmp_path / "b"))
    (tmp_path / "b" / "x.json").write_text('{"images": []}')
    with pytest.raises(FormatError, match="must be an annotation file of COCO"):
        open_source(tmp_path, str(tmp_path / "b" / "x.json"))
