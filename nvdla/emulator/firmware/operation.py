"""Operations of the firmware, their register accesses, and the budget of a run.

Convolutions state their multiplications in the descriptors. What the other engines do is counted by the machine
(:class:`nvdla.limits.Meter`) when an operation's registers have been decoded.

A log is a list of tuples, the lines of the reference's ``csb.txt`` logs in the same order. ``("W", byte address,
value)`` is a register write. The firmware's steps are ``("task", id, addresses)``, ``("program" | "enable" |
"complete", operation index, processor name, group)`` and ``("irq", bits)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.register_file import MASK32, RegisterFile
from nvdla.errors import DescriptorError, ScheduleError
from nvdla.limits import MAX_CUBE_SIDE, Limits
from nvdla.loadable.descriptors.enums import OpType
from nvdla.loadable.descriptors.structures import Descriptor
from nvdla.util.precision import PRECISIONS, Precision

if TYPE_CHECKING:
    from nvdla.emulator.memory.linker import AddressWindow

# Values of dla_interface.h that the drivers share.
MEMORY_CVSRAM, MEMORY_ON_THE_FLY = 1, 2  # 0: DRAM
CONV_WINOGRAD = 1


@dataclass
class FirmwareOperation:
    """One operation of one region of interest, with its descriptors (``op``, ``surface``) as read from memory."""

    task: int
    index: int
    roi: int
    type: OpType
    op: Descriptor
    surface: Descriptor
    config: Configuration
    addresses: Sequence[AddressWindow]
    lut: Descriptor | None = None
    dynamic_input: int | None = None  # address of the input of a dynamic ROI
    #: parts of it that begin outside the memory of their address index, in words
    strays: list[str] = field(default_factory=list, compare=False)

    def __str__(self) -> str:
        roi = f", ROI {self.roi}" if self.roi else ""
        return f"operation {self.task}/{self.index} ({self.type.name}{roi})"

    @property
    def atom(self) -> int:
        """Bytes of a memory atom."""
        return self.config.memory_atom

    def address(self, cube: Descriptor, what: str) -> int:
        """The address of a data cube: its entry in the address list plus its offset (0 in the old ABI)."""
        return self.reached(cube.address, int(cube.offset), what)

    def reached(self, index: int, offset: int, what: str) -> int:
        """Return the address ``offset`` bytes after that of an index. One outside the memory of the index is kept in
        ``strays``: hardware accesses it without a check."""
        address = self.address_of(index, what) + offset
        region = self.addresses[index].region
        if not region.base <= address < region.end:
            text = f"{self}: {what} begins at address 0x{address:x}, outside the memory of its address index {index}"
            self.strays = list(dict.fromkeys([*self.strays, f"{text}, {region}"]))
        return address

    def address_of(self, index: int, what: str) -> int:
        """Return the address of an index of the task's address list."""
        if not 0 <= index < len(self.addresses):
            raise DescriptorError(
                f"{self}: {what}: address index: must be 0 .. {len(self.addresses) - 1} (address list of the task), "
                f"got {index}"
            )
        return self.addresses[index].address

    def input_address(self, cube: Descriptor, what: str = "src_data") -> int:
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

    def require_memory(self, cube: Descriptor, what: str, on_the_fly: bool = False) -> None:
        """The cube's memory type exists, and the configuration has that memory."""
        highest = MEMORY_ON_THE_FLY if on_the_fly else MEMORY_CVSRAM
        self.require(
            cube.type <= highest,
            f"{what} has memory type {cube.type}; allowed are 0 (DRAM), 1 (CVSRAM)"
            + (", 2 (on the fly)" if on_the_fly else ""),
        )
        if cube.type == MEMORY_CVSRAM:
            self.needs("cvsram", f"{what} is in CVSRAM")

    def require_cube(self, cube: Descriptor, what: str, limit: int = MAX_CUBE_SIDE) -> None:
        """Width, height and channels are at least 1 and within what a register can hold."""
        for side in ("width", "height", "channel"):
            value = getattr(cube, side)
            self.require(1 <= value <= limit, f"{what} {side}: must be 1 to {limit}, got {value}")

    def require_aligned(self, value: int, alignment: int, what: str) -> None:
        """Raise DescriptorError unless a value is a multiple of ``alignment``."""
        self.require(value % alignment == 0, f"{what}: must be a multiple of {alignment}, got 0x{value:x}")

    def require_strides(self, cube: Descriptor, what: str) -> None:
        """Raise DescriptorError unless the strides of a cube are multiples of the atom."""
        self.require_aligned(cube.line_stride, self.atom, f"{what} line stride")
        self.require_aligned(cube.surf_stride, self.atom, f"{what} surface stride")

    def require_choice(self, value: int, choices: Sequence[str], what: str) -> None:
        """``value`` is one of the numbered ``choices``."""
        allowed = ", ".join(f"{number} ({name})" for number, name in enumerate(choices))
        self.require(0 <= value < len(choices), f"{what}: must be {allowed}, got {value}")

    def require_precision(self, precision: int, what: str) -> None:
        """The precision is known, and the configuration can compute in it (the firmware does not check that)."""
        self.require_choice(precision, PRECISIONS, what)
        self.config.require_precision(precision, f"{self}: {what}")

    def needs(self, feature: str, why: str) -> None:
        """Raise ConfigError where the configuration lacks a feature (a key of its FEATURES)."""
        self.config.require(feature, str(self), why)


def check_budget(operations: Iterable[FirmwareOperation], limits: Limits) -> int:
    """Return the multiplications of operations. Raises ScheduleError when these, or the operations, pass the limits."""
    count = multiplications = 0
    for operation in operations:
        count += 1
        multiplications += multiplications_of(operation)
    if count > limits.operations:
        raise ScheduleError(f"operations: must be at most {limits.operations} (run budget), got {count}")
    if multiplications > limits.multiplications:
        raise ScheduleError(
            f"multiplications: must be at most {limits.multiplications:.3g} (run budget), got {multiplications:.3g}"
        )
    return multiplications


LARGE = 1 << 24
"""Multiplications from which the first run only records, and the plan computes. A smaller network is done by the
fallback kernels before compiled ones are loaded."""


def is_large(operations: Iterable[FirmwareOperation], limits: Limits) -> bool:
    """Check the budget of a run, and whether its first run only records: fp16 has no fallback for single operations."""
    listed = list(operations)
    halves = (node.type == OpType.CONV and node.op.out_precision == Precision.FP16 for node in listed)
    return check_budget(listed, limits) >= LARGE or any(halves)


def multiplications_of(operation: FirmwareOperation) -> int:
    """Multiplications of a convolution, 0 for other operations."""
    if operation.type != OpType.CONV:
        return 0
    op, dst = operation.op, operation.surface.dst_data
    window = op.kernel_width_csc * op.kernel_height_csc * op.kernel_channel_csc
    return int(dst.width * dst.height * dst.channel * window * max(op.batch, 1))


CsbEntry = tuple[Any, ...]
CsbLog = list[CsbEntry]


class Csb:
    """Register accesses by unit and register name. ``log`` (a list) takes every write and every note."""

    def __init__(self, registers: RegisterFile, log: CsbLog | None = None) -> None:
        self._registers = registers
        self._map = registers.map
        self._log = log

    def write(self, unit: str, register: str, value: int) -> None:
        """Write the low 32 bits of ``value``. Raises TraceError for a register that the hardware does not have."""
        target = self._map.register(unit, register)
        if self._log is not None:
            self._log.append(("W", target.address, value & MASK32))
        self._registers.write_register(target, value)

    def write_fields(self, unit: str, register: str, **fields: int) -> None:
        """Write a register composed of fields. Like the firmware, values are shifted, not cut to their fields."""
        target = self._map.register(unit, register)
        value = 0
        for name, part in fields.items():
            value |= part << target.fields[name].low
        self.write(unit, register, value)

    def write_address(self, unit: str, low: str, high: str, address: int, high_first: bool = False) -> None:
        """Write a 64-bit address to its two registers, low word first unless told otherwise."""
        words = [(low, address & MASK32), (high, address >> 32 & MASK32)]
        for register, value in reversed(words) if high_first else words:
            self.write(unit, register, value)

    def read(self, unit: str, register: str) -> int:
        """The value of a register."""
        return self._registers.read_register(self._map.register(unit, register))

    def read_field(self, unit: str, register: str, field: str) -> int:
        """One field of a register."""
        described = self._map.register(unit, register).fields[field]
        return self.read(unit, register) >> described.low & described.mask

    def field_mask(self, unit: str, register: str, *fields: str) -> int:
        """The bits of the fields, in place."""
        described = self._map.register(unit, register).fields
        return sum(described[name].mask << described[name].low for name in fields)

    def note(self, *what: object) -> None:
        """Add a line to the log that is not a register write."""
        if self._log is not None:
            self._log.append(what)
