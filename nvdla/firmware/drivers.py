"""The drivers of the six processors, imported when an operation first needs one."""

from __future__ import annotations

import importlib

from nvdla.descriptors.enums import OpType
from nvdla.firmware.driver import Driver

_DRIVERS = {
    OpType.BDMA: "nvdla.firmware.bdma:BdmaDriver",
    OpType.CONV: "nvdla.firmware.conv:ConvDriver",
    OpType.SDP: "nvdla.firmware.sdp:SdpDriver",
    OpType.PDP: "nvdla.firmware.pdp:PdpDriver",
    OpType.CDP: "nvdla.firmware.cdp:CdpDriver",
    OpType.RUBIK: "nvdla.firmware.rubik:RubikDriver",
}


def driver(op_type: OpType) -> Driver:
    """A new driver for the processor."""
    module, _, name = _DRIVERS[op_type].partition(":")
    return getattr(importlib.import_module(module), name)()
