"""Weights without their zeros on nv_full: chosen where the cycle model finds them faster, and the same results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build_checks import build_and_run, samples

import nvdla
from nvdla.analysis.explain import explanations
from nvdla.analysis.layer_forms import evaluate_layer, layers_of
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import BuildError, Built, Network, build, calibrate, cost_model, edit
from nvdla.compiler.builder.cost_model import CostModel, stored_weights
from nvdla.compiler.builder.ir import Convolve
from nvdla.emulator.hardware.configuration import configuration
from nvdla.emulator.hardware.convolution.cdma import decompress
from nvdla.emulator.memory.surfaces import compress
from nvdla.errors import ConfigError, FormatError, ScheduleError
from nvdla.loadable.descriptors.enums import WeightFormat
from nvdla.program.parameters import LoadableParameters
from nvdla.program.program import Program

SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
FULL = configuration("nv_full")


def sparse(shape, zeros: float, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < zeros, 0.0, rng.normal(size=shape))


def fully_connected(zeros: float, channels=512, kernels=256) -> Network:
    net = Network("layer")
    x = net.input("in", (channels, 1, 1))
    net.output(net.convolution("c", x, sparse((kernels, channels, 1, 1), zeros)))
    return net


def formats(built: Built, config: str = "nv_full") -> list[int]:
    """Of the weights of all convolutions."""
    return [each.op.weight_format for each in _convolutions(built, config)]


def _convolutions(built, config="nv_full"):
    return [each for each in Program.of(built.loadable, config).operations if each.engine == "conv"]


def made(net: Network, config="nv_full", precision="int8", **settings) -> Built:
    scales = None if precision == "fp16" else calibrate(net, samples(net, np.random.default_rng(1)))
    return build(net, config, precision, scales, input_format="feature", **settings)


@pytest.mark.parametrize("precision", ["int8", "int16", "fp16"])
def test_weights_of_many_zeros_are_compressed_where_their_fetch_is_waited_for(precision):
    net = fully_connected(0.8)
    built = build_and_run(net, "nv_full", precision, False, samples(net, np.random.default_rng(1)))
    assert formats(built) == [WeightFormat.COMPRESSED]
    plain = made(net, precision=precision, level=0)
    assert formats(plain) == [WeightFormat.UNCOMPRESSED]
    assert Study.of(built.loadable, FULL).schedule.cycles < Study.of(plain.loadable, FULL).schedule.cycles
    runs = [nvdla.Runtime(each.loadable, "nv_full") for each in (built, plain)]
    raw = [bytes(np.random.default_rng(2).integers(0, 100, runs[0].inputs[0].size, np.uint8))]
    assert [bytes(each) for each in runs[0].run_raw(raw)] == [bytes(each) for each in runs[1].run_raw(raw)]


def test_dense_weights_are_not_compressed():
    assert formats(made(fully_connected(0.0))) == [WeightFormat.UNCOMPRESSED]


def test_weights_that_arrive_early_are_not_compressed():
    net = Network("layer")
    net.output(net.convolution("c", net.input("in", (64, 32, 32)), sparse((64, 64, 1, 1), 0.8)))
    assert set(formats(made(net))) == {WeightFormat.UNCOMPRESSED}


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
def test_other_configurations_have_no_decompression(config):
    assert formats(made(fully_connected(0.8), config), config) == [WeightFormat.UNCOMPRESSED]


def test_the_mask_has_the_last_bank():
    net = fully_connected(0.6, 4096, 512)
    (conv,) = _convolutions(made(net))
    assert conv.op.weight_format == WeightFormat.COMPRESSED
    assert conv.op.data_bank + conv.op.weight_bank <= FULL.cbuf_banks - 1
    kernels = conv.surface.dst_data.channel
    assert conv.surface.wmb_data.size == kernels * 4096 // 8
    assert conv.surface.wgs_data.size == 4 * kernels // 32


@SETTINGS
@given(st.integers(1, 70), st.integers(1, 40), st.sampled_from([np.int8, np.int16, np.float16]), st.randoms())
def test_compressed_and_decompressed_is_what_it_was(kernels, each, dtype, random):
    rng = np.random.default_rng(random.getrandbits(32))
    elements = rng.integers(-2, 3, kernels * each).astype(dtype)
    elements[: each * 3] = 0
    group = 32 // elements.itemsize
    groups = [min(group, kernels - first) * each for first in range(0, kernels, group)]
    found = compress(elements, groups)
    stored, mask = np.frombuffer(found.stored, dtype), np.frombuffer(found.mask, np.uint8)
    assert np.array_equal(decompress(stored, mask, elements.size), elements)
    sizes = np.frombuffer(found.sizes, "<u4")
    assert sizes.sum() == len(found.stored)
    assert (sizes > 0).all(), "CDMA never reports a kernel group without a byte"


def test_what_is_weighed_is_what_is_stored():
    net = fully_connected(0.7, 100, 77)
    built = made(net)
    (operation,) = [each for each in built.program.operations if isinstance(each, Convolve)]
    (conv,) = _convolutions(built)
    expected = stored_weights(operation, FULL)
    assert expected is not None and conv.op.weight_format == WeightFormat.COMPRESSED
    surface = conv.surface
    assert (surface.weight_data.size, surface.wmb_data.size) == (expected.whole, expected.mask)
    assert surface.weight_data.size + surface.wmb_data.size + surface.wgs_data.size == expected.traffic


@pytest.fixture
def always(monkeypatch):
    """Compressed forms are taken, the faster or not."""

    def compressed_first(self, found, fewest):
        return next((place for place, each in enumerate(found) if each.compressed), 0)

    monkeypatch.setattr(cost_model, "WORTH_EVALUATING", -1e9)
    monkeypatch.setattr(CostModel, "_fastest", compressed_first)


@SETTINGS
@given(
    shape=st.tuples(st.integers(1, 140), st.integers(1, 9), st.integers(1, 9)),
    kernels=st.tuples(st.integers(1, 70), st.integers(1, 40)),
    size=st.sampled_from([1, 3]),
    zeros=st.sampled_from([0.3, 0.7, 0.95, 1.0]),
    images=st.integers(1, 3),
)
def test_any_shape_runs_and_gives_the_reference(always, shape, kernels, size, zeros, images):
    net = Network("two")
    first = net.convolution(
        "a", net.input("in", shape), sparse((kernels[0], shape[0], size, size), zeros), padding=size // 2
    )
    net.output(net.convolution("b", first, sparse((kernels[1], kernels[0], 1, 1), 0.5, 1)))
    built = made(net, images=images)
    assert not lint(built.loadable, "nv_full").findings
    elements = built.quantize_inputs(samples(net, np.random.default_rng(1), images))
    found, expected = nvdla.Runtime(built.loadable, "nv_full").run(elements), built.expected(elements)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_batch_fetches_compressed_weights_once(always):
    net = fully_connected(0.8)
    built = made(net, images=3)
    operations = [each.op for each in _convolutions(built)]
    assert {each.weight_format for each in operations} == {WeightFormat.COMPRESSED}
    assert [each.weight_reuse for each in operations] == [0, 1, 1]
    elements = built.quantize_inputs(samples(net, np.random.default_rng(1), 3))
    found, expected = nvdla.Runtime(built.loadable, "nv_full").run(elements), built.expected(elements)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_explain_lists_both_candidates(tmp_path):
    built = made(fully_connected(0.8))
    built.save(tmp_path / "a.loadable")
    (row,) = built.sidecar["evaluated"]["layers"]
    assert {form["compressed"] for form in row["forms"]} == {True, False}
    assert row["forms"][row["taken"]]["compressed"]
    (document,) = explanations(Study.of(built.loadable, FULL))
    assert document["weights_compressed"]


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_explain_weighs_compression_for_any_loadable(precision):
    """The same forms and cycles as the builder's, from the weights of a loadable that has them plain."""
    net = fully_connected(0.8)
    plain, sparse = made(net, precision=precision, level=0), made(net, precision=precision)
    row, other = (
        evaluate_layer(study, *layers_of(study))
        for study in (Study.of(each.loadable, FULL) for each in (plain, sparse))
    )
    (best, *_) = row["forms"]
    assert (best["compressed"], best["chosen"]) == (True, False)
    assert other["forms"][0]["chosen"] and other["forms"][0]["compressed"]
    assert best["cycles"] == other["forms"][0]["cycles"]
    assert any("weights compressed" in change["change"] for change in row["changes"])
    small = Study.of(made(net, "nv_small").loadable, "nv_small")
    assert not any(form["compressed"] for form in evaluate_layer(small, *layers_of(small))["forms"])


# ---- what is wrong with them


def test_lint_and_the_dry_run_know_the_bank_of_the_mask(plant):
    built = made(fully_connected(0.8))

    def all_banks(task):
        op = task.operation(0).op
        op.data_bank, op.weight_bank = 1, 15

    planted = plant(built.loadable, all_banks)
    assert "banks-fit-the-buffer" in {each.rule for each in lint(planted, "nv_full").findings}
    with pytest.raises(ConfigError, match="the last one is the mask's of compressed weights"):
        nvdla.Runtime(planted, "nv_full").run_raw([bytes(512)])


@pytest.mark.parametrize("name", ["wmb_data", "wgs_data"])
def test_lint_finds_mask_and_sizes_that_are_not_whole(plant, name):
    def shorter(task):
        cube = getattr(task.operation(0).surface, name)
        cube.size = 128 if name == "wmb_data" else 4

    planted = plant(made(fully_connected(0.8)).loadable, shorter)
    assert "compressed-weights-have-mask-and-sizes" in {each.rule for each in lint(planted, "nv_full").findings}


def test_a_mask_that_does_not_fit_its_bank_deadlocks(always, plant):
    built = made(fully_connected(0.9, 4096, 128), images=2)
    assert [each.op.skip_weight_rls for each in _convolutions(built)] == [0, 0], "64 KiB of mask, 32 of a bank"

    def kept(task):
        task.operation(0).op.skip_weight_rls = 1

    with pytest.raises(ScheduleError, match="deadlock: 65536 bytes of the mask"):
        nvdla.Runtime(plant(built.loadable, kept), "nv_full").run_raw([bytes(8192)])


def test_other_weights_keep_the_zeros_of_compressed_ones():
    net = fully_connected(0.8)
    built = made(net)
    (operation,) = [each for each in built.program.operations if isinstance(each, Convolve)]
    index = _convolutions(built)[0].index
    other = np.where(operation.weights != 0, 5, 0).astype(np.int8)
    changed = edit.replace_weights(built.loadable, 0, index, other, "nv_full")
    parameters = LoadableParameters(changed, FULL)
    (weights,) = [each for each in parameters.parameters() if each.name.endswith("weights")]
    assert np.array_equal(weights.as_array(), other)
    again = parameters.replaced({weights.name: weights})
    assert again.to_bytes() == changed.to_bytes()
    with pytest.raises(BuildError, match="must be 0 where the compressed weights omit zeros"):
        edit.replace_weights(built.loadable, 0, index, np.full_like(other, 5), "nv_full")
    dense = replace(weights, data=np.full_like(other, 5).tobytes())
    with pytest.raises(FormatError, match="Keep these zeros, or compile the network again"):
        parameters.replaced({weights.name: dense})
