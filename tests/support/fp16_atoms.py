"""Random MAC atoms of fp16."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


def atoms(elements):
    return st.integers(0, 2**32).map(lambda seed: make_atoms(seed, elements))


def make_atoms(seed, kinds):
    """1 to 4 atoms of weights and data: exponents from a random window, some zeros, specials now and then."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 5))

    def side():
        low = random.integers(0, 31)
        exponent = random.integers(low, min(31, low + random.integers(1, 20)) + 1, (count, 64))
        bits = random.integers(0, 2, (count, 64)) << 15 | exponent << 10 | random.integers(0, 1024, (count, 64))
        bits[random.random((count, 64)) < random.choice([0, 0.1, 0.9])] = random.choice([0, 0x8000])
        special = random.random((count, 64)) < random.choice([0, 0.02])
        bits[special] = random.choice(kinds, int(special.sum()))
        if 0x7E00 not in kinds:
            bits[bits & 0x7FFF > 0x7C00] &= 0xBFFF
        return bits.tolist()

    return side(), side()
