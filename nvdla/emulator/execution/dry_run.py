"""A run without arithmetic: the firmware programs every operation, the engines decode and check their registers, and
the dependency graph is followed to its end."""

from __future__ import annotations

from collections.abc import Sequence

from nvdla.emulator.cpu.task import CpuTask
from nvdla.emulator.firmware.operation import check_budget
from nvdla.emulator.firmware.scheduler import FirmwareTask, Scheduler
from nvdla.emulator.hardware.configuration import Configuration, configurations
from nvdla.emulator.hardware.machine import Rehearsal
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.emulator.memory.surfaces import FEATURE_ATOMS, MIDDLE_ATOM, feature_atom
from nvdla.errors import ConfigError, LinkError, NvdlaError, ScheduleError, on_one_line, sentence
from nvdla.limits import Limits
from nvdla.loadable.descriptors.abi import Abi
from nvdla.loadable.enums import Interface, PixelFormat
from nvdla.loadable.model import Loadable


def dry_run(
    loadable: Loadable, abi: Abi, config: Configuration, flat: bool = False, linked: LinkedLoadable | None = None
) -> tuple[str | None, list[str]]:
    """Return the reason why the loadable cannot run on the configuration (None if it can), and warnings.

    ``flat`` lets an access continue in the memory that follows its region, as hardware does. ``linked`` is the memory
    image to use, instead of a new one; its descriptors count their dependencies down.
    """
    warnings: list[str] = []
    try:
        _rehearse(loadable, abi, config, flat, warnings, linked)
    except ScheduleError as error:
        return f"the dry run does not finish: {error}", warnings
    except NvdlaError as error:
        return str(error), warnings
    return None, warnings


def failure(
    loadable: Loadable, abi: Abi, config: Configuration, linked: LinkedLoadable | None = None
) -> NvdlaError | None:
    """Return why a run of the loadable is refused, or never ends (ScheduleError); None where it ends.

    ``linked``: the linked loadable, whose descriptors count their dependencies down.
    """
    try:
        _rehearse(loadable, abi, config, True, [], linked, within_budget=False)
    except NvdlaError as error:
        return error
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
    for cpu_task in (task for task in loadable.tasks if task.interface == Interface.EMU1):
        CpuTask(linked, cpu_task, abi)  # refuses what it cannot compute
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
    access that leaves its memory. ``linked`` is the memory image of a runtime before a run, and afterwards again."""
    problem, warnings = dry_run(loadable, abi, config, linked=linked)
    if linked is not None:
        linked.reset()
    if problem is None:
        return warnings
    flat_problem, warnings = dry_run(loadable, abi, config, flat=True)
    if strict and flat_problem is None and warnings:
        raise LinkError(problem)
    return warnings


def able_configurations(loadable: Loadable, abi: Abi) -> list[str]:
    """Return the names of the built-in configurations that run a loadable without an error."""
    return [
        name
        for name, config in configurations().items()
        if _wrong_atom(loadable, config) is None and dry_run(loadable, abi, config, flat=True)[0] is None
    ]


def check_atoms(loadable: Loadable, abi: Abi, config: Configuration) -> None:
    """Raise ConfigError when a bound tensor's atoms are not those of the configuration's memory.

    FEATURE alone is not believed: NVIDIA's driver regression writes it for atoms of 8 bytes too.
    """
    if problem := _wrong_atom(loadable, config):
        raise ConfigError(problem + _able_text(loadable, abi))


def add_warnings(error: NvdlaError, warnings: Sequence[str]) -> None:
    """Add to the error of a run the warnings before it: a result outside its memory may have overwritten descriptors,
    so that the error is about another operation."""
    if warnings:
        error.args = (on_one_line(f"{sentence(error)} Before it: {'; '.join(warnings)}."),)


def name_able(error: NvdlaError, loadable: Loadable, abi: Abi, config: Configuration) -> None:
    """Add to the error of a run the configurations that run the loadable, if ``config`` does not."""
    if dry_run(loadable, abi, config, flat=True)[0] is not None and (text := _able_text(loadable, abi)):
        error.args = (on_one_line(str(error).removesuffix(".") + text),)


def _wrong_atom(loadable: Loadable, config: Configuration) -> str | None:
    """Describe the first bound tensor whose atoms have another size than those of the configuration's memory."""
    for memory in (*loadable.inputs, *loadable.outputs):
        tensor = loadable.tensor(memory.tensor_desc_id)
        atom = feature_atom(tensor)
        if atom in (FEATURE_ATOMS[PixelFormat.FEATURE_X8], MIDDLE_ATOM) and config.memory_atom != atom:
            return (
                f"tensor {tensor.name}: atom: must be {config.memory_atom} bytes on {config.name}, got {atom} "
                f"({tensor.pixel_format.name})"
            )
    return None


def _able_text(loadable: Loadable, abi: Abi) -> str:
    """A sentence to follow a problem; empty where no configuration runs the loadable."""
    names = able_configurations(loadable, abi)
    return f". The loadable runs without an error on {', '.join(names)}." if names else ""
