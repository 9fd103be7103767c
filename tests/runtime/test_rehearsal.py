"""The first run of a large network: firmware and hardware go through all motions, and the plan's steps do the work."""

from __future__ import annotations

import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.execution.fused_convolution import FusedConvolution
from nvdla.emulator.execution.plan import Plan
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.emulator.hardware.machine import Rehearsal
from nvdla.errors import ConfigError
from nvdla.kernels.jit.compilation import fallback_work

SIDE = 20


def network(side):
    """Two layers of 64 kernels, the second with a summand."""
    random = np.random.default_rng(0)
    net = Network("two")
    first = net.convolution(
        "first", net.input("data", (64, side, side)), random.standard_normal((64, 64, 3, 3)), padding=1
    )
    second = net.convolution("second", first, random.standard_normal((64, 64, 3, 3)), padding=1)
    net.output(net.add("sum", first, second))
    image = random.standard_normal((1, 64, side, side))
    return build(net, "nv_large", "int8", calibrate(net, image)).loadable


@pytest.fixture(scope="module")
def large():
    return network(SIDE)


@pytest.fixture(scope="module")
def surface(large):
    return [np.random.default_rng(1).integers(0, 256, large.inputs[0].size, np.uint8).tobytes()]


@pytest.fixture(scope="module")
def observed(large, surface):
    """Outputs of the plain jobs, one after the other; the names of what was observed; and the firmware's steps."""
    runtime, events = nvdla.Runtime(large, "nv_large"), []
    outputs = runtime.run_raw(surface, on_operation=lambda event: events.append(event.engine))
    return outputs, events, runtime.steps


def forbidden(*_):
    raise AssertionError("this job is not to be done")


def test_the_first_run_is_that_of_the_plan(large, surface, observed, monkeypatch):
    monkeypatch.setattr(fallback_work, "take_run", lambda cost: False)
    monkeypatch.setattr(ConvolutionJob, "run", forbidden)
    runtime = nvdla.Runtime(large, "nv_large")
    assert runtime.run_raw(surface) == observed[0]
    assert runtime.run_raw(surface) == observed[0]
    assert runtime.steps == observed[2], "the firmware has gone its way"


def test_the_first_run_takes_numpy_alone_where_that_is_over_sooner(large, surface, observed, monkeypatch):
    """The jobs one by one; the second run has the fused steps."""
    monkeypatch.setattr(fallback_work, "fits_process", lambda: True)  # whatever threads other tests have left
    monkeypatch.setattr(fallback_work, "take_run", lambda cost: True)
    with monkeypatch.context() as patch:
        patch.setattr(FusedConvolution, "run", forbidden)
        patch.setattr(FusedConvolution, "records", forbidden)
        runtime = nvdla.Runtime(large, "nv_large")
        assert runtime.run_raw(surface) == observed[0]
    monkeypatch.setattr(ConvolutionJob, "run", forbidden)
    assert runtime.run_raw(surface) == observed[0]
    assert runtime.steps == observed[2]


def test_who_observes_sees_every_operation_afterwards(large, surface, observed):
    runtime, events = nvdla.Runtime(large, "nv_large"), []
    runtime.run_raw(surface)
    assert runtime.run_raw(surface, on_operation=lambda event: events.append(event.engine)) == observed[0]
    assert events == observed[1]


def test_a_small_network_runs_job_by_job_at_first(monkeypatch):
    loadable, rehearsals = network(4), []
    monkeypatch.setattr(Rehearsal, "__init__", lambda *_: rehearsals.append(1))
    runtime = nvdla.Runtime(loadable, "nv_large")
    runtime.run_raw([bytes(loadable.inputs[0].size)])
    assert not rehearsals


def test_what_cannot_be_repeated_is_left_to_the_firmware(large, surface, observed, monkeypatch):
    monkeypatch.setattr(Plan, "is_repeatable", lambda *_: False)
    runtime = nvdla.Runtime(large, "nv_large")
    assert [runtime.run_raw(surface) for _ in range(2)] == [observed[0]] * 2


def test_the_firmware_reports_an_error_with_the_name_of_the_operation(large, surface, monkeypatch):
    def fails(*_):
        raise ConfigError("the weights are odd")

    monkeypatch.setattr(Plan, "run", fails)
    monkeypatch.setattr(ConvolutionJob, "run", fails)
    with pytest.raises(ConfigError, match=r"operation 0.*the weights are odd"):
        nvdla.Runtime(large, "nv_large").run_raw(surface)


def test_an_error_of_the_fused_steps_alone_costs_time_only(large, surface, observed, monkeypatch):
    def fails(*_):
        raise ConfigError("this form does not exist")

    runtime = nvdla.Runtime(large, "nv_large")
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "run", fails)
        assert runtime.run_raw(surface) == observed[0]
    assert runtime.run_raw(surface) == observed[0]
