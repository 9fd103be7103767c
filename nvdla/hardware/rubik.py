"""Rubik, the data reshape engine: no arithmetic, only bytes in another order.

Contract turns stride_x * stride_y groups of surfaces into one cube that is as many times wider and higher (the second
half of a deconvolution), split turns a feature cube into planes, merge turns planes into a feature cube.
Source: cmod/rubik/NV_NVDLA_rbk.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.errors import ConfigError, ScheduleError
from nvdla.hardware.cube import cube, element_type, elements_of, memory_space, surfaces_of
from nvdla.hardware.job import Handed, Job
from nvdla.hardware.register_file import RegisterGroup
from nvdla.limits import Work
from nvdla.memory.lanes import Move
from nvdla.precision import Precision
from nvdla.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.hardware.machine import Machine

CONTRACT, SPLIT, MERGE = 0, 1, 2
BURST = 32  # bytes; the write DMA fills the last one of a plane's line with zeros


class _Job(Job):
    """What the three jobs have in common: bytes are moved."""

    source: np.ndarray
    destination: np.ndarray

    @property
    def work(self) -> Work:
        largest = max(self.source.size, self.destination.size)
        return Work(elements=self.source.size + self.destination.size, cube=largest, scratch=4 * largest)

    @property
    def needs_kernels(self) -> bool:
        """It moves bytes."""
        return False

    @property
    def reads(self) -> list[np.ndarray]:
        return [self.source]

    @property
    def writes(self) -> list[np.ndarray]:
        return [self.destination]

    def _relocate(self, move: Move) -> None:
        self.source, self.destination = move(self.source), move(self.destination)


class ContractJob(_Job):
    """Input surface (sy * stride_x + sx) * surfaces + s, element (h, w) -> output (s, h * stride_y + sy, w * stride_x
    + sx) (:302, :683). ``targets``: a view (surfaces, height, width * stride_x, atom) for each sy."""

    def __init__(
        self, source: np.ndarray, targets: list[np.ndarray], destination: np.ndarray, strides: tuple[int, int]
    ) -> None:
        self.source = source
        self.targets = targets
        self.destination = destination
        self.strides = strides
        self.statistics: dict[str, int] = {}

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return [self.destination, *self.targets]

    def _relocate(self, move: Move) -> None:
        super()._relocate(move)
        self.targets = [move(target) for target in self.targets]

    def run(self, source: Handed = None) -> None:
        """Do the work once; returns what the next engine takes on the fly, None where the result went to memory."""
        _, stride_x = self.strides
        for sy, target in enumerate(self.targets):
            surfaces = target.shape[0]
            for sx in range(stride_x):
                first = (sy * stride_x + sx) * surfaces
                target[:, :, sx::stride_x] = self.source[first : first + surfaces]


class SplitJob(_Job):
    """Feature cube (S, H, W, atom) -> planes, a line of a plane in whole bursts (:868)."""

    def __init__(self, source: np.ndarray, destination: np.ndarray, elements: Precision) -> None:
        self.source = source
        self.destination = destination
        self.elements = elements
        self.statistics: dict[str, int] = {}

    def run(self, source: Handed = None) -> None:
        """Do the work once; returns what the next engine takes on the fly, None where the result went to memory."""
        data = elements_of(self.source, self.elements)
        surfaces, height, width, atom = data.shape
        planes, _, bursts, _ = self.destination.shape
        lines = np.zeros((planes, height, bursts * BURST // self.elements.bytes), self.elements.bits)
        lines[:, :, :width] = data.transpose(0, 3, 1, 2).reshape(surfaces * atom, height, width)[:planes]
        self.destination[...] = lines.view(np.uint8).reshape(self.destination.shape)


class MergeJob(_Job):
    """Planes (C, H, 1, bytes of a line) -> feature cube; unused channels of the last surface become 0."""

    def __init__(self, source: np.ndarray, destination: np.ndarray, elements: Precision) -> None:
        self.source = source
        self.destination = destination
        self.elements = elements
        self.statistics: dict[str, int] = {}

    def run(self, source: Handed = None) -> None:
        """Do the work once; returns what the next engine takes on the fly, None where the result went to memory."""
        lines = elements_of(self.source, self.elements)
        planes, height, _, width = lines.shape
        surfaces, _, _, atom_bytes = self.destination.shape
        atom = atom_bytes // self.elements.bytes
        data = np.zeros((surfaces * atom, height, width), self.elements.bits)
        data[:planes] = lines.reshape(planes, height, width)
        atoms = np.ascontiguousarray(data.reshape(surfaces, atom, height, width).transpose(0, 2, 3, 1))
        self.destination[...] = atoms.view(np.uint8)


class Rubik:
    """The Rubik engine of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def prepare(self, groups: dict[str, RegisterGroup]) -> ContractJob | SplitJob | MergeJob:
        """Decode and check. Raises ConfigError for what the hardware lacks, ScheduleError for what never ends."""
        config, g = self.machine.config, groups["RBK"]
        config.require("rubik")
        mode = g["D_MISC_CFG.RUBIK_MODE"]
        if mode > MERGE:
            raise ConfigError(f"RBK.D_MISC_CFG.RUBIK_MODE is {mode}: known are 0 (contract), 1 (split), 2 (merge)")
        elements = element_type(g, "D_MISC_CFG.IN_PRECISION", config)
        return (self._contract, self._split, self._merge)[mode](g, elements)

    def _contract(self, g: RegisterGroup, elements: Precision) -> ContractJob:
        atom = self.machine.config.memory_atom
        width, height, _ = _size(g)
        stride_x, stride_y = g["D_DECONV_STRIDE.DECONV_X_STRIDE"] + 1, g["D_DECONV_STRIDE.DECONV_Y_STRIDE"] + 1
        surfaces = surfaces_of(g["D_DATAOUT_SIZE_1.DATAOUT_CHANNEL"] + 1, elements, self.machine.config)
        source_shape = (surfaces * stride_x * stride_y, height, width, atom)
        source = self._read(g, source_shape, (g["D_DAIN_LINE_STRIDE"], g["D_DAIN_SURF_STRIDE"]))
        line, block, surface = g["D_DAOUT_LINE_STRIDE"], g["D_CONTRACT_STRIDE_1"], g["D_DAOUT_SURF_STRIDE"]
        shape = (surfaces, height, width * stride_x, atom)
        targets = [self._written(g, shape, (block, surface), sy * line) for sy in range(stride_y)]
        whole = targets[0]
        if block == line * stride_y:
            whole = self._written(g, (surfaces, height * stride_y, width * stride_x, atom), (line, surface))
        return ContractJob(source, targets, whole, (stride_y, stride_x))

    def _split(self, g: RegisterGroup, elements: Precision) -> SplitJob:
        width, height, channels = _size(g)
        config = self.machine.config
        planes = g["D_DATAOUT_SIZE_1.DATAOUT_CHANNEL"] + 1
        surfaces = surfaces_of(channels, elements, config)
        if surfaces_of(planes, elements, config) != surfaces:
            raise ScheduleError(
                f"Rubik waits for ever: it reads {channels} channels and writes {planes} planes, which are not as many "
                "surfaces"
            )
        strides = (g["D_DAIN_LINE_STRIDE"], g["D_DAIN_SURF_STRIDE"])
        source = self._read(g, (surfaces, height, width, config.memory_atom), strides)
        bursts = ceil_div(width * elements.bytes, BURST)
        strides = (g["D_DAOUT_LINE_STRIDE"], g["D_DAOUT_PLANAR_STRIDE"])
        return SplitJob(source, self._written(g, (planes, height, bursts, BURST), strides), elements)

    def _merge(self, g: RegisterGroup, elements: Precision) -> MergeJob:
        width, height, channels = _size(g)
        line_bytes = width * elements.bytes
        strides = (g["D_DAIN_LINE_STRIDE"], g["D_DAIN_PLANAR_STRIDE"])
        source = self._read(g, (channels, height, 1, line_bytes), strides)
        config = self.machine.config
        shape = (surfaces_of(channels, elements, config), height, width, config.memory_atom)
        return MergeJob(source, self._written(g, shape, (g["D_DAOUT_LINE_STRIDE"], g["D_DAOUT_SURF_STRIDE"])), elements)

    def _read(self, g: RegisterGroup, shape: tuple[int, int, int, int], strides: tuple[int, int]) -> np.ndarray:
        space = memory_space(g, "D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE", self.machine.config)
        address = g.address("D_DAIN_ADDR_HIGH", "D_DAIN_ADDR_LOW")
        return cube(self.machine.memory, space, address, shape, strides, "Rubik source")

    def _written(
        self, g: RegisterGroup, shape: tuple[int, int, int, int], strides: tuple[int, int], offset: int = 0
    ) -> np.ndarray:
        space = memory_space(g, "D_DAOUT_RAM_TYPE.DATAOUT_RAM_TYPE", self.machine.config)
        address = g.address("D_DAOUT_ADDR_HIGH", "D_DAOUT_ADDR_LOW") + offset
        return cube(self.machine.memory, space, address, shape, strides, "Rubik destination")


def _size(g: RegisterGroup) -> tuple[int, int, int]:
    """Width, height and channels of the input."""
    return (
        g["D_DATAIN_SIZE_0.DATAIN_WIDTH"] + 1,
        g["D_DATAIN_SIZE_0.DATAIN_HEIGHT"] + 1,
        g["D_DATAIN_SIZE_1.DATAIN_CHANNEL"] + 1,
    )
