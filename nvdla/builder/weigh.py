"""Which form of a convolution is taken: what the cycle model says is fastest (:mod:`nvdla.analysis.alternatives`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from nvdla.analysis.alternatives import PARTS, Alternative, Geometry, alternatives
from nvdla.builder.cbuf import Fit, tiles_of_rows
from nvdla.builder.ir import BYTES, Convolve
from nvdla.builder.shapes import reach
from nvdla.hardware.configuration import Configuration

GAIN = 0.995
"""A form in more parts must take less than this share of the cycles of the plain one: the model is that exact."""
WORTH_WEIGHING = 0.01
"""The share of the multiplying that fetching the input takes, from which on parts are weighed."""
MORE_PARTS = tuple(range(1, 13))
"""Numbers of parts that level 2 looks at."""


@dataclass
class Weigher:
    """Chooses forms, each geometry once. ``level``: 0 takes the plain form, 2 looks at more parts than 1."""

    config: Configuration
    level: int
    known: dict[Geometry, list[Alternative]] = field(default_factory=dict)

    def choose(self, operation: Convolve, plain: Fit) -> Fit:
        """The tiles and banks of a convolution. ``plain``: the fewest tiles."""
        whole_lines = all(tile.out_columns[1] == operation.process.destination.width for tile in plain.tiles)
        if not self.level or operation.source.root.pixels is not None or not whole_lines:
            return plain
        geometry = geometry_of(operation)
        found = self._weighed(geometry, len(plain.tiles))
        if not found:
            return plain
        same = [each for each in found if len(each.parts) == len(plain.tiles)]
        best = found[0]
        if same and best.cycles > GAIN * same[0].cycles:
            best = same[0]
        tiles = tiles_of_rows(operation, best.parts)
        return Fit(tiles, best.data_banks, best.weight_banks, best.keeps_weights)

    def _weighed(self, geometry: Geometry, fewest: int) -> list[Alternative]:
        if geometry not in self.known:
            numbers = {*(MORE_PARTS if self.level > 1 else PARTS), fewest, 2 * fewest}
            thorough = self.level > 1
            worth = thorough or geometry.fetch_share(self.config) >= WORTH_WEIGHING
            self.known[geometry] = (
                alternatives(geometry, self.config, numbers=numbers, thorough=thorough) if worth else []
            )
        return self.known[geometry]


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
