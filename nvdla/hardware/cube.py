"""What the engines behind the SDP share: checks of precision and memory, and cubes in memory as element arrays."""

from __future__ import annotations

import math

import numpy as np

from nvdla.errors import LinkError
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.register_file import RegisterGroup
from nvdla.memory.address_space import AddressSpace, Space
from nvdla.precision import Precision
from nvdla.rounding import ceil_div

CUBE_LIMIT = 2 << 30  # bytes of a cube that is handed over on the fly


def element_type(group: RegisterGroup, field: str, config: Configuration) -> Precision:
    """The precision that a register field names. Raises ConfigError for one that the configuration lacks."""
    return config.require_precision(group[field], f"{group.unit}.{field}")


def surfaces_of(channels: int, elements: Precision, config: Configuration) -> int:
    """Surfaces (atoms in the channel direction) that hold ``channels``."""
    return ceil_div(channels, config.memory_atom // elements.bytes)


def memory_space(group: RegisterGroup, field: str, config: Configuration) -> Space:
    """The memory that a RAM_TYPE field selects. Raises ConfigError where there is no CVSRAM."""
    space = Space.from_ram_type(group[field])
    if space is Space.CVSRAM:
        config.require("cvsram", f"{group.unit}.{field}")
    return space


def check_size(shape: tuple[int, ...], limit: int, what: str) -> None:
    """Refuse a cube (bytes in the last axis) of more than ``limit`` bytes before anything is allocated for it."""
    size = math.prod(shape)
    if size > limit:
        raise LinkError(f"{what}: a cube of {' x '.join(map(str, shape))} bytes has {size}, the limit is {limit}")


def cube(
    memory: AddressSpace,
    space: Space,
    address: int,
    shape: tuple[int, int, int, int],
    strides: tuple[int, int],
    what: str,
) -> np.ndarray:
    """A checked uint8 view (surfaces, height, width, atom bytes); ``strides``: (line, surface) in bytes.

    A cube may overlap itself (strides of 0 do), but is never larger than the region it lies in: work and memory
    stay proportional to what the caller mapped.
    """
    view = memory.surface(space, address, shape, strides[0], strides[1], what)
    check_size(shape, memory.find(space, address, 1, what).size, what)
    return view


def elements_of(view: np.ndarray, elements: Precision) -> np.ndarray:
    """The elements of a byte view, C-contiguous; no copy where the view already is."""
    return np.ascontiguousarray(view).view(elements.bits)
