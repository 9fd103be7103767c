"""Rubik, the data reshape engine: no arithmetic, only bytes in another order.

Contract turns stride_x * stride_y groups of surfaces into one cube that is as many times wider and higher (the second
half of a deconvolution). Split turns a feature cube into planes; merge turns planes into a feature cube. Source:
cmod/rubik/NV_NVDLA_rbk.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.job import (
    EngineContext,
    Handed,
    Job,
    MemoryCube,
    element_type,
    elements_of,
    memory_space,
    surfaces_of,
)
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.memory.address_space import AddressSpace, Move
from nvdla.errors import ConfigError, ScheduleError
from nvdla.limits import Work
from nvdla.util.precision import Precision
from nvdla.util.rounding import ceil_div

CONTRACT, SPLIT, MERGE = 0, 1, 2
BURST = 32  # bytes; the write DMA fills the last one of a plane's line with zeros


@dataclass(frozen=True)
class RubikSettings:
    """One operation. ``targets``: of contract, the output lines of each row of the stride; else the destination."""

    mode: int
    elements: Precision
    channels: int
    planes: int
    strides: tuple[int, int]
    source: MemoryCube
    targets: tuple[MemoryCube, ...]
    destination: MemoryCube


class RubikJob(Job):
    """Move bytes from the source to the destination."""

    computes = False
    destination: np.ndarray

    def __init__(self, settings: RubikSettings, memory: AddressSpace) -> None:
        self.settings = settings
        self.elements = settings.elements
        self.source = settings.source.view(memory)
        self.targets = [target.view(memory) for target in settings.targets]
        self.destination = settings.destination.view(memory)
        self.statistics: dict[str, int] = {}

    @property
    def work(self) -> Work:
        """The bytes that are read and written."""
        largest = max(self.source.size, self.destination.size)
        return Work(elements=self.source.size + self.destination.size, cube=largest, scratch=4 * largest)

    @property
    def needs_kernels(self) -> bool:
        """It moves bytes."""
        return False

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return [self.source]

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return [self.destination, *self.targets]

    def _relocate(self, move: Move) -> None:
        self.source, self.destination = move(self.source), move(self.destination)
        self.targets = [move(target) for target in self.targets]


class ContractJob(RubikJob):
    """Input surface (sy * stride_x + sx) * surfaces + s, element (h, w) -> output (s, h * stride_y + sy, w * stride_x
    + sx) (:302, :683). ``targets``: a view (surfaces, height, width * stride_x, atom) for each sy."""

    def run(self, source: Handed = None) -> None:
        """Do the work once; returns the result for the next engine, None if it went to memory."""
        _, stride_x = self.settings.strides
        for sy, target in enumerate(self.targets):
            surfaces = target.shape[0]
            for sx in range(stride_x):
                first = (sy * stride_x + sx) * surfaces
                target[:, :, sx::stride_x] = self.source[first : first + surfaces]


class SplitJob(RubikJob):
    """Feature cube (S, H, W, atom) -> planes, a line of a plane in whole bursts (:868)."""

    def run(self, source: Handed = None) -> None:
        """Do the work once; returns the result for the next engine, None if it went to memory."""
        data = elements_of(self.source, self.elements)
        surfaces, height, width, atom = data.shape
        planes, _, bursts, _ = self.destination.shape
        lines = np.zeros((planes, height, bursts * BURST // self.elements.bytes), self.elements.bits)
        lines[:, :, :width] = data.transpose(0, 3, 1, 2).reshape(surfaces * atom, height, width)[:planes]
        self.destination[...] = lines.view(np.uint8).reshape(self.destination.shape)


class MergeJob(RubikJob):
    """Planes (C, H, 1, bytes of a line) -> feature cube; unused channels of the last surface become 0."""

    def run(self, source: Handed = None) -> None:
        """Do the work once; returns the result for the next engine, None if it went to memory."""
        lines = elements_of(self.source, self.elements)
        planes, height, _, width = lines.shape
        surfaces, _, _, atom_bytes = self.destination.shape
        atom = atom_bytes // self.elements.bytes
        data = np.zeros((surfaces * atom, height, width), self.elements.bits)
        data[:planes] = lines.reshape(planes, height, width)
        atoms = np.ascontiguousarray(data.reshape(surfaces, atom, height, width).transpose(0, 2, 3, 1))
        self.destination[...] = atoms.view(np.uint8)


JOBS = (ContractJob, SplitJob, MergeJob)


class Rubik:
    """The Rubik engine of one machine."""

    def __init__(self, machine: EngineContext) -> None:
        self.machine = machine

    def prepare(self, groups: dict[str, RegisterGroup]) -> ContractJob | SplitJob | MergeJob:
        """Decode and check. Raises ConfigError for what the hardware lacks, ScheduleError for a deadlock."""
        config = self.machine.config
        settings = decode(groups, config)
        check(settings, config)
        return JOBS[settings.mode](settings, self.machine.memory)


def decode(groups: dict[str, RegisterGroup], config: Configuration) -> RubikSettings:
    """Decode the registers of unit RBK. Raises ConfigError for a mode or precision that the hardware lacks."""
    config.require("rubik")
    g = groups["RBK"]
    mode = g["D_MISC_CFG.RUBIK_MODE"]
    if mode > MERGE:
        raise ConfigError(f"RBK.D_MISC_CFG.RUBIK_MODE: must be 0 (contract), 1 (split) or 2 (merge), got {mode}")
    elements, atom = element_type(g, "D_MISC_CFG.IN_PRECISION", config), config.memory_atom
    width, height = g["D_DATAIN_SIZE_0.DATAIN_WIDTH"] + 1, g["D_DATAIN_SIZE_0.DATAIN_HEIGHT"] + 1
    channels, planes = g["D_DATAIN_SIZE_1.DATAIN_CHANNEL"] + 1, g["D_DATAOUT_SIZE_1.DATAOUT_CHANNEL"] + 1
    stride_x, stride_y = g["D_DECONV_STRIDE.DECONV_X_STRIDE"] + 1, g["D_DECONV_STRIDE.DECONV_Y_STRIDE"] + 1
    read, written = surfaces_of(channels, elements, config), surfaces_of(planes, elements, config)
    line, surface = g["D_DAOUT_LINE_STRIDE"], g["D_DAOUT_SURF_STRIDE"]
    targets: tuple[MemoryCube, ...] = ()
    if mode == SPLIT:
        source = _source(g, (read, height, width, atom), config)
        bursts = ceil_div(width * elements.bytes, BURST)
        whole = _target(g, (planes, height, bursts, BURST), (line, g["D_DAOUT_PLANAR_STRIDE"]), config)
    elif mode == MERGE:
        source = _source(g, (channels, height, 1, width * elements.bytes), config, "PLANAR")
        whole = _target(g, (read, height, width, atom), (line, surface), config)
    else:
        source = _source(g, (written * stride_x * stride_y, height, width, atom), config)
        block, shape = g["D_CONTRACT_STRIDE_1"], (written, height, width * stride_x, atom)
        targets = tuple(_target(g, shape, (block, surface), config, sy * line) for sy in range(stride_y))
        whole = targets[0]
        if block == line * stride_y:
            whole = replace(whole, shape=(written, height * stride_y, width * stride_x, atom), strides=(line, surface))
    return RubikSettings(mode, elements, channels, planes, (stride_y, stride_x), source, targets, whole)


def check(settings: RubikSettings, config: Configuration) -> None:
    """Raise ScheduleError where input and output are cubes of different sizes."""
    read, written = (surfaces_of(cube, settings.elements, config) for cube in (settings.channels, settings.planes))
    if settings.mode == SPLIT and read != written:
        raise ScheduleError(
            f"deadlock: Rubik reads {settings.channels} channels and writes {settings.planes} planes: must be as many "
            "surfaces"
        )


def _source(
    g: RegisterGroup, shape: tuple[int, int, int, int], config: Configuration, outer: str = "SURF"
) -> MemoryCube:
    space = memory_space(g, "D_DAIN_RAM_TYPE.DATAIN_RAM_TYPE", config)
    address = g.address("D_DAIN_ADDR_HIGH", "D_DAIN_ADDR_LOW")
    return MemoryCube("Rubik source", space, address, shape, (g["D_DAIN_LINE_STRIDE"], g[f"D_DAIN_{outer}_STRIDE"]))


def _target(
    g: RegisterGroup,
    shape: tuple[int, int, int, int],
    strides: tuple[int, int],
    config: Configuration,
    offset: int = 0,
) -> MemoryCube:
    space = memory_space(g, "D_DAOUT_RAM_TYPE.DATAOUT_RAM_TYPE", config)
    address = g.address("D_DAOUT_ADDR_HIGH", "D_DAOUT_ADDR_LOW") + offset
    return MemoryCube("Rubik destination", space, address, shape, strides)
