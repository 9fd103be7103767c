"""What integers of weights do to results on average, and scales that the SDP's factors hit exactly."""

from __future__ import annotations

import numpy as np

from nvdla.builder.quantize import common_fixed_point


def mean_error(
    error: np.ndarray,
    means: np.ndarray,
    size: tuple[int, int],
    results: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> np.ndarray:
    """The mean result (K,) of weights ``error`` (K, C, R, S) on channels of these means (C,), zeros of the padding
    counted in. ``size`` of the source and ``results`` are (height, width)."""
    shares = [
        _inside(size[axis], results[axis], error.shape[2 + axis], stride[axis], padding[2 * axis], dilation[axis])
        for axis in (0, 1)
    ]
    return np.einsum("kcrs,c,r,s->k", error, means, *shares, optimize=True)


def _inside(size: int, results: int, taps: int, stride: int, before: int, dilation: int) -> np.ndarray:
    """The share of results for which each tap lies on the source and not on the padding, (taps,)."""
    places = np.arange(results)[:, None] * stride - before + np.arange(taps) * dilation
    return np.mean((places >= 0) & (places < size), axis=0)


def exact_scales(scales: np.ndarray, source: float, destination: float) -> np.ndarray:
    """Weight scales (K,), not below those given, whose factors to the destination are whole multipliers of one shift.

    Kernels far smaller than the largest have multipliers of few bits; a scale that fits them leaves no error of gain.
    """
    ratios = source * scales / destination
    _, shift = common_fixed_point(ratios)
    multipliers = np.ceil(ratios * 2.0**shift - 1e-6)
    return np.where(multipliers < 1 << 15, np.maximum(multipliers, 1) * 2.0**-shift * destination / source, scales)
