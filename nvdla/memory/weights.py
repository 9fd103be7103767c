"""Weight layouts: kernels as arrays to the bytes that CDMA fetches (inverse: nvdla/hardware/convolution/weights.py).

Source: "In-memory data formats", weight format; cmod/csc/NV_NVDLA_csc.cpp:1150 (direct), :1553 (image).
"""

from __future__ import annotations

import numpy as np


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
