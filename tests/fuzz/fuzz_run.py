"""Fuzz target: a loadable through linker, firmware, scheduler and engines, within small limits."""

from __future__ import annotations

import nvdla
import nvdla.cpu.power
import nvdla.cpu.softmax
import nvdla.hardware.bdma
import nvdla.hardware.cdp
import nvdla.hardware.convolution
import nvdla.hardware.pdp
import nvdla.hardware.rubik
import nvdla.hardware.sdp
import nvdla.hardware.sdp_floats
import nvdla.hardware.sdp_integers
import nvdla.runtime
from nvdla.limits import RunBudget

MEMORY_LIMIT = 16 << 20
BUDGET = RunBudget(operations=256, multiplications=10**7, elements=10**7, cube=1 << 22)


def one_input(data: bytes) -> None:
    """Runs twice (through the firmware, then from its plan) with equal results, or NvdlaError."""
    try:
        loadable = nvdla.load(data)
        runtime = nvdla.Runtime(loadable, threads=1, memory_limit=MEMORY_LIMIT, budget=BUDGET)
        inputs = [bytes(index % 251 for index in range(tensor.size)) for tensor in runtime.inputs]
        first = runtime.run_raw(inputs)
    except nvdla.NvdlaError:
        return
    runtime.unpack(first)
    second = runtime.run_raw(inputs)
    if first != second:
        raise RuntimeError("the second run gave another result")
