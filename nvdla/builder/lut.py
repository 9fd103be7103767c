"""Look-up tables: fitting a function to the two tables LE (65 entries) and LO (257 entries).

Both tables are used in linear mode (but for fp16 normalisation, where LE is exponential): an input ``x`` in a table's
range lies ``d = x - start`` behind its start, entry ``d >> select`` and the one after it are interpolated. Sources:
"LUT programming"; hls/sdp/sdp_y_idx.cpp:28, sdp_y_inp.cpp:27; cdp/NV_NVDLA_cdp.cpp:1191.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nvdla.errors import BuildError

LE_SEGMENTS, LO_SEGMENTS = 64, 256
Function = Callable[[np.ndarray], np.ndarray]


@dataclass(eq=False)
class LutTable:
    """One table. Integers: ``values`` int16, ``start`` and ``select`` whole numbers. fp16: halves, ``start`` a real
    number.

    ``exponent`` True (LE only): entry k covers start + 2**(select + k) .. start + 2**(select + k + 1).
    Slopes continue the table on both sides (fp16 only; integer tables end flat).
    """

    values: np.ndarray
    start: float
    select: int
    exponent: bool = False
    underflow_slope: float = 0.0
    overflow_slope: float = 0.0

    @property
    def segments(self) -> int:
        """Intervals between the entries."""
        return len(self.values) - 1

    @property
    def end(self) -> float:
        """The first input behind the table."""
        if self.exponent:
            return self.start + 2.0 ** min(self.select + self.segments, 127)
        return self.start + self.segments * 2.0**self.select


@dataclass(eq=False)
class Lut:
    """Both tables; ``prefer_lo`` says which answers where both hit, ``low_lo`` and ``high_lo`` where both miss."""

    le: LutTable
    lo: LutTable
    precision: str
    prefer_lo: bool = True
    low_lo: bool = True
    high_lo: bool = True
    error: float = 0.0


def exact_int8(function: Function, scale_in: float, scale_out: float, zero_in: int = 0, zero_out: int = 0) -> Lut:
    """A table with one LO entry for each int8 value: no interpolation error at all. Zero points: what stands for 0.

    LO starts at -128; -128 itself underflows into entry 0 (the comparison is <=), which is the entry for -128.
    """
    x = np.arange(-128, 129, dtype=np.float64)
    real = _finite(function, (x - zero_in) * scale_in)
    values = np.clip(np.floor(real / scale_out + 0.5) + zero_out, -128, 127).astype(np.int16)
    return Lut(LutTable(values[::4], -128, 2), LutTable(values, -128, 0), "int8")


def fit_integers(function: Function, low: int, high: int, finest: int = 0) -> Lut:
    """Tables for a function of whole numbers low..high that gives table values (int16 range).

    LO covers the whole range; LE has a fourth of its segments and is put, finer, where that lowers the error most.
    """
    select = max(0, int(np.ceil(np.log2(max(high - low, 1) / LO_SEGMENTS))))
    lo = _linear(function, low, select, LO_SEGMENTS)
    probe = _probe(low, high)
    wanted = _finite(function, probe)
    error = np.abs(_interpolate(lo, probe) - wanted)
    best, worst = Lut(_linear(function, low, select + 2, LE_SEGMENTS), lo, "int16"), float(error.max())
    for fine in range(finest, select):
        span = LE_SEGMENTS << fine
        for start in _starts(low, high, span, probe[int(error.argmax())]):
            le = _linear(function, start, fine, LE_SEGMENTS)
            inside = (probe > le.start) & (probe < le.end)
            both = np.where(inside, np.abs(_interpolate(le, np.where(inside, probe, start + 1)) - wanted), error)
            if both.max() < worst:
                best, worst = Lut(le, lo, "int16", prefer_lo=False), float(both.max())
    best.error = worst
    return best


def fit_halves(function: Function, low: float, high: float) -> Lut:
    """fp16 tables: LO is the finer one over low..high, LE has a quarter of its resolution over four times the range."""
    span = max(high - low, 2.0**-10)
    select = int(np.ceil(np.log2(span / LO_SEGMENTS)))
    middle = (low + high) / 2
    lo = _half_table(function, middle - LO_SEGMENTS / 2 * 2.0**select, select, LO_SEGMENTS)
    le = _half_table(function, middle - LE_SEGMENTS / 2 * 2.0 ** (select + 4), select + 4, LE_SEGMENTS)
    lut = Lut(le, lo, "fp16", low_lo=False, high_lo=False)
    probe = np.linspace(low, high, 8193)
    lut.error = float(np.abs(_interpolate(lo, probe) - _finite(function, probe)).max())
    return lut


def fit_normalisation_halves(size: int, alpha: float, beta: float, k: float) -> Lut:
    """fp16 tables of (k + alpha / size * s) ** -beta: LO linear up to 16 times the knee, LE exponential beyond."""
    knee = k * size / alpha if alpha else 1.0
    select = int(np.ceil(np.log2(16 * knee / LO_SEGMENTS)))

    def function(total: np.ndarray) -> np.ndarray:
        return (k + alpha / size * total) ** -beta

    lo = _half_table(function, 0.0, select, LO_SEGMENTS)
    first = max(select + 4, -60)
    edges = 2.0 ** np.minimum(first + np.arange(LE_SEGMENTS + 1), 127)
    le = LutTable(function(edges).astype(np.float16), 0.0, first, exponent=True)
    lut = Lut(le, lo, "fp16", high_lo=False)
    probe = np.linspace(0, lo.end, 8193)
    lut.error = float(np.abs(_interpolate(lo, probe) - function(probe)).max())
    return lut


def _linear(function: Function, start: int, select: int, segments: int) -> LutTable:
    edges = start + np.arange(segments + 1, dtype=np.float64) * 2.0**select
    values = np.floor(_finite(function, edges) + 0.5)
    return LutTable(np.clip(values, -32768, 32767).astype(np.int16), start, select)


def _half_table(function: Function, start: float, select: int, segments: int) -> LutTable:
    start = float(np.float32(start))
    edges = start + np.arange(segments + 1) * 2.0**select
    exact = _finite(function, edges)
    values = np.clip(exact, -65504, 65504).astype(np.float16)
    slopes = np.clip((exact[1:] - exact[:-1]) / 2.0**select, -65504, 65504)
    return LutTable(values, start, select, False, float(np.float16(slopes[0])), float(np.float16(slopes[-1])))


def _interpolate(table: LutTable, x: np.ndarray) -> np.ndarray:
    """The table in real numbers (the hardware rounds to a table unit, or to fp17)."""
    position = (x - table.start) / 2.0**table.select
    return np.interp(position, np.arange(table.segments + 1), table.values.astype(np.float64))


def _probe(low: int, high: int) -> np.ndarray:
    """Inputs at which the error is looked at: every one where they are few, denser near the low end otherwise."""
    if high - low <= 1 << 16:
        return np.arange(low, high + 1, dtype=np.float64)
    near = np.unique(np.geomspace(1, high - low, 4096).astype(np.int64))
    return np.unique(np.concatenate((low + near, np.linspace(low, high, 8192).astype(np.int64)))).astype(np.float64)


def _starts(low: int, high: int, span: int, worst: float) -> list[int]:
    """Where a finer table may begin: around the worst input and at the low end."""
    return sorted({low, int(min(max(worst - span // 2, low), max(low, high - span)))})


def _finite(function: Function, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        values = np.asarray(function(x), np.float64)
    if values.shape != x.shape or not np.all(np.isfinite(values)):
        raise BuildError(
            f"a look-up table needs finite values of the function from {x[0]:g} to {x[-1]:g}; limit its result there"
        )
    return values
