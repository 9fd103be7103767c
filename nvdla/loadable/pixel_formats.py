"""The pixel formats of images: where each channel of a pixel lies in memory.

Names count from the most significant bit, so the channels lie in memory in the reverse order of the name: in
T_A8B8G8R8 red is the byte at the lowest address. CDMA always hands on R, G, B, A (Y, U, V, A)
(cmod/cdma/NV_NVDLA_cdma.cpp:2487).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nvdla.loadable.enums import PixelFormat

# Formats of two planes (Y, then U and V) have three underscores between them in the registers' names.
NAMES = tuple(
    f"T_{each.name.replace('_', '___', 1) if each.name.endswith('N444') else each.name}"
    for each in PixelFormat
    if each < PixelFormat.FEATURE
)
"""By the value of D_DATAIN_FORMAT.PIXEL_FORMAT."""

CHANNEL_RANK = {"R": 0, "Y": 0, "G": 1, "U": 1, "B": 2, "V": 2, "A": 3, "X": 3}


@dataclass(frozen=True)
class ImageFormat:
    """``planes`` lists for each plane which channel (0..3 = R G B A) each element in memory is.

    ``element_bytes`` is 1 or 2; ``bits`` gives, for formats that pack a pixel into 32 bits, the bit width of each
    element from the least significant one, and is empty otherwise. ``depth``: bits of a colour's number.
    """

    name: str
    planes: tuple[tuple[int, ...], ...]
    element_bytes: int
    bits: tuple[int, ...]
    floating: bool
    depth: int

    @property
    def signed(self) -> bool:
        """Whether the format itself says that its elements have a sign."""
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
        elements = re.findall(r"([RGBAXYUV])(\d+)", part)[::-1]
        planes.append(tuple(CHANNEL_RANK[letter] for letter, _ in elements))
        widths += [int(width) for _, width in elements]
    packed = len(planes) == 1 and len(widths) == 4 and sum(widths) == 32 and max(widths) == 10
    element_bytes = 1 if max(widths) == 8 else 2
    bits = tuple(widths) if packed else ()
    return ImageFormat(name, tuple(planes), element_bytes, bits, name.endswith("_F"), max(widths))


PIXEL_FORMATS = tuple(_parse(name) for name in NAMES)
"""By the number of the format, in loadables, descriptors and registers."""
