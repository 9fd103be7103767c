"""Real values of stored tensors."""

import math

import pytest

from nvdla.tensors.real import decibels


@pytest.mark.parametrize(
    ("signal", "noise", "ratio"),
    [(100, 1, 20), (1, 0, math.inf), (0, 0, math.inf), (0, 1, -math.inf), (1, math.inf, -math.inf)],
)
def test_a_ratio_of_energies_has_one_answer_in_decibels(signal, noise, ratio):
    assert decibels(signal, noise) == ratio
