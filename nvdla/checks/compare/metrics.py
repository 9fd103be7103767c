"""Metrics of the difference of two tensors, from rounding differences to wrong channels."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.tensors.real import decibels
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, table

AXES = "NCHW"


@dataclass(frozen=True)
class Difference:
    """Difference of the tensor ``actual`` from ``expected``.

    ``exact``: equal bits (a NaN equals the same NaN). ``count`` elements differ; the largest difference is ``max_abs``;
    ``first`` is the position of the first one in N, C, H, W (None if exact) with its two values. ``cosine`` is None
    when a tensor is all zero; ``snr_db`` and ``psnr_db`` (in dB) are infinite when nothing differs.
    """

    exact: bool
    elements: int
    count: int
    max_abs: float
    mean_abs: float
    cosine: float | None
    snr_db: float
    psnr_db: float
    first: tuple[int, ...] | None
    first_expected: float | None
    first_actual: float | None

    def within(self, tolerance: float) -> bool:
        """Return True if no element differs by more than a tolerance.

        Args:
            tolerance: Largest accepted absolute difference (0: the bits must be equal).
        """
        return self.exact or (tolerance > 0 and self.max_abs <= tolerance)

    def with_ratios_of(self, real: Difference) -> Difference:
        """Return this difference of elements with the cosine, SNR and PSNR of their real values.

        Args:
            real: Difference of the real values.
        """
        return replace(self, cosine=real.cosine, snr_db=real.snr_db, psnr_db=real.psnr_db)

    def as_dict(self) -> Document:
        """Return plain data for JSON: infinities and NaN become None."""
        values = asdict(self)
        odd = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
        return {**values, **dict.fromkeys(odd)}

    def _repr_html_(self) -> str:
        """For notebooks."""
        return table(str(self), [{key: value for key, value in self.as_dict().items() if value is not None}])

    def __str__(self) -> str:
        return self.between("expected", "got")

    def between(self, expected: str, actual: str) -> str:
        """Return the difference in words.

        Args:
            expected: Source of the reference tensor.
            actual: Source of the other tensor.
        """
        if self.exact:
            return f"exact: all {self.elements} elements are equal"
        place = ", ".join(
            f"{axis}={at}" for axis, at in zip(AXES[-len(self.first or ()) :], self.first or (), strict=True)
        )
        return (
            f"{self.count} of {self.elements} elements differ, by at most {self.max_abs:g}; first at {place}: "
            f"{expected} {self.first_expected:g}, {actual} {self.first_actual:g}"
        )


@by_annotations
def compare(expected: np.ndarray, actual: np.ndarray) -> Difference:
    """Compare two tensors.

    Args:
        expected: Reference tensor.
        actual: Tensor of the same shape.

    Returns:
        The difference.

    Raises:
        FormatError: The shapes differ.
    """
    if expected.shape != actual.shape:
        raise FormatError(f"shape: must be {shape_text(expected.shape)} (expected), got {shape_text(actual.shape)}")
    if expected.dtype == actual.dtype and expected.tobytes() == actual.tobytes():
        return _exact(expected)
    wide_expected, wide_actual = expected.astype(np.float64), actual.astype(np.float64)
    differs = _differs(expected, actual, wide_expected, wide_actual)
    if not differs.any():
        return _exact(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        delta = np.abs(np.where(differs, wide_actual - wide_expected, 0.0))
        delta = np.where(np.isnan(delta), np.inf, delta)  # a NaN against a number differs without bound
        first = tuple(int(i) for i in np.unravel_index(int(np.argmax(differs)), differs.shape))
        return Difference(
            exact=False,
            elements=expected.size,
            count=int(differs.sum()),
            max_abs=float(delta.max()),
            mean_abs=float(delta.mean()),
            cosine=_cosine(wide_expected, wide_actual),
            snr_db=decibels(float(np.square(wide_expected).sum()), float(np.square(delta).sum())),
            psnr_db=decibels(float(np.abs(wide_expected).max()) ** 2, float(np.square(delta).mean())),
            first=first,
            first_expected=float(wide_expected[first]),
            first_actual=float(wide_actual[first]),
        )


def _exact(tensor: np.ndarray) -> Difference:
    nothing = not tensor.size or not np.any(tensor)
    cosine = None if nothing else 1.0
    return Difference(True, tensor.size, 0, 0.0, 0.0, cosine, math.inf, math.inf, None, None, None)


def _differs(
    expected: np.ndarray, actual: np.ndarray, wide_expected: np.ndarray, wide_actual: np.ndarray
) -> np.ndarray:
    """By bits where both have one type (so -0 differs from +0, and a NaN equals itself), else by value."""
    if expected.dtype == actual.dtype:
        bits = np.dtype(f"u{expected.dtype.itemsize}")
        return np.ascontiguousarray(expected).view(bits) != np.ascontiguousarray(actual).view(bits)
    return (wide_expected != wide_actual) & ~(np.isnan(wide_expected) & np.isnan(wide_actual))


def _cosine(expected: np.ndarray, actual: np.ndarray) -> float | None:
    norm = math.sqrt(float(np.square(expected).sum())) * math.sqrt(float(np.square(actual).sum()))
    if norm == 0 or not math.isfinite(norm):
        return None
    return float((expected * actual).sum()) / norm
