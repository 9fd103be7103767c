"""SDP_RDMA: where the input cube and the operands of X1, X2 and Y lie in memory, and how they are unpacked.

BRDMA serves X1, NRDMA X2, ERDMA Y. An operand is one element a channel (PER_KERNEL) or one an element of the cube
(PER_ELEMENT), of one or two bytes, for the ALU, the multiplier or both (then ALU and MUL alternate, ALU first).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvdla.errors import ConfigError, ScheduleError
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.register_file import RegisterGroup
from nvdla.hardware.sdp.settings import SdpSettings, XBlock, YBlock, precision
from nvdla.memory.address_space import AddressSpace, Space
from nvdla.precision import Precision
from nvdla.rounding import ceil_div

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


def cube_view(
    memory: AddressSpace,
    space: Space,
    address: int,
    shape: tuple[int, int, int, int],
    line_stride: int,
    surface_stride: int,
    what: str,
) -> np.ndarray:
    """A cube in memory, uint8 (surfaces, height, width, bytes).

    Strides may let lines overlap; :meth:`nvdla.memory.address_space.AddressSpace.surface` bounds what that can cost.
    """
    return memory.surface(space, address, shape, line_stride, surface_stride, what)


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
            "SDP waits for ever: SDP_RDMA reads a cube of width x height x channels = "
            f"{read[0]}x{read[1]}x{read[2]}, SDP processes {cube[0]}x{cube[1]}x{cube[2]}"
        )


def require_packed_pixel(settings: SdpSettings, stride: int, atom: int, what: str, line: str) -> None:
    """Surfaces of a 1x1 cube lie one behind the other: the C model stops at another stride, hardware takes no notice
    of it (RTL: NV_NVDLA_SDP_WDMA_cmd.v:225). Hardware batches are written image by image, by their strides."""
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
    """Where the block's operands lie; None when it takes none from memory. Raises NvdlaError."""
    unit = {"BS": "BRDMA", "BN": "NRDMA", "EW": "ERDMA"}[block.name]
    enabled = rdma is not None and not rdma[f"D_{unit}_CFG.{unit}_DISABLE"]
    if not block.needs_alu and not block.needs_mul:
        if enabled:
            raise ScheduleError(f"SDP waits for ever: {unit} delivers operands that {block.name} does not take")
        return None
    if rdma is None or not enabled:
        raise ScheduleError(f"SDP waits for ever: {block.name} takes operands from memory, but {unit} is not enabled")
    check_cube(rdma, settings)
    use = rdma[f"D_{unit}_CFG.{unit}_DATA_USE"]
    _check_use(block, unit, use)
    if precision(rdma["D_FEATURE_MODE_CFG.PROC_PRECISION"], config, f"{unit} precision") is not settings.processing:
        raise ScheduleError(
            f"SDP waits for ever: {unit} delivers operands for another processing precision than SDP's "
            f"{settings.processing.name.lower()}"
        )
    size = 2 if rdma[f"D_{unit}_CFG.{unit}_DATA_SIZE"] else 1
    length = settings.atom * size * (2 if use == USE_BOTH else 1)
    per_element = bool(rdma[f"D_{unit}_CFG.{unit}_DATA_MODE"])
    _check_size(rdma, block, unit, size, settings)
    _check_transfer(unit, settings, length, per_element, config)
    space = Space.from_ram_type(_ram_type(rdma[f"D_{unit}_CFG.{unit}_RAM_TYPE"], config))
    address = rdma.address(f"D_{block.name}_BASE_ADDR_HIGH", f"D_{block.name}_BASE_ADDR_LOW")
    shape = (settings.surfaces, 1, 1, length)
    line, surface = length, length
    if per_element:
        shape = (settings.surfaces, settings.height, settings.width, length)
        line, surface = rdma[f"D_{block.name}_LINE_STRIDE"], rdma[f"D_{block.name}_SURFACE_STRIDE"]
    require_packed_pixel(settings, rdma[f"D_{block.name}_SURFACE_STRIDE"], length, f"{unit} operands", "385")
    view = cube_view(memory, space, address, shape, line, surface, f"SDP {unit} operands")
    return Operands(view, size, use == USE_BOTH)


def _check_use(block: XBlock | YBlock, unit: str, use: int) -> None:
    """A part of the block that gets nothing from its read DMA waits for ever."""
    for part, needed, value in (("ALU", block.needs_alu, USE_ALU), ("multiplier", block.needs_mul, USE_MUL)):
        if needed and use not in (value, USE_BOTH):
            raise ScheduleError(
                f"SDP waits for ever: the {part} of {block.name} takes operands from memory, "
                f"but {unit} DATA_USE is {use}"
            )


def _check_size(rdma: RegisterGroup, block: XBlock | YBlock, unit: str, size: int, settings: SdpSettings) -> None:
    """X2 and Y refuse one-byte operands for 16-bit data from memory (cmod/sdp/NV_NVDLA_sdp.cpp:415)."""
    wide_input = rdma["D_FEATURE_MODE_CFG.IN_PRECISION"] != Precision.INT8
    wide = wide_input and settings.processing is not Precision.INT8
    if block.name != "BS" and size == 1 and wide and not settings.flying:
        raise ConfigError(f"SDP: {unit} DATA_SIZE must be two bytes for {settings.processing.name.lower()} data")


def _check_transfer(unit: str, settings: SdpSettings, length: int, per_element: bool, config: Configuration) -> None:
    """Every fetched line or channel list must be whole atoms (cmod/sdp/NV_NVDLA_sdp.cpp:439)."""
    atom = min(config.memory_atom, TRANSACTION)
    total = length * (settings.width if per_element else settings.surfaces)
    if total % atom:
        what = "line" if per_element else "channel list"
        raise ConfigError(f"SDP: a {what} of {unit} operands has {total} bytes, which is no multiple of {atom}")


def _ram_type(value: int, config: Configuration) -> int:
    if not value:
        config.require("cvsram", "SDP: RAM_TYPE 0")
    return value


def ram_space(value: int, config: Configuration) -> Space:
    """The memory that a RAM_TYPE names. Raises ConfigError where there is no CVSRAM."""
    return Space.from_ram_type(_ram_type(value, config))


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
    """MRDMA: where the input cube lies. Raises NvdlaError.

    Every batch reads the same cube: the registers have no batch stride for it (cmod/sdp/NV_NVDLA_sdp.cpp:533).
    """
    if rdma is None or rdma["D_FEATURE_MODE_CFG.FLYING_MODE"]:
        raise ScheduleError("SDP waits for ever: its input is in memory, but SDP_RDMA does not read it")
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
            f"SDP waits for ever: {source.name.lower()} data processed as {processing.name.lower()} need an even "
            f"number of {settings.atom}-channel surfaces, not {settings.surfaces}"
        )
    require_packed_pixel(settings, rdma["D_SRC_SURFACE_STRIDE"], atom, "input", "385")
    view = cube_view(
        memory,
        ram_space(rdma["D_SRC_DMA_CFG.SRC_RAM_TYPE"], config),
        rdma.address("D_SRC_BASE_ADDR_HIGH", "D_SRC_BASE_ADDR_LOW"),
        (surfaces, settings.height, settings.width, atom),
        rdma["D_SRC_LINE_STRIDE"],
        rdma["D_SRC_SURFACE_STRIDE"],
        "SDP input",
    )
    return InputCube(view, source, processing, (settings.surfaces, settings.pixels, settings.atom))
