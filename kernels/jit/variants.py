"""Variants of a kernel from one definition.

A definition computes piece ``number`` of its work. :func:`in_pieces` derives kernels that differ only in the threads
that compute the pieces and in the source of the arguments. The thread pool (or the calling thread alone) computes the
pieces of the shared kernel. The recorded kernel reads its arguments from a record.
:meth:`nvdla.kernels.jit.compilation.Kernel.with_fallback` declares the fallback of the shared kernel.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from nvdla.kernels.jit.compilation import Kernel, njit
from nvdla.kernels.jit.thread_pool import share

piece: Any = None
count: Any = None
unpack: Any = None
"""Names in the templates below; every kernel made from a template has its own values."""


def _shared(pool: int, number: int, *arguments: object) -> None:
    share(pool, number, piece, arguments)


def _counted(pool: int, *arguments: object) -> None:
    share(pool, count(*arguments), piece, arguments)


def _recorded(pool: int, address: int) -> None:
    share(pool, count(address), piece, (address,))


def _unpacked_piece(number: int, address: int) -> None:
    piece(number, *unpack(address))


def _unpacked_count(address: int) -> int:
    return int(count(*unpack(address)))


def in_pieces(
    count: Kernel[..., int] | None = None, unpack: Kernel[..., tuple[object, ...]] | None = None
) -> Callable[[Callable[..., None]], Kernel[..., None]]:
    """Decorate the definition of a kernel: a function of the number of a piece, then of the arguments.

    Args:
        count: Kernel that takes the arguments and returns the number of pieces. Without it, callers pass the number
            before the arguments.
        unpack: Kernel that takes the address of a record and returns the arguments; with it the result has a
            ``recorded`` kernel.

    Returns:
        The shared kernel. It takes the arguments.
    """

    def make(definition: Callable[..., None]) -> Kernel[..., None]:
        names = {"piece": njit(nogil=True)(definition), "count": count, "unpack": unpack}
        kernel = _from_template(_counted if count else _shared, definition, names, shared=True)
        if unpack:
            parts = {
                "piece": _from_template(_unpacked_piece, definition, names),
                "count": _from_template(_unpacked_count, definition, names),
            }
            kernel.recorded = _from_template(_recorded, definition, parts)
            kernel.recorded.place += ".recorded"
        return kernel

    return make


def recorded(count: Kernel[..., int]) -> Callable[[Callable[[int, int], None]], Kernel[..., None]]:
    """Decorate the definition of a recorded kernel: a function of the number of a piece and the address of the record.

    Args:
        count: Kernel that takes the address and returns the number of pieces.

    Returns:
        The recorded kernel (:class:`nvdla.kernels.jit.recorded_calls.RecordedCall`).
    """
    return lambda definition: _from_template(
        _recorded, definition, {"piece": njit(nogil=True)(definition), "count": count}
    )


def _from_template(
    template: Callable[..., object], definition: Callable[..., None], names: Mapping[str, object], **options: bool
) -> Kernel[..., None]:
    """Return the kernel of a template with these names."""
    function = types.FunctionType(template.__code__, {**template.__globals__, **names}, definition.__name__)
    function.__module__, function.__doc__ = definition.__module__, definition.__doc__
    function.__qualname__ = f"{definition.__qualname__}.{template.__name__}"  # the cache tells kernels apart by it
    function.__annotations__ = template.__annotations__
    return njit(cache=True, nogil=True, **options)(function)
