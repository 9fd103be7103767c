"""The decoded view of a loadable: operations, their memory accesses, on-the-fly links, the configuration."""

from nvdla.program.accesses import Access
from nvdla.program.operation import Dependency, Key, Operation
from nvdla.program.program import Program, choose_configuration

__all__ = ["Access", "Dependency", "Key", "Operation", "Program", "choose_configuration"]
