"""Arithmetic of windows: sizes, strides, padding."""

from __future__ import annotations

from typing import Any

from nvdla.errors import BuildError

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


def pooled(name: str, what: str, padded: int, kernel: int, stride: int) -> int:
    """Windows of a pooling along one axis. Raises BuildError where none fits."""
    return slid(name, what, padded, kernel, stride)
