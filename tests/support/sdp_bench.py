"""A machine with an SDP that is set up to pass its input on."""

from __future__ import annotations

import numpy as np

from nvdla.emulator.hardware.configuration import configuration
from nvdla.emulator.hardware.machine import Machine
from nvdla.emulator.memory.address_space import AddressSpace, Space

INPUT, OPERANDS, OUTPUT = 0x80000000, 0x90000000, 0xA0000000


SUM, EQL = 2, 3


class Bench:
    """A machine with three regions of DRAM and an SDP that passes memory to memory until told otherwise."""

    def __init__(self, name: str = "nv_small", width: int = 3, height: int = 2, channels: int = 10) -> None:
        self.config = configuration(name)
        self.memory = AddressSpace()
        for base in (INPUT, OPERANDS, OUTPUT):
            self.memory.map(f"region 0x{base:x}", Space.DRAM, base, 1 << 16)
        self.machine = Machine(self.config, self.memory)
        self.width, self.height, self.channels = width, height, channels
        atom = self.config.memory_atom
        for unit in ("SDP", "SDP_RDMA"):
            self.write(unit, D_DATA_CUBE_WIDTH=width - 1, D_DATA_CUBE_HEIGHT=height - 1)
            self.write(unit, D_DATA_CUBE_CHANNEL=channels - 1)
        self.write("SDP_RDMA", D_SRC_BASE_ADDR_LOW=INPUT, D_SRC_DMA_CFG=1, D_SRC_LINE_STRIDE=width * atom)
        self.write("SDP_RDMA", D_SRC_SURFACE_STRIDE=width * height * atom, D_BRDMA_CFG=1, D_NRDMA_CFG=1, D_ERDMA_CFG=1)
        self.write("SDP", D_DST_BASE_ADDR_LOW=OUTPUT, D_DST_DMA_CFG=1, D_DST_LINE_STRIDE=width * atom)
        self.write("SDP", D_DST_SURFACE_STRIDE=width * height * atom, D_CVT_SCALE=1)
        self.write("SDP", D_DP_BS_CFG=1, D_DP_BN_CFG=1, D_DP_EW_CFG=1)
        self.precision(0, 0, 0)

    def precision(self, source: int, processing: int, output: int) -> None:
        self.write("SDP_RDMA", D_FEATURE_MODE_CFG=source << 2 | processing << 4 | output << 6)
        self.write("SDP", D_DATA_FORMAT=processing | output << 2)

    def write(self, unit: str, **values: int) -> None:
        for register, value in values.items():
            self.machine.registers.write_register(self.machine.registers.map.register(unit, register), value)

    def read(self, unit: str, register: str) -> int:
        return self.machine.registers.read_register(self.machine.registers.map.register(unit, register))

    def store(self, address: int, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values).view(np.uint8).ravel()
        self.memory.view(Space.DRAM, address, data.size)[:] = data

    def start(self) -> None:
        self.write("SDP_RDMA", D_OP_ENABLE=1)
        self.write("SDP", D_OP_ENABLE=1)

    def run(self, dtype=np.int8) -> np.ndarray:
        """Run and return what was written: (surfaces, height, width, atom elements)."""
        self.start()
        completion = self.machine.step()
        assert completion.interrupts == 1
        self.statistics = completion.stages[0].statistics
        return completion.stages[0].destination.view(dtype)


def cube(bench: Bench, dtype=np.int8, seed: int = 1) -> np.ndarray:
    """A random input cube in memory, the last surface full."""
    atom = bench.config.memory_atom // np.dtype(dtype).itemsize
    surfaces = -(-bench.channels // atom)
    limits = np.iinfo(dtype)
    shape = (surfaces, bench.height, bench.width, atom)
    values = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)
    bench.store(INPUT, values)
    return values
