"""Hardware register traces: NVIDIA's .cfg language and the nv_full input.txn form, replayed on the register model."""

from nvdla.trace.player import Check
from nvdla.trace.replay import Replay, read_trace, replay

__all__ = ["Check", "Replay", "read_trace", "replay"]
