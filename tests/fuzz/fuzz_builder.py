"""Fuzz target: a small network, described by bytes, is built, verified, linted and run: an NvdlaError or its numbers.

Each byte is a choice (a layer, a size, a setting, often one that cannot be); bytes that are missing are 0. What is
built must be a loadable that verifies, in which lint finds no error, and that gives the integer reference's numbers bit
for bit (fp16: as near as fp16 is).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import nvdla
from nvdla.checks.lint import lint
from nvdla.compiler.builder import Calibration, Network, NetworkTensor, SearchLimits, build, calibrate, floating
from nvdla.errors import NvdlaError

CONFIGS = ("nv_small", "nv_large", "nv_full", "nv_small_256", "nv_medium_512")
PRECISIONS = ("int8", "int8", "fp16", "int16")
FORMATS = ("auto", "image", "feature")
LAYERS = 6
ELEMENTS = 4096  # of a tensor: larger ones tell nothing more


class Choices:
    """The input, a byte at a time."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``."""
        value = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return low + value % (high - low + 1)

    def one_of(self, things: Any) -> Any:
        """One of a sequence."""
        return things[self.number(0, len(things) - 1)]

    def numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        """Random numbers of a shape, scaled so that values neither vanish nor explode."""
        scale = float(np.sqrt(2 / max(np.prod(shape[1:]), 1)))
        random = np.random.default_rng(self.number(0, 255)).standard_normal(shape)
        return random * scale * (0.0 if self.number(0, 15) == 15 else 1.0)

    def pads(self) -> Any:
        """A padding: none in most cases."""
        return tuple(self.number(0, 2) for _ in range(4)) if self.number(0, 2) == 2 else self.number(0, 1)

    def shape(self) -> tuple[int, int, int]:
        """A shape that is small."""
        return self.number(1, 20), self.number(1, 9), self.number(1, 9)


def convolution(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    groups = c.one_of((1, 1, 1, 2, x.shape[0]))
    kernels = c.number(1, 20) * (groups if c.number(0, 3) else 1)
    weights = c.numbers((kernels, max(x.shape[0] // groups, 1), c.number(1, 4), c.number(1, 4)))
    bias = c.numbers((kernels,)) if c.number(0, 1) else None
    stride, dilation = (c.number(1, 3), c.number(1, 2)), (c.number(1, 2), 1)
    return net.convolution(name, x, weights, bias, stride, c.pads(), dilation, groups)


def deconvolution(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    weights = c.numbers((x.shape[0], c.number(1, 12), c.number(1, 4), c.number(1, 4)))
    return net.deconvolution(name, x, weights, None, (c.number(1, 3), c.number(1, 3)), c.pads())


def pool(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    make = c.one_of((net.max_pool, net.average_pool, net.min_pool))
    return make(name, x, (c.number(1, 4), c.number(1, 4)), c.number(1, 3), c.pads())


def elementwise(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    same = [each for each in tensors(net) if each.shape == x.shape]
    return c.one_of((net.add, net.multiply, net.maximum, net.minimum))(name, x, c.one_of(same))


def concat(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    return net.concat(name, x, c.one_of(tensors(net)), axis=c.number(0, 2))


def per_channel(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    values = c.numbers((x.shape[0],))
    return c.one_of((net.scale, net.bias, net.prelu))(name, x, values)


def activation(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    return c.one_of((net.relu, net.sigmoid, net.tanh, net.clip, net.softmax, net.global_average_pool))(name, x)


def part(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    channels = c.number(0, 3), c.number(1, 16)
    return net.slice(name, x, channels, (c.number(0, 2), c.number(1, 2), c.number(1, 4)))


def border(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    return net.pad(name, x, c.pads(), c.number(0, 4) - 2.0)


def upsample(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    return net.upsample(name, x, (c.number(1, 3), c.number(1, 3)))


def lrn(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    return net.lrn(name, x, c.number(1, 10))


def connected(net: Network, name: str, c: Choices, x: NetworkTensor) -> NetworkTensor:
    return net.fully_connected(name, x, c.numbers((c.number(1, 20), int(np.prod(x.shape)))))


Make = Callable[[Network, str, Choices, NetworkTensor], NetworkTensor]
KINDS: tuple[Make, ...] = (
    convolution, convolution, pool, elementwise, activation, per_channel, concat, deconvolution, part, border, upsample,
    lrn, connected,
)  # fmt: skip


def tensors(net: Network) -> list[NetworkTensor]:
    """Every tensor so far."""
    return [*net.inputs, *(layer.output for layer in net.layers)]


def network(c: Choices) -> Network:
    """A network of a few layers, each on one of the tensors so far, mostly the last."""
    net = Network("fuzzed")
    for number in range(c.one_of((1, 1, 1, 2))):
        net.input(f"in{number}", c.shape())
    for number in range(c.number(1, LAYERS)):
        made = tensors(net)
        source = made[-1] if c.number(0, 3) else c.one_of(made)
        made_now = c.one_of(KINDS)(net, f"layer{number}", c, source)
        if int(np.prod(made_now.shape)) > ELEMENTS:
            break
    net.output(tensors(net)[-1])
    return net


def one_input(data: bytes) -> None:
    """Build, verify, lint, run."""
    c = Choices(data)
    config, precision, level, form = c.one_of(CONFIGS), c.one_of(PRECISIONS), c.number(0, 1), c.one_of(FORMATS)
    per_kernel = c.number(0, 3) == 3
    try:
        net = network(c)
        random = np.random.default_rng(c.number(0, 255))
        more = back_end(c, level)
        samples = {each.name: random.standard_normal((more["images"] + 1, *each.shape)) for each in net.inputs}
        table = None if precision == "fp16" else calibrated(c, net, samples)
        built = build(net, config, precision, table, per_kernel, input_format=form, **more)
    except NvdlaError:
        return
    check(built, config, precision, {name: each[: more["images"]] for name, each in samples.items()})


def back_end(c: Choices, level: int) -> dict[str, Any]:
    """A batch, CVSRAM and level 2 with a short search: one of eight each."""
    images = c.one_of((1, 1, 1, 1, 1, 1, 2, 3))
    cvsram = c.one_of((0, 0, 0, 0, 0, 0, 0, 1 << 12))
    search = SearchLimits(steps=3) if c.number(0, 7) == 7 else None
    return {"images": images, "cvsram": cvsram, "level": 2 if search else level, "search": search}


def calibrated(c: Choices, net: Network, samples: dict[str, np.ndarray]) -> Calibration:
    """Magnitudes of all tensors; every second time ranges, too, from which zero points come."""
    table = calibrate(net, samples)
    if c.number(0, 1) == 0:
        return table
    values = floating.run(net, samples)
    ends = {
        each.name: (min(float(values[each.name].min()), 0.0), float(values[each.name].max())) for each in net.inputs
    }
    return replace(table, zero_points=True, ranges=ends if c.number(0, 1) else {})


def check(built: Any, config: str, precision: str, sample: dict[str, np.ndarray]) -> None:
    """What is built must hold what it promises: here nothing may be refused any more."""
    loadable = nvdla.load(built.loadable.to_bytes())
    findings = [str(each) for each in lint(loadable, config).findings if each.severity == "error"]
    if findings:
        raise AssertionError(f"lint: {findings[0]}")
    elements = built.quantize_inputs(sample)
    actual, expected = nvdla.Runtime(loadable, config).run(elements), built.expected(elements)
    for name, wanted in expected.items():
        if precision == "fp16":
            largest = max(float(np.abs(wanted.astype(np.float64)).max()), 1.0)
            difference = np.abs(actual[name].astype(np.float64) - wanted.astype(np.float64))
            if not difference.max() <= 0.03 * largest:
                raise AssertionError(f"{name}: {difference.max()} off its reference, of {largest}")
        elif not np.array_equal(actual[name].reshape(wanted.shape), wanted):
            raise AssertionError(f"{name}: {int((actual[name] != wanted).sum())} of {wanted.size} elements differ")
