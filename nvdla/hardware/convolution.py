"""The convolution pipeline: CDMA fetches, CSC sequences, CMAC multiplies, CACC accumulates and hands on to SDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.errors import ConfigError
from nvdla.hardware.cbuf import ConvolutionBuffer, join_lines
from nvdla.hardware.cdma import Specials, WeightSource, input_source
from nvdla.hardware.convolution_arithmetic import arithmetic
from nvdla.hardware.convolution_checks import check
from nvdla.hardware.convolution_settings import decode
from nvdla.hardware.register_file import RegisterGroup

if TYPE_CHECKING:
    from nvdla.hardware.machine import Machine


class Convolution:
    """The engine. Its convolution buffer lives from operation to operation."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.buffer = ConvolutionBuffer()
        self._fetched: tuple[np.ndarray | None, np.ndarray | None] | None = None

    def prepare(self, groups: dict[str, RegisterGroup]) -> ConvolutionJob:
        """Decode and check everything. Raises NvdlaError."""
        return ConvolutionJob(self, groups)

    def fetch(self, groups: dict[str, RegisterGroup]) -> None:
        """Fill the convolution buffer now, before SDP is ready to take the results.

        The next operation then works on what memory held at this moment.
        """
        self._fetched = self.prepare(groups).fetch()

    def take_fetched(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Lines and weights that :meth:`fetch` has read (once), None for what it has not."""
        fetched, self._fetched = self._fetched, None
        return fetched or (None, None)


class ConvolutionJob:
    """One convolution, decoded and checked. ``run`` returns the accumulators for SDP.

    ``keep_weights`` may be set by a caller who knows that the weights in memory do not change from run to run: they
    are then unpacked once; :meth:`invalidate` drops them.
    """

    destination: None = None

    def __init__(self, engine: Convolution, groups: dict[str, RegisterGroup]) -> None:
        machine = engine.machine
        self.engine = engine
        self.groups = groups
        self.settings = decode(groups)
        check(groups, self.settings, machine.config)
        self.source = input_source(groups["CDMA"], self.settings, machine.config, machine.memory)
        self.weight_source = WeightSource(groups["CDMA"], self.settings, machine.config, machine.memory)
        self.arithmetic = arithmetic(self.settings, machine.config)
        self.statistics: dict[str, int] = {}
        self.keep_weights = False
        self._packed: Any = None

    def invalidate(self) -> None:
        """Forget unpacked weights: the next run reads them from memory again."""
        self._packed = None

    def fetch(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Data lines and weight elements as memory holds them now; None for what is left in the buffer."""
        settings, buffer = self.settings, self.engine.buffer
        lines = self.source.read() if buffer.needs_fetch(settings) else None
        weights = None if buffer.left_weights(settings) is not None else np.array(self.weight_source.read())
        return lines, weights

    def run(self, source: Any = None) -> np.ndarray:
        """Convolve. Returns (batches, surfaces, height, width, atom elements): int32, or fp32 bits for fp16."""
        fetched_lines, fetched_weights = self.engine.take_fetched()
        packed, elements = self._weights(fetched_weights)
        if self.plain and fetched_lines is None:
            lines = None
            accumulators = self.arithmetic.compute_surfaces(self.source.surfaces(), packed)
        else:
            lines = self._lines(fetched_lines)
            accumulators = self.arithmetic.compute(lines, packed)
        fetched_data = self.engine.buffer.needs_fetch(self.settings)
        self.engine.buffer.finish(self.settings, lines, elements)
        self._count(fetched_data)
        return accumulators

    @property
    def plain(self) -> bool:
        """True when the data can be taken from memory as they lie: none are left from before, and none are kept."""
        settings = self.settings
        return (
            self.arithmetic.takes_surfaces
            and self.source.verbatim
            and not settings.data_reuse
            and not settings.keep_data
            and settings.released_lines >= settings.extended.height
            and settings.extended.height <= settings.data.height
        )

    def _weights(self, fetched: np.ndarray | None) -> tuple[Any, np.ndarray | None]:
        """Packed weights and, where they were read, their elements in memory order."""
        if self._packed is not None and not self.settings.weight_reuse and not self.settings.keep_weights:
            return self._packed, None
        elements = self._elements(fetched)
        packed = self.arithmetic.pack(elements)
        self._packed = packed if self.keep_weights else None
        return packed, elements

    def _lines(self, fetched: np.ndarray | None) -> np.ndarray:
        """The lines in the convolution buffer: what is left, then what is fetched."""
        settings, buffer = self.settings, self.engine.buffer
        left = buffer.left_lines(settings)
        if not buffer.needs_fetch(settings):
            return join_lines(None, left, settings.extended.height)
        fetched = self.source.read() if fetched is None else fetched
        return join_lines(left, fetched, settings.extended.height)

    def _elements(self, fetched: np.ndarray | None) -> np.ndarray:
        """Weight elements in memory order: left in the buffer, fetched before, or read now."""
        left = self.engine.buffer.left_weights(self.settings)
        if left is None:
            return self.weight_source.read() if fetched is None else fetched
        if left.size < self.weight_source.count:
            raise ConfigError(
                f"weight re-use: {self.weight_source.count} weights needed, the convolution buffer holds {left.size}"
            )
        return left

    def _count(self, fetched_data: bool) -> None:
        """The statistics registers of CACC and CDMA (cmod/cacc/NV_NVDLA_cacc.cpp:111, cdma/NV_NVDLA_cdma.cpp:196)."""
        data = self.source.specials if fetched_data else Specials()
        weights = self.weight_source.specials
        counters = (
            ("saturated", "CACC", "D_OUT_SATURATION", self.arithmetic.saturated),
            ("nan_data", "CDMA", "D_NAN_INPUT_DATA_NUM", data.nans),
            ("inf_data", "CDMA", "D_INF_INPUT_DATA_NUM", data.infinities),
            ("nan_weights", "CDMA", "D_NAN_INPUT_WEIGHT_NUM", weights.nans),
            ("inf_weights", "CDMA", "D_INF_INPUT_WEIGHT_NUM", weights.infinities),
        )
        for name, unit, register, value in counters:
            self.statistics[name] = value
            self.groups[unit].values[register] = value & 0xFFFFFFFF
