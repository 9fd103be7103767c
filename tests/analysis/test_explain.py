"""``nvdla explain``: how a convolution uses the buffer and the MAC array."""

import json

import numpy as np
import pytest

from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.explain import explanations
from nvdla.analysis.study import Study
from nvdla.builder import Network, build, calibrate
from nvdla.errors import DescriptorError


def test_the_first_layer_of_lenet_uses_one_channel_of_eight(lenet_loadable):
    row = explanations(Study.of(lenet_loadable), "0/0")[0]
    assert (row["data_entries"], row["kernel_groups"], row["channel_use"]) == ([784, 1024], 1, 1 / 8)
    assert row["weights_resident"]
    assert row["bound"] == "MAC"
    assert "multiples of 8 and 8" in row["advice"]


def test_whatever_bounds_a_convolution_has_its_advice(lenet_loadable):
    for bytes_per_cycle in (None, 1):
        study = Study.of(lenet_loadable, memory=Memory(bytes_per_cycle=bytes_per_cycle))
        assert all(row["advice"] for row in explanations(study))


def test_tiles_are_counted():
    net = Network("large")
    x = net.input("in", (16, 90, 120))
    net.output(net.convolution("c", x, np.ones((16, 16, 3, 3)), padding=1))
    built = build(net, "nv_small", "int8", calibrate(net, np.ones((1, 16, 90, 120))))
    layers = {(0, number): "c" for number in range(40)}
    rows = explanations(Study.of(built.loadable, "nv_small", layers=layers))
    assert len(rows) > 1
    assert [row["tile"] for row in rows] == [[number, len(rows)] for number in range(1, len(rows) + 1)]


def test_an_unknown_operation_names_those_there_are(lenet_loadable):
    with pytest.raises(DescriptorError, match=r"no convolution is called 0/1; convolutions are 0/0, 0/3"):
        explanations(Study.of(lenet_loadable), "0/1")


def test_the_command_says_it_in_words_and_as_data(nvdla_command, samples):
    code, out, err = nvdla_command("explain", samples / "lenet.loadable", "0/3")
    assert (code, err) == (0, "")
    assert "weights: 1 banks, 2400 bytes, all of them stay in the buffer" in out
    code, out, _ = nvdla_command("explain", samples / "lenet.loadable", "--json")
    assert code == 0
    assert len(json.loads(out)["convolutions"]) == 5


def test_an_operation_of_any_engine_is_on_one_screen(nvdla_command, samples, as_documented):
    """By number, by number of the first task, and by the name of its layer."""
    for name in ("0/5", "5", "pool2"):
        code, out, err = nvdla_command("explain", samples / "lenet.loadable", name)
        assert (code, err) == (0, "")
        assert out.startswith("0/5 PDP pool2: max 2x2, stride 2,2")
        assert "16x8x8 to 16x4x4, int8" in out
        assert "on the fly with 0/3, 0/4" in out
        assert "writes: pool2, 16x4x4, 256 bytes" in out
        assert "pool_mode MAX" in out
        assert out.count("\n") <= 24
    document = json.loads(nvdla_command("explain", samples / "lenet.loadable", "1/0", "--json")[1])
    as_documented(document)
    assert (document["convolutions"], document["operations"][0]["engine"]) == ([], "CPU")


def test_an_operation_that_is_not_there_is_one_line(nvdla_command, samples):
    code, out, err = nvdla_command("explain", samples / "lenet.loadable", "9/9")
    assert (code, out) == (2, "")
    assert "no operation or layer is called 9/9" in err
