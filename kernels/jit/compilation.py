"""``njit`` for the kernels of this package: compiled by numba, but not before that pays.

To import numba takes a quarter of a second, to load the first kernel as long again, to compile one up to a second. A
small network is through before that with numpy, and the first run of a large one with numpy and BLAS. So a kernel may
have a *plain form*: numpy only, the same results to the last bit (tests/kernels/test_plain_forms.py compares them). It
is taken until the kernel is compiled, and only as long as all plain forms of the process have done little work
(:data:`PLAIN_WORK`), or in runs for which :class:`PlainWork` has room; whatever runs often or on much data is compiled.
A kernel without a plain form is compiled, or taken from the cache (:mod:`nvdla.kernels.jit.kernel_cache`), when it is
called first.

What keeps compilation short: loops instead of assignments from slice to slice (for those numba compiles its text
functions, for the message of an error: a second), few specialisations. ``parallel=True`` is not used: work is shared by
the crew.
"""

from __future__ import annotations

import functools
import importlib
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

from nvdla.kernels.jit.cache_folder import cache_folder, kept_kernels
from nvdla.kernels.jit.readied import listen, readied

PLAIN_WORK = 1 << 23
"""What a process does in plain forms at most, in steps of about a nanosecond, besides whole runs."""
PLAIN_RUNS, PLAIN_RUNS_UNKEPT = 500_000_000, 3_000_000_000
"""What first runs take in plain forms at most: about what it takes to load the kernels of a large network; where none
is kept a fraction of what it takes to compile them."""
OWN_THREADS = "nvdla-"
"""How the names of the toolkit's own threads begin, which do not fork."""
WORTH_WAKING = 200_000
"""Nanoseconds of work for which sleeping helpers are woken: it takes them 50,000 until they are there."""

_lock = threading.RLock()
_thread = threading.local()


class PlainWork:
    """The work that plain forms may still do in this process."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._runs: int | None = None

    def take(self, cost: int) -> bool:
        """True, and so much less is left, where that much was left, and within :meth:`run`."""
        if self.within_run:
            return True
        if cost > self.left:
            return False
        self.left -= cost
        return True

    def take_run(self, cost: int) -> bool:
        """Whether a whole run of a network may be done in plain forms: not where Python has other threads. numpy's BLAS
        hangs, or is ended by the C library, in a process that forks while it is at work in another thread."""
        if sum(not each.name.startswith(OWN_THREADS) for each in threading.enumerate()) > 1:
            return False
        if self._runs is None:
            self._runs = PLAIN_RUNS if kept_kernels() else PLAIN_RUNS_UNKEPT
        if cost > self._runs:
            return False
        self._runs -= cost
        return True

    @property
    def within_run(self) -> bool:
        """Whether the calling thread is in a run that was taken."""
        return getattr(_thread, "plain", False)

    @contextmanager
    def run(self) -> Iterator[None]:
        """A run that was taken: the calling thread's kernels with plain forms do it by these."""
        _thread.plain = True
        try:
            yield
        finally:
            _thread.plain = False

    def end(self) -> None:
        """No plain form is taken from now on."""
        self.left = self._runs = 0


plain_work = PlainWork(PLAIN_WORK)


class Late:
    """Stands in a kernel's module for what only compiled code needs, and what would import numba: ``place`` is
    "module:name"."""

    def __init__(self, place: str) -> None:
        self.place = place

    def find(self) -> Any:
        """What it stands for."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name)


def late(place: str) -> Any:
    """What is there, imported when a kernel that needs it is compiled; a :class:`Late` until then."""
    return Late(place)


P = ParamSpec("P")
R = TypeVar("R")


class Kernel(Generic[P, R]):
    """A function on arrays and numbers, compiled on demand. ``py_func`` is the function itself.

    One that is ``shared`` takes the handle of the crew first, which calls from Python leave out
    (:mod:`nvdla.kernels.jit.crew`).
    """

    def __init__(self, function: Callable[..., R], options: dict[str, Any], cached: bool, shared: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.plain_form: Callable[..., R] | None = None
        self._cost: Callable[..., int] | None = None
        self._options = options
        self._cached = cached
        self._compiled: Any = None
        self._called: Any = None
        self._shared = shared

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        if self._compiled is None and self.plain_form and self._cost and plain_work.take(self._cost(*args, **named)):
            return self.plain_form(*args, **named)
        return self.compiled_form(*args, **named)

    def compiled_form(self, *args: P.args, **named: P.kwargs) -> R:
        """The result of a call, never by the plain form."""
        compiled = self._compiled or self.compiled
        result = compiled(helpers.handle(True), *args, **named) if self._shared else compiled(*args, **named)
        return cast(R, result)

    def joined(self, *args: P.args, **named: P.kwargs) -> R:
        """:meth:`compiled_form` of a shared kernel with the helpers that are awake: for too little work to wake one."""
        return cast(R, (self._compiled or self.compiled)(helpers.handle(False), *args, **named))

    def for_work(self, nanoseconds: float, *args: P.args, **named: P.kwargs) -> R:
        """The shared kernel on so much work: helpers that sleep are woken for what takes much longer than that."""
        return self(*args, **named) if nanoseconds > WORTH_WAKING else self.joined(*args, **named)

    def plain(self, cost: Callable[..., int]) -> Callable[[Callable[..., R]], Callable[..., R]]:
        """Decorates the plain form; ``cost`` takes the same arguments and tells its work in nanoseconds or so."""

        def keep(form: Callable[..., R]) -> Callable[..., R]:
            self.plain_form, self._cost = form, cost
            return form

        return keep

    @property
    def compiled(self) -> Any:
        """numba's dispatcher. From now on calls go there."""
        if self._compiled is None:
            with _lock:
                self._compiled = self._compiled or self._dispatcher(no_cfunc_wrapper=True)
        return self._compiled

    @property
    def called(self) -> Any:
        """A dispatcher for calls from other kernels, which take the code in: without machine code of its own, and what
        Python or C needs to call it."""
        if self._called is None:
            with _lock:
                wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
                self._called = self._called or self._dispatcher(linked=True, **wrappers)
        return self._called

    @property
    def _numba_type_(self) -> Any:
        """So that functions that numba compiles elsewhere may call a kernel."""
        return self.called._numba_type_

    def _dispatcher(self, linked: bool = False, **options: Any) -> Any:
        njit = _numba().njit
        if linked:
            from nvdla.kernels.jit.linked_code import LinkedCompiler

            return njit(pipeline_class=LinkedCompiler, **self._options, **options)(self._function())
        dispatcher = njit(**self._options, **options)(self._function())
        folder = cache_folder() if self._cached else None
        if folder is not None and hasattr(dispatcher, "_cache"):  # not with NUMBA_DISABLE_JIT
            from nvdla.kernels.jit.kernel_cache import KernelCache

            dispatcher._cache = KernelCache(self.py_func, folder)
        return dispatcher

    def _function(self) -> Any:
        """The function with dispatchers for the kernels that it calls, and with what was to be found late."""
        function = cast(types.FunctionType, self.py_func)
        names = {**function.__globals__}
        for name in _names(function.__code__):
            value = names.get(name)
            if isinstance(value, Kernel):
                names[name] = value.called
            elif isinstance(value, Late):
                names[name] = value.find()
        made = types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        return functools.update_wrapper(made, function, updated=("__dict__",))


@overload
def njit(*, shared: Literal[True], **options: Any) -> Callable[[Callable[Concatenate[int, P], R]], Kernel[P, R]]: ...


@overload
def njit(**options: Any) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...


def njit(**options: Any) -> Callable[[Callable[..., Any]], Kernel[Any, Any]]:
    """``numba.njit`` with keywords; ``cache=True``: this package's cache, ``shared=True``: a kernel for the crew."""
    cached, shared = options.pop("cache", False), options.pop("shared", False)
    return lambda function: Kernel(function, options, cached, shared)


@functools.cache
def _numba() -> Any:
    """numba, imported when the first kernel asks for it."""
    with readied.loading(kernels=0):
        numba = importlib.import_module("numba")
        listen()
    return numba


class Helpers:
    """Where a shared kernel gets its helpers. Whoever shares work has imported the crew, which says so here."""

    handle: Callable[[bool], int]
    """Takes whether sleeping helpers are woken; the number that the kernel hands on."""


helpers = Helpers()


def use_threads(threads: int | None) -> None:
    """How many threads the calling thread's kernels work on; None: all cores."""
    _thread.threads = threads


def limit_of_thread() -> int | None:
    """What :func:`use_threads` was told last by the calling thread."""
    return getattr(_thread, "threads", None)


def _names(code: types.CodeType) -> set[str]:
    """Global names of a function and of those inside it."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))
