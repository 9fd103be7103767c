"""Moving elements on the accelerator, exactly: slices, padding, channel permutations, repetition, and any small
permutation by convolutions with ones and zeros."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder import NetworkTensor

if TYPE_CHECKING:
    from nvdla.frontend.graph import Graph

#: weights of a general permutation: elements before times elements after
MAX_DENSE = 1 << 21
MAX_PIXELS = 256
MAX_KERNEL = 32
BROADCAST = 8


def arrange(graph: Graph, source: NetworkTensor, positions: np.ndarray) -> NetworkTensor | None:
    """A tensor whose element (c, h, w) is the element ``positions[c, h, w]`` of ``source`` (flat; -1 = zero); None
    where no engine can move them so."""
    if positions.shape == source.shape and np.array_equal(positions.ravel(), np.arange(positions.size)):
        return source
    key = source.name, positions.shape, positions.tobytes()
    if key in graph.arranged:
        return graph.arranged[key]
    for way in (_padded, _separable, _dense):
        made = way(graph, source, positions)
        if made is not None:
            graph.arranged[key] = made
            return made
    return None


def _label(graph: Graph, suffix: str) -> str:
    assert graph.node is not None, "elements are moved for a node"
    return graph.label(graph.node, suffix)


def _padded(graph: Graph, source: NetworkTensor, positions: np.ndarray) -> NetworkTensor | None:
    """Zeros around a rectangle of elements."""
    if positions.min() >= 0 or positions.max() < 0:
        return None
    taken = positions >= 0
    rows, columns = np.flatnonzero(taken.any(axis=(0, 2))), np.flatnonzero(taken.any(axis=(0, 1)))
    inside = positions[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    if inside.shape == positions.shape or (inside < 0).any():
        return None
    inner = arrange(graph, source, inside)
    if inner is None:
        return None
    _, height, width = positions.shape
    padding = (int(rows[0]), int(height - 1 - rows[-1]), int(columns[0]), int(width - 1 - columns[-1]))
    return graph.tie(graph.network.pad(_label(graph, "pad"), inner, padding), inner)


def _separable(graph: Graph, source: NetworkTensor, positions: np.ndarray) -> NetworkTensor | None:
    """Channels, rows and columns are each taken from a list of their own."""
    _, height, width = source.shape
    taken: np.ndarray = np.asarray(positions >= 0)
    channel_taken: np.ndarray = np.asarray(taken.any(axis=(1, 2)))
    if not np.array_equal(taken, np.broadcast_to(channel_taken[:, None, None], taken.shape)) or not channel_taken.any():
        return None
    channel, row, column = positions // (height * width), positions // width % height, positions % width
    first = int(np.flatnonzero(channel_taken)[0])
    channels, rows, columns = channel[:, 0, 0], row[first, :, 0], column[first, 0, :]
    rebuilt = channels[:, None, None] * height * width + rows[None, :, None] * width + columns[None, None, :]
    if not np.array_equal(np.where(taken, rebuilt, -1), np.where(taken, positions, -1)):
        return None
    channels = np.where(channel_taken, channels, -1)
    down, across = _strided(rows), _strided(columns)
    if down is None or across is None:
        return None
    (top, row_stride, row_count, row_repeat), (left, column_stride, column_count, column_repeat) = down, across
    tensor = source
    if (top, row_stride, row_count, left, column_stride, column_count) != (0, 1, height, 0, 1, width):
        cut = (top, row_stride, row_count, left, column_stride, column_count)
        tensor = graph.tie(graph.network.slice(_label(graph, "slice"), tensor, rows=cut[:3], columns=cut[3:]), source)
    tensor = _select(graph, tensor, channels)
    return _repeat(graph, tensor, row_repeat, column_repeat)


def _strided(places: np.ndarray) -> tuple[int, int, int, int] | None:
    """(start, stride, count, repeat) of rows or columns: every one ``repeat`` times, equally far apart, upwards."""
    repeat = 1
    while repeat < len(places) and places[repeat] == places[0]:
        repeat += 1
    if len(places) % repeat:
        return None
    once = places[::repeat]
    stride = int(once[1] - once[0]) if len(once) > 1 else 1
    if stride < 1 or not np.array_equal(np.repeat(once[0] + np.arange(len(once)) * stride, repeat), places):
        return None
    return int(once[0]), stride, len(once), repeat


def _select(graph: Graph, source: NetworkTensor, channels: np.ndarray) -> NetworkTensor:
    """Channels by number (-1 = zeros), each any number of times: a 1x1 convolution, or a slice."""
    count = source.shape[0]
    if np.array_equal(channels, np.arange(count)):
        return source
    first = int(channels[0])
    if first >= 0 and np.array_equal(channels, first + np.arange(len(channels))):
        cut = graph.network.slice(_label(graph, "channels"), source, channels=(first, len(channels)))
        return graph.tie(cut, source)
    weights = np.zeros((len(channels), count, 1, 1))
    used = np.flatnonzero(channels >= 0)
    weights[used, channels[used]] = 1.0
    return graph.tie(graph.network.convolution(_label(graph, "channels"), source, weights), source)


def _repeat(graph: Graph, source: NetworkTensor, rows: int, columns: int) -> NetworkTensor:
    """Every row and column several times: by copies, and by pooling in a direction in which there is only one."""
    tensor = source
    along = (1 if source.shape[1] == 1 else rows, 1 if source.shape[2] == 1 else columns)
    if along != (1, 1):
        tensor = graph.tie(graph.network.upsample(_label(graph, "repeat"), tensor, along), source)
    return spread(graph, tensor, rows * source.shape[1], columns * source.shape[2])


def spread(graph: Graph, source: NetworkTensor, height: int, width: int) -> NetworkTensor:
    """One row or column (or pixel) repeated: every window of a padded max pool holds the one element, and padding never
    wins."""
    tensor = source
    while tensor.shape[1:] != (height, width):
        rows, columns = (
            min(BROADCAST, to - now + 1) for to, now in zip((height, width), tensor.shape[1:], strict=True)
        )
        padding = (rows - 1, rows - 1, columns - 1, columns - 1)
        tensor = graph.network.max_pool(_label(graph, "spread"), tensor, (rows, columns), 1, padding)
        graph.tie(tensor, source)
    return tensor


def _dense(graph: Graph, source: NetworkTensor, positions: np.ndarray) -> NetworkTensor | None:
    """Any order of few elements: a convolution as large as the cube, and a deconvolution that lays them out."""
    channels, height, width = positions.shape
    size, pixels = math.prod(source.shape), height * width
    if max(size, positions.size) * positions.size > MAX_DENSE or pixels > MAX_PIXELS:
        return None
    if max(source.shape[1:]) > MAX_KERNEL or max(height, width) > MAX_KERNEL:
        return None
    order = positions.transpose(1, 2, 0).ravel()  # pixel by pixel
    flat = source
    if source.shape[1:] != (1, 1) or pixels == 1 or not np.array_equal(order, np.arange(size)):
        weights = np.zeros((positions.size, size))
        used = np.flatnonzero(order >= 0)
        weights[used, order[used]] = 1.0
        flat = graph.network.fully_connected(_label(graph, "flat"), source, weights)
        graph.tie(flat, source)
    if pixels == 1:
        return flat
    ones = np.zeros((pixels, channels, channels, pixels))
    ones[np.arange(pixels)[:, None], np.arange(channels), np.arange(channels), np.arange(pixels)[:, None]] = 1.0
    ones = ones.reshape(positions.size, channels, height, width)
    laid = graph.network.deconvolution(_label(graph, "order"), flat, ones, stride=(height, width))
    return graph.tie(laid, source)
