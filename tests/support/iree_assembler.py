"""Builds small bytecode modules (version 17, size-prefixed) for tests, from lists of instructions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers

from nvdla.interop.containers.vmfb.instructions import Branch, numbers, shape

VERSION = 17
CODES = {
    name: (number if bank == "core" else (224 if bank == "f32" else 225, number))
    for bank, table in numbers(VERSION).items()
    for number, name in table.items()
}


@dataclass
class Code:
    """A function to assemble. ``instructions`` are tuples (mnemonic, operands...); a Branch names its target as the
    number of a block."""

    name: str
    convention: str
    instructions: Sequence[tuple[Any, ...]]
    registers: int = 16
    refs: int = 8
    is_exported: bool = True
    requirements: int = 3


def assemble(instructions: Sequence[tuple[Any, ...]]) -> tuple[bytes, int]:
    """(code, number of blocks)."""
    starts = _encode(instructions, {})[1]
    blocks = dict(enumerate(starts))
    return _encode(instructions, blocks)[0], len(starts)


def _encode(instructions, blocks) -> tuple[bytes, list[int]]:
    code, starts = bytearray(), []
    for mnemonic, *operands in instructions:
        if mnemonic == "block":
            starts.append(len(code))
        opcode = CODES[mnemonic]
        code += bytes(opcode) if isinstance(opcode, tuple) else bytes([opcode])
        kinds = shape(mnemonic, VERSION).replace(">", "")
        letters = [kinds[i : i + 2] if c == "#" else c for i, c in enumerate(kinds) if not (i and kinds[i - 1] == "#")]
        for letter, operand in zip(letters, operands, strict=True):
            _operand(code, letter, operand, blocks)
    return bytes(code), starts


def _operand(code: bytearray, letter: str, value: Any, blocks: dict[int, int]) -> None:
    if letter in ("#i", "#l", "#f", "#d"):
        code += struct.pack({"i": "<i", "l": "<q", "f": "<f", "d": "<d"}[letter[1]], value)
    elif letter in "GOTF":
        code += struct.pack("<I", value)
    elif letter == "P":
        code += struct.pack("<I", blocks.get(value, 0))
    elif letter == "S":
        code += struct.pack("<H", len(value)) + value.encode()
    elif letter in "LRU":
        code += bytes(len(code) & 1) + struct.pack(f"<H{len(value)}H", len(value), *value)
    elif letter == "B":
        code += struct.pack("<I", blocks.get(value.target, 0))
        flat = [register for pair in value.pairs for register in pair]
        code += bytes(len(code) & 1) + struct.pack(f"<H{len(flat)}H", len(value.pairs), *flat)
    elif letter == "X":
        _operand(code, "B", value[0], blocks)
        code += struct.pack("<H", len(value) - 1)
        for branch in value[1:]:
            _operand(code, "B", branch, blocks)
    else:
        code += struct.pack("<H", value)


def goto(block: int, *pairs: tuple[int, int]) -> Branch:
    return Branch(block, pairs)


class _Builder:
    """Tables whose fields are given as slot -> (kind, value)."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1024)

    def table(self, fields: dict[int, tuple[str, Any]]) -> int:
        b = self.builder
        b.StartObject(max(fields, default=-1) + 1)
        for slot, (kind, value) in fields.items():
            if kind == "offset":
                b.PrependUOffsetTRelativeSlot(slot, value, 0)
            elif kind == "u64":
                b.PrependUint64Slot(slot, value, 0)
            else:
                b.PrependUint32Slot(slot, value & 0xFFFFFFFF, 0)
        return b.EndObject()

    def tables(self, positions: Sequence[int]) -> tuple[str, int]:
        self.builder.StartVector(4, len(positions), 4)
        for position in reversed(positions):
            self.builder.PrependUOffsetTRelative(position)
        return "offset", self.builder.EndVector()

    def octets(self, data: bytes) -> tuple[str, int]:
        return "offset", self.builder.CreateByteVector(data)

    def string(self, text: str) -> tuple[str, int]:
        return "offset", self.builder.CreateString(text)


def module(
    functions: Sequence[Code],
    imports: Sequence[tuple[str, str]] = (),
    types: Sequence[str] = ("i32",),
    rodata: Sequence[bytes] = (),
    global_bytes: int = 0,
    global_refs: int = 0,
    version: int = VERSION,
) -> bytes:
    """The file. Slots are those of the generation of 2023-03 and 2026-01."""
    b = _Builder()
    code, descriptors = bytearray(), b""
    for function in functions:
        body, blocks = assemble(function.instructions)
        code += bytes(-len(code) % 8)
        counts = (function.requirements, 0, blocks, function.registers, function.refs)
        descriptors += struct.pack("<iiIhhhh", len(code), len(body), *counts)
        code += body
    signatures = [b.table({0: b.string(f.convention)}) for f in functions]
    exports = [b.table({0: b.string(f.name), 1: ("u32", n)}) for n, f in enumerate(functions) if f.is_exported]
    imported = [
        b.table({0: b.string(name), 1: ("offset", b.table({0: b.string(convention)}))}) for name, convention in imports
    ]
    segments = [b.table({2: b.octets(data)}) for data in rodata]
    b.builder.StartVector(20, len(functions), 4)
    b.builder.head = b.builder.head - len(descriptors)
    b.builder.Bytes[b.builder.head : b.builder.head + len(descriptors)] = descriptors
    table = ("offset", b.builder.EndVector())
    root = b.table({
        0: b.string("module"), 4: b.tables([b.table({0: b.string(name)}) for name in types]), 6: b.tables(imported),
        7: b.tables(exports), 8: b.tables(signatures), 9: b.tables(segments),
        11: ("offset", b.table({0: ("u32", global_bytes), 1: ("u32", global_refs)})), 12: table,
        13: ("u32", version << 16), 14: b.octets(bytes(code)),
    })  # fmt: skip
    b.builder.FinishSizePrefixed(root, b"IREE")
    return bytes(b.builder.Output())
