"""The order in which CSC feeds one output's products to CMAC and CACC.

It decides the result wherever addition is not associative: fp16, and sums that saturate.
"""

from __future__ import annotations

Step = list[tuple[int, int, int, int]]
"""One MAC atom: pieces (row, column, first channel, end channel) of a kernel, multiplied and added together."""


def direct_sequence(height: int, width: int, channels: int, block: int) -> list[Step]:
    """Channel blocks outside, then kernel rows, then columns (cmod/csc/NV_NVDLA_csc.cpp:650)."""
    return [
        [(row, column, first, min(first + block, channels))]
        for first in range(0, channels, block)
        for row in range(height)
        for column in range(width)
    ]


def image_sequence(height: int, channels: int, block: int, post_extension: int) -> list[Step]:
    """Blocks of extended channels outside, then kernel rows, ``post_extension`` of them in one atom (:1680)."""
    return [
        [(row, 0, first, min(first + block, channels)) for row in range(top, min(top + post_extension, height))]
        for first in range(0, channels, block)
        for top in range(0, height, post_extension)
    ]
