"""Copies within Python's lock equal numpy's assignments, for all sizes and shapes."""

from __future__ import annotations

import numpy as np
import pytest

from nvdla.emulator.memory.surfaces import SHORT, assign, clear, put

SHAPES = [(1,), (500,), (501,), (1, 1, 28, 28), (1, 4, 30, 30, 1), (7, 499), (2, 2001), (4000, 1), (4001,), (3, 0, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_assignment_in_pieces(shape):
    source = np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)
    target = np.zeros((*shape, 2), np.int8)
    assign(target[..., 1], source)
    assert np.array_equal(target[..., 1], source)
    assert not target[..., 0].any()


@pytest.mark.parametrize("size", [0, 1, SHORT, SHORT + 1])
def test_bytes_are_put_and_cleared(size):
    data = bytes(range(256)) * (size // 256 + 1)
    target = np.zeros(size, np.uint8)
    put(target, memoryview(data)[:size])
    assert target.tobytes() == data[:size]
    clear(target)
    assert not target.any()
