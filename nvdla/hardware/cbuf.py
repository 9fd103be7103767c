"""The convolution buffer as the layers see it: what one layer leaves behind for the next.

The banks, entries and slices of the hardware decide only *whether* data fit; what a layer may re-use is decided by
few rules (cmod/cdma/NV_NVDLA_cdma.cpp:225, cmod/csc/NV_NVDLA_csc.cpp:185), which this module states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nvdla.errors import ScheduleError
from nvdla.hardware.convolution_settings import ConvolutionSettings


@dataclass
class ConvolutionBuffer:
    """What the layer before left: ``lines`` (batches, lines, ...) and ``weights``, None when nothing is left."""

    lines: np.ndarray | None = None
    weights: np.ndarray | None = None
    whole: bool = False
    layout: tuple | None = field(default=None)

    def left_lines(self, settings: ConvolutionSettings) -> np.ndarray | None:
        """Lines that this layer continues to use."""
        usable = settings.data_reuse and self.layout == settings.layout
        return self.lines if usable else None

    def needs_fetch(self, settings: ConvolutionSettings) -> bool:
        """False when the layer before kept all its data and this layer works on just these."""
        return not (self.whole and self.left_lines(settings) is not None)

    def left_weights(self, settings: ConvolutionSettings) -> np.ndarray | None:
        """Weights that this layer uses again instead of fetching its own."""
        usable = settings.weight_reuse and self.layout == settings.layout
        return self.weights if usable else None

    def finish(self, settings: ConvolutionSettings, lines: np.ndarray | None, weights: np.ndarray | None) -> None:
        """The layer has run: release what it releases, keep the rest (its last lines).

        ``lines`` and ``weights`` may be None where the settings release them all.
        """
        released = 0 if settings.keep_data else settings.released_lines
        left = None if lines is None else lines[:, released:]
        self.lines = left if left is not None and left.shape[1] else None
        self.whole = settings.keep_data
        self.weights = np.array(weights) if settings.keep_weights else None
        self.layout = settings.layout


def join_lines(left: np.ndarray | None, fetched: np.ndarray, wanted: int) -> np.ndarray:
    """The lines that are left followed by the fetched ones; ``wanted`` are needed (CSC.D_DATAIN_SIZE_EXT_0)."""
    if left is not None:
        if left.shape[::2] != fetched.shape[::2] or left.shape[2:] != fetched.shape[2:] or left.dtype != fetched.dtype:
            raise ScheduleError(
                f"data re-use: the lines left in the convolution buffer are {left.shape[2:]} {left.dtype}, "
                f"the fetched ones {fetched.shape[2:]} {fetched.dtype}"
            )
        fetched = np.concatenate((left, fetched), axis=1)
    if fetched.shape[1] < wanted:
        raise ScheduleError(
            f"the convolution waits for ever: it needs {wanted} lines of data (CSC.D_DATAIN_SIZE_EXT_0), "
            f"the convolution buffer gets {fetched.shape[1]}"
        )
    return fetched[:, :wanted]
