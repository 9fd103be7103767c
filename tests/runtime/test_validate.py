"""NVDLA_VALIDATE: fused jobs are compared with their operations (1), operations with the specification (reference)."""

from __future__ import annotations

import numpy as np
import pytest
from support.convolution_layers import WEIGHTS
from support.image_bench import image_bench

import nvdla
from nvdla.emulator.cpu import softmax
from nvdla.emulator.execution.plan import Referenced, ReferencedCpu, Validated, checked
from nvdla.emulator.hardware.pdp import PdpJob
from nvdla.emulator.memory.address_space import Space
from nvdla.errors import ScheduleError
from nvdla.kernels import conv, pdp, sdp
from nvdla.kernels.fast.dot_tile import available

SAMPLES = ["lenet.loadable", "lenet_nv_large.loadable", "color_digits.loadable"]
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


def by_reference(samples, monkeypatch, name="lenet.loadable"):
    monkeypatch.setenv("NVDLA_VALIDATE", "reference")
    runtime = nvdla.Runtime(nvdla.load(samples / name))
    return runtime, images_of(runtime, 2)


@pytest.mark.parametrize("name", ["lenet.loadable", "lenet_nv_large.loadable"])
def test_the_samples_are_as_specified(samples, name, monkeypatch):
    """First run, repeated run, and a batch: convolution with an image, SDP, PDP, softmax."""
    loadable = nvdla.load(samples / name)
    images = images_of(nvdla.Runtime(loadable), 2)
    expected = [nvdla.Runtime(loadable).run_raw(image) for image in images]
    runtime, _ = by_reference(samples, monkeypatch, name)
    assert [runtime.run_raw(image) for image in images] == expected
    assert runtime.run_many(images) == expected
    assert all(isinstance(step, Referenced | ReferencedCpu) for step in runtime._plan.steps)
    assert {type(step) for step in runtime._plan.fused} <= {Referenced, ReferencedCpu, Validated}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["color_digits.loadable", "color_digits_nv_full_fp16.loadable", "lenet_nv_full_fp16.loadable"]
)
def test_the_larger_samples_are_as_specified(samples, name, monkeypatch):
    runtime, images = by_reference(samples, monkeypatch, name)
    for image in images:
        runtime.run_raw(image)


def off_by_one(kernel, at=-1):
    """A kernel that writes one element wrong: the last one of its argument ``at``."""

    def broken(*arguments):
        result = kernel(*arguments)
        arguments[at].reshape(-1)[-1:] ^= 1
        return result

    broken.for_work = lambda work, *arguments: broken(*arguments)
    return broken


CONVERT = conv.convert_input
BROKEN = [
    (conv, "deliver", -1, r"ConvolutionJob: image 0 surface \d+ line \d+ column \d+ channel \d+ must be -?\d+, got"),
    (sdp, "x_and_convert", -1, r"SdpJob: surface \d+ line \d+ column \d+ (byte|channel) \d+ must be -?\d+, got"),
    (pdp, "pool_extreme", 1, r"PdpJob: surface \d+ line \d+ column \d+ byte \d+ must be \d+, got \d+ \(1 of"),
]


@pytest.mark.parametrize(("module", "kernel", "at", "message"), BROKEN, ids=[each[1] for each in BROKEN])
def test_a_wrong_kernel_is_found_in_the_first_run(samples, module, kernel, at, message, monkeypatch):
    """The error names the operations of the chain, the engine and the element."""
    if kernel == "deliver":
        monkeypatch.setattr("nvdla.kernels.fast.dot_tile.available", lambda: False)
    monkeypatch.setattr(module, kernel, off_by_one(getattr(module, kernel), at))
    runtime, images = by_reference(samples, monkeypatch)
    with pytest.raises(ScheduleError, match=r"operation 0/\d+ \(\w+\).*: NVDLA_VALIDATE: " + message):
        runtime.run_raw(images[0])


def test_a_kernel_that_becomes_wrong_is_found_in_a_repeated_run(samples, monkeypatch):
    runtime, images = by_reference(samples, monkeypatch)
    for _ in range(2):
        runtime.run_raw(images[0])
    monkeypatch.setattr(PdpJob, "records", lambda self, source: None)
    monkeypatch.setattr(pdp, "pool_extreme", off_by_one(pdp.pool_extreme, 1))
    with pytest.raises(ScheduleError, match=r"NVDLA_VALIDATE: operation 0/\d+ \(PDP\): surface"):
        runtime.run_raw(images[1])


def test_a_wrong_softmax_is_found(samples, monkeypatch):
    monkeypatch.setattr(softmax, "record", lambda *_: None)
    monkeypatch.setattr(softmax, "saturate_int8", lambda quotient: (quotient + 1).astype(np.int8))
    runtime, images = by_reference(samples, monkeypatch)
    with pytest.raises(ScheduleError, match=r"NVDLA_VALIDATE: CPU operation 0 \(SOFTMAX\): element \d+ must be"):
        runtime.run_raw(images[0])


def test_a_wrong_converter_of_pixels_is_found(monkeypatch):
    """The elements that CDMA makes of pixels change the sums, which are compared."""
    bench = image_bench("T_R8", (6, 3), 0, CDMA__D_CVT_CFG=1, CDMA__D_CVT_SCALE=3)
    bench.memory.view(Space.DRAM, WEIGHTS, 128)[:] = 5
    checked(bench.engine.prepare(bench.groups()), None)
    monkeypatch.setattr(conv, "convert_input", lambda *given: CONVERT(*given) // 2)
    with pytest.raises(ScheduleError, match="NVDLA_VALIDATE: ConvolutionJob: image 0 surface 0 line 0"):
        checked(bench.engine.prepare(bench.groups()), None)
