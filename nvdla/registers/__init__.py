"""The configuration space bus: register programs for bare metal, logs of register accesses, the register server."""

from nvdla.registers.recording import record
from nvdla.registers.register_program import RegisterProgram

__all__ = ["RegisterProgram", "record"]
