"""Steps of a plan that one call of compiled code does, so that no Python runs between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nvdla.execution.steps import Chain, CpuStep, Step
from nvdla.hardware.job import Handed

if TYPE_CHECKING:
    from nvdla.kernels.jit.record import Record, Walk

STRETCH_WORK = 20_000_000
"""Nanoseconds of work, or so, after which Python is asked once more whether somebody wants to interrupt."""


def compiled_steps(steps: Sequence[Step]) -> list[Step | Walk]:
    """What does the steps in as few calls as possible: those that consist of records together, all others alone."""
    found: list[Step | Walk] = []
    open_records: list[Record] = []
    for step in steps:
        records = records_of(step)
        if records is not None and sum(each.work for each in open_records) < STRETCH_WORK:
            open_records += records
            continue
        found += _walks(open_records)
        open_records = records or []
        if records is None:
            found.append(step)
    return found + _walks(open_records)


def records_of(step: Step) -> list[Record] | None:
    """The records that do a step; None where Python has a part in it, or somebody must look at it."""
    if isinstance(step, CpuStep):
        return step.task.records()
    if type(step) is not Chain:
        return None
    records: list[Record] = []
    handed: Handed = None
    for job in step.jobs:
        made = job.records(handed)
        if made is None:
            return None
        records += made[0]
        handed = made[1]
    return records


def _walks(records: Sequence[Record]) -> list[Walk]:
    if not records:
        return []
    from nvdla.kernels.jit.record import JOINED, WAKING, Walk

    sharing = [each for each in records if each.sharing >= JOINED]
    if any(each.sharing == WAKING for each in sharing):
        sharing[0].sharing = WAKING  # helpers will be wanted: they are there sooner
    return [Walk(records)]
