"""A machine with a convolution that is set up with random data and weights."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from nvdla.emulator.memory.address_space import Space
from support.convolution_layers import (
    WEIGHTS,
    program,
    store_cube,
    weight_bytes,
)


def random_data(layer, seed):
    random = np.random.default_rng(seed + 1)
    dtype = (np.int8, np.int16, np.int16)[layer["precision"]]
    width, height, channels = layer["data"]
    columns, rows, _ = layer["kernel"]
    limits = np.iinfo(dtype) if layer["precision"] < 2 else SimpleNamespace(min=0, max=0x7BFF)
    cube = random.integers(limits.min, limits.max + 1, (height, width, channels)).astype(dtype)
    weights = random.integers(limits.min, limits.max + 1, (layer["output"][2], rows, columns, channels)).astype(dtype)
    return cube, weights


def load(bench, layer, cube, weights):
    store_cube(bench, cube, layer)
    group = bench.config.mac_atomic_k // weights.itemsize
    image = weight_bytes(weights, group, bench.config.mac_atomic_c)
    bench.memory.view(Space.DRAM, WEIGHTS, len(image))[:] = np.frombuffer(image, np.uint8)
    program(bench, **layer)
