"""How many groups of a convolution one dense convolution takes: weighed by the cycle model, said by explain."""

from __future__ import annotations

import numpy as np
import pytest
from support.build_checks import samples

import nvdla
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.cli.main import main
from nvdla.compiler.builder import Network, build, calibrate


def depthwise(channels: int, size: int, kernel: int = 3) -> tuple[Network, dict]:
    rng = np.random.default_rng(0)
    net = Network("depthwise")
    x = net.input("in", (channels, size, size))
    net.output(net.depthwise("dw", x, rng.normal(size=(channels, 1, kernel, kernel)), padding=kernel // 2))
    return net, calibrate(net, samples(net, np.random.default_rng(1)))


def evaluated_groups(built) -> dict:
    (groups,) = built.sidecar["evaluated"]["groups"]
    return groups


@pytest.mark.parametrize(
    ("config", "channels", "size", "together"),
    [
        ("nv_small", 64, 12, 8),
        ("nv_small", 33, 7, 8),
        ("nv_large", 256, 14, 32),
        ("nv_large", 512, 14, 64),
        ("nv_large", 200, 7, 32),
    ],
)
def test_the_fastest_number_of_groups_is_taken_and_its_cycles_are_those_of_the_loadable(
    config, channels, size, together
):
    net, scales = depthwise(channels, size)
    built = build(net, config, "int8", scales)
    found = evaluated_groups(built)
    taken = found["forms"][found["taken"]]
    assert taken["groups"] == together
    assert taken["convolutions"] == -(-channels // together)
    assert taken["cycles"] <= 1.005 * min(form["cycles"] for form in found["forms"])
    cycles = Study.of(built.loadable, config).schedule.cycles
    assert abs(taken["cycles"] - cycles) < 0.03 * cycles


@pytest.mark.parametrize("channels", [40, 200])
def test_any_number_of_groups_gives_the_same_integers(channels):
    net, scales = depthwise(channels, 7)
    data = samples(net, np.random.default_rng(1), 1)
    results = []
    for level in (0, 1):
        built = build(net, "nv_large", "int8", scales, level=level)
        elements = built.quantize_inputs(data)
        results.append(nvdla.Runtime(built.loadable, "nv_large").run(elements)["dw"])
        assert np.array_equal(results[-1], built.expected(elements)["dw"])
        assert not lint(built.loadable, "nv_large").findings
    assert np.array_equal(*results)
    assert not build(net, "nv_large", "int8", scales, level=0).sidecar["evaluated"]["groups"]


def test_explain_prints_the_cost_of_each_number_of_groups(tmp_path, capsys):
    net, scales = depthwise(256, 14)
    built = build(net, "nv_large", "int8", scales)
    built.save(tmp_path / "dw.loadable")
    assert main(["explain", str(tmp_path / "dw.loadable"), "0/0", "--config", "nv_large"]) == 0
    said = capsys.readouterr().out
    forms = evaluated_groups(built)["forms"]
    assert [form["groups"] for form in forms] == [32, 64, 128]
    for form in forms:
        assert f"    {form['groups']} of 256 groups together: {form['convolutions']} dense convolution" in said
        assert f"one product in {form['groups']} within a group, {form['cycles']:,} cycles" in said
    assert f"{forms[0]['cycles']:,} cycles (built)" in said
