"""Numbers of the descriptors that have names (kmd/firmware/include/dla_interface.h, EMUInterface.h).

Like the container's enums they accept numbers without a name (:class:`nvdla.util.registry.OpenEnum`).
"""

from __future__ import annotations

from nvdla.loadable.enums import PixelFormat
from nvdla.util.precision import Precision as Precision
from nvdla.util.registry import OpenEnum


class OpType(OpenEnum):
    """The six processors. Also the position in ``op_head`` and ``consumers``."""

    BDMA = 0
    CONV = 1
    SDP = 2
    PDP = 3
    CDP = 4
    RUBIK = 5


ENGINE_NAMES = tuple(kind.name.lower() for kind in OpType)
"""Names of the processors, by number."""


class MemType(OpenEnum):
    """Memory of a data cube: DRAM, CVSRAM, or on the fly from or to another engine."""

    MC = 0
    CV = 1
    HW = 2


class Event(OpenEnum):
    """Event that a consumer waits for."""

    NONE = 0
    OP_COMPLETED = 1
    OP_PROGRAMMED = 2
    OP_ENABLED = 3
    CDMA_WT_DONE = 4
    CDMA_DT_DONE = 5


class ConvMode(OpenEnum):
    """Mode of a convolution."""

    DIRECT = 0
    WINOGRAD = 1


#: input format of the convolution: image formats by component order from the top bit, or a feature cube
DataFormat = PixelFormat


class ImageMapping(OpenEnum):
    """Layout of the pixels of an image."""

    PITCH_LINEAR = 0


class PixelOverride(OpenEnum):
    """Sign of image components narrower than 16 bits."""

    UINT = 0
    INT = 1


class WeightFormat(OpenEnum):
    """Storage format of weights."""

    UNCOMPRESSED = 0
    COMPRESSED = 1


class MeanFormat(OpenEnum):
    """Mean subtraction of image input."""

    DISABLE = 0
    ENABLE = 1


class Activation(OpenEnum):
    """Activation after the arithmetic of an SDP stage."""

    NONE = 0
    RELU = 1
    LUT = 2
    PRELU = 3


class LutMethod(OpenEnum):
    """Index function of the first table (LE)."""

    EXPONENTIAL = 0
    LINEAR = 1


class LutPriority(OpenEnum):
    """Which table answers when both hit, or both miss on the same side: LE ("linear exp") or LO ("linear only")."""

    LINEAR_EXP = 0
    LINEAR_ONLY = 1


class SdpType(OpenEnum):
    """Which half of an SDP stage works."""

    NONE = 0
    MUL = 1
    ADD = 2
    BOTH = 3


class SdpAlu(OpenEnum):
    """Operation of the ALU of an SDP stage."""

    MAX = 0
    MIN = 1
    SUM = 2
    EQL = 3


class SdpMode(OpenEnum):
    """Granularity of the operand: one number, one per channel, or one per element."""

    PER_LAYER = 0
    PER_KERNEL = 1
    PER_POINT = 2


class PoolMode(OpenEnum):
    """Pooling method."""

    AVG = 0
    MAX = 1
    MIN = 2


class RubikMode(OpenEnum):
    """Reordering: contract, split or merge."""

    CONTRACT = 0
    SPLIT = 1
    MERGE = 2


class EmuOpType(OpenEnum):
    """Kind of a CPU operation."""

    POWER = 0
    SOFTMAX = 1

    @property
    def member(self) -> str:
        """The member of a slot of the operation list (EmuOperationContainer) that describes it."""
        return f"{self.name.lower()}_op"

    @classmethod
    def choices(cls) -> str:
        """The known ones in words."""
        return " or ".join(f"{member.value} {member.name}" for member in cls)


class EmuFormat(OpenEnum):
    """Element and atom of a CPU task's buffer: INT8 and FF16 in atoms of 32 bytes, INT8_8 in atoms of 8."""

    INT8 = 0
    INT8_8 = 1
    INT16 = 2
    FF16 = 3
    UINT8 = 4
    UINT16 = 5

    @property
    def title(self) -> str:
        """The precision: "int8", "int16", "fp16" ..."""
        return _EMU_TITLES.get(self.name, self.name.lower())


class OldEmuFormat(OpenEnum):
    """Element of a CPU task's buffer in the old ABI, which numbered formats before there were atoms of 8 bytes."""

    INT8 = 0
    INT16 = 1
    FF16 = 2
    UINT8 = 3
    UINT16 = 4

    @property
    def title(self) -> str:
        """The precision: "int8", "int16", "fp16" ..."""
        return _EMU_TITLES.get(self.name, self.name.lower())


_EMU_TITLES = {"INT8_8": "int8", "FF16": "fp16"}
#: the new ABI's format of each number of the old one
OLD_EMU_FORMATS = (EmuFormat.INT8, EmuFormat.INT16, EmuFormat.FF16, EmuFormat.UINT8, EmuFormat.UINT16)
