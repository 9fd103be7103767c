"""How a tile of int8 products lies in registers and memory, and with which numbers it ends: what
:mod:`nvdla.kernels.fast.dot_tile` and the code that it stands for have in common."""

from __future__ import annotations

WORDS = 16  # int32 words of a 512-bit register
PIXELS = 6  # rows of the tile; 6 x 4 accumulators, 4 weights and a broadcast fill 29 of 32 registers
NARROW_PIXELS = 12  # rows of the tile for few kernels
NARROW_VECTORS = 2  # and its columns in registers: 32 kernels
VECTORS = 4  # columns of the tile in registers: 64 kernels
KERNELS = WORDS * VECTORS
HALF = 8  # words that are stored together: the smallest memory atom
FLIP = 0x80808080

ALU, FLOOR, CEILING, OFFSET, SCALE, ROUNDING, SHIFT, HALVES, WIDE, ROW_STRIDE, OUT, PLACES = range(12)
ENDING = PLACES + KERNELS // HALF
"""int64 fields of what a tile ends with, ``ENDING`` in all. A sum plus its kernel's number at address ``ALU`` is
limited to ``FLOOR`` .. ``CEILING``, then ``p = (x - OFFSET) * SCALE``, ``(p + ROUNDING - (1 if p < 0)) >> SHIFT``
clamped to int8, all in 32 bits: the caller sees to it that nothing leaves them. Words 8 h .. 8 h + 7 of the first
``HALVES`` go to ``OUT`` + the number at ``PLACES`` + h, ``ROW_STRIDE`` further on for each row of the tile; with
``WIDE`` there is an even number of halves, and both of a register lie side by side.
"""
