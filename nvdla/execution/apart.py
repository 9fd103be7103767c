"""A convolution whose weights are packed once, and which takes no notice of the convolution buffer.

What :mod:`nvdla.execution.fused_convolution` does not know (fp16, Winograd, int16, unusual SDP settings) is done so:
an operation that uses the weights of the one before again (a band of rows of the same layer) finds them packed, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from nvdla.execution.shared import Shared
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.hardware.job import Handed, Job
from nvdla.limits import Work
from nvdla.memory.lanes import Move


class ConvolutionApart(Job):
    """A convolution with weights of its own or those of an earlier one, ``elements`` in memory order."""

    def __init__(self, conv: ConvolutionJob, elements: np.ndarray, shared: Shared) -> None:
        self.conv = conv
        self._parts: tuple[Job, ...] = (conv,)
        self.statistics = conv.statistics
        packed = conv.arithmetic.pack(elements)
        self._packed: Any = _shared(packed, shared)

    @property
    def parts(self) -> tuple[Job, ...]:
        """The job that it stands for."""
        return self._parts

    def stand_for(self, conv: ConvolutionJob) -> None:
        """Say which job of the plan this one is instead of, where ``conv`` was made from that."""
        self._parts = (conv,)

    @property
    def work(self) -> Work:
        """How much it has to do."""
        return self.conv.work

    @property
    def needs_kernels(self) -> bool:
        """As the convolution itself."""
        return self.conv.needs_kernels

    @property
    def reads(self) -> list[np.ndarray]:
        """The data: weights were read when the job was made."""
        return self.conv.source.views

    @property
    def writes(self) -> list[np.ndarray]:
        """Nothing: the results go to SDP."""
        return []

    def _relocate(self, move: Move) -> None:
        self.conv = move.once(self.conv, lambda: self.conv.moved(move))
        self._parts = tuple(move.once(part, partial(part.moved, move)) for part in self._parts)
        self.statistics = self.conv.statistics

    def run(self, source: Handed = None) -> np.ndarray:
        """Convolve. Returns what :meth:`ConvolutionJob.run` does."""
        return self.conv.run_apart(self._packed)


def _shared(packed: Any, shared: Shared) -> Any:
    """Packed weights, or the same ones of an earlier job: an array, or several."""
    if isinstance(packed, tuple):
        return tuple(shared.packed(each) for each in packed)
    return shared.packed(packed)
