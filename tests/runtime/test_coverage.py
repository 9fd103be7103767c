"""A run writes all memory that it does not clear before it reads it: old contents do not change the outputs."""

from __future__ import annotations

import numpy as np
import pytest

import nvdla
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.compiler.warm_up import _network
from nvdla.kernels.fast.dot_tile import available

SAMPLES = ("lenet", "lenet_nv_large", "color_digits", "saturating", "flipped", "lenet_nv_full_fp16")


def scribble(runtime, seed):
    """Anything in all memories that a run does not clear."""
    plan, random = runtime._plan, np.random.default_rng(seed)
    memories = (plan.written | plan.dirty) & runtime._linked.changing - plan.cleared
    for each in memories:
        data = runtime._linked.regions[each].data
        data[:] = random.integers(0, 256, data.size)
    return memories


def assert_the_same_over_anything(runtime):
    random = np.random.default_rng(4)
    images = [[random.integers(-60, 60, each.size, np.int8).tobytes() for each in runtime.inputs] for _ in range(3)]
    firsts = [nvdla.Runtime(runtime.loadable, runtime.config.name).run_raw(image) for image in images]
    for _ in range(2):
        runtime.run_raw(images[0])
    found = scribble(runtime, 1)
    for seed, (image, first) in enumerate(zip(images, firsts, strict=True)):
        scribble(runtime, seed)
        assert runtime.run_raw(image) == first
        scribble(runtime, seed)
        assert runtime.run_raw(image, on_operation=lambda event: None) == first
    assert runtime.run_many([*images, *images]) == firsts + firsts
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(samples, name):
    assert_the_same_over_anything(nvdla.Runtime(nvdla.load(samples / f"{name}.loadable")))


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
def test_surfaces_of_a_network_need_no_clearing(config):
    network = _network(12)
    image = np.random.default_rng(1).standard_normal((1, *network.inputs[0].shape))
    made = build(network, config, "int8", calibrate(network, image)).loadable
    found = assert_the_same_over_anything(nvdla.Runtime(made, config))
    assert found or not available(), "memories that only hold surfaces are left alone"


def test_an_output_with_gaps_is_cleared():
    """Bytes of an output that no job writes are zero after every run."""
    net = Network("gaps")
    random = np.random.default_rng(1)
    net.output(net.convolution("conv", net.input("data", (3, 4, 4)), random.standard_normal((5, 3, 1, 1)), np.zeros(5)))
    loadable = build(net, "nv_small", "int8", calibrate(net, random.standard_normal((1, 3, 4, 4)))).loadable
    runtime = nvdla.Runtime(loadable, "nv_small")
    surface = bytes(runtime.inputs[0].size)
    first = runtime.run_raw([surface])
    runtime.run_raw([surface])
    output = runtime.outputs[0].memory.id
    runtime._linked.regions[output].data[:] = 0x77
    assert runtime.run_raw([surface]) == first
