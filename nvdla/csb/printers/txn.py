"""The nv_full trace form ``input.txn``: one sequence; registers by word address, 0xffff in the upper half."""

from __future__ import annotations

from collections.abc import Callable

from nvdla.csb.export import Export, PartOfRun
from nvdla.csb.printers._text import hex_words
from nvdla.csb.printers.cfg import filled
from nvdla.csb.program import Await, Flushed, Mark, Step, Write
from nvdla.errors import FormatError
from nvdla.hardware.register_file import Register, register_map

FORMAT = "txn"
HELP = "input.txn with data files, word addresses: NVIDIA's nv_full trace player, gem5-NVDLA, FIdelity"

BUS_MASTER = 0xFFFF0000


def write(export: Export) -> None:
    """``input.txn``, or ``partN/input.txn`` where CPU operations cut the program."""
    if export.options.word_addresses is False:
        raise FormatError("the form txn has word addresses; the form riscv-txn has byte addresses")
    for number, part in enumerate(export.parts):
        folder = "" if len(export.parts) == 1 else f"part{number}_"
        lines = transactions(export, part, folder, lambda register: BUS_MASTER | register.address >> 2)
        export.save(f"{folder}input.txn", "\n".join([*lines, ""]))


def transactions(export: Export, part: PartOfRun, prefix: str, address: Callable[[Register], int]) -> list[str]:
    """Loads, writes, waits and dumps; ``address(register)`` is how the dialect gives a register."""
    lines = []
    for space, data in part.before.items():
        for start, end in filled(data):
            file = f"{prefix}{space.value}_{start:x}.dat"
            export.save(file, hex_words(data[start:end]) + "\n")
            lines.append(f"load_mem 0x{export.bases[space] + start:x} 0x{end - start:x} {file}")
    status = register_map(export.program.config.register_map).register("GLB", "S_INTR_STATUS")
    for step in part.steps:
        lines += _step(export, step, status, address)
    for space, data in part.after.items():
        for start, end in filled(data != part.before[space]):
            file = f"{prefix}golden_{space.value}_{start:x}.dat"
            export.save(file, hex_words(data[start:end]) + "\n")
            lines.append(f"dump_mem 0x{export.bases[space] + start:x} 0x{end - start:x} {file}")
    return lines


def _step(export: Export, step: Step, status: Register, address: Callable[[Register], int]) -> list[str]:
    if isinstance(step, Mark):
        return [f"# {step}"]
    if isinstance(step, Flushed):
        return [f"read_reg 0x{address(step.register):x} 0x1 0x1 #NVDLA_{step.register}_0"]
    if isinstance(step, Await):
        bits = step.interrupts
        return [
            f"read_reg 0x{address(status):x} 0x{bits:x} 0x{bits:x} #NVDLA_{status}_0",
            f"write_reg 0x{address(status):x} 0x{bits:x} #NVDLA_{status}_0",
        ]
    assert isinstance(step, Write)
    return [f"write_reg 0x{address(step.register):x} 0x{export.value(step):x} #NVDLA_{step.register}_0"]
