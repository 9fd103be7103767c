"""Why a task cannot go on: which operations wait, and what for."""

from __future__ import annotations

from collections.abc import Iterable

from nvdla.descriptors.enums import Event
from nvdla.errors import counted
from nvdla.firmware.processor import GraphNode, GroupState, Processor

SHOWN = 6


def explain(task: int, processors: Iterable[Processor], nodes: list[GraphNode]) -> str:
    """One line that names the operations that wait for ever and what each waits for."""
    waits = [_waiting(task, group, nodes) for processor in processors for group in processor.groups if group.taken]
    left = [node for node in nodes if not node.completed]
    never = [f"{task}/{node.index}" for node in left if not node.submitted]
    parts = waits[:SHOWN]
    if len(waits) > SHOWN:
        parts.append(f"{len(waits) - SHOWN} more operations wait")
    if never:
        more = "" if len(never) <= SHOWN else f" and {len(never) - SHOWN} more"
        parts.append(f"never reached: {', '.join(never[:SHOWN])}{more}")
    return f"task {task} can make no progress, {len(left)} of {len(nodes)} operations are not done: {'; '.join(parts)}"


def _waiting(task: int, group: GroupState, nodes: list[GraphNode]) -> str:
    node = group.held
    label = f"operation {task}/{node.index} ({node.type.name}, {group.state})"
    if group.active:
        return f"{label} waits for its neighbour on the fly, which is not enabled"
    count = node.common.dependency_count
    if not count:
        return f"{label} waits for the lookup tables or the queue that the other group holds"
    producers = [
        f"{_event(event)} of operation {task}/{producer.index} ({producer.type.name})"
        for producer in nodes
        for event in _events_for(producer, node)
        if not _happened(producer, event, nodes)
    ]
    what = ", ".join(producers[:SHOWN]) or "events that no operation sends"
    return f"{label} waits for {counted(count, 'more event')}: {what}"


def _events_for(producer: GraphNode, consumer: GraphNode) -> list[int]:
    """The events of ``producer`` that ``consumer`` waits for."""
    if producer.roi != consumer.roi or producer.completed:
        return []
    common = producer.common
    found = [common.consumers[consumer.type], common.fused_parent]
    events = [each.event for each in found if each.index == consumer.index]
    if common.fused_parent.index == consumer.index and producer.type - 1 != consumer.type:
        events = events[:-1]
    return events


def _happened(producer: GraphNode, event: int, nodes: list[GraphNode]) -> bool:
    """Whether a programmed producer has sent the event already (completion is asked for by the caller)."""
    return event == Event.OP_PROGRAMMED and producer.submitted and not producer.completed


def _event(number: int) -> str:
    return Event(number).name
