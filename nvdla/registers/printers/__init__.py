"""Output formats of register programs: every module states its formats in ``PRINTERS``.

A new format is a :class:`nvdla.registers.recording.Printer` in a module here; ``nvdla program`` lists it.
"""

from __future__ import annotations

from functools import cache

from nvdla.errors import FormatError
from nvdla.registers.recording import Printer
from nvdla.util.arguments import by_annotations
from nvdla.util.registry import modules_of

__all__ = ["printer", "printers"]


@cache
def printers() -> dict[str, Printer]:
    """Return all formats by name."""
    modules = modules_of("nvdla.registers.printers")
    return {printer.format: printer for module in modules for printer in getattr(module, "PRINTERS", ())}


@by_annotations
def printer(name: str) -> Printer:
    """Return the format of that name. Raises FormatError that lists the known formats."""
    if name not in printers():
        known = ", ".join(sorted(printers()))
        hint = "'nvdla program --format list' explains them. On Linux, NVIDIA's driver runs the loadable itself."
        raise FormatError(f"format of register programs: unknown: must be one of {known}, got {name!r}. {hint}")
    return printers()[name]
