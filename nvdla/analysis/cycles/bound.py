"""Cycles of a chain alone, and the resource that limits it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nvdla.analysis.cycles.constants import ChainShape, ConvolutionShape, CycleConstants, Memory, mac_cycles, taps
from nvdla.analysis.cycles.hardware import Hardware, Run
from nvdla.analysis.cycles.simulation import whole_cycles

# Time beyond the unit's own work (in cycles) from which an operation counts as memory-bound.
MEMORY_BOUND = 16
FULL_USE = 1.05


@dataclass(frozen=True)
class Time:
    """Cycles of a chain. ``bound``: the limiting resource.

    Convolutions: ``data_done`` and ``weights_done`` when CDMA has fetched all, ``first_mac``, ``last_mac``.
    """

    total: int
    bound: str
    data_done: int = 0
    weights_done: int = 0
    first_mac: int = 0
    last_mac: int = 0


def chain_time(chain: ChainShape, constants: CycleConstants, memory: Memory) -> Time:
    """The chain alone on idle units."""
    hardware = Hardware(constants, memory)
    run = hardware.start(chain, constants)
    hardware.simulation.run()
    total = whole_cycles(run.done.time or 0.0)
    if not chain.conv:
        return Time(total, _bound(chain, run, constants, memory))
    return Time(
        total,
        _convolution_bound(chain.conv, run, constants),
        data_done=math.ceil(run.data_in.time or 0.0),
        weights_done=math.ceil(run.weights_in.time or 0.0),
        first_mac=math.ceil(run.first_mac),
        last_mac=math.ceil(run.last_mac),
    )


def _bound(chain: ChainShape, run: Run, constants: CycleConstants, memory: Memory) -> str:
    if chain.copy:
        return "memory"
    unit = "PDP" if chain.pdp else "SDP" if chain.sdp else "CDP"
    return "memory" if run.slowed > MEMORY_BOUND else unit


def _convolution_bound(shape: ConvolutionShape, run: Run, constants: CycleConstants) -> str:
    """Return the use that takes most of a convolution's time.

    A transfer for which the MAC array waits takes the whole time between two kernel groups, also while the array works.
    This counts where the waits are longer than the work of the array that no such transfer covers.
    """
    parts = {"fetch": run.first_mac - run.started, **run.waits}
    parts["memory"] += run.slowed
    working = run.mac_time
    for name, covered in run.covered.items():
        if run.waits[name] > run.mac_time - covered:
            parts[name] += covered
            working -= covered
    name = max(parts, key=lambda part: parts[part])
    if parts[name] > working:
        return name
    macs = mac_cycles(shape, constants)
    if run.mac_time <= macs * FULL_USE:
        return "MAC"
    if run.pace <= taps(shape, constants):
        return "weight loading"
    return "PDP" if run.chain.pdp and run.pace > constants.sdp_atom + 1 else "SDP"
