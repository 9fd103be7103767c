"""A layer of the builder is one file: a new one is put into a folder, and networks with it are built and run."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from nvdla import Runtime
from nvdla.compiler.builder import Network, build
from nvdla.compiler.builder.layer_types import PACKAGE, layer_types
from nvdla.compiler.builder.layers import PoolSettings
from nvdla.errors import BuildError

TILE_ROWS = """
from dataclasses import dataclass

import numpy as np

from nvdla.compiler.builder.layer_types import LayerType
from nvdla.compiler.builder.layers import LayerSettings


@dataclass(frozen=True)
class TileRowsSettings(LayerSettings):
    count: int


class TileRowsLayer(LayerType):
    kind = "tile_rows"
    keeps_scale = True

    def parse(self, name, shapes, given):
        return TileRowsSettings(given["count"])

    def shape(self, layer):
        channels, height, width = layer.inputs[0].shape
        return channels, height * layer.settings.count, width

    def form(self, layer, inputs):
        return np.concatenate(inputs * layer.settings.count, axis=2)

    def lower(self, lowering, group):
        source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
        for number in range(group.layer.settings.count):
            lowering.copy(group.name, source, destination.crop(number * source.height, source.height, 0, source.width))
"""


def test_a_new_layer_is_one_new_file(tmp_path, monkeypatch):
    package = importlib.import_module(PACKAGE)
    (tmp_path / "tile_rows.py").write_text(TILE_ROWS)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    layer_types.cache_clear()
    try:
        network = Network("tiled")
        source = network.input("data", (8, 2, 3))
        network.output(network.add_layer("tile_rows", "tiled", [source], count=3))
        data = np.random.default_rng(1).normal(size=(1, 8, 2, 3)).astype(np.float16)
        built = build(network, "nv_full", "fp16")
        assert np.array_equal(Runtime(built.loadable).run(data)["tiled"], np.concatenate([data] * 3, axis=2))
        assert np.array_equal(built.expected({"data": data})["tiled"], np.concatenate([data] * 3, axis=2))
    finally:
        layer_types.cache_clear()


def test_an_unknown_kind_lists_the_known_ones():
    network = Network()
    source = network.input("data", (8, 2, 3))
    with pytest.raises(BuildError, match=r"kind of layer: must be one of .*upsample.*, got 'mirror'"):
        network.add_layer("mirror", "m", [source])


def test_the_projects_own_layers_are_found_the_same_way():
    """Every kind that a network has a method for is a class in a file of its own."""
    kinds = layer_types()
    assert set(kinds) >= {
        "clip", "concat", "constant", "convolution", "deconvolution", "elementwise", "function", "join", "lrn", "pad",
        "pool", "prelu", "relu", "scale", "slice", "softmax", "upsample",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sources", "settings", "message"),
    [
        ("relu", 2, {}, "layer l: a relu: inputs: must be 1, got 2"),
        ("prelu", 1, {}, "layer l: a prelu: setting 'slopes': must be given"),
        ("prelu", 1, {"slopes": 0.1, "low": 0}, "layer l: a prelu: setting: must be known, got 'low'"),
    ],
)
def test_a_layer_with_other_inputs_or_settings_than_its_type_has_is_refused(kind, sources, settings, message):
    network = Network()
    source = network.input("data", (8, 2, 3))
    with pytest.raises(BuildError, match=message) as caught:
        network.add_layer(kind, "l", [source] * sources, **settings)
    assert caught.value.layer == "l"


def test_settings_that_a_caller_gives_are_not_changed():
    network = Network()
    source, settings = network.input("data", (8, 4, 4)), {"mode": "max", "kernel": 2, "stride": None, "padding": 0}
    pooled = network.add_layer("pool", "p", [source], **settings)
    assert PoolSettings.of(pooled.producer).stride == (2, 2)
    assert settings == {"mode": "max", "kernel": 2, "stride": None, "padding": 0}


def test_networks_of_these_tests_run_a_second_time_by_their_plan():
    """tests/compiler/builder/conftest.py repeats every run; the second goes by fused jobs."""
    network = Network("twice")
    network.output(network.relu("r", network.input("data", (8, 2, 3))))
    runtime = Runtime(build(network, "nv_full", "fp16").loadable)
    runtime.run(np.ones((1, 8, 2, 3), np.float16))
    assert runtime._plan is not None and runtime._plan.fused is not None
