"""Deconvolution: results interleaved by strides, so that no Rubik engine is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder.fuse import Group
from nvdla.builder.ir import Pool
from nvdla.builder.lower.convolution import Window, convolve
from nvdla.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering


def deconvolution(lowering: Lowering, group: Group) -> None:
    """One convolution for each position within the stride.

    Result element u (before the cut) gets input q - t times weight p + stride * t where u = stride * q + p; so the
    weights p, p + stride, ... in reverse order are a kernel, and its results are every stride-th element from p.
    """
    layer = group.layer
    (sy, sx), (top, _, left, _) = layer.stride, layer.padding
    weights = np.swapaxes(group.kernels, 0, 1)
    kernels, _, rows, columns = weights.shape
    source, result = lowering.source(layer.inputs[0]), lowering.target(group.output)
    scales, bias = lowering.integers(group, weights, 1)
    taps = ceil_div(rows, sy), ceil_div(columns, sx)
    height, width = source.height + taps[0] - 1, source.width + taps[1] - 1
    exact = (top, left) == (0, 0) and (height * sy, width * sx) == result.shape[1:]
    full = result if exact else lowering.temporary(group.name, kernels, height * sy, width * sx, result.scale)
    window = Window(padding=(taps[0] - 1, taps[0] - 1, taps[1] - 1, taps[1] - 1))
    for px in range(sx):
        strip = full if sx == 1 else lowering.temporary(group.name, kernels, height * sy, width, result.scale)
        for py in range(sy):
            kernel = _phase(weights, (py, px), (sy, sx), taps)
            target = strip.every(py, sy, height, 0, 1, width)
            convolve(lowering, group, source, target, kernel, bias, window, scales)
        if sx > 1:
            lowering.copy(group.name, strip, full.every(0, 1, height * sy, px, sx, width))
    if not exact:
        part = full.crop(top, result.height, left, result.width)
        if result.shape[1:] == (1, 1):
            # The SDP reads 1x1 cubes only with the strides of a 1x1 surface; the PDP takes any.
            lowering.operations.append(Pool(group.name, part, result, "max", (1, 1), (1, 1), (0, 0, 0, 0)))
        else:
            lowering.copy(group.name, part, result)


def _phase(weights: np.ndarray, phase: tuple[int, int], stride: tuple[int, int], taps: tuple[int, int]) -> np.ndarray:
    """Every stride-th weight from the phase, reversed, with zeros in front of kernels shorter than ``taps``.

    All phases have equally large kernels, so that they give equally many elements with legal padding.
    """
    part = weights[:, :, phase[0] :: stride[0], phase[1] :: stride[1]][:, :, ::-1, ::-1]
    return np.pad(part, ((0, 0), (0, 0), (taps[0] - part.shape[2], 0), (taps[1] - part.shape[3], 0)))
