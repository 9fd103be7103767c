"""Settings and operands of an SDP operation, decoded from registers.

BRDMA serves X1, NRDMA X2, ERDMA Y. An operand is one element a channel (PER_KERNEL) or one an element of the cube
(PER_ELEMENT), of one or two bytes, for the ALU, the multiplier or both (then ALU and MUL alternate, ALU first).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.job import MemoryCube, lines_are_packed, memory_cube, memory_space
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.memory.address_space import AddressSpace
from nvdla.errors import ConfigError, ScheduleError
from nvdla.util.escaping import Document
from nvdla.util.precision import Precision
from nvdla.util.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.kernels.sdp import MemoryOperand


class Algorithm(IntEnum):
    """ALU_ALGO. X has no EQL for integers: it adds then (cmod/hls/sdp/sdp_x.cpp:31)."""

    MAX = 0
    MIN = 1
    SUM = 2
    EQL = 3


@dataclass(frozen=True, kw_only=True)
class Block:
    """ALU and multiplier of a block. Operands in registers are raw, signed."""

    name: str
    bypass: bool
    alu_bypass: bool
    algorithm: Algorithm
    alu_from_memory: bool
    alu_operand: int
    mul_bypass: bool
    prelu: bool
    mul_from_memory: bool
    mul_operand: int

    @property
    def needs_alu(self) -> bool:
        """The ALU takes operands from memory."""
        return not self.bypass and not self.alu_bypass and self.alu_from_memory

    @property
    def needs_mul(self) -> bool:
        """The multiplier takes operands from memory."""
        return not self.bypass and not self.mul_bypass and self.mul_from_memory


@dataclass(frozen=True, kw_only=True)
class XBlock(Block):
    """X1 (BS) or X2 (BN): also shifts and ReLU. Operands have 16 bits."""

    alu_shift: int
    mul_shift: int
    relu_bypass: bool


@dataclass(frozen=True)
class OperandConverter:
    """Y's converter of operands from memory: (x - offset) * scale >> truncate."""

    bypass: bool
    offset: int
    scale: int
    truncate: int


@dataclass(frozen=True, kw_only=True)
class YBlock(Block):
    """Y (EW): also converters of its operands, and lookup tables. Operands have 32 bits (fp16: fp32 bits)."""

    alu_converter: OperandConverter
    mul_converter: OperandConverter
    truncate: int
    lut_bypass: bool

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


def _block(group: RegisterGroup, name: str, operand: str) -> Document:
    """Decode the fields that all blocks have. ``operand``: suffix of the registers with an operand."""
    flags, alu, mul = f"D_DP_{name}_CFG.{name}", f"D_DP_{name}_ALU", f"D_DP_{name}_MUL"
    return {
        "name": name,
        "bypass": bool(group[f"{flags}_BYPASS"]),
        "alu_bypass": bool(group[f"{flags}_ALU_BYPASS"]),
        "algorithm": Algorithm(group[f"{flags}_ALU_ALGO"]),
        "alu_from_memory": bool(group[f"{alu}_CFG.{name}_ALU_SRC"]),
        "alu_operand": group.signed(f"{alu}_SRC_VALUE" + operand.format(f"{name}_ALU")),
        "mul_bypass": bool(group[f"{flags}_MUL_BYPASS"]),
        "prelu": bool(group[f"{flags}_MUL_PRELU"]),
        "mul_from_memory": bool(group[f"{mul}_CFG.{name}_MUL_SRC"]),
        "mul_operand": group.signed(f"{mul}_SRC_VALUE" + operand.format(f"{name}_MUL")),
    }


def _x_block(group: RegisterGroup, name: str) -> XBlock:
    return XBlock(
        **_block(group, name, ".{}_OPERAND"),
        alu_shift=group[f"D_DP_{name}_ALU_CFG.{name}_ALU_SHIFT_VALUE"],
        mul_shift=group[f"D_DP_{name}_MUL_CFG.{name}_MUL_SHIFT_VALUE"] & 0x3F,  # 6 bits of the field's 8 count
        relu_bypass=bool(group[f"D_DP_{name}_CFG.{name}_RELU_BYPASS"]),
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
        **_block(group, "EW", ""),
        alu_converter=_operand_converter(group, "ALU"),
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
        raise ConfigError("SDP: a hardware batch must write to memory, without PDP on the fly and compare mode")
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

    def placed(self, is_second: bool) -> MemoryOperand | None:
        """Return where compiled code reads the ALU operands, or MUL (``is_second``); None unless lines are packed."""
        from nvdla.kernels.sdp import MemoryOperand

        surfaces, height, width, _ = self.view.shape
        if self.view.strides[3] != 1 or (height * width > 1 and not lines_are_packed(self.view)):
            return None
        start = self.view.ctypes.data + (self.size if self.both and is_second else 0)
        stride = 2 if self.both else 1
        return MemoryOperand(start, self.view.strides[0], surfaces, height * width, self.size, stride)


@dataclass(frozen=True)
class OperandCube:
    """Place of the operands of one block: ``size`` bytes each, ALU and MUL side by side if ``both``."""

    cube: MemoryCube
    size: int
    both: bool

    def view(self, memory: AddressSpace) -> Operands:
        """Return the operands in a memory. Raises LinkError."""
        return Operands(self.cube.view(memory), self.size, self.both)


def _check_cube(rdma: RegisterGroup, settings: SdpSettings) -> None:
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


def _require_packed_pixel(settings: SdpSettings, stride: int, atom: int, what: str, line: str) -> None:
    """Check that surfaces of a 1x1 cube are adjacent: the C model stops at another stride, hardware ignores the stride
    (RTL: NV_NVDLA_SDP_WDMA_cmd.v:225). Hardware batches are written image by image, by their strides."""
    if settings.batches == settings.width == settings.height == 1 and stride != atom:
        raise ConfigError(
            f"SDP: surface stride of the {what} of 1x1: must be one atom ({atom} bytes), got {stride}: hardware "
            f"ignores the stride, the C model stops (cmod/sdp/NV_NVDLA_sdp.cpp:{line})"
        )


def _operand_cube(
    rdma: RegisterGroup | None, block: Block, settings: SdpSettings, config: Configuration
) -> OperandCube | None:
    """Decode where a block's operands are; None if it takes none from memory. Raises NvdlaError."""
    unit = {"BS": "BRDMA", "BN": "NRDMA", "EW": "ERDMA"}[block.name]
    enabled = rdma is not None and not rdma[f"D_{unit}_CFG.{unit}_DISABLE"]
    if not block.needs_alu and not block.needs_mul:
        if enabled:
            raise ScheduleError(f"deadlock: {unit} delivers operands that {block.name} does not take")
        return None
    if rdma is None or not enabled:
        raise ScheduleError(f"deadlock: {block.name} takes operands from memory, but {unit} is not enabled")
    _check_cube(rdma, settings)
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
    _require_packed_pixel(settings, rdma[f"D_{block.name}_SURFACE_STRIDE"], length, f"{unit} operands", "385")
    cube = MemoryCube(f"SDP {unit} operands", space, address, shape, (line, surface))
    return OperandCube(cube, size, use == USE_BOTH)


def _check_use(block: Block, unit: str, use: int) -> None:
    """Raise ScheduleError if a part of the block gets no operands from its read DMA."""
    for part, needed, value in (("ALU", block.needs_alu, USE_ALU), ("multiplier", block.needs_mul, USE_MUL)):
        if needed and use not in (value, USE_BOTH):
            raise ScheduleError(
                f"deadlock: the {part} of {block.name} takes operands from memory, but {unit} DATA_USE is {use}"
            )


def _check_size(rdma: RegisterGroup, block: Block, unit: str, size: int, settings: SdpSettings) -> None:
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


@dataclass(frozen=True)
class SourceCube:
    """Place of the input; ``shape`` is that of :meth:`InputCube.read`."""

    cube: MemoryCube
    source: Precision
    processing: Precision
    shape: tuple[int, int, int]

    def view(self, memory: AddressSpace) -> InputCube:
        """Return the input in a memory. Raises LinkError."""
        return InputCube(self.cube.view(memory), self.source, self.processing, self.shape)


def _source_cube(rdma: RegisterGroup | None, settings: SdpSettings, config: Configuration) -> SourceCube | None:
    """Decode the input cube of MRDMA; None on the fly. Raises NvdlaError.

    Every batch reads the same cube: the registers have no batch stride for it (cmod/sdp/NV_NVDLA_sdp.cpp:533).
    """
    reads = rdma is not None and not rdma["D_FEATURE_MODE_CFG.FLYING_MODE"]
    if settings.flying:
        if reads:
            raise ScheduleError("deadlock: SDP_RDMA reads memory, but SDP takes its input from CACC")
        return None
    if rdma is None or not reads:
        raise ScheduleError("deadlock: the input of SDP is in memory, but SDP_RDMA does not read it")
    _check_cube(rdma, settings)
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
    _require_packed_pixel(settings, rdma["D_SRC_SURFACE_STRIDE"], atom, "input", "385")
    shape = (surfaces, settings.height, settings.width, atom)
    cube = memory_cube(rdma, "SRC", "D_SRC_DMA_CFG.SRC_RAM_TYPE", shape, config)
    return SourceCube(cube, source, processing, (settings.surfaces, settings.pixels, settings.atom))


@dataclass(frozen=True)
class SdpCubes:
    """Memory of one operation: its input, operands of X1, X2 and Y, and one output per image of a hardware batch."""

    input: SourceCube | None
    operands: tuple[OperandCube | None, ...]
    outputs: tuple[MemoryCube, ...]


def decode_cubes(groups: dict[str, RegisterGroup], settings: SdpSettings, config: Configuration) -> SdpCubes:
    """Decode and check the settings of read and write DMA. Raises NvdlaError."""
    rdma = groups.get("SDP_RDMA")
    source = _source_cube(rdma, settings, config)
    operands = tuple(_operand_cube(rdma, block, settings, config) for block in (settings.x1, settings.x2, settings.y))
    writes = not settings.to_pdp and not settings.y.compares
    return SdpCubes(source, operands, _outputs(groups["SDP"], settings, config) if writes else ())


def _outputs(group: RegisterGroup, settings: SdpSettings, config: Configuration) -> tuple[MemoryCube, ...]:
    """WDMA: cubes of all images, (surfaces, height, width, atom bytes).

    int8 that becomes 16 bits fills two surfaces a surface of 32 channels, also where the second one is beyond
    the channels (cmod/sdp/NV_NVDLA_sdp.cpp:1496).
    """
    atom, surfaces = config.memory_atom, settings.surfaces * settings.output.bytes
    if settings.processing.bytes == 2:
        surfaces = ceil_div(settings.channels, atom // settings.output.bytes)
    if settings.processing.bytes > settings.output.bytes and settings.surfaces & 1:
        raise ScheduleError(
            f"deadlock: {settings.processing} results written as int8 need an even number "
            f"of {settings.atom}-channel surfaces, not {settings.surfaces}"
        )
    shape = (surfaces, settings.height, settings.width, atom)
    _require_packed_pixel(settings, group["D_DST_SURFACE_STRIDE"], atom, "output", "1497")
    first = memory_cube(group, "DST", "D_DST_DMA_CFG.DST_RAM_TYPE", shape, config)
    stride = group["D_DST_BATCH_STRIDE"]
    return tuple(replace(first, address=first.address + batch * stride) for batch in range(settings.batches))
