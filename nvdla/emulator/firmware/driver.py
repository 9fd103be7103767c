"""Drivers and processors of the firmware: register groups, lookup tables."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from nvdla.emulator.firmware.operation import MEMORY_CVSRAM, Csb, FirmwareOperation
from nvdla.emulator.hardware.machine import ENGINES
from nvdla.loadable.descriptors.enums import Event, LutMethod, OpType
from nvdla.loadable.descriptors.structures import Descriptor


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
        """The unit of the engine's read DMA, None without one."""
        return next((unit for unit in self.units if unit.endswith("_RDMA")), None)

    def needs_read_dma(self, operation: FirmwareOperation) -> bool:
        """Return True if the operation occupies a register group of the read DMA."""
        return self.read_dma is not None

    @abstractmethod
    def check(self, operation: FirmwareOperation) -> None:
        """Refuse unsupported settings. Raises DescriptorError or ConfigError."""

    def is_ready(self, processor: Processor, group: GroupState) -> bool:
        """Return True if the operation of ``group`` may be programmed, given the state of the other group."""
        return not self.has_tables or _tables_are_free(processor, group, group.operation.op.lut_index)

    def set_producer(self, csb: Csb, group: int, read_dma_group: int) -> None:
        """Point the next register writes at a group of the engine, and of its read DMA."""
        for unit in self.units:
            csb.write(unit, "S_POINTER", read_dma_group if unit == self.read_dma else group)

    @abstractmethod
    def program(self, csb: Csb, operation: FirmwareOperation, read_dma: bool) -> None:
        """Write the operation's registers in the order in which the firmware does."""

    def enable(self, csb: Csb, operation: FirmwareOperation, group: int, read_dma: bool, statistics: bool) -> None:
        """Start the programmed operation of a group: the read DMA first, if it needs one."""
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
    instance: Driver = getattr(
        importlib.import_module(f"nvdla.emulator.firmware.{engine}"), f"{engine.title()}Driver"
    )()
    return instance


def ram_type(memory: int) -> int:
    """The RAM_TYPE code of a memory type: CVSRAM is 0, DRAM 1. On the fly it says nothing; the reference writes 1."""
    return int(memory != MEMORY_CVSRAM)


def _tables_are_free(processor: Processor, group: GroupState, lut_index: int) -> bool:
    """Return True if the only lookup tables of a unit may be loaded for ``group`` (sdp.c, cdp.c is_ready).

    The groups share the tables: free when no table is needed, the other group uses the same one, or the other group
    uses none and is not at work (the tables are locked while the unit works).
    """
    other = processor.groups[1 - group.id]
    if lut_index == -1 or other.lut_index == lut_index:
        return True
    return other.lut_index == -1 and not other.active


NO_LUT = -1


@dataclass
class GraphNode:
    """An operation of one region of interest in the dependency graph. ``common`` is a structure over simulated memory,
    so its dependency count decreases in memory. ``sent``: the events that its consumers were told."""

    operation: FirmwareOperation
    common: Descriptor
    submitted: bool = False
    completed: bool = False
    sent: set[Event] = field(default_factory=set)

    @property
    def index(self) -> int:
        """Its place in the operation list."""
        return self.operation.index

    @property
    def roi(self) -> int:
        """Its region of interest."""
        return self.operation.roi

    @property
    def type(self) -> OpType:
        """Its engine."""
        return self.operation.type


@dataclass
class GroupState:
    """One register group: the operation in it and how far it is.

    ``taken`` from the reading of its descriptors to its completion; ``pending`` until it is programmed;
    ``programming`` while it is; ``active`` once it is enabled. ``events`` are those that the interrupts reported.
    """

    id: int
    read_dma_group: int = 0
    read_dma: bool = False
    taken: bool = False
    pending: bool = False
    programming: bool = False
    active: bool = False
    lut_index: int = NO_LUT
    node: GraphNode | None = None
    consumers: list[GraphNode | None] = field(default_factory=list)
    fused_parent: GraphNode | None = None
    events: set[Event] = field(default_factory=set)

    @property
    def held(self) -> GraphNode:
        """The node that the group holds; only asked of a group that holds one."""
        assert self.node is not None
        return self.node

    @property
    def operation(self) -> FirmwareOperation:
        """The operation in the group; only while it is taken."""
        assert self.node is not None
        return self.node.operation

    @property
    def state(self) -> str:
        """For messages."""
        if self.active:
            return "enabled"
        return "read, not yet programmed" if self.pending else "programmed"

    def clear(self) -> None:
        """Forget the operation."""
        self.node = self.fused_parent = None
        self.consumers = []


class Processor:
    """One processor: its driver, its groups, the operation that it took last (``tail``) and for which ROI."""

    def __init__(self, op_type: OpType) -> None:
        self.type = op_type
        self.groups = (GroupState(0), GroupState(1))
        self.last_group = 1
        self.roi = 0
        self.tail: GraphNode | None = None

    @cached_property
    def driver(self) -> Driver:
        """The driver, imported on first use."""
        return driver(self.type)

    def free_group(self, csb: Csb) -> GroupState | None:
        """The group for the next operation, with its read-DMA group; None when both are taken.

        With both groups free the hardware's consumer pointer decides (kmd/firmware/engine.c utils_get_free_group).
        """
        taken = [group.taken for group in self.groups]
        if all(taken):
            return None
        group = self.groups[taken.index(False) if any(taken) else self._consumer(csb, self.driver.units[0])]
        in_use = [group.read_dma_group for group in self.groups if group.taken and group.read_dma]
        if in_use:
            group.read_dma_group = 1 - in_use[0]
        else:
            group.read_dma_group = self._consumer(csb, self.driver.read_dma) if self.driver.read_dma else 0
        return group

    def reset(self) -> None:
        """Ready for the next task; the pointers of the hardware and ``last_group`` stay."""
        self.roi = 0
        self.tail = None
        for group in self.groups:
            group.clear()
            group.taken = group.pending = group.programming = group.active = group.read_dma = False
            group.read_dma_group = group.id
            group.lut_index = NO_LUT
            group.events.clear()

    def _consumer(self, csb: Csb, unit: str) -> int:
        if unit == "BDMA":  # it has no pointer: a busy group 0 means that the next one is group 1
            return csb.read_field("BDMA", "STATUS", "GRP0_BUSY")
        return csb.read_field(unit, "S_POINTER", "CONSUMER")


LE, LO = 0, 1
WRITE = 1
TABLES = (("LE", "linear_exp"), ("LO", "linear_only"))


@dataclass(frozen=True)
class LutPort:
    """Port that tables are loaded through: its unit, and whether start and end are 64-bit (two registers; CDP) or
    32-bit (SDP)."""

    unit: str
    wide: bool


SDP_PORT = LutPort("SDP", wide=False)
CDP_PORT = LutPort("CDP", wide=True)


def require_lut(operation: FirmwareOperation) -> None:
    """The operation's table exists and its enumerations are known."""
    lut = operation.lut
    operation.require(lut is not None, f"lut_index is {operation.op.lut_index}, but the task has no such table")
    assert lut is not None
    operation.require_choice(lut.method, ("exponential", "linear"), "LUT method")
    for name in ("hybrid", "underflow", "overflow"):
        operation.require_choice(getattr(lut, f"{name}_priority"), ("LE", "LO"), f"LUT {name}_priority")


def load_lut(csb: Csb, port: LutPort, lut: Descriptor, fp16: bool) -> None:
    """Tables, indexing, ranges and slopes beyond the ranges."""
    unit = port.unit
    for table, entries in ((LE, lut.linear_exp_table), (LO, lut.linear_only_table)):
        csb.write_fields(unit, "S_LUT_ACCESS_CFG", LUT_TABLE_ID=table, LUT_ACCESS_TYPE=WRITE)
        for entry in entries:
            csb.write(unit, "S_LUT_ACCESS_DATA", entry)
    csb.write_fields(
        unit,
        "S_LUT_CFG",
        LUT_LE_FUNCTION=lut.method,
        LUT_HYBRID_PRIORITY=lut.hybrid_priority,
        LUT_UFLOW_PRIORITY=lut.underflow_priority,
        LUT_OFLOW_PRIORITY=lut.overflow_priority,
    )
    indexing = {"LUT_LO_INDEX_SELECT": lut.linear_only_offset.frac_bits & 0xFF}
    if lut.method == LutMethod.EXPONENTIAL:
        indexing["LUT_LE_INDEX_OFFSET"] = lut.linear_exp_offset.exp_offset & 0xFF
    else:
        indexing["LUT_LE_INDEX_SELECT"] = lut.linear_exp_offset.frac_bits & 0xFF
    csb.write_fields(unit, "S_LUT_INFO", **indexing)
    for part, name in TABLES:
        for end in ("start", "end"):
            _write_bound(csb, port, f"S_LUT_{part}_{end.upper()}", getattr(lut, f"{name}_{end}"))
    for tables, name in TABLES:
        under, over = getattr(lut, f"{name}_underflow_slope"), getattr(lut, f"{name}_overflow_slope")
        _write_slopes(csb, unit, tables, under, over, fp16)


def _write_bound(csb: Csb, port: LutPort, register: str, value: int) -> None:
    if port.wide:
        csb.write_address(port.unit, f"{register}_LOW", f"{register}_HIGH", value)
    else:
        csb.write(port.unit, register, value)


def _write_slopes(csb: Csb, unit: str, table: str, under: Descriptor, over: Descriptor, fp16: bool) -> None:
    """fp16 slopes are halves in the scale fields; integer slopes are a scale and a shift."""
    scales = (under.data_f, over.data_f) if fp16 else (under.data_i.scale & 0xFFFF, over.data_i.scale & 0xFFFF)
    csb.write_fields(unit, f"S_LUT_{table}_SLOPE_SCALE", **_pair(table, "SCALE", *scales))
    if not fp16:
        mask = csb.field_mask(unit, f"S_LUT_{table}_SLOPE_SHIFT", f"LUT_{table}_SLOPE_UFLOW_SHIFT")
        shifts = (under.data_i.shifter & mask, over.data_i.shifter & mask)
        csb.write_fields(unit, f"S_LUT_{table}_SLOPE_SHIFT", **_pair(table, "SHIFT", *shifts))


def _pair(table: str, kind: str, under: int, over: int) -> dict[str, int]:
    return {f"LUT_{table}_SLOPE_UFLOW_{kind}": under, f"LUT_{table}_SLOPE_OFLOW_{kind}": over}
