"""CPU tasks ("EMU" in NVIDIA's sources): operations that the runtime computes itself, one file each.

Adding one is a module with its ``TYPE`` and ``run`` (:mod:`nvdla.cpu.registry`).
"""

from __future__ import annotations

from nvdla.cpu.task import CpuTask

__all__ = ["CpuTask"]
