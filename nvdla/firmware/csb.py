"""The configuration bus as the firmware sees it: named register accesses, and an optional log of every write.

A log is a list of tuples: ``("W", byte address, value)`` for a register write, and for the firmware's steps
``("task", id, addresses)``, ``("program" | "enable" | "complete", operation index, processor name, group)`` and
``("irq", bits)`` — the lines of the reference's ``csb.txt`` logs, in the same order.
"""

from __future__ import annotations

from typing import Any

from nvdla.hardware.register_file import MASK32, RegisterFile

CsbLog = list[tuple[Any, ...]]


class Csb:
    """Register accesses by unit and register name. ``log`` (a list) takes every write and every note."""

    def __init__(self, registers: RegisterFile, log: CsbLog | None = None) -> None:
        self._registers = registers
        self._map = registers.map
        self._log = log

    def write(self, unit: str, register: str, value: int) -> None:
        """Write the low 32 bits of ``value``. Raises TraceError for a register that the hardware does not have."""
        target = self._map.register(unit, register)
        if self._log is not None:
            self._log.append(("W", target.address, value & MASK32))
        self._registers.write_register(target, value)

    def write_fields(self, unit: str, register: str, **fields: int) -> None:
        """Write a register composed of fields. Like the firmware, values are shifted, not cut to their fields."""
        target = self._map.register(unit, register)
        value = 0
        for name, part in fields.items():
            value |= part << target.fields[name].low
        self.write(unit, register, value)

    def write_address(self, unit: str, low: str, high: str, address: int, high_first: bool = False) -> None:
        """Write a 64-bit address to its two registers, low word first unless told otherwise."""
        words = [(low, address & MASK32), (high, address >> 32 & MASK32)]
        for register, value in reversed(words) if high_first else words:
            self.write(unit, register, value)

    def read(self, unit: str, register: str) -> int:
        """The value of a register."""
        return self._registers.read_register(self._map.register(unit, register))

    def read_field(self, unit: str, register: str, field: str) -> int:
        """One field of a register."""
        described = self._map.register(unit, register).fields[field]
        return self.read(unit, register) >> described.low & described.mask

    def field_mask(self, unit: str, register: str, *fields: str) -> int:
        """The bits of the fields, in place."""
        described = self._map.register(unit, register).fields
        return sum(described[name].mask << described[name].low for name in fields)

    def note(self, *what: Any) -> None:
        """Add a line to the log that is not a register write."""
        if self._log is not None:
            self._log.append(what)
