"""Everything that can be said of a loadable without running it: operations, cycles, schedule, values in memory.

study = Study.of(nvdla.load("lenet.nvdla"))
study.schedule.cycles
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import PurePath

from nvdla.analysis.cycles.constants import Board, Memory, Software
from nvdla.analysis.cycles.estimate import Estimate, estimates
from nvdla.analysis.cycles.schedule import ChainWork, Schedule, schedule
from nvdla.emulator.execution.dry_run import failure
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import DescriptorError, NvdlaError, ScheduleError
from nvdla.loadable.model import Loadable
from nvdla.program.operation import Key, Operation
from nvdla.program.program import Program, Tasks
from nvdla.program.values import OfProgram, Value, values_of
from nvdla.util.arguments import by_annotations

MAX_OPERATIONS = 1 << 16


@dataclass(frozen=True)
class Study(OfProgram):
    """Static analysis of a loadable for one configuration and memory; each part is computed on access."""

    memory: Memory
    software: Software
    board: Board | None = None
    """The preset that memory and software are from, or differ from in some values."""

    @classmethod
    @by_annotations
    def of(
        cls,
        loadable: Loadable,
        config: str | Configuration = "auto",
        abi: str = "auto",
        memory: Memory | None = None,
        layers: Mapping[tuple[int, int], str] | None = None,
        software: Software | None = None,
        board: Board | None = None,
    ) -> Study:
        """Analyze a loadable.

        Args:
            loadable: The loadable.
            config: A configuration, its name, or "auto".
            abi: "auto", "old" or "new".
            memory: External memory (default: as wide as the bus).
            layers: Layer names by (task, operation).
            software: Time that the firmware takes (default: none).
            board: Known board, for reports; memory and software are still those above.

        Returns:
            The study.

        Raises:
            ConfigError: The configuration is unknown.
            DescriptorError: A descriptor cannot be read, or the loadable has more than MAX_OPERATIONS operations.
        """
        program = Program.of(loadable, config, abi, layers)
        total = sum(len(task) for task in program.tasks.values())
        if total > MAX_OPERATIONS:
            raise DescriptorError(f"operations: must be at most {MAX_OPERATIONS}, got {total}")
        return cls(program, memory or Memory(), software or Software(), board)

    @property
    def config_reason(self) -> str:
        """Why it is this configuration."""
        return self.program.config_reason

    @property
    def abi_reason(self) -> str:
        """Why it is this ABI."""
        return self.program.abi_reason

    @property
    def tasks(self) -> Tasks:
        """The decoded tasks by id."""
        return self.program.tasks

    @property
    def title(self) -> str:
        """The file's name without its folders, and the configuration."""
        return f"{PurePath(self.loadable.name).name} on {self.config.name}"

    @property
    def operations(self) -> list[Operation]:
        """All operations, in the order in which the firmware gets them."""
        return self.program.operations

    @property
    def by_key(self) -> dict[Key, Operation]:
        """Every operation by (task, region of interest, index)."""
        return self.program.by_key

    @property
    def chains(self) -> list[list[Operation]]:
        """Operations that work together on the fly."""
        return self.program.chains

    @cached_property
    def estimates(self) -> dict[Key, Estimate]:
        """Return the cost of every operation by its key."""
        return estimates(self.operations, self.config, self.memory)

    @cached_property
    def failure(self) -> NvdlaError | None:
        """Why the hardware refuses a run or never ends it (ScheduleError), by a dry run; None where it ends."""
        return failure(self.loadable, self.abi, self.config)

    @property
    def deadlock(self) -> ScheduleError | None:
        """Why the hardware never ends a run; None where it does, or where the configuration refuses the loadable."""
        return self.failure if isinstance(self.failure, ScheduleError) else None

    def settle(self, failure: NvdlaError | None) -> None:
        """Take :attr:`failure` from a run or dry run that was done.

        Args:
            failure: Why that run was refused or never ended, None if it ended.
        """
        vars(self)["failure"] = failure

    def on(self, memory: Memory) -> Study:
        """Return the study on another memory.

        Args:
            memory: External memory.

        Returns:
            A study of the same program.
        """
        other = replace(self, memory=memory)
        other.settle(self.failure)  # which no memory changes
        return other

    @cached_property
    def schedule(self) -> Schedule:
        """Return when every operation runs, and which ones deadlock according to the graph or to the dry run."""
        schedule = self.schedule_if_it_ends()
        if self.deadlock and not schedule.stuck:
            stuck = [node.key for node in self.operations if node.label in self.deadlock.operations]
            schedule.stuck.extend(stuck or self.by_key)
        return schedule

    def schedule_if_it_ends(self) -> Schedule:
        """Return when every operation runs, without the dry run: for programs of the compiler, which end."""
        works = []
        for chain in self.chains:
            estimate = self.estimates[chain[0].key]
            works.append(ChainWork(chain, estimate.shape, estimate.constants, prod(chain[-1].output or (0,))))
        return schedule(works, self.memory, self.software)

    @cached_property
    def values(self) -> list[Value]:
        """Return the values in memory, from their first write to their last read."""
        return values_of(self.loadable, self.steps)

    @cached_property
    def steps(self) -> list[list[Operation]]:
        """The chains in the order in which they begin."""
        places = {key: place for place, key in enumerate(self.schedule.order)}
        return sorted(self.chains, key=lambda chain: places[chain[0].key])

    @cached_property
    def step_of(self) -> dict[Key, int]:
        """The step in which each operation runs."""
        return {node.key: step for step, chain in enumerate(self.steps) for node in chain}
