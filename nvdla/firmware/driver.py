"""What the six processors' drivers have in common (:mod:`nvdla.firmware.drivers` lists them)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nvdla.firmware.csb import Csb
from nvdla.firmware.operation import MEMORY_CVSRAM, FirmwareOperation

if TYPE_CHECKING:
    from nvdla.firmware.processor import GroupState, Processor


class Driver(Protocol):
    """Register sequences of one processor. ``engine`` is its name in the machine."""

    engine: str
    status_unit: str
    read_dma: str | None

    def needs_read_dma(self, operation: FirmwareOperation) -> bool:
        """Whether the operation occupies a register group of the read DMA."""

    def check(self, operation: FirmwareOperation) -> None:
        """Refuse what the firmware or the hardware cannot do. Raises DescriptorError or ConfigError."""

    def is_ready(self, processor: Processor, group: GroupState) -> bool:
        """Whether the operation of ``group`` may be programmed while the other group is as it is."""

    def set_producer(self, csb: Csb, group: int, read_dma_group: int) -> None:
        """Point the next register writes at a group of the engine, and of its read DMA."""

    def program(self, csb: Csb, operation: FirmwareOperation, read_dma: bool) -> None:
        """Write the operation's registers in the order in which the firmware does."""

    def enable(self, csb: Csb, operation: FirmwareOperation, group: int, read_dma: bool, statistics: bool) -> None:
        """Start what a group has been programmed with."""


def unmask_interrupts(csb: Csb, cause: str) -> None:
    """Let the two interrupts of a cause through (kmd/firmware/engine.c dla_enable_intr)."""
    fields = csb.field_mask("GLB", "S_INTR_MASK", f"{cause}_MASK0", f"{cause}_MASK1")
    csb.write("GLB", "S_INTR_MASK", csb.read("GLB", "S_INTR_MASK") & ~fields)


def ram_type(memory: int) -> int:
    """The RAM_TYPE code of a memory type: CVSRAM is 0, DRAM 1. On the fly it says nothing; the reference writes 1."""
    return int(memory != MEMORY_CVSRAM)


def lut_is_free(processor: Processor, group: GroupState, lut_index: int) -> bool:
    """Whether the only lookup tables of a unit may be loaded for ``group`` (sdp.c, cdp.c is_ready).

    The groups share the tables: free when no table is needed, the other group uses the same one, or the other group
    uses none and is not at work (the tables are locked while the unit works).
    """
    other = processor.groups[1 - group.id]
    if lut_index == -1 or other.lut_index == lut_index:
        return True
    return other.lut_index == -1 and not other.active
