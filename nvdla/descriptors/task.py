"""Tasks decoded into descriptors: a DLA task's operations with their surfaces, dependencies and LUTs; a CPU task's
operations with their buffers.

Lists are found as the firmware finds them (kmd/firmware/scheduler.c:735): address index 0 holds the network descriptor,
whose ``*_index`` fields are indices into the task's address list. An operation's descriptors lie at
``roi * num_operations + index`` of their lists (scheduler.c:133).
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from nvdla.argument_kinds import by_annotations
from nvdla.descriptors.abi import Abi
from nvdla.descriptors.enums import EmuOpType, OpType
from nvdla.descriptors.fields import member
from nvdla.descriptors.source import DescriptorSource, LoadableSource
from nvdla.errors import DescriptorError
from nvdla.limits import Limits
from nvdla.loadable.enums import Interface
from nvdla.loadable.model import Loadable, TaskEntry


@dataclass(frozen=True)
class DlaOperation:
    """One hardware operation: ``op`` and ``surface`` are the structures of its engine (ConvOp, ConvSurface ...)."""

    index: int
    roi: int
    op_type: OpType
    common: Any
    op: Any
    surface: Any
    lut: Any = None

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
    network: Any = field(repr=False)
    containers: Sequence[Any] = field(repr=False)
    interface: ClassVar[Interface]

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
            raise DescriptorError(f"task {task.id}: interface is {task.interface.name}, must be {cls.interface.name}")
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

    surface_containers: Sequence[Any] = field(repr=False)
    dependencies: Sequence[Any] = field(repr=False)
    luts: Sequence[Any] = field(repr=False)
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
        from nvdla.descriptors.checks import check_dla_task

        check_dla_task(self)

    def operation(self, index: int, roi: int = 0) -> DlaOperation:
        """The operation at ``index`` of one ROI's list."""
        count = self.network.num_operations
        position = roi * count + index
        if not (0 <= index < count and 0 <= position < len(self)):
            raise DescriptorError(f"{self.source.name}: operation {index} of ROI {roi}, must be 0 .. {count - 1}")
        common = self.dependencies[position]
        op = member(self.containers[position], common.op_type)
        if op is None:
            offset = position * ctypes.sizeof(common) + type(common).op_type.offset
            raise DescriptorError(
                f"{self.where('dependency_graph_index', position, common, 'op_type')}at byte {offset}: "
                f"{common.op_type}, must be 0 .. {len(OpType) - 1}"
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

    def where(self, list_index: str, position: int, structure: Any, name: str) -> str:
        """Begin of a message: "task 0, blob 'task-0-op_list', SdpOp[3].lut_index "."""
        label = self.source.label(getattr(self.network, list_index))
        return f"{self.source.name}, {label}, {type(structure).__name__}[{position}].{name} "

    def where_network(self, name: str) -> str:
        """Begin of a message about the network descriptor."""
        return f"{self.source.name}, {self.source.label(0)}, {type(self.network).__name__}.{name} "

    def _lut(self, op: Any) -> Any:
        index = getattr(op, "lut_index", -1)
        return self.luts[index] if 0 <= index < len(self.luts) else None


@dataclass(frozen=True)
class EmuOperation:
    """One CPU operation: ``op`` is EmuPowerOp or EmuSoftmaxOp, ``src`` and ``dst`` are EmuBuffer."""

    index: int
    op_type: EmuOpType
    op: Any
    src: Any
    dst: Any


@dataclass(frozen=True)
class EmuTask(DescriptorTask):
    """A CPU task: operations run one after the other, in list order."""

    buffers: Sequence[Any] = field(repr=False)
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
        from nvdla.descriptors.checks import check_emu_task

        check_emu_task(self)

    def operations(self) -> list[EmuOperation]:
        """All operations in list order. DescriptorError for an unknown operation type."""
        return [self._operation(index) for index in range(len(self))]

    def where(self, list_index: str, position: int, structure: Any, name: str) -> str:
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
                f"{number}, must be {EmuOpType.choices()}"
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
        decoded[task.id] = found = kind.decode(loadable, task, abi, limits=limits)
        total += len(found)
        limits.check_total(task.id, total)
    return decoded


def _one(source: DescriptorSource, index: int, structure: Any) -> Any:
    return _array(source, index, structure, 1, structure.__name__)[0]


def _list(source: DescriptorSource, network: Any, name: str, structure: Any, count: int) -> Sequence[Any]:
    """The list that a field of the network descriptor points at; empty lists are not looked up."""
    if count == 0:
        return ()
    index = getattr(network, name)
    if not 0 <= index < source.num_addresses:
        offset = getattr(type(network), name).offset
        raise DescriptorError(
            f"{source.name}, {source.label(0)}, {type(network).__name__}.{name} at byte {offset}: {index}, "
            f"must be 0 .. {source.num_addresses - 1} (address list)"
        )
    found: Sequence[Any] = _array(source, index, structure, count, f"{structure.__name__}[{count}]")
    return found


def _array(source: DescriptorSource, index: int, structure: Any, count: int, what: str) -> Any:
    """Structures over the source's bytes: the bytes themselves where they may be written, else one copy.

    ctypes cannot lie over read-only bytes, such as those of a file.
    """
    size = ctypes.sizeof(structure) * count
    data = source.read(index, size, what)
    kind = structure * count
    return kind.from_buffer_copy(data) if memoryview(data).readonly else kind.from_buffer(data)


def _limit(source: DescriptorSource, name: str, offset: int, value: int, limits: Limits, which: str) -> None:
    limit = getattr(limits, which)
    if value > limit:
        raise DescriptorError(
            f"{source.name}, {source.label(0)}, network descriptor {name} at byte {offset}: {value}, "
            f"must be at most {limit} (Limits.{which})"
        )
