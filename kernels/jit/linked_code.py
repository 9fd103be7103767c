"""Linked compiled functions and intrinsics.

numba emits machine code for every function, and again for the functions that it calls. A function that is never called
from outside needs none: its callers link its intermediate code and optimize it once, together with their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
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
