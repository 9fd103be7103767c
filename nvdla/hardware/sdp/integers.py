"""SDP's integer arithmetic (int8 and int16 processing): settings to kernel calls."""

from __future__ import annotations

import copy

import numpy as np

from nvdla.hardware.lut import LookupTables
from nvdla.hardware.register_file import RegisterGroup
from nvdla.hardware.sdp.operands import Operands
from nvdla.hardware.sdp.settings import Algorithm, OperandConverter, SdpSettings, XBlock
from nvdla.kernels import sdp
from nvdla.precision import Precision

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
            from nvdla.hardware.sdp.lut import integer_lookup

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

    def _to_fp16(
        self, data: np.ndarray, stages: list[sdp.StageValues], out: np.ndarray, counts: dict[str, int]
    ) -> None:
        """17-bit integers from the converter to fp16; the saturation counter counts the largest number then
        (cmod/hls_wrapper/sdp_hls_wrapper.cpp:490)."""
        from nvdla.kernels.sdp_fp16_output import integers_to_fp16

        wide = self._x_pass(data, stages, self._converter, np.empty_like(data))[0]
        counts["saturated"] = int(integers_to_fp16(wide, out))
        counts["nan_output"] = 0

    def _y_pass(self, data: np.ndarray, counts: dict[str, int]) -> np.ndarray:
        y = self.settings.y
        if not y.mul_bypass or not y.alu_bypass:
            from nvdla.kernels import sdp_y

            core = sdp_y.Core(
                multiply=sdp_y.NO_MUL if y.mul_bypass else sdp_y.PRELU if y.prelu else sdp_y.MUL,
                truncate=y.truncate,
                algorithm=sdp_y.NO_ALU if y.alu_bypass else int(y.algorithm),
            )
            alu, mul = self._sources[2].read() if self._sources[2] is not None else (None, None)
            mul = y_operand(mul if y.needs_mul else None, y.mul_operand, y.mul_converter, data.shape[2])
            alu = y_operand(alu if y.needs_alu else None, y.alu_operand, y.alu_converter, data.shape[2])
            result = np.empty_like(data)
            sdp_y.y_core(data, mul, alu, core, result)
            data = result
        if self._lut is not None:
            data, found = self._lut(data)
            counts.update(zip(LUT_COUNTS, found, strict=True))
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
    from nvdla.kernels import sdp_y

    if memory is None:
        return np.full((1, 1, atom), register, np.int32)
    if converter.bypass:
        return memory.astype(np.int32)
    memory = np.ascontiguousarray(memory)
    return sdp_y.convert_operand(memory, converter.offset, converter.scale, converter.truncate)
