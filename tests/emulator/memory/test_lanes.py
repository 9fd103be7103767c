"""Lanes: the same place for every image of a batch."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from nvdla.emulator.memory.address_space import Lanes


@pytest.fixture
def lanes():
    made = Lanes(4, 64)
    for lane in range(4):
        made.at(made.region(0, 64), lane)[:] = np.arange(64) + 64 * lane
    return made


def test_a_view_has_a_counterpart_in_every_lane(lanes):
    cube = as_strided(lanes.region(8, 24), (2, 3, 4), (12, 4, 1))
    for lane in range(4):
        assert np.array_equal(lanes.at(cube, lane), cube + 64 * lane)
    assert np.array_equal(lanes.across(cube, 3), np.stack([cube + 64, cube + 128, cube + 192]))


def test_counterparts_are_the_memory_itself(lanes):
    view = lanes.region(10, 4)
    lanes.at(view, 2)[:] = 7
    lanes.across(view, 3)[0] = 5
    assert lanes.region(10, 4).tolist() == [10, 11, 12, 13]
    assert [lanes.at(view, lane).tolist() for lane in (1, 2)] == [[5] * 4, [7] * 4]


def test_flat_runs_from_the_first_lane_to_the_last(lanes):
    cube = as_strided(lanes.region(8, 20), (2, 4), (12, 1))
    flat = lanes.flat(cube, 1, 3)
    assert flat.dtype == np.int8
    assert flat.size == 2 * 64 + 16
    assert flat[:16].tolist() == list(range(72, 88))


def test_other_memory_is_the_same_for_all_images(lanes):
    constant = np.arange(5, dtype=np.uint8)
    assert lanes.at(constant, 3) is constant
    assert lanes.across(constant, 2).tolist() == [[0, 1, 2, 3, 4]] * 2
    assert not lanes.holds(constant)


def test_nothing_reaches_beyond_the_last_lane(lanes):
    with pytest.raises((TypeError, ValueError)):
        lanes.at(lanes.region(0, 8), 4)
    with pytest.raises((TypeError, ValueError)):
        lanes.flat(lanes.region(0, 8), 2, 3)
