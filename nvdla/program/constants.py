"""What a loadable brings along for an operation: weights, masks, operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.loadable.model import Loadable
from nvdla.program.operation import Operation


def constant_bytes(loadable: Loadable, subject: Operation, cube: Any) -> np.ndarray | None:
    """The loaded bytes (uint8) of a data cube, as many as its size says; None where nothing is loaded."""
    window = subject.finder.window(cube.address)
    if window is None:
        return None
    entry = window[0]
    start, size = entry.offset + cube.offset, cube.size
    for begin, blob in loadable.contents(loadable.memory(entry.mem_id)):
        if begin <= start < begin + blob.length:
            return np.frombuffer(blob.data, np.uint8)[start - begin : start - begin + size]
    return None
