"""``njit`` for the kernels of this package, which delays compilation by numba until it pays.

The import of numba takes a quarter of a second, the first load of a kernel as long again, a compilation up to a second.
numpy finishes a small network, and the first run of a large one, in less time. So a kernel can have a *fallback* that
uses only numpy and gives identical results (tests/kernels/test_fallbacks.py compares them).

The fallback runs until the kernel is compiled, within a limit on the fallback work of the process
(:data:`FALLBACK_WORK`) or in a run that :class:`FallbackWork` admits. Beyond that limit the kernel is compiled. A
kernel without a fallback is compiled, or loaded from the cache (:mod:`nvdla.kernels.jit.kernel_cache`), by its first
call.

Two rules keep compilation short: use loops instead of assignments between slices (for these numba also compiles the
text functions of its error message, which takes a second), and few specializations. ``parallel=True`` is not used: the
thread pool shares the work.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from nvdla.kernels.jit.cache_folder import cache_folders, kept_kernels
from nvdla.kernels.jit.kernel_times import kernel_times, listen

FALLBACK_WORK = 1 << 23
"""Limit of a process's fallback work outside of admitted runs, in nanoseconds."""
FALLBACK_RUNS, FALLBACK_RUNS_UNCACHED = 500_000_000, 3_000_000_000
"""Limit of fallback work in first runs, in nanoseconds: about the time to load the kernels of a large network, or, with
an empty cache, a fraction of the time to compile them."""
OWN_THREADS = "nvdla-"
"""Prefix of the names of the toolkit's own threads, which do not fork."""
WORTH_WAKING = 200_000
"""Least work, in nanoseconds, for which sleeping workers are woken; a wake-up takes 50,000."""

_lock = threading.RLock()
_thread = threading.local()


_forking: list[Any] = []  # numba's lock while this process forks


def _before_fork() -> None:
    """Take numba's lock: a child that is forked while a thread compiles or loads a kernel waits for that thread
    indefinitely."""
    lock = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    if lock is not None:
        lock.acquire()
        _forking.append(lock)


def _after_fork() -> None:
    while _forking:
        _forking.pop().release()


def _after_fork_in_child() -> None:
    """Replace the lock: the thread that held it does not exist in the child."""
    global _lock
    _lock = threading.RLock()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


class FallbackWork:
    """Work that fallbacks can still do in this process. ``waits``: they also do runs while another process compiles."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.waits = True
        self._runs: float | None = None

    def take(self, cost: int) -> bool:
        """Admit a call if enough work is left, or within :meth:`run`; return whether it is admitted."""
        if self.within_run:
            return True
        if cost > self.left:
            return False
        self.left -= cost
        return True

    def take_run(self, cost: float) -> bool:
        """Check whether fallbacks can do a whole run of a network."""
        if not self.fits_process():
            return False
        if self._runs is None:
            self._runs = FALLBACK_RUNS if kept_kernels() else FALLBACK_RUNS_UNCACHED
        if cost > self._runs:
            return False
        self._runs -= cost
        return True

    def fits_process(self) -> bool:
        """Return False if Python has other threads: numpy's BLAS hangs, or the C library ends it, in a process that
        forks while another thread uses it."""
        return sum(not thread.name.startswith(OWN_THREADS) for thread in threading.enumerate()) <= 1

    @property
    def within_run(self) -> bool:
        """True in a thread that is within :meth:`run`."""
        return getattr(_thread, "fallback", False)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Use the fallbacks of the calling thread's kernels within an admitted run."""
        _thread.fallback = True
        try:
            yield
        finally:
            _thread.fallback = False

    def end(self) -> None:
        """Use no fallback from now on."""
        self.left = self._runs = 0
        self.waits = False


fallback_work = FallbackWork(FALLBACK_WORK)


P = ParamSpec("P")
R = TypeVar("R")


class Dispatcher(Protocol):
    """A function as numba calls it."""

    _numba_type_: object
    _cache: object

    def __call__(self, *args: object, **named: object) -> object:
        """Compile for the types of the arguments, if necessary, and call."""


class Late:
    """Placeholder in a kernel's module for an object that only compiled code needs and that imports numba.

    ``place`` is "module:name".
    """

    def __init__(self, place: str) -> None:
        self.place = place

    def find(self) -> object:
        """Import and return the object."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name)


def late(place: str) -> Callable[..., R]:
    """Return a :class:`Late`; the compilation of a kernel that needs the object replaces it."""
    return cast("Callable[..., R]", Late(place))


class Kernel(Generic[P, R]):
    """A function on arrays and numbers, compiled on demand. ``py_func`` is the function itself.

    ``place``: its module and its name there. The first parameter of a ``shared`` kernel is the handle of the thread
    pool, which calls from Python omit (:mod:`nvdla.kernels.jit.thread_pool`). ``recorded``: the same work as a recorded
    kernel (:mod:`nvdla.kernels.jit.variants`).
    """

    def __init__(
        self, function: Callable[..., R], options: Mapping[str, object], cached: bool, shared: bool = False
    ) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.fallback: Callable[..., R] | None = None
        self._cost: Callable[..., int] | None = None
        self._options = options
        self._cached = cached
        self._compiled: Dispatcher | None = None
        self._called: Dispatcher | None = None
        self._shared = shared
        self.recorded: Kernel[..., None] | None = None
        self.place = f"{function.__module__.removeprefix('nvdla.kernels.')}:{function.__name__}"

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        fallback = self._chosen_fallback(*args, **named)
        return self.call_compiled(*args, **named) if fallback is None else fallback(*args, **named)

    def _chosen_fallback(self, *args: P.args, **named: P.kwargs) -> Callable[..., R] | None:
        if self._compiled is None and self.fallback and self._cost and fallback_work.take(self._cost(*args, **named)):
            return self.fallback
        return None

    def call_compiled(self, *args: P.args, **named: P.kwargs) -> R:
        """Call the compiled kernel, never the fallback."""
        compiled = self._compiled or self.compiled
        result = compiled(pool_access.handle(True), *args, **named) if self._shared else compiled(*args, **named)
        return cast(R, result)

    def joined(self, *args: P.args, **named: P.kwargs) -> R:
        """Call the compiled shared kernel with the workers that are awake, for too little work to wake others."""
        return cast(R, (self._compiled or self.compiled)(pool_access.handle(False), *args, **named))

    def for_work(self, nanoseconds: float, *args: P.args, **named: P.kwargs) -> R:
        """Call the shared kernel; wake sleeping workers if the work takes much longer than a wake-up."""
        if nanoseconds > WORTH_WAKING:
            return self(*args, **named)
        fallback = self._chosen_fallback(*args, **named)
        return self.joined(*args, **named) if fallback is None else fallback(*args, **named)

    def with_fallback(self, cost: Callable[..., int]) -> Callable[[Callable[..., R]], Callable[..., R]]:
        """Decorate the fallback; ``cost`` takes the same arguments and estimates its nanoseconds."""

        def keep(fallback: Callable[..., R]) -> Callable[..., R]:
            self.fallback, self._cost = fallback, cost
            return fallback

        return keep

    @property
    def compiled(self) -> Dispatcher:
        """numba's dispatcher, which all later calls use."""
        if self._compiled is None:
            with _lock:
                self._compiled = self._compiled or self._dispatcher(no_cfunc_wrapper=True)
        return self._compiled

    @property
    def called(self) -> Dispatcher:
        """Dispatcher for calls from other kernels, which link its code.

        It has neither machine code nor wrappers for Python and C.
        """
        if self._called is None:
            with _lock:
                wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
                self._called = self._called or self._dispatcher(linked=True, **wrappers)
        return self._called

    @property
    def _numba_type_(self) -> object:
        """numba's type of the kernel, for calls from functions that numba compiles elsewhere."""
        return self.called._numba_type_

    def _dispatcher(self, linked: bool = False, **options: object) -> Dispatcher:
        _numba()
        with kernel_times.loading(kernels=0):
            from nvdla.kernels.jit.linked_code import LinkedCompiler, LoadedCompiler

        if linked:
            return self.dispatcher(pipeline_class=LinkedCompiler, **options)
        dispatcher = self.dispatcher(pipeline_class=LoadedCompiler, **options)
        if self._cached and cache_folders() and hasattr(dispatcher, "_cache"):  # not with NUMBA_DISABLE_JIT
            from nvdla.kernels.jit.kernel_cache import KernelCache

            dispatcher._cache = KernelCache(self.py_func)
        return dispatcher

    def dispatcher(self, **options: object) -> Dispatcher:
        """Return a new dispatcher of numba with these options."""
        linked = self._linked("called")
        return cast(Dispatcher, _numba().njit(**self._options, **options)(linked))

    @functools.cached_property
    def plain(self) -> Callable[P, R]:
        """The function in Python, which calls other kernels in Python, too."""
        return cast("Callable[P, R]", self._linked("plain"))

    def _linked(self, form: str) -> Callable[..., object]:
        """Return the function with an attribute of each kernel that it calls, and with its late imports."""
        function = cast(types.FunctionType, self.py_func)
        names = {**function.__globals__}
        for name in _names(function.__code__):
            value = names.get(name)
            if isinstance(value, Kernel):
                names[name] = getattr(value, form)
            elif isinstance(value, Late):
                names[name] = value.find()
        linked = types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        return functools.update_wrapper(linked, function, updated=("__dict__",))


@overload
def njit(
    *, shared: Literal[True], **options: bool | str
) -> Callable[[Callable[Concatenate[int, P], R]], Kernel[P, R]]: ...


@overload
def njit(**options: Any) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...


def njit(**options: bool | str) -> Callable[[Callable[..., Any]], Kernel[..., Any]]:
    """``numba.njit`` with keywords; ``cache=True``: this package's cache, ``shared=True``: for the thread pool."""
    cached, shared = bool(options.pop("cache", False)), bool(options.pop("shared", False))
    return lambda function: Kernel(function, options, cached, shared)


@functools.cache
def _numba() -> types.ModuleType:
    """Import numba for the first kernel that is compiled."""
    with kernel_times.loading(kernels=0):
        numba = importlib.import_module("numba")
        listen()
    return numba


class PoolAccess:
    """Access to the thread pool, whose module registers its handle here when it is imported."""

    handle: Callable[[bool], int]
    """Return the handle for a shared kernel; the argument: wake sleeping workers."""


pool_access = PoolAccess()


def use_threads(threads: int | None) -> None:
    """Set the number of threads for the calling thread's kernels; None: all cores."""
    _thread.threads = threads


def limit_of_thread() -> int | None:
    """Return the calling thread's last argument of :func:`use_threads`."""
    return getattr(_thread, "threads", None)


def _names(code: types.CodeType) -> set[str]:
    """Return the global names of a function and of its inner functions."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))
