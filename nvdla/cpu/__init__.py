"""CPU tasks ("EMU" in NVIDIA's sources): operations that the runtime computes itself, one file each.

Adding one is a module with ``run(operation, source, destination)`` and a line in OPERATIONS.
"""

from __future__ import annotations

from nvdla.cpu.task import OPERATIONS, CpuTask

__all__ = ["OPERATIONS", "CpuTask"]
