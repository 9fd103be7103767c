"""SDP's lookup registers (S_LUT_*) and tables, taken as they stand when an operation is prepared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvdla.hardware.lut import LookupTables
from nvdla.hardware.register_file import RegisterGroup
from nvdla.kernels import sdp_lut

# Data -> (results, counters: underflow, overflow, hybrid, LE hit, LO hit).
Lookup = Callable[[np.ndarray], tuple[np.ndarray, list[int]]]


def integer_lookup(group: RegisterGroup, tables: LookupTables) -> Lookup:
    """The lookup of int32 data."""
    return _lookup(group, tables, floating=False)


def float_lookup(group: RegisterGroup, tables: LookupTables) -> Lookup:
    """The lookup of fp32 bits (uint32)."""
    return _lookup(group, tables, floating=True)


def _lookup(group: RegisterGroup, tables: LookupTables, floating: bool) -> Lookup:
    choice = sdp_lut.Choice(
        exponential=0 if group["S_LUT_CFG.LUT_LE_FUNCTION"] else 1,
        index_offset=group.signed("S_LUT_INFO.LUT_LE_INDEX_OFFSET"),
        underflow=group["S_LUT_CFG.LUT_UFLOW_PRIORITY"],
        overflow=group["S_LUT_CFG.LUT_OFLOW_PRIORITY"],
        hybrid=group["S_LUT_CFG.LUT_HYBRID_PRIORITY"],
    )
    bias = _le_bias(choice.index_offset, floating) if choice.exponential else 0
    le, lo = _table(group, "LE", bias, floating), _table(group, "LO", 0, floating)
    le_entries, lo_entries = tables.le.copy(), tables.lo.copy()
    kernel = sdp_lut.lookup_floats if floating else sdp_lut.lookup_integers

    def lookup(data: np.ndarray) -> tuple[np.ndarray, list[int]]:
        out = np.empty_like(data)
        counts = np.zeros(sdp_lut.COUNTERS, np.int64)
        kernel(data, le_entries, le, lo_entries, lo, choice, out, counts)
        return out, counts.tolist()

    return lookup


def _table(group: RegisterGroup, name: str, bias: int, floating: bool) -> sdp_lut.SdpTable:
    """Integers are signed; fp16 processing holds fp32 (range) and fp16 (slope) bit patterns."""
    read = group.__getitem__ if floating else group.signed
    scale, shift = f"S_LUT_{name}_SLOPE_SCALE.LUT_{name}_SLOPE", f"S_LUT_{name}_SLOPE_SHIFT.LUT_{name}_SLOPE"
    return sdp_lut.SdpTable(
        start=read(f"S_LUT_{name}_START"),
        end=read(f"S_LUT_{name}_END"),
        select=group.signed(f"S_LUT_INFO.LUT_{name}_INDEX_SELECT"),
        underflow_scale=read(f"{scale}_UFLOW_SCALE"),
        underflow_shift=group.signed(f"{shift}_UFLOW_SHIFT"),
        overflow_scale=read(f"{scale}_OFLOW_SCALE"),
        overflow_shift=group.signed(f"{shift}_OFLOW_SHIFT"),
        bias=bias,
    )


def _le_bias(offset: int, floating: bool) -> int:
    """Where the exponential table begins, 2**offset above LE_START.

    For integers only if the offset is positive; a shift count beyond 31 wraps in the C model
    (cmod/hls_wrapper/sdp_hls_wrapper.cpp:392).
    """
    if floating:
        return int(np.array(2.0**offset, np.float32).view(np.uint32))
    return 1 << (offset & 31) if offset > 0 else 0
