"""Direct convolution: CDMA's converter, the order of CSC, the sums of CMAC and CACC.

Source: hls/cdma_libs/cdma_cvt.cpp:14 (converter), csc/NV_NVDLA_csc.cpp:519, :650, :1680 (order), :770, :2875 (padding),
cmac/NV_NVDLA_cmac.h:83, :201 (products), cacc/NV_NVDLA_cacc.cpp:822 (delivery), :1077 (saturation).

A deconvolution needs nothing else: it is a convolution whose kernels compute all positions inside the stride, then
Rubik's contraction (``rubik.py``). fp16 uses the order given here with the sums of ``fp16_mac.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from nvdla.kernels.reference.floats import from_integer
from nvdla.kernels.reference.integers import convert, saturate, shift_right

Cube = list[list[list[int]]]
"""Elements [line][column][channel]."""
Place = tuple[int, int, int]
"""A place in a kernel: (row, column, channel)."""
CACC_BITS = 48


class ConvolutionGeometry(NamedTuple):
    """Geometry of a convolution; pairs are (vertical, horizontal), padding is above and to the left."""

    out: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int]
    pad_value: int


def convert_input(x: int, offset: int, scale: int, truncate: int, precision: str) -> int:
    """Convert an input element. An element of fp16 input passes unchanged, one of an image without converter too.

    Args:
        x: Element, at most 17 signed bits. 8- and 16-bit pixels are zero-extended unless PIXEL_SIGN_OVERRIDE is set.
        offset: CVT_OFFSET, or the mean of the channel.
        scale: CVT_SCALE.
        truncate: CVT_TRUNCATE.
        precision: "int8", "int16" or "fp16": the processing precision.

    Returns:
        The element, as bits for fp16.
    """
    wide = convert(x, offset, scale, truncate, 17)
    return from_integer(wide) if precision == "fp16" else saturate(wide, 8 if precision == "int8" else 16)


def feature_element(cube: Cube, geometry: ConvolutionGeometry, line: int, column: int, channel: int) -> int:
    """Fetch an element of feature data; the padding value outside the cube."""
    inside = 0 <= line < len(cube) and 0 <= column < len(cube[0])
    return cube[line][column][channel] if inside else geometry.pad_value


def image_element(cube: Cube, geometry: ConvolutionGeometry, line: int, column: int, channel: int) -> int:
    """Fetch an element of an image, whose lines CDMA has padded.

    ``channel`` is the extended channel: it counts through all columns of the kernel. After the end of a line there are
    zeros, above and below the image the padding value.
    """
    column, channel = column + channel // len(cube[0][0]), channel % len(cube[0][0])
    if not 0 <= line < len(cube):
        return geometry.pad_value
    return cube[line][column][channel] if column < len(cube[0]) else 0


def feature_atoms(rows: int, columns: int, channels: int, block: int) -> Iterator[list[Place]]:
    """Yield the places of each MAC atom in order: channel blocks, then kernel rows, then columns.

    Args:
        rows: Rows of the kernel.
        columns: Columns of the kernel.
        channels: Channels of the kernel.
        block: Elements of an atom (MAC_ATOMIC_C): 64 in nv_full, 8 in nv_small.
    """
    for first in range(0, channels, block):
        for row in range(rows):
            for column in range(columns):
                yield [(row, column, channel) for channel in range(first, min(first + block, channels))]


def image_atoms(rows: int, channels: int, block: int, post_extension: int) -> Iterator[list[Place]]:
    """Yield the places of each MAC atom of an image: blocks of extended channels, then kernel rows.

    Args:
        rows: Rows of the kernel.
        channels: Extended channels: columns * channels.
        block: Elements of an atom.
        post_extension: Rows that share an atom: 1, 2 or 4.
    """
    for first in range(0, channels, block):
        for top in range(0, rows, post_extension):
            last = min(top + post_extension, rows)
            yield [(r, 0, c) for r in range(top, last) for c in range(first, min(first + block, channels))]


def output(weights: list[list[int]], data: list[list[int]]) -> int:
    """Compute one output of integers: exact dot products, saturated to 48 bits after each MAC atom.

    Args:
        weights: Elements of the kernel, one list per MAC atom in the order of CSC.
        data: Elements of the data under it, in the same order.

    Returns:
        The accumulator.
    """
    total = 0
    for w, d in zip(weights, data, strict=True):
        total = saturate(total + sum(x * y for x, y in zip(w, d, strict=True)), CACC_BITS)
    return total


def convolve(
    cube: Cube,
    kernels: list[Cube],
    geometry: ConvolutionGeometry,
    atoms: list[list[Place]],
    element: Callable[[Cube, ConvolutionGeometry, int, int, int], int] = feature_element,
    output: Callable[[list[list[int]], list[list[int]]], int] = output,
) -> Cube:
    """Compute all outputs of a convolution.

    Args:
        cube: The data.
        kernels: Weights [kernel][row][column][channel].
        geometry: Geometry.
        atoms: Places of the kernel, by MAC atom in order.
        element: :func:`feature_element` or :func:`image_element`.
        output: :func:`output`, or :func:`nvdla.kernels.reference.fp16_mac.output`.

    Returns:
        Accumulators [line][column][kernel], or fp32 bits for fp16.
    """
    weights = [[[kernel[r][s][c] for r, s, c in atom] for atom in atoms] for kernel in kernels]
    result: Cube = []
    for y in range(geometry.out[0]):
        top = y * geometry.stride[0] - geometry.pad[0]
        result.append([])
        for x in range(geometry.out[1]):
            left = x * geometry.stride[1] - geometry.pad[1]
            places = [
                [(top + r * geometry.dilation[0], left + s * geometry.dilation[1], c) for r, s, c in a] for a in atoms
            ]
            data = [[element(cube, geometry, *place) for place in atom] for atom in places]
            result[-1].append([output(kernel, data) for kernel in weights])
    return result


def deliver(accumulator: int, truncate: int) -> int:
    """Deliver an accumulator of integers to SDP: shift by CLIP_TRUNCATE, round, saturate to 32 bits."""
    return saturate(shift_right(accumulator, truncate), 32)
