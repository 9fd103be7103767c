"""Batches of layers whose weights do not fit the convolution buffer: parts of kernels, each for all images."""

from __future__ import annotations

import numpy as np
import pytest
from support.build_checks import samples

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import Network, build, calibrate, compiler
from nvdla.program.program import Program

NARROW = Memory(bytes_per_cycle=2, shared=True)


def wide(kernels: int = 208, channels: int = 96, pool: bool = False) -> Network:
    """More weights than the buffer of nv_small, 128 KiB, has room for; a bias, factors a channel and a limit."""
    rng = np.random.default_rng(0)
    net = Network("wide")
    x = net.input("in", (channels, 6, 6))
    x = net.clip("r", net.convolution("c", x, rng.normal(size=(kernels, channels, 3, 3)), rng.normal(size=kernels)))
    net.output(net.max_pool("p", x, 2) if pool else x)
    return net


def convolutions(built, config: str):
    return [each for each in Program.of(built.loadable, config).operations if each.engine == "conv"]


@pytest.mark.parametrize("images", [2, 3])
def test_weights_are_fetched_once_for_all_images(images):
    net = wide()
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    made = convolutions(build(net, "nv_small", "int8", scales, images=images, memory=NARROW), "nv_small")
    fetched = [each for each in made if not each.op.weight_reuse]
    weights = {each.surface.weight_data.offset: each.surface.weight_data.size for each in made}
    assert len(made) == images * len(fetched) and len(fetched) == len(weights) > 1
    assert sum(weights.values()) == 208 * 96 * 9
    assert sum(each.surface.dst_data.channel for each in fetched) == 208


@pytest.mark.parametrize(
    ("config", "precision", "kernels", "channels"),
    [("nv_small", "int8", 208, 96), ("nv_large", "int8", 200, 480), ("nv_full", "fp16", 168, 200)],
)
@pytest.mark.parametrize("pool", [False, True])
def test_every_image_has_the_results_that_it_has_alone(config, precision, kernels, channels, pool):
    net = wide(kernels, channels, pool)
    data = samples(net, np.random.default_rng(1), 3)
    scales = calibrate(net, data) if precision == "int8" else None
    built = build(net, config, precision, scales, True, images=3, memory=NARROW)
    one = build(net, config, precision, scales, True, level=0)
    elements = built.quantize_inputs(data)
    found = nvdla.Runtime(built.loadable, config, strict=True).run(elements)
    for image in range(3):
        alone = nvdla.Runtime(one.loadable, config).run({k: each[image : image + 1] for k, each in elements.items()})
        for name, each in alone.items():
            assert np.array_equal(found[name][image].view(np.uint8), each[0].view(np.uint8))
    if precision == "int8":
        assert all(np.array_equal(found[name], each) for name, each in built.expected(elements).items())
    assert not lint(built.loadable, config).findings


@pytest.mark.parametrize("memory", [None, NARROW])
def test_it_is_done_where_the_cycle_model_finds_it_faster(memory, monkeypatch):
    net = wide()
    scales = calibrate(net, samples(net, np.random.default_rng(1)))

    def cycles() -> int:
        made = build(net, "nv_small", "int8", scales, images=4, memory=memory)
        return Study.of(made.loadable, "nv_small", memory=memory).schedule.cycles

    chosen = cycles()
    monkeypatch.setattr(compiler, "programs_in_parts", lambda *given: ())
    never = cycles()
    assert chosen <= never
    if memory is not None:
        assert chosen < 0.8 * never


def test_one_image_and_level_0_stay_as_they_are():
    net = wide()
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    for settings in ({"images": 1}, {"images": 2, "level": 0}):
        built = build(net, "nv_small", "int8", scales, memory=NARROW, **settings)
        assert {each.surface.dst_data.channel for each in convolutions(built, "nv_small")} == {208}
