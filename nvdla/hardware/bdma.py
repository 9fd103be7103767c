"""BDMA, the bridge DMA: copies between DRAM and CVSRAM.

Unlike the other units it has no ping-pong registers but a command queue. Writing CFG_OP.EN = 1 queues the transfer that
the CFG registers describe; writing CFG_LAUNCH0 or CFG_LAUNCH1 starts everything queued since the last launch as group 0
or 1 (cmod/bdma/NV_NVDLA_bdma.cpp, BdmaCore.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvdla.errors import ScheduleError
from nvdla.hardware.cube import cube
from nvdla.hardware.job import Handed, Job
from nvdla.hardware.register_file import RegisterGroup
from nvdla.limits import Work
from nvdla.memory.address_space import Space
from nvdla.memory.lanes import Move

if TYPE_CHECKING:
    from nvdla.hardware.machine import Machine

QUEUE_DEPTH = 20  # transfers; reset value of STATUS.FREE_SLOT
ATOM = 32  # bytes; CFG_LINE counts these


@dataclass(frozen=True)
class Transfer:
    """One queued copy: ``surfaces`` x ``lines`` x ``line_bytes``, strides in bytes."""

    source: tuple[Space, int, int, int]  # space, address, line stride, surface stride
    target: tuple[Space, int, int, int]
    surfaces: int
    lines: int
    line_bytes: int

    @classmethod
    def from_registers(cls, g: RegisterGroup) -> Transfer:
        """The copy that the CFG registers describe."""
        return cls(
            source=(
                Space.from_ram_type(g["CFG_CMD.SRC_RAM_TYPE"]),
                g.address("CFG_SRC_ADDR_HIGH", "CFG_SRC_ADDR_LOW"),
                g["CFG_SRC_LINE"],
                g["CFG_SRC_SURF"],
            ),
            target=(
                Space.from_ram_type(g["CFG_CMD.DST_RAM_TYPE"]),
                g.address("CFG_DST_ADDR_HIGH", "CFG_DST_ADDR_LOW"),
                g["CFG_DST_LINE"],
                g["CFG_DST_SURF"],
            ),
            surfaces=g["CFG_SURF_REPEAT.NUMBER"] + 1,
            lines=g["CFG_LINE_REPEAT.NUMBER"] + 1,
            line_bytes=(g["CFG_LINE.SIZE"] + 1) * ATOM,
        )


class BdmaJob(Job):
    """Copies that are done one after the other. ``destination`` is what the last of them writes."""

    def __init__(self, copies: list[tuple[np.ndarray, np.ndarray]]) -> None:
        self.copies = copies
        self.destination = copies[-1][1]
        self.statistics: dict[str, int] = {}

    @property
    def work(self) -> Work:
        """The bytes that are copied."""
        sizes = [written.size for _, written in self.copies]
        return Work(elements=sum(sizes), scratch=2 * max(sizes, default=0))

    @property
    def needs_kernels(self) -> bool:
        """It moves bytes."""
        return False

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return [read for read, _ in self.copies]

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return [written for _, written in self.copies]

    def run(self, source: Handed = None) -> None:
        """Do the work once; returns what the next engine takes on the fly, None where the result went to memory."""
        for read, written in self.copies:
            written[...] = read

    def _relocate(self, move: Move) -> None:
        self.copies = [(move(read), move(written)) for read, written in self.copies]
        self.destination = self.copies[-1][1]


class Bdma:
    """The BDMA of one machine: its command queue and the launched groups."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._queued: list[Transfer] = []
        self._launched: list[list[Transfer]] = [[], []]
        machine.registers.on_write("BDMA", self._written)
        machine.registers.on_read("BDMA", self._read)

    def prepare(self, groups: dict[str, RegisterGroup]) -> BdmaJob:
        """The copies of the group that was launched first."""
        self.machine.config.require("bdma")
        group = groups["BDMA"].index
        transfers = self._launched[group]
        if not transfers:
            raise ScheduleError(f"BDMA group {group} waits for ever: it was launched with no transfer queued")
        return BdmaJob([self._views(number, each) for number, each in enumerate(transfers)])

    def _views(self, number: int, each: Transfer) -> tuple[np.ndarray, np.ndarray]:
        """Source and destination as (surfaces, lines, atoms, 32). A source may repeat itself (stride 0 fills)."""
        memory, what = self.machine.memory, f"BDMA transfer {number}"
        shape = (each.surfaces, each.lines, each.line_bytes // ATOM, ATOM)
        for name, (space, *_) in (("source", each.source), ("destination", each.target)):
            if space is Space.CVSRAM:
                self.machine.config.require("cvsram", f"{what} {name}")
        space, address, line_stride, surface_stride = each.source
        source = memory.surface(space, address, shape, line_stride, surface_stride, f"{what} source", repeats=True)
        space, address, line_stride, surface_stride = each.target
        return source, cube(memory, space, address, shape, (line_stride, surface_stride), f"{what} destination")

    def _written(self, register: str, value: int) -> None:
        if register == "CFG_OP" and value & 1:
            if self._free_slots() == 0:
                raise ScheduleError(f"BDMA waits for ever: more than {QUEUE_DEPTH} transfers queued without a launch")
            self._queued.append(Transfer.from_registers(self.machine.unit("BDMA").groups[0]))
        elif register in ("CFG_LAUNCH0", "CFG_LAUNCH1") and value & 1:
            self._launch(int(register[-1]))

    def _launch(self, group: int) -> None:
        unit = self.machine.unit("BDMA")
        if unit.enabled[group]:
            raise ScheduleError(f"BDMA group {group} is launched again while it is still at work")
        if not any(unit.enabled):
            unit.consumer = group
        self._launched[group], self._queued = self._queued, []
        unit.enabled[group] = True

    def _busy(self) -> list[bool]:
        return self.machine.unit("BDMA").enabled

    def _free_slots(self) -> int:
        waiting = sum(len(self._launched[group]) for group in range(2) if self._busy()[group])
        return max(QUEUE_DEPTH - len(self._queued) - waiting, 0)

    def _read(self, register: str, value: int) -> int:
        """STATUS tells free slots, idle and the busy groups; a launch bit reads 1 until its group is done."""
        busy = self._busy()
        if register == "STATUS":
            free = self._free_slots()
            idle = free == QUEUE_DEPTH and not any(busy)
            return free | idle << 8 | busy[0] << 9 | busy[1] << 10
        if register in ("CFG_LAUNCH0", "CFG_LAUNCH1"):
            return int(busy[int(register[-1])])
        return value
