"""SDP's fp16 processing: settings to kernel calls."""

from __future__ import annotations

import copy

import numpy as np

from nvdla.hardware.lut import LookupTables
from nvdla.hardware.register_file import RegisterGroup
from nvdla.hardware.sdp.integers import LUT_COUNTS
from nvdla.hardware.sdp.operands import Operands
from nvdla.hardware.sdp.settings import SdpSettings, XBlock, YBlock
from nvdla.kernels import sdp_float


class FloatPipeline:
    """X1, X2, Y and the output conversion of one operation, one pass each."""

    def __init__(
        self, settings: SdpSettings, sources: list[Operands | None], group: RegisterGroup, tables: LookupTables
    ) -> None:
        self.settings = settings
        self._sources = sources
        self._lut = None
        if settings.y.uses_lut:
            from nvdla.hardware.sdp.lut import float_lookup

            self._lut = float_lookup(group, tables)

    def with_operands(self, sources: list[Operands | None]) -> FloatPipeline:
        """The same arithmetic with operands from elsewhere."""
        pipeline = copy.copy(self)
        pipeline._sources = sources
        return pipeline

    def run(self, cube: np.ndarray, out: np.ndarray) -> dict[str, int]:
        """Process ``cube`` (rows, pixels, atom) into ``out`` of the same shape. Returns the counters."""
        settings = self.settings
        counts: dict[str, int] = {}
        data = self._enter(cube, counts)
        blocks: tuple[XBlock | YBlock, ...] = (settings.x1, settings.x2, settings.y)
        for block, source in zip(blocks, self._sources, strict=True):
            if not block.bypass:
                self._block(data, block, source)
        if self._lut is not None:
            data, found = self._lut(data)
            counts.update(zip(LUT_COUNTS, found, strict=True))
        if settings.y.compares:
            # Only the low 16 bits leave the converter (cmod/hls/sdp/sdp_c.cpp:78).
            counts.update(unequal=int((data & 0xFFFF).any()), saturated=0, nan_output=0)
            return counts
        narrowed = np.zeros(2, np.int64)
        sdp_float.narrow(data, int(settings.output), out, narrowed)
        counts.update(saturated=int(narrowed[0]), nan_output=int(narrowed[1]))
        return counts

    def _enter(self, cube: np.ndarray, counts: dict[str, int]) -> np.ndarray:
        """The input as fp32 bits in an array of our own."""
        data = np.empty(cube.shape, np.uint32)
        if cube.dtype == np.uint32:
            if self.settings.nan_to_zero:
                sdp_float.flush_nan(cube, data)
            else:
                data[...] = cube
            return data
        cube = cube.astype(np.int16, copy=False)
        magnitude = cube & 0x7FFF
        counts["nan_input"] = int(np.count_nonzero(magnitude > 0x7C00))
        counts["inf_input"] = int(np.count_nonzero(magnitude == 0x7C00))
        sdp_float.widen(cube, self.settings.nan_to_zero, data)
        return data

    def _block(self, data: np.ndarray, block: XBlock | YBlock, source: Operands | None) -> None:
        """One block in place."""
        alu, mul = source.read() if source is not None else (None, None)
        alu = self._operand(alu if block.needs_alu else None, block, block.alu_operand, data.shape[2])
        mul = self._operand(mul if block.needs_mul else None, block, block.mul_operand, data.shape[2])
        algorithm = sdp_float.NO_ALU if block.alu_bypass else int(block.algorithm)
        multiply = sdp_float.NO_MUL if block.mul_bypass else sdp_float.PRELU if block.prelu else sdp_float.MUL
        is_y = isinstance(block, YBlock)
        relu = isinstance(block, XBlock) and not block.relu_bypass
        sdp_float.float_block(data, alu, algorithm, mul, multiply, is_y, relu, data)

    def _operand(self, memory: np.ndarray | None, block: XBlock | YBlock, register: int, atom: int) -> np.ndarray:
        """fp32 bits. X's registers hold fp16 and are flushed like memory; Y's hold fp32 and are taken as they are."""
        if memory is None and isinstance(block, YBlock):
            return np.full((1, 1, atom), register & 0xFFFFFFFF, np.uint32)
        if memory is None:
            memory = np.full((1, 1, atom), register, np.int16)
        memory = np.ascontiguousarray(memory)
        widened = np.empty(memory.shape, np.uint32)
        sdp_float.widen(memory, self.settings.nan_to_zero, widened)
        return widened
