"""The CPU operations that are known: every module of this package that says which ``TYPE`` it computes.

Such a module has ``run(operation, scales, source, destination)`` and may say:

* ``IN_LINE`` True: it takes as many elements as there are channels, as they lie in memory, whatever the strides;
* ``record`` with the same arguments: the same as a record of a compiled kernel, or None;
* ``OF_LANES`` True: its ``run`` takes the buffers of several images at once.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

from nvdla.descriptors.enums import EmuOpType
from nvdla.discovery import modules_of


@cache
def operations() -> dict[EmuOpType, ModuleType]:
    """All CPU operations by their type."""
    return {module.TYPE: module for module in modules_of("nvdla.cpu") if hasattr(module, "TYPE")}


def computes_in_line(kind: EmuOpType) -> bool:
    """Whether an operation takes its elements as they lie in memory."""
    return bool(getattr(operations().get(kind), "IN_LINE", False))
