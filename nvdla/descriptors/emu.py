"""CPU-task ("EMU") structures (umd/core/src/common/include/priv/emu/emu1/A/emu_interface.h).

The interface changed together with the data cube in April 2019: operations got two scale factors, buffers an offset.
Structures are packed; network and buffer descriptors are padded to 256 bytes, operations to 4.
"""

from __future__ import annotations

from ctypes import c_float, c_int16, c_uint8, c_uint16, c_uint32
from typing import Any

from nvdla.descriptors.enums import OLD_EMU_FORMATS, EmuFormat
from nvdla.descriptors.structures import Descriptor, DescriptorUnion, constant, structure

DESCRIPTOR_BYTES = 256


class EmuNetworkDesc(Descriptor):
    """Address index 0 of a CPU task; the two ``*_index`` fields are indices into the task's address list."""

    _fields_ = (
        ("operation_desc_index", c_int16),
        ("operation_buffer_desc_index", c_int16),
        ("num_operations", c_uint16),
        ("reserved", c_uint8 * (DESCRIPTOR_BYTES - 6)),
    )


def _format(buffer: Any) -> EmuFormat:
    """Element and atom of a buffer, by the new ABI's names."""
    return EmuFormat(buffer.format)


def _old_format(buffer: Any) -> EmuFormat:
    """Element and atom of a buffer of the old ABI, by the new ABI's names."""
    return OLD_EMU_FORMATS[buffer.format] if buffer.format < len(OLD_EMU_FORMATS) else EmuFormat(buffer.format)


def _buffer(scaled: bool) -> Any:
    """Where a CPU operation reads or writes; the new form has an offset."""
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


def emu_structures(scaled: bool) -> dict[str, Any]:
    """The ABI-dependent structures by name; ``scaled`` selects the new form (scale factors and buffer offsets)."""
    # Without scale factors the common part is one byte, and nothing aligns the floats behind it.
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
