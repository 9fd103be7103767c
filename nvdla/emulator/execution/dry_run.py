"""A run without arithmetic: the firmware programs every operation, the engines decode and check their registers, and
the dependency graph is followed to its end."""

from __future__ import annotations

from nvdla.emulator.firmware.operation import check_budget
from nvdla.emulator.firmware.scheduler import FirmwareTask, Scheduler
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.machine import Rehearsal
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.errors import LinkError, NvdlaError, ScheduleError
from nvdla.limits import Limits
from nvdla.loadable.descriptors.abi import Abi
from nvdla.loadable.enums import Interface
from nvdla.loadable.model import Loadable


def dry_run(
    loadable: Loadable, abi: Abi, config: Configuration, flat: bool = False, linked: LinkedLoadable | None = None
) -> tuple[str | None, list[str]]:
    """Return the reason why the loadable cannot run on the configuration (None if it can), and warnings.

    ``flat`` lets an access continue in the memory that follows its region, as hardware does. ``linked`` is the memory
    image to use, instead of a new one; it is not changed.
    """
    warnings: list[str] = []
    try:
        _rehearse(loadable, abi, config, flat, warnings, linked)
    except ScheduleError as error:
        return f"the dry run does not finish: {error}", warnings
    except NvdlaError as error:
        return str(error), warnings
    return None, warnings


def deadlock(
    loadable: Loadable, abi: Abi, config: Configuration, linked: LinkedLoadable | None = None
) -> ScheduleError | None:
    """Return why a run of the loadable never ends, None where it ends or is refused for another reason.

    ``linked``: the linked loadable, whose descriptors count their dependencies down.
    """
    try:
        _rehearse(loadable, abi, config, True, [], linked, within_budget=False)
    except ScheduleError as error:
        return error
    except NvdlaError:
        return None
    return None


def _rehearse(
    loadable: Loadable,
    abi: Abi,
    config: Configuration,
    flat: bool,
    warnings: list[str],
    linked: LinkedLoadable | None = None,
    within_budget: bool = True,
) -> None:
    """Run without arithmetic and add the warnings of the machine to ``warnings``. Raises NvdlaError, also for a run
    that exceeds the limits of runs, unless ``within_budget`` is false."""
    linked = linked or LinkedLoadable(loadable, flat=flat)
    tasks = [
        FirmwareTask(linked, loadable.task(task_id), abi, config)
        for entry in loadable.submit_order
        for task_id in entry.task_ids
        if loadable.task(task_id).interface == Interface.DLA1
    ]
    if within_budget:
        check_budget((operation for task in tasks for operation in task.operations()), Limits())
    machine = Rehearsal(config, linked.space)
    machine.warnings = warnings
    scheduler = Scheduler(machine)
    for task in tasks:
        task.check()
        scheduler.run(task)


def silent_warnings(
    loadable: Loadable, abi: Abi, config: Configuration, strict: bool = False, linked: LinkedLoadable | None = None
) -> list[str]:
    """Return the warnings that ``Runtime.warnings`` contains after a run. Raises LinkError with ``strict`` for an
    access that leaves its memory. ``linked`` is the memory image of a runtime; it is not changed."""
    problem, warnings = dry_run(loadable, abi, config, linked=linked)
    if problem is None:
        return warnings
    flat_problem, warnings = dry_run(loadable, abi, config, flat=True)
    if strict and flat_problem is None and warnings:
        raise LinkError(problem)
    return warnings
