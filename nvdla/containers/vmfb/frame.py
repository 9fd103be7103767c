"""Frames of calls: registers, and where arguments and results lie in them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nvdla.containers.vmfb.arithmetic import round_f32, wrap
from nvdla.containers.vmfb.instructions import MOVE_BIT, REF_BIT, REF_MASK, Decoder
from nvdla.containers.vmfb.module import ModuleFunction
from nvdla.containers.vmfb.values import VmError

KINDS = {"i": "i", "I": "l", "f": "f", "F": "d", "r": "r"}
"""Letters of a signature -> kinds of registers."""


@dataclass
class Frame:
    """One activation: 32-bit registers as unsigned numbers, reference registers as objects."""

    function: ModuleFunction
    decoder: Decoder
    registers: list[int]
    refs: list[Any]
    pc: int = 0
    #: Where the caller wants the results.
    results: tuple[int, ...] = ()
    resume: int | None = None

    def read(self, kind: str, register: int) -> Any:
        """The value of a register as its kind says (i, l, f, d or r)."""
        if kind == "r":
            return self.refs[register & REF_MASK]
        low = self.registers[register]
        if kind == "i":
            return low - (1 << 32) if low >> 31 else low
        if kind == "f":
            return struct.unpack("<f", low.to_bytes(4, "little"))[0]
        wide = low | self.registers[register + 1] << 32
        return wrap(wide, 64) if kind == "l" else struct.unpack("<d", wide.to_bytes(8, "little"))[0]

    def take(self, register: int) -> Any:
        """A reference operand; a moved one leaves its register empty."""
        value = self.refs[register & REF_MASK]
        if register & MOVE_BIT:
            self.refs[register & REF_MASK] = None
        return value

    def write(self, kind: str, register: int, value: Any) -> None:
        """Set a register of a kind."""
        if kind == "r":
            self.refs[register & REF_MASK] = value
        elif kind == "i":
            self.registers[register] = value & 0xFFFFFFFF
        elif kind == "f":
            self.registers[register] = int.from_bytes(struct.pack("<f", round_f32(value)), "little")
        else:
            wide = value & (1 << 64) - 1 if kind == "l" else int.from_bytes(struct.pack("<d", value), "little")
            self.registers[register], self.registers[register + 1] = wide & 0xFFFFFFFF, wide >> 32


def listed(frame: Frame, kind: str, register: int) -> Any:
    """The value of a register out of a list, which says nothing of its kind but whether it is a reference."""
    if (kind == "r") != bool(register & REF_BIT):
        raise VmError(f"a list holds register 0x{register:04x} where the signature has another kind")
    frame.decoder.check_register(register, kind)
    return frame.take(register) if kind == "r" else frame.read(kind, register)


def argument_places(letters: str) -> list[tuple[str, int]]:
    """(kind, register) of each argument: banks fill from 0, 64-bit values take an even pair."""
    plain = refs = 0
    places = []
    for letter in letters:
        kind = KINDS[letter]
        if kind == "r":
            places.append((kind, refs))
            refs += 1
            continue
        width = 2 if kind in "ld" else 1
        plain += plain % width
        places.append((kind, plain))
        plain += width
    return places


def plain_places(sources: Sequence[int]) -> list[tuple[str, int]]:
    """(kind, register) of each value where only references and 32-bit registers are told apart."""
    counts = {"r": 0, "i": 0}
    places = []
    for source in sources:
        kind = "r" if source & REF_BIT else "i"
        places.append((kind, counts[kind]))
        counts[kind] += 1
    return places
