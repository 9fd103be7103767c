"""Recordings of register accesses, the states that they lead to, and their export to output formats.

A network's weights are most of its memory and never change, so that a state takes little besides them.

The parallel variant is the firmware's own sequence: both register groups are used, in the order of its log. In the
serial variant one chain of engines is programmed, enabled and awaited at a time, in the order in which the hardware ran
them; the drivers that write the registers are the same.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.emulator.cpu.task import CpuTask
from nvdla.emulator.firmware.driver import GraphNode, Processor
from nvdla.emulator.firmware.operation import Csb, CsbLog
from nvdla.emulator.firmware.scheduler import CompletedOperation, FirmwareTask, Scheduler, SchedulerObserver
from nvdla.emulator.hardware.machine import ChainStage, Completion, Machine
from nvdla.emulator.hardware.register_file import Register, RegisterMap, register_map
from nvdla.emulator.memory.address_space import LeavesRegion, Space
from nvdla.emulator.memory.surfaces import FeatureLayout, PixelLayout
from nvdla.errors import FormatError, ScheduleError
from nvdla.limits import PAGE
from nvdla.loadable.descriptors.enums import EmuFormat, EmuOpType, OpType
from nvdla.loadable.model import MemoryEntry
from nvdla.program.naming import Names
from nvdla.registers.register_program import (
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
    check_csb_base,
)
from nvdla.runtime import Runtime, Tensor
from nvdla.tensors.inputs import Preprocessing
from nvdla.util.arguments import by_annotations
from nvdla.util.files import make_directory, whole_file
from nvdla.util.rounding import align, ceil_div

PIECE = 1 << 18
"""Bytes that are looked at together."""

Live = Callable[[Space, int, int], np.ndarray]
Pages = Mapping[Space, Mapping[int, np.ndarray]]


@dataclass(frozen=True)
class MemoryState:
    """Memories of ``sizes`` bytes that hold ``loaded`` (the later one wins where two overlap), and over it the pages
    ``changed``, by memory and number."""

    sizes: Mapping[Space, int]
    loaded: tuple[Segment, ...] = field(repr=False)
    changed: Pages = field(repr=False, default_factory=dict)

    def read(self, space: Space, start: int, end: int) -> np.ndarray:
        """A copy of the bytes from ``start`` up to ``end``."""
        content = np.zeros(end - start, np.uint8)
        for segment in self.loaded:
            if segment.space is space:
                _lay(content, start, segment.offset, segment.data)
        changed = self.changed.get(space, {})
        for page in range(start // PAGE, ceil_div(end, PAGE)) if changed else ():
            if page in changed:
                _lay(content, start, page * PAGE, changed[page])
        return content

    def pieces(self, space: Space, start: int = 0, end: int | None = None) -> Iterator[np.ndarray]:
        """The bytes from ``start`` to ``end`` (the memory's) in pieces of PIECE bytes."""
        stop = self.sizes[space] if end is None else end
        for at in range(start, stop, PIECE):
            yield self.read(space, at, min(at + PIECE, stop))

    def crc32(self, space: Space, start: int, end: int) -> int:
        """CRC-32 of the bytes from ``start`` to ``end``."""
        crc = 0
        for piece in self.pieces(space, start, end):
            crc = zlib.crc32(piece.data, crc)
        return crc

    def filled(self, space: Space) -> list[tuple[int, int]]:
        """Return (start, end) of the pages that have other bytes than zeros, adjacent ones joined."""
        pages: list[int] = []
        for number, piece in enumerate(self.pieces(space)):
            pages += (np.flatnonzero(_by_page(piece).any(axis=1)) + number * (PIECE // PAGE)).tolist()
        return stretches(pages, self.sizes[space])

    def end(self, space: Space) -> int:
        """Return the offset after the last byte that is not zero."""
        for start in range((self.sizes[space] - 1) // PIECE * PIECE, -1, -PIECE):
            used = np.flatnonzero(self.read(space, start, min(start + PIECE, self.sizes[space])))
            if used.size:
                return start + int(used[-1]) + 1
        return 0

    def now(self, live: Live) -> MemoryState:
        """The state of memories whose bytes ``live(space, start, end)`` gives."""
        changed = {space: dict(self.changed.get(space, {})) for space in self.sizes}
        for space, size in self.sizes.items():
            for start in range(0, size, PIECE):
                end = min(start + PIECE, size)
                there = live(space, start, end)
                other = (_by_page(self.read(space, start, end)) != _by_page(there)).any(axis=1)
                for page in np.flatnonzero(other).tolist():
                    changed[space][start // PAGE + page] = there[page * PAGE : (page + 1) * PAGE].copy()
        return MemoryState(self.sizes, self.loaded, changed)

    def changes(self, before: MemoryState, space: Space) -> list[tuple[int, int]]:
        """Return (start, end) of the pages that differ from an earlier state, adjacent ones joined."""
        known = before.changed.get(space, {})
        pages = [page for page, data in self.changed.get(space, {}).items() if known.get(page) is not data]
        return stretches(sorted(pages), self.sizes[space])


def stretches(pages: list[int], size: int) -> list[tuple[int, int]]:
    """Return (start, end) in bytes of ascending page numbers, adjacent ones joined; the last ends with the memory."""
    joined: list[list[int]] = []
    for page in pages:
        start, end = page * PAGE, min((page + 1) * PAGE, size)
        if joined and joined[-1][1] == start:
            joined[-1][1] = end
        else:
            joined.append([start, end])
    return [(start, end) for start, end in joined]


def _lay(target: np.ndarray, start: int, offset: int, data: np.ndarray) -> None:
    """Copy the part of ``data`` (at ``offset``) that overlaps ``target``, which begins at ``start``."""
    low, high = max(start, offset), min(start + target.size, offset + data.size)
    if low < high:
        target[low - start : high - start] = data[low - offset : high - offset]


def _by_page(data: np.ndarray) -> np.ndarray:
    """(pages, PAGE); the last one is filled up with zeros."""
    if data.size % PAGE:
        data = np.concatenate([data, np.zeros(align(data.size, PAGE) - data.size, np.uint8)])
    return data.reshape(-1, PAGE)


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

    register_program: RegisterProgram
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
    names: Names | None = None,
    parts: bool = False,
) -> Recording:
    """The register program of a runtime's loadable on its configuration, with the run that it was taken from.

    ``inputs``: raw surfaces in bind order (zeros by default); the program does not depend on their values. ``names``:
    scales and zero points of bound tensors. ``parts``: keep what memory held before and after each part of the program.
    Nothing else may run on ``runtime`` meanwhile. Raises ScheduleError for networks whose program depends on data:
    dynamic regions of interest.
    """
    for task in runtime.tasks:
        if isinstance(task, FirmwareTask) and task.network.dynamic_roi:
            raise ScheduleError(
                f"task {task.id}: regions of interest: must be known before the run, got dynamic_roi. Its register "
                "writes depend on data, which a register program cannot express."
            )
    given = (
        [bytes(tensor.size) for tensor in runtime.inputs] if inputs is None else [bytes(surface) for surface in inputs]
    )
    try:
        return _Recorder(runtime, given, parts).recording(serial, name, names or Names())
    except LeavesRegion as error:
        runtime._link_contiguously(error)
        return _Recorder(runtime, given, parts).recording(serial, name, names or Names())
    finally:
        runtime._linked.reset()


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

    def recording(self, serial: bool, name: str, names: Names) -> Recording:
        """The program and its run."""
        runtime, layout = self._runtime, self._layout
        logs = self._serial() if serial else self._run(self._parallel())
        outputs = tuple(runtime._linked.data(tensor.memory).tobytes() for tensor in runtime.outputs)
        registers = register_map(runtime.config.register_map)
        steps: list[Step] = [Flushed(registers.register("CDMA", "S_CBUF_FLUSH_STATUS"))]
        for task, log in logs:
            steps += layout.cpu(task) if isinstance(task, CpuTask) else layout.steps(log, registers, task.id)
        program = RegisterProgram(
            name,
            runtime.config,
            tuple(steps),
            self._segments,
            tuple(layout.tensor(runtime, tensor, names) for tensor in runtime.inputs),
            tuple(layout.tensor(runtime, tensor, names) for tensor in runtime.outputs),
            layout.bases,
            layout.sizes,
            serial,
            layout.unused(),
        )
        parts = zip(program.parts(), self._states, strict=True) if self._states is not None else ()
        taken = tuple(PartOfRun(tuple(part), before, after) for part, (before, after) in parts)
        return Recording(program, tuple(self._inputs), outputs, self._start, taken)

    def _renew(self) -> None:
        """Reset memory to the state before a run."""
        linked = self._runtime._linked
        linked.reset()
        linked.reload()
        for tensor, data in zip(self._runtime.inputs, self._inputs, strict=True):
            linked.bind(tensor.memory, data)

    def _parallel(self, observer: SchedulerObserver | None = None) -> Work:
        """Run a task as the firmware does, in its order."""

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
        machine = self._runtime._machine()
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
                writes = any(access[0] == "W" and access[1] != status.address for _, log in taken for access in log)
                if before is not None and self._states is not None and writes:
                    self._states.append((before, before.now(self._layout.live)))
        finally:
            machine.close()
        self._runtime._note(machine)
        return logs

    def _state(self) -> MemoryState:
        """Return the present state of memory."""
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
        return [[node for node in chain if isinstance(node, GraphNode)] for chain in done]


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
    """Layout of the memories, which turns addresses into offsets. ``loaded``: those with contents for the hardware."""

    def __init__(self, runtime: Runtime) -> None:
        self._linked = runtime._linked
        self._space = runtime._linked.space
        used = {space: self._space.regions(space) for space in Space}
        self.bases = {space: regions[0].base // PAGE * PAGE for space, regions in used.items() if regions}
        self.sizes = {space: used[space][-1].end - base for space, base in self.bases.items()}
        # Memories keep apart in NVIDIA's runtime as well as here, so an address tells which one it is in.
        self._ranges = [(region.base, region.end, space) for space, regions in used.items() for region in regions]
        views = [view for task in runtime.tasks for view in task.descriptors]
        views += [view for task in runtime.tasks if isinstance(task, FirmwareTask) for view in task.written]
        hidden = {id(self._linked.regions[memory_id].data) for memory_id in self._linked.memories_of(views)}
        self._seen = [region for region in self._space.regions() if id(region.data) not in hidden]
        self.loaded = [
            memory
            for memory in runtime.loadable.memories
            if memory.contents
            and memory.id in self._linked.regions
            and id(self._linked.regions[memory.id].data) not in hidden
        ]

    def unused(self) -> dict[Space, tuple[tuple[int, int], ...]]:
        """Return (start, end) of the whole pages of each memory that only firmware and runtime access.

        There are none where accesses leave their memories: the neighbors are not known.
        """
        gaps: dict[Space, tuple[tuple[int, int], ...]] = {}
        for space, size in () if self._space.flat else self.sizes.items():
            seen = [region for region in self._seen if region.space is space]
            starts = [*((region.base - self.bases[space]) // PAGE * PAGE for region in seen), size]
            ends = [0, *(align(region.end - self.bases[space], PAGE) for region in seen)]
            if gap := tuple((end, start) for end, start in zip(ends, starts, strict=True) if end < start):
                gaps[space] = gap
        return gaps

    def live(self, space: Space, start: int, end: int) -> np.ndarray:
        """Return a copy of memory without the descriptors that only firmware and runtime read."""
        content, base = np.zeros(end - start, np.uint8), self.bases[space]
        for region in self._seen:
            low, high = max(base + start, region.base), min(base + end, region.end)
            if region.space is space and low < high:
                content[low - base - start : high - base - start] = region.data[low - region.base : high - region.base]
        return content

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
        for operation in task.operations:
            numbers = {}
            if operation.type is EmuOpType.POWER:
                descriptor = operation.descriptor
                numbers = {"shift": descriptor.shift, "scale": descriptor.scale, "power": descriptor.power}
            source, destination = self._cube(operation.source), self._cube(operation.destination)
            steps.append(
                CpuCall(
                    task.id,
                    operation.index,
                    operation.type.name.lower(),
                    source,
                    destination,
                    *operation.scales,
                    **numbers,
                )
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
        """Return a bound input as a segment."""
        space, offset = self._place(self._linked.data(tensor.memory))
        return Segment(space, offset, np.frombuffer(data, np.uint8))

    def tensor(self, runtime: Runtime, tensor: Tensor, names: Names) -> BoundTensor:
        space, offset = self._place(runtime._linked.data(tensor.memory))
        units_of = names.units_of_output if tensor in runtime.outputs else names.units
        units, layout = units_of(tensor.name, tensor.dtype), tensor.layout
        if units is not None and not math.isfinite(units.scale):
            units = None
        dtype = f"u{tensor.dtype.name}" if units is not None and units.unsigned else tensor.dtype.name
        color = Preprocessing.of(names.preprocessing).color if names.preprocessing is not None else ""
        assert isinstance(layout, FeatureLayout | PixelLayout)
        strides = tuple(tensor.strides)
        return BoundTensor(tensor.name, space, offset, tensor.size, tensor.shape, dtype, strides, units, layout, color)

    def _place(self, view: np.ndarray) -> tuple[Space, int]:
        """Memory and offset of a view of simulated memory."""
        at = view.__array_interface__["data"][0]
        for region in self._space.regions():
            start = region.data.__array_interface__["data"][0]
            if start <= at < start + region.size:
                return region.space, region.base + at - start - self.bases[region.space]
        raise ScheduleError("view: must be within a region of the simulated memory")


def _address_pairs(entries: CsbLog, registers: RegisterMap) -> dict[int, tuple[int, bool]]:
    """Position of each write of half an address -> (the whole address, whether it is the upper half).

    The firmware writes both halves, one right after the other, in either order.
    """
    pairs: dict[int, tuple[int, bool]] = {}
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
        pairs[position] = (address, half == "HIGH")
        pairs[other[0]] = (address, other[1] == "HIGH")
    return pairs


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Options:
    """``csb_base``: address of the first register (None: the format's default, else 0); ``word_addresses``: registers
    by word instead of byte; ``poll_limit``: polls per wait (0: no limit); ``arrays``: data in the C source, instead
    of an image; ``board``: name of the project skeleton around the C program."""

    csb_base: int | None = None
    word_addresses: bool | None = None
    poll_limit: int = 0
    arrays: bool | None = None
    board: str | None = None


@dataclass(frozen=True)
class Export:
    """One export into ``folder``; files are called after ``name`` (an identifier in C)."""

    recording: Recording
    bases: dict[Space, int]
    folder: Path
    options: Options
    written: list[Path] = field(default_factory=list)

    @property
    def register_program(self) -> RegisterProgram:
        """Register writes, waits and CPU operations in order, as recorded."""
        return self.recording.register_program

    @property
    def parts(self) -> tuple[PartOfRun, ...]:
        """Its parts, with the memories before and after each."""
        return self.recording.parts

    @property
    def name(self) -> str:
        """The program's name, for files."""
        return self.register_program.name

    def save(self, name: str, data: str | Iterable[str | bytes | np.ndarray]) -> None:
        """Write a file of the export, whole or not at all: text, or pieces of it as they come."""
        path = self.folder / name
        make_directory(path.parent)
        with whole_file(path) as stream:
            for piece in [data] if isinstance(data, str) else data:
                stream.write(piece.encode() if isinstance(piece, str) else bytes(piece))
        self.written.append(path)

    def save_lines(self, name: str, lines: Iterable[str]) -> None:
        """:meth:`save` lines of text."""
        self.save(name, (f"{line}\n" for line in lines))

    def address(self, register: Register, default_words: bool) -> int:
        """Return the register's CSB address in the format's unit."""
        words = self.options.word_addresses if self.options.word_addresses is not None else default_words
        return (self.options.csb_base or 0) + (register.address >> 2 if words else register.address)

    def address_of_status(self) -> int:
        """The byte address of GLB.S_INTR_STATUS."""
        registers = register_map(self.register_program.config.register_map)
        return self.address(registers.register("GLB", "S_INTR_STATUS"), False)

    def value(self, step: Write) -> int:
        """Return the value to write, with the memories at the chosen bases."""
        return step.resolved(self.bases)


@dataclass(frozen=True)
class Printer:
    """An output format of register programs.

    ``write`` raises FormatError if the format cannot express the program. ``options``: fields of :class:`Options` that
    it supports. ``checks_memory``: it compares memory after each part. ``table_bytes``: size of its tables in bytes.
    """

    format: str
    help: str
    write: Callable[[Export], None]
    options: tuple[str, ...] = ()
    checks_memory: bool = False
    table_bytes: Callable[[Export], int] | None = None


def export(recording: Recording, folder: str | Path, bases: dict[Space, int], options: Options) -> Export:
    """Create ``folder`` and return the printers' input.

    Raises FormatError for a name that is invalid in C, and for a base of the registers that is not a multiple of 4.
    """
    name = recording.register_program.name
    if not NAME.fullmatch(name):
        raise FormatError(f"name of the export: must be letters, digits and _, with no digit first, got {name!r}")
    if options.csb_base is not None:
        check_csb_base(options.csb_base)
    target = Path(folder)
    make_directory(target)
    return Export(recording, bases, target, options)
