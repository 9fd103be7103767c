"""A small trainer in plain numpy: convolution, ReLU, 2x2 max pooling, inner product; Adam.

Only make_samples.py --train needs it. Activations are float32 (N, C, H, W).
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


class Convolution:
    def __init__(self, rng: np.random.Generator, channels: int, kernels: int, size: int, padding: int = 0) -> None:
        fan = channels * size * size
        self.padding = padding
        self.parameters = [
            rng.normal(0, np.sqrt(2 / fan), (kernels, channels, size, size)).astype(np.float32),
            np.zeros(kernels, np.float32),
        ]

    def forward(self, x: np.ndarray) -> np.ndarray:
        weights, bias = self.parameters
        p, size = self.padding, weights.shape[2]
        self._padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
        windows = sliding_window_view(self._padded, (size, size), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
        self._shape = windows.shape[:3]
        self._columns = np.ascontiguousarray(windows).reshape(-1, weights[0].size)
        result = self._columns @ weights.reshape(len(weights), -1).T + bias
        return result.reshape(*self._shape, -1).transpose(0, 3, 1, 2)

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        weights = self.parameters[0]
        flat = np.ascontiguousarray(gradient.transpose(0, 2, 3, 1)).reshape(-1, len(weights))
        self.gradients = [(flat.T @ self._columns).reshape(weights.shape), flat.sum(axis=0)]
        columns = (flat @ weights.reshape(len(weights), -1)).reshape(*self._shape, *weights.shape[1:])
        back = np.zeros_like(self._padded)
        height, width = self._shape[1:]
        for row in range(weights.shape[2]):
            for column in range(weights.shape[3]):
                back[:, :, row : row + height, column : column + width] += columns[..., row, column].transpose(
                    0, 3, 1, 2
                )
        p = self.padding
        return back[:, :, p : back.shape[2] - p, p : back.shape[3] - p]


class Relu:
    parameters: tuple = ()

    def forward(self, x: np.ndarray) -> np.ndarray:
        self._mask = x > 0
        return x * self._mask

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        return gradient * self._mask


class MaxPool:
    """2x2, stride 2."""

    parameters: tuple = ()

    def forward(self, x: np.ndarray) -> np.ndarray:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h // 2, w // 2, 4)
        self._which, self._shape = blocks.argmax(-1), x.shape
        return blocks.max(-1)

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        n, c, h, w = self._shape
        blocks = np.zeros((*gradient.shape, 4), np.float32)
        np.put_along_axis(blocks, self._which[..., None], gradient[..., None], -1)
        return blocks.reshape(n, c, h // 2, w // 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h, w)


class InnerProduct:
    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        self.parameters = [
            rng.normal(0, np.sqrt(2 / inputs), (outputs, inputs)).astype(np.float32),
            np.zeros(outputs, np.float32),
        ]

    def forward(self, x: np.ndarray) -> np.ndarray:
        self._shape, self._flat = x.shape, x.reshape(len(x), -1)
        return (self._flat @ self.parameters[0].T + self.parameters[1])[:, :, None, None]

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        flat = gradient.reshape(len(gradient), -1)
        self.gradients = [flat.T @ self._flat, flat.sum(axis=0)]
        return (flat @ self.parameters[0]).reshape(self._shape)


def predict(layers: list, images: np.ndarray) -> np.ndarray:
    """Scores (N, classes)."""
    for layer in layers:
        images = layer.forward(images)
    return images.reshape(len(images), -1)


def train(layers: list, images: np.ndarray, labels: np.ndarray, epochs: int, rng: np.random.Generator, augment) -> None:
    """Cross entropy with Adam, batches of 32, the rate falling to zero along a cosine."""
    moments = [[(np.zeros_like(p), np.zeros_like(p)) for p in layer.parameters] for layer in layers]
    step, steps = 0, epochs * (len(images) // 32)
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for start in range(0, len(images) - 31, 32):
            batch = order[start : start + 32]
            scores = predict(layers, augment(images[batch], rng))
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            gradient = powers / powers.sum(axis=1, keepdims=True)
            gradient[np.arange(32), labels[batch]] -= 1
            gradient = (gradient / 32)[:, :, None, None].astype(np.float32)
            for layer in reversed(layers):
                gradient = layer.backward(gradient)
            step += 1
            _adam(layers, moments, step, 2e-3 * 0.5 * (1 + np.cos(np.pi * step / steps)))


def _adam(layers: list, moments: list, step: int, rate: float) -> None:
    for layer, state in zip(layers, moments, strict=True):
        for index, (first, second) in enumerate(state):
            gradient = layer.gradients[index]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            change = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
            layer.parameters[index] -= (rate * change).astype(np.float32)
