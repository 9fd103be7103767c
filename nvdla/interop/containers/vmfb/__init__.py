"""IREE VM bytecode modules (.vmfb): read, verify, disassemble, interpret, re-wrap.

module = nvdla.interop.containers.vmfb.read(data)
VirtualMachine(module).call("abs", [-5])      # nvdla.interop.containers.vmfb.interpreter
"""

from __future__ import annotations

from nvdla.interop.containers.vmfb.module import Module, read

__all__ = ["Module", "read"]
