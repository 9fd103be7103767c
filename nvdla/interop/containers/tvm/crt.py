"""The registry of TVM's C runtime (CRT): function names, handles, modules, and calls through them.

A registry is a string of names (a count, each name with its NUL, one NUL more) and an array of functions; looking up
scans the string, and the index is the handle's low half. Up to release 0.8 the count is one byte, since 0.9 it is two
in the machine's byte order; the text carries no marker.

A small faithful model of src/runtime/crt/common/func_registry.c and crt_runtime_api.c (0.8 and 0.9): the same order of
registration, capacities, handles and error codes. It serves the emulator's functions to remote callers.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from nvdla.errors import FormatError

#: What a packed function gets: its arguments, and the module it was found in (None for a global function).
PackedFunction = Callable[..., object]

MAX_MODULES = 2  # TVM_CRT_MAX_REGISTERED_MODULES
_TIME_EVALUATOR = 0x7FFF
_VALID = 0x8000
_INDEX_MASK = 0x7FFF
_POINTER_BYTES = 8
#: A new registry is divided by this: a name of 10 bytes, its NUL, and a pointer (func_registry.h).
AVERAGE_ENTRY_BYTES = 10 + 1 + _POINTER_BYTES
MAX_EVALUATIONS = 1_000_000
#: Seconds that one time evaluator may take; checked between calls.
MAX_EVALUATION_SECONDS = 600.0


class CrtStatus(IntEnum):
    """tvm_crt_error_t: category in the high byte (include/tvm/runtime/crt/error_codes.h)."""

    OK = 0
    FUNCTION_NAME_NOT_FOUND = 0x100
    FUNCTION_INDEX_INVALID = 0x101
    FUNCTION_REGISTRY_FULL = 0x102
    FUNCTION_ALREADY_DEFINED = 0x103
    BUFFER_TOO_SMALL = 0x104
    PLATFORM_NO_MEMORY = 0x503
    WRONG_ARGUMENT_COUNT = 0x800
    WRONG_ARGUMENT_TYPE = 0x801
    INVALID_ARGUMENT = 0x803
    TIME_EVALUATOR_BAD_HANDLE = 0x900
    GENERIC = -1


class CrtError(FormatError):
    """Error with an error code of the C runtime."""

    def __init__(self, status: CrtStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class FuncRegistry:
    """Constant registry: names and functions side by side. ``functions`` is empty for one that was only read."""

    def __init__(self, names: Sequence[str], functions: Sequence[PackedFunction] = (), count_bytes: int = 2) -> None:
        limit = 255 if count_bytes == 1 else 0xFFFF
        if count_bytes not in (1, 2) or len(names) > limit:
            raise FormatError(
                f"size of the count: must be 1 byte (up to 255 names) or 2 (up to 65535), got {count_bytes} "
                f"for {len(names)} names"
            )
        if functions and len(functions) != len(names):
            raise FormatError(f"functions: must be {len(names)}, one per name, got {len(functions)}")
        self.names = list(names)
        self.functions = list(functions)
        self.count_bytes = count_bytes

    @classmethod
    def parse(cls, text: bytes, count_bytes: int | None = None, byteorder: str = "little") -> FuncRegistry:
        """Reads the string of names. The width of the count is found out when it is not given: two bytes if that
        agrees with the names that follow, otherwise one."""
        if count_bytes is None:
            count_bytes = 2 if _counted(text, 2, byteorder) is not None else 1
        names = _counted(text, count_bytes, byteorder)
        if names is None:
            raise FormatError(
                f"function registry of {len(text)} bytes: count of {count_bytes} bytes: must be the number of names, "
                f"got {text[:4].hex(' ')}"
            )
        return cls(names, (), count_bytes)

    def encode(self, byteorder: str = "little") -> bytes:
        """The string of names as generated C code has it, its final NUL included."""
        body = b"".join(_name_bytes(name) + b"\0" for name in self.names)
        return len(self.names).to_bytes(self.count_bytes, byteorder) + body + b"\0"  # type: ignore[arg-type]

    def lookup(self, name: str) -> int:
        """Index of the first function of this name."""
        for index, candidate in enumerate(self.names):
            if candidate == name:
                return index
        raise CrtError(CrtStatus.FUNCTION_NAME_NOT_FOUND, f"function: must be in the registry, got {name!r}")

    def by_index(self, index: int) -> PackedFunction:
        """The function of that index. Raises CrtError where there is none."""
        if not 0 <= index < len(self.functions):
            raise CrtError(
                CrtStatus.FUNCTION_INDEX_INVALID,
                f"function index: must be below {len(self.functions)}, got {index}",
            )
        return self.functions[index]


def _name_bytes(name: str) -> bytes:
    raw = name.encode("utf-8", "surrogatepass")
    if not raw or b"\0" in raw:
        raise FormatError(f"function name: must not be empty or contain NUL, got {name!r}")
    return raw


def _counted(text: bytes, width: int, byteorder: str) -> list[str] | None:
    """The names after a count of this width; None where count and names disagree."""
    if len(text) < width:
        return None
    expected = int.from_bytes(text[:width], byteorder)  # type: ignore[arg-type]
    if expected == 0:
        return []
    end = text.find(b"\0\0", width)
    raw = (text[width:] if end < 0 else text[width:end]).removesuffix(b"\0").split(b"\0")
    if len(raw) != expected or not all(raw):
        return None
    return [name.decode("utf-8", "backslashreplace") for name in raw]


class MutableFuncRegistry(FuncRegistry):
    """A registry in a buffer of fixed size, names growing from the front and pointers kept at the back.

    One byte stricter than the original, which lets a name fill the gap to the last byte and then writes the closing
    NUL over the first function pointer (TVMMutableFuncRegistry_Set in 0.8 and 0.9)."""

    def __init__(self, buffer_bytes: int, count_bytes: int = 2) -> None:
        if buffer_bytes < AVERAGE_ENTRY_BYTES:
            raise CrtError(
                CrtStatus.BUFFER_TOO_SMALL,
                f"registry: must have at least {AVERAGE_ENTRY_BYTES} bytes, got {buffer_bytes}",
            )
        super().__init__([], [], count_bytes)
        self.max_functions = buffer_bytes // AVERAGE_ENTRY_BYTES
        self._names_room = buffer_bytes - self.max_functions * _POINTER_BYTES
        self._used = count_bytes

    def set(self, name: str, function: PackedFunction, override: bool = False) -> int:
        """Adds a function, or replaces the one of this name; its index."""
        if name in self.names:
            index = self.lookup(name)
            if not override:
                raise CrtError(CrtStatus.FUNCTION_ALREADY_DEFINED, f"function {name!r}: must be defined once")
            self.functions[index] = function
            return index
        size = len(_name_bytes(name)) + 1
        if len(self.names) >= self.max_functions or self._used + size + 1 > self._names_room:
            raise CrtError(
                CrtStatus.FUNCTION_REGISTRY_FULL,
                f"the registry is full: {len(self.names)} of {self.max_functions} functions, "
                f"{self._names_room - self._used} bytes left for names",
            )
        self.names.append(name)
        self.functions.append(function)
        self._used += size
        return len(self.names) - 1


def encode_handle(module: int | None, function: int, layout: str = "landed") -> int:
    """A function handle. ``landed`` is what releases do: both halves with their bit 15 set; ``rfc`` is what was
    proposed: bit 31 says that the module index (bits 30 to 16) is valid, and the function index has no mark."""
    if not 0 <= function <= _INDEX_MASK or not 0 <= (module or 0) <= _INDEX_MASK:
        raise FormatError(f"function handle of module {module}, function {function}: indices must fit 15 bits")
    if layout == "rfc":
        return function if module is None else (module | _VALID) << 16 | function
    if layout != "landed" or module is None:
        raise FormatError(
            f"function handle layout: must be rfc, or landed with a module, got {layout!r} with module {module}"
        )
    return (module | _VALID) << 16 | function | _VALID


def decode_handle(handle: int, layout: str = "landed") -> tuple[int | None, int]:
    """Module index (None where the handle has none) and function index."""
    if not 0 <= handle < 1 << 32:
        raise FormatError(f"function handle: must fit 32 bits, got {handle:#x}")
    module, function = handle >> 16, handle & 0xFFFF
    if layout == "rfc":
        return (module & _INDEX_MASK if module & _VALID else None), function
    if layout != "landed" or not module & _VALID or not function & _VALID:
        raise FormatError(f"function handle {handle:#010x} in layout {layout!r}: bits 31 and 15 must be set")
    return module & _INDEX_MASK, function & _INDEX_MASK


@dataclass(frozen=True)
class ModuleHandle:
    """Handle of a module for remote callers."""

    value: int


@dataclass(frozen=True)
class FunctionHandle:
    """A function as a value."""

    value: int


@dataclass
class CrtModule:
    """A module: a registry of functions, and an action for its release. ``state`` is the module's own."""

    registry: FuncRegistry
    state: object = None
    on_free: Callable[[], None] | None = None


@dataclass
class _TimeEvaluator:
    """The one timed function that the runtime remembers."""

    function: int
    number: int
    repeat: int
    min_repeat_seconds: float


@dataclass
class CrtRuntime:
    """Global functions, a table of modules, and calls by handle. ``system_library`` makes the module that
    ``runtime.SystemLib`` hands out, which is never freed."""

    registry_bytes: int = 512
    max_modules: int = MAX_MODULES
    system_library: Callable[[], CrtModule] | None = None
    max_transfer_bytes: int = 2048 - 11  # a packet, less start, length, session header and CRC
    _modules: dict[int, CrtModule] = field(init=False, default_factory=dict)
    _next_module: int = field(init=False, default=0)
    _system: ModuleHandle | None = field(init=False, default=None)
    _evaluator: _TimeEvaluator | None = field(init=False, default=None)
    _evaluations: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not 1 <= self.max_modules < _TIME_EVALUATOR:
            raise FormatError(f"modules: must be 1 to {_TIME_EVALUATOR - 1}, got {self.max_modules}")
        self.globals = MutableFuncRegistry(self.registry_bytes)
        self.register("runtime.SystemLib", self._system_library)
        self.register("tvm.rpc.server.ModuleGetFunction", self._module_get_function)
        self.register("runtime.RPCTimeEvaluator", self._time_evaluator)
        self.register("tvm.rpc.server.GetCRTMaxPacketSize", lambda *_: self.max_transfer_bytes)

    def register(self, name: str, function: PackedFunction, override: bool = False) -> None:
        """TVMFuncRegisterGlobal."""
        self.globals.set(name, function, override)

    def get_global(self, name: str) -> int | None:
        """Handle of a global function, None where there is none of this name (TVMFuncGetGlobal)."""
        try:
            return encode_handle(self.max_modules, self.globals.lookup(name))
        except CrtError:
            return None

    def add_module(self, module: CrtModule) -> ModuleHandle:
        """TVMModCreateFromCModule. ``max_modules`` may be there at a time; a number is never given out twice, so that a
        handle which was freed, and is freed again by a client that tidies up late, never means another module."""
        if len(self._modules) >= self.max_modules:
            raise CrtError(CrtStatus.GENERIC, f"modules: must be at most {self.max_modules} at a time. Free one first.")
        index = self._next_module
        if index >= _TIME_EVALUATOR:
            raise CrtError(
                CrtStatus.GENERIC, f"modules per connection: must be at most {_TIME_EVALUATOR - 1}. Connect again."
            )
        self._modules[index] = module
        self._next_module += 2 if index + 1 == self.max_modules else 1  # that number means the global functions
        return ModuleHandle(index | _VALID)

    def module(self, handle: ModuleHandle | int) -> CrtModule:
        """The module of a handle; FormatError where it was freed or never was."""
        return self._find(handle)[1]

    def _find(self, handle: ModuleHandle | int) -> tuple[int, CrtModule]:
        value = handle.value if isinstance(handle, ModuleHandle) else handle
        index = value & _INDEX_MASK
        module = self._modules.get(index) if value & ~_INDEX_MASK == _VALID else None
        if module is None:
            raise CrtError(
                CrtStatus.GENERIC, f"module handle: must be in use, got {value:#x}. It was freed, or never assigned."
            )
        return index, module

    def free_module(self, handle: ModuleHandle | int) -> None:
        """TVMModFree. The system library stays."""
        value = handle.value if isinstance(handle, ModuleHandle) else handle
        if self._system is not None and value == self._system.value:
            return
        index, module = self._find(value)
        del self._modules[index]
        if module.on_free is not None:
            module.on_free()

    def free_all(self) -> None:
        """Frees every module, the system library too."""
        for module in self._modules.values():
            if module.on_free is not None:
                module.on_free()
        self._modules = {}
        self._system = None

    def get_function(self, handle: ModuleHandle | int, name: str) -> int:
        """Handle of a module's function (TVMModGetFunction)."""
        index, module = self._find(handle)
        return encode_handle(index, module.registry.lookup(name))

    def call(self, handle: int, *arguments: object) -> object:
        """TVMFuncCall: a global function, a module's, or the time evaluator."""
        module, function = decode_handle(handle)
        if module == _TIME_EVALUATOR:
            return self._run_time_evaluator(function, arguments)
        if module == self.max_modules:
            return self.globals.by_index(function)(*arguments)
        if module is None or module not in self._modules:
            raise CrtError(CrtStatus.GENERIC, f"function handle {handle:#x}: module: must be registered, got {module}")
        return self._modules[module].registry.by_index(function)(*arguments)

    def global_names(self) -> Iterator[str]:
        """Return the registry's contents, in TVM's order."""
        return iter(list(self.globals.names))

    def _system_library(self, *_: object) -> ModuleHandle:
        if self._system is None:
            if self.system_library is None:
                raise CrtError(CrtStatus.GENERIC, "this runtime has no system library")
            self._system = self.add_module(self.system_library())
        return self._system

    def _module_get_function(self, *arguments: object) -> FunctionHandle | None:
        """None, and no error, for a wrong call or an unknown name, as the C++ runtime does."""
        if len(arguments) != 3 or not isinstance(arguments[0], ModuleHandle) or not isinstance(arguments[1], str):
            return None
        try:
            return FunctionHandle(self.get_function(arguments[0], arguments[1]))
        except CrtError as error:
            if error.status is CrtStatus.FUNCTION_NAME_NOT_FOUND:
                return None
            raise

    def _time_evaluator(self, *arguments: Any) -> FunctionHandle:
        """module, name, device type, device id, number, repeat, minimum milliseconds, ... -> a function that returns
        the seconds of one call, a double a repeat."""
        if len(arguments) < 10:
            raise CrtError(
                CrtStatus.WRONG_ARGUMENT_COUNT, f"RPCTimeEvaluator: must get 10 arguments, got {len(arguments)}"
            )
        module, name, numbers = arguments[0], arguments[1], arguments[2:9]
        if not isinstance(name, str) or not all(isinstance(n, int) for n in numbers):
            raise CrtError(
                CrtStatus.WRONG_ARGUMENT_TYPE,
                "RPCTimeEvaluator: arguments: must be a module, a name and seven integers",
            )
        number, repeat, milliseconds = numbers[2:5]
        if min(number, repeat) < 1 or number * repeat > MAX_EVALUATIONS or not 0 <= milliseconds <= 60_000:
            raise CrtError(
                CrtStatus.INVALID_ARGUMENT,
                f"RPCTimeEvaluator: must take at most {MAX_EVALUATIONS} calls and 60000 ms, got "
                f"{number} times {repeat} calls and {milliseconds} ms",
            )
        if module is None:
            function = self.get_global(name)
            if function is None:
                raise CrtError(CrtStatus.FUNCTION_NAME_NOT_FOUND, f"function: must be in the registry, got {name!r}")
        else:
            function = self.get_function(module, name)
        if self._evaluations == _INDEX_MASK:
            raise CrtError(
                CrtStatus.GENERIC, f"time evaluators per connection: must be at most {_INDEX_MASK}. Connect again."
            )
        self._evaluations += 1
        self._evaluator = _TimeEvaluator(function, number, repeat, milliseconds / 1000)
        return FunctionHandle(encode_handle(_TIME_EVALUATOR, self._evaluations))

    def _run_time_evaluator(self, function: int, arguments: Sequence[object]) -> bytes:
        state = self._evaluator
        if state is None or function != self._evaluations:
            raise CrtError(CrtStatus.TIME_EVALUATOR_BAD_HANDLE, "time evaluator: must be the latest one")
        if decode_handle(state.function)[0] == _TIME_EVALUATOR:
            raise CrtError(CrtStatus.TIME_EVALUATOR_BAD_HANDLE, "time evaluator: must not time itself")
        self.call(state.function, *arguments)  # the first call is not timed: it may compile or load
        deadline = time.monotonic() + MAX_EVALUATION_SECONDS
        seconds = [self._measure(state, arguments, deadline) for _ in range(state.repeat)]
        return struct.pack(f"<{len(seconds)}d", *seconds)

    def _measure(self, state: _TimeEvaluator, arguments: Sequence[object], deadline: float) -> float:
        """Mean seconds of a call; the number of calls grows until the shortest time is reached."""
        while True:
            start = time.perf_counter()
            for _ in range(state.number):
                self.call(state.function, *arguments)
                if time.monotonic() > deadline:
                    raise CrtError(
                        CrtStatus.INVALID_ARGUMENT,
                        f"time evaluator: must finish within {MAX_EVALUATION_SECONDS:.0f} seconds. Request fewer "
                        "calls.",
                    )
            elapsed = time.perf_counter() - start
            if elapsed >= state.min_repeat_seconds or state.number >= MAX_EVALUATIONS:
                return elapsed / state.number
            wanted = state.min_repeat_seconds / (elapsed / state.number) + 1 if elapsed else state.number * 2
            state.number = min(int(max(wanted, state.number * 1.618)) + 1, MAX_EVALUATIONS)
