"""Enums and pixel formats of loadables.

A number without a name is kept: ``Interface(9)`` is a member called ``UNKNOWN_9`` that still equals 9, so reading
never loses information and printing never fails.

Names count from the most significant bit, so the order of the channels in memory is the reverse of the name: in
T_A8B8G8R8 red is the byte at the lowest address. CDMA always delivers R, G, B, A (Y, U, V, A)
(cmod/cdma/NV_NVDLA_cdma.cpp:2487).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag

from nvdla.util.registry import OpenEnum


class Interface(OpenEnum):
    """Processor of a task."""

    NONE = 0
    DLA1 = 1
    EMU1 = 2


class SubInterface(OpenEnum):
    """Which descriptor list a blob or relocation means. EMU1 uses ADDR0, OPS and SURFS (its buffer list)."""

    NONE = 0
    ADDR0 = 1
    DEPS = 2
    OPS = 3
    SURFS = 4
    LUTS = 5


class MemoryDomain(OpenEnum):
    """SYSTEM is DRAM, SRAM is CVSRAM."""

    SYSTEM = 0
    SRAM = 1


class MemoryFlags(IntFlag):
    """Origin of a memory, and its binding."""

    NONE = 0
    ALLOC = 1
    SET = 2
    INPUT = 4
    OUTPUT = 8


class EventType(OpenEnum):
    """The kind of an event."""

    EVENTTYPE0 = 0
    EVENTTYPE1 = 1
    EVENTTYPE2 = 2


class EventOp(OpenEnum):
    """Operation on an event."""

    WAIT = 0
    SIGNAL = 1


class RelocType(OpenEnum):
    """Which stride of the bound tensor is written (TensorDesc.strides index)."""

    ELEMENT = 0
    LINE = 1
    SURFACE = 2
    TENSOR = 3


class DataFormat(OpenEnum):
    """The order of a tensor's axes."""

    UNKNOWN = 0
    NCHW = 1
    NHWC = 2
    NCxHWx = 3


class DataType(OpenEnum):
    """The type of a tensor's elements."""

    UNKNOWN = 0
    FLOAT = 1
    HALF = 2
    INT16 = 3
    INT8 = 4


class DataCategory(OpenEnum):
    """Purpose of a tensor."""

    IMAGE = 0
    WEIGHT = 1
    FEATURE = 2
    PLANAR = 3
    BIAS = 4


class PixelMapping(OpenEnum):
    """Layout of the pixels of a tensor."""

    PITCH_LINEAR = 0
    INVALID_PIXEL_MAP = 1


class PixelFormat(OpenEnum):
    """Pixels of an image, or atoms of a feature tensor."""

    R8 = 0
    R10 = 1
    R12 = 2
    R16 = 3
    R16_I = 4
    R16_F = 5
    A16B16G16R16 = 6
    X16B16G16R16 = 7
    A16B16G16R16_F = 8
    A16Y16U16V16 = 9
    V16U16Y16A16 = 10
    A16Y16U16V16_F = 11
    A8B8G8R8 = 12
    A8R8G8B8 = 13
    B8G8R8A8 = 14
    R8G8B8A8 = 15
    X8B8G8R8 = 16
    X8R8G8B8 = 17
    B8G8R8X8 = 18
    R8G8B8X8 = 19
    A2B10G10R10 = 20
    A2R10G10B10 = 21
    B10G10R10A2 = 22
    R10G10B10A2 = 23
    A2Y10U10V10 = 24
    V10U10Y10A2 = 25
    A8Y8U8V8 = 26
    V8U8Y8A8 = 27
    Y8_U8V8_N444 = 28
    Y8_V8U8_N444 = 29
    Y10_U10V10_N444 = 30
    Y10_V10U10_N444 = 31
    Y12_U12V12_N444 = 32
    Y12_V12U12_N444 = 33
    Y16_U16V16_N444 = 34
    Y16_V16U16_N444 = 35
    FEATURE = 36
    FEATURE_X8 = 37


# Formats of two planes (Y, then U and V) have three underscores between them in the registers' names.
NAMES = tuple(
    f"T_{form.name.replace('_', '___', 1) if form.name.endswith('N444') else form.name}"
    for form in PixelFormat
    if form < PixelFormat.FEATURE
)
"""By the value of D_DATAIN_FORMAT.PIXEL_FORMAT."""

CHANNEL_RANK = {"R": 0, "Y": 0, "G": 1, "U": 1, "B": 2, "V": 2, "A": 3, "X": 3}


@dataclass(frozen=True)
class ImageFormat:
    """``planes`` lists for each plane which channel (0..3 = R G B A) each element in memory is.

    ``element_bytes`` is 1 or 2; ``bits`` gives, for formats that pack a pixel into 32 bits, the bit width of each
    element from the least significant one, and is empty otherwise. ``depth``: bits of a color's number.
    """

    name: str
    planes: tuple[tuple[int, ...], ...]
    element_bytes: int
    bits: tuple[int, ...]
    floating: bool
    depth: int

    @property
    def signed(self) -> bool:
        """True if the format itself has signed elements."""
        return self.name.endswith("_I")

    @property
    def whole(self) -> int:
        """Channels of ``depth`` bits each: not the alpha of two bits."""
        return self.channels - bool(self.bits)

    def lines(self, plane: int) -> int:
        """The line stride of a plane as a multiple of the first one's."""
        return self.bytes_per_pixel(plane) // self.bytes_per_pixel(0)

    @property
    def channels(self) -> int:
        """Channels of a pixel."""
        return sum(len(plane) for plane in self.planes)

    def bytes_per_pixel(self, plane: int) -> int:
        """Bytes of a pixel in one of its planes."""
        return 4 if self.bits else len(self.planes[plane]) * self.element_bytes


def _parse(name: str) -> ImageFormat:
    planes = []
    widths: list[int] = []
    for part in name[2:].split("___"):
        elements = re.findall(r"([RGBAXYUV])([0-9]+)", part)[::-1]
        planes.append(tuple(CHANNEL_RANK[letter] for letter, _ in elements))
        widths += [int(width) for _, width in elements]
    packed = len(planes) == 1 and len(widths) == 4 and sum(widths) == 32 and max(widths) == 10
    element_bytes = 1 if max(widths) == 8 else 2
    bits = tuple(widths) if packed else ()
    return ImageFormat(name, tuple(planes), element_bytes, bits, name.endswith("_F"), max(widths))


PIXEL_FORMATS = tuple(_parse(name) for name in NAMES)
"""By the number of the format, in loadables, descriptors and registers."""
