"""Settings and operands of an SDP operation, decoded from registers.

BRDMA serves X1, NRDMA X2, ERDMA Y. An operand is one element a channel (PER_KERNEL) or one an element of the cube
(PER_ELEMENT), of one or two bytes, for the ALU, the multiplier or both (then ALU and MUL alternate, ALU first).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.job import MemoryCube, memory_cube, memory_space
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.memory.address_space import AddressSpace
from nvdla.errors import ConfigError, ScheduleError
from nvdla.util.precision import Precision
from nvdla.util.rounding import ceil_div


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
        """True if it computes in fp16."""
        return self.processing is Precision.FP16


def precision(value: int, config: Configuration, what: str) -> Precision:
    """A precision field. Raises ConfigError for the reserved value and for what the configuration lacks."""
    return config.require_precision(value, f"SDP: {what}")


def decode(group: RegisterGroup, config: Configuration) -> SdpSettings:
    """Decode the registers of unit SDP. Raises ConfigError for a precision that the configuration lacks."""
    processing = precision(group["D_DATA_FORMAT.PROC_PRECISION"], config, "processing precision")
    output = precision(group["D_DATA_FORMAT.OUT_PRECISION"], config, "output precision")
    return SdpSettings(
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


def check(settings: SdpSettings, config: Configuration) -> None:
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
        raise ScheduleError("deadlock: in compare mode (EQL) nothing reaches PDP")
    converter = settings.converter
    if settings.y.compares and (converter.offset, converter.scale, converter.shift) != (0, 1, 0):
        raise ConfigError(
            f"SDP: compare mode (EQL) needs the output converter at offset 0, scale 1, shift 0, not "
            f"{converter.offset}, {converter.scale}, {converter.shift} (cmod/sdp/NV_NVDLA_sdp.cpp:1351)"
        )
    if settings.to_pdp and settings.processing.bytes != settings.output.bytes:
        raise ConfigError(
            f"SDP: results on the fly to PDP must keep their width, not turn from {settings.processing} "
            f"into {settings.output}"
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


USE_MUL, USE_ALU, USE_BOTH = 0, 1, 2
TRANSACTION = 32  # bytes: nv_full moves whole atoms of this size


@dataclass(frozen=True)
class Operands:
    """Operands of one block. ``view``: uint8 (surfaces, height or 1, width or 1, bytes of one pixel's elements)."""

    view: np.ndarray
    size: int
    both: bool

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """(ALU, MUL) operands as memory holds them now: int16 (surfaces, pixels or 1, atom elements)."""
        surfaces, height, width, length = self.view.shape
        elements = np.ascontiguousarray(self.view).view(np.int8 if self.size == 1 else np.int16)
        elements = elements.reshape(surfaces, height * width, length // self.size)
        if not self.both:
            elements = elements.astype(np.int16, copy=False)
            return elements, elements
        return elements[..., 0::2].astype(np.int16), elements[..., 1::2].astype(np.int16)


def check_cube(rdma: RegisterGroup, settings: SdpSettings) -> None:
    """SDP_RDMA must describe the cube that SDP works on."""
    read = (
        rdma["D_DATA_CUBE_WIDTH.WIDTH"] + 1,
        rdma["D_DATA_CUBE_HEIGHT.HEIGHT"] + 1,
        rdma["D_DATA_CUBE_CHANNEL.CHANNEL"] + 1,
    )
    cube = (settings.width, settings.height, settings.channels)
    if read != cube:
        raise ScheduleError(
            "deadlock: SDP_RDMA reads a cube of width x height x channels = "
            f"{read[0]}x{read[1]}x{read[2]}, SDP processes {cube[0]}x{cube[1]}x{cube[2]}"
        )


def require_packed_pixel(settings: SdpSettings, stride: int, atom: int, what: str, line: str) -> None:
    """Check that surfaces of a 1x1 cube are adjacent: the C model stops at another stride, hardware ignores the stride
    (RTL: NV_NVDLA_SDP_WDMA_cmd.v:225). Hardware batches are written image by image, by their strides."""
    if settings.batches == settings.width == settings.height == 1 and stride != atom:
        raise ConfigError(
            f"SDP: the {what} of 1x1 has a surface stride of {stride} bytes, it must be one atom ({atom}): hardware "
            f"takes it as packed, the C model stops (cmod/sdp/NV_NVDLA_sdp.cpp:{line})"
        )


def operand_source(
    rdma: RegisterGroup | None,
    block: XBlock | YBlock,
    settings: SdpSettings,
    config: Configuration,
    memory: AddressSpace,
) -> Operands | None:
    """Return the block's operands in memory; None if it takes none from memory. Raises NvdlaError."""
    unit = {"BS": "BRDMA", "BN": "NRDMA", "EW": "ERDMA"}[block.name]
    enabled = rdma is not None and not rdma[f"D_{unit}_CFG.{unit}_DISABLE"]
    if not block.needs_alu and not block.needs_mul:
        if enabled:
            raise ScheduleError(f"deadlock: {unit} delivers operands that {block.name} does not take")
        return None
    if rdma is None or not enabled:
        raise ScheduleError(f"deadlock: {block.name} takes operands from memory, but {unit} is not enabled")
    check_cube(rdma, settings)
    use = rdma[f"D_{unit}_CFG.{unit}_DATA_USE"]
    _check_use(block, unit, use)
    if precision(rdma["D_FEATURE_MODE_CFG.PROC_PRECISION"], config, f"{unit} precision") is not settings.processing:
        raise ScheduleError(
            f"deadlock: {unit} delivers operands for another processing precision than SDP's {settings.processing}"
        )
    size = 2 if rdma[f"D_{unit}_CFG.{unit}_DATA_SIZE"] else 1
    length = settings.atom * size * (2 if use == USE_BOTH else 1)
    per_element = bool(rdma[f"D_{unit}_CFG.{unit}_DATA_MODE"])
    _check_size(rdma, block, unit, size, settings)
    _check_transfer(unit, settings, length, per_element, config)
    space = memory_space(rdma, f"D_{unit}_CFG.{unit}_RAM_TYPE", config)
    address = rdma.address(f"D_{block.name}_BASE_ADDR_HIGH", f"D_{block.name}_BASE_ADDR_LOW")
    shape = (settings.surfaces, 1, 1, length)
    line, surface = length, length
    if per_element:
        shape = (settings.surfaces, settings.height, settings.width, length)
        line, surface = rdma[f"D_{block.name}_LINE_STRIDE"], rdma[f"D_{block.name}_SURFACE_STRIDE"]
    require_packed_pixel(settings, rdma[f"D_{block.name}_SURFACE_STRIDE"], length, f"{unit} operands", "385")
    cube = MemoryCube(f"SDP {unit} operands", space, address, shape, (line, surface))
    return Operands(cube.view(memory), size, use == USE_BOTH)


def _check_use(block: XBlock | YBlock, unit: str, use: int) -> None:
    """Raise ScheduleError if a part of the block gets no operands from its read DMA."""
    for part, needed, value in (("ALU", block.needs_alu, USE_ALU), ("multiplier", block.needs_mul, USE_MUL)):
        if needed and use not in (value, USE_BOTH):
            raise ScheduleError(
                f"deadlock: the {part} of {block.name} takes operands from memory, but {unit} DATA_USE is {use}"
            )


def _check_size(rdma: RegisterGroup, block: XBlock | YBlock, unit: str, size: int, settings: SdpSettings) -> None:
    """X2 and Y refuse one-byte operands for 16-bit data from memory (cmod/sdp/NV_NVDLA_sdp.cpp:415)."""
    wide_input = rdma["D_FEATURE_MODE_CFG.IN_PRECISION"] != Precision.INT8
    wide = wide_input and settings.processing is not Precision.INT8
    if block.name != "BS" and size == 1 and wide and not settings.flying:
        raise ConfigError(f"SDP: {unit} DATA_SIZE must be two bytes for {settings.processing} data")


def _check_transfer(unit: str, settings: SdpSettings, length: int, per_element: bool, config: Configuration) -> None:
    """Every fetched line or channel list must be whole atoms (cmod/sdp/NV_NVDLA_sdp.cpp:439)."""
    atom = min(config.memory_atom, TRANSACTION)
    total = length * (settings.width if per_element else settings.surfaces)
    if total % atom:
        what = "line" if per_element else "channel list"
        raise ConfigError(f"SDP: a {what} of {unit} operands has {total} bytes: must be a multiple of {atom}")


@dataclass(frozen=True)
class InputCube:
    """The input cube in memory: ``view`` uint8 (surfaces, height, width, atom bytes), elements of ``source``."""

    view: np.ndarray
    source: Precision
    processing: Precision
    shape: tuple[int, int, int]

    def read(self) -> np.ndarray:
        """The cube as memory holds it now: int8 or int16 (also fp16 bits) (surfaces, pixels, atom)."""
        elements = np.ascontiguousarray(self.view).view(np.int8 if self.source is Precision.INT8 else np.int16)
        if self.source.bytes > self.processing.bytes:
            # Two surfaces of 16 channels are one of 32 (cmod/sdp/NV_NVDLA_sdp.cpp:528).
            elements = elements.reshape(-1, 2, self.shape[1], elements.shape[3]).transpose(0, 2, 1, 3)
        # Wider processing re-reads the bytes in memory order: the fetched halves of an atom count as pixels.
        return elements.reshape(self.shape)


def input_cube(
    rdma: RegisterGroup | None, settings: SdpSettings, config: Configuration, memory: AddressSpace
) -> InputCube:
    """Return the input cube of MRDMA. Raises NvdlaError.

    Every batch reads the same cube: the registers have no batch stride for it (cmod/sdp/NV_NVDLA_sdp.cpp:533).
    """
    if rdma is None or rdma["D_FEATURE_MODE_CFG.FLYING_MODE"]:
        raise ScheduleError("deadlock: the input of SDP is in memory, but SDP_RDMA does not read it")
    check_cube(rdma, settings)
    source = precision(rdma["D_FEATURE_MODE_CFG.IN_PRECISION"], config, "input precision")
    processing, atom = settings.processing, config.memory_atom
    if source is not processing and settings.batches > 1:
        raise ConfigError("SDP: a hardware batch cannot convert its input precision (cmod/sdp/NV_NVDLA_sdp.cpp:402)")
    surfaces = ceil_div(settings.channels, atom // source.bytes)
    if source.bytes > processing.bytes:
        surfaces += surfaces & 1
    if source.bytes < processing.bytes and settings.surfaces & 1:
        raise ScheduleError(
            f"deadlock: {source} data processed as {processing} need an even "
            f"number of {settings.atom}-channel surfaces, not {settings.surfaces}"
        )
    require_packed_pixel(settings, rdma["D_SRC_SURFACE_STRIDE"], atom, "input", "385")
    shape = (surfaces, settings.height, settings.width, atom)
    view = memory_cube(rdma, "SRC", "D_SRC_DMA_CFG.SRC_RAM_TYPE", shape, config).view(memory)
    return InputCube(view, source, processing, (settings.surfaces, settings.pixels, settings.atom))
