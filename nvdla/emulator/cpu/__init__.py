"""CPU tasks ("EMU" in NVIDIA's sources): operations that the runtime computes itself, one file each.

Adding one is a module with its ``TYPE`` and ``run`` (:mod:`nvdla.emulator.cpu.operation`).
"""

from __future__ import annotations

from nvdla.emulator.cpu.task import CpuTask

__all__ = ["CpuTask"]
