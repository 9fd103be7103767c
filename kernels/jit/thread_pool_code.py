"""Compiled code of the thread pool, and of :mod:`nvdla.kernels.jit.recorded_calls`: access to memory and kernels by
address.

On a busy machine Linux can wake a worker on the caller's core and leave it there. The two threads then alternate, and
the worker gives no speed-up. So a worker that repeatedly runs on its caller's core removes this core from its affinity.

The word MEMBERS controls participation. A caller opens a task by writing the limit of workers into it, and closes it by
setting CLOSED. A worker joins with a compare-and-swap that adds one, and leaves by subtracting one. The
compare-and-swap fails if the task is closed or full. So after closing, the caller waits only for workers that are in a
piece, and a late worker goes back to sleep. A task does not change while a worker is in it.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.np.arrayobj import make_array, populate_array

from nvdla.kernels.jit.linked_code import intrinsic
from nvdla.kernels.jit.object_code import ERROR
from nvdla.kernels.jit.thread_pool_state import (
    CLOSED,
    CONDITION,
    CORES,
    CORES_BYTES,
    GENERATION,
    JOINED,
    LIMIT_SHIFT,
    LOCK,
    MEMBERS,
    MOST_WORKERS,
    MUTEX,
    NEXT,
    OTHERS,
    PAGE,
    TASK,
    WAIT_SLOT,
    WAIT_SLOTS,
    WAKES,
)

_INT64 = ir.IntType(64)
MEETINGS = 4
"""Consecutive tasks that a worker does on its caller's core before it leaves the core."""


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
def _call_kernel(typing_context, function, pool, record):  # type: ignore[no-untyped-def]
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
        if _call_kernel(entries[at], handle, entries[at + 1]):
            raise IndexError(ERROR)


def of_system(name: str, *arguments: Any) -> Any:
    """Declare a function of the C library that returns an int, for compiled code."""
    return types.ExternalFunction(name, types.int32(*arguments))


if sys.platform == "linux":
    current_core = of_system("sched_getcpu")
    _process = of_system("getpid")
    _get_cores = of_system("sched_getaffinity", types.int32, types.int64, types.int64)
    _set_cores = of_system("sched_setaffinity", types.int32, types.int64, types.int64)
else:  # no access to the affinity of a thread

    @njit(nogil=True)
    def current_core():  # type: ignore[no-untyped-def]
        """Return -1: unknown."""
        return -1

    @njit(nogil=True)
    def _get_cores(thread, size, cores):  # type: ignore[no-untyped-def]
        return -1

    _set_cores, _process = _get_cores, current_core


@njit(nogil=True)
def met(slot, core, meetings):  # type: ignore[no-untyped-def]
    """Count the consecutive tasks that the worker of ``slot`` joined on its caller's ``core``: ``meetings`` so far.

    Leave the core and return 0 after MEETINGS tasks.
    """
    if core < 0 or core >= 8 * CORES_BYTES or core != current_core():
        return 0
    if meetings + 1 < MEETINGS:
        return meetings + 1
    _leave(slot + CORES, core)
    return 0


@njit(nogil=True)
def _leave(place, core):  # type: ignore[no-untyped-def]
    """Exclude a core from those that both the worker and the process's first thread can use.

    Changes of the affinity by other programs take precedence. ``place`` is the address of four sets of cores: those of
    the worker and of the first thread according to the system, those that the worker requested last, and those that the
    worker was assigned.
    """
    current = words(place, CORES_BYTES // 8)
    first = words(place + CORES_BYTES, CORES_BYTES // 8)
    requested = words(place + 2 * CORES_BYTES, CORES_BYTES // 8)
    assigned = words(place + 3 * CORES_BYTES, CORES_BYTES // 8)
    if _get_cores(0, CORES_BYTES, place) < 0 or _get_cores(_process(), CORES_BYTES, place + CORES_BYTES) < 0:
        return
    changed, left = False, 0
    for at in range(current.size):
        changed |= current[at] != requested[at]
    for at in range(current.size):
        assigned[at] = current[at] if changed else assigned[at]
        requested[at] = assigned[at] & first[at] & ~((1 << core % 64) if at == core // 64 else 0)
        left |= requested[at]
    if left:
        _set_cores(0, CORES_BYTES, place + 2 * CORES_BYTES)


_PIECE = ir.FunctionType(ir.VoidType(), [_INT64, _INT64])
ROUNDS = 300
"""Polls for the last pieces before the caller sleeps between two polls."""
NAP = 50  # microseconds
TASKS_RESERVED = 64
"""Tasks during which a caller that found the pool taken keeps its core: the pool uses one worker fewer."""


def _place(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, _INT64.as_pointer())


@intrinsic
def _load(typing_context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load_atomic(_place(builder, args[0]), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _store(typing_context, address, value):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store_atomic(args[1], _place(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _add(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Add atomically and return the value before."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", _place(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _swap(typing_context, address, expected, value):  # type: ignore[no-untyped-def]
    """Replace ``expected`` by ``value`` atomically; return whether it succeeded."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        done = builder.cmpxchg(_place(builder, args[0]), args[1], args[2], "seq_cst", "seq_cst")
        return builder.zext(builder.extract_value(done, 1), ir.IntType(8))

    return types.boolean(types.int64, types.int64, types.int64), _as_boolean(generate)


def _as_boolean(generate: Any) -> Any:
    def truncated(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.trunc(generate(context, builder, signature, args), ir.IntType(1))

    return truncated


@intrinsic
def _pause(typing_context):  # type: ignore[no-untyped-def]
    """Pause for a moment, in favour of the core's other hardware thread."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        module = builder.module
        if module.triple.startswith(("x86_64", "i686", "i386")):
            name, words = "llvm.x86.sse2.pause", []
        elif module.triple.startswith(("aarch64", "arm64")):
            name, words = "llvm.aarch64.hint", [ir.Constant(ir.IntType(32), 1)]
        else:
            return context.get_dummy_value()
        kind = ir.FunctionType(ir.VoidType(), [word.type for word in words])
        builder.call(module.globals.get(name) or ir.Function(module, kind, name), words)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _call(typing_context, function, environment, number):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.call(builder.inttoptr(args[0], _PIECE.as_pointer()), [args[1], args[2]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


_usleep = of_system("usleep", types.uint32)
_lock = of_system("pthread_mutex_lock", types.int64)
_unlock = of_system("pthread_mutex_unlock", types.int64)
_wait = of_system("pthread_cond_wait", types.int64, types.int64)
_signal = of_system("pthread_cond_signal", types.int64)
_make_mutex = of_system("pthread_mutex_init", types.int64, types.int64)
_make_condition = of_system("pthread_cond_init", types.int64, types.int64)


@njit(nogil=True)
def _wake(state, count):  # type: ignore[no-untyped-def]
    """Wake the sleeping ones of the first ``count`` workers."""
    for slot in range(state + WAIT_SLOTS, state + WAIT_SLOTS + count * WAIT_SLOT, WAIT_SLOT):
        if _load(slot):
            _lock(slot + MUTEX)
            _store(slot, 0)
            _signal(slot + CONDITION)
            _unlock(slot + MUTEX)


@njit(nogil=True)
def _sleep(slot):  # type: ignore[no-untyped-def]
    """Sleep until a caller wakes the worker."""
    _lock(slot + MUTEX)
    _store(slot, 1)
    while _load(slot):
        _wait(slot + CONDITION, slot + MUTEX)
    _unlock(slot + MUTEX)


@njit(nogil=True)
def _pieces(state, function, environment, count):  # type: ignore[no-untyped-def]
    """Do pieces until none is left."""
    number = _add(state + NEXT, 1)
    while number < count:
        _call(function, environment, number)
        number = _add(state + NEXT, 1)


@njit(nogil=True)
def _taken(state):  # type: ignore[no-untyped-def]
    """Take the pool. If another caller has it, register as a further caller and return False."""
    if _swap(state + LOCK, 0, 1):
        return True
    _store(state + OTHERS, _load(state + GENERATION) + TASKS_RESERVED)
    return False


def _lead(handle, count, function, environment):  # type: ignore[no-untyped-def]
    """Do all pieces of a task, together with the workers that join in time."""
    limit, state = handle & MOST_WORKERS, handle & -PAGE
    if handle == 0 or count < 2 or not _taken(state):
        for number in range(count):
            _call(function, environment, number)
        return
    if _load(state + OTHERS) > _load(state + GENERATION):
        limit -= 1
    _store(state + NEXT, 0)
    _store(state + TASK, function)
    _store(state + TASK + 8, environment)
    _store(state + TASK + 16, count)
    _store(state + TASK + 24, current_core())
    _store(state + MEMBERS, min(limit, count - 1) << LIMIT_SHIFT)
    _add(state + GENERATION, 1)
    if handle & WAKES:
        _wake(state, limit)
    _pieces(state, function, environment, count)
    members = _add(state + MEMBERS, CLOSED) + CLOSED
    looks = 0
    while members & JOINED:
        looks += 1
        if looks < ROUNDS:
            _pause()
        else:
            _usleep(NAP)
        members = _load(state + MEMBERS)
    _store(state + LOCK, 0)


@njit(nogil=True)
def _joined(state):  # type: ignore[no-untyped-def]
    """Join the open task; return False if no task is open or it is full."""
    members = _load(state + MEMBERS)
    while members < CLOSED and members & JOINED < members >> LIMIT_SHIFT:
        if _swap(state + MEMBERS, members, members + 1):
            return True
        members = _load(state + MEMBERS)
    return False


def serve(state, number, patience):  # type: ignore[no-untyped-def]
    """Run worker ``number`` indefinitely: join every task, and sleep after ``patience`` polls without one."""
    done, looks, meetings, slot = -1, 0, 0, state + WAIT_SLOTS + number * WAIT_SLOT
    _make_mutex(slot + MUTEX, 0)
    _make_condition(slot + CONDITION, 0)
    while True:
        if _load(state + GENERATION) != done and _joined(state):
            done = _load(state + GENERATION)
            meetings = met(slot, _load(state + TASK + 24), meetings)
            _pieces(state, _load(state + TASK), _load(state + TASK + 8), _load(state + TASK + 16))
            _add(state + MEMBERS, -1)
            looks = 0
        elif looks < patience:
            _pause()
            looks += 1
        else:
            _sleep(slot)
            looks = 0


def pause_for(rounds):  # type: ignore[no-untyped-def]
    """Pause as long as ``rounds`` polls of a worker."""
    for _ in range(rounds):
        _pause()


@intrinsic
def share(typing_context, handle, count, body, arguments):  # type: ignore[no-untyped-def]
    """Call ``body(number, *arguments)`` for all numbers below ``count``, on the calling thread and the pool.

    ``handle``: that of the pool; ``body``: another kernel. An exception in it (an index out of range, if numba checks
    indices) is raised as an IndexError after all pieces.
    """
    argument_types = (types.int64, *arguments.types)
    body_signature = body.get_call_type(typing_context, argument_types, {})

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        handle, count, _, packed = args
        failed = cgutils.alloca_once_value(builder, ir.Constant(_INT64, 0))
        held = cgutils.alloca_once_value(builder, packed)
        environment = cgutils.alloca_once(builder, ir.ArrayType(_INT64, 2))
        for at, pointer in enumerate((held, failed)):
            place = cgutils.gep_inbounds(builder, environment, 0, at)
            builder.store(builder.ptrtoint(pointer, _INT64), place)
        piece = _piece(context, builder, body, body_signature, packed.type, failed.type)
        leading = types.void(*[types.int64] * 4)
        numbers = [builder.ptrtoint(pointer, _INT64) for pointer in (piece, environment)]
        context.compile_internal(builder, _lead, leading, [handle, count, *numbers])
        with builder.if_then(cgutils.is_not_null(builder, builder.load(failed)), likely=False):
            context.call_conv.return_user_exc(builder, IndexError, ("a kernel's index is out of range",))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, body, arguments), generate


def _piece(context, builder, body, signature, packed_type, failed_type):  # type: ignore[no-untyped-def]
    """Return a function (environment, number) that calls ``body`` with the arguments in the environment."""
    result = body.dispatcher.get_compile_result(signature)
    context.add_linking_libs([result.library])
    callee = context.declare_function(builder.module, result.fndesc)
    name = builder.module.get_unique_name("piece")
    function = ir.Function(builder.module, _PIECE, name)
    function.linkage = "internal"
    inner = ir.IRBuilder(function.append_basic_block())
    environment, number = function.args
    places = [
        inner.load(inner.inttoptr(inner.add(environment, ir.Constant(_INT64, 8 * at)), _INT64.as_pointer()))
        for at in range(2)
    ]
    packed = inner.load(inner.inttoptr(places[0], packed_type.as_pointer()))
    values = [number, *(inner.extract_value(packed, at) for at in range(len(signature.args) - 1))]
    status, _ = context.call_conv.call_function(inner, callee, signature.return_type, signature.args, values)
    with inner.if_then(status.is_error, likely=False):
        inner.store(ir.Constant(_INT64, 1), inner.inttoptr(places[1], failed_type))
    inner.ret_void()
    return function
