"""A batch: many images through the steps of a plan, each step for all images before the next.

What Python does for a step is done once for all of them, weights are read once for several images, and small layers
have enough work for every thread. Images lie in lanes (:mod:`nvdla.memory.lanes`).
"""

from __future__ import annotations

from nvdla.execution.fused_convolution import FusedConvolution
from nvdla.execution.plan import Plan
from nvdla.execution.steps import Chain
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.memory.lanes import Lanes

LANE_BYTES = 40 << 20
MOST_LANES = 32
"""What the lanes of a batch may take together (and the padded data of a layer again), and how many there are at most:
more make nothing faster. Large networks are fastest while the layers at work stay in a third-level cache."""


def lanes_for(images: int, lane_bytes: int) -> int:
    """How many images are worked on together: 1 where lanes are so large that nothing is gained."""
    return max(1, min(images, MOST_LANES, LANE_BYTES // max(lane_bytes, 1)))


class Batch:
    """The fused steps of a plan for images in lanes 1, 2 ...; lane 0 is where jobs without a form of their own work."""

    def __init__(self, plan: Plan, lanes: Lanes) -> None:
        self._steps = plan.steps if plan.fused is None else plan.fused
        self._lanes = lanes

    def serves(self) -> bool:
        """True when something is gained, and no image finds what the one before left.

        Convolutions that are not fused are done one by one, like everything that asks much of Python for each image;
        what they took from the convolution buffer would be of another image. Fused ones must read from lanes.
        """
        alone = [job for job in self._first_jobs() if isinstance(job, ConvolutionJob)]
        fused = self._fused()
        views = [view for each in fused for view in each.conv.source.views]
        taken = any(conv.settings.data_reuse or conv.settings.weight_reuse for conv in alone)
        return len(alone) <= len(fused) and not taken and all(self._lanes.holds(view) for view in views)

    def together(self) -> int:
        """How many images go together: one in a lane, and no more than jobs may take memory for."""
        largest = max((each.scratch_bytes for each in self._fused()), default=0)
        return min(self._lanes.count - 1, max(1, LANE_BYTES // max(largest, 1)))

    def run(self, count: int) -> None:
        """Run on the inputs in lanes 1 to ``count``."""
        for step in self._steps:
            step.run_lanes(self._lanes, count)

    def _first_jobs(self) -> list[object]:
        return [step.jobs[0] for step in self._steps if isinstance(step, Chain)]

    def _fused(self) -> list[FusedConvolution]:
        return [job for job in self._first_jobs() if isinstance(job, FusedConvolution)]
