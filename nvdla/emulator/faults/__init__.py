"""Faults in the simulated hardware: where they strike, what they do there, and runs with them (docs/faults.md).

from nvdla.emulator.faults import Fault, WeightByte

nvdla.Runtime("lenet.loadable").run("digit.pgm", faults=[Fault(WeightByte("0/0", 17), "flip=6")])
"""

from nvdla.emulator.faults.fault import (
    PLACES,
    BufferEntry,
    DescriptorByte,
    Effect,
    Fault,
    InputByte,
    LutEntry,
    MemoryByte,
    Multiplier,
    PartialSum,
    RegisterWord,
    SdpOperand,
    SurfaceByte,
    WeightByte,
    parse,
)

__all__ = [
    "PLACES",
    "BufferEntry",
    "DescriptorByte",
    "Effect",
    "Fault",
    "InputByte",
    "LutEntry",
    "MemoryByte",
    "Multiplier",
    "PartialSum",
    "RegisterWord",
    "SdpOperand",
    "SurfaceByte",
    "WeightByte",
    "parse",
]
