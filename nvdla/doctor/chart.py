"""What the doctor's checks look at: the linter's context, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from nvdla.diff.operands import operand
from nvdla.doctor.health import TensorHealth
from nvdla.doctor.scales import Scale, scales
from nvdla.lint.context import Context
from nvdla.lint.registry import Rule, rule
from nvdla.program.naming import Names
from nvdla.program.operation import Operation

CHECKS: list[Rule] = []
check = partial(rule, into=CHECKS)


@dataclass(frozen=True)
class Chart(Context):
    """``names``: layers and scales; ``calibration``: the table as it stands; ``tensors``: measured health, empty
    without a run; ``run_error``: why the loadable could not be run; ``accumulators``: saturated sums by convolution."""

    names: Names = field(default_factory=Names)
    calibration: dict[str, dict[str, Any]] | None = None
    tensors: dict[tuple[int, int], TensorHealth] = field(default_factory=dict)
    run_error: str | None = None
    accumulators: dict[tuple[int, int], int] = field(default_factory=dict)

    @cached_property
    def scales(self) -> list[Scale]:
        """Every converter of an integer operation."""
        return scales(self)

    @cached_property
    def by_place(self) -> dict[tuple[int, int], Operation]:
        """Operations of ROI 0 by task and index."""
        return {(each.task, each.index): each for each in self.subjects if each.roi == 0}

    def measured(self) -> Iterator[tuple[Operation, TensorHealth]]:
        """Every operation with what it was seen to write."""
        for place, health in self.tensors.items():
            if place in self.by_place:
                yield self.by_place[place], health

    def operand(self, subject: Operation, name: str) -> np.ndarray | None:
        """The elements of weights or operands that the loadable brings along."""
        return operand(self.loadable, subject, name)
