"""A batch: many images through the steps of a plan, each step for all images before the next.

What Python does for a step is done once for all of them, weights are read once for several images, and small layers
have enough work for every thread. Images lie in lanes (:mod:`nvdla.memory.lanes`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.cpu import CpuTask
from nvdla.execution.fusing import FastAdd, FusedConvolution
from nvdla.execution.plan import Plan, job_reads, job_writes
from nvdla.hardware.pdp import PdpJob
from nvdla.memory.lanes import Lanes

LANE_BYTES = 40 << 20
MOST_LANES = 32
"""What the lanes of a batch may take together (and the padded data of a layer again), and how many there are at most:
more make nothing faster. Large networks are fastest while the layers at work stay in a third-level cache."""


def lanes_for(images: int, lane_bytes: int) -> int:
    """How many images are worked on together: 1 where lanes are so large that nothing is gained."""
    return max(1, min(images, MOST_LANES, LANE_BYTES // max(lane_bytes, 1)))


class Batch:
    """The steps of a plan for images in lanes 1, 2 ...; lane 0 is where jobs without a form of their own work."""

    def __init__(self, plan: Plan, lanes: Lanes) -> None:
        self._steps = plan.fused
        self._lanes = lanes

    def serves(self) -> bool:
        """True when something is gained, and no image finds what the one before left.

        Convolutions that are not fused are done one by one, like everything that asks much of Python for each image;
        what they took from the convolution buffer would be of another image. Fused ones must read from lanes.
        """
        alone = [step[0] for step in self._steps if isinstance(step, tuple) and hasattr(step[0], "weight_source")]
        fused = self._convolutions()
        views = [view for each in fused for view in each.conv.source.views]
        taken = any(conv.settings.data_reuse or conv.settings.weight_reuse for conv in alone)
        return len(alone) <= len(fused) and not taken and all(self._lanes.holds(view) for view in views)

    def together(self) -> int:
        """How many images go together: one in a lane, and no more than jobs may take memory for."""
        largest = max((each.scratch_bytes for each in self._convolutions()), default=0)
        return min(self._lanes.count - 1, max(1, LANE_BYTES // max(largest, 1)))

    def run(self, count: int) -> None:
        """Run on the inputs in lanes 1 to ``count``."""
        for step in self._steps:
            if isinstance(step, CpuTask):
                step.run_lanes(self._lanes, count)
                continue
            handed = None
            for job in step:
                handed = self._run(job, count, handed)

    def _convolutions(self) -> list[FusedConvolution]:
        return [step[0] for step in self._steps if isinstance(step, tuple) and isinstance(step[0], FusedConvolution)]

    def _run(self, job: Any, count: int, handed: np.ndarray | None) -> np.ndarray | None:
        if isinstance(job, (FusedConvolution, FastAdd)):
            return job.run_lanes(self._lanes, count)
        if isinstance(job, PdpJob) and job.takes_lanes:
            return job.run_lanes(self._lanes, count, handed)
        return self._by_way_of_lane_0(job, count, handed)

    def _by_way_of_lane_0(self, job: Any, count: int, handed: np.ndarray | None) -> np.ndarray | None:
        """What the job reads is brought to lane 0, and what it writes from there."""
        lanes = self._lanes
        reads = [view for view in job_reads(job) if lanes.holds(view)]
        writes = job_writes(job)
        results = []
        for lane in range(1, count + 1):
            for view in reads:
                view[...] = lanes.at(view, lane)
            results.append(job.run(None if handed is None else handed[lane - 1]))
            for view in writes:
                lanes.at(view, lane)[...] = view
        return None if results[0] is None else np.stack(results)
