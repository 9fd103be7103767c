"""Level 2: the whole network is asked of the cycle model again and again, with one thing changed at a time.

What is changed are the forms of convolutions and the order of operations that do not wait for each other. A *step*
looks at all changes of one layer or operation and keeps the best; steps follow each other in a fixed order, until a
round of all of them saves less than 0.1 %. So equal inputs give equal loadables, with any number of processes. A time
limit ends the search between two steps; the same number of steps gives the same loadable anywhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study
from nvdla.argument_kinds import by_annotations
from nvdla.builder.emit import emit
from nvdla.builder.ir import LoweredProgram, Pool
from nvdla.builder.orders import Movable, moves, units_of
from nvdla.builder.packing import PackedWeights
from nvdla.builder.schedule import ScheduledDlaTask, schedule
from nvdla.builder.trials import Trials
from nvdla.builder.weigh import GAIN, USUAL, Habits, Weigher
from nvdla.errors import BuildError
from nvdla.hardware.configuration import Configuration

FORMS = 4
"""How many forms of a convolution a step tries, the fastest ones alone first."""
ROUNDS = 8
"""Rounds at most."""
WORTH_A_ROUND = 0.001
"""The share of the cycles that a round must save to be followed by another."""
GROWTH = 1.5
"""By how much the pool of surfaces may grow for an order that is faster: what overlaps needs bytes of its own."""
MAX_WORKERS = 256
SMALL = 32
"""Operations of a program of which level 1, too, asks the model as a whole."""

Told = Callable[[int, int, int], None]
"""Told after each step: steps done, steps of the round, cycles."""


@by_annotations
@dataclass(frozen=True)
class SearchLimits:
    """How long level 2 searches. ``time_limit`` in seconds and ``steps``: None for to the end; ``workers``: processes;
    ``progress(done, all, cycles)`` is told of every step.

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
        """The search of each of several networks: an equal part of the time."""
        if self.time_limit is None:
            return self
        return replace(self, time_limit=self.time_limit / max(parts, 1))


@dataclass(frozen=True)
class CodePlan:
    """What can be chosen: ``forms``: the place of the form of a convolution, by its position in the program; ``order``:
    the positions in the order in which they are done."""

    forms: Mapping[int, int]
    order: tuple[int, ...]

    def program(self, program: LoweredProgram) -> LoweredProgram:
        """The program in this order."""
        return replace(program, operations=[program.operations[each] for each in self.order])

    def wanted(self) -> dict[int, int]:
        """The forms by position in that program."""
        places = {position: place for place, position in enumerate(self.order)}
        return {places[position]: form for position, form in self.forms.items()}


@dataclass(frozen=True)
class Cost:
    """Of a point: cycles of the whole network, and bytes of the pool."""

    cycles: int
    pool: int


@dataclass
class Evaluator:
    """What a point costs: it is built, and studied as ``nvdla cycles`` does.

    ``cvsram``: bytes of it that surfaces may lie in; ``level`` of the weigher; ``known``: what was weighed, at this
    level; ``packed``: weights that were packed before (None: by whoever asks first).
    """

    program: LoweredProgram
    config: Configuration
    memory: Memory
    cvsram: int = 0
    level: int = 1
    known: dict[Any, Any] = field(default_factory=dict)
    packed: PackedWeights | None = None
    habits: Habits = USUAL

    def __call__(self, point: CodePlan) -> Cost:
        """Cycles and pool of a point."""
        if self.packed is None:
            self.packed = PackedWeights(self.program, self.config)
        weigher = self.weigher(point.wanted())
        loadable, _, plan = emit(point.program(self.program), self.config, weigher, self.packed, self.cvsram)
        return Cost(Study.of(loadable, self.config, memory=self.memory).schedule.cycles, plan.size)

    def as_it_is(self) -> Cost:
        """Of the program in its order, every form as the weigher finds it fastest."""
        return self(CodePlan({}, tuple(range(len(self.program.operations)))))

    def weigher(self, wanted: Mapping[int, int] | None = None) -> Weigher:
        """Who chooses forms; what one has weighed the next one knows."""
        return Weigher(self.config, self.level, self.memory, wanted or {}, self.known, habits=self.habits)


@dataclass(frozen=True)
class Found:
    """Where a search ended: ``program`` in its order, ``wanted`` forms for the weigher, and ``record``, plain data for
    the layer file, which says nothing of the machine."""

    program: LoweredProgram
    wanted: Mapping[int, int]
    record: dict[str, Any]


def habits_of(usual: Evaluator, thorough: bool) -> Habits:
    """What makes the whole network fastest. Pools of a batch may take their data from memory: one image's pool then
    works beside the next one's convolution, which it would hold back. Data that stay in the buffer may let results
    come too early for who takes them: that is asked of small networks, in which a few hundred cycles are many, and of
    others where one is ``thorough``."""
    program = usual.program
    known: dict[Habits, int] = {}

    def cycles(habits: Habits) -> int:
        if habits not in known:
            known[habits] = replace(usual, habits=habits).as_it_is().cycles
        return known[habits]

    found = usual.habits
    if program.images > 1 and any(isinstance(each, Pool) for each in program.operations):
        alone = replace(found, pools_alone=True)
        found = alone if cycles(alone) < GAIN * cycles(found) else found
    if (thorough or len(program.operations) <= SMALL) and _shares(replace(usual, habits=found)):
        again = replace(found, shares_data=False)
        found = again if cycles(again) < cycles(found) else found
    return found


def _shares(evaluator: Evaluator) -> bool:
    """Whether any convolution uses data again."""
    tasks = schedule(evaluator.program, evaluator.config, evaluator.weigher())
    dla = (task for task in tasks if isinstance(task, ScheduledDlaTask))
    return any(each.reuses_data for task in dla for each in task.operations)


def search(evaluator: Evaluator, settings: SearchLimits) -> Found:
    """The fastest point that was found from that of level 1 on."""
    deadline = math.inf if settings.time_limit is None else time.monotonic() + settings.time_limit
    program, start = evaluator.program, evaluator.weigher()
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
        start: Weigher,
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
                self._take(list(step()))
                self.steps += 1
                if self.settings.progress:
                    self.settings.progress(number + 1, len(steps), self.cost.cycles)
            if self.cost.cycles > (1 - WORTH_A_ROUND) * before.cycles:
                break
        self.complete = True

    def record(self) -> dict[str, Any]:
        """What the layer file keeps."""
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
