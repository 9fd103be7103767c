"""The lines of an image for int8 convolutions: the converter of CDMA as a table of what each byte becomes.

An 8-bit channel has 256 values, so the converter, whatever its offset, scale and sign, is a table for each channel,
filled by the converter itself (:meth:`nvdla.hardware.convolution.cdma.ImageSource.tables`). Where all that it does is
to turn some bits round, and channels lie in memory in their order, a line is copied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nvdla.kernels.fast.forms import FastForm
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share
from nvdla.kernels.jit.record import ALONE, JOINED, WAKING, Record, uint8s, words

FORM = FastForm(
    "image_int8.image_lines",
    ("conversion.convert_input",),
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
"""The fields of a record: those of :class:`Surroundings`, the result and its shape, the tables, the bits that are
turned (-1: there is more to do), rows of a piece, channels of the image, those of :class:`Channel` of each."""
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
    """Where a channel's bytes lie: ``address`` of the first, bytes from one line, pixel and image to the next."""

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


@njit(cache=True, nogil=True)
def _piece(number: int, address: int) -> None:
    record = words(address, FIELDS)
    rows, size = record[ROWS], record[COLUMNS] * record[CHANNELS]
    first = number * record[PIECE_ROWS]
    for at in range(first, min(first + record[PIECE_ROWS], record[IMAGES] * rows)):
        _row(record, at // rows, at % rows, uint8s(record[TARGET] + at * size, size))


@njit(cache=True, nogil=True)
def _lines(crew: int, address: int) -> None:
    record = words(address, FIELDS)
    rows, height = record[IMAGES] * record[ROWS], record[PIECE_ROWS]
    share(crew, pieces(rows, height), _piece, (address,))


def image_lines(around: Surroundings, channels: list[Channel], tables: np.ndarray, out: np.ndarray) -> Record:
    """Images -> ``out`` (images, rows, columns, channels') uint8 = element + 128.

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
    return Record(_lines, numbers, (flipped, out), sharing, out.size)


def _turned(tables: np.ndarray, channels: list[Channel], depth: int) -> int:
    """The bits that a copy of whole lines turns round; -1 where that is not all."""
    first = channels[0]
    in_order = all(each == first._replace(address=first.address + c) for c, each in enumerate(channels))
    turned = int(tables[0, 0])
    same = np.array_equal(tables, np.broadcast_to(np.arange(256, dtype=np.uint8) ^ turned, tables.shape))
    return turned if in_order and same and len(channels) == depth == first.pixel else -1
