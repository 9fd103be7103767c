"""The order in which CSC feeds one output's products to CMAC and CACC.

It decides the result wherever addition is not associative: fp16, and sums that saturate.
"""

from __future__ import annotations

import numpy as np

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


def atom_places(
    sequence: list[Step], kernel: tuple[int, int, int], strides: tuple[int, int], atom: int
) -> tuple[np.ndarray, np.ndarray]:
    """For every place of every MAC atom: which data it multiplies, and which weight; -1 for places left empty.

    ``kernel`` is (rows, columns, channels), ``strides`` the distances of kernel rows and columns in the padded data.
    Pieces of an atom follow one another without gaps: only their order matters (which of two NaNs wins).
    Returns the data offsets from the window's start and the indices into a kernel, int64 (atoms * ``atom``,).
    """
    _, columns, channels = kernel
    data = np.full((len(sequence), atom), -1, np.int64)
    weights = np.full((len(sequence), atom), -1, np.int64)
    for number, step in enumerate(sequence):
        place = 0
        for row, column, first, end in step:
            places = slice(place, place + end - first)
            data[number, places] = np.arange(first, end) + row * strides[0] + column * strides[1]
            weights[number, places] = np.arange(first, end) + (row * columns + column) * channels
            place = places.stop
    return data.reshape(-1), weights.reshape(-1)
