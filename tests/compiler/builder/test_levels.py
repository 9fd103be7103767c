"""Every level gives the same integers; what a level does is what the cycle model says is fastest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build_checks import TARGETS, build_and_run, samples
from support.random_networks import networks

import nvdla
from nvdla.analysis.alternatives import Geometry, alternatives
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import Network, SearchLimits, build, calibrate
from nvdla.compiler.builder.addresses import Extent, ExtentTable
from nvdla.emulator.hardware.configuration import configuration, configurations
from nvdla.program.program import Program

SETTINGS = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
INTEGERS = [target for target in TARGETS if target[1] != "fp16"]


def layer(shape, kernels=64, size=3, seed=0) -> Network:
    rng = np.random.default_rng(seed)
    net = Network("layer")
    x = net.input("in", shape)
    weights = rng.normal(size=(kernels, shape[0], size, size))
    net.output(net.convolution("c", x, weights, rng.normal(size=kernels), padding=size // 2))
    return net


def check_levels(net, config, precision, per_channel=False, search=None, **options) -> None:
    """Levels 0 to 2 give what the plain numpy reference says, byte for byte (halves within their rounding), are clean,
    and run on the emulator with the C model's books and nothing outside of their memories."""
    data = samples(net, np.random.default_rng(1), 1)
    scales = calibrate(net, data)
    for level in (0, 1, 2):
        limits = search if level == 2 else None
        built = build(net, config, precision, scales, per_channel, level=level, search=limits, **options)
        elements = built.quantize_inputs({name: values[0] for name, values in data.items()})
        found = nvdla.Runtime(built.loadable, config, strict=True).run(elements)
        for name, wanted in built.expected(elements).items():
            if precision != "fp16":
                assert found[name].tobytes() == wanted.tobytes(), (level, name)
                continue
            near = 0.02 * np.abs(wanted.astype(np.float64)).max() + 1e-6
            np.testing.assert_allclose(found[name].astype(np.float64), wanted.astype(np.float64), atol=near)
        rules = {finding.rule for finding in lint(built.loadable, config).findings}
        assert precision == "int16" or rules <= {"results-are-read"}  # a stride or a crop may leave out a whole result


@pytest.mark.parametrize(("config", "precision", "per_channel"), [*INTEGERS, ("nv_medium_512", "int8", True)])
@SETTINGS
@given(net=networks())
def test_random_networks_of_every_level_run_and_are_clean(config, precision, per_channel, net):
    check_levels(net, config, precision, per_channel)


@pytest.mark.slow
@pytest.mark.parametrize("config", sorted(configurations()))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(net=networks(), data=st.data())
def test_random_networks_on_every_configuration_with_any_option(config, net, data):
    """Long: any precision, memory, form of the input, number of steps, with CVSRAM where there is one."""
    chosen = configuration(config)
    precision = data.draw(st.sampled_from(chosen.precisions))
    rate = data.draw(st.sampled_from([None, 1.0, 8.0]))
    options = {
        "memory": Memory(bytes_per_cycle=rate, shared=data.draw(st.booleans())),
        "input_format": data.draw(st.sampled_from(["auto", "feature"])),
        "search": SearchLimits(steps=data.draw(st.sampled_from([0, 3, None]))),
        "cvsram": data.draw(st.sampled_from([0, 2048, 1 << 20])) if chosen.cvsram else 0,
    }
    check_levels(net, config, precision, **options)


@pytest.mark.parametrize("config", ["nv_small", "nv_large", "nv_full"])
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shape=st.tuples(st.integers(1, 150), st.integers(4, 40), st.integers(4, 40)),
    kernels=st.integers(1, 150),
    size=st.sampled_from([1, 3, 5]),
)
def test_convolutions_of_every_level_give_the_same_bytes(config, shape, kernels, size):
    net = layer(shape, kernels, size)
    data = samples(net, np.random.default_rng(1), 1)
    scales = calibrate(net, data)
    results = []
    for level in (0, 1, 2):
        built = build(net, config, "int8", scales, level=level, input_format="feature")
        results.append(nvdla.Runtime(built.loadable, config).run(built.quantize_inputs(data["in"][0]))["c"])
    assert all(np.array_equal(results[0], each) for each in results[1:])


def test_parts_of_a_convolution_keep_their_weights_and_overlap():
    net = layer((256, 28, 28), 64, 1)
    scales = calibrate(net, samples(net, np.random.default_rng(1), 1))
    made = {level: build(net, "nv_large", "int8", scales, level=level).loadable for level in (0, 1)}
    cycles = {level: Study.of(each, "nv_large").schedule.cycles for level, each in made.items()}
    assert cycles[1] < 0.9 * cycles[0]
    parts = [each.op for each in Program.of(made[1], "nv_large").operations if each.engine == "conv"]
    assert len(parts) > 1
    assert [part.weight_reuse for part in parts] == [0] + [1] * (len(parts) - 1)
    assert [part.skip_weight_rls for part in parts] == [1] * (len(parts) - 1) + [0]
    assert len({(part.data_bank, part.weight_bank) for part in parts}) == 1


@pytest.mark.parametrize("config", ["nv_small", "nv_medium_512", "nv_large", "nv_full"])
@pytest.mark.parametrize(("stride", "height"), [((2, 2), 28), ((3, 1), 17), ((2, 1), 2)])
def test_rows_that_a_stride_skips_are_not_fetched(config, stride, height):
    """A 1x1 convolution with a stride reads every second row: lines twice as far apart, and half of the bytes."""
    rng = np.random.default_rng(0)
    net = Network("skip")
    x = net.relu("r", net.convolution("a", net.input("in", (32, height, 20)), rng.normal(size=(40, 32, 1, 1))))
    net.output(net.convolution("b", x, rng.normal(size=(24, 40, 1, 1)), rng.normal(size=24), stride=stride))
    check_levels(net, config, "int8")
    scales = calibrate(net, samples(net, np.random.default_rng(1), 1))
    heights, lines = [], []
    for level in (0, 1):
        nodes = Program.of(build(net, config, "int8", scales, level=level).loadable, config).operations
        parts = [each for each in nodes if each.engine == "conv" and each.output[0] == 24]
        assert {each.op.conv_stride_y for each in parts} == {1 if level else stride[0]}
        heights.append(sum(each.surface.src_data.height for each in parts))
        lines.append(max(each.surface.src_data.line_stride for each in parts))
    used = (height - 1) // stride[0] + 1
    assert heights[1] == used <= heights[0]
    assert lines[1] == lines[0] * (stride[0] if used > 1 else 1)


def test_weights_leave_a_narrow_memory_to_the_data():
    """All weights in the buffer at once take half of the port from the data that the first product waits for."""
    net = layer((1024, 14, 14), 256, 1)
    memory = Memory(bytes_per_cycle=20, shared=True)
    check_levels(net, "nv_large", "int8", memory=memory)
    scales = calibrate(net, samples(net, np.random.default_rng(1), 1))
    loadable = build(net, "nv_large", "int8", scales, memory=memory).loadable
    (node,) = [each for each in Program.of(loadable, "nv_large").operations if each.engine == "conv"]
    assert node.op.weight_bank * configuration("nv_large").cbuf_bank_bytes < node.surface.weight_data.size
    assert Study.of(loadable, "nv_large", memory=memory).schedule.cycles < 44_000


def test_parts_run_on_every_configuration():
    for config, precision, per_channel in TARGETS:
        net = layer((96, 20, 24), 40, 3)
        build_and_run(net, config, precision, per_channel, samples(net, np.random.default_rng(1), 1))


def test_alternatives_are_sorted_and_fit_the_buffer():
    config = configuration("nv_large")
    found = alternatives(Geometry((256, 56, 56), (64, 56, 56), (1, 1), 1, 1, 0), config)
    assert [each.cycles for each in found] == sorted(each.cycles for each in found)
    assert all(each.data_banks + each.weight_banks <= config.cbuf_banks for each in found)
    assert all(sum(count for _, count in each.parts) == 56 for each in found)
    assert all(len(each.parts) > 1 for each in found)  # 800 KB of data do not fit 512


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 4)), min_size=2, max_size=2),
    st.integers(1, 20),
)
def test_extents_meet_where_they_share_a_byte(pieces, step):
    """Never apart where a byte is shared; pieces of one step that lie apart are said to."""
    extents, contents = [], []
    for start, span, count in pieces:
        span = min(span, step)
        extents.append(Extent("m", start, start + (count - 1) * step + span, step, span))
        contents.append({start + n * step + each for n in range(count) for each in range(span)})
    table = ExtentTable(extents)
    meets = [table.meet(each).tolist() for each in extents]
    assert meets[0][1] == meets[1][0] and meets[0][0] and meets[1][1]
    assert meets[0][1] or not contents[0] & contents[1]
    bands = ExtentTable([Extent("m", 0, 100, 50, 20), Extent("n", 0, 100)])
    assert not bands.meet(Extent("m", 20, 100, 50, 30)).any()
