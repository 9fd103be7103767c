"""Register maps and register files with their two ping-pong groups. Maps are YAML, read as JSON (tools/tables.py).

A unit's ``D_`` registers exist twice: a write lands in the group that ``S_POINTER.PRODUCER`` selects, the hardware
works from the group that ``S_POINTER.CONSUMER`` names. ``S_`` registers exist once. Units without an S_POINTER
(GLB, MCIF, CVIF, BDMA) have single registers only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

from nvdla.errors import ConfigError, TraceError
from nvdla.util.escaping import Document

MASK32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Field:
    """A bit field of a register: bits ``high`` down to ``low``."""

    name: str
    high: int
    low: int
    enum: dict[str, int]

    @cached_property
    def mask(self) -> int:
        """Mask of the field's value, right-aligned."""
        return (1 << (self.high - self.low + 1)) - 1


@dataclass(frozen=True)
class Register:
    """One register: its unit, name, byte address, reset value, mask of writable bits, fields by name."""

    unit: str
    name: str
    address: int
    reset: int
    writable: int
    fields: dict[str, Field]

    @cached_property
    def grouped(self) -> bool:
        """True for registers that exist once per ping-pong group."""
        return self.name.startswith("D_")

    def __str__(self) -> str:
        return f"{self.unit}.{self.name}"


class RegisterMap:
    """All registers of a release, by unit and name and by byte address."""

    def __init__(self, name: str, units: dict[str, dict[str, Register]]) -> None:
        self.name = name
        self.units = units
        self.by_address = {register.address: register for unit in units.values() for register in unit.values()}
        self.layouts = {unit: UnitLayout(registers) for unit, registers in units.items()}

    def register(self, unit: str, name: str) -> Register:
        """Raises TraceError for a unit or register that the map does not have."""
        if unit not in self.units:
            raise TraceError(
                f"unknown unit {unit!r} in register map {self.name}: must be one of {', '.join(self.units)}"
            )
        if name not in self.units[unit]:
            raise TraceError(f"unit {unit} of register map {self.name} has no register {name!r}")
        return self.units[unit][name]

    def at(self, address: int) -> Register:
        """The register at a byte address. Raises TraceError if there is none."""
        if address not in self.by_address:
            raise TraceError(f"no register at byte address 0x{address:x} in register map {self.name}")
        return self.by_address[address]


def _read_register(unit: str, name: str, entry: Document) -> Register:
    fields = {
        field: Field(field, data["bits"][0], data["bits"][1], data.get("enum", {}))
        for field, data in entry.get("fields", {}).items()
    }
    occupied = 0
    for field in fields.values():
        occupied |= field.mask << field.low
    writable = entry.get("writable", occupied)
    return Register(unit, name, entry["address"], entry.get("reset", 0), writable, fields)


@cache
def register_map(name: str) -> RegisterMap:
    """The register map ``nv_full`` or ``nv_small`` (the latter serves every configuration but nv_full)."""
    path = resources.files("nvdla.emulator.hardware.registers").joinpath(f"{name}.json")
    if not path.is_file():
        raise ConfigError(f"register map {name!r} does not exist")
    table = json.loads(path.read_text(encoding="utf-8"))
    units = {
        unit: {register: _read_register(unit, register, entry) for register, entry in registers.items()}
        for unit, registers in table.items()
    }
    return RegisterMap(name, units)


class RegisterGroup:
    """The values that one unit works from: one ping-pong group's D_ registers together with the S_ registers.

    ``group["D_CVT_SCALE"]`` is the whole register, ``group["D_MISC_CFG.CONV_MODE"]`` one field (both unsigned).
    """

    __slots__ = ("_fields", "index", "shared", "unit", "values")

    def __init__(
        self,
        unit: str,
        index: int,
        values: dict[str, int],
        shared: dict[str, int],
        fields: dict[str, tuple[str, int, int]],
    ) -> None:
        self.unit = unit
        self.index = index
        self.values = values
        self.shared = shared
        self._fields = fields

    def __getitem__(self, key: str) -> int:
        register, low, mask = self._fields[key]
        value = self.values[register] if register in self.values else self.shared[register]
        return int((value >> low) & mask)

    def signed(self, key: str) -> int:
        """The register or field as a two's complement number of its width."""
        _, _, mask = self._fields[key]
        value = self[key]
        return value - mask - 1 if value > mask >> 1 else value

    def address(self, high: str, low: str) -> int:
        """A 64-bit address from its high and low registers (whole registers: low bits below the atom are 0)."""
        return self[high] << 32 | self[low]

    def __repr__(self) -> str:
        return f"RegisterGroup({self.unit}, group {self.index})"


class UnitLayout:
    """Properties of all register files of a unit: reset values, and the place of every field."""

    def __init__(self, registers: dict[str, Register]) -> None:
        self.registers = registers
        self.shared = {register.name: register.reset for register in registers.values() if not register.grouped}
        self.grouped = {register.name: register.reset for register in registers.values() if register.grouped}
        self.fields: dict[str, tuple[str, int, int]] = {}
        for register in registers.values():
            self.fields[register.name] = (register.name, 0, MASK32)
            for field in register.fields.values():
                self.fields[f"{register.name}.{field.name}"] = (register.name, field.low, field.mask)


class UnitRegisters:
    """The register file of one unit: two groups, producer and consumer pointers, enable bits."""

    def __init__(self, name: str, layout: UnitLayout) -> None:
        self.name = name
        self.registers = layout.registers
        self.producer = 0
        self.consumer = 0
        self.has_groups = "S_POINTER" in layout.registers
        shared = dict(layout.shared)
        self.groups = tuple(
            RegisterGroup(name, index, dict(layout.grouped), shared, layout.fields) for index in range(2)
        )
        self.enabled = [False, False]

    @property
    def current(self) -> RegisterGroup:
        """The group that the hardware works from."""
        return self.groups[self.consumer]

    @property
    def ready(self) -> bool:
        """True when the consumer group was enabled and not yet finished."""
        return self.enabled[self.consumer]

    def finish(self) -> None:
        """The consumer group's operation is done: free the group and turn to the other one."""
        self.enabled[self.consumer] = False
        self.groups[self.consumer].values["D_OP_ENABLE"] = 0
        self.consumer ^= 1

    def read(self, register: Register) -> int:
        """The value a CSB read returns."""
        if register.name == "S_POINTER":
            return self.producer | self.consumer << 16
        if register.name == "S_STATUS":
            return self._state(0) | self._state(1) << 16
        if register.grouped:
            return self.groups[self.producer].values[register.name]
        return self.groups[0].shared[register.name]

    def write(self, register: Register, value: int) -> None:
        """A CSB write; bits that are not writable keep their value. A group that is enabled ignores writes (vmod/nvdla:
        d0_reg_wr_en in the regfile of every unit)."""
        if register.name == "S_POINTER":
            self.producer = value & 1
            return
        if self.has_groups and register.grouped and self.enabled[self.producer]:
            return
        group = self.groups[self.producer]
        if register.name == "D_OP_ENABLE":
            self.enabled[self.producer] = bool(value & 1)
        target = group.values if register.grouped else group.shared
        target[register.name] = target[register.name] & ~register.writable & MASK32 | value & register.writable

    def _state(self, group: int) -> int:
        """S_STATUS of a group: 0 idle, 1 running, 2 pending (enabled, but the other group is at work)."""
        if not self.enabled[group]:
            return 0
        return 1 if group == self.consumer else 2


WriteHook = Callable[[str, int], None]
ReadHook = Callable[[str, int], int]


class RegisterFile:
    """All units of one machine. Hooks let an engine react to its own registers (LUT port, BDMA commands, W1C)."""

    def __init__(self, registers: RegisterMap) -> None:
        self.map = registers
        self.units = {name: UnitRegisters(name, layout) for name, layout in registers.layouts.items()}
        self._write_hooks: dict[str, list[WriteHook]] = {}
        self._read_hooks: dict[str, ReadHook] = {}

    def on_write(self, unit: str, hook: WriteHook) -> None:
        """``hook(register name, value)`` runs after each write to ``unit``."""
        self._write_hooks.setdefault(unit, []).append(hook)

    def on_read(self, unit: str, hook: ReadHook) -> None:
        """``hook(register name, stored value)`` gives the value that a read of ``unit`` returns."""
        self._read_hooks[unit] = hook

    def forget_hooks(self) -> None:
        """Remove all hooks."""
        self._write_hooks.clear()
        self._read_hooks.clear()

    def write(self, address: int, value: int) -> None:
        """A CSB write by byte address. Raises TraceError for an address without a register."""
        self.write_register(self.map.at(address), value)

    def write_register(self, register: Register, value: int) -> None:
        """Write a register (32 bits), and tell who listens."""
        self.units[register.unit].write(register, value & MASK32)
        for hook in self._write_hooks.get(register.unit, ()):
            hook(register.name, value & MASK32)

    def read(self, address: int) -> int:
        """A CSB read by byte address. Raises TraceError for an address without a register."""
        return self.read_register(self.map.at(address))

    def read_register(self, register: Register) -> int:
        """The value of a register (32 bits), or that of its listener."""
        value = self.units[register.unit].read(register)
        hook = self._read_hooks.get(register.unit)
        return hook(register.name, value) if hook else value
