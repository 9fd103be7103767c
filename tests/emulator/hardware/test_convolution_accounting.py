"""The books of the convolution buffer: fetched, released, where the next convolution reads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdla.emulator.hardware.configuration import configuration, configurations
from nvdla.emulator.hardware.convolution.cbuf import BufferLayer, DataBook, WeightBook
from nvdla.emulator.hardware.convolution.checks import entries_per_slice, from_entries, to_entries
from nvdla.errors import ScheduleError


def layer(**changes) -> BufferLayer:
    """Four lines of 10 entries in 1 bank of 256, 8 kernels of 5 entries together in another."""
    plain = {
        "layout": (False, False), "data_banks": 1, "weight_banks": 1, "bank": 256, "entry": 8, "line": (10, 8, 10, 0),
        "weights": (0, 5), "data": (10,) * 4, "needed": 40, "released": 40,
        "fetched_bytes": 40, "weight_entries": 5,
        "groups": ((8, 5),), "mask": 0, "data_reuse": False, "weight_reuse": False, "keep_data": False,
        "keep_weights": False,
    }  # fmt: skip
    return BufferLayer(**{**plain, **changes})


PADDED = {"fetched_bytes": 128, "weight_entries": 16}


def test_exact_sizes_stay_in_place_whatever_the_banks():
    for banks in itertools.product((1, 2), repeat=6):
        data, weights = DataBook(), WeightBook()
        for number in banks:
            now = layer(weight_banks=number, data_banks=3 - number)
            assert data.use(now).in_place
            assert weights.use(now).in_place


def test_sizes_above_what_the_kernels_take_shift_the_next_weights():
    book = WeightBook()
    assert book.use(layer(**PADDED)).in_place
    second = book.use(layer(**PADDED))
    third = book.use(layer())
    assert (second.written - second.read, third.written - third.read) == (11, 22)
    assert "88 bytes too early" in second.notes[0]


def test_the_c_model_deadlocks_at_a_change_of_banks_and_hardware_does_not():
    book = WeightBook()
    book.use(layer(**PADDED))
    with pytest.raises(ScheduleError, match=r"change of D_BANK: 11 entries of weights .* round weight_data.size up"):
        book.use(layer(weight_banks=2))
    book = WeightBook(model_deadlocks=False)
    book.use(layer(**PADDED))
    after = book.use(layer(weight_banks=2))
    assert after.in_place
    assert "C model deadlocks" in after.notes[0]


def test_a_change_of_banks_after_kept_weights_never_waits():
    book = WeightBook()
    book.use(layer(**PADDED, keep_weights=True))
    assert book.use(layer(weight_banks=2)).in_place


def test_weights_that_were_never_released_fill_the_banks():
    book = WeightBook()
    with pytest.raises(ScheduleError, match=r"do not fit|banks of .* entries hold"):
        for _ in range(30):
            book.use(layer(**PADDED))


def test_kept_weights_are_found_where_the_first_user_began():
    book = WeightBook()
    book.use(layer())
    first = book.use(layer(keep_weights=True))
    again = book.use(layer(weight_reuse=True, keep_weights=True))
    last = book.use(layer(weight_reuse=True))
    assert (first.read, again.read, last.read) == (5, 5, 5)
    assert not again.fetches and not last.fetches
    assert book.use(layer()).in_place


def test_more_kernels_than_were_kept_deadlock():
    book = WeightBook()
    book.use(layer(keep_weights=True))
    with pytest.raises(ScheduleError, match=r"kernels to reuse .*, got 9"):
        book.use(layer(weight_reuse=True, groups=((8, 5), (1, 6))))


def test_weights_that_were_not_kept_are_refused_and_on_nv_full_fetched():
    book = WeightBook()
    book.use(layer())
    with pytest.raises(ScheduleError, match="has released"):
        book.use(layer(weight_reuse=True))
    book = WeightBook(lenient=True)
    book.use(layer())
    access = book.use(layer(weight_reuse=True))
    assert access.in_place
    assert "has released" in access.notes[0]


def test_kept_data_are_used_again_and_what_is_left_is_released_by_the_next():
    book = DataBook()
    book.use(layer(keep_data=True))
    again = book.use(layer(data_reuse=True))
    assert (again.fetches, again.read) == (False, 0)
    assert book.use(layer()).in_place


def test_fetched_lines_follow_those_left():
    book = DataBook()
    book.use(layer(released=20))
    second = book.use(layer(data_reuse=True, data=(10, 10)))
    assert (second.written, second.read, second.notes) == (40, 20, ())
    assert book.use(layer()).in_place


def test_too_many_fetched_lines_after_the_kept_ones_shift_the_next():
    book = DataBook()
    book.use(layer(released=20))
    book.use(layer(data_reuse=True))
    third = book.use(layer())
    assert third.written - third.read == 20
    assert "20 entries too early" in third.notes[0]


def test_a_release_above_the_height_lets_the_next_begin_at_once_after_the_fetched_entries():
    book = DataBook()
    book.use(layer(released=60))
    access = book.use(layer())
    assert access.read == access.written + 20
    assert "20 entries after the fetched ones" in access.notes[0]


def test_fewer_lines_than_needed_deadlock():
    with pytest.raises(ScheduleError, match=r"needs 40 entries of data .* gets 30"):
        DataBook().use(layer(data=(10,) * 3))
    with pytest.raises(ScheduleError, match="gets 250"):
        DataBook().use(layer(data=(10,) * 30, needed=300))


@given(st.sampled_from(sorted(configurations())), st.integers(1, 40), st.integers(1, 300), st.integers(1, 3))
def test_lines_come_out_of_their_entries_as_they_went_in(config, width, channels, lines):
    chosen = configuration(config)
    size = -(-channels // chosen.memory_atom) * chosen.memory_atom
    data = np.random.default_rng(width * channels).integers(0, 256, (lines, width, size), np.uint8)
    entries = to_entries(data, chosen)
    assert entries.shape[1] == entries_per_slice(channels, width, chosen)
    assert (from_entries(entries, width, channels, chosen) == data).all()
