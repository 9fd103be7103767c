"""Numbers of the descriptors that have names (kmd/firmware/include/dla_interface.h, EMUInterface.h).

Like the container's enums they accept numbers without a name (:class:`nvdla.open_enum.OpenEnum`).
"""

from __future__ import annotations

from nvdla.loadable.enums import PixelFormat
from nvdla.open_enum import OpenEnum
from nvdla.precision import Precision as Precision


class OpType(OpenEnum):
    """The six processors. Also the position in ``op_head`` and ``consumers``."""

    BDMA = 0
    CONV = 1
    SDP = 2
    PDP = 3
    CDP = 4
    RUBIK = 5


ENGINE_NAMES = tuple(each.name.lower() for each in OpType)
"""What the processors are called everywhere, by number."""


class MemType(OpenEnum):
    """Where a data cube lies: DRAM, CVSRAM, or on the fly from or to the neighbouring engine."""

    MC = 0
    CV = 1
    HW = 2


class Event(OpenEnum):
    """What a consumer waits for."""

    NONE = 0
    OP_COMPLETED = 1
    OP_PROGRAMMED = 2
    OP_ENABLED = 3
    CDMA_WT_DONE = 4
    CDMA_DT_DONE = 5


class ConvMode(OpenEnum):
    """How a convolution is computed."""

    DIRECT = 0
    WINOGRAD = 1


#: input format of the convolution: image formats by component order from the top bit, or a feature cube
DataFormat = PixelFormat


class ImageMapping(OpenEnum):
    """How the pixels of an image lie."""

    PITCH_LINEAR = 0


class PixelOverride(OpenEnum):
    """How image components narrower than 16 bits are read."""

    UINT = 0
    INT = 1


class WeightFormat(OpenEnum):
    """How weights are stored."""

    UNCOMPRESSED = 0
    COMPRESSED = 1


class MeanFormat(OpenEnum):
    """Whether a mean is subtracted."""

    DISABLE = 0
    ENABLE = 1


class Activation(OpenEnum):
    """What a stage of the SDP does behind its arithmetic."""

    NONE = 0
    RELU = 1
    LUT = 2
    PRELU = 3


class LutMethod(OpenEnum):
    """How the first table (LE) is indexed."""

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
    """What the ALU of an SDP stage does."""

    MAX = 0
    MIN = 1
    SUM = 2
    EQL = 3


class SdpMode(OpenEnum):
    """Where the operand comes from: one number, one a channel, or one an element."""

    PER_LAYER = 0
    PER_KERNEL = 1
    PER_POINT = 2


class PoolMode(OpenEnum):
    """What a pooling makes of a window."""

    AVG = 0
    MAX = 1
    MIN = 2


class RubikMode(OpenEnum):
    """How Rubik reorders."""

    CONTRACT = 0
    SPLIT = 1
    MERGE = 2


class EmuOpType(OpenEnum):
    """What a CPU operation computes."""

    POWER = 0
    SOFTMAX = 1

    @property
    def member(self) -> str:
        """The member of a slot of the operation list (EmuOperationContainer) that describes it."""
        return f"{self.name.lower()}_op"

    @classmethod
    def choices(cls) -> str:
        """The known ones in words."""
        return " or ".join(f"{each.value} {each.name}" for each in cls)


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
