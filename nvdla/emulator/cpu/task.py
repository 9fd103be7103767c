"""Running a CPU task: its operations one after the other on the memory of the network."""

from __future__ import annotations

import copy
from ctypes import Structure
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.cpu.operation import CpuBuffer, operations
from nvdla.emulator.memory.linker import LinkedLoadable, MemorySource
from nvdla.errors import DescriptorError
from nvdla.limits import Limits, Work
from nvdla.loadable.descriptors.abi import Abi
from nvdla.loadable.descriptors.enums import EmuOpType
from nvdla.loadable.descriptors.task import EmuOperation, EmuTask
from nvdla.loadable.model import TaskEntry
from nvdla.util.arguments import by_annotations

if TYPE_CHECKING:
    from nvdla.emulator.memory.address_space import Lanes, Move
    from nvdla.kernels.jit.recorded_calls import RecordedCall


@dataclass(frozen=True)
class CpuOperation:
    """One decoded operation, ready to run again and again."""

    index: int
    type: EmuOpType
    descriptor: Structure
    scales: tuple[float, float]
    source: CpuBuffer
    destination: CpuBuffer

    def run(self) -> None:
        """Compute it on the memory that it was made for."""
        self._run(self.source, self.destination)

    def record(self) -> RecordedCall | None:
        """The operation as a record of a compiled kernel, None where there is none."""
        make_record = getattr(operations()[self.type], "record", None)
        recorded: RecordedCall | None = make_record and make_record(
            self.descriptor, self.scales, self.source, self.destination
        )
        return recorded

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Compute for ``count`` images in lanes 1, 2 ..."""
        if getattr(operations()[self.type], "OF_LANES", False):
            self._run(self.source.across(lanes, count), self.destination.across(lanes, count))
            return
        for lane in range(1, count + 1):
            self._run(self.source.lane(lanes, lane), self.destination.lane(lanes, lane))

    def _run(self, source: CpuBuffer, destination: CpuBuffer) -> None:
        operations()[self.type].run(self.descriptor, self.scales, source, destination)


class CpuTask:
    """A CPU task of a linked loadable. Raises DescriptorError for what it cannot compute."""

    @by_annotations
    def __init__(self, linked: LinkedLoadable, task: TaskEntry, abi: Abi, limits: Limits | None = None) -> None:
        self.id = task.id
        self._abi = abi.name
        self._windows = linked.address_list(task)
        source = MemorySource(task, self._windows)
        decoded = EmuTask.decode(linked.loadable, task, abi, source=source, limits=limits)
        self.operations = [self._operation(entry) for entry in decoded.operations()]
        self.descriptors = [linked.regions[memory].data for memory in decoded.list_memories(linked.loadable)]

    def run(self) -> None:
        """Compute all operations in list order."""
        for operation in self.operations:
            operation.run()

    def records(self) -> list[RecordedCall] | None:
        """All operations as records of compiled kernels, None where one is not."""
        calls = [operation.record() for operation in self.operations]
        records = [call for call in calls if call is not None]
        return records if len(records) == len(calls) else None

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Compute all operations for ``count`` images in lanes 1, 2 ..."""
        for operation in self.operations:
            operation.run_lanes(lanes, count)

    @property
    def work(self) -> Work:
        """Cost of a run: buffers as floats, one operation at a time."""
        sizes = [max(operation.source.data.size, operation.destination.data.size) for operation in self.operations]
        return Work(elements=sum(sizes), cube=max(sizes, default=0), scratch=24 * max(sizes, default=0))

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that the task may read."""
        return [operation.source.data for operation in self.operations]

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that the task may write."""
        return [operation.destination.data for operation in self.operations]

    def moved(self, move: Move) -> CpuTask:
        """The same task on other memory."""
        task = copy.copy(self)
        task.operations = [
            replace(operation, source=operation.source.moved(move), destination=operation.destination.moved(move))
            for operation in self.operations
        ]
        return task

    def _operation(self, entry: EmuOperation) -> CpuOperation:
        what = f"task {self.id} CPU operation {entry.index} ({entry.op_type.name})"
        if entry.op_type not in operations():
            known = ", ".join(known_type.name for known_type in operations())
            raise DescriptorError(f"{what}: unknown CPU operation: must be {known}")
        source = CpuBuffer.from_descriptor(entry.src, self._windows, self._abi, f"{what} source")
        destination = CpuBuffer.from_descriptor(entry.dst, self._windows, self._abi, f"{what} destination")
        if source.format != destination.format:
            raise DescriptorError(
                f"{what}: destination format: must be the source format {source.format.name} (CPU operations do "
                f"not convert), got {destination.format.name}"
            )
        # The old ABI has no scale factors.
        common = entry.op.common
        scales = (getattr(common, "input_scale_factor", 1.0), getattr(common, "output_scale_factor", 1.0))
        return CpuOperation(entry.index, entry.op_type, entry.op, scales, source, destination)
