"""Convolution: descriptor to registers of CACC, CMAC, CSC and CDMA (kmd/firmware/conv.c)."""

from __future__ import annotations

from nvdla.emulator.firmware.driver import Driver, ram_type
from nvdla.emulator.firmware.operation import CONV_WINOGRAD, MEMORY_ON_THE_FLY, Csb, FirmwareOperation
from nvdla.limits import MASK_ALIGNMENT
from nvdla.loadable.descriptors.structures import Descriptor
from nvdla.loadable.enums import PIXEL_FORMATS

FORMAT_FEATURE = 36
GROUP_SIZE_ALIGNMENT = 4


class ConvDriver(Driver):
    """Drives the five units of the convolution pipeline, from the last to the first."""

    engine = "conv"

    def count(self, csb: Csb) -> None:
        """Let the engine count stalls, saturated elements and the like."""
        csb.write("CDMA", "D_PERF_ENABLE", 1)

    def check(self, operation: FirmwareOperation) -> None:
        """Refuse unsupported settings. Raises DescriptorError or ConfigError."""
        op, surface = operation.op, operation.surface
        operation.require_precision(op.in_precision, "in_precision")
        operation.require_precision(op.out_precision, "out_precision")
        operation.require_choice(op.conv_mode, ("direct", "winograd"), "conv_mode")
        operation.require_choice(op.weight_format, ("uncompressed", "compressed"), "weight_format")
        operation.require_choice(op.mean_format, ("disabled", "enabled"), "mean_format")
        operation.require_choice(op.pixel_mapping, ("pitch linear",), "pixel_mapping")
        operation.require(
            op.data_format <= FORMAT_FEATURE, f"data_format: must be 0 to 36 (feature), got {op.data_format}"
        )
        if op.conv_mode == CONV_WINOGRAD:
            operation.needs("winograd", "conv_mode is 1")
        operation.require_cube(surface.src_data, "src_data")
        operation.require_cube(surface.dst_data, "dst_data")
        operation.require_memory(surface.src_data, "src_data")
        operation.require_memory(surface.weight_data, "weight_data")
        operation.require_memory(surface.dst_data, "dst_data", on_the_fly=True)
        operation.require(
            op.out_cvt.scale == 1 and op.out_cvt.offset == 0,
            f"out_cvt has scale {op.out_cvt.scale} and offset {op.out_cvt.offset}; the accumulator only truncates, "
            "so they must be 1 and 0",
        )
        self._check_weights(operation)
        if surface.dst_data.type != MEMORY_ON_THE_FLY or surface.dst_data.address != -1:
            operation.require_aligned(surface.dst_data.size, operation.atom, "dst_data size")
            operation.require_strides(surface.dst_data, "dst_data")
        operation.require_aligned(operation.input_address(surface.src_data), operation.atom, "src_data address")
        for name in ("batch", "conv_stride_x", "conv_stride_y", "dilation_x", "dilation_y"):
            operation.require(getattr(op, name) >= 1, f"{name}: must be at least 1, got 0")

    def _check_weights(self, operation: FirmwareOperation) -> None:
        op, surface = operation.op, operation.surface
        if surface.weight_data.address != -1:
            address = operation.address(surface.weight_data, "weight_data")
            operation.require_aligned(address, operation.atom, "weight_data address")
            operation.require_aligned(surface.weight_data.size, operation.config.weight_alignment, "weight_data size")
        if not op.weight_format:
            return
        operation.needs("weight_compression", "weight_format is 1")
        for name, alignment in (("wmb_data", MASK_ALIGNMENT), ("wgs_data", GROUP_SIZE_ALIGNMENT)):
            cube = getattr(surface, name)
            operation.require_aligned(operation.address(cube, name), operation.atom, f"{name} address")
            operation.require_aligned(cube.size, alignment, f"{name} size")

    def program(self, csb: Csb, operation: FirmwareOperation, read_dma: bool) -> None:
        """Write the operation's registers in the order in which the firmware does."""
        for unit in self.units:
            busy = csb.read(unit, "S_STATUS") >> (16 * csb.read_field(unit, "S_POINTER", "PRODUCER")) & 3
            operation.require(not busy, f"register group of {unit} is not idle")
        _program_accumulator(csb, operation)
        for unit in ("CMAC_A", "CMAC_B"):
            csb.write_fields(
                unit, "D_MISC_CFG", CONV_MODE=operation.op.conv_mode, PROC_PRECISION=operation.op.out_precision
            )
        _program_sequencer(csb, operation)
        _program_input(csb, operation)
        _program_weights(csb, operation)
        _program_conversion(csb, operation)


def _is_pixel(op: Descriptor) -> int:
    return int(op.data_format != FORMAT_FEATURE)


def _has_two_planes(op: Descriptor) -> bool:
    return bool(_is_pixel(op)) and len(PIXEL_FORMATS[op.data_format].planes) > 1


def _program_accumulator(csb: Csb, operation: FirmwareOperation) -> None:
    op, dst = operation.op, operation.surface.dst_data
    address = operation.address(dst, "dst_data") if dst.address != -1 else 0
    csb.write_fields("CACC", "D_MISC_CFG", CONV_MODE=op.conv_mode, PROC_PRECISION=op.out_precision)
    csb.write_fields("CACC", "D_DATAOUT_SIZE_0", DATAOUT_WIDTH=dst.width - 1, DATAOUT_HEIGHT=dst.height - 1)
    csb.write("CACC", "D_DATAOUT_SIZE_1", dst.channel - 1)
    csb.write("CACC", "D_DATAOUT_ADDR", address)
    csb.write("CACC", "D_BATCH_NUMBER", op.batch - 1)
    csb.write("CACC", "D_LINE_STRIDE", dst.line_stride)
    csb.write("CACC", "D_SURF_STRIDE", dst.surf_stride)
    single = int(dst.width == 1 and dst.height == 1)
    operation.require(
        not single or dst.line_stride == operation.atom,
        f"dst_data line stride: must be one atom ({operation.atom} bytes) because it is 1x1, got {dst.line_stride}",
    )
    csb.write_fields("CACC", "D_DATAOUT_MAP", LINE_PACKED=single, SURF_PACKED=single)
    csb.write("CACC", "D_CLIP_CFG", op.out_cvt.truncate)


def _program_sequencer(csb: Csb, operation: FirmwareOperation) -> None:
    op, surface = operation.op, operation.surface
    dst = surface.dst_data
    csb.write_fields(
        "CSC",
        "D_MISC_CFG",
        CONV_MODE=op.conv_mode,
        IN_PRECISION=op.out_precision,
        PROC_PRECISION=op.out_precision,
        **_reuse(op),
    )
    csb.write("CSC", "D_DATAIN_FORMAT", _is_pixel(op))
    csb.write_fields(
        "CSC",
        "D_DATAIN_SIZE_EXT_0",
        DATAIN_WIDTH_EXT=op.input_width_csc - 1,
        DATAIN_HEIGHT_EXT=op.input_height_csc - 1,
    )
    csb.write("CSC", "D_DATAIN_SIZE_EXT_1", op.input_channel_csc - 1)
    csb.write("CSC", "D_BATCH_NUMBER", op.batch - 1)
    csb.write("CSC", "D_POST_Y_EXTENSION", op.post_extension)
    csb.write("CSC", "D_ENTRY_PER_SLICE", op.entry_per_slice - 1)
    csb.write("CSC", "D_WEIGHT_FORMAT", op.weight_format)
    csb.write_fields(
        "CSC",
        "D_WEIGHT_SIZE_EXT_0",
        WEIGHT_WIDTH_EXT=op.kernel_width_csc - 1,
        WEIGHT_HEIGHT_EXT=op.kernel_height_csc - 1,
    )
    csb.write_fields(
        "CSC", "D_WEIGHT_SIZE_EXT_1", WEIGHT_CHANNEL_EXT=op.kernel_channel_csc - 1, WEIGHT_KERNEL=dst.channel - 1
    )
    csb.write("CSC", "D_WEIGHT_BYTES", surface.weight_data.size)
    csb.write("CSC", "D_WMB_BYTES", surface.wmb_data.size)
    csb.write_fields(
        "CSC", "D_DATAOUT_SIZE_0", DATAOUT_WIDTH=op.input_width_cmac - 1, DATAOUT_HEIGHT=op.input_height_cmac - 1
    )
    csb.write("CSC", "D_DATAOUT_SIZE_1", dst.channel - 1)
    csb.write("CSC", "D_ATOMICS", dst.width * dst.height - 1)
    csb.write("CSC", "D_RELEASE", op.release - 1)
    _program_sequencer_window(csb, op)


def _program_sequencer_window(csb: Csb, op: Descriptor) -> None:
    """Strides and padding; Winograd has neither here (CDMA applies the padding)."""
    direct = op.conv_mode != CONV_WINOGRAD
    csb.write_fields(
        "CSC",
        "D_CONV_STRIDE_EXT",
        CONV_X_STRIDE_EXT=op.conv_stride_x - 1 if direct else 0,
        CONV_Y_STRIDE_EXT=op.conv_stride_y - 1 if direct else 0,
    )
    csb.write_fields("CSC", "D_DILATION_EXT", X_DILATION_EXT=op.dilation_x - 1, Y_DILATION_EXT=op.dilation_y - 1)
    csb.write_fields(
        "CSC",
        "D_ZERO_PADDING",
        PAD_LEFT=op.pad_x_left if direct else 0,
        PAD_TOP=op.pad_y_top if direct else 0,
    )
    csb.write("CSC", "D_ZERO_PADDING_VALUE", op.pad_val & csb.field_mask("CSC", "D_ZERO_PADDING_VALUE", "PAD_VALUE"))
    csb.write_fields("CSC", "D_BANK", DATA_BANK=op.data_bank - 1, WEIGHT_BANK=op.weight_bank - 1)
    csb.write("CSC", "D_PRA_CFG", op.pra_truncate)


def _reuse(op: Descriptor) -> dict[str, int]:
    return {
        "DATA_REUSE": op.data_reuse,
        "WEIGHT_REUSE": op.weight_reuse,
        "SKIP_DATA_RLS": op.skip_data_rls,
        "SKIP_WEIGHT_RLS": op.skip_weight_rls,
    }


def _program_input(csb: Csb, operation: FirmwareOperation) -> None:
    op, surface = operation.op, operation.surface
    src = surface.src_data
    csb.write_fields(
        "CDMA",
        "D_MISC_CFG",
        CONV_MODE=op.conv_mode,
        IN_PRECISION=op.in_precision,
        PROC_PRECISION=op.out_precision,
        **_reuse(op),
    )
    csb.write_fields(
        "CDMA",
        "D_DATAIN_FORMAT",
        DATAIN_FORMAT=_is_pixel(op),
        PIXEL_FORMAT=op.data_format if _is_pixel(op) else 0,
        PIXEL_MAPPING=op.pixel_mapping,
        PIXEL_SIGN_OVERRIDE=op.pixel_override,
    )
    csb.write_fields("CDMA", "D_DATAIN_SIZE_0", DATAIN_WIDTH=src.width - 1, DATAIN_HEIGHT=src.height - 1)
    csb.write("CDMA", "D_DATAIN_SIZE_1", src.channel - 1)
    csb.write_fields(
        "CDMA",
        "D_DATAIN_SIZE_EXT_0",
        DATAIN_WIDTH_EXT=op.input_width_csc - 1,
        DATAIN_HEIGHT_EXT=op.input_height_csc - 1,
    )
    csb.write("CDMA", "D_DAIN_RAM_TYPE", ram_type(src.type))
    address = operation.input_address(src)
    csb.write_address("CDMA", "D_DAIN_ADDR_LOW_0", "D_DAIN_ADDR_HIGH_0", address, high_first=True)
    second = address + surface.offset_u
    if _has_two_planes(op) and src.address != -1:
        operation.reached(src.address, src.offset + surface.offset_u, "src_data's second plane")
    csb.write_address("CDMA", "D_DAIN_ADDR_LOW_1", "D_DAIN_ADDR_HIGH_1", second, high_first=True)
    csb.write("CDMA", "D_LINE_STRIDE", src.line_stride)
    csb.write("CDMA", "D_SURF_STRIDE", src.surf_stride)
    csb.write("CDMA", "D_LINE_UV_STRIDE", surface.in_line_uv_stride)
    csb.write_fields(
        "CDMA",
        "D_DAIN_MAP",
        LINE_PACKED=int(src.line_stride == src.width * operation.atom),
        SURF_PACKED=int(src.surf_stride == src.width * src.height * operation.atom),
    )
    csb.write("CDMA", "D_BATCH_NUMBER", op.batch - 1)
    csb.write("CDMA", "D_BATCH_STRIDE", op.batch_stride)
    csb.write("CDMA", "D_ENTRY_PER_SLICE", op.entry_per_slice - 1)
    csb.write("CDMA", "D_FETCH_GRAIN", op.fetch_grain - 1)


def _program_weights(csb: Csb, operation: FirmwareOperation) -> None:
    op, surface = operation.op, operation.surface
    weights = surface.weight_data
    csb.write("CDMA", "D_WEIGHT_FORMAT", op.weight_format)
    csb.write("CDMA", "D_WEIGHT_SIZE_0", op.bytes_per_kernel - 1)
    csb.write("CDMA", "D_WEIGHT_SIZE_1", surface.dst_data.channel - 1)
    csb.write("CDMA", "D_WEIGHT_RAM_TYPE", ram_type(weights.type))
    address = operation.address(weights, "weight_data") if weights.address != -1 else 0
    csb.write_address("CDMA", "D_WEIGHT_ADDR_LOW", "D_WEIGHT_ADDR_HIGH", address, high_first=True)
    csb.write("CDMA", "D_WEIGHT_BYTES", weights.size)
    if op.weight_format:
        for name in ("WGS", "WMB"):
            address = operation.address(getattr(surface, f"{name.lower()}_data"), f"{name.lower()}_data")
            csb.write_address("CDMA", f"D_{name}_ADDR_LOW", f"D_{name}_ADDR_HIGH", address, high_first=True)
        csb.write("CDMA", "D_WMB_BYTES", surface.wmb_data.size)


def _program_conversion(csb: Csb, operation: FirmwareOperation) -> None:
    """Mean, input converter, strides, padding, banks of CDMA."""
    op = operation.op
    csb.write("CDMA", "D_MEAN_FORMAT", op.mean_format)
    if op.mean_format:
        csb.write_fields("CDMA", "D_MEAN_GLOBAL_0", MEAN_RY=op.mean_ry & 0xFFFF, MEAN_GU=op.mean_gu & 0xFFFF)
        csb.write_fields("CDMA", "D_MEAN_GLOBAL_1", MEAN_BV=op.mean_bv & 0xFFFF, MEAN_AX=op.mean_ax & 0xFFFF)
    if op.in_cvt.enable:
        csb.write_fields("CDMA", "D_CVT_CFG", CVT_EN=1, CVT_TRUNCATE=op.in_cvt.truncate)
        csb.write("CDMA", "D_CVT_OFFSET", op.in_cvt.offset)
        csb.write("CDMA", "D_CVT_SCALE", op.in_cvt.scale)
    else:
        csb.write("CDMA", "D_CVT_CFG", 0)
    csb.write_fields("CDMA", "D_CONV_STRIDE", CONV_X_STRIDE=op.conv_stride_x - 1, CONV_Y_STRIDE=op.conv_stride_y - 1)
    csb.write_fields(
        "CDMA",
        "D_ZERO_PADDING",
        PAD_LEFT=op.pad_x_left,
        PAD_RIGHT=op.pad_x_right,
        PAD_TOP=op.pad_y_top,
        PAD_BOTTOM=op.pad_y_bottom,
    )
    csb.write("CDMA", "D_ZERO_PADDING_VALUE", op.pad_val & csb.field_mask("CDMA", "D_ZERO_PADDING_VALUE", "PAD_VALUE"))
    csb.write_fields("CDMA", "D_BANK", WEIGHT_BANK=op.weight_bank - 1, DATA_BANK=op.data_bank - 1)
