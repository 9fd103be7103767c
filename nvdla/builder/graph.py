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

from nvdla.builder.addresses import Extent
from nvdla.builder.schedule import HardwareOperation
from nvdla.descriptors.enums import Event, OpType
from nvdla.descriptors.structures import NUM_OP_TYPES


@dataclass
class Links:
    """One entry of the graph: consumers by type (index, event), the fused parent, and the number of events to wait
    for."""

    consumers: dict[OpType, tuple[int, Event]] = field(default_factory=dict)
    fused_parent: tuple[int, Event] | None = None
    dependencies: int = 0


def link(operations: list[HardwareOperation], extents: dict[int, tuple[list[Extent], list[Extent]]]) -> list[Links]:
    """The graph of one task. ``extents``: bytes read and bytes written by each operation, by its index."""
    links = [Links() for _ in operations]
    _join(operations, links)
    needs = [_needs(operation, operations, extents) for operation in operations]
    _queues(operations, links, needs)
    for operation in operations:
        for other_type in OpType:
            if other_type == operation.type or int(other_type) >= NUM_OP_TYPES:
                continue
            # The queue of the other engine is in order: its last needed operation is enough.
            needed = [index for index in needs[operation.index] if operations[index].type == other_type]
            if needed and not _served(operations, links, max(needed), operation):
                links[max(needed)].consumers[operation.type] = (operation.index, Event.OP_COMPLETED)
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


def _needs(
    operation: HardwareOperation,
    operations: list[HardwareOperation],
    extents: dict[int, tuple[list[Extent], list[Extent]]],
) -> set[int]:
    """Ends of chains that must be complete before this operation starts: writers of what it reads; of the first of a
    chain also whoever touched what the chain writes."""
    read = extents[operation.index][0]
    first = operation is operation.chain[0]
    written = [extent for each in operation.chain for extent in extents[each.index][1]] if first else []
    found = set()
    for other in operations[: operation.index]:
        if other.chain is operation.chain:
            continue
        other_read, other_written = extents[other.index]
        if _overlap(read, other_written) or _overlap(written, other_written) or _overlap(written, other_read):
            found.add(other.last.index)
    return found


def _overlap(some: list[Extent], others: list[Extent]) -> bool:
    return any(a.meets(b) for a in some for b in others)


def _queues(operations: list[HardwareOperation], links: list[Links], needs: list[set[int]]) -> None:
    tails: dict[OpType, HardwareOperation] = {}
    for operation in operations:
        before = tails.get(operation.type)
        if before is not None:
            waits = before.index in needs[operation.index] or _changes_banks(before, operation)
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
