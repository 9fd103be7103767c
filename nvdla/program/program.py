"""What a loadable says, decoded once.

    program = Program.of(nvdla.load("lenet.nvdla"))
    for operation in program.operations:
        print(operation.label, operation.what, [access.role for access in operation.reads])

Whoever wants to know what an operation reads and writes, in which precision, behind whom, and on which configuration,
asks here. Nothing is run, and no kernel is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nvdla.argument_kinds import by_annotations
from nvdla.descriptors.abi import Abi
from nvdla.descriptors.detect import detect
from nvdla.descriptors.enums import OpType
from nvdla.descriptors.task import DlaTask, EmuTask, decode_tasks
from nvdla.errors import DescriptorError, NvdlaError
from nvdla.hardware.configuration import Configuration, configuration
from nvdla.limits import Limits
from nvdla.loadable.enums import Interface
from nvdla.loadable.model import Loadable
from nvdla.program.accesses import AccessFinder
from nvdla.program.choice import choose_configuration
from nvdla.program.handover import by_task, chains, queue_places, takers
from nvdla.program.operation import Key, Operation

Tasks = Mapping[int, DlaTask | EmuTask]
CHOSEN = "chosen by the caller"


@dataclass(frozen=True)
class Program:
    """A loadable decoded for one ABI and one configuration. ``abi_reason`` and ``config_reason`` say why these.

    ``tasks``: the decoded lists by task id; ``broken``: why others could not be decoded (only where the program was
    made with ``checked=False``). ``layers``: (task, operation) -> name.
    """

    loadable: Loadable
    abi: Abi
    abi_reason: str
    config: Configuration
    config_reason: str
    tasks: Tasks = field(repr=False)
    broken: Mapping[int, str] = field(default_factory=dict)
    layers: Mapping[tuple[int, int], str] = field(default_factory=dict, repr=False)

    @classmethod
    @by_annotations
    def of(
        cls,
        loadable: Loadable,
        config: str | Configuration = "auto",
        abi: str | Abi = "auto",
        layers: Mapping[tuple[int, int], str] | None = None,
        *,
        limits: Limits | None = None,
        checked: bool = True,
    ) -> Program:
        """Decode a loadable. ``config``: a configuration, its name, or "auto"; ``abi``: "auto", "old" or "new".

        ``checked=False`` decodes a broken file as far as it goes. Raises ConfigError for an unknown configuration,
        DescriptorError for descriptors that fit neither ABI and, when checked, for those that cannot be read.
        """
        known = configuration(config) if isinstance(config, str) and config != "auto" else config
        chosen, abi_reason = detect(loadable, abi)
        if checked:
            tasks, broken = decode_tasks(loadable, chosen, limits), dict[int, str]()
        else:
            tasks, broken = _as_far_as_it_goes(loadable, chosen)
        if isinstance(known, Configuration):
            found, reason = known, CHOSEN
        else:
            found, reason = _choose(loadable, chosen, tasks, checked)
        return cls(loadable, chosen, abi_reason, found, reason, tasks, broken, layers or {})

    @cached_property
    def operations(self) -> list[Operation]:
        """All operations: tasks in the order in which they are submitted, then as they stand in the lists.

        Those of an unknown type are left out.
        """
        hardware = by_task(self.hardware_operations)
        return [each for task in self.submitted for each in hardware.get(task) or self._of_cpu(task)]

    @property
    def submitted(self) -> list[int]:
        """Decoded tasks in the order in which they are submitted, each once; those that never are come last."""
        served = [task for entry in self.loadable.submit_order for task in entry.task_ids]
        return [task for task in dict.fromkeys([*served, *self.tasks]) if task in self.tasks]

    def _of_cpu(self, task_id: int) -> Iterator[Operation]:
        task = self.tasks[task_id]
        if not isinstance(task, EmuTask):
            return
        finder = AccessFinder(self.loadable, task.task, self.config)
        for found in task.operations():
            layer, key = self.layers.get((task_id, found.index)), (task_id, 0, found.index)
            yield Operation(key, None, layer, found.index, self.config, task, found, finder)

    def _of_hardware(self, task_id: int, task: DlaTask) -> Iterator[Operation]:
        finder = AccessFinder(self.loadable, task.task, self.config)
        places, count = queue_places(task), task.network.num_operations
        for roi in range(task.network.num_rois):
            for index in range(count):
                if task.dependencies[roi * count + index].op_type < len(OpType):
                    operation = task.operation(index, roi)
                    layer, place = self.layers.get((task_id, index)), places.get((roi, index), -1)
                    key = (task_id, roi, index)
                    yield Operation(key, operation.op_type, layer, place, self.config, task, operation, finder)

    @cached_property
    def hardware_operations(self) -> list[Operation]:
        """The operations of the accelerator, without those of the CPU."""
        tasks = {number: self.tasks[number] for number in self.submitted}
        dla = {number: task for number, task in tasks.items() if isinstance(task, DlaTask)}
        return [each for number, task in dla.items() for each in self._of_hardware(number, task)]

    @cached_property
    def by_key(self) -> dict[Key, Operation]:
        """Every operation by (task, region of interest, index)."""
        return {operation.key: operation for operation in self.operations}

    @cached_property
    def chains(self) -> list[list[Operation]]:
        """Operations that work together on the fly, first to last, in the order of their first."""
        return chains(self.operations)

    @cached_property
    def takers(self) -> dict[Key, Operation]:
        """Who takes an operation's result on the fly."""
        return takers(self.hardware_operations)

    @cached_property
    def dla_tasks(self) -> dict[int, DlaTask]:
        """Tasks of the accelerator by id, in list order."""
        return {number: task for number, task in self.tasks.items() if isinstance(task, DlaTask)}

    @cached_property
    def cpu_tasks(self) -> dict[int, EmuTask]:
        """Tasks of the CPU by id, in list order."""
        return {number: task for number, task in self.tasks.items() if isinstance(task, EmuTask)}


def _as_far_as_it_goes(loadable: Loadable, abi: Abi) -> tuple[dict[int, DlaTask | EmuTask], dict[int, str]]:
    """Tasks without the checks of what they say, and why those that are missing cannot be laid over their bytes."""
    tasks: dict[int, DlaTask | EmuTask] = {}
    broken: dict[int, str] = {}
    for task in loadable.tasks:
        kind = DlaTask if task.interface == Interface.DLA1 else EmuTask
        try:
            tasks[task.id] = kind.overlay(loadable, task, abi)
        except DescriptorError as error:
            broken[task.id] = str(error)
        except NvdlaError as error:
            broken[task.id] = f"task {task.id}: {error}"
    return tasks, broken


def _choose(loadable: Loadable, abi: Abi, tasks: Tasks, checked: bool) -> tuple[Configuration, str]:
    """The configuration that the file was made for; of a file that cannot be decoded nv_full."""
    if checked:
        return choose_configuration(loadable, tasks)
    try:
        return choose_configuration(loadable, decode_tasks(loadable, abi))
    except NvdlaError:
        return configuration("nv_full"), "its descriptors cannot be decoded"
