"""Memory layout of the fp16 multiplier-adders: tables of pixels, weights of kernels."""

from __future__ import annotations

VECTOR = 32
"""Pixels or kernels per vector."""
PIXELS = VECTOR
PLACES = 4
"""Places of an atom whose tables fit the cache together, and whose products are summed in 32 bits."""
DIGITS = 8
CLASSES = 5
"""Values of a Booth digit, in this order: 0, 1, 2, -1, -2."""
ENTRY = 2 * PIXELS
"""uint16 of a table's entry: the low half of a row, and the ones that complete it."""
LOW_TABLE = DIGITS * CLASSES * ENTRY
HIGH_TABLE = DIGITS * CLASSES * PIXELS
MANTISSAS, EXPONENTS = 0, 1
"""Rows for each place of the weights of VECTOR kernels, int16."""
