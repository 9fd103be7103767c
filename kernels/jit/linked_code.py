"""Linked compiled functions and intrinsics.

numba emits machine code for every function, and again for the functions that it calls. A function that is never called
from outside needs none: its callers link its intermediate code and optimize it once, together with their own.
"""

from __future__ import annotations

import contextlib
import gc
import struct
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic as untyped


class LinkedLibrary(JITCodeLibrary):
    """Code to link into other libraries."""

    def _optimize_final_module(self) -> None:
        """Do nothing: the linking library optimizes the code."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    @property
    def codegen(self) -> Any:
        """The keeper of environments: this object, which keeps none."""
        return self

    def set_env(self, name: str, environment: object) -> None:
        """Do nothing: compiled kernels do not use their environments."""

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0, since linked code has no machine code."""
        return 0


class LinkedCompiler(Compiler):
    """Variant of numba's compiler for linked code."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: object) -> None:
        library = library or LinkedLibrary(target_context.codegen(), "linked")
        super().__init__(typing_context, target_context, library, *rest)


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function (typing context, types of the arguments) that returns a signature and a code generator."""
    intrinsic_function: Callable[..., Any] = untyped(function)
    return intrinsic_function


class ObjectLibrary(LinkedLibrary):
    """Code that becomes an object file and is not loaded by numba. ``support``: functions in LLVM's language."""

    support = ""

    def _optimize_final_module(self) -> None:
        support = llvm.parse_assembly(self.support)
        support.triple, support.data_layout = self._final_module.triple, self._final_module.data_layout
        self._final_module.link_in(support)
        JITCodeLibrary._optimize_final_module(self)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Turn garbage collection off, which takes a fifth of the time of a compilation."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Compile faster in this context: numba's own functions get no machine code, since callers link them, and garbage
    collection is off."""
    with global_compiler_lock, without_collection():
        codegen = cpu_target.target_context.codegen()
        outer = vars(codegen).get("_library_class")
        codegen._library_class = LinkedLibrary
        try:
            yield
        finally:
            if outer is None:
                del codegen._library_class


class LoadedCompiler(Compiler):
    """Variant of numba's compiler for kernels that numba loads."""

    def _compile_core(self) -> Any:
        with global_compiler_lock, without_collection():
            return super()._compile_core()


def emitted(kernel: Any, integers: int, support: str) -> tuple[str, list[str], bytes]:
    """Return the symbol of a kernel of int64, the names of the functions that it needs, and its object file."""

    class ObjectCompiler(Compiler):
        def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: object) -> None:
            library = ObjectLibrary(target_context.codegen(), "object")
            library.support = support
            super().__init__(typing_context, target_context, library, *rest)

    signature = (types.int64,) * integers
    dispatcher: Any = kernel.dispatcher(pipeline_class=ObjectCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True)
    with compiling():
        dispatcher.compile(signature)
        result = dispatcher.overloads[signature]
        result.library._ensure_finalized()
    module = result.library._final_module
    needs = [
        function.name
        for function in module.functions
        if function.is_declaration and not function.name.startswith("llvm.")
    ]
    return result.fndesc.llvm_func_name, needs, result.library._codegen._tm.emit_object(module)


ALLOCATED, WRITABLE, RELOCATIONS, SYMBOLS, UNWINDING = 2, 1, 4, 2, 0x70000001
"""ELF: flags and types of sections."""
ABSOLUTE = 1
"""ELF for x86-64: the only kind of relocation in kernels, an address of 64 bits, since numba's code can be anywhere."""


def image_of(data: bytes, symbol: str) -> tuple[dict[str, Any], bytes] | None:
    """Link an object file in advance: place its sections, and list the words that contain addresses.

    Returns:
        A header and the image, in which addresses within it count from its first byte. The header: ``begin`` (place of
        the function ``symbol``), ``inside`` (places of the addresses within the image), ``outside`` (places of the
        addresses of other functions, by name). None if only LLVM can load the file: another format or processor, or
        variables.
    """
    if data[:6] != b"\x7fELF\2\1" or struct.unpack_from("<H", data, 18) != (62,):
        return None
    (table,), (count,) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<H", data, 60)
    # of each: name, type, flags, address, offset, size, link, info, alignment, size of an entry
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * number) for number in range(count)]
    image, places = bytearray(), {}
    for number, (_, kind, flags, _, offset, size, _, _, alignment, _) in enumerate(sections):
        if flags & ALLOCATED and size and kind != UNWINDING:
            if flags & WRITABLE:
                return None
            image += bytes(-len(image) % alignment)
            places[number] = len(image)
            image += data[offset : offset + size]
    symbols = [
        (name, section, places.get(section, 0) + value)
        for listed in sections
        if listed[1] == SYMBOLS
        for name, section, value in _symbols(data, listed, sections[listed[6]])
    ]
    begin = next((place for name, section, place in symbols if name == symbol and section in places), None)
    inside: list[int] = []
    outside: dict[str, list[int]] = {}
    for _, kind, _, _, offset, size, _, target, _, _ in sections:
        for at in range(offset, offset + size, 24) if kind == RELOCATIONS and target in places else ():
            where, info, addend = struct.unpack_from("<QQq", data, at)
            name, section, place = symbols[info >> 32]
            if info & 0xFFFFFFFF != ABSOLUTE or (section and section not in places):
                return None
            where += places[target]
            (inside if section else outside.setdefault(name, [])).append(where)
            struct.pack_into("<q", image, where, place + addend)
    return None if begin is None else ({"begin": begin, "inside": inside, "outside": outside}, bytes(image))


def _symbols(data: bytes, table: tuple[int, ...], names: tuple[int, ...]) -> Iterator[tuple[str, int, int]]:
    """Yield name, section and value of the symbols of an ELF file."""
    for at in range(table[4], table[4] + table[5], 24):
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
        begin = names[4] + name
        yield data[begin : data.index(b"\0", begin)].decode(), section, value
