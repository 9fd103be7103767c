"""What Caffe's layers compute, element by element in plain Python: the specification for the tests.

Written from Caffe's documentation and sources (src/caffe/layers), without a thought to speed.
"""

from __future__ import annotations

import math

import numpy as np


def convolution(x, weights, bias, stride, pad, dilation, group):
    n, c, h, w = x.shape
    k, _, kh, kw = weights.shape
    oh = (h + 2 * pad[0] - (dilation[0] * (kh - 1) + 1)) // stride[0] + 1
    ow = (w + 2 * pad[1] - (dilation[1] * (kw - 1) + 1)) // stride[1] + 1
    out = np.zeros((n, k, oh, ow))
    inputs = c // group
    for image, output, y, at in np.ndindex(out.shape):
        first = output // (k // group) * inputs
        total = 0.0 if bias is None else float(bias[output])
        for channel, dy, dx in np.ndindex(inputs, kh, kw):
            row = y * stride[0] - pad[0] + dy * dilation[0]
            column = at * stride[1] - pad[1] + dx * dilation[1]
            if 0 <= row < h and 0 <= column < w:
                total += float(x[image, first + channel, row, column]) * float(weights[output, channel, dy, dx])
        out[image, output, y, at] = total
    return out


def deconvolution(x, weights, bias, stride, pad, dilation, group):
    """Every input element stamps the kernel on the result."""
    n, c, h, w = x.shape
    _, per_group, kh, kw = weights.shape
    oh = stride[0] * (h - 1) + dilation[0] * (kh - 1) + 1 - 2 * pad[0]
    ow = stride[1] * (w - 1) + dilation[1] * (kw - 1) + 1 - 2 * pad[1]
    out = np.zeros((n, per_group * group, oh, ow))
    for image, channel, y, at in np.ndindex(x.shape):
        first = channel // (c // group) * per_group
        for output, dy, dx in np.ndindex(per_group, kh, kw):
            row, column = y * stride[0] - pad[0] + dy * dilation[0], at * stride[1] - pad[1] + dx * dilation[1]
            if 0 <= row < oh and 0 <= column < ow:
                out[image, first + output, row, column] += float(x[image, channel, y, at]) * float(
                    weights[channel, output, dy, dx]
                )
    return out if bias is None else out + np.asarray(bias, float).reshape(1, -1, 1, 1)


def pooled_size(size, kernel, stride, pad, ceil=True):
    exact = (size + 2 * pad - kernel) / stride
    count = int(math.ceil(exact) if ceil else math.floor(exact)) + 1
    if pad and (count - 1) * stride >= size + pad:
        count -= 1
    return count


def pooling(x, kind, kernel, stride, pad, ceil=True):
    n, c, h, w = x.shape
    oh, ow = (pooled_size(*each, ceil) for each in zip((h, w), kernel, stride, pad, strict=True))
    out = np.zeros((n, c, oh, ow))
    for image, channel, y, at in np.ndindex(out.shape):
        top, left = y * stride[0] - pad[0], at * stride[1] - pad[1]
        bottom, right = min(top + kernel[0], h + pad[0]), min(left + kernel[1], w + pad[1])
        area = (bottom - top) * (right - left)
        part = x[image, channel, max(top, 0) : min(bottom, h), max(left, 0) : min(right, w)].astype(float)
        out[image, channel, y, at] = part.max() if kind == "MAX" else part.sum() / area
    return out


def lrn_across(x, size, alpha, beta, k):
    out = np.zeros(x.shape)
    for n, c, y, at in np.ndindex(x.shape):
        squares = sum(
            float(x[n, other, y, at]) ** 2
            for other in range(c - size // 2, c + size // 2 + 1)
            if 0 <= other < x.shape[1]
        )
        out[n, c, y, at] = float(x[n, c, y, at]) * (k + alpha / size * squares) ** -beta
    return out


def lrn_within(x, size, alpha, beta):
    mean = pooling(x.astype(float) ** 2, "AVE", (size, size), (1, 1), (size // 2, size // 2))
    return x * (1 + alpha * mean) ** -beta


def softmax(x, axis):
    e = np.exp(x.astype(float) - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)
