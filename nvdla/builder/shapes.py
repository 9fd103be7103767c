"""What layers are given, checked: windows, strides, padding, weights, numbers a channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.errors import BuildError, shape_text

Shape = tuple[int, int, int]
Padding = int | tuple[int, int] | tuple[int, int, int, int]


def pair(name: str, what: str, value: Any) -> tuple[int, int]:
    """(vertical, horizontal) from a number or a pair of positive whole numbers."""
    values = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(values) != 2 or any(int(v) != v or v < 1 for v in values):
        raise BuildError(f"layer {name}: {what} {value} must be a positive whole number or two (vertical, horizontal)")
    return int(values[0]), int(values[1])


def padding_of(name: str, value: Any) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) from one number, a pair (vertical, horizontal) or all four."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * 4
    if len(values) == 2:
        values = (values[0], values[0], values[1], values[1])
    if len(values) != 4 or any(int(v) != v or v < 0 for v in values):
        raise BuildError(
            f"layer {name}: padding {value} must be one number >= 0, (vertical, horizontal) or (top, bottom, left, "
            f"right)"
        )
    return tuple(int(v) for v in values)  # type: ignore[return-value]


def reach(kernel: int, dilation: int) -> int:
    """Rows or columns that a dilated kernel spans."""
    return (kernel - 1) * dilation + 1


def slid(name: str, what: str, padded: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """Positions of a window that slides over ``padded`` elements; the rest at the end is not used."""
    span = reach(kernel, dilation)
    if span > padded:
        raise BuildError(f"layer {name}: the kernel spans {span} of the {what}, the padded input has only {padded}")
    return (padded - span) // stride + 1


def weights_of(name: str, weights: np.ndarray) -> np.ndarray:
    """Four dimensions of finite float64 or float32."""
    weights = np.asarray(weights)
    if weights.dtype != np.float32:  # which stay as they are: large networks take half the memory
        weights = weights.astype(np.float64)
    if weights.ndim != 4 or weights.size == 0:
        raise BuildError(
            f"layer {name}: weights {shape_text(weights.shape)} must have four dimensions, none of them zero"
        )
    if not np.all(np.isfinite(weights)):
        raise BuildError(f"layer {name}: weights hold NaN or infinity")
    return weights


def numbers_of(name: str, what: str, values: np.ndarray | float | None, count: int) -> np.ndarray:
    """(count,) float64 from an array, a number or None (zeros)."""
    vector = np.zeros(count) if values is None else np.asarray(values, np.float64).reshape(-1)
    if vector.size == 1:
        vector = np.full(count, vector[0])
    if vector.size != count or not np.all(np.isfinite(vector)):
        raise BuildError(f"layer {name}: {what} must be {count} finite numbers, got {vector.size}")
    return vector


def column(vector: np.ndarray) -> np.ndarray:
    """Numbers a channel (C,) as they meet arrays (N, C, H, W)."""
    return vector[None, :, None, None]
