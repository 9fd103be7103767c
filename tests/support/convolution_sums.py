"""Sums of a convolution by the specification, for cubes and weights as the kernels take them."""

from __future__ import annotations

import numpy as np

from nvdla.kernels.reference import conv


def reference_sums(cube, channels, weights, pads, stride, dilation, pad_value):
    """Sums (kernels, height, width) of int8 data (surfaces, height, width, atom) and weights (kernels, channels, rows,
    columns)."""
    top, left, bottom, right = pads
    _, _, rows, columns = weights.shape
    lines = cube.transpose(1, 2, 0, 3).reshape(*cube.shape[1:3], -1)[..., :channels].tolist()
    out = [
        (size - (kernel - 1) * dilation - 1) // stride + 1
        for size, kernel in ((len(lines) + top + bottom, rows), (len(lines[0]) + left + right, columns))
    ]
    window = conv.ConvolutionGeometry((out[0], out[1]), (stride, stride), (dilation, dilation), (top, left), pad_value)
    atoms = list(conv.feature_atoms(rows, columns, channels, 64))
    sums = conv.convolve(lines, weights.transpose(0, 2, 3, 1).tolist(), window, atoms)
    return np.array(sums).transpose(2, 0, 1)


def some(random, count):
    """Numbers of a few kernels: the first, the last, and one between."""
    return sorted({0, count - 1, int(random.integers(count))})
