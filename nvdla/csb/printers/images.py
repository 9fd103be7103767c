"""Memory images: what must lie in memory before the program starts, the run's inputs included."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvdla.csb.export import Export
from nvdla.memory.address_space import Space
from nvdla.rounding import align

FORMAT = "bin"
HELP = "memory images as raw bytes"


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for space, pieces in images(export):
        export.save(f"{export.name}_{space.value}.bin", pieces)


def images(export: Export) -> Iterator[tuple[Space, Iterator[np.ndarray]]]:
    """The memories that are not empty, from their base to the last byte that is not zero: sizes are multiples of 16."""
    start = export.recording.start
    for space in start.sizes:
        if end := align(start.end(space), 16):
            yield space, start.pieces(space, 0, end)
