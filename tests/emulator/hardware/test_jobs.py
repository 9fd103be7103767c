"""The protocol of jobs: whoever writes an engine states what its jobs read and write."""

from __future__ import annotations

import importlib
import inspect
import re

import numpy as np
import pytest

from nvdla.emulator.hardware.job import Job
from nvdla.emulator.hardware.machine import ENGINES
from nvdla.emulator.memory.address_space import Lanes, Move
from nvdla.limits import Work


class Copy(Job):
    """A job of a new engine: it adds one to some bytes."""

    def __init__(self, source: np.ndarray, destination: np.ndarray) -> None:
        self.source, self.destination, self.statistics = source, destination, {}

    work = property(lambda self: Work(elements=self.source.size))
    reads = property(lambda self: [self.source])
    writes = property(lambda self: [self.destination])

    def run(self, source=None):
        self.destination[...] = self.source + 1

    def _relocate(self, move):
        self.source, self.destination = move(self.source), move(self.destination)


@pytest.mark.parametrize("forgotten", ["reads", "writes", "work", "run", "_relocate"])
def test_a_job_that_does_not_state_what_it_does_cannot_be_made(forgotten):
    stated = {name: value for name, value in vars(Copy).items() if name != forgotten and not name.startswith("__a")}
    incomplete = type("Incomplete", (Job,), stated)
    with pytest.raises(TypeError, match=f"abstract.*{forgotten}"):
        incomplete(np.zeros(4, np.uint8), np.zeros(4, np.uint8))


def test_a_job_that_states_it_works_in_lanes_and_in_other_memory():
    lanes = Lanes(3, 16)
    job = Copy(lanes.region(0, 4), lanes.region(8, 4))
    lanes.at(job.source, 1)[:] = 10
    lanes.at(job.source, 2)[:] = 20
    job.run_lanes(lanes, 2)
    assert [lanes.at(job.destination, lane)[0] for lane in (1, 2)] == [11, 21]
    other = Lanes(1, 16)
    moved = job.moved(Move(lanes, other))
    moved.source[:] = 30
    moved.run()
    assert other.region(8, 4).tolist() == [31] * 4
    assert job.destination[0] == 21
    assert moved.parts == (moved,)


def test_what_does_not_change_is_shared_between_memories():
    lanes, constant = Lanes(1, 16), np.full(4, 7, np.uint8)
    moved = Copy(constant, lanes.region(8, 4)).moved(Move(lanes, Lanes(1, 16)))
    assert moved.source is constant


def test_engines_decode_and_check_before_they_make_a_job():
    """Registers, settings, checks, job: the constructor of a job decodes no registers."""
    modules = [importlib.import_module(link.implementation.partition(":")[0]) for link in ENGINES.values()]
    kinds = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    jobs = [each for each in kinds if issubclass(each, Job) and each.__module__ != Job.__module__]
    assert len(jobs) >= 8
    for job in jobs:
        body = inspect.getsource(job.__init__)
        assert not re.search(r'\b(decode|check|require)\w*\(|"D_', body), f"{job.__name__}: {body}"
    for module in modules:
        assert callable(module.check)
