"""Transposed convolution: results interleaved by strides, or by Rubik where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Contract, Pool, Surface
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.convolution import Window, convolve, part_of
from nvdla.builder.network import MAX_SIZE
from nvdla.builder.shapes import Shape, column, numbers_of, padding_of, pair, weights_of
from nvdla.errors import BuildError, shape_text
from nvdla.rounding import align, ceil_div

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class DeconvolutionLayer(LayerType):
    """``weights`` (channels, kernels, rows, columns), ``padding`` is cut off the result."""

    kind = "deconvolution"
    zero_points = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """Pairs are (vertical, horizontal); ``padding`` is one number, a pair, or (top, bottom, left, right)."""
        weights = weights_of(name, settings["weights"])
        channels, height, width = shapes[0]
        if weights.shape[0] != channels:
            raise BuildError(
                f"layer {name}: weights {shape_text(weights.shape)} must be ({channels}, kernels, rows, columns)"
            )
        stride, pads = pair(name, "stride", settings["stride"]), padding_of(name, settings["padding"])
        rows = (height - 1) * stride[0] + weights.shape[2] - pads[0] - pads[1]
        columns = (width - 1) * stride[1] + weights.shape[3] - pads[2] - pads[3]
        if min(rows, columns) < 1:
            raise BuildError(f"layer {name}: padding {pads} cuts the result {rows}x{columns} away; use less padding")
        bias = numbers_of(name, "bias", settings["bias"], weights.shape[1])
        settings.update(weights=weights, bias=bias, stride=stride, padding=pads)
        return weights.shape[1], rows, columns

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Every element times all weights, added up where they fall."""
        x, (sy, sx), (top, _, left, _) = inputs[0], layer.stride, layer.padding
        _, kernels, rows, columns = layer.weights.shape
        height, width = (x.shape[2] - 1) * sy + rows, (x.shape[3] - 1) * sx + columns
        whole = np.zeros((x.shape[0], kernels, height, width))
        for row in range(rows):
            for col in range(columns):
                part = np.einsum("nchw,ck->nkhw", x, layer.weights[:, :, row, col])
                whole[:, :, row : row + x.shape[2] * sy : sy, col : col + x.shape[3] * sx : sx] += part
        _, out_height, out_width = layer.output.shape
        return whole[:, :, top : top + out_height, left : left + out_width] + column(layer.bias)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """One convolution for each position within the stride, or one for all of them before Rubik.

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
        full = result if exact else lowering.temporary(group.name, kernels, height * sy, width * sx, result)
        window = Window(padding=(taps[0] - 1, taps[0] - 1, taps[1] - 1, taps[1] - 1))
        if lowering.level and lowering.config.rubik and (sy, sx) != (1, 1) and _fits(lowering, group, sy * sx):
            phases = [_phase(weights, (py, px), (sy, sx), taps) for py in range(sy) for px in range(sx)]
            _contracted(lowering, group, source, full, phases, bias, window, scales)
        else:
            _interleaved(lowering, group, source, full, weights, bias, window, scales)
        if not exact:
            part = full.crop(top, result.height, left, result.width)
            if result.shape[1:] == (1, 1):
                # The SDP reads 1x1 cubes only with the strides of a 1x1 surface; the PDP takes any.
                lowering.operations.append(Pool(group.name, part, result, "max", (1, 1), (1, 1), (0, 0, 0, 0)))
            else:
                lowering.copy(group.name, part, result)


def _fits(lowering: Lowering, group: Group, phases: int) -> bool:
    """Whether the results of all phases make a legal cube."""
    return phases * align(group.kernels.shape[1], lowering.atom_channels) <= MAX_SIZE


def _contracted(
    lowering: Lowering,
    group: Group,
    source: Surface,
    full: Surface,
    phases: list[np.ndarray],
    bias: np.ndarray,
    window: Window,
    scales: np.ndarray | None,
) -> None:
    """One convolution with the kernels of all phases, filled up to whole atoms; Rubik puts them between one another."""
    sy, sx = group.layer.stride
    kernels = full.channels
    unused = -kernels % lowering.atom_channels
    each = np.concatenate([np.arange(kernels), np.full(unused, kernels - 1)])  # whose settings a kernel has
    which = np.tile(each, len(phases))
    weights = np.concatenate([np.pad(phase, ((0, unused), (0, 0), (0, 0), (0, 0))) for phase in phases])
    height, width = full.height // sy, full.width // sx
    stack = lowering.temporary(group.name, len(which), height, width, full)
    convolve(
        lowering,
        part_of(group, which),
        source,
        stack,
        weights,
        bias[which],
        window,
        None if scales is None else scales[which],
    )
    lowering.operations.append(Contract(group.name, stack, full, (sy, sx)))


def _interleaved(
    lowering: Lowering,
    group: Group,
    source: Surface,
    full: Surface,
    weights: np.ndarray,
    bias: np.ndarray,
    window: Window,
    scales: np.ndarray | None,
) -> None:
    """A convolution for each phase: every stride-th row by the SDP behind it, every stride-th column by a copy."""
    sy, sx = group.layer.stride
    kernels = full.channels
    height, width = full.height // sy, full.width // sx
    taps = ceil_div(weights.shape[2], sy), ceil_div(weights.shape[3], sx)
    for px in range(sx):
        strip = full if sx == 1 else lowering.temporary(group.name, kernels, height * sy, width, full)
        for py in range(sy):
            kernel = _phase(weights, (py, px), (sy, sx), taps)
            target = strip.every(py, sy, height, 0, 1, width)
            convolve(lowering, group, source, target, kernel, bias, window, scales)
        if sx > 1:
            lowering.copy(group.name, strip, full.every(0, 1, height * sy, px, sx, width))


def _phase(weights: np.ndarray, phase: tuple[int, int], stride: tuple[int, int], taps: tuple[int, int]) -> np.ndarray:
    """Every stride-th weight from the phase, reversed, with zeros in front of kernels shorter than ``taps``.

    All phases have equally large kernels, so that they give equally many elements with legal padding.
    """
    part = weights[:, :, phase[0] :: stride[0], phase[1] :: stride[1]][:, :, ::-1, ::-1]
    return np.pad(part, ((0, 0), (0, 0), (taps[0] - part.shape[2], 0), (taps[1] - part.shape[3], 0)))
