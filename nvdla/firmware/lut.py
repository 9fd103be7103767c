"""Loading the lookup tables of SDP or CDP from a descriptor (kmd/firmware/common.c update_lut)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvdla.descriptors.enums import LutMethod
from nvdla.firmware.csb import Csb
from nvdla.firmware.operation import FirmwareOperation

LE, LO = 0, 1
WRITE = 1
TABLES = (("LE", "linear_exp"), ("LO", "linear_only"))


@dataclass(frozen=True)
class LutPort:
    """Where tables are loaded: the unit, and whether start and end are 64-bit (two registers; CDP) or 32-bit (SDP)."""

    unit: str
    wide: bool


SDP_PORT = LutPort("SDP", wide=False)
CDP_PORT = LutPort("CDP", wide=True)


def require_lut(operation: FirmwareOperation) -> None:
    """The operation's table exists and its enumerations are known."""
    lut = operation.lut
    operation.require(lut is not None, f"lut_index is {operation.op.lut_index}, but the task has no such table")
    operation.require_choice(lut.method, ("exponential", "linear"), "LUT method")
    for name in ("hybrid", "underflow", "overflow"):
        operation.require_choice(getattr(lut, f"{name}_priority"), ("LE", "LO"), f"LUT {name}_priority")


def load_lut(csb: Csb, port: LutPort, lut: Any, fp16: bool) -> None:
    """Tables, indexing, ranges and slopes beyond the ranges."""
    unit = port.unit
    for table, entries in ((LE, lut.linear_exp_table), (LO, lut.linear_only_table)):
        csb.write_fields(unit, "S_LUT_ACCESS_CFG", LUT_TABLE_ID=table, LUT_ACCESS_TYPE=WRITE)
        for entry in entries:
            csb.write(unit, "S_LUT_ACCESS_DATA", entry)
    csb.write_fields(
        unit,
        "S_LUT_CFG",
        LUT_LE_FUNCTION=lut.method,
        LUT_HYBRID_PRIORITY=lut.hybrid_priority,
        LUT_UFLOW_PRIORITY=lut.underflow_priority,
        LUT_OFLOW_PRIORITY=lut.overflow_priority,
    )
    indexing = {"LUT_LO_INDEX_SELECT": lut.linear_only_offset.frac_bits & 0xFF}
    if lut.method == LutMethod.EXPONENTIAL:
        indexing["LUT_LE_INDEX_OFFSET"] = lut.linear_exp_offset.exp_offset & 0xFF
    else:
        indexing["LUT_LE_INDEX_SELECT"] = lut.linear_exp_offset.frac_bits & 0xFF
    csb.write_fields(unit, "S_LUT_INFO", **indexing)
    for part, name in TABLES:
        for end in ("start", "end"):
            _write_bound(csb, port, f"S_LUT_{part}_{end.upper()}", getattr(lut, f"{name}_{end}"))
    for tables, name in TABLES:
        under, over = getattr(lut, f"{name}_underflow_slope"), getattr(lut, f"{name}_overflow_slope")
        _write_slopes(csb, unit, tables, under, over, fp16)


def _write_bound(csb: Csb, port: LutPort, register: str, value: int) -> None:
    if port.wide:
        csb.write_address(port.unit, f"{register}_LOW", f"{register}_HIGH", value)
    else:
        csb.write(port.unit, register, value)


def _write_slopes(csb: Csb, unit: str, table: str, under: Any, over: Any, fp16: bool) -> None:
    """fp16 slopes are halves in the scale fields; integer slopes are a scale and a shift."""
    scales = (under.data_f, over.data_f) if fp16 else (under.data_i.scale & 0xFFFF, over.data_i.scale & 0xFFFF)
    csb.write_fields(unit, f"S_LUT_{table}_SLOPE_SCALE", **_pair(table, "SCALE", *scales))
    if not fp16:
        mask = csb.field_mask(unit, f"S_LUT_{table}_SLOPE_SHIFT", f"LUT_{table}_SLOPE_UFLOW_SHIFT")
        shifts = (under.data_i.shifter & mask, over.data_i.shifter & mask)
        csb.write_fields(unit, f"S_LUT_{table}_SLOPE_SHIFT", **_pair(table, "SHIFT", *shifts))


def _pair(table: str, kind: str, under: int, over: int) -> dict[str, int]:
    return {f"LUT_{table}_SLOPE_UFLOW_{kind}": under, f"LUT_{table}_SLOPE_OFLOW_{kind}": over}
