"""Search for the cheapest loadable: orders of operations and trials on several processes.

Operations that one chain on the fly covers are one unit and stay together. A unit stays after the operations
that write its inputs or release its memory. It also stays between the same two operations of the CPU, which are
separate tasks.

What is changed are the forms of convolutions and the order of operations that do not wait for each other. A *step*
looks at all changes of one layer or operation and keeps the best; steps follow each other in a fixed order, until a
round of all of them saves less than 0.1 %, or ``PlanLimits.searched`` ends it. So equal inputs give equal loadables,
with any number of processes. A time limit ends the search between two steps; the same number of steps gives the same
loadable anywhere.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any

from nvdla import limits
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study
from nvdla.compiler.builder.cost_model import GAIN, USUAL_POLICY, CostModel, Policy
from nvdla.compiler.builder.emit import emit
from nvdla.compiler.builder.ir import LoweredProgram, Operation, Pool, Softmax, Surface, reads, writes
from nvdla.compiler.builder.packing import PackedWeights
from nvdla.compiler.builder.schedule import ScheduledDlaTask, Task, schedule
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import BuildError
from nvdla.kernels.threads import end_with_parent, interrupts_kept
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.processes import pool


@dataclass(frozen=True)
class Movable:
    """Operations that stay together, by position in the program; ``after``: positions of operations that come before
    (what it reads, or what writes a part of the same tensor)."""

    positions: tuple[int, ...]
    after: frozenset[int]


def units_of(program: LoweredProgram, tasks: list[Task]) -> list[Movable]:
    """The units of a program, in its order. ``tasks``: as scheduled, which says what works on the fly."""
    followers = {
        hardware.position
        for task in tasks
        if isinstance(task, ScheduledDlaTask)
        for hardware in task.operations
        if hardware.position != hardware.chain[0].position
    }
    groups: list[list[int]] = []
    for position in range(len(program.operations)):
        if position in followers:
            groups[-1].append(position)
        else:
            groups.append([position])
    needs = _needs(program.operations)
    return [
        Movable(tuple(group), frozenset(need for member in group for need in needs[member]) - set(group))
        for group in groups
    ]


def _needs(operations: Sequence[Operation]) -> list[set[int]]:
    """The operations that each must follow.

    These are the writers of its inputs, operations that read or wrote its result's memory, and everything on the other
    side of a CPU task.
    """
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


def _may_meet(surface: Surface, other: Surface) -> bool:
    """Return whether two surfaces of a root may have an element in common: channels tell parts of a concatenation
    apart."""
    if type(surface) is not Surface or type(other) is not Surface:
        return True
    first, second = (range(side.first_channel, side.first_channel + side.channels) for side in (surface, other))
    return first.start < second.stop and second.start < first.stop


def moves(unit: Movable, units: Sequence[Movable], order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Other orders, with the unit at its earliest and latest possible position, and one position earlier or later."""
    by_position = {position: movable for movable in units for position in movable.positions}
    sequence = list(dict.fromkeys(by_position[position] for position in order))
    place = sequence.index(unit)
    rest = sequence[:place] + sequence[place + 1 :]
    first, last = _range(unit, rest)
    for wanted in dict.fromkeys((first, last, max(place - 1, first), min(place + 1, last))):
        if wanted != place:
            moved = [*rest[:wanted], unit, *rest[wanted:]]
            yield tuple(position for movable in moved for position in movable.positions)


def _range(unit: Movable, rest: list[Movable]) -> tuple[int, int]:
    """The first and the last place among the rest."""
    before = [place for place, movable in enumerate(rest) if unit.after & set(movable.positions)]
    later = [place for place, movable in enumerate(rest) if movable.after & set(unit.positions)]
    return max(before, default=-1) + 1, min(later, default=len(rest))


_function: Callable[[Any], Any] | None = None


class Trials:
    """Calls a function for many arguments, in ``workers`` processes (1: in this one); results in order.

    Processes begin as copies of this one where that is safe. Use as a context: they end with it.
    """

    def __init__(self, function: Callable[[Any], Any], workers: int) -> None:
        self._call = function
        self._executor: ProcessPoolExecutor | None = None
        if workers > 1:
            self._executor = pool(workers, _begin, function)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is None:
            return
        processes = list((getattr(self._executor, "_processes", None) or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:  # interrupted or done: nothing under way is waited for
            process.terminate()

    def costs(self, points: Sequence[Any]) -> list[Any]:
        """The result of each point. Raises its error, or BuildError if a process died."""
        if self._executor is None or len(points) < 2:
            return [self._call(point) for point in points]
        try:
            with interrupts_kept():  # the first ones start the processes
                futures = [self._executor.submit(_do, point) for point in points]
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise BuildError("a process of the search was ended; search with fewer workers") from None


def _begin(function: Callable[[Any], Any], parent: int | None) -> None:
    """In a new process: Ctrl-C is the parent's, and so is the pipe that tells of signals."""
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    if parent is not None:
        end_with_parent(parent)
    _function = function


def _do(point: Any) -> Any:
    assert _function is not None, "the process began with its function"
    return _function(point)


FORMS = 4
"""Variants of a convolution that a step tries, those that are fastest alone first."""
ROUNDS = 8
"""Rounds at most."""
WORTH_A_ROUND = 0.001
"""The share of the cycles that a round must save to be followed by another."""
GROWTH = 1.5
"""Factor by which the pool of surfaces may grow for a faster order: overlapping operations need separate bytes."""
MAX_WORKERS = 256
SMALL = 32
"""Largest number of operations for which level 1 also evaluates the model of the whole program."""

Told = Callable[[int, int, int], None]
"""Told after each step: steps done, steps of the round, cycles."""


@by_annotations
@dataclass(frozen=True)
class SearchLimits:
    """Limits of the search of level 2.

    ``time_limit`` in seconds and ``steps``: None for no limit. ``workers``: processes.
    ``progress(done, all, cycles)`` is called after every step.

    Raises BuildError for a limit that is not positive and for numbers of processes below 1 or beyond MAX_WORKERS.
    """

    time_limit: float | None = None
    steps: int | None = None
    workers: int = 1
    progress: Told | None = None

    def __post_init__(self) -> None:
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise BuildError(f"time limit {self.time_limit:g} s: must be more than 0")
        if self.steps is not None and self.steps < 0:
            raise BuildError(f"{self.steps} steps of the search: must be 0 or more")
        if not 1 <= self.workers <= MAX_WORKERS:
            raise BuildError(f"{self.workers} workers: must be 1 .. {MAX_WORKERS}")

    def divided(self, parts: int) -> SearchLimits:
        """Divide the time limit equally among several networks.

        Args:
            parts: Number of networks.

        Returns:
            Limits of each network's search.
        """
        if self.time_limit is None:
            return self
        return replace(self, time_limit=self.time_limit / max(parts, 1))


@dataclass(frozen=True)
class CodePlan:
    """Choices of a search.

    ``forms``: index of the variant of a convolution, by its position in the program.
    ``order``: the positions in execution order.
    """

    forms: Mapping[int, int]
    order: tuple[int, ...]

    def program(self, program: LoweredProgram) -> LoweredProgram:
        """The program in this order."""
        return replace(program, operations=[program.operations[position] for position in self.order])

    def wanted(self) -> dict[int, int]:
        """The forms by position in that program."""
        places = {position: place for place, position in enumerate(self.order)}
        return {places[position]: form for position, form in self.forms.items()}


@dataclass(frozen=True)
class Cost:
    """Cost of a point: cycles of the whole network, and bytes of the pool."""

    cycles: int
    pool: int


@dataclass
class Evaluator:
    """Cost function of points: build each point and analyze it like ``nvdla cycles``.

    ``cvsram``: bytes of CVSRAM available for surfaces. ``level``: level of the cost model. ``known``: cache of
    evaluated candidates at this level. ``packed``: packed weights (None: the first call packs them).
    """

    program: LoweredProgram
    config: Configuration
    memory: Memory
    cvsram: int = 0
    level: int = 1
    known: dict[Any, Any] = field(default_factory=dict)
    packed: PackedWeights | None = None
    policy: Policy = USUAL_POLICY

    def __call__(self, point: CodePlan) -> Cost:
        """Cycles and pool of a point."""
        if self.packed is None:
            self.packed = PackedWeights(self.program, self.config)
        cost_model = self.cost_model(point.wanted())
        loadable, _, plan = emit(point.program(self.program), self.config, cost_model, self.packed, self.cvsram)
        return Cost(Study.of(loadable, self.config, memory=self.memory).schedule_if_it_ends().cycles, plan.size)

    def as_it_is(self) -> Cost:
        """Return the cost of the program in its order, with the fastest variants according to the cost model."""
        return self(CodePlan({}, tuple(range(len(self.program.operations)))))

    def cost_model(self, wanted: Mapping[int, int] | None = None) -> CostModel:
        """Return a cost model; all models of this evaluator share one cache."""
        return CostModel(self.config, self.level, self.memory, wanted or {}, self.known, policy=self.policy)


@dataclass(frozen=True)
class Found:
    """Result of a search: ``program`` in its order, ``wanted`` variants that the cost model must choose, and
    ``record``, plain data for the layer file, independent of the machine."""

    program: LoweredProgram
    wanted: Mapping[int, int]
    record: Document


def policy_of(usual: Evaluator, thorough: bool) -> Policy:
    """Return the policy with the lowest cycles of the whole network.

    Pools of a batch may read their data from memory: one image's pool then runs in parallel with the next image's
    convolution instead of delaying it. Data that stay in the buffer may produce results too early for their consumer.
    This is evaluated for small networks, where a few hundred cycles matter, and for others if ``thorough``.
    """
    program = usual.program
    known: dict[Policy, int] = {}

    def cycles(policy: Policy) -> int:
        if policy not in known:
            known[policy] = replace(usual, policy=policy).as_it_is().cycles
        return known[policy]

    policy = usual.policy
    if program.images > 1 and any(isinstance(operation, Pool) for operation in program.operations):
        alone = replace(policy, pools_alone=True)
        policy = alone if cycles(alone) < GAIN * cycles(policy) else policy
    if (thorough or len(program.operations) <= SMALL) and _shares(replace(usual, policy=policy)):
        again = replace(policy, shares_data=False)
        policy = again if cycles(again) < cycles(policy) else policy
    return policy


def _shares(evaluator: Evaluator) -> bool:
    """Return whether any convolution uses data again."""
    tasks = schedule(evaluator.program, evaluator.config, evaluator.cost_model())
    dla = (task for task in tasks if isinstance(task, ScheduledDlaTask))
    return any(hardware.reuses_data for task in dla for hardware in task.operations)


def search(evaluator: Evaluator, settings: SearchLimits) -> Found:
    """The fastest point that was found from that of level 1 on."""
    deadline = math.inf if settings.time_limit is None else time.monotonic() + settings.time_limit
    program, start = evaluator.program, evaluator.cost_model()
    _, tasks, _ = emit(program, evaluator.config, start)
    units = units_of(program, tasks)
    point = CodePlan({position: choice.taken for position, choice in start.choices.items()}, tuple(range(len(units))))
    point = replace(point, order=tuple(position for unit in units for position in unit.positions))
    with Trials(evaluator, settings.workers) as trials:
        walk = _Walk(start, units, point, trials, settings, deadline)
        walk.run()
    return Found(walk.point.program(program), walk.point.wanted(), walk.record())


class _Walk:
    """From a point to better ones, step by step."""

    def __init__(
        self,
        start: CostModel,
        units: list[Movable],
        point: CodePlan,
        trials: Trials,
        settings: SearchLimits,
        deadline: float,
    ) -> None:
        self.start, self.units, self.point = start, units, point
        self.trials, self.settings, self.deadline = trials, settings, deadline
        self.first = self.cost = trials.costs([point])[0]
        self.steps = self.tried = 0
        self.complete = False

    def run(self) -> None:
        """Rounds of all steps, until one finds nothing better, or time or steps are over."""
        for _ in range(ROUNDS):
            before = self.cost
            steps = self._round()
            for number, step in enumerate(steps):
                if self.steps == self.settings.steps or time.monotonic() > self.deadline:
                    return
                if self.tried * len(self.point.order) > limits.PLAN.searched:
                    return
                self._take(list(step()))
                self.steps += 1
                if self.settings.progress:
                    self.settings.progress(number + 1, len(steps), self.cost.cycles)
            if self.cost.cycles > (1 - WORTH_A_ROUND) * before.cycles:
                break
        self.complete = True

    def record(self) -> Document:
        """Return the record for the layer file."""
        return {
            "steps": self.steps,
            "complete": self.complete,
            "trials": self.tried,
            "cycles_before": self.first.cycles,
            "cycles": self.cost.cycles,
            "pool_before": self.first.pool,
            "pool": self.cost.pool,
        }

    def _round(self) -> list[Callable[[], Iterator[CodePlan]]]:
        """The steps of a round: operations in their order (few have other places), then layers, the longest first."""
        choices = self.start.choices
        longest = sorted(choices, key=lambda position: (-choices[position].forms[0].cycles, position))
        places = [self._places_of(unit) for unit in self.units]
        return places + [self._forms_of(position) for position in longest if len(choices[position].forms) > 1]

    def _forms_of(self, position: int) -> Callable[[], Iterator[CodePlan]]:
        def points() -> Iterator[CodePlan]:
            for form in range(min(FORMS, len(self.start.choices[position].forms))):
                if form != self.point.forms[position]:
                    yield replace(self.point, forms={**self.point.forms, position: form})

        return points

    def _places_of(self, unit: Movable) -> Callable[[], Iterator[CodePlan]]:
        def points() -> Iterator[CodePlan]:
            for order in moves(unit, self.units, self.point.order):
                yield replace(self.point, order=order)

        return points

    def _take(self, points: list[CodePlan]) -> None:
        """The best of the points where it is better than this one; of equal ones the first."""
        costs = self.trials.costs(points)
        self.tried += len(points)
        most = GROWTH * self.first.pool
        able = [(cost.cycles, place) for place, cost in enumerate(costs) if cost.pool <= max(most, self.cost.pool)]
        if able and min(able)[0] < self.cost.cycles:
            place = min(able)[1]
            self.point, self.cost = points[place], costs[place]
