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

MEMORY_LIMIT = 4 << 20
BUDGET = RunBudget(operations=64, multiplications=10**6, elements=10**6, cube=1 << 18)
_PATTERN = bytes(index % 251 for index in range(MEMORY_LIMIT))


def one_input(data: bytes) -> None:
    """Runs twice (through the firmware, then from its plan) with equal results, or NvdlaError."""
    try:
        loadable = nvdla.load(data)
        runtime = nvdla.Runtime(loadable, threads=1, memory_limit=MEMORY_LIMIT, budget=BUDGET)
        inputs = [_PATTERN[: tensor.size] for tensor in runtime.inputs]
        first = runtime.run_raw(inputs)
    except nvdla.NvdlaError:
        return
    runtime.unpack(first)
    second = runtime.run_raw(inputs)
    if first != second:
        raise RuntimeError("the second run gave another result")
