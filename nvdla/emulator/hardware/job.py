"""Jobs, cubes and lookup tables that the engines share.

A job is one operation of one engine, decoded and checked, ready to run again and again. What it reads and writes is
part of the protocol: :mod:`nvdla.emulator.execution` decides by it what must be restored before a run, what changes
with the
data, and where a copy of the job works.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.register_file import RegisterFile, RegisterGroup, UnitRegisters
from nvdla.emulator.memory.address_space import AddressSpace, Lanes, Move, Space
from nvdla.errors import LinkError
from nvdla.limits import Work
from nvdla.util.precision import Precision
from nvdla.util.rounding import ceil_div

if TYPE_CHECKING:
    from typing_extensions import Self

    from nvdla.kernels.jit.recorded_calls import RecordedCall

# What an engine hands to the next one on the fly: a cube, or None where the results went to memory.
Handed = np.ndarray | None


class EngineContext(Protocol):
    """Parts of a machine that its engines use (:class:`nvdla.emulator.hardware.machine.Machine`)."""

    config: Configuration
    memory: AddressSpace
    registers: RegisterFile
    hardware_only: bool

    def unit(self, name: str) -> UnitRegisters:
        """Return the registers of a unit."""

    def warn(self, engine: str, text: str) -> None:
        """Keep a warning about the engine's operation."""


class Job(ABC):
    """One prepared operation of one engine (or, of a fused job, of several; then ``parts`` are what it stands for).

    ``destination`` is a uint8 view (surfaces, height, width, atom bytes) of what it writes, None on the fly.
    ``statistics`` holds the counters of the latest run (saturation, NaN, LUT hits, ...).
    """

    computes = True
    """False for a job that only moves bytes, which needs no kernel."""
    destination: np.ndarray | None = None
    statistics: dict[str, int]

    @property
    @abstractmethod
    def work(self) -> Work:
        """Cost of a run of the job."""

    @property
    def needs_kernels(self) -> bool:
        """True if a run needs compiled kernels: not all of them have a fallback
        (:mod:`nvdla.kernels.jit.compilation`)."""
        return True

    @property
    def fallback_cost(self) -> int:
        """Estimated nanoseconds of a run by the fallback."""
        return self.work.multiplications // 32 + 4 * self.work.elements

    @property
    @abstractmethod
    def reads(self) -> list[np.ndarray]:
        """Views of all memory that a run may read."""

    @property
    @abstractmethod
    def writes(self) -> list[np.ndarray]:
        """Views of all memory that a run writes; it writes the whole of each."""

    @property
    def handed_shape(self) -> tuple[int, ...] | None:
        """Shape of the cube that it hands over on the fly; None where the results go to memory."""
        return None

    def check_handed(self, shape: tuple[int, ...] | None) -> None:  # noqa: B027 - most jobs take nothing on the fly
        """Raise ScheduleError unless the engine before hands over a cube of the ``shape`` that the job takes on the
        fly."""

    @abstractmethod
    def run(self, source: Handed = None) -> Handed:
        """Compute. ``source`` is what the engine before hands over on the fly (None from memory); returns what the
        next engine on the fly takes, None when the result went to memory."""

    def records(self, source: Handed = None) -> tuple[list[RecordedCall], Handed] | None:
        """Return :meth:`run` as recorded calls of compiled kernels, with the place of their on-the-fly result.

        None where Python takes part in the run.
        """
        return None

    @abstractmethod
    def _relocate(self, move: Move) -> None:
        """Replace every view on memory by its counterpart, and everything that a run changes by a copy."""

    def accounted(self) -> Job:
        """Return the job at its place in the sequence of the engine's jobs: only convolutions depend on it."""
        return self

    @property
    def parts(self) -> tuple[Job, ...]:
        """The jobs of single operations that this one does at once, in data order."""
        return (self,)

    def moved(self, move: Move) -> Self:
        """The same job on other memory. What no run changes (settings, tables, packed weights) is shared, so both may
        run at the same time."""
        job = copy.copy(self)
        job.statistics = {}
        job._relocate(move)
        return job

    def run_lanes(self, lanes: Lanes, count: int, handed: Handed = None) -> Handed:
        """:meth:`run` for ``count`` images in lanes 1, 2 ...; cubes on the fly have the images in front.

        This form goes by way of lane 0; engines may have a better one.
        """
        reads = [view for view in self.reads if lanes.holds(view)]
        writes = self.writes
        results: list[Any] = []
        for lane in range(1, count + 1):
            for view in reads:
                view[...] = lanes.at(view, lane)
            results.append(self.run(None if handed is None else handed[lane - 1]))
            for view in writes:
                lanes.at(view, lane)[...] = view
        return None if results[0] is None else np.stack(results)


CUBE_LIMIT = 2 << 30  # bytes of a cube on the fly


def element_type(group: RegisterGroup, field: str, config: Configuration) -> Precision:
    """The precision that a register field names. Raises ConfigError for one that the configuration lacks."""
    return config.require_precision(group[field], f"{group.unit}.{field}")


def surfaces_of(channels: int, elements: Precision, config: Configuration) -> int:
    """Surfaces (atoms in the channel direction) that hold ``channels``."""
    return ceil_div(channels, config.memory_atom // elements.bytes)


def memory_space(group: RegisterGroup, field: str, config: Configuration) -> Space:
    """Return the memory that a RAM_TYPE field selects. Raises ConfigError if the configuration lacks CVSRAM."""
    space = Space.from_ram_type(group[field])
    if space is Space.CVSRAM:
        config.require("cvsram", f"{group.unit}.{field}")
    return space


def check_size(shape: tuple[int, ...], limit: int, what: str) -> None:
    """Refuse a cube (bytes in the last axis) of more than ``limit`` bytes before anything is allocated for it."""
    size = math.prod(shape)
    if size > limit:
        raise LinkError(f"{what}: cube of {' x '.join(map(str, shape))} bytes: must have at most {limit}, got {size}")


@dataclass(frozen=True)
class MemoryCube:
    """Place of a cube in memory: ``shape`` (surfaces, height, width, atom bytes), ``strides`` (line, surface) in bytes.

    ``what`` names it in messages.
    """

    what: str
    space: Space
    address: int
    shape: tuple[int, int, int, int]
    strides: tuple[int, int]

    def view(self, memory: AddressSpace, *, repeats: bool = False) -> np.ndarray:
        """Return a checked uint8 view (:meth:`nvdla.emulator.memory.address_space.AddressSpace.surface`)."""
        return memory.surface(self.space, self.address, self.shape, *self.strides, self.what, repeats=repeats)


def memory_cube(
    group: RegisterGroup, side: str, ram_type: str, shape: tuple[int, int, int, int], config: Configuration
) -> MemoryCube:
    """Decode the place of a cube of SDP, PDP or CDP: ``side`` is SRC or DST, ``ram_type`` the field of its memory."""
    return MemoryCube(
        f"{group.unit.removesuffix('_RDMA')} {'source' if side == 'SRC' else 'destination'}",
        memory_space(group, ram_type, config),
        group.address(f"D_{side}_BASE_ADDR_HIGH", f"D_{side}_BASE_ADDR_LOW"),
        shape,
        (group[f"D_{side}_LINE_STRIDE"], group[f"D_{side}_SURFACE_STRIDE"]),
    )


def elements_of(view: np.ndarray, elements: Precision) -> np.ndarray:
    """The elements of a byte view, C-contiguous; no copy where the view already is."""
    return np.ascontiguousarray(view).view(elements.bits)


LE_ENTRIES = 65
LO_ENTRIES = 257


class LookupTables:
    """LE (65 entries) and LO (257 entries), int16 words (fp16 bit patterns in fp16 mode).

    The port is S_LUT_ACCESS_CFG (ADDR, TABLE_ID 0 = LE 1 = LO, ACCESS_TYPE 0 = read 1 = write) and
    S_LUT_ACCESS_DATA; the address counts up with every access. Both register groups share the tables.
    """

    def __init__(self) -> None:
        self.le = np.zeros(LE_ENTRIES, np.int16)
        self.lo = np.zeros(LO_ENTRIES, np.int16)
        self._address = 0
        self._table = self.le
        self._writing = False

    def written(self, register: str, value: int) -> None:
        """Hook for register writes of the unit that owns the tables. Addresses after the table are ignored."""
        if register == "S_LUT_ACCESS_CFG":
            self._address = value & 0x3FF
            self._table = self.lo if value >> 16 & 1 else self.le
            self._writing = bool(value >> 17 & 1)
        elif register == "S_LUT_ACCESS_DATA" and self._writing:
            if self._address < self._table.size:
                self._table[self._address] = np.uint16(value & 0xFFFF).astype(np.int16)
            self._address += 1

    def read(self, register: str, value: int) -> int:
        """Hook for register reads: S_LUT_ACCESS_DATA returns the next entry."""
        if register != "S_LUT_ACCESS_DATA" or self._writing:
            return value
        entry = int(self._table[self._address]) & 0xFFFF if self._address < self._table.size else 0
        self._address += 1
        return entry


def cubes_line_up(views: Sequence[np.ndarray]) -> bool:
    """True for cubes of one shape with packed lines, the last of which can be written while the others are read."""
    destination = views[-1]
    lined_up = all(lines_are_packed(view) and view.shape == destination.shape for view in views)
    return lined_up and all(same_or_apart(view, destination) for view in views) and surfaces_are_apart(destination)


def same_or_apart(view: np.ndarray, destination: np.ndarray) -> bool:
    """True when writing an element cannot change another one that is still to be read."""
    same = view.ctypes.data == destination.ctypes.data and view.strides == destination.strides
    return same or not np.may_share_memory(view, destination)


def surfaces_are_apart(view: np.ndarray) -> bool:
    """False where surfaces overlap: then the order of reading and writing counts, and fused jobs have another."""
    return bool(view.shape[0] == 1 or view.strides[0] >= view.shape[1] * view.strides[1])


def lines_are_packed(view: np.ndarray) -> bool:
    """True when the pixels of a surface are one after the other."""
    return view.strides[1:] == (view.shape[2] * view.shape[3], view.shape[3], 1)
