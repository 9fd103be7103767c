"""SDP: the single-point data processor, from accumulators or memory to memory or PDP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.hardware.job import EngineContext, Handed, Job, LookupTables, cubes_line_up
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.hardware.sdp.settings import (
    InputCube,
    SdpCubes,
    SdpSettings,
    check,
    decode,
    decode_cubes,
)
from nvdla.emulator.memory.address_space import AddressSpace, Move
from nvdla.errors import ScheduleError, shape_text
from nvdla.limits import Work
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from nvdla.emulator.hardware.sdp.arithmetic import FloatPipeline, IntegerPipeline
    from nvdla.kernels.jit.recorded_calls import RecordedCall

#: bytes per element: input, operands and results of X and Y as 32-bit numbers, LUT, output
ELEMENT_SCRATCH = 32


class Sdp:
    """The engine. Its lookup tables live from operation to operation and listen on the register port."""

    def __init__(self, machine: EngineContext) -> None:
        self.machine = machine
        self.tables = LookupTables()
        machine.registers.on_write("SDP", self.tables.written)
        machine.registers.on_read("SDP", self.tables.read)

    def prepare(self, groups: dict[str, RegisterGroup]) -> SdpJob:
        """Decode and check everything. Raises NvdlaError."""
        config = self.machine.config
        settings = decode(groups["SDP"], config)
        check(settings, config)
        cubes = decode_cubes(groups, settings, config)
        return SdpJob(settings, cubes, groups, self.machine.memory, self.tables)


class SdpJob(Job):
    """One operation of the SDP, decoded and checked.

    ``run`` takes the accumulators (batches, surfaces, height, width, atom elements) on the fly, or None from memory;
    it returns (surfaces, height, width, atom elements) for PDP, or None when the result went to memory.
    ``destination``: of a hardware batch the first image; ``destinations``: all of them.
    """

    def __init__(
        self,
        settings: SdpSettings,
        cubes: SdpCubes,
        groups: dict[str, RegisterGroup],
        memory: AddressSpace,
        tables: LookupTables,
    ) -> None:
        self.group = groups["SDP"]
        self.rdma = groups.get("SDP_RDMA")
        self.settings = settings
        self.statistics: dict[str, int] = {}
        self.input: InputCube | None = None if cubes.input is None else cubes.input.view(memory)
        self.sources = [None if cube is None else cube.view(memory) for cube in cubes.operands]
        self.destinations = [cube.view(memory) for cube in cubes.outputs]
        self.destination = self.destinations[0] if self.destinations else None
        self._pipeline = self._build(tables)

    @property
    def work(self) -> Work:
        """The elements of the cube, all images of a batch together."""
        settings = self.settings
        elements = settings.batches * settings.surfaces * settings.pixels * settings.atom
        return Work(elements=elements, cube=elements, scratch=ELEMENT_SCRATCH * elements)

    @property
    def needs_kernels(self) -> bool:
        """Lookup tables, Y on integers and integers to fp16 have no fallback."""
        settings = self.settings
        if settings.floating:
            return settings.y.uses_lut
        return not settings.y.bypass or settings.output is Precision.FP16

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return [source.view for source in (self.input, *self.sources) if source is not None]

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return list(self.destinations)

    def _relocate(self, move: Move) -> None:
        self.input = None if self.input is None else replace(self.input, view=move(self.input.view))
        self.sources = [None if source is None else replace(source, view=move(source.view)) for source in self.sources]
        self.destinations = [move(view) for view in self.destinations]
        self.destination = self.destinations[0] if self.destinations else None
        self._pipeline = self._pipeline.with_operands(self.sources)

    @property
    def handed_shape(self) -> tuple[int, ...] | None:
        """Surfaces, height, width and atom elements of what PDP takes; None where the results go to memory."""
        settings = self.settings
        return (settings.surfaces, settings.height, settings.width, settings.atom) if settings.to_pdp else None

    def check_handed(self, shape: tuple[int, ...] | None) -> None:
        """Raise ScheduleError unless the convolution hands over the cube that the registers describe."""
        settings = self.settings
        expected = (settings.batches, settings.surfaces, settings.height, settings.width, settings.atom)
        if self.input is None and shape != expected:
            delivered = "nothing" if shape is None else shape_text(shape)
            raise ScheduleError(
                "deadlock: SDP processes batches x surfaces x height x width x atom = "
                f"{'x'.join(map(str, expected))}, the convolution delivers {delivered}"
            )

    def run(self, source: Handed = None) -> Handed:
        """Process the cube once."""
        settings = self.settings
        cube = self._cube(source)
        out = self._output(cube.shape)
        self.statistics = self._pipeline.run(cube, out)
        self._report()
        if settings.to_pdp:
            return out.reshape(self.handed_shape)
        self._store(out)
        return None

    @property
    def maps_int8(self) -> bool:
        """True if it takes one cube of int8 from memory and writes int8, without Y."""
        settings = self.settings
        return (
            settings.processing is Precision.INT8
            and settings.output is Precision.INT8
            and settings.batches == 1
            and not settings.flying
            and not settings.to_pdp
            and settings.y.bypass
            and self.input is not None
            and self.input.source is Precision.INT8
        )

    def records(self, source: Handed = None) -> tuple[list[RecordedCall], Handed] | None:
        """As a record: int8 from memory to memory, in cubes with packed lines, without Y."""
        if self.input is None or self.destination is None or not self.maps_int8:
            return None
        views = (self.input.view, self.destination)
        record = self._pipeline.call(*views) if cubes_line_up(views) else None
        return None if record is None else ([record], None)

    def _build(self, tables: LookupTables) -> IntegerPipeline | FloatPipeline:
        """The arithmetic of the processing precision (its kernels are loaded on first use)."""
        from nvdla.emulator.hardware.sdp.arithmetic import FloatPipeline, IntegerPipeline

        kind = FloatPipeline if self.settings.floating else IntegerPipeline
        return kind(self.settings, self.sources, self.group, tables)

    def _cube(self, source: Handed) -> np.ndarray:
        """The input, (batches * surfaces, pixels, atom): int8 or int16 from memory, int32 or uint32 on the fly."""
        settings = self.settings
        if self.input is not None:
            cube = self.input.read()
            return np.concatenate([cube] * settings.batches) if settings.batches > 1 else cube
        assert source is not None  # as check_handed requires
        cube = source.reshape(settings.batches * settings.surfaces, settings.pixels, settings.atom)
        return cube.view(np.uint32 if settings.floating else np.int32)

    def _output(self, shape: tuple[int, int, int]) -> np.ndarray:
        """Return the array for the results: packed memory itself if it has their shape."""
        dtype = self.settings.output.bits
        if len(self.destinations) == 1 and self.settings.processing.bytes == self.settings.output.bytes:
            view = self.destinations[0]
            if view.flags.c_contiguous:
                return view.view(dtype).reshape(shape)
        return np.empty(shape, dtype)

    def _store(self, out: np.ndarray) -> None:
        """Write the results to memory, unless they are there."""
        settings = self.settings
        images = out.reshape(settings.batches, -1)
        for view, image in zip(self.destinations, images, strict=False):
            if np.may_share_memory(view, image):
                continue
            if settings.output.bytes > settings.processing.bytes:
                half = settings.atom // 2
                image = image.reshape(settings.surfaces, settings.pixels, 2, half).transpose(0, 2, 1, 3)
            # Narrower output takes two elements' halves of an atom in the order of processing
            # (cmod/sdp/NV_NVDLA_sdp.cpp:2090), so that is a plain reshape.
            view[...] = np.ascontiguousarray(image).view(np.uint8).reshape(view.shape)

    def _report(self) -> None:
        """Status and performance registers (cmod/sdp/NV_NVDLA_sdp.cpp:1395): those that are switched on."""
        values, counts = self.group.values, self.statistics
        if self.settings.y.compares:
            values["D_STATUS"] = counts["unequal"]
        if self.group["D_PERF_ENABLE.PERF_SAT_EN"]:
            values["D_PERF_OUT_SATURATION"] = counts["saturated"]
        if self.settings.y.uses_lut and self.group["D_PERF_ENABLE.PERF_LUT_EN"]:
            for name in ("UFLOW", "OFLOW", "HYBRID", "LE_HIT", "LO_HIT"):
                values[f"D_PERF_LUT_{name}"] = counts[f"lut_{name.lower()}"]
        if self.settings.output is Precision.FP16 and self.group["D_PERF_ENABLE.PERF_NAN_INF_COUNT_EN"]:
            values["D_STATUS_NAN_OUTPUT_NUM"] = counts["nan_output"]
        if self.rdma is not None and self._counts_input() and "nan_input" in counts:
            self.rdma.values["D_STATUS_NAN_INPUT_NUM"] = counts["nan_input"]
            self.rdma.values["D_STATUS_INF_INPUT_NUM"] = counts["inf_input"]

    def _counts_input(self) -> bool:
        """SDP_RDMA counts the NaN and infinities of fp16 data that it reads."""
        rdma = self.rdma
        if rdma is None or not rdma["D_PERF_ENABLE.PERF_NAN_INF_COUNT_EN"]:
            return False
        return rdma["D_FEATURE_MODE_CFG.IN_PRECISION"] == Precision.FP16
