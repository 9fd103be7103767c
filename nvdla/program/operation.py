"""One operation of a loadable, as everybody who does not run it sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nvdla.descriptors.enums import DataFormat, Event, MemType, OpType
from nvdla.descriptors.meaning import precisions_of, reads_operands
from nvdla.descriptors.task import DlaOperation, DlaTask, EmuOperation, EmuTask
from nvdla.errors import printable
from nvdla.hardware.configuration import Configuration
from nvdla.notebook import table
from nvdla.precision import Precision
from nvdla.program.accesses import STAGES, Access, AccessFinder, Shape
from nvdla.program.words import describe
from nvdla.rounding import ceil_div

#: (task, region of interest, index in the operation list)
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Dependency:
    """``target``, an operation of ``type``, waits for an event of this one; ``on_the_fly``: it is the operation in
    front of it on the fly."""

    target: Key
    type: OpType
    event: str
    on_the_fly: bool = False


class Keyed:
    """What belongs to one operation of one region of interest: ``key`` is (task, region of interest, index)."""

    key: Key

    @property
    def task(self) -> int:
        """The id of its task."""
        return self.key[0]

    @property
    def roi(self) -> int:
        """Its region of interest."""
        return self.key[1]

    @property
    def index(self) -> int:
        """Its place in the operation list."""
        return self.key[2]


@dataclass(frozen=True, repr=False)
class Operation(Keyed):
    """One operation of one region of interest.

    ``type``: its engine's number, None for a CPU operation; ``descriptors``: its structures (``op``, ``surface``,
    ``common``, or those of a CPU operation); ``decoded``: the task's lists; ``layer``: the name of the layer that it
    belongs to; ``queue``: its place in its engine's queue, -1 when the queue does not reach it.
    """

    key: Key
    type: OpType | None
    layer: str | None
    queue: int
    config: Configuration = field(repr=False)
    decoded: DlaTask | EmuTask = field(repr=False)
    descriptors: DlaOperation | EmuOperation = field(repr=False)
    finder: AccessFinder = field(repr=False)

    @property
    def engine(self) -> str:
        """ "bdma" "conv" "sdp" "pdp" "cdp" "rubik" "cpu"."""
        return "cpu" if self.type is None else self.type.name.lower()

    @property
    def label(self) -> str:
        """ "0/12" (task/operation), with the region of interest where it is not the first: "0/12#1"."""
        return f"{self.task}/{self.index}" + (f"#{self.roi}" if self.roi else "")

    @property
    def title(self) -> str:
        """ "CONV 0/3 conv2": what a box of a drawing is called."""
        return f"{self.engine.upper()} {self.label}" + (f" {self.layer}" if self.layer else "")

    def __repr__(self) -> str:
        """One line: "<Operation CONV 0/3 conv2: 16 kernels 5 x 5 x 6, stride 1,1>"."""
        return printable(f"<Operation {self.title}: {self.what}>")

    def _repr_html_(self) -> str:
        """For notebooks: what it reads and writes."""
        rows = [
            {
                "": "writes" if each.writes else "reads",
                "what": each.role,
                "memory": each.memory,
                "from byte": each.offset,
                "bytes": each.footprint.traffic,
                "shape": each.shape,
            }
            for each in self.accesses
        ]
        return table(f"{self.title}: {self.what} ({self.precision or 'copies bytes'})", rows)

    # ---- descriptors

    @property
    def op(self) -> Any:
        """ConvOp, SdpOp ... (:mod:`nvdla.descriptors`)."""
        return self.descriptors.op

    @property
    def surface(self) -> Any:
        """ConvSurface, SdpSurface ...; a CPU operation has none."""
        return self.descriptors.surface  # type: ignore[union-attr]

    @property
    def common(self) -> Any:
        """The operation's node of the dependency graph (CommonOpDesc)."""
        return self.descriptors.common  # type: ignore[union-attr]

    @property
    def lut(self) -> Any:
        """Its lookup tables (LutParam), None where it has none."""
        return getattr(self.descriptors, "lut", None)

    @property
    def what(self) -> str:
        """The operation in words."""
        return describe(self.descriptors)

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

    # ---- numbers

    @property
    def precisions(self) -> tuple[Precision, Precision] | None:
        """Of what it reads and of what it writes; None for BDMA and CPU operations."""
        return None if self.type is None else precisions_of(self.type, self.op)

    @property
    def precision(self) -> str | None:
        """ "int8" or "fp16 -> int8"; a CPU operation's element format."""
        if isinstance(self.descriptors, EmuOperation):
            return str(self.descriptors.src.element_format.title)
        if self.precisions is None:
            return None
        source, destination = self.precisions
        return source.title if source == destination else f"{source.title} -> {destination.title}"

    def element_bytes(self, cube: str) -> int:
        """Bytes of an element of ``src_data`` or ``dst_data``; 1 for BDMA, and for a precision that does not exist."""
        if self.precisions is None:
            return 1
        return self.precisions[cube == "dst_data"].bytes

    @property
    def atom(self) -> int:
        """Bytes of a memory atom."""
        return self.config.memory_atom

    def surfaces(self, cube: Any, element_bytes: int) -> int:
        """Atoms of a data cube in the channel direction."""
        return ceil_div(cube.channel * element_bytes, self.atom)

    @property
    def is_image(self) -> bool:
        """A convolution whose input is an image, not a feature cube."""
        return self.type == OpType.CONV and self.op.data_format != DataFormat.FEATURE

    # ---- data

    @property
    def input(self) -> Shape | None:
        """(channels, height, width) of what it reads; None for BDMA."""
        return self._shape("src")

    @property
    def output(self) -> Shape | None:
        """(channels, height, width) of what it writes; None for BDMA."""
        return self._shape("dst")

    def _shape(self, side: str) -> Shape | None:
        found = self.descriptors
        if isinstance(found, EmuOperation):
            cube = getattr(found, side)
        else:
            cube = getattr(found.surface, f"{side}_data", None)
        return None if cube is None else (cube.channel, cube.height, cube.width)

    @property
    def takes_on_the_fly(self) -> bool:
        """Its input comes from the engine in front of it, not from memory."""
        return self._flies("src_data")

    @property
    def gives_on_the_fly(self) -> bool:
        """Its result goes to the engine behind it, not to memory; that of a convolution always does."""
        return self.type == OpType.CONV or self._flies("dst_data")

    def _flies(self, name: str) -> bool:
        cube = None if self.type is None else getattr(self.surface, name, None)
        return cube is not None and cube.type == MemType.HW

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """What it reads and writes in memory."""
        return self.finder.of(self.decoded, self.descriptors)

    @property
    def reads(self) -> list[Access]:
        """What it reads from memory."""
        return [access for access in self.accesses if not access.writes]

    @property
    def writes(self) -> list[Access]:
        """What it writes to memory."""
        return [access for access in self.accesses if access.writes]

    # ---- order

    @property
    def waits_for(self) -> int:
        """Events that must happen before it is enabled."""
        return 0 if self.type is None else self.common.dependency_count

    @cached_property
    def dependencies(self) -> tuple[Dependency, ...]:
        """Who waits for this operation, in the order in which the firmware tells them."""
        return () if self.type is None else tuple(self._dependencies())

    def _dependencies(self) -> Iterator[Dependency]:
        for kind, consumer in enumerate(self.common.consumers):
            if consumer.index != -1:
                yield Dependency((self.task, self.roi, consumer.index), OpType(kind), Event(consumer.event).name)
        parent = self.common.fused_parent
        if parent.index != -1:
            kind = OpType(int(self.type or 0) - 1)
            yield Dependency((self.task, self.roi, parent.index), kind, Event(parent.event).name, on_the_fly=True)
