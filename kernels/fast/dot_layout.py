"""Layout of a tile of int8 products in registers and memory, and the fields of its epilogue.

:mod:`nvdla.kernels.fast.dot_tile` and :mod:`nvdla.kernels.fast.dot_code` share it.
"""

from __future__ import annotations

WORDS = 16  # int32 words of a 512-bit register
PIXELS = 6  # rows of the tile; 6 x 4 accumulators, 4 weights and a broadcast fill 29 of 32 registers
NARROW_PIXELS = 12  # rows of the tile for few kernels
NARROW_VECTORS = 2  # and its columns in registers: 32 kernels
MATRIX_PIXELS = 16  # rows of the tile for products of matrices (AMX)
MATRIX_QUADS, MATRIX_UNIT = 16, 8  # groups of four bytes per product, and those that are copied together
VECTORS = 4  # columns of the tile in registers: 64 kernels
KERNELS = WORDS * VECTORS
HALF = 8  # words that are stored together: the smallest memory atom
FLIP = 0x80808080

ALU, FLOOR, CEILING, OFFSET, SCALE, ROUNDING, SHIFT, HALVES, WIDE, ROW_STRIDE, PLACES = range(11)
NUMBERS = PLACES + KERNELS // HALF
OTHER_STRIDE, FACTORS, LOWEST, POWER, FACTOR, SHIFTED, BOTTOM, TOP = range(NUMBERS, NUMBERS + 8)
ESTIMATE, TIMES, DECIDES, OTHER_PLACES = range(NUMBERS + 8, NUMBERS + 12)
EPILOGUE = OTHER_PLACES + KERNELS // HALF
"""Fields of an epilogue, ``EPILOGUE`` numbers of 64 bits in total. The first ``HALVES`` * 8 kernels go to
memory, row r to r * ``ROW_STRIDE``, words 8 h .. 8 h + 7 of it to the number at ``PLACES`` + h from there; with
``WIDE`` the number of halves is even, and both halves of a register are contiguous. In ``PLACES`` and
``OTHER_PLACES`` an unused upper half of a register has the place of the lower half.

*In 32 bits*: a sum plus its kernel's number at address ``ALU`` (int32) is limited to ``FLOOR`` .. ``CEILING``, then
``p = (x - OFFSET) * SCALE``, ``(p + ROUNDING - (1 if p < 0)) >> SHIFT`` clamped to int8: the caller ensures
that no number leaves 32 bits.

*In float64*, as the fields ``LOWEST`` to ``TOP``, ``TIMES`` and ``DECIDES`` are: the sum plus ALU's number, times that
at address ``FACTORS`` (float64), limited to ``LOWEST`` .. 2^31 - 1, rounded (halves away from zero), plus the other
cube's int8 times ``POWER``, times ``FACTOR``, less ``SHIFTED``, limited to ``BOTTOM`` .. ``TOP``, rounded. The other
cube's rows are ``OTHER_STRIDE`` apart, halves of it at ``OTHER_PLACES``.

*Estimated in float32*, where ``DECIDES`` is more than 0: the sum plus ALU's number times the one at address
``ESTIMATE`` (float32), plus the other's number times ``TIMES``, less ``SHIFTED``, limited to ``BOTTOM`` .. ``TOP``. The
nearest whole number is the result where none of a tile is further than ``DECIDES`` from its estimate; otherwise
float64 decides.
"""
