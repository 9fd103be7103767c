"""The dependency graph of a task: who waits for which event of whom.

The firmware (kmd/firmware/scheduler.c) keeps one queue for each engine, linked through ``consumers[own type]``,
programs two operations of a queue ahead and lets the hardware take them in order. Rules followed here:

* A convolution waits until its SDP is enabled (``fused_parent``), the SDP until the convolution is programmed; an
  SDP and the PDP behind it alike.
* An operation follows the one before it in its queue when that one is enabled, or completed if it needs its result.
  Programmed would do for the hardware. But NVIDIA's C model waits for ever when a read DMA finds the second group
  enabled the moment the first is done, before the engine of the first group is: that one's settings still fill the
  queue between DMA and engine, and the ends of the second fetch come while nobody looks
  (cmod/sdp/NV_NVDLA_sdp.cpp:258, nvdlav1).
* A convolution with other banks than the one before follows it when that one is completed. CSC releases the weights
  while the last stripes are still at work, or wait for room behind them; in NVIDIA's C model CDMA then fetches the next
  weights before CSC begins with the next layer, which for other banks forgets what it was told of them, and waits for
  ever (cmod/csc/NV_NVDLA_csc.cpp:357 and :1534, nvdlav1).
* Between engines an operation waits for the completion of what it needs: of the last operation of the chain that wrote
  what it reads, and that read or wrote what it overwrites (memory is re-used). Who takes its data on the fly writes
  nothing before its chain's first operation begins, so that one waits for what the chain overwrites, and the others are
  enabled ahead. Each operation has one place a type for whoever waits; queues keep their order, so a link between two
  queues also serves everybody behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nvdla.builder.addresses import Extent, ExtentTable
from nvdla.builder.schedule import HardwareOperation
from nvdla.descriptors.enums import Event, OpType


@dataclass
class Links:
    """One entry of the graph: consumers by type (index, event), the fused parent, and the number of events to wait
    for."""

    consumers: dict[OpType, tuple[int, Event]] = field(default_factory=dict)
    fused_parent: tuple[int, Event] | None = None
    dependencies: int = 0


# Bytes read and bytes written by each operation, by its index.
Extents = dict[int, tuple[list[Extent], list[Extent]]]


def link(operations: list[HardwareOperation], extents: Extents) -> list[Links]:
    """The graph of one task. ``extents``: bytes read and bytes written by each operation, by its index."""
    links = [Links() for _ in operations]
    _join(operations, links)
    touched = _Touched(operations, extents)
    needs = [_needs(operation, touched, extents) for operation in operations]
    _queues(operations, links, needs)
    for operation in operations:
        for other_type, needed in sorted(needs[operation.index].items()):
            # The queue of the other engine is in order: its last needed operation is enough.
            if other_type != operation.type and not _served(operations, links, needed, operation):
                links[needed].consumers[operation.type] = (operation.index, Event.OP_COMPLETED)
                links[operation.index].dependencies += 1
    return links


def _join(operations: list[HardwareOperation], links: list[Links]) -> None:
    for operation in operations:
        for parent, child in zip(operation.chain, operation.chain[1:], strict=False):
            if operation is not child:
                continue
            links[parent.index].consumers[child.type] = (child.index, Event.OP_PROGRAMMED)
            links[child.index].dependencies += 1
            links[child.index].fused_parent = (parent.index, Event.OP_ENABLED)
            links[parent.index].dependencies += 1


class _Touched:
    """All bytes that the operations of a task read and write, as columns."""

    def __init__(self, operations: list[HardwareOperation], extents: Extents) -> None:
        rows = [
            (each, operation, written)
            for operation in operations
            for written, touched in enumerate(extents[operation.index])
            for each in touched
        ]
        self.extents = ExtentTable([each for each, _, _ in rows])
        self.written = np.array([written for _, _, written in rows], bool)
        self.owner = np.array([operation.index for _, operation, _ in rows])
        self.first = np.array([operation.chain[0].index for _, operation, _ in rows])
        self.last = np.array([operation.last.index for _, operation, _ in rows])
        self.kind = np.array([int(operation.last.type) for _, operation, _ in rows])


def _needs(operation: HardwareOperation, touched: _Touched, extents: Extents) -> dict[OpType, int]:
    """The ends of chains, the latest of each engine, that must be complete before this operation starts: of writers of
    what it reads; for the first of a chain also of whoever touched what the chain writes."""
    before = int(np.searchsorted(touched.owner, operation.index))
    meets = np.zeros(before, bool)
    for extent in extents[operation.index][0]:
        meets |= touched.extents.meet(extent, before) & touched.written[:before]
    if operation is operation.chain[0]:
        for extent in (extent for each in operation.chain for extent in extents[each.index][1]):
            meets |= touched.extents.meet(extent, before)
    meets &= touched.first[:before] != operation.chain[0].index
    kinds, last = touched.kind[:before][meets], touched.last[:before][meets]
    return {OpType(kind): int(last[kinds == kind].max()) for kind in set(kinds.tolist())}


def _queues(operations: list[HardwareOperation], links: list[Links], needs: list[dict[OpType, int]]) -> None:
    tails: dict[OpType, HardwareOperation] = {}
    for operation in operations:
        before = tails.get(operation.type)
        if before is not None:
            waits = needs[operation.index].get(operation.type) == before.index or _changes_banks(before, operation)
            event = Event.OP_COMPLETED if waits else Event.OP_ENABLED
            links[before.index].consumers[operation.type] = (operation.index, event)
            links[operation.index].dependencies += 1
        tails[operation.type] = operation


def _changes_banks(before: HardwareOperation, after: HardwareOperation) -> bool:
    """Whether the convolution buffer is divided anew between two convolutions."""
    banks = (before.data_banks, before.weight_banks) != (after.data_banks, after.weight_banks)
    return before.type == OpType.CONV and banks


def _served(operations: list[HardwareOperation], links: list[Links], needed: int, operation: HardwareOperation) -> bool:
    """Whether an earlier link between the two queues makes ``operation`` wait for ``needed`` already."""
    kind = operations[needed].type
    for other in operations[needed : operation.index]:
        if other.type != kind:
            continue
        consumer = links[other.index].consumers.get(operation.type)
        if consumer is not None and consumer[1] == Event.OP_COMPLETED and consumer[0] <= operation.index:
            return True
    return False
