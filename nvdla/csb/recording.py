"""From a loadable to its register program: the firmware runs once on the emulator, and its accesses are kept.

In the parallel form they are the firmware's own: both register groups are used, in the order of its log. In the
serial form one chain of engines is programmed, enabled and awaited at a time, in the order in which the hardware ran
them; the drivers that write the registers are the same.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.cpu.task import CpuTask
from nvdla.csb.program import (
    BASE_ALIGNMENT,
    Await,
    BoundTensor,
    CpuCall,
    CpuCube,
    Flushed,
    Mark,
    RegisterProgram,
    Segment,
    Step,
    Write,
)
from nvdla.csb.states import MemoryState
from nvdla.descriptors.enums import EmuFormat, EmuOpType, OpType
from nvdla.errors import ScheduleError
from nvdla.firmware.csb import Csb, CsbLog
from nvdla.firmware.processor import GraphNode, Processor
from nvdla.firmware.scheduler import CompletedOperation, Scheduler, SchedulerObserver
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.machine import ChainStage, Completion, Machine
from nvdla.hardware.register_file import RegisterMap, register_map
from nvdla.loadable.model import MemoryEntry
from nvdla.memory.address_space import LeavesRegion, Space
from nvdla.runtime import Runtime, Tensor

_ADDRESS = re.compile(r"(.*ADDR)_(HIGH|LOW)(_\d)?$")


@dataclass(frozen=True)
class PartOfRun:
    """The steps between CPU operations, and the memories before and after them."""

    steps: tuple[Step, ...]
    before: MemoryState = field(repr=False)
    after: MemoryState = field(repr=False)


@dataclass(frozen=True)
class Recording:
    """A program, and one run of it: raw ``inputs`` and ``outputs`` in bind order, memory before it (``start``), and its
    ``parts`` (empty unless they were asked for)."""

    program: RegisterProgram
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]
    start: MemoryState = field(repr=False)
    parts: tuple[PartOfRun, ...] = ()


@by_annotations
def record(
    runtime: Runtime,
    inputs: Sequence[bytes] | None = None,
    *,
    serial: bool = False,
    name: str = "network",
    scales: Mapping[str, float] | None = None,
    parts: bool = False,
) -> Recording:
    """The register program of a runtime's loadable on its configuration, with the run that it was taken from.

    ``inputs``: raw surfaces in bind order (zeros by default); the program does not depend on their values. ``scales``
    of bound tensors by name. ``parts``: keep what memory held before and after each part of the program. Nothing else
    may run on ``runtime`` meanwhile. Raises ScheduleError for networks whose program depends on data: dynamic regions
    of interest.
    """
    for task in runtime.tasks:
        if isinstance(task, FirmwareTask) and task.network.dynamic_roi:
            raise ScheduleError(
                f"task {task.id} reads its regions of interest when it runs (dynamic_roi): its register writes are not "
                "known before, so there is no register program"
            )
    given = [bytes(each.size) for each in runtime.inputs] if inputs is None else [bytes(each) for each in inputs]
    try:
        return _Recorder(runtime, given, parts).recording(serial, name, scales)
    except LeavesRegion as error:
        runtime.go_flat(error)
        return _Recorder(runtime, given, parts).recording(serial, name, scales)
    finally:
        runtime.linked.reset()


class _Recorder:
    """Runs a runtime's tasks on given inputs, and keeps what they do."""

    def __init__(self, runtime: Runtime, inputs: list[bytes], parts: bool) -> None:
        self._runtime, self._inputs = runtime, inputs
        self._renew()
        self._layout = _Layout(runtime)
        segments = tuple(self._layout.segment(memory) for memory in self._layout.loaded)
        bound = zip(runtime.inputs, inputs, strict=True)
        held = tuple(self._layout.input(tensor, data) for tensor, data in bound)
        self._segments = segments
        self._start = MemoryState(self._layout.sizes, (*segments, *held))
        self._states: list[tuple[MemoryState, MemoryState]] | None = [] if parts else None

    def recording(self, serial: bool, name: str, scales: Mapping[str, float] | None) -> Recording:
        """The program and its run."""
        runtime, layout = self._runtime, self._layout
        logs = self._serial() if serial else self._run(self._parallel())
        outputs = tuple(runtime.linked.data(each.memory).tobytes() for each in runtime.outputs)
        registers = register_map(runtime.config.register_map)
        steps: list[Step] = [Flushed(registers.register("CDMA", "S_CBUF_FLUSH_STATUS"))]
        for task, log in logs:
            steps += layout.cpu(task) if isinstance(task, CpuTask) else layout.steps(log, registers, task.id)
        program = RegisterProgram(
            name,
            runtime.config,
            tuple(steps),
            self._segments,
            tuple(layout.tensor(runtime, each, scales) for each in runtime.inputs),
            tuple(layout.tensor(runtime, each, scales) for each in runtime.outputs),
            layout.bases,
            layout.sizes,
            serial,
        )
        parts = zip(program.parts(), self._states, strict=True) if self._states is not None else ()
        taken = tuple(PartOfRun(tuple(part), before, after) for part, (before, after) in parts)
        return Recording(program, tuple(self._inputs), outputs, self._start, taken)

    def _renew(self) -> None:
        """Memory as it is before a run."""
        linked = self._runtime.linked
        linked.reset()
        linked.remember()
        for tensor, data in zip(self._runtime.inputs, self._inputs, strict=True):
            linked.bind(tensor.memory, data)

    def _parallel(self, observer: SchedulerObserver | None = None) -> Work:
        """What the firmware does for a task, in its own order."""

        def start(machine: Machine) -> Callable[[FirmwareTask, CsbLog], None]:
            scheduler = Scheduler(machine, None, observer)

            def work(task: FirmwareTask, log: CsbLog) -> None:
                scheduler.csb = Csb(machine.registers, log)
                scheduler.run(task)

            return work

        return start

    def _serial(self) -> list[tuple[Any, CsbLog]]:
        """All tasks once more from reset, one chain of engines at a time, in the order in which they ran."""
        chains = _Chains()
        states, self._states = self._states, None
        self._run(self._parallel(SchedulerObserver(chains.completed, chains.ran)), chains)
        self._states = states
        self._renew()

        def start(machine: Machine) -> Callable[[FirmwareTask, CsbLog], None]:
            processors = {op_type: Processor(op_type) for op_type in OpType}

            def work(task: FirmwareTask, log: CsbLog) -> None:
                for chain in chains.tasks[task.id]:
                    _one_chain(machine, Csb(machine.registers, log), processors, chain)

            return work

        return self._run(start)

    def _run(self, start: Work, chains: _Chains | None = None) -> list[tuple[Any, CsbLog]]:
        """Every task in order, with the log of its register writes."""
        logs: list[tuple[Any, CsbLog]] = []
        machine = self._runtime.machine()
        work, status = start(machine), register_map(self._runtime.config.register_map).register("GLB", "S_INTR_STATUS")
        try:
            for on_cpu, tasks in itertools.groupby(self._runtime.tasks, lambda task: isinstance(task, CpuTask)):
                before = self._state() if self._states is not None and not on_cpu else None
                taken: list[tuple[Any, CsbLog]] = [(task, []) for task in tasks]
                for task, log in taken:
                    if isinstance(task, CpuTask):
                        task.run()
                        continue
                    work(task, log)
                    if chains is not None:
                        chains.tasks[task.id] = chains.take()
                logs += taken
                writes = any(each[0] == "W" and each[1] != status.address for _, log in taken for each in log)
                if before is not None and self._states is not None and writes:
                    self._states.append((before, before.now(self._layout.live)))
        finally:
            machine.close()
        self._runtime.note(machine)
        return logs

    def _state(self) -> MemoryState:
        """Memory as it is now."""
        last = self._states[-1][1] if self._states else self._start
        return last.now(self._layout.live)


Work = Callable[[Machine], Callable[[FirmwareTask, CsbLog], None]]


class _Chains:
    """Collects which operations ran together, in the order in which the hardware ran them: ``tasks`` by id."""

    def __init__(self) -> None:
        self.tasks: dict[int, list[list[GraphNode]]] = {}
        self._ran: list[list[ChainStage | GraphNode]] = []

    def ran(self, completion: Completion) -> None:
        if completion.stages:
            self._ran.append(list(completion.stages))

    def completed(self, operation: CompletedOperation) -> None:
        """The operation takes the place of its stage, which holds more memory than need be kept."""
        for chain in reversed(self._ran):
            for position, stage in enumerate(chain):
                if stage is operation.stage:
                    chain[position] = operation.node
                    return

    def take(self) -> list[list[GraphNode]]:
        """The chains of the task that has just ended, each in data order."""
        done, self._ran = self._ran, []
        return [[each for each in chain if isinstance(each, GraphNode)] for chain in done]


def _one_chain(machine: Machine, csb: Csb, processors: dict[OpType, Processor], chain: list[GraphNode]) -> None:
    """Program the chain's operations, enable them from the last to the first, and wait for their interrupts."""
    groups = []
    for node in chain:
        processor = processors[node.type]
        group = processor.free_group(csb)
        assert group is not None, "one operation at a time leaves a group free"
        group.node, group.taken = node, True
        group.read_dma = processor.driver.needs_read_dma(node.operation)
        csb.note("program", node.index, node.type.name, group.id)
        processor.driver.set_producer(csb, group.id, group.read_dma_group)
        processor.driver.program(csb, node.operation, group.read_dma)
        groups.append((processor, group))
    for processor, group in reversed(groups):
        operation = group.operation
        processor.driver.set_producer(csb, group.id, group.read_dma_group)
        csb.note("enable", operation.index, operation.type.name, group.id)
        processor.driver.enable(csb, operation, group.id, group.read_dma, False)
    while machine.step() is not None:
        pass
    status = csb.read("GLB", "S_INTR_STATUS")
    csb.note("irq", status)
    csb.write("GLB", "S_INTR_STATUS", status)
    for _, group in groups:
        group.taken = group.read_dma = False
        group.clear()


class _Layout:
    """Where the memories lie: turns addresses into offsets. ``loaded``: those with contents that hardware may read."""

    def __init__(self, runtime: Runtime) -> None:
        self._linked = runtime.linked
        self._space = runtime.linked.space
        used = {each: self._space.regions(each) for each in Space}
        self.bases = {
            each: regions[0].base // BASE_ALIGNMENT * BASE_ALIGNMENT for each, regions in used.items() if regions
        }
        self.sizes = {each: used[each][-1].end - base for each, base in self.bases.items()}
        # Memories keep apart in NVIDIA's runtime as well as here, so an address tells which one it is in.
        self._ranges = [(region.base, region.end, each) for each, regions in used.items() for region in regions]
        firmware = [task for task in runtime.tasks if isinstance(task, FirmwareTask)]
        views = (view for task in firmware for view in (*task.descriptors, *task.written))
        hidden = {id(self._linked.regions[each].data) for each in self._linked.memories_of(views)}
        self._seen = [region for region in self._space.regions() if id(region.data) not in hidden]
        self.loaded = [
            memory
            for memory in runtime.loadable.memories
            if memory.contents
            and memory.id in self._linked.regions
            and id(self._linked.regions[memory.id].data) not in hidden
        ]

    def live(self, space: Space, start: int, end: int) -> np.ndarray:
        """A copy of what lies in memory now, but for what only the firmware reads."""
        found, base = np.zeros(end - start, np.uint8), self.bases[space]
        for region in self._seen:
            low, high = max(base + start, region.base), min(base + end, region.end)
            if region.space is space and low < high:
                found[low - base - start : high - base - start] = region.data[low - region.base : high - region.base]
        return found

    def steps(self, log: CsbLog, registers: RegisterMap, task: int) -> list[Step]:
        """The firmware's log as steps: clearing interrupts is part of waiting for them."""
        status = registers.register("GLB", "S_INTR_STATUS").address
        entries = [entry for entry in log if not (entry[0] == "W" and entry[1] == status)]
        pairs = _address_pairs(entries, registers)
        steps: list[Step] = []
        for position, entry in enumerate(entries):
            if entry[0] == "W":
                steps.append(self._write(registers, entry, pairs.get(position)))
            elif entry[0] == "irq":
                steps.append(Await(entry[1]))
            elif entry[0] in ("program", "enable"):
                steps.append(Mark(entry[0], task, *entry[1:]))
        return steps

    def _write(self, registers: RegisterMap, entry: tuple[Any, ...], pair: tuple[int, bool] | None) -> Write:
        register = registers.at(entry[1])
        if pair is not None:
            address, high = pair
            for base, end, space in self._ranges:
                if base <= address < end:
                    return Write(register, address - self.bases[space], space, high)
        return Write(register, entry[2])

    def cpu(self, task: CpuTask) -> list[Step]:
        """The operations of a CPU task."""
        steps: list[Step] = []
        for each in task.operations:
            numbers = {}
            if each.type is EmuOpType.POWER:
                descriptor = each.descriptor
                numbers = {"shift": descriptor.shift, "scale": descriptor.scale, "power": descriptor.power}
            source, destination = self._cube(each.source), self._cube(each.destination)
            steps.append(
                CpuCall(task.id, each.index, each.type.name.lower(), source, destination, *each.scales, **numbers)
            )
        return steps

    def _cube(self, buffer: Any) -> CpuCube:
        space, offset = self._place(buffer.data)
        return CpuCube(
            space,
            offset,
            buffer.data.size,
            buffer.format is EmuFormat.FF16,
            buffer.atom,
            buffer.width,
            buffer.height,
            buffer.channels,
            buffer.line_stride,
            buffer.surface_stride,
        )

    def segment(self, memory: MemoryEntry) -> Segment:
        """A memory's contents: the file's own bytes where they are all of it, else a copy."""
        data = self._linked.data(memory)
        space, offset = self._place(data)
        whole = self._linked.blob_of(memory)
        return Segment(space, offset, data.copy() if whole is None else whole)

    def input(self, tensor: Tensor, data: bytes) -> Segment:
        """A bound input as it lies in memory."""
        space, offset = self._place(self._linked.data(tensor.memory))
        return Segment(space, offset, np.frombuffer(data, np.uint8))

    def tensor(self, runtime: Runtime, tensor: Tensor, scales: Mapping[str, float] | None) -> BoundTensor:
        space, offset = self._place(runtime.linked.data(tensor.memory))
        scale = (scales or {}).get(tensor.name)
        if scale is not None and not math.isfinite(scale):
            scale = None
        return BoundTensor(
            tensor.name, space, offset, tensor.size, tensor.shape, tensor.dtype.name, tuple(tensor.strides), scale
        )

    def _place(self, view: np.ndarray) -> tuple[Space, int]:
        """Memory and offset of a view of simulated memory."""
        at = view.__array_interface__["data"][0]
        for region in self._space.regions():
            start = region.data.__array_interface__["data"][0]
            if start <= at < start + region.size:
                return region.space, region.base + at - start - self.bases[region.space]
        raise ScheduleError("a view lies in no region of the simulated memory")


def _address_pairs(entries: CsbLog, registers: RegisterMap) -> dict[int, tuple[int, bool]]:
    """Position of each write of half an address -> (the whole address, whether it is the upper half).

    The firmware writes both halves, one right after the other, in either order.
    """
    found: dict[int, tuple[int, bool]] = {}
    open_halves: dict[tuple[str, str], tuple[int, str, int]] = {}
    for position, entry in enumerate(entries):
        if entry[0] != "W":
            continue
        register = registers.at(entry[1])
        match = _ADDRESS.match(register.name)
        if not match:
            continue
        key, half = (register.unit, match[1] + (match[3] or "")), match[2]
        other = open_halves.pop(key, None)
        if other is None or other[1] == half:
            open_halves[key] = (position, half, entry[2])
            continue
        high, low = (entry[2], other[2]) if half == "HIGH" else (other[2], entry[2])
        address = high << 32 | low
        found[position] = (address, half == "HIGH")
        found[other[0]] = (address, other[1] == "HIGH")
    return found
