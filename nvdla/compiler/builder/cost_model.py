"""Cost model of the builder, with the choice of compressed weights.

One bit per element states whether it is stored. The bits are in the last bank of the convolution buffer, so data and
weights share one bank less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from nvdla.analysis.alternatives import PARTS, Alternative, Geometry, StoredWeights, alternatives, compressed
from nvdla.analysis.cycles.constants import Memory
from nvdla.compiler.builder import packing
from nvdla.compiler.builder.cbuf import Fit, fit, kernel_group, tiles_of_rows
from nvdla.compiler.builder.ir import BYTES, Convolve
from nvdla.compiler.builder.layers import reach
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import BuildError


def stored_weights(operation: Convolve, config: Configuration) -> StoredWeights | None:
    """Return the sizes of a convolution's weights without their zeros; None if that is not less, or not possible.

    Images have few weights; transformed weights (Winograd) are not the zeros that were there.
    """
    if not config.weight_compression or operation.winograd or operation.source.root.pixels is not None:
        return None
    precision, kernels = operation.source.precision, len(operation.weights)
    group = kernel_group(config, precision)
    nonzero = np.add.reduceat(operation.nonzero, np.arange(0, kernels, group))
    most = min(group, kernels) * operation.weights[0].size
    return compressed(nonzero, operation.weights.size, most, BYTES[precision], config)


GAIN = 0.995
"""A form in more parts, or with compressed weights, must take less than this share of the cycles of the plain one: the
model is that exact."""
WORTH_EVALUATING = 0.01
"""Threshold for evaluating parts or compressed weights.

For parts: cycles of fetching the input, as a share of the multiplying. For compressed weights: share of zeros."""
MORE_PARTS = tuple(range(1, 13))
"""Numbers of parts that level 2 looks at."""


@dataclass(frozen=True)
class FormChoice:
    """Candidates for one convolution, the fastest first, and the index of the chosen one."""

    layer: str
    forms: tuple[Alternative, ...]
    taken: int


@dataclass(frozen=True)
class Policy:
    """Policy for a whole network. ``pools_alone``: no pool takes a convolution's results on the fly;
    ``shares_data``: convolutions in a row on one cube fetch it once (:mod:`nvdla.compiler.builder.schedule`)."""

    pools_alone: bool = False
    shares_data: bool = True


USUAL_POLICY = Policy()


@dataclass
class CostModel:
    """Cost model that chooses a variant per convolution and evaluates each geometry once.

    ``memory`` is the accelerator's memory (None: as wide as the bus). ``level`` 0 takes the fallback, 2 evaluates more
    parts than 1. ``wanted``: forced choices, by position in the program the index of a candidate
    (:mod:`nvdla.compiler.builder.search`). ``choices``: the choices made, by position.
    """

    config: Configuration
    level: int
    memory: Memory | None = None
    wanted: Mapping[int, int] = field(default_factory=dict)
    known: dict[Geometry, list[Alternative]] = field(default_factory=dict)
    choices: dict[int, FormChoice] = field(default_factory=dict)
    policy: Policy = USUAL_POLICY

    def choose(self, operation: Convolve, plain: Fit, position: int) -> Fit:
        """The tiles and banks of a convolution. ``plain``: the fewest tiles."""
        whole_lines = all(tile.out_columns[1] == operation.process.destination.width for tile in plain.tiles)
        if not self.level or operation.source.root.pixels is not None or not whole_lines:
            return plain
        forms = self._evaluated(self._geometry(operation), len(plain.tiles))
        if not forms:
            return plain
        taken = self.wanted.get(position, self._fastest(forms, len(plain.tiles)))
        self.choices[position] = FormChoice(operation.layer, tuple(forms), taken)
        best = forms[taken]
        tiles = tiles_of_rows(operation, best.parts)
        return Fit(tiles, best.data_banks, best.weight_banks, best.keeps_weights, best.compressed)

    def _fastest(self, forms: list[Alternative], fewest: int) -> int:
        """The first; of those that the model cannot tell from it one with plain weights, that of the fewest tiles."""
        close = [place for place, form in enumerate(forms) if not place or GAIN * form.cycles < forms[0].cycles]
        return min(close, key=lambda place: (forms[place].compressed, len(forms[place].parts) != fewest, place))

    def winograd(self, operation: Convolve, position: int) -> Fit:
        """The tiles and banks of a convolution by Winograd's method, which is known to fit."""
        forms, taken = self._by_winograd(operation), self.wanted.get(position, 0)
        self.choices[position] = FormChoice(operation.layer, tuple(forms), taken)
        return packing.fit_of(operation, forms[taken])

    def prefers(self, other: Convolve, plain: Convolve) -> bool:
        """Return whether Winograd's method fits, and is faster than direct convolution."""
        forms = self._by_winograd(other)
        if not forms:
            return False
        try:
            fewest = len(fit(plain, self.config).tiles)
        except BuildError:
            return True
        numbers = {*PARTS, fewest, 2 * fewest}
        direct = alternatives(self._geometry(plain), self.config, self.memory, numbers=numbers, thorough=False)
        return not direct or forms[0].cycles < GAIN * direct[0].cycles

    def _by_winograd(self, operation: Convolve) -> list[Alternative]:
        """Its forms, the fastest first: those of few parts, or of the fewest that fit."""
        geometry = packing.geometry_of(operation)
        if geometry not in self.known:
            numbers = MORE_PARTS if self.level > 1 else PARTS
            forms = alternatives(geometry, self.config, self.memory, numbers=numbers, thorough=self.level > 1)
            most = geometry.result[1] // geometry.grain
            for count in range(max(numbers), most + 1):
                if forms:
                    break
                forms = alternatives(geometry, self.config, self.memory, numbers=(count, 2 * count), thorough=False)
            self.known[geometry] = forms
        return self.known[geometry]

    def _evaluated(self, geometry: Geometry, fewest: int) -> list[Alternative]:
        if geometry not in self.known:
            numbers = {*(MORE_PARTS if self.level > 1 else PARTS), fewest, 2 * fewest}
            thorough = self.level > 1
            share = geometry.fetch_share(self.config, self.memory)
            worth = thorough or geometry.sparse is not None or share >= WORTH_EVALUATING
            self.known[geometry] = alternatives(geometry, self.config, self.memory, numbers, thorough) if worth else []
        return self.known[geometry]

    def _geometry(self, operation: Convolve) -> Geometry:
        """A direct convolution with its weights compressed as well, where they have zeros enough."""
        plain = geometry_of(operation)
        sparse = replace(plain, sparse=stored_weights(operation, self.config))
        return sparse if sparse.zeros_share(self.config, self.memory) >= WORTH_EVALUATING else plain


def geometry_of(operation: Convolve) -> Geometry:
    """A convolution as the model weighs it."""
    _, _, rows, columns = operation.weights.shape
    return Geometry(
        operation.source.shape,
        operation.process.destination.shape,
        (rows, columns),
        reach(rows, operation.dilation[0]),
        operation.stride[0],
        operation.padding[0],
        any(stage.surfaces for stage in operation.process.stages),
        BYTES[operation.source.precision],
        table=operation.process.lut is not None,
    )
