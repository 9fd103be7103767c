"""The nv_full trace form ``input.txn``: one sequence; registers by word address, 0xffff in the upper half."""

from __future__ import annotations

from typing import Protocol

from nvdla.csb.export import Export
from nvdla.csb.printers._text import hex_words
from nvdla.csb.program import Await, Flushed, Mark, Step, Write
from nvdla.csb.recording import PartOfRun
from nvdla.errors import FormatError
from nvdla.hardware.register_file import Register, register_map

FORMAT = "txn"
HELP = "input.txn with data files, word addresses: NVIDIA's nv_full trace player, gem5-NVDLA, FIdelity"
CHECKS_MEMORY = True

BUS_MASTER = 0xFFFF0000


def write(export: Export) -> None:
    """``input.txn``, with a prefix ``partN_`` where CPU operations cut the program."""
    if export.options.word_addresses is False:
        raise FormatError("the form txn has word addresses; the form riscv-txn has byte addresses")
    for number, part in enumerate(export.parts):
        prefix = "" if len(export.parts) == 1 else f"part{number}_"
        export.save_lines(f"{prefix}input.txn", transactions(export, part, prefix, _NvFull()))


class Dialect(Protocol):
    """The words of a dialect. ``bound`` stands behind the value that a read waits for."""

    bound: str

    def register(self, register: Register) -> str:
        """The register's address."""

    def remark(self, register: Register) -> str:
        """What stands behind an access."""


class _NvFull:
    """How NVIDIA's trace player has registers and waits."""

    bound = ""

    def register(self, register: Register) -> str:
        """The register's address."""
        return f"0x{BUS_MASTER | register.address >> 2:x}"

    def remark(self, register: Register) -> str:
        """What stands behind an access."""
        return f" #NVDLA_{register}_0"


def transactions(export: Export, part: PartOfRun, prefix: str, dialect: Dialect) -> list[str]:
    """Loads, writes, waits and dumps, in the words of ``dialect``."""
    lines = []
    for space in part.before.sizes:
        for start, end in part.before.filled(space):
            file = f"{prefix}{space.value}_{start:x}.dat"
            export.save(file, hex_words(part.before.pieces(space, start, end)))
            lines.append(f"load_mem 0x{export.bases[space] + start:x} 0x{end - start:x} {file}")
    status = register_map(export.program.config.register_map).register("GLB", "S_INTR_STATUS")
    for step in part.steps:
        lines += _step(export, step, status, dialect)
    for space in part.after.sizes:
        for start, end in part.after.changes(part.before, space):
            file = f"{prefix}golden_{space.value}_{start:x}.dat"
            export.save(file, hex_words(part.after.pieces(space, start, end)))
            lines.append(f"dump_mem 0x{export.bases[space] + start:x} 0x{end - start:x} {file}")
    return lines


def _step(export: Export, step: Step, status: Register, dialect: Dialect) -> list[str]:
    if isinstance(step, Mark):
        return [f"# {step}"]
    if isinstance(step, Flushed):
        return [_wait(step.register, 1, dialect)]
    if isinstance(step, Await):
        return [_wait(status, step.interrupts, dialect), _write(status, step.interrupts, dialect)]
    assert isinstance(step, Write)
    return [_write(step.register, export.value(step), dialect)]


def _wait(register: Register, bits: int, dialect: Dialect) -> str:
    return f"read_reg {dialect.register(register)} 0x{bits:x} 0x{bits:x}{dialect.bound}{dialect.remark(register)}"


def _write(register: Register, value: int, dialect: Dialect) -> str:
    return f"write_reg {dialect.register(register)} 0x{value:x}{dialect.remark(register)}"
