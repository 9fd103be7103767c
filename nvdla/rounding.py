"""Whole numbers: rounding up."""

from __future__ import annotations


def ceil_div(value: int, divisor: int) -> int:
    """``value / divisor`` rounded up (towards plus infinity)."""
    return -(-value // divisor)


def align(value: int, alignment: int) -> int:
    """The least multiple of ``alignment`` that is not less than ``value``."""
    return -(-value // alignment) * alignment
