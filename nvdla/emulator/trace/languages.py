"""Register traces in the languages .cfg and input.txn: reading and replay.

The language: nvdla.org, hardware verification guide, "Configuration File Format", and the reference player
(verif/tools/nvdla_trace_parser.py). One command per line, ``name(arguments);``, comments after ``//``. Raw ``.bin``
images in mem_load and the memory types 1 (DRAM) and 2 (CVSRAM) of check_crc are accepted as well.

The language: nvdla.org, integration guide, "Tests", and verif/synth_tb/sim_scripts/inp_txn_to_hexdump.pl of the
nvdlav1 release. One command per line, words separated by blanks, comments after ``#``. Addresses of registers are word
addresses in their low 16 bits (the upper bits belong to the bus master). Memory at 0x5xxxxxxx is the CVSRAM, all
other the DRAM (verif/verilator/nvdla.cpp, axievent).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nvdla.emulator.hardware.configuration import Configuration, configuration, configurations
from nvdla.emulator.hardware.machine import INTERRUPT_BITS, Completion, Machine
from nvdla.emulator.hardware.register_file import Register, RegisterMap, register_map
from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.trace.commands import (
    COMPARISONS,
    PATTERNS,
    CheckMemory,
    Command,
    ExpectInterrupt,
    FillMemory,
    LoadMemory,
    MemoryImage,
    Notify,
    Poll,
    ReadRegister,
    Trace,
    TraceFolder,
    TraceMemory,
    Wait,
    WaitInterrupt,
    WriteRegister,
    at_line,
    number,
)
from nvdla.emulator.trace.player import BlockPlayer, Check, Player, SequentialPlayer
from nvdla.errors import FormatError, NvdlaError, TraceError, sentence
from nvdla.limits import Limits
from nvdla.util.arguments import by_annotations
from nvdla.util.files import make_directory, named, read_file, write_file
from nvdla.util.recognition import wrong_kind

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
            raise TraceError(f"{content.strip()[:80]!r} is not a command: must be name(arguments);")
        name, words = match[1], [word.strip() for word in match[2].split(",")]
        poll = re.fullmatch(r"poll_(reg|field)_(\w+)", name)
        if poll and poll[2].replace("nt_", "not_") in COMPARISONS:
            return self.poll(line, words, poll[1] == "field", poll[2].replace("nt_", "not_"))
        if name not in self.known:
            raise TraceError(
                f"unknown command {name!r}: must be one of {', '.join(self.known)}, poll_reg_..., poll_field_..."
            )
        return self.known[name](line, words)

    def register(self, word: str) -> Register:
        """NVDLA_UNIT.REGISTER_0 (the _0 is the instance that NVIDIA's register headers append)."""
        unit, dot, name = word.upper().partition(".")
        if not dot:
            raise TraceError(f"{word!r} is not a register: must be UNIT.REGISTER_0")
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
        as a separate argument."""
        if "." not in words[0] and len(words) > 2:
            words = [f"{words[0]}.{words[1]}", *words[2:]]
        words = _arguments(words, 3 if of_field else 2)
        register = self.register(words[0])
        expected = number(words[-1], words[0], 32)
        if not of_field:
            return Poll(line, register, comparison, expected)
        if words[1] not in register.fields:
            raise TraceError(
                f"register {register} has no field {words[1]!r}: must be one of {', '.join(register.fields)}"
            )
        field = register.fields[words[1]]
        return Poll(line, register, comparison, expected, field.mask << field.low, field.low)

    def intr_notify(self, line: int, words: list[str]) -> Command:
        if len(words) == 1:
            return ExpectInterrupt(line, None, 0, words[0])
        name, sync_id = _arguments(words, 2)
        cause, _, group = name.upper().rpartition("_")
        if f"{cause}_DONE" not in INTERRUPT_BITS or group not in ("0", "1"):
            known = ", ".join(name.removesuffix("_DONE") for name in INTERRUPT_BITS)
            raise TraceError(f"unknown interrupt {name!r}: must be one of {known}, each with _0 or _1")
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
            raise TraceError(f"unknown memory pattern {pattern!r}: must be one of {', '.join(PATTERNS)}")
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
        raise TraceError(f"arguments: must be {expected}, got {len([word for word in words if word])}")
    return words + [""] * (needed + optional - len(words))


def _space(word: str) -> Space:
    if word.lower() not in _SPACES:
        raise TraceError(f"unknown memory {word!r}: must be one of {', '.join(_SPACES)}")
    return _SPACES[word.lower()]


def _file_name(word: str) -> str:
    if len(word) < 3 or not (word.startswith('"') and word.endswith('"')):
        raise TraceError(f'{word!r} is not a file name: must be "name" in quotation marks')
    return word[1:-1]


def parse_txn(text: str, name: str, registers: RegisterMap, folder: TraceFolder) -> Trace:
    """Parse a whole input.txn. Raises TraceError naming file and line."""
    commands: list[Command] = []
    for line, content in enumerate(text.split("\n"), 1):
        words = content.partition("#")[0].split()
        if not words or words[0].startswith("//"):
            continue
        try:
            if words[0] not in _COMMANDS:
                raise TraceError(f"unknown command {words[0]!r}: must be one of {', '.join(_COMMANDS)}")
            parse, counts = _COMMANDS[words[0]]
            if len(words) - 1 not in counts:
                allowed = " or ".join(map(str, counts))
                raise TraceError(f"{words[0]}: arguments: must be {allowed}, got {len(words) - 1}")
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
        raise TraceError("read_reg: comparison: must be ==")
    register, mask, expected = _register(words[0], registers), *(number(word, "value", 32) for word in words[1:])
    return ReadRegister(line, register, expected & mask, mask, retry=True)


def _txn_space(address: int) -> Space:
    return Space.CVSRAM if address >> 28 == 5 else Space.DRAM


def _load_mem(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    address, size = number(words[0], "address"), number(words[1], "size", 32)
    return LoadMemory(line, _txn_space(address), address, folder.image(words[2], size))


def _dump_mem(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    """The file is the golden content of the range."""
    address, size = number(words[0], "address"), number(words[1], "size", 32)
    return CheckMemory(line, "dump_mem", None, _txn_space(address), address, size, image=folder.image(words[2], size))


def _write_mem(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    """128 bits at an address; bit n of the mask enables byte n."""
    address, enabled = number(words[0], "address"), number(words[1], "byte mask", 16)
    data = number(words[2], "data", 128).to_bytes(16, "little")
    segments = tuple((at, data[at : at + 1]) for at in range(16) if enabled >> at & 1)
    return LoadMemory(line, _txn_space(address), address, MemoryImage(segments))


def _read_mem(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    address = number(words[0], "address")
    mask, data = (number(word, "data", 128) for word in words[1:])
    image = MemoryImage(((0, (data & mask).to_bytes(16, "little")),))
    return CheckMemory(
        line, "read_mem", None, _txn_space(address), address, 16, image=image, mask=mask.to_bytes(16, "little")
    )


def _wait(line: int, words: list[str], registers: RegisterMap, folder: TraceFolder) -> Command:
    """Bare or with a level: a rising interrupt line is what all traces wait for."""
    if words and words[0] not in ("high", "posedge"):
        raise TraceError(f"wait: condition: must be high, posedge or omitted, got {words[0]!r}")
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


TRACE_LIMIT = 64 << 20  # bytes of the text; its commands take some ten times as much memory


@dataclass(frozen=True)
class Replay:
    """Result of a replay: ``checks`` in the order in which they were made, ``completions`` of the machine in order."""

    path: Path
    config: Configuration
    checks: tuple[Check, ...]
    completions: tuple[Completion, ...] = field(repr=False)
    memory: TraceMemory = field(repr=False)

    @property
    def passed(self) -> bool:
        """True when every check passed and nothing waits indefinitely; False where the trace checks nothing."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def engines(self) -> list[str]:
        """Engines that ran, in order."""
        return [stage.engine for completion in self.completions for stage in completion.stages]

    def dump(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write each memory range that the trace used as ``<space>_0x<address>.bin``.

        Args:
            folder: Target directory.

        Returns:
            Paths of the written files.

        Raises:
            FormatError: A file cannot be written.
        """
        target = Path(folder)
        make_directory(target)
        written = []
        for space, address, size in self.memory.used:
            path = target / f"{space.value}_0x{address:x}.bin"
            write_file(path, self.memory.view(space, address, size, "dump").data)
            written.append(path)
        return written


@by_annotations
def read_trace(path: str | os.PathLike[str], config: Configuration, limits: Limits | None = None) -> Trace:
    """Parse a trace and the memory images that it names.

    Args:
        path: File of the trace: ``.txn`` in the nv_full format, any other suffix in the .cfg language.
        config: Configuration with the register map.
        limits: Limits of memory (default: :class:`nvdla.limits.Limits`).

    Returns:
        The trace.

    Raises:
        TraceError: The trace cannot be read or parsed; the message contains the file and the line.
    """
    path = Path(named(path, "trace"))
    try:
        text = read_file(path, TRACE_LIMIT, "trace").decode("utf-8", "replace")
    except FormatError as error:
        raise TraceError(str(error)) from error
    parse = parse_txn if path.suffix == ".txn" else parse_cfg
    folder = TraceFolder(path.parent, (limits or Limits()).memory)
    try:
        return parse(text, path.name, register_map(config.register_map), folder)
    except TraceError as error:
        text = str(error)
        if path.suffix == ".txn":
            text = f"{sentence(error)} If it is a log or a riscv-txn file, use 'nvdla csb replay'."
        raise TraceError(wrong_kind(path, str(path), "a register trace", ("trace",)) or text) from None


@by_annotations
def replay(
    path: str | os.PathLike[str],
    config: str | Configuration,
    *,
    threads: int | None = None,
    limits: Limits | None = None,
) -> Replay:
    """Run a register trace on a machine with its own memory.

    A failed comparison and a wait that never ends are failed checks, not errors.

    Args:
        path: The trace file.
        config: A configuration or its name.
        threads: Threads of the kernels (None: one per core).
        limits: Limits as for a run; ``memory`` bounds the simulated memory and the memory images.

    Returns:
        The checks and completions.

    Raises:
        TraceError: The trace cannot be read.
        NvdlaError: An engine refuses its settings.
    """
    if isinstance(config, str):
        config = configuration(config)
    limits = limits or Limits()
    trace = read_trace(path, config, limits)
    kind = SequentialPlayer if trace.sequential else BlockPlayer
    player = play(trace, kind, config, threads, limits)
    return Replay(Path(path), config, tuple(player.checks), tuple(player.completions), player.memory)


@by_annotations
def passing_configurations(path: str | os.PathLike[str], tried: str, threads: int | None = None) -> list[str]:
    """Find the built-in configurations on which all checks of a trace pass.

    Args:
        path: The trace.
        tried: A configuration that is left out.
        threads: Number of threads (default: all cores).

    Returns:
        Names of configurations.
    """
    return configurations_where(lambda config: replay(path, config, threads=threads).passed, tried)


def configurations_where(passes: Callable[[Configuration], bool], tried: str) -> list[str]:
    """Names of the built-in configurations, without ``tried``, of which ``passes`` is true and raises no NvdlaError."""
    passing = []
    for name, config in configurations().items():
        with contextlib.suppress(NvdlaError):
            if name != tried and passes(config):
                passing.append(name)
    return passing


def play(
    trace: Trace, kind: type[Player], config: Configuration, threads: int | None = None, limits: Limits | None = None
) -> Player:
    """Run commands on a machine with memory made for them, and return the player with its results."""
    limits = limits or Limits()
    memory = TraceMemory(trace.ranges(), limits.memory)
    machine = Machine(config, memory, threads, limits)
    player = kind(trace, machine, memory)
    try:
        player.play()
        player.finish()
    except NvdlaError as error:
        raise error.at(trace.name) from error
    finally:
        machine.close()
    return player
