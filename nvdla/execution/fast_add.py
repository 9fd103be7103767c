"""The SDP's weighted sum of cubes in memory as one pass: residual sums, copies to another scale."""

from __future__ import annotations

import numpy as np

from nvdla.execution.guards import Cubes, cubes_line_up, plain_int8_cubes, weighted_sum
from nvdla.execution.shared import flat_bytes
from nvdla.hardware.job import Handed, Job
from nvdla.hardware.sdp.engine import SdpJob
from nvdla.limits import Work
from nvdla.memory.lanes import Lanes, Move


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
        first, second, out = self._views = views
        self._flat = flat_bytes(first), flat_bytes(second), flat_bytes(out)
        self._strides = first.strides[0], second.strides[0], out.strides[0]

    def run(self, source: Handed = None) -> None:
        """Add and convert. Every element is read before it is written, so the result may replace an operand."""
        self._add(*self._flat)

    def run_lanes(self, lanes: Lanes, count: int, handed: Handed = None) -> None:
        """Compute for ``count`` images in lanes 1, 2 ..."""
        first, second, out = (
            (lanes.flat(view, 1, count), lanes.stride) if lanes.holds(view) else (flat_bytes(view), 0)
            for view in self._views
        )
        self._add(first[0], second[0], out[0], count, (first[1], second[1], out[1]))

    def _add(
        self,
        first: np.ndarray,
        second: np.ndarray,
        out: np.ndarray,
        images: int = 1,
        steps: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        from nvdla.kernels.fast.sdp_int8_add import add_and_convert

        settings = self.sdp.settings
        converter = settings.converter
        add_and_convert(
            first,
            second,
            self._strides,
            settings.pixels * settings.atom,
            settings.surfaces,
            self._relu,
            (converter.offset, converter.scale, converter.shift),
            out,
            self._weights,
            images,
            steps,
        )
