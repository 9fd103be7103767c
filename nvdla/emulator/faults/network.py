"""Network under faults: its operations, tensors and classes, and the resolution of places.

Before that step a run equals the healthy run, whose results are kept step by step; a convolution that
takes data or weights from the convolution buffer is begun with those that left them there.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.emulator.cpu import CpuTask
from nvdla.emulator.execution.fusing import fuse_steps
from nvdla.emulator.execution.plan import Plan, Recorder
from nvdla.emulator.execution.steps import Chain, Step
from nvdla.emulator.faults.convolution import (
    ConvolutionFaults,
    accesses,
    array_of,
    check_entry,
    check_multiplier,
    check_sum,
)
from nvdla.emulator.faults.fault import (
    BufferEntry,
    DescriptorByte,
    Effect,
    Fault,
    InputByte,
    LutEntry,
    MemoryByte,
    Multiplier,
    PartialSum,
    RegisterWord,
    SdpOperand,
    SurfaceByte,
    WeightByte,
)
from nvdla.emulator.firmware.operation import FirmwareOperation
from nvdla.emulator.firmware.scheduler import FirmwareTask
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.emulator.hardware.job import LE_ENTRIES, LO_ENTRIES, Job
from nvdla.emulator.hardware.machine import ENGINES, Machine
from nvdla.emulator.hardware.register_file import register_map
from nvdla.emulator.hardware.sdp.engine import SdpJob
from nvdla.emulator.memory.address_space import LeavesRegion, Move, Space
from nvdla.emulator.memory.linker import LinkedLoadable, Surface, bounds
from nvdla.errors import ConfigError, FormatError, LinkError
from nvdla.limits import Limits
from nvdla.util.arguments import raw_bytes

TaskList = list[FirmwareTask | CpuTask]


@dataclass(frozen=True)
class Setup:
    """``link(flat)`` lays the loadable into new memory, ``decode`` reads the tasks from there. ``strict``: no access
    may leave its region of memory."""

    link: Callable[[bool], LinkedLoadable]
    decode: Callable[[LinkedLoadable], TaskList]
    config: Configuration
    threads: int | None
    limits: Limits
    hardware_only: bool
    strict: bool = False


@dataclass(frozen=True)
class OperationPlace:
    """An operation, the number of the step that does it and its job."""

    operation: FirmwareOperation
    step: int
    job: Job


@dataclass(frozen=True)
class Golden:
    """A healthy run: raw ``inputs`` and ``outputs`` in bind order, and what every step wrote."""

    inputs: tuple[bytes, ...]
    outputs: list[bytes]
    written: list[list[np.ndarray]]

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return sum(array.nbytes for step in self.written for array in step)


class StruckNetwork:
    """The recorded steps of a network on its own memory: ``steps`` job by job, ``fused`` the fused step of each."""

    def __init__(self, linked: LinkedLoadable, plan: Plan, tasks: TaskList) -> None:
        self.linked, self.plan, self.tasks = linked, plan, tasks
        self.steps = plan.steps
        self.fused: list[Step] = fuse_steps(self.steps, plan.constant, lambda views: None)
        loadable = linked.loadable
        self._touched = plan.written | {memory.id for memory in (*loadable.inputs, *loadable.outputs)}
        firmware_tasks = [task for task in tasks if isinstance(task, FirmwareTask)]
        self._lists = [
            bounds(view) for task in firmware_tasks for view in (*task.descriptors, *task.written) if view.size
        ]
        self.places = self._places()
        self.convolutions = [number for number in range(len(self.steps)) if convolution(self.steps[number])]
        self.first_of_group, self.last_of_group = self._groups()
        self._look()

    @classmethod
    def recorded(cls, setup: Setup, inputs: Sequence[Surface]) -> StruckNetwork:
        """Run once through the firmware and record the jobs. Raises NvdlaError."""
        try:
            return cls._recorded(setup, inputs, flat=False)
        except LeavesRegion:
            if setup.strict:
                raise
            return cls._recorded(setup, inputs, flat=True)

    @classmethod
    def _recorded(cls, setup: Setup, inputs: Sequence[Surface], flat: bool) -> StruckNetwork:
        linked = setup.link(flat)
        tasks = setup.decode(linked)
        bind(linked, inputs)
        machine = Machine(setup.config, linked.space, setup.threads, setup.limits, setup.hardware_only)
        recorder = Recorder(None)
        try:
            recorder.run(tasks, machine)
        finally:
            machine.close()
        return cls(linked, recorder.plan(linked, tasks), tasks)

    def clone(self, lane_count: int) -> StruckNetwork:
        """The same network on memory with lanes, for batches. Raises LinkError beyond the memory limit."""
        linked = self.linked.clone(lane_count)
        network = copy.copy(self)
        move = Move(self.linked.lanes, linked.lanes)
        network.linked, network.plan = linked, self.plan.moved(move)
        network.steps = network.plan.steps
        network.fused = [step.moved(move) for step in self.fused]
        network.places = network._places()
        network._look()
        return network

    @property
    def is_repeatable(self) -> bool:
        """True if steps can be repeated without the firmware."""
        return self.plan.is_repeatable(self.tasks)

    @property
    def takes_lanes(self) -> bool:
        """True if images can be in lanes: all that a run changes is, and no convolution uses the buffer again."""
        alone = all(first == last for first, last in zip(self.first_of_group, self.last_of_group, strict=True))
        return alone and self.linked.in_lanes(self._touched) and self._touched <= self.linked.changing

    def golden(self, inputs: Sequence[Surface]) -> Golden:
        """The healthy run on raw inputs."""
        self.reset(inputs)
        written = []
        for step in self.fused:
            step.run()
            written.append([view.copy() for view in step.writes])
        return Golden(tuple(bytes(raw_bytes(surface, "input")) for surface in inputs), self.outputs(), written)

    def reset(self, inputs: Sequence[Surface]) -> None:
        """Reset memory to its state before a run on raw inputs."""
        self.linked.reset(self._touched)
        bind(self.linked, inputs)

    def restore(self, golden: Golden, step: int) -> None:
        """Set memory to its state in a healthy run before a step."""
        self.reset(golden.inputs)
        for number in range(step):
            for view, data in zip(self.fused[number].writes, golden.written[number], strict=True):
                view[...] = data

    def clear_lanes(self, images: Sequence[Sequence[Surface]]) -> None:
        """Images in lanes 1, 2 ..., and nothing else."""
        self.linked.clear_lanes(self._touched, len(images))
        for lane, image in enumerate(images, 1):
            bind(self.linked, image, lane)

    def outputs(self) -> list[bytes]:
        """The bound outputs as they are."""
        return [self.linked.data(memory).tobytes() for memory in self.linked.loadable.outputs]

    def readers(self, view: np.ndarray) -> list[int]:
        """Steps that read any byte of a view's span; the number after the last step where it is an output."""
        low, high = bounds(view)
        readers = [
            number
            for number, reads in enumerate(self._reads)
            if any(start < high and low < end for start, end in reads)
        ]
        is_output = any(start < high and low < end for start, end in self._outputs)
        return [*readers, len(self.steps)] if is_output else readers

    def last_reader(self, number: int) -> int:
        """The last step that reads the output of a step, -1 if none does; see :meth:`readers`."""
        if number not in self._last_readers:
            views = self.fused[number].writes
            self._last_readers[number] = max((reader for view in views for reader in self.readers(view)), default=-1)
        return self._last_readers[number]

    def byte_at(self, space: Space, address: int) -> np.ndarray:
        """The byte at an address (view of one). Raises LinkError where no memory is."""
        for region in self.linked.regions.values():
            if region.space is space and region.base <= address < region.end:
                return region.data[address - region.base : address - region.base + 1]
        raise LinkError(f"fault: no {space.value} region holds address 0x{address:x}")

    def is_read_by_firmware(self, view: np.ndarray) -> bool:
        """Return whether a byte is in lists of a task: then the register writes may change."""
        low, high = bounds(view)
        return any(start < high and low < end for start, end in self._lists)

    def place(self, operation: str) -> OperationPlace:
        """The operation "task/index". Raises FormatError for an unknown operation, or one without work."""
        if operation not in self.places:
            names = list(self.places)
            shown = f"{names[0]} to {names[-1]}" if names else "none"
            raise FormatError(f"operation: must be task/index, here {shown}, got {operation}")
        return self.places[operation]

    def _places(self) -> dict[str, OperationPlace]:
        step_of = {
            id(job): number for number, step in enumerate(self.steps) if isinstance(step, Chain) for job in step.jobs
        }
        return {
            f"{operation.task}/{operation.index}": OperationPlace(operation, step_of[id(job)], job)
            for operation, job in self.plan.operations()
            if job is not None and operation.roi == 0 and id(job) in step_of
        }

    def _look(self) -> None:
        """Note the spans that steps read, and those of the outputs."""
        self._reads = [[bounds(view) for view in step.reads if view.size] for step in self.steps]
        self._outputs = [bounds(self.linked.data(memory)) for memory in self.linked.loadable.outputs]
        self._last_readers: dict[int, int] = {}

    def _groups(self) -> tuple[list[int], list[int]]:
        """For each step the first and the last of those that must run together: convolutions that find in the buffer
        what another has left."""
        first, last = list(range(len(self.steps))), list(range(len(self.steps)))
        jobs = [(number, conv) for number in self.convolutions if (conv := convolution(self.steps[number]))]
        if any(conv.displaced for _, conv in jobs):
            return [0] * len(first), [len(last) - 1] * len(last)
        before = -1
        for number, conv in jobs:
            if before >= 0 and not all(access.in_place for access in accesses(conv)):
                first[before + 1 : number + 1] = [first[before]] * (number - before)
            before = number
        for number in reversed(range(len(first) - 1)):
            if first[number + 1] == first[number]:
                last[number] = last[number + 1]
        return first, last


def convolution(step: Step) -> ConvolutionJob | None:
    """The convolution that a step begins with."""
    job = step.jobs[0] if isinstance(step, Chain) else None
    return job if isinstance(job, ConvolutionJob) else None


def bind(linked: LinkedLoadable, inputs: Sequence[Surface], lane: int = 0) -> None:
    """Raw inputs in bind order into their memories."""
    for memory, data in zip(linked.loadable.inputs, inputs, strict=True):
        linked.bind(memory, data, lane)


TABLES = {"LE": LE_ENTRIES, "LO": LO_ENTRIES}
BLOCKS = ("X1", "X2", "Y")
LISTS = {
    "network": "network",
    "dependencies": "dependencies",
    "operations": "containers",
    "surfaces": "surface_containers",
    "luts": "luts",
}
NOT_SETTINGS = ("S_POINTER", "S_STATUS", "D_OP_ENABLE", "S_LUT_ACCESS_CFG", "S_LUT_ACCESS_DATA")


@dataclass(frozen=True)
class Poke:
    """A byte of memory, struck before step ``first`` (-1: before the firmware reads anything). ``once``: healed after
    that step. ``permanent``: struck again after each write."""

    space: Space
    address: int
    effect: Effect
    first: int
    once: bool = False
    permanent: bool = False


@dataclass(frozen=True)
class Setting:
    """A register, or an entry of a lookup table, when step ``step`` begins (None: whenever one of the unit does)."""

    unit: str
    name: str
    entry: int
    effect: Effect
    step: int | None


@dataclass
class Resolved:
    """Faults by how they are done. ``needs_firmware``: register writes may differ."""

    pokes: list[Poke] = field(default_factory=list)
    convolutions: dict[int, ConvolutionFaults] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    needs_firmware: bool = False


def resolve(network: StruckNetwork, faults: Sequence[Fault]) -> Resolved:
    """Resolve faults to places of a network. Raises NvdlaError naming the place that does not exist, and the limit."""
    resolved = Resolved()
    for fault in faults:
        if fault.part is not None:
            raise FormatError(f"fault {str(fault)[:80]!r}: part: must be omitted for a loadable, got part={fault.part}")
        _RESOLVERS[type(fault.where)](network, fault, fault.where, resolved)
    read = any(network.is_read_by_firmware(network.byte_at(poke.space, poke.address)) for poke in resolved.pokes)
    resolved.needs_firmware = read or bool(resolved.settings)
    return resolved


def _weight(network: StruckNetwork, fault: Fault, where: WeightByte, resolved: Resolved) -> None:
    place, conv = _convolution(network, where.operation)
    if not accesses(conv)[1].fetches:
        raise ConfigError(f"operation {where.operation} reuses the weights of an earlier operation. Name that one.")
    view = conv.weight_source.views[0]
    _in(where.byte, view.size, f"weights of operation {where.operation}, byte")
    _poke_view(network, fault, view, where.byte, place.step, resolved, once=not fault.permanent)


def _operand(network: StruckNetwork, fault: Fault, where: SdpOperand, resolved: Resolved) -> None:
    place = network.place(where.operation)
    if where.block not in BLOCKS:
        raise FormatError(f"SDP block {where.block!r}: must be {', '.join(BLOCKS)}")
    source = place.job.sources[BLOCKS.index(where.block)] if isinstance(place.job, SdpJob) else None
    if source is None:
        raise ConfigError(f"operation {where.operation}: must read operands of {where.block} from memory")
    _in(where.byte, source.view.size, f"operands of operation {where.operation}, byte")
    _poke_view(network, fault, source.view, where.byte, place.step, resolved, once=not fault.permanent)


def _surface(network: StruckNetwork, fault: Fault, where: SurfaceByte, resolved: Resolved) -> None:
    place = network.place(where.operation)
    view = place.job.destination
    if view is None:
        raise ConfigError(f"operation {where.operation}: result must be in memory, but is passed on the fly")
    _in(where.byte, view.size, f"surface of operation {where.operation}, byte")
    _poke_view(network, fault, view, where.byte, place.step + 1, resolved)


def _input(network: StruckNetwork, fault: Fault, where: InputByte, resolved: Resolved) -> None:
    inputs = network.linked.loadable.inputs
    _in(where.input, len(inputs), "input")
    view = network.linked.data(inputs[where.input])
    _in(where.byte, view.size, f"input {where.input}, byte")
    _poke_view(network, fault, view, where.byte, 0, resolved)


def _memory(network: StruckNetwork, fault: Fault, where: MemoryByte, resolved: Resolved) -> None:
    try:
        space = Space(where.space.lower())
    except ValueError:
        raise FormatError(f"memory {where.space!r}: must be DRAM or CVSRAM") from None
    network.byte_at(space, where.address)
    first = network.place(where.operation).step if where.operation else 0
    resolved.pokes.append(Poke(space, where.address, fault.what, first, permanent=fault.permanent))


def _descriptor(network: StruckNetwork, fault: Fault, where: DescriptorByte, resolved: Resolved) -> None:
    window, size = descriptor_list(network, where.task, where.list)
    _in(where.byte, size, f"{where.list} of task {where.task}, byte")
    space, address = window.region.space, window.address + where.byte
    resolved.pokes.append(Poke(space, address, fault.what, -1, permanent=False))


def descriptor_list(network: StruckNetwork, number: int, name: str) -> tuple[Any, int]:
    """The window of a list that the firmware reads, and its bytes. Raises FormatError for an unknown one."""
    tasks = [task for task in network.tasks if isinstance(task, FirmwareTask) and task.id == number]
    if not tasks or name not in LISTS:
        raise FormatError(f"descriptors of task {number}, list {name!r}: no such task, or not of {', '.join(LISTS)}")
    decoded = getattr(tasks[0].decoded, LISTS[name])
    description = tasks[0].network
    index = {
        "network": 0,
        "dependencies": description.dependency_graph_index,
        "operations": description.operation_desc_index,
        "surfaces": description.surface_desc_index,
        "luts": description.lut_data_index,
    }[name]
    size = ctypes.sizeof(decoded) if isinstance(decoded, ctypes.Array | ctypes.Structure) else 0
    return (tasks[0].addresses[index] if size else None), size


def _multiplier(network: StruckNetwork, fault: Fault, where: Multiplier, resolved: Resolved) -> None:
    steps = [network.place(where.operation).step] if where.operation else network.convolutions
    if not where.operation and not where.always:
        raise FormatError(f"{fault}: cells and cycles belong to one convolution. Add operation=TASK/INDEX.")
    if not steps:
        raise ConfigError("fault: the network has no convolution, so its MAC array is not used")
    for step in steps:
        conv = _first_convolution(network, step, where.operation)
        check_multiplier(conv, where)
        bits = 8 * conv.settings.precision.bytes * (2 if where.port == "product" else 1)
        fault.what.check(bits, f"MAC {where.port}")
        multipliers = resolved.convolutions.setdefault(step, ConvolutionFaults()).array.multipliers
        same = {-1, where.kernel} if where.kernel >= 0 else set(range(-1, array_of(conv).group))
        if any(multiplier.channel == where.channel and multiplier.kernel in same for multiplier, _ in multipliers):
            raise ConfigError(f"multiplier kernel={where.kernel} channel={where.channel}: must have one fault, got two")
        multipliers.append((where, fault.what))


def _sum(network: StruckNetwork, fault: Fault, where: PartialSum, resolved: Resolved) -> None:
    place, conv = _convolution(network, where.operation)
    check_sum(conv, where, fault.what)
    resolved.convolutions.setdefault(place.step, ConvolutionFaults()).array.sums.append((where, fault.what))


def _entry(network: StruckNetwork, fault: Fault, where: BufferEntry, resolved: Resolved) -> None:
    place, conv = _convolution(network, where.operation)
    check_entry(conv, where)
    steps = [step for step in network.convolutions if step >= place.step] if fault.permanent else [place.step]
    for step in steps:
        resolved.convolutions.setdefault(step, ConvolutionFaults()).entries.append((where, fault.what))


def _lut(network: StruckNetwork, fault: Fault, where: LutEntry, resolved: Resolved) -> None:
    if where.unit not in ("SDP", "CDP") or where.table not in TABLES:
        raise FormatError(f"LUT: must be of SDP or CDP with table LE or LO, got {where.unit} {where.table}")
    _in(where.entry, TABLES[where.table], f"LUT {where.unit} {where.table}, entry")
    _set(network, fault, where.operation, (where.unit, where.table, where.entry), resolved)


def _register(network: StruckNetwork, fault: Fault, where: RegisterWord, resolved: Resolved) -> None:
    config = next(iter(network.places.values())).operation.config
    register_map(config.register_map).register(where.unit, where.register)
    if engine_of(where.unit) is None or where.register in NOT_SETTINGS:
        raise ConfigError(f"{where.unit}.{where.register} must be a setting of an operation")
    _set(network, fault, where.operation, (where.unit, where.register, 0), resolved)


def _set(network: StruckNetwork, fault: Fault, operation: str, what: tuple[str, str, int], resolved: Resolved) -> None:
    if not operation and fault.what.kind == "flip":
        raise FormatError(f"{fault}: permanent effect: must be stuck0 or stuck1, got flip")
    step = None
    if operation:
        place = network.place(operation)
        step, engine = place.step, place.operation.type.name.lower()
        if engine != engine_of(what[0]):
            raise ConfigError(f"operation {operation}: must have unit {what[0]}, but runs on {engine}")
    resolved.settings.append(Setting(*what, fault.what, step))


def engine_of(unit: str) -> str | None:
    """The engine that a unit belongs to."""
    return next((name for name, link in ENGINES.items() if unit in link.units), None)


def _convolution(network: StruckNetwork, operation: str) -> tuple[OperationPlace, ConvolutionJob]:
    place = network.place(operation)
    return place, _first_convolution(network, place.step, operation, place.job)


def _first_convolution(network: StruckNetwork, step: int, operation: str, job: Job | None = None) -> ConvolutionJob:
    conv = network.steps[step].jobs[0] if job is None else job  # type: ignore[union-attr]
    if not isinstance(conv, ConvolutionJob):
        raise ConfigError(f"operation {operation}: must be a convolution")
    return conv


def _poke_view(
    network: StruckNetwork,
    fault: Fault,
    view: np.ndarray,
    byte: int,
    first: int,
    resolved: Resolved,
    once: bool = False,
) -> None:
    """Strike byte ``byte``, in the order of the array, of a view on memory."""
    space, address = address_of(network, view, byte)
    resolved.pokes.append(Poke(space, address, fault.what, first, once, fault.permanent))


def address_of(network: StruckNetwork, view: np.ndarray, byte: int) -> tuple[Space, int]:
    """The address of a byte, in the order of the array, of a view on memory."""
    place = np.unravel_index(byte, view.shape)
    offset = sum(int(at) * stride for at, stride in zip(place, view.strides, strict=True))
    pointer = view.ctypes.data + offset
    for region in network.linked.regions.values():
        start = region.data.ctypes.data
        if start <= pointer < start + region.size:
            return region.space, region.base + pointer - start
    raise ConfigError("byte: must be within the memories of the loadable")


def _in(value: int, limit: int, what: str) -> None:
    if not 0 <= value < limit:
        raise FormatError(f"{what} {value}: must be 0 .. {limit - 1}" if limit else f"{what}: must exist, got {value}")


_RESOLVERS: dict[type, Any] = {
    WeightByte: _weight,
    InputByte: _input,
    SurfaceByte: _surface,
    MemoryByte: _memory,
    SdpOperand: _operand,
    BufferEntry: _entry,
    Multiplier: _multiplier,
    PartialSum: _sum,
    LutEntry: _lut,
    RegisterWord: _register,
    DescriptorByte: _descriptor,
}
