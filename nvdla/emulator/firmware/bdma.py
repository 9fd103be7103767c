"""BDMA: descriptor to registers (kmd/firmware/bdma.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvdla.emulator.firmware.driver import Driver, ram_type
from nvdla.emulator.firmware.operation import MEMORY_CVSRAM, Csb, FirmwareOperation
from nvdla.errors import ScheduleError
from nvdla.limits import MAX_CUBE_SIDE
from nvdla.loadable.descriptors.structures import Descriptor

if TYPE_CHECKING:
    from nvdla.emulator.firmware.driver import GroupState, Processor

MAX_TRANSFERS = 20
LINE_UNIT = 32


class BdmaDriver(Driver):
    """Drives BDMA: its operations are queues of transfers, launched group by group, without a producer pointer."""

    engine = "bdma"

    def is_ready(self, processor: Processor, group: GroupState) -> bool:
        """The queue is one for both groups, so the other group must have been launched first."""
        other = processor.groups[1 - group.id]
        return not other.taken or other.active

    def set_producer(self, csb: Csb, group: int, read_dma_group: int) -> None:
        """BDMA has none."""

    def enable(self, csb: Csb, operation: FirmwareOperation, group: int, read_dma: bool, statistics: bool) -> None:
        """Start the programmed operation of a group."""
        if not operation.surface.num_transfers:
            return
        if statistics:
            csb.write_fields("BDMA", "CFG_STATUS", STALL_COUNT_EN=1)
        csb.write("BDMA", f"CFG_LAUNCH{group}", 1)

    def check(self, operation: FirmwareOperation) -> None:
        """Refuse unsupported settings. Raises DescriptorError or ConfigError."""
        operation.needs("bdma", "the operation is a BDMA transfer")
        surface = operation.surface
        count = surface.num_transfers
        operation.require(count <= MAX_TRANSFERS, f"num_transfers: must be at most {MAX_TRANSFERS}, got {count}")
        for name in ("source_type", "destination_type"):
            kind = getattr(surface, name)
            operation.require(kind <= MEMORY_CVSRAM, f"{name}: must be 0 (DRAM) or 1 (CVSRAM), got {kind}")
            if kind == MEMORY_CVSRAM:
                operation.needs("cvsram", f"{name} is 1")
        for number in range(count):
            _check_transfer(operation, number, surface.transfers[number])

    def program(self, csb: Csb, operation: FirmwareOperation, read_dma: bool) -> None:
        """Write the operation's registers in the order in which the firmware does."""
        surface = operation.surface
        if not surface.num_transfers:
            return
        for number in range(surface.num_transfers):
            if not csb.read_field("BDMA", "STATUS", "FREE_SLOT"):
                raise ScheduleError(f"{operation}: deadlock: the transfer queue of BDMA is full")
            _program_transfer(csb, operation, number, surface.transfers[number])
        self.unmask_interrupts(csb)


def _check_transfer(operation: FirmwareOperation, number: int, transfer: Descriptor) -> None:
    what = f"transfer {number}"
    for name in ("line_repeat", "surface_repeat"):
        value = getattr(transfer, name)
        operation.require(1 <= value <= MAX_CUBE_SIDE, f"{what}: {name}: must be 1 to {MAX_CUBE_SIDE}, got {value}")
    size = transfer.line_size
    wanted = f"must be a positive multiple of {LINE_UNIT}, got {size}"
    operation.require(size > 0 and size % LINE_UNIT == 0, f"{what}: line_size: {wanted}")
    for side in ("source", "destination"):
        line, surface = getattr(transfer, f"{side}_line"), getattr(transfer, f"{side}_surface")
        operation.require(line >= size, f"{what}: {side}_line: must be at least {size} (line_size), got {line}")
        operation.require(
            surface >= (line * transfer.line_repeat) & 0xFFFFFFFF,
            f"{what}: {side}_surface: must be at least {transfer.line_repeat} lines of {line} bytes, got {surface}",
        )
        operation.address_of(getattr(transfer, f"{side}_address"), f"{what}: {side}_address")


def _program_transfer(csb: Csb, operation: FirmwareOperation, number: int, transfer: Descriptor) -> None:
    what = f"transfer {number}"
    source = operation.address_of(transfer.source_address, what)
    destination = operation.address_of(transfer.destination_address, what)
    csb.write_address("BDMA", "CFG_SRC_ADDR_LOW", "CFG_SRC_ADDR_HIGH", source)
    csb.write_address("BDMA", "CFG_DST_ADDR_LOW", "CFG_DST_ADDR_HIGH", destination)
    csb.write("BDMA", "CFG_LINE", transfer.line_size // LINE_UNIT - 1)
    csb.write_fields(
        "BDMA",
        "CFG_CMD",
        SRC_RAM_TYPE=ram_type(operation.surface.source_type),
        DST_RAM_TYPE=ram_type(operation.surface.destination_type),
    )
    csb.write("BDMA", "CFG_LINE_REPEAT", transfer.line_repeat - 1)
    csb.write("BDMA", "CFG_SRC_LINE", transfer.source_line)
    csb.write("BDMA", "CFG_DST_LINE", transfer.destination_line)
    csb.write("BDMA", "CFG_SURF_REPEAT", transfer.surface_repeat - 1)
    csb.write("BDMA", "CFG_SRC_SURF", transfer.source_surface)
    csb.write("BDMA", "CFG_DST_SURF", transfer.destination_surface)
    csb.write_fields("BDMA", "CFG_OP", EN=1)
