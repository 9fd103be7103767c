"""SDP arithmetic of a job: integer and fp16 pipelines, and lookup tables."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.hardware.job import LookupTables, same_or_apart
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.hardware.sdp.settings import Algorithm, OperandConverter, Operands, SdpSettings, XBlock, YBlock
from nvdla.kernels import sdp
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from nvdla.kernels import sdp_lut
    from nvdla.kernels.jit.recorded_calls import RecordedCall

RANGES = {Precision.INT8: (-128.0, 127.0), Precision.INT16: (-32768.0, 32767.0)}
LUT_COUNTS = ("lut_uflow", "lut_oflow", "lut_hybrid", "lut_le_hit", "lut_lo_hit")


class IntegerPipeline:
    """X1, X2, Y and the output converter of one operation.

    Without Y everything is one pass over the cube. With Y there is one before it (X1 and X2), and one after it.
    """

    def __init__(
        self, settings: SdpSettings, sources: list[Operands | None], group: RegisterGroup, tables: LookupTables
    ) -> None:
        self.settings = settings
        self._sources = sources
        self._stages = [x_stage(settings.x1), x_stage(settings.x2)]
        self._registers = [register_operands(block, settings.atom) for block in (settings.x1, settings.x2)]
        self._converter = self._output_converter()
        self._lut = None
        if settings.y.uses_lut:
            self._lut = integer_lookup(group, tables)

    def with_operands(self, sources: list[Operands | None]) -> IntegerPipeline:
        """The same arithmetic with operands from elsewhere."""
        pipeline = copy.copy(self)
        pipeline._sources = sources
        return pipeline

    def run(self, cube: np.ndarray, out: np.ndarray) -> dict[str, int]:
        """Process ``cube`` (rows, pixels, atom) into ``out`` of the same shape. Returns the counters."""
        settings = self.settings
        data = cube if cube.dtype == np.int32 else cube.astype(np.int32)
        counts: dict[str, int] = {}
        stages = self._stages
        if not settings.y.bypass:
            if any(stage.active for stage in stages):
                data = self._x_pass(data, stages, sdp.RAW, np.empty_like(data))[0]
            data = self._y_pass(data, counts)
            stages = [sdp.BYPASS, sdp.BYPASS]
        if settings.y.compares:
            # Only the low 16 bits leave the converter (cmod/hls/sdp/sdp_c.cpp:78).
            counts["unequal"] = int((data & 0xFFFF).any())
            counts["saturated"] = 0
        elif settings.output is Precision.FP16:
            self._to_fp16(data, stages, out, counts)
        else:
            counts["saturated"] = self._x_pass(data, stages, self._converter, out)[1]
        return counts

    def _x_pass(
        self, data: np.ndarray, stages: list[sdp.StageValues], converter: sdp.Converter, out: np.ndarray
    ) -> tuple[np.ndarray, int]:
        """X1, X2 (as ``stages`` say) and a converter. Returns ``out`` and the number of saturated elements."""
        blocks: list[tuple[np.ndarray, np.ndarray, sdp.StageValues]] = []
        for index, block in enumerate((self.settings.x1, self.settings.x2)):
            alu, mul = self._registers[index]
            source = self._sources[index]
            if source is not None and stages[index].active:
                from_memory = source.read()
                alu = from_memory[0] if block.needs_alu else alu
                mul = from_memory[1] if block.needs_mul else mul
            blocks.append((alu, mul, stages[index]))
        return out, int(sdp.x_and_convert(data, *blocks[0], *blocks[1], converter, out))

    def call(self, cube: np.ndarray, out: np.ndarray) -> RecordedCall | None:
        """Return :meth:`run` without Y as a recorded call, from int8 to int8: uint8 (surfaces, height, width, atom).

        None if the lines of operands are not packed, or if a result may overwrite operands of another element.
        """
        operands: list[sdp.MemoryOperand] = []
        kept: list[np.ndarray] = []
        for index, block in enumerate((self.settings.x1, self.settings.x2)):
            for register, from_memory in zip(self._registers[index], (block.needs_alu, block.needs_mul), strict=True):
                source = self._sources[index] if from_memory and self._stages[index].active else None
                if source is None:
                    operands.append(sdp.MemoryOperand(register.ctypes.data, 0, 1, 1, 2, 1))
                    kept.append(register)
                    continue
                placed = source.placed(is_second=register is self._registers[index][1])
                if placed is None or not same_or_apart(source.view, out):
                    return None
                operands.append(placed)
                kept.append(source.view)
        return sdp.x_call(cube, operands, (self._stages[0], self._stages[1]), self._converter, out, kept)

    def _to_fp16(
        self, data: np.ndarray, stages: list[sdp.StageValues], out: np.ndarray, counts: dict[str, int]
    ) -> None:
        """17-bit integers from the converter to fp16; the saturation counter counts the largest number then
        (cmod/hls_wrapper/sdp_hls_wrapper.cpp:490)."""
        from nvdla.kernels.sdp_float import integers_to_fp16

        wide = self._x_pass(data, stages, self._converter, np.empty_like(data))[0]
        counts["saturated"] = int(integers_to_fp16(wide, out))
        counts["nan_output"] = 0

    def _y_pass(self, data: np.ndarray, counts: dict[str, int]) -> np.ndarray:
        y = self.settings.y
        if not y.mul_bypass or not y.alu_bypass:
            from nvdla.kernels import sdp

            core = sdp.Core(
                multiply=sdp.NO_MUL if y.mul_bypass else sdp.PRELU if y.prelu else sdp.MUL,
                truncate=y.truncate,
                algorithm=sdp.NO_ALU if y.alu_bypass else int(y.algorithm),
            )
            alu, mul = self._sources[2].read() if self._sources[2] is not None else (None, None)
            mul = y_operand(mul if y.needs_mul else None, y.mul_operand, y.mul_converter, data.shape[2])
            alu = y_operand(alu if y.needs_alu else None, y.alu_operand, y.alu_converter, data.shape[2])
            result = np.empty_like(data)
            sdp.y_core(data, mul, alu, core, result)
            data = result
        if self._lut is not None:
            data, lut_counts = self._lut(data)
            counts.update(zip(LUT_COUNTS, lut_counts, strict=True))
        return data

    def _output_converter(self) -> sdp.Converter:
        converter = self.settings.converter
        low, high = RANGES.get(self.settings.output, (-65536.0, 65535.0))
        return sdp.Converter(float(converter.offset), converter.scale * 2.0**-converter.shift, low, high)


def x_stage(block: XBlock) -> sdp.StageValues:
    """Kernel settings of an X block."""
    if block.bypass:
        return sdp.BYPASS
    algorithm = Algorithm.SUM if block.algorithm is Algorithm.EQL else block.algorithm
    return sdp.StageValues(
        active=1,
        algorithm=sdp.NO_ALU if block.alu_bypass else int(algorithm),
        operand_scale=2.0**block.alu_shift,
        multiply=sdp.NO_MUL if block.mul_bypass else sdp.PRELU if block.prelu else sdp.MUL,
        result_scale=2.0**-block.mul_shift,
        relu=0 if block.relu_bypass else 1,
    )


def register_operands(block: XBlock, atom: int) -> tuple[np.ndarray, np.ndarray]:
    """(ALU, MUL) operands that an X block holds in registers, for every element of an atom: int16 (1, 1, atom)."""
    return np.full((1, 1, atom), block.alu_operand, np.int16), np.full((1, 1, atom), block.mul_operand, np.int16)


def y_operand(memory: np.ndarray | None, register: int, converter: OperandConverter, atom: int) -> np.ndarray:
    """An operand of Y: int32 (surfaces or 1, pixels or 1, atom). Only operands from memory pass the converter."""
    from nvdla.kernels import sdp

    if memory is None:
        return np.full((1, 1, atom), register, np.int32)
    if converter.bypass:
        return memory.astype(np.int32)
    memory = np.ascontiguousarray(memory)
    return sdp.convert_operand(memory, converter.offset, converter.scale, converter.truncate)


class FloatPipeline:
    """X1, X2, Y and the output conversion of one operation, one pass each."""

    def __init__(
        self, settings: SdpSettings, sources: list[Operands | None], group: RegisterGroup, tables: LookupTables
    ) -> None:
        self.settings = settings
        self._sources = sources
        self._lut = None
        if settings.y.uses_lut:
            self._lut = float_lookup(group, tables)

    def with_operands(self, sources: list[Operands | None]) -> FloatPipeline:
        """The same arithmetic with operands from elsewhere."""
        pipeline = copy.copy(self)
        pipeline._sources = sources
        return pipeline

    def call(self, cube: np.ndarray, out: np.ndarray) -> RecordedCall | None:
        """Return None: numpy computes fp16."""
        return None

    def run(self, cube: np.ndarray, out: np.ndarray) -> dict[str, int]:
        """Process ``cube`` (rows, pixels, atom) into ``out`` of the same shape. Returns the counters."""
        from nvdla.kernels import sdp_float

        settings = self.settings
        counts: dict[str, int] = {}
        data = self._enter(cube, counts)
        blocks: tuple[XBlock | YBlock, ...] = (settings.x1, settings.x2, settings.y)
        for block, source in zip(blocks, self._sources, strict=True):
            if not block.bypass:
                self._block(data, block, source)
        if self._lut is not None:
            data, lut_counts = self._lut(data)
            counts.update(zip(LUT_COUNTS, lut_counts, strict=True))
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
        from nvdla.kernels import sdp_float

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
        from nvdla.kernels import sdp_float

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
        from nvdla.kernels import sdp_float

        if memory is None and isinstance(block, YBlock):
            return np.full((1, 1, atom), register & 0xFFFFFFFF, np.uint32)
        if memory is None:
            memory = np.full((1, 1, atom), register, np.int16)
        memory = np.ascontiguousarray(memory)
        widened = np.empty(memory.shape, np.uint32)
        sdp_float.widen(memory, self.settings.nan_to_zero, widened)
        return widened


@dataclass(frozen=True)
class Lookup:
    """The tables of one operation. ``entries``: int16 words of LE and of LO."""

    floating: bool
    choice: sdp_lut.Choice
    le: sdp_lut.SdpTable
    lo: sdp_lut.SdpTable
    entries: tuple[np.ndarray, np.ndarray]

    def __call__(self, data: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Return the results for int32 or fp32 bits, and counters: underflow, overflow, hybrid, LE hit, LO hit."""
        from nvdla.kernels import sdp_lut

        out, counts = np.empty_like(data), np.zeros(sdp_lut.COUNTERS, np.int64)
        kernel = sdp_lut.lookup_floats if self.floating else sdp_lut.lookup_integers
        kernel(data, self.entries[0], self.le, self.entries[1], self.lo, self.choice, out, counts)
        return out, counts.tolist()


def integer_lookup(group: RegisterGroup, tables: LookupTables) -> Lookup:
    """The lookup of int32 data."""
    return _lookup(group, tables, floating=False)


def float_lookup(group: RegisterGroup, tables: LookupTables) -> Lookup:
    """The lookup of fp32 bits (uint32)."""
    return _lookup(group, tables, floating=True)


def _lookup(group: RegisterGroup, tables: LookupTables, floating: bool) -> Lookup:
    from nvdla.kernels import sdp_lut

    choice = sdp_lut.Choice(
        exponential=0 if group["S_LUT_CFG.LUT_LE_FUNCTION"] else 1,
        index_offset=group.signed("S_LUT_INFO.LUT_LE_INDEX_OFFSET"),
        underflow=group["S_LUT_CFG.LUT_UFLOW_PRIORITY"],
        overflow=group["S_LUT_CFG.LUT_OFLOW_PRIORITY"],
        hybrid=group["S_LUT_CFG.LUT_HYBRID_PRIORITY"],
    )
    bias = _le_bias(choice.index_offset, floating) if choice.exponential else 0
    le, lo = _table(group, "LE", bias, floating), _table(group, "LO", 0, floating)
    return Lookup(floating, choice, le, lo, (tables.le.copy(), tables.lo.copy()))


def _table(group: RegisterGroup, name: str, bias: int, floating: bool) -> sdp_lut.SdpTable:
    """Integers are signed; fp16 processing holds fp32 (range) and fp16 (slope) bit patterns."""
    from nvdla.kernels import sdp_lut

    read = group.__getitem__ if floating else group.signed
    scale, shift = f"S_LUT_{name}_SLOPE_SCALE.LUT_{name}_SLOPE", f"S_LUT_{name}_SLOPE_SHIFT.LUT_{name}_SLOPE"
    return sdp_lut.SdpTable(
        start=read(f"S_LUT_{name}_START"),
        end=read(f"S_LUT_{name}_END"),
        select=group.signed(f"S_LUT_INFO.LUT_{name}_INDEX_SELECT"),
        underflow_scale=read(f"{scale}_UFLOW_SCALE"),
        underflow_shift=group.signed(f"{shift}_UFLOW_SHIFT"),
        overflow_scale=read(f"{scale}_OFLOW_SCALE"),
        overflow_shift=group.signed(f"{shift}_OFLOW_SHIFT"),
        bias=bias,
    )


def _le_bias(offset: int, floating: bool) -> int:
    """Return the start of the exponential table, 2**offset above LE_START.

    For integers only if the offset is positive; a shift count beyond 31 wraps in the C model
    (cmod/hls_wrapper/sdp_hls_wrapper.cpp:392).
    """
    if floating:
        return int(np.array(2.0**offset, np.float32).view(np.uint32))
    return 1 << (offset & 31) if offset > 0 else 0
