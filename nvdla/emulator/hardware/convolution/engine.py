"""The convolution pipeline: CDMA fetches, CSC sequences, CMAC multiplies, CACC accumulates for SDP."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from nvdla.emulator.hardware.convolution.arithmetic import DirectDots, DirectHalves, arithmetic
from nvdla.emulator.hardware.convolution.cbuf import BufferAccess, ConvolutionBuffer
from nvdla.emulator.hardware.convolution.cdma import (
    FeatureSource,
    Specials,
    WeightSource,
    WinogradSource,
    decompress,
    input_source,
)
from nvdla.emulator.hardware.convolution.checks import ConvolutionSettings, Size, check, decode
from nvdla.emulator.hardware.job import EngineContext, Handed, Job
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.memory.address_space import Move
from nvdla.errors import ConfigError
from nvdla.limits import Work

#: windows that are laid out for a product of matrices at once (nvdla.kernels.conv.BLOCK_ELEMENTS), and their copy
WINDOW_SCRATCH = 64 << 20


class Convolution:
    """The engine. Its convolution buffer lives from operation to operation."""

    def __init__(self, machine: EngineContext) -> None:
        self.machine = machine
        self.buffer = ConvolutionBuffer(machine.config, model_deadlocks=not machine.hardware_only)
        self._fetched: tuple[np.ndarray, np.ndarray] | None = None

    def prepare(self, groups: dict[str, RegisterGroup]) -> ConvolutionJob:
        """Decode and check everything. Raises NvdlaError."""
        settings = decode(groups)
        check(groups, settings, self.machine.config)
        return ConvolutionJob(self, settings, groups)

    def fetch(self, groups: dict[str, RegisterGroup]) -> None:
        """Fetch data and weights now, before SDP is ready to take the results.

        The next operation then works on what memory held at this moment.
        """
        job = self.prepare(groups)
        self._fetched = job.source.read(), np.array(job.weight_source.fetched())

    @property
    def fetched_ahead(self) -> bool:
        """True until the operation after :meth:`fetch` has run."""
        return self._fetched is not None

    def close(self) -> None:
        """Note that no further convolution is prepared for this buffer."""
        self.buffer.complete = True

    def apart(self) -> Convolution:
        """Return the same engine with its own convolution buffer, for jobs that run at the same time."""
        engine = copy.copy(self)
        engine.buffer, engine._fetched = self.buffer.apart(), None
        return engine

    def take_fetched(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Lines and bytes of weights that :meth:`fetch` has read (once), None without it."""
        fetched, self._fetched = self._fetched, None
        return fetched or (None, None)


class ConvolutionJob(Job):
    """One convolution, decoded and checked. ``run`` returns the accumulators for SDP.

    A job does not change after :meth:`accounted` has returned it: ``data`` and ``weights`` are its accesses to the
    convolution buffer, ``is_first`` is True for the first convolution of a run. A run changes ``statistics`` alone, and
    the cells of the engine's buffer.
    """

    def __init__(self, engine: Convolution, settings: ConvolutionSettings, groups: dict[str, RegisterGroup]) -> None:
        machine = engine.machine
        self.engine = engine
        self.groups = groups
        self.settings = settings
        self.source = input_source(groups["CDMA"], self.settings, machine.config, machine.memory)
        self.weight_source = WeightSource(groups["CDMA"], self.settings, machine.config, machine.memory)
        self.arithmetic = arithmetic(self.settings, machine.config)
        self.statistics: dict[str, int] = {}
        self.data = self.weights = BufferAccess(fetches=True, written=0, read=0)
        self.is_first = False

    @property
    def work(self) -> Work:
        """Multiplications of all outputs; data, weights and outputs are cubes."""
        settings, kernel = self.settings, self.settings.kernel
        outputs = settings.batches * _volume(settings.output)
        data = settings.batches * max(_volume(settings.data), _volume(settings.extended))
        weights = settings.kernels * _volume(kernel)
        windows = min(16 * outputs * _volume(kernel), WINDOW_SCRATCH)
        return Work(
            outputs * _volume(kernel),
            data + weights,
            max(outputs, data, weights),
            scratch=24 * outputs + 16 * data + 10 * weights + windows,
            kept=8 * weights,
        )

    @property
    def needs_kernels(self) -> bool:
        """int16 and Winograd have no fallback."""
        return not isinstance(self.arithmetic, DirectDots | DirectHalves)

    @property
    def fallback_cost(self) -> int:
        """Estimated nanoseconds of the fallback."""
        if not isinstance(self.arithmetic, DirectHalves):
            return super().fallback_cost
        from nvdla.kernels.fp16_mac import FALLBACK_COST

        return self.work.multiplications * FALLBACK_COST

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return [*self.source.views, *self.weight_source.views]

    @property
    def writes(self) -> list[np.ndarray]:
        """Nothing: the results go to SDP."""
        return []

    @property
    def handed_shape(self) -> tuple[int, ...]:
        """Batches, surfaces, height, width and atom elements of the accumulators."""
        return self.arithmetic.shape

    def _relocate(self, move: Move) -> None:
        self.engine = move.once(self.engine, self.engine.apart)
        self.source = self.source.moved(move)
        self.weight_source = self.weight_source.moved(move)
        self.arithmetic = copy.copy(self.arithmetic)

    def accounted(self) -> ConvolutionJob:
        """Return the job at its place in the sequence of convolutions. Raises ScheduleError for a deadlock, ConfigError
        for compressed weights in a wrong place."""
        job, buffer, settings = copy.copy(self), self.engine.buffer, self.settings
        job.is_first = buffer.layers == 0
        job.data, job.weights = buffer.account(settings)
        if isinstance(job.source, WinogradSource) and job.reads_own_lines:
            job.source.check()
        if settings.compressed and job.weights.fetches and not job.weights.in_place:
            raise ConfigError("compressed weights: must be read from where they were fetched to in the buffer")
        buffer.read_back |= not (job.data.in_place and job.weights.in_place)
        for note in (*job.data.notes, *job.weights.notes):
            self.engine.machine.warn("conv", note)
        return job

    @property
    def fetched_ahead(self) -> bool:
        """True if the next run uses the data of :meth:`Convolution.fetch`, not the present memory contents."""
        return self.engine.fetched_ahead

    @property
    def displaced(self) -> bool:
        """True if it works on other lines or weights than its settings intend."""
        return bool(self.data.notes or self.weights.notes)

    def run(self, source: Handed = None) -> np.ndarray:
        """Convolve. Returns (batches, surfaces, height, width, atom elements): int32, or fp32 bits for fp16."""
        fetched_lines, fetched_weights = self.engine.take_fetched()
        buffer = self.engine.buffer
        if self.is_first:
            buffer.clear()
        # While further convolutions may be prepared, each of them may read what this one has fetched.
        stores = buffer.read_back or not buffer.complete
        packed = self._weights(fetched_weights, stores)
        lines = self._lines(fetched_lines, stores)
        if lines is None:
            accumulators = self._from_memory(packed)
        else:
            accumulators = self.arithmetic.compute(lines, packed)
        self._count(self.source.specials if self.data.fetches else Specials())
        return accumulators

    def fetching_again(self, first: ConvolutionJob) -> ConvolutionJob | None:
        """The same convolution as one that fetches its data itself, where it finds in the buffer what ``first`` has
        fetched and would fetch the same; None where it would not, or reads elsewhere. The caller knows that the data
        in memory have not changed since."""
        theirs, ours = first.source, self.source
        features = isinstance(theirs, FeatureSource) and isinstance(ours, FeatureSource)
        same_place = [_place(view) for view in theirs.views] == [_place(view) for view in ours.views]
        is_read = first.data.in_place and self.data.read == first.data.written
        if not (features and same_place and is_read and self.settings.fetched == first.settings.fetched):
            return None
        job = copy.copy(self)
        job.data = first.data
        return job

    def run_apart(self, packed: object) -> np.ndarray:
        """:meth:`run` with packed weights and past the buffer: for a caller who knows that the lines are its own
        (:attr:`reads_own_lines`) and that no other convolution reads them from the buffer."""
        if self.plain:
            accumulators = self._from_memory(packed)
        else:
            accumulators = self.arithmetic.compute(self._own_lines(self.source.read()), packed)
        self._count(self.source.specials)
        return accumulators

    def _from_memory(self, packed: Any) -> np.ndarray:
        """Convolve the cubes in memory: see :attr:`plain`."""
        assert isinstance(self.arithmetic, DirectDots) and isinstance(self.source, FeatureSource)
        return self.arithmetic.compute_surfaces(self.source.surfaces(), packed)

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the operands of the latest run, while memory and buffer are unchanged: lines (batches, lines,
        columns, channels) and weight elements in memory order."""
        settings, buffer = self.settings, self.engine.buffer
        lines = self._own_lines(self.source.read()) if self.reads_own_lines else None
        if self.weights.in_place:
            elements = self.weight_source.read()
        else:
            elements = self._from_buffer(self.weight_source.fetched() if self.weights.fetches else None)
        return buffer.read_lines(settings, self.data) if lines is None else lines, elements

    @property
    def plain(self) -> bool:
        """True if the data can be taken from memory in their layout."""
        return self.arithmetic.takes_surfaces and self.source.verbatim and self.reads_own_lines

    @property
    def reads_own_lines(self) -> bool:
        """True if it fetches all lines itself, and reads them from where it wrote them."""
        settings = self.settings
        lines = settings.extended.height if settings.winograd else settings.data.height
        return self.data.in_place and settings.extended.height <= lines

    def _weights(self, fetched: np.ndarray | None, stores: bool) -> Any:
        """Return packed weights: fetched now or before, or the contents of the buffer."""
        buffer, access, source = self.engine.buffer, self.weights, self.weight_source
        data = None
        if access.fetches and (stores or not access.in_place):
            data = source.fetched() if fetched is None else fetched
        if access.in_place:
            elements = source.read() if fetched is None else self._from_fetched(fetched)
        else:
            elements = self._from_buffer(data)
            if data is not None:
                source.elements(data[: self.settings.kernel_bytes])  # counts what was fetched
        if data is not None:
            buffer.write_weights(self.settings, access, data)
            if self.settings.compressed:
                buffer.write_mask(self.settings, access, source.mask)
        return self.arithmetic.pack(elements)

    def _from_buffer(self, fetched: np.ndarray | None) -> np.ndarray:
        """Return the weight elements that CSC reads, some of them ``fetched`` by itself."""
        settings, buffer = self.settings, self.engine.buffer
        if not settings.compressed:
            return buffer.read_weights(settings, self.weights, fetched)
        return decompress(*buffer.read_compressed(settings, self.weights), self.weight_source.count)

    def _from_fetched(self, fetched: np.ndarray) -> np.ndarray:
        """Weight elements of the bytes that CDMA fetched."""
        source = self.weight_source
        if len(source.views) > 1:
            return source.read()
        return source.elements(fetched[: self.settings.kernel_bytes])

    def _lines(self, fetched: np.ndarray | None, stores: bool) -> np.ndarray | None:
        """Return the lines that CSC works on, None where memory holds them in that form."""
        settings, buffer = self.settings, self.engine.buffer
        plain = self.plain and fetched is None
        if plain and not stores:
            return None
        if self.data.fetches:
            fetched = self.source.read() if fetched is None else fetched
            if stores or not self.reads_own_lines:
                buffer.write_lines(settings, self.data, fetched)
        if plain:
            return None
        if fetched is not None and self.reads_own_lines:
            return self._own_lines(fetched)
        return buffer.read_lines(settings, self.data)

    def _own_lines(self, fetched: np.ndarray) -> np.ndarray:
        """Return the fetched lines that CSC works on."""
        used = fetched[:, : self.settings.extended.height]
        return used if self.settings.winograd else used[..., : self.settings.extended.channels]

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


def _place(view: np.ndarray) -> tuple[object, ...]:
    """Return address, shape, strides and type of a view."""
    return view.ctypes.data, view.shape, view.strides, view.dtype


def _volume(size: Size) -> int:
    """Elements of a cube."""
    return size.width * size.height * size.channels
