"""From a loadable to its register program: the firmware runs once on the emulator, and its accesses are kept.

In the parallel form they are the firmware's own: both register groups are used, in the order of its log. In the
serial form one chain of engines is programmed, enabled and awaited at a time, in the order in which the hardware ran
them; the drivers that write the registers are the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.cpu.task import CpuTask
from nvdla.csb.program import (
    BASE_ALIGNMENT,
    Await,
    BoundTensor,
    CpuCube,
    CpuOperation,
    Flushed,
    Mark,
    RegisterProgram,
    Segment,
    Step,
    Write,
)
from nvdla.descriptors.enums import EmuFormat, EmuOpType, OpType
from nvdla.errors import ScheduleError
from nvdla.firmware.csb import Csb, CsbLog
from nvdla.firmware.processor import Node, Processor
from nvdla.firmware.scheduler import CompletedOperation, Observer, Scheduler
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.machine import Completion, Machine
from nvdla.hardware.register_file import RegisterMap, register_map
from nvdla.memory.address_space import AddressSpace, Space
from nvdla.runtime import Runtime, Tensor

_ADDRESS = re.compile(r"(.*ADDR)_(HIGH|LOW)(_\d)?$")


def record(
    runtime: Runtime,
    inputs: Sequence[bytes] | None = None,
    *,
    serial: bool = False,
    name: str = "network",
    scales: Mapping[str, float] | None = None,
) -> RegisterProgram:
    """The register program of a runtime's loadable on its configuration.

    ``inputs``: raw surfaces in bind order (zeros by default); the program does not depend on their values. ``scales``
    of bound tensors by name. Raises ScheduleError for networks whose program depends on data: dynamic regions of
    interest.
    """
    for task in runtime.tasks:
        if isinstance(task, FirmwareTask) and task.network.dynamic_roi:
            raise ScheduleError(
                f"task {task.id} reads its regions of interest when it runs (dynamic_roi): its register writes are not "
                "known before, so there is no register program"
            )
    linked = runtime.linked
    linked.reset()
    linked.remember()
    segments = _segments(runtime)
    for tensor, data in zip(runtime.inputs, inputs or [bytes(each.size) for each in runtime.inputs], strict=True):
        linked.bind(tensor.memory, data)
    logs = _run(runtime, serial)
    linked.reset()
    layout = _Layout(linked.space)
    registers = register_map(runtime.config.register_map)
    steps: list[Step] = [Flushed(registers.register("CDMA", "S_CBUF_FLUSH_STATUS"))]
    for task, log in logs:
        steps += layout.cpu(task) if isinstance(task, CpuTask) else layout.steps(log, registers, task.id)
    return RegisterProgram(
        name,
        runtime.config,
        tuple(steps),
        tuple(layout.segment(data) for data in segments),
        tuple(layout.tensor(runtime, each, scales) for each in runtime.inputs),
        tuple(layout.tensor(runtime, each, scales) for each in runtime.outputs),
        layout.bases,
        layout.sizes,
        serial,
    )


def _segments(runtime: Runtime) -> list[np.ndarray]:
    """Views of all memories with contents, but for what only the firmware reads."""
    linked = runtime.linked
    firmware = [task for task in runtime.tasks if isinstance(task, FirmwareTask)]
    described = linked.memories_of(view for task in firmware for view in (*task.descriptors, *task.written))
    return [
        linked.data(memory)
        for memory in runtime.loadable.memories
        if memory.contents and memory.id in linked.regions and memory.id not in described
    ]


def _run(runtime: Runtime, serial: bool) -> list[tuple[Any, CsbLog]]:
    """Every task in order, with the log of its register writes."""
    machine = Machine(runtime.config, runtime.linked.space, runtime.threads, runtime.budget)
    chains = _Chains()
    scheduler = Scheduler(machine, None, Observer(chains.completed, chains.ran))
    logs: list[tuple[Any, CsbLog]] = []
    try:
        for task in runtime.tasks:
            log: CsbLog = []
            logs.append((task, log))
            if isinstance(task, CpuTask):
                task.run()
                continue
            scheduler.csb = Csb(machine.registers, log)
            scheduler.run(task)
            if serial:
                chains.tasks[task.id] = chains.take()
    finally:
        machine.close()
    return _serial(runtime, chains.tasks) if serial else logs


@dataclass(eq=False)
class _Ran:
    """A chain of engines that ran: its stages, and the operations that the firmware found behind them."""

    stages: tuple[Any, ...]
    nodes: dict[int, Node]


class _Chains:
    """Collects which operations ran together, in the order in which the hardware ran them."""

    def __init__(self) -> None:
        self.tasks: dict[int, list[list[Node]]] = {}
        self._ran: list[_Ran] = []

    def ran(self, completion: Completion) -> None:
        if completion.stages:
            self._ran.append(_Ran(completion.stages, {}))

    def completed(self, operation: CompletedOperation) -> None:
        for chain in self._ran:
            for position, stage in enumerate(chain.stages):
                if stage is operation.stage:
                    chain.nodes[position] = operation.node

    def take(self) -> list[list[Node]]:
        """The chains of the task that has just ended, each in data order."""
        done, self._ran = self._ran, []
        return [[chain.nodes[position] for position in sorted(chain.nodes)] for chain in done]


def _serial(runtime: Runtime, chains: dict[int, list[list[Node]]]) -> list[tuple[Any, CsbLog]]:
    """All tasks once more from reset, one chain of engines at a time."""
    machine = Machine(runtime.config, runtime.linked.space, runtime.threads, runtime.budget)
    processors = {op_type: Processor(op_type) for op_type in OpType}
    logs: list[tuple[Any, CsbLog]] = []
    try:
        for task in runtime.tasks:
            log: CsbLog = []
            logs.append((task, log))
            if isinstance(task, FirmwareTask):
                for chain in chains[task.id]:
                    _one_chain(machine, Csb(machine.registers, log), processors, chain)
    finally:
        machine.close()
    return logs


def _one_chain(machine: Machine, csb: Csb, processors: dict[OpType, Processor], chain: list[Node]) -> None:
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
    """Where the memories lie: turns addresses into offsets."""

    def __init__(self, space: AddressSpace) -> None:
        self._space = space
        used = {each: space.regions(each) for each in Space}
        self.bases = {
            each: regions[0].base // BASE_ALIGNMENT * BASE_ALIGNMENT for each, regions in used.items() if regions
        }
        self.sizes = {each: used[each][-1].end - base for each, base in self.bases.items()}
        # Memories keep apart in NVIDIA's runtime as well as here, so an address tells which one it is in.
        self._ranges = [(region.base, region.end, each) for each, regions in used.items() for region in regions]

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
                CpuOperation(task.id, each.index, each.type.name.lower(), source, destination, *each.scales, **numbers)
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

    def segment(self, data: np.ndarray) -> Segment:
        return Segment(*self._place(data), data.copy())

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
