"""Which form of a convolution is taken: what the cycle model says is fastest (:mod:`nvdla.analysis.alternatives`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nvdla.analysis.alternatives import PARTS, Alternative, Geometry, alternatives
from nvdla.analysis.cycles.constants import Memory
from nvdla.builder import winograd
from nvdla.builder.cbuf import Fit, fit, tiles_of_rows
from nvdla.builder.compression import stored_weights
from nvdla.builder.ir import BYTES, Convolve
from nvdla.builder.shapes import reach
from nvdla.errors import BuildError
from nvdla.hardware.configuration import Configuration

GAIN = 0.995
"""A form in more parts, or with compressed weights, must take less than this share of the cycles of the plain one: the
model is that exact."""
WORTH_WEIGHING = 0.01
"""The share of the multiplying that fetching the input takes, or the weights that are zero, from which on parts, or
compressed weights, are weighed."""
MORE_PARTS = tuple(range(1, 13))
"""Numbers of parts that level 2 looks at."""


@dataclass(frozen=True)
class FormChoice:
    """What was weighed for one convolution, the fastest first, and the place of what was taken."""

    layer: str
    forms: tuple[Alternative, ...]
    taken: int


@dataclass(frozen=True)
class Habits:
    """What is done alike in all of a network. ``pools_alone``: no pool takes a convolution's results on the fly;
    ``shares_data``: convolutions in a row on one cube fetch it once (:mod:`nvdla.builder.reuse`)."""

    pools_alone: bool = False
    shares_data: bool = True


USUAL = Habits()


@dataclass
class Weigher:
    """Chooses forms, each geometry once, for a memory behind the accelerator (None: as wide as the bus). ``level``: 0
    takes the plain form, 2 looks at more parts than 1.

    ``wanted``: by position in the program, the place of a form among those weighed, which is taken whatever the others
    cost (:mod:`nvdla.builder.search`). ``choices``: what was chosen, by position.
    """

    config: Configuration
    level: int
    memory: Memory | None = None
    wanted: Mapping[int, int] = field(default_factory=dict)
    known: dict[Geometry, list[Alternative]] = field(default_factory=dict)
    choices: dict[int, FormChoice] = field(default_factory=dict)
    habits: Habits = USUAL

    def choose(self, operation: Convolve, plain: Fit, position: int) -> Fit:
        """The tiles and banks of a convolution. ``plain``: the fewest tiles."""
        whole_lines = all(tile.out_columns[1] == operation.process.destination.width for tile in plain.tiles)
        if not self.level or operation.source.root.pixels is not None or not whole_lines:
            return plain
        found = self._weighed(self._geometry(operation), len(plain.tiles))
        if not found:
            return plain
        taken = self.wanted.get(position, self._fastest(found, len(plain.tiles)))
        self.choices[position] = FormChoice(operation.layer, tuple(found), taken)
        best = found[taken]
        tiles = tiles_of_rows(operation, best.parts)
        return Fit(tiles, best.data_banks, best.weight_banks, best.keeps_weights, best.compressed)

    def _fastest(self, found: list[Alternative], fewest: int) -> int:
        """The first; of those that the model cannot tell from it one with plain weights, that of the fewest tiles."""
        close = [place for place, each in enumerate(found) if not place or GAIN * each.cycles < found[0].cycles]
        return min(close, key=lambda place: (found[place].compressed, len(found[place].parts) != fewest, place))

    def winograd(self, operation: Convolve, position: int) -> Fit:
        """The tiles and banks of a convolution by Winograd's method, which is known to fit."""
        found, taken = self._by_winograd(operation), self.wanted.get(position, 0)
        self.choices[position] = FormChoice(operation.layer, tuple(found), taken)
        return winograd.fit_of(operation, found[taken])

    def prefers(self, other: Convolve, plain: Convolve) -> bool:
        """Whether Winograd's method fits, and is faster than the plain form of the same convolution."""
        found = self._by_winograd(other)
        if not found:
            return False
        try:
            fewest = len(fit(plain, self.config).tiles)
        except BuildError:
            return True
        numbers = {*PARTS, fewest, 2 * fewest}
        direct = alternatives(self._geometry(plain), self.config, self.memory, numbers=numbers, thorough=False)
        return not direct or found[0].cycles < GAIN * direct[0].cycles

    def _by_winograd(self, operation: Convolve) -> list[Alternative]:
        """Its forms, the fastest first: those of few parts, or of the fewest that fit."""
        geometry = winograd.geometry_of(operation)
        if geometry not in self.known:
            numbers = MORE_PARTS if self.level > 1 else PARTS
            found = alternatives(geometry, self.config, self.memory, numbers=numbers, thorough=self.level > 1)
            most = geometry.result[1] // geometry.grain
            for count in range(max(numbers), most + 1):
                if found:
                    break
                found = alternatives(geometry, self.config, self.memory, numbers=(count, 2 * count), thorough=False)
            self.known[geometry] = found
        return self.known[geometry]

    def _weighed(self, geometry: Geometry, fewest: int) -> list[Alternative]:
        if geometry not in self.known:
            numbers = {*(MORE_PARTS if self.level > 1 else PARTS), fewest, 2 * fewest}
            thorough = self.level > 1
            share = geometry.fetch_share(self.config, self.memory)
            worth = thorough or geometry.sparse is not None or share >= WORTH_WEIGHING
            self.known[geometry] = alternatives(geometry, self.config, self.memory, numbers, thorough) if worth else []
        return self.known[geometry]

    def _geometry(self, operation: Convolve) -> Geometry:
        """A direct convolution with its weights compressed as well, where they have zeros enough."""
        plain = geometry_of(operation)
        sparse = replace(plain, sparse=stored_weights(operation, self.config))
        return sparse if sparse.zeros_share(self.config, self.memory) >= WORTH_WEIGHING else plain


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
    )
