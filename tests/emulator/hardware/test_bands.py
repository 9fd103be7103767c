"""Bands of rows as one job: where they are those of one layer it writes the same bytes, else there is none."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.execution.fused_convolution import FusedConvolution, merged
from nvdla.emulator.execution.plan import merge_bands
from nvdla.emulator.memory.address_space import Lanes
from nvdla.kernels.fast.dot_tile import available

pytestmark = pytest.mark.skipif(not available(), reason="this processor has no AVX512-VNNI: nothing is fused")


@pytest.fixture(scope="module")
def runtime():
    """On nv_small: convolutions of every kind that the builder cuts into bands, and a sum."""
    random = np.random.default_rng(2)
    net = Network("bands")

    def convolution(name, x, kernels, width, stride=1):
        weights = random.standard_normal((kernels, x.shape[0], width, width)) / width
        return net.convolution(name, x, weights, np.zeros(kernels), padding=width // 2, stride=stride)

    x = convolution("first", net.input("data", (64, 56, 56)), 64, 3)
    y = convolution("second", x, 64, 1)
    x = net.relu("relu", net.add("sum", convolution("third", y, 64, 3), x))
    net.output(convolution("last", x, 32, 3, stride=2))
    image = random.standard_normal((1, 64, 56, 56))
    made = nvdla.Runtime(build(net, "nv_small", "int8", calibrate(net, image)).loadable, "nv_small")
    surface = random.integers(-128, 128, made.inputs[0].size, np.int8).tobytes()
    for _ in range(3):
        made.run_raw([surface])
    made.surface = surface
    return made


def fused(runtime):
    return [
        job for step in runtime._plan.fused for job in getattr(step, "jobs", ()) if isinstance(job, FusedConvolution)
    ]


def test_all_bands_of_a_layer_become_one_job(runtime):
    jobs = fused(runtime)
    operations = len([job for _, job in runtime.operations() if job is not None])
    assert len(jobs) < operations / 4
    assert sum(len(job.parts) for job in jobs) <= operations
    assert any(len(job.parts) > 4 and job.sdp.sources[1] is not None for job in jobs), "sums are among them"
    assert any(len(job.parts) > 4 and job._in_place for job in jobs), "1 x 1 kernels are among them"


def test_they_write_what_single_operations_write(runtime):
    assert runtime.run_raw([runtime.surface]) == runtime.run_raw([runtime.surface], on_operation=lambda event: None)
    images = [[bytes(np.roll(np.frombuffer(runtime.surface, np.uint8), shift))] for shift in range(5)]
    assert runtime.run_many(images) == [runtime.run_raw(image, on_operation=lambda event: None) for image in images]


def bands_of(runtime, number):
    """The bands of a merged job, each a job of its own again."""
    job = [each for each in fused(runtime) if len(each.parts) > 4][number]
    parts = job.parts
    return [job.whole(parts[at], parts[at + 1], parts[at : at + 2]) for at in range(0, len(parts), 2)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_bands_are_merged_only_in_their_order(runtime, number):
    bands = bands_of(runtime, number)
    assert merged(bands) is not None
    assert merged(bands[::-1]) is None
    assert len(bands) == 2 or merged([bands[0], *bands[2:]]) is None, "rows between them are missing"


def test_a_middle_band_that_pads_is_not_merged(runtime):
    """Padding inside the layer is not what the whole would read there."""
    bands = bands_of(runtime, 0)
    conv = bands[1].conv
    settings = replace(conv.settings, pad_top=1)
    other = copy.copy(conv)
    other.settings = settings
    assert merged([bands[0], bands[1].whole(other, bands[1].sdp, bands[1].parts)]) is None


def test_other_weights_are_another_layer(runtime):
    jobs = fused(runtime)
    assert not jobs[0].is_alike(jobs[-1])
    assert len(merge_bands(runtime._plan.fused)) == len(runtime._plan.fused), "what is merged is merged once"


def test_results_over_data_are_not_merged(runtime):
    """A later band would read what an earlier one has written."""
    bands = bands_of(runtime, 0)
    source = bands[0].conv.source.views[0]
    for band in bands:
        moved = source[:, : band.destination.shape[1]]
        band.sdp = copy.copy(band.sdp)
        band.sdp.destinations = [moved]
    assert merged(bands) is None
    assert isinstance(runtime._linked.lanes, Lanes)
