"""A register tile of int8 dot products with the processor's own instructions (AVX512-VNNI ``vpdpbusd``, and others).

Four unsigned are multiplied by four signed bytes in each 32-bit word and the four products added to the word, without
saturation; numba cannot find such instructions by itself, so the tile is emitted as LLVM IR
(:mod:`nvdla.kernels.fast.dot_code`, for compiled kernels only) with the set of them that
:mod:`nvdla.kernels.jit.processor` has found.
"""

from __future__ import annotations

from collections.abc import Callable

from nvdla.kernels.fast.dot_layout import MATRIX_QUADS, MATRIX_UNIT
from nvdla.kernels.jit.compilation import late
from nvdla.kernels.jit.processor import SETS, VARIABLE, dot_instructions


def available() -> bool:
    """Check whether numba compiles for a processor with (the requested) such instructions."""
    return dot_instructions() is not None


def multiplies_matrices(taps: int, quads: int) -> bool:
    """Check whether the processor multiplies matrices, and ``taps`` times ``quads`` groups of four bytes suit it."""
    return dot_instructions() == "amx" and quads % MATRIX_UNIT == 0 and taps * quads >= MATRIX_QUADS


def instructions() -> str:
    """Describe the instructions that compute int8 products."""
    chosen = dot_instructions()
    if chosen is not None:
        return SETS[chosen]
    return f"matrix products in floating point: no {', '.join(SETS)}, {VARIABLE}=none, or for another processor"


dot_tile: Callable[..., None] = late("nvdla.kernels.fast.dot_code:dot_tile")
"""The compiled kernel of a tile of int8 products."""
dot_narrow_tile: Callable[..., None] = late("nvdla.kernels.fast.dot_code:dot_narrow_tile")
"""The compiled kernel of a narrow tile of int8 products."""
dot_row: Callable[..., None] = late("nvdla.kernels.fast.dot_code:dot_row")
"""The compiled kernel of one row of int8 products."""
begin_matrices: Callable[..., None] = late("nvdla.kernels.fast.dot_matrix_code:begin_matrices")
"""The compiled preparation of a thread for :data:`dot_matrix_tile`."""
dot_matrix_tile: Callable[..., None] = late("nvdla.kernels.fast.dot_matrix_code:dot_matrix_tile")
"""The compiled kernel of a tile of int8 products by products of matrices, where :func:`multiplies_matrices` is true."""
end_matrices: Callable[..., None] = late("nvdla.kernels.fast.dot_matrix_code:end_matrices")
"""The end of what :data:`begin_matrices` began."""
finish: Callable[..., None] = late("nvdla.kernels.fast.dot_code:finish")
"""The compiled epilogue of a tile whose sums are in memory."""
