"""The convolution pipeline: CDMA fetches, CSC sequences, CMAC multiplies, CACC accumulates and hands on to SDP."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.errors import ConfigError
from nvdla.hardware.convolution.arithmetic import arithmetic
from nvdla.hardware.convolution.cbuf import ConvolutionBuffer, Left, join_lines
from nvdla.hardware.convolution.cdma import Specials, WeightSource, input_source
from nvdla.hardware.convolution.checks import check
from nvdla.hardware.convolution.settings import Size, decode
from nvdla.hardware.job import Handed, Job
from nvdla.hardware.register_file import RegisterGroup
from nvdla.limits import Work
from nvdla.memory.lanes import Move

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

    def apart(self) -> Convolution:
        """The same engine with a convolution buffer of its own, for jobs that run at the same time."""
        engine = copy.copy(self)
        engine.buffer, engine._fetched = ConvolutionBuffer(), None
        return engine

    def take_fetched(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Lines and weights that :meth:`fetch` has read (once), None for what it has not."""
        fetched, self._fetched = self._fetched, None
        return fetched or (None, None)


class ConvolutionJob(Job):
    """One convolution, decoded and checked. ``run`` returns the accumulators for SDP.

    ``keep_weights`` may be set by a caller who knows that the weights in memory do not change from run to run: they
    are then unpacked once; :meth:`invalidate` drops them.
    """

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
        self._uses_left: tuple[bool, bool] | None = None

    @property
    def work(self) -> Work:
        """Multiplications of all outputs; data, weights and outputs are cubes."""
        settings, kernel = self.settings, self.settings.kernel
        outputs = settings.batches * _volume(settings.output)
        data = settings.batches * max(_volume(settings.data), _volume(settings.extended))
        weights = settings.kernels * _volume(kernel)
        return Work(outputs * _volume(kernel), data + weights, max(outputs, data, weights))

    @property
    def reads(self) -> list[np.ndarray]:
        return [*self.source.views, *self.weight_source.views]

    @property
    def writes(self) -> list[np.ndarray]:
        """Nothing: the results go to SDP."""
        return []

    def _relocate(self, move: Move) -> None:
        self.engine = move.once(self.engine, self.engine.apart)
        self.source = self.source.moved(move)
        self.weight_source = self.weight_source.moved(move)
        self.arithmetic = copy.copy(self.arithmetic)

    def invalidate(self) -> None:
        """Forget unpacked weights: the next run reads them from memory again."""
        self._packed = None

    def fetch(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Data lines and weight elements as memory holds them now; None for what is left in the buffer."""
        left = self._left()
        lines = None if left.complete else self.source.read()
        weights = np.array(self.weight_source.read()) if left.weights is None else None
        return lines, weights

    def run(self, source: Handed = None) -> np.ndarray:
        """Convolve. Returns (batches, surfaces, height, width, atom elements): int32, or fp32 bits for fp16."""
        left = self._left()
        fetched_lines, fetched_weights = self.engine.take_fetched()
        packed, elements = self._weights(left, fetched_weights)
        if self.plain and fetched_lines is None:
            lines = None
            accumulators = self.arithmetic.compute_surfaces(self.source.surfaces(), packed)
        else:
            lines = self._lines(left, fetched_lines)
            accumulators = self.arithmetic.compute(lines, packed)
        self.engine.buffer.finish(self.settings, lines, elements)
        self._count(Specials() if left.complete else self.source.specials)
        return accumulators

    def _left(self) -> Left:
        """What the layer before left and this one uses.

        The first run decides whether there is any, so that the first layer of a later run finds nothing of the run
        before.
        """
        left = self.engine.buffer.left(self.settings)
        if self._uses_left is None:
            self._uses_left = left.lines is not None, left.weights is not None
        lines, weights = self._uses_left
        return Left(left.lines if lines else None, left.weights if weights else None, lines and left.complete)

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

    def _weights(self, left: Left, fetched: np.ndarray | None) -> tuple[Any, np.ndarray | None]:
        """Packed weights and, where they were read, their elements in memory order."""
        if self._packed is not None and not self.settings.weight_reuse and not self.settings.keep_weights:
            return self._packed, None
        elements = self._elements(left.weights, fetched)
        packed = self.arithmetic.pack(elements)
        self._packed = packed if self.keep_weights else None
        return packed, elements

    def _lines(self, left: Left, fetched: np.ndarray | None) -> np.ndarray:
        """The lines in the convolution buffer: what is left, then what is fetched."""
        settings = self.settings
        if left.complete:
            lines = join_lines(None, left.lines, settings.extended.height)
        else:
            fetched = self.source.read() if fetched is None else fetched
            lines = join_lines(left.lines, fetched, settings.extended.height)
        found = (lines.shape[0], lines.shape[3], lines.dtype)
        wanted = (settings.batches, settings.extended.channels, settings.precision.bits)
        if found != wanted:
            raise ConfigError(
                f"data re-use: the convolution buffer holds {found[0]} batches of {found[1]} channels ({found[2]}), "
                f"the convolution works on {wanted[0]} of {wanted[1]} ({wanted[2]})"
            )
        return lines

    def _elements(self, left: np.ndarray | None, fetched: np.ndarray | None) -> np.ndarray:
        """Weight elements in memory order: left in the buffer, fetched before, or read now."""
        if left is None:
            return self.weight_source.read() if fetched is None else fetched
        if left.size < self.weight_source.count:
            raise ConfigError(
                f"weight re-use: {self.weight_source.count} weights needed, the convolution buffer holds {left.size}"
            )
        return left

    def _count(self, data: Specials) -> None:
        """The statistics registers of CACC and CDMA (cmod/cacc/NV_NVDLA_cacc.cpp:111, cdma/NV_NVDLA_cdma.cpp:196)."""
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


def _volume(size: Size) -> int:
    """Elements of a cube."""
    return size.width * size.height * size.channels
