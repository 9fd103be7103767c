"""Rubik: elements in another order, no arithmetic.

Source: rubik/NV_NVDLA_rbk.cpp:302, :683 (contract), :866, :868 (split).
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")
Surfaces = list[list[list[T]]]
"""Atoms [surface][line][column]."""
BURST = 32


def contract(source: Surfaces[T], stride_y: int, stride_x: int) -> Surfaces[T]:
    """Spread groups of surfaces over a cube that is larger by the strides: the second part of a deconvolution.

    Args:
        source: Atoms of stride_y * stride_x * surfaces surfaces.
        stride_y: Lines that come from one line.
        stride_x: Columns that come from one column.

    Returns:
        Atom (surface, line * stride_y + sy, column * stride_x + sx) of the result is atom (line, column) of input
        surface (sy * stride_x + sx) * surfaces + surface.
    """
    surfaces = len(source) // (stride_y * stride_x)
    return [
        [
            [
                source[(y % stride_y * stride_x + x % stride_x) * surfaces + surface][y // stride_y][x // stride_x]
                for x in range(len(source[0][0]) * stride_x)
            ]
            for y in range(len(source[0]) * stride_y)
        ]
        for surface in range(surfaces)
    ]


def split(source: Surfaces[list[int]], planes: int, element_bytes: int) -> list[list[list[int]]]:
    """Turn a feature cube into planes; the last burst of a line is filled with zeros.

    Args:
        source: Elements [surface][line][column][channel of the atom].
        planes: Planes to write.
        element_bytes: 1 or 2.

    Returns:
        Elements [plane][line][column], lines of whole bursts of 32 bytes.
    """
    atom, width, burst = len(source[0][0][0]), len(source[0][0]), BURST // element_bytes
    return [
        [[pixel[plane % atom] for pixel in line] + [0] * (-width % burst) for line in source[plane // atom]]
        for plane in range(planes)
    ]


def merge(planes: list[list[list[int]]], atom: int) -> Surfaces[list[int]]:
    """Turn planes into a feature cube; unused channels of the last surface become 0.

    Args:
        planes: Elements [plane][line][column].
        atom: Elements of an atom.

    Returns:
        Elements [surface][line][column][channel of the atom].
    """
    height, width = len(planes[0]), len(planes[0][0])
    return [
        [
            [[planes[c][y][x] if c < len(planes) else 0 for c in range(first, first + atom)] for x in range(width)]
            for y in range(height)
        ]
        for first in range(0, len(planes), atom)
    ]
