"""A batch gives what its images give one at a time."""

from __future__ import annotations

import numpy as np
import pytest
from support.branching import branching_network

import nvdla
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.execution.fused_convolution import FusedConvolution
from nvdla.emulator.execution.fusing import ConvolutionApart
from nvdla.emulator.execution.instances import LANE_BYTES, MOST_LANES, Batch, lanes_for
from nvdla.errors import FormatError, LinkError

SAMPLE_FILES = ["lenet.loadable", "lenet_nv_large.loadable", "color_digits.loadable"]


def random_images(runtime, count, seed=0):
    """``count`` raw inputs."""
    generator = np.random.default_rng(seed)
    images = []
    for _ in range(count):
        arrays = [generator.integers(-128, 128, each.shape).astype(each.dtype) for each in runtime.inputs]
        images.append([runtime.pack(index, array) for index, array in enumerate(arrays)])
    return images


@pytest.fixture(autouse=True)
def every_batch_is_faster(monkeypatch):
    """Batches of networks that run faster one by one give the same bytes, too."""
    monkeypatch.setattr(Batch, "is_faster", lambda self: True)


def batch_of(runtime):
    """The batch that the runtime has worked on."""
    instance = runtime._instances._batch
    return Batch(instance.plan, instance.linked.lanes)


def one_by_one(loadable, images, config="auto"):
    runtime = nvdla.Runtime(loadable, config)
    return [runtime.run_raw(image) for image in images]


@pytest.mark.parametrize("name", SAMPLE_FILES)
@pytest.mark.parametrize("count", [0, 1, 2, 5, MOST_LANES + 3])
def test_a_batch_equals_its_images_one_by_one(samples, name, count):
    loadable = nvdla.load(samples / name)
    runtime = nvdla.Runtime(loadable)
    images = random_images(runtime, count)
    assert runtime.run_many(images) == one_by_one(loadable, images)


def test_batches_of_any_size_and_single_runs_follow_each_other(lenet_loadable):
    runtime = nvdla.Runtime(lenet_loadable)
    images = random_images(runtime, 40)
    expected = one_by_one(lenet_loadable, images)
    assert runtime.run_raw(images[0]) == expected[0]
    assert runtime.run_many(images[:3]) == expected[:3]
    assert runtime.run_many(images) == expected
    assert runtime.run_raw(images[7]) == expected[7]
    assert runtime.run_many(images[10:12]) == expected[10:12]


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
def test_every_kind_of_layer_works_in_a_batch(config):
    network = branching_network()
    image = np.random.default_rng(1).standard_normal((1, 3, 17, 17))
    loadable = build(network, config, "int8", calibrate(network, image)).loadable
    runtime = nvdla.Runtime(loadable, config)
    images = random_images(runtime, 7)
    assert runtime.run_many(images) == one_by_one(loadable, images, config)


def test_convolutions_that_are_not_fused_go_one_by_one_within_a_batch():
    """A convolution with PReLU. (A concatenation of 16 + 16 channels on nv_large, whose atoms have 32, adds the second
    part to the first: that is fused.)"""
    random = np.random.default_rng(3)
    net = Network("joined")
    x = net.input("data", (8, 9, 9))
    parts = [
        net.relu(
            f"r{size}", net.convolution(f"c{size}", x, random.standard_normal((16, 8, size, size)), padding=size // 2)
        )
        for size in (1, 3)
    ]
    last = net.convolution("last", net.concat("joined", *parts), random.standard_normal((8, 32, 1, 1)))
    net.output(net.prelu("prelu", last, np.linspace(0.1, 0.9, 8)))
    ranges = calibrate(net, random.standard_normal((1, 8, 9, 9)))
    loadable = build(net, "nv_large", "int8", ranges).loadable
    runtime = nvdla.Runtime(loadable, "nv_large")
    images = random_images(runtime, 6)
    assert runtime.run_many(images) == one_by_one(loadable, images, "nv_large")
    batch = batch_of(runtime)
    assert batch.together() > 6
    assert batch.is_possible()
    assert any(isinstance(step.jobs[0], ConvolutionApart) for step in runtime._plan.fused)


def test_pooling_of_what_no_image_changes_in_a_batch(plant):
    """Average pooling that reads a layer's weights: they are not in lanes."""

    def change(task):
        operations = task.operations()
        weights = [each.surface.weight_data for each in operations if each.engine == "conv"]
        pools = [
            each.surface.src_data for each in operations if each.engine == "pdp" and each.surface.src_data.type == 0
        ]
        pools[-1].address = max(weights, key=lambda cube: cube.size).address
        pools[-1].offset = 0

    network = branching_network()
    ranges = calibrate(network, np.random.default_rng(1).standard_normal((1, 3, 17, 17)))
    loadable = plant(build(network, "nv_small", "int8", ranges).loadable, change)
    runtime = nvdla.Runtime(loadable, "nv_small")
    images = random_images(runtime, 3)
    assert runtime.run_many(images) == one_by_one(loadable, images, "nv_small")


@pytest.mark.slow
def test_batches_of_every_compiled_network_equal_single_runs(cases):
    generator = np.random.default_rng(0)
    for case in cases:
        if case["expect"] != "ok" or case["precision"] != "int8":
            continue
        loadable = nvdla.load(case["file"])
        runtime = nvdla.Runtime(loadable, case["config"])
        images = [
            [generator.integers(0, 256, each.size, np.uint8).tobytes() for each in runtime.inputs] for _ in range(3)
        ]
        assert runtime.run_many(images) == one_by_one(loadable, images, case["config"]), case["path"]


def test_a_wrong_image_in_a_batch_is_named_and_does_no_harm(lenet_loadable):
    runtime = nvdla.Runtime(lenet_loadable)
    images = random_images(runtime, 4)
    with pytest.raises(LinkError, match=r"must have \d+ bytes, got 3"):
        runtime.run_many([*images[:2], [b"abc"], images[3]])
    with pytest.raises(FormatError, match=r"inputs: must be 1 .*, got 2"):
        runtime.run_many([*images[:2], [*images[2], b""]])
    assert runtime.run_many(images) == one_by_one(lenet_loadable, images)


def test_a_batch_keeps_to_the_memory_limit(lenet_loadable):
    """Images run one by one where lanes exceed the limit."""
    single = nvdla.Runtime(lenet_loadable)
    images = random_images(single, 4)
    single.run_raw(images[0])
    runtime = nvdla.Runtime(lenet_loadable, memory_limit=single._linked.account.taken())
    assert runtime.run_many(images) == one_by_one(lenet_loadable, images)
    assert runtime._instances._batch is None


def test_networks_without_fused_convolutions_go_one_by_one(samples):
    loadable = nvdla.load(samples / "color_digits_nv_full_fp16.loadable")
    runtime = nvdla.Runtime(loadable)
    images = [[runtime.pack(0, np.full(runtime.inputs[0].shape, value, np.float16))] for value in (0, 1, 2)]
    assert runtime.run_many(images) == one_by_one(loadable, images)


def test_images_that_need_much_memory_besides_go_in_smaller_groups(lenet_loadable, monkeypatch):
    runtime = nvdla.Runtime(lenet_loadable)
    images = random_images(runtime, 9)
    expected = one_by_one(lenet_loadable, images)
    assert runtime.run_many(images) == expected
    batch = batch_of(runtime)
    assert batch.together() > 9
    monkeypatch.setattr(FusedConvolution, "scratch_bytes", LANE_BYTES // 2)
    assert batch.together() == 2
    again = nvdla.Runtime(lenet_loadable)
    assert again.run_many(images) == expected
    assert again._plan.state.lanes == 2


@pytest.mark.parametrize(
    ("images", "lane", "expected"), [(64, 100_000, 32), (5, 100_000, 5), (64, 16 << 20, 2), (9, 1 << 30, 1)]
)
def test_lanes_take_bounded_memory(images, lane, expected):
    assert lanes_for(images, lane) == expected
