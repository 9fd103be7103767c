"""Convolutions of 3x3 by Winograd's method F(2x2, 3x3): 16 multiplications for four results instead of 36.

In fp16 alone. Transformed data have two bits more than the data, which CSC shifts out or clamps (PRA_TRUNCATE,
cmod/hls/csc_libs/csc_cvt.cpp): for integers of all 8 or 16 bits no shift and no weights but zeros make the result a
linear function of the data, so it never is a convolution (tests/kernels/test_winograd.py solves for such weights). It
is exact without a shift for data of two bits less (-32 to 31, -8192 to 8191) and kernels whose 4 G g G^T fits the
weights, which no scale that is made from the largest element leaves.

Results come in blocks of 4x4, and the buffer holds four lines and columns more than there are results (so NVIDIA's
compiler does it, and its C model runs that); a result that is no multiple of them lies in a cube that is. Padding is
CDMA's, on all sides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nvdla.analysis.alternatives import Alternative, WinogradGeometry
from nvdla.builder.cbuf import Fit, Tile
from nvdla.builder.groups import Group
from nvdla.builder.ir import BYTES, Convolve, Process, Root, Surface
from nvdla.builder.quantize import quantize
from nvdla.hardware.configuration import Configuration
from nvdla.rounding import align

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import NetworkTensor

BLOCK = WinogradGeometry.grain
_KERNELS = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])
"""G of F(2x2, 3x3): U = G g G^T."""


def transformed(weights: np.ndarray, config: Configuration) -> np.ndarray:
    """Halves (K, C, 3, 3) as (K, C filled up to whole atoms, 4, 4)."""
    exact = _KERNELS @ weights.astype(np.float64) @ _KERNELS.T
    unused = extended_channels(weights.shape[1], config) - weights.shape[1]
    return np.pad(exact, ((0, 0), (0, unused), (0, 0), (0, 0))).astype(np.float16)


def extended_channels(channels: int, config: Configuration) -> int:
    """Channels in the buffer: whole atoms of halves."""
    return align(channels, config.memory_atom // BYTES["fp16"])


def geometry_of(operation: Convolve) -> WinogradGeometry:
    """A Winograd convolution as the model weighs it."""
    return WinogradGeometry(
        operation.source.shape,
        operation.process.destination.shape,
        (BLOCK, BLOCK),
        1,
        1,
        operation.padding[0],
        any(stage.surfaces for stage in operation.process.stages),
        BYTES[operation.source.precision],
    )


def fit_of(operation: Convolve, form: Alternative) -> Fit:
    """The tiles of a form, with all padding that CDMA puts around their input."""
    geometry = geometry_of(operation)
    left, width = operation.padding[2], operation.source.width
    right = geometry.result[2] + BLOCK - left - width
    tiles = []
    for top, rows in form.parts:
        first, count = geometry.rows(top, rows)
        above = max(operation.padding[0] - top, 0)
        padding = (above, rows + BLOCK - above - count, left, right)
        tiles.append(Tile((top, rows), (0, geometry.result[2]), (first, count), (0, width), padding))
    return Fit(tuple(tiles), form.data_banks, form.weight_banks, form.keeps_weights)


def target(lowering: Lowering, group: Group) -> Surface | None:
    """Where the result of a convolution lies that is faster by this method; None where it is not, or cannot be done."""
    layer, tensor = group.layer, group.output
    if not lowering.level or not lowering.config.winograd or lowering.precision != "fp16" or layer.groups != 1:
        return None
    if group.kernels.shape[2:] != (3, 3) or layer.stride != (1, 1) or layer.dilation != (1, 1):
        return None
    source = lowering.source(layer.inputs[0])
    if source.root.pixels is not None or group.summand is not None or max(layer.padding) >= BLOCK - 1:
        return None
    place = _place(lowering, tensor)
    if place is None or not np.all(np.isfinite(transformed(group.kernels, lowering.config))):
        return None
    channels, height, width = tensor.shape
    shape = align(height, BLOCK), align(width, BLOCK)
    whole = Root(tensor.name, channels, *shape, lowering.precision).whole
    weights, result = quantize(group.kernels, 1.0, "fp16"), Process("", None, whole.crop(0, height, 0, width))
    plain = Convolve(group.name, source, weights, (1, 1), layer.padding, (1, 1), result)
    below, right = shape[0] - height, shape[1] - width
    other = replace(plain, process=Process("", None, whole), padding=_more(layer.padding, below, right), winograd=True)
    if not lowering.weigher.prefers(other, plain):
        return None
    if place:
        return lowering.target(tensor)
    lowering.places[tensor.name] = whole.crop(0, height, 0, width)
    return whole


def _more(padding: tuple[int, int, int, int], below: int, right: int) -> tuple[int, int, int, int]:
    return padding[0], padding[1] + below, padding[2], padding[3] + right


def _place(lowering: Lowering, tensor: NetworkTensor) -> bool | None:
    """Whether the result's place is given (an output, a part of a concatenation), which must then be of whole blocks;
    None where the method cannot write it, or where a pool takes it on the fly."""
    consumers = lowering.network.consumers(tensor)
    given = tensor.name in lowering.places or tensor in lowering.network.outputs
    if given:
        return True if not tensor.shape[1] % BLOCK and not tensor.shape[2] % BLOCK else None
    return None if [layer.kind for layer in consumers] == ["pool"] else False


def made(operation: Convolve, destination: Surface) -> Convolve:
    """A direct convolution as one by this method into such a cube, which may have more rows and columns."""
    result = operation.process.destination
    below, right = destination.height - result.height, destination.width - result.width
    process = replace(operation.process, destination=destination)
    return replace(operation, process=process, padding=_more(operation.padding, below, right), winograd=True)
