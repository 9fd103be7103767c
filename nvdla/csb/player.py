"""Plays a register program on the emulator's register model, as the runners on a board do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from nvdla.cpu.buffers import CpuBuffer
from nvdla.cpu.registry import operations
from nvdla.csb.program import Await, CpuCall, CpuCube, Flushed, RegisterProgram, Step, Write
from nvdla.descriptors.enums import EmuFormat, EmuOpType
from nvdla.errors import ScheduleError
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.machine import Machine
from nvdla.memory.address_space import AddressSpace, Space


class ProgramPlayer:
    """A machine with the memories of a program, at ``bases``. :meth:`run` does steps; memory stays between calls."""

    def __init__(
        self, config: Configuration, bases: Mapping[Space, int], sizes: Mapping[Space, int], threads: int | None = None
    ) -> None:
        self.space = AddressSpace()
        self.bases = dict(bases)
        self.memory = {each: self.space.map(each.value, each, self.bases[each], sizes[each]).data for each in sizes}
        self.machine = Machine(config, self.space, threads)
        self._seen = 0

    @classmethod
    def of(cls, program: RegisterProgram, bases: Mapping[Space, int] | None = None) -> ProgramPlayer:
        """A player with the program's segments loaded."""
        player = cls(program.config, bases or program.bases, program.sizes)
        for each in program.segments:
            player.memory[each.space][each.offset : each.offset + each.size] = each.data
        return player

    def bind(self, program: RegisterProgram, inputs: Sequence[bytes]) -> None:
        """Put raw input surfaces, in bind order, where the program wants them."""
        for tensor, data in zip(program.inputs, inputs, strict=True):
            self.memory[tensor.space][tensor.offset : tensor.offset + tensor.size] = np.frombuffer(data, np.uint8)

    def outputs(self, program: RegisterProgram) -> list[bytes]:
        """The raw output surfaces in bind order."""
        return [self.memory[each.space][each.offset : each.offset + each.size].tobytes() for each in program.outputs]

    def run(self, steps: Iterable[Step]) -> None:
        """Raises ScheduleError when an event never comes, and whatever NvdlaError an engine raises."""
        for step in steps:
            if isinstance(step, Write):
                self.machine.registers.write_register(step.register, step.resolved(self.bases))
            elif isinstance(step, Await):
                self._await(step)
            elif isinstance(step, Flushed):
                self.machine.registers.read_register(step.register)
            elif isinstance(step, CpuCall):
                self._compute(step)

    def settle(self) -> None:
        """Let the hardware end what was started."""
        while self.machine.step() is not None:
            pass

    def close(self) -> None:
        """Give back what the machine holds."""
        self.machine.close()

    def _await(self, step: Await) -> None:
        self.settle()
        self._seen |= self.machine.interrupt_status
        self.machine.interrupt_status = 0
        missing = Await(step.interrupts & ~self._seen).causes()
        if missing:
            names = ", ".join(f"{cause} of group {group}" for cause, group in missing)
            raise ScheduleError(f"{names} never comes: the hardware stands still")
        self._seen &= ~step.interrupts

    def _compute(self, step: CpuCall) -> None:
        kind = EmuOpType[step.kind.upper()]
        descriptor = SimpleNamespace(shift=step.shift, scale=step.scale, power=step.power)
        source, destination = self._buffer(step, step.source), self._buffer(step, step.destination)
        scales = (step.input_scale, step.output_scale)
        operations()[kind].run(descriptor, scales, source, destination)

    def _buffer(self, step: CpuCall, cube: CpuCube) -> CpuBuffer:
        data = self.memory[cube.space][cube.offset : cube.offset + cube.size]
        number = EmuFormat.FF16 if cube.half else EmuFormat.INT8_8 if cube.atom == 8 else EmuFormat.INT8
        return CpuBuffer(
            f"task {step.task} CPU operation {step.index} ({step.kind})",
            data,
            number,
            np.dtype("<f2" if cube.half else "i1"),
            cube.atom,
            cube.width,
            cube.height,
            cube.channels,
            cube.line_stride,
            cube.surface_stride,
        )
