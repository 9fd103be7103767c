"""What the six processors' drivers have in common; each is imported when an operation first needs it."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from nvdla.descriptors.enums import OpType
from nvdla.firmware.csb import Csb
from nvdla.firmware.operation import MEMORY_CVSRAM, FirmwareOperation
from nvdla.hardware.machine import ENGINES

if TYPE_CHECKING:
    from nvdla.firmware.processor import GroupState, Processor


class Driver(ABC):
    """Register sequences of one processor, in the order in which the firmware writes.

    ``engine`` is its name in the machine, which knows its units: the first tells its state, the read DMA is the other
    one where there is one. ``has_tables``: its lookup tables are shared by both register groups.
    """

    engine: ClassVar[str]
    has_tables: ClassVar[bool] = False

    @property
    def units(self) -> tuple[str, ...]:
        """The register units of the engine."""
        return ENGINES[self.engine].units

    @property
    def read_dma(self) -> str | None:
        """The unit of the engine's read DMA, None where it has none of its own."""
        return next((unit for unit in self.units if unit.endswith("_RDMA")), None)

    def needs_read_dma(self, operation: FirmwareOperation) -> bool:
        """Whether the operation occupies a register group of the read DMA."""
        return self.read_dma is not None

    @abstractmethod
    def check(self, operation: FirmwareOperation) -> None:
        """Refuse what the firmware or the hardware cannot do. Raises DescriptorError or ConfigError."""

    def is_ready(self, processor: Processor, group: GroupState) -> bool:
        """Whether the operation of ``group`` may be programmed while the other group is as it is."""
        return not self.has_tables or _tables_are_free(processor, group, group.operation.op.lut_index)

    def set_producer(self, csb: Csb, group: int, read_dma_group: int) -> None:
        """Point the next register writes at a group of the engine, and of its read DMA."""
        for unit in self.units:
            csb.write(unit, "S_POINTER", read_dma_group if unit == self.read_dma else group)

    @abstractmethod
    def program(self, csb: Csb, operation: FirmwareOperation, read_dma: bool) -> None:
        """Write the operation's registers in the order in which the firmware does."""

    def enable(self, csb: Csb, operation: FirmwareOperation, group: int, read_dma: bool, statistics: bool) -> None:
        """Start what a group has been programmed with: the read DMA first, if the operation needs it."""
        if statistics:
            self.count(csb)
        if read_dma and self.read_dma:
            csb.write(self.read_dma, "D_OP_ENABLE", 1)
        for unit in self.units:
            if unit != self.read_dma:
                csb.write(unit, "D_OP_ENABLE", 1)

    def count(self, csb: Csb) -> None:
        """Let the engine count stalls, saturated elements and the like."""
        csb.write(self.units[0], "D_PERF_ENABLE", 1)

    def unmask_interrupts(self, csb: Csb) -> None:
        """Let the two interrupts of the engine's end through (kmd/firmware/engine.c dla_enable_intr)."""
        cause = ENGINES[self.engine].interrupts[0]
        fields = csb.field_mask("GLB", "S_INTR_MASK", f"{cause}_MASK0", f"{cause}_MASK1")
        csb.write("GLB", "S_INTR_MASK", csb.read("GLB", "S_INTR_MASK") & ~fields)


def driver(op_type: OpType) -> Driver:
    """A new driver for the processor: ``NameDriver`` of ``name.py``."""
    engine = op_type.name.lower()
    made: Driver = getattr(importlib.import_module(f"nvdla.firmware.{engine}"), f"{engine.title()}Driver")()
    return made


def ram_type(memory: int) -> int:
    """The RAM_TYPE code of a memory type: CVSRAM is 0, DRAM 1. On the fly it says nothing; the reference writes 1."""
    return int(memory != MEMORY_CVSRAM)


def _tables_are_free(processor: Processor, group: GroupState, lut_index: int) -> bool:
    """Whether the only lookup tables of a unit may be loaded for ``group`` (sdp.c, cdp.c is_ready).

    The groups share the tables: free when no table is needed, the other group uses the same one, or the other group
    uses none and is not at work (the tables are locked while the unit works).
    """
    other = processor.groups[1 - group.id]
    if lut_index == -1 or other.lut_index == lut_index:
        return True
    return other.lut_index == -1 and not other.active
