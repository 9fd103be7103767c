"""A register tile of int8 dot products with the processor's own instructions (AVX512-VNNI ``vpdpbusd``, and others).

Four unsigned are multiplied by four signed bytes in each 32-bit lane and the four products added to the lane, without
saturation; numba cannot find such instructions by itself, so the tile is emitted as LLVM IR
(:mod:`nvdla.kernels.fast.dot_tile_code`, for compiled kernels only) with the set of them that
:mod:`nvdla.kernels.jit.processor` has found.
"""

from __future__ import annotations

from typing import Any

from nvdla.kernels.jit.compilation import late
from nvdla.kernels.jit.processor import SETS, VARIABLE, dot_instructions

LANES = 16  # int32 lanes of a 512-bit register
PIXELS = 6  # rows of the tile; 6 x 4 accumulators, 4 weights and a broadcast fill 29 of 32 registers
NARROW_PIXELS = 12  # rows of the tile for few kernels
NARROW_VECTORS = 2  # and its columns in registers: 32 kernels
VECTORS = 4  # columns of the tile in registers: 64 kernels
KERNELS = LANES * VECTORS
HALF = 8  # lanes that are stored together: the smallest memory atom
FLIP = 0x80808080

ALU, FLOOR, CEILING, OFFSET, SCALE, ROUNDING, SHIFT, HALVES, WIDE, ROW_STRIDE, OUT, PLACES = range(12)
ENDING = PLACES + KERNELS // HALF
"""int64 fields of what a tile ends with, ``ENDING`` in all. A sum plus its kernel's number at address ``ALU`` is
limited to ``FLOOR`` .. ``CEILING``, then ``p = (x - OFFSET) * SCALE``, ``(p + ROUNDING - (1 if p < 0)) >> SHIFT``
clamped to int8, all in 32 bits: the caller sees to it that nothing leaves them. Lanes 8 h .. 8 h + 7 of the first
``HALVES`` go to ``OUT`` + the number at ``PLACES`` + h, ``ROW_STRIDE`` further on for each row of the tile; with
``WIDE`` there is an even number of halves, and both of a register lie side by side.
"""


def available() -> bool:
    """True where numba compiles for a processor that has such instructions, or those that were asked for."""
    return dot_instructions() is not None


def instructions() -> str:
    """In words, for whoever asks by what instructions int8 products are computed."""
    chosen = dot_instructions()
    if chosen is not None:
        return SETS[chosen]
    return f"matrix products in floating point: no {', '.join(SETS)}, {VARIABLE}=none, or for another processor"


@late
def dot_tile() -> Any:
    """The compiled kernel of a tile of int8 products, imported when it is first asked for."""
    from nvdla.kernels.fast.dot_tile_code import dot_tile

    return dot_tile


@late
def dot_narrow_tile() -> Any:
    """The compiled kernel of a narrow tile of int8 products, imported when it is first asked for."""
    from nvdla.kernels.fast.dot_tile_code import dot_narrow_tile

    return dot_narrow_tile


@late
def dot_row() -> Any:
    """The compiled kernel of one row of int8 products, imported when it is first asked for."""
    from nvdla.kernels.fast.dot_tile_code import dot_row

    return dot_row


@late
def copy_half() -> Any:
    """The compiled copy of a few bytes, imported when it is first asked for."""
    from nvdla.kernels.fast.dot_tile_code import copy_half

    return copy_half
