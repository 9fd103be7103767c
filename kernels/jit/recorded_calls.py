"""Recorded calls of kernels, which compiled code makes in order without Python.

A *recorded kernel* takes two numbers: the handle of the thread pool and the address of a record. The record is an array
of int64 with a field for each argument: a number, or the address of an array. Python takes five microseconds to pass a
dozen arrays to compiled code, and a fraction of one for two numbers. A :class:`CommandList` makes many recorded calls
with one call from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from nvdla.kernels.jit.compilation import Kernel, late
from nvdla.kernels.jit.thread_pool import pool_handle

ALONE, JOINED, WAKING = range(3)
"""Threads that share the work of a call: the caller alone, workers that are awake, sleeping workers, too."""

words: Callable[[int, int], np.ndarray] = late("nvdla.kernels.jit.thread_pool_code:words")
"""``words(address, size)``: the memory there as an array of int64, for compiled kernels."""
int16s: Callable[[int, int], np.ndarray] = late("nvdla.kernels.jit.thread_pool_code:int16s")
"""``(address, size)``: the memory there as an array of int16."""
uint16s: Callable[[int, int], np.ndarray] = late("nvdla.kernels.jit.thread_pool_code:uint16s")
"""``(address, size)``: the memory there as an array of uint16."""
int32s: Callable[[int, int], np.ndarray] = late("nvdla.kernels.jit.thread_pool_code:int32s")
"""``(address, size)``: the memory there as an array of int32."""
uint32s: Callable[[int, int], np.ndarray] = late("nvdla.kernels.jit.thread_pool_code:uint32s")
"""``(address, size)``: the memory there as an array of uint32."""
int8s: Callable[[int, int], np.ndarray] = late("nvdla.kernels.jit.thread_pool_code:int8s")
"""``(address, size)``: the memory there as an array of int8."""
uint8s: Callable[[int, int], np.ndarray] = late("nvdla.kernels.jit.thread_pool_code:uint8s")
"""``(address, size)``: the memory there as an array of uint8."""
float32s: Callable[[int, int], np.ndarray] = late("nvdla.kernels.jit.thread_pool_code:float32s")
"""``(address, size)``: the memory there as an array of float32."""
float64s: Callable[[int, int], np.ndarray] = late("nvdla.kernels.jit.thread_pool_code:float64s")
"""``(address, size)``: the memory there as an array of float64."""


class RecordedCall:
    """One call of a recorded kernel.

    ``numbers``: the record (int64); ``arrays``: the arrays whose addresses it contains, kept alive; ``sharing``:
    :data:`ALONE`, :data:`JOINED` or :data:`WAKING`; ``work``: estimated nanoseconds.
    """

    def __init__(
        self,
        kernel: Kernel[..., None],
        numbers: Sequence[int] | np.ndarray,
        arrays: Sequence[object],
        sharing: int,
        work: int,
    ) -> None:
        self.kernel, self.sharing, self.work = kernel, sharing, work
        self.numbers = np.array(numbers, np.int64)
        self.address: int = self.numbers.ctypes.data
        self._arrays = arrays

    def run(self) -> None:
        """Make the call."""
        handle = pool_handle(self.sharing == WAKING) if self.sharing else 0
        _called(self.kernel.place)(handle, self.address)


class CommandList:
    """Recorded calls that compiled code makes in order. ``work``: estimated nanoseconds."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self._calls = tuple(calls)
        table = [(native_address(call.kernel), call.address, call.sharing) for call in calls]
        self._table = np.array(table, np.int64).reshape(-1)
        self._arguments = (self._table.ctypes.data, len(table))
        self._shares = any(call.sharing for call in calls)
        self.work = sum(call.work for call in calls)

    def run(self) -> None:
        """Make the calls, with Python's lock released."""
        _run_commands()(pool_handle() if self._shares else 0, *self._arguments)

    def run_alone(self) -> None:
        """Make the calls without the thread pool, which other threads can use meanwhile."""
        _run_commands()(0, *self._arguments)

    def run_within_lock(self) -> None:
        """Make the calls with Python's lock held."""
        _run_commands_within_lock()(pool_handle() if self._shares else 0, *self._arguments)


_RUN_COMMANDS = "jit.thread_pool_code:run_commands", 3


def native_address(kernel: Kernel[..., None]) -> int:
    """Return the address of a recorded kernel's machine code."""
    from nvdla.kernels.jit.object_code import object_code

    return object_code(kernel.place, 2).address


@cache
def _called(place: str) -> Callable[[int, int], None]:
    return _function(place, 2)


@cache
def _run_commands() -> Callable[[int, int, int], None]:
    return _function(*_RUN_COMMANDS)


@cache
def _run_commands_within_lock() -> Callable[[int, int, int], None]:
    return _function(*_RUN_COMMANDS, holds_lock=True)


def _function(place: str, integers: int, holds_lock: bool = False) -> Callable[..., None]:
    from nvdla.kernels.jit.object_code import function

    return function(place, integers, holds_lock)
