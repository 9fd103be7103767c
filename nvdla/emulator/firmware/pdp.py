"""PDP: descriptor to registers of PDP and PDP_RDMA (kmd/firmware/pdp.c)."""

from __future__ import annotations

from nvdla.emulator.firmware.driver import Driver, ram_type
from nvdla.emulator.firmware.operation import MEMORY_ON_THE_FLY, Csb, FirmwareOperation
from nvdla.limits import MAX_WINDOW
from nvdla.loadable.descriptors.structures import Descriptor
from nvdla.util.precision import Precision

MAX_SPLITS = 64
MAX_STRIDE = 8
POOL_MODES = ("average", "max", "min")

# 1/n for n = 1..8: fixed point with 16 fraction bits (65536/n, rounded down), and fp17 bit patterns.
RECIPROCAL_INT = (0x10000, 0x8000, 0x5555, 0x4000, 0x3333, 0x2AAA, 0x2492, 0x2000)
RECIPROCAL_FP17 = (0x7C00, 0x7800, 0x7555, 0x7400, 0x7266, 0x7155, 0x7092, 0x7000)


class PdpDriver(Driver):
    """Drives PDP and, where the input comes from memory, its read DMA."""

    engine = "pdp"

    def needs_read_dma(self, operation: FirmwareOperation) -> bool:
        """Return True if the operation needs the engine's read DMA."""
        return bool(operation.surface.src_data.type != MEMORY_ON_THE_FLY)

    def count(self, csb: Csb) -> None:
        """Let the engine count stalls, saturated elements and the like."""
        csb.write_fields("PDP", "D_PERF_ENABLE", DMA_EN=1)

    def check(self, operation: FirmwareOperation) -> None:
        """Refuse unsupported settings. Raises DescriptorError or ConfigError."""
        op, src, dst = operation.op, operation.surface.src_data, operation.surface.dst_data
        operation.require_memory(src, "src_data", on_the_fly=True)
        operation.require(
            dst.type != MEMORY_ON_THE_FLY, "dst_data is on the fly; PDP writes to DRAM (0) or CVSRAM (1) only"
        )
        operation.require_memory(dst, "dst_data")
        operation.require_cube(src, "src_data")
        operation.require_cube(dst, "dst_data")
        operation.require_precision(op.precision, "precision")
        for name in ("stride_x", "stride_y"):
            value = getattr(op, name)
            operation.require(1 <= value <= MAX_STRIDE, f"{name}: must be 1 to {MAX_STRIDE}, got {value}")
        operation.require(1 <= op.split_num <= MAX_SPLITS, f"split_num: must be 1 to {MAX_SPLITS}, got {op.split_num}")
        operation.require(
            src.type != MEMORY_ON_THE_FLY or op.split_num == 1,
            f"split_num is {op.split_num}, but an input on the fly cannot be split (1)",
        )
        for name in ("pool_width", "pool_height"):
            value = getattr(op, name)
            operation.require(0 <= value < MAX_WINDOW, f"{name} (size - 1): must be 0 to {MAX_WINDOW - 1}, got {value}")
        operation.require_choice(op.pool_mode, POOL_MODES, "pool_mode")
        operation.require(
            op.precision != Precision.FP16 or not any(op.padding_value), "padding values must be 0 in fp16"
        )

    def program(self, csb: Csb, operation: FirmwareOperation, read_dma: bool) -> None:
        """Write the operation's registers in the order in which the firmware does."""
        self.unmask_interrupts(csb)
        if operation.surface.src_data.type != MEMORY_ON_THE_FLY:
            _program_read_dma(csb, operation)
        _program_cubes(csb, operation)
        _program_pooling(csb, operation.op)
        _program_output(csb, operation)


def _less_one(width: int) -> int:
    """Partial widths are written less one; an unused one (0) stays 0."""
    return max(width - 1, 0)


def _partial_in(op: Descriptor) -> dict[str, int]:
    return {
        f"PARTIAL_WIDTH_IN_{part.upper()}": _less_one(getattr(op, f"partial_in_width_{part}"))
        for part in ("first", "mid", "last")
    }


def _program_read_dma(csb: Csb, operation: FirmwareOperation) -> None:
    op, src = operation.op, operation.surface.src_data
    csb.write("PDP_RDMA", "D_DATA_CUBE_IN_WIDTH", src.width - 1)
    csb.write("PDP_RDMA", "D_DATA_CUBE_IN_HEIGHT", src.height - 1)
    csb.write("PDP_RDMA", "D_DATA_CUBE_IN_CHANNEL", src.channel - 1)
    address = operation.input_address(src)
    csb.write_address("PDP_RDMA", "D_SRC_BASE_ADDR_LOW", "D_SRC_BASE_ADDR_HIGH", address, high_first=True)
    csb.write("PDP_RDMA", "D_SRC_LINE_STRIDE", src.line_stride)
    csb.write("PDP_RDMA", "D_SRC_SURFACE_STRIDE", src.surf_stride)
    csb.write("PDP_RDMA", "D_DATA_FORMAT", op.precision)
    csb.write("PDP_RDMA", "D_SRC_RAM_CFG", ram_type(src.type))
    csb.write("PDP_RDMA", "D_OPERATION_MODE_CFG", op.split_num - 1)
    csb.write_fields(
        "PDP_RDMA", "D_POOLING_KERNEL_CFG", KERNEL_WIDTH=op.pool_width, KERNEL_STRIDE_WIDTH=op.stride_x - 1
    )
    csb.write("PDP_RDMA", "D_POOLING_PADDING_CFG", op.pad_left)
    csb.write_fields("PDP_RDMA", "D_PARTIAL_WIDTH_IN", **_partial_in(op))


def _program_cubes(csb: Csb, operation: FirmwareOperation) -> None:
    op, src, dst = operation.op, operation.surface.src_data, operation.surface.dst_data
    for which, cube in (("IN", src), ("OUT", dst)):
        csb.write("PDP", f"D_DATA_CUBE_{which}_WIDTH", cube.width - 1)
        csb.write("PDP", f"D_DATA_CUBE_{which}_HEIGHT", cube.height - 1)
        csb.write("PDP", f"D_DATA_CUBE_{which}_CHANNEL", cube.channel - 1)
    csb.write_fields(
        "PDP",
        "D_OPERATION_MODE_CFG",
        POOLING_METHOD=op.pool_mode,
        FLYING_MODE=int(src.type != MEMORY_ON_THE_FLY),  # 1 = off flying
        SPLIT_NUM=op.split_num - 1,
    )
    csb.write_fields("PDP", "D_PARTIAL_WIDTH_IN", **_partial_in(op))
    csb.write_fields(
        "PDP",
        "D_PARTIAL_WIDTH_OUT",
        **{
            f"PARTIAL_WIDTH_OUT_{part.upper()}": _less_one(getattr(op, f"partial_width_{part}"))
            for part in ("first", "mid", "last")
        },
    )


def _program_pooling(csb: Csb, op: Descriptor) -> None:
    csb.write_fields(
        "PDP",
        "D_POOLING_KERNEL_CFG",
        KERNEL_WIDTH=op.pool_width,
        KERNEL_HEIGHT=op.pool_height,
        KERNEL_STRIDE_WIDTH=op.stride_x - 1,
        KERNEL_STRIDE_HEIGHT=op.stride_y - 1,
    )
    reciprocal = RECIPROCAL_FP17 if op.precision == Precision.FP16 else RECIPROCAL_INT
    csb.write("PDP", "D_RECIP_KERNEL_WIDTH", reciprocal[op.pool_width])
    csb.write("PDP", "D_RECIP_KERNEL_HEIGHT", reciprocal[op.pool_height])
    csb.write_fields(
        "PDP",
        "D_POOLING_PADDING_CFG",
        PAD_LEFT=op.pad_left,
        PAD_RIGHT=op.pad_right,
        PAD_TOP=op.pad_top,
        PAD_BOTTOM=op.pad_bottom,
    )
    for number, value in enumerate(op.padding_value, 1):
        csb.write("PDP", f"D_POOLING_PADDING_VALUE_{number}_CFG", value)


def _program_output(csb: Csb, operation: FirmwareOperation) -> None:
    op, src, dst = operation.op, operation.surface.src_data, operation.surface.dst_data
    if src.type != MEMORY_ON_THE_FLY:
        csb.write("PDP", "D_SRC_LINE_STRIDE", src.line_stride)
        csb.write("PDP", "D_SRC_SURFACE_STRIDE", src.surf_stride)
    address = operation.address(dst, "dst_data") if dst.address != -1 else 0
    csb.write_address("PDP", "D_DST_BASE_ADDR_LOW", "D_DST_BASE_ADDR_HIGH", address)
    csb.write("PDP", "D_DST_LINE_STRIDE", dst.line_stride)
    csb.write("PDP", "D_DST_SURFACE_STRIDE", dst.surf_stride)
    csb.write("PDP", "D_DST_RAM_CFG", ram_type(dst.type))
    csb.write("PDP", "D_DATA_FORMAT", op.precision)
