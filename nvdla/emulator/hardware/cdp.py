"""CDP, the cross-channel data processor: local response normalization.

Source: cmod/cdp/NV_NVDLA_cdp.cpp; programming guide, "Cross-Channel Data Processor".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.job import (
    EngineContext,
    Handed,
    Job,
    LookupTables,
    MemoryCube,
    element_type,
    elements_of,
    memory_cube,
    surfaces_of,
)
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.memory.address_space import AddressSpace, Move
from nvdla.errors import ScheduleError
from nvdla.limits import Work
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from nvdla.kernels.cdp import CdpConverter, CdpFunction, CdpTable, Priority
    from nvdla.kernels.fast.cdp_int8 import Answers

# Counter registers by statistic, in the order of the kernels' counters.
COUNTERS = {
    "saturation": "D_OUT_SATURATION",
    "lut_underflow": "D_PERF_LUT_UFLOW",
    "lut_overflow": "D_PERF_LUT_OFLOW",
    "lut_hybrid": "D_PERF_LUT_HYBRID",
    "lut_le_hit": "D_PERF_LUT_LE_HIT",
    "lut_lo_hit": "D_PERF_LUT_LO_HIT",
}
LARGEST_WINDOW = 9
SPECIAL = {"inf_input": "D_INF_INPUT_NUM", "nan_input": "D_NAN_INPUT_NUM", "nan_output": "D_NAN_OUTPUT_NUM"}

# Bits of (input converter's result, product with the table value, output).
_WIDTHS = {"int8": (9, 25, 8), "int16": (17, 33, 16)}


@dataclass(frozen=True)
class CdpSettings:
    """One normalization, as the kernels take it. fp16 has no converters."""

    elements: Precision
    read_elements: int
    channels: int
    source: MemoryCube
    destination: MemoryCube
    function: CdpFunction
    le: CdpTable
    lo: CdpTable
    priority: Priority
    flush_nan: bool
    converters: tuple[CdpConverter, CdpConverter] | None


class CdpJob(Job):
    """One prepared normalization. ``tables``: LE and LO at the time of preparation."""

    destination: np.ndarray

    def __init__(
        self,
        settings: CdpSettings,
        group: RegisterGroup,
        memory: AddressSpace,
        tables: tuple[np.ndarray, np.ndarray],
    ) -> None:
        self.settings = settings
        self.group = group
        self.source, self.destination = settings.source.view(memory), settings.destination.view(memory)
        self.statistics: dict[str, int] = {}
        self._tables = tables
        self._answers = _AnswersOnce(settings, tables) if settings.elements is Precision.INT8 else None

    @property
    def work(self) -> Work:
        """Elements times the channels of the largest window."""
        return Work(elements=self.source.size * LARGEST_WINDOW, cube=self.source.size, scratch=16 * self.source.size)

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return [self.source]

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return [self.destination]

    def _relocate(self, move: Move) -> None:
        self.source, self.destination = move(self.source), move(self.destination)

    def run(self, source: Handed = None) -> None:
        """Do the work once; returns the result for the next engine, None if it went to memory."""
        elements = self.settings.elements
        data = elements_of(self.source, elements)
        direct = self.destination.flags.c_contiguous
        out = self.destination if direct else np.empty(self.destination.shape, np.uint8)
        counters, special = self._compute(data, out.view(elements.bits))
        if not direct:
            self.destination[...] = out
        self.statistics = dict(zip(COUNTERS, map(int, counters), strict=True)) | special
        for name, register in (COUNTERS | SPECIAL).items():
            self.group.values[register] = self.statistics.get(name, 0) & 0xFFFFFFFF

    def _compute(self, data: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
        settings, (le, lo) = self.settings, self._tables
        function, channels, priority = settings.function, settings.channels, settings.priority
        if settings.converters is None:
            from nvdla.kernels.cdp import normalize_fp16
            from nvdla.kernels.pdp import count_special

            infinities, nans = count_special(data)
            tables = (settings.le, settings.lo, le.view(np.uint16), lo.view(np.uint16))
            counters, nan_output = normalize_fp16(data, out, channels, function, settings.flush_nan, *tables, priority)
            return counters, {"inf_input": infinities, "nan_input": nans, "nan_output": nan_output}
        answers = self._answers.get(data, out) if self._answers else None
        if answers is not None:
            from nvdla.kernels.fast.cdp_int8 import loop_settings, normalize_int8

            return normalize_int8(data, out, channels, loop_settings(function, *settings.converters), answers), {}
        from nvdla.kernels.cdp import normalize

        converters = settings.converters
        return normalize(data, out, channels, function, *converters, settings.le, settings.lo, le, lo, priority), {}


class _AnswersOnce:
    """Table values of every total, for the fast int8 kernel. Settings and tables of a prepared job do not change, so
    they are computed once, after as many elements as there are totals."""

    def __init__(self, settings: CdpSettings, tables: tuple[np.ndarray, np.ndarray]) -> None:
        self._settings = settings
        self._tables = tables
        self._seen = 0
        self._answers: Answers | None = None

    def get(self, data: np.ndarray, out: np.ndarray) -> Answers | None:
        """The answers, or None where the general kernel must (or had better) do it."""
        from nvdla.kernels.fast import cdp_int8

        if not _words_fit(data, out):
            return None
        if self._answers is None:
            settings = self._settings
            assert settings.converters is not None
            bounds = cdp_int8.totals(settings.function, settings.converters[0])
            self._seen += data.size
            if self._seen <= bounds[1] - bounds[0]:
                return None
            tables = (settings.le, settings.lo, *self._tables, settings.priority)
            self._answers = cdp_int8.answers(bounds, *tables)
        return self._answers


def _words_fit(data: np.ndarray, out: np.ndarray) -> bool:
    """True where both cubes can be moved eight bytes at a time, and no element is written before it is read."""
    aligned = data.ctypes.data % 8 == out.ctypes.data % 8 == 0 and data.shape[3] % 8 == 0
    return aligned and (data.ctypes.data == out.ctypes.data or not np.may_share_memory(data, out))


class Cdp:
    """The CDP of one machine. It owns its lookup tables, which both register groups share."""

    def __init__(self, machine: EngineContext) -> None:
        self.machine = machine
        self.tables = LookupTables()
        machine.registers.on_write("CDP", self.tables.written)
        machine.registers.on_read("CDP", self.tables.read)

    def prepare(self, groups: dict[str, RegisterGroup]) -> CdpJob:
        """Decode and check. Raises ConfigError for what the hardware lacks, ScheduleError for what never ends."""
        config = self.machine.config
        settings = decode(groups, config)
        check(settings)
        tables = (self.tables.le.copy(), self.tables.lo.copy())
        return CdpJob(settings, groups["CDP"], self.machine.memory, tables)


def decode(groups: dict[str, RegisterGroup], config: Configuration) -> CdpSettings:
    """Decode the registers of units CDP and CDP_RDMA. Raises ConfigError and ScheduleError."""
    from nvdla.kernels.cdp import CdpFunction, Priority

    config.require("cdp_throughput")
    if "CDP_RDMA" not in groups:
        raise ScheduleError("deadlock: CDP takes its data from memory, but CDP_RDMA is not enabled")
    g, rdma = groups["CDP"], groups["CDP_RDMA"]
    elements = element_type(g, "D_DATA_FORMAT.INPUT_DATA_TYPE", config)
    channels = rdma["D_DATA_CUBE_CHANNEL.CHANNEL"] + 1
    width, height = rdma["D_DATA_CUBE_WIDTH.WIDTH"] + 1, rdma["D_DATA_CUBE_HEIGHT.HEIGHT"] + 1
    shape = (surfaces_of(channels, elements, config), height, width, config.memory_atom)
    bypass = (g["D_FUNC_BYPASS.SQSUM_BYPASS"], g["D_FUNC_BYPASS.MUL_BYPASS"])
    return CdpSettings(
        elements=elements,
        read_elements=rdma["D_DATA_FORMAT.INPUT_DATA"],
        channels=channels,
        source=memory_cube(rdma, "SRC", "D_SRC_DMA_CFG.SRC_RAM_TYPE", shape, config),
        destination=memory_cube(g, "DST", "D_DST_DMA_CFG.DST_RAM_TYPE", shape, config),
        function=CdpFunction(g["D_LRN_CFG.NORMALZ_LEN"] + 1, *bypass, _WIDTHS.get(elements, (0, 0, 0))[1]),
        le=_table(g, "LE", elements),
        lo=_table(g, "LO", elements),
        priority=Priority(*(g[f"S_LUT_CFG.LUT_{which}_PRIORITY"] for which in ("UFLOW", "OFLOW", "HYBRID"))),
        flush_nan=bool(g["D_NAN_FLUSH_TO_ZERO.NAN_TO_ZERO"]),
        converters=None if elements is Precision.FP16 else _converters(g, elements),
    )


def check(settings: CdpSettings) -> None:
    """Raise ScheduleError where the read DMA delivers another precision than CDP takes."""
    if settings.read_elements != settings.elements:
        raise ScheduleError(
            f"deadlock: CDP.D_DATA_FORMAT is {int(settings.elements)}, CDP_RDMA.D_DATA_FORMAT is "
            f"{settings.read_elements}: must be equal"
        )


def _converters(g: RegisterGroup, elements: Precision) -> tuple[CdpConverter, CdpConverter]:
    """Decode the converters of input and output."""
    from nvdla.kernels.cdp import CdpConverter

    in_bits, _, out_bits = _WIDTHS[elements]
    offset = _signed(g["D_DATIN_OFFSET.DATIN_OFFSET"], 8 * elements.bytes)
    scale, shift = g.signed("D_DATIN_SCALE.DATIN_SCALE"), g["D_DATIN_SHIFTER.DATIN_SHIFTER"]
    entry = CdpConverter(offset, scale, shift, in_bits)
    offset = _signed(g["D_DATOUT_OFFSET"], 25 if elements is Precision.INT8 else 32)
    scale, shift = g.signed("D_DATOUT_SCALE.DATOUT_SCALE"), g["D_DATOUT_SHIFTER.DATOUT_SHIFTER"]
    return entry, CdpConverter(offset, scale, shift, out_bits)


def _table(g: RegisterGroup, name: str, precision: Precision) -> CdpTable:
    """One table's registers. Starts and ends: 38 bits signed for integers, fp32 for fp16; slopes: int16 or fp16."""
    from nvdla.kernels.cdp import CdpTable

    def limit(which: str) -> int:
        low = g[f"S_LUT_{name}_{which}_LOW"]
        if precision is Precision.FP16:
            return low
        return _signed(g[f"S_LUT_{name}_{which}_HIGH.LUT_{name}_{which}_HIGH"] << 32 | low, 38)

    def slope(which: str) -> tuple[int, int]:
        scale = f"S_LUT_{name}_SLOPE_SCALE.LUT_{name}_SLOPE_{which}_SCALE"
        shift = g.signed(f"S_LUT_{name}_SLOPE_SHIFT.LUT_{name}_SLOPE_{which}_SHIFT")
        return (g[scale] if precision is Precision.FP16 else g.signed(scale)), shift

    exponential = name == "LE" and g["S_LUT_CFG.LUT_LE_FUNCTION"] == 0
    select = _index_select(g[f"S_LUT_INFO.LUT_{name}_INDEX_SELECT"], precision)
    offset = g.signed("S_LUT_INFO.LUT_LE_INDEX_OFFSET") if name == "LE" else 0
    return CdpTable(int(exponential), limit("START"), limit("END"), offset, select, *slope("UFLOW"), *slope("OFLOW"))


def _index_select(value: int, precision: Precision) -> int:
    """The register has 8 bits; the integer models take bit 5 or 6 for the sign and keep positive values whole
    (NV_NVDLA_cdp.cpp:1265, :1620)."""
    if precision is Precision.FP16:
        return _signed(value, 8)
    bits = 6 if precision is Precision.INT8 else 7
    return _signed(value, bits) if value >> (bits - 1) & 1 else value


def _signed(value: int, bits: int) -> int:
    """The low ``bits`` as a two's complement number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
