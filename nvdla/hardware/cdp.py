"""CDP, the cross-channel data processor: local response normalisation.

Source: cmod/cdp/NV_NVDLA_cdp.cpp; programming guide, "Cross-Channel Data Processor".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.errors import ScheduleError
from nvdla.hardware.cube import cube, element_type, elements_of, memory_space, surfaces_of
from nvdla.hardware.job import Handed, Job
from nvdla.hardware.lut import LookupTables
from nvdla.hardware.register_file import RegisterGroup
from nvdla.limits import Work
from nvdla.memory.lanes import Move
from nvdla.precision import Precision

if TYPE_CHECKING:
    from nvdla.hardware.machine import Machine

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


class CdpJob(Job):
    """One prepared normalisation. The tables are those of the moment when it was prepared."""

    destination: np.ndarray

    def __init__(
        self, g: RegisterGroup, elements: Precision, channels: int, views: tuple[np.ndarray, np.ndarray], tables: Any
    ) -> None:
        self.group = g
        self.elements = elements
        self.channels = channels
        self.source, self.destination = views
        self.statistics: dict[str, int] = {}
        self._le, self._lo = tables
        self._settings = _decode(g, elements)
        self._answers = _AnswersOnce(self._settings, tables) if elements is Precision.INT8 else None

    @property
    def work(self) -> Work:
        """Every element looks at its neighbours in the channel direction."""
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
        """Do the work once; returns what the next engine takes on the fly, None where the result went to memory."""
        data = elements_of(self.source, self.elements)
        direct = self.destination.flags.c_contiguous
        out = self.destination if direct else np.empty(self.destination.shape, np.uint8)
        counters, special = self._compute(data, out.view(self.elements.bits))
        if not direct:
            self.destination[...] = out
        self.statistics = dict(zip(COUNTERS, map(int, counters), strict=True)) | special
        for name, register in (COUNTERS | SPECIAL).items():
            self.group.values[register] = self.statistics.get(name, 0) & 0xFFFFFFFF

    def _compute(self, data: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
        function, le, lo, priority = (self._settings[key] for key in ("function", "le", "lo", "priority"))
        if self.elements is Precision.FP16:
            from nvdla.kernels.cdp_fp16 import normalise_fp16
            from nvdla.kernels.pdp_fp16 import count_special

            infinities, nans = count_special(data)
            tables = (le, lo, self._le.view(np.uint16), self._lo.view(np.uint16))
            flush = self._settings["flush_nan"]
            counters, nan_output = normalise_fp16(data, out, self.channels, function, flush, *tables, priority)
            return counters, {"inf_input": infinities, "nan_input": nans, "nan_output": nan_output}
        converters = (self._settings["icvt"], self._settings["ocvt"])
        answers = self._answers.get(data, out) if self._answers else None
        if answers is not None:
            from nvdla.kernels.fast.cdp_int8 import loop_settings, normalise_int8

            return normalise_int8(data, out, self.channels, loop_settings(function, *converters), answers), {}
        from nvdla.kernels.cdp import normalise

        counters = normalise(data, out, self.channels, function, *converters, le, lo, self._le, self._lo, priority)
        return counters, {}


class _AnswersOnce:
    """What the tables answer to every total, for the fast int8 kernel: asked for once, since neither the settings nor
    the tables of a prepared job change, and only when as many elements have come by as there are totals."""

    def __init__(self, settings: dict[str, Any], tables: tuple[np.ndarray, np.ndarray]) -> None:
        self._settings = settings
        self._tables = tables
        self._seen = 0
        self._answers: Any = None

    def get(self, data: np.ndarray, out: np.ndarray) -> Any:
        """The answers, or None where the general kernel must (or had better) do it."""
        from nvdla.kernels.fast import cdp_int8

        if not _words_fit(data, out):
            return None
        if self._answers is None:
            settings = self._settings
            bounds = cdp_int8.totals(settings["function"], settings["icvt"])
            self._seen += data.size
            if self._seen <= bounds[1] - bounds[0]:
                return None
            tables = (settings["le"], settings["lo"], *self._tables, settings["priority"])
            self._answers = cdp_int8.answers(bounds, *tables)
        return self._answers


def _words_fit(data: np.ndarray, out: np.ndarray) -> bool:
    """True where both cubes can be moved eight bytes at a time, and no element is written before it is read."""
    aligned = data.ctypes.data % 8 == out.ctypes.data % 8 == 0 and data.shape[3] % 8 == 0
    return aligned and (data.ctypes.data == out.ctypes.data or not np.may_share_memory(data, out))


class Cdp:
    """The CDP of one machine. It owns its lookup tables, which both register groups share."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tables = LookupTables()
        machine.registers.on_write("CDP", self.tables.written)
        machine.registers.on_read("CDP", self.tables.read)

    def prepare(self, groups: dict[str, RegisterGroup]) -> CdpJob:
        """Decode and check. Raises ConfigError for what the hardware lacks, ScheduleError for what never ends."""
        config = self.machine.config
        config.require("cdp_throughput")
        if "CDP_RDMA" not in groups:
            raise ScheduleError("CDP waits for ever: it takes its data from memory, but CDP_RDMA is not enabled")
        g, rdma = groups["CDP"], groups["CDP_RDMA"]
        elements = element_type(g, "D_DATA_FORMAT.INPUT_DATA_TYPE", config)
        if rdma["D_DATA_FORMAT.INPUT_DATA"] != int(elements):
            raise ScheduleError(
                f"CDP waits for ever: CDP.D_DATA_FORMAT is {int(elements)}, CDP_RDMA.D_DATA_FORMAT is "
                f"{rdma['D_DATA_FORMAT.INPUT_DATA']}: they must be equal"
            )
        channels = rdma["D_DATA_CUBE_CHANNEL.CHANNEL"] + 1
        tables = (self.tables.le.copy(), self.tables.lo.copy())
        return CdpJob(g, elements, channels, self._views(g, rdma, surfaces_of(channels, elements, config)), tables)

    def _views(self, g: RegisterGroup, rdma: RegisterGroup, surfaces: int) -> tuple[np.ndarray, np.ndarray]:
        memory, config = self.machine.memory, self.machine.config
        width, height = rdma["D_DATA_CUBE_WIDTH.WIDTH"] + 1, rdma["D_DATA_CUBE_HEIGHT.HEIGHT"] + 1
        shape = (surfaces, height, width, config.memory_atom)
        source = cube(
            memory,
            memory_space(rdma, "D_SRC_DMA_CFG.SRC_RAM_TYPE", config),
            rdma.address("D_SRC_BASE_ADDR_HIGH", "D_SRC_BASE_ADDR_LOW"),
            shape,
            (rdma["D_SRC_LINE_STRIDE"], rdma["D_SRC_SURFACE_STRIDE"]),
            "CDP source",
        )
        destination = cube(
            memory,
            memory_space(g, "D_DST_DMA_CFG.DST_RAM_TYPE", config),
            g.address("D_DST_BASE_ADDR_HIGH", "D_DST_BASE_ADDR_LOW"),
            shape,
            (g["D_DST_LINE_STRIDE"], g["D_DST_SURFACE_STRIDE"]),
            "CDP destination",
        )
        return source, destination


def _decode(g: RegisterGroup, elements: Precision) -> dict[str, Any]:
    """The registers as the kernels take them."""
    from nvdla.kernels.cdp import CdpConverter, CdpFunction, Priority

    bypass = (g["D_FUNC_BYPASS.SQSUM_BYPASS"], g["D_FUNC_BYPASS.MUL_BYPASS"])
    in_bits, product_bits, out_bits = _WIDTHS.get(elements.title, (0, 0, 0))
    settings: dict[str, Any] = {
        "function": CdpFunction(g["D_LRN_CFG.NORMALZ_LEN"] + 1, *bypass, product_bits),
        "le": _table(g, "LE", elements.title),
        "lo": _table(g, "LO", elements.title),
        "priority": Priority(*(g[f"S_LUT_CFG.LUT_{which}_PRIORITY"] for which in ("UFLOW", "OFLOW", "HYBRID"))),
        "flush_nan": bool(g["D_NAN_FLUSH_TO_ZERO.NAN_TO_ZERO"]),
    }
    if elements is not Precision.FP16:
        offset = _signed(g["D_DATIN_OFFSET.DATIN_OFFSET"], 8 * elements.bytes)
        scale, shift = g.signed("D_DATIN_SCALE.DATIN_SCALE"), g["D_DATIN_SHIFTER.DATIN_SHIFTER"]
        settings["icvt"] = CdpConverter(offset, scale, shift, in_bits)
        offset = _signed(g["D_DATOUT_OFFSET"], 25 if elements is Precision.INT8 else 32)
        scale, shift = g.signed("D_DATOUT_SCALE.DATOUT_SCALE"), g["D_DATOUT_SHIFTER.DATOUT_SHIFTER"]
        settings["ocvt"] = CdpConverter(offset, scale, shift, out_bits)
    return settings


def _table(g: RegisterGroup, name: str, precision: str) -> Any:
    """One table's registers. Starts and ends: 38 bits signed for integers, fp32 for fp16; slopes: int16 or fp16."""
    from nvdla.kernels.cdp import CdpTable

    def limit(which: str) -> int:
        low = g[f"S_LUT_{name}_{which}_LOW"]
        if precision == "fp16":
            return low
        return _signed(g[f"S_LUT_{name}_{which}_HIGH.LUT_{name}_{which}_HIGH"] << 32 | low, 38)

    def slope(which: str) -> tuple[int, int]:
        scale = f"S_LUT_{name}_SLOPE_SCALE.LUT_{name}_SLOPE_{which}_SCALE"
        shift = g.signed(f"S_LUT_{name}_SLOPE_SHIFT.LUT_{name}_SLOPE_{which}_SHIFT")
        return (g[scale] if precision == "fp16" else g.signed(scale)), shift

    exponential = name == "LE" and g["S_LUT_CFG.LUT_LE_FUNCTION"] == 0
    select = _index_select(g[f"S_LUT_INFO.LUT_{name}_INDEX_SELECT"], precision)
    offset = g.signed("S_LUT_INFO.LUT_LE_INDEX_OFFSET") if name == "LE" else 0
    return CdpTable(int(exponential), limit("START"), limit("END"), offset, select, *slope("UFLOW"), *slope("OFLOW"))


def _index_select(value: int, precision: str) -> int:
    """The register has 8 bits; the integer models take bit 5 or 6 for the sign and keep positive values whole
    (NV_NVDLA_cdp.cpp:1265, :1620)."""
    if precision == "fp16":
        return _signed(value, 8)
    bits = 6 if precision == "int8" else 7
    return _signed(value, bits) if value >> (bits - 1) & 1 else value


def _signed(value: int, bits: int) -> int:
    """The low ``bits`` as a two's complement number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
