"""The precisions of the hardware: number, name, bytes, element types. The same in descriptors and registers."""

from __future__ import annotations

import numpy as np

from nvdla.open_enum import OpenEnum


class Precision(OpenEnum):
    """A precision by its number in descriptors and registers (kmd/firmware/include/dla_interface.h)."""

    INT8 = 0
    INT16 = 1
    FP16 = 2

    @property
    def title(self) -> str:
        """ "int8", "int16" or "fp16", as configurations and messages call it."""
        return self.name.lower()

    @property
    def bytes(self) -> int:
        """Bytes of an element; 1 for a number that is no precision."""
        return 2 if self in (Precision.INT16, Precision.FP16) else 1

    @property
    def dtype(self) -> np.dtype:
        """Elements as numbers: int8, int16, float16; bytes for a number that is no precision."""
        return _NUMBERS.get(int(self), np.dtype("u1"))

    @property
    def bits(self) -> np.dtype:
        """Elements as they lie in memory: fp16 as bit patterns (uint16)."""
        return np.dtype("<u2") if self == Precision.FP16 else self.dtype

    @classmethod
    def named(cls, title: str) -> Precision:
        """The precision called "int8", "int16" or "fp16". KeyError for another name."""
        return cls[title.upper()]


PRECISIONS = tuple(each.title for each in Precision)
"""What they are called, by number."""

_NUMBERS: dict[int, np.dtype] = {0: np.dtype("i1"), 1: np.dtype("<i2"), 2: np.dtype("<f2")}
