"""Weight memory layouts: from bytes as CDMA fetches them to kernels as arrays (and the mask decompression).

Layouts: "In-memory data formats", weight format; cmod/csc/NV_NVDLA_csc.cpp:1150 (direct), :1553 (image).
"""

from __future__ import annotations

import numpy as np

from nvdla.errors import ConfigError


def unpack_direct(elements: np.ndarray, shape: tuple[int, int, int, int], group: int, block: int) -> np.ndarray:
    """Weights of a direct convolution as an array (kernels, height, width, channels).

    ``elements`` holds them one after the other as in memory: kernel group (``group`` kernels, fewer in the last) ->
    block of ``block`` channels (fewer in the last) -> row -> column -> kernel -> channel.
    """
    kernels, height, width, channels = shape
    full = kernels // group
    split = full * group * height * width * channels
    parts = []
    if full:
        parts.append(_unpack_groups(elements[:split], (full, group, height, width, channels), block))
    if kernels % group:
        last = (1, kernels % group, height, width, channels)
        parts.append(_unpack_groups(elements[split : np.prod(shape)], last, block))
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _unpack_groups(elements: np.ndarray, shape: tuple[int, int, int, int, int], block: int) -> np.ndarray:
    """Groups of the same number of kernels: shape is (groups, kernels of a group, height, width, channels)."""
    groups, kernels, height, width, channels = shape
    rows = elements.reshape(groups, -1)
    blocks, rest = divmod(channels, block)
    split = blocks * block * kernels * height * width
    result = np.empty(shape, elements.dtype)
    if blocks:
        whole = rows[:, :split].reshape(groups, blocks, height, width, kernels, block).transpose(0, 4, 2, 3, 1, 5)
        result[..., : blocks * block].reshape(groups, kernels, height, width, blocks, block)[...] = whole
    if rest:
        tail = rows[:, split:].reshape(groups, height, width, kernels, rest)
        result[..., blocks * block :] = tail.transpose(0, 3, 1, 2, 4)
    return result.reshape(groups * kernels, height, width, channels)


def unpack_image(
    elements: np.ndarray, shape: tuple[int, int, int], group: int, block: int, post_extension: int
) -> np.ndarray:
    """Weights of an image convolution as an array (kernels, height, 1, extended channels).

    ``shape`` is (kernels, height, extended channels); an extended channel is column * channels + channel. With a post
    extension of 2 or 4 the rows of a kernel that are processed together lie together: kernel group -> rows taken
    ``post_extension`` at a time (fewer at the end) -> kernel -> row -> channel.
    """
    kernels, height, channels = shape
    if post_extension == 1:
        return unpack_direct(elements, (kernels, height, 1, channels), group, block)
    if channels > block // post_extension:
        raise ConfigError(
            f"post extension of {post_extension} lines with {channels} extended channels: "
            f"at most {block // post_extension} fit a MAC cell"
        )
    result = np.empty((kernels, height, 1, channels), elements.dtype)
    position = 0
    for first in range(0, kernels, group):
        count = min(group, kernels - first)
        for top in range(0, height, post_extension):
            rows = min(post_extension, height - top)
            size = count * rows * channels
            part = elements[position : position + size].reshape(count, rows, 1, channels)
            result[first : first + count, top : top + rows] = part
            position += size
    return result


def unpack_winograd(elements: np.ndarray, kernels: int, channels: int, group: int) -> np.ndarray:
    """Transformed weights as an array (kernels, channels / 4, 4 rows, 4 columns, 4 channels).

    In memory: kernel group -> four channels -> kernel -> row, column, channel. ``channels`` counts the extended ones.
    """
    cube = 4 * 4 * 4
    blocks = channels // 4
    full = kernels // group
    split = full * group * blocks * cube
    parts = []
    if full:
        parts.append(elements[:split].reshape(full, blocks, group, cube).transpose(0, 2, 1, 3))
    if kernels % group:
        last = elements[split : kernels * blocks * cube].reshape(1, blocks, kernels % group, cube)
        parts.append(last.transpose(0, 2, 1, 3))
    return np.concatenate([part.reshape(-1, blocks, 4, 4, 4) for part in parts])


def decompress(elements: np.ndarray, mask: np.ndarray, count: int) -> np.ndarray:
    """All ``count`` weight elements from the stored non-zero ``elements`` and the mask bytes (WMB).

    One mask bit an element, least significant bit first, running on across kernel groups; 1 = stored
    (cmod/csc/NV_NVDLA_csc.cpp:2979). Raises ConfigError when the mask claims more elements than are stored.
    """
    stored = np.unpackbits(mask, bitorder="little")[:count].astype(bool)
    needed = int(np.count_nonzero(stored))
    if needed > elements.size:
        raise ConfigError(
            f"the weight mask marks {needed} weights as stored, the compressed weights are {elements.size}"
        )
    result = np.zeros(count, elements.dtype)
    result[stored] = elements[:needed]
    return result
