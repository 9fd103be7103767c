"""The SDP's weighted sum of cubes in memory as one pass: residual sums, copies to another scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.execution.guards import Cubes, cubes_line_up, plain_int8_cubes, weighted_sum
from nvdla.execution.shared import flat_bytes
from nvdla.hardware.job import Handed, Job
from nvdla.hardware.sdp.engine import SdpJob
from nvdla.limits import Work
from nvdla.memory.lanes import Lanes, Move

if TYPE_CHECKING:
    from nvdla.kernels.jit.record import Record


def fast_add(sdp: SdpJob) -> FastAdd | None:
    """A job for the weighted sum of int8 cubes in memory, two or only one, or None where the operation is another."""
    weighted = weighted_sum(sdp) if plain_int8_cubes(sdp) else None
    if weighted is None or sdp.input is None or sdp.destination is None:
        return None
    second, weights, relu = weighted
    views = (sdp.input.view, second, sdp.destination)
    if not cubes_line_up(views):
        return None
    from nvdla.kernels.fast.sdp_int8_add import sum_fits

    return FastAdd(sdp, views, weights, relu) if sum_fits(weights) else None


class FastAdd(Job):
    """SDP from memory to memory: the weighted sum of two cubes of int8, ReLU, output converter."""

    def __init__(self, sdp: SdpJob, views: Cubes, weights: tuple[int, int], relu: bool) -> None:
        self.sdp = sdp
        self._weights = weights
        self._relu = relu
        self.destination = sdp.destination
        self.statistics: dict[str, int] = {}
        self._place(views)

    @property
    def parts(self) -> tuple[Job, ...]:
        """The jobs that it stands for, in the order of the data."""
        return (self.sdp,)

    @property
    def work(self) -> Work:
        """How much it has to do."""
        return self.sdp.work

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return self.sdp.reads

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return self.sdp.writes

    def _relocate(self, move: Move) -> None:
        self.sdp = move.once(self.sdp, lambda: self.sdp.moved(move))
        self.destination = self.sdp.destination
        first, second, out = self._views
        self._place((move(first), move(second), move(out)))

    def _place(self, views: Cubes) -> None:
        """Work on these cubes: two operands and the result."""
        self._views = views
        self._record: Record | None = None

    def run(self, source: Handed = None) -> None:
        """Add and convert. Every element is read before it is written, so the result may replace an operand."""
        self._recorded().run()

    def records(self, source: Handed = None) -> tuple[list[Record], Handed]:
        """The one record that it is."""
        return [self._recorded()], None

    def run_lanes(self, lanes: Lanes, count: int, handed: Handed = None) -> None:
        """Compute for ``count`` images in lanes 1, 2 ..."""
        cubes = [
            (lanes.flat(view, 1, count), lanes.stride) if lanes.holds(view) else (flat_bytes(view), 0)
            for view in self._views
        ]
        self._addition(cubes, count).run()

    def _recorded(self) -> Record:
        self._record = self._record or self._addition([(flat_bytes(view), 0) for view in self._views], 1)
        return self._record

    def _addition(self, cubes: list[tuple[np.ndarray, int]], images: int) -> Record:
        """For ``images``; ``cubes``: operands and result, flat, with the bytes from one image to the next."""
        from nvdla.kernels.fast.sdp_int8_add import addition

        settings = self.sdp.settings
        converter = (settings.converter.offset, settings.converter.scale, settings.converter.shift)
        (first, first_stride), (second, second_stride), (out, out_stride) = cubes
        strides = (self._views[0].strides[0], self._views[1].strides[0], self._views[2].strides[0])
        size, apart = settings.pixels * settings.atom, (first_stride, second_stride, out_stride)
        surfaces, weights = settings.surfaces, self._weights
        return addition(first, second, strides, size, surfaces, self._relu, converter, out, weights, images, apart)
