"""A run without arithmetic: the firmware programs every operation, the engines decode and check their registers, and
the dependency graph is followed to its end."""

from __future__ import annotations

from typing import Any

from nvdla.descriptors.abi import Abi
from nvdla.errors import NvdlaError, ScheduleError
from nvdla.firmware.budget import RunBudget, check_budget
from nvdla.firmware.scheduler import Scheduler
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.machine import Machine
from nvdla.loadable.enums import Interface
from nvdla.loadable.model import Loadable
from nvdla.memory.linker import LinkedLoadable


class _Job:
    """A prepared job that does nothing, but that a convolution enters the books of its buffer."""

    def __init__(self, job: Any) -> None:
        self._account = getattr(job, "account", None)
        self.destination = job.destination
        self.work = job.work
        self.statistics: dict[str, int] = {}

    def run(self, source: Any = None) -> None:
        if self._account:
            self._account()


class _Engine:
    """An engine whose jobs are prepared, hence checked, but not done."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def prepare(self, groups: Any) -> _Job:
        return _Job(self._engine.prepare(groups))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class DryMachine(Machine):
    """A machine that goes through all motions but the arithmetic."""

    def engine(self, name: str) -> Any:
        """The engine ``name``, whose jobs do nothing."""
        return _Engine(super().engine(name))


def dry_run(loadable: Loadable, abi: Abi, config: Configuration) -> tuple[str | None, list[str]]:
    """Why the loadable cannot run on the configuration, None when nothing speaks against it; and what runs, but not as
    the file can mean it."""
    warnings: list[str] = []
    try:
        linked = LinkedLoadable(loadable)
        tasks = [
            FirmwareTask(linked, loadable.task(task_id), abi, config)
            for entry in loadable.submit_order
            for task_id in entry.task_ids
            if loadable.task(task_id).interface == Interface.DLA1
        ]
        check_budget(tasks, RunBudget())
        machine = DryMachine(config, linked.space)
        warnings = machine.warnings
        scheduler = Scheduler(machine)
        for task in tasks:
            task.check()
            scheduler.run(task)
    except ScheduleError as error:
        return f"it does not come to its end: {error}", warnings
    except NvdlaError as error:
        return str(error), warnings
    return None, warnings
