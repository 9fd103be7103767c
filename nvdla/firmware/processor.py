"""The state of the six processors and of their two register groups (kmd/firmware/dla_engine.h, engine_data.c)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nvdla.descriptors.enums import Event, OpType
from nvdla.firmware.csb import Csb
from nvdla.firmware.driver import Driver, driver
from nvdla.firmware.operation import FirmwareOperation

NO_LUT = -1


@dataclass
class GraphNode:
    """An operation of one region of interest in the dependency graph. ``common`` lies over simulated memory, so its
    dependency count goes down there."""

    operation: FirmwareOperation
    common: Any
    submitted: bool = False
    completed: bool = False

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
        self.driver: Driver = driver(op_type)
        self.groups = (GroupState(0), GroupState(1))
        self.last_group = 1
        self.roi = 0
        self.tail: GraphNode | None = None

    def free_group(self, csb: Csb) -> GroupState | None:
        """The group for the next operation, with its read-DMA group; None when both are taken.

        With both groups free the hardware's consumer pointer decides (kmd/firmware/engine.c utils_get_free_group).
        """
        taken = [group.taken for group in self.groups]
        if all(taken):
            return None
        group = self.groups[taken.index(False) if any(taken) else self._consumer(csb, self.driver.units[0])]
        in_use = [each.read_dma_group for each in self.groups if each.taken and each.read_dma]
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
