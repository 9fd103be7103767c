"""NVIDIA's trace formats: ``input.txn`` of nv_full and the trace language ``.cfg``.

``input.txn``: one sequence; registers by word address, 0xffff in the upper half. ``.cfg``: named registers, one
sequence per block, events between them. Blocks run in parallel there, so commands that the firmware issues after an
interrupt wait for the interrupt's event in every block. Neither has CPU operations: the program is cut there, and each
part loads the memory contents at that point.
"""

from __future__ import annotations

from typing import Protocol

from nvdla.emulator.hardware.register_file import Register, register_map
from nvdla.emulator.memory.address_space import Space
from nvdla.errors import FormatError
from nvdla.registers.printers._text import hex_words, packets
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

    def memory(self, space: Space, address: int) -> str:
        """Return the remark after a memory's address. Raises FormatError where the dialect has no such address."""


class _NvFull:
    """Dialect of NVIDIA's trace player."""

    bound = ""

    def register(self, register: Register) -> str:
        """The register's address."""
        return f"0x{BUS_MASTER | register.address >> 2:x}"

    def remark(self, register: Register) -> str:
        """Return the remark after an access."""
        return f" #NVDLA_{register}_0"

    def memory(self, space: Space, address: int) -> str:
        """Return no remark: the address decides."""
        if _by_address(address) is not space:
            place = "within" if space is Space.CVSRAM else "outside"
            raise FormatError(
                f"{space.value} in the format txn: must be {place} 0x50000000 to 0x5fffffff, which is CVSRAM there, "
                f"got 0x{address:x}. Choose another --{space.value}-base, or --format riscv-txn."
            )
        return ""


def _by_address(address: int) -> Space:
    """The memory at an address, for NVIDIA's trace player."""
    return Space.CVSRAM if address >> 28 == 5 else Space.DRAM


def transactions(export: Export, part: PartOfRun, prefix: str, dialect: Dialect) -> list[str]:
    """Loads, writes, waits and dumps, in the words of ``dialect``."""
    lines = []
    for space in part.before.sizes:
        for start, end in part.before.filled(space):
            file = f"{prefix}{space.value}_{start:x}.dat"
            lines.append(_memory(export, "load_mem", space, (start, end), file, dialect))
            export.save(file, hex_words(part.before.pieces(space, start, end)))
    status = register_map(export.register_program.config.register_map).register("GLB", "S_INTR_STATUS")
    for step in part.steps:
        lines += _step(export, step, status, dialect)
    for space in part.after.sizes:
        for start, end in part.after.changes(part.before, space):
            file = f"{prefix}golden_{space.value}_{start:x}.dat"
            lines.append(_memory(export, "dump_mem", space, (start, end), file, dialect))
            export.save(file, hex_words(part.after.pieces(space, start, end)))
    return lines


def _memory(export: Export, command: str, space: Space, stretch: tuple[int, int], file: str, dialect: Dialect) -> str:
    address = export.bases[space] + stretch[0]
    return f"{command} 0x{address:x} 0x{stretch[1] - stretch[0]:x} {file}{dialect.memory(space, address)}"


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

    def memory(self, space: Space, address: int) -> str:
        """Return the memory's name where a reader would take the address for the other one."""
        return "" if _by_address(address) is space else f"  # {space.value}"


MEMORIES = {Space.DRAM: ("pri_mem", 1), Space.CVSRAM: ("sec_mem", 2)}


def write_cfg(export: Export) -> None:
    """Write the register program in this format. Raises FormatError where the format cannot express it."""
    for number, part in enumerate(export.parts):
        name = export.name if len(export.parts) == 1 else f"{export.name}_part{number}"
        export.save_lines(f"{name}.cfg", [*_cfg_memory(export, part, name), *_cfg_commands(export, part)])


def _cfg_memory(export: Export, part: PartOfRun, name: str) -> list[str]:
    lines = []
    for space, size in part.before.sizes.items():
        memory, _ = MEMORIES[space]
        base = export.bases[space]
        lines.append(f"mem_init({memory}, 0x{base:x}, 0x{size:x}, ALL_ZERO);")
        for start, end in part.before.filled(space):
            file = f"{name}_{space.value}_{start:x}.dat"
            export.save(file, packets(part.before.pieces(space, start, end)))
            lines.append(f'mem_load({memory}, 0x{base + start:x}, "{file}");')
    return lines


def _cfg_commands(export: Export, part: PartOfRun) -> list[str]:
    """Registers, interrupts and events. ``waited``: up to which event each block has waited."""
    lines: list[str] = []
    events: list[str] = []
    waited: dict[str, int] = {}
    for step in part.steps:
        if isinstance(step, Mark):
            lines.append(f"// {step}")
        elif isinstance(step, Await):
            for cause, group in step.causes():
                events.append(f"event_{len(events)}")
                lines.append(f"intr_notify({cause.removesuffix('_DONE')}_{group}, {events[-1]});")
        elif isinstance(step, Write):
            unit = step.register.unit
            lines += [f"sync_wait(NVDLA_{unit}, {event});" for event in events[waited.get(unit, 0) :]]
            waited[unit] = len(events)
            lines.append(f"reg_write(NVDLA_{unit}.{step.register.name}_0, 0x{export.value(step):x});")
    lines += [f"sync_wait(NVDLA_GLB, {event});" for event in events[waited.get("GLB", 0) :]]
    lines.append("sync_notify(NVDLA_GLB, all_done);")
    return [*lines, *_cfg_checks(export, part)]


def _cfg_checks(export: Export, part: PartOfRun) -> list[str]:
    """The bytes that the part has changed."""
    lines = []
    for space in part.after.sizes:
        _, number = MEMORIES[space]
        for start, end in part.after.changes(part.before, space):
            crc = part.after.crc32(space, start, end)
            place = f"{number}, 0x{export.bases[space] + start:x}, 0x{end - start:x}"
            lines.append(f"check_crc(all_done, {place}, 0x{crc:08x});")
    return lines


PRINTERS = (
    Printer(
        "cfg",
        "NVIDIA's trace language, with data files; for NVIDIA's test benches and 'nvdla trace replay'",
        write_cfg,
        checks_memory=True,
    ),
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
