"""CDP, the cross-channel data processor: local response normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvdla.errors import ConfigError
from nvdla.hardware.lut import LookupTables
from nvdla.hardware.register_file import RegisterGroup

if TYPE_CHECKING:
    from nvdla.hardware.machine import Machine


class Cdp:
    """The CDP of one machine. It owns its lookup tables, which both register groups share."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tables = LookupTables()
        machine.registers.on_write("CDP", self.tables.written)
        machine.registers.on_read("CDP", self.tables.read)

    def prepare(self, groups: dict[str, RegisterGroup]) -> Any:
        raise ConfigError("CDP operations are not yet modelled")
