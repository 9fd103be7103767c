"""Quantization: scales and elements of tensors and weights, fixed-point factors, calibration data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from nvdla.errors import BuildError
from nvdla.util.arguments import by_annotations
from nvdla.util.precision import Precision

# Largest element: the range is symmetric, -128 and -32768 are left out.
LARGEST: dict[str, int] = {Precision.INT8: 127, Precision.INT16: 32767}
LARGEST_HALF = 65504.0
SMALLEST_HALF = 2.0**-14  # with all its bits


@by_annotations
def quantize(values: np.ndarray | float, scale: float | np.ndarray, precision: str, zero: int = 0) -> np.ndarray:
    """Quantize real numbers to elements: floor(x / scale + 0.5) + zero.

    Integers are limited to the symmetric range, or to the full range if there is a zero point. For fp16, the values are
    rounded to half precision, and the other arguments have no effect.

    Args:
        values: Real numbers of any shape.
        scale: Real value per unit: one number, or an array that broadcasts to ``values``.
        precision: "int8", "int16" or "fp16".
        zero: Element that represents 0.

    Returns:
        Array of the shape of ``values`` with the element type of ``precision``.
    """
    if precision == Precision.FP16:
        with np.errstate(over="ignore"):  # infinite: sums with it, and what pads a maximum, are right
            return np.asarray(values, np.float64).astype(np.float16)
    rounded = np.floor(np.asarray(values, np.float64) / scale + 0.5)
    return np.clip(rounded + zero, *ends_of(precision, zero)).astype(precision)


def ends_of(precision: str, zero: int) -> tuple[int, int]:
    """Return the least and the greatest element of a tensor of integers in which ``zero`` stands for 0."""
    largest = LARGEST[precision]
    return -largest - bool(zero), largest


def halves(layer: str, what: str, values: np.ndarray | float) -> np.ndarray:
    """Constants of an fp16 layer as halves; ``what`` they are. BuildError where one is too large: infinity times 0 is
    no number."""
    elements = quantize(values, 1.0, Precision.FP16)
    if not np.all(np.isfinite(elements)):
        raise BuildError(
            f"{what}: must be at most 65504 (fp16), got {np.max(np.abs(values)):g}. Rescale it.", layer=layer
        )
    return elements


@dataclass(frozen=True)
class Calibration:
    """Largest magnitude of each tensor in real numbers, by tensor (layer) name.

    ``weight_scales``: int8 scales (K,) of the kernels by layer name, if a quantized model or adaptive rounding provides
    them; other scales follow from the weights. ``means``: mean (C,) per channel of tensors by name, with which biases
    correct the mean error of rounded weights. ``corrections``: what is added to the biases (K,) of layers instead, by
    layer name. ``precisions``: layers of an int8 network that are computed in int16 (nv_full). ``zero_points``: int8
    tensors that are never far below 0 use all 256 elements. ``ranges``: (lowest, highest) number of 256 elements, if
    all readers of the tensor support zero points. ``method``: where tensors saturate, empty if it is not known.
    """

    magnitudes: Mapping[str, float]
    weight_scales: Mapping[str, np.ndarray] = field(default_factory=dict)
    means: Mapping[str, np.ndarray] = field(default_factory=dict)
    corrections: Mapping[str, np.ndarray] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)
    zero_points: bool = False
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    method: str = ""

    @classmethod
    def from_scales(cls, scales: Mapping[str, float], precision: str = "int8") -> Calibration:
        """Return a calibration with given scales, like NVIDIA's calibration tables.

        Args:
            scales: Real value per unit, by name of a tensor.
            precision: Precision of the elements.
        """
        return cls({name: float(scale) * LARGEST[precision] for name, scale in scales.items()})

    def scale(self, name: str, precision: str) -> float:
        """Return the scale of a tensor: the real value per unit.

        Args:
            name: Name of the tensor.
            precision: Precision of its elements.

        Raises:
            BuildError: Calibration does not contain the tensor, or its magnitude is not a positive number.
        """
        if name not in self.magnitudes:
            raise BuildError(
                "its output must have a scale. Run calibrate() on the whole network, or add the output to the "
                "calibration.",
                layer=name,
            )
        magnitude = float(self.magnitudes[name])
        if not (np.isfinite(magnitude) and magnitude > 0):
            raise BuildError(f"magnitude {magnitude} in the calibration must be a positive finite number", layer=name)
        return magnitude / LARGEST[precision]

    def with_magnitudes(self, **magnitudes: float) -> Calibration:
        """Return this calibration with some magnitudes replaced, for example of an input with a known range.

        Args:
            **magnitudes: Largest magnitude by name of a tensor.
        """
        return replace(self, magnitudes={**self.magnitudes, **magnitudes})


def changing(numbers: np.ndarray, elements: np.ndarray) -> tuple[float, float] | None:
    """Return the lowest and highest of sorted numbers between which the elements of a function's results change."""
    places = np.flatnonzero(np.diff(elements))
    return (float(numbers[places[0]]), float(numbers[places[-1] + 1])) if len(places) else None


def weight_scales(weights: np.ndarray, precision: str, per_channel: bool) -> np.ndarray:
    """Scale of each kernel, (K,); one number for all unless ``per_channel``.

    Kernels of zeros, as pruning leaves them, get the largest scale of the others (1 if there are none): the factors of
    all kernels share a shift, which a larger one would coarsen.
    """
    magnitudes = np.abs(weights).reshape(weights.shape[0], -1).max(axis=1)
    largest = magnitudes.max()
    if largest == 0:
        return np.ones_like(magnitudes)
    return np.where((magnitudes > 0) & per_channel, magnitudes, largest) / LARGEST[precision]


def fixed_point(ratio: float, bits: int = 15, most: int = 63) -> tuple[int, int]:
    """A positive or negative real factor as (multiplier, shift): ``ratio ~ multiplier / 2**shift``.

    The multiplier fits ``bits`` bits and a sign, the shift 0..``most``; the largest shift that fits is taken.
    Raises BuildError for a factor that is too large.
    """
    if ratio == 0:
        return 0, 0
    shift = min(most, bits - 1 - int(np.floor(np.log2(abs(ratio)))))
    multiplier = round(abs(ratio) * 2.0**shift)
    if multiplier >= 1 << bits:
        shift, multiplier = shift - 1, round(abs(ratio) * 2.0 ** (shift - 1))
    if shift < 0:
        raise BuildError(
            f"factor between two scales: must be at most {(1 << bits) - 1}, got {ratio:g}. Check the calibration."
        )
    return (multiplier if ratio > 0 else -multiplier), shift


def common_fixed_point(ratios: np.ndarray, bits: int = 15, most: int = 63) -> tuple[np.ndarray, int]:
    """Several factors with one shift: (int16 multipliers, shift), as fine as the largest factor allows."""
    _, shift = fixed_point(float(np.max(np.abs(ratios), initial=0.0)), bits, most)
    multipliers = np.floor(ratios * 2.0**shift + 0.5)
    return multipliers.astype(np.int64), shift
