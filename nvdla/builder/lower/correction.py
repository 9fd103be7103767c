"""What rounded weights do to results on average, and scales that the SDP's factors hit exactly."""

from __future__ import annotations

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.quantize import common_fixed_point, quantize


def mean_error(
    group: Group, weights: np.ndarray, scales: np.ndarray, precision: str, means: np.ndarray, groups: int
) -> np.ndarray:
    """What the integers of weights (K, C / groups, R, S) add to the results on average, (K,).

    ``means`` (C,) of the source's channels; the zeros of a convolution's padding are counted in.
    """
    units = scales[:, None, None, None]
    error = quantize(weights, units, precision) * units - weights
    own = np.repeat(means.reshape(groups, -1), len(weights) // groups, axis=0)
    layer = group.layer
    if layer.kind == "deconvolution":
        return np.einsum("kcrs,kc->k", error, own) / np.prod(layer.stride)
    (_, *sizes), (_, *results) = layer.inputs[0].shape, layer.output.shape
    rows, columns = (
        _inside(
            sizes[axis],
            results[axis],
            error.shape[2 + axis],
            layer.stride[axis],
            layer.padding[2 * axis],
            layer.dilation[axis],
        )
        for axis in (0, 1)
    )
    return np.einsum("kcrs,kc,r,s->k", error, own, rows, columns, optimize=True)


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
