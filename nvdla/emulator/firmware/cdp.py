"""CDP: descriptor to registers of CDP and CDP_RDMA (kmd/firmware/cdp.c)."""

from __future__ import annotations

from nvdla.emulator.firmware.driver import CDP_PORT, Driver, load_lut, ram_type, require_lut
from nvdla.emulator.firmware.operation import Csb, FirmwareOperation
from nvdla.util.precision import Precision

LOCAL_SIZES = (3, 5, 7, 9)


class CdpDriver(Driver):
    """Drives CDP and its read DMA, which it always needs."""

    engine = "cdp"
    has_tables = True

    def set_producer(self, csb: Csb, group: int, read_dma_group: int) -> None:
        """Point the next register writes at a group of the engine, and of its read DMA."""
        # The read DMA takes the group of CDP itself, unlike those of SDP and PDP.
        csb.write("CDP", "S_POINTER", group)
        csb.write("CDP_RDMA", "S_POINTER", group)

    def count(self, csb: Csb) -> None:
        """Let the engine count stalls, saturated elements and the like."""
        csb.write_fields("CDP", "D_PERF_ENABLE", DMA_EN=1, LUT_EN=1)

    def check(self, operation: FirmwareOperation) -> None:
        """Refuse unsupported settings. Raises DescriptorError or ConfigError."""
        op, surface = operation.op, operation.surface
        operation.require_memory(surface.src_data, "src_data")
        operation.require_memory(surface.dst_data, "dst_data")
        operation.require_cube(surface.src_data, "src_data")
        operation.require_precision(op.in_precision, "in_precision")
        operation.require(
            op.in_precision == op.out_precision,
            f"in_precision {op.in_precision} and out_precision {op.out_precision} differ; CDP does not convert",
        )
        operation.require(op.local_size in LOCAL_SIZES, f"local_size: must be 3, 5, 7 or 9, got {op.local_size}")
        if op.lut_index >= 0:
            require_lut(operation)

    def program(self, csb: Csb, operation: FirmwareOperation, read_dma: bool) -> None:
        """Write the operation's registers in the order in which the firmware does."""
        self.unmask_interrupts(csb)
        _program_read_dma(csb, operation)
        if operation.lut is not None:
            load_lut(csb, CDP_PORT, operation.lut, operation.op.in_precision == Precision.FP16)
        _program_output(csb, operation)
        _program_arithmetic(csb, operation)


def _program_read_dma(csb: Csb, operation: FirmwareOperation) -> None:
    op, src = operation.op, operation.surface.src_data
    csb.write("CDP_RDMA", "D_DATA_CUBE_WIDTH", src.width - 1)
    csb.write("CDP_RDMA", "D_DATA_CUBE_HEIGHT", src.height - 1)
    csb.write("CDP_RDMA", "D_DATA_CUBE_CHANNEL", src.channel - 1)
    csb.write_address("CDP_RDMA", "D_SRC_BASE_ADDR_LOW", "D_SRC_BASE_ADDR_HIGH", operation.input_address(src))
    csb.write("CDP_RDMA", "D_SRC_LINE_STRIDE", src.line_stride)
    csb.write("CDP_RDMA", "D_SRC_SURFACE_STRIDE", src.surf_stride)
    csb.write("CDP_RDMA", "D_SRC_DMA_CFG", ram_type(src.type))
    csb.write("CDP_RDMA", "D_DATA_FORMAT", op.in_precision)


def _program_output(csb: Csb, operation: FirmwareOperation) -> None:
    dst = operation.surface.dst_data
    csb.write_address("CDP", "D_DST_BASE_ADDR_LOW", "D_DST_BASE_ADDR_HIGH", operation.address(dst, "dst_data"))
    csb.write("CDP", "D_DST_LINE_STRIDE", dst.line_stride)
    csb.write("CDP", "D_DST_SURFACE_STRIDE", dst.surf_stride)
    csb.write("CDP", "D_DST_DMA_CFG", ram_type(dst.type))
    csb.write("CDP", "D_DATA_FORMAT", operation.op.in_precision)


def _program_arithmetic(csb: Csb, operation: FirmwareOperation) -> None:
    op = operation.op
    csb.write("CDP", "D_LRN_CFG", (op.local_size - 1) // 2 - 1)
    for prefix, converter in (("DATIN", op.in_cvt), ("DATOUT", op.out_cvt)):
        csb.write("CDP", f"D_{prefix}_OFFSET", converter.offset)
        csb.write("CDP", f"D_{prefix}_SCALE", converter.scale)
        csb.write("CDP", f"D_{prefix}_SHIFTER", converter.truncate)
    csb.write_fields(
        "CDP", "D_FUNC_BYPASS", SQSUM_BYPASS=int(op.bypass_sqsum != 0), MUL_BYPASS=int(op.bypass_out_mul != 0)
    )
