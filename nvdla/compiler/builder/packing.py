"""Weights in the order of the hardware: direct, Winograd, compressed.

In fp16 alone. Transformed data have two bits more than the data, which CSC shifts out or clamps (PRA_TRUNCATE,
cmod/hls/csc_libs/csc_cvt.cpp): for integers of all 8 or 16 bits no shift and no weights but zeros make the result a
linear function of the data, so it never is a convolution (tests/kernels/test_winograd.py solves for such weights). It
is exact without a shift for data of two bits less (-32 to 31, -8192 to 8191) and kernels whose 4 G g G^T fits the
weights. A scale computed from the largest element never satisfies that condition.

Results come in blocks of 4x4, and the buffer holds four lines and columns more than there are results (so NVIDIA's
compiler does it, and its C model runs that); other results use a cube of the next multiple. Padding is
CDMA's, on all sides.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nvdla.analysis.alternatives import Alternative, WinogradGeometry
from nvdla.compiler.builder import cbuf
from nvdla.compiler.builder.cbuf import Fit, Tile, kernel_group, rounded
from nvdla.compiler.builder.ir import BYTES, Convolve, LoweredProgram
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.memory.surfaces import CompressedWeights, compress, pack_direct, pack_image, pack_winograd
from nvdla.limits import MASK_ALIGNMENT
from nvdla.util.precision import Precision
from nvdla.util.rounding import align

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
    return align(channels, config.memory_atom // BYTES[Precision.FP16])


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


class PackedWeights:
    """The packed weights of one program for one configuration."""

    def __init__(self, program: LoweredProgram, config: Configuration) -> None:
        self.config = config
        # The program keeps these arrays, so what they are called (by identity) stays theirs.
        self._lasting = {id(operation.weights) for operation in program.operations if isinstance(operation, Convolve)}
        self._known: dict[int, bytes] = {}
        self._sparse: dict[int, CompressedWeights] = {}

    def of(self, operation: Convolve) -> bytes:
        """The weights of a convolution, or of a tile of it, in whole entries of the convolution buffer."""
        key = id(operation.weights)
        if key not in self._lasting:
            return self._packed(operation)
        if key not in self._known:
            self._known[key] = self._packed(operation)
        return self._known[key]

    def compressed(self, operation: Convolve) -> CompressedWeights:
        """The weights of a direct convolution without their zeros, in whole entries of the convolution buffer."""
        key = id(operation.weights)
        if key not in self._lasting:
            return self._compressed(operation)
        if key not in self._sparse:
            self._sparse[key] = self._compressed(operation)
        return self._sparse[key]

    def _compressed(self, operation: Convolve) -> CompressedWeights:
        kernels, group = len(operation.weights), kernel_group(self.config, operation.source.precision)
        elements = np.frombuffer(self._elements(operation), operation.weights.dtype)
        kernel_elements = elements.size // kernels
        packed = compress(
            elements, [min(group, kernels - first) * kernel_elements for first in range(0, kernels, group)]
        )
        stored = packed.stored.ljust(rounded(len(packed.stored), self.config), b"\0")
        return replace(packed, stored=stored, mask=packed.mask.ljust(align(len(packed.mask), MASK_ALIGNMENT), b"\0"))

    def _packed(self, operation: Convolve) -> bytes:
        data = self._elements(operation)
        return data.ljust(rounded(len(data), self.config), b"\0")

    def _elements(self, operation: Convolve) -> bytes:
        group = kernel_group(self.config, operation.source.precision)
        form = operation.source.root.pixels
        if operation.winograd:
            return pack_winograd(transformed(operation.weights, self.config), group)
        if form is None:
            return pack_direct(operation.weights, group, self.config.mac_atomic_c)
        unused = cbuf.components(form) - operation.weights.shape[1]
        weights = np.pad(operation.weights, ((0, 0), (0, unused), (0, 0), (0, 0)))
        return pack_image(weights, group, self.config.mac_atomic_c, cbuf.post_extension(operation, self.config))
