"""Tasks decoded into operations, their sources, and their checks.

Decoding asks a :class:`DescriptorSource` for bytes, so the same code reads the blobs of a file (here) and the memory of
a running network (a runtime passes its own source, and sees rewritten strides).

Lists are found as the firmware finds them (kmd/firmware/scheduler.c:735): address index 0 holds the network descriptor,
whose ``*_index`` fields are indices into the task's address list. An operation's descriptors are at
``roi * num_operations + index`` of their lists (scheduler.c:133).

Each rule is a generator of messages with a docstring that states it. What an engine can do with the numbers
(sizes, strides, formats) is the firmware layer's to judge; here only references are followed.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from ctypes import Structure
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

from nvdla.errors import DescriptorError, LoadableError
from nvdla.limits import Limits
from nvdla.loadable.descriptors.abi import Abi
from nvdla.loadable.descriptors.enums import EmuOpType, Event, OpType
from nvdla.loadable.descriptors.fields import member
from nvdla.loadable.descriptors.structures import MAX_BDMA_TRANSFERS, NUM_OP_TYPES, Descriptor
from nvdla.loadable.enums import Interface, MemoryFlags
from nvdla.loadable.model import Loadable, MemoryEntry, TaskEntry
from nvdla.util.arguments import by_annotations

if TYPE_CHECKING:
    from nvdla.loadable.descriptors.fields import CtypesRecord

Made = TypeVar("Made", bound=Structure)


class DescriptorSource(Protocol):
    """Bytes at the address indices of one task."""

    #: "task 0": begins every message
    name: str
    #: entries of the task's address list
    num_addresses: int

    def read(self, index: int, size: int, what: str) -> bytes | memoryview:
        """Return the first ``size`` bytes at address index ``index`` (a buffer). DescriptorError if there are fewer."""

    def label(self, index: int) -> str:
        """Name the content of an address index, for messages: "blob 'task-0-surf_list'"."""


@by_annotations
class LoadableSource:
    """The blobs of a loadable, as the memory list places them. Views wherever one blob holds all that is asked for."""

    def __init__(self, loadable: Loadable, task: TaskEntry) -> None:
        self.loadable = loadable
        self.task = task
        self.name = f"task {task.id}"
        self.num_addresses = len(task.address_list)

    def label(self, index: int) -> str:
        """Return the name of the blob at an address index, for messages."""
        try:
            memory = self.loadable.memory(self.loadable.address(self.task.address_list[index]).mem_id)
        except (LoadableError, IndexError):
            return f"address index {index}"
        return f"blob {memory.contents[0]!r}" if memory.contents else f"memory {memory.id}"

    def read(self, index: int, size: int, what: str) -> bytes | memoryview:
        """Return ``size`` bytes at an address index. Raises DescriptorError where they are not there."""
        if not 0 <= index < self.num_addresses:
            raise DescriptorError(
                f"{self.name}, {what}: address index: must be 0 .. {self.num_addresses - 1} (address list), got {index}"
            )
        try:
            address = self.loadable.address(self.task.address_list[index])
            memory = self.loadable.memory(address.mem_id)
            room = memory.size - address.offset
            if room < size:
                raise DescriptorError(
                    f"{self.name}, {what}, {self.label(index)}: must end within memory {memory.id} ({memory.size} "
                    f"bytes), got {size} bytes from byte {address.offset}"
                )
            return self._contents(memory, address.offset, size, f"{what}, {self.label(index)}")
        except LoadableError as error:
            raise DescriptorError(f"{self.name}, {what}: {error}") from None

    def _contents(self, memory: MemoryEntry, start: int, size: int, what: str) -> bytes | memoryview:
        """``size`` bytes of a memory from ``start``, put together from the blobs that cover them."""
        end = start + size
        contents = self.loadable.contents(memory) if memory.flags & MemoryFlags.SET else []
        first = max(bisect.bisect_right(contents, start, key=lambda entry: entry[0]) - 1, 0)
        pieces = []
        for offset, blob in itertools.islice(contents, first, None):
            if offset <= start and end <= offset + blob.length:
                return blob.data[start - offset : end - offset]
            if offset >= end:
                break
            if start < offset + blob.length:
                pieces.append((offset, blob.data))
        covered = sum(min(end, offset + len(data)) - max(start, offset) for offset, data in pieces)
        if covered < size:
            raise DescriptorError(f"{self.name}, {what}: needs {size} bytes from byte {start}, contents give {covered}")
        joined = bytearray(size)
        for offset, data in pieces:
            low, high = max(start, offset), min(end, offset + len(data))
            joined[low - start : high - start] = data[low - offset : high - offset]
        return memoryview(joined).toreadonly()


@dataclass(frozen=True)
class DlaOperation:
    """One hardware operation: ``op`` and ``surface`` are the structures of its engine (ConvOp, ConvSurface ...)."""

    index: int
    roi: int
    op_type: OpType
    common: Descriptor
    op: Descriptor
    surface: Descriptor
    lut: Descriptor | None = None

    @property
    def engine(self) -> str:
        """ "bdma", "conv", "sdp", "pdp", "cdp" or "rubik"."""
        return self.op_type.name.lower()


@dataclass(frozen=True)
class DescriptorTask(ABC):
    """A task laid over its descriptors: ``network`` and the lists that it names."""

    task: TaskEntry
    abi: Abi
    source: DescriptorSource = field(repr=False)
    network: Descriptor = field(repr=False)
    containers: Sequence[Descriptor] = field(repr=False)
    interface: ClassVar[Interface]

    def list_memories(self, loadable: Loadable) -> set[int]:
        """Return the ids of the memories that hold the network descriptor and the lists that it names."""
        fields = [name for name, *_ in self.network._fields_ if name.endswith("_index")]
        indices, addresses = {0, *(getattr(self.network, name) for name in fields)}, self.task.address_list
        return {loadable.address(addresses[index]).mem_id for index in indices if 0 <= index < len(addresses)}

    @classmethod
    def decode(
        cls: type[AnyTask],
        loadable: Loadable,
        task: TaskEntry,
        abi: Abi,
        *,
        source: DescriptorSource | None = None,
        limits: Limits | None = None,
    ) -> AnyTask:
        """Decode and check a task. ``source`` defaults to the loadable's blobs.

        Raises DescriptorError naming list, index, field, byte offset, value and limit.
        """
        decoded = cls.overlay(loadable, task, abi, source=source, limits=limits)
        decoded.check()
        return decoded

    @classmethod
    def overlay(
        cls: type[AnyTask],
        loadable: Loadable,
        task: TaskEntry,
        abi: Abi,
        *,
        source: DescriptorSource | None = None,
        limits: Limits | None = None,
    ) -> AnyTask:
        """The lists of a task without the checks of what they say: for tools that look at broken files."""
        if task.interface != cls.interface:
            raise DescriptorError(f"task {task.id}: interface: must be {cls.interface.name}, got {task.interface.name}")
        return cls._over(task, abi, source or LoadableSource(loadable, task), limits or Limits())

    @classmethod
    @abstractmethod
    def _over(cls: type[AnyTask], task: TaskEntry, abi: Abi, source: DescriptorSource, limits: Limits) -> AnyTask:
        """The lists of this kind of task."""

    @abstractmethod
    def check(self) -> None:
        """Raises DescriptorError for lists that contradict themselves."""

    def __len__(self) -> int:
        """Operations of all ROIs."""
        return len(self.containers)


AnyTask = TypeVar("AnyTask", bound=DescriptorTask)


@dataclass(frozen=True)
class DlaTask(DescriptorTask):
    """A DLA task. Lists are indexed by ``roi * num_operations + index``; ``operation()`` puts the pieces together."""

    surface_containers: Sequence[Descriptor] = field(repr=False)
    dependencies: Sequence[Descriptor] = field(repr=False)
    luts: Sequence[Descriptor] = field(repr=False)
    interface = Interface.DLA1

    @classmethod
    def _over(cls, task: TaskEntry, abi: Abi, source: DescriptorSource, limits: Limits) -> DlaTask:
        network = _one(source, 0, abi.NetworkDesc)
        count = network.num_operations * max(network.num_rois, 1)
        _limit(source, "num_operations * num_rois", abi.NetworkDesc.num_operations.offset, count, limits, "operations")
        _limit(source, "num_luts", abi.NetworkDesc.num_luts.offset, network.num_luts, limits, "luts")
        return cls(
            task=task,
            abi=abi,
            source=source,
            network=network,
            containers=_list(source, network, "operation_desc_index", abi.OperationContainer, count),
            surface_containers=_list(source, network, "surface_desc_index", abi.SurfaceContainer, count),
            dependencies=_list(source, network, "dependency_graph_index", abi.CommonOpDesc, count),
            luts=_list(source, network, "lut_data_index", abi.LutParam, network.num_luts),
        )

    def check(self) -> None:
        """Raises DescriptorError for lists that contradict themselves."""

        check_dla_task(self)

    def operation(self, index: int, roi: int = 0) -> DlaOperation:
        """The operation at ``index`` of one ROI's list."""
        count = self.network.num_operations
        position = roi * count + index
        if not (0 <= index < count and 0 <= position < len(self)):
            raise DescriptorError(f"{self.source.name}: operation of ROI {roi}: must be 0 .. {count - 1}, got {index}")
        common = self.dependencies[position]
        op = member(self.containers[position], common.op_type)
        if op is None:
            offset = position * ctypes.sizeof(common) + type(common).op_type.offset
            raise DescriptorError(
                f"{self.where('dependency_graph_index', position, common, 'op_type')}at byte {offset}: "
                f"must be 0 .. {len(OpType) - 1}, got {common.op_type}"
            )
        return DlaOperation(
            index=index,
            roi=roi,
            op_type=OpType(common.op_type),
            common=common,
            op=op,
            surface=member(self.surface_containers[position], common.op_type),
            lut=self._lut(op),
        )

    def operations(self, roi: int = 0) -> list[DlaOperation]:
        """All operations of one ROI, in list order."""
        return [self.operation(index, roi) for index in range(self.network.num_operations)]

    def where(self, list_index: str, position: int, structure: CtypesRecord, name: str) -> str:
        """Begin of a message: "task 0, blob 'task-0-op_list', SdpOp[3].lut_index "."""
        label = self.source.label(getattr(self.network, list_index))
        return f"{self.source.name}, {label}, {type(structure).__name__}[{position}].{name} "

    def where_network(self, name: str) -> str:
        """Begin of a message about the network descriptor."""
        return f"{self.source.name}, {self.source.label(0)}, {type(self.network).__name__}.{name} "

    def _lut(self, op: Descriptor) -> Descriptor | None:
        index = getattr(op, "lut_index", -1)
        return self.luts[index] if 0 <= index < len(self.luts) else None


@dataclass(frozen=True)
class EmuOperation:
    """One CPU operation: ``op`` is EmuPowerOp or EmuSoftmaxOp, ``src`` and ``dst`` are EmuBuffer."""

    index: int
    op_type: EmuOpType
    op: Descriptor
    src: Descriptor
    dst: Descriptor


@dataclass(frozen=True)
class EmuTask(DescriptorTask):
    """A CPU task: operations run one after the other, in list order."""

    buffers: Sequence[Descriptor] = field(repr=False)
    interface = Interface.EMU1

    @classmethod
    def _over(cls, task: TaskEntry, abi: Abi, source: DescriptorSource, limits: Limits) -> EmuTask:
        # Only the first 6 bytes of the network descriptor mean something, but its padding is always there.
        network = _one(source, 0, abi.EmuNetworkDesc)
        count = network.num_operations
        _limit(source, "num_operations", abi.EmuNetworkDesc.num_operations.offset, count, limits, "operations")
        return cls(
            task=task,
            abi=abi,
            source=source,
            network=network,
            containers=_list(source, network, "operation_desc_index", abi.EmuOperationContainer, count),
            buffers=_list(source, network, "operation_buffer_desc_index", abi.EmuBuffers, count),
        )

    def check(self) -> None:
        """Raises DescriptorError for lists that contradict themselves."""

        check_emu_task(self)

    def operations(self) -> list[EmuOperation]:
        """All operations in list order. DescriptorError for an unknown operation type."""
        return [self._operation(index) for index in range(len(self))]

    def where(self, list_index: str, position: int, structure: CtypesRecord, name: str) -> str:
        """Begin of a message: "task 1, blob 'task-1-op_list', EmuSoftmaxOp[0].axis "."""
        label = self.source.label(getattr(self.network, list_index))
        return f"{self.source.name}, {label}, {type(structure).__name__}[{position}].{name} "

    def _operation(self, index: int) -> EmuOperation:
        container, buffers = self.containers[index], self.buffers[index]
        number = container.power_op.common.op_type
        if not EmuOpType(number).known:
            offset = index * ctypes.sizeof(container)
            raise DescriptorError(
                f"{self.where('operation_desc_index', index, container, 'op_type')}at byte {offset}: "
                f"must be {EmuOpType.choices()}, got {number}"
            )
        op = getattr(container, EmuOpType(number).member)
        return EmuOperation(index, EmuOpType(number), op, buffers.src_data, buffers.dst_data)


@by_annotations
def decode_tasks(loadable: Loadable, abi: Abi, limits: Limits | None = None) -> dict[int, DlaTask | EmuTask]:
    """All tasks of a loadable by task id."""
    limits = limits or Limits()
    decoded: dict[int, DlaTask | EmuTask] = {}
    total = 0
    for task in loadable.tasks:
        kind = DlaTask if task.interface == Interface.DLA1 else EmuTask
        decoded[task.id] = decoded_task = kind.decode(loadable, task, abi, limits=limits)
        total += len(decoded_task)
        limits.check_total(task.id, total)
    return decoded


def _one(source: DescriptorSource, index: int, structure: type[Made]) -> Made:
    descriptor: Made = _array(source, index, structure, 1, structure.__name__)[0]
    return descriptor


def _list(
    source: DescriptorSource, network: Descriptor, name: str, structure: type[Made], count: int
) -> Sequence[Made]:
    """The list that a field of the network descriptor points at; empty lists are not looked up."""
    if count == 0:
        return ()
    index = getattr(network, name)
    if not 0 <= index < source.num_addresses:
        offset = getattr(type(network), name).offset
        raise DescriptorError(
            f"{source.name}, {source.label(0)}, {type(network).__name__}.{name} at byte {offset}: "
            f"must be 0 .. {source.num_addresses - 1} (address list), got {index}"
        )
    return cast("Sequence[Made]", _array(source, index, structure, count, f"{structure.__name__}[{count}]"))


def _array(source: DescriptorSource, index: int, structure: type[Made], count: int, what: str) -> ctypes.Array[Made]:
    """Structures over the source's bytes: the bytes themselves where they may be written, else one copy.

    ctypes cannot use read-only bytes, such as those of a file.
    """
    size = ctypes.sizeof(structure) * count
    data = source.read(index, size, what)
    kind = structure * count
    return kind.from_buffer_copy(data) if memoryview(data).readonly else kind.from_buffer(data)


def _limit(source: DescriptorSource, name: str, offset: int, value: int, limits: Limits, which: str) -> None:
    limit = getattr(limits, which)
    if value > limit:
        raise DescriptorError(
            f"{source.name}, {source.label(0)}, network descriptor {name} at byte {offset}: "
            f"must be at most {limit} (Limits.{which}), got {value}"
        )


DLA_RULES: list[Callable[[DlaTask], Iterator[str]]] = []
EMU_RULES: list[Callable[[EmuTask], Iterator[str]]] = []


def dla_rule(function: Callable[[DlaTask], Iterator[str]]) -> Callable[[DlaTask], Iterator[str]]:
    """Add a rule about DLA tasks to DLA_RULES."""
    DLA_RULES.append(function)
    return function


def emu_rule(function: Callable[[EmuTask], Iterator[str]]) -> Callable[[EmuTask], Iterator[str]]:
    """Add a rule about CPU tasks to EMU_RULES."""
    EMU_RULES.append(function)
    return function


def dla_problems(task: DlaTask) -> Iterator[str]:
    """Every rule that a DLA task breaks, one line each."""
    for rule in DLA_RULES:
        yield from rule(task)


def emu_problems(task: EmuTask) -> Iterator[str]:
    """Every rule that a CPU task breaks, one line each."""
    for rule in EMU_RULES:
        yield from rule(task)


def check_dla_task(task: DlaTask) -> None:
    """Raise DescriptorError for the first rule that the task breaks."""
    for problem in dla_problems(task):
        raise DescriptorError(problem)


def check_emu_task(task: EmuTask) -> None:
    """Raise DescriptorError for the first rule that the task breaks."""
    for problem in emu_problems(task):
        raise DescriptorError(problem)


def _at(structure: Structure, position: int, *path: str | int) -> int:
    """Byte of a field in its list; ``path`` walks nested fields and array positions."""
    offset = position * ctypes.sizeof(structure)
    kind: Any = type(structure)
    for part in path:
        if isinstance(part, int):
            kind = kind._type_
            offset += part * ctypes.sizeof(kind)
        else:
            offset += getattr(kind, part).offset
            kind = dict(kind._fields_)[part]
    return offset


@dla_rule
def network_counts_are_positive(task: DlaTask) -> Iterator[str]:
    """A DLA task has at least one operation and one ROI."""
    for name in ("num_operations", "num_rois"):
        if getattr(task.network, name) < 1:
            offset = getattr(type(task.network), name).offset
            yield f"{task.where_network(name)}at byte {offset}: must be at least 1, got 0"


@dla_rule
def regions_of_interest_are_static(task: DlaTask) -> Iterator[str]:
    """With dynamic ROIs the network descriptor points at the ROI array and at the surface list."""
    if task.network.dynamic_roi:
        for name in ("roi_array_index", "surface_index"):
            index = getattr(task.network, name)
            if not 0 <= index < task.source.num_addresses:
                offset = getattr(type(task.network), name).offset
                limit = f"0 .. {task.source.num_addresses - 1} (address list)"
                yield f"{task.where_network(name)}at byte {offset}: must be {limit}, got {index}"


@dla_rule
def heads_are_operations_of_their_type(task: DlaTask) -> Iterator[str]:
    """op_head[type] is -1 or an operation of that type."""
    count = task.network.num_operations
    for op_type, head in enumerate(task.network.op_head):
        where = f"{task.where_network(f'op_head[{op_type}]')}at byte {_at(task.network, 0, 'op_head', op_type)}"
        if not -1 <= head < count:
            yield f"{where}: must be -1 .. {count - 1} (num_operations), got {head}"
        elif head >= 0 and task.dependencies[head].op_type != op_type:
            yield f"{where}: type of operation {head}: must be {op_type}, got {task.dependencies[head].op_type}"


@dla_rule
def operations_have_a_known_type(task: DlaTask) -> Iterator[str]:
    """op_type is one of the six processors."""
    for position, common in enumerate(task.dependencies):
        if common.op_type >= NUM_OP_TYPES:
            where = task.where("dependency_graph_index", position, common, "op_type")
            offset = _at(common, position, "op_type")
            yield f"{where}at byte {offset}: must be 0 .. {NUM_OP_TYPES - 1}, got {common.op_type}"


@dla_rule
def consumers_exist(task: DlaTask) -> Iterator[str]:
    """A consumer is none (-1) or an operation, of the type of its slot, that waits for a known event.

    The fused parent is the same without a slot.
    """
    for position, common in enumerate(task.dependencies):
        for slot in range(NUM_OP_TYPES):
            yield from _consumer(task, position, common, slot)
        yield from _consumer(task, position, common, None)


def _consumer(task: DlaTask, position: int, common: Descriptor, slot: int | None) -> Iterator[str]:
    name = "fused_parent" if slot is None else f"consumers[{slot}]"
    path = ("fused_parent",) if slot is None else ("consumers", slot)
    consumer = common.fused_parent if slot is None else common.consumers[slot]
    if consumer.index == -1:
        return
    count = task.network.num_operations
    where = task.where("dependency_graph_index", position, common, name)
    if not 0 <= consumer.index < count:
        yield (
            f"{where}at byte {_at(common, position, *path)}: index: must be -1 .. {count - 1} (num_operations), "
            f"got {consumer.index}"
        )
        return
    if not Event.OP_COMPLETED <= consumer.event <= Event.CDMA_DT_DONE:
        offset = _at(common, position, *path, "event")
        yield f"{where}at byte {offset}: event: must be 1 .. {int(Event.CDMA_DT_DONE)}, got {consumer.event}"
    op_type = task.dependencies[consumer.index].op_type
    if slot is not None and op_type != slot:
        offset = _at(common, position, *path)
        yield f"{where}at byte {offset}: type of operation {consumer.index}: must be {slot} (its slot), got {op_type}"


@dla_rule
def luts_exist(task: DlaTask) -> Iterator[str]:
    """lut_index of an SDP or CDP operation is -1 or less than num_luts."""
    for position, common in enumerate(task.dependencies):
        if common.op_type not in (OpType.SDP, OpType.CDP):
            continue
        container = task.containers[position]
        op = container.sdp_op if common.op_type == OpType.SDP else container.cdp_op
        if not -1 <= op.lut_index < len(task.luts):
            where = task.where("operation_desc_index", position, op, "lut_index")
            offset = position * ctypes.sizeof(container) + type(op).lut_index.offset
            yield f"{where}at byte {offset}: must be -1 .. {len(task.luts) - 1} (num_luts), got {op.lut_index}"


@dla_rule
def surfaces_lie_behind_addresses(task: DlaTask) -> Iterator[str]:
    """Every data cube's address index, and every BDMA transfer's, is -1 or within the task's address list."""
    limit = task.source.num_addresses
    for position, common in enumerate(task.dependencies):
        if common.op_type >= NUM_OP_TYPES:
            continue
        container = task.surface_containers[position]
        for surface, offset, name, index in _surface_addresses(container, common.op_type):
            if not -1 <= index < limit:
                where = task.where("surface_desc_index", position, surface, name)
                byte = position * ctypes.sizeof(container) + offset
                yield f"{where}at byte {byte}: must be -1 .. {limit - 1} (address list), got {index}"


def _surface_addresses(container: Descriptor, op_type: int) -> Iterator[tuple[CtypesRecord, int, str, int]]:
    """(surface, byte in container, field name, address index) of each address in a surface container."""
    if op_type == OpType.BDMA:
        surface = container.bdma_surface
        for number in range(min(surface.num_transfers, MAX_BDMA_TRANSFERS)):
            transfer = surface.transfers[number]
            for name in ("source_address", "destination_address"):
                offset = _at(surface, 0, "transfers", number, name)
                yield surface, offset, f"transfers[{number}].{name}", getattr(transfer, name)
        return
    surface = getattr(container, f"{OpType(op_type).name.lower()}_surface")
    for name, *_ in surface._fields_:
        if name.endswith("_data"):
            yield surface, _at(surface, 0, name, "address"), f"{name}.address", getattr(surface, name).address


@dla_rule
def transfers_fit_their_list(task: DlaTask) -> Iterator[str]:
    """A BDMA surface descriptor has at most 20 transfers."""
    for position, common in enumerate(task.dependencies):
        if common.op_type == OpType.BDMA:
            surface = task.surface_containers[position].bdma_surface
            if surface.num_transfers > MAX_BDMA_TRANSFERS:
                where = task.where("surface_desc_index", position, surface, "num_transfers")
                offset = position * ctypes.sizeof(task.surface_containers[position]) + 2
                yield f"{where}at byte {offset}: must be at most {MAX_BDMA_TRANSFERS}, got {surface.num_transfers}"


@emu_rule
def cpu_operations_are_known(task: EmuTask) -> Iterator[str]:
    """A CPU operation is power or softmax."""
    for position, container in enumerate(task.containers):
        op_type = container.power_op.common.op_type
        if not EmuOpType(op_type).known:
            where = task.where("operation_desc_index", position, container, "op_type")
            offset = position * ctypes.sizeof(container)
            yield f"{where}at byte {offset}: must be {EmuOpType.choices()}, got {op_type}"


@emu_rule
def cpu_buffers_lie_behind_addresses(task: EmuTask) -> Iterator[str]:
    """The address index of each buffer is within the task's address list."""
    limit = task.source.num_addresses
    for position, buffers in enumerate(task.buffers):
        for name in ("src_data", "dst_data"):
            index = getattr(buffers, name).address_index
            if not 0 <= index < limit:
                where = task.where("operation_buffer_desc_index", position, buffers, f"{name}.address_index")
                offset = _at(buffers, position, name, "address_index")
                yield f"{where}at byte {offset}: must be 0 .. {limit - 1} (address list), got {index}"
