"""Convolutions that are not fused: later runs give the bytes of the first, and pack no weights again."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.execution import fusing
from nvdla.emulator.execution.fused_convolution import FusedConvolution
from nvdla.emulator.execution.fusing import ConvolutionApart
from nvdla.kernels.fast.dot_tile import available


def bands(config, kernels=64):
    """Two layers in fp16 whose data and weights together do not fit the convolution buffer: bands of rows."""
    random, net = np.random.default_rng(3), Network("bands")
    x = net.input("data", (64, 56, 56))
    for name in ("first", "second"):
        weights = random.standard_normal((kernels, 64, 3, 3)) * 0.05
        x = net.relu(f"{name}_relu", net.convolution(name, x, weights, random.standard_normal(kernels), padding=1))
    net.output(x)
    return nvdla.Runtime(build(net, config, "fp16").loadable, config)


@pytest.fixture(scope="module")
def runtime():
    return bands("nv_full")


def image(runtime, seed):
    values = np.random.default_rng(seed).standard_normal(runtime.inputs[0].shape)
    return runtime.pack(0, values.astype(np.float16))


def apart(runtime):
    return [job for step in runtime._plan.fused for job in step.jobs if isinstance(job, ConvolutionApart)]


def test_later_runs_and_batches_give_the_bytes_of_the_firmware(runtime):
    images = [[image(runtime, seed)] for seed in range(3)]
    expected = [runtime.run_raw(each, on_operation=lambda event: None) for each in images]
    assert [runtime.run_raw(each) for each in images] == expected
    assert [runtime.run_raw(each) for each in images] == expected
    assert apart(runtime), "that is what ran"
    assert list(runtime.run_many(images)) == expected
    assert runtime.run_raw(images[0], on_operation=lambda event: None) == expected[0], "and back by the buffer"


def test_bands_of_a_layer_share_packed_weights_which_no_run_packs_again(runtime, monkeypatch):
    for seed in range(2):
        runtime.run_raw([image(runtime, seed)])
    jobs = apart(runtime)
    assert any(not job.conv.weights.fetches for job in jobs), "a band uses the weights of the one before"
    assert len({id(job._packed[0]) for job in jobs}) == 2
    for job in jobs:
        monkeypatch.setattr(job.conv.arithmetic, "pack", None)
    runtime.run_raw([image(runtime, 2)])


needs_dots = pytest.mark.skipif(not available(), reason="this processor has no dot products: nothing is fused")


@pytest.fixture(scope="module")
def on_one_cube():
    """Two convolutions on one cube, the second of which finds it in the convolution buffer."""
    random, net = np.random.default_rng(3), Network("joined")
    x = net.input("data", (8, 9, 9))
    parts = [
        net.convolution(f"c{size}", x, random.standard_normal((16, 8, size, size)), padding=size // 2)
        for size in (1, 3)
    ]
    net.output(net.concat("joined", *parts))
    ranges = calibrate(net, random.standard_normal((1, 8, 9, 9)))
    return nvdla.Runtime(build(net, "nv_large", "int8", ranges, level=2).loadable, "nv_large")


@needs_dots
def test_data_that_stay_in_the_buffer_are_taken_from_memory_again(on_one_cube):
    surface = bytes(range(256)) * (on_one_cube.inputs[0].size // 256 + 1)
    image = [surface[: on_one_cube.inputs[0].size]]
    expected = on_one_cube.run_raw(image, on_operation=lambda event: None)
    assert [on_one_cube.run_raw(image) for _ in range(3)] == [expected] * 3
    assert any(step.jobs[0].settings.data_reuse for step in on_one_cube._plan.steps)
    assert all(isinstance(step.jobs[0], FusedConvolution) for step in on_one_cube._plan.fused)
    assert on_one_cube.run_raw(image, on_operation=lambda event: None) == expected


def test_data_that_something_has_written_to_meanwhile_are_not(on_one_cube):
    on_one_cube.run_raw([bytes(on_one_cube.inputs[0].size)])
    steps = on_one_cube._plan.steps
    second = next(at for at, step in enumerate(steps) if step.jobs[0].settings.data_reuse)
    assert list(fusing._data_again(steps)) == [id(steps[second].jobs[0])]
    cube = steps[0].jobs[0].source.views[0]
    between = SimpleNamespace(writes=[cube[:, -1:]])
    assert not fusing._data_again([*steps[:second], between, *steps[second:]])


@pytest.mark.parametrize("change", [{"data": 4}, {"converter": None}, {"nan_to_zero": True}])
def test_data_that_would_be_fetched_in_another_way_are_not(on_one_cube, change):
    on_one_cube.run_raw([bytes(on_one_cube.inputs[0].size)])
    first, second = (step.jobs[0] for step in on_one_cube._plan.steps[:2])
    assert second.fetching_again(first)
    other = copy.copy(second)
    other.settings = replace(second.settings, **change)
    assert other.fetching_again(first) is None
    elsewhere = copy.copy(second)
    elsewhere.data = replace(second.data, read=first.data.written + 1)
    assert elsewhere.fetching_again(first) is None
