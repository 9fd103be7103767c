"""SDP's registers decoded: cube, precisions, the X1, X2 and Y blocks, the output converter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nvdla.errors import ConfigError, ScheduleError
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.register_file import RegisterGroup
from nvdla.precision import Precision
from nvdla.rounding import ceil_div


class Algorithm(IntEnum):
    """ALU_ALGO. X has no EQL for integers: it adds then (cmod/hls/sdp/sdp_x.cpp:31)."""

    MAX = 0
    MIN = 1
    SUM = 2
    EQL = 3


@dataclass(frozen=True)
class XBlock:
    """X1 (BS) or X2 (BN): ALU, multiplier, shift, ReLU. Operands in registers are raw 16 bits, signed."""

    name: str
    bypass: bool
    alu_bypass: bool
    algorithm: Algorithm
    alu_from_memory: bool
    alu_shift: int
    alu_operand: int
    mul_bypass: bool
    prelu: bool
    mul_from_memory: bool
    mul_shift: int
    mul_operand: int
    relu_bypass: bool

    @property
    def needs_alu(self) -> bool:
        """The ALU takes operands from memory."""
        return not self.bypass and not self.alu_bypass and self.alu_from_memory

    @property
    def needs_mul(self) -> bool:
        """The multiplier takes operands from memory."""
        return not self.bypass and not self.mul_bypass and self.mul_from_memory


@dataclass(frozen=True)
class OperandConverter:
    """Y's converter of operands from memory: (x - offset) * scale >> truncate."""

    bypass: bool
    offset: int
    scale: int
    truncate: int


@dataclass(frozen=True)
class YBlock:
    """Y (EW): multiplier, ALU, lookup tables. Operands in registers are raw 32 bits, signed (fp16: fp32 bits)."""

    name: str
    bypass: bool
    alu_bypass: bool
    algorithm: Algorithm
    alu_from_memory: bool
    alu_operand: int
    alu_converter: OperandConverter
    mul_bypass: bool
    prelu: bool
    mul_from_memory: bool
    mul_operand: int
    mul_converter: OperandConverter
    truncate: int
    lut_bypass: bool

    @property
    def needs_alu(self) -> bool:
        """The ALU takes operands from memory."""
        return not self.bypass and not self.alu_bypass and self.alu_from_memory

    @property
    def needs_mul(self) -> bool:
        """The multiplier takes operands from memory."""
        return not self.bypass and not self.mul_bypass and self.mul_from_memory

    @property
    def uses_lut(self) -> bool:
        """The lookup tables work."""
        return not self.bypass and not self.lut_bypass

    @property
    def compares(self) -> bool:
        """EQL: nothing is written, D_STATUS says whether anything differed."""
        return not self.bypass and not self.alu_bypass and self.algorithm is Algorithm.EQL


@dataclass(frozen=True)
class OutputConverter:
    """(x - offset) * scale >> shift for integers; fp16 processing ignores it."""

    offset: int
    scale: int
    shift: int


@dataclass(frozen=True)
class SdpSettings:
    """One operation of the SDP. ``atom``: elements of a memory atom at the processing precision."""

    width: int
    height: int
    channels: int
    batches: int
    flying: bool
    to_pdp: bool
    winograd: bool
    nan_to_zero: bool
    processing: Precision
    output: Precision
    atom: int
    x1: XBlock
    x2: XBlock
    y: YBlock
    converter: OutputConverter

    @property
    def surfaces(self) -> int:
        """Surfaces of the cube at the processing precision."""
        return ceil_div(self.channels, self.atom)

    @property
    def pixels(self) -> int:
        """Pixels of the cube."""
        return self.height * self.width

    @property
    def floating(self) -> bool:
        """Whether it computes in fp16."""
        return self.processing is Precision.FP16


def precision(value: int, config: Configuration, what: str) -> Precision:
    """A precision field. Raises ConfigError for the reserved value and for what the configuration lacks."""
    return config.require_precision(value, f"SDP: {what}")


def decode(group: RegisterGroup, config: Configuration) -> SdpSettings:
    """Decode the registers of unit SDP and check what does not depend on memory."""
    processing = precision(group["D_DATA_FORMAT.PROC_PRECISION"], config, "processing precision")
    output = precision(group["D_DATA_FORMAT.OUT_PRECISION"], config, "output precision")
    settings = SdpSettings(
        width=group["D_DATA_CUBE_WIDTH.WIDTH"] + 1,
        height=group["D_DATA_CUBE_HEIGHT.HEIGHT"] + 1,
        channels=group["D_DATA_CUBE_CHANNEL.CHANNEL"] + 1,
        batches=group["D_FEATURE_MODE_CFG.BATCH_NUMBER"] + 1,
        flying=bool(group["D_FEATURE_MODE_CFG.FLYING_MODE"]),
        to_pdp=bool(group["D_FEATURE_MODE_CFG.OUTPUT_DST"]),
        winograd=bool(group["D_FEATURE_MODE_CFG.WINOGRAD"]),
        nan_to_zero=bool(group["D_FEATURE_MODE_CFG.NAN_TO_ZERO"]),
        processing=processing,
        output=output,
        atom=config.memory_atom // processing.bytes,
        x1=_x_block(group, "BS"),
        x2=_x_block(group, "BN"),
        y=_y_block(group),
        converter=OutputConverter(
            offset=group.signed("D_CVT_OFFSET"),
            scale=group.signed("D_CVT_SCALE.CVT_SCALE"),
            shift=group["D_CVT_SHIFT.CVT_SHIFT"],
        ),
    )
    _check(settings, config)
    return settings


def _x_block(group: RegisterGroup, name: str) -> XBlock:
    flags, alu, mul = f"D_DP_{name}_CFG.{name}", f"D_DP_{name}_ALU", f"D_DP_{name}_MUL"
    return XBlock(
        name=name,
        bypass=bool(group[f"{flags}_BYPASS"]),
        alu_bypass=bool(group[f"{flags}_ALU_BYPASS"]),
        algorithm=Algorithm(group[f"{flags}_ALU_ALGO"]),
        alu_from_memory=bool(group[f"{alu}_CFG.{name}_ALU_SRC"]),
        alu_shift=group[f"{alu}_CFG.{name}_ALU_SHIFT_VALUE"],
        alu_operand=group.signed(f"{alu}_SRC_VALUE.{name}_ALU_OPERAND"),
        mul_bypass=bool(group[f"{flags}_MUL_BYPASS"]),
        prelu=bool(group[f"{flags}_MUL_PRELU"]),
        mul_from_memory=bool(group[f"{mul}_CFG.{name}_MUL_SRC"]),
        mul_shift=group[f"{mul}_CFG.{name}_MUL_SHIFT_VALUE"] & 0x3F,  # the shifter has 6 bits, the field 8
        mul_operand=group.signed(f"{mul}_SRC_VALUE.{name}_MUL_OPERAND"),
        relu_bypass=bool(group[f"{flags}_RELU_BYPASS"]),
    )


def _operand_converter(group: RegisterGroup, block: str) -> OperandConverter:
    name = f"EW_{block}_CVT"
    return OperandConverter(
        bypass=bool(group[f"D_DP_EW_{block}_CFG.{name}_BYPASS"]),
        offset=group.signed(f"D_DP_{name}_OFFSET_VALUE"),
        scale=group.signed(f"D_DP_{name}_SCALE_VALUE.{name}_SCALE"),
        truncate=group[f"D_DP_{name}_TRUNCATE_VALUE.{name}_TRUNCATE"],
    )


def _y_block(group: RegisterGroup) -> YBlock:
    return YBlock(
        name="EW",
        bypass=bool(group["D_DP_EW_CFG.EW_BYPASS"]),
        alu_bypass=bool(group["D_DP_EW_CFG.EW_ALU_BYPASS"]),
        algorithm=Algorithm(group["D_DP_EW_CFG.EW_ALU_ALGO"]),
        alu_from_memory=bool(group["D_DP_EW_ALU_CFG.EW_ALU_SRC"]),
        alu_operand=group.signed("D_DP_EW_ALU_SRC_VALUE"),
        alu_converter=_operand_converter(group, "ALU"),
        mul_bypass=bool(group["D_DP_EW_CFG.EW_MUL_BYPASS"]),
        prelu=bool(group["D_DP_EW_CFG.EW_MUL_PRELU"]),
        mul_from_memory=bool(group["D_DP_EW_MUL_CFG.EW_MUL_SRC"]),
        mul_operand=group.signed("D_DP_EW_MUL_SRC_VALUE"),
        mul_converter=_operand_converter(group, "MUL"),
        truncate=group["D_DP_EW_TRUNCATE_VALUE.EW_TRUNCATE"],
        lut_bypass=bool(group["D_DP_EW_CFG.EW_LUT_BYPASS"]),
    )


def _check(settings: SdpSettings, config: Configuration) -> None:
    """Settings that no memory can make right.

    Y and its tables work everywhere: NVIDIA's reference model has them in every configuration, also where the
    hardware is built without, and NVIDIA's trace tests of nv_small and nv_small_256 use them. The firmware refuses.
    """
    if settings.winograd:
        config.require("winograd", "SDP")
    if settings.winograd and not settings.flying:
        raise ScheduleError("SDP: Winograd order comes from the convolution, not from memory (FLYING_MODE is off)")
    if settings.winograd and settings.processing.bytes != settings.output.bytes:
        raise ConfigError("SDP: results in Winograd order must keep the width of their elements")
    _check_batch(settings, config)
    if settings.y.compares and settings.to_pdp:
        raise ScheduleError("SDP waits for ever: in compare mode (EQL) nothing reaches PDP")
    converter = settings.converter
    if settings.y.compares and (converter.offset, converter.scale, converter.shift) != (0, 1, 0):
        raise ConfigError(
            f"SDP: compare mode (EQL) needs the output converter at offset 0, scale 1, shift 0, not "
            f"{converter.offset}, {converter.scale}, {converter.shift} (cmod/sdp/NV_NVDLA_sdp.cpp:1351)"
        )
    if settings.to_pdp and settings.processing.bytes != settings.output.bytes:
        raise ConfigError(
            f"SDP: results on the fly to PDP must keep their width, not turn from {settings.processing.name.lower()} "
            f"into {settings.output.name.lower()}"
        )


def _check_batch(settings: SdpSettings, config: Configuration) -> None:
    """Hardware batch (cmod/sdp/NV_NVDLA_sdp.cpp:1377 and :1746)."""
    if settings.batches == 1:
        return
    config.require("batch", "SDP", f"BATCH_NUMBER {settings.batches - 1}")
    if settings.to_pdp or settings.y.compares:
        raise ConfigError("SDP: a hardware batch writes to memory; neither PDP on the fly nor compare mode take it")
    if settings.processing.bytes != settings.output.bytes:
        raise ConfigError("SDP: a hardware batch must keep the width of its elements")
