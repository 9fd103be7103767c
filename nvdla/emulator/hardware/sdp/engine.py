"""SDP: the single-point data processor, from accumulators or memory to memory or PDP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.hardware.job import EngineContext, Handed, Job, LookupTables, memory_cube
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.hardware.sdp.settings import (
    InputCube,
    Operands,
    SdpSettings,
    check,
    decode,
    input_cube,
    operand_source,
    require_packed_pixel,
)
from nvdla.emulator.memory.address_space import Move
from nvdla.errors import ScheduleError, shape_text
from nvdla.limits import Work
from nvdla.util.precision import Precision
from nvdla.util.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.emulator.hardware.sdp.arithmetic import FloatPipeline, IntegerPipeline

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
        settings = decode(groups["SDP"], self.machine.config)
        check(settings, self.machine.config)
        return SdpJob(self, settings, groups)


class SdpJob(Job):
    """One operation of the SDP, decoded and checked.

    ``run`` takes the accumulators (batches, surfaces, height, width, atom elements) on the fly, or None from memory;
    it returns (surfaces, height, width, atom elements) for PDP, or None when the result went to memory.
    ``destination``: of a hardware batch the first image; ``destinations``: all of them.
    """

    def __init__(self, engine: Sdp, settings: SdpSettings, groups: dict[str, RegisterGroup]) -> None:
        machine = engine.machine
        self.group = groups["SDP"]
        self.rdma = groups.get("SDP_RDMA")
        self.config = machine.config
        self.settings = settings
        self.statistics: dict[str, int] = {}
        self.input: InputCube | None = None
        if not settings.flying:
            self.input = input_cube(self.rdma, settings, machine.config, machine.memory)
        elif self.rdma is not None and not self.rdma["D_FEATURE_MODE_CFG.FLYING_MODE"]:
            raise ScheduleError("deadlock: SDP_RDMA reads memory, but SDP takes its input from CACC")
        self.sources = [
            operand_source(self.rdma, block, settings, machine.config, machine.memory)
            for block in (settings.x1, settings.x2, settings.y)
        ]
        self.destinations = self._destinations(machine) if not settings.to_pdp and not settings.y.compares else []
        self.destination = self.destinations[0] if self.destinations else None
        self._pipeline = self._build(engine, self.sources)

    @property
    def work(self) -> Work:
        """The elements of the cube, all images of a batch together."""
        settings = self.settings
        elements = settings.batches * settings.surfaces * settings.pixels * settings.atom
        return Work(elements=elements, cube=elements, scratch=ELEMENT_SCRATCH * elements)

    @property
    def needs_kernels(self) -> bool:
        """Only integers without Y have plain forms."""
        settings = self.settings
        return settings.floating or not settings.y.bypass or settings.output is Precision.FP16

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return [each.view for each in (self.input, *self.sources) if each is not None]

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return list(self.destinations)

    def _relocate(self, move: Move) -> None:
        self.input = None if self.input is None else replace(self.input, view=move(self.input.view))
        self.sources = [None if each is None else replace(each, view=move(each.view)) for each in self.sources]
        self.destinations = [move(view) for view in self.destinations]
        self.destination = self.destinations[0] if self.destinations else None
        self._pipeline = self._pipeline.with_operands(self.sources)

    def run(self, source: Handed = None) -> Handed:
        """Process the cube once."""
        settings = self.settings
        cube = self._cube(source)
        out = self._output(cube.shape)
        self.statistics = self._pipeline.run(cube, out)
        self._report()
        if settings.to_pdp:
            return out.reshape(settings.surfaces, settings.height, settings.width, settings.atom)
        self._store(out)
        return None

    def _build(self, engine: Sdp, sources: list[Operands | None]) -> IntegerPipeline | FloatPipeline:
        """The arithmetic of the processing precision (its kernels are loaded on first use)."""
        if self.settings.floating:
            from nvdla.emulator.hardware.sdp.arithmetic import FloatPipeline

            return FloatPipeline(self.settings, sources, self.group, engine.tables)
        from nvdla.emulator.hardware.sdp.arithmetic import IntegerPipeline

        return IntegerPipeline(self.settings, sources, self.group, engine.tables)

    def _cube(self, source: Handed) -> np.ndarray:
        """The input, (batches * surfaces, pixels, atom): int8 or int16 from memory, int32 or uint32 on the fly."""
        settings = self.settings
        if self.input is not None:
            cube = self.input.read()
            return np.concatenate([cube] * settings.batches) if settings.batches > 1 else cube
        expected = (settings.batches, settings.surfaces, settings.height, settings.width, settings.atom)
        if source is None or source.shape != expected:
            found = "nothing" if source is None else shape_text(source.shape)
            raise ScheduleError(
                "deadlock: SDP processes batches x surfaces x height x width x atom = "
                f"{'x'.join(map(str, expected))}, the convolution delivers {found}"
            )
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

    def _destinations(self, machine: EngineContext) -> list[np.ndarray]:
        """WDMA: views of all images, (surfaces, height, width, atom bytes).

        int8 that becomes 16 bits fills two surfaces a surface of 32 channels, also where the second one is beyond
        the channels (cmod/sdp/NV_NVDLA_sdp.cpp:1496).
        """
        group, settings = self.group, self.settings
        surfaces = settings.surfaces * settings.output.bytes
        if settings.processing.bytes == 2:
            surfaces = ceil_div(settings.channels, self.config.memory_atom // settings.output.bytes)
        if settings.processing.bytes > settings.output.bytes and settings.surfaces & 1:
            raise ScheduleError(
                f"deadlock: {settings.processing} results written as int8 need an even number "
                f"of {settings.atom}-channel surfaces, not {settings.surfaces}"
            )
        shape = (surfaces, settings.height, settings.width, self.config.memory_atom)
        require_packed_pixel(settings, group["D_DST_SURFACE_STRIDE"], self.config.memory_atom, "output", "1497")
        first = memory_cube(group, "DST", "D_DST_DMA_CFG.DST_RAM_TYPE", shape, self.config)
        stride = group["D_DST_BATCH_STRIDE"]
        return [
            replace(first, address=first.address + batch * stride).view(machine.memory)
            for batch in range(settings.batches)
        ]

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
