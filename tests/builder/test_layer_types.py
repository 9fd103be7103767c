"""A layer of the builder is one file: a new one is put into a folder, and networks with it are built and run."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from nvdla import Runtime
from nvdla.builder import Network, build
from nvdla.builder.layer_types import PACKAGE, layer_types
from nvdla.errors import BuildError

MIRROR = """
from nvdla.builder.ir import Surface

KIND = "tile_rows"
KEEPS_SCALE = True


def shape(name, shapes, settings):
    channels, height, width = shapes[0]
    return channels, height * settings["count"], width


def form(layer, x):
    import numpy as np

    return np.concatenate([x] * layer.count, axis=2)


def lower(lowering, group):
    source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
    for number in range(group.layer.count):
        lowering.copy(group.name, source, destination.crop(number * source.height, source.height, 0, source.width))
"""


def test_a_new_layer_is_one_new_file(tmp_path, monkeypatch):
    package = importlib.import_module(PACKAGE)
    (tmp_path / "tile_rows.py").write_text(MIRROR)
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
    with pytest.raises(BuildError, match=r"'mirror' is not known: known are .*upsample"):
        network.add_layer("mirror", "m", [source])
