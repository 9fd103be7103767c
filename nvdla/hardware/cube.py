"""What the engines behind the SDP share: checks of precision and memory, and cubes in memory as element arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nvdla.errors import ConfigError, LinkError
from nvdla.hardware.configuration import Configuration, configurations
from nvdla.hardware.register_file import RegisterGroup
from nvdla.memory.address_space import AddressSpace, Space
from nvdla.rounding import ceil_div

CUBE_LIMIT = 2 << 30  # bytes of a cube that is handed over on the fly


@dataclass(frozen=True)
class ElementType:
    """A precision: register value, name, element as numpy holds it (fp16 as bit patterns)."""

    value: int
    name: str
    dtype: np.dtype


ELEMENT_TYPES = (
    ElementType(0, "int8", np.dtype(np.int8)),
    ElementType(1, "int16", np.dtype(np.int16)),
    ElementType(2, "fp16", np.dtype(np.uint16)),
)


def element_type(group: RegisterGroup, field: str, config: Configuration) -> ElementType:
    """The precision that a register field names. Raises ConfigError for one that the configuration lacks."""
    value = group[field]
    if value >= len(ELEMENT_TYPES):
        raise ConfigError(f"{group.unit}.{field} is {value}: known are 0 (int8), 1 (int16), 2 (fp16)")
    name = ELEMENT_TYPES[value].name
    if name not in config.precisions:
        able = ", ".join(each.name for each in configurations().values() if name in each.precisions)
        raise ConfigError(f"{config.name} has no {name} {group.unit}; configurations with it: {able}")
    return ELEMENT_TYPES[value]


def surfaces_of(channels: int, elements: ElementType, config: Configuration) -> int:
    """Surfaces (atoms in the channel direction) that hold ``channels``."""
    per_atom = config.memory_atom // elements.dtype.itemsize
    return ceil_div(channels, per_atom)


def memory_space(group: RegisterGroup, field: str, config: Configuration) -> Space:
    """The memory that a RAM_TYPE field selects. Raises ConfigError where there is no CVSRAM."""
    space = Space.from_ram_type(group[field])
    if space is Space.CVSRAM and not config.cvsram:
        able = ", ".join(each.name for each in configurations().values() if each.cvsram)
        what = f"{group.unit}.{field} selects the CVSRAM"
        raise ConfigError(f"{what}, {config.name} has none; configurations with it: {able}")
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


def elements_of(view: np.ndarray, elements: ElementType) -> np.ndarray:
    """The elements of a byte view, C-contiguous; no copy where the view already is."""
    return np.ascontiguousarray(view).view(elements.dtype)
