"""From accesses to operations: what stood in a register group when its unit was enabled, and how two logs differ."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from nvdla.csb.logs import AccessLog
from nvdla.hardware.register_file import RegisterFile, RegisterMap

_ADDRESS = re.compile(r".*ADDR_(HIGH|LOW)(_\d)?$")


@dataclass(frozen=True)
class EnabledUnit:
    """One enabling of a unit: ``number`` counts the unit's, ``values`` are its D_ registers, ``line`` of the log.

    A BDMA has no groups of registers: its launches count, with the registers as they are then.
    """

    unit: str
    number: int
    group: int
    line: int
    values: dict[str, int]


@dataclass(frozen=True)
class LogDifference:
    """The first register of an operation in which two logs differ; a value is None where the operation is missing."""

    unit: str
    number: int
    register: str
    first: int | None
    second: int | None
    fields: tuple[tuple[str, int, int], ...] = ()


def operations(log: AccessLog) -> list[EnabledUnit]:
    """Every enabling in the log, in order."""
    return list(_operations(log))


def _operations(log: AccessLog) -> Iterator[EnabledUnit]:
    registers = RegisterFile(log.map)
    counts: dict[str, int] = {}
    tables: dict[str, int] = {}
    for access in log.accesses:
        register = log.map.by_address.get(access.address)
        if register is None or access.kind != "write" or access.value is None:
            continue
        registers.write_register(register, access.value)
        unit = registers.units[register.unit]
        if register.name.startswith("S_LUT_ACCESS"):
            said = f"{register.name}={access.value:x}".encode()
            tables[unit.name] = zlib.crc32(said, tables.get(unit.name, 0))
        launched = register.name.startswith("CFG_LAUNCH")
        if not launched and (register.name != "D_OP_ENABLE" or not access.value & 1):
            continue
        counts[unit.name] = counts.get(unit.name, 0) + 1
        group = int(register.name[-1]) if launched else unit.producer
        values = dict(unit.groups[group].shared if launched else unit.groups[group].values)
        values.pop("D_OP_ENABLE", None)
        if unit.name in tables:
            values["LUT contents"] = tables[unit.name]
        yield EnabledUnit(unit.name, counts[unit.name] - 1, group, access.line, values)


def differences(first: AccessLog, second: AccessLog, mask_addresses: bool = False) -> list[LogDifference]:
    """The first difference of every operation, by unit and number: the order of independent writes does not matter,
    nor which group an operation was in. ``mask_addresses``: addresses of memory may differ."""
    ours, theirs = ({(each.unit, each.number): each for each in operations(log)} for log in (first, second))
    found = []
    for key in sorted({*ours, *theirs}):
        a, b = ours.get(key), theirs.get(key)
        if a is None or b is None:
            found.append(LogDifference(*key, "(the operation)", int(a is not None) or None, int(b is not None) or None))
            continue
        difference = _first(a, b, first.map, mask_addresses)
        if difference:
            found.append(difference)
    return found


def _first(a: EnabledUnit, b: EnabledUnit, registers: RegisterMap, mask_addresses: bool) -> LogDifference | None:
    for name in sorted({*a.values, *b.values}):
        one, other = a.values.get(name, 0), b.values.get(name, 0)
        if one == other or (mask_addresses and _ADDRESS.match(name)):
            continue
        fields: tuple[tuple[str, int, int], ...] = ()
        if name in registers.units.get(a.unit, {}):
            described = registers.register(a.unit, name).fields.values()
            pairs = [(each.name, one >> each.low & each.mask, other >> each.low & each.mask) for each in described]
            fields = tuple(pair for pair in pairs if pair[1] != pair[2])
        return LogDifference(a.unit, a.number, name, one, other, fields)
    return None
