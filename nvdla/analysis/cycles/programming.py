"""Register accesses of the firmware, by engine: counted from its drivers (:mod:`nvdla.firmware`), timed on the RTL."""

from __future__ import annotations

from typing import Any, NamedTuple


class Accesses(NamedTuple):
    """Register writes and reads."""

    writes: int
    reads: int = 0


# The interrupt's cause written back; the writes that select a group and enable it.
INTERRUPT = Accesses(1)
ENABLE = {
    "bdma": Accesses(2),
    "conv": Accesses(10),
    "sdp": Accesses(4),
    "pdp": Accesses(4),
    "cdp": Accesses(4),
    "rubik": Accesses(2),
}
# SDP: without a stage at work, and for each stage; PDP and CDP: with their read DMA or without; a lookup table.
SDP_WRITES, SDP_STAGE_WRITES = 28, 8
PDP_WRITES, PDP_READ_WRITES, CDP_WRITES, TABLE_WRITES = 31, 14, 21, 366
STATUS_READS = 5  # in write-equivalents of a convolution's ten reads, which the bus answers faster than the others


def select_accesses(engine: str) -> Accesses:
    """With both groups free the firmware asks the hardware which comes next; read DMAs are asked, too."""
    return Accesses(0, 1 if engine == "conv" else 2 if engine in ("sdp", "pdp", "cdp") else 1)


def program_accesses(node: Any) -> Accesses:
    """To program a register group for an operation."""
    if node.engine == "conv":
        return Accesses(71, STATUS_READS)
    if node.engine == "sdp":
        stages = sum(bool(getattr(getattr(node.op, f"{name}_op", None), "enable", 0)) for name in ("x1", "x2", "y"))
        return Accesses(3 + SDP_WRITES + SDP_STAGE_WRITES * stages)
    if node.engine == "pdp":
        return Accesses(PDP_WRITES if node.takes_on_the_fly else PDP_WRITES + PDP_READ_WRITES)
    if node.engine == "cdp":
        return Accesses(CDP_WRITES + TABLE_WRITES)
    return Accesses(10)
