"""The configuration space bus: register programs for bare metal, logs of register accesses, the register server."""

from nvdla.csb.program import RegisterProgram
from nvdla.csb.recording import record

__all__ = ["RegisterProgram", "record"]
