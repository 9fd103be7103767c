"""Forms of register programs, one file each: a module with ``FORMAT``, ``HELP`` and ``write(export)``.

A new form is a new file here; the command ``nvdla program`` lists it by itself.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

from nvdla.argument_kinds import by_annotations
from nvdla.discovery import modules_of
from nvdla.errors import FormatError

__all__ = ["printer", "printers"]


@cache
def printers() -> dict[str, ModuleType]:
    """All forms by name."""
    return {module.FORMAT: module for module in modules_of("nvdla.csb.printers") if hasattr(module, "FORMAT")}


@by_annotations
def printer(name: str) -> ModuleType:
    """The form of that name. Raises FormatError that lists the known ones."""
    if name not in printers():
        raise FormatError(f"unknown form {name!r} of register programs: known are {', '.join(printers())}")
    return printers()[name]
