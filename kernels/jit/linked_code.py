"""Kernels that only other kernels call: compiled as far as their callers need.

numba makes machine code of every function, and of all that it calls again in it. What is never called from outside
needs none: its callers take its intermediate code in, and optimise it together with their own, once.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class LinkedLibrary(JITCodeLibrary):
    """Code to link into other libraries."""

    def _optimize_final_module(self) -> None:
        """Whoever links it does that."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    @property
    def codegen(self) -> Any:
        """Where environments of machine code are kept: not here."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Compiled kernels do not ask for theirs."""

    def get_pointer_to_function(self, name: str) -> int:
        """There is none."""
        return 0


class LinkedCompiler(Compiler):
    """numba's compiler, for such code."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: Any) -> None:
        library = library or LinkedLibrary(target_context.codegen(), "linked")
        super().__init__(typing_context, target_context, library, *rest)
