"""What a processor's driver needs to know of one operation: descriptors, addresses, configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nvdla.descriptors.enums import OpType
from nvdla.errors import DescriptorError
from nvdla.hardware.configuration import Configuration
from nvdla.precision import PRECISIONS

if TYPE_CHECKING:
    from nvdla.memory.linker import AddressWindow

# Values of dla_interface.h that the drivers share.
MEMORY_DRAM, MEMORY_CVSRAM, MEMORY_ON_THE_FLY = 0, 1, 2
CONV_WINOGRAD = 1
MAX_CUBE_SIDE = 8192


@dataclass
class FirmwareOperation:
    """One operation of one region of interest, with its descriptors (``op``, ``surface``) as read from memory."""

    task: int
    index: int
    roi: int
    type: OpType
    op: Any
    surface: Any
    config: Configuration
    addresses: Sequence[AddressWindow]
    lut: Any = None
    dynamic_input: int | None = None  # address of the input of a dynamic ROI
    #: what of it begins outside the memory behind its address index, in words
    strays: list[str] = field(default_factory=list, compare=False)

    def __str__(self) -> str:
        roi = f", ROI {self.roi}" if self.roi else ""
        return f"operation {self.task}/{self.index} ({self.type.name}{roi})"

    @property
    def atom(self) -> int:
        """Bytes of a memory atom."""
        return self.config.memory_atom

    def address(self, cube: Any, what: str) -> int:
        """The address of a data cube: its entry in the address list plus its offset (0 in the old ABI)."""
        return self.reached(cube.address, int(cube.offset), what)

    def reached(self, index: int, offset: int, what: str) -> int:
        """The address ``offset`` bytes behind that of an index. One that lies outside the index's own memory is kept in
        ``strays``: hardware goes there, whatever lies there."""
        address = self.address_of(index, what) + offset
        region = self.addresses[index].region
        if not region.base <= address < region.end:
            text = (
                f"{self}: {what} begins at address 0x{address:x}, outside the memory behind its address index {index}"
            )
            self.strays = list(dict.fromkeys([*self.strays, f"{text}, {region}"]))
        return address

    def address_of(self, index: int, what: str) -> int:
        """The address behind an index of the task's address list."""
        if not 0 <= index < len(self.addresses):
            raise DescriptorError(
                f"{self}: {what} has address index {index}, but the task's address list has "
                f"{len(self.addresses)} entries"
            )
        return self.addresses[index].address

    def input_address(self, cube: Any, what: str = "src_data") -> int:
        """The address of an input cube; of the ROI for the input layer of a network with dynamic ROIs
        (kmd/firmware/engine.c dla_read_input_address)."""
        if cube.type == MEMORY_ON_THE_FLY:
            return 0
        if cube.address == -1 and self.dynamic_input is not None:
            return self.dynamic_input
        return self.address(cube, what)

    def refuse(self, reason: str) -> DescriptorError:
        """A DescriptorError about this operation."""
        return DescriptorError(f"{self}: {reason}")

    def require(self, condition: bool, reason: str) -> None:
        """Raise DescriptorError with this reason unless the condition holds."""
        if not condition:
            raise self.refuse(reason)

    def require_memory(self, cube: Any, what: str, on_the_fly: bool = False) -> None:
        """The cube's memory type exists, and the configuration has that memory."""
        highest = MEMORY_ON_THE_FLY if on_the_fly else MEMORY_CVSRAM
        self.require(
            cube.type <= highest,
            f"{what} has memory type {cube.type}; allowed are 0 (DRAM), 1 (CVSRAM)"
            + (", 2 (on the fly)" if on_the_fly else ""),
        )
        if cube.type == MEMORY_CVSRAM:
            self.needs("cvsram", f"{what} lies in it")

    def require_cube(self, cube: Any, what: str, limit: int = MAX_CUBE_SIDE) -> None:
        """Width, height and channels are at least 1 and within what a register can hold."""
        for side in ("width", "height", "channel"):
            value = getattr(cube, side)
            self.require(1 <= value <= limit, f"{what} has {side} {value}; it must be 1 to {limit}")

    def require_aligned(self, value: int, alignment: int, what: str) -> None:
        """Raise DescriptorError for a value that is no multiple of ``alignment``."""
        self.require(value % alignment == 0, f"{what} 0x{value:x} is not a multiple of {alignment}")

    def require_strides(self, cube: Any, what: str) -> None:
        """Raise DescriptorError for strides of a cube that are no multiples of the atom."""
        self.require_aligned(cube.line_stride, self.atom, f"{what} line stride")
        self.require_aligned(cube.surf_stride, self.atom, f"{what} surface stride")

    def require_choice(self, value: int, choices: Sequence[str], what: str) -> None:
        """``value`` is one of the numbered ``choices``."""
        known = ", ".join(f"{number} ({name})" for number, name in enumerate(choices))
        self.require(0 <= value < len(choices), f"{what} is {value}; known are {known}")

    def require_precision(self, precision: int, what: str) -> None:
        """The precision is known, and the configuration can compute in it (the firmware does not check that)."""
        self.require_choice(precision, PRECISIONS, what)
        self.config.require_precision(precision, f"{self}: {what}")

    def needs(self, feature: str, why: str) -> None:
        """Raise ConfigError where the configuration lacks a feature (a key of its FEATURES)."""
        self.config.require(feature, str(self), why)
