"""What a loadable says, decoded once: operations, what they read and write, who hands to whom, the configuration."""

from nvdla.program.accesses import Access
from nvdla.program.choice import choose_configuration
from nvdla.program.operation import Dependency, Key, Operation
from nvdla.program.program import Program

__all__ = ["Access", "Dependency", "Key", "Operation", "Program", "choose_configuration"]
