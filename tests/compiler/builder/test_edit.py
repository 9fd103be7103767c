"""Edited loadables verify, run, and give what they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.build_checks import samples

import nvdla
from nvdla.checks.lint import lint
from nvdla.compiler.builder import BuildError, Built, Network, build, calibrate
from nvdla.compiler.builder.edit import convert_abi, merge, rebind, rename, replace_operands, replace_weights, strip
from nvdla.loadable.descriptors.detect import detect
from nvdla.loadable.model import AddressEntry, Blob, MemoryEntry


def _net(weights: np.ndarray, bias: np.ndarray, name: str = "in") -> Network:
    net = Network()
    x = net.relu("r", net.convolution("c", net.input(name, (10, 9, 9)), weights, bias, padding=1))
    net.output(net.max_pool("p", x, 3, 2))
    return net


def _built(seed: int, config: str = "nv_small", precision: str = "int8", name: str = "in") -> Built:
    rng = np.random.default_rng(seed)
    net = _net(rng.uniform(-1, 1, (20, 10, 3, 3)), rng.normal(size=20), name)
    return build(net, config, precision, calibrate(net, samples(net, np.random.default_rng(9))))


def _run(loadable: nvdla.Loadable, config: str, elements) -> dict[str, np.ndarray]:
    return nvdla.Runtime(nvdla.load(loadable.to_bytes()), config=config).run(elements)


def _elements(built: Built, seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {root.name: (root.channels, root.height, root.width) for root in built.program.inputs}
    return built.quantize_inputs({name: rng.normal(size=shape) for name, shape in shapes.items()})


@pytest.mark.parametrize(("config", "precision"), [("nv_small", "int8"), ("nv_large", "int8"), ("nv_full", "fp16")])
def test_replaced_weights_and_biases_give_the_other_networks_results(config, precision):
    one, other = _built(1, config, precision), _built(2, config, precision)
    convolution = other.program.operations[0]
    edited = replace_weights(one.loadable, 0, 0, convolution.weights, config)
    bias = convolution.process.x1.alu_operand.astype(np.float16 if precision == "fp16" else np.int16)
    edited = replace_operands(edited, 0, 1, "x1", alu=bias)
    # Scales stay those of the first network, so its program with the other's numbers is the expectation.
    expected = one.program.operations[0]
    expected.weights, expected.process.x1.alu_operand = convolution.weights, convolution.process.x1.alu_operand
    elements = _elements(one)
    found = _run(edited, config, elements)["p"]
    if precision == "fp16":
        np.testing.assert_allclose(found, one.expected(elements)["p"], atol=0.02)
    else:
        np.testing.assert_array_equal(found, one.expected(elements)["p"])
    assert not np.array_equal(found, _run(one.loadable, config, elements)["p"])


def test_weights_of_another_size_or_type_are_refused():
    loadable = _built(1).loadable
    weights = np.zeros((20, 10, 3, 3), np.int8)
    for bad, message in [
        (weights[:, :9], r"must be 20x10x3x3 int8"),
        (weights.astype(np.int16), r"int16 must be 20x10x3x3 int8"),
    ]:
        with pytest.raises(BuildError, match=message):
            replace_weights(loadable, 0, 0, bad, "nv_small")
    with pytest.raises(BuildError, match="operation 0/1: must be CONV, got SDP"):
        replace_weights(loadable, 0, 1, weights, "nv_small")
    with pytest.raises(BuildError, match=r"operands 3 int16 must be 20 int16"):
        replace_operands(loadable, 0, 1, "x1", alu=np.zeros(3, np.int16))
    with pytest.raises(BuildError, match="stage x2: must have per-channel operands"):
        replace_operands(loadable, 0, 1, "x2", alu=np.zeros(20, np.int16))
    with pytest.raises(BuildError, match="stage x1: operands: must be alu"):
        replace_operands(loadable, 0, 1, "x1", multiplier=np.zeros(20, np.int16))


def _two_inputs() -> Built:
    net = Network()
    a, b = net.input("a", (3, 4, 4)), net.input("b", (3, 4, 4))
    net.output(net.scale("double", a, 2.0))
    net.output(net.add("sum", a, b))
    return build(net, "nv_small", "int8", calibrate(net, samples(net, np.random.default_rng(1))))


def test_renamed_and_rebound_tensors_run_under_their_new_names_and_order():
    built = _two_inputs()
    edited = rename(built.loadable, {"a": "left", "sum": "total"})
    edited = rebind(edited, ["b", "left"], ["total", "double"])
    runtime = nvdla.Runtime(nvdla.load(edited.to_bytes()), config="nv_small")
    assert [tensor.name for tensor in runtime.inputs] == ["b", "left"]
    assert [tensor.name for tensor in runtime.outputs] == ["total", "double"]
    elements = _elements(built)
    found = runtime.run({"left": elements["a"], "b": elements["b"]})
    np.testing.assert_array_equal(found["total"], built.expected(elements)["sum"])


def test_unknown_and_double_names_are_refused():
    loadable = _two_inputs().loadable
    with pytest.raises(BuildError, match="no tensor is called 'x': must be one of a, b"):
        rename(loadable, {"x": "y"})
    with pytest.raises(BuildError, match="names of tensors: must be unique, got b, b"):
        rename(loadable, {"a": "b"})
    with pytest.raises(BuildError, match="inputs: must be a, b in any order, got a"):
        rebind(loadable, ["a"])


def test_strip_leaves_out_what_nothing_reaches():
    built = _built(1)
    loadable = built.loadable
    free = max(memory.id for memory in loadable.memories) + 1
    padded = replace(
        loadable,
        memories=(*loadable.memories, MemoryEntry(free, 5000)),
        addresses=(*loadable.addresses, AddressEntry(free, free, 0, 5000)),
        blobs=(*loadable.blobs, Blob("unused", b"x" * 5000)),
    )
    stripped = strip(nvdla.load(padded.to_bytes()))
    assert stripped == loadable
    inserted = replace(padded, memories=(padded.memories[-1], *padded.memories[:-1]))
    for table in ("memories", "addresses", "tasks", "tensors"):
        found = [each.id for each in getattr(strip(nvdla.load(inserted.to_bytes())), table)]
        assert found == list(range(len(found))), "NVIDIA's runtime takes ids as positions"
    elements = _elements(built)
    np.testing.assert_array_equal(_run(stripped, "nv_small", elements)["p"], built.expected(elements)["p"])


def _softmax(config: str, precision: str) -> Built:
    net = Network()
    x = net.convolution("c", net.input("in", (8, 6, 6)), np.random.default_rng(1).normal(size=(8, 8, 3, 3)))
    x = net.concat("k", net.relu("r", x), net.sigmoid("s", x))
    x = net.fully_connected("f", x, np.random.default_rng(2).normal(size=(10, 256)))
    net.output(net.softmax("prob", x))
    return build(net, config, precision, calibrate(net, samples(net, np.random.default_rng(3))))


def test_changed_strides_reach_the_descriptors_of_converted_and_merged_loadables():
    """Relocations follow: a bound input with wider lines gives the same result."""
    built = _softmax("nv_full", "fp16")
    elements = _elements(built)
    wanted = _run(built.loadable, "nv_full", elements)["prob"]
    old = convert_abi(built.loadable, "old")
    for edited, name, others in (
        (built.loadable, "in", {}),
        (old, "in", {}),
        (strip(old), "in", {}),
        (merge(built.loadable, built.loadable), "in-2", elements),
    ):
        loadable = nvdla.load(edited.to_bytes())
        element, line, surface = next(each for each in loadable.tensors if each.name == name).strides[:3]
        strides = {name: (element, line + 64, surface + 6 * 64, 0, 0, 0, 0, 0)}
        found = nvdla.Runtime(loadable, config="nv_full", strides=strides).run({**others, name: elements["in"]})
        np.testing.assert_array_equal(found["prob-2" if others else "prob"], wanted)


def test_conversion_to_the_old_abi_and_back_keeps_results_and_relocations():
    built = _softmax("nv_full", "fp16")
    elements = _elements(built)
    wanted = _run(built.loadable, "nv_full", elements)["prob"]
    old = convert_abi(built.loadable, "old")
    assert not lint(nvdla.load(old.to_bytes()), "nv_full").findings
    assert detect(nvdla.load(old.to_bytes()))[0].name == "old"
    np.testing.assert_array_equal(_run(old, "nv_full", elements)["prob"], wanted)
    new = convert_abi(nvdla.load(old.to_bytes()), "new")
    assert detect(new)[0].name == "new"
    np.testing.assert_array_equal(_run(new, "nv_full", elements)["prob"], wanted)
    assert [each.offset for each in new.relocs] == [each.offset for each in built.loadable.relocs]
    assert [each.offset for each in old.relocs] != [each.offset for each in built.loadable.relocs]
    assert convert_abi(old, "old") is old


def test_scale_factors_of_cpu_tasks_cannot_go_into_the_old_abi():
    with pytest.raises(BuildError, match="the old ABI"):
        convert_abi(_softmax("nv_small", "int8").loadable, "old")


def test_merged_loadables_run_both_networks():
    one, other = _built(1), _built(2)
    merged = nvdla.load(merge(one.loadable, other.loadable).to_bytes())
    assert not lint(merged, "nv_small").findings
    runtime = nvdla.Runtime(merged, config="nv_small")
    assert [tensor.name for tensor in runtime.inputs] == ["in", "in-2"]
    elements, others = _elements(one), _elements(other, 4)
    found = runtime.run({"in": elements["in"], "in-2": others["in"]})
    np.testing.assert_array_equal(found["p"], one.expected(elements)["p"])
    np.testing.assert_array_equal(found["p-2"], other.expected(others)["p"])


def test_loadables_of_different_configurations_or_abis_do_not_merge():
    small = _built(1).loadable
    with pytest.raises(BuildError, match=r"FEATURE_X8 and FEATURE\. The loadables are for different configurations"):
        merge(small, _built(1, "nv_large").loadable)
    with pytest.raises(BuildError, match="descriptor ABIs: must be equal to merge, got new and old"):
        merge(small, convert_abi(_built(1).loadable, "old"))
