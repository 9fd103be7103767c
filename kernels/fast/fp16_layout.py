"""How the tables of :mod:`nvdla.kernels.fast.fp16_pixels` lie in memory."""

from __future__ import annotations

PIXELS = 32
"""Pixels that are worked on together."""
PLACES = 4
"""Places of an atom whose tables lie in the cache together."""
DIGITS = 8
CLASSES = 5
"""Values of a Booth digit, in this order: 0, 1, 2, -1, -2."""
ENTRY = 2 * PIXELS
"""uint16 of a table's entry: the low half of a row, and the ones that complete it."""
LOW_TABLE = DIGITS * CLASSES * ENTRY
HIGH_TABLE = DIGITS * CLASSES * PIXELS
