"""The firmware's scheduler (kmd/firmware/scheduler.c, engine_isr.c): six processors with two register groups each.

Each processor's operations form a chain: the head from the network descriptor, then ``consumers[own type]``. Up to two
are programmed ahead; one is enabled when its dependency count is 0. Programming, enabling, the fetches of a
convolution and completion are events that count down the operations that wait for them.

The hardware is let run until nothing moves any more, then the interrupts are handled, as in the reference's logs.
Nothing here can loop: an operation enters a register group once, so when the hardware stands still and no event is
left, the operations that are not done wait for ever, and a ScheduleError says which and what for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nvdla.descriptors.enums import Event, OpType
from nvdla.errors import DescriptorError, NvdlaError, ScheduleError
from nvdla.firmware.csb import Csb, CsbLog
from nvdla.firmware.deadlock import explain
from nvdla.firmware.processor import GraphNode, GroupState, Processor
from nvdla.firmware.statistics import write_statistics
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.machine import INTERRUPT_BITS, ChainStage, Completion, Machine

# What an interrupt cause says: whose it is, and which event.
CAUSES = {
    "CACC_DONE": (OpType.CONV, Event.OP_COMPLETED),
    "SDP_DONE": (OpType.SDP, Event.OP_COMPLETED),
    "CDP_DONE": (OpType.CDP, Event.OP_COMPLETED),
    "RUBIK_DONE": (OpType.RUBIK, Event.OP_COMPLETED),
    "PDP_DONE": (OpType.PDP, Event.OP_COMPLETED),
    "BDMA_DONE": (OpType.BDMA, Event.OP_COMPLETED),
    "CDMA_DAT_DONE": (OpType.CONV, Event.CDMA_DT_DONE),
    "CDMA_WT_DONE": (OpType.CONV, Event.CDMA_WT_DONE),
}


@dataclass(frozen=True)
class CompletedOperation:
    """An operation that the firmware has found completed. ``stage`` is what the hardware did (None: nothing to do)."""

    node: GraphNode
    group: int
    stage: ChainStage | None


@dataclass(frozen=True)
class ScheduleStep:
    """One step of an operation: ``what`` is "program", "enable" or "complete"; steps are numbered by their position."""

    what: str
    task: int
    index: int
    roi: int
    type: OpType
    group: int


@dataclass
class SchedulerObserver:
    """Who wants to know: ``completed(CompletedOperation)`` for each operation, ``ran(Completion)`` for each chain of
    engines that ran."""

    completed: Callable[[CompletedOperation], None] = lambda operation: None
    ran: Callable[[Completion], None] = lambda completion: None


class Scheduler:
    """The firmware on one machine. Pointers of processors and hardware persist from task to task."""

    def __init__(self, machine: Machine, log: CsbLog | None = None, observer: SchedulerObserver | None = None) -> None:
        self.machine = machine
        self.csb = Csb(machine.registers, log)
        self.observer = observer or SchedulerObserver()
        self.processors = {op_type: Processor(op_type) for op_type in OpType}
        self.steps: list[ScheduleStep] = []
        self._stages: dict[tuple[str, int], ChainStage] = {}
        machine.place = self._place

    def run(self, task: FirmwareTask) -> None:
        """Execute a task to its end. Raises ScheduleError when it cannot get there."""
        self._task = task
        self._rois = task.start()
        self._nodes = task.nodes(self._rois)
        self._done = 0
        self._statistics = task.network.stat_list_index != -1
        self._log_task(task)
        self._initiate()
        while self._done < task.num_operations:
            moved = self._run_hardware()
            self._take_interrupts()
            if not moved and not any(group.events for group in self._groups()):
                raise ScheduleError(explain(task.id, self.processors.values(), self._nodes))
            self._process_events()
        for processor in self.processors.values():
            processor.reset()

    def _log_task(self, task: FirmwareTask) -> None:
        self.csb.note("task", task.id, len(task.addresses))
        for window in task.addresses:
            self.csb.note("address", window.index, window.address)

    def _groups(self) -> list[GroupState]:
        return [group for processor in self.processors.values() for group in processor.groups]

    def _note(self, what: str, group: GroupState) -> None:
        operation = group.operation
        self.csb.note(what, operation.index, operation.type.name, group.id)
        self.steps.append(ScheduleStep(what, operation.task, operation.index, operation.roi, operation.type, group.id))

    # Reading the graph

    def _node(self, index: int, op_type: int, roi: int) -> GraphNode | None:
        """The operation, or None for nobody (-1) or one of another type (kmd/firmware/cache.c dla_get_op_desc)."""
        if index == -1:
            return None
        if not 0 <= index < self._task.num_operations:
            raise DescriptorError(f"task {self._task.id}: operation index {index} is beyond the graph")
        node: GraphNode = self._nodes[roi * self._task.num_operations + index]
        if node.common.op_type != op_type or node.type != op_type:  # the first may have been overwritten
            return None
        node.common.index, node.common.roi_index = index, roi
        return node

    # Starting

    def _initiate(self) -> None:
        """Submit the head of each processor's chain and try the one after it."""
        for op_type, head in enumerate(self._task.network.op_head):
            if head == -1:
                continue
            node = self._node(head, op_type, 0)
            if node is None:
                raise DescriptorError(
                    f"task {self._task.id}: op_head[{op_type}] is operation {head}, which is of another type"
                )
            processor = self.processors[OpType(op_type)]
            self._submit(processor, node)
            self._dequeue(processor)

    def _submit(self, processor: Processor, node: GraphNode) -> None:
        group = self._prepare(processor, node)
        if group is None or not processor.driver.is_ready(processor, group):
            return
        self._program(processor, group)
        if node.common.dependency_count == 0:
            self._enable(node)

    def _prepare(self, processor: Processor, node: GraphNode) -> GroupState | None:
        """Put the operation into a free group; None when there is none."""
        group = processor.free_group(self.csb)
        if group is None:
            return None
        if node.submitted:
            raise ScheduleError(
                f"{node.operation} is queued a second time: the dependency graph names it as the operation after "
                f"itself or after a later {node.type.name} operation, so the graph never ends"
            )
        node.submitted = True
        group.node = node
        group.taken = group.pending = True
        group.read_dma = processor.driver.needs_read_dma(node.operation)
        processor.tail = node
        return group

    def _program(self, processor: Processor, group: GroupState) -> None:
        group.programming = True
        node, common = group.held, group.held.common
        node.operation.strays.clear()
        processor.driver.check(node.operation)  # again: an operation before it may have overwritten the descriptors
        self._note("program", group)
        processor.driver.set_producer(self.csb, group.id, group.read_dma_group)
        lut_index = getattr(node.operation.op, "lut_index", -1)
        if lut_index >= 0:
            group.lut_index = lut_index
        processor.driver.program(self.csb, node.operation, group.read_dma)
        for text in node.operation.strays:
            self.machine.stray(text)
        group.consumers = [
            self._node(consumer.index, op_type, node.roi) for op_type, consumer in enumerate(common.consumers)
        ]
        group.fused_parent = self._node(common.fused_parent.index, node.type - 1, node.roi)
        group.pending = False
        self._announce(group, Event.OP_PROGRAMMED)
        group.programming = False

    # Enabling

    def _enable(self, node: GraphNode) -> None:
        """Enable the operation if it is programmed; otherwise it will be when it is."""
        processor = self.processors[node.type]
        group = next((each for each in processor.groups if each.node is node and not each.pending), None)
        if group is None or group.programming or group.active:
            return
        processor.driver.set_producer(self.csb, group.id, group.read_dma_group)
        self._note("enable", group)
        processor.driver.enable(self.csb, node.operation, group.id, group.read_dma, self._statistics)
        if node.type == OpType.BDMA and not node.operation.surface.num_transfers:
            group.events.add(Event.OP_COMPLETED)
        group.active = True
        self._announce(group, Event.OP_ENABLED)

    def _announce(self, group: GroupState, event: Event) -> None:
        """Count down the operations that wait for ``event`` of the group's operation."""
        common = group.held.common
        for consumer, node in zip(common.consumers, group.consumers, strict=True):
            self._count_down(group, consumer, node, event)
        self._count_down(group, common.fused_parent, group.fused_parent, event)

    def _count_down(self, group: GroupState, consumer: Any, node: GraphNode | None, event: Event) -> None:
        if consumer.index == -1 or consumer.event != event:
            return
        if node is None:
            raise DescriptorError(
                f"{group.operation}: consumer {consumer.index} is not an operation of the type of its slot"
            )
        if node.common.dependency_count == 0:
            raise ScheduleError(
                f"{node.operation} waits for nothing more, but {event.name} of {group.operation} should count its "
                "dependencies down below 0: the dependency graph is broken"
            )
        node.common.dependency_count -= 1
        if node.common.dependency_count == 0:
            self._enable(node)

    # Hardware

    def _run_hardware(self) -> bool:
        """Let the hardware run until nothing moves; whether anything did."""
        moved = False
        while (completion := self._step()) is not None:
            moved = True
            self.observer.ran(completion)
            for stage in completion.stages:
                self._stages[stage.engine, stage.group] = stage
        return moved

    def _step(self) -> Completion | None:
        try:
            return self.machine.step()
        except NvdlaError as error:
            chain = self.machine.ready_chain() or ()
            at_work = [str(group.operation) for group in self._groups() if group.active and self._in(chain, group)]
            if not at_work or at_work[0] in str(error):
                raise
            raise type(error)(f"{', '.join(at_work)}: {error}") from error

    def _place(self, engine: str) -> str:
        """The operation that an engine works on, for what the machine has to say about it."""
        at_work = (group for group in self._groups() if group.active and self._in((engine,), group))
        return next((str(group.operation) for group in at_work), engine)

    def _in(self, chain: tuple[str, ...], group: GroupState) -> bool:
        """Whether the group is the one that its engine works from, in a chain of engines."""
        driver = self.processors[group.held.type].driver
        if driver.engine not in chain:
            return False
        return driver.engine == "bdma" or self.machine.unit(driver.units[0]).consumer == group.id

    def _take_interrupts(self) -> None:
        """The interrupt handler: note the events of each cause and clear them (kmd/firmware/engine_isr.c)."""
        status = self.csb.read("GLB", "S_INTR_STATUS")
        if not status:
            return
        for cause, (op_type, event) in CAUSES.items():
            for group in self.processors[op_type].groups:
                if status >> INTERRUPT_BITS[cause] + group.id & 1:
                    group.events.add(event)
        self.csb.note("irq", status)
        self.csb.write("GLB", "S_INTR_STATUS", status)

    def _process_events(self) -> None:
        """Handle the events of all processors; those of a group fetches first, completion last."""
        for processor in self.processors.values():
            first = 1 - processor.last_group
            for group in (processor.groups[first], processor.groups[1 - first]):
                for event in (Event.CDMA_WT_DONE, Event.CDMA_DT_DONE):
                    if event in group.events and group.node is not None:
                        self._announce(group, event)
                if Event.OP_COMPLETED in group.events:
                    self._complete(processor, group)
                group.events.clear()

    # Completion

    def _complete(self, processor: Processor, group: GroupState) -> None:
        node = group.held
        self._note("complete", group)
        node.completed = True
        if node.roi == self._rois - 1:
            self._done += 1
        if self._statistics:
            write_statistics(self.csb, self._task, node.operation, group.id)
        stage = self._stages.pop((processor.driver.engine, group.id), None)
        self.observer.completed(CompletedOperation(node, group.id, stage))
        group.taken = group.active = group.read_dma = False
        group.lut_index = -1
        processor.last_group = group.id
        self._announce(group, Event.OP_COMPLETED)
        group.clear()
        if self._done == self._task.num_operations:
            return
        self._continue(processor, processor.groups[1 - group.id])
        self._dequeue(processor)

    def _continue(self, processor: Processor, group: GroupState) -> None:
        """Program the operation that waited in the other group for the shared tables or queue."""
        if not group.pending or not processor.driver.is_ready(processor, group):
            return
        self._program(processor, group)
        if group.held.common.dependency_count == 0:
            self._enable(group.held)

    def _dequeue(self, processor: Processor) -> None:
        """Submit the processor's next operation: the same for the next ROI, or the one after it in the chain."""
        tail = processor.tail
        if tail is None:
            return
        if processor.roi == self._rois - 1:
            index = tail.common.consumers[processor.type].index
            if index == -1:
                return
            roi = 0
        else:
            index, roi = tail.index, processor.roi + 1
        processor.roi = roi
        node = self._node(index, processor.type, roi)
        if node is None:
            raise DescriptorError(f"{tail.operation}: the operation after it, {index}, is of another type")
        self._submit(processor, node)
