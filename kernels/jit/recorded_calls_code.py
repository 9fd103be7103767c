"""Compiled code of :mod:`nvdla.kernels.jit.recorded_calls`: access to memory and kernels by address."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.np.arrayobj import make_array, populate_array

from nvdla.kernels.jit.linked_code import intrinsic
from nvdla.kernels.jit.object_code import ERROR
from nvdla.kernels.jit.thread_pool_state import WAKES

_INT64 = ir.IntType(64)


def _array_of(element: Any) -> Any:
    kind = types.Array(element, 1, "C")

    @intrinsic
    def array(typing_context, address, size):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            view = make_array(kind)(context, builder)
            width = ir.Constant(_INT64, element.bitwidth // 8)
            place = builder.inttoptr(args[0], view.data.type)
            populate_array(view, data=place, shape=[args[1]], strides=[width], itemsize=width, meminfo=None)
            return view._getvalue()

        return kind(types.int64, types.int64), generate

    return array


words = _array_of(types.int64)
int16s = _array_of(types.int16)
uint16s = _array_of(types.uint16)
int32s = _array_of(types.int32)
uint32s = _array_of(types.uint32)
int8s = _array_of(types.int8)
uint8s = _array_of(types.uint8)
float32s = _array_of(types.float32)
float64s = _array_of(types.float64)


@intrinsic
def _call(typing_context, function, pool, record):  # type: ignore[no-untyped-def]
    """Call the kernel at an address with the pool's handle and a record's address; return True after an error."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        convention, numbers = context.call_conv, (types.int64, types.int64)
        kind = convention.get_function_type(types.none, numbers)
        function = builder.inttoptr(args[0], kind.as_pointer())
        status, _ = convention.call_function(builder, function, types.none, numbers, args[1:])
        return status.is_error

    return types.boolean(types.int64, types.int64, types.int64), generate


def run_commands(pool, table, count):  # type: ignore[no-untyped-def]
    """Call the kernels of a table (:class:`~nvdla.kernels.jit.recorded_calls.CommandList`) in order.

    ``pool``: the handle that wakes workers. Raises IndexError if a kernel does.
    """
    entries = words(table, 3 * count)
    for at in range(0, 3 * count, 3):
        sharing = entries[at + 2]
        handle = 0 if sharing == 0 else pool if sharing > 1 else pool & ~WAKES
        if _call(entries[at], handle, entries[at + 1]):
            raise IndexError(ERROR)
