"""What looks at a program shows its parts by their own names."""

from __future__ import annotations

from dataclasses import dataclass

from nvdla.descriptors.abi import Abi
from nvdla.hardware.configuration import Configuration
from nvdla.loadable.model import Loadable
from nvdla.program.program import Program


@dataclass(frozen=True)
class OfProgram:
    """Something said of a program."""

    program: Program

    @property
    def loadable(self) -> Loadable:
        """The loadable that is looked at."""
        return self.program.loadable

    @property
    def config(self) -> Configuration:
        """The configuration that it is looked at for."""
        return self.program.config

    @property
    def abi(self) -> Abi:
        """The ABI of its descriptors."""
        return self.program.abi
