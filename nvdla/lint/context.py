"""What the rules look at: a loadable decoded as far as it goes, under a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nvdla.descriptors.enums import OpType
from nvdla.descriptors.task import DlaTask, EmuTask
from nvdla.loadable.model import AddressEntry
from nvdla.program.handover import by_task
from nvdla.program.operation import Operation
from nvdla.program.view import OfProgram


@dataclass(frozen=True)
class Context(OfProgram):
    """A program (made with ``checked=False``) with the names that rules use for its parts."""

    @property
    def layers(self) -> Mapping[tuple[int, int], str]:
        """(task, operation) -> name of the layer."""
        return self.program.layers

    @property
    def tasks(self) -> dict[int, DlaTask]:
        """Decoded tasks of the accelerator by id."""
        return self.program.dla_tasks

    @property
    def cpu_tasks(self) -> dict[int, EmuTask]:
        """Decoded tasks of the CPU by id."""
        return self.program.cpu_tasks

    @property
    def broken(self) -> Mapping[int, str]:
        """Why tasks could not be decoded, by task id."""
        return self.program.broken

    @property
    def subjects(self) -> list[Operation]:
        """All hardware operations of known type, task by task, of all ROIs."""
        return self.program.hardware_operations

    def operations_of(self, task: int) -> Sequence[Operation]:
        """The hardware operations of one task, of its first region of interest."""
        return self._by_task.get(task, ())

    @cached_property
    def _by_task(self) -> dict[int, list[Operation]]:
        return by_task([subject for subject in self.subjects if subject.roi == 0])

    def of_type(self, *types: OpType) -> Iterator[Operation]:
        """The operations of these engines."""
        return (subject for subject in self.subjects if subject.type in types)

    def address(self, subject: Operation, index: int) -> AddressEntry | None:
        """The entry behind an address index of an operation's task; None where it leads nowhere."""
        found = subject.finder.window(index)
        return None if found is None else found[0]
