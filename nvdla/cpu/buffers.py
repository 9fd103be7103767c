"""The buffers of CPU operations: where they lie, in which format (umd/core/src/runtime/Emulator.cpp getAddrOffset)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.descriptors.enums import OLD_EMU_FORMATS, EmuFormat
from nvdla.errors import DescriptorError
from nvdla.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.memory.lanes import Lanes, Move
    from nvdla.memory.linker import AddressWindow

# Format -> element type and bytes of an atom.
FORMATS: dict[EmuFormat, tuple[np.dtype, int]] = {
    EmuFormat.FF16: (np.dtype("<f2"), 32),
    EmuFormat.INT8: (np.dtype("i1"), 32),
    EmuFormat.INT8_8: (np.dtype("i1"), 8),
}


@dataclass(frozen=True)
class CpuBuffer:
    """A cube in memory. ``data`` is everything from its first byte on (uint8); ``what`` names it in messages.

    In :meth:`across` lanes ``data`` has an axis in front, one entry an image.
    """

    what: str
    data: np.ndarray
    format: EmuFormat
    dtype: np.dtype
    atom: int
    width: int
    height: int
    channels: int
    line_stride: int
    surface_stride: int

    @classmethod
    def from_descriptor(cls, descriptor: Any, windows: list[AddressWindow], abi: str, what: str) -> CpuBuffer:
        """Raises DescriptorError for an unknown address index, format or an offset outside the memory."""
        index = descriptor.address_index
        if not 0 <= index < len(windows):
            raise DescriptorError(f"{what}: address index is {index}, must be 0 .. {len(windows) - 1} (address list)")
        number = EmuFormat(descriptor.format)
        if abi == "old" and descriptor.format < len(OLD_EMU_FORMATS):
            number = OLD_EMU_FORMATS[descriptor.format]
        if number not in FORMATS:
            known = ", ".join(each.name for each in FORMATS)
            raise DescriptorError(
                f"{what}: format {descriptor.format} ({number.name}) cannot be computed with; only {known} can"
            )
        # The old ABI has no offset.
        offset = getattr(descriptor, "address_index_offset", 0)
        window = windows[index]
        if offset > window.size:
            raise DescriptorError(f"{what}: offset {offset} lies outside {window}")
        dtype, atom = FORMATS[number]
        return cls(
            what,
            window.data[offset:],
            number,
            dtype,
            atom,
            descriptor.width,
            descriptor.height,
            descriptor.channel,
            descriptor.line_stride,
            descriptor.surf_stride,
        )

    def lane(self, lanes: Lanes, lane: int) -> CpuBuffer:
        """The same buffer for another image."""
        return replace(self, data=lanes.at(self.data, lane))

    def moved(self, move: Move) -> CpuBuffer:
        """The same buffer in other memory."""
        return replace(self, data=move(self.data))

    def across(self, lanes: Lanes, count: int) -> CpuBuffer:
        """The buffers of ``count`` images together, for :meth:`line`."""
        return replace(self, data=lanes.across(self.data, count))

    def line(self, count: int) -> np.ndarray:
        """The first ``count`` elements (of each image) as they lie in memory, strides ignored."""
        size, there = count * self.dtype.itemsize, self.data.shape[-1]
        if size > there:
            raise DescriptorError(f"{self.what}: {count} elements take {size} bytes, {there} are there")
        return self.data[..., :size].view(self.dtype)

    def cube(self) -> np.ndarray:
        """All elements, shape (surfaces, height, width, elements of an atom), as a view."""
        elements = self.atom // self.dtype.itemsize
        surfaces = ceil_div(self.channels, elements)
        shape = (surfaces, self.height, self.width, elements)
        if min(shape) == 0:
            return np.empty(shape, self.dtype)
        end = (surfaces - 1) * self.surface_stride + (self.height - 1) * self.line_stride + self.width * self.atom
        if end > self.data.size:
            raise DescriptorError(f"{self.what}: its last atom ends at byte {end}, {self.data.size} are there")
        size = surfaces * self.height * self.width * self.atom
        if size > self.data.size:
            raise DescriptorError(
                f"{self.what}: its atoms take {size} bytes, {self.data.size} are there: line stride {self.line_stride} "
                f"or surface stride {self.surface_stride} makes them overlap"
            )
        strides = (self.surface_stride, self.line_stride, self.atom, 1)
        return as_strided(self.data, (*shape[:3], self.atom), strides).view(self.dtype)
