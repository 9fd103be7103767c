"""Weight layouts: kernels as arrays to the bytes that CDMA fetches (inverse: nvdla/hardware/convolution/weights.py).

Source: "In-memory data formats", weight format; cmod/csc/NV_NVDLA_csc.cpp:1150 (direct), :1553 (image).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvdla.errors import FormatError


def pack_direct(weights: np.ndarray, group: int, block: int) -> bytes:
    """Weights (kernels, channels, rows, columns) in the order of a direct convolution on feature data.

    Kernel group (``group`` kernels, fewer in the last) -> block of ``block`` channels (fewer in the last) -> row ->
    column -> kernel -> channel, without gaps. Elements keep their dtype, little-endian.
    """
    little = weights.astype(weights.dtype.newbyteorder("<"), copy=False)
    parts = []
    for first in range(0, weights.shape[0], group):
        for start in range(0, weights.shape[1], block):
            part = little[first : first + group, start : start + block]
            parts.append(part.transpose(2, 3, 0, 1).tobytes())
    return b"".join(parts)


def pack_image(weights: np.ndarray, group: int, block: int, post_extension: int = 1) -> bytes:
    """Weights (kernels, channels, rows, columns) in the order of a convolution on an image.

    Columns and channels become extended channels (column * channels + channel). With a post extension of 2 or 4 as
    many rows lie together: kernel group -> rows taken together -> kernel -> row -> extended channel.
    """
    kernels, channels, rows, columns = weights.shape
    extended = weights.transpose(0, 3, 1, 2).reshape(kernels, columns * channels, rows, 1)
    if post_extension == 1:
        return pack_direct(extended, group, block)
    little = extended.astype(weights.dtype.newbyteorder("<"), copy=False)[..., 0].transpose(0, 2, 1)
    return b"".join(
        little[first : first + group, top : top + post_extension].tobytes()
        for first in range(0, kernels, group)
        for top in range(0, rows, post_extension)
    )


def pack_winograd(transformed: np.ndarray, group: int) -> bytes:
    """Transformed weights (kernels, channels, 4, 4) in the order of a Winograd convolution.

    Kernel group -> four channels -> kernel -> row -> column -> channel; channels must be a multiple of 4.
    """
    kernels, channels = transformed.shape[:2]
    little = transformed.astype(transformed.dtype.newbyteorder("<"), copy=False)
    return b"".join(
        little[first : first + group, start : start + 4].transpose(0, 2, 3, 1).tobytes()
        for first in range(0, kernels, group)
        for start in range(0, channels, 4)
    )


@dataclass(frozen=True)
class CompressedWeights:
    """Weights without their zeros: ``stored`` elements, ``mask`` (WMB: a bit an element, 1 where it is stored) and
    ``sizes`` (WGS: the stored bytes of each kernel group, 32 bits each), not rounded up to anything."""

    stored: bytes
    mask: bytes
    sizes: bytes


def compress(packed: np.ndarray, groups: Sequence[int]) -> CompressedWeights:
    """Weight elements in the order of the memory layout without those that are 0. ``groups``: elements of each kernel
    group ("In-memory data formats", sparse compression option).

    Of a group of zeros the first is stored: CDMA reports a group with its bytes, and one without any behind a full
    entry never (cmod/cdma/NV_NVDLA_cdma.cpp:2031, nvdlav1).
    """
    mask = packed != 0
    starts = np.concatenate([[0], np.cumsum(groups)[:-1]]).astype(np.int64)
    mask[starts] |= np.add.reduceat(mask, starts) == 0
    sizes = np.add.reduceat(mask, starts, dtype=np.uint32) * np.uint32(packed.itemsize)
    little = packed[mask].astype(packed.dtype.newbyteorder("<"), copy=False)
    return CompressedWeights(
        little.tobytes(), np.packbits(mask, bitorder="little").tobytes(), sizes.astype("<u4").tobytes()
    )


def compress_as(packed: np.ndarray, mask: np.ndarray, room: int, what: str) -> bytes:
    """The elements that a mask (WMB bytes) has, for other weights in the ``room`` bytes of compressed ones.

    Raises FormatError when one of the others is not 0, for it has no place, and for a mask that has more than fit.
    """
    stored = np.unpackbits(mask, bitorder="little")[: packed.size].astype(bool)
    lost = int(np.count_nonzero(packed[~stored]))
    if lost:
        raise FormatError(
            f"{what}: {lost} weights are not 0 where compressed weights leave zeros out; keep these zeros, or build "
            "the network anew (at level 0 weights are never compressed)"
        )
    data: bytes = packed[stored].astype(packed.dtype.newbyteorder("<"), copy=False).tobytes()
    if len(data) > room:
        raise FormatError(f"{what}: the mask of its weights has {len(data)} bytes of them, there are {room}")
    return data.ljust(room, b"\0")
