"""Structures of the firmware and of CPU tasks.

Facts from kmd/firmware/include/dla_interface.h; each structure there is packed and aligned to 4 bytes, so trailing
padding is written out (``reserved``). Structures that contain a data cube are in :mod:`nvdla.loadable.descriptors.abi`,
those of
CPU tasks in :mod:`nvdla.loadable.descriptors.structures`.

The interface changed together with the data cube in April 2019: operations got two scale factors, buffers an offset.
Structures are packed; network and buffer descriptors are padded to 256 bytes, operations to 4.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int8, c_int16, c_int32, c_uint8, c_uint16, c_uint32, c_uint64
from typing import Any

from nvdla.loadable.descriptors.enums import OLD_EMU_FORMATS, EmuFormat
from nvdla.util.escaping import Document

NUM_OP_TYPES = 6
MAX_BDMA_TRANSFERS = 20
LUT_LE_ENTRIES = 65
LUT_LO_ENTRIES = 257
NUM_PAD_VALUES = 7

# Python 3.10 has no LittleEndianUnion; on a little-endian machine the plain Union is the same.
LittleEndianUnion: Any = getattr(ctypes, "LittleEndianUnion", ctypes.Union)


class Descriptor(ctypes.LittleEndianStructure):
    """Base of every structure: packed, so the declarations alone decide the offsets."""

    _pack_ = 1
    _layout_ = "ms"


class DescriptorUnion(LittleEndianUnion):  # type: ignore[misc]
    """A union of structures, packed as the firmware has them."""

    _pack_ = 1
    _layout_ = "ms"


def structure(name: str, doc: str, *fields: tuple[str, type], base: type = Descriptor) -> Any:
    """Declare a structure (or, with ``base=DescriptorUnion``, a union) whose fields depend on the ABI."""
    return type(name, (base,), {"__doc__": doc, "__module__": __name__, "_fields_": fields})


def constant(value: float) -> property:
    """Read-only value of a field that the structure's ABI does not have."""
    return property(lambda _: value)


class NetworkDesc(Descriptor):
    """Address index 0 of a DLA task. The ``*_index`` fields are indices into the task's address list, -1 = none.

    ``op_head`` holds the first operation of each type, -1 = none.
    """

    _fields_ = (
        ("operation_desc_index", c_int16),
        ("surface_desc_index", c_int16),
        ("dependency_graph_index", c_int16),
        ("lut_data_index", c_int16),
        ("roi_array_index", c_int16),
        ("surface_index", c_int16),
        ("stat_list_index", c_int16),
        ("reserved1", c_int16),
        ("op_head", c_int16 * NUM_OP_TYPES),
        ("num_rois", c_uint16),
        ("num_operations", c_uint16),
        ("num_luts", c_uint16),
        ("num_addresses", c_uint16),
        ("input_layer", c_int16),
        ("dynamic_roi", c_uint8),
        ("reserved0", c_uint8),
    )


class Consumer(Descriptor):
    """An operation that waits for an event of this one; ``index`` -1 = none."""

    _fields_ = (("index", c_int16), ("event", c_uint8), ("reserved", c_uint8))


class CommonOpDesc(Descriptor):
    """One node of the dependency graph."""

    _fields_ = (
        ("index", c_int16),
        ("roi_index", c_int8),
        ("op_type", c_uint8),
        ("dependency_count", c_uint8),
        ("reserved0", c_uint8 * 3),
        ("consumers", Consumer * NUM_OP_TYPES),
        ("fused_parent", Consumer),
    )


class RoiArrayDesc(Descriptor):
    """Number of regions of interest that follow."""

    _fields_ = (("array_length", c_uint32), ("array_reserved", c_uint32))


class RoiDesc(Descriptor):
    """A region of interest in pixels."""

    _fields_ = (("left", c_uint32), ("top", c_uint32), ("right", c_uint32), ("bottom", c_uint32))


class CvtParam(Descriptor):
    """A converter: subtract ``offset``, multiply by ``scale``, shift right by ``truncate``."""

    _fields_ = (("scale", c_int16), ("truncate", c_uint8), ("enable", c_uint8), ("offset", c_int32))


class BdmaTransfer(Descriptor):
    """One BDMA transfer; the two addresses are address indices, sizes and strides bytes."""

    _fields_ = (
        ("source_address", c_int16),
        ("destination_address", c_int16),
        ("line_size", c_uint32),
        ("line_repeat", c_uint32),
        ("source_line", c_uint32),
        ("destination_line", c_uint32),
        ("surface_repeat", c_uint32),
        ("source_surface", c_uint32),
        ("destination_surface", c_uint32),
    )


class BdmaSurface(Descriptor):
    """The transfers of a BDMA operation."""

    _fields_ = (
        ("source_type", c_uint8),
        ("destination_type", c_uint8),
        ("num_transfers", c_uint16),
        ("transfers", BdmaTransfer * MAX_BDMA_TRANSFERS),
    )


class BdmaOp(Descriptor):
    """A BDMA operation: how many transfers its surface has."""

    _fields_ = (("num_transfers", c_uint16), ("reserved0", c_uint16))


class ConvOp(Descriptor):
    """A convolution: settings of CDMA, CSC, CMAC and CACC."""

    _fields_ = (
        ("conv_mode", c_uint8),
        ("data_reuse", c_uint8),
        ("weight_reuse", c_uint8),
        ("skip_data_rls", c_uint8),
        ("skip_weight_rls", c_uint8),
        ("reserved0", c_uint8),
        ("entry_per_slice", c_uint16),
        ("data_format", c_uint8),
        ("pixel_mapping", c_uint8),
        ("fetch_grain", c_uint16),
        ("reserved_b", c_uint8 * 8),
        ("batch", c_uint8),
        ("weight_format", c_uint8),
        ("data_bank", c_uint8),
        ("weight_bank", c_uint8),
        ("batch_stride", c_uint32),
        ("post_extension", c_uint8),
        ("pixel_override", c_uint8),
        ("release", c_uint16),
        ("input_width_csc", c_uint16),
        ("input_height_csc", c_uint16),
        ("input_channel_csc", c_uint16),
        ("kernel_width_csc", c_uint16),
        ("kernel_height_csc", c_uint16),
        ("kernel_channel_csc", c_uint16),
        ("input_width_cmac", c_uint16),
        ("input_height_cmac", c_uint16),
        ("bytes_per_kernel", c_uint32),
        ("mean_ry", c_int16),
        ("mean_gu", c_int16),
        ("mean_bv", c_int16),
        ("mean_ax", c_int16),
        ("mean_format", c_uint8),
        ("conv_stride_x", c_uint8),
        ("conv_stride_y", c_uint8),
        ("pad_x_left", c_uint8),
        ("pad_x_right", c_uint8),
        ("pad_y_top", c_uint8),
        ("pad_y_bottom", c_uint8),
        ("dilation_x", c_uint8),
        ("dilation_y", c_uint8),
        ("reserved2", c_uint8 * 2),
        ("pra_truncate", c_uint8),
        ("in_precision", c_uint8),
        ("out_precision", c_uint8),
        ("pad_val", c_int16),
        ("in_cvt", CvtParam),
        ("out_cvt", CvtParam),
    )


class LutOffset(DescriptorUnion):
    """LE in exponential mode: what is subtracted from the exponent; otherwise: bits to shift right."""

    _fields_ = (("exp_offset", c_int8), ("frac_bits", c_int8), ("reserved0", c_uint16))


class FloatData(Descriptor):
    """A slope for integers: value * scale >> shifter."""

    _fields_ = (("scale", c_int16), ("shifter", c_int8), ("reserved0", c_uint8))


class Slope(DescriptorUnion):
    """Integer slope (data_i) or bits of a half (data_f), by the precision of the operation."""

    _fields_ = (("data_i", FloatData), ("data_f", c_uint16))


class LutParam(Descriptor):
    """Two lookup tables, and how numbers outside them are treated."""

    _fields_ = (
        ("linear_exp_table", c_int16 * LUT_LE_ENTRIES),
        ("linear_only_table", c_int16 * LUT_LO_ENTRIES),
        ("linear_exp_offset", LutOffset),
        ("linear_only_offset", LutOffset),
        ("linear_exp_start", c_uint64),
        ("linear_exp_end", c_uint64),
        ("linear_only_start", c_uint64),
        ("linear_only_end", c_uint64),
        ("linear_exp_underflow_slope", Slope),
        ("linear_exp_overflow_slope", Slope),
        ("linear_only_underflow_slope", Slope),
        ("linear_only_overflow_slope", Slope),
        ("hybrid_priority", c_uint8),
        ("underflow_priority", c_uint8),
        ("overflow_priority", c_uint8),
        ("method", c_uint8),
    )


class SdpCvt(Descriptor):
    """Converters of the operands of a Y stage."""

    _fields_ = (("alu_cvt", CvtParam), ("mul_cvt", CvtParam))


class SdpStage(Descriptor):
    """One of the SDP's sub-processors X1, X2, Y (struct dla_sdp_op)."""

    _fields_ = (
        ("enable", c_uint8),
        ("alu_type", c_uint8),
        ("type", c_uint8),
        ("mode", c_uint8),
        ("act", c_uint8),
        ("shift_value", c_uint8),
        ("truncate", c_uint8),
        ("precision", c_uint8),
        ("alu_operand", c_int32),
        ("mul_operand", c_int32),
        ("cvt", SdpCvt),
    )


class SdpOp(Descriptor):
    """An SDP operation: precisions, converter, stages X1, X2 and Y."""

    _fields_ = (
        ("src_precision", c_uint8),
        ("dst_precision", c_uint8),
        ("lut_index", c_int16),
        ("out_cvt", CvtParam),
        ("conv_mode", c_uint8),
        ("batch_num", c_uint8),
        ("reserved0", c_uint16),
        ("batch_stride", c_uint32),
        ("x1_op", SdpStage),
        ("x2_op", SdpStage),
        ("y_op", SdpStage),
    )


class PdpOp(Descriptor):
    """A pooling."""

    _fields_ = (
        ("partial_in_width_first", c_uint16),
        ("partial_in_width_mid", c_uint16),
        ("partial_in_width_last", c_uint16),
        ("partial_width_first", c_uint16),
        ("partial_width_mid", c_uint16),
        ("partial_width_last", c_uint16),
        ("split_num", c_uint8),
        ("pool_mode", c_uint8),
        ("pool_width", c_uint8),
        ("pool_height", c_uint8),
        ("stride_x", c_uint8),
        ("stride_y", c_uint8),
        ("pad_left", c_uint8),
        ("pad_right", c_uint8),
        ("pad_top", c_uint8),
        ("pad_bottom", c_uint8),
        ("precision", c_uint8),
        ("reserved0", c_uint8),
        ("padding_value", c_int32 * NUM_PAD_VALUES),
    )


class CdpOp(Descriptor):
    """A normalization over adjacent channels."""

    _fields_ = (
        ("in_precision", c_uint8),
        ("out_precision", c_uint8),
        ("lut_index", c_int16),
        ("in_cvt", CvtParam),
        ("out_cvt", CvtParam),
        ("local_size", c_uint8),
        ("bypass_sqsum", c_uint8),
        ("bypass_out_mul", c_uint8),
        ("reserved0", c_uint8),
    )


class RubikOp(Descriptor):
    """A reordering."""

    _fields_ = (("mode", c_uint8), ("precision", c_uint8), ("stride_x", c_uint8), ("stride_y", c_uint8))


def _counters(*names: str) -> tuple[tuple[str, type[c_uint32]], ...]:
    return tuple((name, c_uint32) for name in names)


class BdmaStat(Descriptor):
    """Counters of a BDMA operation."""

    _fields_ = _counters("read_stall", "write_stall", "runtime")


class ConvStat(Descriptor):
    """Counters of a convolution."""

    _fields_ = _counters(
        "data_read_stall",
        "weight_read_stall",
        "data_read_latency",
        "weight_read_latency",
        "saturation_count",
        "nan_data_num",
        "nan_weight_num",
        "inf_data_num",
        "inf_weight_num",
        "runtime",
    )


class SdpStat(Descriptor):
    """Counters of an SDP operation."""

    _fields_ = _counters(
        "nan_input_num",
        "inf_input_num",
        "nan_output_num",
        "wdma_write_stall",
        "lut_underflow",
        "lut_overflow",
        "lut_hybrid",
        "lut_le_hit",
        "lut_lo_hit",
        "saturation_count",
        "runtime",
    )


class PdpStat(Descriptor):
    """Counters of a pooling."""

    _fields_ = _counters("inf_input_num", "nan_input_num", "nan_output_num", "write_stall", "runtime")


class CdpStat(Descriptor):
    """Counters of a normalization."""

    _fields_ = _counters(
        "nan_input_num",
        "inf_input_num",
        "nan_output_num",
        "write_stall",
        "lut_uflow",
        "lut_oflow",
        "lut_hybrid",
        "lut_le_hit",
        "lut_lo_hit",
        "saturation_count",
        "runtime",
    )


class RubikStat(Descriptor):
    """Counters of a reordering."""

    _fields_ = _counters("read_stall", "write_stall", "runtime")


class OperationContainer(DescriptorUnion):
    """One slot of the operation list; op_type of the dependency graph says which member holds."""

    _fields_ = (
        ("bdma_op", BdmaOp),
        ("conv_op", ConvOp),
        ("sdp_op", SdpOp),
        ("pdp_op", PdpOp),
        ("cdp_op", CdpOp),
        ("rubik_op", RubikOp),
    )


class StatContainer(DescriptorUnion):
    """One slot of the list of counters."""

    _fields_ = (
        ("bdma_stat", BdmaStat),
        ("conv_stat", ConvStat),
        ("sdp_stat", SdpStat),
        ("pdp_stat", PdpStat),
        ("cdp_stat", CdpStat),
        ("rubik_stat", RubikStat),
    )


DESCRIPTOR_BYTES = 256


class EmuNetworkDesc(Descriptor):
    """Address index 0 of a CPU task; the two ``*_index`` fields are indices into the task's address list."""

    _fields_ = (
        ("operation_desc_index", c_int16),
        ("operation_buffer_desc_index", c_int16),
        ("num_operations", c_uint16),
        ("reserved", c_uint8 * (DESCRIPTOR_BYTES - 6)),
    )


def _format(buffer: ctypes.Structure) -> EmuFormat:
    """Element and atom of a buffer, by the new ABI's names."""
    return EmuFormat(buffer.format)


def _old_format(buffer: ctypes.Structure) -> EmuFormat:
    """Element and atom of a buffer of the old ABI, by the new ABI's names."""
    return OLD_EMU_FORMATS[buffer.format] if buffer.format < len(OLD_EMU_FORMATS) else EmuFormat(buffer.format)


def _buffer(scaled: bool) -> Any:
    """Place that a CPU operation reads or writes; the new ABI has an offset."""
    buffer_fields = (
        ("address_index", c_int16),
        *(("address_index_offset", c_uint32),) * scaled,
        ("size", c_uint32),
        ("format", c_uint16),
        ("width", c_uint16),
        ("height", c_uint16),
        ("channel", c_uint16),
        ("line_stride", c_uint32),
        ("surf_stride", c_uint32),
    )
    used = 26 if scaled else 22
    buffer = structure(
        "EmuBuffer" if scaled else "OldEmuBuffer",
        "Where a CPU operation reads or writes.",
        *buffer_fields,
        ("reserved", c_uint8 * (256 - used)),
    )
    buffer.element_format = property(_format if scaled else _old_format)
    if not scaled:
        buffer.address_index_offset = constant(0)
    return buffer


def emu_structures(scaled: bool) -> Document:
    """The ABI-dependent structures by name; ``scaled`` selects the new form (scale factors and buffer offsets)."""
    # Without scale factors the common part is one byte, and nothing aligns the floats after it.
    scales = (("reserved", c_uint8 * 3), ("input_scale_factor", c_float), ("output_scale_factor", c_float))
    common = structure("EmuCommonOp", "What every CPU operation has.", ("op_type", c_uint8), *(scales * scaled))
    power = structure(
        "EmuPowerOp",
        "(shift + scale * x) ** power",
        ("common", common),
        ("power", c_float),
        ("scale", c_float),
        ("shift", c_float),
        *((("reserved", c_uint8 * 3),) * (not scaled)),
    )
    softmax = structure(
        "EmuSoftmaxOp",
        "Softmax over channels.",
        ("common", common),
        ("axis", c_uint8),
        ("reserved", c_uint8 * (3 if scaled else 2)),
    )
    if not scaled:
        # So that users need not ask which ABI they have: no scaling, no offset.
        common.input_scale_factor = common.output_scale_factor = constant(1.0)
    buffer = _buffer(scaled)
    return {
        "EmuCommonOp": common,
        "EmuPowerOp": power,
        "EmuSoftmaxOp": softmax,
        "EmuBuffer": buffer,
        "EmuOperationContainer": structure(
            "EmuOperationContainer",
            "One slot of a CPU task's operation list.",
            ("power_op", power),
            ("softmax_op", softmax),
            base=DescriptorUnion,
        ),
        "EmuBuffers": structure(
            "EmuBuffers", "Buffers of one CPU operation.", ("src_data", buffer), ("dst_data", buffer)
        ),
    }
