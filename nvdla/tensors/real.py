"""Real numbers and the elements that stand for them: ``real = scale * (element - zero point)``."""

from __future__ import annotations

import math

import numpy as np

from nvdla.errors import FormatError


class ScaleMissing(FormatError):
    """Real numbers are given or wanted, and what one unit of a tensor's integers stands for is not known.

    ``name``: the tensor; ``kind``: "input" or "output"; ``suggested``: a scale that holds the values given, or None.
    """

    def __init__(self, name: str, dtype: np.dtype, kind: str, suggested: float | None = None) -> None:
        self.name, self.kind, self.suggested = name, kind, suggested
        given = "are real numbers" if kind == "input" else "shall be real numbers"
        number = "NUMBER" if suggested is None else f"{suggested:.3g}"
        hint = "" if suggested is None else f" ({number} just holds the greatest of these values)"
        super().__init__(
            f"{kind} {name}: its values {given}, but what one unit of its {dtype} stands for is not known; give "
            f"Runtime(..., scales={{{name!r}: {number}}}){hint}"
        )


def to_elements(values: np.ndarray, scale: float, dtype: np.dtype, zero: int = 0) -> np.ndarray:
    """Real numbers as elements: floor(x / scale + 0.5), limited to the symmetric range (-127 .. 127 for int8), with a
    zero point to the whole range; halves as they are rounded by numpy. Raises FormatError for NaN, which integers
    lack."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if dtype.kind == "f":
            return (values.astype(np.float64) / scale).astype(dtype)
        if np.isnan(values).any():
            raise FormatError(f"{int(np.isnan(values).sum())} values are NaN; {dtype} has none")
        largest = np.iinfo(dtype).max
        lowest = -largest - 1 if zero else -largest
        return np.clip(np.floor(values.astype(np.float64) / scale + 0.5) + zero, lowest, largest).astype(dtype)


def to_real(elements: np.ndarray, scale: float, zero: int = 0) -> np.ndarray:
    """Elements as real numbers (float32)."""
    return ((elements.astype(np.float64) - zero) * scale).astype(np.float32)


def holding_scale(values: np.ndarray, dtype: np.dtype) -> float | None:
    """The scale with which the greatest of the values is the greatest element; None where there is no such scale."""
    greatest = float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
    scale = greatest / np.iinfo(dtype).max
    return scale if scale > 0 and math.isfinite(scale) else None
