"""Weights as the hardware takes them, each array packed once: tiles of a layer have theirs in common."""

from __future__ import annotations

import numpy as np

from nvdla.builder import pixels, winograd
from nvdla.builder.cbuf import kernel_group, rounded
from nvdla.builder.ir import Convolve, LoweredProgram
from nvdla.hardware.configuration import Configuration
from nvdla.memory.weights import pack_direct, pack_image, pack_winograd


class PackedWeights:
    """The packed weights of one program for one configuration."""

    def __init__(self, program: LoweredProgram, config: Configuration) -> None:
        self.config = config
        # The program keeps these arrays, so what they are called (by identity) stays theirs.
        self._lasting = {id(each.weights) for each in program.operations if isinstance(each, Convolve)}
        self._known: dict[int, bytes] = {}

    def of(self, operation: Convolve) -> bytes:
        """The weights of a convolution, or of a tile of it, in whole entries of the convolution buffer."""
        key = id(operation.weights)
        if key not in self._lasting:
            return self._packed(operation)
        if key not in self._known:
            self._known[key] = self._packed(operation)
        return self._known[key]

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
