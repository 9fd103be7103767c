"""Rubik: descriptor to registers of RBK (kmd/firmware/rubik.c)."""

from __future__ import annotations

from nvdla.emulator.firmware.driver import Driver, ram_type
from nvdla.emulator.firmware.operation import Csb, FirmwareOperation
from nvdla.loadable.descriptors.enums import RubikMode
from nvdla.util.precision import PRECISIONS, Precision
from nvdla.util.rounding import ceil_div

ATOM = 32
MODES = ("contract", "split", "merge")


class RubikDriver(Driver):
    """Drives Rubik, which reorders cubes: contract (deconvolution), split and merge (feature to planes and back)."""

    engine = "rubik"

    def check(self, operation: FirmwareOperation) -> None:
        """Refuse unsupported settings. Raises DescriptorError or ConfigError."""
        op, surface = operation.op, operation.surface
        operation.needs("rubik", "deconvolution needs it")
        operation.require_choice(op.mode, MODES, "mode")
        operation.require_choice(op.precision, PRECISIONS, "precision")
        operation.require_memory(surface.src_data, "src_data")
        operation.require_memory(surface.dst_data, "dst_data")
        operation.require_cube(surface.src_data, "src_data")
        operation.require(surface.dst_data.channel >= 1, "dst_data channel: must be at least 1, got 0")
        if op.mode == RubikMode.MERGE:
            stride = surface.src_data.plane_stride
            operation.require(
                stride != 0 and stride % ATOM == 0,
                f"src_data plane_stride: must be a positive multiple of {ATOM}, got {stride}",
            )
        if op.mode == RubikMode.CONTRACT:
            for name in ("stride_x", "stride_y"):
                operation.require(getattr(op, name) >= 1, f"{name}: must be at least 1, got 0")

    def program(self, csb: Csb, operation: FirmwareOperation, read_dma: bool) -> None:
        """Write the operation's registers in the order in which the firmware does."""
        self.unmask_interrupts(csb)
        csb.write_fields("RBK", "D_MISC_CFG", RUBIK_MODE=operation.op.mode, IN_PRECISION=operation.op.precision)
        _program_input(csb, operation)
        _program_output(csb, operation)


def _program_input(csb: Csb, operation: FirmwareOperation) -> None:
    src = operation.surface.src_data
    csb.write("RBK", "D_DAIN_RAM_TYPE", ram_type(src.type))
    csb.write_fields("RBK", "D_DATAIN_SIZE_0", DATAIN_WIDTH=src.width - 1, DATAIN_HEIGHT=src.height - 1)
    csb.write("RBK", "D_DATAIN_SIZE_1", src.channel - 1)
    csb.write_address("RBK", "D_DAIN_ADDR_LOW", "D_DAIN_ADDR_HIGH", operation.input_address(src))
    if operation.op.mode == RubikMode.MERGE:
        csb.write("RBK", "D_DAIN_PLANAR_STRIDE", src.plane_stride)
    else:
        csb.write("RBK", "D_DAIN_SURF_STRIDE", src.surf_stride)
    csb.write("RBK", "D_DAIN_LINE_STRIDE", src.line_stride)


def _program_output(csb: Csb, operation: FirmwareOperation) -> None:
    op, src, dst = operation.op, operation.surface.src_data, operation.surface.dst_data
    csb.write("RBK", "D_DAOUT_RAM_TYPE", ram_type(dst.type))
    csb.write("RBK", "D_DATAOUT_SIZE_1", dst.channel - 1)
    csb.write_address("RBK", "D_DAOUT_ADDR_LOW", "D_DAOUT_ADDR_HIGH", operation.address(dst, "dst_data"))
    csb.write("RBK", "D_DAOUT_LINE_STRIDE", dst.line_stride)
    if op.mode == RubikMode.SPLIT:
        csb.write("RBK", "D_DAOUT_PLANAR_STRIDE", dst.plane_stride)
        return
    csb.write("RBK", "D_DAOUT_SURF_STRIDE", dst.surf_stride)
    if op.mode == RubikMode.CONTRACT:
        surfaces = ceil_div(dst.channel * Precision(op.precision).bytes, ATOM)
        csb.write("RBK", "D_CONTRACT_STRIDE_0", surfaces * src.surf_stride)
        csb.write("RBK", "D_CONTRACT_STRIDE_1", op.stride_y * dst.line_stride)
        csb.write_fields("RBK", "D_DECONV_STRIDE", DECONV_X_STRIDE=op.stride_x - 1, DECONV_Y_STRIDE=op.stride_y - 1)
