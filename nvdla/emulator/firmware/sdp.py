"""SDP: descriptor to registers of SDP and SDP_RDMA (kmd/firmware/sdp.c)."""

from __future__ import annotations

from nvdla.emulator.firmware.driver import SDP_PORT, Driver, load_lut, ram_type, require_lut
from nvdla.emulator.firmware.operation import CONV_WINOGRAD, MEMORY_ON_THE_FLY, Csb, FirmwareOperation
from nvdla.loadable.descriptors.enums import Activation, SdpMode, SdpType
from nvdla.loadable.descriptors.meaning import processing_precision, reads_operands
from nvdla.loadable.descriptors.structures import Descriptor
from nvdla.util.precision import PRECISIONS, Precision

# Stage of the descriptor: its name in SDP's registers (DP_BS_...) and in those of the read DMA (BRDMA).
STAGES = {"x1": ("BS", "B"), "x2": ("BN", "N"), "y": ("EW", "E")}
ALU_TYPES = ("max", "min", "sum", "equal")
STAGE_TYPES = ("none", "mul", "add", "both")
STAGE_MODES = ("per layer", "per kernel", "per point")
ACTIVATIONS = ("none", "relu", "lut", "prelu")

# BRDMA_DATA_USE (0 MUL, 1 ALU, 2 BOTH) of each stage type; "none" says MUL.
DATA_USE = {SdpType.NONE: 0, SdpType.MUL: 0, SdpType.ADD: 1, SdpType.BOTH: 2}


class SdpDriver(Driver):
    """Drives SDP and, where operands or the input come from memory, its read DMA."""

    engine = "sdp"
    has_tables = True

    def needs_read_dma(self, operation: FirmwareOperation) -> bool:
        """Return True if the operation needs the engine's read DMA."""
        fly = operation.surface.src_data.type == MEMORY_ON_THE_FLY
        stages = (getattr(operation.op, f"{name}_op") for name in STAGES)
        return not fly or any(stage.enable & (stage.mode != SdpMode.PER_LAYER) for stage in stages)

    def count(self, csb: Csb) -> None:
        """Let the engine count stalls, saturated elements and the like."""
        csb.write_fields("SDP", "D_PERF_ENABLE", PERF_DMA_EN=1, PERF_LUT_EN=1, PERF_SAT_EN=1, PERF_NAN_INF_COUNT_EN=1)

    def check(self, operation: FirmwareOperation) -> None:
        """Refuse unsupported settings. Raises DescriptorError or ConfigError."""
        op, surface = operation.op, operation.surface
        operation.require_precision(op.src_precision, "src_precision")
        operation.require_precision(op.dst_precision, "dst_precision")
        operation.require(op.batch_num >= 1, "batch_num: must be at least 1, got 0")
        operation.require_cube(surface.src_data, "src_data")
        operation.require_memory(surface.src_data, "src_data", on_the_fly=True)
        operation.require_memory(surface.dst_data, "dst_data", on_the_fly=True)
        if surface.src_data.type != MEMORY_ON_THE_FLY:
            operation.require_aligned(operation.input_address(surface.src_data), operation.atom, "src_data address")
        if surface.dst_data.type != MEMORY_ON_THE_FLY:
            address = operation.address(surface.dst_data, "dst_data")
            operation.require_aligned(address, operation.atom, "dst_data address")
        for name in STAGES:
            self._check_stage(operation, name)
        if op.lut_index >= 0:
            operation.needs("sdp_lut", f"lut_index is {op.lut_index}")
            require_lut(operation)

    def _check_stage(self, operation: FirmwareOperation, name: str) -> None:
        stage, cube = getattr(operation.op, f"{name}_op"), getattr(operation.surface, f"{name}_data")
        operation.require_choice(stage.type, STAGE_TYPES, f"{name}_op.type")
        operation.require_choice(stage.mode, STAGE_MODES, f"{name}_op.mode")
        operation.require_choice(stage.alu_type, ALU_TYPES, f"{name}_op.alu_type")
        operation.require_choice(stage.act, ACTIVATIONS, f"{name}_op.act")
        operation.require_choice(stage.precision, PRECISIONS, f"{name}_op.precision")
        operation.require_choice(stage.enable, ("off", "on"), f"{name}_op.enable")
        if not stage.enable:
            return
        operation.needs(f"sdp_{STAGES[name][0].lower()}_throughput", f"{name}_op is enabled")
        if reads_operands(stage):
            operation.require_memory(cube, f"{name}_data")
            address = operation.address(cube, f"{name}_data")
            operation.require_aligned(address, operation.atom, f"{name}_data address")

    def program(self, csb: Csb, operation: FirmwareOperation, read_dma: bool) -> None:
        """Write the operation's registers in the order in which the firmware does."""
        self.unmask_interrupts(csb)
        _program_read_dma(csb, operation, read_dma)
        if operation.lut is not None:
            load_lut(csb, SDP_PORT, operation.lut, operation.op.src_precision == Precision.FP16)
        _program_cube(csb, operation)
        for name in ("x1", "x2"):
            _program_x(csb, name, getattr(operation.op, f"{name}_op"))
        _program_y(csb, operation.op.y_op)
        _program_output(csb, operation)


def _program_read_dma(csb: Csb, operation: FirmwareOperation, needed: bool) -> None:
    op, src = operation.op, operation.surface.src_data
    fly = src.type == MEMORY_ON_THE_FLY
    csb.write("SDP_RDMA", "D_FEATURE_MODE_CFG", 0)
    for _, letter in STAGES.values():
        csb.write("SDP_RDMA", f"D_{letter}RDMA_CFG", 0)
    csb.write_fields(
        "SDP_RDMA",
        "D_FEATURE_MODE_CFG",
        FLYING_MODE=int(fly),
        WINOGRAD=int(op.conv_mode == CONV_WINOGRAD),
        IN_PRECISION=op.src_precision,
        OUT_PRECISION=op.dst_precision,
        PROC_PRECISION=int(processing_precision(op.src_precision, op.dst_precision)),
        BATCH_NUMBER=op.batch_num - 1,
    )
    if not needed:
        return
    csb.write("SDP_RDMA", "D_DATA_CUBE_WIDTH", src.width - 1)
    csb.write("SDP_RDMA", "D_DATA_CUBE_HEIGHT", src.height - 1)
    csb.write("SDP_RDMA", "D_DATA_CUBE_CHANNEL", src.channel - 1)
    if not fly:
        address = operation.input_address(src)
        csb.write_address("SDP_RDMA", "D_SRC_BASE_ADDR_LOW", "D_SRC_BASE_ADDR_HIGH", address)
        csb.write("SDP_RDMA", "D_SRC_LINE_STRIDE", src.line_stride)
        csb.write("SDP_RDMA", "D_SRC_SURFACE_STRIDE", src.surf_stride)
        csb.write("SDP_RDMA", "D_SRC_DMA_CFG", ram_type(src.type))
    for name in STAGES:
        _program_operand(csb, operation, name)


def _program_operand(csb: Csb, operation: FirmwareOperation, name: str) -> None:
    """Write the source of the operand of a stage."""
    registers, letter = STAGES[name]
    stage, cube = getattr(operation.op, f"{name}_op"), getattr(operation.surface, f"{name}_data")
    prefix = f"{letter}RDMA"
    fields = {
        "DISABLE": int(not reads_operands(stage)),
        "DATA_USE": DATA_USE[SdpType(stage.type)],
        "DATA_SIZE": int(stage.precision != Precision.INT8),
        "DATA_MODE": int(stage.mode != SdpMode.PER_KERNEL),
        "RAM_TYPE": ram_type(cube.type),
    }
    csb.write_fields("SDP_RDMA", f"D_{prefix}_CFG", **{f"{prefix}_{key}": value for key, value in fields.items()})
    if reads_operands(stage):
        address = operation.address(cube, f"{name}_data")
        csb.write_address("SDP_RDMA", f"D_{registers}_BASE_ADDR_LOW", f"D_{registers}_BASE_ADDR_HIGH", address)
        csb.write("SDP_RDMA", f"D_{registers}_LINE_STRIDE", cube.line_stride)
        csb.write("SDP_RDMA", f"D_{registers}_SURFACE_STRIDE", cube.surf_stride)


def _program_cube(csb: Csb, operation: FirmwareOperation) -> None:
    src, dst = operation.surface.src_data, operation.surface.dst_data
    csb.write("SDP", "D_DATA_CUBE_WIDTH", src.width - 1)
    csb.write("SDP", "D_DATA_CUBE_HEIGHT", src.height - 1)
    csb.write("SDP", "D_DATA_CUBE_CHANNEL", src.channel - 1)
    if dst.type != MEMORY_ON_THE_FLY:
        address = operation.address(dst, "dst_data")
        csb.write_address("SDP", "D_DST_BASE_ADDR_LOW", "D_DST_BASE_ADDR_HIGH", address, high_first=True)
        csb.write("SDP", "D_DST_LINE_STRIDE", dst.line_stride)
        csb.write("SDP", "D_DST_SURFACE_STRIDE", dst.surf_stride)


def _stage_fields(prefix: str, stage: Descriptor) -> dict[str, int]:
    """Return the fields that X1, X2 and Y share in their DP_.._CFG; a half works unless the stage's type is the other
    half or none."""
    fields = {
        "BYPASS": int(not stage.enable),
        "ALU_BYPASS": int(stage.type in (SdpType.MUL, SdpType.NONE)),
        "ALU_ALGO": stage.alu_type,
        "MUL_BYPASS": int(stage.type in (SdpType.ADD, SdpType.NONE)),
        "MUL_PRELU": int(stage.act == Activation.PRELU),
    }
    return {f"{prefix}_{key}": value for key, value in fields.items()}


def _program_x(csb: Csb, name: str, stage: Descriptor) -> None:
    prefix, _ = STAGES[name]
    fields = _stage_fields(prefix, stage)
    fields[f"{prefix}_RELU_BYPASS"] = int(stage.act != Activation.RELU)
    csb.write_fields("SDP", f"D_DP_{prefix}_CFG", **fields)
    if not stage.enable:
        return
    per_layer = stage.mode == SdpMode.PER_LAYER
    from_memory = int(not per_layer)
    if stage.type in (SdpType.ADD, SdpType.BOTH):
        alu = {f"{prefix}_ALU_SRC": from_memory, f"{prefix}_ALU_SHIFT_VALUE": stage.shift_value}
        csb.write_fields("SDP", f"D_DP_{prefix}_ALU_CFG", **alu)
    if per_layer:
        csb.write("SDP", f"D_DP_{prefix}_ALU_SRC_VALUE", stage.alu_operand)
        csb.write("SDP", f"D_DP_{prefix}_MUL_SRC_VALUE", stage.mul_operand)
    # The shift takes effect whether the multiplier is bypassed or not, so it is always written.
    mul = {f"{prefix}_MUL_SRC": from_memory, f"{prefix}_MUL_SHIFT_VALUE": stage.truncate}
    csb.write_fields("SDP", f"D_DP_{prefix}_MUL_CFG", **mul)


def _program_y(csb: Csb, stage: Descriptor) -> None:
    fields = _stage_fields("EW", stage)
    fields["EW_LUT_BYPASS"] = int(stage.act != Activation.LUT)
    csb.write_fields("SDP", "D_DP_EW_CFG", **fields)
    if not stage.enable:
        return
    if stage.type in (SdpType.ADD, SdpType.BOTH):
        _program_y_operand(csb, stage, "ALU", stage.alu_operand, stage.cvt.alu_cvt)
    if stage.type in (SdpType.MUL, SdpType.BOTH):
        _program_y_operand(csb, stage, "MUL", stage.mul_operand, stage.cvt.mul_cvt)
    csb.write("SDP", "D_DP_EW_TRUNCATE_VALUE", stage.truncate)


def _program_y_operand(csb: Csb, stage: Descriptor, half: str, operand: int, converter: Descriptor) -> None:
    per_layer = stage.mode == SdpMode.PER_LAYER
    fields = {f"EW_{half}_SRC": int(not per_layer), f"EW_{half}_CVT_BYPASS": int(not converter.enable)}
    csb.write_fields("SDP", f"D_DP_EW_{half}_CFG", **fields)
    if per_layer:
        csb.write("SDP", f"D_DP_EW_{half}_SRC_VALUE", operand)
    else:
        csb.write("SDP", f"D_DP_EW_{half}_CVT_OFFSET_VALUE", converter.offset)
        csb.write("SDP", f"D_DP_EW_{half}_CVT_SCALE_VALUE", converter.scale)
        csb.write("SDP", f"D_DP_EW_{half}_CVT_TRUNCATE_VALUE", converter.truncate)


def _program_output(csb: Csb, operation: FirmwareOperation) -> None:
    op, src, dst = operation.op, operation.surface.src_data, operation.surface.dst_data
    csb.write_fields(
        "SDP",
        "D_FEATURE_MODE_CFG",
        FLYING_MODE=int(src.type == MEMORY_ON_THE_FLY),
        OUTPUT_DST=int(dst.type == MEMORY_ON_THE_FLY),
        WINOGRAD=int(op.conv_mode == CONV_WINOGRAD),
        BATCH_NUMBER=op.batch_num - 1,
    )
    csb.write("SDP", "D_DST_DMA_CFG", ram_type(dst.type))
    if op.batch_num > 1:
        csb.write("SDP", "D_DST_BATCH_STRIDE", op.batch_stride)
    csb.write_fields(
        "SDP",
        "D_DATA_FORMAT",
        PROC_PRECISION=int(processing_precision(op.src_precision, op.dst_precision)),
        OUT_PRECISION=op.dst_precision,
    )
    csb.write("SDP", "D_CVT_OFFSET", op.out_cvt.offset)
    csb.write("SDP", "D_CVT_SCALE", op.out_cvt.scale)
    csb.write("SDP", "D_CVT_SHIFT", op.out_cvt.truncate)
