"""What the rules look at: a loadable decoded as far as it goes, its operations with their surfaces, a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nvdla.descriptors.abi import Abi
from nvdla.descriptors.enums import DataFormat, MemType, OpType, Precision, SdpMode, SdpType
from nvdla.descriptors.task import DlaOperation, DlaTask, EmuTask
from nvdla.errors import DescriptorError, NvdlaError
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.pixel_formats import PIXEL_FORMATS
from nvdla.loadable.enums import Interface
from nvdla.loadable.model import AddressEntry, Loadable

ELEMENT_BYTES = {Precision.INT8: 1, Precision.INT16: 2, Precision.FP16: 2}
STAGES = ("x1", "x2", "y")
#: the field of an operation that holds the precision of its source and of its destination
PRECISION_FIELDS = {
    OpType.CONV: ("in_precision", "out_precision"),
    OpType.SDP: ("src_precision", "dst_precision"),
    OpType.PDP: ("precision", "precision"),
    OpType.CDP: ("in_precision", "out_precision"),
    OpType.RUBIK: ("precision", "precision"),
}


@dataclass(frozen=True)
class Footprint:
    """Bytes that an operation touches: ``start`` to ``end`` from the first byte of the window behind ``address``."""

    what: str
    address: int
    start: int
    end: int
    writes: bool


@dataclass(frozen=True)
class Subject:
    """One operation as the rules see it."""

    task: DlaTask = field(repr=False)
    operation: DlaOperation = field(repr=False)
    config: Configuration = field(repr=False)
    layer: str | None = None

    @property
    def index(self) -> int:
        return self.operation.index

    @property
    def type(self) -> OpType:
        return self.operation.op_type

    @property
    def op(self) -> Any:
        return self.operation.op

    @property
    def surface(self) -> Any:
        return self.operation.surface

    @property
    def atom(self) -> int:
        return self.config.memory_atom

    @property
    def is_image(self) -> bool:
        """A convolution whose input is an image, not a feature cube."""
        return self.type == OpType.CONV and self.op.data_format != DataFormat.FEATURE

    def cubes(self) -> Iterator[tuple[str, Any]]:
        """(name, data cube) of the surface descriptor; BDMA has none."""
        for name, *_ in self.surface._fields_:
            if name.endswith("_data"):
                yield name, getattr(self.surface, name)

    def used_cubes(self) -> Iterator[tuple[str, Any]]:
        """The cubes that the operation reads or writes in memory."""
        for name, cube in self.cubes():
            if cube.type != MemType.HW and cube.address != -1 and self._is_used(name):
                yield name, cube

    def _is_used(self, name: str) -> bool:
        if self.type == OpType.SDP and name[:-5] in STAGES:
            return reads_operands(getattr(self.op, f"{name[:-5]}_op"))
        if name in ("wmb_data", "wgs_data"):
            return bool(self.op.weight_format)
        return True

    def element_bytes(self, name: str) -> int:
        """Bytes of an element of ``src_data`` or ``dst_data``; 1 for a precision that does not exist."""
        first, last = PRECISION_FIELDS[self.type]
        return ELEMENT_BYTES.get(getattr(self.op, last if name == "dst_data" else first), 1)

    def surfaces(self, cube: Any, element_bytes: int) -> int:
        """Atoms in the channel direction."""
        return -(-cube.channel * element_bytes // self.atom)

    def footprints(self) -> list[Footprint]:
        """Everything that is read or written in memory. A cube on the fly has none."""
        if self.type == OpType.BDMA:
            return list(self._transfers())
        return [
            Footprint(name, cube.address, cube.offset, cube.offset + self.extent(name, cube), name == "dst_data")
            for name, cube in self.used_cubes()
        ]

    def extent(self, name: str, cube: Any) -> int:
        """Bytes from the first to the last that are touched, strides included."""
        if name in ("weight_data", "wmb_data", "wgs_data"):
            return cube.size
        if name[:-5] in STAGES and self.type == OpType.SDP:
            return self._operand_extent(getattr(self.op, f"{name[:-5]}_op"), cube)
        if name == "src_data" and self.is_image:
            return max(cube.height - 1, 0) * cube.line_stride + cube.width * pixel_bytes(self.op.data_format)
        if self.type == OpType.RUBIK:
            return self._rubik_extent(name, cube)
        atoms = self.surfaces(cube, self.element_bytes(name))
        return _strided((atoms, cube.surf_stride), (cube.height, cube.line_stride), cube.width * self.atom)

    def _operand_extent(self, stage: Any, cube: Any) -> int:
        """Operands come in as many elements a memory atom as the processing precision has (two with BOTH)."""
        processing = 1 if self.op.dst_precision == Precision.INT8 else self.element_bytes("src_data")
        atom = self.atom // processing
        length = atom * (1 if stage.precision == Precision.INT8 else 2) * (2 if stage.type == SdpType.BOTH else 1)
        atoms = -(-self.surface.src_data.channel // atom)
        if stage.mode == SdpMode.PER_KERNEL:
            return atoms * length
        source = self.surface.src_data
        return _strided((atoms, cube.surf_stride), (source.height, cube.line_stride), source.width * length)

    def _rubik_extent(self, name: str, cube: Any) -> int:
        """The side that the operation's mode does not describe by its cube is taken at its declared size."""
        other = self.surface.src_data
        if self.op.mode == 0 and name == "src_data":
            atoms = self.surfaces(self.surface.dst_data, self.element_bytes(name)) * self.op.stride_x * self.op.stride_y
            return _strided((atoms, cube.surf_stride), (cube.height, cube.line_stride), cube.width * self.atom)
        if self.op.mode == 0:
            atoms = self.surfaces(cube, self.element_bytes(name))
            lines, columns = other.height * self.op.stride_y, other.width * self.op.stride_x
            return _strided((atoms, cube.surf_stride), (lines, cube.line_stride), columns * self.atom)
        return cube.size

    def _transfers(self) -> Iterator[Footprint]:
        for number in range(min(self.surface.num_transfers, len(self.surface.transfers))):
            each = self.surface.transfers[number]
            for side in ("source", "destination"):
                lines = (each.line_repeat, getattr(each, f"{side}_line"))
                size = _strided((each.surface_repeat, getattr(each, f"{side}_surface")), lines, each.line_size)
                what = f"transfers[{number}].{side}"
                yield Footprint(what, getattr(each, f"{side}_address"), 0, size, side == "destination")


def _strided(outer: tuple[int, int], inner: tuple[int, int], last: int) -> int:
    """Bytes of nested (count, stride) loops around ``last`` bytes."""
    return max(outer[0] - 1, 0) * outer[1] + max(inner[0] - 1, 0) * inner[1] + last


def reads_operands(stage: Any) -> bool:
    """Whether a stage of the SDP takes its operands from memory."""
    return bool(stage.enable) and stage.type != SdpType.NONE and stage.mode != SdpMode.PER_LAYER


def pixel_bytes(data_format: int) -> int:
    """Bytes of a pixel of an image's first plane."""
    return PIXEL_FORMATS[data_format].bytes_per_pixel(0) if data_format < len(PIXEL_FORMATS) else 1


@dataclass(frozen=True)
class Context:
    """A loadable under a configuration. ``broken``: why tasks could not be decoded, by task id."""

    loadable: Loadable
    config: Configuration
    abi: Abi
    layers: dict[tuple[int, int], str] = field(default_factory=dict)

    @cached_property
    def _decoded(self) -> tuple[dict[int, DlaTask], dict[int, EmuTask], dict[int, str]]:
        dla: dict[int, DlaTask] = {}
        emu: dict[int, EmuTask] = {}
        broken: dict[int, str] = {}
        for task in self.loadable.tasks:
            try:
                if task.interface == Interface.DLA1:
                    dla[task.id] = DlaTask.overlay(self.loadable, task, self.abi)
                else:
                    emu[task.id] = EmuTask.overlay(self.loadable, task, self.abi)
            except DescriptorError as error:
                broken[task.id] = str(error)
            except NvdlaError as error:
                broken[task.id] = f"task {task.id}: {error}"
        return dla, emu, broken

    @property
    def tasks(self) -> dict[int, DlaTask]:
        return self._decoded[0]

    @property
    def cpu_tasks(self) -> dict[int, EmuTask]:
        return self._decoded[1]

    @property
    def broken(self) -> dict[int, str]:
        return self._decoded[2]

    @cached_property
    def subjects(self) -> list[Subject]:
        """All operations of known type, task by task, of all ROIs."""
        found = []
        for task_id, task in self.tasks.items():
            for roi in range(task.network.num_rois):
                for index in range(task.network.num_operations):
                    if task.dependencies[roi * task.network.num_operations + index].op_type < len(OpType):
                        layer = self.layers.get((task_id, index))
                        found.append(Subject(task, task.operation(index, roi), self.config, layer))
        return found

    def of_type(self, *types: OpType) -> Iterator[Subject]:
        return (subject for subject in self.subjects if subject.type in types)

    def address(self, task: DlaTask, index: int) -> AddressEntry | None:
        """The entry behind an address index of a task; None where it leads nowhere."""
        ids = task.task.address_list
        if not 0 <= index < len(ids):
            return None
        try:
            entry = self.loadable.address(ids[index])
            self.loadable.memory(entry.mem_id)
        except NvdlaError:
            return None
        return entry

    def window_bytes(self, task: DlaTask, index: int) -> int | None:
        """Bytes behind an address index; None where it leads nowhere."""
        entry = self.address(task, index)
        return None if entry is None else self.loadable.address_bytes(entry)
