"""Instructions of the IREE VM and their opcodes.

One byte a core instruction; 64-bit integers (before 2022-05), 32-bit and 64-bit floats follow a prefix byte. When
64-bit integers became core (2022-05-16, bytecode version 1), 209 instructions got new numbers; since then numbers have
only been added, so one table serves all later versions, with the version from which on each may appear.

An instruction is described by a short string, operands before ``>`` and result after it:

    i l f d r   register holding an i32, i64, f32, f64, reference
    #i #l #f #d a constant of that type in the code
    G O T F     number of a global (or its byte offset), rodata segment, type, function: u32
    S           string: u16 length, bytes
    L U         list of u16 at a multiple of 2 bytes: registers, sizes of variadic segments
    B           branch: u32 target and a list of pairs (from register, to register)
    P           u32 target of a branch without a list
    X           branch table: a branch, u16 count, that many branches

Registers are u16: bit 15 set for references, bit 14 for a reference that is moved. i64 and f64 take two i32 registers.
Sources: compiler/.../VM/IR/VMOps.td (encodings), runtime/.../vm/bytecode/utils/isa_decoder.inl.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, ClassVar, cast

from nvdla.errors import FormatError
from nvdla.interop.containers.vmfb.module import Module, ModuleFunction


@cache
def _tables() -> dict[str, Any]:
    """opcodes.json: two tables of numbers (bank -> mnemonic -> number), and the instructions that came later.

    ``since``: mnemonic -> first bytecode version. The versions in which an instruction was added without a new number
    (15 lasted three years) count as one.
    """
    path = resources.files("nvdla.interop.containers.vmfb").joinpath("opcodes.json")
    return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))


@cache
def numbers(major: int | None) -> dict[str, dict[int, str]]:
    """bank (core, i64, f32, f64) -> number -> mnemonic, for a major bytecode version (None: before there were any).

    In the core bank a prefix is named ``prefix.BANK``."""
    since: dict[str, int] = _tables()["since"] if major else {}
    return {
        bank: {number: name for name, number in table.items() if since.get(name, 0) <= (major or 0)}
        for bank, table in _tables()["2022-05" if major and major > 0 else "2022-01"].items()
    }


REF_BIT, MOVE_BIT, REF_MASK = 0x8000, 0x4000, 0x3FFF
IMPORT_BIT = 0x8000_0000
#: First version whose blocks begin with a marker, and whose switches take their default from a register.
BLOCK_MARKERS = 15
#: First version whose buffers have 64-bit offsets, and from which on offsets count elements, not bytes.
LONG_OFFSETS, ELEMENT_OFFSETS = 2, 13

_TYPES = {
    "i8": "i",
    "i16": "i",
    "i32": "i",
    "i64": "l",
    "f32": "f",
    "f64": "d",
    "ref": "r",
    "si32": "i",
    "ui32": "i",
    "si64": "l",
    "ui64": "l",
}

_FIXED = {
    "const.ref.zero": ">r", "const.ref.rodata": "O>r", "discard.refs": "L>", "assign.ref": "r>r",
    "cast.any.ref": "rT>r", "list.alloc": "Ti>r", "list.reserve": "ri>", "list.size": "r>i", "list.resize": "ri>",
    "list.get.ref": "riT>r", "list.set.ref": "rir>", "select.ref": "iTrr>r", "switch.ref": "iTrL>r",
    "global.load.ref": "GT>r", "global.store.ref": "GTr>", "global.load.indirect.ref": "iT>r",
    "global.store.indirect.ref": "iTr>", "block": ">", "br": "B>", "cond_br": "iBB>", "br_table": "iX>",
    "call": "FLR", "call.variadic": "FULR", "call.yieldable": "FLPR", "call.variadic.yieldable": "FULPR",
    "return": "L>", "fail": "iS>", "import.resolved": "F>i", "yield": "B>", "trace": "SL>", "print": "SL>",
    "break": "B>", "cond_break": "iB>", "buffer.copy": "roroo>",
}  # fmt: skip
_BINARY = frozenset(["add", "sub", "mul", "div", "rem", "and", "or", "xor", "min", "max", "pow", "atan2"])
_COMPARE = frozenset(["eq", "ne", "lt", "lte"])


@cache
def shape(mnemonic: str, major: int | None) -> str:
    """The description of an instruction in a bytecode version."""
    version = major or 0
    offset = "l" if version >= LONG_OFFSETS else "i"
    if mnemonic in _FIXED:
        return _FIXED[mnemonic].replace("o", offset)
    stem, *rest = mnemonic.split(".")
    kinds = [_TYPES[part] for part in rest if part in _TYPES]
    kind = kinds[0] if kinds else ""
    if stem == "global":
        place = "i" if "indirect" in rest else "G"
        return f"{place}>{kind}" if rest[0] == "load" else f"{place}{kind}>"
    if stem == "const":
        return f">{kind}" if rest[-1] == "zero" else f"#{kind}>{kind}"
    if stem == "list":
        return f"ri>{kind}" if rest[0] == "get" else f"ri{kind}>"
    if stem == "select":
        return f"i{kind}{kind}>{kind}"
    if stem == "switch":
        return f"i{'' if version >= BLOCK_MARKERS else '#'}{kind}L>{kind}"
    if stem == "buffer":
        return _buffer_shape(rest[0], kind, version).replace("o", offset)
    if stem in ("shl", "shr"):
        return f"{kind}i>{kind}"
    if stem == "cmp":
        return f"{kind}{kind}>i" if rest[0] in _COMPARE else f"{kind}>i"
    if stem in ("cast", "ext", "trunc", "bitcast"):
        return f"{kinds[0]}>{kinds[1]}"
    return f"{kind * (3 if stem == 'fma' else 2 if stem in _BINARY else 1)}>{kind}"


def _buffer_shape(operation: str, kind: str, version: int) -> str:
    alignment = "i" if version >= BLOCK_MARKERS else ""
    return {
        "alloc": f"o{alignment}>r",
        "clone": f"roo{alignment}>r",
        "length": "r>o",
        "compare": "roroo>i",
        "fill": f"roo{kind}>",
        "load": f"ro>{kind}",
        "store": f"ro{kind}>",
        "hash": "roo>l",
    }[operation]


@dataclass(frozen=True)
class Branch:
    """Return the target of a branch, and the (source, target) registers that are moved on the way."""

    target: int
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Instruction:
    """One decoded instruction.

    ``pc`` and ``next_pc`` count bytes from the start of the function. ``operands`` are as the shape lists them, results
    last: registers and numbers as int, constants as int or float, strings as str, lists as tuples, branches as Branch.
    """

    pc: int
    next_pc: int
    mnemonic: str
    shape: str
    operands: tuple[Any, ...]


class Decoder:
    """Decodes the instructions of one function, checking registers, ordinals and targets as it goes."""

    def __init__(self, module: Module, function: ModuleFunction) -> None:
        self.module = module
        self.function = function
        self.code = module.code(function)
        self.major = module.major
        self.tables = numbers(module.major)
        self.pc = 0

    def place(self, pc: int) -> str:
        """File, function and byte of an instruction, for errors."""
        at = self.module.bytecode_offset + self.function.offset + pc
        label = self.function.name or f"function {self.function.ordinal}"
        return f"{self.module.source.name}: {label}, instruction at {pc:08X} (byte {at})"

    def fail(self, pc: int, message: str) -> FormatError:
        """An error that names file, function and byte."""
        return FormatError(f"{self.place(pc)}: {message}")

    def all(self) -> Iterator[Instruction]:
        """Every instruction, from the first to the end of the code. Before block markers, a function's length took in
        up to 7 zero bytes that align the next one; they are left out."""
        pc, is_over = 0, False
        while pc < len(self.code):
            left = len(self.code) - pc
            if is_over and left < 8 and (self.major or 0) < BLOCK_MARKERS and not any(self.code[pc:]):
                return
            instruction = self.at(pc)
            yield instruction
            pc, is_over = instruction.next_pc, instruction.mnemonic in TERMINATORS

    def at(self, pc: int) -> Instruction:
        """The instruction at ``pc``. FormatError when there is none."""
        self.start = self.pc = pc
        number = self.number(1)
        mnemonic = self.tables["core"].get(number)
        if mnemonic is not None and mnemonic.startswith("prefix."):
            bank = mnemonic.removeprefix("prefix.")
            number = self.number(1)
            mnemonic = self.tables[bank].get(number)
        if mnemonic is None:
            raise self.fail(pc, f"opcode: must be known in bytecode version {self.major or 0}, got 0x{number:02x}")
        described = shape(mnemonic, self.major)
        operands = tuple(self.operands(described))
        return Instruction(pc, self.pc, mnemonic, described, operands)

    def number(self, size: int) -> int:
        """The next unsigned number of ``size`` bytes."""
        return int.from_bytes(self.bytes(size), "little")

    def bytes(self, size: int) -> memoryview:
        """The next ``size`` bytes. Raises FormatError at the end of the function."""
        if self.pc + size > len(self.code):
            raise self.fail(self.start, f"must end within the {len(self.code)} bytes of the function")
        self.pc += size
        return self.code[self.pc - size : self.pc]

    def operands(self, described: str) -> Iterator[Any]:
        """The operands that a description names, one letter each."""
        kinds = iter(described)
        for kind in kinds:
            if kind == "#":
                yield self.constant(next(kinds))
            elif kind in "ilfdr":
                yield self.register(kind)
            elif kind != ">":
                yield self._READERS[kind](self)

    def register(self, kind: str) -> int:
        """A register of a kind, as encoded; FormatError when the function has no such register."""
        value = self.number(2)
        self.check_register(value, kind)
        return value

    def check_register(self, value: int, kind: str = "") -> None:
        """Raise FormatError for a register that the function does not have."""
        if kind == "r" or (not kind and value & REF_BIT):
            if value & REF_MASK >= self.function.ref_registers:
                raise self.fail(
                    self.start,
                    f"reference register: must be below {self.function.ref_registers}, got {value & REF_MASK}",
                )
            return
        width = 2 if kind in ("l", "d") else 1
        if value + width > self.function.registers:
            raise self.fail(self.start, f"register: must be at most {self.function.registers - width}, got {value}")

    def constant(self, kind: str) -> int | float:
        """The next constant: i, l, f or d."""
        code = {"i": "<i", "l": "<q", "f": "<f", "d": "<d"}[kind]
        return struct.unpack(code, self.bytes(struct.calcsize(code)))[0]

    def word(self) -> int:
        """The next number of 32 bits."""
        return self.number(4)

    def type_number(self) -> int:
        """The next index of a type, checked."""
        value = self.number(4)
        if value >= max(len(self.module.types), 1):
            raise self.fail(self.start, f"type: must be below {len(self.module.types)}, got {value}")
        return value

    def rodata(self) -> int:
        """The next index of a rodata segment, checked."""
        value = self.number(4)
        if value >= len(self.module.rodata):
            raise self.fail(self.start, f"rodata segment: must be below {len(self.module.rodata)}, got {value}")
        return value

    def callee(self) -> int:
        """The next function or import, checked."""
        value = self.number(4)
        limit = len(self.module.imports) if value & IMPORT_BIT else len(self.module.functions)
        if value & ~IMPORT_BIT >= limit:
            kind = "import" if value & IMPORT_BIT else "function"
            raise self.fail(self.start, f"{kind}: must be below {limit}, got {value & ~IMPORT_BIT}")
        return value

    def string(self) -> str:
        """The next text."""
        return bytes(self.bytes(self.number(2))).decode("utf-8", "replace")

    def sizes(self) -> tuple[int, ...]:
        """The next list of numbers of 16 bits."""
        self.pc += self.pc & 1
        count = self.number(2)
        return struct.unpack(f"<{count}H", self.bytes(2 * count))

    def registers(self) -> tuple[int, ...]:
        """The next list of registers, checked."""
        values = self.sizes()
        for value in values:
            self.check_register(value)
        return values

    def target(self) -> int:
        """The next place in the function, checked."""
        value = self.number(4)
        if value >= len(self.code):
            raise self.fail(self.start, f"branch target: must be within the function, got {value:08X}")
        return value

    def branch(self) -> Branch:
        """The next branch with its moves."""
        target = self.target()
        self.pc += self.pc & 1
        count = self.number(2)
        flat = struct.unpack(f"<{2 * count}H", self.bytes(4 * count))
        for value in flat:
            self.check_register(value)
        pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
        for source, destination in pairs:
            if (source ^ destination) & REF_BIT:
                raise self.fail(self.start, f"branch: register 0x{source:04x}: must be copied to one of the same kind")
        return Branch(target, pairs)

    def branch_table(self) -> tuple[Branch, ...]:
        """The next table of branches, the default first."""
        default = self.branch()
        return (default, *(self.branch() for _ in range(self.number(2))))

    _READERS: ClassVar[Mapping[str, Callable[[Decoder], Any]]] = {
        "G": word, "O": rodata, "T": type_number, "F": callee, "S": string, "L": registers, "R": registers, "U": sizes,
        "B": branch, "P": target, "X": branch_table,
    }  # fmt: skip


#: Instructions after which a block is over.
TERMINATORS = frozenset(
    {
        "br",
        "cond_br",
        "br_table",
        "return",
        "fail",
        "yield",
        "break",
        "cond_break",
        "call.yieldable",
        "call.variadic.yieldable",
    }
)
