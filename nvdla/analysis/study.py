"""Everything that can be said of a loadable without running it: operations, cycles, schedule, values in memory.

study = Study.of(nvdla.load("lenet.nvdla"))
study.schedule.cycles
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.estimate import Estimate, estimates
from nvdla.analysis.cycles.schedule import Schedule, schedule
from nvdla.analysis.graph.nodes import Key, Node, chains, nodes_of
from nvdla.analysis.graph.values import Value, values_of
from nvdla.descriptors import Abi, decode_tasks, detect
from nvdla.firmware.choice import choose_configuration
from nvdla.hardware.configuration import Configuration, configuration
from nvdla.loadable import Loadable


@dataclass(frozen=True)
class Study:
    """A loadable looked at for one configuration and one memory behind it. Parts are made when they are asked for."""

    loadable: Loadable
    tasks: Mapping[int, Any]
    abi: Abi
    abi_reason: str
    config: Configuration
    config_reason: str
    memory: Memory
    software: int
    layers: Mapping[tuple[int, int], str]

    @classmethod
    def of(
        cls,
        loadable: Loadable,
        config: str = "auto",
        abi: str = "auto",
        memory: Memory | None = None,
        layers: Mapping[tuple[int, int], str] | None = None,
        software: int = 0,
    ) -> Study:
        """``config`` and ``abi`` as for :class:`nvdla.Runtime`; ``layers``: (task, operation) -> name.

        Raises NvdlaError for descriptors that cannot be read and configurations that do not exist.
        """
        chosen, abi_reason = detect(loadable, abi)
        tasks = decode_tasks(loadable, chosen)
        if config == "auto":
            found, reason = choose_configuration(loadable, tasks)
        else:
            found, reason = configuration(config), "chosen by the caller"
        return cls(loadable, tasks, chosen, abi_reason, found, reason, memory or Memory(), software, layers or {})

    @property
    def title(self) -> str:
        """The file's name without its folders, and the configuration."""
        return f"{PurePath(self.loadable.name).name} on {self.config.name}"

    @cached_property
    def nodes(self) -> list[Node]:
        return nodes_of(self.loadable, self.tasks, self.config, self.layers)

    @cached_property
    def by_key(self) -> dict[Key, Node]:
        return {node.key: node for node in self.nodes}

    @cached_property
    def chains(self) -> list[list[Node]]:
        """Operations that work together on the fly."""
        return chains(self.nodes)

    @cached_property
    def estimates(self) -> dict[Key, Estimate]:
        return estimates(self.nodes, self.config, self.memory)

    @cached_property
    def schedule(self) -> Schedule:
        return schedule(self.nodes, self.estimates, self.software)

    @cached_property
    def values(self) -> list[Value]:
        return values_of(self.loadable, self.steps)

    @cached_property
    def steps(self) -> list[list[Node]]:
        """The chains in the order in which they begin."""
        places = {key: place for place, key in enumerate(self.schedule.order)}
        return sorted(self.chains, key=lambda chain: places[chain[0].key])

    @cached_property
    def step_of(self) -> dict[Key, int]:
        """The step in which each operation runs."""
        return {node.key: step for step, chain in enumerate(self.steps) for node in chain}
