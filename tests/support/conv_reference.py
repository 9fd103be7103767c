"""Convolution in plain integers: what the fast kernels are held against."""

import numpy as np


def plain_sums(cube, channels, weights, pads, stride, dilation, pad_value):
    """int64 sums (K, Ho, Wo), one kernel position at a time."""
    top, left, bottom, right = pads
    x = cube.transpose(0, 3, 1, 2).reshape(-1, *cube.shape[1:3])[:channels].astype(np.int64)
    x = np.pad(x, ((0, 0), (top, bottom), (left, right)), constant_values=pad_value)
    _, _, rows, columns = weights.shape
    height = (x.shape[1] - (rows - 1) * dilation - 1) // stride + 1
    width = (x.shape[2] - (columns - 1) * dilation - 1) // stride + 1
    sums = np.zeros((len(weights), height, width), np.int64)
    for r in range(rows):
        for s in range(columns):
            y, z = r * dilation, s * dilation
            window = x[:, y : y + (height - 1) * stride + 1 : stride, z : z + (width - 1) * stride + 1 : stride]
            sums += np.einsum("kc,chw->khw", weights[:, :, r, s].astype(np.int64), window)
    return sums
