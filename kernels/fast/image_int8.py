"""Lines of an image for int8 convolutions, with the converter of CDMA as a lookup table per channel.

An 8-bit channel has 256 values, so a table per channel replaces the converter with all its settings. The converter
itself fills the table (:meth:`nvdla.emulator.hardware.convolution.cdma.ImageSource.tables`). If the table only inverts
some bits, and the channels are in memory in their order, whole lines are copied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nvdla.kernels.fast.fast_paths import FastPath
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.recorded_calls import ALONE, JOINED, WAKING, RecordedCall, uint8s, words
from nvdla.kernels.jit.variants import recorded

FAST_PATH = FastPath(
    "image_int8.image_lines",
    ("conv.convert_input",),
    "int8 from channels of 8 bits: the table has every byte",
    "tests/kernels/test_image_int8.py",
)

SHARED_BYTES, WAKING_BYTES = 1 << 15, 1 << 20
PIECE_BYTES = 1 << 13
MOST_CHANNELS = 4

HEIGHT, WIDTH, LEFT, LINE, TOP, FETCHED_PAD, PAD = range(7)
TARGET, IMAGES, ROWS, COLUMNS, CHANNELS, TABLE, TURNED, PIECE_ROWS, KNOWN, PLANES = range(7, 17)
PLANE_FIELDS = 4
FIELDS = PLANES + MOST_CHANNELS * PLANE_FIELDS
"""Fields of a record: those of :class:`Surroundings`, the result and its shape, the tables, the inverted bits (-1: more
than that is needed), rows per piece, channels of the image, and the fields of :class:`Channel` for each."""
ZERO = 128


class Surroundings(NamedTuple):
    """An image and what surrounds it: a line is ``line`` pixels wide, of which ``width`` from ``left`` on are the
    image's and others ``fetched_pad``; above the image (``top`` rows) and below it all is ``pad``, beyond the end of a
    line 0."""

    height: int
    width: int
    left: int
    line: int
    top: int
    fetched_pad: int
    pad: int


class Channel(NamedTuple):
    """Layout of a channel: ``address`` of the first byte; strides of lines, pixels and images in bytes."""

    address: int
    line: int
    pixel: int
    image: int


@njit(cache=True, nogil=True)
def _row(record: np.ndarray, image: int, y: int, out: np.ndarray) -> None:
    """Row ``y`` of an image, (columns * channels) bytes."""
    channels, columns, known = record[CHANNELS], record[COLUMNS], record[KNOWN]
    left, source = min(record[LEFT], columns), y - record[TOP]
    if source < 0 or source >= record[HEIGHT]:
        for i in range(out.size):
            out[i] = record[PAD]
        return
    inside = max(min(record[WIDTH], columns - left), 0)
    beyond = max(min(record[LINE], columns), left + inside)
    if known < channels:
        for i in range(out.size):
            out[i] = ZERO
    for c in range(known):
        for x in range(left):
            out[x * channels + c] = record[FETCHED_PAD]
        for x in range(left + inside, columns):
            out[x * channels + c] = record[FETCHED_PAD] if x < beyond else ZERO
    first = record[PLANES] + image * record[PLANES + 3] + source * record[PLANES + 1]
    if record[TURNED] >= 0:
        turned, begin = np.uint8(record[TURNED]), left * channels
        line = uint8s(first, inside * channels)
        for i in range(line.size):
            out[begin + i] = line[i] ^ turned
        return
    table = uint8s(record[TABLE], known * 256)
    for c in range(known):
        plane = record[PLANES + c * PLANE_FIELDS :]
        stride, base = plane[2], c * 256
        line = uint8s(plane[0] + image * plane[3] + source * plane[1], inside * stride)
        for x in range(inside):
            out[(left + x) * channels + c] = table[base + line[x * stride]]


@njit(nogil=True)
def _count(address: int) -> int:
    record = words(address, FIELDS)
    return pieces(record[IMAGES] * record[ROWS], record[PIECE_ROWS])


@recorded(_count)
def _lines(number: int, address: int) -> None:
    record = words(address, FIELDS)
    rows, size = record[ROWS], record[COLUMNS] * record[CHANNELS]
    first = number * record[PIECE_ROWS]
    for at in range(first, min(first + record[PIECE_ROWS], record[IMAGES] * rows)):
        _row(record, at // rows, at % rows, uint8s(record[TARGET] + at * size, size))


def image_lines(around: Surroundings, channels: list[Channel], tables: np.ndarray, out: np.ndarray) -> RecordedCall:
    """Convert images to ``out`` (images, rows, columns, channels') uint8 = element + 128.

    ``tables`` (channels, 256) int8: the element for each byte. ``around``'s pads are elements. Channels of ``out`` that
    the image lacks are 0.
    """
    images, rows, columns, depth = out.shape
    known = min(len(channels), depth)
    flipped = np.ascontiguousarray(tables[:known].view(np.uint8) ^ np.uint8(ZERO))
    numbers = [*around[:5], around.fetched_pad + ZERO, around.pad + ZERO, out.ctypes.data, images, rows, columns, depth]
    numbers += [flipped.ctypes.data, _turned(flipped, channels, depth), max(1, PIECE_BYTES // (columns * depth)), known]
    numbers += [field for channel in channels[:known] for field in channel]
    numbers += [0] * (FIELDS - len(numbers))
    sharing = WAKING if out.size > WAKING_BYTES else JOINED if out.size > SHARED_BYTES else ALONE
    return RecordedCall(_lines, numbers, (flipped, out), sharing, out.size)


def _turned(tables: np.ndarray, channels: list[Channel], depth: int) -> int:
    """Return the bits that a copy of whole lines inverts; -1 if a copy does not suffice."""
    first = channels[0]
    in_order = all(channel == first._replace(address=first.address + c) for c, channel in enumerate(channels))
    turned = int(tables[0, 0])
    same = np.array_equal(tables, np.broadcast_to(np.arange(256, dtype=np.uint8) ^ turned, tables.shape))
    return turned if in_order and same and len(channels) == depth == first.pixel else -1
