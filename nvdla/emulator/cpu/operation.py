"""Buffers, half-precision numbers and registry of the CPU operations.

IEEE arithmetic (and numpy) breaks ties to even; the library that the runtime uses (umd/external/include/half.h) is
configured to break them away from zero.

Such a module has ``run(operation, scales, source, destination)`` and may say:

* ``IN_LINE`` True: it takes as many elements as there are channels, in their order in memory, ignoring strides;
* ``record`` with the same arguments: the same as a record of a compiled kernel, or None;
* ``OF_LANES`` True: its ``run`` takes the buffers of several images at once.
"""

from __future__ import annotations

from ctypes import Structure
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.errors import DescriptorError
from nvdla.loadable.descriptors.enums import OLD_EMU_FORMATS, EmuFormat, EmuOpType
from nvdla.util.registry import modules_of
from nvdla.util.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.emulator.memory.address_space import Lanes, Move
    from nvdla.emulator.memory.linker import AddressWindow

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
    def from_descriptor(cls, descriptor: Structure, windows: list[AddressWindow], abi: str, what: str) -> CpuBuffer:
        """Raises DescriptorError for an unknown address index, format or an offset outside the memory."""
        index = descriptor.address_index
        if not 0 <= index < len(windows):
            raise DescriptorError(f"{what}: address index: must be 0 .. {len(windows) - 1} (address list), got {index}")
        number = EmuFormat(descriptor.format)
        if abi == "old" and descriptor.format < len(OLD_EMU_FORMATS):
            number = OLD_EMU_FORMATS[descriptor.format]
        if number not in FORMATS:
            known = ", ".join(known_format.name for known_format in FORMATS)
            raise DescriptorError(f"{what}: format: must be {known}, got {descriptor.format} ({number.name})")
        # The old ABI has no offset.
        offset = getattr(descriptor, "address_index_offset", 0)
        window = windows[index]
        if offset > window.size:
            raise DescriptorError(f"{what}: offset: must be within {window}, got {offset}")
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
        """The first ``count`` elements (of each image) in their order in memory, ignoring strides."""
        size, there = count * self.dtype.itemsize, self.data.shape[-1]
        if size > there:
            raise DescriptorError(f"{self.what}: size: must be at least {size} bytes ({count} elements), got {there}")
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
            raise DescriptorError(f"{self.what}: end of its last atom: must be at most {self.data.size}, got {end}")
        size = surfaces * self.height * self.width * self.atom
        if size > self.data.size:
            raise DescriptorError(
                f"{self.what}: atoms: must not overlap, but {size} bytes of atoms are in {self.data.size} bytes "
                f"(line stride {self.line_stride}, surface stride {self.surface_stride})"
            )
        strides = (self.surface_stride, self.line_stride, self.atom, 1)
        return as_strided(self.data, (*shape[:3], self.atom), strides).view(self.dtype)


INFINITY = 0x7C00


def to_half(values: np.ndarray) -> np.ndarray:
    """float32 -> float16, nearest, ties away from zero. NaN keeps the top ten bits of its fraction.

    A tie has zeros below the bit that makes it one. With the lowest bit set it is not a tie but just beyond one,
    away from zero, and nothing else gets to another side of a tie: so numpy's rounding gives this one.
    """
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        half = (bits | np.uint32(1)).view(np.float32).astype(np.float16)
    finite = np.isfinite(values)
    if not finite.all():
        special = INFINITY | bits >> 13 & 0x3FF | bits >> 16 & 0x8000
        np.copyto(half, special.astype(np.uint16).view(np.float16), where=~finite)
    return half


def saturate_int8(values: np.ndarray) -> np.ndarray:
    """float32 -> int8: clamp, then cut towards zero (umd/core/src/common/include/priv/Type.h saturate)."""
    clamped = np.fmin(np.maximum(values, np.float32(-128)), np.float32(127))  # a NaN becomes 127
    return clamped.astype(np.int8)


@cache
def operations() -> dict[EmuOpType, ModuleType]:
    """All CPU operations by their type."""
    return {module.TYPE: module for module in modules_of("nvdla.emulator.cpu") if hasattr(module, "TYPE")}


def computes_in_line(kind: EmuOpType) -> bool:
    """Return whether an operation takes its elements in their order in memory."""
    return bool(getattr(operations().get(kind), "IN_LINE", False))
