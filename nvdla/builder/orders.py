"""Orders of a program's operations: what may stand where, and the moves of one operation.

Operations that one chain on the fly covers are one unit and stay together. A unit stays behind what makes or frees what
it touches, and in its part between two operations of the CPU, which are tasks of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvdla.builder.ir import LoweredProgram, Operation, Softmax, Surface, reads, writes
from nvdla.builder.schedule import ScheduledDlaTask, Task


@dataclass(frozen=True)
class Movable:
    """Operations that stay together, by position in the program; ``after``: positions of operations that come before
    (what it reads, or what writes a part of the same tensor)."""

    positions: tuple[int, ...]
    after: frozenset[int]


def units_of(program: LoweredProgram, tasks: list[Task]) -> list[Movable]:
    """The units of a program, in its order. ``tasks``: as scheduled, which says what works on the fly."""
    behind = {
        hardware.position
        for task in tasks
        if isinstance(task, ScheduledDlaTask)
        for hardware in task.operations
        if hardware.position != hardware.chain[0].position
    }
    groups: list[list[int]] = []
    for position in range(len(program.operations)):
        if position in behind:
            groups[-1].append(position)
        else:
            groups.append([position])
    needs = _needs(program.operations)
    return [
        Movable(tuple(group), frozenset(need for each in group for need in needs[each]) - set(group))
        for group in groups
    ]


def _needs(operations: Sequence[Operation]) -> list[set[int]]:
    """The operations that each must follow: makers of what it reads, whoever touched what it writes, and everything on
    the other side of a CPU task."""
    touched: dict[int, list[tuple[int, Surface, bool]]] = {}
    needs: list[set[int]] = []
    barrier = -1
    for position, operation in enumerate(operations):
        uses = [(surface, False) for surface in reads(operation)] + [(writes(operation), True)]
        need = {
            earlier
            for surface, written in uses
            for earlier, other, was_written in touched.get(id(surface.root), ())
            if (written or was_written) and _may_meet(surface, other)
        }
        if isinstance(operation, Softmax):
            need |= set(range(max(barrier, 0), position))
            barrier = position
        elif barrier >= 0:
            need.add(barrier)
        needs.append(need)
        for surface, written in uses:
            touched.setdefault(id(surface.root), []).append((position, surface, written))
    return needs


def _may_meet(one: Surface, other: Surface) -> bool:
    """Whether two surfaces of a root may have an element in common: channels tell parts of a concatenation apart."""
    if type(one) is not Surface or type(other) is not Surface:
        return True
    first, second = (range(each.first_channel, each.first_channel + each.channels) for each in (one, other))
    return first.start < second.stop and second.start < first.stop


def moves(unit: Movable, units: Sequence[Movable], order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Other orders, in which the unit stands as early as it may, as late as it may, and one place earlier or later."""
    by_position = {position: each for each in units for position in each.positions}
    sequence = list(dict.fromkeys(by_position[position] for position in order))
    place = sequence.index(unit)
    rest = sequence[:place] + sequence[place + 1 :]
    first, last = _range(unit, rest)
    for wanted in dict.fromkeys((first, last, max(place - 1, first), min(place + 1, last))):
        if wanted != place:
            moved = [*rest[:wanted], unit, *rest[wanted:]]
            yield tuple(position for each in moved for position in each.positions)


def _range(unit: Movable, rest: list[Movable]) -> tuple[int, int]:
    """The first and the last place among the rest."""
    before = [place for place, each in enumerate(rest) if unit.after & set(each.positions)]
    behind = [place for place, each in enumerate(rest) if each.after & set(unit.positions)]
    return max(before, default=-1) + 1, min(behind, default=len(rest))
