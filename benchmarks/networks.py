"""The benchmark networks: one list of layers makes both the loadable and the ONNX model it is compared with.

Weights are random (seeded, He's scale), so that values neither vanish nor saturate; speed does not depend on them.
The layers are those of Caffe's models, which NVIDIA's compiler takes: ResNet-50 strides in the first 1x1 convolution of
a stage, pooling windows reach over the lower and right border.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvdla.compiler.builder import Built, Network, NetworkTensor, build, calibrate

# Pads of a 3x3 pooling with stride 2 that rounds up: one row and one column at the end.
CEIL = (0, 1, 0, 1)


class Maker:
    """A network under construction with random weights."""

    def __init__(self, name: str, shape: tuple[int, int, int]) -> None:
        self.net = Network(name)
        self.random = np.random.default_rng(7)
        self.data = self.net.input("data", shape)

    def conv(
        self, name: str, x: NetworkTensor, kernels: int, size: int, stride: int = 1, pad: int = 0, groups: int = 1
    ) -> NetworkTensor:
        fan_in = x.shape[0] // groups * size * size
        weights = self.random.standard_normal((kernels, x.shape[0] // groups, size, size)) * np.sqrt(2 / fan_in)
        bias = self.random.standard_normal(kernels) * 0.05
        return self.net.convolution(name, x, weights, bias, stride=stride, padding=pad, groups=groups)

    def conv_relu(self, name: str, x: NetworkTensor, *shape: int, **settings: int) -> NetworkTensor:
        return self.net.relu(name + "_relu", self.conv(name, x, *shape, **settings))

    def full(self, name: str, x: NetworkTensor, kernels: int) -> NetworkTensor:
        size = int(np.prod(x.shape))
        weights = self.random.standard_normal((kernels, size)) * np.sqrt(2 / size)
        return self.net.fully_connected(name, x, weights, np.zeros(kernels))

    def done(self, x: NetworkTensor) -> Network:
        self.net.output(x)
        return self.net


def resnet50() -> Network:
    m = Maker("resnet50", (3, 224, 224))
    x = m.net.max_pool("pool1", m.conv_relu("conv1", m.data, 64, 7, stride=2, pad=3), 3, 2, CEIL)
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 2):
        for block in range(blocks):
            name, stride = f"res{stage}{chr(ord('a') + block)}", 2 if block == 0 and stage > 2 else 1
            side = m.conv(name + "_1", x, 4 * width, 1, stride=stride) if block == 0 else x
            y = m.conv_relu(name + "_2a", x, width, 1, stride=stride)
            y = m.conv_relu(name + "_2b", y, width, 3, pad=1)
            x = m.net.relu(name, m.net.add(name + "_sum", m.conv(name + "_2c", y, 4 * width, 1), side))
    return m.done(m.full("fc1000", m.net.global_average_pool("pool5", x), 1000))


def resnet18() -> Network:
    m = Maker("resnet18", (3, 224, 224))
    x = m.net.max_pool("pool1", m.conv_relu("conv1", m.data, 64, 7, stride=2, pad=3), 3, 2, CEIL)
    for stage, width in enumerate((64, 128, 256, 512), 2):
        for block in range(2):
            name, stride = f"res{stage}{chr(ord('a') + block)}", 2 if block == 0 and stage > 2 else 1
            side = m.conv(name + "_1", x, width, 1, stride=stride) if stride == 2 else x
            y = m.conv_relu(name + "_2a", x, width, 3, stride=stride, pad=1)
            x = m.net.relu(name, m.net.add(name + "_sum", m.conv(name + "_2b", y, width, 3, pad=1), side))
    return m.done(m.full("fc1000", m.net.global_average_pool("pool5", x), 1000))


# Inception blocks of GoogLeNet: 1x1, 3x3 reduced and full, 5x5 reduced and full, projection after the pooling.
INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet() -> Network:
    m = Maker("googlenet", (3, 224, 224))
    x = m.net.max_pool("pool1", m.conv_relu("conv1", m.data, 64, 7, stride=2, pad=3), 3, 2, CEIL)
    x = m.conv_relu("conv2_reduce", m.net.lrn("norm1", x), 64, 1)
    x = m.net.lrn("norm2", m.conv_relu("conv2", x, 192, 3, pad=1))
    x = m.net.max_pool("pool2", x, 3, 2, CEIL)
    for name, (one, reduce3, three, reduce5, five, project) in INCEPTION.items():
        if name in ("4a", "5a"):
            x = m.net.max_pool(f"pool{name[0]}", x, 3, 2, CEIL)
        a = m.conv_relu(f"i{name}_1x1", x, one, 1)
        b = m.conv_relu(f"i{name}_3x3", m.conv_relu(f"i{name}_3x3_reduce", x, reduce3, 1), three, 3, pad=1)
        c = m.conv_relu(f"i{name}_5x5", m.conv_relu(f"i{name}_5x5_reduce", x, reduce5, 1), five, 5, pad=2)
        d = m.conv_relu(f"i{name}_project", m.net.max_pool(f"i{name}_pool", x, 3, 1, 1), project, 1)
        x = m.net.concat(f"i{name}", a, b, c, d)
    return m.done(m.full("fc1000", m.net.global_average_pool("pool6", x), 1000))


def squeezenet() -> Network:
    """SqueezeNet 1.1."""
    m = Maker("squeezenet", (3, 227, 227))
    x = m.net.max_pool("pool1", m.conv_relu("conv1", m.data, 64, 3, stride=2), 3, 2)
    for number, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 2):
        if number in (4, 6):
            x = m.net.max_pool(f"pool{number - 1}", x, 3, 2)
        squeezed = m.conv_relu(f"fire{number}_squeeze", x, width, 1)
        a = m.conv_relu(f"fire{number}_1x1", squeezed, 4 * width, 1)
        b = m.conv_relu(f"fire{number}_3x3", squeezed, 4 * width, 3, pad=1)
        x = m.net.concat(f"fire{number}", a, b)
    return m.done(m.net.global_average_pool("pool10", m.conv_relu("conv10", x, 1000, 1)))


def alexnet() -> Network:
    m = Maker("alexnet", (3, 227, 227))
    x = m.net.lrn("norm1", m.conv_relu("conv1", m.data, 96, 11, stride=4))
    x = m.net.max_pool("pool1", x, 3, 2)
    x = m.net.lrn("norm2", m.conv_relu("conv2", x, 256, 5, pad=2, groups=2))
    x = m.net.max_pool("pool2", x, 3, 2)
    x = m.conv_relu("conv3", x, 384, 3, pad=1)
    x = m.conv_relu("conv4", x, 384, 3, pad=1, groups=2)
    x = m.net.max_pool("pool5", m.conv_relu("conv5", x, 256, 3, pad=1, groups=2), 3, 2)
    x = m.net.relu("relu6", m.full("fc6", x, 4096))
    x = m.net.relu("relu7", m.full("fc7", x, 4096))
    return m.done(m.full("fc8", x, 1000))


def lenet() -> Network:
    m = Maker("lenet", (1, 28, 28))
    x = m.net.max_pool("pool1", m.conv("conv1", m.data, 20, 5), 2)
    x = m.net.max_pool("pool2", m.conv("conv2", x, 50, 5), 2)
    return m.done(m.full("ip2", m.net.relu("relu1", m.full("ip1", x, 500)), 10))


# Blocks of MobileNetV3-small: kernel, expanded and resulting channels, squeeze and excite, hard swish, stride.
BLOCKS = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


def _hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x / 6 + 0.5, 0, 1)


def mobilenetv3() -> Network:
    """MobileNetV3-small."""
    m = Maker("mobilenetv3", (3, 224, 224))

    def act(name: str, x: NetworkTensor, hard: bool = True) -> NetworkTensor:
        return m.net.function(name, x, lambda v: v * _hard_sigmoid(v)) if hard else m.net.relu(name, x)

    x = act("conv1_act", m.conv("conv1", m.data, 16, 3, stride=2, pad=1))
    for number, (size, wide, kernels, squeezes, hard, stride) in enumerate(BLOCKS):
        name, y = f"block{number}", x
        if wide != x.shape[0]:
            y = act(f"{name}_wide_act", m.conv(f"{name}_wide", y, wide, 1), hard)
        y = m.conv(f"{name}_each", y, wide, size, stride=stride, pad=size // 2, groups=wide)
        y = act(f"{name}_each_act", y, hard)
        if squeezes:
            gate = m.conv_relu(f"{name}_squeeze", m.net.mean(f"{name}_mean", y), max(wide // 32 * 8, 8), 1)
            gate = m.net.function(f"{name}_gate", m.conv(f"{name}_excite", gate, wide, 1), _hard_sigmoid)
            y = m.net.multiply(f"{name}_product", y, m.net.upsample(f"{name}_gates", gate, y.shape[1:]))
        y = m.conv(f"{name}_narrow", y, kernels, 1)
        x = m.net.add(name, x, y) if stride == 1 and kernels == x.shape[0] else y
    x = act("last_act", m.conv("last", x, 576, 1))
    x = act("fc1_act", m.full("fc1", m.net.global_average_pool("pool", x), 1024))
    return m.done(m.full("fc2", x, 1000))


NETWORKS: dict[str, Callable[[], Network]] = {
    made.__name__: made for made in (resnet50, resnet18, googlenet, squeezenet, alexnet, lenet, mobilenetv3)
}


def built(network: Network, config: str, precision: str = "int8") -> Built:
    """The loadable, calibrated with one random image."""
    if precision == "fp16":
        return build(network, config, precision)
    image = np.random.default_rng(1).standard_normal((1, *network.inputs[0].shape))
    return build(network, config, precision, calibrate(network, image))


def multiplications(network: Network) -> int:
    """Multiplications of all convolutions for one image, with groups."""
    layers = [layer for layer in network.layers if layer.kind == "convolution"]
    return sum(layer.settings.weights[0].size * int(np.prod(layer.output.shape)) for layer in layers)
