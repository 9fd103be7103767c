"""The register writes of every operation, found by going through all motions of a run but the arithmetic."""

from __future__ import annotations

from typing import Any

from nvdla.errors import NvdlaError
from nvdla.firmware.csb import CsbLog
from nvdla.firmware.scheduler import Scheduler
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.machine import Rehearsal
from nvdla.hardware.register_file import register_map
from nvdla.loadable.enums import Interface
from nvdla.memory.linker import LinkedLoadable
from nvdla.program.operation import Key
from nvdla.program.program import Program

#: address of a register, value, how often in a row it was written
Write = tuple[int, int, int]


def register_writes(program: Program) -> tuple[dict[Key, list[Write]], str | None]:
    """(task, 0, operation) -> its writes in the firmware's order; and why they end early, if they do.

    Of several regions of interest the writes of all stand together. Writes of one register in a row (lookup tables)
    are one entry with the last value.
    """
    found: dict[Key, list[Write]] = {}
    loadable, problem = program.loadable, None
    logs: list[tuple[int, CsbLog]] = []
    try:
        linked = LinkedLoadable(loadable)
        machine = Rehearsal(program.config, linked.space)
        for number in (each for entry in loadable.submit_order for each in entry.task_ids):
            if loadable.task(number).interface != Interface.DLA1:
                continue
            log: CsbLog = []
            logs.append((number, log))
            task = FirmwareTask(linked, loadable.task(number), program.abi, program.config)
            task.check()
            Scheduler(machine, log).run(task)
    except NvdlaError as error:
        problem = str(error)
    for number, log in logs:
        _sort(found, number, log)
    return found, problem


def _sort(found: dict[Key, list[Write]], task: int, log: CsbLog) -> None:
    """Writes belong to the operation that was last programmed or enabled."""
    mine: list[Write] | None = None
    for what, *rest in log:
        if what in ("program", "enable"):
            mine = found.setdefault((task, 0, rest[0]), [])
        elif what != "W":
            mine = None
        elif mine is not None:
            address, value = rest
            times = mine.pop()[2] + 1 if mine and mine[-1][0] == address else 1
            mine.append((address, value, times))


def register_table(program: Program, writes: dict[Key, list[Write]]) -> list[list[Any]]:
    """[address, "UNIT.NAME", [[field, high bit, low bit], ...]] of every register that is written."""
    registers = register_map(program.config.register_map)
    used = sorted({address for each in writes.values() for address, _, _ in each})
    rows = []
    for address in used:
        register = registers.at(address)
        rows.append([address, str(register), [[each.name, each.high, each.low] for each in register.fields.values()]])
    return rows
