"""A run without arithmetic: the firmware programs every operation, the engines decode and check their registers, and
the dependency graph is followed to its end."""

from __future__ import annotations

from nvdla.descriptors.abi import Abi
from nvdla.errors import LinkError, NvdlaError, ScheduleError
from nvdla.firmware.budget import check_budget
from nvdla.firmware.scheduler import Scheduler
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.machine import Rehearsal
from nvdla.limits import Limits
from nvdla.loadable.enums import Interface
from nvdla.loadable.model import Loadable
from nvdla.memory.linker import LinkedLoadable


def dry_run(loadable: Loadable, abi: Abi, config: Configuration, flat: bool = False) -> tuple[str | None, list[str]]:
    """Why the loadable cannot run on the configuration, None when nothing speaks against it; and what runs, but not as
    the file can mean it. ``flat``: an access may go on in the memory behind its own, as it does in hardware."""
    warnings: list[str] = []
    try:
        linked = LinkedLoadable(loadable, flat=flat)
        tasks = [
            FirmwareTask(linked, loadable.task(task_id), abi, config)
            for entry in loadable.submit_order
            for task_id in entry.task_ids
            if loadable.task(task_id).interface == Interface.DLA1
        ]
        check_budget(tasks, Limits())
        machine = Rehearsal(config, linked.space)
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


def in_silence(loadable: Loadable, abi: Abi, config: Configuration, strict: bool = False) -> list[str]:
    """What a run would do without a word though the file can hardly mean it, known before: what ``Runtime.warnings``
    has after one. With ``strict`` an access that leaves its memory is a LinkError."""
    problem, warnings = dry_run(loadable, abi, config, flat=True)
    if strict and problem is None and warnings:
        problem = dry_run(loadable, abi, config)[0]
        if problem is not None:
            raise LinkError(problem)
    return warnings
