"""Random networks: 3 to 8 layers of odd shapes, as a hypothesis strategy."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from nvdla.compiler.builder import Network, NetworkTensor


class _Growing:
    """A network under construction: every step adds a layer on some tensor that fits."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.net = Network("random")
        self.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        size = st.integers(1, 13)
        self.tensors = [self.net.input("in0", (draw(st.integers(1, 40)), draw(size), draw(size)))]
        self.count = 0

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, max(low, high)))

    def weights(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape)

    def grow(self) -> NetworkTensor:
        source = self.draw(st.sampled_from(self.tensors[-3:]))
        step = self.draw(st.sampled_from(STEPS))
        self.count += 1
        result = step(self, f"layer{self.count}", source)
        self.tensors.append(result)
        return result


def _convolution(g: _Growing, name: str, x: NetworkTensor) -> NetworkTensor:
    channels, height, width = x.shape
    rows, columns = g.number(1, min(height, 5)), g.number(1, min(width, 5))
    pads = (g.number(0, rows - 1), g.number(0, rows - 1), g.number(0, columns - 1), g.number(0, columns - 1))
    kernels = g.number(1, 40)
    stride = (g.number(1, 3), g.number(1, 3))
    weights = g.weights(kernels, channels, rows, columns)
    return g.net.convolution(name, x, weights, g.weights(kernels), stride, pads)


def _depthwise(g: _Growing, name: str, x: NetworkTensor) -> NetworkTensor:
    size = g.number(1, min(3, *x.shape[1:]))
    return g.net.depthwise(name, x, g.weights(x.shape[0], 1, size, size), g.weights(x.shape[0]), padding=size // 2)


def _dense(g: _Growing, name: str, x: NetworkTensor) -> NetworkTensor:
    if max(x.shape[1:]) > 20:
        return g.net.relu(name, x)
    kernels = g.number(1, 50)
    return g.net.fully_connected(name, x, g.weights(kernels, int(np.prod(x.shape))), g.weights(kernels))


def _pool(g: _Growing, name: str, x: NetworkTensor) -> NetworkTensor:
    kernel = (g.number(1, x.shape[1]), g.number(1, x.shape[2]))
    pads = (0, g.number(0, min(kernel[0] - 1, 2)), g.number(0, min(kernel[1] - 1, 2)), 0)
    form = g.draw(st.sampled_from([g.net.max_pool, g.net.min_pool]))
    return form(name, x, kernel, (g.number(1, 3), g.number(1, 3)), pads)


def _average(g: _Growing, name: str, x: NetworkTensor) -> NetworkTensor:
    kernel = (g.number(1, min(8, x.shape[1])), g.number(1, min(8, x.shape[2])))
    return g.net.average_pool(name, x, kernel, (g.number(1, 3), g.number(1, 3)))


def _alike(g: _Growing, name: str, x: NetworkTensor) -> NetworkTensor:
    """An elementwise layer with a tensor of the same shape, a new one if there is none."""
    others = [t for t in g.tensors if t.shape == x.shape and t is not x]
    other = g.draw(st.sampled_from(others)) if others else g.net.scale(f"{name}b", x, g.weights(x.shape[0]))
    form = g.draw(st.sampled_from([g.net.add, g.net.multiply, g.net.maximum, g.net.minimum]))
    return form(name, x, other)


def _concat(g: _Growing, name: str, x: NetworkTensor) -> NetworkTensor:
    others = [t for t in g.tensors if t.shape[1:] == x.shape[1:] and t is not x]
    if not others:
        others = [g.net.relu(f"{name}b", x)]
    return g.net.concat(name, x, g.draw(st.sampled_from(others)))


def _deconvolution(g: _Growing, name: str, x: NetworkTensor) -> NetworkTensor:
    rows, columns, kernels = g.number(1, 4), g.number(1, 4), g.number(1, 12)
    stride = (g.number(1, 3), g.number(1, 3))
    return g.net.deconvolution(name, x, g.weights(x.shape[0], kernels, rows, columns), g.weights(kernels), stride)


STEPS = (
    _convolution,
    _convolution,
    _depthwise,
    _dense,
    _pool,
    _average,
    _alike,
    _concat,
    _deconvolution,
    lambda g, name, x: g.net.relu(name, x),
    lambda g, name, x: g.net.prelu(name, x, g.weights(x.shape[0])),
    lambda g, name, x: g.net.clip(name, x, -1.0, 2.0),
    lambda g, name, x: g.net.scale(name, x, g.weights(x.shape[0]), g.weights(x.shape[0])),
    lambda g, name, x: g.net.sigmoid(name, x),
    lambda g, name, x: g.net.upsample(name, x, (g.number(1, 2), g.number(1, 3))),
    lambda g, name, x: g.net.lrn(name, x, g.draw(st.sampled_from([3, 5, 7, 9])), 0.5),
)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """A network whose unused ends are its outputs."""
    growing = _Growing(draw)
    for _ in range(draw(st.integers(3, 8))):
        if max(growing.tensors[-1].shape[1:]) > 60 or growing.tensors[-1].shape[0] > 200:
            break
        growing.grow()
    net = growing.net
    used = {tensor.name for layer in net.layers for tensor in layer.inputs}
    for layer in net.layers:
        if layer.name not in used and layer.kind != "input":
            net.output(layer.output)
    return net
