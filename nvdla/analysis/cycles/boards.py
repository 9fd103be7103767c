"""Boards on which NVDLA was timed by others: clock, memory and processor as the model needs them, with their source.

What a source does not say is fitted to its published LeNet; its ResNet-50 is then a check (docs/cycles.md).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from nvdla.analysis.cycles.constants import CPU_ELEMENT, Memory, Software
from nvdla.errors import ConfigError


@dataclass(frozen=True)
class Board:
    """``clock`` in MHz; ``config``: the NVDLA on it; ``source``: who published figures; ``fitted``: what is not from
    there."""

    name: str
    config: str
    clock: float
    memory: Memory
    software: Software
    source: str
    fitted: str


BOARDS = {
    board.name: board
    for board in (
        Board(
            name="zcu102-150mhz",
            config="nv_small",
            clock=149.985,
            memory=Memory(latency=50, bytes_per_cycle=8),
            software=Software(answer=12_000, write=50.0, read=200.0, element=CPU_ELEMENT),
            source="github.com/BerkantB0/NVDLA (2026): ZCU102, port HP0 of 64 bits, Linux 6.6 with NVIDIA's driver",
            fitted="memory latency, register accesses, 80 us from an interrupt to the driver's answer",
        ),
        Board(
            name="zcu102-bare-100mhz",
            config="nv_small",
            clock=100.0,
            memory=Memory(latency=60, bytes_per_cycle=1.0, shared=True),
            software=Software(answer=100, write=20.0, read=40.0, element=CPU_ELEMENT),
            source="arXiv 2508.16095 (2025): ZCU102, a RISC-V core without an operating system",
            fitted="memory of one byte a cycle for reads and writes together, the core's accesses",
        ),
    )
}


def board(name: str) -> Board:
    """The board called ``name``. Raises ConfigError that lists the names and suggests the nearest."""
    if name in BOARDS:
        return BOARDS[name]
    near = difflib.get_close_matches(name, BOARDS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"unknown board {name!r}: {hint}known are {', '.join(BOARDS)}")
