"""Scheduler of the firmware: dependency graph, events, statistics, deadlocks.

Only networks with a statistics list (stat_list_index) have them. Times are 0: the model has no clock.
Source: dla_*_stat_data in kmd/firmware/{conv,sdp,pdp,cdp,bdma,rubik}.c.

Each processor's operations form a chain: the head from the network descriptor, then ``consumers[own type]``. Up to two
are programmed ahead; one is enabled when its dependency count is 0. Programming, enabling, the fetches of a
convolution and completion are events that count down the operations that wait for them.

The hardware is let run until nothing moves any more, then the interrupts are handled, as in the reference's logs.
Nothing here can loop: an operation enters a register group once. When the hardware is idle and no event is left, the
remaining operations deadlock. The ScheduleError names them and what each waits for.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.firmware.driver import Driver, GraphNode, GroupState, Processor, driver
from nvdla.emulator.firmware.operation import MEMORY_ON_THE_FLY, Csb, CsbLog, FirmwareOperation
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.machine import INTERRUPT_BITS, ChainStage, Completion, Machine
from nvdla.emulator.memory.linker import MemorySource
from nvdla.errors import DescriptorError, NvdlaError, ScheduleError, counted
from nvdla.limits import Limits
from nvdla.loadable.descriptors.abi import Abi
from nvdla.loadable.descriptors.enums import Event, OpType
from nvdla.loadable.descriptors.structures import Descriptor, StatContainer
from nvdla.loadable.descriptors.task import DlaTask
from nvdla.loadable.model import TaskEntry

if TYPE_CHECKING:
    from nvdla.emulator.memory.linker import AddressWindow, LinkedLoadable

SHOWN = 6


def explain(task: int, processors: Iterable[Processor], nodes: list[GraphNode]) -> str:
    """One line that names the operations that deadlock and what each waits for."""
    waits = [_waiting(task, group, nodes) for processor in processors for group in processor.groups if group.taken]
    left = [node for node in nodes if not node.completed]
    never = [f"{task}/{node.index}" for node in left if not node.submitted]
    parts = waits[:SHOWN]
    if len(waits) > SHOWN:
        parts.append(counted(len(waits) - SHOWN, "more waiting operation"))
    if never:
        more = "" if len(never) <= SHOWN else f" and {len(never) - SHOWN} more"
        parts.append(f"never reached: {', '.join(never[:SHOWN])}{more}")
    return f"task {task} can make no progress, {len(left)} of {len(nodes)} operations are not done: {'; '.join(parts)}"


def _waiting(task: int, group: GroupState, nodes: list[GraphNode]) -> str:
    node = group.held
    label = f"operation {task}/{node.index} ({node.type.name}, {group.state})"
    if group.active:
        return f"{label} waits for another engine on the fly, which is not enabled"
    count = node.common.dependency_count
    if not count:
        return f"{label} waits for the lookup tables or the queue that the other group holds"
    producers = [
        f"{_event(event)} of operation {task}/{producer.index} ({producer.type.name})"
        for producer in nodes
        for event in _events_for(producer, node)
        if event not in producer.sent
    ]
    missing, unsent = ", ".join(producers[:SHOWN]), count - len(producers)
    if unsent < 0:
        return f"{label} waits for {count} of {len(producers)} events: {missing}"
    if not producers:
        return f"{label} waits for {counted(count, 'more event')} that no operation sends"
    more = f" and {counted(unsent, 'event')} that no operation sends" if unsent else ""
    return f"{label} waits for {counted(count, 'more event')}: {missing}{more}"


def _events_for(producer: GraphNode, consumer: GraphNode) -> list[int]:
    """The events of ``producer`` that ``consumer`` waits for."""
    if producer.roi != consumer.roi or producer.completed:
        return []
    common = producer.common
    arrows = [common.consumers[consumer.type], common.fused_parent]
    events = [arrow.event for arrow in arrows if arrow.index == consumer.index]
    if common.fused_parent.index == consumer.index and producer.type - 1 != consumer.type:
        events = events[:-1]
    return events


def _event(number: int) -> str:
    return Event(number).name


# Field of the statistics descriptor -> unit and register; {group} is the register group (BDMA has a pair for each).
REGISTERS: dict[OpType, dict[str, tuple[str, str]]] = {
    OpType.BDMA: {
        "read_stall": ("BDMA", "STATUS_GRP{group}_READ_STALL"),
        "write_stall": ("BDMA", "STATUS_GRP{group}_WRITE_STALL"),
    },
    OpType.CONV: {
        "data_read_stall": ("CDMA", "D_PERF_DAT_READ_STALL"),
        "weight_read_stall": ("CDMA", "D_PERF_WT_READ_STALL"),
        "data_read_latency": ("CDMA", "D_PERF_DAT_READ_LATENCY"),
        "weight_read_latency": ("CDMA", "D_PERF_WT_READ_LATENCY"),
        "nan_data_num": ("CDMA", "D_NAN_INPUT_DATA_NUM"),
        "nan_weight_num": ("CDMA", "D_NAN_INPUT_WEIGHT_NUM"),
        "inf_data_num": ("CDMA", "D_INF_INPUT_DATA_NUM"),
        "inf_weight_num": ("CDMA", "D_INF_INPUT_WEIGHT_NUM"),
        "saturation_count": ("CACC", "D_OUT_SATURATION"),
    },
    OpType.SDP: {
        "nan_input_num": ("SDP", "D_STATUS_NAN_INPUT_NUM"),
        "inf_input_num": ("SDP", "D_STATUS_INF_INPUT_NUM"),
        "nan_output_num": ("SDP", "D_STATUS_NAN_OUTPUT_NUM"),
        "wdma_write_stall": ("SDP", "D_PERF_WDMA_WRITE_STALL"),
    },
    OpType.PDP: {"write_stall": ("PDP", "D_PERF_WRITE_STALL")},
    OpType.CDP: {
        "write_stall": ("CDP", "D_PERF_WRITE_STALL"),
        "lut_uflow": ("CDP", "D_PERF_LUT_UFLOW"),
        "lut_oflow": ("CDP", "D_PERF_LUT_OFLOW"),
        "lut_hybrid": ("CDP", "D_PERF_LUT_HYBRID"),
        "lut_le_hit": ("CDP", "D_PERF_LUT_LE_HIT"),
        "lut_lo_hit": ("CDP", "D_PERF_LUT_LO_HIT"),
    },
    OpType.RUBIK: {"read_stall": ("RBK", "D_PERF_READ_STALL"), "write_stall": ("RBK", "D_PERF_WRITE_STALL")},
}


def write_statistics(csb: Csb, task: FirmwareTask, operation: FirmwareOperation, group: int) -> None:
    """Write the statistics container of an operation. Raises DescriptorError when the list is too small."""
    size = ctypes.sizeof(StatContainer)
    offset = size * (task.num_operations * operation.roi + operation.index)
    index = task.network.stat_list_index
    if not 0 <= index < len(task.addresses):
        raise DescriptorError(f"task {task.id}: stat_list_index: must be 0 .. {len(task.addresses) - 1}, got {index}")
    window = task.addresses[index]
    if offset + size > window.size:
        raise DescriptorError(
            f"{operation}: end of its statistics: must be at most {window.size} in {window}, got {offset + size}"
        )
    container = StatContainer.from_buffer(window.data[offset : offset + size].data)
    counters = getattr(container, f"{operation.type.name.lower()}_stat")
    for name, (unit, register) in REGISTERS[operation.type].items():
        setattr(counters, name, csb.read(unit, register.format(group=group)))
    counters.runtime = 0


# Bytes of an element for the start of a dynamic ROI, by the convolution's data_format (conv.c map_img_fmt).
PIXEL_BYTES = (1, *(2,) * 5, *(8,) * 6, *(4,) * 16, 1, 1, *(2,) * 7)
ROI_HEADER = struct.Struct("<II")
ROI_ENTRY = struct.Struct("<IIII")


class FirmwareTask:
    """One DLA task of a linked loadable. Raises DescriptorError for descriptors that refer to nothing."""

    def __init__(
        self,
        linked: LinkedLoadable,
        task: TaskEntry,
        abi: Abi,
        config: Configuration,
        limits: Limits | None = None,
    ) -> None:
        self.id = task.id
        self.config = config
        self.addresses = linked.address_list(task)
        source = MemorySource(task, self.addresses)
        self.decoded = DlaTask.decode(linked.loadable, task, abi, source=source, limits=limits)
        self.network = self.decoded.network
        self.num_operations = self.network.num_operations
        self._drivers: dict[OpType, Driver] = {}
        self._operations: dict[int, FirmwareOperation] = {}

    def operation(self, index: int, roi: int = 0) -> FirmwareOperation:
        """The operation with its descriptors."""
        position = roi * self.num_operations + index
        if position not in self._operations:
            descriptor = self.decoded.operation(index, roi)
            operation = FirmwareOperation(
                self.id,
                index,
                roi,
                descriptor.op_type,
                descriptor.op,
                descriptor.surface,
                self.config,
                self.addresses,
                descriptor.lut,
            )
            if self.network.dynamic_roi and index == self.network.input_layer:
                operation.dynamic_input = 0  # until start() knows the region
            self._operations[position] = operation
        return self._operations[position]

    def operations(self) -> Iterator[FirmwareOperation]:
        """All operations of all regions of interest."""
        for roi in range(self.network.num_rois):
            for index in range(self.num_operations):
                yield self.operation(index, roi)

    @property
    def keeps_statistics(self) -> bool:
        """True if the firmware writes counters of each operation to memory."""
        return bool(self.network.stat_list_index != -1)

    @property
    def written(self) -> list[np.ndarray]:
        """Return the bytes that the firmware itself writes: counts of dependencies, statistics."""
        indices = (self.network.dependency_graph_index, self.network.stat_list_index)
        return [self.addresses[index].data for index in indices if 0 <= index < len(self.addresses)]

    @property
    def descriptors(self) -> list[np.ndarray]:
        """Return the bytes of the lists that the firmware only reads."""
        network = self.network
        indices = {0, network.operation_desc_index, network.surface_desc_index, network.lut_data_index}
        return [self.addresses[index].data for index in indices if 0 <= index < len(self.addresses)]

    def nodes(self, rois: int) -> list[GraphNode]:
        """The dependency graph of ``rois`` regions of interest, at ``roi * num_operations + index``."""
        return [
            GraphNode(self.operation(index, roi), self.decoded.dependencies[roi * self.num_operations + index])
            for roi in range(rois)
            for index in range(self.num_operations)
        ]

    def check(self) -> None:
        """Refuse unsupported settings. Raises DescriptorError or ConfigError."""
        for operation in self.operations():
            if operation.type not in self._drivers:
                self._drivers[operation.type] = driver(operation.type)
            self._drivers[operation.type].check(operation)

    def start(self) -> int:
        """Ready for a run: how many regions of interest it has; places the inputs of dynamic ones.

        Source: kmd/firmware/scheduler.c dla_read_network_config, engine.c dla_read_input_address.
        """
        if not self.network.dynamic_roi:
            return int(self.network.num_rois)
        array = self._address(self.network.roi_array_index, "roi_array_index")
        regions, _ = ROI_HEADER.unpack(self._bytes(array, 0, ROI_HEADER.size))
        if not 1 <= regions <= self.network.num_rois:
            raise DescriptorError(
                f"task {self.id}: regions of the ROI array: must be 1 to {self.network.num_rois} (network), got "
                f"{regions}"
            )
        base = self._address(self.network.surface_index, "surface_index").address
        for roi in range(regions):
            entry = self._bytes(array, ROI_HEADER.size + roi * ROI_ENTRY.size, ROI_ENTRY.size)
            left, top, _, _ = ROI_ENTRY.unpack(entry)
            self._place_input(self.operation(self._input_layer(), roi), base, left, top)
        return int(regions)

    def _input_layer(self) -> int:
        layer = int(self.network.input_layer)
        if not 0 <= layer < self.num_operations:
            raise DescriptorError(f"task {self.id}: input_layer: must be 0 .. {self.num_operations - 1}, got {layer}")
        return layer

    def _place_input(self, operation: FirmwareOperation, base: int, left: int, top: int) -> None:
        cube = operation.surface.src_data
        if cube.type == MEMORY_ON_THE_FLY:
            return
        operation.require(
            cube.address == -1, f"src_data has address index {cube.address}; a dynamic ROI's input has none (-1)"
        )
        pixel = PIXEL_BYTES[operation.op.data_format] if operation.type == OpType.CONV else 1
        address = base + top * cube.line_stride + pixel * left
        operation.require_aligned(address, operation.atom, f"the address of the ROI at column {left}, row {top}")
        operation.dynamic_input = address

    def _address(self, index: int, what: str) -> AddressWindow:
        if not 0 <= index < len(self.addresses):
            raise DescriptorError(f"task {self.id}: {what}: must be 0 .. {len(self.addresses) - 1}, got {index}")
        return self.addresses[index]

    def _bytes(self, window: AddressWindow, offset: int, size: int) -> bytes:
        if offset + size > window.size:
            raise DescriptorError(
                f"task {self.id}: ROI array: must end within the {window.size} bytes of {window}, got {offset + size}"
            )
        return window.data[offset : offset + size].tobytes()


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
    """Callbacks: ``completed(CompletedOperation)`` for each operation, ``ran(Completion)`` for each chain of
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
        """Return the operation; None for index -1 or another type (kmd/firmware/cache.c dla_get_op_desc)."""
        if index == -1:
            return None
        if not 0 <= index < self._task.num_operations:
            raise DescriptorError(
                f"task {self._task.id}: operation index: must be within the dependency graph, got {index}"
            )
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
                    f"task {self._task.id}: op_head[{op_type}]: must be an operation of this type, got operation {head}"
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
                f"{node.operation}: must be queued once, but the dependency graph continues with it after itself "
                f"or after a later {node.type.name} operation, so the graph never ends"
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
        group = next((group for group in processor.groups if group.node is node and not group.pending), None)
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
        group.held.sent.add(event)
        common = group.held.common
        for consumer, node in zip(common.consumers, group.consumers, strict=True):
            self._count_down(group, consumer, node, event)
        self._count_down(group, common.fused_parent, group.fused_parent, event)

    def _count_down(self, group: GroupState, consumer: Descriptor, node: GraphNode | None, event: Event) -> None:
        if consumer.index == -1 or consumer.event != event:
            return
        if node is None:
            raise DescriptorError(
                f"{group.operation}: consumer: must have the operation type of its slot, got operation {consumer.index}"
            )
        if node.common.dependency_count == 0:
            raise ScheduleError(
                f"{node.operation}: dependency count: must not be negative, but {event.name} of {group.operation} "
                "would decrement it below 0. The dependency graph is broken."
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
            at_work = [group.operation for group in self._groups() if group.active and self._in(chain, group)]
            if not at_work:
                raise
            placed = error.at(", ".join(map(str, at_work)))
            if isinstance(placed, ScheduleError):
                placed.operations = tuple(f"{operation.task}/{operation.index}" for operation in at_work)
            raise placed from error

    def _place(self, engine: str) -> str:
        """The operation that an engine works on, for what the machine has to say about it."""
        at_work = (group for group in self._groups() if group.active and self._in((engine,), group))
        return next((str(group.operation) for group in at_work), engine)

    def _in(self, chain: tuple[str, ...], group: GroupState) -> bool:
        """Return True if its engine works from the group, in a chain of engines."""
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
            raise DescriptorError(f"{tail.operation}: next operation: must have the same type, got operation {index}")
        self._submit(processor, node)
