"""What an injector needs of a runtime: it works on memory of its own, so that the runtime stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nvdla.cpu import CpuTask
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.configuration import Configuration
from nvdla.limits import Limits
from nvdla.memory.linker import LinkedLoadable

TaskList = list[FirmwareTask | CpuTask]


@dataclass(frozen=True)
class Setup:
    """``link(flat)`` lays the loadable into new memory, ``decode`` reads the tasks from there. ``strict``: no access
    may leave its region of memory."""

    link: Callable[[bool], LinkedLoadable]
    decode: Callable[[LinkedLoadable], TaskList]
    config: Configuration
    threads: int | None
    limits: Limits
    hardware_only: bool
    strict: bool = False
