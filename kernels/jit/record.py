"""Records: calls of kernels made ahead, so that compiled code can do one after the other without Python.

A *record kernel* takes two numbers: the handle of the crew and the address of a record, an array of int64 in which all
else that it needs has a place of its own: numbers, and the addresses of arrays. To hand a dozen arrays to compiled code
takes Python five microseconds, two numbers a fraction of one; and a :class:`Walk` does many records by one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from nvdla.kernels.jit.compilation import Kernel, late, njit
from nvdla.kernels.jit.crew import crew_handle

ALONE, JOINED, WAKING = range(3)
"""Who shares the work of a record: nobody, helpers that are awake, those that sleep, too."""

words: Any = late("nvdla.kernels.jit.record_code:words")
"""``words(address, size)``: the memory there as an array of int64, for compiled kernels."""
int32s: Any = late("nvdla.kernels.jit.record_code:int32s")
"""``(address, size)``: the memory there as an array of int32."""
int8s: Any = late("nvdla.kernels.jit.record_code:int8s")
"""``(address, size)``: the memory there as an array of int8."""
uint8s: Any = late("nvdla.kernels.jit.record_code:uint8s")
"""``(address, size)``: the memory there as an array of uint8."""
float32s: Any = late("nvdla.kernels.jit.record_code:float32s")
"""``(address, size)``: the memory there as an array of float32."""
float64s: Any = late("nvdla.kernels.jit.record_code:float64s")
"""``(address, size)``: the memory there as an array of float64."""


class Record:
    """One call of a record kernel. ``numbers``: the record (int64); ``arrays``: what it holds the addresses of, kept
    alive; ``sharing``: :data:`ALONE`, :data:`JOINED` or :data:`WAKING`; ``work``: about how many nanoseconds it takes.
    """

    def __init__(
        self,
        kernel: Kernel[Any, None],
        numbers: Sequence[int] | np.ndarray,
        arrays: Sequence[Any],
        sharing: int,
        work: int,
    ) -> None:
        self.kernel, self.sharing, self.work = kernel, sharing, work
        self.numbers = np.array(numbers, np.int64)
        self.address: int = self.numbers.ctypes.data
        self._arrays = arrays

    def run(self) -> None:
        """Do it now."""
        handle = crew_handle(self.sharing == WAKING) if self.sharing else 0
        self.kernel.compiled(handle, self.address)


class Walk:
    """Records that are done one after the other by one call of compiled code. ``work``: about how many nanoseconds."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = tuple(records)
        table = [(native_address(each.kernel), each.address, each.sharing) for each in records]
        self._table = np.array(table, np.int64).reshape(-1)
        self._call = (self._table.ctypes.data, len(table))
        self._shares = any(each.sharing for each in records)
        self.work = sum(each.work for each in records)

    def run(self) -> None:
        """Do them all, while other threads have the interpreter."""
        _walk().compiled(crew_handle() if self._shares else 0, *self._call)

    def run_alone(self) -> None:
        """Do them all without the crew, which others may use meanwhile."""
        _walk().compiled(0, *self._call)

    def run_within_lock(self) -> None:
        """Do them all without giving up Python's lock."""
        _walk_within_lock()(crew_handle() if self._shares else 0, *self._call)


@cache
def native_address(kernel: Kernel[Any, None]) -> int:
    """Where the machine code of a record kernel lies."""
    from nvdla.kernels.jit import record_code

    return record_code.native_address(kernel.compiled)


@cache
def _walk() -> Kernel[Any, None]:
    from nvdla.kernels.jit import record_code

    return njit(cache=True, nogil=True)(record_code.walk)


@cache
def _walk_within_lock() -> Any:
    from nvdla.kernels.jit import record_code

    return record_code.within_lock(_walk().compiled)
