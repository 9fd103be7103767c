"""Slices with strides, down to one row or one column, equal plain numpy; lint accepts every part."""

from __future__ import annotations

import numpy as np
import pytest
from support.build_checks import build_and_run

from nvdla.compiler.builder import Network, calibrate

# Configuration, precision and more channels than an atom has.
ATOMS = [("nv_small", "int8", 9), ("nv_large", "int8", 33), ("nv_full", "int16", 17), ("nv_full", "fp16", 17)]
RANGES = [(0, 1, 1), (1, 2, 1), (3, 3, 1), (0, 2, 2), (1, 2, 2), (0, 3, 2), (1, 1, 3)]


@pytest.mark.parametrize(("config", "precision", "channels"), ATOMS)
@pytest.mark.parametrize("level", [0, 1])
def test_slices_of_few_rows_or_columns(config, precision, channels, level):
    x = np.random.default_rng(0).normal(size=(1, channels, 4, 6))
    for rows in [None, *RANGES]:
        net = Network()
        source = net.input("in", x.shape[1:])
        for number, columns in enumerate([None, *RANGES]):
            net.output(net.slice(f"part{number}", source, rows=rows, columns=columns))
        build_and_run(net, config, precision, False, {"in": x}, calibrate(net, {"in": x}), level=level)


@pytest.mark.parametrize(("config", "precision", "channels"), ATOMS)
def test_narrow_results_of_upsampling_deconvolution_and_padding(config, precision, channels):
    rng = np.random.default_rng(1)
    for shape in [(channels, 1, 1), (channels, 2, 1), (channels, 1, 2)]:
        net = Network()
        x = net.input("in", shape)
        net.output(net.upsample("wide", x, (1, 3)))
        net.output(net.upsample("high", x, (2, 1)))
        net.output(net.pad("border", x, (1, 0, 2, 1)))
        net.output(net.deconvolution("spread", x, rng.normal(size=(channels, 9, 1, 2)), stride=(1, 3)))
        data = {"in": rng.normal(size=(1, *shape))}
        build_and_run(net, config, precision, False, data, calibrate(net, data))
