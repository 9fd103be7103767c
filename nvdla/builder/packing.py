"""Weights as the hardware takes them, each array packed once: tiles of a layer have theirs in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nvdla.analysis.alternatives import MASK_ALIGNMENT
from nvdla.builder import pixels, winograd
from nvdla.builder.cbuf import kernel_group, rounded
from nvdla.builder.ir import Convolve, LoweredProgram
from nvdla.hardware.configuration import Configuration
from nvdla.memory.weights import CompressedWeights, compress, pack_direct, pack_image, pack_winograd
from nvdla.rounding import align


class PackedWeights:
    """The packed weights of one program for one configuration."""

    def __init__(self, program: LoweredProgram, config: Configuration) -> None:
        self.config = config
        # The program keeps these arrays, so what they are called (by identity) stays theirs.
        self._lasting = {id(each.weights) for each in program.operations if isinstance(each, Convolve)}
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
        each = elements.size // kernels
        found = compress(elements, [min(group, kernels - first) * each for first in range(0, kernels, group)])
        stored = found.stored.ljust(rounded(len(found.stored), self.config), b"\0")
        return replace(found, stored=stored, mask=found.mask.ljust(align(len(found.mask), MASK_ALIGNMENT), b"\0"))

    def _packed(self, operation: Convolve) -> bytes:
        data = self._elements(operation)
        return data.ljust(rounded(len(data), self.config), b"\0")

    def _elements(self, operation: Convolve) -> bytes:
        group = kernel_group(self.config, operation.source.precision)
        form = operation.source.root.pixels
        if operation.winograd:
            return pack_winograd(winograd.transformed(operation.weights, self.config), group)
        if form is None:
            return pack_direct(operation.weights, group, self.config.mac_atomic_c)
        unused = pixels.components(form) - operation.weights.shape[1]
        weights = np.pad(operation.weights, ((0, 0), (0, unused), (0, 0), (0, 0)))
        return pack_image(weights, group, self.config.mac_atomic_c, pixels.post_extension(operation, self.config))
