"""What :mod:`nvdla.kernels.jit.crew` stands for: compiled code that hands out, takes and awaits pieces of work.

The word MEMBERS decides who takes part. A caller opens a task by writing the limit of helpers into it, and closes it by
setting CLOSED; a helper joins by adding one to it, in one atomic step that fails when the task is closed or full, and
leaves by taking the one away. So after closing the caller waits for nobody but those who are in a piece, and a helper
that comes late finds the door shut. Nothing of a task is changed while somebody is in it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from nvdla.kernels.jit.crew_places_code import current_core, met, of_system
from nvdla.kernels.jit.crew_state import (
    BED,
    BEDS,
    CLOSED,
    CONDITION,
    GENERATION,
    JOINED,
    LIMIT_SHIFT,
    LOCK,
    MEMBERS,
    MOST_HELPERS,
    MUTEX,
    NEXT,
    OTHERS,
    PAGE,
    TASK,
    WAKES,
)
from nvdla.kernels.jit.intrinsic_code import intrinsic

_INT64 = ir.IntType(64)
_PIECE = ir.FunctionType(ir.VoidType(), [_INT64, _INT64])
ROUNDS = 300
"""How often a caller looks whether the last pieces are done before it sleeps between two looks."""
NAP = 50  # microseconds
TASKS_BESIDE = 64
"""Tasks for which a caller that found the crew taken is remembered: it has a core, which no helper shall want."""


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
    """What was there before."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", _place(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _swap(typing_context, address, expected, value):  # type: ignore[no-untyped-def]
    """True where ``expected`` was there, and ``value`` is now."""

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
    """A moment in which the other thread of the core may work."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        module = builder.module
        if module.triple.startswith(("x86_64", "i686", "i386")):
            name, words = "llvm.x86.sse2.pause", []
        elif module.triple.startswith(("aarch64", "arm64")):
            name, words = "llvm.aarch64.hint", [ir.Constant(ir.IntType(32), 1)]
        else:
            return context.get_dummy_value()
        kind = ir.FunctionType(ir.VoidType(), [each.type for each in words])
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
    """Those of the first ``count`` helpers that sleep."""
    for bed in range(state + BEDS, state + BEDS + count * BED, BED):
        if _load(bed):
            _lock(bed + MUTEX)
            _store(bed, 0)
            _signal(bed + CONDITION)
            _unlock(bed + MUTEX)


@njit(nogil=True)
def _sleep(bed):  # type: ignore[no-untyped-def]
    """Until somebody wakes the helper."""
    _lock(bed + MUTEX)
    _store(bed, 1)
    while _load(bed):
        _wait(bed + CONDITION, bed + MUTEX)
    _unlock(bed + MUTEX)


@njit(nogil=True)
def _pieces(state, function, environment, count):  # type: ignore[no-untyped-def]
    """Take pieces until there are none left."""
    number = _add(state + NEXT, 1)
    while number < count:
        _call(function, environment, number)
        number = _add(state + NEXT, 1)


@njit(nogil=True)
def _taken(state):  # type: ignore[no-untyped-def]
    """Take the crew; False, and whoever has it knows that there are others, where somebody has."""
    if _swap(state + LOCK, 0, 1):
        return True
    _store(state + OTHERS, _load(state + GENERATION) + TASKS_BESIDE)
    return False


def _lead(handle, count, function, environment):  # type: ignore[no-untyped-def]
    """All pieces of a task, with those helpers that come in time."""
    limit, state = handle & MOST_HELPERS, handle & -PAGE
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
    """Take part in the task that is open; False where there is none, or enough do."""
    members = _load(state + MEMBERS)
    while members < CLOSED and members & JOINED < members >> LIMIT_SHIFT:
        if _swap(state + MEMBERS, members, members + 1):
            return True
        members = _load(state + MEMBERS)
    return False


def serve(state, number, patience):  # type: ignore[no-untyped-def]
    """What helper ``number`` does for ever: help with every task that comes up, and sleep where none has for
    ``patience`` looks."""
    done, looks, meetings, bed = -1, 0, 0, state + BEDS + number * BED
    _make_mutex(bed + MUTEX, 0)
    _make_condition(bed + CONDITION, 0)
    while True:
        if _load(state + GENERATION) != done and _joined(state):
            done = _load(state + GENERATION)
            meetings = met(bed, _load(state + TASK + 24), meetings)
            _pieces(state, _load(state + TASK), _load(state + TASK + 8), _load(state + TASK + 16))
            _add(state + MEMBERS, -1)
            looks = 0
        elif looks < patience:
            _pause()
            looks += 1
        else:
            _sleep(bed)
            looks = 0


def pause_for(rounds):  # type: ignore[no-untyped-def]
    """As long as a helper looks for work in so many rounds."""
    for _ in range(rounds):
        _pause()


@intrinsic
def share(typing_context, handle, count, body, arguments):  # type: ignore[no-untyped-def]
    """``body(number, *arguments)`` for all numbers below ``count``, by the calling thread and the crew at ``handle``.

    ``body`` is another kernel. An exception in it (an index out of range, where numba checks them) is raised as an
    IndexError when all pieces are through.
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
        numbers = [builder.ptrtoint(each, _INT64) for each in (piece, environment)]
        context.compile_internal(builder, _lead, leading, [handle, count, *numbers])
        with builder.if_then(cgutils.is_not_null(builder, builder.load(failed)), likely=False):
            context.call_conv.return_user_exc(builder, IndexError, ("a kernel's index is out of range",))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, body, arguments), generate


def _piece(context, builder, body, signature, packed_type, failed_type):  # type: ignore[no-untyped-def]
    """A function (environment, number) that calls ``body`` with the arguments that the environment holds."""
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
