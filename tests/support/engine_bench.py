"""A whole machine for tests of single engines: memory, registers by name, and a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nvdla.emulator.hardware.configuration import configuration
from nvdla.emulator.hardware.machine import Completion, Machine
from nvdla.emulator.memory.address_space import AddressSpace, Space

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpus"
SOURCE, TARGET = 0x80000000, 0x90000000


class Bench:
    """One machine of a configuration with two DRAM regions (and a CVSRAM region where it has one)."""

    def __init__(self, name: str, size: int = 1 << 16) -> None:
        self.config = configuration(name)
        self.memory = AddressSpace()
        for base in (SOURCE, TARGET):
            self.memory.map(f"region 0x{base:x}", Space.DRAM, base, size)
        self.memory.map("cvsram", Space.CVSRAM, 0x50000000, size)
        self.machine = Machine(self.config, self.memory)

    def write(self, **values: int) -> None:
        """``PDP__D_DATA_FORMAT=1`` writes a register through the bus, ``PDP__D_LRN_CFG__NORMALZ_LEN=1`` one field."""
        registers = self.machine.registers
        for key, value in values.items():
            unit, name, *field = key.split("__")
            register = registers.map.register(unit, name)
            if field:
                bits = register.fields[field[0]]
                value = registers.read_register(register) & ~(bits.mask << bits.low) | (value & bits.mask) << bits.low
            registers.write_register(register, value & 0xFFFFFFFF)

    def step(self) -> Completion:
        completion = self.machine.step()
        assert completion is not None, "nothing can run"
        return completion

    def store(self, address: int, data: np.ndarray, space: Space = Space.DRAM) -> None:
        raw = np.ascontiguousarray(data).view(np.uint8).ravel()
        self.memory.view(space, address, raw.size)[:] = raw

    def load(self, address: int, shape: tuple[int, ...], dtype, space: Space = Space.DRAM) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.memory.view(space, address, size).view(dtype).reshape(shape).copy()


def to_atoms(cube: np.ndarray, atom_bytes: int) -> np.ndarray:
    """(C, H, W) -> packed feature surfaces (S, H, W, atom elements), unused channels 0."""
    atom = atom_bytes // cube.dtype.itemsize
    channels, height, width = cube.shape
    surfaces = -(-channels // atom)
    padded = np.zeros((surfaces * atom, height, width), cube.dtype)
    padded[:channels] = cube
    return np.ascontiguousarray(padded.reshape(surfaces, atom, height, width).transpose(0, 2, 3, 1))


def from_atoms(surfaces: np.ndarray, channels: int) -> np.ndarray:
    """The inverse of :func:`to_atoms`."""
    count, height, width, atom = surfaces.shape
    return surfaces.transpose(0, 3, 1, 2).reshape(count * atom, height, width)[:channels]
