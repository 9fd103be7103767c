"""Hardware register traces: NVIDIA's .cfg language and the nv_full input.txn form, replayed on the register model."""

from nvdla.emulator.trace.languages import Replay, passing_configurations, read_trace, replay
from nvdla.emulator.trace.player import Check

__all__ = ["Check", "Replay", "passing_configurations", "read_trace", "replay"]
