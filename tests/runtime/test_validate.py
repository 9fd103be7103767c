"""NVDLA_VALIDATE=1: fused jobs are held against the jobs that they stand for, in single runs and in batches."""

from __future__ import annotations

import numpy as np
import pytest

import nvdla
from nvdla.errors import ScheduleError
from nvdla.execution.validate import Validated
from nvdla.kernels.fast.dot_tile import available

SAMPLES = ["lenet.loadable", "lenet_nv_large.loadable", "colour_digits.loadable"]
needs_dots = pytest.mark.skipif(not available(), reason="this processor has no instructions for it: nothing is fused")


def images_of(runtime, count):
    generator = np.random.default_rng(3)
    return [
        [generator.integers(0, 256, each.size, np.uint8).tobytes() for each in runtime.inputs] for _ in range(count)
    ]


@needs_dots
@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_right_by_both(samples, name, monkeypatch):
    loadable = nvdla.load(samples / name)
    images = images_of(nvdla.Runtime(loadable), 5)
    expected = [nvdla.Runtime(loadable).run_raw(image) for image in images]
    monkeypatch.setenv("NVDLA_VALIDATE", "1")
    runtime = nvdla.Runtime(loadable)
    assert [runtime.run_raw(image) for image in images] == expected
    assert runtime.run_many(images) == expected
    assert any(isinstance(step, Validated) for step in runtime._plan.fused)


@needs_dots
@pytest.mark.parametrize("batch", [False, True])
def test_a_fused_job_that_is_wrong_is_found(samples, batch, monkeypatch):
    monkeypatch.setenv("NVDLA_VALIDATE", "1")
    runtime = nvdla.Runtime(nvdla.load(samples / "lenet.loadable"))
    images = images_of(runtime, 4)
    for _ in range(2):
        runtime.run_raw(images[0])
    job = next(step for step in runtime._plan.fused if isinstance(step, Validated)).jobs[0]
    job._alu[0] += 100
    with pytest.raises(ScheduleError, match="NVDLA_VALIDATE: the fused job of ConvolutionJob"):
        runtime.run_many(images) if batch else runtime.run_raw(images[0])


@pytest.mark.parametrize("value", ["", "0"])
def test_without_it_nothing_is_run_twice(samples, value, monkeypatch):
    monkeypatch.setenv("NVDLA_VALIDATE", value)
    runtime = nvdla.Runtime(nvdla.load(samples / "lenet.loadable"))
    for image in images_of(runtime, 2):
        runtime.run_raw(image)
    assert not any(isinstance(step, Validated) for step in runtime._plan.fused)
