"""The nv_full trace format ``input.txn``: one sequence; registers by word address, 0xffff in the upper half."""

from __future__ import annotations

from typing import Protocol

from nvdla.emulator.hardware.register_file import Register, register_map
from nvdla.errors import FormatError
from nvdla.registers.printers._text import hex_words
from nvdla.registers.recording import Export, PartOfRun, Printer
from nvdla.registers.register_program import Await, Flushed, Mark, Step, Write

BUS_MASTER = 0xFFFF0000


def write(export: Export) -> None:
    """``input.txn``, with a prefix ``partN_`` where CPU operations cut the program."""
    if export.options.word_addresses is False:
        raise FormatError("txn: --csb-addressing must be word, got byte. Use --format riscv-txn for byte addresses.")
    for number, part in enumerate(export.parts):
        prefix = "" if len(export.parts) == 1 else f"part{number}_"
        export.save_lines(f"{prefix}input.txn", transactions(export, part, prefix, _NvFull()))


class Dialect(Protocol):
    """The words of a dialect. ``bound`` follows the value that a read waits for."""

    bound: str

    def register(self, register: Register) -> str:
        """The register's address."""

    def remark(self, register: Register) -> str:
        """Return the remark after an access."""


class _NvFull:
    """Dialect of NVIDIA's trace player."""

    bound = ""

    def register(self, register: Register) -> str:
        """The register's address."""
        return f"0x{BUS_MASTER | register.address >> 2:x}"

    def remark(self, register: Register) -> str:
        """Return the remark after an access."""
        return f" #NVDLA_{register}_0"


def transactions(export: Export, part: PartOfRun, prefix: str, dialect: Dialect) -> list[str]:
    """Loads, writes, waits and dumps, in the words of ``dialect``."""
    lines = []
    for space in part.before.sizes:
        for start, end in part.before.filled(space):
            file = f"{prefix}{space.value}_{start:x}.dat"
            export.save(file, hex_words(part.before.pieces(space, start, end)))
            lines.append(f"load_mem 0x{export.bases[space] + start:x} 0x{end - start:x} {file}")
    status = register_map(export.register_program.config.register_map).register("GLB", "S_INTR_STATUS")
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


def write_riscv(export: Export) -> None:
    """Write the register program in this format. Raises FormatError where the format cannot express it."""
    for number, part in enumerate(export.parts):
        prefix = "" if len(export.parts) == 1 else f"part{number}_"
        export.save_lines(f"{prefix}{export.name}.txn", transactions(export, part, prefix, _RiscV(export)))


class _RiscV:
    """Dialect of the RISC-V projects (RISC-V-NVDLA, Bare-metal-NVDLA-sw): byte addresses, bounded polls.

    Their scripts turn the lines ``read_reg ADDRESS MASK VALUE  # actual addr: WORD`` into assembly. They poll 10 times,
    and 50,000 times where the remark names GLB.S_INTR_STATUS (0x0403) or CDMA.S_CBUF_FLUSH_STATUS (0x0c03). With
    ``poll_limit`` the bound is the fifth word of the line, which they keep.
    """

    def __init__(self, export: Export) -> None:
        self._export = export
        limit = export.options.poll_limit
        self.bound = f" {limit}" if limit else ""

    def register(self, register: Register) -> str:
        """The register's address."""
        return f"0x{self._export.address(register, False):x}"

    def remark(self, register: Register) -> str:
        """The word address, and the register's name."""
        return f"  # actual addr: 0x{register.address >> 2:04x} {register}"


PRINTERS = (
    Printer(
        "txn",
        "input.txn with data files, word addresses: NVIDIA's nv_full trace player, gem5-NVDLA, FIdelity",
        write,
        checks_memory=True,
    ),
    Printer(
        "riscv-txn",
        "the .txn dialect of RISC-V bare-metal projects: byte addresses from --csb-base, bounded polls",
        write_riscv,
        options=("csb_base", "word_addresses", "poll_limit"),
        checks_memory=True,
    ),
)
