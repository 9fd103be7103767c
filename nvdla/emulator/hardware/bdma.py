"""BDMA, the bridge DMA: copies between DRAM and CVSRAM.

Unlike the other units it has no ping-pong registers but a command queue. Writing CFG_OP.EN = 1 queues the transfer that
the CFG registers describe; writing CFG_LAUNCH0 or CFG_LAUNCH1 starts everything queued since the last launch as group 0
or 1 (cmod/bdma/NV_NVDLA_bdma.cpp, BdmaCore.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.job import EngineContext, Handed, Job, MemoryCube
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.memory.address_space import AddressSpace, Move, Space
from nvdla.errors import ScheduleError
from nvdla.limits import Work

QUEUE_DEPTH = 20  # transfers; reset value of STATUS.FREE_SLOT
ATOM = 32  # bytes; CFG_LINE counts these


@dataclass(frozen=True)
class Transfer:
    """One queued copy: cubes of (surfaces, lines, atoms per line, 32 bytes)."""

    source: MemoryCube
    target: MemoryCube


def decode(g: RegisterGroup, what: str) -> Transfer:
    """Decode the copy that the CFG registers describe. ``what`` names it in messages."""
    shape = (g["CFG_SURF_REPEAT.NUMBER"] + 1, g["CFG_LINE_REPEAT.NUMBER"] + 1, g["CFG_LINE.SIZE"] + 1, ATOM)
    source, target = (
        MemoryCube(
            f"{what} {name}",
            Space.from_ram_type(g[f"CFG_CMD.{side}_RAM_TYPE"]),
            g.address(f"CFG_{side}_ADDR_HIGH", f"CFG_{side}_ADDR_LOW"),
            shape,
            (g[f"CFG_{side}_LINE"], g[f"CFG_{side}_SURF"]),
        )
        for name, side in (("source", "SRC"), ("destination", "DST"))
    )
    return Transfer(source, target)


def check(transfers: Sequence[Transfer], config: Configuration) -> None:
    """Raise ConfigError where the configuration has no BDMA, or no CVSRAM that a transfer names."""
    config.require("bdma")
    for transfer in transfers:
        for cube in (transfer.source, transfer.target):
            if cube.space is Space.CVSRAM:
                config.require("cvsram", cube.what)


class BdmaJob(Job):
    """Copies that are done one after the other. ``destination`` is what the last of them writes."""

    computes = False

    def __init__(self, transfers: Sequence[Transfer], memory: AddressSpace) -> None:
        # A source with stride 0 repeats itself: this fills memory.
        self.copies = [
            (transfer.source.view(memory, repeats=True), transfer.target.view(memory)) for transfer in transfers
        ]
        self.destination = self.copies[-1][1]
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
        """Do the work once; returns the result for the next engine, None if it went to memory."""
        for read, written in self.copies:
            written[...] = read

    def _relocate(self, move: Move) -> None:
        self.copies = [(move(read), move(written)) for read, written in self.copies]
        self.destination = self.copies[-1][1]


class Bdma:
    """The BDMA of one machine: its command queue and the launched groups."""

    def __init__(self, machine: EngineContext) -> None:
        self.machine = machine
        self._queued: list[Transfer] = []
        self._launched: list[list[Transfer]] = [[], []]
        machine.registers.on_write("BDMA", self._written)
        machine.registers.on_read("BDMA", self._read)

    def prepare(self, groups: dict[str, RegisterGroup]) -> BdmaJob:
        """The copies of the group that was launched first."""
        config, group = self.machine.config, groups["BDMA"].index
        transfers = self._launched[group]
        check(transfers, config)
        if not transfers:
            raise ScheduleError(f"deadlock: BDMA group {group} was launched without a queued transfer")
        return BdmaJob(transfers, self.machine.memory)

    def _written(self, register: str, value: int) -> None:
        if register == "CFG_OP" and value & 1:
            if self._free_slots() == 0:
                raise ScheduleError(f"deadlock: more than {QUEUE_DEPTH} BDMA transfers queued without a launch")
            self._queued.append(decode(self.machine.unit("BDMA").groups[0], f"BDMA transfer {len(self._queued)}"))
        elif register in ("CFG_LAUNCH0", "CFG_LAUNCH1") and value & 1:
            self._launch(int(register[-1]))

    def _launch(self, group: int) -> None:
        unit = self.machine.unit("BDMA")
        if unit.enabled[group]:
            raise ScheduleError(f"BDMA group {group} is launched again while busy")
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
