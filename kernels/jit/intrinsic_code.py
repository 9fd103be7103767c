"""numba's ``intrinsic``, with a type: what it makes is called from kernels alone, without the typing context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import intrinsic as untyped


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function (typing context, types of the arguments) that gives a signature and a code generator."""
    made: Callable[..., Any] = untyped(function)
    return made
