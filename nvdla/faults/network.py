"""A network as faults meet it: its steps, and how each part of it can be run again from the step where a fault strikes.

Everything before that step is as it was in the healthy run, whose results are kept step by step; a convolution that
takes data or weights from the convolution buffer is begun with those that left them there.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.errors import FormatError, LinkError
from nvdla.execution.fusing import fuse_steps
from nvdla.execution.plan import Plan, Recorder
from nvdla.execution.steps import Chain, Step
from nvdla.faults.convolution import accesses
from nvdla.faults.setup import Setup, TaskList
from nvdla.firmware.operation import FirmwareOperation
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.hardware.job import Job
from nvdla.hardware.machine import Machine
from nvdla.memory.address_space import LeavesRegion, Space
from nvdla.memory.lanes import Move
from nvdla.memory.linker import LinkedLoadable, bounds


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
        return sum(each.nbytes for step in self.written for each in step)


class StruckNetwork:
    """The recorded steps of a network on memory of its own. ``steps`` job by job, ``fused`` the fast form of each."""

    def __init__(self, linked: LinkedLoadable, plan: Plan, tasks: TaskList) -> None:
        self.linked, self.plan, self.tasks = linked, plan, tasks
        self.steps = plan.steps
        self.fused: list[Step] = fuse_steps(self.steps, plan.constant, lambda views: None)
        loadable = linked.loadable
        self._touched = plan.written | {memory.id for memory in (*loadable.inputs, *loadable.outputs)}
        found = [task for task in tasks if isinstance(task, FirmwareTask)]
        self._lists = [bounds(view) for task in found for view in (*task.descriptors, *task.written) if view.size]
        self.places = self._places()
        self.convolutions = [number for number in range(len(self.steps)) if convolution(self.steps[number])]
        self.first_of_group, self.last_of_group = self._groups()
        self._look()

    @classmethod
    def recorded(cls, setup: Setup, inputs: Sequence[Any]) -> StruckNetwork:
        """Run once through the firmware and keep what the hardware does. Raises NvdlaError."""
        try:
            return cls._recorded(setup, inputs, flat=False)
        except LeavesRegion:
            if setup.strict:
                raise
            return cls._recorded(setup, inputs, flat=True)

    @classmethod
    def _recorded(cls, setup: Setup, inputs: Sequence[Any], flat: bool) -> StruckNetwork:
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

    def beside(self, lane_count: int) -> StruckNetwork:
        """The same network on memory with lanes, for batches. Raises LinkError where the limit leaves no room."""
        linked = self.linked.beside(lane_count)
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
        """Whether steps may be done again without the firmware."""
        return self.plan.is_repeatable(self.tasks)

    @property
    def takes_lanes(self) -> bool:
        """Whether images may lie in lanes: all that a run changes does, and no convolution uses the buffer again."""
        alone = all(first == last for first, last in zip(self.first_of_group, self.last_of_group, strict=True))
        return alone and self.linked.in_lanes(self._touched) and self._touched <= self.linked.changing

    def golden(self, inputs: Sequence[Any]) -> Golden:
        """The healthy run on raw inputs."""
        self.reset(inputs)
        written = []
        for step in self.fused:
            step.run()
            written.append([view.copy() for view in step.writes])
        return Golden(tuple(bytes(memoryview(each)) for each in inputs), self.outputs(), written)

    def reset(self, inputs: Sequence[Any]) -> None:
        """Memory as it is before a run on raw inputs."""
        self.linked.reset(self._touched)
        bind(self.linked, inputs)

    def restore(self, golden: Golden, step: int) -> None:
        """Memory as it is in a healthy run before a step."""
        self.reset(golden.inputs)
        for number in range(step):
            for view, data in zip(self.fused[number].writes, golden.written[number], strict=True):
                view[...] = data

    def clear_lanes(self, images: Sequence[Sequence[Any]]) -> None:
        """Images in lanes 1, 2 ..., and nothing else."""
        self.linked.clear_lanes(self._touched, len(images))
        for lane, image in enumerate(images, 1):
            bind(self.linked, image, lane)

    def outputs(self) -> list[bytes]:
        """The bound outputs as they are."""
        return [self.linked.data(memory).tobytes() for memory in self.linked.loadable.outputs]

    def readers(self, view: np.ndarray) -> list[int]:
        """Steps that read any byte of a view's span; the number behind the last step where it is an output."""
        low, high = bounds(view)
        found = [
            number
            for number, reads in enumerate(self._reads)
            if any(start < high and low < end for start, end in reads)
        ]
        is_output = any(start < high and low < end for start, end in self._outputs)
        return [*found, len(self.steps)] if is_output else found

    def last_reader(self, number: int) -> int:
        """The last step that reads what a step writes, -1 where none does; see :meth:`readers`."""
        if number not in self._last_readers:
            views = self.fused[number].writes
            self._last_readers[number] = max((each for view in views for each in self.readers(view)), default=-1)
        return self._last_readers[number]

    def byte_at(self, space: Space, address: int) -> np.ndarray:
        """The byte at an address (view of one). Raises LinkError where no memory is."""
        for region in self.linked.regions.values():
            if region.space is space and region.base <= address < region.end:
                return region.data[address - region.base : address - region.base + 1]
        raise LinkError(f"fault: no {space.value} region holds address 0x{address:x}")

    def is_read_by_firmware(self, view: np.ndarray) -> bool:
        """Whether a byte lies in lists of a task: then what the hardware is told may change."""
        low, high = bounds(view)
        return any(start < high and low < end for start, end in self._lists)

    def place(self, operation: str) -> OperationPlace:
        """The operation "task/index". Raises FormatError for one that there is not, or that has nothing to do."""
        if operation not in self.places:
            names = list(self.places)
            shown = f"{names[0]} to {names[-1]}" if names else "none"
            raise FormatError(f"operation {operation!r}: operations are task/index, here {shown}")
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
        """Where steps read, and where the outputs lie."""
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


def afresh(step: Step) -> Step:
    """The step with weights that it reads from memory each time."""
    conv = convolution(step)
    if conv is None or not isinstance(step, Chain):
        return step
    conv = copy.copy(conv)
    conv.keep_weights = False
    conv.invalidate()
    return Chain((conv, *step.jobs[1:]))


def bind(linked: LinkedLoadable, inputs: Sequence[Any], lane: int = 0) -> None:
    """Raw inputs in bind order into their memories."""
    for memory, data in zip(linked.loadable.inputs, inputs, strict=True):
        linked.bind(memory, data, lane)
