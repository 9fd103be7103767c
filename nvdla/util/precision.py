"""Precisions of the hardware, from the interfaces ("int8") to descriptors and registers (0)."""

from __future__ import annotations

from enum import Enum

import numpy as np

_TEXTS: dict[int | str, str] = {0: "int8", 1: "int16", 2: "fp16"}
_NUMBERS: dict[int, np.dtype] = {0: np.dtype("i1"), 1: np.dtype("<i2"), 2: np.dtype("<f2")}


class Precision(str, Enum):
    """A precision: its text in interfaces and messages, its number in descriptors and registers.

    ``Precision(0)`` and ``Precision("int8")`` are ``Precision.INT8``, which equals both. As the key of a table it is
    its text. Numbers that no precision has are accepted, and printed as ``UNKNOWN_<number>``
    (kmd/firmware/include/dla_interface.h).
    """

    _value_: int

    INT8 = 0
    INT16 = 1
    FP16 = 2

    def __new__(cls, value: int | str) -> Precision:
        """Return the precision of a number or a text."""
        member = str.__new__(cls, _TEXTS[value])
        member._value_ = int(value)
        return member

    @classmethod
    def _missing_(cls, value: object) -> Precision | None:
        if isinstance(value, str):
            return next((member for member in cls if str(member) == value), None)
        if not isinstance(value, int):
            return None
        member = str.__new__(cls, f"UNKNOWN_{value}")
        member._name_, member._value_ = str(member), value
        return member

    def __eq__(self, other: object) -> bool:
        return self._value_ == other if isinstance(other, int) else str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__
    __str__ = str.__str__

    def __reduce_ex__(self, protocol: object) -> tuple[type[Precision], tuple[int]]:
        # By number: Python 3.11.2 copies enumerations by name, and an unknown number has no name to look up.
        return type(self), (self._value_,)

    def __repr__(self) -> str:
        return f"Precision.{self._name_}"

    def __format__(self, specification: str) -> str:
        return str.__format__(self, specification)

    def __index__(self) -> int:
        return self._value_

    @property
    def known(self) -> bool:
        """True for the precisions that the hardware has."""
        return self._value_ in _NUMBERS

    @property
    def bytes(self) -> int:
        """Bytes per element; 1 for an unknown precision."""
        return 2 if self in (Precision.INT16, Precision.FP16) else 1

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements as numbers: int8, int16, float16; uint8 for an unknown precision."""
        return _NUMBERS.get(self._value_, np.dtype("u1"))

    @property
    def bits(self) -> np.dtype:
        """Type of the elements as stored: fp16 as bit patterns (uint16)."""
        return np.dtype("<u2") if self == Precision.FP16 else self.dtype


PRECISIONS = tuple(Precision)
"""All precisions, by number."""
