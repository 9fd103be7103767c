"""Statistics descriptors: the counters that the firmware reads after an operation and writes to the task's list.

Only networks with a statistics list (stat_list_index) have them. Times are 0: the model has no clock.
Source: dla_*_stat_data in kmd/firmware/{conv,sdp,pdp,cdp,bdma,rubik}.c.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from nvdla.descriptors.enums import OpType
from nvdla.descriptors.structures import StatContainer
from nvdla.errors import DescriptorError
from nvdla.firmware.csb import Csb
from nvdla.firmware.operation import FirmwareOperation

if TYPE_CHECKING:
    from nvdla.firmware.task import FirmwareTask

# Field of the statistics descriptor -> unit and register; {group} is the register group (BDMA has a pair for each).
REGISTERS: dict[OpType, dict[str, tuple[str, str]]] = {
    OpType.BDMA: {
        "read_stall": ("BDMA", "STATUS_GRP{group}_READ_STALL"),
        "write_stall": ("BDMA", "STATUS_GRP{group}_WRITE_STALL"),
    },
    OpType.CONV: {
        "data_read_stall": ("CDMA", "D_PERF_DAT_READ_STALL"),
        "weight_read_stall": ("CDMA", "D_PERF_WT_READ_STALL"),
        "data_read_latency": ("CDMA", "D_PERF_DAT_READ_LATENCY"),
        "weight_read_latency": ("CDMA", "D_PERF_WT_READ_LATENCY"),
        "nan_data_num": ("CDMA", "D_NAN_INPUT_DATA_NUM"),
        "nan_weight_num": ("CDMA", "D_NAN_INPUT_WEIGHT_NUM"),
        "inf_data_num": ("CDMA", "D_INF_INPUT_DATA_NUM"),
        "inf_weight_num": ("CDMA", "D_INF_INPUT_WEIGHT_NUM"),
        "saturation_count": ("CACC", "D_OUT_SATURATION"),
    },
    OpType.SDP: {
        "nan_input_num": ("SDP", "D_STATUS_NAN_INPUT_NUM"),
        "inf_input_num": ("SDP", "D_STATUS_INF_INPUT_NUM"),
        "nan_output_num": ("SDP", "D_STATUS_NAN_OUTPUT_NUM"),
        "wdma_write_stall": ("SDP", "D_PERF_WDMA_WRITE_STALL"),
    },
    OpType.PDP: {"write_stall": ("PDP", "D_PERF_WRITE_STALL")},
    OpType.CDP: {
        "write_stall": ("CDP", "D_PERF_WRITE_STALL"),
        "lut_uflow": ("CDP", "D_PERF_LUT_UFLOW"),
        "lut_oflow": ("CDP", "D_PERF_LUT_OFLOW"),
        "lut_hybrid": ("CDP", "D_PERF_LUT_HYBRID"),
        "lut_le_hit": ("CDP", "D_PERF_LUT_LE_HIT"),
        "lut_lo_hit": ("CDP", "D_PERF_LUT_LO_HIT"),
    },
    OpType.RUBIK: {"read_stall": ("RBK", "D_PERF_READ_STALL"), "write_stall": ("RBK", "D_PERF_WRITE_STALL")},
}


def write_statistics(csb: Csb, task: FirmwareTask, operation: FirmwareOperation, group: int) -> None:
    """Write the statistics container of an operation. Raises DescriptorError when the list is too small."""
    size = ctypes.sizeof(StatContainer)
    offset = size * (task.num_operations * operation.roi + operation.index)
    index = task.network.stat_list_index
    if not 0 <= index < len(task.addresses):
        raise DescriptorError(f"task {task.id}: stat_list_index is {index}, must be 0 .. {len(task.addresses) - 1}")
    window = task.addresses[index]
    if offset + size > window.size:
        raise DescriptorError(f"{operation}: its statistics end at byte {offset + size}, {window} has {window.size}")
    container = StatContainer.from_buffer(window.data[offset : offset + size].data)
    counters = getattr(container, f"{operation.type.name.lower()}_stat")
    for name, (unit, register) in REGISTERS[operation.type].items():
        setattr(counters, name, csb.read(unit, register.format(group=group)))
    counters.runtime = 0
