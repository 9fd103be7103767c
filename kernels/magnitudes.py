"""Statistics of a tensor for calibration: magnitudes and sums in one pass, a histogram in another."""

from __future__ import annotations

import numpy as np

from nvdla.kernels.jit.compilation import njit


@njit(nogil=True)
def measure(planes: np.ndarray, lows: np.ndarray, highs: np.ndarray, sums: np.ndarray) -> None:
    """Lowest and highest numbers ``lows`` and ``highs`` and ``sums``, float64 (C,), of ``planes``, float32 or float64
    (N, C, elements), together with what they hold already.

    A sum is not finite if an element is not.
    """
    for n in range(planes.shape[0]):
        for c in range(planes.shape[1]):
            plane = planes[n, c]
            low, high, total = plane[0], plane[0], 0.0
            for i in range(plane.shape[0]):
                value = plane[i]
                low, high = min(low, value), max(high, value)
                total += value
            lows[c], highs[c] = min(lows[c], float(low)), max(highs[c], float(high))
            sums[c] += total


@njit(nogil=True)
def count(values: np.ndarray, per_unit: float, counts: np.ndarray) -> int:
    """Count magnitudes in bins, ``per_unit`` of them in 1.0, the last one for all above it; returns how many elements
    are zero, which are not counted. ``values``: float32 or float64 (elements,), ``counts``: int64 (bins,)."""
    zeros, last = 0, counts.shape[0] - 1
    for i in range(values.shape[0]):
        magnitude = abs(values[i])
        if magnitude == 0:
            zeros += 1
        else:
            counts[min(int(magnitude * per_unit), last)] += 1
    return zeros
