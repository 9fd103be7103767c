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

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from nvdla.errors import FormatError
from nvdla.interop.containers.vmfb.module import Module, ModuleFunction

_NUMBERS_2022_01 = {
    "core": """
        global.load.i32 0, global.store.i32 1, global.load.indirect.i32 2, global.store.indirect.i32 3,
        global.load.ref 4, global.store.ref 5, global.load.indirect.ref 6, global.store.indirect.ref 7,
        const.i32.zero 8, const.i32 9, const.ref.zero 10, const.ref.rodata 11, list.alloc 16, list.reserve 17,
        list.size 18, list.resize 19, list.get.i32 20, list.set.i32 21, list.get.ref 22, list.set.ref 23,
        select.i32 30, select.ref 31, switch.i32 32, switch.ref 33, add.i32 34, sub.i32 35, mul.i32 36, div.i32.s 37,
        div.i32.u 38, rem.i32.s 39, rem.i32.u 40, fma.i32 41, not.i32 48, and.i32 49, or.i32 50, xor.i32 51,
        shl.i32 52, shr.i32.s 53, shr.i32.u 54, trunc.i32.i8 55, trunc.i32.i16 56, ext.i8.i32.s 57, ext.i8.i32.u 58,
        ext.i16.i32.s 59, ext.i16.i32.u 60, cmp.eq.i32 64, cmp.ne.i32 65, cmp.lt.i32.s 66, cmp.lt.i32.u 67,
        cmp.eq.ref 74, cmp.ne.ref 75, cmp.nz.ref 76, cmp.nz.i32 77, br 80, cond_br 81, call 82, call.variadic 83,
        return 84, fail 85, yield 96, trace 124, print 125, cond_break 126, break 127, buffer.load.i8.u 176,
        buffer.load.i16.u 177, buffer.load.i32 179, buffer.load.i8.s 180, buffer.load.i16.s 181, buffer.store.i8 184,
        buffer.store.i16 185, buffer.store.i32 187, buffer.alloc 192, buffer.clone 193, buffer.length 194,
        buffer.copy 198, buffer.compare 199, buffer.fill.i8 204, buffer.fill.i16 205, buffer.fill.i32 207,
        prefix.i64 224, prefix.f32 225, prefix.f64 226,
    """,
    "i64": """
        global.load.i64 0, global.store.i64 1, global.load.indirect.i64 2, global.store.indirect.i64 3,
        const.i64.zero 8, const.i64 9, list.get.i64 20, list.set.i64 21, select.i64 30, switch.i64 32, add.i64 34,
        sub.i64 35, mul.i64 36, div.i64.s 37, div.i64.u 38, rem.i64.s 39, rem.i64.u 40, fma.i64 41, not.i64 48,
        and.i64 49, or.i64 50, xor.i64 51, shl.i64 52, shr.i64.s 53, shr.i64.u 54, trunc.i64.i32 55, ext.i32.i64.s 56,
        ext.i32.i64.u 57, cmp.eq.i64 64, cmp.ne.i64 65, cmp.lt.i64.s 66, cmp.lt.i64.u 67, cmp.nz.i64 77,
        buffer.load.i64 176, buffer.store.i64 177, buffer.fill.i64 192,
    """,
    "f32": """
        global.load.f32 0, global.store.f32 1, global.load.indirect.f32 2, global.store.indirect.f32 3,
        const.f32.zero 8, const.f32 9, list.get.f32 20, list.set.f32 21, select.f32 30, switch.f32 32, add.f32 34,
        sub.f32 35, mul.f32 36, div.f32 37, rem.f32 38, fma.f32 39, abs.f32 40, neg.f32 41, ceil.f32 42, floor.f32 43,
        cast.si32.f32 48, cast.ui32.f32 49, cast.f32.si32 50, cast.f32.ui32 51, bitcast.i32.f32 52,
        bitcast.f32.i32 53, atan.f32 64, atan2.f32 65, cos.f32 66, sin.f32 67, exp.f32 68, exp2.f32 69, expm1.f32 70,
        log.f32 71, log10.f32 72, log1p.f32 73, log2.f32 74, pow.f32 75, rsqrt.f32 76, sqrt.f32 77, tanh.f32 78,
        erf.f32 79, cmp.eq.f32.o 96, cmp.eq.f32.u 97, cmp.ne.f32.o 98, cmp.ne.f32.u 99, cmp.lt.f32.o 100,
        cmp.lt.f32.u 101, cmp.lte.f32.o 102, cmp.lte.f32.u 103, cmp.nan.f32 112, buffer.load.f32 176,
        buffer.store.f32 177, buffer.fill.f32 192,
    """,
    "f64": """
        global.load.f64 0, global.store.f64 1, global.load.indirect.f64 2, global.store.indirect.f64 3,
        const.f64.zero 8, const.f64 9, list.get.f64 20, list.set.f64 21, select.f64 30, switch.f64 32, add.f64 34,
        sub.f64 35, mul.f64 36, div.f64 37, rem.f64 38, fma.f64 39, abs.f64 40, neg.f64 41, ceil.f64 42, floor.f64 43,
        trunc.f64.f32 44, ext.f32.f64 45, cast.si32.f64 48, cast.ui32.f64 49, cast.f64.si32 50, cast.f64.ui32 51,
        cast.si64.f64 52, cast.ui64.f64 53, cast.f64.si64 54, cast.f64.ui64 55, bitcast.i64.f64 56,
        bitcast.f64.i64 57, atan.f64 64, atan2.f64 65, cos.f64 66, sin.f64 67, exp.f64 68, exp2.f64 69, expm1.f64 70,
        log.f64 71, log10.f64 72, log1p.f64 73, log2.f64 74, pow.f64 75, rsqrt.f64 76, sqrt.f64 77, tanh.f64 78,
        erf.f64 79, cmp.eq.f64.o 96, cmp.eq.f64.u 97, cmp.ne.f64.o 98, cmp.ne.f64.u 99, cmp.lt.f64.o 100,
        cmp.lt.f64.u 101, cmp.lte.f64.o 102, cmp.lte.f64.u 103, cmp.nan.f64 112, buffer.load.f64 176,
        buffer.store.f64 177, buffer.fill.f64 192,
    """,
}

_NUMBERS_2022_05 = {
    "core": """
        global.load.i32 0, global.store.i32 1, global.load.indirect.i32 2, global.store.indirect.i32 3,
        global.load.i64 4, global.store.i64 5, global.load.indirect.i64 6, global.store.indirect.i64 7,
        global.load.ref 8, global.store.ref 9, global.load.indirect.ref 10, global.store.indirect.ref 11,
        const.i32.zero 12, const.i32 13, const.i64.zero 14, const.i64 15, const.ref.zero 16, const.ref.rodata 17,
        list.alloc 18, list.reserve 19, list.size 20, list.resize 21, list.get.i32 22, list.set.i32 23,
        list.get.i64 24, list.set.i64 25, list.get.ref 26, list.set.ref 27, select.i32 28, select.i64 29,
        select.ref 30, switch.i32 31, switch.i64 32, switch.ref 33, add.i32 34, sub.i32 35, mul.i32 36, div.i32.s 37,
        div.i32.u 38, rem.i32.s 39, rem.i32.u 40, fma.i32 41, add.i64 42, sub.i64 43, mul.i64 44, div.i64.s 45,
        div.i64.u 46, rem.i64.s 47, rem.i64.u 48, fma.i64 49, not.i32 50, and.i32 51, or.i32 52, xor.i32 53,
        not.i64 54, and.i64 55, or.i64 56, xor.i64 57, shl.i32 58, shr.i32.s 59, shr.i32.u 60, shl.i64 61,
        shr.i64.s 62, shr.i64.u 63, trunc.i32.i8 64, trunc.i32.i16 65, trunc.i64.i32 66, ext.i8.i32.s 67,
        ext.i8.i32.u 68, ext.i16.i32.s 69, ext.i16.i32.u 70, ext.i32.i64.s 71, ext.i32.i64.u 72, cmp.eq.i32 73,
        cmp.ne.i32 74, cmp.lt.i32.s 75, cmp.lt.i32.u 76, cmp.nz.i32 77, cmp.eq.i64 78, cmp.ne.i64 79, cmp.lt.i64.s 80,
        cmp.lt.i64.u 81, cmp.nz.i64 82, cmp.eq.ref 83, cmp.ne.ref 84, cmp.nz.ref 85, br 86, cond_br 87, call 88,
        call.variadic 89, return 90, fail 91, import.resolved 92, yield 93, trace 94, print 95, cond_break 96,
        break 97, buffer.load.i8.u 98, buffer.load.i8.s 99, buffer.load.i16.u 100, buffer.load.i16.s 101,
        buffer.load.i32 102, buffer.load.i64 103, buffer.store.i8 104, buffer.store.i16 105, buffer.store.i32 106,
        buffer.store.i64 107, buffer.alloc 108, buffer.clone 109, buffer.length 110, buffer.copy 111,
        buffer.compare 112, buffer.fill.i8 113, buffer.fill.i16 114, buffer.fill.i32 115, buffer.fill.i64 116,
        ctlz.i32 117, ctlz.i64 118, abs.i32 119, abs.i64 120, block 121, min.i32.s 122, min.i32.u 123, max.i32.s 124,
        max.i32.u 125, min.i64.s 126, min.i64.u 127, max.i64.s 128, max.i64.u 129, cast.any.ref 130, br_table 131,
        buffer.hash 132, discard.refs 133, assign.ref 134, call.yieldable 135, call.variadic.yieldable 136,
        prefix.f32 224, prefix.f64 225,
    """,
    "f32": """
        global.load.f32 0, global.store.f32 1, global.load.indirect.f32 2, global.store.indirect.f32 3,
        const.f32.zero 4, const.f32 5, list.get.f32 6, list.set.f32 7, select.f32 8, switch.f32 9, add.f32 10,
        sub.f32 11, mul.f32 12, div.f32 13, rem.f32 14, fma.f32 15, abs.f32 16, neg.f32 17, ceil.f32 18, floor.f32 19,
        cast.si32.f32 20, cast.ui32.f32 21, cast.f32.si32 22, cast.f32.ui32 23, bitcast.i32.f32 24,
        bitcast.f32.i32 25, atan.f32 26, atan2.f32 27, cos.f32 28, sin.f32 29, exp.f32 30, exp2.f32 31, expm1.f32 32,
        log.f32 33, log10.f32 34, log1p.f32 35, log2.f32 36, pow.f32 37, rsqrt.f32 38, sqrt.f32 39, tanh.f32 40,
        erf.f32 41, cmp.eq.f32.o 42, cmp.eq.f32.u 43, cmp.ne.f32.o 44, cmp.ne.f32.u 45, cmp.lt.f32.o 46,
        cmp.lt.f32.u 47, cmp.lte.f32.o 48, cmp.lte.f32.u 49, cmp.nan.f32 50, buffer.load.f32 51, buffer.store.f32 52,
        buffer.fill.f32 53, round.f32 54, min.f32 55, max.f32 56, round.f32.even 57, cast.f32.si64 58,
        cast.f32.ui64 59, cast.si64.f32 60, cast.ui64.f32 61,
    """,
    "f64": """
        global.load.f64 0, global.store.f64 1, global.load.indirect.f64 2, global.store.indirect.f64 3,
        const.f64.zero 4, const.f64 5, list.get.f64 6, list.set.f64 7, select.f64 8, switch.f64 9, add.f64 10,
        sub.f64 11, mul.f64 12, div.f64 13, rem.f64 14, fma.f64 15, abs.f64 16, neg.f64 17, ceil.f64 18, floor.f64 19,
        trunc.f64.f32 20, ext.f32.f64 21, cast.si32.f64 22, cast.ui32.f64 23, cast.f64.si32 24, cast.f64.ui32 25,
        cast.si64.f64 26, cast.ui64.f64 27, cast.f64.si64 28, cast.f64.ui64 29, bitcast.i64.f64 30,
        bitcast.f64.i64 31, atan.f64 32, atan2.f64 33, cos.f64 34, sin.f64 35, exp.f64 36, exp2.f64 37, expm1.f64 38,
        log.f64 39, log10.f64 40, log1p.f64 41, log2.f64 42, pow.f64 43, rsqrt.f64 44, sqrt.f64 45, tanh.f64 46,
        erf.f64 47, cmp.eq.f64.o 48, cmp.eq.f64.u 49, cmp.ne.f64.o 50, cmp.ne.f64.u 51, cmp.lt.f64.o 52,
        cmp.lt.f64.u 53, cmp.lte.f64.o 54, cmp.lte.f64.u 55, cmp.nan.f64 56, buffer.load.f64 57, buffer.store.f64 58,
        buffer.fill.f64 59, round.f64 60, min.f64 61, max.f64 62, round.f64.even 63,
    """,
}

#: Instructions that came later than their table: mnemonic -> first bytecode version. The versions in which an
#: instruction was added without a new number (15 lasted three years) count as one.
_SINCE: Mapping[str, int] = {
    name: version
    for version, names in {
        5: "abs.i32 abs.i64 ctlz.i32 ctlz.i64",
        13: "round.f32 round.f64",
        15: "min.i32.s min.i32.u max.i32.s max.i32.u min.i64.s min.i64.u max.i64.s max.i64.u cast.any.ref block "
        "round.f32.even round.f64.even min.f32 max.f32 min.f64 max.f64 br_table buffer.hash cast.f32.si64 "
        "cast.f32.ui64 cast.si64.f32 cast.ui64.f32",
        16: "discard.refs assign.ref",
        17: "call.yieldable call.variadic.yieldable",
    }.items()
    for name in names.split()
}


def _parse(tables: Mapping[str, str]) -> dict[str, dict[int, str]]:
    result: dict[str, dict[int, str]] = {}
    for bank, text in tables.items():
        pairs = (item.split() for item in text.split(",") if item.strip())
        result[bank] = {int(number): name for name, number in pairs}
    return result


@cache
def numbers(major: int | None) -> dict[str, dict[int, str]]:
    """bank (core, i64, f32, f64) -> number -> mnemonic, for a major bytecode version (None: before there were any).

    In the core bank a prefix is named ``prefix.BANK``."""
    if major is None or major < 1:
        return _parse(_NUMBERS_2022_01)
    banks = _parse(_NUMBERS_2022_05)
    return {
        bank: {number: name for number, name in table.items() if _SINCE.get(name, 0) <= major}
        for bank, table in banks.items()
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
