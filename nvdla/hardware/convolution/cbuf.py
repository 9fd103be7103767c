"""The convolution buffer as the layers see it: what one layer leaves behind for the next.

The banks, entries and slices of the hardware decide only *whether* data fit; what a layer may re-use is decided by
few rules (cmod/cdma/NV_NVDLA_cdma.cpp:225, cmod/csc/NV_NVDLA_csc.cpp:185), which this module states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvdla.errors import ScheduleError
from nvdla.hardware.convolution.settings import ConvolutionSettings


@dataclass(frozen=True)
class Left:
    """What a layer finds and uses. ``complete``: the lines are all its data, nothing is to be fetched."""

    lines: np.ndarray | None = None
    weights: np.ndarray | None = None
    complete: bool = False


@dataclass
class ConvolutionBuffer:
    """What the layer before left: ``lines`` (batches, lines, ...) and ``weights``, None when nothing is left.

    ``whole``: it released no line at all. ``layout``: its mode, input format and banks.
    """

    lines: np.ndarray | None = None
    weights: np.ndarray | None = None
    whole: bool = False
    layout: tuple | None = None

    def left(self, settings: ConvolutionSettings) -> Left:
        """What this layer uses again: nothing unless its mode, input format and banks are those of the one before."""
        if self.layout != settings.layout:
            return Left()
        lines = self.lines if settings.data_reuse else None
        weights = self.weights if settings.weight_reuse else None
        return Left(lines, weights, lines is not None and self.whole)

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
