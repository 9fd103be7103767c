"""Parser of the nv_full trace form, ``input.txn``.

The language: nvdla.org, integration guide, "Tests", and verif/synth_tb/sim_scripts/inp_txn_to_hexdump.pl of the
nvdlav1 release. One command a line, words separated by blanks, comments behind ``#``. Addresses of registers are word
addresses in their low 16 bits (the upper bits belong to the bus master). Memory at 0x5xxxxxxx is the CVSRAM, all
other the DRAM (verif/verilator/nvdla.cpp, axievent).
"""

from __future__ import annotations

from nvdla.errors import TraceError
from nvdla.hardware.register_file import Register, RegisterMap
from nvdla.memory.address_space import Space
from nvdla.trace.commands import (
    CheckMemory,
    Command,
    LoadMemory,
    ReadRegister,
    Trace,
    WaitInterrupt,
    WriteRegister,
    at_line,
)
from nvdla.trace.images import MemoryImage, TraceFolder, number


def parse_txn(text: str, name: str, registers: RegisterMap, folder: TraceFolder) -> Trace:
    """Parse a whole input.txn. Raises TraceError naming file and line."""
    commands: list[Command] = []
    for line, content in enumerate(text.split("\n"), 1):
        words = content.partition("#")[0].split()
        if not words or words[0].startswith("//"):
            continue
        try:
            if words[0] not in _COMMANDS:
                raise TraceError(f"unknown command {words[0]!r}: known are {', '.join(_COMMANDS)}")
            parse, counts = _COMMANDS[words[0]]
            if len(words) - 1 not in counts:
                allowed = " or ".join(map(str, counts))
                raise TraceError(f"{words[0]} takes {allowed} arguments, found {len(words) - 1}")
            commands.append(parse(line, words[1:], registers, folder))
        except TraceError as error:
            raise at_line(name, line, text, error) from error
    return Trace(name, tuple(commands), sequential=True)


def _register(word: str, registers: RegisterMap) -> Register:
    return registers.at((number(word, "register address", 32) & 0xFFFF) << 2)


def _write_reg(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    return WriteRegister(line, _register(words[0], registers), number(words[1], "value", 32))


def _read_reg(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    """read_reg address mask [comparison] expected: repeated until it fits. Only == is ever used."""
    if len(words) == 4 and words.pop(2) != "==":
        raise TraceError("read_reg can only compare with ==")
    register, mask, expected = _register(words[0], registers), *(number(word, "value", 32) for word in words[1:])
    return ReadRegister(line, register, expected & mask, mask, retry=True)


def _space(address: int) -> Space:
    return Space.CVSRAM if address >> 28 == 5 else Space.DRAM


def _load_mem(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    address, size = number(words[0], "address"), number(words[1], "size", 32)
    return LoadMemory(line, _space(address), address, folder.image(words[2], size))


def _dump_mem(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    """The file is the golden content of the range."""
    address, size = number(words[0], "address"), number(words[1], "size", 32)
    return CheckMemory(line, "dump_mem", None, _space(address), address, size, image=folder.image(words[2], size))


def _write_mem(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    """128 bits at an address; bit n of the mask enables byte n."""
    address, enabled = number(words[0], "address"), number(words[1], "byte mask", 16)
    data = number(words[2], "data", 128).to_bytes(16, "little")
    segments = tuple((at, data[at : at + 1]) for at in range(16) if enabled >> at & 1)
    return LoadMemory(line, _space(address), address, MemoryImage(segments))


def _read_mem(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    address = number(words[0], "address")
    mask, data = (number(word, "data", 128) for word in words[1:])
    image = MemoryImage(((0, (data & mask).to_bytes(16, "little")),))
    return CheckMemory(
        line, "read_mem", None, _space(address), address, 16, image=image, mask=mask.to_bytes(16, "little")
    )


def _wait(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    """Bare or with a level: a rising interrupt line is what all traces wait for."""
    if words and words[0] not in ("high", "posedge"):
        raise TraceError(f"wait {words[0]!r} is not modelled: only the interrupt's high level and rising edge are")
    return WaitInterrupt(line)


_COMMANDS = {
    "write_reg": (_write_reg, (2,)),
    "read_reg": (_read_reg, (3, 4)),
    "load_mem": (_load_mem, (3,)),
    "dump_mem": (_dump_mem, (3,)),
    "write_mem": (_write_mem, (3,)),
    "read_mem": (_read_mem, (3,)),
    "wait": (_wait, (0, 2)),
}
