"""Parser of NVIDIA's trace configuration files (.cfg).

The language: nvdla.org, hardware verification guide, "Configuration File Format", and the reference player
(verif/tools/nvdla_trace_parser.py). One command a line, ``name(arguments);``, comments behind ``//``. Raw ``.bin``
images in mem_load and the memory types 1 (DRAM) and 2 (CVSRAM) of check_crc are accepted as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from nvdla.errors import TraceError
from nvdla.hardware.machine import INTERRUPT_BITS
from nvdla.hardware.register_file import Register, RegisterMap
from nvdla.memory.address_space import Space
from nvdla.trace.commands import (
    COMPARISONS,
    CheckMemory,
    Command,
    ExpectInterrupt,
    FillMemory,
    LoadMemory,
    Notify,
    Poll,
    ReadRegister,
    Trace,
    Wait,
    WriteRegister,
    at_line,
)
from nvdla.trace.images import TraceFolder, number
from nvdla.trace.memory import PATTERNS

# No two parts that follow one another can match the same character, so matching is linear in the line.
_COMMAND = re.compile(r'\s*(\w+)\s*\(((?:"[^"]*"|[^"()])*)\)\s*;\s*(?://.*)?$')
_BLANK = re.compile(r"\s*(?://.*)?$")
_SPACES = {"pri_mem": Space.DRAM, "sec_mem": Space.CVSRAM, "1": Space.DRAM, "2": Space.CVSRAM}


def parse_cfg(text: str, name: str, registers: RegisterMap, folder: TraceFolder) -> Trace:
    """Parse a whole .cfg. Raises TraceError naming file and line."""
    parser = _Parser(registers, folder)
    commands: list[Command] = []
    for line, content in enumerate(text.split("\n"), 1):
        if _BLANK.match(content):
            continue
        try:
            commands.append(parser.command(line, content))
        except TraceError as error:
            raise at_line(name, line, text, error) from error
    return Trace(name, tuple(commands), sequential=False)


def unit_name(word: str) -> str:
    """NVDLA_PDP -> PDP."""
    return word.upper().removeprefix("NVDLA_")


class _Parser:
    def __init__(self, registers: RegisterMap, folder: TraceFolder) -> None:
        self.registers = registers
        self.folder = folder
        self.known: dict[str, Callable[[int, list[str]], Command]] = {
            "reg_write": self.reg_write,
            "reg_read": self.reg_read,
            "reg_read_check": self.reg_read_expected,
            "reg_read_expected": self.reg_read_expected,
            "intr_notify": self.intr_notify,
            "sync_notify": lambda line, words: Notify(line, unit_name(words[0]), _arguments(words, 2)[1]),
            "sync_wait": lambda line, words: Wait(line, unit_name(words[0]), _arguments(words, 2)[1]),
            "check_crc": self.check_crc,
            "check_file": self.check_file,
            "check_nothing": lambda line, words: CheckMemory(
                line, "check_nothing", _arguments(words, 1)[0], Space.DRAM, 0, 0
            ),
            "mem_init": self.mem_init,
            "mem_load": self.mem_load,
            "mem_reserve": self.mem_reserve,
            "mem_release": self.mem_release,
        }

    def command(self, line: int, content: str) -> Command:
        match = _COMMAND.match(content)
        if not match:
            raise TraceError(f"{content.strip()[:80]!r} is no command: expected name(arguments);")
        name, words = match[1], [word.strip() for word in match[2].split(",")]
        poll = re.fullmatch(r"poll_(reg|field)_(\w+)", name)
        if poll and poll[2].replace("nt_", "not_") in COMPARISONS:
            return self.poll(line, words, poll[1] == "field", poll[2].replace("nt_", "not_"))
        if name not in self.known:
            raise TraceError(
                f"unknown command {name!r}: known are {', '.join(self.known)}, poll_reg_..., poll_field_..."
            )
        return self.known[name](line, words)

    def register(self, word: str) -> Register:
        """NVDLA_UNIT.REGISTER_0 (the _0 is the instance that NVIDIA's register headers append)."""
        unit, dot, name = word.upper().partition(".")
        if not dot:
            raise TraceError(f"{word!r} is no register: expected UNIT.REGISTER_0")
        return self.registers.register(unit_name(unit), name.removesuffix("_0"))

    def reg_write(self, line: int, words: list[str]) -> Command:
        name, value = _arguments(words, 2)
        return WriteRegister(line, self.register(name), number(value, name, 32))

    def reg_read(self, line: int, words: list[str]) -> Command:
        """The second argument names a variable of NVIDIA's testbench; nothing is compared."""
        return ReadRegister(line, self.register(_arguments(words, 2)[0]), None)

    def reg_read_expected(self, line: int, words: list[str]) -> Command:
        name, value = _arguments(words, 2)
        return ReadRegister(line, self.register(name), number(value, name, 32))

    def poll(self, line: int, words: list[str], of_field: bool, comparison: str) -> Command:
        """poll_reg_X(UNIT.REGISTER, value), poll_field_X(UNIT.REGISTER, FIELD, value); the guide also writes the unit
        as an argument of its own."""
        if "." not in words[0] and len(words) > 2:
            words = [f"{words[0]}.{words[1]}", *words[2:]]
        words = _arguments(words, 3 if of_field else 2)
        register = self.register(words[0])
        expected = number(words[-1], words[0], 32)
        if not of_field:
            return Poll(line, register, comparison, expected)
        if words[1] not in register.fields:
            raise TraceError(f"register {register} has no field {words[1]!r}: known are {', '.join(register.fields)}")
        field = register.fields[words[1]]
        return Poll(line, register, comparison, expected, field.mask << field.low, field.low)

    def intr_notify(self, line: int, words: list[str]) -> Command:
        if len(words) == 1:
            return ExpectInterrupt(line, None, 0, words[0])
        name, sync_id = _arguments(words, 2)
        cause, _, group = name.upper().rpartition("_")
        if f"{cause}_DONE" not in INTERRUPT_BITS or group not in ("0", "1"):
            known = ", ".join(each.removesuffix("_DONE") for each in INTERRUPT_BITS)
            raise TraceError(f"unknown interrupt {name!r}: known are {known}, each with _0 or _1")
        return ExpectInterrupt(line, cause, int(group), sync_id)

    def check_crc(self, line: int, words: list[str]) -> Command:
        sync_id, space, address, size, crc = _arguments(words, 5)
        return CheckMemory(
            line,
            "check_crc",
            sync_id,
            _space(space),
            number(address, "address"),
            number(size, "size"),
            crc=number(crc, "CRC", 32),
        )

    def check_file(self, line: int, words: list[str]) -> Command:
        sync_id, space, address, size, name = _arguments(words, 5)
        return CheckMemory(
            line,
            "check_file",
            sync_id,
            _space(space),
            number(address, "address"),
            number(size, "size"),
            image=self.folder.image(_file_name(name)),
        )

    def mem_init(self, line: int, words: list[str]) -> Command:
        space, address, size, pattern, after = _arguments(words, 4, optional=1)
        if pattern not in PATTERNS:
            raise TraceError(f"unknown memory pattern {pattern!r}: known are {', '.join(PATTERNS)}")
        length = self.folder.image(_file_name(size)).end if size.startswith('"') else number(size, "size")
        return FillMemory(line, _space(space), number(address, "address"), length, pattern, after)

    def mem_load(self, line: int, words: list[str]) -> Command:
        space, address, name, after = _arguments(words, 3, optional=1)
        return LoadMemory(line, _space(space), number(address, "address"), self.folder.image(_file_name(name)), after)

    def mem_reserve(self, line: int, words: list[str]) -> Command:
        space, address, size, after = _arguments(words, 3, optional=1)
        return FillMemory(line, _space(space), number(address, "address"), number(size, "size"), None, after)

    def mem_release(self, line: int, words: list[str]) -> Command:
        """Only frees memory of NVIDIA's simulator: the bytes stay as they are."""
        space, address, _ = _arguments(words, 3)
        return FillMemory(line, _space(space), number(address, "address"), 0, None)


def _arguments(words: list[str], needed: int, optional: int = 0) -> list[str]:
    if not needed <= len(words) <= needed + optional or "" in words:
        expected = f"{needed} to {needed + optional}" if optional else str(needed)
        raise TraceError(f"expected {expected} arguments, found {len([word for word in words if word])}")
    return words + [""] * (needed + optional - len(words))


def _space(word: str) -> Space:
    if word.lower() not in _SPACES:
        raise TraceError(f"unknown memory {word!r}: known are {', '.join(_SPACES)}")
    return _SPACES[word.lower()]


def _file_name(word: str) -> str:
    if len(word) < 3 or not (word.startswith('"') and word.endswith('"')):
        raise TraceError(f'{word!r} is no file name: expected "name" in quotation marks')
    return word[1:-1]
